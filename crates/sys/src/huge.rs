//! Memory in huge pages, for bytes that devices read and write: each 4 KiB page that lies apart from the one before is
//! a piece more of what a device is told. (Measured on a virtual disk: reads of 512 KiB are twice as fast.)
//!
//! Where the kernel has no huge page to give, it is memory as any other.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::null_mut;
use std::sync::Arc;

/// Bytes of a huge page.
const PAGE_BYTES: usize = 2 << 20;
/// So many are mapped that a huge page lies in them, wherever they begin. Those around it are never touched.
const MAPPED_BYTES: usize = 2 * PAGE_BYTES;
/// What devices ask of memory.
const ALIGNMENT: usize = 4096;

/// One huge page, in which buffers lie.
#[derive(Debug)]
struct Page {
    mapped: *mut u8,
}

// SAFETY: a mapping belongs to the process, not to a thread; buffers have parts of it that do not overlap.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> Self {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the place: nothing else is there.
        let Ok(mapped) = (unsafe { mmap_anonymous(null_mut(), MAPPED_BYTES, access, flags) }) else {
            handle_alloc_error(Layout::new::<[u8; MAPPED_BYTES]>())
        };
        let page = Self { mapped: mapped.cast() };
        // SAFETY: mapped just now; what the kernel makes of the advice changes no byte. It may know no huge pages.
        let _ = unsafe { madvise(page.start().cast(), PAGE_BYTES, Advice::LinuxHugepage) };
        page
    }

    fn start(&self) -> *mut u8 {
        self.mapped.wrapping_add(self.mapped.align_offset(PAGE_BYTES))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // By the C library, where UCX looks on: else it would take what is mapped here next for these pages.
        // SAFETY: mapped by `new`; the last buffer in it is gone.
        let _ = unsafe { libc::munmap(self.mapped.cast(), MAPPED_BYTES) };
    }
}

/// A page that stays as long as this is there, for who has all of it registered somewhere. It says where the bytes are;
/// whose they are, its buffers say.
#[derive(Clone, Debug)]
pub struct HugePage(Arc<Page>);

impl HugePage {
    /// Where it is.
    pub fn address(&self) -> *mut u8 {
        self.0.start()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        PAGE_BYTES
    }
}

impl PartialEq for HugePage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HugePage {}

/// A part of a huge page that nobody else has: zeros at first. It begins where a block of a device may go.
#[derive(Debug)]
pub struct HugeBuffer {
    page: Arc<Page>,
    start: usize,
    bytes: usize,
}

impl HugeBuffer {
    /// Buffers of so many bytes (whole blocks, 2 MiB at most), as many as one huge page has.
    pub fn page_of(bytes: usize) -> Vec<Self> {
        assert!((1..=PAGE_BYTES).contains(&bytes) && bytes.is_multiple_of(ALIGNMENT), "{bytes} bytes");
        let page = Arc::new(Page::new());
        (0..PAGE_BYTES / bytes).map(|number| Self { page: Arc::clone(&page), start: number * bytes, bytes }).collect()
    }

    /// Some of its bytes. `None`: it has not so many.
    ///
    /// # Safety
    /// As long as what this returns is there, nobody else uses these bytes: the kernel neither.
    pub(crate) unsafe fn part(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        let is_inside = range.start <= range.end && range.end <= self.bytes;
        // SAFETY: a part of the mapping, as in `deref`, which is borrowed for this; the caller says the rest.
        is_inside.then(|| unsafe { std::slice::from_raw_parts_mut(self.pointer().add(range.start), range.len()) })
    }

    /// The page that it lies in, and where.
    pub(crate) fn place(&self) -> (HugePage, usize) {
        (HugePage(Arc::clone(&self.page)), self.start)
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        // In the page, as `page_of` sees to.
        self.page.start().wrapping_add(self.start)
    }
}

impl Deref for HugeBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a part of the mapping, which is there as long as the buffer; of all bytes something is defined, since
        // the kernel gives zeros. No other buffer has these, and who changes them has this one alone.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }
    }
}

impl DerefMut for HugeBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the buffer is borrowed for this alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_share_a_page_and_no_byte() {
        for (bytes, count) in [(4096, 512), (512 << 10, 4), (PAGE_BYTES, 1), (3 << 18, 2)] {
            let mut buffers = HugeBuffer::page_of(bytes);
            assert_eq!(buffers.len(), count);
            for (number, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.len() == bytes && buffer.as_ptr().align_offset(ALIGNMENT) == 0);
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(u8::try_from(number % 251 + 1).unwrap());
            }
            // The page is there until the last of them has gone, in whatever order they go, on whatever thread.
            let last = buffers.swap_remove(count / 2);
            std::thread::spawn(move || drop(buffers)).join().unwrap();
            assert!(last.iter().all(|byte| usize::from(*byte) == count / 2 % 251 + 1));
        }
    }
}
