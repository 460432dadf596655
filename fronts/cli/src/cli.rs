//! The verbs, in their groups: one definition for parsing, short and long help, man pages and completions.

use crate::failure::Outcome;
use crate::keys;
use crate::verb;
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::path::PathBuf;

/// One shared file system out of the storage of the nodes you have.
#[derive(Parser, Debug)]
#[command(name = "weft", version, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Work as the user of this key [default: WEFT_KEY, ~/.config/weft/NAME.key]
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    key: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Up(verb::up::Args),
    Down(verb::down::Args),
    Mount(verb::mount::Args),
    Umount(verb::umount::Args),
    Mpiexec(verb::mpiexec::Args),
    User(verb::user::Args),
    Node(verb::node::Args),
    Balance(verb::node::balance::Args),
    Serve(verb::serve::Args),
    Host(verb::host::Args),
    Guard(verb::guard::Args),
    Status(verb::status::Args),
    Ls(verb::ls::Args),
    Cat(verb::cat::Args),
    Stat(verb::stat::Args),
    Locate(verb::locate::Args),
    Df(verb::df::Args),
    Bench(verb::bench::Args),
    Cp(verb::cp::Args),
    Stage(verb::stage::Args),
    Drain(verb::drain::Args),
    Mv(verb::mv::Args),
    Rm(verb::rm::Args),
    Mkdir(verb::mkdir::Args),
    Layout(verb::layout::Args),
    Convert(verb::convert::Args),
    Doctor(verb::doctor::Args),
    Debug(verb::debug::Args),
    Store(verb::store::Args),
    Completions(verb::completions::Args),
    Man(verb::man::Args),
}

/// The verbs as the short help shows them. Hidden ones (`serve`, `host`, `guard`) have their own long help.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Run", &["up", "down", "node", "balance", "mount", "umount", "mpiexec", "user"]),
    ("Look", &["status", "ls", "cat", "stat", "locate", "df", "bench"]),
    ("Move", &["cp", "stage", "drain", "mv", "rm", "mkdir", "layout", "convert"]),
    ("Tools", &["doctor", "debug", "store", "completions", "man"]),
];

impl Cli {
    /// Does what was asked.
    pub fn run(self) -> Outcome {
        keys::give(self.key.as_deref())?;
        match self.verb {
            Verb::Up(args) => verb::up::run(args),
            Verb::Down(args) => verb::down::run(&args),
            Verb::Mount(args) => verb::mount::run(&args),
            Verb::Umount(args) => verb::umount::run(&args),
            Verb::Mpiexec(args) => verb::mpiexec::run(&args),
            Verb::User(args) => verb::user::run(&args),
            Verb::Node(args) => verb::node::run(&args),
            Verb::Balance(args) => verb::node::balance::run(&args),
            Verb::Serve(args) => verb::serve::run(&args),
            Verb::Host(args) => verb::host::run(&args),
            Verb::Guard(args) => verb::guard::run(&args),
            Verb::Status(args) => verb::status::run(&args),
            Verb::Ls(args) => verb::ls::run(&args),
            Verb::Cat(args) => verb::cat::run(&args),
            Verb::Stat(args) => verb::stat::run(&args),
            Verb::Locate(args) => verb::locate::run(&args),
            Verb::Df(args) => verb::df::run(&args),
            Verb::Bench(args) => verb::bench::run(&args),
            Verb::Cp(args) => verb::cp::run(&args),
            Verb::Stage(args) => verb::stage::run(&args),
            Verb::Drain(args) => verb::drain::run(&args),
            Verb::Mv(args) => verb::mv::run(&args),
            Verb::Rm(args) => verb::rm::run(&args),
            Verb::Mkdir(args) => verb::mkdir::run(&args),
            Verb::Layout(args) => verb::layout::run(&args),
            Verb::Convert(args) => verb::convert::run(&args),
            Verb::Doctor(args) => verb::doctor::run(&args),
            Verb::Debug(args) => verb::debug::run(&args),
            Verb::Store(args) => verb::store::run(&args),
            Verb::Completions(args) => verb::completions::run(&args),
            Verb::Man(args) => verb::man::run(&args),
        }
    }
}

/// Takes the command line apart. Bad use, `--help` and `--version` end the process.
pub fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The definition of the whole command, with the verbs grouped in its help.
pub fn command() -> Command {
    let command = Cli::command();
    let template = format!(
        "{{about}}. {{usage-heading}} {{usage}}\nPaths: NAME:/path in a file system (weft:/path: the only one \
         running), others of this machine.\n{}Options (-h of a verb: short help, --help: with examples; -V: the \
         version):\n  --key FILE   Work as the user of this key [default: WEFT_KEY, ~/.config/weft/NAME.key]\n",
        groups_text(&command)
    );
    command.help_template(template)
}

/// The groups, a line per verb: the first sentence of its help.
fn groups_text(command: &Command) -> String {
    let mut text = String::new();
    for (group, verbs) in GROUPS {
        text.push_str(&format!("\n{group}:\n"));
        for name in verbs {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            text.push_str(&format!("  {name:<13}{}\n", about.unwrap_or_default()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_short_help_fits_a_screen() {
        let help = command().render_help().to_string();
        let long = command().render_long_help().to_string();
        assert!(help.lines().count() <= 40 && long.lines().count() <= 40, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(help.contains("weft [OPTIONS] <COMMAND>"), "{help}");
    }

    #[test]
    fn every_verb_is_in_exactly_one_group_or_hidden() {
        let command = command();
        let shown: BTreeSet<&str> =
            command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), shown);
        assert_eq!(grouped.len(), shown.len());
    }

    #[test]
    fn every_verb_has_an_example_in_its_long_help() {
        fn check(path: &str, command: &Command) {
            let path = format!("{path} {}", command.get_name());
            if command.has_subcommands() {
                command.get_subcommands().for_each(|inner| check(&path, inner));
                return;
            }
            let help = command.clone().render_long_help().to_string();
            let examples = help.split("Examples:").nth(1).unwrap_or_default();
            assert!(examples.contains(path.trim()), "{path}:\n{help}");
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(text.lines().all(|line| line.chars().count() < 80), "{path}: fits a terminal:\n{text}");
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty() && about.chars().count() <= 78, "{path}: one line about it: {about}");
        }
        command().get_subcommands().for_each(|verb| check("weft", verb));
    }

    #[test]
    fn every_option_says_what_it_does() {
        fn check(command: &Command) {
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{}: {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        command().get_subcommands().for_each(check);
    }
}
