//! A file that a client cuts while programs of another mount, which knows the size from before, read behind the cut and
//! write in front of it.
//!
//! The kernel of that mount learns of the cut by a READ that is answered short. It disregards such a reply if anything
//! has changed the inode since the READ was sent (`attr_version`), as the write beside it does, and then shows zeros up
//! to the size that it knows.

use super::{FILE_BYTES, Programs, WRITE_BYTES};
use crate::history::State;
use crate::kernel::{Call, Handle};
use crate::random::Random;

/// Steps of a round: open it three times, then make it long, look, cut it, read behind the cut.
const OPENS: u64 = 3;
const STEPS: u64 = OPENS + 4;

impl Programs {
    /// The next step.
    pub(super) fn cut(&mut self, random: &mut Random, state: &State) -> Vec<(usize, Call)> {
        let step = self.race.step;
        if step < OPENS {
            self.race.step += 1;
            let direct = step == 1 && random.one_in(2);
            return self.open_in_race(random, step, direct);
        }
        self.race.open.retain(|(_, handle)| state.opened(*handle).is_some());
        let [reader, writer, other] = self.race.open[..] else { return self.begin_again() };
        let size = state.size(other.1);
        let is_short = step == OPENS && size < FILE_BYTES;
        self.race.step = match step + 1 {
            _ if is_short => step,
            STEPS if random.one_in(4) => return self.begin_again(),
            STEPS => OPENS,
            next => next,
        };
        match step - OPENS {
            0 => {
                let data = self.bytes(WRITE_BYTES / 2 + random.below(WRITE_BYTES / 2));
                vec![(other.0, Call::Pwrite { handle: other.1, offset: size, data })]
            }
            1 => vec![(reader.0, Call::Fstat { handle: reader.1 })],
            2 => {
                self.race.known = size;
                vec![(other.0, Call::Truncate { path: vec!["f0".to_owned()], size: 1 + random.below(size.max(2) / 2) })]
            }
            _ => self.read_behind(random, size, (reader, writer)),
        }
    }

    /// One program reads what was cut off, another one writes what was left.
    fn read_behind(
        &mut self,
        random: &mut Random,
        size: u64,
        (reader, writer): ((usize, Handle), (usize, Handle)),
    ) -> Vec<(usize, Call)> {
        let (known, data) = (self.race.known.max(size), self.bytes(1 + random.below(size.max(1))));
        let written = data.len() as u64;
        let offset = written + random.below(known.saturating_sub(written).max(1));
        let read = Call::Pread { handle: reader.1, offset, size: known.saturating_sub(offset).max(1) };
        let write = Call::Pwrite { handle: writer.1, offset: 0, data };
        if written > size { vec![(reader.0, read)] } else { vec![(writer.0, write), (reader.0, read)] }
    }
}
