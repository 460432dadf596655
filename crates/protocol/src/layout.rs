//! Which objects hold the bytes of a file.

use crate::ids::{Generation, ObjectId};
use serde::{Deserialize, Serialize};

/// Layout of a regular file. `striped` and `split` are new variants when they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Layout {
    /// Nothing was written yet: no object is needed. A size above zero is all hole.
    #[default]
    Empty,
    /// One object holds the whole file; its offsets are the file's.
    Whole { object: ObjectId, generation: Generation },
}

impl Layout {
    /// The object of a `whole` layout.
    pub fn object(&self) -> Option<ObjectId> {
        match self {
            Layout::Empty => None,
            Layout::Whole { object, .. } => Some(*object),
        }
    }
}
