//! The file of hosts that `weft up --hosts FILE` starts nodes on.
//!
//! ```text
//! # a node per line; a host may have several
//! n1.cluster   site=tsukuba  store=/nvme/weft:700GiB  listen=ib0
//! n2.cluster   site=tsukuba  store=/nvme/weft
//! n3.cluster   store=device:/dev/nvme1n1
//! localhost    listen=10.1.0.0/16
//! ```

use crate::listen::Listen;
use crate::quantity::ByteSize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use weft_node::StorePlace;

/// Site of a node that none was given for.
pub const SITE_DEFAULT: &str = "local";

/// A node to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostEntry {
    /// As ssh reaches it; `None`: this machine, without ssh.
    pub ssh_host: Option<String>,
    pub site: String,
    pub store: Option<StoreChoice>,
    pub listen: Option<Listen>,
}

impl HostEntry {
    /// A host of which nothing but the name is known; `None`: this machine.
    pub fn of(ssh_host: Option<String>) -> Self {
        Self { ssh_host, site: SITE_DEFAULT.to_owned(), store: None, listen: None }
    }
}

/// `DIR[:SIZE]`, `memory[:SIZE]`, `device:PATH` or `file:DIR:SIZE`: where a store is to be, and what it may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreChoice {
    pub place: StorePlace,
    /// `None`: what the file system there has free, half of the memory, or all of a device.
    pub size: Option<ByteSize>,
}

impl FromStr for StoreChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("device:") {
            let path = not_empty(path, text, "device")?;
            return Ok(Self { place: StorePlace::Device(path), size: None });
        }
        if let Some(file) = text.strip_prefix("file:") {
            let (directory, size) = file.rsplit_once(':').ok_or_else(|| format!("\"{text}\" is not file:DIR:SIZE"))?;
            let place = StorePlace::File(not_empty(directory, text, "directory")?);
            return Ok(Self { place, size: Some(size.parse()?) });
        }
        let (place, size) = match text.rsplit_once(':') {
            Some((place, size)) => (place, Some(size.parse()?)),
            None => (text, None),
        };
        let place = match place {
            "memory" => StorePlace::Memory,
            directory => StorePlace::Directory(not_empty(directory, text, "directory")?),
        };
        Ok(Self { place, size })
    }
}

fn not_empty(path: &str, text: &str, what: &str) -> Result<PathBuf, String> {
    if path.is_empty() { Err(format!("\"{text}\" names no {what}")) } else { Ok(PathBuf::from(path)) }
}

impl StoreChoice {
    /// The directory or device that it names.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            StorePlace::Directory(path) | StorePlace::Device(path) | StorePlace::File(path) => Some(path),
            StorePlace::Memory => None,
        }
    }
}

/// Reads the text of a file of hosts. An error names the line.
pub fn parse(text: &str) -> Result<Vec<HostEntry>, String> {
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        if let Some(host) = words.next() {
            entries.push(parse_entry(host, words).map_err(|error| format!("line {}: {error}", index + 1))?);
        }
    }
    if entries.is_empty() { Err("names no host".to_owned()) } else { Ok(entries) }
}

fn parse_entry<'a>(host: &str, words: impl Iterator<Item = &'a str>) -> Result<HostEntry, String> {
    // ssh would take it for an option; `=` shows that the host was forgotten.
    if host.starts_with('-') || host.contains('=') {
        return Err(format!("\"{host}\" is not a host"));
    }
    let ssh_host = (host != "localhost").then(|| host.to_owned());
    let mut entry = HostEntry::of(ssh_host);
    for word in words {
        match word.split_once('=') {
            Some(("site", site)) if !site.is_empty() => entry.site = site.to_owned(),
            Some(("store", store)) => entry.store = Some(parse_remote_store(store)?),
            Some(("listen", listen)) => entry.listen = Some(listen.parse()?),
            _ => return Err(format!("\"{word}\" is none of site=NAME, store=STORE, listen=IFACE|CIDR|ADDR")),
        }
    }
    Ok(entry)
}

/// Relative to what would be unclear on another host.
fn parse_remote_store(text: &str) -> Result<StoreChoice, String> {
    let store: StoreChoice = text.parse()?;
    if store.path().is_some_and(|path| !path.is_absolute()) {
        return Err(format!("store \"{text}\" is not an absolute path"));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_per_line() {
        let text = "# all of them\n\n a.b site=x store=/s:4GiB listen=ib0 # fast\nlocalhost\nu@c store=/t\n";
        let entries = parse(text).expect("parsed");
        let store = |directory: &str, size| StoreChoice { place: StorePlace::Directory(directory.into()), size };
        let expected = [
            HostEntry {
                ssh_host: Some("a.b".into()),
                site: "x".into(),
                store: Some(store("/s", Some(ByteSize(4 << 30)))),
                listen: Some(Listen::Interface("ib0".into())),
            },
            HostEntry { ssh_host: None, site: "local".into(), store: None, listen: None },
            HostEntry {
                ssh_host: Some("u@c".into()),
                site: "local".into(),
                store: Some(store("/t", None)),
                listen: None,
            },
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_store_is_a_directory_memory_a_device_or_a_file() {
        let place = |text: &str| text.parse::<StoreChoice>().map(|store| (store.place, store.size.map(|size| size.0)));
        assert_eq!(place("/s"), Ok((StorePlace::Directory("/s".into()), None)));
        assert_eq!(place("memory:2MiB"), Ok((StorePlace::Memory, Some(2 << 20))));
        assert_eq!(place("device:/dev/x"), Ok((StorePlace::Device("/dev/x".into()), None)));
        assert_eq!(place("device:/dev/by-path/a:b"), Ok((StorePlace::Device("/dev/by-path/a:b".into()), None)));
        assert_eq!(place("file:/s:1GiB"), Ok((StorePlace::File("/s".into()), Some(1 << 30))));
        for wrong in ["", ":1GiB", "device:", "file:/s", "file::1GiB", "file:/s:much", "/s:much"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_error_names_its_line() {
        let cases = [
            ("a\nb port=3", "line 2: \"port=3\" is none of"),
            ("-oProxyCommand=x", "line 1: \"-oProxyCommand=x\" is not a host"),
            ("site=x", "line 1: \"site=x\" is not a host"),
            ("a site=", "line 1: \"site=\""),
            ("a store=rel", "line 1: store \"rel\" is not an absolute path"),
            ("a store=/s:many", "line 1: \"many\" is not a size"),
            ("a store=file:rel:1GiB", "line 1: store \"file:rel:1GiB\" is not an absolute path"),
            ("# nothing\n", "names no host"),
        ];
        for (text, expected) in cases {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
