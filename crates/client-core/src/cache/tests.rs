//! What is believed, and what not any more.

use super::*;
use crate::examples;
use weft_protocol::limits::{SESSION_TERM_MARGIN_MS, SESSION_TERM_MS};
use weft_protocol::message::shard::{DirectoryEntry, DirectoryPage, Slot};
use weft_protocol::{InodeFlags, NodeId, SlotIndex};

const DIRECTORY: InodeNumber = InodeNumber::ROOT;

fn attributes(size: u64, time: i64) -> Attributes {
    Attributes { size, ..examples::attributes(DIRECTORY, FileKind::Directory, time) }
}

fn made(time: i64) -> DirectoryChange {
    DirectoryChange { entries: 1, directories: 0, time: Timestamp(time) }
}

/// A cache whose shard has just been heard.
fn heard() -> Cache {
    let mut cache = Cache::new();
    cache.renewed(ShardId::ROOT, 0, 0);
    cache
}

fn size_and_time(cache: &Cache) -> Option<(u64, i64)> {
    cache.attributes(DIRECTORY, 1).map(|known| (known.size, known.mtime.0))
}

#[test]
fn own_changes_count_in_whatever_order_their_replies_come() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 3);
    cache.directory_became(DIRECTORY, made(30), 6);
    cache.directory_became(DIRECTORY, made(20), 5);
    assert_eq!(size_and_time(&cache), Some((7, 30)));
    // A reply to a change from before the attributes were granted: they have it.
    cache.directory_became(DIRECTORY, made(5), 2);
    assert_eq!(size_and_time(&cache), Some((7, 30)));
}

#[test]
fn a_removal_that_is_told_before_what_made_the_name_is_not_counted_wrongly() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(0, 10), Grants::ATTRIBUTES, 3);
    cache.directory_became(DIRECTORY, DirectoryChange { entries: -1, ..made(30) }, 6);
    cache.directory_became(DIRECTORY, made(20), 5);
    assert_eq!(size_and_time(&cache), None);
    cache.learn_attributes(&attributes(0, 30), Grants::ATTRIBUTES, 7);
    assert_eq!(size_and_time(&cache), Some((0, 30)));
}

#[test]
fn an_answer_from_before_an_own_change_is_not_believed() {
    let mut cache = heard();
    cache.directory_became(DIRECTORY, made(20), 5);
    for (stamp, believed) in [(4, false), (5, false), (6, true)] {
        cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, stamp);
        assert_eq!(size_and_time(&cache).is_some(), believed, "stamp {stamp}");
    }
}

#[test]
fn an_answer_from_before_an_own_change_of_which_no_more_is_known_is_not_believed() {
    for change in [Cache::directory_changed, Cache::forget_attributes] {
        let mut cache = heard();
        change(&mut cache, DIRECTORY, 5);
        for (stamp, believed) in [(4, false), (5, false), (6, true)] {
            cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, stamp);
            assert_eq!(size_and_time(&cache).is_some(), believed, "stamp {stamp}");
        }
    }
}

#[test]
fn a_recall_that_passed_the_grant_wins() {
    let mut cache = heard();
    let name = Name::new(b"n").unwrap();
    let key = LeaseKey::Entry(DIRECTORY, name.hash64());
    cache.recall(key, 8);
    cache.learn_name(DIRECTORY, &name, None, Grants::ENTRY, 7);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
    cache.learn_name(DIRECTORY, &name, None, Grants::ENTRY, 9);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
    let dropped = cache.recall(key, 10);
    assert_eq!(dropped.names, [(DIRECTORY, name.clone())]);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
}

