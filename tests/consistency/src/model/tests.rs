use super::*;
use crate::outcome::Entry;

/// A model with a wall clock that ticks once a call.
struct Checked {
    model: Model,
    now: i64,
}

impl Checked {
    fn new() -> Self {
        Self { model: Model::new(Allowances::default()), now: 1_000_000_000_000 }
    }

    /// Applies a line such as `a0 stat f` with this outcome.
    fn check(&mut self, line: &str, outcome: Outcome) -> Result<(), String> {
        let (who, call) = line.split_once(' ').expect("a worker and a call");
        let (who, call) = (who.parse().expect(who), call.parse().expect(call));
        assert!(self.model.is_defined(who, &call), "{line}");
        self.now += 1_000_000_000;
        let reply = Reply { outcome, begun: 0, ended: 0, wall_begun: self.now - 10, wall_ended: self.now };
        self.model.check(who, &call, &reply)
    }

    /// The call must have this outcome, and no other errno.
    fn is(&mut self, line: &str, outcome: Outcome) {
        let mut other = Self { model: self.model.clone(), now: self.now };
        assert!(other.check(line, Outcome::Failed(Errno::STALE.raw_os_error())).is_err(), "{line} may fail");
        self.check(line, outcome).unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    fn done(&mut self, line: &str) {
        self.is(line, Outcome::Done);
    }

    fn fails(&mut self, line: &str, errno: Errno) {
        self.is(line, Outcome::Failed(errno.raw_os_error()));
    }

    fn refuses(&mut self, line: &str, outcome: Outcome) {
        let mut other = Self { model: self.model.clone(), now: self.now };
        assert!(other.check(line, outcome).is_err(), "{line}");
    }

    fn file(&self, inode: u64, links: u64, size: u64) -> Attributes {
        Attributes { inode, is_directory: false, mode: 0o644, links, size, mtime: self.now }
    }
}

fn bytes(bytes: &[u8]) -> Outcome {
    Outcome::Bytes(Runs::of(bytes))
}

fn entries(names: &[&str]) -> Outcome {
    Outcome::Entries(names.iter().map(|name| Entry { name: (*name).to_owned(), is_directory: false }).collect())
}

#[test]
fn bytes_written_by_one_worker_are_read_by_another() {
    let mut checked = Checked::new();
    checked.is("a0 open h0 f rdwr creat excl", Outcome::Opened(5));
    checked.fails("b0 open h0 f rdonly creat excl", Errno::EXIST);
    checked.is("b0 open h0 f rdonly", Outcome::Opened(5));
    checked.is("a0 pwrite h0 2 3 7", Outcome::Count(3));
    checked.refuses("b0 pread h0 0 10", bytes(&[0, 0, 7, 7]));
    checked.refuses("b0 pread h0 0 10", bytes(&[0, 0, 7, 7, 0]));
    checked.is("b0 pread h0 0 10", bytes(&[0, 0, 7, 7, 7]));
    checked.is("b0 read h0 4", bytes(&[0, 0, 7, 7]));
    checked.is("b0 read h0 4", bytes(&[7]));
    checked.is("a0 open h1 f wronly append", Outcome::Opened(5));
    checked.is("a0 pwrite h1 0 1 9", Outcome::Count(1));
    checked.is("b0 read h0 4", bytes(&[9]));
    checked.done("a0 ftruncate h0 3");
    checked.is("b0 pread h0 0 10", bytes(&[0, 0, 7]));
    checked.fails("b0 ftruncate h0 3", Errno::INVAL);
    checked.fails("a0 read h1 3", Errno::BADF);
    checked.fails("b0 pwrite h0 0 1 1", Errno::BADF);
    checked.is("b0 lseek h0 end 0", Outcome::Count(3));
    checked.done("a0 mapwrite h0 1 2 4");
    checked.is("b0 mapread h0 0 3", bytes(&[0, 4, 4]));
}

#[test]
fn names_are_those_of_linux() {
    let mut checked = Checked::new();
    checked.done("a0 mkdir d");
    checked.is("a0 open h0 d/f wronly creat", Outcome::Opened(5));
    checked.fails("a0 open h1 d wronly", Errno::ISDIR);
    checked.fails("a0 stat d/f/g", Errno::NOTDIR);
    checked.fails("a0 rmdir d", Errno::NOTEMPTY);
    checked.fails("a0 unlink d", Errno::ISDIR);
    checked.fails("a0 rmdir d/f", Errno::NOTDIR);
    checked.fails("a0 rename d d/g", Errno::INVAL);
    checked.fails("a0 rename d/f d", Errno::NOTEMPTY);
    checked.done("a0 mkdir e");
    checked.fails("a0 rename d/f e", Errno::ISDIR);
    checked.fails("a0 rename e d/f", Errno::NOTDIR);
    checked.fails("a0 link d g", Errno::PERM);
    checked.done("a0 link d/f g");
    let file = checked.file(5, 2, 0);
    checked.is("b0 stat g", Outcome::Attributes(Attributes { mtime: file.mtime - 4_000_000_000, ..file }));
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let mut checked = Checked::new();
    checked.is("a0 open h0 f wronly creat", Outcome::Opened(5));
    checked.is("a0 open h1 g wronly creat", Outcome::Opened(6));
    checked.fails("a0 rename f g noreplace", Errno::EXIST);
    checked.fails("a0 rename f h exchange", Errno::NOENT);
    checked.done("a0 rename f g exchange");
    checked.is("b0 open h0 f rdonly", Outcome::Opened(6));
    checked.refuses("b0 open h1 g rdonly", Outcome::Opened(6));
    checked.done("a0 rename f g");
    checked.fails("b0 stat f", Errno::NOENT);
    let now = checked.now;
    let gone = Attributes { links: 0, mtime: now - 6_000_000_000, ..checked.file(5, 0, 0) };
    checked.refuses("a0 fstat h0", Outcome::Attributes(Attributes { links: 1, ..gone.clone() }));
    checked.model.inode(2).mtime = Mtime::Any;
    checked.is("a0 fstat h0", Outcome::Attributes(gone));
    checked.is("a0 pwrite h0 0 1 1", Outcome::Count(1));
}

#[test]
fn link_counts_of_directories_are_those_of_their_directories() {
    let mut checked = Checked::new();
    checked.done("a0 mkdir d");
    checked.done("a0 mkdir e");
    checked.done("a0 mkdir d/e");
    checked.done("a0 rename d/e e");
    let directory = Attributes { is_directory: true, mode: 0o755, ..checked.file(7, 2, 100) };
    checked.refuses("a0 stat d", Outcome::Attributes(Attributes { links: 3, ..directory.clone() }));
    let time = checked.now;
    checked.is("a0 stat d", Outcome::Attributes(Attributes { mtime: time, ..directory.clone() }));
    checked.refuses("a0 stat e", Outcome::Attributes(directory));
}

#[test]
fn a_listing_in_steps_has_what_lasts_exactly_once() {
    let mut checked = Checked::new();
    for (handle, name) in ["f", "g", "h"].into_iter().enumerate() {
        checked.is(&format!("a0 open h{handle} {name} wronly creat"), Outcome::Opened(name.as_bytes()[0].into()));
    }
    checked.is("b0 opendir h0 .", Outcome::Opened(1));
    checked.is("b0 readdir h0 64", entries(&[".", "..", "g"]));
    checked.refuses("b0 readdir h0 64", entries(&["g"]));
    checked.refuses("b0 readdir h0 64", entries(&["x"]));
    checked.refuses("b0 readdir h0 64", entries(&[]));
    checked.done("a0 rename f x");
    checked.is("b0 readdir h0 64", entries(&["h"]));
    checked.refuses("b0 readdir h0 64", entries(&["h"]));
    let mut other = Checked { model: checked.model.clone(), now: checked.now };
    other.is("b0 readdir h0 64", entries(&["f", "x"]));
    other.is("b0 readdir h0 64", entries(&[]));
    // What came or went meanwhile may be told or not.
    checked.is("b0 readdir h0 64", entries(&[]));
    checked.done("b0 rewinddir h0");
    checked.refuses("b0 readdir h0 64", entries(&["f"]));
}

#[test]
fn times_are_those_of_the_call_and_stay() {
    let mut checked = Checked::new();
    checked.is("a0 open h0 f wronly creat", Outcome::Opened(5));
    let made = checked.now;
    checked.is("a0 pwrite h0 0 1 1", Outcome::Count(1));
    let written = Attributes { size: 1, ..checked.file(5, 1, 1) };
    checked.refuses("a0 stat f", Outcome::Attributes(Attributes { mtime: made, ..written.clone() }));
    checked.is("a0 stat f", Outcome::Attributes(written.clone()));
    checked.refuses("b0 stat f", Outcome::Attributes(Attributes { mtime: written.mtime + 1, ..written.clone() }));
    checked.done("b0 utimens f 1000");
    checked.refuses("a0 stat f", Outcome::Attributes(written.clone()));
    checked.is("a0 stat f", Outcome::Attributes(Attributes { mtime: 1_000_000_000_000, ..written }));
}

#[test]
fn freedom_is_left_only_where_it_was_allowed() {
    let allowances = Allowances { no_space: true, ..Allowances::default() };
    let mut checked = Checked { model: Model::new(allowances), now: 1_000_000_000_000 };
    checked.done("a0 mkdir d");
    checked.is("a0 open h0 f rdwr creat", Outcome::Opened(5));
    checked.refuses("a0 rename f g", Outcome::Failed(Errno::XDEV.raw_os_error()));
    checked.refuses("a0 rename f d/f", Outcome::Failed(Errno::XDEV.raw_os_error()));
    checked.is("a0 pwrite h0 0 4 1", Outcome::Count(4));
    checked.fails("a0 pwrite h0 4 4 1", Errno::NOSPC);
    assert_eq!(checked.model.doubtful(), ["f"]);
    checked.model.adopt("f", vec![1, 1]);
    checked.is("a0 pread h0 0 9", bytes(&[1, 1]));
    assert!(checked.model.doubtful().is_empty());
}

#[test]
fn a_removed_directory_is_read_through_mounts_only() {
    let mut checked = Checked::new();
    checked.done("a0 mkdir d");
    for who in ["a0", "n0"] {
        checked.check(&format!("{who} opendir h1 d"), Outcome::Opened(7)).expect("opened");
    }
    checked.done("a0 rmdir d");
    let is_defined = |line: &str| {
        let (who, call) = line.split_once(' ').expect("a worker and a call");
        checked.model.is_defined(who.parse().expect(who), &call.parse().expect(call))
    };
    assert!(is_defined("a0 readdir h1 80") && !is_defined("n0 readdir h1 80") && is_defined("n0 close h1"));
}

#[test]
fn a_rename_that_finds_a_directory_which_another_client_has_renamed_may_fail() {
    let prepared = |opener: &str, renamer: &str, allowed: bool| {
        let allowances = Allowances { stale_renames: allowed, ..Allowances::default() };
        let mut checked = Checked { model: Model::new(allowances), now: 1_000_000_000_000 };
        for line in ["a0 mkdir d", "a0 mkdir e"] {
            checked.done(line);
        }
        checked.is(&format!("{opener} open h0 e/h rdwr creat"), Outcome::Opened(7));
        checked.done(&format!("{renamer} rename e d/e"));
        checked
    };
    let stale = || Outcome::Failed(Errno::STALE.raw_os_error());
    let mut checked = prepared("a1", "b0", true);
    for line in ["b0 rename d/e e", "n0 rename d/e e", "a0 rename d/e d/f", "a0 stat d/e", "a0 rename d d2"] {
        checked.refuses(line, stale());
    }
    for line in ["a0 rename d d/e", "a0 rename d/e e"] {
        checked.check(line, stale()).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    checked.check("a0 rename d d/e", Outcome::Failed(Errno::INVAL.raw_os_error())).expect("it had no effect");
    prepared("b0", "b0", true).refuses("a0 rename d/e e", stale());
    prepared("a1", "a1", true).refuses("a0 rename d/e e", stale());
    prepared("a1", "b0", false).refuses("a0 rename d/e e", stale());
}
