//! What must hold after everything has settled.

use super::{Message, World};
use crate::client::Client;
use std::sync::Arc;
use weft_layout::Stripes;
use weft_metadata::back::Back;
use weft_protocol::{FileKind, InodeNumber, Layout, SessionId, routing};

/// So long nothing has been called before a client has given back all that it has to.
const IDLE_MS: u64 = 1000;

/// How far the look for forgotten files is.
#[derive(PartialEq, Eq)]
pub(super) enum Forgetting {
    Working,
    /// Clients were told to give back what they have to.
    Released,
    Looked,
}

impl World {
    /// Whether nothing is done any more, and no server is waited for.
    pub(super) fn is_quiet(&self) -> bool {
        self.clients.iter().all(|client| !client.is_using_names() && !client.is_using_files())
            && !self.offers.is_running()
            && self.tokens.is_empty()
            && self.shards.values().all(|shard| {
                let status = shard.status();
                status.sessions == 0
                    && status.parked == 0
                    && shard.locks() == (0, 0)
                    && shard.back().orphans().is_empty()
                    && !shard.awaited_storage().iter().any(|node| self.storage.contains_key(node))
            })
            && !self.has_given_up()
    }

    /// Whether a shard has given up an operation of which another one has not heard so: that one may keep the inode of
    /// a directory that has no name. A shard that is gone hears nothing.
    fn has_given_up(&self) -> bool {
        let has_some = |back: &Back<_>| self.shards.keys().any(|to| !back.given_up_at(*to).is_empty());
        self.mounts.is_none() && self.model.lost.is_empty() && self.shards.values().any(|shard| has_some(shard.back()))
    }

    /// Nothing is left that nobody can reach, every shard has what the model has, and files have the bytes that they
    /// must have.
    pub(super) fn check_end(&mut self) {
        let unheard = self
            .to_remove
            .iter()
            .find(|(shard, object)| self.shards.contains_key(shard) && self.storage.contains_key(&object.node()));
        if let Some((shard, object)) = unheard {
            self.fail(&format!(
                "at the end: shard {shard} has removed object {object}, and its store has not heard it"
            ));
        }
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
                let is_part = shard.is_some_and(|shard| shard.back().split_part(inode, object).is_some());
                if !is_part && record.is_none_or(|record| !record.layout.objects().contains(&object)) {
                    self.fail(&format!("object {object} of inode {inode} has no file and was not collected"));
                }
            }
        }
        if self.mounts.is_none() {
            self.check_bytes();
        }
    }

    /// Notes since when no program does anything any more, and nobody has called a shard.
    pub(super) fn note_idle(&mut self) {
        if self.forgetting == Forgetting::Looked {
            return;
        }
        let uses_files = |client: &Client| client.is_using_names() || client.is_using_files();
        // With a node that is gone, giving back takes as long as calls of its shards are tried.
        let is_idle = self.ending
            && self.model.lost.is_empty()
            && self.tokens.is_empty()
            && !self.clients.iter().any(uses_files)
            && !self.offers.is_running()
            && self.relocations.under_way.get() == 0;
        if is_idle == self.idle_since_ms.is_some() {
            return;
        }
        self.idle_since_ms = is_idle.then_some(self.network.now_ms);
        if is_idle {
            // By a message of its own: a run that a script plays has others than the one that was recorded.
            self.network.after(IDLE_MS, Message::Idle);
        }
    }

    /// When nobody has done anything for a while, has clients give back what they have to; and the next time, looks
    /// whether shards count files as open that the session has forgotten: nobody recalls these.
    pub(super) fn look_for_forgotten(&mut self) {
        let Some(since_ms) = self.idle_since_ms.filter(|since_ms| self.network.now_ms >= since_ms + IDLE_MS) else {
            return;
        };
        self.idle_since_ms = None;
        self.forgetting = match self.forgetting {
            Forgetting::Working => Forgetting::Released,
            Forgetting::Released | Forgetting::Looked => Forgetting::Looked,
        };
        if self.forgetting == Forgetting::Released {
            for index in 0..self.clients.len() {
                let machine = Arc::clone(&self.clients[index].machine);
                self.clients[index].process.spawn(async move { machine.release_surplus().await });
                self.poll(index);
            }
            return;
        }
        for client in self.clients.iter().filter(|client| client.paused_until_ms < since_ms) {
            let session = client.session();
            if self.doubled.contains(&session) {
                continue;
            }
            for (id, shard) in self.shards.iter().filter(|(id, _)| client.machine.calls().hears(**id)) {
                let is_file = |inode: &InodeNumber| {
                    shard.back().inode(*inode).is_some_and(|record| record.kind == FileKind::Regular)
                };
                let mut open = shard.merely_open(session).into_iter().filter(is_file);
                if let Some(inode) = open.find(|inode| !client.machine.keeps(*inode)) {
                    self.fail(&format!("at shard {id} {inode} is open by {session}, which has forgotten it"));
                }
            }
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

    /// Every file that is still there is read once more, past all clients.
    fn check_bytes(&mut self) {
        let (mut striped, mut in_parts) = (0, 0);
        let mut files = self.files.borrow_mut();
        for inode in files.known() {
            let record = self.shards.get(&routing::of_inode(inode)).and_then(|shard| shard.back().inode(inode));
            let Some(record) = record else { continue };
            striped += u64::from(record.layout.objects().len() > 1);
            let is_split = record.layout.epoch().is_some();
            in_parts += u64::from(is_split && self.objects_of(inode).len() > 1);
            let stored = if is_split { self.stored_parts(inode, &record) } else { self.stored(&record.layout) };
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
        drop(files);
        self.tally.striped += striped;
        self.tally.in_parts += in_parts;
    }
}
