//! Sending.

use super::frames::{FRAME_DATA_MAX, Frame, Whole, Writer};
use super::{Fed, Have, SendOptions};
use crate::buffer::AlignedBuffer;
use crate::error::{Error, Result};
use crate::object::ObjectKind;
use crate::store::{Kind, Store};
use crate::versions::feed::Outgoing;
use crate::{BLOCK, as_index};
use std::collections::HashMap;
use std::io::Write;

impl Store {
    /// Sends objects: those that keep versions from where the receiver is, others as a whole. Objects that do not keep
    /// versions should not be written to meanwhile: what is sent of them is of no one moment. `progress` is told how
    /// many bytes went.
    ///
    /// An error: an object that is asked for is not there, what is read is damaged, or `into` fails.
    pub fn send(&self, options: &SendOptions, into: &mut dyn Write, progress: &mut dyn FnMut(u64)) -> Result<Fed> {
        let have = options.have.iter().map(|have| (have.id, *have)).collect();
        let (pieces, fed) = (options.pieces, Fed::default());
        let is_whole = options.objects.is_empty();
        let writer = Writer::new(into, self.layer().identity(), is_whole)?;
        let mut sender = Sender { store: self, writer, have, pieces, fed, progress };
        let ids = if is_whole { self.list()? } else { options.objects.clone() };
        for id in ids {
            match self.kind_of(id)? {
                None if is_whole => {}
                None => return Err(Error::Setting(format!("there is no object {id}"))),
                Some(nature) => sender.object(id, nature)?,
            }
        }
        sender.frame(&Frame::End(sender.writer.count()))?;
        let Sender { writer, fed, .. } = sender;
        let fed = Fed { bytes: writer.bytes, ..fed };
        into.flush().map_err(Error::Pipe)?;
        Ok(fed)
    }
}

struct Sender<'a> {
    store: &'a Store,
    writer: Writer<'a>,
    have: HashMap<u64, Have>,
    pieces: usize,
    fed: Fed,
    progress: &'a mut dyn FnMut(u64),
}

impl Sender<'_> {
    fn frame(&mut self, frame: &Frame) -> Result<()> {
        self.writer.write(frame)?;
        (self.progress)(self.writer.bytes);
        Ok(())
    }

    fn object(&mut self, id: u64, kind: ObjectKind) -> Result<()> {
        match kind {
            ObjectKind::Versioned => self.versions(id)?,
            ObjectKind::Direct => self.whole(id, Kind::Direct)?,
            ObjectKind::Plain => self.whole(id, Kind::Plain)?,
            ObjectKind::Damaged => return Err(Error::Damaged(format!("the super block of object {id}"))),
        }
        self.fed.objects += 1;
        self.frame(&Frame::Done)
    }

    fn versions(&mut self, id: u64) -> Result<()> {
        let had = self.have.get(&id).map(|have| (have.lineage, (have.version, have.block)));
        let (versions, pieces) = (self.store.versions(), self.pieces);
        versions.send(id, had, pieces, &mut |outgoing| {
            let frame = match outgoing {
                Outgoing::Begin(origin) => Frame::Versions(id, origin),
                Outgoing::Pieces(extents, data) => Frame::Pieces(extents.to_vec(), data.to_vec()),
                Outgoing::Version(stat) => {
                    self.fed.versions += 1;
                    Frame::Version(stat)
                }
                Outgoing::Name(name, version) => Frame::Name(name.to_owned(), version),
                Outgoing::HasName(name, version) => Frame::HasName(name.to_owned(), version),
            };
            self.frame(&frame)
        })
    }

    /// An object by what is mapped of it.
    fn whole(&mut self, id: u64, kind: Kind) -> Result<()> {
        let object = self.store.object(id, kind)?;
        let about = object.stat().map(|stat| (object.generation(), object.owner(), stat));
        self.frame(&Frame::Object(Whole { id, about }))?;
        let bytes = self.store.region_bytes();
        let region = id * bytes;
        // The receiver makes the super block.
        let first = region + if about.is_some() { BLOCK } else { 0 };
        let mut buffer = AlignedBuffer::new(FRAME_DATA_MAX);
        for range in self.store.layer().data_ranges(first..region + bytes)? {
            for start in range.clone().step_by(FRAME_DATA_MAX) {
                let count = as_index(range.end - start).min(FRAME_DATA_MAX);
                let some = buffer.get_mut(..count).ok_or(Error::Beyond)?;
                self.store.layer().read(start, some)?;
                self.frame(&Frame::Bytes(start - region, some.to_vec()))?;
            }
        }
        // What was read is another's if it is not there any more.
        if object.is_there() { Ok(()) } else { Err(Error::NoObject) }
    }
}
