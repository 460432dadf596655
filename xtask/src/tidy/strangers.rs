//! What belongs to somebody's machine, and not into the repository.

use super::{Finding, Source};

/// Pieces are joined here, so that this file passes itself.
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/fa", "rm/")];
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("registry.npm", "js.org"),
    concat!("py", "pi.org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.go", "lang.org"),
];
/// Written by cargo, which names the registry in it.
const LOCK_FILE: &str = "Cargo.lock";

/// Checks one file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    if source.path == LOCK_FILE {
        return;
    }
    for (number, line) in source.text.lines().enumerate() {
        for path in PATHS.iter().filter(|path| has_path(line, path)) {
            findings.push(Finding::new(&source.path, number + 1, format!("`{path}` is a path of some machine")));
        }
        for host in REGISTRIES.iter().filter(|host| line.contains(**host)) {
            findings.push(Finding::new(&source.path, number + 1, format!("`{host}`: registries are set outside")));
        }
    }
}

/// Whether the line has an absolute path that begins so. A folder of that name further down is another thing.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ')' | '}' | '~' | ':' | '*'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_machines_are_found() {
        let root = PATHS[0];
        for (line, found) in [
            (format!("cd {root}main"), true),
            (format!("\"{root}x\""), true),
            (format!("~{root}x"), false),
            (format!("demo:{root}x"), false),
            ("/mnt/x".to_owned(), false),
        ] {
            assert_eq!(has_path(&line, root), found, "{line}");
        }
    }
}
