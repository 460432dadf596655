//! Which file system is meant: the one that the given key opens, one that this user runs, or one that a kept key opens.
//!
//! Keys that others gave to this user are kept in `~/.config/weft`, as NAME.key.

use crate::instance::Instance;
use crate::job;
use crate::key_file::KeyFile;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names the file of a key.
pub const VARIABLE: &str = "WEFT_KEY";
/// What kept keys end with.
const SUFFIX: &str = ".key";
/// Stands for the only file system that there is.
const ANY: &str = "weft";

/// Why it is not known which file system is meant, or it cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// It is not here; the error says what is.
    #[error("{0}")]
    NotFound(io::Error),
    /// Several are here.
    #[error("{0}")]
    Several(String),
    /// A key cannot be read.
    #[error("key: {error}")]
    Key { path: PathBuf, error: io::Error },
    /// The runtime directory is not this user's own, or cannot be read.
    #[error("runtime directory: {0}")]
    Runtime(io::Error),
}

impl FindError {
    /// What the user can do about it.
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NotFound(_) => {
                "`weft up` starts one, `weft status` lists what runs; another user's opens with a key: --key FILE or \
                 WEFT_KEY=FILE"
                    .into()
            }
            Self::Several(_) => "add its name, or write NAME:/path".into(),
            Self::Key { path, error } if error.kind() == io::ErrorKind::PermissionDenied => {
                format!("`chmod 600 {}`, as its owner", path.display())
            }
            Self::Key { .. } => "the owner of the file system makes one: `weft user add`".into(),
            Self::Runtime(_) => return None,
        })
    }
}

impl Instance {
    /// The file system of this name that this user may work with; `None`: the only one, among several that of
    /// this batch job, and never that of another job. `weft` means the same when no other one has that name. A given
    /// key comes before all others.
    pub fn find_for_user(name: Option<&str>, given: Option<&Path>) -> Result<Instance, FindError> {
        let any = name.is_none_or(|name| name == ANY);
        let is_meant = |key: &KeyFile| any || name == Some(&key.file_system);
        if let Some(key) = given.map(read).transpose()?.filter(|key| is_meant(key)) {
            return Ok(Instance::of_key(key));
        }
        match find_running(name) {
            Err(FindError::NotFound(error)) => {
                let key = match (kept(name)?, any) {
                    (None, true) => kept(None)?,
                    (key, _) => key,
                };
                // A file that was renamed is of the file system that it tells, not of the one that its name tells.
                key.filter(|key| is_meant(key)).map(Instance::of_key).ok_or(FindError::NotFound(error))
            }
            found => found,
        }
    }
}

/// The key that the environment names.
pub fn key_of_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Reads a key.
pub fn read(path: &Path) -> Result<KeyFile, FindError> {
    KeyFile::read(path).map_err(|error| FindError::Key { path: path.to_owned(), error })
}

/// The file system of this name that this user runs here.
fn find_running(name: Option<&str>) -> Result<Instance, FindError> {
    let found = match (name, Instance::find(name)) {
        (Some(ANY), Err(error)) if error.kind() == io::ErrorKind::NotFound => of_this_job(Instance::find(None)),
        (None, found) => of_this_job(found),
        (Some(_), found) => found,
    };
    found.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FindError::NotFound(error),
        io::ErrorKind::InvalidInput => FindError::Several(error.to_string()),
        _ => FindError::Runtime(error),
    })
}

/// In a batch job: among several, that of the job, and never that of another job. Jobs of one user may share a machine.
fn of_this_job(found: io::Result<Instance>) -> io::Result<Instance> {
    let Some(own) = job::file_system_name() else { return found };
    match found {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Instance::find(Some(&own)).map_err(|_| error),
        Ok(found) if found.map.name != own && job::is_of_job(&found.map.name) => {
            let text = format!("{own}, the file system of this batch job, does not run here; {} does", found.map.name);
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        }
        found => found,
    }
}

/// The kept key of the file system of this name, or the only one that is kept.
fn kept(name: Option<&str>) -> Result<Option<KeyFile>, FindError> {
    let Some(directory) = directory() else { return Ok(None) };
    let path = match name {
        Some(name) => directory.join(format!("{name}{SUFFIX}")),
        None => match names_in(&directory).as_slice() {
            [] => return Ok(None),
            [name] => directory.join(format!("{name}{SUFFIX}")),
            names => {
                let text = format!("several keys are kept here ({}): say which", names.join(", "));
                return Err(FindError::Several(text));
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
        let error = read(Path::new("/nonexistent/job.key")).expect_err("not there");
        assert!(error.to_string().contains("/nonexistent/job.key") && error.remedy().is_some(), "{error}");
    }
}
