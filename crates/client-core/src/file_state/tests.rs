//! Orders of replies, recalls and ends of sessions in which something could be lost.

use super::*;
use crate::examples;
use crate::file_objects::Held;
use weft_protocol::capability::CapabilityClaims;
use weft_protocol::{FileKind, Generation, Layout, MapEpoch, NodeId, NodeKey, ObjectId};

const SESSION: SessionId = SessionId(1);
const NEXT_SESSION: SessionId = SessionId(2);
const EXCLUSIVE: Grants = Grants::OPEN.union(Grants::DATA_EXCLUSIVE);

fn object(number: u64) -> ObjectId {
    ObjectId::new(NodeId(0), number)
}

fn attributes(size: u64, object: Option<ObjectId>) -> Attributes {
    let layout = object.map_or(Layout::Empty, |object| Layout::Whole { object, generation: Generation(1) });
    let time = i64::try_from(size).unwrap();
    Attributes { size, layout, ..examples::attributes(InodeNumber::from_raw(7), FileKind::Regular, time) }
}

fn right(object: ObjectId, rights: Rights) -> Capability {
    NodeKey::new([7; 32]).sign(&CapabilityClaims {
        object,
        count: 1,
        inode: InodeNumber::from_raw(7),
        generation: Generation(1),
        epoch: MapEpoch(1),
        expires_seconds: 1000,
        owner_uid: 0,
        rights,
        session: SESSION,
    })
}

/// A reply to an open for reading and writing.
fn reply(size: u64, object: Option<ObjectId>, grants: Grants, stamp: u64) -> Opened {
    let capability = object.map(|object| right(object, Rights::READ | Rights::WRITE));
    Opened {
        attributes: attributes(size, object),
        capability,
        others: Vec::new(),
        grants,
        stamp,
        session: SESSION,
        access: Access::ReadWrite,
    }
}

/// A file that was opened with these grants by a reply with stamp 10.
fn opened(size: u64, object: Option<ObjectId>, grants: Grants) -> FileState {
    let mut file = FileState::new(&attributes(0, None), SESSION);
    file.will_write();
    file.opened(&reply(size, object, grants, 10), SESSION, false);
    file
}

/// The size that is told over one of 5 bytes from the shard; `None`: it has to be asked for again.
fn told(file: &FileState, asked: bool, since: u64) -> Option<u64> {
    let mut attributes = attributes(5, Some(object(1)));
    file.overlay(&mut attributes, asked, since).then_some(attributes.size)
}

#[test]
fn a_recall_takes_what_was_granted_before_it_to_its_session() {
    let file = || opened(9, Some(object(1)), EXCLUSIVE);
    for (session, stamp, takes) in [(SESSION, 11, true), (SESSION, 9, false), (NEXT_SESSION, 11, false)] {
        let mut file = file();
        assert_eq!(file.weaken(session, stamp), takes);
        assert_eq!(file.is_exclusive(), !takes, "session {session}, stamp {stamp}");
    }
    let mut lost = file();
    lost.lose_session(NEXT_SESSION, false, 1);
    lost.weaken(NEXT_SESSION, 11);
    assert!(lost.to_open().is_some(), "a lease that is lost stays lost");
}

#[test]
fn a_reply_that_was_overtaken_gives_its_right_only() {
    // By another open.
    let mut file = opened(9, Some(object(1)), Grants::OPEN | Grants::DATA_SHARED);
    assert!(!file.opened(&reply(3, None, EXCLUSIVE, 8), SESSION, false));
    assert_eq!((file.size(), file.object(), file.is_exclusive()), (9, Some(object(1)), false));
    // By a report of our own.
    let mut file = opened(0, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::READ) });
    file.written(20, Timestamp(1));
    assert!(file.reported(&attributes(20, Some(object(1))), 12, 1));
    file.opened(&reply(0, None, EXCLUSIVE, 11), SESSION, false);
    assert_eq!((file.size(), file.object()), (20, Some(object(1))));
    file.opened(&reply(0, Some(object(1)), EXCLUSIVE, 12), SESSION, false);
    let rights = file.held().map(|held| held.capability.rights);
    assert_eq!((file.size(), rights), (20, Some(Rights::READ | Rights::WRITE)));
}

