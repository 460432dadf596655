//! The model of the kernel against the real kernel: the same scripts, the same requests and results.
//!
//! Rules by hand (`names.rs`, `pages.rs`, ...) and random scripts (`random.rs`). Where `/dev/fuse` cannot be mounted
//! the scripts run against the model only, and the reason is printed.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod linux;
mod listings;
mod model;
mod modes;
mod names;
mod pages;
mod programs;
mod random;
mod script;
mod server;
mod trace;
mod wire;

use script::Script;
use std::sync::OnceLock;

/// Why the real kernel is not asked, once for all tests.
fn unavailable() -> Option<&'static String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON
        .get_or_init(|| {
            let reason = linux::unavailable();
            if let Some(reason) = &reason {
                println!("only the model runs: {reason}");
            }
            reason
        })
        .as_ref()
}

/// Seeds for races between calls, of which the real kernel may settle each in either way.
const RACE_SEEDS: u64 = 12;

/// What the model does by itself, and then with each seed what it has not done before.
fn possible_runs(script: &Script) -> Vec<Vec<trace::Events>> {
    let mut possible = vec![model::run(script)];
    for seed in 0..RACE_SEEDS {
        let mut other = script.clone();
        other.config.seed = Some(seed);
        let run = model::run(&other);
        if !possible.contains(&run) {
            possible.push(run);
        }
    }
    possible
}

/// Where model and kernel differ, as text; `None` if the kernel did what the model does with some seed.
fn difference(script: &Script) -> Option<String> {
    if unavailable().is_some() {
        return None;
    }
    linux::run(script, &[model::run(script)]).err()?;
    // Or it settled a race otherwise, which it may do each time, and differently.
    let possible = possible_runs(script);
    let first = linux::run(script, &possible).err()?;
    let expected = &possible[0];
    let mut text = String::new();
    for (number, step) in script.steps.iter().enumerate().take(first.step + 1) {
        text.push_str(&format!("{number}: {}\n", trace::shorten(&format!("{step:?}"))));
        if number < first.step {
            text.push_str(&format!("{}\n", trace::show(&expected[number])));
        }
    }
    text.push_str(&format!("  model:\n{}\n", trace::show(&first.expected)));
    text.push_str(&format!("  kernel:\n{}\n", trace::show(&first.found)));
    Some(text)
}

/// How often a script is run before a difference counts: the kernel's flusher threads may write a dirty page back
/// between two steps.
const ATTEMPTS: usize = 3;

/// Runs a script against both.
fn check(script: &Script) -> Vec<trace::Events> {
    let mut differences = std::iter::repeat_with(|| difference(script)).take(ATTEMPTS);
    let last = differences.try_fold(String::new(), |_, difference| difference);
    if let Some(text) = last {
        panic!("model and kernel differ:\n{text}");
    }
    model::run(script)
}