#[test]
fn one_recall_takes_all_names_of_a_directory_and_no_others() {
    let mut cache = heard();
    let [a, b, late] = [&b"a"[..], b"b", b"late"].map(|bytes| Name::new(bytes).unwrap());
    let (other, found) = (InodeNumber::new(ShardId::ROOT, 9), (InodeNumber::from_raw(77), FileKind::Regular));
    cache.learn_name(DIRECTORY, &a, None, Grants::ENTRY, 3);
    cache.learn_name(DIRECTORY, &b, Some(found), Grants::ENTRY, 4);
    cache.learn_name(other, &a, None, Grants::ENTRY, 4);
    let dropped = cache.recall(LeaseKey::Names(DIRECTORY), 8);
    assert_eq!(dropped.names, [(DIRECTORY, a.clone()), (DIRECTORY, b.clone())]);
    for name in [&a, &b] {
        assert_eq!(cache.lookup(DIRECTORY, name, 1), Cached::Unknown);
    }
    assert_eq!(cache.lookup(other, &a, 1), Cached::Absent);
    // A reply that the recall has passed.
    cache.learn_name(DIRECTORY, &late, None, Grants::ENTRY, 7);
    assert_eq!(cache.lookup(DIRECTORY, &late, 1), Cached::Unknown);
    cache.learn_name(DIRECTORY, &late, None, Grants::ENTRY, 9);
    assert_eq!(cache.lookup(DIRECTORY, &late, 1), Cached::Absent);
}

#[test]
fn nothing_is_believed_after_the_term() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 1);
    let end = SESSION_TERM_MS - SESSION_TERM_MARGIN_MS;
    assert!(cache.attributes(DIRECTORY, end - 1).is_some());
    assert!(cache.attributes(DIRECTORY, end).is_none());
    // Heard again only after the term: the shard may have given the lease to somebody else meanwhile.
    cache.renewed(ShardId::ROOT, end + 5, end + 6);
    assert!(cache.attributes(DIRECTORY, end + 7).is_none());
}

#[test]
fn what_is_made_in_a_known_directory_and_removed_is_known() {
    let mut cache = heard();
    let name = Name::new(b"n").unwrap();
    cache.learn_complete(DIRECTORY, 1);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
    cache.learn_name(DIRECTORY, &name, Some((InodeNumber::from_raw(9), FileKind::Regular)), Grants::empty(), 2);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Found(InodeNumber::from_raw(9), FileKind::Regular));
    cache.name_removed(DIRECTORY, &name, 2);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
    let dropped = cache.recall(LeaseKey::Directory(DIRECTORY), 3);
    assert_eq!(dropped.names, [(DIRECTORY, name.clone())]);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
}

#[test]
fn what_a_create_tells_holds_as_long_as_it_is_believed() {
    let name = Name::new(b"made").expect("a name");
    let file = Attributes { inode: InodeNumber::from_raw(9), kind: FileKind::Regular, ..attributes(0, 20) };
    let all = Grants::ENTRY | Grants::ATTRIBUTES;
    let recalls = [None, Some(LeaseKey::Entry(DIRECTORY, name.hash64())), Some(LeaseKey::Attributes(file.inode))];
    for recall in recalls {
        for grants in [all, Grants::ENTRY, Grants::ATTRIBUTES, Grants::empty()] {
            let mut cache = heard();
            cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 1);
            if let Some(key) = recall {
                cache.recall(key, 8);
            }
            let valid = cache.learn_made((DIRECTORY, &name), &file, grants, 7, 1);
            let holds = cache.holds_ms(ShardId::ROOT, 1);
            let named = cache.lookup(DIRECTORY, &name, 1) == Cached::Found(file.inode, FileKind::Regular);
            let known = cache.attributes(file.inode, 1) == Some(&file);
            let expected = (if named { holds } else { 0 }, if known { holds } else { 0 });
            assert_eq!(valid, expected, "{recall:?}, {grants:?}");
            let recalled_name = matches!(recall, Some(LeaseKey::Entry(..)));
            let recalled_attributes = matches!(recall, Some(LeaseKey::Attributes(_)));
            assert_eq!(named, grants.contains(Grants::ENTRY) && !recalled_name);
            assert_eq!(known, grants.contains(Grants::ATTRIBUTES) && !recalled_attributes);
            assert_eq!(size_and_time(&cache), Some((6, 20)));
        }
    }
}

