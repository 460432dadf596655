//! ARCHITECTURE.md names the crates that there are, and no others.

use super::layers::{folder, name};
use super::{Finding, Source};
use serde_json::Value;

const PAGE: &str = "ARCHITECTURE.md";

/// Checks the page, when there is one.
pub fn check(packages: &[Value], sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    let folders: Vec<String> = packages.iter().map(|package| folder(package, sources)).collect();
    for (package, folder) in packages.iter().zip(&folders).filter(|(_, folder)| !folder.is_empty()) {
        let named = [name(package), folder].iter().any(|word| mentions(&page.text, word));
        if !named {
            findings.push(Finding::new(PAGE, 0, format!("{folder} ({}) is not described", name(package))));
        }
    }
    for (number, line) in page.text.lines().enumerate() {
        for word in line.split(|c: char| !(c.is_alphanumeric() || "-_/".contains(c))) {
            let word = word.trim_end_matches('/');
            let is_folder =
                ["crates/", "fronts/"].iter().any(|above| word.strip_prefix(above).is_some_and(is_one_name));
            let unknown_folder = is_folder && !folders.iter().any(|folder| folder == word);
            let unknown_package = word.starts_with("weft-") && !packages.iter().any(|package| name(package) == word);
            if unknown_folder || unknown_package {
                findings.push(Finding::new(PAGE, number + 1, format!("there is no {word}")));
            }
        }
    }
}

fn is_one_name(rest: &str) -> bool {
    !rest.is_empty() && !rest.contains('/')
}

/// Whether the page has the word, not as a part of a longer one.
fn mentions(page: &str, word: &str) -> bool {
    page.match_indices(word).any(|(at, _)| {
        let joins = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
        let before = page[..at].chars().next_back();
        let after = page[at + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_and_invented_crates_are_found() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let packages = [
            json!({"name": "weft-a", "manifest_path": "/x/crates/a/Cargo.toml"}),
            json!({"name": "weft-b", "manifest_path": "/x/crates/b/Cargo.toml"}),
        ];
        let sources = [
            source(PAGE, "`crates/a`: and\n`weft-c` of `crates/d/`, see crates/a/src/lib.rs"),
            source("crates/a/Cargo.toml", ""),
            source("crates/b/Cargo.toml", ""),
        ];
        let mut findings = Vec::new();
        check(&packages, &sources, &mut findings);
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [0, 2, 2], "{findings:?}");
    }
}
