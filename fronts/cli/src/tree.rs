//! Directory trees of a file system: listings, and what makes directories.
//!
//! Not here: removal (`removal.rs`).

use crate::failure::{Explain, Outcome};
use crate::session::Session;
use crate::target::WeftPath;
use weft_protocol::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_protocol::message::shard::DirectoryEntry;
use weft_protocol::{Attributes, Cookie, Credentials, Error, FileKind, InodeNumber, Name, Result};

/// All entries of a directory, in the order of their names' bytes.
///
/// Cost: a message per page of up to [`DIRECTORY_PAGE_ENTRIES_MAX`] entries.
pub fn list(session: &Session, directory: InodeNumber, with_attributes: bool) -> Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    let mut pages = Pages::new(session, directory, with_attributes);
    while let Some(page) = pages.next()? {
        entries.extend(page);
    }
    // A directory spread over shards is listed bucket by bucket.
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// A directory's entries, page by page.
pub struct Pages<'a> {
    session: &'a Session,
    who: &'a Credentials,
    directory: InodeNumber,
    with_attributes: bool,
    /// After which cookie the next page begins; `None`: there are no more.
    after: Option<Cookie>,
}

impl<'a> Pages<'a> {
    pub fn new(session: &'a Session, directory: InodeNumber, with_attributes: bool) -> Self {
        Self::of(session, &session.who, directory, with_attributes)
    }

    /// As somebody sees it.
    pub fn of(session: &'a Session, who: &'a Credentials, directory: InodeNumber, with_attributes: bool) -> Self {
        Self { session, who, directory, with_attributes, after: Some(Cookie::START) }
    }

    /// The next page; `None`: that was all.
    pub fn next(&mut self) -> Result<Option<Vec<DirectoryEntry>>> {
        let Some(after) = self.after.take() else { return Ok(None) };
        let (client, who) = (&self.session.client, self.who);
        let entries = DIRECTORY_PAGE_ENTRIES_MAX;
        let page = client.read_directory(who, self.directory, after, entries, self.with_attributes)?;
        self.after = page.next;
        Ok(Some(page.entries))
    }
}

/// Attributes of a listed entry: those that came with it, or asked for now.
pub fn attributes_of(session: &Session, entry: &DirectoryEntry) -> Result<Attributes> {
    match &entry.attributes {
        Some(attributes) => Ok(attributes.clone()),
        None => session.client.attributes(&session.who, entry.inode).map(|entry| entry.attributes),
    }
}

/// Makes a directory and those above it that are not there yet; answers the inode.
pub fn make_directories(session: &Session, path: &WeftPath, mode: u16) -> Outcome<InodeNumber> {
    let (client, who) = (&session.client, &session.who);
    let mut directory = InodeNumber::ROOT;
    let mut walked = b"/".to_vec();
    for component in path.path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()) {
        walked = crate::target::join(&walked, component);
        let place = || format!("mkdir {}", WeftPath { path: walked.clone(), ..path.clone() });
        // `.`, `..` and symbolic links are for the walk to understand.
        let entry = match client.walk(who, &walked, true) {
            Err(Error::NotFound) => {
                let name = Name::new(component).explain(place)?;
                match client.make_directory(who, directory, &name, mode) {
                    Err(Error::Exists) => client.walk(who, &walked, true),
                    made => made,
                }
            }
            found => found,
        };
        let attributes = entry.explain(place)?.attributes;
        if attributes.kind != FileKind::Directory {
            return Err(Error::NotDirectory).explain(place);
        }
        directory = attributes.inode;
    }
    Ok(directory)
}

/// The permission bits with this process's umask taken away.
pub fn with_umask(mode: u16) -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| u16::from_str_radix(line.strip_prefix("Umask:")?.trim(), 8).ok());
    mode & !umask.unwrap_or(0o022)
}
