//! Dependencies point down only, and the pure crates do no I/O.

use super::code::{only_code, test_lines};
use super::{Finding, Source};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::Command;

/// The level of each package. One depends on lower ones only.
const LEVELS: &[(&str, u8)] = &[
    ("weft-protocol", 0),
    ("weft-sys", 0),
    ("weft-layout", 1),
    ("weft-ucx", 1),
    ("weft-region", 1),
    ("weft-client-core", 2),
    ("weft-metadata", 2),
    ("weft-storage", 2),
    ("weft-transport", 2),
    ("weft-store-io", 2),
    ("weft-client", 3),
    ("weft-mount-core", 3),
    ("weft-mpi", 3),
    ("weft-node", 3),
    ("weft", 4),
    ("weft-fuse", 4),
    ("weft-library", 4),
    ("weft-c", 5),
    ("weft-python", 5),
    ("weft-sim", 4),
    ("weft-tests", 4),
    ("weft-consistency", 4),
    ("weft-bench", 4),
    ("weft-fuzz", 4),
    ("weft-xtask", 4),
];
/// Dependencies inside a level. The executor moves bytes between files and sockets; the binary has all fronts in it.
const BESIDE: &[(&str, &str)] = &[("weft-store-io", "weft-transport"), ("weft", "weft-fuse")];
/// Packages without I/O, clocks and threads, and their folders.
const PURE: &[(&str, &str)] = &[
    ("weft-protocol", "crates/protocol/src/"),
    ("weft-layout", "crates/layout/src/"),
    ("weft-metadata", "crates/metadata/src/"),
    ("weft-storage", "crates/storage/src/"),
    ("weft-client-core", "crates/client-core/src/"),
    ("weft-mount-core", "crates/mount-core/src/"),
];
/// Folders without I/O, clocks and threads in packages that depend on what they like.
const PURE_FOLDERS: &[&str] = &["sim/src/kernel.rs", "sim/src/kernel/"];
/// What no pure package depends on.
const IMPURE_PACKAGES: &[&str] = &[
    "weft-sys",
    "weft-ucx",
    "weft-transport",
    "weft-store-io",
    "rustix",
    "nix",
    "libc",
    "getrandom",
    "signal-hook",
    "tracing",
];
/// What no pure package calls.
const IMPURE_WORDS: &[&str] = &[
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "std::env",
    "HashMap::new",
    "HashSet::new",
];

/// What `cargo metadata` tells of the packages of the workspace.
pub fn metadata(root: &Path) -> io::Result<Vec<Value>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let value: Value = serde_json::from_slice(&output.stdout)?;
    Ok(value["packages"].as_array().cloned().unwrap_or_default())
}

/// The name of a package.
pub fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// The folder of a package, relative to the workspace.
pub fn folder(package: &Value, sources: &[Source]) -> String {
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    let known = sources.iter().filter(|source| source.path.ends_with("Cargo.toml"));
    let longest = known.filter(|source| manifest.ends_with(&format!("/{}", source.path)));
    let path = longest.map(|source| source.path.as_str()).max_by_key(|path| path.len()).unwrap_or_default();
    path.trim_end_matches("Cargo.toml").trim_end_matches('/').to_owned()
}

fn level(name: &str) -> Option<u8> {
    LEVELS.iter().find(|(package, _)| *package == name).map(|(_, level)| *level)
}

/// Checks the packages. Dependencies of tests may point anywhere.
pub fn check(packages: &[Value], sources: &[Source], findings: &mut Vec<Finding>) {
    for package in packages {
        let name = name(package);
        let folder = folder(package, sources);
        if folder.is_empty() {
            // It is not tracked yet.
            continue;
        }
        let manifest = format!("{folder}/Cargo.toml");
        let Some(own) = level(name) else {
            findings.push(Finding::new(&manifest, 0, format!("{name} has no level in xtask/src/tidy/layers.rs")));
            continue;
        };
        let lints =
            sources.iter().any(|source| source.path == manifest && source.text.contains("[lints]\nworkspace = true"));
        if !lints {
            findings.push(Finding::new(
                &manifest,
                0,
                "the lints of the workspace are not taken: [lints] workspace = true",
            ));
        }
        let pure = PURE.iter().any(|(pure, _)| *pure == name);
        let dependencies = package["dependencies"].as_array().cloned().unwrap_or_default();
        for dependency in dependencies.iter().filter(|dependency| dependency["kind"] != "dev") {
            let to = dependency["name"].as_str().unwrap_or_default();
            if level(to).is_some_and(|level| level >= own) && !BESIDE.contains(&(name, to)) {
                findings.push(Finding::new(&manifest, 0, format!("{name} depends on {to}, which is not below it")));
            }
            if pure && IMPURE_PACKAGES.contains(&to) {
                findings.push(Finding::new(&manifest, 0, format!("{name} is pure and depends on {to}")));
            }
        }
    }
}

/// Checks that a file of a pure package or folder does no I/O.
pub fn check_purity(source: &Source, findings: &mut Vec<Finding>) {
    let folders = PURE.iter().map(|(_, folder)| folder).chain(PURE_FOLDERS);
    if source.is_test() || !folders.into_iter().any(|folder| source.path.starts_with(folder)) {
        return;
    }
    let code = only_code(&source.text);
    let in_test = test_lines(&code);
    for (number, line) in code.lines().enumerate().filter(|(number, _)| !in_test[*number]) {
        for word in IMPURE_WORDS.iter().filter(|word| line.contains(**word)) {
            findings.push(Finding::new(&source.path, number + 1, format!("`{word}` in a pure package")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn io_in_pure_folders_is_found() {
        for (path, expected) in [
            ("crates/metadata/src/a.rs", 1),
            ("sim/src/kernel/read.rs", 1),
            ("sim/src/main.rs", 0),
            ("sim/tests/kernel_model/linux.rs", 0),
        ] {
            let source = Source { path: path.to_owned(), text: "use std::fs;".to_owned() };
            let mut findings = Vec::new();
            check_purity(&source, &mut findings);
            assert_eq!(findings.len(), expected, "{path}");
        }
    }

    #[test]
    fn arrows_upwards_are_found() {
        let package = |name: &str, folder: &str, to: &str, kind: Value| {
            json!({"name": name, "manifest_path": format!("/x/{folder}/Cargo.toml"),
                   "dependencies": [{"name": to, "kind": kind}]})
        };
        let text = "[lints]\nworkspace = true".to_owned();
        let source = |folder: &str| Source { path: format!("{folder}/Cargo.toml"), text: text.clone() };
        let sources = ["crates/metadata", "crates/client", "fronts/cli", "crates/new"].map(source);
        for (name, folder, to, kind, expected) in [
            ("weft-metadata", "crates/metadata", "weft-protocol", json!(null), 0),
            ("weft-metadata", "crates/metadata", "weft-storage", json!(null), 1),
            ("weft-metadata", "crates/metadata", "weft-node", json!("dev"), 0),
            ("weft-metadata", "crates/metadata", "rustix", json!(null), 1),
            ("weft-client", "crates/client", "rustix", json!(null), 0),
            ("weft", "fronts/cli", "weft-fuse", json!(null), 0),
            ("weft-new", "crates/new", "serde", json!(null), 1),
        ] {
            let mut findings = Vec::new();
            check(&[package(name, folder, to, kind)], &sources, &mut findings);
            assert_eq!(findings.len(), expected, "{name} -> {to}: {findings:?}");
        }
    }
}
