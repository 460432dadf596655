//! A page of the memory store: sorted records in one block of memory.
//!
//! The block begins with the bytes that all its keys have in common, and the slots: for each record, in the order of
//! keys, the next four bytes of its key (the *head*) and the place of the record. Records lie at the block's end. A
//! search halves the slots, which are few cache lines side by side, and looks at a record only where heads are equal: a
//! page that is not in the processor's cache costs four or five misses, where a search over the keys themselves costs
//! twice that.
//!
//! Invariant: keys ascend strictly; each key but an empty one begins with the page's prefix; heads agree with keys.

use std::cmp::Ordering;

/// A page with more bytes than this is split. A large value (a symbolic link's target) may leave a half above it.
pub const PAGE_BYTES_MAX: usize = 2048;
/// Bytes of the common prefix that are used. Longer ones only make heads that are equal more often.
const PREFIX_BYTES_MAX: usize = 24;
/// Where the slots begin.
const SLOTS_AT: usize = PREFIX_BYTES_MAX;
/// Head (u32, big endian), place of the record (u16, little endian).
const SLOT_BYTES: usize = 6;
type Slot = [u8; SLOT_BYTES];
/// Length of the key (u16) and of the value (u16) before each record.
const RECORD_HEADER_BYTES: usize = 4;
/// Blocks grow in steps of this many bytes, so that little of their memory is unused.
const GROWTH_BYTES: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Page {
    block: Box<[u8]>,
    count: u16,
    prefix_bytes: u16,
    /// Where the records begin.
    records_at: u16,
    /// Bytes of records that were removed or replaced.
    unused: u16,
    /// Index behind the latest insertion.
    after_latest: u16,
    /// The latest insertion was directly behind the one before.
    ascending: bool,
    /// The first key is empty: below every other, and without the prefix.
    has_empty_key: bool,
}

/// Result of a search: the index of the key, or the index where it would be put.
pub type Found = Result<usize, usize>;

impl Page {
    /// Number of records.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Bytes of records and slots.
    pub fn used(&self) -> usize {
        self.block.len() - usize::from(self.records_at) - usize::from(self.unused) + self.count() * SLOT_BYTES
    }

    /// Bytes that the page takes from the allocator, the block rounded up as common allocators do.
    pub fn footprint(&self) -> usize {
        let block = if self.block.is_empty() { 0 } else { (self.block.len() + 8).next_multiple_of(16) };
        block + size_of::<Page>()
    }

