//! A write whose pieces threads take in turn: while one writes the piece that it has received, another receives the
//! next.
//!
//! Invariant: one receives at a time, and one writes, both in order; behind what failed nothing is received any more,
//! and nothing written. When all threads are back, nothing is written any more.
//! Lock order: `turn` (held while its piece comes, and until it can be written), `refused` (held while it is). Whoever
//! panics takes both from the others.

use super::{Lent, Piece, pieces};
use crate::guard::{Admitted, WriteGuard};
use crate::store::BlockObject;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_protocol::Error;
use weft_transport::{Result, TransportError};

/// See the module.
pub(super) struct Turns<'a, F> {
    object: &'a dyn BlockObject,
    guard: &'a dyn WriteGuard,
    piece_bytes: usize,
    turn: Mutex<Turn<F>>,
    /// What the object said.
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
    /// Bytes that `fill` brings, for an object from an offset on, in pieces of at most so many.
    pub fn new(
        (object, guard): (&'a dyn BlockObject, &'a dyn WriteGuard),
        (offset, bytes): (u64, u32),
        piece_bytes: usize,
        fill: F,
    ) -> Self {
        let rest = offset..offset.saturating_add(u64::from(bytes));
        let (turn, refused) = (Mutex::new(Turn { fill, rest, broken: None }), Mutex::default());
        Self { object, guard, piece_bytes, turn, refused }
    }

    /// Receives pieces and writes them, until there are no more or something has failed.
    pub fn take(&self) {
        let mut memory = Lent::take();
        while let Some((piece, mut refused)) = self.receive(&mut memory) {
            let bytes = memory.get(piece.lead..piece.lead + piece.count).unwrap_or_default();
            let admitted = Admitted::by(self.guard);
            *refused = admitted.and_then(|_admitted| self.object.write_at(piece.offset, bytes)).err();
        }
    }

    /// The next piece, in memory as it lies in its blocks, and the right to write it. `None`: there is none that is to
    /// be written.
    fn receive(&self, memory: &mut [u8]) -> Option<(Piece, MutexGuard<'_, Option<Error>>)> {
        let mut turn = self.turn.lock().ok()?;
        // Who writes meanwhile has not failed so far.
        let is_refused = self.refused.try_lock().is_ok_and(|refused| refused.is_some());
        if is_refused || turn.broken.is_some() {
            return None;
        }
        let piece = pieces(turn.rest.start, turn.rest.end - turn.rest.start, self.piece_bytes).next()?;
        let place = memory.get_mut(piece.lead..piece.lead + piece.count).unwrap_or_default();
        if let Err(error) = (turn.fill)(place) {
            turn.broken = Some(error);
            return None;
        }
        turn.rest.start += piece.count as u64;
        let refused = self.refused.lock().ok()?;
        refused.is_none().then_some((piece, refused))
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
    use crate::guard::Unguarded;
    use crate::store::lock;
    use std::io::ErrorKind;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const BYTES: u32 = OVERLAPPED_FROM_BYTES + 777;
    const PIECES: usize = BYTES as usize / PIECE_BYTES + 1;
    const SLOWLY: Duration = Duration::from_secs(20);

    /// An object in memory, with a fault.
    struct Faulty {
        bytes: Mutex<Vec<u8>>,
        fault: Fault,
        /// What was received tells here, and that no more comes.
        received: Mutex<Receiver<()>>,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fault {
        None,
        /// This piece is written when another has come after it, or none will.
        Waits(usize),
        /// This piece is refused, and all behind it.
        Refuses(usize),
        /// This piece alone is refused, when another has come after it, or none will.
        WaitsAndRefuses(usize),
    }

    impl Faulty {
        /// So many pieces have come, or none will any more.
        fn wait_for(&self, pieces: usize) {
            let received = lock(&self.received);
            let come = (0..pieces).filter(|_| received.recv_timeout(SLOWLY).is_ok()).count();
            assert_eq!(come, pieces, "nothing comes while a piece is written");
        }
    }

    impl BlockObject for Faulty {
        fn read_at(&self, _: u64, _: &mut [u8]) -> weft_protocol::Result<()> {
            Err(Error::NoObject)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> weft_protocol::Result<()> {
            let start = usize::try_from(offset).unwrap();
            let number = start / PIECE_BYTES;
            match self.fault {
                Fault::Waits(piece) if piece == number => self.wait_for(piece + 2),
                Fault::Refuses(piece) if number >= piece => return Err(Error::NoSpace),
                Fault::WaitsAndRefuses(piece) if piece == number => {
                    self.wait_for(piece + 2);
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
        (Faulty { bytes: Mutex::new(vec![0; BYTES as usize + 10_000]), fault, received: Mutex::new(receiver) }, sender)
    }

    fn contents() -> Vec<u8> {
        (0..BYTES).map(|at| u8::try_from((at * 31 + (at >> 12)) % 251).unwrap()).collect()
    }

    /// Brings bytes in order, and breaks off behind so many pieces; `calls` counts how often it is asked.
    fn bring<'a>(
        contents: &'a [u8],
        pieces: usize,
        received: Sender<()>,
        calls: &'a mut usize,
    ) -> impl FnMut(&mut [u8]) -> Result<()> + Send + 'a {
        let mut at = 0;
        move |place| {
            *calls += 1;
            // Also that nothing comes.
            received.send(()).unwrap();
            if *calls > pieces {
                return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            place.copy_from_slice(&contents[at..at + place.len()]);
            at += place.len();
            Ok(())
        }
    }

    #[test]
    fn the_next_piece_comes_while_one_is_written() {
        let contents = contents();
        for (fault, offset) in [(Fault::None, 0), (Fault::Waits(0), 0), (Fault::Waits(0), 4097), (Fault::Waits(3), 0)] {
            let (object, received) = faulty(fault);
            let mut calls = 0;
            let done = write(&object, (offset, BYTES), &Unguarded, bring(&contents, usize::MAX, received, &mut calls));
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
            let mut calls = 0;
            let done = write(&object, (0, BYTES), &Unguarded, bring(&contents, usize::MAX, received, &mut calls));
            let Ok(Err((Error::NoSpace, left))) = done else { panic!("piece {piece}") };
            let came = (calls * PIECE_BYTES).min(BYTES as usize);
            assert_eq!(came + left, BYTES as usize, "piece {piece}: the rest can be taken off the connection");
            assert!(calls <= piece + 2, "piece {piece}: nobody goes on for long");
            is_there_up_to(&object, &contents, piece);
        }
    }

    fn is_there_up_to(object: &Faulty, contents: &[u8], pieces: usize) {
        let whole = pieces * PIECE_BYTES;
        assert!(lock(&object.bytes)[..whole] == contents[..whole], "piece {pieces}: those before it are there");
        assert!(lock(&object.bytes)[whole..].iter().all(|byte| *byte == 0), "piece {pieces}: and no more");
    }

    #[test]
    fn what_has_come_behind_a_refused_piece_is_not_written() {
        let contents = contents();
        for piece in 0..PIECES - 1 {
            let (object, received) = faulty(Fault::WaitsAndRefuses(piece));
            let mut calls = 0;
            let done = write(&object, (0, BYTES), &Unguarded, bring(&contents, usize::MAX, received, &mut calls));
            assert!(matches!(done, Ok(Err((Error::NoSpace, _)))), "piece {piece}");
            assert_eq!(calls, piece + 2);
            is_there_up_to(&object, &contents, piece);
        }
    }

    #[test]
    fn a_connection_that_breaks_is_an_error_also_beside_a_refusal() {
        let contents = contents();
        for piece in 0..PIECES {
            for (fault, pieces) in [(Fault::None, piece), (Fault::WaitsAndRefuses(piece), piece + 1)] {
                if pieces == PIECES {
                    continue;
                }
                let (object, received) = faulty(fault);
                let mut calls = 0;
                let done = write(&object, (0, BYTES), &Unguarded, bring(&contents, pieces, received, &mut calls));
                assert!(done.is_err(), "{fault:?}");
                assert_eq!(calls, pieces + 1, "{fault:?}: nobody asks again");
                is_there_up_to(&object, &contents, piece);
            }
        }
    }
}
