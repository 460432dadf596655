//! Receiving.
//!
//! An object without versions is there when its first block is, which is written behind a sync of all others; one sync
//! is for the first blocks of many.

use super::frames::{Frame, Reader, Whole};
use super::gone::Gone;
use super::{Fed, ReceiveOptions};
use crate::error::{Error, Result};
use crate::ids::Identity;
use crate::object::{ObjectKind, first_block};
use crate::store::{Kind, Store};
use crate::versions::feed::{Incoming, Origin};
use crate::{BLOCK, BLOCK_BYTES};
use std::io::Read;

/// Objects whose first blocks wait for a sync.
pub(super) const UNSETTLED_MAX: usize = 1024;

impl Store {
    /// Receives objects that another store sends. Nobody should make objects meanwhile, nor write to those that come.
    /// `progress` is told how many bytes came. All that came is safe when this returns, also with an error.
    ///
    /// An error: the stream is not whole; something else is there under an identifier; it does not go on from what is
    /// there; or there is no room. What was received before is there, as whole versions and whole objects, and of what
    /// did not come nothing is removed.
    pub fn receive(&self, options: ReceiveOptions, from: &mut dyn Read, progress: &mut dyn FnMut(u64)) -> Result<Fed> {
        let reader = Reader::new(from)?;
        if options.remove && !reader.is_whole {
            return Err(Error::Setting(
                "the stream has some objects of a store: it does not tell which are gone".into(),
            ));
        }
        let gone = if reader.is_whole { Some(Gone::among(self.list()?)) } else { None };
        let (fed, unsettled, now) = (Fed::default(), Vec::new(), Now::Nothing);
        let mut receiver = Receiver { store: self, options, reader, fed, gone, unsettled, now, progress };
        let received = receiver.all();
        let fed = Fed { bytes: receiver.reader.bytes, ..receiver.fed };
        let settled = receiver.settle().and_then(|()| self.sync());
        received.and(settled)?;
        Ok(fed)
    }
}

struct Receiver<'a> {
    store: &'a Store,
    options: ReceiveOptions,
    reader: Reader<'a>,
    fed: Fed,
    /// Of the stream of a whole store.
    gone: Option<Gone>,
    /// First blocks, and where they are to be.
    unsettled: Vec<(u64, Vec<u8>)>,
    now: Now,
    progress: &'a mut dyn FnMut(u64),
}

/// What is coming.
enum Now {
    Nothing,
    Whole(Coming),
    Versions(Incoming),
}

/// An object without versions.
struct Coming {
    id: u64,
    /// Where its region is.
    address: u64,
    /// Its first block; `None`: it has not come yet.
    first: Option<Vec<u8>>,
    has_super_block: bool,
}

