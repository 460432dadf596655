//! Directories whose dentry is at one shard and whose inode is at another: two shards wired together by hand, so that
//! each message can be lost or doubled.

use super::harness::*;
use crate::front::Event;
use weft_protocol::limits::SESSION_TERM_MS;
use weft_protocol::message::peer::{Lock, PeerCall, PeerReply, PeerStep};
use weft_protocol::message::shard::*;
use weft_protocol::*;

/// Shard 0 at node 1, shard 1 at node 2.
struct Pair {
    here: World,
    there: World,
    peer_token: u64,
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self { here: World::of_shard(0), there: World::of_shard(1), peer_token: 0 };
        let map = map_of(2);
        pair.here.event(Event::SetMap(map.clone()));
        pair.there.event(Event::SetMap(map));
        pair
    }

    /// Carries the calls that wait to the other shard, each this often. The answers are not carried yet.
    fn carry_calls(&mut self, times: u32) {
        for call in std::mem::take(&mut self.here.peer_calls) {
            for _ in 0..times {
                self.peer_token += 1;
                self.there.event(Event::PeerCall { token: self.peer_token, call: call.clone() });
            }
        }
    }

    fn carry_replies(&mut self, times: u32) {
        for (_, reply) in std::mem::take(&mut self.there.peer_replies) {
            for _ in 0..times {
                self.here.event(Event::PeerReply(reply.clone()));
            }
        }
    }

    /// Carries everything until nothing is on its way.
    fn carry_all(&mut self) {
        while !self.here.peer_calls.is_empty() || !self.there.peer_replies.is_empty() {
            self.carry_calls(1);
            self.carry_replies(1);
        }
    }

    /// The shard hears that the other one is unreachable.
    fn unreachable(&mut self, call: &PeerCall) {
        let reply = PeerReply { intent: call.intent, result: Err(Error::Unreachable) };
        self.here.event(Event::PeerReply(reply));
    }

    /// A removal by `A` that fails here, since the answer of the other shard, which has done it, is lost. The step.
    fn remove_unheard(&mut self, text: &str) -> PeerCall {
        let token = self.here.waits(A, rmdir(ROOT, text));
        let step = self.here.peer_calls[0].clone();
        self.carry_calls(1);
        self.there.answer_recalls(LeaseMode::None);
        assert_eq!(self.there.peer_replies.len(), 1);
        self.there.peer_replies.clear();
        self.unreachable(&step);
        assert_eq!(self.here.result(token), Some(Err(Error::Unreachable)));
        step
    }

    fn make(&mut self, session: SessionId, text: &str) -> InodeNumber {
        let token = self.here.waits(session, mkdir_there(text));
        self.carry_all();
        attributes(&self.here.done(token)).inode
    }
}

fn mkdir_there(text: &str) -> ShardRequest {
    ShardRequest::MakeDirectory { parent: ROOT, name: name(text), mode: 0o755, home: Some(NodeId(2)) }
}

#[test]
fn mkdir_goes_to_its_home_and_comes_back() {
    let mut pair = Pair::new();
    let token = pair.here.waits(A, mkdir_there("d"));
    // The name is locked: it is seen as absent, and another change of it waits.
    assert_eq!(pair.here.ok(B, lookup("d")), ShardAnswer::Absent { grants: Grants::empty() });
    let other = pair.here.waits(B, mkdir_there("d"));
    pair.carry_all();
    let answer = pair.here.done(token);
    let inode = attributes(&answer).inode;
    assert_eq!((routing::of_inode(inode), attributes(&answer).links), (ShardId(1), 2));
    assert_eq!(pair.here.result(other), Some(Err(Error::Exists)));
    let found = pair.here.ok(B, lookup("d"));
    assert!(matches!(found, ShardAnswer::Remote { inode: found, .. } if found == inode));
    let root = pair.here.ok(B, stat(ROOT));
    assert_eq!((attributes(&root).links, attributes(&root).size), (3, 1));
    let ShardAnswer::Page(page) = pair.there.ok(A, list(inode, None, 10)) else { panic!("a page") };
    assert_eq!((page.parent, page.entries.len()), (ROOT, 0));
    assert_eq!((pair.here.shard.deadline().is_some(), pair.here.shard.status().parked), (true, 0));
}

