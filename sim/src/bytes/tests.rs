//! What may be read of writes that overlap, are lost, fail, or may still appear.

use super::*;

const FILE: InodeNumber = InodeNumber::ROOT;

fn write(files: &mut Files, by: ProcessId, offset: u64, value: u8) -> OperationId {
    let id = files.write(by, FILE, Some(offset), 4, value);
    files.ended(id, false);
    id
}

fn reads(files: &mut Files, told: &[u8]) -> bool {
    let since = files.moment();
    files.compare_read(FILE, (0, 8), told, since).is_ok()
}

#[test]
fn the_last_write_is_read_and_nothing_else() {
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    write(&mut files, 2, 2, 8);
    assert!(reads(&mut files, &[7, 7, 8, 8, 8, 8]));
    assert!(!reads(&mut files, &[7, 7, 7, 8, 8, 8]));
    assert!(!reads(&mut files, &[7, 7, 8, 8]));
    assert!(!reads(&mut files, &[7, 7, 8, 8, 8, 8, 0]));
}

#[test]
fn a_write_on_its_way_may_be_seen_or_not() {
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    files.write(2, FILE, Some(0), 4, 8);
    assert!(reads(&mut files, &[7, 8, 7, 8]));
    assert!(!reads(&mut files, &[7, 8, 7, 9]));
}

#[test]
fn buffers_are_lost_with_their_process_but_not_what_was_flushed() {
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    let since = files.moment();
    files.flushed(1, FILE, since);
    write(&mut files, 1, 0, 8);
    assert!(!reads(&mut files, &[7; 4]));
    files.died(1);
    assert!(reads(&mut files, &[7; 4]) && reads(&mut files, &[8; 4]));
    assert!(!reads(&mut files, &[]));
    write(&mut files, 2, 0, 9);
    files.settled(since + 1000);
    assert!(reads(&mut files, &[9; 4]));
}

#[test]
fn what_became_of_a_write_in_doubt_is_the_same_for_all_who_see_it() {
    for (first, second) in [([7, 7, 7, 7], [8, 8, 8, 8]), ([8, 8, 8, 8], [7, 7, 7, 7])] {
        let mut files = Files::default();
        write(&mut files, 1, 0, 7);
        let since = files.moment();
        files.flushed(1, FILE, since);
        write(&mut files, 1, 0, 8);
        files.lost_buffers(1, FILE);
        assert!(reads(&mut files, &first) && reads(&mut files, &second), "it may be on its way");
        let now = files.moment();
        files.settled(now);
        assert!(reads(&mut files, &first) && !reads(&mut files, &second) && reads(&mut files, &first));
    }
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    files.lost_buffers(1, FILE);
    let now = files.moment();
    files.settled(now);
    let since = files.moment();
    assert!(files.compare_size(FILE, 0, since).is_ok());
    let since = files.moment();
    assert!(files.compare_size(FILE, 4, since).is_err() && !reads(&mut files, &[7; 4]) && reads(&mut files, &[]));
}

#[test]
fn what_was_seen_of_a_clients_changes_is_lost_with_its_session() {
    for ends in [true, false] {
        let mut files = Files::default();
        write(&mut files, 1, 0, 7);
        files.lost_buffers(1, FILE);
        let now = files.moment();
        files.settled(now);
        assert!(reads(&mut files, &[7; 4]) && !reads(&mut files, &[]), "it was seen");
        if !ends {
            let now = files.moment();
            files.flushed(1, FILE, now);
        }
        files.fenced(1, routing::of_inode(FILE), None);
        assert_eq!(reads(&mut files, &[]), ends);
    }
}

#[test]
fn what_was_seen_of_a_write_that_the_next_session_holds_is_lost_with_its_buffers() {
    for is_safe in [true, false] {
        let mut files = Files::default();
        let id = files.write(1, FILE, Some(0), 4, 7);
        files.fenced(1, routing::of_inode(FILE), None);
        files.ended(id, is_safe);
        assert!(reads(&mut files, &[7; 4]) && !reads(&mut files, &[]), "it was seen");
        files.gave_up_buffers(1, FILE);
        assert_eq!(reads(&mut files, &[]), !is_safe);
    }
}

#[test]
fn what_could_not_be_reported_may_appear_until_its_client_flushes() {
    for refused in [true, false] {
        let mut files = Files::default();
        let id = files.write(1, FILE, Some(0), 4, 7);
        files.failed(id, refused);
        let now = files.moment();
        files.settled(now);
        let since = files.moment();
        assert!(files.compare_size(FILE, 0, since).is_ok());
        assert_eq!(reads(&mut files, &[7; 4]), !refused);
    }
}

#[test]
fn a_cut_takes_what_is_behind_it() {
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    let id = files.cut(1, FILE, 2);
    files.ended(id, true);
    assert!(reads(&mut files, &[7, 7]) && !reads(&mut files, &[7; 4]));
    write(&mut files, 1, 4, 8);
    assert!(reads(&mut files, &[7, 7, 0, 0, 8, 8, 8, 8]));
    let since = files.moment();
    assert!(files.compare_size(FILE, 8, since).is_ok() && files.compare_size(FILE, 7, since).is_err());
}

#[test]
fn a_loss_that_nobody_was_told_of_is_found() {
    let mut files = Files::default();
    write(&mut files, 1, 0, 7);
    files.lost_buffers(1, FILE);
    let since = files.moment();
    assert!(files.flush_went_well(1, FILE, 0).is_ok(), "they were lost meanwhile");
    assert!(files.flush_went_well(1, FILE, since).is_err());
    files.told(1, FILE);
    assert!(files.flush_went_well(1, FILE, since).is_ok());
}

#[test]
fn a_member_may_see_where_an_append_was_written_first_if_the_file_was_cut_since() {
    for (is_cut, member, is_allowed) in [(true, Some(9), true), (false, Some(9), false), (true, None, false)] {
        let mut files = Files::default();
        write(&mut files, 1, 0, 7);
        let since = files.moment();
        if is_cut {
            let id = files.cut(1, FILE, 0);
            files.ended(id, true);
        }
        let id = files.write(1, FILE, None, 2, 8);
        files.append_tried(id, 1);
        files.append_placed(id, 4);
        files.append_tried(id, 4);
        files.ended(id, true);
        let told = files.compare_read(FILE, (0, 4), &[7, 8, 8, 7], View { since, member });
        assert_eq!(told.is_ok(), is_allowed, "{told:?}");
        let later = files.moment();
        let told = files.compare_read(FILE, (0, 4), &[7, 8, 8, 7], View { since: later, member });
        assert!(told.is_err(), "it has synchronized since");
    }
}
