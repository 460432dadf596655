//! The guard that a write asks before each piece that it writes.
//!
//! Bytes of a write may arrive over minutes, and the session that sends them may end meanwhile. So the permission that
//! was checked with the request's header is asked for again before each piece. A piece that was admitted is counted
//! until it is written: whoever ends a session waits for the pieces in flight.

use weft_protocol::Result;

/// Decides whether a piece may be written. Used by several threads at once.
pub trait WriteGuard: Sync {
    /// Admits one piece, until [`WriteGuard::leave`]. An error refuses this piece and ends the write.
    fn enter(&self) -> Result<()>;

    /// A piece that was admitted is written, or has failed.
    fn leave(&self);
}

/// Admits everything: for tools and tests that write on nobody's behalf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unguarded;

impl WriteGuard for Unguarded {
    fn enter(&self) -> Result<()> {
        Ok(())
    }

    fn leave(&self) {}
}

/// An admitted piece, until this is dropped.
pub struct Admitted<'a>(&'a dyn WriteGuard);

impl<'a> Admitted<'a> {
    /// Asks the guard for one piece.
    pub fn by(guard: &'a dyn WriteGuard) -> Result<Self> {
        guard.enter().map(|()| Self(guard))
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Moved, Pipe};
    use crate::store::{BlockObject, FilePlan, WritePlan, lock};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use weft_protocol::Error;
    use weft_transport::{PeerMemory, Seal, Socket};

    /// Admits so many pieces, as a session does that is fenced after them.
    struct Pieces {
        left: AtomicUsize,
        in_flight: AtomicUsize,
    }

    impl Pieces {
        fn of(count: usize) -> Self {
            Self { left: AtomicUsize::new(count), in_flight: AtomicUsize::new(0) }
        }
    }

    impl WriteGuard for Pieces {
        fn enter(&self) -> Result<()> {
            let one_less = |left: usize| left.checked_sub(1);
            let admitted = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
            admitted.map_err(|_| Error::SessionEnded)?;
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn leave(&self) {
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }

    struct Object(Mutex<Vec<u8>>);

    impl BlockObject for Object {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
            Err(Error::NoObject)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
            let start = usize::try_from(offset).unwrap();
            lock(&self.0)[start..start + from.len()].copy_from_slice(from);
            Ok(())
        }

        fn append(&self, from: &[u8]) -> Result<()> {
            self.write_at(0, from)
        }
    }

    const LATE: u8 = 7;

    /// How bytes of a write come, and where they go.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Way {
        Stream,
        Memory,
        StreamToBlocks,
        MemoryToBlocks,
    }

    /// Writes through a guard that admits so many pieces. Returns how many bytes of it have landed.
    fn landed(way: Way, bytes: usize, is_append: bool, pieces: usize) -> usize {
        let offset = (!is_append).then_some(0);
        let file: File = memfd_create("weft-guard", MemfdFlags::CLOEXEC).unwrap().into();
        let object = Object(Mutex::new(vec![0; bytes]));
        let plan = match way {
            Way::Stream | Way::Memory => WritePlan::File(FilePlan { file: file.as_fd(), offset, call_bytes: 1 << 20 }),
            Way::StreamToBlocks | Way::MemoryToBlocks => WritePlan::Blocks { object: &object, offset },
        };
        let (body, guard, count) = (vec![LATE; bytes], Pieces::of(pieces), u32::try_from(bytes).unwrap());
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::from_unix(client), Socket::from_unix(server));
        let moved = if let Way::Stream | Way::StreamToBlocks = way {
            std::thread::scope(|scope| {
                scope.spawn(|| client.send_all_with(&body, b"next").unwrap());
                let moved = Pipe::new().receive(&server, plan, count, &guard).unwrap();
                let mut next = [0; 4];
                server.receive_exact(&mut next).unwrap();
                assert_eq!(&next, b"next", "{way:?}: the connection is in order");
                moved
            })
        } else {
            let seal = Seal::new().unwrap();
            let memory = PeerMemory::open(&server, seal.shared()).unwrap();
            Pipe::new().take(&memory, body.as_ptr() as u64, plan, count, &guard).unwrap()
        };
        assert_eq!(guard.in_flight.load(Ordering::SeqCst), 0, "{way:?}");
        let mut found = lock(&object.0).clone();
        if let Way::Stream | Way::Memory = way {
            found.clear();
            (&file).read_to_end(&mut found).unwrap();
        }
        let landed = found.iter().filter(|byte| **byte == LATE).count();
        match moved {
            Moved::Done => assert_eq!(landed, bytes),
            Moved::Failed(error) => assert_eq!(error, Error::SessionEnded, "{way:?}"),
        }
        landed
    }

    #[test]
    fn every_way_of_a_write_asks_before_each_piece() {
        for way in [Way::Stream, Way::Memory, Way::StreamToBlocks, Way::MemoryToBlocks] {
            for (bytes, is_append) in [(200 << 10, false), (9 << 20, false), (200 << 10, true)] {
                assert_eq!(landed(way, bytes, is_append, 0), 0, "{way:?} of {bytes}");
                assert_eq!(landed(way, bytes, is_append, usize::MAX), bytes, "{way:?} of {bytes}");
                let one = landed(way, bytes, is_append, 1);
                assert!(one > 0 && one <= bytes.min(1 << 20), "{way:?} of {bytes}: {one} bytes are one piece");
            }
        }
    }
}
