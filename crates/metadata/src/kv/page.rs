//! A page of the memory store: sorted records packed into one allocation.
//!
//! A record is key length (u16, little endian), key, value; the value ends where the next record begins. Record `i` begins
//! at `offsets[i]`. Search touches only the page's own memory, so a cold page costs few cache misses.
//!
//! Invariant: keys ascend strictly; `offsets` and records agree.

/// A page with more bytes than this is split. A large value (a symbolic link's target) may leave a half above it.
pub const PAGE_BYTES_MAX: usize = 2048;
/// Pages grow in steps of this many bytes, so that little of their memory is unused.
const GROWTH_BYTES: usize = 192;
/// Offsets grow in steps of this many.
const GROWTH_OFFSETS: usize = 8;
/// Bytes of the key length before each key.
const HEADER_BYTES: usize = 2;

/// See the module.
#[derive(Default)]
pub struct Page {
    offsets: Vec<u16>,
    bytes: Vec<u8>,
    /// Index behind the latest insertion.
    after_latest: u16,
    /// The latest insertion was directly behind the one before.
    ascending: bool,
}

/// Result of a search: the index of the key, or the index where it would be put.
pub type Found = Result<usize, usize>;

impl Page {
    /// Number of records.
    pub fn count(&self) -> usize {
        self.offsets.len()
    }

    /// Bytes of the records.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that the page takes from the allocator, each allocation rounded up as common allocators do.
    pub fn footprint(&self) -> usize {
        let rounded = |bytes: usize| if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16) };
        rounded(self.bytes.capacity()) + rounded(self.offsets.capacity() * 2) + size_of::<Page>()
    }

    fn start(&self, index: usize) -> usize {
        usize::from(self.offsets[index])
    }

    fn end(&self, index: usize) -> usize {
        self.offsets.get(index + 1).map_or(self.bytes.len(), |offset| usize::from(*offset))
    }

    fn value_start(&self, index: usize) -> usize {
        let start = self.start(index);
        start + HEADER_BYTES + usize::from(u16::from_le_bytes([self.bytes[start], self.bytes[start + 1]]))
    }

    /// The key of a record.
    pub fn key(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index) + HEADER_BYTES..self.value_start(index)]
    }

    /// The value of a record.
    pub fn value(&self, index: usize) -> &[u8] {
        &self.bytes[self.value_start(index)..self.end(index)]
    }

    /// Looks for a key by halving.
    pub fn find(&self, key: &[u8]) -> Found {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Puts a new record at `index`.
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        let start = self.offsets.get(index).map_or(self.bytes.len(), |offset| usize::from(*offset));
        let added = HEADER_BYTES + key.len() + value.len();
        self.open_gap(start, added);
        let key_bytes = u16::try_from(key.len()).expect("keys are at most KEY_BYTES_MAX long");
        self.bytes[start..start + HEADER_BYTES].copy_from_slice(&key_bytes.to_le_bytes());
        self.bytes[start + HEADER_BYTES..start + HEADER_BYTES + key.len()].copy_from_slice(key);
        self.bytes[start + HEADER_BYTES + key.len()..start + added].copy_from_slice(value);
        if self.offsets.len() == self.offsets.capacity() {
            self.offsets.reserve_exact(GROWTH_OFFSETS);
        }
        self.offsets.insert(index, offset_of(start));
        for offset in &mut self.offsets[index + 1..] {
            *offset += offset_of(added);
        }
        self.ascending = index > 0 && usize::from(self.after_latest) == index;
        self.after_latest = offset_of(index + 1);
    }

    /// Changes the value of a record.
    pub fn replace(&mut self, index: usize, value: &[u8]) {
        let (start, end) = (self.value_start(index), self.end(index));
        let old = end - start;
        if value.len() > old {
            let added = value.len() - old;
            self.open_gap(end, added);
            for offset in &mut self.offsets[index + 1..] {
                *offset += offset_of(added);
            }
        } else if value.len() < old {
            let dropped = old - value.len();
            self.bytes.drain(end - dropped..end);
            for offset in &mut self.offsets[index + 1..] {
                *offset -= offset_of(dropped);
            }
        }
        self.bytes[start..start + value.len()].copy_from_slice(value);
    }

    /// Takes a record out.
    pub fn remove(&mut self, index: usize) {
        let (start, end) = (self.start(index), self.end(index));
        self.bytes.drain(start..end);
        self.offsets.remove(index);
        for offset in &mut self.offsets[index..] {
            *offset -= offset_of(end - start);
        }
        self.after_latest = 0;
    }

    /// Where a page whose newest record is at `inserted` is best cut. Ascending insertions leave full pages behind.
    pub fn cut_for(&self, inserted: usize) -> usize {
        if self.ascending && inserted > 0 && usize::from(self.after_latest) == inserted + 1 {
            return inserted;
        }
        let half = self.bytes.len() / 2;
        let cut = self.offsets.partition_point(|offset| usize::from(*offset) < half);
        cut.clamp(1, self.count() - 1)
    }

    /// Takes the records from `index` on into a new page. `inserted`: as in [`Page::cut_for`].
    pub fn split_off(&mut self, index: usize, inserted: usize) -> Page {
        let start = self.start(index);
        let mut right = Page::default();
        right.bytes.reserve_exact((self.bytes.len() - start).next_multiple_of(GROWTH_BYTES));
        right.bytes.extend_from_slice(&self.bytes[start..]);
        right.offsets.reserve_exact((self.count() - index).next_multiple_of(GROWTH_OFFSETS));
        right.offsets.extend(self.offsets[index..].iter().map(|offset| offset - offset_of(start)));
        self.bytes.truncate(start);
        self.offsets.truncate(index);
        self.bytes.shrink_to(start);
        self.offsets.shrink_to(index);
        right.after_latest = offset_of((inserted + 1).saturating_sub(index));
        self.after_latest = if inserted < index { offset_of(inserted + 1) } else { 0 };
        right
    }

    /// Takes all records of the page that follows this one; `first_key` replaces its first key.
    pub fn append(&mut self, right: &Page, first_key: Option<&[u8]>) {
        if let (Some(key), true) = (first_key, right.count() > 0) {
            self.insert(self.count(), key, right.value(0));
            self.append_from(right, 1);
        } else {
            self.append_from(right, 0);
        }
    }

    fn append_from(&mut self, right: &Page, first: usize) {
        let skipped = right.offsets.get(first).map_or(right.bytes.len(), |offset| usize::from(*offset));
        let start = self.bytes.len();
        self.bytes.reserve_exact(right.bytes.len() - skipped);
        self.bytes.extend_from_slice(&right.bytes[skipped..]);
        self.offsets.reserve_exact(right.count() - first);
        self.offsets.extend(right.offsets[first..].iter().map(|offset| offset - offset_of(skipped) + offset_of(start)));
        self.after_latest = 0;
    }

    fn open_gap(&mut self, at: usize, bytes: usize) {
        let old = self.bytes.len();
        if old + bytes > self.bytes.capacity() {
            self.bytes.reserve_exact(bytes.next_multiple_of(GROWTH_BYTES));
        }
        self.bytes.resize(old + bytes, 0);
        self.bytes.copy_within(at..old, at + bytes);
    }
}

fn offset_of(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a page is far smaller than 64 KiB")
}
