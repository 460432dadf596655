//! Reads of one file that are on their way while their caller does something else.
//!
//! They go to memory that belongs to the ring, in *slots*: each is either the caller's or on its way, and may be filled
//! by several reads. The kernel has the memory registered where it may be (RLIMIT_MEMLOCK bounds what a process without
//! rights has so): then it need not look up its pages for each read. Else the same reads do without.
//!
//! What a slot was filled with can be shared with who moves it on ([`SharedSlot`]): memory that the ring knows is then
//! memory that the network knows, and bytes go from the one to the other without a copy.
//!
//! Invariant: the memory stays until the kernel has told of each read, and until nobody shares it; of a slot that is on
//! its way, or shared, nobody has a reference, and none that is shared is filled.

use super::shared::SharedSlot;
use super::{FILE, Ring, note};
use crate::huge::{HugeBuffer, HugePage};
use io_uring::{opcode, squeue};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The memory, as the ring knows it.
const MEMORY: u16 = 0;

/// See the module.
#[derive(Debug)]
pub struct Slots {
    ring: Ring,
    memory: HugeBuffer,
    is_registered: bool,
    slot_bytes: usize,
    slots: Vec<Slot>,
    /// Those that are on their way, by number; `None`: the number is free.
    reads: Vec<Option<Read>>,
    flying: usize,
}

#[derive(Debug)]
struct Slot {
    /// How many of its reads are on their way, and the first error of those that were.
    flying: usize,
    failed: Option<io::Error>,
    shared: SharedSlot,
}

impl Slot {
    fn is_ours(&mut self) -> bool {
        self.flying == 0 && self.shared.is_alone()
    }
}

#[derive(Clone, Debug)]
struct Read {
    slot: usize,
    place: u64,
    /// Where its bytes go in the memory.
    range: Range<usize>,
    done: usize,
}

impl Slots {
    /// As many slots as the memory has room for, and up to `depth` reads at a time. An error: as of [`Ring::new`].
    pub fn new(file: BorrowedFd<'_>, depth: u32, memory: HugeBuffer, slot_bytes: usize) -> io::Result<Self> {
        let ring = Ring::new(file, depth)?;
        let whole = libc::iovec { iov_base: memory.pointer().cast(), iov_len: memory.len() };
        // SAFETY: the memory is mapped, and longer than the ring knows it: it is unregistered before it goes. Reads go
        // there as `push` says.
        let is_registered = unsafe { ring.ring.submitter().register_buffers(&[whole]) }.is_ok();
        let (page, first) = memory.place();
        let slot = |number| {
            let start = first + number * slot_bytes;
            Slot { flying: 0, failed: None, shared: SharedSlot::new(page.clone(), start..start + slot_bytes) }
        };
        let slots = (0..memory.len() / slot_bytes).map(slot).collect();
        let reads = vec![None; ring.depth];
        Ok(Self { ring, memory, is_registered, slot_bytes, slots, reads, flying: 0 })
    }

    /// How many slots there are.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Whether a slot is the caller's: it is neither on its way nor shared.
    pub fn is_ours(&mut self, slot: usize) -> bool {
        self.slots.get_mut(slot).is_some_and(Slot::is_ours)
    }

    /// The bytes of a slot. `None`: it is on its way, or shared.
    pub fn slot(&mut self, slot: usize) -> Option<&mut [u8]> {
        let (is_ours, start) = (self.is_ours(slot), slot * self.slot_bytes);
        // SAFETY: of this slot nothing is on its way, what is of others goes to their bytes, and nobody shares it.
        if is_ours { unsafe { self.memory.part(start..start + self.slot_bytes) } } else { None }
    }

    /// Shares a slot with who moves its bytes on. `None`: it is on its way.
    pub fn share(&self, slot: usize) -> Option<SharedSlot> {
        self.slots.get(slot).filter(|slot| slot.flying == 0).map(|slot| slot.shared.clone())
    }

    /// The page that all slots lie in.
    pub fn page(&self) -> HugePage {
        self.memory.place().0
    }

    /// Begins to fill a part of a slot from a place in the file. What was begun goes to the kernel with
    /// [`Slots::submit`], or when it is waited for.
    pub fn begin(&mut self, slot: usize, range: Range<usize>, place: u64) {
        let number = self.reads.iter().position(Option::is_none);
        let (Some(number), Some(filled)) = (number, self.slots.get_mut(slot)) else {
            panic!("slot {slot} of {}, {} reads on their way", self.slots.len(), self.flying)
        };
        assert!(range.start <= range.end && range.end <= self.slot_bytes, "{range:?} of a slot");
        assert!(filled.shared.is_alone(), "slot {slot} is shared, and somebody would see it change");
        filled.flying += 1;
        self.flying += 1;
        let start = slot * self.slot_bytes;
        self.push(number, Read { slot, place, range: start + range.start..start + range.end, done: 0 });
    }

