//! Calls that may do a part of what they were asked for, done until all is.
//!
//! A call that was interrupted is made again, and one that was short goes on behind what it did. One that does nothing
//! at all will not do more the next time: that is an error.

use rustix::io::Errno;
use std::io;

/// Writes parts one behind the other. `call` gets what is left, and where; it returns how many bytes it wrote.
pub(crate) fn write_fully(
    mut place: u64,
    parts: &[&[u8]],
    mut call: impl FnMut(&[io::IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut slices: Vec<io::IoSlice<'_>> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
    let mut rest = slices.as_mut_slice();
    io::IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match call(rest, place) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                place += count as u64;
                io::IoSlice::advance_slices(&mut rest, count);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Fills `into`. `call` gets what is left of it, and from where; it returns how many bytes it read, 0 at the end.
pub(crate) fn read_fully(
    mut place: u64,
    into: &mut [u8],
    mut call: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    let mut rest = into;
    while !rest.is_empty() {
        match call(rest, place) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                place += count as u64;
                rest = &mut rest[count..];
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the system answers to a call: so many bytes at most, or an error.
    type Answer = Result<usize, Errno>;

    const END: usize = 5000;

    /// A file of which each call does what is said, and all of it when nothing is said any more.
    struct Scripted {
        bytes: Vec<u8>,
        answers: std::vec::IntoIter<Answer>,
        calls: usize,
    }

    impl Scripted {
        fn new(answers: Vec<Answer>) -> Self {
            Self { bytes: vec![0; END], answers: answers.into_iter(), calls: 0 }
        }

        /// How many bytes of so many at a place the next call does.
        fn next(&mut self, wanted: usize, place: usize) -> Answer {
            self.calls += 1;
            let most = self.answers.next().unwrap_or(Ok(usize::MAX))?;
            Ok(most.min(wanted).min(END.saturating_sub(place)))
        }

        fn write(&mut self, slices: &[io::IoSlice<'_>], place: u64) -> Answer {
            let place = usize::try_from(place).unwrap();
            let whole: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let count = self.next(whole.len(), place)?;
            self.bytes[place..place + count].copy_from_slice(&whole[..count]);
            Ok(count)
        }

        fn read(&mut self, into: &mut [u8], place: u64) -> Answer {
            let place = usize::try_from(place).unwrap();
            let count = self.next(into.len(), place)?;
            into[..count].copy_from_slice(&self.bytes[place..place + count]);
            Ok(count)
        }
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![3 => (1..800usize).prop_map(Ok), 1 => Just(Err(Errno::INTR))]
    }

    fn numbered(count: usize) -> Vec<u8> {
        (0..count).map(|number| u8::try_from(number % 251).unwrap()).collect()
    }

    proptest! {
        /// Short ones end in the midst of a part, or with one; parts may be empty.
        #[test]
        fn short_and_interrupted_calls_go_on(
            answers in prop::collection::vec(answer(), 0..30),
            lengths in prop::collection::vec(prop_oneof![Just(0), 1..700usize], 0..6),
            place in 0..500usize,
        ) {
            let bytes = numbered(lengths.iter().sum());
            let mut rest = bytes.as_slice();
            let parts: Vec<&[u8]> = lengths.iter().map(|length| rest.split_off(..*length).unwrap()).collect();
            let mut file = Scripted::new(answers.clone());
            write_fully(place as u64, &parts, |slices, place| file.write(slices, place)).unwrap();
            prop_assert!(file.bytes[place..place + bytes.len()] == bytes[..]);
            prop_assert!(file.bytes[..place].iter().chain(&file.bytes[place + bytes.len()..]).all(|byte| *byte == 0));
            file.answers = answers.into_iter();
            let mut found = vec![0; bytes.len()];
            read_fully(place as u64, &mut found, |into, place| file.read(into, place)).unwrap();
            prop_assert_eq!(found, bytes);
        }
    }

    #[test]
    fn calls_that_do_nothing_and_errors_end_it() {
        let cases: [(Vec<Answer>, io::ErrorKind, usize); 4] = [
            (vec![Ok(0)], io::ErrorKind::WriteZero, 1),
            (vec![Ok(100), Err(Errno::INTR), Ok(0)], io::ErrorKind::WriteZero, 3),
            (vec![Ok(100), Err(Errno::NOSPC)], io::ErrorKind::StorageFull, 2),
            (vec![Err(Errno::INTR), Err(Errno::ROFS)], io::ErrorKind::ReadOnlyFilesystem, 2),
        ];
        for (answers, kind, calls) in cases {
            let (first, second) = (numbered(150), numbered(150));
            let mut file = Scripted::new(answers.clone());
            let written = write_fully(0, &[&first, &second], |slices, place| file.write(slices, place));
            assert_eq!((written.unwrap_err().kind(), file.calls), (kind, calls), "{answers:?}");
            let mut file = Scripted::new(answers.clone());
            let read = read_fully(0, &mut [0; 300], |into, place| file.read(into, place));
            let kind = if kind == io::ErrorKind::WriteZero { io::ErrorKind::UnexpectedEof } else { kind };
            assert_eq!((read.unwrap_err().kind(), file.calls), (kind, calls), "{answers:?}");
        }
    }

    #[test]
    fn a_file_that_ends_too_early_is_an_error_and_nothing_asked_is_no_call() {
        let mut file = Scripted::new(Vec::new());
        let read = read_fully(END as u64 - 10, &mut [0; 11], |into, place| file.read(into, place));
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut file = Scripted::new(Vec::new());
        read_fully(0, &mut [], |into, place| file.read(into, place)).unwrap();
        write_fully(0, &[], |slices, place| file.write(slices, place)).unwrap();
        write_fully(0, &[&[], &[]], |slices, place| file.write(slices, place)).unwrap();
        assert_eq!(file.calls, 0);
    }
}
