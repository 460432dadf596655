//! Copies of files that have fewer bytes than their size says: they fail, and leave nothing that looks whole.

use super::{Ground, wait_until};
use std::fs;
use std::path::{Path, PathBuf};

/// All files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn a_short_copy_out_of_a_file_system_is_an_error() {
    let ground = Ground::new("short-out");
    for (size, kept) in [(1 << 20, 1000_u64), (70 << 20, 40 << 20)] {
        ground.weft(&["up", "e2e", "--nodes", "1", "--store", "store"]);
        fs::write(ground.path("in"), vec![7; size]).expect("written");
        ground.weft(&["cp", "-q", "in", "e2e:/file"]);
        // A copy that takes longer than a second has a record, whose object the node removes soon after.
        let objects = || files_below(&ground.path("store"));
        wait_until("there is one object", || objects().len() == 1);
        let object = objects().remove(0);
        // The device loses what is behind.
        fs::OpenOptions::new().write(true).open(object).and_then(|file| file.set_len(kept)).expect("cut");
        for target in ["out", "e2e:/copy"] {
            let said = ground.weft_fails(2, &["cp", "-q", "e2e:/file", target]);
            assert!(said.contains(&format!("cp e2e:/file: only {kept} of {size} bytes can be read")), "{said}");
        }
        assert!(!ground.path("out").exists() && ground.weft(&["ls", "e2e:/"]) == "file\n");
        ground.weft(&["down", "e2e"]);
    }
}

#[test]
fn a_short_copy_into_a_file_system_is_an_error() {
    let ground = Ground::new("short-in");
    // Files of sysfs have the size of a page, and less in them.
    let source = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok((size, text)) = fs::metadata(source).map(|found| found.len()).and_then(|size| Ok((size, fs::read(source)?)))
    else {
        return println!("skipped: {} cannot be read", source.display());
    };
    assert!((text.len() as u64) < size, "{} is short", source.display());
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let said = ground.weft_fails(2, &["cp", "-q", &source.display().to_string(), "e2e:/file"]);
    assert!(said.contains(&format!("only {} of {size} bytes can be read", text.len())), "{said}");
    assert_eq!(ground.weft(&["ls", "-a", "e2e:/"]), "");
    // One of /proc has no size, and is copied to its end.
    ground.weft(&["cp", "-q", "/proc/self/mountinfo", "e2e:/mounts"]);
    assert!(ground.weft(&["cat", "e2e:/mounts"]).contains(" / "));
}
