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
    /// meanwhile, readers do not. Nothing is written.
    pub fn verify(&self) -> Result<()> {
        // Keeps others from writing. It fails after an I/O error, and then nobody writes.
        let _alone = guarded(|| Ok(self.database()?.begin_write()?)).ok();
        Self::open(&self.area.reopened(|device| Shadow::new(device))?, VERIFY_CACHE_BYTES, true).map(drop)
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