#[test]
fn lost_and_doubled_messages_make_one_directory() {
    let mut pair = Pair::new();
    let token = pair.here.waits(A, mkdir_there("d"));
    // Lost on the way there, then on the way back, then doubled both ways.
    pair.here.peer_calls.clear();
    pair.here.pass(1000, &[A]);
    pair.carry_calls(1);
    pair.there.peer_replies.clear();
    pair.here.pass(1000, &[A]);
    pair.carry_calls(2);
    pair.carry_replies(2);
    pair.here.done(token);
    assert_eq!(pair.there.shard.status().inodes, 1);
    // The forgetting is lost once, too.
    assert!(matches!(pair.here.peer_calls[0].step, PeerStep::Forget));
    pair.here.peer_calls.clear();
    pair.here.pass(2000, &[A]);
    pair.carry_calls(2);
    pair.carry_replies(2);
    pair.here.pass(200_000, &[A]);
    assert_eq!(pair.here.peer_calls, [], "all is forgotten");
}

#[test]
fn a_directory_that_an_ended_session_is_making_is_waited_for() {
    let mut pair = Pair::new();
    let origin = |session| Origin { session, slot: Slot { of: NodeId(1), index: SlotIndex(3) }, sequence: 1 };
    let first = pair.here.call_of(origin(A), user(0), mkdir_there("d"));
    pair.here.expire(&[B]);
    let repeated = pair.here.repeat(origin(B), user(0), mkdir_there("d"), &[origin(A)]);
    assert_eq!(pair.here.result(repeated), None);
    pair.carry_all();
    let (first, repeated) = (pair.here.done(first), pair.here.done(repeated));
    assert_eq!(attributes(&first).inode, attributes(&repeated).inode);
    assert_eq!(pair.there.shard.status().inodes, 1);
}

#[test]
fn a_shard_that_is_away_undoes_mkdir() {
    let mut pair = Pair::new();
    let token = pair.here.waits(A, mkdir_there("d"));
    let calls = pair.here.peer_calls.clone();
    // It arrived, but its answer did not come through.
    pair.carry_calls(1);
    pair.there.peer_replies.clear();
    let reply = PeerReply { intent: calls[0].intent, result: Err(Error::Unreachable) };
    pair.here.event(Event::PeerReply(reply.clone()));
    assert_eq!(pair.here.result(token), Some(Err(Error::Unreachable)));
    // It is still away, then it is back: what it made is taken back.
    assert!(matches!(pair.here.peer_calls[0].step, PeerStep::Undo));
    pair.here.peer_calls.clear();
    pair.here.event(Event::PeerReply(reply));
    assert_eq!(pair.there.shard.status().inodes, 1);
    pair.here.pass(4000, &[A]);
    pair.carry_all();
    assert_eq!((pair.there.shard.status().inodes, pair.here.shard.status().dentries), (0, 0));
    pair.make(A, "d");
}

#[test]
fn a_repeated_mkdir_finds_its_intent() {
    let mut pair = Pair::new();
    let slot = SlotIndex(1);
    let first = pair.here.call_in(A, user(0), (slot, 1), mkdir_there("d"));
    let again = pair.here.call_in(A, user(0), (slot, 1), mkdir_there("d"));
    pair.carry_all();
    let answer = pair.here.done(again);
    assert_eq!(pair.here.result(first), Some(Err(Error::Busy)), "its token has ended");
    let third = pair.here.call_in(A, user(0), (slot, 1), mkdir_there("d"));
    assert_eq!(attributes(&pair.here.done(third)), attributes(&answer));
    assert_eq!(pair.there.shard.status().inodes, 1);
}

