//! Files as memory that stays readable when somebody cuts them.
//!
//! A process that touches a mapped page behind the end of its file gets SIGBUS, which ends it. Here such a page is
//! replaced by one of zeros that belongs to nobody, and the mapping tells ([`MappedFile::is_whole`]).
//!
//! Invariant: the handler reads atomics and calls `mmap`, and no more. Whatever is no page of ours goes to the handler
//! that was there before.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Smallest page of any machine.
const PAGE: usize = 4096;
/// Files that may be mapped at a time.
const MAPPED_MAX: usize = 4096;

/// One mapping as the handler knows it. `end` is 0 while there is none.
struct Guard {
    is_taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    is_cut: AtomicBool,
}

static GUARDS: [Guard; MAPPED_MAX] = [const {
    Guard {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_cut: AtomicBool::new(false),
    }
}; MAPPED_MAX];

/// What was there before; [`handle`] is installed when it is set.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Bytes of a file, mapped to be read and written. Nobody here has a reference to them: others may write the file
/// meanwhile.
#[derive(Debug)]
pub struct MappedFile {
    address: *mut u8,
    bytes: usize,
    guard: &'static Guard,
}

// SAFETY: a mapping belongs to the process, not to a thread; what is guarded is atomic.
unsafe impl Send for MappedFile {}
// SAFETY: as above; without a reference to the bytes there is nothing that two threads could race for.
unsafe impl Sync for MappedFile {}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("is_cut", &self.is_cut).finish_non_exhaustive()
    }
}