fn page(names: &[&str], next: bool) -> DirectoryPage {
    let entry = |text: &&str| {
        let name = Name::new(text.as_bytes()).unwrap();
        let (inode, kind) = (InodeNumber::from_raw(9), FileKind::Regular);
        DirectoryEntry { cookie: Cookie::of(&name), name, inode, kind, attributes: None }
    };
    let mut entries: Vec<_> = names.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.cookie);
    let next = entries.last().map(|entry| entry.cookie).filter(|_| next);
    DirectoryPage { entries, next, grants: Grants::DIRECTORY, parent: DIRECTORY }
}

fn known(cache: &Cache, text: &str) -> Cached {
    cache.lookup(DIRECTORY, &Name::new(text.as_bytes()).unwrap(), 1)
}

const FOUND: Cached = Cached::Found(InodeNumber::from_raw(9), FileKind::Regular);

#[test]
fn pages_that_follow_each_other_make_the_directory_known() {
    let mut cache = heard();
    let mut texts: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let cookie = |text: &str| Cookie::of(&Name::new(text.as_bytes()).unwrap());
    texts.sort_by_key(|text| cookie(text));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let [a, before, b, c, d, e, after_all, _] = texts[..] else { panic!("eight names") };
    cache.learn_page(DIRECTORY, Cookie::START, &page(&[a, b], true), 1);
    assert_eq!(known(&cache, a), FOUND);
    assert_eq!((known(&cache, before), known(&cache, after_all)), (Cached::Absent, Cached::Unknown));
    // A page from elsewhere tells its names and no more.
    cache.learn_page(DIRECTORY, cookie(d), &page(&[e], false), 2);
    assert_eq!((known(&cache, e), known(&cache, after_all)), (FOUND, Cached::Unknown));
    // One that begins before what is known, and goes beyond it.
    cache.learn_page(DIRECTORY, cookie(a), &page(&[b, c], true), 3);
    assert_eq!((known(&cache, c), known(&cache, after_all)), (FOUND, Cached::Unknown));
    cache.learn_page(DIRECTORY, cookie(c), &page(&[e], false), 3);
    assert_eq!((known(&cache, d), known(&cache, after_all)), (Cached::Absent, Cached::Absent));
    let mut dropped = cache.recall(LeaseKey::Directory(DIRECTORY), 4).names;
    dropped.sort();
    let mut names = [a, b, c, e].map(|text| (DIRECTORY, Name::new(text.as_bytes()).unwrap()));
    names.sort();
    assert_eq!(dropped, names);
    assert_eq!(known(&cache, a), Cached::Unknown);
    // A page from before the recall comes late.
    cache.learn_page(DIRECTORY, Cookie::START, &page(&[a], false), 3);
    assert_eq!((known(&cache, a), known(&cache, after_all)), (Cached::Unknown, Cached::Unknown));
}

/// No name tells of it that somebody may have listed an empty directory.
#[test]
fn caches_above_hear_that_a_listed_directory_is_not_held_any_more() {
    let held = || {
        let mut cache = heard();
        cache.learn_page(DIRECTORY, Cookie::START, &page(&[], false), 1);
        cache
    };
    assert_eq!(known(&held(), "n"), Cached::Absent);
    assert_eq!(held().clear().directories, [DIRECTORY]);
    assert_eq!(held().doubt(ShardId::ROOT, None, 0).directories, [DIRECTORY]);
    let mut crowded = held();
    for number in 2..2 + DIRECTORIES_MAX as u64 {
        crowded.learn_page(InodeNumber::from_raw(number), Cookie::START, &page(&[], false), 1);
    }
    assert_eq!(crowded.take_evicted().directories, [DIRECTORY]);
}

