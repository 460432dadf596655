//! Files that no module names: they are not compiled, whatever they say.

use super::code::only_code;
use super::{Finding, Source};
use std::collections::BTreeSet;

/// Checks all files together.
pub fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let rust: Vec<&Source> = sources.iter().filter(|source| source.is_rust()).collect();
    let mut named = BTreeSet::new();
    for source in &rust {
        named.extend(named_by(source));
    }
    let is_compiled = |path: &str| match joined(path, sources) {
        Some(manifest) => manifest.text.contains(&format!("name = \"{}\"", stem(path))),
        None => is_root(path),
    };
    for source in rust {
        if !is_compiled(&source.path) && !named.contains(&source.path) {
            findings.push(Finding::new(&source.path, 0, "no `mod` names this file"));
        }
    }
}

/// Files that cargo compiles by itself.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        [.., "tests" | "examples" | "benches" | "bin", _] => {
            !parts.ends_with(&["src", "tests"]) && !in_src_tests(&parts)
        }
        [.., "tests" | "examples" | "benches" | "bin", _, "main.rs"] => true,
        _ => false,
    }
}

/// The manifest of a package whose tests are modules of `tests/main.rs`, if this is one of them. It names those that
/// are programs of their own.
fn joined<'a>(path: &str, sources: &'a [Source]) -> Option<&'a Source> {
    let (folder, file) = path.rsplit_once('/')?;
    let package = folder.strip_suffix("/tests").filter(|_| file != "main.rs" && is_root(path))?;
    let find = |path: String| sources.iter().find(|source| source.path == path);
    find(format!("{folder}/main.rs")).and_then(|_| find(format!("{package}/Cargo.toml")))
}

fn stem(path: &str) -> &str {
    let (_, file) = path.rsplit_once('/').unwrap_or(("", path));
    file.trim_end_matches(".rs")
}

/// `src/.../tests/x.rs` is a module like any other.
fn in_src_tests(parts: &[&str]) -> bool {
    parts.len() >= 3 && parts[parts.len() - 2] == "tests" && parts[..parts.len() - 2].contains(&"src")
}

/// The paths that the `mod` items of a file name.
fn named_by(source: &Source) -> Vec<String> {
    let (folder, _) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = stem(&source.path);
    let below = if is_root(&source.path) || stem == "mod" { folder.to_owned() } else { format!("{folder}/{stem}") };
    let code = only_code(&source.text);
    let mut named = Vec::new();
    for (line, text) in code.lines().zip(source.text.lines()) {
        // Paths are literals, which the code has no more.
        if let Some(path) = text.trim().strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            named.push(format!("{folder}/{path}"));
        }
        let item = line.trim().trim_end_matches(';');
        let name = item.rsplit(' ').next().unwrap_or_default();
        if line.trim().ends_with(';') && (item == format!("mod {name}") || item.ends_with(&format!(" mod {name}"))) {
            named.push(format!("{below}/{name}.rs"));
            named.push(format!("{below}/{name}/mod.rs"));
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgotten_files_are_found() {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [
            source("crates/a/src/lib.rs", "pub mod b;\nmod c {\n}\n// mod d;\npub(crate) mod e;"),
            source("crates/a/src/b.rs", "#[cfg(test)]\nmod tests;"),
            source("crates/a/src/b/tests.rs", ""),
            source("crates/a/src/d.rs", ""),
            source("crates/a/src/e.rs", ""),
            source("crates/a/src/tests/f.rs", ""),
            source("crates/a/tests/g.rs", "#[path = \"g/h.rs\"]\nmod h;"),
            source("crates/a/tests/g/h.rs", ""),
            source("b/Cargo.toml", "autotests = false\n[[test]]\nname = \"k\""),
            source("b/tests/main.rs", "mod i;"),
            source("b/tests/i.rs", ""),
            source("b/tests/j.rs", ""),
            source("b/tests/k.rs", ""),
        ];
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        let paths: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["crates/a/src/d.rs", "crates/a/src/tests/f.rs", "b/tests/j.rs"]);
    }
}
