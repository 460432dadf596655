//! Files of parts on this machine, by which they are read without their nodes.

use crate::file_objects::Held;
use crate::objects::Objects;
use crate::shell::Shell;
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_protocol::{InodeNumber, ObjectId};

/// Most parts that are asked for: each keeps a descriptor.
const FILES_MAX: usize = 64;

/// See the module.
pub struct PartFiles<S: Shell> {
    /// `None`: the node passes none.
    asked: BTreeMap<ObjectId, Option<Arc<S::Descriptor>>>,
}

impl<S: Shell> Default for PartFiles<S> {
    fn default() -> Self {
        Self { asked: BTreeMap::new() }
    }
}

impl<S: Shell> PartFiles<S> {
    /// The file of a part, if it is known.
    pub fn get(&self, object: ObjectId) -> Option<&Arc<S::Descriptor>> {
        self.asked.get(&object)?.as_ref()
    }

    /// Asks for the files of those that were not asked for. Returns whether there is one more.
    pub async fn ask(&mut self, io: &Objects<S>, inode: InodeNumber, parts: impl Iterator<Item = Held>) -> bool {
        let mut has_more = false;
        for held in parts {
            if self.asked.len() < FILES_MAX && !self.asked.contains_key(&held.object) {
                let passed = io.ask_descriptor(inode, held, false).await;
                has_more |= passed.is_some();
                self.asked.insert(held.object, passed.map(|(file, _)| Arc::new(file)));
            }
        }
        has_more
    }
}
