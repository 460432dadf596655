//! On whose behalf a request is made.
//!
//! The kernel tells user and group of the calling thread, not its other groups. For the client's own user they are
//! those of its key; for others (a mount that several users share) they are read from `/proc/PID/status` and kept for a
//! moment. Root needs none.
//!
//! Not here: what a user may do. The shards decide that, and the kernel before them (`default_permissions`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_protocol::Credentials;
use weft_protocol::limits::GROUPS_MAX;

/// How long the groups of a process are kept. Groups of a running process hardly ever change.
const GROUPS_VALID: Duration = Duration::from_secs(2);
/// Processes whose groups are kept. Beyond it all are forgotten.
const PROCESSES_MAX: usize = 1024;

/// Who called, as the kernel tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The calling thread; 0 when it is not visible from here (another pid namespace) or the kernel itself calls.
    pub pid: u32,
}

impl From<&fuser::Request> for Caller {
    fn from(request: &fuser::Request) -> Self {
        Self { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }
}

/// Groups of a process, and when they were read.
type KnownGroups = (Instant, Box<[u32]>);

/// Finds the groups of callers.
pub struct Callers {
    /// The user of the client's key.
    own: Credentials,
    /// The key is that user's only: the servers take every caller as him, so this side does, too.
    only_own: bool,
    /// Rank 2. Held for one look, not while /proc is read.
    known: Mutex<HashMap<Caller, KnownGroups>>,
}

impl Callers {
    pub fn new(own: Credentials, only_own: bool) -> Self {
        Self { own, only_own, known: Mutex::new(HashMap::new()) }
    }

    /// The caller's credentials.
    pub fn credentials(&self, caller: Caller) -> Credentials {
        if self.only_own {
            return self.own.clone();
        }
        let groups = if caller.uid == self.own.uid {
            self.own.groups.clone()
        } else if caller.uid == 0 || caller.pid == 0 {
            Box::default()
        } else {
            self.groups(caller)
        };
        Credentials { uid: caller.uid, gid: caller.gid, groups }
    }

    fn groups(&self, caller: Caller) -> Box<[u32]> {
        let now = Instant::now();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read_at, groups)) = known.get(&caller)
            && now.duration_since(*read_at) < GROUPS_VALID
        {
            return groups.clone();
        }
        drop(known);
        let status = std::fs::read_to_string(format!("/proc/{}/status", caller.pid)).unwrap_or_default();
        let groups = groups_in(&status);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= PROCESSES_MAX {
            known.clear();
        }
        known.insert(caller, (now, groups.clone()));
        groups
    }
}

/// The line `Groups:` of `/proc/PID/status`; at most [`GROUPS_MAX`], as a request may carry.
fn groups_in(status: &str) -> Box<[u32]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).take(GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_proc() {
        assert_eq!(*groups_in("Name:\tsh\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert!(groups_in("").is_empty());
        assert!(groups_in("Groups:\t\n").is_empty());
        let many = format!("Groups:\t{}", "7 ".repeat(1000));
        assert_eq!(groups_in(&many).len(), GROUPS_MAX);
    }

    #[test]
    fn the_own_user_has_the_groups_of_the_key() {
        let callers = Callers::new(Credentials { uid: 1000, gid: 100, groups: [4, 7].into() }, false);
        let own = callers.credentials(Caller { uid: 1000, gid: 100, pid: 1 });
        assert_eq!(own, Credentials { uid: 1000, gid: 100, groups: [4, 7].into() });
        let new_group = callers.credentials(Caller { uid: 1000, gid: 7, pid: 1 });
        assert_eq!(new_group.gid, 7);
        let root = callers.credentials(Caller { uid: 0, gid: 0, pid: 1 });
        assert!(root.groups.is_empty());
        let unseen = callers.credentials(Caller { uid: 5, gid: 5, pid: 0 });
        assert!(unseen.groups.is_empty());
        let gone = callers.credentials(Caller { uid: 5, gid: 5, pid: u32::MAX });
        assert!(gone.groups.is_empty());
    }

    #[test]
    fn with_the_key_of_a_user_everybody_is_that_user() {
        let user = Credentials { uid: 1000, gid: 100, groups: [4].into() };
        let callers = Callers::new(user.clone(), true);
        for uid in [0, 5, 1000] {
            assert_eq!(callers.credentials(Caller { uid, gid: 7, pid: 1 }), user);
        }
    }
}
