//! Names of users and groups, as /etc/passwd and /etc/group of this machine give them; numbers for all others.

use std::collections::BTreeMap;

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
}
