//! What every tracked file has to keep, checked by a program instead of a reader.
//!
//! | check | where |
//! | --- | --- |
//! | lines of at most 120 characters, files of at most 650 lines, functions of at most 100 | [`shape`] |
//! | no unfinished code, no `unwrap` outside tests, no bare `allow`, no `unsafe` outside the fences | [`words`] |
//! | no file that no module names | [`modules`] |
//! | no import cycle of more than three files | [`cycles`] |
//! | dependencies point down only; pure crates do no I/O | [`layers`] |
//! | ARCHITECTURE.md names the crates that there are | [`architecture`] |
//! | no path of somebody's machine, no host of a package registry | [`strangers`] |

pub mod architecture;
pub mod code;
pub mod cycles;
pub mod layers;
pub mod modules;
pub mod shape;
pub mod strangers;
pub mod words;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something that has to be put right.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// Relative to the workspace.
    pub path: String,
    /// From 1; 0: the whole file.
    pub line: usize,
    pub text: String,
}

impl Finding {
    /// A finding at a line.
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// A tracked text file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the workspace.
    pub path: String,
    pub text: String,
}

impl Source {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether all of it is tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.starts_with("tests/")
    }
}

/// Runs all checks over the workspace.
pub fn run() -> io::Result<Vec<Finding>> {
    let root = workspace();
    let sources = tracked(&root)?;
    let metadata = layers::metadata(&root)?;
    let mut findings = Vec::new();
    for source in &sources {
        strangers::check(source, &mut findings);
        if source.is_rust() {
            shape::check(source, &mut findings);
            words::check(source, &mut findings);
            layers::check_purity(source, &mut findings);
        }
    }
    modules::check(&sources, &mut findings);
    cycles::check(&sources, &mut findings);
    layers::check(&metadata, &sources, &mut findings);
    architecture::check(&metadata, &sources, &mut findings);
    findings.sort();
    Ok(findings)
}

/// The folder of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Sources of other projects, kept as these wrote them: their rules hold there. Each says what is different in it.
const OF_OTHERS: &str = "third_party/";

/// The files that git tracks. Without git: all but what is built.
fn tracked(root: &Path) -> io::Result<Vec<Source>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let paths: Vec<String> = match listed {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
        }
        _ => walked(root, root)?,
    };
    let mut sources = Vec::new();
    for path in paths.into_iter().filter(|path| !path.starts_with(OF_OTHERS)) {
        // What is no text, or was removed and not yet committed, is not looked at.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            sources.push(Source { path, text });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path);
    Ok(sources)
}

fn walked(root: &Path, directory: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            paths.extend(walked(root, &entry.path())?);
        } else if let Ok(path) = entry.path().strip_prefix(root) {
            paths.push(path.display().to_string());
        }
    }
    Ok(paths)
}
