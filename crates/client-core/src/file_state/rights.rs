//! The objects of a file, and the rights to them, as far as opens have told.

use super::{FileState, Opened};
use crate::file_objects::{FileObjects, Held};
use weft_protocol::{Capability, ObjectId, Rights};

/// What an open told; `None`: the file has no object.
pub(super) fn told(opened: &Opened) -> Option<Box<FileObjects>> {
    FileObjects::told(&opened.attributes.layout, opened.capability, &opened.others).map(Box::new)
}

impl FileState {
    /// The first object, and the right to it.
    pub fn held(&self) -> Option<Held> {
        self.held.as_ref().map(|objects| objects.first())
    }

    /// All objects, and the rights to them.
    pub fn objects(&self) -> Option<&FileObjects> {
        self.held.as_deref()
    }

    /// The first object, if it is known.
    pub fn object(&self) -> Option<ObjectId> {
        self.held().map(|held| held.object)
    }

    /// Whether the file has several objects, or will have.
    pub fn is_striped(&self) -> bool {
        self.attributes.layout.stripes().is_some()
    }

    /// Whether each of its writers has a part of his own.
    pub fn is_split(&self) -> bool {
        self.attributes.layout.epoch().is_some()
    }

    /// Whether the shard does not know the object yet.
    pub fn object_is_new(&self) -> bool {
        self.object_is_new
    }

    pub(super) fn lacks_right(&self) -> bool {
        self.held.is_none() && self.attributes.layout.object().is_some()
    }

    /// The stronger of the right that is held and the one that was told, if both are to the same object.
    pub(super) fn learn_right(&mut self, opened: &Opened) {
        let may_write = |capability: &Capability| capability.rights.contains(Rights::WRITE);
        if let (Some(held), Some(told)) = (&mut self.held, told(opened))
            && told.first().object == held.first().object
            && (may_write(&told.first().capability) || !may_write(&held.first().capability))
        {
            *held = told;
        }
    }
}
