//! Small writes gathered into one run of bytes.
//!
//! Invariant: the run is contiguous, of at most `capacity` bytes, and in one object; everything outside of it is at the
//! storage server or on its way there in the order written.

use weft_layout::Stripes;

/// What became of bytes given to [`WriteBehind::take`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// All of them.
    All,
    /// So many; the run is full and has to be sent before the rest.
    Part(usize),
    /// None: they do not continue the run, which has to be sent first.
    None,
}

impl Taken {
    /// How many of these bytes were taken.
    pub fn count(self, bytes: &[u8]) -> usize {
        match self {
            Taken::All => bytes.len(),
            Taken::Part(count) => count,
            Taken::None => 0,
        }
    }
}

/// A run of written bytes that the storage server does not have yet.
#[derive(Debug)]
pub struct WriteBehind {
    start: u64,
    bytes: Vec<u8>,
    capacity: usize,
    /// Bytes that the run can have where it begins.
    limit: usize,
    stripes: Stripes,
}

impl WriteBehind {
    /// An empty run that will hold up to `capacity` bytes. Memory is allocated with the first byte.
    pub fn new(capacity: usize) -> Self {
        Self { start: 0, bytes: Vec::new(), capacity, limit: capacity, stripes: Stripes::WHOLE }
    }

    /// From its beginning on, the next run lies in one object of a file with these stripes.
    pub fn lies_in(&mut self, stripes: Stripes) {
        self.stripes = stripes;
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether so many more bytes leave it short of being full.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() + bytes < self.limit
    }

    /// Offset at which the run begins, if it is not empty.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// First offset behind the run.
    pub fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Whether the run has bytes of this range.
    pub fn overlaps(&self, offset: u64, bytes: u64) -> bool {
        !self.is_empty() && offset < self.end() && offset.saturating_add(bytes) > self.start
    }

    /// Takes bytes that continue the run or overwrite its inside.
    pub fn take(&mut self, offset: u64, data: &[u8], spare: impl FnOnce() -> Vec<u8>) -> Taken {
        if self.bytes.is_empty() {
            if self.bytes.capacity() == 0 {
                self.bytes = spare();
                self.bytes.clear();
                self.bytes.reserve_exact(self.capacity);
            }
            self.start = offset;
            self.limit = self.stripes.piece_at(offset, 0, self.capacity).bytes;
        } else if offset < self.start || offset > self.end() {
            return Taken::None;
        }
        let Ok(position) = usize::try_from(offset - self.start) else { return Taken::None };
        let count = data.len().min(self.limit.saturating_sub(position));
        let overwritten = (self.bytes.len() - position).min(count);
        self.bytes[position..position + overwritten].copy_from_slice(&data[..overwritten]);
        self.bytes.extend_from_slice(&data[overwritten..count]);
        if count == data.len() { Taken::All } else { Taken::Part(count) }
    }

    /// Copies what the run has of a range that lies wholly in it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(position) = offset.checked_sub(self.start).and_then(|p| usize::try_from(p).ok()) else { return false };
        match self.bytes.get(position..).and_then(|rest| rest.get(..into.len())) {
            Some(bytes) => {
                into.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Whether nothing fits behind the run.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= self.limit
    }

    /// Takes the run out: its offset and its bytes.
    pub fn take_run(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.bytes.is_empty() {
            return None;
        }
        Some((self.start, std::mem::take(&mut self.bytes)))
    }

    /// Drops what lies at and behind `size`: the file was cut there.
    pub fn cut(&mut self, size: u64) {
        let keep = usize::try_from(size.saturating_sub(self.start)).unwrap_or(usize::MAX);
        self.bytes.truncate(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_protocol::StripePlan;

    /// One end of them lies in the range that is written.
    const STRIPE_BYTES: u32 = 512;

    #[test]
    fn what_does_not_continue_the_run_is_refused() {
        let mut run = WriteBehind::new(8);
        assert_eq!(run.take(100, b"abcd", Vec::new), Taken::All);
        assert_eq!(run.take(99, b"x", Vec::new), Taken::None);
        assert_eq!(run.take(105, b"x", Vec::new), Taken::None);
        assert_eq!(run.take(104, b"efghij", Vec::new), Taken::Part(4));
        assert!(run.is_full());
        assert_eq!(run.take_run(), Some((100, b"abcdefgh".to_vec())));
        assert_eq!(run.take_run(), None);
    }

    proptest! {
        /// Whatever is written in whatever order, runs sent in order make the same file as the writes themselves.
        #[test]
        fn runs_make_the_same_file(
            writes in prop::collection::vec((0u64..200, 1usize..40), 1..60),
            capacity in 1usize..64,
            stripe_end in prop_oneof![Just(None), (1u64..200).prop_map(Some)],
        ) {
            let base = stripe_end.map_or(0, |end| u64::from(STRIPE_BYTES) - end);

            let mut file = vec![0u8; 400];
            let mut sent = vec![0u8; 400];
            let mut run = WriteBehind::new(capacity);
            if stripe_end.is_some() {
                run.lies_in(Stripes::planned(StripePlan::new(2, STRIPE_BYTES).unwrap()));
            }
            let send = |run: &mut WriteBehind, sent: &mut Vec<u8>| {
                if let Some((start, bytes)) = run.take_run() {
                    let (start, end) = (start - base, start - base + bytes.len() as u64);
                    assert!(stripe_end.is_none_or(|stripe_end| end <= stripe_end || start >= stripe_end));
                    let start = usize::try_from(start).unwrap();
                    sent[start..start + bytes.len()].copy_from_slice(&bytes);
                }
            };
            for (number, (offset, count)) in writes.into_iter().enumerate() {
                let data = vec![u8::try_from(number % 251).unwrap() + 1; count];
                let start = usize::try_from(offset).unwrap();
                file[start..start + count].copy_from_slice(&data);
                let mut done = 0;
                while done < count {
                    match run.take(base + offset + done as u64, &data[done..], Vec::new) {
                        Taken::All => done = count,
                        Taken::Part(taken) => { done += taken; send(&mut run, &mut sent); }
                        Taken::None => send(&mut run, &mut sent),
                    }
                }
                let mut back = vec![0; count];
                if run.read(base + offset, &mut back) {
                    prop_assert_eq!(&back, &data);
                }
            }
            send(&mut run, &mut sent);
            prop_assert_eq!(file, sent);
        }
    }
}
