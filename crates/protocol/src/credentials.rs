//! On whose behalf a request is made.

use crate::error::Error;
use crate::limits::GROUPS_MAX;
use serde::{Deserialize, Serialize};

/// User and groups of a request. What the caller's key allows bounds it: see SEMANTICS, "Keys".
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// User id. 0 may do everything.
    pub uid: u32,
    /// Primary group: the group of what the user makes.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Box<[u32]>,
}

impl Credentials {
    /// Whether the user is in this group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Refuses more groups than [`GROUPS_MAX`].
    pub fn check(&self) -> Result<(), Error> {
        if self.groups.len() > GROUPS_MAX { Err(Error::Invalid) } else { Ok(()) }
    }
}
