//! The key of a user, as a file: all that he needs to work with a file system, on any machine that reaches its nodes.
//!
//! The owner makes it (`weft user add`) and gives it to the user. It is JSON, mode 0600; docs/formats/user-key.md has
//! its fields. What it says of uid and groups is only what the holder is to claim: the key is good for exactly these
//! claims, and a server that is told others refuses it.
//!
//! Invariant: a [`KeyFile`] is within the limits of the protocol, wherever it came from.

use crate::instance::Instance;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_protocol::handshake::KeyName;
use weft_protocol::{ClusterMap, Credentials, KeyId, NodeKey, ShardId, UserKey};

/// Version of the file.
const FORMAT: u32 = 1;
/// Largest file that is read, bytes: one with all groups and addresses has a tenth of it.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Addresses in a file. One node that answers is enough: it has the map.
pub const ADDRESSES_MAX: usize = 16;
/// Longest name of a user, bytes. What Linux allows is 32; names of directories in a network may be longer.
pub const USER_BYTES_MAX: usize = 256;

/// A key that opens one file system as one user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct KeyFile {
    /// Name of the file system.
    pub file_system: String,
    /// What the owner calls the user; for people.
    pub user: String,
    pub id: KeyId,
    pub credentials: Credentials,
    pub key: UserKey,
    /// `IP:PORT` of nodes, the one of the root shard first.
    pub addresses: Vec<String>,
    /// Where it was read. Not stored.
    pub path: PathBuf,
}

/// The file's fields.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    weft_user_key: u32,
    file_system: String,
    user: String,
    id: String,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    key: String,
    addresses: Vec<String>,
}

impl KeyFile {
    /// Makes the key of a user: `node_key` is the file system's, `id` a new random number.
    pub fn make(node_key: &NodeKey, map: &ClusterMap, user: &str, id: KeyId, credentials: Credentials) -> Self {
        let key = UserKey::derive(node_key, &KeyName::User { key: id, credentials: credentials.clone() });
        let root = map.node_of(ShardId::ROOT);
        let mut nodes: Vec<_> = map.nodes.iter().collect();
        nodes.sort_by_key(|node| Some(node.id) != root);
        let addresses = nodes.into_iter().take(ADDRESSES_MAX).map(|node| node.address.tcp.clone()).collect();
        let (file_system, user) = (map.name.clone(), user.to_owned());
        Self { file_system, user, id, credentials, key, addresses, path: PathBuf::new() }
    }

    /// Reads a key. Refuses a file that others than its owner can read: whoever has read it can act as the user.
    pub fn read(path: &Path) -> io::Result<Self> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = fs::File::open(path).map_err(at)?;
        let metadata = file.metadata().map_err(at)?;
        if !metadata.is_file() {
            return Err(at(io::Error::new(io::ErrorKind::InvalidData, "is no file with a key")));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(at(io::Error::new(io::ErrorKind::PermissionDenied, "others can read or change this key")));
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(at)?;
        let key: Self = serde_json::from_slice(&text).map_err(|error| at(error.into()))?;
        Ok(Self { path: path.to_owned(), ..key })
    }

    /// The file's text.
    pub fn to_text(&self) -> io::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// As whom the key opens the file system.
    pub fn key_name(&self) -> KeyName {
        KeyName::User { key: self.id, credentials: self.credentials.clone() }
    }
}

impl From<KeyFile> for Text {
    fn from(key: KeyFile) -> Self {
        let Credentials { uid, gid, groups } = key.credentials;
        Self {
            weft_user_key: FORMAT,
            file_system: key.file_system,
            user: key.user,
            id: key.id.to_string(),
            uid,
            gid,
            groups: groups.into(),
            key: key.key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
            addresses: key.addresses,
        }
    }
}

