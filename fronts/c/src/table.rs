//! Tables of handles: what a number that C passes stands for.
//!
//! Looking a handle up takes no lock and counts nothing: the call announces the handle ([`hazards`]), and close leaves
//! the value to the last call in flight. So a value is dropped by its close or by the return of that call, whichever is
//! later, and never waits for a thread that makes no call.
//!
//! A handle that only the thread that opened it has looked up is closed without a look at other threads: the first
//! lookup by another thread marks it as shared, with a full barrier, and then checks again that it is open.
//!
//! A number has the kind of the thing, its slot in the table and the slot's generation. The slot holds the number
//! that is open in it, so that one comparison tells an open handle from one that is closed, stale or made up.
//!
//! Invariant: a slot's value changes only while no number is open in it and no call uses the one that was.
//!
//! Lock order: a table's state (1), records of hazards (2). Values are dropped without either.

use crate::handles::Kind;
use crate::hazards::{self, Hazard, Record};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bits of a number that tell its kind.
const KIND_BITS: u32 = 3;
const KIND_MASK: usize = (1 << KIND_BITS) - 1;
/// Bits of a number that tell its slot: its page and its index in the page. The rest is the generation.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: usize = SLOTS_MAX - 1;
/// What the next generation of a slot adds to its number.
const GENERATION: usize = 1 << (KIND_BITS + SLOT_BITS);

/// Most handles of a table, as many as Linux lets a process open files by default (`fs.nr_open`).
const SLOTS_MAX: usize = 1 << SLOT_BITS;
/// Slots of a page. Pages are made as the table grows, and stay where they are.
const PAGE_SLOTS: usize = 256;
const PAGES: usize = SLOTS_MAX / PAGE_SLOTS;

/// No number is open: of no kind.
const CLOSED: usize = 0;

struct Slot<T> {
    /// The number that is open here, or [`CLOSED`]. Changed with `state` locked.
    open: AtomicUsize,
    /// Record of the thread that opened it, if it had one. Changed before `open`.
    owner: AtomicPtr<Record>,
    /// The latest number here that another thread has looked up. Only grows.
    shared: AtomicUsize,
    /// Initialized while a number is open or closing.
    value: UnsafeCell<MaybeUninit<Arc<T>>>,
}

// SAFETY: the value is read by calls that have announced the number and then found it open, and changed as the module's
// invariant says, with `state` locked. References to it and clones of it are used on any thread, as of an `Arc`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    const fn new(open: usize, value: MaybeUninit<Arc<T>>) -> Self {
        let owner = AtomicPtr::new(std::ptr::null_mut());
        Self { open: AtomicUsize::new(open), owner, shared: AtomicUsize::new(CLOSED), value: UnsafeCell::new(value) }
    }

    /// Has the close look for other threads' hazards. Returns false if the number is closed.
    #[cold]
    fn share(&self, number: usize) -> bool {
        self.shared.fetch_max(number, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.open.load(Ordering::Acquire) == number
    }

    #[inline(always)]
    fn is_of(&self, thread: Option<&'static Record>) -> bool {
        thread.is_some_and(|thread| std::ptr::eq(self.owner.load(Ordering::Relaxed), thread))
    }
}

/// The handles of a kind.
pub struct Table<T: Kind> {
    pages: [OnceLock<Box<[Slot<T>; PAGE_SLOTS]>>; PAGES],
    state: Mutex<State>,
}

struct State {
    /// Number of slots that were ever used.
    used: usize,
    /// Numbers that free slots get next.
    free: Vec<usize>,
    /// Numbers that are closed while calls use what they stood for.
    closing: Vec<usize>,
}

/// Keeps what a handle stands for, for the length of a call. Two words: it is passed in registers.
pub struct Held<T: Kind> {
    slot: NonNull<Slot<T>>,
    /// Announces the number. `None`: the slot is this one's own, a box.
    hazard: Option<Hazard>,
}

