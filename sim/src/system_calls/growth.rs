//! A file that a client makes longer while programs of another mount, which have not looked at it since, write and read
//! what is new to them.
//!
//! To the kernel of that mount its own write makes the file longer, so that it disregards all sizes that it is told
//! until the write has ended (`FUSE_I_SIZE_UNSTABLE`); the read beside it has to find the other client's bytes all the
//! same.

use super::{CLIENTS, FILE_BYTES, NATIVE, Programs, WRITE_BYTES, file_flags, pick};
use crate::history::State;
use crate::kernel::requests::{Access, OpenFlags};
use crate::kernel::{Call, Handle};
use crate::random::Random;

/// Steps of a round: open it three times, then look, make it longer, use what is new.
const OPENS: u64 = 3;
const STEPS: u64 = OPENS + 3;

impl Programs {
    /// The next step.
    pub(super) fn grow(&mut self, random: &mut Random, state: &State) -> Vec<(usize, Call)> {
        let step = self.race.step;
        self.race.step = if step + 1 == STEPS { OPENS } else { step + 1 };
        if step < OPENS {
            return self.open_in_race(random, step, false);
        }
        self.race.open.retain(|(_, handle)| state.opened(*handle).is_some());
        let [reader, writer, other] = self.race.open[..] else { return self.begin_again() };
        let size = state.size(other.1);
        if size > FILE_BYTES {
            return self.begin_again();
        }
        match step - OPENS {
            0 => vec![(reader.0, Call::Pread { handle: reader.1, offset: 0, size: size + 1 })],
            1 => {
                self.race.known = size;
                let data = self.bytes(WRITE_BYTES / 2 + random.below(WRITE_BYTES));
                vec![(other.0, Call::Pwrite { handle: other.1, offset: size, data })]
            }
            _ => self.use_new(random, size, (reader, writer)),
        }
    }

    /// The first two programs to open the file are of one mount, the third one is another client's.
    pub(super) fn open_in_race(&mut self, random: &mut Random, step: u64, direct: bool) -> Vec<(usize, Call)> {
        if step == 0 {
            self.race.client = pick(random, NATIVE);
        }
        let client = match step {
            2 => (self.race.client + 1 + pick(random, CLIENTS - 1)) % CLIENTS,
            _ => self.race.client,
        };
        let handle = self.new_handle();
        self.race.open.push((client, handle));
        let flags = OpenFlags { create: true, direct, ..file_flags(Access::ReadWrite) };
        vec![(client, Call::Open { path: vec!["f0".to_owned()], flags, mode: 0o644, handle })]
    }

    /// One program writes what it does not know to be there, another one reads what follows.
    fn use_new(
        &mut self,
        random: &mut Random,
        size: u64,
        (reader, writer): ((usize, Handle), (usize, Handle)),
    ) -> Vec<(usize, Call)> {
        let known = self.race.known.min(size);
        let half = (size - known) / 2;
        if half == 0 {
            return vec![(reader.0, Call::Fstat { handle: reader.1 })];
        }
        let data = self.bytes(half);
        let offset = known + half + random.below(half);
        vec![
            (writer.0, Call::Pwrite { handle: writer.1, offset: known, data }),
            (reader.0, Call::Pread { handle: reader.1, offset, size: FILE_BYTES }),
        ]
    }

    /// Closes what is open, and cuts the file to nothing.
    pub(super) fn begin_again(&mut self) -> Vec<(usize, Call)> {
        self.race.step = 0;
        let client = self.race.client;
        let close = |(client, handle): (usize, Handle)| (client, Call::Close { handle });
        self.next.extend(self.race.open.drain(..).map(close));
        vec![(client, Call::Truncate { path: vec!["f0".to_owned()], size: 0 })]
    }

    pub(super) fn bytes(&mut self, count: u64) -> Vec<u8> {
        self.value = self.value % 250 + 1;
        vec![self.value; usize::try_from(count).expect("writes are short")]
    }
}
