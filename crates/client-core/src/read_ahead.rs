//! Sequential reads answered from blocks that were asked for ahead.
//!
//! Not here: the bytes on their way. This decides which window to ask for next, and when a reader has gone elsewhere.

/// A range to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub offset: u64,
    pub bytes: u32,
}

/// How one handle reads.
#[derive(Debug)]
pub struct ReadAhead {
    /// Bytes of a window.
    window_bytes: u32,
    /// Where a sequential reader will read next.
    next: u64,
    /// Sequential reads in a row.
    run: u32,
}

/// Sequential reads in a row before windows are asked for ahead. The first read of a file at its beginning counts.
const RUN_MIN: u32 = 2;

impl ReadAhead {
    /// Nothing read yet.
    pub fn new(window_bytes: u32) -> Self {
        Self { window_bytes, next: 0, run: 1 }
    }

    /// A read of this range is about to be served. Returns whether reading ahead is worth while.
    pub fn note(&mut self, offset: u64, bytes: u64) -> bool {
        self.run = if offset == self.next { self.run.saturating_add(1) } else { 0 };
        self.next = offset + bytes;
        self.run >= RUN_MIN
    }

    /// The window that holds `offset`, cut at the file's size; `None` behind the end.
    pub fn window(&self, offset: u64, size: u64) -> Option<Window> {
        let left = size.checked_sub(offset).filter(|left| *left > 0)?;
        Some(Window { offset, bytes: u32::try_from(left).unwrap_or(u32::MAX).min(self.window_bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sequential_reader_reads_ahead() {
        let mut reader = ReadAhead::new(1000);
        assert!(reader.note(0, 10));
        assert!(reader.note(10, 10));
        assert!(!reader.note(500, 10));
        assert!(!reader.note(510, 10));
        assert!(reader.note(520, 10));
    }

    #[test]
    fn windows_end_with_the_file() {
        let reader = ReadAhead::new(1000);
        assert_eq!(reader.window(0, 5000), Some(Window { offset: 0, bytes: 1000 }));
        assert_eq!(reader.window(4500, 5000), Some(Window { offset: 4500, bytes: 500 }));
        assert_eq!(reader.window(5000, 5000), None);
    }
}
