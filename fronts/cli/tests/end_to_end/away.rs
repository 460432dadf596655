//! Nodes that do not answer.

use super::Ground;
use super::hosts::{pids, signal};
use serde_json::Value;
use std::time::{Duration, Instant};

#[test]
fn df_waits_once_for_all_nodes_that_do_not_answer() {
    let ground = Ground::new("df-away");
    ground.weft(&["up", "e2e", "--nodes", "5", "--identity-per-node"]);
    let pids = pids(&ground);
    pids[1..4].iter().for_each(|pid| signal(*pid, "-STOP"));
    let begun = Instant::now();
    let output = ground.command(&["df", "--json", "e2e"]).output().expect("weft starts");
    let took = begun.elapsed();
    pids[1..4].iter().for_each(|pid| signal(*pid, "-CONT"));
    assert_eq!(output.status.code(), Some(1));
    assert!(took < Duration::from_secs(10), "it took {took:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = report["nodes"].as_array().expect("nodes");
    let answered: Vec<bool> = nodes.iter().map(|node| node["error"].is_null() && node["total"].is_u64()).collect();
    assert_eq!(answered, [true, false, false, false, true], "{report}");
}
