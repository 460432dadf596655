//! A process without descriptors says so: no node is away because of it.

use super::Ground;
use std::process::{Command, Stdio};

/// Descriptors that a command has, from too few for its own files to more than it needs.
const LIMITS: std::ops::Range<u32> = 3..40;

#[test]
fn a_command_without_descriptors_does_not_take_nodes_for_away() {
    let ground = Ground::new("descriptors");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let said: Vec<String> = LIMITS
        .map(|limit| {
            let mut command = Command::new("bash");
            let script = format!("ulimit -n {limit} && exec {} ls e2e:/", env!("CARGO_BIN_EXE_weft"));
            command.args(["-c", &script]).env("XDG_RUNTIME_DIR", ground.path("run")).stdin(Stdio::null());
            String::from_utf8(command.output().expect("bash starts").stderr).expect("text")
        })
        .collect();
    assert!(said.iter().all(|text| !text.contains("the server is away")), "{said:?}");
    let tells = |text: &&String| text.contains("ls e2e:/: too many open files") && text.contains("ulimit -n");
    assert!(said.iter().any(|text| tells(&text)), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some(""), "with enough of them it works");
}
