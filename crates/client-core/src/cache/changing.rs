//! Own changes in flight: what they change is asked for until their replies were applied. The shard may tell others of
//! a change before its reply is here, and other threads of this client may be told by those.

use super::{Cache, Changing};
use weft_protocol::InodeNumber;

impl Cache {
    /// A change is about to be sent.
    pub fn change_begins(&mut self, what: Changing) {
        self.changing.push(what);
    }

    /// Its reply was applied, or it failed.
    pub fn change_ended(&mut self, what: Changing) {
        let at = self.changing.iter().position(|changing| *changing == what);
        self.changing.swap_remove(at.expect("a change that ends has begun"));
        if let Changing::Xattrs(inode) = what
            && let Some(cached) = self.attributes.get_mut(&inode)
        {
            // What was kept is from before it.
            cached.xattrs = None;
        }
    }

    pub(super) fn is_changing(&self, what: Changing) -> bool {
        self.changing.contains(&what)
    }

    /// Whether times and size of an inode may be other ones by now.
    pub(super) fn is_changing_times(&self, inode: InodeNumber) -> bool {
        self.changing.iter().any(|changing| match *changing {
            Changing::Name(parent, _) => parent == inode,
            Changing::Attributes(changing) => changing == inode,
            Changing::Xattrs(_) => false,
        })
    }
}
