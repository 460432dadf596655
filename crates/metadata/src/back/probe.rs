//! Where the dentry of a name stands: hashing, and what settles collisions.
//!
//! A name's dentry has the cookie that its hash gives, or, where another name has that, the next free one of the same
//! bucket (linear probing; the bucket's first cookie follows its last). It keeps its cookie until the name goes, since
//! open listings go on after it. So nothing moves up when a dentry of such a *run* is removed: a dentry that probes
//! have passed says so (`continued`), and leaves a *tombstone* when it is removed. A tombstone goes, and the mark of
//! the dentry before it, as soon as nothing follows it; the next name that passes by may take its place.
//!
//! Invariant: from the hash of a name up to its dentry each cookie has a dentry or a tombstone, and all are
//! `continued`; what is `continued` is followed by one or the other. So a directory without names has no tombstones.
//! Cost: one search of the store for a name without a collision. With the hash of [`Cookie::of`], there is a collision
//! among a million names of one directory with a probability of one in 18 million.
//! Not here: what becomes of the directory (`dentry.rs`).

use super::inode::{kind_code, kind_from};
use super::keys::Key;
use super::{Back, Dentry};
use crate::kv::KeyValue;
use weft_protocol::limits::NAME_BYTES_MAX;
use weft_protocol::{Cookie, InodeNumber, Name};

/// Bits of a record's flags that hold the kind.
const KIND_BITS: u8 = 0b11;
/// The kind of a tombstone.
const TOMBSTONE: u8 = 3;
/// The flag of a record that probes have passed.
const CONTINUED: u8 = 0b100;
/// Bytes before the name: inode number, flags.
const HEADER_BYTES: usize = 9;

/// What the store has at a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record<'a> {
    /// `None`: a tombstone.
    pub dentry: Option<Dentry>,
    /// Names whose hash is this cookie, or one before it, may stand after it.
    pub continued: bool,
    /// Empty in a tombstone.
    pub name: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads what [`Record::encode`] made.
    pub(super) fn decode(bytes: &'a [u8]) -> Self {
        Self::checked(bytes).expect("a record of the store is what was put in")
    }

    /// As [`Record::decode`]. `None`: these bytes are no record.
    pub(super) fn checked(bytes: &'a [u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (flags, name) = rest.split_first()?;
        let dentry = match flags & KIND_BITS {
            TOMBSTONE => None,
            kind => Some(Dentry { inode: InodeNumber::from_raw(u64::from_le_bytes(*number)), kind: kind_from(kind)? }),
        };
        Some(Self { dentry, continued: flags & CONTINUED != 0, name })
    }

    /// Hands the record's bytes to `put`.
    fn encode<R>(self, put: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = [0; HEADER_BYTES + NAME_BYTES_MAX];
        let (number, kind) = self.dentry.map_or((0, TOMBSTONE), |dentry| (dentry.inode.raw(), kind_code(dentry.kind)));
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8] = kind | if self.continued { CONTINUED } else { 0 };
        bytes[HEADER_BYTES..HEADER_BYTES + self.name.len()].copy_from_slice(self.name);
        put(&bytes[..HEADER_BYTES + self.name.len()])
    }
}

/// A dentry that was found.
#[derive(Clone, Copy)]
struct Place {
    cookie: Cookie,
    dentry: Dentry,
    continued: bool,
}

/// Where a probe ended.
enum Probe {
    Found(Place),
    /// The name is not there. `last`: the last cookie that was looked at; `tombstone`: the first one passed.
    Absent {
        last: Cookie,
        tombstone: Option<Cookie>,
    },
}

/// What a cookie is taken by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Free,
    Tombstone,
    Name { continued: bool },
}

/// What a probe sees at a cookie.
enum Seen {
    Name(Dentry, bool),
    Tombstone,
    Other { continued: bool },
}

impl<K: KeyValue> Back<K> {
    fn probe(&self, directory: InodeNumber, name: &Name) -> Probe {
        let mut cookie = (self.cookie_of)(name);
        let mut tombstone = None;
        loop {
            let seen = self.store.get(&Key::dentry(directory, cookie), |bytes| match Record::decode(bytes) {
                Record { dentry: None, .. } => Seen::Tombstone,
                Record { dentry: Some(dentry), continued, name: at } if at == name.as_bytes() => {
                    Seen::Name(dentry, continued)
                }
                Record { continued, .. } => Seen::Other { continued },
            });
            match seen {
                Some(Seen::Name(dentry, continued)) => return Probe::Found(Place { cookie, dentry, continued }),
                Some(Seen::Tombstone) => tombstone = tombstone.or(Some(cookie)),
                Some(Seen::Other { continued: true }) => {}
                Some(Seen::Other { continued: false }) | None => return Probe::Absent { last: cookie, tombstone },
            }
            cookie = cookie.next_in_bucket();
        }
    }

