use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn ranges_are_known_as_of_what_was_told_last(
        told in prop::collection::vec((0u64..50, 0u64..20), 0..20), start in 0u64..60, bytes in 0u64..20,
    ) {
        let (mut knowledge, mut model) = (Knowledge::default(), vec![0; 100]);
        for (index, (from, bytes)) in told.iter().enumerate() {
            let epoch = 1 + index as u64 / 2;
            prop_assert!(knowledge.add(*from..from + bytes, 0, (epoch, 0), Vec::new()));
            let range = usize::try_from(*from).expect("small")..usize::try_from(from + bytes).expect("small");
            model[range].fill(epoch);
        }
        let range = usize::try_from(start).expect("small")..usize::try_from(start + bytes).expect("small");
        let least = model[range.clone()].iter().min().copied().unwrap_or(0);
        prop_assert_eq!(knowledge.since(&(start..start + bytes)), least);
        for epoch in 1..12 {
            let unknown = range.clone().find(|at| model[*at] < epoch).map(|at| at as u64);
            prop_assert_eq!(knowledge.first_unknown_run(&(start..start + bytes), epoch), unknown);
        }
    }
}

#[test]
fn a_cut_is_the_end_of_what_was_known() {
    let mut knowledge = Knowledge::default();
    assert!(knowledge.add(0..10, 0, (7, 3), Vec::new()), "nothing was known");
    assert!(knowledge.add(10..20, 0, (8, 3), Vec::new()));
    assert!(!knowledge.add(10..20, 8, (9, 9), Vec::new()));
    assert_eq!((knowledge.since(&(0..10)), knowledge.since(&(10..20))), (0, 9));
    knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 10);
    assert_eq!((knowledge.since(&(10..20)), knowledge.index().count()), (10, 1));
    knowledge.published(ObjectId::from_raw(1), &[Pattern::run(0, 5).expect("a run")], 12);
    assert_eq!(knowledge.since(&(10..20)), 10, "somebody else has published");
}

/// Bytes of the files of these tests.
const BYTES: u64 = 60;

/// A file byte by byte: of which part, published at which epoch.
struct Model {
    bytes: Vec<Option<(u64, u64)>>,
    epoch: u64,
    cut: u64,
}

impl Model {
    /// The runs after an epoch within a range, as a shard tells them that goes on beyond it.
    fn answer(&self, since: u64, range: &Range<u64>, beyond: u64) -> (u64, Vec<SplitPart>) {
        let since = if self.cut > since { 0 } else { since };
        let end = (range.end + beyond).min(BYTES);
        let mut parts = Vec::new();
        for at in range.start..end {
            let Some((part, epoch)) = self.bytes[usize::try_from(at).expect("small")].filter(|of| of.1 > since) else {
                continue;
            };
            let extents = vec![Extent { pattern: Pattern::run(at, 1).expect("a byte"), epoch }];
            parts.push(SplitPart { object: ObjectId::from_raw(part), capability: capability(), extents });
        }
        (end, parts)
    }
}

fn capability() -> Capability {
    weft_protocol::NodeKey::new([7; 32]).sign(&weft_protocol::capability::CapabilityClaims {
        object: ObjectId::from_raw(1),
        count: 1,
        inode: weft_protocol::InodeNumber::ROOT,
        generation: weft_protocol::Generation(1),
        epoch: weft_protocol::MapEpoch(1),
        expires_seconds: 1,
        owner_uid: 0,
        rights: weft_protocol::Rights::READ,
        session: weft_protocol::SessionId(1),
    })
}

#[derive(Clone, Debug)]
enum Deed {
    Publish { part: u64, start: u64, bytes: u64, own: bool },
    Cut { size: u64 },
    Read { start: u64, bytes: u64, beyond: u64 },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => (0u64..3, 0..BYTES - 10, 1u64..10, any::<bool>())
            .prop_map(|(part, start, bytes, own)| Deed::Publish { part, start, bytes, own }),
        1 => (0..BYTES).prop_map(|size| Deed::Cut { size }),
        6 => (0..BYTES - 10, 1u64..10, 0u64..30).prop_map(|(start, bytes, beyond)| Deed::Read { start, bytes, beyond }),
    ]
}

proptest! {
    /// A reader that asks for what it does not know reads what is there, whatever it has read before.
    #[test]
    fn a_range_that_is_known_is_that_of_the_model(deeds in prop::collection::vec(deed(), 0..60)) {
        let (mut knowledge, mut model) = (Knowledge::default(), Model { bytes: vec![None; 60], epoch: 1, cut: 1 });
        for deed in deeds {
            match deed {
                Deed::Publish { part, start, bytes, own } => {
                    model.epoch += 1;
                    let range = usize::try_from(start).expect("small")..usize::try_from(start + bytes).expect("small");
                    model.bytes[range].fill(Some((part, model.epoch)));
                    if own {
                        let run = Pattern::run(start, bytes).expect("a run");
                        knowledge.published(ObjectId::from_raw(part), &[run], model.epoch);
                    }
                }
                Deed::Cut { size } => {
                    model.epoch += 1;
                    model.cut = model.epoch;
                    model.bytes[usize::try_from(size).expect("small")..].fill(None);
                }
                Deed::Read { start, bytes, beyond } => {
                    let range = start..start + bytes;
                    while let Some(at) = knowledge.first_unknown(&range, model.epoch) {
                        let wanted = at..range.end;
                        let since = knowledge.since(&wanted);
                        let (end, parts) = model.answer(since, &wanted, beyond);
                        knowledge.add(at..end, since, (model.epoch, model.cut), parts);
                        prop_assert!(knowledge.add_strided(model.epoch, None));
                    }
                    for piece in knowledge.index().pieces(start, usize::try_from(bytes).expect("small"), None) {
                        let from = usize::try_from(start).expect("small") + piece.start;
                        for byte in &model.bytes[from..from + piece.bytes] {
                            prop_assert_eq!(piece.part, byte.map(|(part, _)| ObjectId::from_raw(part)));
                        }
                    }
                }
            }
        }
    }
}
