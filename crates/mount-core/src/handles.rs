//! Numbers for what is open: the kernel keeps a 64-bit number per open file or directory and sends it back with each
//! request.
//!
//! A number is a slot and the slot's use count, so that a number from before is never taken for what is in the slot
//! now.
//!
//! Invariant: a number is valid from [`Handles::insert`] until [`Handles::remove`], and never again.
//! Not here: what is open (`files.rs`, `listing.rs`).

use std::sync::{Arc, PoisonError, RwLock};
use weft_protocol::{Error, Result};

/// Files or directories open in one mount. A process may have about a million by default limits of Linux; beyond it
/// `open` fails with "busy".
pub const HANDLES_MAX: usize = 1 << 20;

/// What is open, by number.
pub struct Handles<T> {
    /// Rank 2. Held for one look; reads of different files do not wait for each other.
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    /// How often the slot was used.
    uses: u32,
    item: Option<Arc<T>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }
}

impl<T> Handles<T> {
    /// Gives it a number. `Error::Busy` when [`HANDLES_MAX`] are open.
    pub fn insert(&self, item: Arc<T>) -> Result<u64> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = match table.free.pop() {
            Some(index) => index,
            None if table.slots.len() < HANDLES_MAX => {
                table.slots.push(Slot { uses: 0, item: None });
                (table.slots.len() - 1) as u32
            }
            None => return Err(Error::Busy),
        };
        let slot = &mut table.slots[index as usize];
        slot.uses = slot.uses.wrapping_add(1);
        slot.item = Some(item);
        Ok(u64::from(slot.uses) << 32 | u64::from(index))
    }

    /// What has this number.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = table.slots.get(number as u32 as usize).filter(|slot| u64::from(slot.uses) == number >> 32);
        slot.and_then(|slot| slot.item.clone()).ok_or(Error::BadHandle)
    }

    /// Takes the number back.
    pub fn remove(&self, number: u64) -> Result<Arc<T>> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let index = number as u32;
        let slot = table.slots.get_mut(index as usize).filter(|slot| u64::from(slot.uses) == number >> 32);
        let item = slot.and_then(|slot| slot.item.take()).ok_or(Error::BadHandle)?;
        table.free.push(index);
        Ok(item)
    }

    /// Takes out everything that is still open: at the end of a mount.
    pub fn drain(&self) -> Vec<Arc<T>> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let items: Vec<_> = table.slots.iter_mut().filter_map(|slot| slot.item.take()).collect();
        table.free = (0..table.slots.len() as u32).collect();
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_number_is_never_taken_for_another() {
        let handles = Handles::default();
        let first = handles.insert(Arc::new("a")).unwrap();
        let second = handles.insert(Arc::new("b")).unwrap();
        assert_eq!((*handles.get(first).unwrap(), *handles.get(second).unwrap()), ("a", "b"));
        assert_eq!(*handles.remove(first).unwrap(), "a");
        assert_eq!(handles.get(first), Err(Error::BadHandle));
        assert_eq!(handles.remove(first), Err(Error::BadHandle));
        let third = handles.insert(Arc::new("c")).unwrap();
        assert_eq!(third as u32, first as u32, "the slot is used again");
        assert_eq!(handles.get(first), Err(Error::BadHandle));
        assert_eq!(*handles.get(third).unwrap(), "c");
        assert_eq!(handles.get(0), Err(Error::BadHandle));
        assert_eq!(handles.get(u64::MAX), Err(Error::BadHandle));
    }

    /// Random inserts and removals against a plain map.
    #[test]
    fn it_is_a_map() {
        let handles = Handles::default();
        let mut model = BTreeMap::new();
        let mut random = 1_u64;
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (random >> 33) as usize;
            if model.is_empty() || pick % 5 < 3 {
                let number = handles.insert(Arc::new(step)).unwrap();
                assert_eq!(model.insert(number, step), None);
            } else {
                let number = *model.keys().nth(pick % model.len().min(50)).unwrap();
                assert_eq!(handles.remove(number).ok().map(|item| *item), model.remove(&number));
            }
        }
        for (number, item) in &model {
            assert_eq!(*handles.get(*number).unwrap(), *item);
        }
        assert_eq!(handles.drain().len(), model.len());
        assert!(model.keys().all(|number| handles.get(*number).is_err()));
    }
}