impl MappedFile {
    /// Maps bytes of a file, from a page's begin on. `NFILE`: too many are mapped.
    pub fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, Errno> {
        if BEFORE.get_or_init(install).is_none() {
            return Err(Errno::NOSYS);
        }
        let take = |guard: &&Guard| !guard.is_taken.swap(true, Ordering::AcqRel);
        let guard = GUARDS.iter().find(take).ok_or(Errno::NFILE)?;
        // SAFETY: the kernel chooses the place: nothing else is there.
        let mapped =
            unsafe { mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, offset) };
        let address = mapped.inspect_err(|_| guard.is_taken.store(false, Ordering::Release))?.cast::<u8>();
        guard.is_cut.store(false, Ordering::Relaxed);
        guard.start.store(address as usize, Ordering::Relaxed);
        guard.end.store(address as usize + bytes, Ordering::Release);
        Ok(Self { address, bytes, guard })
    }

    /// Where it is. Only memory that is mapped anyhow may be copied from there or to there.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes out of the mapping. `FAULT`: a page of them lies behind the end of the file, or cannot be read.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.populate(offset, bytes.len(), Advice::LinuxPopulateRead)?;
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the mapping, as `populate` checked; volatile, since others may write meanwhile.
            *byte = unsafe { self.address.add(offset + at).read_volatile() };
        }
        Ok(())
    }

    /// Copies bytes into the mapping. `FAULT`: as for [`MappedFile::read_at`].
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.populate(offset, bytes.len(), Advice::LinuxPopulateWrite)?;
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read_at`.
            unsafe { self.address.add(offset + at).write_volatile(*byte) };
        }
        Ok(())
    }

    /// Writes changed pages back and waits (msync with `MS_SYNC`).
    pub fn sync(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this one's.
        unsafe { msync(self.address.cast(), self.bytes, MsyncFlags::SYNC) }
    }

    /// Has the kernel bring the pages of a range, which fails where touching them would raise SIGBUS.
    fn populate(&self, offset: usize, bytes: usize, access: Advice) -> Result<(), Errno> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes).ok_or(Errno::INVAL)?;
        let first = offset / PAGE * PAGE;
        // SAFETY: within the mapping; populating changes no bytes.
        unsafe { madvise(self.address.add(first).cast(), end - first, access) }
    }

    /// Whether all that was touched so far was the file's.
    pub fn is_whole(&self) -> bool {
        !self.guard.is_cut.load(Ordering::Acquire)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.guard.end.store(0, Ordering::Release);
        // By the C library, where UCX looks on: else it would take what is mapped here next for these pages.
        // SAFETY: mapped by `new`; who uses it holds this.
        let _ = unsafe { libc::munmap(self.address.cast(), self.bytes) };
        self.guard.is_taken.store(false, Ordering::Release);
    }
}

/// Installs the handler; what was there before. `None`: it cannot be.
fn install() -> Option<libc::sigaction> {
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty set, the default action.
    let (mut ours, mut before) = unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed()) };
    ours.sa_sigaction = handle as *const () as usize;
    // On the thread's own stack where it has one for signals: the usual one may be what is used up.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: both are valid, and the handler does what may be done in one.
    let status = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
    (status == 0).then_some(before)
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid one to a handler that asked for it.
    let address = unsafe { (*info).si_addr() } as usize;
    let of_ours = |guard: &&Guard| {
        let end = guard.end.load(Ordering::Acquire);
        address < end && address >= guard.start.load(Ordering::Relaxed)
    };
    match GUARDS.iter().find(of_ours) {
        Some(guard) => {
            guard.is_cut.store(true, Ordering::Release);
            if replace_page(address) {
                return;
            }
            pass_on(signal, info, context);
        }
        None => pass_on(signal, info, context),
    }
}

/// Puts a page of zeros there, which belongs to no file.
fn replace_page(address: usize) -> bool {
    let page = address & !(PAGE - 1);
    // SAFETY: it lies in a mapping of a `MappedFile`, which is alive: the thread that touched it holds it. The kernel
    // saves errno's value for nobody, so it is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = libc::mmap(page as *mut libc::c_void, PAGE, protection, flags, -1, 0);
        *libc::__errno_location() = errno;
        mapped != libc::MAP_FAILED
    }
}

/// As if we were not there.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().and_then(Option::as_ref);
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: zeros are the default action; what has failed fails again and ends the process.
            unsafe {
                let default = std::mem::zeroed::<libc::sigaction>();
                libc::sigaction(signal, &raw const default, null_mut());
            }
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            // SAFETY: whoever installed it said that it takes these three.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: whoever installed it said that it takes one.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    fn byte(mapped: &MappedFile, at: usize) -> u8 {
        assert!(at < mapped.bytes());
        // SAFETY: in the mapping; read as it happens to be.
        unsafe { mapped.address().add(at).read_volatile() }
    }

    #[test]
    fn a_file_that_is_cut_reads_zeros_and_the_mapping_tells() {
        let file = memfd_create("cut", MemfdFlags::CLOEXEC).unwrap();
        let page = 4096;
        assert_eq!(rustix::io::write(&file, &vec![7; 4 * page]), Ok(4 * page));
        let mapped = MappedFile::new(file.as_fd(), 0, 4 * page).unwrap();
        let other = MappedFile::new(file.as_fd(), page as u64, 3 * page).unwrap();
        assert_eq!((byte(&mapped, 3 * page), mapped.is_whole()), (7, true));
        ftruncate(&file, 2 * page as u64).unwrap();
        assert_eq!((byte(&mapped, page), mapped.is_whole()), (7, true), "what is left of it");
        assert_eq!((byte(&mapped, 3 * page), mapped.is_whole()), (0, false));
        assert!(other.is_whole(), "nobody has touched it");
        // What is written there is nobody's, also when the file has such a page again.
        // SAFETY: in the mapping, to which nobody has a reference.
        unsafe { mapped.address().add(3 * page).write_volatile(9) };
        ftruncate(&file, 4 * page as u64).unwrap();
        assert_eq!(byte(&other, 2 * page), 0);
        assert_eq!(byte(&mapped, 3 * page), 9);
        drop(mapped);
        let again = MappedFile::new(file.as_fd(), 0, 4 * page).unwrap();
        assert_eq!((byte(&again, 0), byte(&again, 3 * page), again.is_whole()), (7, 0, true));
    }

    #[test]
    fn what_is_not_ours_ends_the_process_as_before() {
        let name = "mapped::tests::what_is_not_ours_ends_the_process_as_before";
        if std::env::var_os("WEFT_TEST_DIES").is_some() {
            let file = memfd_create("ours", MemfdFlags::CLOEXEC).unwrap();
            assert_eq!(rustix::io::write(&file, &[1]), Ok(1));
            let _ours = MappedFile::new(file.as_fd(), 0, 4096).unwrap();
            // SAFETY: the kernel chooses the place.
            let foreign =
                unsafe { mmap(null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0) }.unwrap();
            // SAFETY: mapped, and behind the file's end: the kernel answers with a signal.
            unsafe { foreign.cast::<u8>().add(4096).read_volatile() };
            unreachable!("the page behind the end of a file was read");
        }
        let own = std::env::current_exe().unwrap();
        let status = std::process::Command::new(own)
            .args(["--exact", name, "--nocapture"])
            .env("WEFT_TEST_DIES", "1")
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGBUS));
    }
}
