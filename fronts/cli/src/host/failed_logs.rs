//! Logs of nodes that did not start: kept in the runtime directory, beside the directories of file systems, until
//! `weft down` removes them.

use crate::session::node_name;
use std::fs;
use std::io;
use std::path::PathBuf;
use weft_client::Instance;
use weft_protocol::NodeId;

const SUFFIX: &str = ".failed.log";

/// Where the log of a node of this file system is kept.
pub fn path_of(file_system: &str, node: NodeId) -> PathBuf {
    Instance::runtime_directory().join(format!("{file_system}-{}{SUFFIX}", node_name(node)))
}

/// The file system of whose node this is the log.
fn file_system_of(file_name: &str) -> Option<&str> {
    let (file_system, node) = file_name.strip_suffix(SUFFIX)?.rsplit_once("-n")?;
    let is_number = !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && Instance::is_name(file_system)).then_some(file_system)
}

/// Removes those of a file system, or all.
pub fn remove(file_system: Option<&str>) -> io::Result<()> {
    if !Instance::check_runtime_directory()? {
        return Ok(());
    }
    for entry in fs::read_dir(Instance::runtime_directory())? {
        let entry = entry?;
        let name = entry.file_name();
        let of = name.to_str().and_then(file_system_of);
        if of.is_some_and(|of| file_system.is_none_or(|wanted| of == wanted)) {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_known_by_its_name() {
        let path = path_of("a-n1", NodeId(3));
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert_eq!((name, file_system_of(name)), ("a-n1-n03.failed.log", Some("a-n1")));
        for other in ["a-n03.log", "a.failed.log", "a-nx.failed.log", "-n03.failed.log", "a-n.failed.log"] {
            assert_eq!(file_system_of(other), None, "{other}");
        }
    }
}