#[test]
fn what_a_state_that_was_dropped_had_reported_is_asked_for() {
    let mut file = opened(3, Some(object(1)), EXCLUSIVE);
    file.reported_before(9, 10, 4);
    assert!(file.to_open().is_none(), "the open told of a later moment");
    file.reported_before(11, 10, 4);
    assert!(file.to_open().is_some());
    assert_eq!((told(&file, false, 3), told(&file, false, 4)), (None, Some(5)));
    // It was asked for, and written since: a reply that is later still takes nothing of that.
    file.opened_again(&reply(3, Some(object(1)), EXCLUSIVE, 12), SESSION, false);
    file.written(30, Timestamp(1));
    file.opened(&reply(3, Some(object(1)), EXCLUSIVE, 9), SESSION, false);
    file.reported_before(11, 9, 5);
    assert_eq!((file.to_open(), file.size(), file.is_dirty()), (None, 30, true));
}

#[test]
fn what_was_written_through_the_server_is_reported_before_a_lease_counts() {
    let mut file = opened(9, Some(object(1)), Grants::OPEN);
    assert!(!file.reports_before_lease());
    file.written(30, Timestamp(1));
    assert!(file.reports_before_lease());
    let mut exclusive = opened(9, Some(object(1)), EXCLUSIVE);
    exclusive.written(30, Timestamp(1));
    assert!(!exclusive.reports_before_lease(), "our word counts already");
}

#[test]
fn a_file_without_an_object_is_opened_again_by_a_reader_without_a_lease() {
    for (object_known, grants, asks) in
        [(None, Grants::OPEN, true), (None, EXCLUSIVE, false), (Some(object(1)), Grants::OPEN, false)]
    {
        let mut file = opened(9, object_known, grants);
        file.doubt_missing_object();
        assert_eq!(file.to_open().is_some(), asks, "{object_known:?} {grants:?}");
    }
}

#[test]
fn an_object_that_came_second_is_let_go() {
    let mut file = opened(0, None, Grants::OPEN);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
    file.written(4, Timestamp(1));
    let Some(ShardRequest::Commit { object: told, size: 4, .. }) = file.report(1, false) else { panic!("no report") };
    assert_eq!(told, Some(object(1)));
    assert!(!file.reported(&attributes(9, Some(object(2))), 12, 1));
    assert_eq!((file.held(), file.to_open(), file.size()), (None, Some(Access::ReadWrite), 9));
}