/// A change that was given up is sent again when its shard is there, however late, and other shards make their part of
/// it then.
#[test]
fn what_other_shards_have_told_is_not_believed_while_a_change_in_doubt_is_sent_again() {
    let change = Slot { of: NodeId(1), index: SlotIndex(3) };
    let later = Slot { index: SlotIndex(4), ..change };
    let known_at = |cache: &Cache, now_ms| cache.lookup(DIRECTORY, &Name::new(b"n").unwrap(), now_ms);
    let learn = |cache: &mut Cache, now_ms: u64| {
        cache.renewed(ShardId::ROOT, now_ms, now_ms);
        cache.learn_page(DIRECTORY, Cookie::START, &page(&["n"], false), now_ms);
    };
    let (lapsed_ms, sent_ms) = (2 * SESSION_TERM_MS, 3 * SESSION_TERM_MS);
    let mut cache = heard();
    cache.doubt(ShardId(2), Some(change), 0);
    learn(&mut cache, 1);
    assert_eq!(known_at(&cache, 1), Cached::Unknown);
    learn(&mut cache, lapsed_ms);
    assert_eq!(known_at(&cache, lapsed_ms), FOUND, "it cannot be on its way any more");
    assert_eq!(cache.doubt_others(change, None).directories, [DIRECTORY]);
    learn(&mut cache, sent_ms + 2 * lapsed_ms);
    assert_eq!(known_at(&cache, sent_ms + 2 * lapsed_ms), Cached::Unknown, "however long it takes");
    // Another one is in doubt beside it, and the first is given up once more.
    cache.doubt(ShardId(2), Some(later), sent_ms);
    cache.doubt_others(change, Some(sent_ms));
    cache.settled(ShardId(2), Some(later));
    learn(&mut cache, sent_ms + 1);
    assert_eq!(known_at(&cache, sent_ms + 1), Cached::Unknown);
    cache.settled(ShardId(2), Some(change));
    learn(&mut cache, sent_ms + 2);
    assert_eq!(known_at(&cache, sent_ms + 2), FOUND);
}

/// A name that collides with others stands after the cookie of its hash, as far as its bucket goes.
#[test]
fn what_is_absent_is_known_up_to_the_bucket_that_a_page_ends_in() {
    let mut cache = heard();
    let text = "last";
    let name = Name::new(text.as_bytes()).unwrap();
    let mut listed = page(&[text], true);
    let same_bucket = (0..1 << 16).map(|number| format!("x{number}")).find(|other| {
        let other = Cookie::of(&Name::new(other.as_bytes()).unwrap());
        other.bucket() == Cookie::of(&name).bucket() && other < Cookie::of(&name)
    });
    let same_bucket = same_bucket.unwrap();
    cache.learn_page(DIRECTORY, Cookie::START, &listed, 1);
    assert_eq!((known(&cache, text), known(&cache, &same_bucket)), (FOUND, Cached::Unknown));
    listed.next = None;
    cache.learn_page(DIRECTORY, Cookie::START, &listed, 2);
    assert_eq!(known(&cache, &same_bucket), Cached::Absent);
}

#[test]
fn a_page_from_before_an_own_change_does_not_undo_it() {
    let mut cache = heard();
    let (a, b) = (Name::new(b"a").unwrap(), Name::new(b"b").unwrap());
    cache.learn_page(DIRECTORY, Cookie::START, &page(&["a", "b", "c"], false), 5);
    cache.name_removed(DIRECTORY, &a, 5);
    cache.forget_name(DIRECTORY, &b, 5);
    cache.learn_page(DIRECTORY, Cookie::START, &page(&["a", "b", "c"], false), 5);
    assert_eq!((known(&cache, "a"), known(&cache, "b"), known(&cache, "c")), (Cached::Absent, Cached::Unknown, FOUND));
    cache.learn_page(DIRECTORY, Cookie::START, &page(&["a", "b", "c"], false), 6);
    assert_eq!((known(&cache, "a"), known(&cache, "b")), (FOUND, FOUND));
    // Not held: the grant of a look-up that was on its way when the name was removed.
    let elsewhere = InodeNumber::from_raw(77);
    cache.name_removed(elsewhere, &a, 7);
    cache.learn_name(elsewhere, &a, Some((elsewhere, FileKind::Regular)), Grants::ENTRY, 7);
    assert_eq!(cache.lookup(elsewhere, &a, 1), Cached::Unknown);
}

