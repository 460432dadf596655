//! Objects that are written over, removed and made anew for as long as one likes, in a store that is nearly full. What
//! is read is checked, and in the end all of it, and the store.

use crate::{Args, BLOCK, Memory, On, Random, new_store};
use serde::Serialize;
use std::time::{Duration, Instant};
use weft_bench::{Explain, Outcome};
use weft_region::{Error, FileDevice, Keep, Kind, Object, Store, Versioned};

/// Bytes of objects, and of a write, at most.
const OBJECT_MAX: u64 = 4 << 20;
const WRITE_MAX: u64 = 256 << 10;
/// Objects that are removed for one that is to be written.
const OBJECTS_GIVEN_UP: u32 = 20;
/// Of this many operations one is followed by a sync.
const SYNC_EVERY: u64 = 64;
/// With less than this part of the space free it works ahead, in steps of such a part.
const AHEAD_PART: u64 = 32;
const STEP_PART: u64 = 128;

#[derive(Serialize)]
struct Report {
    on: &'static str,
    operation: &'static str,
    /// Of the space, how much data have, percent: as it was wished, and in the end.
    fill: u64,
    kept_fill: u64,
    written_bytes: u64,
    /// In the first and the last tenth of the time.
    first_mib_per_second: f64,
    last_mib_per_second: f64,
    /// The device's bytes for each that was written.
    write_amplification: f64,
    /// Bytes in use for each that objects have.
    space_amplification: f64,
    /// Pieces of the mapping for each object.
    pieces_per_object: f64,
    cleanings: u64,
}

enum One {
    Direct(Object),
    Versions(Versioned),
}

/// An object, and of each block the number of the write that it has.
struct Slot {
    one: One,
    blocks: Vec<u64>,
}

impl Slot {
    fn id(&self) -> u64 {
        match &self.one {
            One::Direct(object) => object.id(),
            One::Versions(object) => object.id(),
        }
    }
}

struct Churn {
    store: Store,
    on: On,
    slots: Vec<Slot>,
    random: Random,
    memory: Memory,
    /// Blocks that objects have in all, and may have.
    blocks: u64,
    blocks_max: u64,
    writes: u64,
    written: u64,
    cleanings: u64,
}

/// Runs for so long, and prints what it was like.
pub fn churn(args: &Args, fill: u64, time: Duration) -> Outcome {
    let on = args.on;
    if !matches!(on, On::Store | On::Versions) || !(1..=99).contains(&fill) {
        return Err("--on store or versions, --fill 1 to 99".to_owned());
    }
    let (device, store) = new_store(args, &args.place, 1024)?;
    let blocks_max = store.usage().total / BLOCK * fill / 100;
    let mut random = Random::default();
    let memory = Memory::new(OBJECT_MAX, &mut random)?;
    let mut churn = Churn {
        store,
        on,
        slots: Vec::new(),
        random,
        memory,
        blocks: 0,
        blocks_max,
        writes: 0,
        written: 0,
        cleanings: 0,
    };
    while churn.make()? {}
    churn.store.sync().explain("sync")?;
    let report = churn.run(&device, fill, time)?;
    churn.read_all()?;
    churn.store.close().explain("close")?;
    let findings = churn.store.check().explain("check")?;
    if !findings.is_clean() {
        return Err(format!("the store is not in order: {findings:?}"));
    }
    println!("{}", serde_json::to_string(&report).explain("JSON")?);
    Ok(())
}

impl Churn {
    fn run(&mut self, device: &FileDevice, fill: u64, time: Duration) -> Outcome<Report> {
        let (begun, device_before, before) = (Instant::now(), device.operations().written_bytes, self.written);
        let (mut first, mut last, mut operations) = (None, None, 0u64);
        while begun.elapsed() < time {
            self.step()?;
            operations += 1;
            if operations.is_multiple_of(SYNC_EVERY) {
                self.store.sync().explain("sync")?;
                self.work_ahead()?;
            }
            let elapsed = begun.elapsed();
            if first.is_none() && elapsed >= time / 10 {
                first = Some((self.written - before) as f64 / elapsed.as_secs_f64());
            }
            if last.is_none() && elapsed >= time / 10 * 9 {
                last = Some((self.written, Instant::now()));
            }
        }
        let (then, since) = last.unwrap_or((before, begun));
        let usage = self.store.usage();
        let findings = self.store.check().explain("check")?;
        let written = (self.written - before).max(1);
        Ok(Report {
            on: self.on.name(),
            operation: "churn",
            fill,
            kept_fill: self.blocks * BLOCK * 100 / usage.total.max(1),
            written_bytes: written,
            first_mib_per_second: first.unwrap_or_default() / f64::from(1 << 20),
            last_mib_per_second: (self.written - then) as f64 / since.elapsed().as_secs_f64() / f64::from(1 << 20),
            write_amplification: (device.operations().written_bytes - device_before) as f64 / written as f64,
            space_amplification: (usage.total - usage.free) as f64 / (self.blocks * BLOCK) as f64,
            pieces_per_object: findings.pieces as f64 / self.slots.len().max(1) as f64,
            cleanings: self.cleanings,
        })
    }

    /// Cleans a little while there is some room.
    fn work_ahead(&self) -> Outcome {
        let usage = self.store.usage();
        if self.on == On::Versions && usage.free < usage.total / AHEAD_PART {
            self.store.clean_some(&Keep::default(), usage.total / STEP_PART).explain("clean")?;
        }
        Ok(())
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next() % end.max(1)
    }

