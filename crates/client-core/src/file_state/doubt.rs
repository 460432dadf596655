//! What makes a file's lease, right or object doubtful: it is opened again before it is used next.

use super::{FileState, LeaseMode};
use weft_protocol::Attributes;

impl FileState {
    /// The new object cannot be reported now, and the shard has told what the file has. Lets it go if that is another
    /// one, with what was not reported. Returns whether it did.
    pub fn take_another_object(&mut self, attributes: &Attributes) -> bool {
        let other = attributes.layout.object().is_some_and(|object| Some(object) != self.object());
        let takes = self.object_is_new && other;
        if takes {
            self.mode = LeaseMode::None;
            self.let_object_go();
            self.attributes = attributes.clone();
            self.dirty = false;
        }
        takes
    }

    /// Before a write: another program's open for reading may be the only one of this session.
    pub fn doubt_open_to_write(&mut self) {
        if !self.is_opened_to_write {
            self.open_anew();
        }
    }

    /// Returns true if nobody else writes the file: the lease is exclusive, or was until the right was void.
    pub fn keeps_others_out(&self) -> bool {
        self.is_exclusive() || self.was_exclusive
    }

    /// A cut of the file has no answer, and may take effect until the shard is asked next. A new object is not in its
    /// way: the shard does not know it.
    pub fn cut_in_doubt(&mut self) {
        if !self.object_is_new {
            self.was_exclusive |= self.is_exclusive();
            self.mode = LeaseMode::None;
        }
    }

    /// Whether the last write went through the server, where others may write too, and was not reported: only the
    /// server knows its size.
    pub fn has_unreported_through_server(&self) -> bool {
        self.dirty && !self.has_own_time && !self.was_exclusive
    }

    /// A cut of a striped file has failed, and some of its objects may be cut. Returns whether this client has to look
    /// how long the file is, and to report it; only who has it open to write may.
    pub fn cut_in_part(&mut self) -> bool {
        if self.is_opened_to_write {
            self.changed_unseen();
        } else {
            self.open_anew();
        }
        self.is_opened_to_write
    }

    /// The file has to be opened again before it is used next.
    pub fn open_anew(&mut self) {
        self.mode = LeaseMode::None;
    }

    /// Before a read without a lease: a file that has no object may have been given one by a writer elsewhere.
    pub fn doubt_missing_object(&mut self) {
        if !self.is_leased() && self.held.is_none() && !self.is_split() {
            self.open_anew();
        }
    }

    /// The right to the object turned out to be void (the object was replaced, the right has ended): it is asked for
    /// again. A new object's is of another kind, and stays.
    pub fn right_is_void(&mut self) {
        if !self.object_is_new {
            self.was_exclusive |= self.is_exclusive();
            self.mode = LeaseMode::None;
            self.held = None;
        }
    }
}
