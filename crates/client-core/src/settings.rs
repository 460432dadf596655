//! Layout and placement, as extended attributes that every file or directory has: `weft.layout`, `weft.placement`.
//!
//! Tools and programs that know nothing of Weft can so say how a file is to be striped before they write it, and
//! directories hand it down (CephFS has `ceph.file.layout` for that, Lustre `lustre.lov`). No list names them, so that
//! who copies extended attributes to another file system does not fail there.
//!
//! | name | of | value |
//! | --- | --- | --- |
//! | `weft.layout` | a file, empty; a directory: what is made in it | `whole`, `split`, `width=N`, with `stripe=SIZE` |
//! | `weft.placement` | a directory, and those that are made in it | `home`, `hash` |

use crate::files::Files;
use crate::shell::Shell;
use weft_protocol::{
    Attributes, Credentials, Error, FileKind, InheritedChange, InodeNumber, Plan, Result, StripePlan, XattrExpectation,
    XattrName, XattrValue,
};

const LAYOUT: &[u8] = b"weft.layout";
const PLACEMENT: &[u8] = b"weft.placement";
/// Bytes of a stripe where none are given.
const STRIPE_BYTES: u32 = 1 << 20;
/// Stripes that are shorter, or no multiple, would split the requests of kernels.
pub const STRIPE_BYTES_UNIT: u32 = 64 << 10;

/// How files are striped whose user says so: over `width` nodes, with stripes of so many bytes (`None`: the usual).
/// `None`: these may not be.
pub fn stripe_plan(width: u16, stripe_bytes: Option<u64>) -> Option<StripePlan> {
    let bytes = stripe_bytes.map_or(Some(STRIPE_BYTES), |bytes| u32::try_from(bytes).ok())?;
    StripePlan::new(width, bytes).filter(|_| bytes.is_multiple_of(STRIPE_BYTES_UNIT))
}

/// Where the names of a directory are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// At one shard, near who makes it.
    Home,
    /// Spread over all shards: at once, and in directories that are made in it as soon as they have a few names.
    Hash,
}

impl Placement {
    pub const ALL: [Self; 2] = [Self::Home, Self::Hash];

    /// As its text says.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|placement| placement.text() == text)
    }

    /// What it is called.
    pub fn text(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Hash => "hash",
        }
    }
}

/// Name of what programs know as an extended attribute: one that is stored, or a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum XattrKey {
    /// One that is stored with the inode.
    Kept(XattrName),
    Setting(Setting),
}

impl XattrKey {
    /// The errors of [`XattrName::new`].
    pub fn new(name: &[u8]) -> Result<Self> {
        match name {
            LAYOUT => Ok(Self::Setting(Setting::Layout)),
            PLACEMENT => Ok(Self::Setting(Setting::Placement)),
            _ => XattrName::new(name).map(Self::Kept),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    Layout,
    Placement,
}

impl Setting {
    /// Its value; [`Error::NoXattr`]: inodes of this kind have none.
    fn of(self, attributes: &Attributes) -> Result<String> {
        match (self, attributes.kind) {
            (Setting::Layout, FileKind::Regular | FileKind::Directory) => Ok(layout_text(attributes.layout.plan())),
            (Setting::Placement, FileKind::Directory) => {
                let is_hash = attributes.inherited().spreads || attributes.parts.is_some();
                Ok(if is_hash { Placement::Hash } else { Placement::Home }.text().to_owned())
            }
            _ => Err(Error::NoXattr),
        }
    }
}

/// A layout as [`Setting::Layout`] tells it.
pub fn layout_text(plan: Plan) -> String {
    match plan {
        Plan::Whole => "whole".to_owned(),
        Plan::Striped(plan) => format!("width={} stripe={}", plan.width(), plan.stripe_bytes()),
        Plan::Split => "split".to_owned(),
    }
}

/// Parses what [`layout_text`] returns, also with units; `None`: this is no layout.
pub fn parse_layout(text: &str) -> Option<Plan> {
    match text {
        "whole" => return Some(Plan::Whole),
        "split" => return Some(Plan::Split),
        _ => {}
    }
    let (mut width, mut stripe_bytes) = (None, None);
    for word in text.split_ascii_whitespace() {
        match word.split_once('=')? {
            ("width", number) if width.is_none() => width = Some(number.parse().ok()?),
            ("stripe", size) if stripe_bytes.is_none() => stripe_bytes = Some(parse_size(size)?),
            _ => return None,
        }
    }
    stripe_plan(width?, stripe_bytes).map(Plan::Striped)
}

fn parse_size(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20)];
    let with_unit = units.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, unit) = with_unit.unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

