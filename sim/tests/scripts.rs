//! Scripts of runs that failed once (`sim/scripts`; any in `failing` still do), and whether a script means the run of
//! which it was made.

use std::path::PathBuf;
use weft_sim::script::Script;
use weft_sim::{Kind, play, record};

fn scripts() -> Vec<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = std::fs::read_dir(&directory).expect("the directory of scripts is there");
    let paths = entries.map(|entry| entry.expect("its entries can be read").path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    paths
}

/// One of which less than half is followed shows nothing any more: it has to be made anew, with the edit that it names.
#[test]
fn what_failed_once_holds() {
    let paths = scripts();
    assert!(paths.len() >= 10, "scripts are missing: {paths:?}");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a script can be read");
        let script: Script = text.parse().unwrap_or_else(|what| panic!("{}: {what}", path.display()));
        assert_eq!(script.to_string().parse(), Ok(script.clone()), "{} is written as it is read", path.display());
        let (path, lines) = (path.display(), script.entries.len());
        let outcome = play(script, false);
        println!("{path}: {} of {lines} decisions were followed, {} did not fit", outcome.used.len(), outcome.misfits);
        if let Err(what) = outcome.result {
            panic!("{path} fails; its events: weft-sim trace {path}\n{what}");
        }
        assert!(outcome.used.len() * 2 >= lines, "{path}: most of it fits nothing any more");
    }
}

#[test]
fn a_script_does_what_its_seed_did() {
    let natives = [Kind::Native, Kind::Plain, Kind::Partitions, Kind::Xattrs, Kind::Groups];
    for kind in natives.into_iter().chain([Kind::Mounts, Kind::Gone]) {
        // Of gone 1 (19 and 21 before) pauses are recorded after the node's end that nothing asks for when it is
        // played.
        let second = if kind == Kind::Gone { 2 } else { 1 };
        for seed in [0, second, 4, 9, 20] {
            let recorded = record(kind, seed);
            let script: Script = recorded.script.to_string().parse().expect("it is written as it is read");
            let played = play(script.clone(), false);
            assert_eq!(played.misfits, 0, "{kind}, seed {seed}");
            assert_eq!(played.used.len(), script.entries.len(), "{kind}, seed {seed}");
            assert_eq!(played.result.ok(), recorded.result.ok(), "{kind}, seed {seed}");
        }
    }
}

/// What is left out changes nothing of the rest: no line of a fault, and none happens.
#[test]
fn a_script_without_faults_has_none() {
    for kind in [Kind::Native, Kind::Mounts] {
        let mut script = record(kind, 9).script;
        let calls = |what: &str| what == "call" || what.starts_with("client") && !what.contains(' ');
        script.entries.retain(|key, _| calls(&key.what));
        let tally = play(script, false).result.expect("it holds");
        assert!(tally.operations > 0);
        let faults =
            [tally.lost, tally.doubled, tally.broken, tally.pauses, tally.partitions, tally.torn, tally.refused];
        assert_eq!(faults, [0; 7], "{kind}");
    }
}

#[test]
fn a_line_that_fits_nothing_is_passed_over_and_counted() {
    let script: Script = "run: mounts\nround 1\n  call: client 0 +0 close h3\n  call #2: client 1 +0 stat /\n"
        .parse()
        .expect("it is a script");
    let outcome = play(script, false);
    assert_eq!((outcome.misfits, outcome.used.len()), (1, 1));
    assert!(outcome.result.is_ok());
    let wrong = ["", "run: nothing\n", "run: mounts\nround x\n", "run: mounts\nsomething\n"];
    assert!(wrong.iter().all(|text| text.parse::<Script>().is_err()));
}
