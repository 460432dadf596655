//! `weft completions`: completion of the command line for a shell.

use crate::cli;
use crate::failure::{Ending, Outcome};
use crate::output::Answer;
use clap_complete::Shell;

const HELP: &str = "\
Examples:
  weft completions bash > ~/.local/share/bash-completion/completions/weft
  weft completions fish > ~/.config/fish/completions/weft.fish";

/// Print the completion script for a shell
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Which shell
    shell: Shell,
}

pub fn run(args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "weft", &mut script);
    let mut answer = Answer::new();
    answer.bytes(&script)?;
    answer.finish()?;
    Ok(Ending::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_gets_a_script_with_the_verbs() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut cli::command(), "weft", &mut script);
            assert!(String::from_utf8_lossy(&script).contains("locate"), "{shell}");
        }
    }
}
