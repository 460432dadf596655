use super::*;
use proptest::prelude::*;

fn frames() -> impl Strategy<Value = Frame> {
    let time = (0..1u64 << 60).prop_map(time_of);
    let stat = (any::<u64>(), any::<u64>(), time.clone()).prop_map(|(version, size, time)| VersionStat {
        version,
        size,
        time,
    });
    let about = (any::<u64>(), any::<Owner>(), any::<u64>(), time.clone(), time.clone())
        .prop_map(|(generation, owner, size, modified, made)| (generation, owner, ObjectStat { size, modified, made }));
    let extent = (any::<u64>(), any::<u64>(), 0..3u64, any::<bool>())
        .prop_map(|(version, first, count, has_data)| Extent { version, first, count, has_data });
    prop_oneof![
        (any::<u64>(), prop::option::of(about)).prop_map(|(id, about)| Frame::Object(Whole { id, about })),
        (any::<u64>(), prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(offset, data)| Frame::Bytes(offset, data)),
        (any::<[u64; 4]>(), time, stat.clone()).prop_map(|([id, lineage, version, block], made, base)| {
            Frame::Versions(id, Origin { lineage, made, from: (version, block), base })
        }),
        prop::collection::vec(extent, 0..9).prop_map(|extents| {
            let bytes: u64 = extents.iter().map(Extent::bytes).sum();
            Frame::Pieces(extents, vec![7; usize::try_from(bytes).unwrap()])
        }),
        stat.prop_map(Frame::Version),
        ("\\PC{0,20}", any::<u64>()).prop_map(|(name, version)| Frame::Name(name, version)),
        ("\\PC{0,20}", any::<u64>()).prop_map(|(name, version)| Frame::HasName(name, version)),
        Just(Frame::Done),
    ]
}

fn written(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, [3; 16], frames.len() % 2 == 1).unwrap();
    frames.iter().for_each(|frame| writer.write(frame).unwrap());
    writer.write(&Frame::End(writer.count())).unwrap();
    assert_eq!(writer.bytes, bytes.len() as u64);
    bytes
}

/// All frames up to the end.
fn read(mut bytes: &[u8]) -> Result<Vec<Frame>> {
    let mut reader = Reader::new(&mut bytes)?;
    let mut frames = Vec::new();
    loop {
        match reader.read()? {
            Frame::End(_) => {
                assert_eq!(reader.is_whole, frames.len() % 2 == 1);
                return Ok(frames);
            }
            frame => frames.push(frame),
        }
    }
}

/// Whether a frame is said to be wrong: this one, if one is named.
fn is_wrong(read: &Result<Vec<Frame>>, number: Option<u64>) -> bool {
    matches!(read, Err(Error::Stream { frame, .. }) if number.is_none_or(|number| *frame == number))
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written_and_no_wrong_bit_is_taken(
        frames in prop::collection::vec(frames(), 0..6),
        at in any::<prop::sample::Index>(),
        bit in 0..8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written(&frames);
        prop_assert_eq!(read(&bytes).unwrap(), frames);
        let broken_off = read(&bytes[..cut.index(bytes.len())]);
        prop_assert!(is_wrong(&broken_off, None));
        let at = at.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(is_wrong(&read(&bytes), None));
    }

    #[test]
    fn any_bytes_are_no_frame_and_no_panic(kind in 0..12u32, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::decode(kind, &bytes);
    }

    #[test]
    fn what_is_promised_costs_no_memory(kind in any::<u32>(), length in any::<u32>(), rest in any::<[u8; 9]>()) {
        let bytes = [&start([3; 16], false)[..], &kind.to_le_bytes(), &length.to_le_bytes(), &rest].concat();
        prop_assert!(is_wrong(&read(&bytes), Some(1)));
    }
}

#[test]
fn a_missing_frame_is_noticed() {
    let (one, other) = (Frame::Done, Frame::Name("a".to_owned(), 1));
    let both = written(&[one.clone(), other.clone()]);
    let without = [&both[..START_BYTES], &both[START_BYTES + HEADER_BYTES..]].concat();
    assert!(is_wrong(&read(&without), Some(1)));
    assert_eq!(read(&both).unwrap(), [one, other]);
}

#[test]
fn a_scope_that_nobody_knows_is_refused() {
    let mut bytes = start([3; 16], true);
    bytes[SCOPE_AT] = 2;
    seal(&mut bytes, START_CHECKSUM_AT);
    assert!(is_wrong(&read(&bytes), Some(0)));
    let broken_off = read(&start([3; 16], true));
    assert!(is_wrong(&broken_off, Some(1)), "{broken_off:?}");
}
