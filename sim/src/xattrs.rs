//! Programs that use extended attributes, beside those that use files and names; and the plain model of what they see.
//!
//! The model has, of each attribute, the values that it had one after the other, as the shards made the changes. What a
//! program is told has to be one that the attribute had at some moment between the program's question and the answer,
//! whether a shard gave it or the client's cache. Values are unique, so that a change that is made twice shows.
//!
//! Not here: permissions and limits (`weft-metadata`).

use crate::process::Process;
use crate::random::Random;
use crate::shell::SimShell;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use weft_client_core::Files;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Credentials, Error, InodeNumber, Name, Result, XattrExpectation, XattrName, XattrValue};

/// Longest wait between two calls of a program, milliseconds.
const THINK_MS: u64 = 250;
/// Longest value: it takes several parts in the store.
const VALUE_BYTES: u64 = 2500;
const NAMES: [&str; 3] = ["user.a", "user.b", "trusted.a"];

type Checked = std::result::Result<(), String>;

fn expect(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// A value by its number.
fn value(number: u64) -> XattrValue {
    let bytes = number.to_be_bytes();
    let length = usize::try_from(8 + number % VALUE_BYTES).expect("short");
    let bytes: Vec<u8> = bytes.into_iter().cycle().take(length).collect();
    XattrValue::new(&bytes).expect("a short value")
}

/// The number of a value. `None`: it is none that a program has set.
fn number_of(found: &XattrValue) -> Option<u64> {
    let first = found.as_bytes().first_chunk()?;
    let number = u64::from_be_bytes(*first);
    (value(number) == *found).then_some(number)
}

/// The values that an attribute had, each since a moment; `None`: it was not there.
type Changes = Vec<(u64, Option<u64>)>;

/// The model.
#[derive(Default)]
pub struct Xattrs {
    moment: u64,
    next_value: u64,
    changes: BTreeMap<(InodeNumber, XattrName), Changes>,
    /// Values that were set.
    set: BTreeSet<u64>,
    /// Answers that were compared.
    pub compared: u64,
}

impl Xattrs {
    /// A program asks now.
    fn begin(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn next_value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    fn current(&self, inode: InodeNumber, name: &XattrName) -> Option<u64> {
        self.changes.get(&(inode, name.clone())).and_then(|changes| changes.last()?.1)
    }

    fn change(&mut self, inode: InodeNumber, name: &XattrName, value: Option<u64>) {
        self.moment += 1;
        self.changes.entry((inode, name.clone())).or_default().push((self.moment, value));
    }

    /// What the attribute was since a moment.
    fn was(&self, inode: InodeNumber, name: &XattrName, since: u64) -> Vec<Option<u64>> {
        let none = Vec::new();
        let changes = self.changes.get(&(inode, name.clone())).unwrap_or(&none);
        let first = changes.iter().rev().find(|(at, _)| *at <= since).and_then(|(_, value)| *value);
        let later = changes.iter().filter(|(at, _)| *at > since).map(|(_, value)| *value);
        std::iter::once(first).chain(later).collect()
    }

    fn told(&mut self, inode: InodeNumber, name: &XattrName, told: Option<u64>, since: u64) -> Checked {
        self.compared += 1;
        let was = self.was(inode, name, since);
        expect(was.contains(&told), || format!("{name:?} of {inode} is told as {told:?}, since {since} it was {was:?}"))
    }

    /// A shard answers: changes are made now, and all that is told is so now.
    pub fn answered(&mut self, request: &ShardRequest, result: &Result<ShardAnswer>) -> Checked {
        match (request, result) {
            (ShardRequest::SetXattr { inode, name, value, expects }, Ok(_)) => {
                let current = self.current(*inode, name);
                let number = number_of(value).ok_or("a value that no program has set")?;
                let is_first = self.set.insert(number);
                self.change(*inode, name, Some(number));
                expect(is_first, || format!("{name:?} of {inode} is set to {number} again"))?;
                let holds = (!expects.absent || current.is_none()) && (!expects.present || current.is_some());
                expect(holds, || format!("{name:?} of {inode} was {current:?}, and {expects:?} holds"))
            }
            (ShardRequest::RemoveXattr { inode, name }, Ok(_)) => {
                let current = self.current(*inode, name);
                self.change(*inode, name, None);
                expect(current.is_some(), || format!("{name:?} of {inode} is removed, and was not there"))
            }
            (ShardRequest::GetXattrs { inode }, Ok(ShardAnswer::Xattrs { xattrs, .. })) => {
                for text in NAMES {
                    let name = name_of(text);
                    let told = xattrs.iter().find(|xattr| xattr.name == name);
                    let told = told.and_then(|xattr| number_of(xattr.value.as_ref()?));
                    let known = self.current(*inode, &name);
                    expect(told == known, || format!("{name:?} of {inode}: {told:?}, the model has {known:?}"))?;
                }
                Ok(())
            }
            (ShardRequest::GetAttributes { inode }, Ok(ShardAnswer::Entry { attributes, .. })) => {
                let known = NAMES.iter().any(|text| self.current(*inode, &name_of(text)).is_some());
                expect(attributes.has_xattrs() == known, || format!("{attributes:?}, and attributes of it: {known}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a request is about attributes, or its answer tells whether there are any.
pub fn is_about(request: &ShardRequest) -> bool {
    matches!(
        request,
        ShardRequest::SetXattr { .. }
            | ShardRequest::RemoveXattr { .. }
            | ShardRequest::GetXattrs { .. }
            | ShardRequest::GetAttributes { .. }
    )
}

fn name_of(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("a valid name")
}

/// One program.
pub struct Program {
    pub machine: Arc<Files<SimShell>>,
    pub process: Rc<Process>,
    pub model: Rc<RefCell<Xattrs>>,
    /// Its own numbers: what other programs decide stays as it is.
    pub random: Random,
    pub names: Vec<Name>,
}

impl Program {
    /// Uses attributes until the run ends.
    pub async fn run(mut self) {
        let who = Credentials::default();
        while self.process.thinks(&self.machine, &mut self.random, THINK_MS).await {
            let Some(inode) = self.choose(&who).await else { continue };
            let name = name_of(NAMES[usize::try_from(self.random.below(3)).expect("small")]);
            let checked = match self.random.below(10) {
                0..=4 => self.get(&who, inode, &name).await,
                5 => self.list(&who, inode).await,
                6 => self.remove(&who, inode, &name).await,
                _ => self.set(&who, inode, &name).await,
            };
            self.process.check(checked);
        }
    }

    /// A directory that the process knows, or a file of `/`.
    async fn choose(&mut self, who: &Credentials) -> Option<InodeNumber> {
        if self.random.one_in(3) {
            let directories = self.process.directories.borrow();
            let index = self.random.below(directories.len() as u64);
            return directories.get(usize::try_from(index).ok()?).copied();
        }
        let index = self.random.below(self.names.len() as u64);
        let name = &self.names[usize::try_from(index).ok()?];
        self.machine.lookup(who, InodeNumber::ROOT, name).await.ok().map(|entry| entry.attributes.inode)
    }

    async fn get(&self, who: &Credentials, inode: InodeNumber, name: &XattrName) -> Checked {
        let since = self.model.borrow_mut().begin();
        let got = self.machine.get_xattr(who, inode, name).await;
        self.process.note(|| format!("get {name:?} of {inode}: {:?}", got.as_ref().map(number_of)));
        match got {
            Ok(value) => {
                let number = number_of(&value).ok_or_else(|| format!("{name:?} of {inode} is none that was set"))?;
                self.model.borrow_mut().told(inode, name, Some(number), since)
            }
            Err(Error::NoXattr) => self.model.borrow_mut().told(inode, name, None, since),
            Err(_) => Ok(()),
        }
    }

    async fn list(&self, who: &Credentials, inode: InodeNumber) -> Checked {
        let since = self.model.borrow_mut().begin();
        let Ok(listed) = self.machine.list_xattrs(who, inode).await else { return Ok(()) };
        self.process.note(|| format!("attributes of {inode}: {listed:?}"));
        let model = self.model.borrow();
        NAMES.iter().try_for_each(|text| {
            let name = name_of(text);
            let was = model.was(inode, &name, since);
            let is_listed = listed.contains(&name);
            let holds = was.iter().any(|value| value.is_some() == is_listed);
            expect(holds, || format!("{name:?} of {inode} listed: {is_listed}, since {since} it was {was:?}"))
        })
    }

    async fn set(&mut self, who: &Credentials, inode: InodeNumber, name: &XattrName) -> Checked {
        let (since, number) = {
            let mut model = self.model.borrow_mut();
            (model.begin(), model.next_value())
        };
        let expects = XattrExpectation { absent: self.random.one_in(6), present: self.random.one_in(6) };
        let set = self.machine.set_xattr(who, inode, name, &value(number), expects).await;
        self.process.note(|| format!("set {name:?} of {inode} to {number} {expects:?}: {set:?}"));
        let was = self.model.borrow().was(inode, name, since);
        match set {
            Ok(()) => expect(was[1..].contains(&Some(number)), || format!("{name:?} of {inode} was not set: {was:?}")),
            Err(Error::Exists) => expect(was.iter().any(Option::is_some), || format!("{name:?} of {inode} is there")),
            Err(Error::NoXattr) => expect(was.contains(&None), || format!("{name:?} of {inode} is not there: {was:?}")),
            Err(_) => Ok(()),
        }
    }

    async fn remove(&self, who: &Credentials, inode: InodeNumber, name: &XattrName) -> Checked {
        let since = self.model.borrow_mut().begin();
        let removed = self.machine.remove_xattr(who, inode, name).await;
        self.process.note(|| format!("remove {name:?} of {inode}: {removed:?}"));
        let was = self.model.borrow().was(inode, name, since);
        match removed {
            Ok(()) => expect(was[1..].contains(&None), || format!("{name:?} of {inode} was not removed: {was:?}")),
            Err(Error::NoXattr) => expect(was.contains(&None), || format!("{name:?} of {inode} is not there: {was:?}")),
            Err(_) => Ok(()),
        }
    }
}
