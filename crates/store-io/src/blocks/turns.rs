//! A write whose pieces threads take in turn: while one writes the piece that it has received, another receives the
//! next.
//!
//! Invariant: one receives at a time, in order; after a failure nobody receives any more, and nobody begins to write.
//! When all threads are back, nothing is written any more.
//! Lock order: `turn` (held while its piece comes), `refused`.

use super::{Lent, Piece, pieces};
use crate::store::{BlockObject, lock};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use weft_protocol::Error;
use weft_transport::{Result, TransportError};

/// See the module.
pub(super) struct Turns<'a, F> {
    object: &'a dyn BlockObject,
    turn: Mutex<Turn<F>>,
    /// What the object said first.
    refused: Mutex<Option<Error>>,
}

struct Turn<F> {
    fill: F,
    /// Bytes of the object that have not come.
    rest: Range<u64>,
    /// They will not.
    broken: Option<TransportError>,
}

impl<'a, F: FnMut(&mut [u8]) -> Result<()>> Turns<'a, F> {
    /// Bytes that `fill` brings, for an object from an offset on.
    pub fn new(object: &'a dyn BlockObject, offset: u64, bytes: u32, fill: F) -> Self {
        let rest = offset..offset.saturating_add(u64::from(bytes));
        Self { object, turn: Mutex::new(Turn { fill, rest, broken: None }), refused: Mutex::default() }
    }

    /// Receives pieces and writes them, until there are no more or something has failed.
    pub fn take(&self) {
        let mut memory = Lent::take();
        while let Some(piece) = self.receive(&mut memory) {
            let bytes = memory.get(piece.lead..piece.lead + piece.count).unwrap_or_default();
            if let Err(error) = self.object.write_at(piece.offset, bytes) {
                lock(&self.refused).get_or_insert(error);
            }
        }
    }

    /// The next piece, in memory as it lies in its blocks. `None`: there is none that is to be written.
    fn receive(&self, memory: &mut [u8]) -> Option<Piece> {
        let mut turn = lock(&self.turn);
        if turn.broken.is_some() || lock(&self.refused).is_some() {
            return None;
        }
        let piece = pieces(turn.rest.start, turn.rest.end - turn.rest.start).next()?;
        let place = memory.get_mut(piece.lead..piece.lead + piece.count).unwrap_or_default();
        if let Err(error) = (turn.fill)(place) {
            turn.broken = Some(error);
            return None;
        }
        turn.rest.start += piece.count as u64;
        lock(&self.refused).is_none().then_some(piece)
    }

