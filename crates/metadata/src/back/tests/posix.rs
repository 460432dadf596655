//! Rules of POSIX and Linux on set-id bits, programs, and renames over directories, each with the errors of Linux.

use super::operations::*;
use crate::back::*;
use weft_protocol::message::shard::*;
use weft_protocol::*;

const ROOT: InodeNumber = InodeNumber::ROOT;

/// A file of user 5 with this mode, and the caller is user 6.
fn foreign_file(bench: &mut Bench, mode: u16) -> InodeNumber {
    bench.as_user(0, &[]).chmod(ROOT, 0o777).expect("root may");
    bench.as_user(5, &[]);
    let file = bench.create("f");
    bench.chmod(file, mode).expect("the owner may");
    bench.as_user(6, &[]);
    file
}

#[test]
fn a_writer_who_is_not_the_owner_may_clear_set_id_bits_and_change_nothing_else() {
    for (mode, cleared) in [(0o4777, 0o777), (0o6777, 0o777), (0o2777, 0o777), (0o6767, 0o2767)] {
        let mut bench = Bench::new();
        let file = foreign_file(&mut bench, mode);
        for wrong in [cleared | 0o1000, cleared & !0o001, mode | 0o1000] {
            assert_eq!(bench.chmod(file, wrong), Err(Error::NotPermitted), "{mode:o} to {wrong:o}");
        }
        bench.chmod(file, cleared).unwrap_or_else(|error| panic!("{mode:o} to {cleared:o}: {error}"));
        assert_eq!(bench.get(file).mode, cleared);
        bench.chmod(file, cleared).expect("another writer does it again");
        assert_eq!(bench.chmod(file, mode), Err(Error::NotPermitted), "only the owner sets them");
    }
    let mut bench = Bench::new();
    let file = foreign_file(&mut bench, 0o4755);
    assert_eq!(bench.chmod(file, 0o755), Err(Error::NotPermitted), "who may not write may not clear");
    let writer = Context { is_writer: true, ..Context::default() };
    let clear = set(file, AttributeChanges { mode: Some(0o755), ..AttributeChanges::default() });
    bench.with_context(clear, writer).expect("opened for writing when that was allowed");
    assert_eq!(bench.get(file).mode, 0o755);
}

#[test]
fn truncating_a_set_id_file_with_write_permission_clears_the_bits() {
    let mut bench = Bench::new();
    let file = foreign_file(&mut bench, 0o6777);
    let both = AttributeChanges { size: Some(3), mode: Some(0o777), ..AttributeChanges::default() };
    bench.change(set(file, both)).expect("as a kernel sends ftruncate");
    assert_eq!((bench.get(file).mode, bench.get(file).size), (0o777, 3));
    let flags =
        OpenFlags { access: Access::Write, truncate: true, direct: false, page_cache: PageCache::None, group: None };
    let file = foreign_file(&mut Bench::new(), 0o6777);
    let mut bench = Bench::new();
    assert_eq!(foreign_file(&mut bench, 0o6777), file);
    bench.change(ShardRequest::Open { inode: file, flags }).expect("write permission is enough");
    assert_eq!(bench.get(file).mode, 0o777);
}

#[test]
fn a_program_is_opened_with_execute_permission_alone() {
    let open = |inode, access| ShardRequest::Open {
        inode,
        flags: OpenFlags { access, truncate: false, direct: false, page_cache: PageCache::None, group: None },
    };
    let mut bench = Bench::new();
    let program = foreign_file(&mut bench, 0o711);
    assert_eq!(bench.change(open(program, Access::Read)), Err(Error::AccessDenied), "it cannot be read");
    bench.change(open(program, Access::Execute)).expect("it can be run");
    bench.as_user(5, &[]).chmod(program, 0o744).expect("the owner may");
    bench.as_user(6, &[]);
    assert_eq!(bench.change(open(program, Access::Execute)), Err(Error::AccessDenied), "it cannot be run");
    bench.change(open(program, Access::Read)).expect("it can be read");
}

#[test]
fn a_directory_that_is_replaced_needs_no_write_permission_and_one_that_moves_does() {
    let mut bench = Bench::new();
    bench.chmod(ROOT, 0o777).expect("root may");
    let target = bench.mkdir(ROOT, "target", 0o755);
    bench.as_user(6, &[]);
    let from = bench.mkdir(ROOT, "from", 0o755);
    let moved = bench.mkdir(from, "moved", 0o755);
    assert_eq!(bench.get(target).uid, 0, "of somebody else");
    let exchange = rename((from, "moved"), (ROOT, "target"), RenameMode::Exchange);
    assert_eq!(bench.change(exchange), Err(Error::AccessDenied), "both move");
    bench.chmod(moved, 0o555).expect("the owner may");
    let over = rename((from, "moved"), (ROOT, "target"), RenameMode::Replace);
    assert_eq!(bench.change(over.clone()), Err(Error::AccessDenied), "its `..` changes");
    bench.chmod(moved, 0o755).expect("the owner may");
    bench.change(over).expect("the replaced one may be anybody's");
    assert_eq!((bench.get(moved).parent, bench.back.inode(target)), (ROOT, None));
}

#[test]
fn a_sticky_directory_decides_whose_directory_is_replaced() {
    for (owner_of_parent, owner_of_target, allowed) in [(6, 6, true), (6, 0, true), (0, 6, true), (0, 7, false)] {
        let mut bench = Bench::new();
        bench.chmod(ROOT, 0o777).expect("root may");
        let sticky = bench.mkdir(ROOT, "sticky", 0o1777);
        bench.as_user(6, &[]).mkdir(ROOT, "d", 0o755);
        bench.as_user(owner_of_target, &[]).mkdir(sticky, "d", 0o755);
        let give = AttributeChanges { uid: Some(owner_of_parent), ..AttributeChanges::default() };
        bench.as_user(0, &[]).change(set(sticky, give)).expect("root may");
        bench.as_user(6, &[]);
        let done = bench.change(rename((ROOT, "d"), (sticky, "d"), RenameMode::Replace)).map(|_| ());
        let expected = if allowed { Ok(()) } else { Err(Error::NotPermitted) };
        assert_eq!(done, expected, "parent of {owner_of_parent}, target of {owner_of_target}");
    }
}