impl Receiver<'_> {
    fn all(&mut self) -> Result<()> {
        loop {
            let frame = self.reader.read()?;
            (self.progress)(self.reader.bytes);
            if matches!(frame, Frame::End(_)) {
                return match self.now {
                    Now::Nothing => self.end(),
                    _ => Err(self.out_of_place()),
                };
            }
            self.frame(frame)?;
        }
    }

    /// All has come.
    fn end(&mut self) -> Result<()> {
        let Some((gone, count)) = self.gone.take().map(Gone::end) else { return Ok(()) };
        self.fed.gone = Some(count);
        if self.options.remove {
            // What came is safe before anything goes.
            self.settle()?;
            self.store.sync()?;
            gone.into_iter().try_for_each(|id| self.store.remove(id).map(|_| ()))?;
        }
        Ok(())
    }

    /// An object comes.
    fn comes(&mut self, id: u64) -> Result<()> {
        let is_in_order = self.gone.as_mut().is_none_or(|gone| gone.comes(id));
        if is_in_order { Ok(()) } else { Err(self.out_of_place()) }
    }

    /// The sender has another object than the one that is there, which is gone.
    fn note_replaced(&mut self) {
        if let Some(gone) = &mut self.gone {
            gone.note_replaced();
        }
    }

    fn out_of_place(&self) -> Error {
        self.reader.wrong("it has no place here")
    }

    fn frame(&mut self, frame: Frame) -> Result<()> {
        match (frame, &mut self.now) {
            (Frame::Object(whole), Now::Nothing) => self.now = Now::Whole(self.begin(&whole)?),
            (Frame::Versions(id, origin), Now::Nothing) => self.now = Now::Versions(self.begin_versions(id, &origin)?),
            (Frame::Bytes(offset, bytes), Now::Whole(coming)) => match coming.take(self.store, offset, bytes) {
                Err(Error::Beyond) => return Err(self.reader.wrong("its bytes are not in the region of an object")),
                done => done?,
            },
            (Frame::Pieces(extents, data), Now::Versions(incoming)) => incoming.pieces(&extents, &data)?,
            (Frame::Version(stat), Now::Versions(incoming)) => self.fed.versions += u64::from(incoming.version(stat)?),
            (Frame::Name(name, version), Now::Versions(incoming)) => incoming.name(&name, version)?,
            (Frame::HasName(name, version), Now::Versions(incoming)) => incoming.has_name(&name, version)?,
            (Frame::Done, _) => return self.done(),
            _ => return Err(self.out_of_place()),
        }
        Ok(())
    }

    fn done(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.now, Now::Nothing) {
            Now::Nothing => return Err(self.out_of_place()),
            Now::Versions(incoming) => incoming.done()?,
            Now::Whole(coming) => {
                let first = coming.first.ok_or_else(|| self.reader.wrong("the first block did not come"))?;
                self.unsettled.push((coming.address, first));
                if self.unsettled.len() >= UNSETTLED_MAX {
                    self.settle()?;
                }
            }
        }
        self.fed.objects += 1;
        Ok(())
    }

    /// Objects that came wholly are there from now on.
    fn settle(&mut self) -> Result<()> {
        if self.unsettled.is_empty() {
            return Ok(());
        }
        self.store.sync()?;
        for (address, first) in self.unsettled.drain(..) {
            self.store.layer().write(address, &first)?;
        }
        Ok(())
    }

    fn begin(&mut self, whole: &Whole) -> Result<Coming> {
        let Whole { id, about } = *whole;
        self.comes(id)?;
        let is_same = match (self.store.kind_of(id)?, about) {
            (None, _) => true,
            (Some(ObjectKind::Direct), Some((generation, owner, stat))) => {
                let found = self.store.object(id, Kind::Direct)?;
                let made = found.stat().map(|stat| stat.made);
                (found.generation(), found.owner(), made) == (generation, owner, Some(stat.made))
            }
            (Some(ObjectKind::Plain), None) => self.options.replace_plain || self.options.remove,
            _ => false,
        };
        if !is_same && self.options.remove {
            self.note_replaced();
        } else if !is_same {
            let which = if about.is_some() { "another one" } else { "nothing says whether it is the same one" };
            return Err(Error::OtherObject(format!("object {id} is there already: {which}")));
        }
        if about.is_some_and(|(_, _, stat)| stat.size > self.store.region_bytes() - BLOCK) {
            return Err(too_large(id));
        }
        if about.is_none() {
            self.store.note_plain()?;
        }
        self.store.remove(id)?;
        let generation = about.map_or(0, |(generation, ..)| generation);
        let address = self.store.reserve(id, generation)?;
        let first = about.map(|(_, owner, stat)| first_block(Identity { id, generation }, owner, stat));
        Ok(Coming { id, address, first, has_super_block: about.is_some() })
    }

    fn begin_versions(&mut self, id: u64, origin: &Origin) -> Result<Incoming> {
        self.comes(id)?;
        let versions = self.store.versions();
        let is_there = match self.store.kind_of(id)? {
            None => false,
            Some(ObjectKind::Versioned) if !self.options.remove || versions.lineage(id)? == origin.lineage => true,
            Some(_) if self.options.remove && origin.is_from_the_first() => {
                self.store.remove(id)?;
                self.note_replaced();
                false
            }
            Some(_) => {
                let text = format!("object {id} is there already: another one than the stream has the versions of");
                return Err(Error::OtherObject(text));
            }
        };
        if !is_there {
            self.store.reserve(id, 0)?;
            versions.create_copy(id, origin)?;
        }
        versions.receive(id, origin)
    }
}

fn too_large(id: u64) -> Error {
    Error::OtherObject(format!("object {id} is larger than a region: format with larger ones"))
}

impl Coming {
    fn take(&mut self, store: &Store, offset: u64, mut bytes: Vec<u8>) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Error::Beyond)?;
        let is_whole = offset.is_multiple_of(BLOCK) && bytes.len().is_multiple_of(BLOCK_BYTES) && !bytes.is_empty();
        if !is_whole || offset == 0 && self.has_super_block {
            return Err(Error::Beyond);
        }
        if end > store.region_bytes() {
            return Err(too_large(self.id));
        }
        if offset > 0 {
            return store.layer().write(self.address + offset, &bytes);
        }
        let rest = bytes.split_off(BLOCK_BYTES);
        self.first = Some(bytes);
        if rest.is_empty() { Ok(()) } else { store.layer().write(self.address + BLOCK, &rest) }
    }
}