#[test]
fn an_object_that_is_let_go_with_what_a_program_wrote_is_told_of() {
    for way in ["reported", "opened", "cut"] {
        let mut file = opened(0, None, EXCLUSIVE);
        file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
        file.written(4, Timestamp(1));
        match way {
            "reported" => assert!(!file.reported(&attributes(9, Some(object(2))), 12, 1)),
            "opened" => assert!(file.opened(&reply(9, Some(object(2)), Grants::OPEN, 12), SESSION, false)),
            _ => assert!(file.changed(&attributes(9, Some(object(2))), 12, 1)),
        }
        assert_eq!(file.flushed(Ok(()), || 9), Err(Error::Device(errno::EIO)), "{way}");
    }
    // What is reported is the shard's to keep.
    let mut file = opened(0, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
    file.written(4, Timestamp(1));
    assert!(file.reported(&attributes(4, Some(object(1))), 12, 1));
    file.opened(&reply(9, Some(object(2)), Grants::OPEN, 13), SESSION, false);
    assert_eq!(file.flushed(Ok(()), || 9), Ok(()));
}

#[test]
fn a_file_that_has_an_object_is_given_no_other() {
    // The reply to an open is overtaken by a report that found another object, or by a change after the session ended.
    for ended in [false, true] {
        let mut file = opened(0, None, Grants::OPEN);
        let session = if ended { NEXT_SESSION } else { SESSION };
        if ended {
            file.lose_session(NEXT_SESSION, false, 1);
            file.changed(&attributes(9, Some(object(2))), 12, 2);
        } else {
            file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
            file.written(4, Timestamp(1));
            file.reported(&attributes(9, Some(object(2))), 12, 1);
        }
        let late = Opened { session, ..reply(9, Some(object(2)), EXCLUSIVE, 11) };
        file.opened(&late, session, false);
        assert_eq!((file.held(), file.to_open()), (None, Some(Access::ReadWrite)), "ended: {ended}");
        assert!(!file.open_again_unasked(Access::ReadWrite));
        let again = Opened { session, ..reply(9, Some(object(2)), EXCLUSIVE, 13) };
        file.opened_again(&again, session, false);
        assert_eq!((file.object(), file.to_open()), (Some(object(2)), None));
    }
}

#[test]
fn a_new_object_is_made_known_before_a_write_that_has_to_survive_ends() {
    let new = |grants| {
        let mut file = opened(0, None, grants);
        file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
        file
    };
    assert!(new(EXCLUSIVE).reports_object(true), "direct");
    assert!(!new(EXCLUSIVE).reports_object(false), "as a program's own buffer");
    assert!(new(Grants::OPEN).reports_object(false), "others have to find it");
    assert!(!opened(0, Some(object(1)), EXCLUSIVE).reports_object(true), "it is known");
}

/// What a flush or close of a program tells.
fn tell_flusher(file: &mut FileState) -> Option<Error> {
    let error = file.error_of_flush().cloned();
    file.flusher_is_told();
    error
}

#[test]
fn what_a_flush_could_not_write_is_told_once_and_not_tried_again() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    assert!(file.may_gather());
    file.fail(Error::CapabilityRejected);
    // On recall nobody is told.
    assert_eq!(file.flushed(Ok(()), || 9), Err(Error::Device(errno::EIO)));
    assert!(file.is_kept());
    assert_eq!(tell_flusher(&mut file), Some(Error::Device(errno::EIO)), "the next program is");
    assert_eq!((file.flushed(Ok(()), || 9), tell_flusher(&mut file)), (Ok(()), None));
    assert!(!file.may_gather(), "it may have been told in a place where nobody looks");
    file.arrived();
    assert!(file.may_gather());
}

#[test]
fn a_flush_that_fails_has_lost_nothing_by_itself() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    file.written(4, Timestamp(1));
    assert_eq!(file.flushed(Err(Error::Unreachable), || 9), Err(Error::Unreachable));
    assert_eq!((file.error(), file.may_gather(), file.is_dirty()), (None, true, true));
    assert_eq!(file.flushed(Ok(()), || 9), Ok(()));
}

#[test]
fn what_a_write_was_told_a_flush_is_told_too() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    file.fail(Error::NoSpace);
    assert_eq!(file.error(), Some(&Error::NoSpace));
    file.writer_is_told();
    assert_eq!(file.error(), None, "a write is told once");
    // There is room again: what was lost is lost all the same.
    file.arrived();
    assert!(file.may_gather() && file.owes_error() && !file.is_kept());
    file.writer_is_told();
    assert_eq!((tell_flusher(&mut file), tell_flusher(&mut file)), (Some(Error::NoSpace), None));
    assert!(!file.owes_error() && file.is_kept());
    file.fail(Error::NoSpace);
    file.writer_is_told();
    file.fail(Error::SessionEnded);
    assert_eq!((tell_flusher(&mut file), tell_flusher(&mut file)), (Some(Error::SessionEnded), None), "one of them");
}

#[test]
fn what_could_not_be_reported_is_kept() {
    let mut file = opened(0, Some(object(1)), Grants::OPEN);
    assert!(!file.is_kept());
    file.written(4, Timestamp(1));
    assert!(file.flushed(Err(Error::Unreachable), || 9).is_err() && file.is_kept());
}

#[test]
fn what_has_no_name_any_more_is_not_kept_for_the_next_open() {
    let removed = |mut attributes: Attributes| {
        attributes.links = 0;
        attributes
    };
    let mut file = opened(0, None, EXCLUSIVE);
    assert!(file.is_kept());
    file.reported(&removed(attributes(4, Some(object(1)))), 11, 1);
    assert!(!file.is_kept());
    let mut file = opened(0, Some(object(1)), Grants::OPEN);
    file.written(4, Timestamp(1));
    let mut again = reply(0, Some(object(1)), EXCLUSIVE, 12);
    again.attributes = removed(again.attributes);
    file.opened(&again, SESSION, false);
    assert!(file.is_unlinked() && file.is_kept(), "it is to be reported first");
}

