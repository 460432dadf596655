//! The key that was given to a command (`--key FILE`, or WEFT_KEY): it opens another user's file system.
//!
//! Not here: keys that are kept ([`weft_client::find`]); making keys (`verb/user.rs`), and what they may do, which the
//! servers decide.

use crate::failure::{Explain, Outcome};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use weft_client::KeyFile;
use weft_client::find;

/// The file that was given: known from the command line on, the same for the whole command.
static GIVEN: OnceLock<PathBuf> = OnceLock::new();

/// Takes note of the file that `--key` or WEFT_KEY names. Called once, before a verb runs.
pub fn give(path: Option<&Path>) -> Outcome<()> {
    if let Some(path) = path.map(Path::to_owned).or_else(find::key_of_environment) {
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

/// The given key's file.
pub fn path() -> Option<&'static Path> {
    GIVEN.get().map(PathBuf::as_path)
}

/// The given key.
pub fn given() -> Outcome<Option<KeyFile>> {
    Ok(path().map(find::read).transpose()?)
}
