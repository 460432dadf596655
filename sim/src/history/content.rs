//! What a file may hold, where writes may have been lost.
//!
//! Bytes that nothing can take away are *kept*. Behind them comes a log of what was done since: writes that their
//! client has not flushed, which its end or an error may take away; and what is lost, or has failed, of which each
//! byte may be there or not. Once nothing of a loss is on its way (it has *settled*), what somebody sees of it is so
//! for everybody.
//!
//! Looser than the truth: each byte, and the size, is lost or not by itself.

/// What was done to a file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Deed {
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// It failed, and may have landed, or land, wherever the file ends then: never before `from`.
    Append {
        from: u64,
        bytes: Vec<u8>,
    },
    Cut {
        size: u64,
    },
    /// The size was seen.
    Size {
        size: u64,
    },
    /// Bytes from this place on may be anything, and the size is in this range.
    Blur {
        from: u64,
        least: u64,
        most: u64,
    },
}

/// Whether it may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fate {
    /// Nothing takes it away.
    Kept,
    /// Its client has not flushed it.
    Unflushed,
    /// It may be there or not. The number of its loss; 0: all of it has settled.
    Lost(u64),
    /// It failed, and may still land, in whole or in part, over what was written since.
    Floats(u64),
}

impl Fate {
    fn is_certain(self) -> bool {
        matches!(self, Fate::Kept | Fate::Unflushed)
    }

    /// It may still come or go.
    fn is_settling(self) -> bool {
        matches!(self, Fate::Lost(1..) | Fate::Floats(_))
    }
}

/// Whose a change is that no client flushes any more.
const NOBODY: usize = usize::MAX;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Change {
    /// Whose flush keeps it.
    client: usize,
    deed: Deed,
    fate: Fate,
}

/// What a byte may be.
struct Possible {
    values: Vec<u8>,
    /// Any value.
    any: bool,
    /// It depends on what a client has not flushed.
    is_unflushed: bool,
}

impl Possible {
    fn has(&self, value: u8) -> bool {
        self.any || self.values.contains(&value)
    }