#[test]
fn an_own_change_that_is_told_late_does_not_undo_what_came_after() {
    let n = Name::new(b"n").unwrap();
    let made = Some((InodeNumber::from_raw(9), FileKind::Regular));
    for change in [Cache::name_removed, Cache::forget_name] {
        let mut cache = heard();
        cache.learn_name(DIRECTORY, &n, made, Grants::ENTRY, 6);
        change(&mut cache, DIRECTORY, &n, 5);
        assert_eq!(known(&cache, "n"), FOUND, "it was made after the removal");
        change(&mut cache, DIRECTORY, &n, 7);
        assert_ne!(known(&cache, "n"), FOUND);
    }
    // So too when the directory is held.
    let mut cache = heard();
    cache.learn_page(DIRECTORY, Cookie::START, &page(&[], false), 4);
    cache.learn_name(DIRECTORY, &n, made, Grants::empty(), 6);
    cache.name_removed(DIRECTORY, &n, 5);
    assert_eq!(known(&cache, "n"), FOUND);
}

#[test]
fn a_name_that_was_made_is_not_taken_for_absent_by_a_reply_from_before() {
    let (n, target) = (Name::new(b"n").unwrap(), (InodeNumber::from_raw(9), FileKind::Regular));
    // The lease on the name went with the reply that is late: the one that tells of the change has none.
    let mut cache = heard();
    cache.name_made(DIRECTORY, &n, target, Grants::empty(), 7);
    cache.learn_name(DIRECTORY, &n, None, Grants::ENTRY, 6);
    assert_eq!(known(&cache, "n"), Cached::Unknown);
    cache.learn_name(DIRECTORY, &n, Some(target), Grants::ENTRY, 8);
    assert_eq!(known(&cache, "n"), FOUND);
}

#[test]
fn a_listing_from_before_an_own_change_is_not_taken_for_all_names() {
    let n = Name::new(b"n").unwrap();
    // The shard grants the directory with the listing, and so not the name that is made next.
    let mut cache = heard();
    cache.directory_became(DIRECTORY, made(20), 6);
    cache.learn_name(DIRECTORY, &n, Some((InodeNumber::from_raw(9), FileKind::Regular)), Grants::empty(), 6);
    cache.learn_page(DIRECTORY, Cookie::START, &page(&[], false), 5);
    assert_eq!(known(&cache, "n"), Cached::Unknown);
    cache.learn_page(DIRECTORY, Cookie::START, &page(&["n"], false), 7);
    assert_eq!((known(&cache, "n"), known(&cache, "x")), (FOUND, Cached::Absent));
    // What is removed while the directory is held is known: a listing from before that counts for the rest.
    let mut cache = heard();
    cache.learn_complete(DIRECTORY, 4);
    cache.directory_became(DIRECTORY, made(20), 6);
    cache.name_removed(DIRECTORY, &n, 6);
    cache.learn_page(DIRECTORY, Cookie::START, &page(&["a", "n"], false), 5);
    assert_eq!((known(&cache, "a"), known(&cache, "n"), known(&cache, "x")), (FOUND, Cached::Absent, Cached::Absent));
}