    fn any(&mut self) -> Outcome<usize> {
        let count = self.slots.len() as u64;
        usize::try_from(self.below(count)).explain("a number")
    }

    fn step(&mut self) -> Outcome {
        let number = self.any()?;
        match self.below(10) {
            0 | 1 => {
                let slot = self.slots.swap_remove(number);
                self.blocks -= slot.blocks.len() as u64;
                self.store.remove(slot.id()).explain("remove")?;
                while self.make()? {}
                Ok(())
            }
            2 => self.read(number),
            _ => {
                let count = self.slots.get(number).map_or(0, |slot| slot.blocks.len() as u64);
                let first = self.below(count);
                let blocks = (self.below(WRITE_MAX / BLOCK) + 1).min(count - first);
                self.write(number, first, blocks)
            }
        }
    }

    /// Makes an object, if there is to be one more, and writes all of it.
    fn make(&mut self) -> Outcome<bool> {
        let room = self.blocks_max.saturating_sub(self.blocks);
        if room < 16 {
            return Ok(false);
        }
        let blocks = (16 + self.below(OBJECT_MAX / BLOCK - 16)).min(room);
        let one = self.with_room(None, |store, on| match on {
            On::Versions => store.create_versioned().map(One::Versions),
            _ => store.create(Kind::Direct).map(One::Direct),
        })?;
        self.slots.push(Slot { one, blocks: vec![0; usize::try_from(blocks).explain("blocks")?] });
        self.blocks += blocks;
        self.write(self.slots.len() - 1, 0, blocks)?;
        Ok(true)
    }

    /// Each block begins with the number of its object's slot's write, and its own.
    fn write(&mut self, number: usize, first: u64, count: u64) -> Outcome {
        self.writes += 1;
        let (write, bytes) = (self.writes, usize::try_from(count * BLOCK).explain("bytes")?);
        let mut memory = std::mem::replace(&mut self.memory, Memory::new(0, &mut Random::default())?);
        let from = memory.bytes().get_mut(..bytes).ok_or("memory")?;
        for (block, place) in (first..).zip(from.chunks_mut(usize::try_from(BLOCK).explain("a block")?)) {
            stamp(place, block, write);
        }
        let one = self.slots.get(number).map(|slot| match &slot.one {
            One::Direct(object) => One::Direct(object.clone()),
            One::Versions(object) => One::Versions(object.clone()),
        });
        let one = one.ok_or("a slot")?;
        let id = self.slots.get(number).map(Slot::id);
        self.with_room(id, |_, _| match &one {
            One::Direct(object) => object.write(first * BLOCK, from),
            One::Versions(object) => object.write(first * BLOCK, from).map(drop),
        })?;
        self.memory = memory;
        self.written += count * BLOCK;
        // Others may have gone meanwhile.
        let places = self.slots.iter_mut().find(|slot| Some(slot.id()) == id).map(|slot| slot.blocks.iter_mut());
        let at = usize::try_from(first).explain("a block")?;
        places
            .into_iter()
            .flatten()
            .skip(at)
            .take(usize::try_from(count).explain("blocks")?)
            .for_each(|at| *at = write);
        Ok(())
    }

    /// Again after cleaning, where there is no room. What versions have beside their data may leave none even then:
    /// other objects go, and there are fewer from then on.
    fn with_room<T>(
        &mut self,
        keep: Option<u64>,
        mut work: impl FnMut(&Store, On) -> weft_region::Result<T>,
    ) -> Outcome<T> {
        let mut done = work(&self.store, self.on);
        let mut gone = 0;
        while matches!(done, Err(Error::NoSpace | Error::RingFull(_))) && gone <= OBJECTS_GIVEN_UP {
            if gone > 0 {
                self.give_one_up(keep)?;
            }
            gone += 1;
            self.cleanings += 1;
            self.store.clean(&Keep::default()).and_then(|_| self.store.sync()).explain("clean")?;
            done = work(&self.store, self.on);
        }
        done.explain("write")
    }

    /// Removes an object, but not the one that is named.
    fn give_one_up(&mut self, keep: Option<u64>) -> Outcome {
        let others = self.slots.iter().position(|slot| Some(slot.id()) != keep).ok_or("there is no other object")?;
        let slot = self.slots.swap_remove(others);
        self.store.remove(slot.id()).explain("remove")?;
        self.blocks -= slot.blocks.len() as u64;
        self.blocks_max = self.blocks;
        Ok(())
    }

    /// Reads an object, and compares it.
    fn read(&mut self, number: usize) -> Outcome {
        let Some(slot) = self.slots.get(number) else { return Ok(()) };
        let bytes = self.memory.bytes().get_mut(..slot.blocks.len() * 4096).ok_or("memory")?;
        let count = match &slot.one {
            One::Direct(object) => object.read(0, bytes),
            One::Versions(object) => object.read(0, bytes),
        };
        let whole = count.explain("read")? == bytes.len();
        let mut expected = [0; 16];
        for ((block, write), found) in (0u64..).zip(&slot.blocks).zip(bytes.chunks(4096)) {
            stamp(&mut expected, block, *write);
            if !whole || !found.starts_with(&expected) {
                return Err(format!("block {block} of an object is not that of write {write}"));
            }
        }
        Ok(())
    }

    fn read_all(&mut self) -> Outcome {
        (0..self.slots.len()).try_for_each(|number| self.read(number))
    }
}

fn stamp(place: &mut [u8], block: u64, write: u64) {
    for (place, number) in place.chunks_exact_mut(8).zip([block, write]) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
