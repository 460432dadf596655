//! Listings of a directory that another mount changes: positions are cookies, so that each lasting name is shown once.

use super::{Ground, can_mount};
use rustix::fs::Dir;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Names that last.
const LASTING: usize = 300;
/// Names read before the other mount changes the directory.
const READ_FIRST: usize = 85;

/// Reads entries with a small buffer, as many as fit, so that the kernel has not asked for what comes later.
struct Reader {
    file: fs::File,
    buffer: Vec<std::mem::MaybeUninit<u8>>,
}

impl Reader {
    fn open(directory: &Path) -> Self {
        let buffer = vec![std::mem::MaybeUninit::uninit(); 128];
        Self { file: fs::File::open(directory).expect("open"), buffer }
    }

    /// The next names, at least one, each with the position after it. None: the end.
    fn next(&mut self) -> Vec<(String, u64)> {
        let mut raw = rustix::fs::RawDir::new(&self.file, &mut self.buffer);
        let mut names = Vec::new();
        loop {
            match raw.next() {
                Some(entry) => {
                    let entry = entry.expect("entry");
                    names.push((entry.file_name().to_string_lossy().into_owned(), entry.next_entry_cookie()));
                }
                None => return names,
            }
            if raw.is_buffer_empty() {
                return names;
            }
        }
    }

    fn read(&mut self, count: usize) -> Vec<(String, u64)> {
        let mut names = Vec::new();
        while names.len() < count {
            let more = self.next();
            if more.is_empty() {
                break;
            }
            names.extend(more);
        }
        names
    }

    fn seek(&self, position: u64) {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(position)).expect("seek");
    }
}

fn lasting() -> Vec<String> {
    (0..LASTING).map(|number| format!("s{number:03}")).collect()
}

/// How often each name was shown, without `.` and `..` and those that come and go.
fn check(shown: &[(String, u64)], what: &str) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _) in shown.iter().filter(|(name, _)| name.starts_with('s')) {
        *counts.entry(name).or_default() += 1;
    }
    let wrong: Vec<_> = lasting().into_iter().filter(|name| counts.get(name.as_str()) != Some(&1)).collect();
    assert!(wrong.is_empty(), "{what}: not shown once: {wrong:?}");
}

fn list_while_others_change(here: &Path, there: &Path) {
    for name in lasting() {
        fs::write(here.join(name), "").expect("made");
    }
    let come_and_go = || (0..10).map(|number| there.join(format!("a{number}")));
    for round in 0..2 {
        for is_there in [false, true] {
            let mut reader = Reader::open(here);
            let mut shown = reader.read(READ_FIRST);
            let seeked_to = shown[shown.len() - 20].1;
            let before: Vec<_> = shown.iter().map(|(name, _)| name.clone()).collect();
            for path in come_and_go() {
                if is_there { fs::remove_file(path).expect("removed") } else { fs::write(path, "").expect("made") }
            }
            // A name that is replaced keeps its place.
            fs::write(there.join("new"), "").expect("made");
            fs::rename(there.join("new"), there.join("s007")).expect("renamed");
            shown.extend(reader.read(usize::MAX));
            check(&shown, &format!("round {round}, made {}", !is_there));
            // From a position of before the changes on.
            reader.seek(seeked_to);
            let known = before.iter().take(before.len() - 20 + 1);
            let mut again: Vec<_> = known.map(|name| (name.clone(), 0)).collect();
            again.extend(reader.read(usize::MAX));
            again.dedup_by(|one, other| one.0 == other.0);
            check(&again, &format!("round {round}, after a seek"));
            // From the beginning: what is there now.
            reader.seek(0);
            let now = reader.read(usize::MAX);
            check(&now, &format!("round {round}, begun anew"));
            let shown = now.iter().filter(|(name, _)| name.starts_with('a')).count();
            assert_eq!(shown, if is_there { 0 } else { 10 }, "begun anew, round {round}");
        }
    }
}

#[test]
fn a_listing_shows_each_lasting_name_once_while_another_mount_changes_the_directory() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("listings");
    ground.weft(&["up", "e2e", "--nodes", "2"]);
    let points = ["one", "two"].map(|name| ground.path(name));
    points.iter().for_each(|point| fs::create_dir_all(point).expect("made"));
    for options in ["rw", "direct", "nopassthrough"] {
        for point in &points {
            ground.weft(&["mount", "e2e", &point.display().to_string(), "-o", options]);
        }
        let [one, two] = &points;
        for (number, (here, there)) in [(one, two), (one, one)].into_iter().enumerate() {
            let directory = format!("{options}{number}");
            fs::create_dir(one.join(&directory)).expect("made");
            list_while_others_change(&here.join(&directory), &there.join(&directory));
        }
        for point in &points {
            ground.weft(&["umount", &point.display().to_string()]);
        }
    }
}

/// Two open directories of one mount, of which one uses the listing that the kernel keeps.
#[test]
fn a_listing_that_is_begun_anew_is_current_in_each_open_directory() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("rewound");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, two] = ["one", "two"].map(|name| ground.path(name));
    for point in [&one, &two] {
        fs::create_dir_all(point).expect("made");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
    }
    let names = |directory: &mut Dir| {
        directory.rewind();
        let entries = directory.by_ref().map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = entries.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    };
    let mut open = [0, 1].map(|_| Dir::new(fs::File::open(&one).expect("open")).expect("open"));
    let mut expected = Vec::new();
    for number in 0..40 {
        // Half of the changes come from the mount itself; every third round leaves a listing in its middle.
        let changed_by = if number % 2 == 0 { &one } else { &two };
        let name = format!("f{number:02}");
        fs::write(changed_by.join(&name), "").expect("made");
        expected.push(name);
        if number % 3 == 0 {
            let _ = open[0].by_ref().nth(number / 2);
        }
        if number % 5 == 4 {
            fs::remove_file(changed_by.join(expected.remove(number / 5))).expect("removed");
        }
        for directory in &mut open {
            assert_eq!(names(directory), expected, "after {number} changes");
        }
    }
}

/// The kernel gets attributes with names, from a page that was fetched before the other mount's change.
#[test]
fn what_a_listing_tells_of_a_file_is_what_it_is_then() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("listed-late");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let [one, two] = ["one", "two"].map(|name| ground.path(name));
    for point in [&one, &two] {
        fs::create_dir_all(point).expect("made");
        ground.weft(&["mount", "e2e", &point.display().to_string()]);
    }
    for name in lasting() {
        fs::write(one.join(name), "").expect("made");
    }
    // What others change is not granted for a second; then the page is.
    thread::sleep(Duration::from_millis(1200));
    let mode = |name: &str| fs::metadata(one.join(name)).expect("stat").permissions().mode() & 0o777;
    let mut reader = Reader::open(&one);
    // The kernel asks for attributes with names as long as programs ask for those of what was listed.
    let first = reader.read(10);
    for (name, _) in first.iter().filter(|(name, _)| !name.starts_with('.')) {
        let _ = mode(name);
    }
    for name in lasting() {
        fs::set_permissions(two.join(name), fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    let mut count = 0;
    loop {
        let names = reader.next();
        if names.is_empty() {
            break;
        }
        for (name, _) in names.iter().filter(|(name, _)| !name.starts_with('.')) {
            assert_eq!(mode(name), 0o600, "{name}");
        }
        count += names.len();
    }
    assert!(count > LASTING / 2, "{count} names");
}
