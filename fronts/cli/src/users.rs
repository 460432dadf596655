//! Records of the keys that were made for users: a file per key in `users/` of the runtime directory, without the key.
//!
//! They are for people, and for `weft user remove` to find the keys of a user. Servers need none of them: a key that
//! was made on another host of the file system is as good, and recorded there.

use crate::failure::{Explain, Failure, Outcome};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use weft_client::{Instance, KeyFile};
use weft_protocol::{Credentials, KeyId, Timestamp};

/// What is known of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct User {
    pub user: String,
    #[serde(serialize_with = "write_id", deserialize_with = "read_id")]
    pub id: KeyId,
    #[serde(flatten)]
    pub credentials: Credentials,
    /// When it was made, seconds since 1970.
    pub made_seconds: i64,
}

fn write_id<S: Serializer>(id: &KeyId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn read_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KeyId, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl User {
    /// The record of a key that is being made.
    pub fn of(key: &KeyFile, now_seconds: i64) -> Self {
        let (user, credentials) = (key.user.clone(), key.credentials.clone());
        Self { user, id: key.id, credentials, made_seconds: now_seconds }
    }

    /// When the key was made.
    pub fn made(&self) -> Timestamp {
        Timestamp::from_parts(self.made_seconds, 0)
    }

    fn path(&self, instance: &Instance) -> PathBuf {
        instance.users_directory().join(format!("{}.json", self.id))
    }

    /// Writes the record.
    pub fn record(&self, instance: &Instance) -> Outcome<()> {
        let path = self.path(instance);
        let write = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(instance.users_directory())?;
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all((serde_json::to_string_pretty(self)? + "\n").as_bytes())
        };
        write().explain(|| path.display()).map_err(Failure::failed)
    }

    /// Removes the record.
    pub fn forget(&self, instance: &Instance) -> Outcome<()> {
        let path = self.path(instance);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).explain(|| path.display()),
            _ => Ok(()),
        }
    }
}

/// The keys that were made here, by user, older ones first.
pub fn all(instance: &Instance) -> Outcome<Vec<User>> {
    let directory = instance.users_directory();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).explain(|| directory.display()),
    };
    let mut users = Vec::new();
    for entry in entries {
        let path = entry.explain(|| directory.display())?.path();
        let text = fs::read(&path).explain(|| path.display())?;
        let user: User = serde_json::from_slice(&text).map_err(io::Error::from).explain(|| path.display())?;
        users.push(user);
    }
    users.sort_by(|a, b| (&a.user, a.made_seconds, a.id).cmp(&(&b.user, b.made_seconds, b.id)));
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::ClusterMap;

    #[test]
    fn records_are_found_again_until_they_are_forgotten() {
        let directory = std::env::temp_dir().join(format!("weft-users-{}", std::process::id()));
        let map = ClusterMap { name: "w".into(), ..ClusterMap::default() };
        let directory_of = directory.clone();
        let instance = Instance { map, processes: Vec::new(), directory: directory_of, user_key: None, over: None };
        assert_eq!(all(&instance).expect("none"), []);
        let credentials = Credentials { uid: 7, gid: 8, groups: [9].into() };
        let user = |name: &str, id, made_seconds| User {
            user: name.into(),
            id: KeyId(id),
            credentials: credentials.clone(),
            made_seconds,
        };
        let users = [user("ann", 5, 100), user("ann", 2, 200), user("bob", 9, 1)];
        for user in users.iter().rev() {
            user.record(&instance).expect("written");
            assert!(user.record(&instance).is_err(), "a number that is taken");
        }
        assert_eq!(all(&instance).expect("all"), users);
        let text = fs::read_to_string(users[0].path(&instance)).expect("read");
        assert!(text.contains("\"0000000000000005\"") && text.contains("\"uid\": 7"), "{text}");
        users[0].forget(&instance).expect("forgotten");
        users[0].forget(&instance).expect("forgotten twice");
        assert_eq!(all(&instance).expect("all"), users[1..]);
        fs::remove_dir_all(directory).expect("removed");
    }
}
