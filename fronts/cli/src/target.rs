//! What a path on the command line names: `NAME:/path` in a file system, or a path of this machine.
//!
//! `weft:/path` names the only file system that runs, unless one is called `weft`. `weft:NAME:/path`, as MPI programs
//! write it, is understood too. A path of this machine that looks like one of these is written with `./` before it.

use crate::failure::{Failure, Outcome};
use crate::mounts;
use crate::output::printable;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use weft_client::Instance;

/// What a path names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    Weft(WeftPath),
    Local(PathBuf),
}

/// A path in a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeftPath {
    /// `None`: the only one that runs.
    pub file_system: Option<String>,
    /// Absolute; bytes, as names are.
    pub path: Vec<u8>,
}

impl Target {
    /// Takes a path from the command line apart.
    pub fn parse(text: &OsStr) -> Target {
        let bytes = text.as_bytes();
        let Some((name, path)) = split_name(bytes) else { return Target::Local(PathBuf::from(text)) };
        // `weft:` is the scheme when another name follows it.
        match split_name(path) {
            Some((inner, path)) if name == "weft" => weft(inner, path),
            _ => weft(name, path),
        }
    }

    /// For verbs that work in a file system only. A path below a mount of this user is translated to what it names.
    pub fn in_weft(text: &OsStr, verb: &str) -> Outcome<WeftPath> {
        match Target::parse(text) {
            Target::Weft(path) => Ok(path),
            Target::Local(path) => mounts::path_below(&path).ok_or_else(|| {
                let text = printable(path.as_os_str().as_bytes());
                let failure = Failure::new(format!("{verb} {text}: is a path of this machine"));
                match text.split_once(':') {
                    Some((name, rest)) if Instance::is_name(name) => {
                        failure.remedy(format!("a path in a file system begins with a slash: {name}:/{rest}"))
                    }
                    _ => failure.remedy(format!(
                        "write NAME:/path (or weft:/path) for one in a file system; `{verb}` itself is for others"
                    )),
                }
            }),
        }
    }
}

fn weft(name: &str, path: &[u8]) -> Target {
    let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
    Target::Weft(WeftPath { file_system: Some(name.to_owned()), path })
}

/// Splits `NAME:` from an absolute path or from nothing or from another `NAME:`.
fn split_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (name, path) = (std::str::from_utf8(&bytes[..colon]).ok()?, &bytes[colon + 1..]);
    let continues = path.is_empty() || path[0] == b'/' || (name == "weft" && split_name(path).is_some());
    (Instance::is_name(name) && continues).then_some((name, path))
}

impl WeftPath {
    /// The last component; `None` for `/`, and for `.` and `..`.
    pub fn base_name(&self) -> Option<&[u8]> {
        base_name(&self.path)
    }

    /// The path of something in this directory.
    pub fn join(&self, name: &[u8]) -> WeftPath {
        WeftPath { path: join(&self.path, name), ..self.clone() }
    }

    /// The path as an argument.
    pub fn to_os_string(&self) -> OsString {
        let mut bytes = self.file_system.as_deref().unwrap_or("weft").as_bytes().to_vec();
        bytes.push(b':');
        bytes.extend_from_slice(&self.path);
        OsString::from_vec(bytes)
    }
}

impl fmt::Display for WeftPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", printable(self.to_os_string().as_bytes()))
    }
}

/// The last component of a path; `None` when there is none or it is `.` or `..`.
pub fn base_name(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let name = &path[start..end];
    (name != b"." && name != b"..").then_some(name)
}

/// A directory's path and a name in it.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last().is_some_and(|last| *last != b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let target = Target::parse(OsStr::new(text));
        let expected = match expected {
            None => Target::Local(text.into()),
            Some((name, path)) => Target::Weft(WeftPath { file_system: Some(name.into()), path: path.into() }),
        };
        assert_eq!(target, expected, "{text}");
    }

    #[test]
    fn a_name_and_a_colon_before_an_absolute_path_is_a_file_system() {
        check("weft:/a/b", Some(("weft", "/a/b")));
        check("job-1.x:/", Some(("job-1.x", "/")));
        check("job:", Some(("job", "/")));
        check("weft:job:/a", Some(("job", "/a")));
        check("weft:job:", Some(("job", "/")));
        check("weft:/job:/a", Some(("weft", "/job:/a")));
        check("job:/a:b:/c", Some(("job", "/a:b:/c")));
    }

    #[test]
    fn anything_else_is_of_this_machine() {
        for local in ["a", "/a/b", "./weft:/a", "/x:/y", "a:b", "job:weft:/a", ":/a", "", "a b:/c", "12:30.log", "ä:/x"]
        {
            check(local, None);
        }
    }

    #[test]
    fn base_names() {
        let cases: [(&str, Option<&str>); 9] = [
            ("/a/b", Some("b")),
            ("/a/b//", Some("b")),
            ("b", Some("b")),
            ("/", None),
            ("", None),
            ("a/..", None),
            (".", None),
            ("/a/.x", Some(".x")),
            ("//x", Some("x")),
        ];
        for (path, name) in cases {
            assert_eq!(base_name(path.as_bytes()), name.map(str::as_bytes), "{path}");
        }
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(join(b"", b"b"), b"b");
    }
}