impl<T: Kind> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        const { assert!(T::NUMBER != CLOSED && T::NUMBER <= KIND_MASK) };
        let state = State { used: 0, free: Vec::new(), closing: Vec::new() };
        Self { pages: [const { OnceLock::new() }; PAGES], state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a number of this kind, which need not be open.
    #[inline(always)]
    fn slot(&self, number: usize) -> Option<&Slot<T>> {
        if number & KIND_MASK != T::NUMBER {
            return None;
        }
        let index = (number >> KIND_BITS) & SLOT_MASK;
        Some(&self.pages[index / PAGE_SLOTS].get()?[index % PAGE_SLOTS])
    }

    /// Makes a handle. `None`: the table is full.
    pub fn insert(&self, value: Arc<T>) -> Option<usize> {
        hazards::prepare();
        let owner = hazards::this_thread().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut state = self.lock();
        let number = state.free.pop().or_else(|| self.extend(&mut state))?;
        let slot = self.slot(number).expect("it is free, so it is there");
        // SAFETY: the slot is free, so that nobody uses a value in it, or changes one, since `state` is locked.
        unsafe { (*slot.value.get()).write(value) };
        slot.owner.store(owner.cast_mut(), Ordering::Relaxed);
        slot.open.store(number, Ordering::Release);
        Some(number)
    }

    /// A slot that was never used.
    fn extend(&self, state: &mut State) -> Option<usize> {
        let index = state.used;
        if index == SLOTS_MAX {
            return None;
        }
        self.pages[index / PAGE_SLOTS]
            .get_or_init(|| Box::new([const { Slot::new(CLOSED, MaybeUninit::uninit()) }; PAGE_SLOTS]));
        state.used += 1;
        // Generations begin at another number for each slot: small and neighbouring numbers are no handles.
        Some(((index + 1) * GENERATION) | (index << KIND_BITS) | T::NUMBER)
    }

    /// What a number stands for.
    #[inline(always)]
    pub fn get(&self, number: usize) -> Option<Held<T>> {
        let slot = self.slot(number)?;
        let thread = hazards::this_thread();
        let Some(hazard) = thread.and_then(|thread| thread.announce(number)) else { return self.copy(number) };
        let held = Held { slot: NonNull::from(slot), hazard: Some(hazard) };
        // In this order: who finds it shared finds it closed, where its close has found it unshared.
        let is_shared = slot.shared.load(Ordering::Acquire) == number;
        if slot.open.load(Ordering::Acquire) == number && (slot.is_of(thread) || is_shared || slot.share(number)) {
            return Some(held);
        }
        // Nothing of it is used, but its close may have left the value to this call.
        drop(held);
        None
    }

    /// As [`Table::get`], where the thread cannot announce it.
    #[cold]
    fn copy(&self, number: usize) -> Option<Held<T>> {
        let state = self.lock();
        let value = self.value_of(&state, number)?;
        drop(state);
        let own = Box::new(Slot::new(number, MaybeUninit::new(value)));
        Some(Held { slot: NonNull::from(Box::leak(own)), hazard: None })
    }

    /// What a number stands for, if it is open.
    fn value_of(&self, _locked: &State, number: usize) -> Option<Arc<T>> {
        let slot = self.slot(number)?;
        if slot.open.load(Ordering::Relaxed) != number {
            return None;
        }
        // SAFETY: the number is open, and stays so, since `state` is locked: the value is there, and nobody changes it.
        Some(unsafe { (*slot.value.get()).assume_init_ref() }.clone())
    }

    /// Closes a handle. What it stood for is dropped when the last call that uses it has returned.
    pub fn take(&self, number: usize) -> Option<Arc<T>> {
        let thread = hazards::this_thread();
        let mut state = self.lock();
        let value = self.value_of(&state, number)?;
        let slot = self.slot(number)?;
        slot.open.store(CLOSED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_alone = slot.is_of(thread) && slot.shared.load(Ordering::Relaxed) != number;
        let is_used = if is_alone {
            thread.is_some_and(|thread| thread.announces(number))
        } else {
            hazards::barrier();
            hazards::is_announced(number)
        };
        let released = if is_used {
            state.closing.push(number);
            None
        } else {
            // SAFETY: it is closed, and no hazard names it whose call has found it open: of other threads' none has,
            // if `shared` does not show it, and the barrier has shown those that may have.
            Some(unsafe { self.release(&mut state, number) })
        };
        drop(state);
        drop(released);
        Some(value)
    }

    /// Drops what a closed handle stood for, if no call uses it any more. To be called when one has ended to. The last
    /// one comes here: it ends its hazard and then finds the handle closed, or else `take` has seen that it ended.
    #[cold]
    #[inline(never)]
    fn settle(&self, number: usize) {
        let mut state = self.lock();
        let Some(position) = state.closing.iter().position(|closing| *closing == number) else { return };
        if hazards::is_announced(number) {
            return;
        }
        state.closing.swap_remove(position);
        // SAFETY: it is closed, and no hazard names it. `take` has put it into `closing`, so it has not been released.
        let released = unsafe { self.release(&mut state, number) };
        drop(state);
        drop(released);
    }

    /// Takes the value of a closed handle out of its slot, and frees the slot.
    ///
    /// # Safety
    /// To be called once for a handle that was open and is closed, when no hazard names it whose call has found it
    /// open.
    unsafe fn release(&self, state: &mut State, number: usize) -> Arc<T> {
        let slot = self.slot(number).expect("it was open, so it is there");
        // SAFETY: nobody else has or gets a reference to the value, as above, or changes it, since `state` is locked.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        // A slot that is out of generations is not used again.
        state.free.extend(number.checked_add(GENERATION));
        value
    }
}

impl<T: Kind> Deref for Held<T> {
    type Target = Arc<T>;

    #[inline(always)]
    fn deref(&self) -> &Arc<T> {
        // SAFETY: the slot is this one's own, with a value. Or it is the table's, where slots stay, and its value stays
        // as it is: its number was found open after the hazard was announced, which only `drop` ends.
        unsafe { (*self.slot.as_ref().value.get()).assume_init_ref() }
    }
}

impl<T: Kind> Drop for Held<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(hazard) = &self.hazard else {
            // SAFETY: `copy` made it of a box, with a value; it is dropped once.
            drop(unsafe { Box::from_raw(self.slot.as_ptr()).value.into_inner().assume_init() });
            return;
        };
        let number = hazard.end();
        // SAFETY: the table's slots stay.
        if unsafe { self.slot.as_ref() }.open.load(Ordering::Relaxed) != number {
            T::table().settle(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Barrier, Weak};
    use std::thread;
    use weft_library::{Process, this_process};

    /// Tells whether it was dropped.
    struct Canary(AtomicBool);

    impl Canary {
        fn lives(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Drop for Canary {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    impl Kind for Canary {
        const NUMBER: usize = 5;
        const NAME: &str = "canary";

        fn table() -> &'static Table<Self> {
            static TABLE: Table<Canary> = Table::new();
            &TABLE
        }

        fn made_in(&self) -> Process {
            this_process()
        }
    }

    /// What one test alone makes handles of: a number next to one of them is nobody's.
    struct Lone;

    impl Kind for Lone {
        const NUMBER: usize = 6;
        const NAME: &str = "lone";

        fn table() -> &'static Table<Self> {
            static TABLE: Table<Lone> = Table::new();
            &TABLE
        }

        fn made_in(&self) -> Process {
            this_process()
        }
    }

    /// Makes a handle. Returns it, and what tells whether its value is there.
    fn open() -> (usize, Weak<Canary>) {
        let value = Arc::new(Canary(AtomicBool::new(true)));
        let weak = Arc::downgrade(&value);
        (Canary::table().insert(value).unwrap(), weak)
    }

    #[test]
    fn other_numbers_are_no_handles() {
        let table = Lone::table();
        let open = || table.insert(Arc::new(Lone)).unwrap();
        let (first, second) = (open(), open());
        for bit in 0..usize::BITS {
            assert!(table.get(first ^ (1 << bit)).is_none(), "{first:#x} without bit {bit}");
        }
        assert!((0..4096).all(|number| table.get(number).is_none()));
        assert!(table.get(usize::MAX).is_none());
        assert!(table.get(first).is_some());
        table.take(first).unwrap();
        assert!(table.get(first).is_none() && table.take(first).is_none());
        let third = open();
        assert!(third != first && table.get(first).is_none() && table.take(first).is_none());
        assert!(table.get(second).is_some() && table.get(third).is_some());
    }

    #[test]
    fn pages_are_added_as_handles_are_made() {
        let table = Canary::table();
        let handles: Vec<_> = (0..PAGE_SLOTS * 3).map(|_| open()).collect();
        assert!(handles.iter().all(|(number, value)| Arc::as_ptr(&table.get(*number).unwrap()) == value.as_ptr()));
    }

    #[test]
    fn a_value_is_dropped_by_its_close() {
        let table = Canary::table();
        let (number, value) = open();
        let (used, end) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            // It has used the handle, and makes no further call.
            scope.spawn(|| {
                assert!(table.get(number).unwrap().lives());
                used.wait();
                end.wait();
            });
            used.wait();
            drop(table.take(number).unwrap());
            let is_dropped = value.upgrade().is_none();
            end.wait();
            assert!(is_dropped);
        });
    }

    #[test]
    fn a_value_that_another_thread_uses_outlives_its_close() {
        let table = Canary::table();
        let (number, value) = open();
        let (used, end) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let held = table.get(number).unwrap();
                used.wait();
                end.wait();
                assert!(held.lives());
            });
            used.wait();
            drop(table.take(number).unwrap());
            let is_dropped = value.upgrade().is_none();
            end.wait();
            assert!(!is_dropped);
        });
        assert!(value.upgrade().is_none());
    }

    #[test]
    fn a_value_is_dropped_by_the_last_call_that_uses_it() {
        let table = Canary::table();
        let (number, value) = open();
        let held: Vec<_> = (0..MORE_THAN_HAZARDS).map(|_| table.get(number).unwrap()).collect();
        thread::spawn(move || drop(table.take(number).unwrap())).join().unwrap();
        assert!(table.get(number).is_none());
        for held in held {
            assert!(held.lives() && value.upgrade().is_some());
        }
        assert!(value.upgrade().is_none());
    }

    /// More than a thread can announce.
    const MORE_THAN_HAZARDS: usize = 4;

    #[test]
    fn handles_are_closed_while_they_are_used() {
        let table = Canary::table();
        let shared = AtomicUsize::new(open().0);
        let ends = AtomicBool::new(false);
        let values = thread::scope(|scope| {
            let closers = [(), ()].map(|()| {
                // Closes what it has opened, or the other one.
                scope.spawn(|| {
                    let replace = |_| {
                        let (number, value) = open();
                        assert!(table.get(number).unwrap().lives());
                        drop(table.take(shared.swap(number, Ordering::Relaxed)).unwrap());
                        value
                    };
                    (0..5000).map(replace).collect::<Vec<_>>()
                })
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        let held = table.get(shared.load(Ordering::Relaxed));
                        assert!(held.is_none_or(|held| (0..100).all(|_| held.lives())));
                    }
                });
            }
            let values = closers.map(|closer| closer.join().unwrap());
            ends.store(true, Ordering::Relaxed);
            values
        });
        drop(table.take(shared.load(Ordering::Relaxed)).unwrap());
        assert!(values.iter().flatten().all(|value| value.upgrade().is_none()));
    }
}