    fn number_at(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.block[at], self.block[at + 1]]))
    }

    fn set_number(&mut self, at: usize, number: usize) {
        self.block[at..at + 2].copy_from_slice(&small(number).to_le_bytes());
    }

    fn slots(&self) -> &[Slot] {
        let (slots, _) = self.block.get(SLOTS_AT..).unwrap_or_default().as_chunks();
        &slots[..self.count()]
    }

    fn head(&self, index: usize) -> u32 {
        slot_head(&self.slots()[index])
    }

    fn record_at(&self, index: usize) -> usize {
        slot_record_at(&self.slots()[index])
    }

    fn set_slot(&mut self, index: usize, head: u32, record_at: usize) {
        let at = SLOTS_AT + index * SLOT_BYTES;
        self.block[at..at + 4].copy_from_slice(&head.to_be_bytes());
        self.set_number(at + 4, record_at);
    }

    fn record_bytes(&self, index: usize) -> usize {
        let at = self.record_at(index);
        RECORD_HEADER_BYTES + self.number_at(at) + self.number_at(at + 2)
    }

    /// The key of a record.
    pub fn key(&self, index: usize) -> &[u8] {
        self.key_at(self.record_at(index))
    }

    fn key_at(&self, at: usize) -> &[u8] {
        let key_at = at + RECORD_HEADER_BYTES;
        &self.block[key_at..key_at + self.number_at(at)]
    }

    /// The value of a record.
    pub fn value(&self, index: usize) -> &[u8] {
        let at = self.record_at(index);
        let value_at = at + RECORD_HEADER_BYTES + self.number_at(at);
        &self.block[value_at..value_at + self.number_at(at + 2)]
    }

    fn prefix(&self) -> &[u8] {
        &self.block[..usize::from(self.prefix_bytes)]
    }

    /// Looks for a key by halving.
    pub fn find(&self, key: &[u8]) -> Found {
        let (mut low, mut high) = (usize::from(self.has_empty_key), self.count());
        if key.is_empty() && self.has_empty_key {
            return Ok(0);
        }
        if low == high {
            return Err(low);
        }
        let prefix = self.prefix();
        match key[..key.len().min(prefix.len())].cmp(prefix) {
            Ordering::Less => return Err(low),
            Ordering::Greater => return Err(high),
            Ordering::Equal => {}
        }
        let (head, slots) = (head_of(key, prefix.len()), self.slots());
        while low < high {
            let middle = low.midpoint(high);
            let slot = &slots[middle];
            match slot_head(slot).cmp(&head).then_with(|| self.key_at(slot_record_at(slot)).cmp(key)) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Puts a new record at `index`.
    pub fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        let bytes = RECORD_HEADER_BYTES + key.len() + value.len();
        self.make_room(bytes + SLOT_BYTES);
        self.shorten_prefix(key);
        let record_at = self.add_record(key, value);
        let (from, to) = (SLOTS_AT + index * SLOT_BYTES, SLOTS_AT + self.count() * SLOT_BYTES);
        self.block.copy_within(from..to, from + SLOT_BYTES);
        self.set_slot(index, head_of(key, usize::from(self.prefix_bytes)), record_at);
        self.count += 1;
        self.has_empty_key |= key.is_empty();
        self.ascending = index > 0 && usize::from(self.after_latest) == index;
        self.after_latest = small(index + 1);
    }

    /// Changes the value of a record.
    pub fn replace(&mut self, index: usize, value: &[u8]) {
        let at = self.record_at(index);
        let key_bytes = self.number_at(at);
        let old = self.number_at(at + 2);
        if old == value.len() {
            let value_at = at + RECORD_HEADER_BYTES + key_bytes;
            self.block[value_at..value_at + old].copy_from_slice(value);
            return;
        }
        let key = self.key(index).to_vec();
        // The old record stays until there is room for the new one: making the block anew copies what the slots name,
        // and may find a longer prefix.
        self.make_room(RECORD_HEADER_BYTES + key.len() + value.len());
        self.unused += small(self.record_bytes(index));
        let head = self.head(index);
        let record_at = self.add_record(&key, value);
        self.set_slot(index, head, record_at);
    }

    /// Takes a record out.
    pub fn remove(&mut self, index: usize) {
        self.has_empty_key &= index != 0;
        self.unused += small(self.record_bytes(index));
        let (from, to) = (SLOTS_AT + (index + 1) * SLOT_BYTES, SLOTS_AT + self.count() * SLOT_BYTES);
        self.block.copy_within(from..to, from - SLOT_BYTES);
        self.count -= 1;
        self.after_latest = 0;
        if self.count == 0 {
            *self = Page::default();
        }
    }

    /// Where a page whose newest record is at `inserted` is best cut. Ascending insertions leave full pages behind.
    pub fn cut_for(&self, inserted: usize) -> usize {
        if self.ascending && inserted > 0 && usize::from(self.after_latest) == inserted + 1 {
            return inserted;
        }
        let half = self.used() / 2;
        let mut bytes = 0;
        let cut = (0..self.count()).position(|index| {
            bytes += self.record_bytes(index) + SLOT_BYTES;
            bytes > half
        });
        cut.unwrap_or(0).clamp(1, self.count() - 1)
    }

    /// Takes the records from `index` on into a new page. `inserted`: as in [`Page::cut_for`].
    pub fn split_off(&mut self, index: usize, inserted: usize) -> Page {
        let whole = std::mem::take(self);
        let mut right = whole.copy_of(index..whole.count(), 0);
        *self = whole.copy_of(0..index, 0);
        right.after_latest = small((inserted + 1).saturating_sub(index));
        self.after_latest = if inserted < index { small(inserted + 1) } else { 0 };
        right
    }

    /// Makes the first key empty.
    pub fn clear_first_key(&mut self) {
        let value = self.value(0).to_vec();
        let (after_latest, ascending) = (self.after_latest, self.ascending);
        self.remove(0);
        self.insert(0, &[], &value);
        (self.after_latest, self.ascending) = (after_latest, ascending);
    }

    /// Takes all records of the page that follows this one; `first_key` replaces its first key.
    pub fn append(&mut self, right: &Page, first_key: Option<&[u8]>) {
        for index in 0..right.count() {
            let key = first_key.filter(|_| index == 0).unwrap_or_else(|| right.key(index));
            self.insert(self.count(), key, right.value(index));
        }
        self.after_latest = 0;
    }

    /// Bytes between slots and records.
    fn room(&self) -> usize {
        usize::from(self.records_at).saturating_sub(SLOTS_AT + self.count() * SLOT_BYTES)
    }

    /// Makes the block anew, larger or without what is unused, unless there is room.
    fn make_room(&mut self, bytes: usize) {
        if self.room() >= bytes {
            return;
        }
        if self.unused == 0 && self.count > 0 {
            self.grow(bytes);
        } else {
            let old = std::mem::take(self);
            *self = old.copy_of(0..old.count(), bytes);
            (self.after_latest, self.ascending) = (old.after_latest, old.ascending);
        }
    }

    /// A larger block with the same records, moved as they lie.
    fn grow(&mut self, bytes: usize) {
        let slots_end = SLOTS_AT + self.count() * SLOT_BYTES;
        let records_at = usize::from(self.records_at);
        let records = self.block.len() - records_at;
        let length = (slots_end + records + bytes).next_multiple_of(GROWTH_BYTES);
        let further = small(length - self.block.len());
        let mut block = vec![0; length];
        block[length - records..].copy_from_slice(&self.block[records_at..]);
        block[..slots_end].copy_from_slice(&self.block[..slots_end]);
        let (slots, _) = block[SLOTS_AT..slots_end].as_chunks_mut::<SLOT_BYTES>();
        for slot in slots {
            let [.., low, high] = slot;
            [*low, *high] = (u16::from_le_bytes([*low, *high]) + further).to_le_bytes();
        }
        self.block = block.into();
        self.records_at += further;
    }

    fn add_record(&mut self, key: &[u8], value: &[u8]) -> usize {
        let at = usize::from(self.records_at) - RECORD_HEADER_BYTES - key.len() - value.len();
        self.set_number(at, key.len());
        self.set_number(at + 2, value.len());
        let value_at = at + RECORD_HEADER_BYTES + key.len();
        self.block[at + RECORD_HEADER_BYTES..value_at].copy_from_slice(key);
        self.block[value_at..value_at + value.len()].copy_from_slice(value);
        self.records_at = small(at);
        at
    }

    /// The records of a range in a block of their own, with this much room.
    fn copy_of(&self, range: std::ops::Range<usize>, room: usize) -> Page {
        let records: usize = range.clone().map(|index| self.record_bytes(index) + SLOT_BYTES).sum();
        let bytes = (SLOTS_AT + records + room).next_multiple_of(GROWTH_BYTES);
        let mut copy = Page { block: vec![0; bytes].into(), records_at: small(bytes), ..Page::default() };
        let first = range.start + usize::from(range.start == 0 && self.has_empty_key);
        if first < range.end {
            let (low, high) = (self.key(first), self.key(range.end - 1));
            let common = common_bytes(low, high);
            copy.block[..common].copy_from_slice(&low[..common]);
            copy.prefix_bytes = small(common);
        }
        // From the last to the first: records then lie in the order of their keys.
        for index in range.clone().rev() {
            let key = self.key(index);
            let at = copy.add_record(key, self.value(index));
            copy.set_slot(index - range.start, head_of(key, usize::from(copy.prefix_bytes)), at);
        }
        copy.count = small(range.len());
        copy.has_empty_key = range.start == 0 && self.has_empty_key;
        copy
    }

    /// Shortens the prefix to what it has in common with a new key, and makes the heads anew if it does.
    fn shorten_prefix(&mut self, key: &[u8]) {
        if key.is_empty() {
            return;
        }
        if self.count() == usize::from(self.has_empty_key) {
            let bytes = key.len().min(PREFIX_BYTES_MAX);
            self.block[..bytes].copy_from_slice(&key[..bytes]);
            self.prefix_bytes = small(bytes);
            return;
        }
        let common = common_bytes(self.prefix(), key);
        if common < usize::from(self.prefix_bytes) {
            self.prefix_bytes = small(common);
            for index in 0..self.count() {
                self.set_slot(index, head_of(self.key(index), common), self.record_at(index));
            }
        }
    }
}

fn slot_head([head @ .., _, _]: &Slot) -> u32 {
    u32::from_be_bytes(*head)
}

fn slot_record_at([.., low, high]: &Slot) -> usize {
    usize::from(u16::from_le_bytes([*low, *high]))
}

/// The four bytes of a key behind the prefix, as a number that sorts like them.
fn head_of(key: &[u8], prefix_bytes: usize) -> u32 {
    let rest = key.get(prefix_bytes..).unwrap_or_default();
    match rest.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(bytes)
        }
    }
}

fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take(PREFIX_BYTES_MAX).take_while(|(a, b)| a == b).count()
}

fn small(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("a page is far smaller than 64 KiB")
}