    /// Sends what was begun.
    pub fn submit(&self) {
        // The kernel may be short of something: it is asked again by whoever waits.
        let _ = self.ring.ring.submit();
    }

    /// Takes note of what has ended, without waiting. How many reads are on their way still.
    pub fn flying(&mut self) -> usize {
        loop {
            // The queue is not borrowed further: a read that came in part goes on.
            let Some(entry) = self.ring.ring.completion().next() else { return self.flying };
            let number = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let Some(mut read) = self.reads.get_mut(number).and_then(Option::take) else { continue };
            match note(entry.result(), read.range.len(), &mut read.done) {
                Ok(false) => self.push(number, read),
                ended => {
                    self.flying -= 1;
                    if let Some(slot) = self.slots.get_mut(read.slot) {
                        slot.flying -= 1;
                        slot.failed = slot.failed.take().or(ended.err());
                    }
                }
            }
        }
    }

    /// Waits until a slot has come. The first error of its reads; the end of the file is one.
    pub fn wait(&mut self, slot: usize) -> io::Result<()> {
        while self.flying() > 0 && self.slots.get(slot).is_some_and(|slot| slot.flying > 0) {
            self.ring.wait();
        }
        self.slots.get_mut(slot).and_then(|slot| slot.failed.take()).map_or(Ok(()), Err)
    }

    /// Waits until all have. Errors are kept for [`Slots::wait`].
    pub fn wait_all(&mut self) {
        while self.flying() > 0 {
            self.ring.wait();
        }
    }

