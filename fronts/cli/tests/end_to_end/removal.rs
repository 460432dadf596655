//! Removal of trees, many names at a time.

use super::{Ground, Guest};
use std::fs;

#[test]
fn wide_and_deep_trees_are_removed() {
    let ground = Ground::new("rm-tree");
    ground.weft(&["up", "e2e", "--nodes", "4"]);
    // More than a page of a listing, and more directories inside each other than a worker performs at a time.
    let (wide, deep) = (ground.path("tree/wide"), ground.path("tree").join("d/".repeat(100)));
    fs::create_dir_all(&wide).expect("made");
    fs::create_dir_all(&deep).expect("made");
    for number in 0..5000 {
        fs::write(wide.join(format!("f{number}")), "").expect("written");
    }
    for number in 0..300 {
        fs::create_dir(wide.join(format!("d{number}"))).expect("made");
        fs::write(wide.join(format!("d{number}/f")), "").expect("written");
    }
    fs::write(deep.join("f"), "").expect("written");
    std::os::unix::fs::symlink("/", wide.join("link")).expect("made");
    ground.weft(&["cp", "-q", "-r", "tree", "e2e:/"]);
    ground.weft(&["mkdir", "e2e:/stays"]);
    let told = ground.weft(&["rm", "-r", "--dry-run", "e2e:/tree"]);
    assert_eq!(told.lines().count(), 5000 + 600 + 100 + 1 + 1 + 2);
    let removed = ground.weft(&["rm", "-r", "-v", "e2e:/tree"]);
    let sorted = |text: &str| {
        let mut paths: Vec<String> = text.lines().filter_map(|line| Some(line.split_once("e2e:")?.1.into())).collect();
        paths.sort();
        paths
    };
    assert_eq!(sorted(&removed), sorted(&told), "each is told once");
    let position = |path: &str| removed.lines().position(|line| line.ends_with(path)).expect(path);
    assert!(position("wide/d7/f") < position("wide/d7") && position("wide/d7") < position("e2e:/tree/wide"));
    assert_eq!(ground.weft(&["ls", "e2e:/"]), "stays\n");
}

#[test]
fn what_cannot_be_removed_does_not_hinder_the_rest() {
    let ground = Ground::new("rm-rest");
    let guest = match Guest::new(&ground) {
        Ok(guest) => guest,
        Err(why) => return println!("skipped: {why}"),
    };
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    ground.weft(&["mkdir", "-m", "1777", "e2e:/shared"]);
    ground.weft(&["user", "add", "ann", "e2e", "--uid", "4242", "--gid", "4343", "--output", "home/ann.key"]);
    let weft = |words: &[&str]| guest.weft(&[&["--key", "ann.key"], words].concat());
    weft(&["mkdir", "-p", "e2e:/shared/d/a", "e2e:/shared/d/z/inner"]);
    weft(&["mkdir", "e2e:/shared/d/locked"]);
    guest.write("word", "hello");
    for directory in ["a", "locked", "z/inner"] {
        weft(&["cp", "-q", "word", &format!("e2e:/shared/d/{directory}/")]);
    }
    weft(&["cp", "-q", "word", "e2e:/shared/d/zz"]);
    // Its owner may read it, and not change what is in it.
    fs::create_dir(ground.path("home/locked")).expect("made");
    fs::set_permissions(ground.path("home/locked"), std::os::unix::fs::PermissionsExt::from_mode(0o500)).expect("set");
    std::os::unix::fs::chown(ground.path("home/locked"), Some(4242), Some(4343)).expect("given");
    weft(&["cp", "-q", "-r", "locked", "e2e:/shared/d"]);
    let said = guest.weft_fails(2, &["--key", "ann.key", "rm", "-r", "e2e:/shared/d"]);
    assert!(said.contains("rm e2e:/shared/d/locked/word: permission denied"), "{said}");
    assert_eq!(said.matches("weft:").count(), 1, "what is not empty for that reason is not tried: {said}");
    assert_eq!(ground.weft(&["ls", "e2e:/shared/d"]), "locked\n");
}
