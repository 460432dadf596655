//! Extended attributes: from the lease cache where it holds, else by one message that has all of an inode's.
//!
//! Who may use which is as in xattr(7). The shard judges it; for what is answered from the cache, this side does.

use crate::cache::{Changing, KnownXattrs};
use crate::calls::Answer;
use crate::files::Files;
use crate::lookup::may;
use crate::shell::Shell;
use std::sync::Arc;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{
    Credentials, Error, FileKind, InodeNumber, Result, Xattr, XattrExpectation, XattrName, XattrNamespace, XattrValue,
    routing,
};

/// Read.
const READ: u16 = 0o4;

/// What an inode has, as far as the caller may know.
enum Told {
    Nothing,
    Known(Arc<KnownXattrs>),
    /// By the shard just now.
    Asked(Vec<Xattr>),
}

impl Told {
    fn xattrs(&self) -> &[Xattr] {
        match self {
            Told::Nothing => &[],
            Told::Known(known) => &known.xattrs,
            Told::Asked(xattrs) => xattrs,
        }
    }
}

impl<S: Shell> Files<S> {
    /// The value of an extended attribute. [`Error::NoXattr`]: it is not there, or is not the caller's to see. No
    /// message where a lease on the inode's attributes is held and it has none, or they were asked for before.
    pub async fn get_xattr(&self, who: &Credentials, inode: InodeNumber, name: &XattrName) -> Result<XattrValue> {
        if name.namespace() == XattrNamespace::Trusted && who.uid != 0 {
            return Err(Error::NoXattr);
        }
        let (told, readable) = self.told_xattrs(who, inode).await?;
        if readable == Some(false) && name.namespace() == XattrNamespace::User {
            return Err(Error::AccessDenied);
        }
        let xattr = told.xattrs().iter().find(|xattr| xattr.name == *name).ok_or(Error::NoXattr)?;
        xattr.value.clone().ok_or(Error::AccessDenied)
    }

    /// Names of the extended attributes that the caller may know of, in their order.
    pub async fn list_xattrs(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<XattrName>> {
        let (told, _) = self.told_xattrs(who, inode).await?;
        let is_told = |xattr: &&Xattr| who.uid == 0 || xattr.name.namespace() == XattrNamespace::User;
        Ok(told.xattrs().iter().filter(is_told).map(|xattr| xattr.name.clone()).collect())
    }

    /// The extended attributes, and whether the caller may read the inode, where that is known.
    async fn told_xattrs(&self, who: &Credentials, inode: InodeNumber) -> Result<(Told, Option<bool>)> {
        let calls = self.calls();
        let known = calls.session.cache().xattrs(inode, calls.shell.now_ms()).map(|(attributes, known)| {
            // The kernel of a mount judges links by itself: they have none of the namespace `user`.
            let readable = attributes.kind == FileKind::Symlink || may(who, attributes, READ);
            (known, readable)
        });
        match known {
            Some((None, readable)) => return Ok((Told::Nothing, Some(readable))),
            Some((Some(known), readable)) if known.has_trusted || who.uid != 0 => {
                return Ok((Told::Known(known), Some(readable)));
            }
            _ => {}
        }
        let request = ShardRequest::GetXattrs { inode };
        let Answer { answer, stamp, session, .. } = calls.call(who, routing::of_inode(inode), request).await?;
        let ShardAnswer::Xattrs { xattrs, attributes, grants } = answer else { return Err(Error::Malformed) };
        let mut readable = None;
        if let Some(attributes) = &attributes {
            readable = Some(attributes.kind == FileKind::Symlink || may(who, attributes, READ));
            if let Some(mut cache) = calls.session.cache_for(session) {
                let known = KnownXattrs { xattrs: xattrs.clone(), has_trusted: who.uid == 0 };
                cache.learn_xattrs(known, attributes, grants, stamp);
            }
        }
        Ok((Told::Asked(xattrs), readable))
    }

    /// Sets an extended attribute. One message, and those of a flush of a file that this client has open.
    pub async fn set_xattr(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        name: &XattrName,
        value: &XattrValue,
        expects: XattrExpectation,
    ) -> Result<()> {
        let (name, value) = (name.clone(), value.clone());
        self.change_xattrs(who, inode, ShardRequest::SetXattr { inode, name, value, expects }).await
    }

    /// Removes an extended attribute. One message, and those of a flush of a file that this client has open.
    pub async fn remove_xattr(&self, who: &Credentials, inode: InodeNumber, name: &XattrName) -> Result<()> {
        self.change_xattrs(who, inode, ShardRequest::RemoveXattr { inode, name: name.clone() }).await
    }

    async fn change_xattrs(&self, who: &Credentials, inode: InodeNumber, request: ShardRequest) -> Result<()> {
        let _in_flight = self.calls().begin_change(Changing::Xattrs(inode));
        self.change_inode(who, inode, &request).await.map(drop)
    }
}