impl<S: Shell> Files<S> {
    /// Value of an extended attribute or a setting. [`Error::NoXattr`]: it is not there, or is not the caller's to
    /// see. A setting costs no message where a lease on the inode's attributes is held; for others see `get_xattr`.
    pub async fn value_of(&self, who: &Credentials, inode: InodeNumber, key: &XattrKey) -> Result<Vec<u8>> {
        match key {
            XattrKey::Kept(name) => Ok(self.get_xattr(who, inode, name).await?.as_bytes().to_vec()),
            XattrKey::Setting(setting) => Ok(setting.of(&self.attributes(who, inode).await?.attributes)?.into_bytes()),
        }
    }

    /// Sets an extended attribute, or changes a setting.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoXattr`]: not as expected. For a setting, [`Error::Invalid`]: not a value that it
    /// may have, or an inode of a kind that has no such setting; [`Error::NotEmpty`]: a file that has bytes keeps its
    /// layout; [`Error::InUse`]: others have the file open.
    pub async fn set_value(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        (key, value): (&XattrKey, &XattrValue),
        expects: XattrExpectation,
    ) -> Result<()> {
        match key {
            XattrKey::Kept(name) => self.set_xattr(who, inode, name, value, expects).await,
            XattrKey::Setting(setting) => self.change_setting(who, inode, (*setting, value.as_bytes()), expects).await,
        }
    }

    /// Removes an extended attribute. [`Error::NotPermitted`]: a setting always has a value.
    pub async fn remove_value(&self, who: &Credentials, inode: InodeNumber, key: &XattrKey) -> Result<()> {
        match key {
            XattrKey::Kept(name) => self.remove_xattr(who, inode, name).await,
            XattrKey::Setting(_) => Err(Error::NotPermitted),
        }
    }

    async fn change_setting(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        (setting, value): (Setting, &[u8]),
        expects: XattrExpectation,
    ) -> Result<()> {
        if expects.absent {
            return Err(Error::Exists);
        }
        let kind = self.attributes(who, inode).await?.attributes.kind;
        let text = std::str::from_utf8(value).map_err(|_| Error::Invalid)?.trim();
        match (setting, kind) {
            (Setting::Layout, FileKind::Directory) => {
                let plan = parse_layout(text).ok_or(Error::Invalid)?;
                self.set_inherited(who, inode, InheritedChange::Plan(plan)).await.map(drop)
            }
            (Setting::Layout, FileKind::Regular) => {
                self.set_file_plan(who, inode, parse_layout(text).ok_or(Error::Invalid)?).await
            }
            (Setting::Placement, FileKind::Directory) => {
                self.set_placement(who, inode, Placement::parse(text).ok_or(Error::Invalid)?).await
            }
            _ => Err(Error::Invalid),
        }
    }

    /// Sets where the names of a directory are, and of those that are made in it from now on. What is spread stays so.
    pub async fn set_placement(&self, who: &Credentials, inode: InodeNumber, placement: Placement) -> Result<()> {
        let is_hash = placement == Placement::Hash;
        self.set_inherited(who, inode, InheritedChange::Spreads(is_hash)).await?;
        if is_hash {
            self.spread(who, inode).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_they_are_told_and_with_units() {
        let stripes = |width, bytes| Plan::Striped(stripe_plan(width, bytes).expect("a plan"));
        for plan in [Plan::Whole, stripes(4, None), stripes(2, Some(192 << 10)), Plan::Split] {
            assert_eq!(parse_layout(&layout_text(plan)), Some(plan));
        }
        assert_eq!(parse_layout("width=4"), Some(stripes(4, Some(1 << 20))));
        assert_eq!(parse_layout("stripe=256KiB width=3"), Some(stripes(3, Some(256 << 10))));
        for bad in
            ["", "striped", "width=1", "width=4 stripe=1", "width=4 width=4", "stripe=1MiB", "width=4 stripe=1GiB"]
        {
            assert_eq!(parse_layout(bad), None, "{bad}");
        }
        assert_eq!(parse_layout("width=4 stripe=18446744073709551615MiB"), None);
    }

    #[test]
    fn names_tell_what_is_kept_from_what_is_set() {
        assert_eq!(XattrKey::new(b"weft.layout"), Ok(XattrKey::Setting(Setting::Layout)));
        assert_eq!(XattrKey::new(b"weft.placement"), Ok(XattrKey::Setting(Setting::Placement)));
        assert!(matches!(XattrKey::new(b"user.weft.layout"), Ok(XattrKey::Kept(_))));
        assert_eq!(XattrKey::new(b"weft.other"), Err(Error::NotSupported));
    }
}
