//! Virtual time and the network between simulated processes.
//!
//! Faults that may be injected, and why the system must survive exactly these: a message is *lost* (a connection
//! broke; the
//! sender repeats it under the same slot and sequence, or the receiver asks again), *doubled* (it was repeated
//! although it had
//! arrived) or *late* (up to [`DELAY_MS_MAX`]; so a grant and a recall pass each other). Nothing is changed on its way:
//! checksums and the handshake are below this level.

use crate::choices::Choices;
use crate::script::Word;
use std::collections::BTreeMap;
use std::fmt;

/// Longest delay of a message, milliseconds.
const DELAY_MS_MAX: u64 = 40;
/// One message in so many is lost, and one in so many doubled, while faults are on.
const LOSS: u64 = 40;
const DOUBLING: u64 = 50;
/// How long a message is under way of which a script says nothing.
pub const USUAL_MS: u64 = 5;

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Lost,
    /// After so long.
    Comes(u64),
    /// A copy of it after the first time, too.
    Twice(u64, u64),
}

impl Word for Way {
    fn write(&self) -> String {
        match self {
            Self::Lost => "lost".to_owned(),
            Self::Comes(ms) => ms.to_string(),
            Self::Twice(copy_ms, ms) => format!("{copy_ms} {ms}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        if text == "lost" {
            return Some(Self::Lost);
        }
        match Vec::read(text)?[..] {
            [ms] => Some(Self::Comes(ms)),
            [copy_ms, ms] => Some(Self::Twice(copy_ms, ms)),
            _ => None,
        }
    }
}

/// Events in the order of their time; equal times in the order in which they were sent.
pub struct Network<M> {
    pub now_ms: u64,
    pub faults: bool,
    queue: BTreeMap<(u64, u64), M>,
    sent: u64,
    /// Messages lost and doubled.
    pub lost: u64,
    pub doubled: u64,
}

impl<M: Clone> Network<M> {
    pub fn new() -> Self {
        Self { now_ms: 1, faults: true, queue: BTreeMap::new(), sent: 0, lost: 0, doubled: 0 }
    }

    fn put(&mut self, at_ms: u64, message: M) {
        self.sent += 1;
        self.queue.insert((at_ms, self.sent), message);
    }

    /// Sends over the network: late, and now and then lost or doubled. `false`: lost.
    pub fn send(&mut self, choices: &mut Choices, route: fmt::Arguments<'_>, message: M) -> bool {
        let faults = self.faults;
        let way = choices.decide(route, Way::Comes(USUAL_MS), |random| {
            if faults && random.one_in(LOSS) {
                return Way::Lost;
            }
            let copy_ms = (faults && random.one_in(DOUBLING)).then(|| 1 + random.below(DELAY_MS_MAX));
            let ms = 1 + random.below(DELAY_MS_MAX);
            copy_ms.map_or(Way::Comes(ms), |copy_ms| Way::Twice(copy_ms, ms))
        });
        let ms = match way {
            Way::Lost if faults => {
                self.lost += 1;
                return false;
            }
            Way::Twice(copy_ms, ms) if faults => {
                self.doubled += 1;
                self.put(self.now_ms + copy_ms, message.clone());
                ms
            }
            Way::Comes(ms) | Way::Twice(_, ms) => ms,
            // Nothing is lost any more.
            Way::Lost => USUAL_MS,
        };
        self.put(self.now_ms + ms, message);
        true
    }

    /// An event of a process's own clock.
    pub fn after(&mut self, delay_ms: u64, message: M) {
        self.put(self.now_ms + delay_ms, message);
    }

    /// The next event; the clock jumps to it.
    pub fn take_next(&mut self) -> Option<M> {
        let ((at_ms, _), message) = self.queue.pop_first()?;
        self.now_ms = self.now_ms.max(at_ms);
        Some(message)
    }
}