#[test]
fn rmdir_asks_the_other_shard_whether_it_is_empty() {
    let mut pair = Pair::new();
    let inode = pair.make(A, "d");
    pair.there.ok(A, mkdir(inode, "sub"));
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    pair.carry_all();
    assert!(pair.there.recalls.is_empty(), "the caller's own leases are not in its way");
    assert_eq!(pair.here.result(token), Some(Err(Error::NotEmpty)));
    let sub = ShardRequest::RemoveDirectory { parent: inode, name: name("sub") };
    // The directory below is at either shard: here its inode is where its dentry is, or an intent carries it.
    let token = pair.there.call(A, sub);
    for call in std::mem::take(&mut pair.there.peer_calls) {
        pair.here.event(Event::PeerCall { token: 1, call });
        for (_, reply) in std::mem::take(&mut pair.here.peer_replies) {
            pair.there.event(Event::PeerReply(reply));
        }
    }
    pair.there.done(token);
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    for _ in 0..2 {
        pair.carry_calls(2);
        pair.carry_replies(2);
    }
    assert!(matches!(pair.here.done(token), ShardAnswer::Removed { inode: gone, links: 0, .. } if gone == inode));
    assert_eq!(attributes(&pair.here.ok(A, stat(ROOT))).links, 2);
    assert_eq!(pair.here.peer_calls, [], "nothing is left to be told");
    // Both are without a name, and whoever was told of them may use them for a term.
    assert_eq!(pair.there.shard.status().inodes, 2);
    pair.there.pass(SESSION_TERM_MS, &[A]);
    assert_eq!((pair.there.shard.status().inodes, pair.here.shard.status().dentries), (0, 0));
}

#[test]
fn an_open_directory_at_another_shard_stays_when_it_is_removed() {
    let mut pair = Pair::new();
    let inode = pair.make(A, "d");
    pair.there.ok(B, ShardRequest::HoldDirectory { inode });
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    pair.carry_calls(2);
    pair.there.answer_recalls(LeaseMode::None);
    pair.carry_all();
    pair.here.done(token);
    pair.there.pass(2 * SESSION_TERM_MS, &[B]);
    assert_eq!(attributes(&pair.there.ok(B, stat(inode))).links, 0);
    pair.there.ok(B, ShardRequest::EndSession);
    assert_eq!(pair.there.shard.status().inodes, 0);
}

#[test]
fn rmdir_of_an_unreachable_directory_is_taken_back() {
    let mut pair = Pair::new();
    let inode = pair.make(A, "d");
    let change_time = attributes(&pair.there.ok(A, stat(inode))).ctime;
    pair.remove_unheard("d");
    // Until that shard hears of the undo, the directory stays locked, and who asks for it waits: its name is still
    // there.
    pair.here.peer_calls.clear();
    pair.there.pass(3 * SESSION_TERM_MS, &[A, B]);
    let told = pair.there.waits(B, stat(inode));
    assert_eq!(pair.here.refused(B, mkdir_there("d")), Error::Exists);
    pair.here.pass(2000, &[A]);
    pair.carry_calls(2);
    pair.carry_all();
    assert_eq!(attributes(&pair.there.done(told)).links, 2, "it was not removed");
    let found = pair.here.ok(A, lookup("d"));
    assert!(matches!(found, ShardAnswer::Remote { inode: found, .. } if found == inode));
    let answer = pair.there.ok(A, stat(inode));
    assert_eq!((attributes(&answer).links, attributes(&answer).ctime), (2, change_time));
    pair.there.pass(3 * SESSION_TERM_MS, &[A, B]);
    let made = pair.there.waits(A, mkdir(inode, "sub"));
    pair.there.answer_recalls(LeaseMode::None);
    pair.there.done(made);
}

#[test]
fn what_is_made_in_a_locked_directory_waits_until_it_is_known_whether_it_goes() {
    for is_undone in [true, false] {
        let mut pair = Pair::new();
        let inode = pair.make(A, "d");
        if is_undone {
            pair.remove_unheard("d");
        } else {
            pair.here.waits(A, rmdir(ROOT, "d"));
            pair.carry_calls(1);
            pair.there.answer_recalls(LeaseMode::None);
        }
        let made = pair.there.waits(A, mkdir(inode, "sub"));
        pair.carry_all();
        assert_eq!(pair.there.result(made).map(|made| made.is_ok()), Some(is_undone));
    }
}

