//! Memory that a program registers once, for many transfers.

use crate::Result;
use crate::region::Region;
use std::sync::{Arc, PoisonError, RwLock};

/// Memory of somebody else that stays where it is.
///
/// # Safety
///
/// As long as the value is there, the memory is mapped, and the other sides of connections may read and write it at any
/// time: no reference to it says otherwise but for the length of a transfer.
pub unsafe trait LastingMemory: Send + Sync {
    /// Where it begins.
    fn address(&self) -> *mut u8;

    /// Its length.
    fn bytes(&self) -> usize;
}

/// A registration, and the memory, which goes after it.
pub(crate) struct Known {
    region: Region,
    packed_key: Vec<u8>,
    _memory: Box<dyn LastingMemory>,
}

// SAFETY: of the region no more than its address and length is told, and nobody copies into it or out of it.
unsafe impl Sync for Known {}

impl std::fmt::Debug for Known {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Known").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Known {
    /// Where it begins, and its length.
    pub fn range(&self) -> (u64, usize) {
        (self.region.address(), self.region.bytes())
    }

    /// What the other side needs to reach it.
    pub fn packed_key(&self) -> &[u8] {
        &self.packed_key
    }

    fn has(&self, address: u64, bytes: usize) -> bool {
        let at = address.checked_sub(self.region.address()).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| at.checked_add(bytes)).is_some_and(|end| end <= self.region.bytes())
    }
}

/// What a program has registered: few, large pieces, since all are looked at for each transfer.
#[derive(Debug, Default)]
pub struct Registry(RwLock<Vec<Arc<Known>>>);

impl Registry {
    /// Registers memory until the result is dropped. What is under way then keeps it until it has ended.
    pub fn register(self: &Arc<Self>, memory: Box<dyn LastingMemory>) -> Result<RegisteredMemory> {
        // SAFETY: the memory is mapped and the other side's to use as long as the value is there, which is kept beside
        // the region and dropped after it.
        let region = unsafe { Region::of_memory(memory.address(), memory.bytes()) }?;
        let known = Arc::new(Known { packed_key: region.packed_key()?, region, _memory: memory });
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&known));
        Ok(RegisteredMemory(Kept::Registered { registry: Arc::clone(self), known }))
    }

    /// Whether all of this memory is in one that is registered.
    pub fn has(&self, memory: &[u8]) -> bool {
        self.find(memory.as_ptr().addr() as u64, memory.len()).is_some()
    }

    pub(crate) fn find(&self, address: u64, bytes: usize) -> Option<Arc<Known>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|known| known.has(address, bytes)).cloned()
    }
}

/// Memory that is registered as long as this is there.
pub struct RegisteredMemory(Kept);

enum Kept {
    Registered { registry: Arc<Registry>, known: Arc<Known> },
    Unused { _memory: Box<dyn LastingMemory> },
}

impl RegisteredMemory {
    /// Memory that need not be registered, since nothing goes by UCX. It is kept all the same.
    pub fn unused(memory: Box<dyn LastingMemory>) -> Self {
        Self(Kept::Unused { _memory: memory })
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if let Kept::Registered { registry, known } = &self.0 {
            let mut all = registry.0.write().unwrap_or_else(PoisonError::into_inner);
            all.retain(|other| !Arc::ptr_eq(other, known));
        }
    }
}
