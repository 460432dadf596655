//! Extended attributes, of those that are kept and of those that are settings.

use crate::failure::{Explain, Failure, Outcome};
use crate::place::Place;
use weft_client::XattrKey;
use weft_protocol::{InodeNumber, XattrExpectation, XattrValue};

impl Place<'_> {
    fn named(&self, name: &[u8]) -> Outcome<(InodeNumber, XattrKey)> {
        let inode = self.attributes(true, "xattr")?.inode;
        Ok((inode, XattrKey::new(name).explain(|| self.of(name))?))
    }

    /// For the texts of failures.
    fn of(&self, name: &[u8]) -> String {
        format!("{} of {self}", String::from_utf8_lossy(name))
    }

    /// A value.
    pub fn xattr(&self, name: &[u8]) -> Outcome<Vec<u8>> {
        let (inode, key) = self.named(name)?;
        let (client, who) = (&self.fs.client, &self.fs.who);
        let value = match key {
            XattrKey::Kept(name) => client.get_xattr(who, inode, &name).map(|value| value.as_bytes().to_vec()),
            XattrKey::Setting(setting) => client.setting(who, inode, setting).map(String::into_bytes),
        };
        value.explain(|| self.of(name))
    }

    /// Sets a value.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], expects: XattrExpectation) -> Outcome {
        let (inode, key) = self.named(name)?;
        let (client, who) = (&self.fs.client, &self.fs.who);
        let set = match key {
            XattrKey::Kept(name) => {
                XattrValue::new(value).and_then(|value| client.set_xattr(who, inode, &name, &value, expects))
            }
            XattrKey::Setting(setting) => client.change_setting(who, inode, (setting, value), expects),
        };
        set.explain(|| self.of(name))
    }

    /// The names of those that have a value.
    pub fn xattrs(&self) -> Outcome<Vec<Vec<u8>>> {
        const VERB: &str = "list the extended attributes of";
        let inode = self.attributes(true, VERB)?.inode;
        let names = self.fs.client.list_xattrs(&self.fs.who, inode).explain(|| format!("{VERB} {self}"))?;
        Ok(names.iter().map(|name| name.as_bytes().to_vec()).collect())
    }

    /// Removes a value.
    pub fn remove_xattr(&self, name: &[u8]) -> Outcome {
        match self.named(name)? {
            (inode, XattrKey::Kept(key)) => {
                self.fs.client.remove_xattr(&self.fs.who, inode, &key).explain(|| self.of(name))
            }
            (_, XattrKey::Setting(_)) => {
                Err(Failure::new(libc::EPERM, format!("{} is a setting: it can only be set", self.of(name))))
            }
        }
    }
}
