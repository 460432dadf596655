use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

/// Another user than the one who runs the tests.
const STRANGER: u32 = 65534;

struct Ground(PathBuf);

impl Ground {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weft-own-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
        Self(path)
    }

    fn open(&self, below: &str) -> Result<OwnDirectory> {
        OwnDirectory::open(&self.0, &self.0.join(below))
    }

    fn make(&self, below: &str) -> Result<(OwnDirectory, Option<PathBuf>)> {
        OwnDirectory::make(&self.0, &self.0.join(below))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn cause<T>(result: Result<T>) -> Option<Cause> {
    result.err().map(|error| error.cause)
}

#[test]
fn missing_directories_are_made_for_this_user_alone() {
    let ground = Ground::new("made");
    let (own, made) = ground.make("a/b/c").unwrap();
    assert_eq!((own.path(), made), (&*ground.0.join("a/b/c"), Some(ground.0.join("a"))));
    assert_eq!(fs::metadata(ground.0.join("a/b")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(ground.make("a/b/d").unwrap().1, Some(ground.0.join("a/b/d")));
    assert_eq!(ground.make("a/b/d").unwrap().1, None);
    assert!(ground.open("a/x").is_err_and(|error| error.is_not_found()));
    assert!(ground.open("a/../a").is_err() && ground.open("").is_err());
    assert!(OwnDirectory::open(Path::new("/elsewhere"), &ground.0).is_err());
}

#[test]
fn a_link_a_file_and_what_others_may_write_are_refused() {
    let ground = Ground::new("refused");
    let own = ground.make("own/sub").unwrap().0;
    let owner = own_uid();
    symlink("own", ground.0.join("link")).unwrap();
    fs::write(ground.0.join("file"), "").unwrap();
    assert_eq!(cause(ground.open("link/sub")), Some(Cause::Link { owner }));
    assert_eq!(cause(ground.make("link/new")), Some(Cause::Link { owner }));
    assert_eq!(cause(ground.make("file")), Some(Cause::NotDirectory { owner }));
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o775)).unwrap();
    assert_eq!(cause(ground.open("own/sub")), Some(Cause::Writable { mode: 0o40775 }));
    let error = ground.make("own/sub/a/b").unwrap_err();
    assert!(error.to_string().contains("own/sub: others may write it (mode 775)"), "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("chmod go-w")));
}

#[test]
fn what_belongs_to_another_user_is_refused_by_name_and_owner() {
    if own_uid() != 0 {
        return println!("skipped: only root can give a directory away");
    }
    let ground = Ground::new("foreign");
    let theirs = ground.make("theirs/sub").unwrap().0;
    chown(ground.0.join("theirs"), Some(STRANGER), None).unwrap();
    assert_eq!(cause(ground.open("theirs/sub")), Some(Cause::Foreign { owner: STRANGER }));
    let error = ground.make("theirs/new").unwrap_err();
    assert!(error.to_string().ends_with("theirs: belongs to uid 65534, not to this user (uid 0)"), "{error}");
    assert!(error.remedy().is_some() && !ground.0.join("theirs/new").exists());
    drop(theirs);
    assert!(check_path(&ground.0.join("theirs")).is_err());
}

#[test]
fn what_was_made_before_a_failure_goes_again() {
    let ground = Ground::new("undone");
    let name = "x".repeat(300);
    assert!(ground.make(&format!("a/b/{name}")).is_err());
    assert!(!ground.0.join("a").exists());
}

#[test]
fn a_tree_is_removed_without_following_links() {
    let ground = Ground::new("tree");
    let own = ground.make("own").unwrap().0;
    fs::create_dir_all(ground.0.join("own/objects/00/deep")).unwrap();
    fs::write(ground.0.join("own/objects/00/deep/file"), "").unwrap();
    fs::create_dir(ground.0.join("precious")).unwrap();
    fs::write(ground.0.join("precious/file"), "").unwrap();
    symlink(ground.0.join("precious"), ground.0.join("own/objects/link")).unwrap();
    symlink(ground.0.join("precious"), ground.0.join("own/top")).unwrap();
    own.remove_tree("objects").unwrap();
    own.remove_tree("top").unwrap();
    own.remove_tree("nothing").unwrap();
    assert!(own.names().unwrap().is_empty() && ground.0.join("precious/file").exists());
    fs::write(ground.0.join("own/a"), "").unwrap();
    fs::create_dir(ground.0.join("own/sub")).unwrap();
    own.remove_files().unwrap();
    assert_eq!(own.names().unwrap(), ["sub"]);
    assert!(own.entry("sub").unwrap().remove().unwrap());
    assert!(ground.open("own").unwrap().remove().unwrap() && !ground.0.join("own").exists());
}

#[test]
fn a_directory_that_was_replaced_is_not_removed() {
    let ground = Ground::new("replaced");
    let own = ground.make("own").unwrap().0;
    fs::rename(own.path(), ground.0.join("moved")).unwrap();
    fs::create_dir(own.path()).unwrap();
    let path = own.path().to_owned();
    assert!(own.remove().is_err() && path.exists());
    let full = ground.open("moved").unwrap();
    fs::write(ground.0.join("moved/file"), "").unwrap();
    assert_eq!(full.remove().ok(), Some(false));
}

#[test]
fn a_lasting_directory_stands_where_nobody_can_replace_it() {
    let ground = Ground::new("lasting");
    let own = ground.make("own").unwrap().0.path().to_owned();
    check_path(&own).unwrap();
    fs::set_permissions(&ground.0, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(cause(check_path(&own)), Some(Cause::Replaceable { .. })));
    fs::set_permissions(&ground.0, fs::Permissions::from_mode(0o700)).unwrap();
    check_path(&own).unwrap();
    symlink("own", ground.0.join("link")).unwrap();
    assert!(matches!(cause(check_path(&ground.0.join("link"))), Some(Cause::Link { .. })));
}
