//! Trees in a part of a device: redb's, copy-on-write.
//!
//! They are opened without being read through, and their pages are read when they are wanted.

pub(crate) use crate::area::Area;
use crate::area::Backend;
use crate::error::{Error, Result};
use crate::quiet::quietly;
use crate::shadow::Shadow;
use redb::{Database, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};
use std::io;
use std::sync::Arc;

/// Pages in memory while a tree is verified: each is read once.
const VERIFY_CACHE_BYTES: usize = 1 << 20;

/// A tree.
pub(crate) struct Tree {
    /// There until it is dropped.
    database: Option<Database>,
    area: Arc<Area>,
}

impl Tree {
    /// The tree in an area, with so many bytes of its pages in memory. `verified`: after all of them were compared with
    /// their checksums.
    pub fn open(area: &Arc<Area>, cache_bytes: usize, verified: bool) -> Result<Self> {
        let tree = Self::open_first(area, cache_bytes, verified);
        match tree {
            Err(Error::Damaged(first)) if verified => Err(Error::Damaged(damage_of(area, first).join("; "))),
            tree => tree,
        }
    }

    /// The same. An error names the first page that is damaged.
    fn open_first(area: &Arc<Area>, cache_bytes: usize, verified: bool) -> Result<Self> {
        let backend = Backend(Arc::clone(area));
        let made = guarded(|| Ok(Database::builder().set_cache_size(cache_bytes).create_with_backend(backend)?))?;
        let mut tree = Self { database: Some(made), area: Arc::clone(area) };
        if let (true, Some(database)) = (verified, tree.database.as_mut())
            && !guarded(|| Ok(database.check_integrity()?))?
        {
            return Err(Error::Damaged("a tree: checksums of its pages".to_owned()));
        }
        Ok(tree)
    }

    /// Reads all pages from the device, past those in memory, and compares them with their checksums. Writers wait
    /// meanwhile, readers do not. Nothing is written. Tells of each that is damaged, and returns false if one is.
    pub fn verify(&self, tell: &mut dyn FnMut(String)) -> Result<bool> {
        // Keeps others from writing. It fails after an I/O error, and then nobody writes.
        let _alone = guarded(|| Ok(self.database()?.begin_write()?)).ok();
        let again = match self.area.reopened(|device| Shadow::new(device)) {
            Err(Error::Damaged(head)) => {
                tell(head);
                return Ok(false);
            }
            again => again?,
        };
        match Self::open_first(&again, VERIFY_CACHE_BYTES, true) {
            Err(Error::Damaged(first)) => {
                damage_of(&again, first).into_iter().for_each(tell);
                Ok(false)
            }
            verified => verified.map(|_| true),
        }
    }

    fn database(&self) -> std::result::Result<&Database, redb::Error> {
        self.database.as_ref().ok_or_else(|| redb::Error::Corrupted("it is closed".to_owned()))
    }

    /// The tree as it is now. For use in [`guarded`].
    pub fn begin_read(&self) -> std::result::Result<ReadTransaction, redb::Error> {
        Ok(self.database()?.begin_read()?)
    }

    /// Changes it, all or nothing. Safe on the device when this returns.
    pub fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> std::result::Result<T, redb::Error>) -> Result<T> {
        guarded(|| {
            let mut transaction = self.database()?.begin_write()?;
            // So that it is opened after a crash without being read through.
            transaction.set_quick_repair(true);
            transaction.set_durability(Durability::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }
}

impl Drop for Tree {
    /// At damaged pages it panics here, too; there is nothing left to be done about it.
    fn drop(&mut self) {
        let database = self.database.take();
        drop(quietly(|| drop(database)));
    }
}

/// What is damaged in the area of a tree. The library stops at the first damaged page, so which others are in use is
/// not known: where a page in use is damaged, all blocks are named that do not match.
fn damage_of(area: &Area, first: String) -> Vec<String> {
    let wrong = area.wrong_blocks();
    let named = wrong.iter().map(|block| format!("a tree: {}", crate::area::mismatch_of(*block)));
    // What it says of pages that match is of what they hold.
    let rest = Some(first).filter(|first| !named.clone().any(|text| text == *first));
    rest.into_iter().chain(named).collect()
}

/// Uses a tree, which panics at some pages that are damaged.
pub(crate) fn guarded<T>(work: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    quietly(work)
        .unwrap_or_else(|panic| Err(redb::Error::Corrupted(format!("a page makes no sense: {panic}"))))
        .map_err(failed)
}

fn failed(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(source) if source.kind() == io::ErrorKind::StorageFull => Error::MapFull,
        redb::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
            Error::Damaged(format!("a tree: {source}"))
        }
        redb::Error::Io(source) => Error::Device { what: "use a tree", source },
        other => Error::Damaged(format!("a tree: {other}")),
    }
}
