//! Users and groups of this machine: their names, as /etc/passwd and /etc/group give them, numbers for all others; and
//! the numbers of one user, as the system finds them, in directories on the network too.

use crate::failure::{Failure, Outcome};
use nix::unistd::{User, getgrouplist};
use std::collections::BTreeMap;
use std::ffi::CString;
use weft_protocol::Credentials;

/// Names by number.
pub struct Accounts {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl Accounts {
    /// Reads the two files. What cannot be read names nobody.
    pub fn read() -> Self {
        let read = |path| parse(&std::fs::read_to_string(path).unwrap_or_default());
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    /// The user's name, or number.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The group's name, or number.
    pub fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }
}

/// User id and groups of the account of this name.
pub fn find(name: &str) -> Outcome<Option<Credentials>> {
    let failed = |errno: nix::Error| Failure::of_io(format_args!("account {name}"), &errno.into()).failed();
    let Some(user) = User::from_name(name).map_err(failed)? else { return Ok(None) };
    let text = CString::new(name).map_err(|_| Failure::new(format!("account {name}: is no name")))?;
    let groups = getgrouplist(&text, user.gid).map_err(failed)?;
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    let groups = groups.into_iter().map(nix::unistd::Gid::as_raw).filter(|group| *group != gid).collect();
    Ok(Some(Credentials { uid, gid, groups }))
}

/// Both files have lines of `name:password:number:...`.
fn parse(text: &str) -> BTreeMap<u32, String> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_names_where_there_are_some() {
        let users = parse("root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:5::/h:/s\n");
        let accounts = Accounts { users, groups: BTreeMap::new() };
        assert_eq!((accounts.user(1000).as_str(), accounts.user(7).as_str()), ("ann", "7"));
        assert_eq!(accounts.group(0), "0");
    }

    #[test]
    fn an_account_has_its_groups_and_an_unknown_one_is_none() {
        let root = find("root").expect("asked").expect("everywhere");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(!root.groups.contains(&0), "the primary group is said once: {root:?}");
        assert_eq!(find("no such user").expect("asked"), None);
    }
}
