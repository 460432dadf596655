//! `weft man`: manual pages, made from the same definition as the help.

use crate::cli;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::Answer;
use clap::Command;
use clap_mangen::Man;
use std::fs;
use std::path::PathBuf;

const HELP: &str = "\
Examples:
  weft man | man -l -
  weft man ~/.local/share/man/man1";

/// Print the manual page, or write a page per verb into a directory
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Directory for weft.1, weft-up.1, ...
    directory: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    match &args.directory {
        None => {
            let mut answer = Answer::new();
            answer.bytes(&page(cli::command(), "weft")?)?;
            answer.finish()?;
        }
        Some(directory) => {
            fs::create_dir_all(directory).explain(|| directory.display()).map_err(Failure::failed)?;
            for (name, page) in pages()? {
                let path = directory.join(name);
                fs::write(&path, page).explain(|| path.display())?;
            }
        }
    }
    Ok(Ending::Done)
}

/// Name and text of each page: the command and its verbs, but for those that only programs give.
fn pages() -> Outcome<Vec<(String, Vec<u8>)>> {
    fn collect(command: &Command, prefix: &str, pages: &mut Vec<(String, Vec<u8>)>) -> Outcome<()> {
        let name =
            if prefix.is_empty() { command.get_name().to_owned() } else { format!("{prefix}-{}", command.get_name()) };
        pages.push((format!("{name}.1"), page(command.clone(), &name)?));
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| collect(verb, &name, pages))
    }
    let mut command = cli::command();
    command.build();
    let mut pages = Vec::new();
    collect(&command, "", &mut pages)?;
    Ok(pages)
}

fn page(command: Command, title: &str) -> Outcome<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command).title(title).render(&mut text).map_err(|error| Failure::new(format!("manual page: {error}")))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_per_verb_with_its_examples_and_none_for_a_hidden_one() {
        let pages = pages().expect("pages");
        for name in ["weft.1", "weft-up.1", "weft-bench-data.1"] {
            assert!(pages.iter().any(|(page, _)| page == name), "{name}");
        }
        for hidden in ["weft-serve", "weft-host", "weft-bench-worker"] {
            assert!(!pages.iter().any(|(page, _)| page.starts_with(hidden)), "{hidden}");
            let names = |page: &[u8]| String::from_utf8_lossy(page).replace('\\', "").contains(hidden);
            assert!(!pages.iter().any(|(_, page)| names(page)), "{hidden} is named");
        }
        let (_, up) = pages.iter().find(|(name, _)| name == "weft-up.1").expect("there");
        assert!(String::from_utf8_lossy(up).contains("weft up lab"));
    }
}