#[test]
fn sizes_are_those_of_whoever_knows_best() {
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    assert_eq!(told(&file, true, 0), Some(9), "an exclusive lease: our word");
    file.written(30, Timestamp(1));
    file.weaken(SESSION, 11);
    assert_eq!(told(&file, true, 0), Some(30), "not reported yet: nobody else knows");
    file.reported(&attributes(30, Some(object(1))), 12, 1);
    assert_eq!(told(&file, true, 0), None, "a report passed what was asked for");
    assert_eq!(told(&file, true, 1), Some(5));
    file.written(40, Timestamp(2));
    assert_eq!(told(&file, true, 1), Some(5), "others write too: the shard asks the server");
    assert_eq!(told(&file, false, 1), None, "what was known has not our last write");
}

#[test]
fn what_the_shard_told_before_a_flush_that_failed_is_not_believed_after_it() {
    let mut file = opened_and_written(EXCLUSIVE);
    file.weaken(SESSION, 11);
    assert_eq!(told(&file, true, 0), Some(9), "nobody else knows");
    assert!(file.flushed(Err(Error::Unreachable), || 1).is_err());
    assert_eq!(told(&file, true, 0), None, "the bytes have come to the server since");
    assert_eq!(told(&file, true, 1), Some(5), "it is asked again");
}

#[test]
fn a_recall_that_cannot_be_answered_yet_leaves_the_size_with_the_writer() {
    let mut file = opened(3, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
    file.written(9, Timestamp(1));
    file.weaken(SESSION, 11);
    assert_eq!(file.flushed(Err(Error::Unreachable), || 9), Err(Error::Unreachable));
    assert_eq!(told(&file, true, 0), Some(file.size()), "the report of the new object has no answer");
    file.new_object_is_lost();
    assert!(!file.decides(), "the object is let go");
}

#[test]
fn a_write_under_an_exclusive_lease_has_one_time_and_each_is_later_than_the_last() {
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    let told = |file: &FileState| {
        let mut attributes = attributes(5, Some(object(1)));
        assert!(file.overlay(&mut attributes, true, 1));
        (attributes.mtime, attributes.ctime)
    };
    file.written(30, Timestamp(100));
    assert_eq!(told(&file), (Timestamp(100), Timestamp(100)));
    // The run arrives, and its node's clock is ahead.
    file.object_written(Timestamp(5000));
    file.landed(30);
    assert_eq!(told(&file), (Timestamp(100), Timestamp(100)));
    // This client's own clock was set back.
    file.written(31, Timestamp(50));
    assert_eq!(told(&file), (Timestamp(101), Timestamp(101)));
    // While the lease is given up, and in the report, it is the same.
    file.weaken(SESSION, 11);
    assert_eq!(told(&file), (Timestamp(101), Timestamp(101)));
    let Some(ShardRequest::Commit { mtime, object_mtime, .. }) = file.report(1, false) else { panic!("no report") };
    assert_eq!((mtime, object_mtime), (Some(Timestamp(101)), Timestamp(5000)));
    file.reported(&attributes(31, Some(object(1))), 12, 1);
    file.written(40, Timestamp(200));
    let Some(ShardRequest::Commit { mtime, .. }) = file.report(1, false) else { panic!("no report") };
    assert_eq!(mtime, None, "the object decides now");
}

#[test]
fn a_direct_write_under_an_exclusive_lease_has_the_time_that_survives_its_client() {
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    let told = |file: &FileState| {
        let mut attributes = attributes(9, Some(object(1)));
        assert!(file.overlay(&mut attributes, true, 1));
        (attributes.mtime.0, attributes.ctime.0)
    };
    file.direct_write_begins(30);
    assert_eq!((file.size(), told(&file)), (30, (9, 9)), "its time is not known yet");
    file.direct_write_landed(30, Timestamp(345));
    assert_eq!(told(&file), (345, 345));
    // Replies of two writes pass each other: the shard would hear of the later time only.
    file.direct_write_landed(40, Timestamp(500));
    file.direct_write_landed(35, Timestamp(400));
    assert_eq!((file.size(), told(&file)), (40, (500, 500)));
    let Some(ShardRequest::Commit { mtime, object_mtime, .. }) = file.report(1, false) else { panic!("no report") };
    assert_eq!((mtime, object_mtime), (Some(Timestamp(500)), Timestamp(500)));
    // The node's clock is behind that of the last change.
    file.written(41, Timestamp(600));
    file.direct_write_landed(42, Timestamp(550));
    assert_eq!(told(&file), (601, 601));
}

#[test]
fn a_right_that_ends_under_an_exclusive_lease_takes_no_size_with_it() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    file.written(30, Timestamp(1));
    file.right_is_void();
    assert_eq!((file.held(), file.to_open()), (None, Some(Access::ReadWrite)));
    // The shard has not heard of it.
    file.opened_again(&reply(0, Some(object(1)), EXCLUSIVE, 12), SESSION, false);
    assert_eq!((file.size(), file.is_dirty(), file.object()), (30, true, Some(object(1))));
    // Others had it meanwhile: what the shard says of the file counts.
    file.right_is_void();
    file.opened_again(&reply(3, Some(object(2)), Grants::OPEN, 14), SESSION, false);
    assert_eq!((file.size(), file.is_dirty(), file.object()), (3, false, Some(object(2))));
}

