//! `stat` in two steps: the kernel asks for the name (LOOKUP), and then for the inode's attributes (GETATTR).
//!
//! Where the name goes between the two, Linux tells of one link less, on any file system; of none where it was the
//! last. An answer is taken for two steps only if its inode loses the name between them, by a call that overlaps this
//! one.

use super::Recorded;
use super::posix::{Kind, State};
use crate::kernel::Call;
use crate::kernel::requests::Attributes;
use crate::kernel::{CallResult, Value};

/// The attributes that were told to a `stat`, of a file that may have lost the name meanwhile.
pub(super) fn told_without_name<'a>(call: &Call, told: &'a CallResult) -> Option<&'a Attributes> {
    match (call, told) {
        (Call::Stat { .. }, Ok(Value::Attributes(told))) if told.kind == Kind::Regular => Some(told),
        _ => None,
    }
}

impl State {
    /// The first step: the name is found. Its inode stays until the second one. Returns false if it is not there.
    pub(super) fn look_up(&mut self, recorded: &Recorded) -> bool {
        let Call::Stat { path } = &recorded.call else { return false };
        let found = self.find(path);
        self.looked_up.extend(found.iter().map(|id| (recorded.id, *id)));
        found.is_ok()
    }

    /// The second step: the attributes are those of the inode that was found, which has the name no more.
    pub(super) fn see_without_name(
        &mut self,
        recorded: &Recorded,
        told: &Attributes,
        times: bool,
    ) -> Result<(), String> {
        let id = self.looked_up.remove(&recorded.id).ok_or("its name was not looked up")?;
        if let Call::Stat { path } = &recorded.call
            && self.find(path) == Ok(id)
        {
            return Err("it has the name".to_owned());
        }
        self.compare(id, told, times)?;
        self.drop_unused(id);
        Ok(())
    }
}
