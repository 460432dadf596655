//! Counts of the program in `weft_sim::scale`, for more and more nodes.

use std::process::ExitCode;
use weft_sim::scale::{Setting, json, run, table};

/// Bytes of a record.
const RECORD_BYTES: u32 = 4096;

/// Records of a rank, and ranks of a node, where none are said.
const RECORDS: u32 = 32;
const RANKS_PER_NODE: u16 = 1;

/// `words`: `[--json] segmented|strided NODES[,NODES...] [RECORDS [RANKS_PER_NODE]]`. `None`: they are something else.
pub fn scale(words: &[String]) -> Option<ExitCode> {
    let is_json = words.first().is_some_and(|word| word == "--json");
    let mut words = words.iter().skip(usize::from(is_json)).map(String::as_str);
    let is_strided = match words.next()? {
        "segmented" => false,
        "strided" => true,
        _ => return None,
    };
    let nodes: Vec<u16> = words.next()?.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    let records = words.next().map_or(Some(RECORDS), |word| word.parse().ok())?;
    let ranks_per_node = words.next().map_or(Some(RANKS_PER_NODE), |word| word.parse().ok())?;
    let is_used = records > 0 && ranks_per_node > 0 && nodes.iter().all(|nodes| *nodes > 0);
    if !is_used || words.next().is_some() {
        return None;
    }
    let counted = nodes.into_iter().map(|nodes| {
        let setting = Setting { nodes, ranks_per_node, records, bytes: RECORD_BYTES, is_strided, reads_next: false };
        eprintln!("{nodes} nodes");
        (setting, run(&setting))
    });
    let runs: Vec<_> = counted.collect();
    print!("{}", if is_json { json(&runs) } else { table(&runs) });
    Some(ExitCode::SUCCESS)
}