#[test]
fn an_object_that_is_made_changes_no_time() {
    let reported = |file: &FileState| match file.report(1, false) {
        Some(ShardRequest::Commit { mtime, .. }) => mtime,
        report => panic!("{report:?}"),
    };
    let made = Held { object: object(1), capability: right(object(1), Rights::WRITE) };
    let mut file = opened(0, None, EXCLUSIVE);
    let known = file.attributes().mtime;
    file.object_made(made);
    file.object_written(Timestamp(known.0 + 100));
    assert_eq!(reported(&file), Some(known));
    let mut file = opened(0, None, Grants::OPEN);
    file.object_made(made);
    assert_eq!(reported(&file), None, "others may write it: its storage server knows");
}

#[test]
fn the_first_direct_write_is_later_than_the_objects_that_are_made_for_it() {
    // Those of a striped file are made at nodes whose clocks differ.
    let mut file = opened(9, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
    file.object_written(Timestamp(500));
    file.direct_write_landed(30, Timestamp(400));
    assert_eq!(file.attributes().mtime, Timestamp(400));
    let Some(ShardRequest::Commit { object_mtime, .. }) = file.report(1, false) else { panic!("no report") };
    assert_eq!(object_mtime, Timestamp(500), "that an object was made is no write, whoever looks at it");
}

#[test]
fn only_who_writes_a_file_reports_after_a_cut_that_failed_in_part() {
    let mut writer = opened(9, Some(object(1)), EXCLUSIVE);
    assert!(writer.cut_in_part() && writer.is_dirty());
    let mut reader = FileState::new(&attributes(0, None), SESSION);
    let open = Opened { access: Access::Read, ..reply(9, Some(object(1)), Grants::OPEN | Grants::DATA_SHARED, 10) };
    reader.opened(&open, SESSION, false);
    assert!(!reader.cut_in_part() && !reader.is_dirty(), "the shard takes no report of it");
    assert!(reader.to_open().is_some(), "it may know another size by now");
}

#[test]
fn what_the_shard_knows_of_a_write_since_the_last_session_has_no_time_of_this_client() {
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    file.written(30, Timestamp(100));
    file.lose_session(NEXT_SESSION, false, 1);
    let open = Opened { session: NEXT_SESSION, ..reply(40, Some(object(1)), EXCLUSIVE, 20) };
    file.opened(&open, NEXT_SESSION, false);
    file.object_written(Timestamp(35));
    file.written_by_somebody();
    assert_eq!(file.attributes().mtime, Timestamp(40));
    let Some(ShardRequest::Commit { mtime, object_mtime, .. }) = file.report(2, false) else { panic!("no report") };
    assert_eq!((mtime, object_mtime), (None, Timestamp(35)), "the shard says whether it is a write");
}

#[test]
fn an_exclusive_lease_keeps_others_out_until_it_is_recalled_or_its_session_ends() {
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    file.right_is_void();
    assert!(file.keeps_others_out(), "the shard has asked for nothing");
    file.weaken(SESSION, 11);
    assert!(!file.keeps_others_out(), "others may have written since");
    let mut file = opened(9, Some(object(1)), EXCLUSIVE);
    file.lose_session(NEXT_SESSION, false, 1);
    assert!(!file.keeps_others_out(), "others may have written since");
}

#[test]
fn nothing_of_a_session_is_believed_under_the_next_one() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    file.written(30, Timestamp(1));
    assert!(!file.lose_session(NEXT_SESSION, false, 4), "what was written is at the server");
    assert_eq!((file.held(), file.is_dirty(), file.error()), (None, false, None));
    file.opened(&reply(0, Some(object(1)), EXCLUSIVE, 12), NEXT_SESSION, false);
    assert!(file.to_open().is_some(), "a grant to the one before");
    // Nor does it take what was written under the next one.
    file.opened(&Opened { session: NEXT_SESSION, ..reply(0, Some(object(1)), EXCLUSIVE, 13) }, NEXT_SESSION, false);
    file.written(40, Timestamp(2));
    file.opened(&reply(0, Some(object(1)), EXCLUSIVE, 14), NEXT_SESSION, false);
    assert_eq!((file.size(), file.is_dirty(), file.is_exclusive()), (40, true, true));
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    assert!(file.lose_session(NEXT_SESSION, true, 4));
    assert_eq!(file.error_of_flush(), Some(&Error::SessionEnded));
}

