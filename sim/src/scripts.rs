//! Scripts by hand: record a seed, play a script, shorten one that fails.

use std::process::ExitCode;
use weft_sim::script::Script;
use weft_sim::shorten::{cause, shorten as shorten_script};
use weft_sim::{Kind, Outcome};

/// Prints what a seed does.
pub fn record(kind: Kind, seed: u64) -> ExitCode {
    let outcome = weft_sim::record(kind, seed);
    println!("# What seed {seed} does.");
    if let Err(what) = &outcome.result {
        println!("# It fails: {}", cause(what));
    }
    print!("{}", outcome.script);
    ExitCode::SUCCESS
}

/// Does what a script says, and tells whether all is well.
pub fn play(path: &str, trace: bool) -> ExitCode {
    let script = match read(path) {
        Ok((_, script)) => script,
        Err(code) => return code,
    };
    let outcome = weft_sim::play(script, trace);
    println!("{path}: {}", summary(&outcome));
    match outcome.result {
        Ok(tally) => {
            println!("it holds: {tally:?}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("it fails: {}", cause(&what));
            ExitCode::FAILURE
        }
    }
}

/// Prints a shorter script that fails as this one does.
pub fn shorten(path: &str) -> ExitCode {
    let (comments, script) = match read(path) {
        Ok(read) => read,
        Err(code) => return code,
    };
    std::panic::set_hook(Box::new(|_| ()));
    let first = weft_sim::play(script, false);
    let Err(what) = &first.result else {
        eprintln!("{path} does not fail: {}", summary(&first));
        return ExitCode::from(2);
    };
    let cause_of_first = cause(what);
    eprintln!("{} lines; it fails: {cause_of_first}", first.script.lines());
    let mut runs = 0_u64;
    let short = shorten_script(&first.script, |script| {
        runs += 1;
        let outcome = weft_sim::play(script.clone(), false);
        let fails = outcome.result.is_err_and(|what| cause(&what) == cause_of_first);
        fails.then_some(outcome.used)
    });
    eprintln!("{} lines after {runs} runs", short.lines());
    comments.iter().for_each(|line| println!("{line}"));
    print!("{short}");
    ExitCode::SUCCESS
}

fn summary(outcome: &Outcome) -> String {
    let (all, used) = (outcome.script.entries.len(), outcome.used.len());
    format!("{used} of {all} decisions were followed, {} did not fit", outcome.misfits)
}

/// A script, and the comments before it.
fn read(path: &str) -> Result<(Vec<String>, Script), ExitCode> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let script = text.and_then(|text| {
        let comments = text.lines().take_while(|line| line.starts_with('#')).map(str::to_owned).collect();
        text.parse::<Script>().map(|script| (comments, script))
    });
    script.map_err(|what| {
        eprintln!("{path}: {what}");
        ExitCode::from(2)
    })
}
