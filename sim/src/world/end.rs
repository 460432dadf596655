//! What must hold after everything has settled.

use super::World;
use weft_protocol::{SessionId, routing};

impl World {
    /// Nothing is left that nobody can reach, every shard has what the model has, and files have the bytes that they
    /// must have.
    pub(super) fn check_end(&mut self) {
        for session in 0..=self.sessions.get() {
            self.collect(SessionId(session));
        }
        self.collect_last();
        for (id, shard) in &self.shards {
            let status = shard.status();
            if (status.sessions, status.leases, status.recalls, status.parked) != (0, 0, 0, 0) {
                let stuck: Vec<_> = self.shards.iter().map(|(id, shard)| (id, shard.stuck())).collect();
                let blocked = self.blocked_threads();
                let clients = self.clients.iter().enumerate();
                let busy: Vec<_> = clients
                    .filter(|(_, client)| client.is_using_names() || client.is_using_files())
                    .map(|(index, client)| (index, client.is_using_names(), client.is_using_files()))
                    .collect();
                let calls: Vec<_> =
                    self.tokens.values().map(|pending| (pending.session, &pending.call.request)).collect();
                let what =
                    format!("stuck: {stuck:?}; busy clients (names, files): {busy:?}, calls: {calls:?}; {blocked}");
                self.fail(&format!("shard {id} has not settled: {status:?}, {what}"));
            }
            if !self.model.lost.is_empty() || self.mounts.is_some() {
                continue;
            }
            let inodes = self.model.inodes.keys().filter(|inode| routing::of_inode(**inode) == *id).count() as u64;
            let of_shard = self.model.inodes.iter().filter(|(inode, _)| routing::of_inode(**inode) == *id);
            let dentries: u64 = of_shard.map(|(_, inode)| inode.entries.len() as u64).sum();
            if (status.inodes, status.dentries) != (inodes, dentries) {
                self.fail(&format!("shard {id}: {status:?}, the model has {inodes} inodes, {dentries} dentries"));
            }
        }
        if self.model.lost.is_empty() {
            for (object, inode) in self.storage.values().flat_map(crate::store::Storage::objects) {
                let shard = self.shards.get(&routing::of_inode(inode));
                let record = shard.and_then(|shard| shard.back().inode(inode));
                if record.and_then(|record| record.layout.object()) != Some(object) {
                    self.fail(&format!("object {object} of inode {inode} has no file and was not collected"));
                }
            }
        }
        if self.mounts.is_none() {
            self.check_bytes();
        }
    }

    /// Every file that is still there is read once more, past all clients.
    fn check_bytes(&self) {
        let mut files = self.files.borrow_mut();
        for inode in files.known() {
            let record = self.shards.get(&routing::of_inode(inode)).and_then(|shard| shard.back().inode(inode));
            let Some(record) = record else { continue };
            let object = record.layout.object();
            let stored =
                object.and_then(|object| self.storage.get(&object.node()).and_then(|storage| storage.bytes(object)));
            let differs = |stored: &&Vec<u8>| stored.len() as u64 != record.size;
            // A client that dies while it cuts a file may leave the size of before.
            if let Some(stored) = stored.as_ref().filter(differs).filter(|_| files.rests(inode)) {
                self.fail(&format!(
                    "at the end: inode {inode} has {} bytes, and size {} at its shard; {}",
                    stored.len(),
                    record.size,
                    files.describe(inode)
                ));
            }
            let mut bytes = stored.unwrap_or_default();
            bytes.resize(usize::try_from(record.size).unwrap_or(0), 0);
            let since = files.moment();
            if let Err(what) = files.compare_read(inode, (0, record.size + 1), &bytes, since) {
                self.fail(&format!("at the end: {what}"));
            }
        }
    }
}
