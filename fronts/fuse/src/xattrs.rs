//! The kernel's requests on extended attributes.
//!
//! Not here: what they do (`weft-mount-core`).

use crate::convert;
use crate::credentials::Caller;
use crate::filesystem::MountedFilesystem;
use crate::front::{answer, failed};
use crate::pending::Wait;
use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use weft_client::block_on;
use weft_mount_core::{XattrKey, XattrReply};
use weft_protocol::{Error, Result, XattrValue};

impl MountedFilesystem {
    /// The name of an extended attribute; the errno where there can be none: of another namespace, or of a mount that
    /// has none at all ("not implemented", after which the kernel asks no more).
    fn xattr_name(&self, name: &OsStr) -> std::result::Result<XattrKey, Errno> {
        if !self.agreement.has_xattrs() {
            return Err(Errno::ENOSYS);
        }
        XattrKey::new(name.as_bytes()).map_err(|error| convert::errno(&error))
    }

    pub(crate) fn set_xattr(
        &self,
        request: &Request,
        (inode, name): (INodeNo, &OsStr),
        (value, flags): (&[u8], i32),
        reply: ReplyEmpty,
    ) {
        let name = match self.xattr_name(name) {
            Ok(name) => name,
            Err(errno) => return self.turns.serve(|| reply.error(errno)),
        };
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        let asked = XattrValue::new(value).and_then(|value| Ok((value, convert::xattr_expectation(flags)?)));
        self.run(request, Wait::KeepsWrites, move |front| match asked {
            Ok((value, expects)) => {
                let set = block_on(front.mount.set_xattr(&front.who(caller), inode, (&name, &value), expects));
                answer("setxattr", set, reply);
            }
            Err(error) => answer("setxattr", Err(error), reply),
        });
    }

    pub(crate) fn get_xattr(&self, request: &Request, (inode, name): (INodeNo, &OsStr), room: u32, reply: ReplyXattr) {
        // Before a program's write the kernel asks for `security.capability`: it costs no message, and no other thread.
        let name = match self.xattr_name(name) {
            Ok(name) => name,
            Err(errno) => return self.turns.serve(|| reply.error(errno)),
        };
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| {
            let got = block_on(front.mount.get_xattr(&front.who(caller), inode, &name, room));
            answer_xattr("getxattr", got, reply);
        });
    }

    pub(crate) fn list_xattrs(&self, request: &Request, inode: INodeNo, room: u32, reply: ReplyXattr) {
        if !self.agreement.has_xattrs() {
            return self.turns.serve(|| reply.error(Errno::ENOSYS));
        }
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| {
            let listed = block_on(front.mount.list_xattrs(&front.who(caller), inode, room));
            answer_xattr("listxattr", listed, reply);
        });
    }

    pub(crate) fn remove_xattr(&self, request: &Request, (inode, name): (INodeNo, &OsStr), reply: ReplyEmpty) {
        let name = match self.xattr_name(name) {
            Ok(name) => name,
            Err(errno) => return self.turns.serve(|| reply.error(errno)),
        };
        let (caller, inode) = (Caller::from(request), convert::inode(inode));
        self.run(request, Wait::KeepsWrites, move |front| {
            answer("removexattr", block_on(front.mount.remove_xattr(&front.who(caller), inode, &name)), reply);
        });
    }
}

fn answer_xattr(operation: &str, result: Result<XattrReply>, reply: ReplyXattr) {
    match result {
        Ok(XattrReply::Length(length)) => reply.size(length),
        Ok(XattrReply::Bytes(bytes)) => reply.data(&bytes),
        Err(Error::NoXattr) => reply.error(Errno::ENODATA),
        Err(error) => reply.error(failed(operation, &error)),
    }
}
