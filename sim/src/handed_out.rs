//! What members of groups have handed out, for others to publish: a board that all clients see.
//!
//! A member takes down what nobody has taken, also when it dies. When somebody has taken it, the member waits until
//! that one has tried to publish it, or has died, be it before, meanwhile, or before the member is told: as ranks wait
//! for the one that publishes for them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_protocol::{Publication, SessionId};

/// A publication, and whether it was made, once that is known.
pub struct HandedOut {
    pub publication: Publication,
    made: Cell<Option<bool>>,
}

/// See the module.
#[derive(Default)]
pub struct Board {
    standing: RefCell<Vec<Rc<HandedOut>>>,
    /// Publications that were made for another client's member.
    pub made: Cell<u64>,
}

/// What a member has handed out, until it does not wait any more.
pub struct Standing<'a> {
    board: &'a Board,
    handed_out: Rc<HandedOut>,
}

impl Standing<'_> {
    /// Whether nobody has taken it.
    pub fn stands(&self) -> bool {
        self.board.standing.borrow().iter().any(|standing| Rc::ptr_eq(standing, &self.handed_out))
    }

    /// Whether somebody who lives has taken it, and has not told what has become of it.
    pub fn is_decided_by_others(&self) -> bool {
        !self.stands() && self.made().is_none() && Rc::strong_count(&self.handed_out) > 1
    }

    pub fn made(&self) -> Option<bool> {
        self.handed_out.made.get()
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.board.standing.borrow_mut().retain(|standing| !Rc::ptr_eq(standing, &self.handed_out));
    }
}

impl Board {
    pub fn add(&self, publication: Publication) -> Standing<'_> {
        let handed_out = Rc::new(HandedOut { publication, made: Cell::new(None) });
        self.standing.borrow_mut().push(Rc::clone(&handed_out));
        Standing { board: self, handed_out }
    }

    /// Whether something stands there for a group.
    pub fn has(&self, group: SessionId) -> bool {
        self.standing.borrow().iter().any(|standing| standing.publication.group == group)
    }

    /// Takes what stands there for a group.
    pub fn take(&self, group: SessionId) -> Vec<Rc<HandedOut>> {
        self.standing.borrow_mut().extract_if(.., |standing| standing.publication.group == group).collect()
    }

    /// This was tried.
    pub fn tried(&self, handed_out: &HandedOut, made: bool) {
        handed_out.made.set(Some(made));
        self.made.set(self.made.get() + u64::from(made));
    }
}
