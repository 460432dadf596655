//! What operations over several shards cost: round trips that the caller awaits, and messages in all. The table of
//! docs/decisions/0020.

use super::across::{Several, ln, make_directory, mv, rm, with_guess};
use super::harness::*;
use weft_protocol::message::peer::PeerStep;
use weft_protocol::message::shard::*;
use weft_protocol::*;

impl Several {
    /// The round trips between shards that a call waits for, and the messages sent for it until nothing is left to do.
    fn cost(&mut self, request: ShardRequest) -> (usize, usize) {
        let words = format!("{request:?}");
        let call = self.begin(A, request);
        let (mut round_trips, mut messages) = (0, 0);
        while self.result(call).is_none() {
            messages += self.round_trip();
            round_trips += 1;
        }
        assert!(self.result(call).is_some_and(|result| result.is_ok()), "{words}");
        loop {
            match self.round_trip() {
                0 => break,
                more => messages += more,
            }
        }
        assert!(self.has_no_locks(), "{words}");
        (round_trips, messages)
    }

    /// All that is on its way arrives, and is answered. The number of messages.
    fn round_trip(&mut self) -> usize {
        let calls = self.take_calls();
        let count = calls.len();
        calls.into_iter().for_each(|call| self.deliver(call));
        self.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
        self.deliver_replies();
        2 * count
    }
}

#[test]
fn two_shards_cost_one_round_trip_whichever_is_above() {
    for (from, to) in [(1, 2), (2, 1), (0, 3), (3, 0)] {
        let mut several = Several::new();
        let (from, to) = (several.directories[from], several.directories[to]);
        let file = several.make((from, "f"));
        assert_eq!(several.cost(mv((from, "f"), (to, "g"), RenameMode::Replace)), (1, 4));
        assert_eq!(several.cost(ln(file, (to, "l"))), (1, 4));
        assert_eq!(several.cost(rm((to, "l"))), (1, 4));
        several.make((from, "f"));
        assert_eq!(several.cost(mv((from, "f"), (to, "g"), RenameMode::Exchange)), (1, 4));
    }
}

/// Two if another shard than those of the names has to be asked about the inode that is replaced, and only that of the
/// new name knows it; one if the client does.
#[test]
fn a_replaced_inode_at_a_third_shard_costs_a_second_round_trip_unless_it_is_guessed() {
    for (born, from, to, messages) in
        [(3, 1, 2, 8), (1, 2, 3, 8), (2, 1, 3, 8), (1, 1, 2, 4), (0, 2, 1, 8), (0, 0, 1, 4)]
    {
        let mut several = Several::new();
        let directories = several.directories.clone();
        let (source, target) = ((directories[from], "f"), (directories[to], "g"));
        for guesses in [false, true] {
            let replaced = several.make((directories[born], "r"));
            several.ok(A, mv((directories[born], "r"), target, RenameMode::Replace));
            several.make(source);
            let request = mv(source, target, RenameMode::Replace);
            if guesses {
                assert_eq!(
                    several.cost(with_guess(request, (replaced, FileKind::Regular))),
                    (1, messages),
                    "born at {born}"
                );
            } else {
                let round_trips = if born == from { 1 } else { 2 };
                assert_eq!(several.cost(request), (round_trips, messages), "born at {born}");
            }
        }
    }
}