#[test]
fn permissions_outlive_the_times_of_a_busy_directory() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES | Grants::PERMISSIONS, 1);
    cache.recall(LeaseKey::Attributes(DIRECTORY), 2);
    assert!(cache.attributes(DIRECTORY, 1).is_none());
    assert!(cache.permissions(DIRECTORY, 1).is_some());
    // Others go on making names: the attributes are not granted, the permissions are.
    cache.learn_attributes(&attributes(6, 11), Grants::PERMISSIONS, 3);
    assert!(cache.attributes(DIRECTORY, 1).is_none());
    assert_eq!(cache.permissions(DIRECTORY, 1).unwrap().size, 6);
    // A reply that was overtaken.
    cache.learn_attributes(&attributes(5, 10), Grants::PERMISSIONS, 2);
    assert_eq!(cache.permissions(DIRECTORY, 1).unwrap().size, 6);
    cache.recall(LeaseKey::Permissions(DIRECTORY), 4);
    assert!(cache.permissions(DIRECTORY, 1).is_none());
    cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 5);
    cache.recall(LeaseKey::Attributes(DIRECTORY), 6);
    assert!(cache.permissions(DIRECTORY, 1).is_none(), "not held by themselves");
}

#[test]
fn a_renewal_goes_on_with_a_term_and_begins_none() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(5, 10), Grants::ATTRIBUTES, 3);
    let end_ms = cache.valid_until_ms(ShardId::ROOT);
    assert!(cache.extended(ShardId::ROOT, end_ms - 10, end_ms - 1));
    assert!(cache.attributes(DIRECTORY, end_ms + 1).is_some());
    let end_ms = cache.valid_until_ms(ShardId::ROOT);
    assert!(!cache.extended(ShardId::ROOT, end_ms - 10, end_ms), "it may have been answered after the session's end");
    assert_eq!(cache.holds_ms(ShardId::ROOT, end_ms), 0);
}

#[test]
fn a_reply_from_before_one_that_granted_nothing_is_not_believed() {
    let mut cache = heard();
    cache.learn_attributes(&attributes(5, 10), Grants::empty(), 5);
    cache.learn_attributes(&attributes(4, 9), Grants::ATTRIBUTES, 4);
    assert_eq!(size_and_time(&cache), None);
    cache.learn_attributes(&attributes(6, 11), Grants::ATTRIBUTES, 6);
    assert_eq!(size_and_time(&cache), Some((6, 11)));
}

fn known_xattrs(text: &str) -> KnownXattrs {
    let name = weft_protocol::XattrName::new(b"user.a").expect("a valid name");
    let value = weft_protocol::XattrValue::new(text.as_bytes()).expect("a short value");
    KnownXattrs { xattrs: vec![Xattr { name, value: Some(value) }], has_trusted: true }
}

/// Of the directory: `None` is not known, `Some(None)` none.
fn xattrs(cache: &Cache) -> Option<Option<KnownXattrs>> {
    cache.xattrs(DIRECTORY, 1).map(|(_, known)| known.as_deref().cloned())
}

#[test]
fn extended_attributes_are_known_as_long_as_the_attributes_are() {
    let mut cache = heard();
    assert_eq!(xattrs(&cache), None);
    cache.learn_attributes(&attributes(0, 10), Grants::ATTRIBUTES, 3);
    assert_eq!(xattrs(&cache), Some(None), "that there are none is told with the attributes");
    let with_some = |time| Attributes { flags: InodeFlags::XATTRS, ..attributes(0, time) };
    cache.learn_xattrs(known_xattrs("one"), &with_some(20), Grants::ATTRIBUTES, 4);
    assert_eq!(xattrs(&cache), Some(Some(known_xattrs("one"))));
    cache.learn_attributes(&with_some(20), Grants::ATTRIBUTES, 5);
    assert_eq!(xattrs(&cache), Some(Some(known_xattrs("one"))), "nothing was changed in between");
    // An answer that later ones have overtaken.
    cache.learn_xattrs(known_xattrs("old"), &with_some(15), Grants::ATTRIBUTES, 2);
    assert_eq!(xattrs(&cache), Some(Some(known_xattrs("one"))));
    cache.learn_attributes(&with_some(30), Grants::ATTRIBUTES, 6);
    assert_eq!(xattrs(&cache), None, "the inode has changed");
    cache.learn_xattrs(known_xattrs("two"), &with_some(30), Grants::ATTRIBUTES, 7);
    cache.recall(LeaseKey::Attributes(DIRECTORY), 8);
    assert_eq!(xattrs(&cache), None);
    cache.learn_xattrs(known_xattrs("two"), &with_some(30), Grants::ATTRIBUTES, 7);
    assert_eq!(xattrs(&cache), None, "a grant from before the recall");
}

