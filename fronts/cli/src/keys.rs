//! Keys with which this user opens file systems of others: the one that was given (`--key FILE`, or WEFT_KEY), and
//! those kept in `~/.config/weft`, as NAME.key.
//!
//! Not here: making keys (`verb/user.rs`), and what they may do, which the servers decide.

use crate::failure::{Explain, Failure, Outcome};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use weft_client::{Instance, KeyFile};

/// Names the file when `--key` does not.
const VARIABLE: &str = "WEFT_KEY";
/// What kept keys end with.
const SUFFIX: &str = ".key";

/// The file that was given: known from the command line on, the same for the whole command.
static GIVEN: OnceLock<PathBuf> = OnceLock::new();

/// Takes note of the file that `--key` or WEFT_KEY names. Called once, before a verb runs.
pub fn give(path: Option<&Path>) -> Outcome<()> {
    let variable = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = path.map(Path::to_owned).or_else(variable) {
        // Processes that this command starts work in another directory.
        let path = std::path::absolute(&path).explain(|| path.display())?;
        GIVEN.get_or_init(|| path);
    }
    Ok(())
}

/// The words that hand the given key to a process that this command starts.
pub fn words() -> Vec<OsString> {
    GIVEN.get().map(|path| vec!["--key".into(), path.into()]).unwrap_or_default()
}

/// The given key.
pub fn given() -> Outcome<Option<KeyFile>> {
    GIVEN.get().map(|path| read(path)).transpose()
}

/// The kept key of the file system of this name, or the only one that is kept.
pub fn kept(name: Option<&str>) -> Outcome<Option<KeyFile>> {
    let Some(directory) = directory() else { return Ok(None) };
    let path = match name {
        Some(name) => directory.join(format!("{name}{SUFFIX}")),
        None => match names_in(&directory).as_slice() {
            [] => return Ok(None),
            [name] => directory.join(format!("{name}{SUFFIX}")),
            names => {
                return Err(Failure::new(format!("several keys are kept here ({}): say which", names.join(", ")))
                    .remedy("add the name of the file system, or write NAME:/path"));
            }
        },
    };
    if fs::exists(&path).unwrap_or(true) { read(&path).map(Some) } else { Ok(None) }
}

/// Where keys are kept.
fn directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configuration = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(configuration.join("weft"))
}

/// The file systems whose keys are in the directory, by name.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(SUFFIX)?.to_owned());
    let mut names: Vec<String> = entries.filter_map(name).filter(|name| Instance::is_name(name)).collect();
    names.sort();
    names
}

fn read(path: &Path) -> Outcome<KeyFile> {
    KeyFile::read(path).map_err(|error| {
        let failure = Failure::of_io("key", &error).failed();
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure.remedy(format!("`chmod 600 {}`, as its owner", path.display())),
            _ => failure.remedy("the owner of the file system makes one: `weft user add`"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_keys_are_known_by_their_names() {
        let directory = std::env::temp_dir().join(format!("weft-keys-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("made");
        for name in ["job.key", "a.b.key", "notes.txt", ".key", "-x.key"] {
            fs::write(directory.join(name), "").expect("written");
        }
        assert_eq!(names_in(&directory), ["a.b", "job"]);
        fs::remove_dir_all(&directory).expect("removed");
        assert!(names_in(&directory).is_empty());
    }

    #[test]
    fn a_key_that_cannot_be_read_has_a_remedy() {
        let failure = read(Path::new("/nonexistent/job.key")).expect_err("not there");
        assert!(failure.text().contains("/nonexistent/job.key") && failure.remedy_text().is_some(), "{failure}");
        assert_eq!(failure.exit_code(), 2);
    }
}