#[test]
fn what_was_told_to_a_session_that_has_ended_since_is_asked_for_again() {
    let mut file = opened(0, Some(object(1)), EXCLUSIVE);
    file.written(30, Timestamp(1));
    // The shard tells the only writer what it knows itself, which the writer knows better.
    assert_eq!(told(&file, true, 3), Some(30));
    file.lose_session(NEXT_SESSION, false, 4);
    assert_eq!((told(&file, true, 3), told(&file, true, 4)), (None, Some(5)));
}

#[test]
fn a_change_that_was_overtaken_tells_nothing() {
    let mut file = opened(9, Some(object(1)), Grants::OPEN);
    assert!(!file.changed(&attributes(0, None), 9, 1));
    assert_eq!(file.size(), 9);
    assert!(file.changed(&attributes(0, None), 11, 2));
    assert_eq!((file.size(), file.held()), (0, None));
}

#[test]
fn an_object_that_the_node_did_not_make_is_not_reported() {
    let mut file = opened(30, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::READ | Rights::WRITE) });
    file.written(50, Timestamp(1));
    assert!(file.report(1, false).is_some());
    file.object_was_not_made();
    assert_eq!((file.report(1, false), file.held(), file.size(), file.error()), (None, None, 30, None));
    assert_eq!(file.attributes().layout, Layout::Empty);
}

#[test]
fn a_size_falls_back_to_what_is_there_and_not_below_what_was_there() {
    let mut file = opened(30, Some(object(1)), EXCLUSIVE);
    file.settled(30);
    assert!(!file.is_dirty());
    file.written(50, Timestamp(1));
    assert!(file.reported(&attributes(50, Some(object(1))), 12, 1));
    file.settled(40);
    assert_eq!((file.size(), file.is_dirty()), (40, true), "the shard has to know");
    // The first object of a file that was made longer before it had one.
    let mut file = opened(30, None, EXCLUSIVE);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::READ | Rights::WRITE) });
    file.written(50, Timestamp(1));
    file.settled(0);
    assert_eq!(file.size(), 30);
}

#[test]
fn a_write_opens_the_file_again_where_only_a_reader_has_opened_it_since_the_session_began() {
    let mut file = opened(0, None, EXCLUSIVE);
    file.lose_session(NEXT_SESSION, false, 1);
    let read = Opened { session: NEXT_SESSION, access: Access::Read, ..reply(0, None, Grants::OPEN, 12) };
    file.opened(&read, NEXT_SESSION, false);
    assert_eq!(file.to_open(), None, "enough to read");
    file.doubt_open_to_write();
    assert_eq!(file.to_open(), Some(Access::ReadWrite));
    file.opened_again(&Opened { session: NEXT_SESSION, ..reply(0, None, EXCLUSIVE, 13) }, NEXT_SESSION, false);
    file.doubt_open_to_write();
    assert_eq!((file.to_open(), file.is_exclusive()), (None, true));
}