    /// What became of it, when all threads are back. Of a failure, the error and how many bytes have not come.
    pub fn end(self) -> Result<std::result::Result<(), (Error, usize)>> {
        let turn = self.turn.into_inner().unwrap_or_else(PoisonError::into_inner);
        let refused = self.refused.into_inner().unwrap_or_else(PoisonError::into_inner);
        let left = usize::try_from(turn.rest.end - turn.rest.start).unwrap_or(usize::MAX);
        match turn.broken {
            Some(error) => Err(error),
            None => Ok(refused.map_or(Ok(()), |error| Err((error, left)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OVERLAPPED_FROM_BYTES, PIECE_BYTES, write};
    use super::*;
    use std::io::ErrorKind;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const BYTES: u32 = OVERLAPPED_FROM_BYTES + 777;
    const PIECES: usize = BYTES as usize / PIECE_BYTES + 1;
    const SLOWLY: Duration = Duration::from_secs(20);

    /// An object in memory, with a fault.
    struct Faulty {
        bytes: Mutex<Vec<u8>>,
        fault: Fault,
        /// What was received tells here.
        received: Mutex<Receiver<()>>,
        has_refused: AtomicBool,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fault {
        None,
        /// The first piece is written when another has come after it.
        WaitsForNext,
        /// This piece is refused, and all behind it.
        Refuses(usize),
        RefusesFirstAlone,
    }

    impl BlockObject for Faulty {
        fn read_at(&self, _: u64, _: &mut [u8]) -> weft_protocol::Result<()> {
            Err(Error::NoObject)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> weft_protocol::Result<()> {
            let start = usize::try_from(offset).unwrap();
            match self.fault {
                Fault::WaitsForNext if start < PIECE_BYTES => {
                    let received = lock(&self.received);
                    // This piece, and the next.
                    let come = (0..2).filter(|_| received.recv_timeout(SLOWLY).is_ok()).count();
                    assert_eq!(come, 2, "nothing comes while a piece is written");
                }
                Fault::Refuses(piece) if start / PIECE_BYTES >= piece => return Err(Error::NoSpace),
                Fault::RefusesFirstAlone if start == 0 => {
                    self.has_refused.store(true, Ordering::Release);
                    return Err(Error::NoSpace);
                }
                _ => {}
            }
            lock(&self.bytes)[start..start + from.len()].copy_from_slice(from);
            Ok(())
        }

        fn append(&self, _: &[u8]) -> weft_protocol::Result<()> {
            Err(Error::NoSpace)
        }
    }

    fn faulty(fault: Fault) -> (Faulty, Sender<()>) {
        let (sender, receiver) = channel();
        let bytes = Mutex::new(vec![0; BYTES as usize + 10_000]);
        (Faulty { bytes, fault, received: Mutex::new(receiver), has_refused: AtomicBool::new(false) }, sender)
    }

    fn contents() -> Vec<u8> {
        (0..BYTES).map(|at| u8::try_from((at * 31 + (at >> 12)) % 251).unwrap()).collect()
    }

    /// Brings bytes in order, and breaks off behind so many pieces.
    fn bring(
        contents: &[u8],
        pieces: usize,
        received: Sender<()>,
        mut have: impl FnMut(usize) + Send,
    ) -> impl FnMut(&mut [u8]) -> Result<()> + Send {
        let (mut at, mut count) = (0, 0);
        move |place| {
            if count == pieces {
                return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            place.copy_from_slice(&contents[at..at + place.len()]);
            (at, count) = (at + place.len(), count + 1);
            have(at);
            received.send(()).unwrap();
            Ok(())
        }
    }

    #[test]
    fn the_next_piece_comes_while_one_is_written() {
        let contents = contents();
        for (fault, offset) in [(Fault::None, 0), (Fault::WaitsForNext, 0), (Fault::WaitsForNext, 4097)] {
            let (object, received) = faulty(fault);
            let done = write(&object, offset, BYTES, bring(&contents, usize::MAX, received, |_| {}));
            assert!(matches!(done, Ok(Ok(()))), "{fault:?}");
            let offset = usize::try_from(offset).unwrap();
            assert!(lock(&object.bytes)[offset..offset + contents.len()] == contents, "{fault:?} at {offset}");
        }
    }

    #[test]
    fn what_is_refused_is_told_once_with_what_has_not_come() {
        let contents = contents();
        for piece in 0..PIECES {
            let (object, received) = faulty(Fault::Refuses(piece));
            let mut came = 0;
            let done = write(&object, 0, BYTES, bring(&contents, usize::MAX, received, |at| came = at));
            let Ok(Err((Error::NoSpace, left))) = done else { panic!("piece {piece}") };
            assert_eq!(came + left, BYTES as usize, "piece {piece}: the rest can be taken off the connection");
            assert!(came <= (piece + 2) * PIECE_BYTES, "piece {piece}: nobody goes on for long");
            let whole = piece * PIECE_BYTES;
            assert!(lock(&object.bytes)[..whole] == contents[..whole], "piece {piece}: those before it are there");
            assert!(lock(&object.bytes)[whole..].iter().all(|byte| *byte == 0), "piece {piece}");
        }
    }

    /// The second piece has come when the first is refused. Mostly it is left out; that it was begun just before cannot
    /// be told apart.
    #[test]
    fn what_comes_while_a_piece_is_refused_is_not_written() {
        let contents = contents();
        let is_left_out = || {
            let (object, received) = faulty(Fault::RefusesFirstAlone);
            let mut came = 0;
            let wait = |at| {
                came = at;
                while at > PIECE_BYTES && !object.has_refused.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                (0..100).for_each(|_| std::thread::yield_now());
            };
            let done = write(&object, 0, BYTES, bring(&contents, usize::MAX, received, wait));
            assert!(matches!(done, Ok(Err((Error::NoSpace, _)))));
            came == 2 * PIECE_BYTES && lock(&object.bytes).iter().all(|byte| *byte == 0)
        };
        assert!((0..200).any(|_| is_left_out()));
    }

    #[test]
    fn a_connection_that_breaks_is_an_error_also_beside_a_refusal() {
        let contents = contents();
        for piece in 0..PIECES {
            for fault in [Fault::None, Fault::Refuses(piece)] {
                let (object, received) = faulty(fault);
                let done = write(&object, 0, BYTES, bring(&contents, piece, received, |_| {}));
                assert!(done.is_err(), "{fault:?}, piece {piece}");
                let whole = piece * PIECE_BYTES;
                assert!(lock(&object.bytes)[..whole] == contents[..whole], "{fault:?}: what came before is there");
            }
        }
    }
}
