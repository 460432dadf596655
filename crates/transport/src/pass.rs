//! Descriptors passed over a Unix socket (SCM_RIGHTS, unix(7)).

use crate::patience::Wait;
use crate::{Result, Socket, TransportError};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Sends bytes with a descriptor attached to them.
pub fn send_descriptor(socket: &Socket, bytes: &[u8], descriptor: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "the space is made for one descriptor");
    let sent = loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => break sent,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    socket.send_all(bytes.get(sent..).unwrap_or_default())
}

/// Fills `bytes`, and takes the descriptor that came with them, if one did. More than one is refused (and closed).
pub fn receive_descriptor(socket: &Socket, bytes: &mut [u8]) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut wait = Wait::default();
    let received = loop {
        let mut slices = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => {
                return Err(TransportError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(message) => break message.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait.timed_out(socket)?,
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut passed: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    socket.receive_exact(bytes.get_mut(received..).unwrap_or_default())?;
    if passed.len() > 1 { Err(TransportError::Malformed) } else { Ok(passed.pop()) }
}