#[test]
fn what_this_client_changes_is_asked_for_until_it_has_changed() {
    let mut cache = heard();
    let name = Name::new(b"name").unwrap();
    cache.learn_attributes(&attributes(0, 10), Grants::ATTRIBUTES, 3);
    cache.learn_complete(DIRECTORY, 3);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Absent);
    let change = Changing::name(DIRECTORY, &name);
    cache.change_begins(change);
    // Another thread makes the same name, and is told that it is there.
    cache.change_begins(change);
    cache.change_ended(change);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Unknown);
    assert_eq!(size_and_time(&cache), None);
    assert!(cache.permissions(DIRECTORY, 1).is_some());
    cache.name_made(DIRECTORY, &name, (DIRECTORY, FileKind::Directory), Grants::empty(), 5);
    cache.directory_became(DIRECTORY, made(20), 5);
    cache.change_ended(change);
    assert_eq!(cache.lookup(DIRECTORY, &name, 1), Cached::Found(DIRECTORY, FileKind::Directory));
    assert_eq!(size_and_time(&cache), Some((1, 20)));
    cache.change_begins(Changing::Attributes(DIRECTORY));
    assert!(cache.permissions(DIRECTORY, 1).is_none());
}

#[test]
fn extended_attributes_are_asked_for_while_this_client_changes_them() {
    let mut cache = heard();
    let with_some = Attributes { flags: InodeFlags::XATTRS, ..attributes(0, 20) };
    cache.learn_xattrs(known_xattrs("one"), &with_some, Grants::ATTRIBUTES, 4);
    cache.change_begins(Changing::Xattrs(DIRECTORY));
    cache.change_begins(Changing::Xattrs(DIRECTORY));
    cache.learn_xattrs(known_xattrs("one"), &with_some, Grants::ATTRIBUTES, 5);
    assert_eq!(xattrs(&cache), None);
    cache.change_ended(Changing::Xattrs(DIRECTORY));
    assert_eq!(xattrs(&cache), None, "another one is under way");
    cache.change_ended(Changing::Xattrs(DIRECTORY));
    assert_eq!(xattrs(&cache), None, "what was kept may be from before it");
    cache.learn_xattrs(known_xattrs("two"), &with_some, Grants::ATTRIBUTES, 6);
    assert_eq!(xattrs(&cache), Some(Some(known_xattrs("two"))));
}

#[test]
fn extended_attributes_of_many_inodes_take_bounded_memory() {
    let mut cache = heard();
    let of = |number: u64| Attributes {
        inode: InodeNumber::from_raw(number),
        flags: InodeFlags::XATTRS,
        ..attributes(0, 20)
    };
    for number in 1..3000 {
        cache.learn_xattrs(known_xattrs("one"), &of(number), Grants::ATTRIBUTES, number);
    }
    let kept = (1..3000).filter(|number| cache.xattrs(InodeNumber::from_raw(*number), 1).is_some()).count();
    assert_eq!(kept, 1024);
    cache.learn_xattrs(known_xattrs(&"x".repeat(17 << 10)), &of(5), Grants::ATTRIBUTES, 4000);
    assert!(cache.xattrs(InodeNumber::from_raw(5), 1).is_none(), "one that is too large is asked for each time");
    assert!(cache.attributes(InodeNumber::from_raw(5), 1).is_some());
}
