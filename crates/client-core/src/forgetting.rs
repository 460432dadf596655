//! Removed inodes, and those whose lease is recalled, while the cache above may know their number (`numbers.rs`).

use crate::calls::Calls;
use crate::files::Files;
use crate::lock::lock;
use crate::numbers::Directory;
use crate::shell::Shell;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Error, InodeNumber, LeaseKey, LeaseMode, Result, routing};

impl<S: Shell> Calls<S> {
    /// The stamp up to which replies have told what the cache above is asked about from now on.
    fn stamp_before(&self, inode: InodeNumber) -> u64 {
        self.session.cache().latest_stamp(routing::of_inode(inode))
    }

    /// Notes the number if the cache above may use it. `Err`: it may not, as far as replies up to this stamp have told
    /// of it.
    fn doubt(&self, inode: InodeNumber, directory: Directory) -> std::result::Result<(), u64> {
        // Noted first: it may be forgotten in between.
        let noted = lock(&self.session.numbers).note(inode, directory, self.shell.now_ms());
        let stamp = self.stamp_before(inode);
        if noted && self.shell.knows_number(inode, stamp) {
            return Ok(());
        }
        lock(&self.session.numbers).remove(inode);
        Err(stamp)
    }

    fn return_number(&self, inode: InodeNumber, directory: Directory, stamp: u64) {
        if let Directory::Held(stamp) = directory {
            self.session.queue_release(LeaseKey::Data(inode), stamp);
        }
        self.session.queue_release(LeaseKey::Inode(inode), stamp);
        self.shell.release_soon();
    }
}

impl<S: Shell> Files<S> {
    /// A name of an inode is gone. With the last one its lease is given back at once, unless it is open: its space is
    /// free when nobody can open it any more.
    pub(crate) async fn name_gone(&self, inode: InodeNumber, links: u32) {
        if links > 0 {
            return;
        }
        let open = lock(&self.open).get(inode).cloned();
        if let Some(open) = open {
            open.lose_name();
            if !open.is_open() {
                self.drop_nameless(&open).await;
            }
        }
        self.give_up_number(inode);
    }

    /// The last name of an inode is gone: its number is given back as soon as the cache above does not use it.
    pub(crate) fn give_up_number(&self, inode: InodeNumber) {
        if let Err(stamp) = self.calls().doubt(inode, Directory::Perhaps) {
            self.calls().return_number(inode, Directory::No, stamp);
        }
    }

    /// What is kept of a key of names or attributes that is recalled: `Open` of an inode whose number the cache above
    /// may still use. To be asked after that cache was told of the recall.
    pub(crate) fn number_kept(&self, key: LeaseKey) -> LeaseMode {
        let known = match key {
            LeaseKey::Attributes(inode) => self.calls().doubt(inode, Directory::No).is_ok(),
            LeaseKey::Permissions(inode) => self.calls().doubt(inode, Directory::Perhaps).is_ok(),
            LeaseKey::Entry(..) | LeaseKey::Directory(_) | LeaseKey::Names(_) => false,
            LeaseKey::Data(_) | LeaseKey::Inode(_) | LeaseKey::Ranges(_) => false,
        };
        if known { LeaseMode::Open } else { LeaseMode::None }
    }

    /// The cache above has forgotten the inode's number, and will not use it before it is told of it again: perhaps by
    /// what a request in flight is answered.
    pub fn forgotten(&self, inode: InodeNumber) {
        let calls = self.calls();
        if !lock(&calls.session.numbers).contains(inode) {
            return;
        }
        let stamp = calls.stamp_before(inode);
        if !calls.shell.knows_number(inode, stamp) {
            self.number_unused(inode, stamp);
        }
    }

    /// The cache above does not use the inode's number, as far as replies up to this stamp have told of it.
    pub fn number_unused(&self, inode: InodeNumber, stamp: u64) {
        let number = lock(&self.calls().session.numbers).remove(inode);
        if let Some(number) = number {
            self.calls().return_number(inode, number.directory, stamp);
        }
    }

    /// Holds the directories at their shards that the cache above has not forgotten since they were noted. To be called
    /// several times a term.
    pub async fn hold_directories(&self) {
        let calls = self.calls();
        let unheld = lock(&calls.session.numbers).look_through(calls.shell.now_ms());
        for inode in unheld {
            let held = self.hold_directory(inode).await;
            let mut numbers = lock(&calls.session.numbers);
            match (numbers.get_mut(inode), held) {
                (Some(number), Ok(stamp)) => number.directory = Directory::Held(stamp),
                // A file, or gone; or its server is away for now.
                (Some(number), Err(_)) => number.directory = Directory::No,
                (None, Ok(stamp)) => {
                    drop(numbers);
                    calls.give_back(inode, stamp, false);
                }
                (None, Err(_)) => {}
            }
        }
    }

    async fn hold_directory(&self, inode: InodeNumber) -> Result<u64> {
        let request = ShardRequest::HoldDirectory { inode };
        let who = &self.calls().caller.credentials;
        let answer = self.calls().call(who, routing::of_inode(inode), request).await?;
        match answer.answer {
            ShardAnswer::Entry { .. } => Ok(answer.stamp),
            _ => Err(Error::Malformed),
        }
    }
}
