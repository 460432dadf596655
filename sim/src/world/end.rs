//! What must hold after everything has settled.

use super::World;
use weft_layout::Stripes;
use weft_protocol::{Layout, SessionId, routing};

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
                if record.is_none_or(|record| !record.layout.objects().contains(&object)) {
                    self.fail(&format!("object {object} of inode {inode} has no file and was not collected"));
                }
            }
        }
        if self.mounts.is_none() {
            self.tally.striped += self.check_bytes();
        }
    }

    /// What a file's objects have; `None`: there is none.
    fn stored(&self, layout: &Layout) -> Option<Vec<u8>> {
        let stripes = Stripes::of(layout);
        let mut file: Option<Vec<u8>> = None;
        for (index, object) in layout.objects().iter().enumerate() {
            let bytes = self.storage.get(&object.node()).and_then(|storage| storage.bytes(*object));
            let Some(bytes) = bytes else { continue };
            let end = usize::try_from(stripes.file_end(index, bytes.len() as u64)).expect("files are small here");
            let file = file.get_or_insert_default();
            file.resize(end.max(file.len()), 0);
            for piece in stripes.pieces(0, end).filter(|piece| piece.index == index) {
                let start = usize::try_from(piece.object_offset).expect("files are small here");
                file[piece.start..piece.end()].copy_from_slice(&bytes[start..start + piece.bytes]);
            }
        }
        file
    }

    /// Every file that is still there is read once more, past all clients. Returns how many of them are striped.
    fn check_bytes(&self) -> u64 {
        let mut striped = 0;
        let mut files = self.files.borrow_mut();
        for inode in files.known() {
            let record = self.shards.get(&routing::of_inode(inode)).and_then(|shard| shard.back().inode(inode));
            let Some(record) = record else { continue };
            striped += u64::from(record.layout.objects().len() > 1);
            let stored = self.stored(&record.layout);
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
        striped
    }
}