    /// Forgets errors that nobody has asked for: whoever has the slots next begins anew.
    pub fn forget_errors(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.failed = None);
    }

    /// Puts what is left of a read into the queue.
    fn push(&mut self, number: usize, read: Read) {
        let (skipped, bytes) = (read.range.start + read.done, read.range.len() - read.done);
        let pointer = self.memory.pointer().wrapping_add(skipped);
        // No slot has more than fits.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let place = read.place + read.done as u64;
        let entry: squeue::Entry = if self.is_registered {
            opcode::ReadFixed::new(FILE, pointer, bytes, MEMORY).offset(place).build()
        } else {
            opcode::Read::new(FILE, pointer, bytes).offset(place).build()
        };
        if let Some(place) = self.reads.get_mut(number) {
            *place = Some(read);
        }
        // SAFETY: bytes of a slot, in memory of our own that nobody moves. Until the kernel has told of the read, the
        // slot counts as on its way, and `slot` gives no reference; it is not shared before. When this is dropped, all
        // are waited for. The ring has the file open.
        let pushed = unsafe { self.ring.ring.submission().push(&entry.user_data(number as u64)) };
        // The queue has an entry for each number.
        pushed.unwrap_or_else(|error| panic!("{error}: {} reads on their way", self.flying));
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.wait_all();
        if self.is_registered {
            // Else the kernel does it a while after the ring is closed.
            drop(self.ring.ring.submitter().unregister_buffers());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FILE_BYTES, file};
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::fd::{AsFd, OwnedFd};

    const SLOT_BYTES: usize = 64 << 10;

    fn slots(file: &OwnedFd) -> Option<Slots> {
        let memory = HugeBuffer::page_of(4 * SLOT_BYTES).pop().unwrap();
        let made = Slots::new(file.as_fd(), 8, memory, SLOT_BYTES);
        if let Err(error) = &made {
            println!("skipped: no ring: {error}");
        }
        made.ok()
    }

    /// Fills slots from several places each, in turn.
    fn check_reads(slots: &mut Slots, bytes: &[u8]) {
        for round in 0..20 {
            let slot = round % slots.count();
            let places = [round * 7919, FILE_BYTES - 20_000 - round, 5].map(|at| at % FILE_BYTES);
            let ranges = [0..1, 1..20_000, 30_000..SLOT_BYTES];
            for (place, range) in places.iter().zip(&ranges) {
                slots.begin(slot, range.clone(), *place as u64);
            }
            assert!(slots.slot(slot).is_none(), "nobody has what is on its way");
            assert!(slots.slot((slot + 1) % slots.count()).is_some());
            if round % 2 == 0 {
                slots.submit();
            }
            slots.wait(slot).unwrap();
            let found = slots.slot(slot).unwrap();
            for (place, range) in places.iter().zip(ranges) {
                assert!(found[range.clone()] == bytes[*place..place + range.len()], "round {round}, at {place}");
            }
        }
    }

    #[test]
    fn slots_are_filled_from_several_places_each() {
        let (file, bytes) = file();
        let Some(mut slots) = slots(&file) else { return };
        check_reads(&mut slots, &bytes);
        (0..4).for_each(|slot| slots.begin(slot, 0..SLOT_BYTES, slot as u64));
        slots.wait_all();
        assert_eq!(slots.flying(), 0);
        for slot in 0..4 {
            slots.wait(slot).unwrap();
            assert!(slots.slot(slot).unwrap()[..] == bytes[slot..slot + SLOT_BYTES]);
        }
    }

    #[test]
    fn an_error_is_told_once_of_its_slot_alone() {
        let (file, bytes) = file();
        let Some(mut slots) = slots(&file) else { return };
        let end = FILE_BYTES as u64;
        slots.begin(0, 0..100, 7);
        slots.begin(1, 0..100, 7);
        slots.begin(1, 100..200, end - 50);
        slots.begin(1, 200..300, end);
        slots.begin(2, 0..100, end);
        assert_eq!(slots.wait(1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(slots.wait(1).is_ok() && slots.wait(0).is_ok());
        assert!(slots.slot(0).unwrap()[..100] == bytes[7..107] && slots.slot(1).unwrap()[..100] == bytes[7..107]);
        slots.wait_all();
        slots.forget_errors();
        slots.wait(2).unwrap();
        check_reads(&mut slots, &bytes);
    }

    /// What is on its way then, goes to memory that is there still: it is somebody else's at once.
    #[test]
    fn slots_that_are_dropped_wait_for_the_kernel() {
        let path = std::env::temp_dir().join(format!("weft-sys-slots-{}", std::process::id()));
        std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
        let file = OwnedFd::from(std::fs::File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        for round in 0..100 {
            // Else the page cache has it, and nothing is on its way for long.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut pages = HugeBuffer::page_of(4 * SLOT_BYTES);
            let Ok(mut slots) = Slots::new(file.as_fd(), 8, pages.pop().unwrap(), SLOT_BYTES) else { return };
            (0..4).for_each(|slot| slots.begin(slot, 0..SLOT_BYTES, (slot * SLOT_BYTES) as u64));
            slots.submit();
            if round % 2 == 0 {
                drop(pages);
            }
            drop(slots);
        }
    }

    /// Who shares one may have it for longer than the ring is there.
    #[test]
    fn a_slot_that_is_shared_is_nobody_elses_and_stays() {
        let (file, bytes) = file();
        let Some(mut slots) = slots(&file) else { return };
        slots.begin(1, 0..SLOT_BYTES, 5);
        slots.submit();
        assert!(slots.share(1).is_none(), "it has not come");
        slots.wait(1).unwrap();
        let shared = slots.share(1).unwrap();
        let copy = shared.clone();
        drop(shared);
        assert!(slots.slot(1).is_none() && !slots.is_ours(1) && slots.is_ours(0));
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| slots.begin(1, 0..1, 0)));
        assert!(refused.is_err(), "it is not filled");
        assert!(*copy.page() == slots.page() && copy.range().len() == SLOT_BYTES);
        assert_eq!(copy.range().start, slots.memory.place().1 + SLOT_BYTES);
        drop(copy);
        assert!(slots.slot(1).unwrap()[..] == bytes[5..5 + SLOT_BYTES]);
        check_reads(&mut slots, &bytes);
        let shared = slots.share(2).unwrap();
        assert!(slots.slot(2).is_none());
        let place = shared.page().address() as usize;
        drop(slots);
        assert!(is_mapped(place), "its page is there");
        drop(shared);
    }

    fn is_mapped(place: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).unwrap());
            (start..end).contains(&place)
        })
    }

    /// As a process without rights has it that may lock little memory: a ring of its own, too.
    #[test]
    fn memory_that_may_not_be_registered_is_read_to_without() {
        let (file, bytes) = file();
        std::thread::spawn(move || {
            // Of this thread.
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, sets).unwrap();
            let before = getrlimit(Resource::Memlock);
            setrlimit(Resource::Memlock, Rlimit { current: Some(128 << 10), ..before }).unwrap();
            let made = slots(&file);
            setrlimit(Resource::Memlock, before).unwrap();
            let Some(mut slots) = made else { return };
            assert!(!slots.is_registered);
            check_reads(&mut slots, &bytes);
        })
        .join()
        .unwrap();
    }

    /// As containers have it.
    #[test]
    fn a_kernel_without_rings_is_an_error() {
        let (file, _) = file();
        std::thread::spawn(move || {
            refuse_rings_to_this_thread();
            let memory = HugeBuffer::page_of(4 * SLOT_BYTES).pop().unwrap();
            let error = Slots::new(file.as_fd(), 8, memory, SLOT_BYTES).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
        })
        .join()
        .unwrap();
    }

    /// Has `io_uring_setup` answer ENOSYS.
    fn refuse_rings_to_this_thread() {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k };
        let call = u32::try_from(libc::SYS_io_uring_setup).unwrap();
        let refused = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap();
        let mut filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: these calls change what this thread may do, and no memory; the program is there until they return.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(refused, "{}", io::Error::last_os_error());
    }
}