    fn place(&self, directory: InodeNumber, name: &Name) -> Option<Place> {
        match self.probe(directory, name) {
            Probe::Found(place) => Some(place),
            Probe::Absent { .. } => None,
        }
    }

    /// The dentry of a name, if it is there. No permission is asked.
    pub fn dentry(&self, directory: InodeNumber, name: &Name) -> Option<Dentry> {
        self.place(directory, name).map(|place| place.dentry)
    }

    /// Stores the dentry of a name that is not there. Returns `false` if it is.
    pub(super) fn insert_dentry(&mut self, directory: InodeNumber, name: &Name, dentry: Dentry) -> bool {
        let record = Record { dentry: Some(dentry), continued: false, name: name.as_bytes() };
        let key = Key::dentry(directory, (self.cookie_of)(name));
        // Without a look for the name first: most names that may be made are not there, and do not collide.
        if record.encode(|bytes| self.store.insert(&key, bytes)) {
            return true;
        }
        let Probe::Absent { last, tombstone } = self.probe(directory, name) else { return false };
        match tombstone {
            Some(cookie) => self.put_record(directory, cookie, Record { continued: true, ..record }),
            None => self.append_to_run(directory, last, record),
        }
        true
    }

    /// Stores a record at the first cookie from `cookie` on that no other name has, and marks those before it.
    fn append_to_run(&mut self, directory: InodeNumber, mut cookie: Cookie, record: Record<'_>) {
        loop {
            match self.slot(directory, cookie) {
                Slot::Free => return self.put_record(directory, cookie, record),
                Slot::Tombstone => {
                    return self.put_record(directory, cookie, Record { continued: true, ..record });
                }
                Slot::Name { continued: false } => self.mark(directory, cookie, true),
                Slot::Name { continued: true } => {}
            }
            cookie = cookie.next_in_bucket();
        }
    }

    /// Gives a name that is there another inode. Its cookie stays.
    pub(super) fn replace_dentry(&mut self, directory: InodeNumber, name: &Name, dentry: Dentry) -> Dentry {
        let place = self.place(directory, name).expect("a replaced name is there");
        let record = Record { dentry: Some(dentry), continued: place.continued, name: name.as_bytes() };
        self.put_record(directory, place.cookie, record);
        place.dentry
    }

    /// Removes the dentry of a name. Returns it, if it was there.
    pub(super) fn remove_dentry(&mut self, directory: InodeNumber, name: &Name) -> Option<Dentry> {
        let Place { cookie, dentry, continued } = self.place(directory, name)?;
        if continued {
            self.put_record(directory, cookie, Record { dentry: None, continued: true, name: &[] });
        } else {
            self.store.delete(&Key::dentry(directory, cookie));
            if self.continued > 0 {
                self.shorten_run(directory, cookie);
            }
        }
        Some(dentry)
    }

    /// Nothing is at `end` any more: tombstones right before it go, and what is before them is not continued.
    fn shorten_run(&mut self, directory: InodeNumber, end: Cookie) {
        let mut cookie = end.previous_in_bucket();
        while self.slot(directory, cookie) == Slot::Tombstone {
            self.store.delete(&Key::dentry(directory, cookie));
            self.continued -= 1;
            cookie = cookie.previous_in_bucket();
        }
        if self.slot(directory, cookie) == (Slot::Name { continued: true }) {
            self.mark(directory, cookie, false);
        }
    }

    fn slot(&self, directory: InodeNumber, cookie: Cookie) -> Slot {
        let slot = self.store.get(&Key::dentry(directory, cookie), |bytes| match Record::decode(bytes) {
            Record { dentry: None, .. } => Slot::Tombstone,
            Record { continued, .. } => Slot::Name { continued },
        });
        slot.unwrap_or(Slot::Free)
    }

    /// Says of a dentry whether it is continued, which it was not, or was.
    fn mark(&mut self, directory: InodeNumber, cookie: Cookie, continued: bool) {
        let key = Key::dentry(directory, cookie);
        let marked = |bytes: &[u8]| Record { continued, ..Record::decode(bytes) }.encode(<[u8]>::to_vec);
        let record = self.store.get(&key, marked).expect("a dentry that is marked is there");
        self.store.put(&key, &record);
        if continued { self.continued += 1 } else { self.continued -= 1 }
    }

    fn put_record(&mut self, directory: InodeNumber, cookie: Cookie, record: Record<'_>) {
        record.encode(|bytes| self.store.put(&Key::dentry(directory, cookie), bytes));
    }
}