impl TryFrom<Text> for KeyFile {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        if text.weft_user_key != FORMAT {
            return Err(format!("format {} of keys is not known here", text.weft_user_key));
        }
        if !Instance::is_name(&text.file_system) {
            return Err(format!("{:?} is no name of a file system", text.file_system));
        }
        if !is_user_name(&text.user) {
            return Err(format!("{:?} is no name of a user", text.user));
        }
        let credentials = Credentials { uid: text.uid, gid: text.gid, groups: text.groups.into() };
        credentials.check().map_err(|_| "has too many groups".to_owned())?;
        if text.addresses.is_empty() || text.addresses.len() > ADDRESSES_MAX {
            return Err(format!("has {} addresses of nodes, not 1 to {ADDRESSES_MAX}", text.addresses.len()));
        }
        if let Some(bad) = text.addresses.iter().find(|address| address.parse::<SocketAddr>().is_err()) {
            return Err(format!("{bad:?} is no IP:PORT"));
        }
        Ok(Self {
            file_system: text.file_system,
            user: text.user,
            id: text.id.parse().map_err(|_| "id: 16 hexadecimal digits wanted".to_owned())?,
            credentials,
            key: UserKey::new(parse_key(&text.key).ok_or("key: 64 hexadecimal digits wanted")?),
            addresses: text.addresses,
            path: PathBuf::new(),
        })
    }
}

/// Whether this can name a user: what can be shown in a line, and stands in no one's way as an argument.
pub fn is_user_name(name: &str) -> bool {
    (1..=USER_BYTES_MAX).contains(&name.len())
        && !name.starts_with('-')
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn parse_key(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    (text.len() == 64).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use weft_protocol::{MapEpoch, NodeAddress, NodeId, NodeIdentity, NodeRecord, ShardRecord};

    fn map(nodes: u16) -> ClusterMap {
        let node = |id| NodeRecord {
            id: NodeId(id),
            host: String::new(),
            site: String::new(),
            identity: NodeIdentity(1),
            address: NodeAddress { tcp: format!("10.0.0.{id}:7"), unix: "/private".into() },
            stores: true,
            drains: false,
        };
        let nodes: Vec<_> = (0..nodes).map(node).collect();
        ClusterMap {
            name: "job".into(),
            nodes,
            shards: vec![ShardRecord::new(NodeId(1), MapEpoch(0))],
            ..ClusterMap::default()
        }
    }

    fn key() -> KeyFile {
        let credentials = Credentials { uid: 1000, gid: 100, groups: [4, 24].into() };
        KeyFile::make(&NodeKey::new([7; 32]), &map(40), "ann", KeyId(0xabc), credentials)
    }

    fn changed(field: &str, value: serde_json::Value) -> Result<KeyFile, String> {
        let mut json = serde_json::to_value(key()).expect("JSON");
        json[field] = value;
        serde_json::from_value(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_survives_its_text_and_has_what_its_holder_needs() {
        let key = key();
        let text = key.to_text().expect("text");
        assert_eq!(serde_json::from_str::<KeyFile>(&text).expect("a key"), key);
        assert_eq!((key.addresses.len(), key.addresses[0].as_str()), (ADDRESSES_MAX, "10.0.0.1:7"), "the root shard's");
        assert!(!text.contains("/private"), "{text}");
        assert!(!format!("{key:?}").contains(&format!("{:02x}{:02x}", key.key.as_bytes()[0], key.key.as_bytes()[1])));
        assert_eq!(key.key, UserKey::derive(&NodeKey::new([7; 32]), &key.key_name()));
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_reason() {
        use serde_json::json;
        for (field, value, reason) in [
            ("weft_user_key", json!(2), "format 2"),
            ("file_system", json!("../x"), "no name of a file system"),
            ("user", json!("a b"), "no name of a user"),
            ("user", json!(""), "no name of a user"),
            ("id", json!("12"), "16 hexadecimal"),
            ("uid", json!(-1), "-1"),
            ("groups", json!(vec![1; 300]), "too many groups"),
            ("key", json!("00"), "64 hexadecimal"),
            ("key", json!("g".repeat(64)), "64 hexadecimal"),
            ("key", json!("é".repeat(32)), "64 hexadecimal"),
            ("addresses", json!([]), "0 addresses"),
            ("addresses", json!(vec!["1.2.3.4:5"; 17]), "17 addresses"),
            ("addresses", json!(["host:5"]), "no IP:PORT"),
            ("more", json!(1), "unknown field"),
        ] {
            let error = changed(field, value.clone()).expect_err(field);
            assert!(error.contains(reason), "{field} {value}: {error}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        let path = std::env::temp_dir().join(format!("weft-key-{}", std::process::id()));
        fs::write(&path, key().to_text().expect("text")).expect("written");
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            let read = KeyFile::read(&path);
            assert_eq!(read.as_ref().is_ok_and(|key| key.path == path), good, "{mode:o} {read:?}");
        }
        fs::remove_file(&path).expect("removed");
        assert!(KeyFile::read(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        assert!(KeyFile::read(&std::env::temp_dir()).is_err());
    }
}
