//! What programs believe of their locks, held against each other and against the shards.
//!
//! A client believes in a lock as long as its session's term holds by its own clock: until then the shard has it too,
//! or the client keeps it under the file's exclusive lease, and nobody else has what conflicts.

use super::World;
use crate::lock_program::Believed;
use weft_protocol::routing;

impl World {
    /// Checks the locks that clients believe in now.
    pub(super) fn check_locks(&self) {
        let mut held: Vec<(usize, Believed)> = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            let now_ms = client.process.clock.boot_ms(self.network.now_ms);
            let session = &client.machine.calls().session;
            for one in client.process.believed_locks.borrow().iter() {
                let shard = routing::of_inode(one.inode);
                if one.session == session.id() && session.cache().holds_ms(shard, now_ms) > 0 {
                    held.push((index, *one));
                }
            }
        }
        for (number, (client, one)) in held.iter().enumerate() {
            let Some(shard) = self.shards.get(&routing::of_inode(one.inode)) else { continue };
            let keeps = self.clients[*client].machine.calls().locks.has_here(one.inode, one.owner, one.lock);
            if keeps && !shard.is_exclusive(one.session, one.inode) {
                self.fail(&format!("client {client} keeps {one:?} itself, without the file's exclusive lease"));
            }
            if !keeps && !shard.has_lock(one.session, one.inode, one.owner, one.lock) {
                self.fail(&format!("client {client} believes in {one:?}, its shard has no such lock"));
            }
            for (other_client, other) in &held[..number] {
                let is_other = (other_client, other.owner) != (client, one.owner);
                let meets = other.inode == one.inode && other.lock.range.overlaps(one.lock.range);
                if is_other && meets && other.lock.mode.conflicts(one.lock.mode) {
                    self.fail(&format!(
                        "granted twice: {one:?} of client {client}, {other:?} of client {other_client}"
                    ));
                }
            }
        }
    }
}