#[test]
fn rmdir_of_an_unreachable_directory_can_be_repeated_before_it_is_taken_back() {
    let mut pair = Pair::new();
    let inode = pair.make(A, "d");
    let first = pair.remove_unheard("d");
    let undo = std::mem::take(&mut pair.here.peer_calls);
    assert!(matches!(undo[0].step, PeerStep::Undo));
    let token = pair.here.waits(B, rmdir(ROOT, "d"));
    pair.here.answer_recalls(LeaseMode::None);
    pair.carry_calls(1);
    pair.there.answer_recalls(LeaseMode::None);
    // The first one's steps come late, in any order: the second has taken its place.
    for call in [first.clone(), undo[0].clone(), first] {
        pair.there.event(Event::PeerCall { token: 77, call });
        pair.there.answer_recalls(LeaseMode::None);
    }
    pair.carry_all();
    assert!(matches!(pair.here.done(token), ShardAnswer::Removed { inode: gone, links: 0, .. } if gone == inode));
    pair.there.event(Event::PeerCall { token: 78, call: undo[0].clone() });
    assert_eq!(attributes(&pair.there.ok(A, stat(inode))).links, 0, "it may be open");
    pair.there.pass(2 * SESSION_TERM_MS, &[A]);
    assert_eq!((pair.there.shard.status().inodes, pair.here.shard.status().dentries), (0, 0));
}

#[test]
fn a_step_that_comes_late_does_not_take_the_place_of_a_later_one() {
    let mut pair = Pair::new();
    let inode = pair.make(A, "d");
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    let first = pair.here.peer_calls.remove(0);
    pair.unreachable(&first);
    assert_eq!(pair.here.result(token), Some(Err(Error::Unreachable)));
    let undo = pair.here.peer_calls.remove(0);
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    pair.carry_calls(1);
    pair.there.event(Event::PeerCall { token: 77, call: first });
    pair.there.event(Event::PeerCall { token: 78, call: undo });
    let told = pair.there.waits(A, stat(inode));
    pair.carry_all();
    pair.here.done(token);
    assert_eq!(attributes(&pair.there.done(told)).links, 0);
}

#[test]
fn a_late_step_of_a_forgotten_intent_does_nothing() {
    let mut pair = Pair::new();
    pair.make(A, "d");
    let token = pair.here.waits(A, rmdir(ROOT, "d"));
    let late = pair.here.peer_calls[0].clone();
    // A name on its way into the directory makes it not empty.
    let inode = pair.there.shard.back().inodes();
    assert_eq!(inode, 1);
    let directory = match late.step {
        PeerStep::Lock { ref locks, .. } => match locks[..] {
            [Lock::Inode { inode, .. }] => inode,
            _ => panic!("{late:?}"),
        },
        _ => panic!("{late:?}"),
    };
    let request =
        ShardRequest::MakeSymlink { parent: directory, name: name("s"), target: SymlinkTarget(b"t".to_vec()) };
    pair.there.ok(A, request);
    pair.carry_all();
    pair.there.answer_recalls(LeaseMode::None);
    pair.carry_all();
    assert_eq!(pair.here.result(token), Some(Err(Error::NotEmpty)));
    pair.there.ok(A, ShardRequest::Unlink { parent: directory, name: name("s") });
    pair.there.event(Event::PeerCall { token: 77, call: late });
    pair.there.answer_recalls(LeaseMode::None);
    assert_eq!(attributes(&pair.there.ok(A, stat(directory))).links, 2, "the directory is still there");
}

#[test]
fn a_sticky_directory_guards_directories_at_other_shards() {
    let mut pair = Pair::new();
    pair.here.ok(A, chmod(ROOT, 0o1777));
    let token = pair.here.call_as(A, user(5), mkdir_there("d"));
    pair.carry_all();
    pair.here.done(token);
    let token = pair.here.call_as(B, user(6), rmdir(ROOT, "d"));
    pair.here.answer_recalls(LeaseMode::None);
    pair.carry_all();
    assert_eq!(pair.here.result(token), Some(Err(Error::NotPermitted)));
    let token = pair.here.call_as(A, user(5), rmdir(ROOT, "d"));
    pair.carry_all();
    pair.here.done(token);
}