    fn is_one(&self) -> bool {
        !self.any && self.values.iter().all(|value| Some(value) == self.values.first())
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Content {
    kept: Vec<u8>,
    log: Vec<Change>,
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("files are short")
}

impl Content {
    /// The smallest and the largest size that it may have.
    pub fn sizes(&self) -> (u64, u64) {
        let size = self.kept.len() as u64;
        let floating = self.log.iter().filter(|change| matches!(change.fate, Fate::Floats(_)));
        let is_in_order =
            |change: &&Change| !matches!(change, Change { deed: Deed::Append { .. }, fate: Fate::Floats(_), .. });
        self.log.iter().filter(is_in_order).chain(floating).fold(
            (size, size),
            |(least, most), Change { deed, fate, .. }| {
                let is_lost = !fate.is_certain();
                match *deed {
                    // Wherever it lands, the file ends there.
                    Deed::Append { ref bytes, .. } => (least, most + bytes.len() as u64),
                    Deed::Write { offset, ref bytes } => {
                        let end = offset + bytes.len() as u64;
                        (if is_lost { least } else { least.max(end) }, most.max(end))
                    }
                    Deed::Cut { size } if is_lost => (least.min(size), most.max(size)),
                    Deed::Cut { size } | Deed::Size { size } => (size, size),
                    Deed::Blur { most: longest, .. } if is_lost => (least, most.max(longest)),
                    Deed::Blur { least, most, .. } => (least, most),
                }
            },
        )
    }

    /// The size, if it is known.
    pub fn size(&self) -> Option<u64> {
        let (least, most) = self.sizes();
        (least == most).then_some(least)
    }

    /// Whether a loss may still become larger.
    fn is_settling(&self) -> bool {
        self.log.iter().any(|change| change.fate.is_settling())
    }

    /// Whether anything may be missing.
    pub fn has_losses(&self) -> bool {
        self.log.iter().any(|change| !change.fate.is_certain())
    }

    fn byte(&self, place: u64) -> Possible {
        let mut possible = Possible { values: Vec::new(), any: false, is_unflushed: false };
        let floating = self.log.iter().filter(|change| matches!(change.fate, Fate::Floats(_)));
        for Change { deed, fate, .. } in floating.chain(self.log.iter().rev()) {
            let value = match deed {
                Deed::Append { from, bytes } => {
                    if place >= *from {
                        possible.values.extend_from_slice(bytes);
                    }
                    None
                }
                Deed::Write { offset, bytes } => {
                    let at = place.checked_sub(*offset).and_then(|at| bytes.get(index(at)));
                    at.copied()
                }
                Deed::Cut { size } => (place >= *size).then_some(0),
                // What was behind it is gone.
                Deed::Size { size } => (place >= *size).then_some(0),
                Deed::Blur { from, .. } => {
                    possible.any |= place >= *from;
                    possible.is_unflushed |= place >= *from && *fate == Fate::Unflushed;
                    None
                }
            };
            if let Some(value) = value {
                possible.values.push(value);
                possible.is_unflushed |= *fate == Fate::Unflushed;
                if fate.is_certain() {
                    return possible;
                }
            }
        }
        possible.values.push(self.kept.get(index(place)).copied().unwrap_or(0));
        possible
    }

    fn add(&mut self, client: usize, deed: Deed, fate: Fate) {
        self.log.push(Change { client, deed, fate });
        self.tidy();
    }

    /// A client has written. `kept`: it cannot be lost any more.
    pub fn write(&mut self, client: usize, offset: u64, bytes: &[u8], kept: bool) {
        let fate = if kept { Fate::Kept } else { Fate::Unflushed };
        if !bytes.is_empty() {
            self.add(client, Deed::Write { offset, bytes: bytes.to_vec() }, fate);
        }
    }

    /// A client has appended.
    pub fn append(&mut self, client: usize, bytes: &[u8], kept: bool) {
        match self.sizes() {
            (least, most) if least == most => self.write(client, least, bytes, kept),
            (least, most) => {
                let added = bytes.len() as u64;
                let fate = if kept { Fate::Kept } else { Fate::Unflushed };
                self.add(client, Deed::Blur { from: least, least: least + added, most: most + added }, fate);
            }
        }
    }

    /// A client's write has failed, or may never have been made. `None`: an append.
    pub fn fail_write(&mut self, offset: Option<u64>, bytes: &[u8], loss: u64) {
        let bytes = bytes.to_vec();
        let deed = match offset {
            Some(offset) => Deed::Write { offset, bytes },
            None => Deed::Append { from: self.sizes().0, bytes },
        };
        self.add(NOBODY, deed, Fate::Floats(loss));
    }

    /// The file has this size now.
    pub fn cut(&mut self, size: u64) {
        self.appends_may_land_from(size);
        if self.log.is_empty() {
            return self.kept.resize(index(size), 0);
        }
        self.add(NOBODY, Deed::Cut { size }, Fate::Kept);
    }

    /// A cut has failed, or may never have been made.
    pub fn fail_cut(&mut self, size: u64, loss: u64) {
        self.appends_may_land_from(size);
        self.add(NOBODY, Deed::Cut { size }, Fate::Floats(loss));
    }

    /// The file may end here at some time: appends that may still land may do so there.
    fn appends_may_land_from(&mut self, size: u64) {
        for change in self.log.iter_mut().filter(|change| matches!(change.fate, Fate::Floats(_))) {
            if let Deed::Append { from, .. } = &mut change.deed {
                *from = size.min(*from);
            }
        }
    }

    /// A client has flushed. `all`: nobody was told of a loss, so there was none.
    pub fn flush(&mut self, client: usize, all: bool) {
        for change in self.log.iter_mut().filter(|change| change.client == client) {
            if change.fate == Fate::Unflushed || all && matches!(change.fate, Fate::Lost(_)) {
                change.fate = Fate::Kept;
            }
        }
        self.tidy();
    }

    /// A program of the client was told of an error: a later flush says nothing of what was lost before.
    pub fn told(&mut self, client: usize) {
        for change in self.log.iter_mut().filter(|change| change.client == client && !change.fate.is_certain()) {
            change.client = NOBODY;
        }
    }

    /// What a client has not flushed may be lost. Returns whether there is such.
    pub fn lose(&mut self, client: usize, loss: u64) -> bool {
        let unflushed = |change: &&mut Change| change.client == client && change.fate == Fate::Unflushed;
        let mut any = false;
        for change in self.log.iter_mut().filter(unflushed) {
            change.fate = Fate::Lost(loss);
            any = true;
        }
        if any {
            self.appends_may_land_from(self.sizes().0);
        }
        any
    }

    /// Nothing of these losses is on its way any more.
    pub fn settle(&mut self, is_settled: impl Fn(u64) -> bool) {
        for change in &mut self.log {
            if matches!(change.fate, Fate::Lost(number) if is_settled(number)) {
                change.fate = Fate::Lost(0);
            }
        }
        // What has landed may be over all that came since.
        let landed = |change: &mut Change| matches!(change.fate, Fate::Floats(number) if is_settled(number));
        let landed: Vec<Change> = self.log.extract_if(.., landed).collect();
        self.log.extend(landed.into_iter().map(|change| Change { fate: Fate::Lost(0), ..change }));
    }

    /// Somebody has seen this size.
    pub fn see_size(&mut self, told: u64) -> Result<(), String> {
        let (least, most) = self.sizes();
        if !(least..=most).contains(&told) {
            return Err(if least == most {
                format!("size {told}, not {least}")
            } else {
                format!("size {told}, not between {least} and {most}")
            });
        }
        let is_unflushed = self.log.iter().any(|change| match &change.deed {
            Deed::Write { offset, bytes } => change.fate == Fate::Unflushed && offset + bytes.len() as u64 >= told,
            Deed::Blur { most, .. } => change.fate == Fate::Unflushed && *most >= told,
            _ => false,
        });
        if least < most && !is_unflushed && !self.is_settling() {
            self.add(NOBODY, Deed::Size { size: told }, Fate::Kept);
        }
        Ok(())
    }

    /// Somebody has read at `offset`, as many as `wanted` bytes.
    pub fn see(&mut self, offset: u64, wanted: u64, told: &[u8]) -> Result<(), String> {
        let end = offset + told.len() as u64;
        let (least, most) = self.sizes();
        if (told.len() as u64) < wanted {
            let is_end = if told.is_empty() { least <= offset } else { (least..=most).contains(&end) };
            if !is_end {
                return Err(format!("{} bytes, but the size is {least} to {most}", told.len()));
            }
        }
        if end > most && !told.is_empty() {
            return Err(format!("{} bytes, but the size is {least} to {most}", told.len()));
        }
        let mut seen: Vec<Deed> = Vec::new();
        for (place, value) in (offset..).zip(told) {
            let possible = self.byte(place);
            if !possible.has(*value) {
                return Err(format!("byte {place} is {value}, not {:?}", possible.values));
            }
            if possible.is_one() || possible.is_unflushed {
                continue;
            }
            match seen.last_mut() {
                Some(Deed::Write { offset, bytes }) if *offset + bytes.len() as u64 == place => bytes.push(*value),
                _ => seen.push(Deed::Write { offset: place, bytes: vec![*value] }),
            }
        }
        if !told.is_empty() && (told.len() as u64) < wanted {
            self.see_size(end)?;
        }
        if !seen.is_empty() && !self.is_settling() {
            // What was seen behind the least size is there.
            self.log.extend(seen.into_iter().map(|deed| Change { client: NOBODY, deed, fate: Fate::Kept }));
            self.tidy();
        }
        Ok(())
    }

    /// Takes into what is kept what nothing can change any more.
    fn tidy(&mut self) {
        let is_kept = |change: &Change| change.fate == Fate::Kept && !matches!(change.deed, Deed::Blur { .. });
        let first = self.log.iter().position(|change| !is_kept(change)).unwrap_or(self.log.len());
        for change in self.log.drain(..first).collect::<Vec<_>>() {
            self.keep(change.deed);
        }
        let is_open = |change: &Change| change.fate == Fate::Unflushed || change.fate.is_settling();
        if self.log.is_empty() || self.log.iter().any(is_open) {
            return;
        }
        let Some(size) = self.size() else { return };
        let bytes: Vec<Possible> = (0..size).map(|place| self.byte(place)).collect();
        if bytes.iter().all(Possible::is_one) {
            self.kept = bytes.iter().filter_map(|possible| possible.values.first().copied()).collect();
            self.log.clear();
        }
    }

    fn keep(&mut self, deed: Deed) {
        match deed {
            Deed::Write { offset, bytes } => {
                let end = index(offset) + bytes.len();
                self.kept.resize(self.kept.len().max(end), 0);
                self.kept[index(offset)..end].copy_from_slice(&bytes);
            }
            Deed::Cut { size } | Deed::Size { size } => self.kept.resize(index(size), 0),
            Deed::Append { .. } | Deed::Blur { .. } => unreachable!("nothing is known of it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(1, 0, bytes, false);
        content
    }

    #[test]
    fn what_was_lost_is_there_or_not_until_somebody_has_seen_it() {
        let mut content = written(&[1, 1]);
        content.flush(1, false);
        content.write(1, 1, &[2, 2], false);
        assert!(content.lose(1, 7));
        let mut lost = content.clone();
        lost.settle(|loss| loss <= 7);
        lost.see_size(2).expect("it may be lost");
        lost.see(0, 4, &[1, 1]).expect("it may be lost");
        assert!(lost.see(0, 4, &[1, 2]).is_err(), "it was seen without");
        assert!(lost.see_size(3).is_err(), "it was seen without");
        content.see(0, 4, &[1, 2, 2]).expect("it may be there");
        content.see(0, 4, &[1, 1]).expect("it is on its way");
    }

    #[test]
    fn what_was_flushed_stays() {
        let mut content = written(&[1, 1]);
        content.flush(1, false);
        assert!(!content.lose(1, 1));
        assert!(content.see_size(0).is_err());
    }

    #[test]
    fn a_flush_that_tells_of_no_loss_had_none() {
        let mut content = written(&[1, 1]);
        content.lose(1, 1);
        content.flush(1, true);
        assert!(content.see_size(0).is_err());
        let mut content = written(&[1, 1]);
        content.lose(1, 1);
        content.told(1);
        content.flush(1, true);
        content.see_size(0).expect("a program was told");
    }

    #[test]
    fn what_failed_may_land_over_what_came_after() {
        let mut content = Content::default();
        content.fail_write(Some(0), &[3, 3], 1);
        content.write(2, 0, &[4, 4], true);
        content.see(0, 2, &[4, 3]).expect("a part of it has landed");
        content.see(0, 2, &[4, 4]).expect("and now it is not settled");
        content.settle(|loss| loss <= 1);
        content.see(0, 2, &[3, 4]).expect("it may have landed so");
        assert!(content.see(0, 2, &[4, 4]).is_err(), "and stays so");
    }

    #[test]
    fn an_append_behind_a_failed_one_is_seen_and_may_be_lost_still() {
        let mut content = Content::default();
        content.fail_write(None, &[3, 3], 1);
        content.append(1, &[4], false);
        content.settle(|loss| loss <= 1);
        content.see_size(1).expect("the first has not landed");
        content.see(0, 9, &[4]).expect("nor is it before");
        content.lose(1, 2);
        content.see_size(0).expect("its client has not flushed it");
    }

    #[test]
    fn an_append_that_failed_may_land_where_the_file_ends_by_then() {
        let mut content = Content::default();
        content.write(1, 0, &[1, 1, 1, 1], true);
        content.fail_write(None, &[3, 3], 1);
        content.cut(1);
        content.write(1, 1, &[2, 2], true);
        content.see(0, 9, &[1, 2, 2]).expect("it is on its way");
        let mut other = content.clone();
        assert!(content.see(0, 9, &[1, 2, 2, 0, 3, 3]).is_err(), "the file did not end there");
        content.see(0, 9, &[1, 2, 2, 3, 3]).expect("it has landed");
        other.settle(|loss| loss <= 1);
        other.see_size(3).expect("it was lost");
        assert!(other.see(0, 9, &[1, 2, 2, 3, 3]).is_err(), "and stays so");
    }

    #[test]
    fn a_cut_takes_what_may_be_lost_too() {
        let mut content = written(&[1, 1]);
        content.lose(1, 1);
        content.cut(1);
        assert_eq!(content.size(), Some(1));
        content.see(0, 2, &[0]).expect("it may be lost");
    }
}