#[test]
fn a_file_is_opened_again_before_it_is_believed_while_a_cut_has_no_answer() {
    for dirty in [false, true] {
        let mut file = opened(30, Some(object(1)), EXCLUSIVE);
        if dirty {
            file.written(50, Timestamp(1));
        }
        file.cut_in_doubt();
        assert_eq!((file.to_open(), file.is_leased()), (Some(Access::ReadWrite), false));
        file.opened_again(&reply(8, Some(object(1)), EXCLUSIVE, 12), SESSION, false);
        assert_eq!((file.is_exclusive(), file.is_dirty()), (true, dirty));
        if !dirty {
            assert_eq!(file.size(), 8);
        }
        // Of what is not reported only the object knows what the cut has left.
        file.settled(8);
        assert_eq!((file.size(), file.report(1, false).is_some()), (8, dirty));
    }
}

#[test]
fn what_was_written_through_the_server_is_still_to_be_reported_after_a_cut_in_doubt() {
    let opened_after = |object: ObjectId, grants: Grants| {
        let mut file = opened_and_written(Grants::OPEN);
        file.cut_in_doubt();
        file.opened_again(&reply(0, Some(object), grants, 12), SESSION, false);
        assert_eq!(file.to_open(), None);
        file
    };
    let file = opened_after(object(1), Grants::OPEN);
    assert!(file.is_dirty() && file.report(1, false).is_some());
    assert!(!opened_after(object(2), Grants::OPEN).is_dirty(), "it is in an object that the file does not have");
    let mut leased = opened_after(object(1), EXCLUSIVE);
    assert!(!leased.is_dirty());
    leased.settled(9);
    assert!(leased.report(1, false).is_some(), "the object has more than came with the lease");
}

#[test]
fn a_new_object_that_cannot_be_reported_gives_way_to_that_of_another_writer() {
    let mut file = opened(0, None, Grants::OPEN);
    file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
    file.changed_unseen();
    assert!(!file.take_another_object(&attributes(0, None)), "it has none yet");
    assert!(file.report(1, false).is_some());
    assert!(file.take_another_object(&attributes(9, Some(object(2)))));
    assert_eq!((file.held(), file.size(), file.report(1, false)), (None, 9, None));
    assert_eq!(file.to_open(), Some(Access::ReadWrite));
}

#[test]
fn what_was_written_through_the_server_is_not_in_the_size_that_comes_with_a_lease_before_it_is_reported() {
    let mut file = opened(0, Some(object(1)), Grants::OPEN);
    assert!(!file.has_unreported_through_server());
    file.written(9, Timestamp(1));
    file.right_is_void();
    assert!(file.has_unreported_through_server());
    file.opened_again(&reply(0, Some(object(1)), EXCLUSIVE, 12), SESSION, false);
    assert_eq!((file.size(), file.is_exclusive()), (0, true), "the shard's, which has not heard of the write");
    file.settled(9);
    assert_eq!((file.size(), file.report(1, false).is_some()), (9, true));
    assert!(!opened_and_written(EXCLUSIVE).has_unreported_through_server(), "nobody knows better");
}

fn opened_and_written(grants: Grants) -> FileState {
    let mut file = opened(0, Some(object(1)), grants);
    file.written(9, Timestamp(1));
    file
}

#[test]
fn a_new_object_that_is_given_up_unreported_is_told_of_if_a_program_relies_on_it() {
    for relies in [true, false] {
        let mut file = opened(3, None, if relies { EXCLUSIVE } else { Grants::OPEN });
        file.object_made(Held { object: object(1), capability: right(object(1), Rights::WRITE) });
        file.written(9, Timestamp(1));
        file.new_object_is_lost();
        assert_eq!(
            (file.held(), file.size(), file.report(1, false)),
            (None, 3, None),
            "no later report makes it the file's"
        );
        assert_eq!((file.error().is_some(), file.to_open()), (relies, Some(Access::ReadWrite)));
    }
}
