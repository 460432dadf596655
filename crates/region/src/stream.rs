//! A large read whose bytes come piece by piece, the next of them on their way while one is used.
//!
//! Up to [`SLOT_BYTES`] are a piece. Half of the slots are begun at a time, when those before have come: while they are
//! used, the others are on their way. (All at once were slower where a device tells of them together, as a virtual
//! disk does; one by one were slower, too.)
//!
//! Where pieces lie was looked up with the layer's gate, which is kept until they have come, and no longer: those who
//! free blocks wait for it. So whoever has a stream waits for its device and for nobody else, but for when it has
//! called [`Stream::settle`].
//!
//! A piece can be moved on by who knows the memory, without a copy ([`Stream::share`]), while further ones come. Its
//! slot is filled again, by this stream or another, when it is shared no more: whoever has to wait for that settles
//! before.

use crate::error::{Result, at};
use crate::layer::Layer;
use crate::lent::LentSlots;
use crate::object::Object;
use crate::rings::SLOT_BYTES;
use crate::{BLOCK, BLOCK_BYTES, as_index};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::RwLockReadGuard;
use weft_sys::huge::HugePage;
use weft_sys::ring::SharedSlot;

/// See the module.
pub struct Stream<'a> {
    layer: &'a Layer,
    object: Object,
    // In this order: what is on its way has come before others are given its blocks.
    slots: LentSlots<'a>,
    gate: Option<RwLockReadGuard<'a, ()>>,
    /// What of the object was not begun yet.
    rest: Range<u64>,
    /// What was, in order. The first one is at hand, if `is_at_hand`.
    begun: VecDeque<Piece>,
    is_at_hand: bool,
    next_slot: usize,
}

struct Piece {
    slot: usize,
    /// Where in the slot its bytes are.
    bytes: Range<usize>,
}

impl<'a> Stream<'a> {
    /// `None`: the device reads only when it is waited for.
    pub(crate) fn new(layer: &'a Layer, object: Object, bytes: Range<u64>) -> Option<Self> {
        let slots = layer.lend_slots()?;
        let (gate, begun, is_at_hand, next_slot) = (None, VecDeque::new(), false, 0);
        Some(Self { layer, object, slots, gate, rest: bytes, begun, is_at_hand, next_slot })
    }

    /// Goes on to the next piece, and waits for it. `false`: there are no more.
    pub fn advance(&mut self) -> Result<bool> {
        if self.is_at_hand {
            self.begun.pop_front();
            self.is_at_hand = false;
        }
        if !self.slots.are_flying() {
            self.gate = None;
        }
        let half = self.slots.count() / 2;
        if self.gate.is_none() && self.begun.len() <= half && !self.rest.is_empty() && self.has_room(half) {
            self.begin(half)?;
        }
        assert!(!self.begun.is_empty() || self.rest.is_empty(), "more than half of the slots are shared");
        let Some(piece) = self.begun.front() else { return Ok(false) };
        self.slots.wait(piece.slot).map_err(at("read the device"))?;
        self.is_at_hand = true;
        Ok(true)
    }

    /// The bytes of the piece that is at hand.
    pub fn bytes(&mut self) -> &[u8] {
        let piece = self.begun.front().filter(|_| self.is_at_hand);
        piece.and_then(|piece| self.slots.slot(piece.slot)?.get(piece.bytes.clone())).unwrap_or_default()
    }

    /// The same for who moves them on, and where in the slot they are. While it is shared, this has its bytes no more.
    /// More than [`Stream::shared_max`] cannot be shared when the stream goes on.
    pub fn share(&mut self) -> Option<(SharedSlot, Range<usize>)> {
        let piece = self.begun.front().filter(|_| self.is_at_hand)?;
        Some((self.slots.share(piece.slot)?, piece.bytes.clone()))
    }

    /// How many of the pieces that were at hand may be shared when it goes on, and those the last ones.
    pub fn shared_max(&self) -> usize {
        self.slots.count() / 2
    }

    /// The page that pieces lie in.
    pub fn page(&self) -> Option<HugePage> {
        self.slots.page()
    }

    /// Waits for all that is on its way. Until the next [`Stream::advance`] nobody waits for whoever has this.
    pub fn settle(&mut self) {
        self.slots.wait_all();
        self.gate = None;
    }

    /// Whether so many slots can be filled that none is at hand in.
    fn has_room(&mut self, count: usize) -> bool {
        let all = self.slots.count();
        (self.next_slot..self.next_slot + count).all(|slot| self.slots.is_ours(slot % all))
    }

    /// Begins so many pieces, for which there are slots.
    fn begin(&mut self, count: usize) -> Result<()> {
        let there = self.object.shared().there()?;
        let first = self.rest.start / BLOCK * BLOCK;
        let end = self.rest.end.min(first + (count * SLOT_BYTES) as u64);
        let bytes = as_index(end.next_multiple_of(BLOCK) - first);
        self.layer.prepare_read(self.object.address(first, bytes)?, bytes)?;
        self.gate = Some(self.layer.gate());
        while self.rest.start < end {
            let first = self.rest.start / BLOCK * BLOCK;
            let stop = end.min(first + SLOT_BYTES as u64);
            let of = |at: u64| as_index(at.saturating_sub(first)).min(SLOT_BYTES);
            let blocks = of(stop).next_multiple_of(BLOCK_BYTES);
            self.layer.begin_read(&mut self.slots, self.next_slot, self.object.address(first, blocks)?, blocks)?;
            self.begun.push_back(Piece { slot: self.next_slot, bytes: of(self.rest.start)..of(stop) });
            self.next_slot = (self.next_slot + 1) % self.slots.count();
            self.rest.start = stop;
        }
        self.slots.submit();
        drop(there);
        Ok(())
    }
}
