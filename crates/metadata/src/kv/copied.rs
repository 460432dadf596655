//! A store that can be copied to another node while it changes.
//!
//! The copy is made in pieces, in the order of the keys. Keys that change behind the end of the latest piece are
//! recorded, and sent again with the next one as they are by then; those before it will be met anyway. So the copy is
//! complete when all keys were sent once and none is recorded. What changes faster than it is copied never gets there:
//! [`CopiedStore::is_nearly_copied`] says when the rest is best copied while nothing changes.
//!
//! Invariant: a key is recorded, or not yet reached, or in the copy as it is in the store.
//! Not here: how pieces get to the other node (`shipping.rs`).

use super::{KEY_BYTES_MAX, KeyValue};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Deref};
use weft_protocol::{Error, Result};

/// Recorded keys with more bytes than this end the copy: it begins anew when nothing changes.
const RECORDED_BYTES_MAX: usize = 16 << 20;
/// What a recorded key takes beside its bytes, roughly.
const RECORDED_KEY_BYTES: usize = 48;
/// With at most so many bytes recorded a copy is nearly complete: some hundreds of keys.
const NEARLY_BYTES: usize = 32 << 10;
/// The same after so many pieces of recorded keys only, since each has found as many again.
const PIECES_OF_RECORDED_MAX: u32 = 16;
/// Length of a value in a piece for a key that is gone.
const GONE: u32 = u32::MAX;

/// See the module.
pub struct CopiedStore<K> {
    store: K,
    copying: Option<Copying>,
}

/// A copy that is being made.
struct Copying {
    /// Where the next piece begins. `None`: each key was sent once.
    next: Option<Box<[u8]>>,
    recorded: BTreeSet<Box<[u8]>>,
    recorded_bytes: usize,
    /// Pieces that held recorded keys only.
    pieces_of_recorded: u32,
}

impl Copying {
    /// Records that a key has changed. Returns false if there are too many.
    fn record(&mut self, key: &[u8]) -> bool {
        if self.next.as_deref().is_none_or(|next| key < next) && !self.recorded.contains(key) {
            self.recorded.insert(key.into());
            self.recorded_bytes += key.len() + RECORDED_KEY_BYTES;
        }
        self.recorded_bytes <= RECORDED_BYTES_MAX
    }
}

impl<K> CopiedStore<K> {
    /// Nobody copies the store.
    pub fn new(store: K) -> Self {
        Self { store, copying: None }
    }

    /// Begins a copy; an earlier one is given up.
    pub fn begin_copy(&mut self) {
        let next = Some(Box::default());
        self.copying = Some(Copying { next, recorded: BTreeSet::new(), recorded_bytes: 0, pieces_of_recorded: 0 });
    }

    /// Gives the copy up, or ends it.
    pub fn end_copy(&mut self) {
        self.copying = None;
    }

    /// Returns false if no copy was begun, or if it was ended or given up, by the store itself, too.
    pub fn is_being_copied(&self) -> bool {
        self.copying.is_some()
    }

    /// Returns true if little is left to copy, or if what is left does not become less.
    pub fn is_nearly_copied(&self) -> bool {
        self.copying.as_ref().is_some_and(|copying| {
            let is_little = copying.recorded_bytes <= NEARLY_BYTES;
            copying.next.is_none() && (is_little || copying.pieces_of_recorded >= PIECES_OF_RECORDED_MAX)
        })
    }

    fn record(&mut self, key: &[u8]) {
        if self.copying.as_mut().is_some_and(|copying| !copying.record(key)) {
            self.copying = None;
        }
    }
}

impl<K: KeyValue> CopiedStore<K> {
    /// Returns the next piece of the copy, of so many bytes at most, but for one record. `None`: the copy is complete.
    /// Costs a scan of that many bytes.
    pub fn next_piece(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        let copying = self.copying.as_mut()?;
        let mut piece = Vec::new();
        while let Some(key) = copying.recorded.first() {
            let bytes = piece.len();
            let is_there = self.store.get(key, |value| push(&mut piece, key, Some(value))).is_some();
            if !is_there {
                push(&mut piece, key, None);
            }
            if bytes > 0 && piece.len() > bytes_max {
                piece.truncate(bytes);
                return Some(piece);
            }
            copying.recorded_bytes -= key.len() + RECORDED_KEY_BYTES;
            copying.recorded.pop_first();
        }
        let Some(from) = copying.next.take() else {
            copying.pieces_of_recorded += 1;
            return Some(piece).filter(|piece| !piece.is_empty());
        };
        self.store.scan(&from, |key, value| {
            let bytes = piece.len();
            push(&mut piece, key, Some(value));
            if bytes == 0 || piece.len() <= bytes_max {
                return ControlFlow::Continue(());
            }
            piece.truncate(bytes);
            copying.next = Some(key.into());
            ControlFlow::Break(())
        });
        Some(piece)
    }
}

/// Adds a piece of another store's copy to a store. A piece that was added before may be added again, unless a later
/// one was meanwhile.
pub fn add_piece<K: KeyValue>(store: &mut K, mut piece: &[u8]) -> Result<()> {
    while !piece.is_empty() {
        let key = take(&mut piece)?.filter(|key| key.len() <= KEY_BYTES_MAX).ok_or(Error::Malformed)?;
        match take(&mut piece)? {
            Some(value) => store.put(key, value),
            None => store.delete(key),
        };
    }
    Ok(())
}

/// Appends a record: lengths (u32, little endian) before key and value, or [`GONE`] without a value.
fn push(piece: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let length = |part: &[u8]| u32::try_from(part.len()).expect("keys and values are short").to_le_bytes();
    piece.extend_from_slice(&length(key));
    piece.extend_from_slice(key);
    piece.extend_from_slice(&value.map_or(GONE.to_le_bytes(), length));
    piece.extend_from_slice(value.unwrap_or_default());
}

fn take<'a>(piece: &mut &'a [u8]) -> Result<Option<&'a [u8]>> {
    let (length, rest) = piece.split_first_chunk().ok_or(Error::Malformed)?;
    let length = u32::from_le_bytes(*length);
    let bytes = if length == GONE { 0 } else { length as usize };
    let (part, rest) = rest.split_at_checked(bytes).ok_or(Error::Malformed)?;
    *piece = rest;
    Ok((length != GONE).then_some(part))
}

/// What does not change the store.
impl<K> Deref for CopiedStore<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.store
    }
}

impl<K: KeyValue> KeyValue for CopiedStore<K> {
    fn get<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.store.get(key, read)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.record(key);
        self.store.put(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        self.record(key);
        self.store.insert(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.record(key);
        self.store.delete(key)
    }

    fn scan(&self, from: &[u8], visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        self.store.scan(from, visit);
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }
}

#[cfg(test)]
mod tests;