#[test]
fn a_wrong_guess_is_paid_with_a_round_trip_alone() {
    let mut several = Several::new();
    let [root, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let (other, source, target) = (several.make((d3, "other")), (d1, "f"), (d2, "g"));
    let file = several.make(source);
    assert_eq!(several.cost(with_guess(mv(source, target, RenameMode::Replace), (other, FileKind::Regular))), (1, 8));
    assert_eq!((several.names(target), several.links(other)), (Some(file), 1));
    // What it really replaces is at a fourth shard.
    several.make((root, "r"));
    several.ok(A, mv((root, "r"), target, RenameMode::Replace));
    let next = several.make(source);
    let guessed = with_guess(mv(source, target, RenameMode::Replace), (other, FileKind::Regular));
    assert_eq!(several.cost(guessed), (2, 12));
    assert_eq!((several.names(target), several.links(other)), (Some(next), 1));
    // A shard that is asked by a wrong guess alone may be away.
    several.make(source);
    let call = several.begin(A, with_guess(mv(source, target, RenameMode::NoReplace), (other, FileKind::Regular)));
    let asked = several.take_calls();
    assert_eq!(asked.iter().map(|call| call.to.0).collect::<Vec<_>>(), [2, 3]);
    several.unreachable(&asked[1]);
    several.settle();
    assert_eq!(several.result(call), Some(Err(Error::Exists)));
    several.unreachable(&asked[1]);
    several.settle();
    assert!(several.has_no_locks());
}

/// One round trip more for each shard on the way from the new parent to `/`, without that of the old name and that of
/// `/` itself.
#[test]
fn a_directory_that_gets_another_parent_costs_the_way_up() {
    let mut several = Several::new();
    let [root, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    let moved = make_directory(&mut several, (d1, "m"), 1);
    make_directory(&mut several, (moved, "in"), 1);
    let deep = make_directory(&mut several, (d2, "deep"), 3);
    assert_eq!(several.cost(mv((d1, "m"), (d2, "m"), RenameMode::Replace)).0, 2);
    assert_eq!(several.cost(mv((d2, "m"), (root, "m"), RenameMode::Replace)).0, 1);
    assert_eq!(several.cost(mv((root, "m"), (d1, "m"), RenameMode::Replace)).0, 2);
    assert_eq!(several.cost(mv((d1, "m"), (deep, "m"), RenameMode::Replace)).0, 3);
    assert_eq!(several.cost(mv((deep, "m"), (d3, "m"), RenameMode::Replace)).0, 1);
}

#[test]
fn a_shard_below_another_one_refuses_what_is_locked_and_is_asked_first_then() {
    let mut several = Several::new();
    let [_, d1, d2, d3] = several.directories[..] else { panic!("four directories") };
    several.make((d1, "f"));
    several.make((d3, "f"));
    // The first has locked at shard 2, and its answer is still on its way.
    let first = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    several.take_calls().into_iter().for_each(|call| several.deliver(call));
    let second = several.begin(B, mv((d3, "f"), (d2, "g"), RenameMode::NoReplace));
    let lock = several.take_calls().remove(0);
    assert!(matches!(lock.step, PeerStep::Lock { waits: false, .. }), "shard 3 has locked: {lock:?}");
    several.deliver(lock.clone());
    // Refused: nothing stays locked at shard 3, and the second waits at shard 2.
    let (_, refusal) = several.worlds[2].peer_replies.pop().expect("an answer at once");
    several.at(lock.intent.shard).event(crate::front::Event::PeerReply(refusal));
    assert!(several.worlds[3].shard.back().has_no_locks());
    let again = several.take_calls();
    assert!(again.iter().any(|call| matches!(call.step, PeerStep::Lock { waits: true, .. })), "{again:?}");
    again.into_iter().for_each(|call| several.deliver(call));
    assert!(several.result(second).is_none() && several.result(first).is_none());
    several.settle();
    assert!(several.result(first).is_some_and(|result| result.is_ok()));
    assert_eq!((several.result(second), several.has_no_locks()), (Some(Err(Error::Exists)), true));
}

#[test]
fn a_step_that_is_due_is_sent_as_soon_as_its_shard_asks() {
    let mut several = Several::new();
    let [_, d1, d2, _] = several.directories[..] else { panic!("four directories") };
    let file = several.make((d1, "f"));
    let call = several.begin(A, mv((d1, "f"), (d2, "g"), RenameMode::Replace));
    several.round_trip();
    assert!(several.result(call).is_some_and(|result| result.is_ok()));
    // For two minutes nothing passes, after which the next sending would be a minute away.
    for _ in 0..120 {
        several.worlds[1].pass(1000, &[A, B]);
        several.take_calls();
    }
    several.worlds[2].pass(3000, &[A, B]);
    let asks = several.take_calls().remove(0);
    several.deliver(asks);
    several.deliver_replies();
    several.worlds[1].pass(500, &[A, B]);
    several.settle();
    assert_eq!((several.names((d2, "g")), several.has_no_locks()), (Some(file), true));
}
