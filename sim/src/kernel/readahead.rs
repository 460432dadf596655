//! Which pages are read when a reader misses (`mm/readahead.c`).
//!
//! A window per open file grows with sequential reads; its next one is begun when a reader comes to the marked page.
//! Not here: the requests (`read.rs`).

use super::state::{InodeKey, Mount};

/// `struct file_ra_state`, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Readahead {
    pub start: u64,
    pub size: u64,
    pub async_size: u64,
    /// Last byte that was read; `None`: nothing yet.
    pub previous: Option<u64>,
    pub mapping_misses: u32,
}

/// Faults beyond which a mapping is no longer read around (`MMAP_LOTSAMISS`).
const MAPPING_MISSES_MAX: u32 = 100;

/// What the kernel takes for the best size of a request where a file system does not say (`VM_READAHEAD_PAGES`).
const IO_PAGES: u64 = 32;
/// Pages of a folio of order 2.
const WINDOW_ALIGNMENT: u64 = 4;

/// One reader of so many is held up after it began readahead.
const LATE_READERS: u64 = 4;
/// Tells the numbers that say so from others of the same seed.
pub const LATE: u64 = 0x6c61_7465;

/// Limits of the mount.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest window, pages; 0: no readahead.
    pub window: u64,
    /// Largest window for one large read (`bdi->io_pages`).
    pub request: u64,
    pub page_bytes: u64,
}

impl Limits {
    /// `ractl_max_pages`.
    pub fn max_for(&self, wanted: u64) -> u64 {
        if wanted > self.window && self.request > self.window { wanted.min(self.request) } else { self.window }
    }
}

/// Pages to read, and which of them is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub start: u64,
    pub pages: u64,
    /// Offset from the start of the page that is marked; beyond the window: none.
    pub mark: u64,
}

impl Readahead {
    fn window(&self) -> Window {
        Window { start: self.start, pages: self.size, mark: self.size.saturating_sub(self.async_size) }
    }

    /// A read missed at `index` and wants `wanted` pages (`page_cache_sync_ra`). `cached_before` counts the cached
    /// pages in front of it, and says whether they reach the beginning of the file.
    pub fn miss(&mut self, index: u64, wanted: u64, limits: Limits, cached_before: u64) -> Window {
        // Without readahead only the page that is wanted is read.
        if limits.window == 0 {
            return Window { start: index, pages: 1, mark: u64::MAX };
        }
        let (max, page_bytes) = (limits.max_for(wanted), limits.page_bytes);
        let previous = self.previous.map(|at| at / page_bytes);
        let is_sequential = previous.is_some_and(|previous| index.wrapping_sub(previous) <= 1);
        if index == 0 || wanted > max || is_sequential {
            self.start = index;
            self.size = initial_size(wanted, max);
            self.async_size = if self.size > wanted { self.size - wanted } else { self.size >> 1 };
            return self.window();
        }
        if cached_before <= wanted {
            return Window { start: index, pages: wanted, mark: u64::MAX };
        }
        let from_start = cached_before == index;
        let contiguous = if from_start { cached_before * 2 } else { cached_before };
        self.start = index;
        self.size = (contiguous + wanted).min(max);
        self.async_size = 1;
        self.window()
    }

    /// A reader came to a marked page (`page_cache_async_ra`). `next_hole`: the first page after it that is not cached.
    pub fn marked(&mut self, index: u64, wanted: u64, limits: Limits, next_hole: u64) -> Option<Window> {
        if limits.window == 0 {
            return None;
        }
        let max = limits.max_for(wanted);
        if index == (self.start + self.size).wrapping_sub(self.async_size) {
            self.start += self.size;
            self.size = self.size.max(next_size(self.size, max));
        } else {
            if next_hole - index > max {
                return None;
            }
            self.start = next_hole;
            self.size = next_size(next_hole - index + wanted, max);
        }
        // Since 6.17 a window ends at a boundary of the next larger folio, also where there are none.
        let end = self.start + self.size;
        let aligned = end / WINDOW_ALIGNMENT * WINDOW_ALIGNMENT;
        if aligned > self.start {
            self.size -= end - aligned;
        }
        self.async_size = self.size;
        Some(self.window())
    }

    /// A mapping missed a page (`do_sync_mmap_readahead`).
    pub fn fault(&mut self, index: u64, max: u64) -> Option<Window> {
        self.mapping_misses = (self.mapping_misses + 1).min(MAPPING_MISSES_MAX * 10);
        if max == 0 || self.mapping_misses > MAPPING_MISSES_MAX {
            return None;
        }
        self.start = index.saturating_sub(max / 2);
        self.size = max;
        self.async_size = max / 4;
        Some(self.window())
    }
}

/// `get_init_ra_size`.
fn initial_size(wanted: u64, max: u64) -> u64 {
    let size = wanted.max(1).next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// `get_next_ra_size`.
fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        4 * size
    } else if size <= max / 2 {
        2 * size
    } else {
        max
    }
}

impl Mount {
    /// Whether a reader that has begun readahead is held up until it has come.
    pub fn has_late_reader(&mut self) -> bool {
        self.late.as_mut().is_some_and(|random| random.one_in(LATE_READERS))
    }

    pub fn readahead_limits(&self) -> Limits {
        Limits {
            window: u64::from(self.config.max_readahead_bytes / self.config.page_bytes),
            request: IO_PAGES,
            page_bytes: self.page_bytes(),
        }
    }

    /// How many pages directly before `index` are cached, as `page_cache_prev_miss` looks at `max` of them: where all
    /// are, it takes the last one for the miss.
    pub fn cached_before(&self, key: InodeKey, index: u64, max: u64) -> u64 {
        let pages = &self.inode(key).pages;
        let first = index.saturating_sub(max);
        let count = (first..index).rev().take_while(|at| pages.get(*at).is_some()).count() as u64;
        count.min(max.saturating_sub(1))
    }

    /// The first page after `index` that is not cached, within `max` (`page_cache_next_miss`).
    pub fn next_hole(&self, key: InodeKey, index: u64, max: u64) -> u64 {
        let pages = &self.inode(key).pages;
        (index + 1..index + 1 + max).find(|at| pages.get(*at).is_none()).unwrap_or(index + 1 + max)
    }

    /// Cuts a window at the end of the file, and leaves nothing of one that lies behind it (`do_page_cache_ra`).
    pub fn cut_window(&self, key: InodeKey, window: Window) -> Window {
        let size = self.inode(key).size();
        let last = size.saturating_sub(1) / self.page_bytes();
        let pages = if size == 0 || window.start > last { 0 } else { window.pages.min(last - window.start + 1) };
        Window { pages, ..window }
    }
}
