//! Reads of one file that go to the kernel together (io_uring), so that a device works on all of them at a time.
//! [`Ring`] waits for them; with [`Slots`] their caller does something else meanwhile.

mod shared;
mod slots;

pub use shared::SharedSlot;
pub use slots::Slots;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A place in a file, and where its bytes are to go.
pub type Read<'a> = (u64, &'a mut [u8]);

/// The file, as the ring knows it.
const FILE: types::Fixed = types::Fixed(0);

/// A ring for one file, which it keeps open.
pub struct Ring {
    ring: IoUring,
    /// Reads that are with the kernel at a time.
    depth: usize,
}

impl Ring {
    /// For up to `depth` reads at a time. An error: the kernel has no rings, or does not let this process have one.
    pub fn new(file: BorrowedFd<'_>, depth: u32) -> io::Result<Self> {
        // Completions are taken when this thread asks for them, so they need not interrupt it.
        let ring = IoUring::builder().setup_coop_taskrun().build(depth)?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self { ring, depth: usize::try_from(depth).unwrap_or(1).max(1) })
    }

    /// Fills all of them. The first error ends it, when what is with the kernel has come back; the end of the file is
    /// one.
    pub fn read_all(&mut self, reads: &mut [Read<'_>]) -> io::Result<()> {
        // How far each is, and which are to be sent again for the rest.
        let mut done = vec![0usize; reads.len()];
        let mut again: Vec<usize> = Vec::new();
        let mut next = 0;
        let (mut flying, mut result) = (0, Ok(()));
        loop {
            while result.is_ok() && flying < self.depth {
                let Some(index) = again.pop().or_else(|| (next < reads.len()).then_some(next)) else { break };
                next = next.max(index + 1);
                match self.push(index, reads, &done) {
                    Ok(()) => flying += 1,
                    Err(error) => result = Err(error),
                }
            }
            if flying == 0 {
                return result;
            }
            self.wait();
            for entry in self.ring.completion() {
                flying -= 1;
                let index = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
                let (Some((_, into)), Some(done)) = (reads.get(index), done.get_mut(index)) else { continue };
                match note(entry.result(), into.len(), done) {
                    Ok(true) => {}
                    Ok(false) => again.push(index),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
    }

    /// Puts what is left of a read into the queue.
    fn push(&mut self, index: usize, reads: &mut [Read<'_>], done: &[usize]) -> io::Result<()> {
        let skipped = done.get(index).copied().unwrap_or(0);
        let Some((place, into)) = reads.get_mut(index) else { return Ok(()) };
        let rest = into.get_mut(skipped..).unwrap_or_default();
        // More than that no call reads; the rest comes with another one.
        let bytes = u32::try_from(rest.len().min(1 << 30)).unwrap_or(1 << 30);
        let read = opcode::Read::new(FILE, rest.as_mut_ptr(), bytes).offset(*place + skipped as u64).build();
        let entry: squeue::Entry = read.user_data(index as u64);
        // SAFETY: the memory is lent to `read_all` alone and for writing, and that does not return before the kernel
        // has told of each read that it sent: it counts them, goes on after errors, and nothing in between panics. The
        // ring has the file open.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Sends what is in the queue, and waits for one that has ended.
    fn wait(&self) {
        // Interrupted, or the kernel is short of something: it is asked again. Memory that is lent to it cannot be
        // given back before it is done.
        while let Err(error) = self.ring.submit_and_wait(1) {
            if error.kind() != io::ErrorKind::Interrupted {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Else the kernel does it a while after the ring is closed. It fails where there is nothing to let go of.
        drop(self.ring.submitter().unregister_files());
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// Takes note of what came of a read: whether it has all of its bytes.
fn note(result: i32, bytes: usize, done: &mut usize) -> io::Result<bool> {
    match usize::try_from(result) {
        Ok(0) if *done < bytes => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            *done += count;
            Ok(*done >= bytes)
        }
        Err(_) => match Errno::from_raw_os_error(-result) {
            Errno::INTR | Errno::AGAIN => Ok(false),
            errno => Err(errno.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    pub(super) const FILE_BYTES: usize = 1 << 20;

    pub(super) fn file() -> (OwnedFd, Vec<u8>) {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        assert_eq!(rustix::io::write(&file, &bytes), Ok(FILE_BYTES));
        (file, bytes)
    }

    fn ring(file: &OwnedFd, depth: u32) -> Option<Ring> {
        let made = Ring::new(file.as_fd(), depth);
        if let Err(error) = &made {
            println!("skipped: no ring: {error}");
        }
        made.ok()
    }

    #[test]
    fn more_reads_than_the_ring_holds_each_get_their_bytes() {
        let (file, bytes) = file();
        let Some(mut ring) = ring(&file, 4) else { return };
        for count in [0, 1, 3, 4, 5, 100] {
            let places = (0..count).map(|number| number * 7919 % (FILE_BYTES - 5000));
            let mut memory: Vec<Vec<u8>> = (0..count).map(|number| vec![1; number * 53]).collect();
            let mut reads: Vec<Read<'_>> =
                places.clone().zip(&mut memory).map(|(place, into)| (place as u64, &mut into[..])).collect();
            ring.read_all(&mut reads).unwrap();
            for (place, found) in places.zip(&memory) {
                assert!(found[..] == bytes[place..place + found.len()], "{count} reads, at {place}");
            }
        }
    }

    #[test]
    fn the_end_of_the_file_is_an_error_and_the_ring_goes_on() {
        let (file, bytes) = file();
        let Some(mut ring) = ring(&file, 2) else { return };
        let mut memory = [[0; 100], [0; 100], [0; 100], [0; 100]];
        let [one, two, three, four] = &mut memory;
        let end = FILE_BYTES as u64;
        let mut reads: [Read<'_>; 4] = [(0, one), (end - 50, two), (end, three), (7, four)];
        let error = ring.read_all(&mut reads).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let mut found = [0; 100];
        ring.read_all(&mut [(3, &mut found)]).unwrap();
        assert!(found[..] == bytes[3..103]);
    }

    #[test]
    fn a_read_that_came_in_part_goes_on_and_one_that_was_interrupted_comes_again() {
        let mut done = 0;
        assert!(!note(-Errno::INTR.raw_os_error(), 10, &mut done).unwrap());
        assert!(!note(-Errno::AGAIN.raw_os_error(), 10, &mut done).unwrap());
        assert!(!note(4, 10, &mut done).unwrap());
        assert!(note(6, 10, &mut done).unwrap());
        assert_eq!(done, 10);
        let error = note(-Errno::IO.raw_os_error(), 10, &mut 4).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert!(note(0, 0, &mut 0).unwrap(), "nothing was asked for");
    }
}
