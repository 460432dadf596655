//! Directories of nodes' stores on this machine: made by `weft up`, removed by `weft down`.
//!
//! A store stands in DIR/weft-UID/NAME/store/nNN. DIR is what `--store` names: any directory, which others may write.
//! Each directory below it must be this user's own, and is reached without following symbolic links
//! ([`OwnDirectory`]), so that nobody can have files of others removed or written in their place.

use crate::failure::{Failure, Outcome};
use crate::quantity::bytes_text;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use weft_region::{Error, FileDevice, Shadow};
use weft_sys::own_directory::{self, OwnDirectory};

/// What a store's directory holds, beside nothing: objects, or a file that they are in.
const OBJECTS: &str = "objects";
pub const REGIONS: &str = "regions";
/// Directories between the one that `--store` names and a node's own: see [`stores_directory`].
const DIRECTORIES_ABOVE: usize = 3;
/// How long the kernel may take to close the files of a process that has ended.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// What helps where a store's directory cannot be made.
const REMEDY: &str = "give a directory that you may write: --store DIR";

/// Where stores are when nobody says.
pub fn temporary() -> PathBuf {
    match std::env::var_os("TMPDIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from("/tmp"),
    }
}

/// Where the stores of a file system are, below the directory that `--store` names.
pub fn stores_directory(below: &Path, name: &str) -> PathBuf {
    below.join(format!("weft-{}", rustix::process::getuid().as_raw())).join(name).join("store")
}

fn explain(what: &str, error: own_directory::Error) -> Failure {
    Failure::of_io(what, &error.into()).failed()
}

/// Makes a node's directory below `below`, and those above it that are missing. Returns the highest one that was made;
/// `None`: it was there, and empty.
pub fn make(below: &Path, directory: &Path) -> Outcome<Option<PathBuf>> {
    let explain = |error: own_directory::Error| {
        let failure = explain("store", error);
        if failure.remedy_text().is_some() { failure } else { failure.remedy(REMEDY) }
    };
    // What is not there yet is this user's too.
    let base = below.ancestors().find(|above| above.exists()).unwrap_or(below);
    let (own, made) = OwnDirectory::make(base, directory).map_err(explain)?;
    refuse_what_is_there(directory, &own.names().map_err(explain)?)?;
    Ok(made)
}

/// A node's directory with something in it is of another run, or the user's.
fn refuse_what_is_there(directory: &Path, names: &[std::ffi::OsString]) -> Outcome<()> {
    let foreign = names.iter().find(|name| *name != OBJECTS && *name != REGIONS);
    let there = directory.display();
    match (foreign, names.is_empty()) {
        (Some(foreign), _) => Err(Failure::new(format!("store {there}: is not empty: holds {}", foreign.display()))
            .remedy("move that away, or give another directory: --store DIR")),
        (None, true) => Ok(()),
        (None, false) => Err(Failure::new(format!("store {there}: is not empty: holds objects of an earlier run"))
            .remedy(format!("when no file system of yours runs on it: rm -r {there}; or give another --store"))),
    }
}

/// A node's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    pub directory: PathBuf,
    /// The highest directory that was made for it; `None`: it was there before.
    pub made: Option<PathBuf>,
}

impl Store {
    /// The directory that was there before, which may be anybody's: what `--store` named, or one above it.
    fn base(&self) -> &Path {
        let named = self.directory.ancestors().nth(DIRECTORIES_ABOVE + 1).unwrap_or(Path::new("/"));
        let above_made = self.made.as_deref().and_then(Path::parent);
        above_made.filter(|above| named.starts_with(above)).unwrap_or(named)
    }

    /// Opens this directory, or one above it; `None`: it is not there.
    fn open(&self, directory: &Path) -> Outcome<Option<OwnDirectory>> {
        match OwnDirectory::open(self.base(), directory) {
            Ok(own) => Ok(Some(own)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(explain("remove store", error)),
        }
    }

    /// See [`held`].
    fn held(&self) -> Option<String> {
        let own = self.open(&self.directory).ok().flatten()?;
        let path = own.reach(REGIONS);
        path.try_exists().ok().filter(|is_there| *is_there)?;
        let opened = open_let_go(&path).and_then(|file| weft_region::Store::open(Shadow::new(Arc::new(file))));
        let looked = opened.and_then(|store| {
            let usage = store.usage();
            Ok((store.list()?.len(), usage.total - usage.free))
        });
        let shown = self.directory.join(REGIONS).display().to_string();
        match looked {
            Err(Error::NoStore(_)) | Ok((0, _)) => None,
            Ok((objects, bytes)) => {
                let plural = if objects == 1 { "" } else { "s" };
                Some(format!("{shown}: {objects} object{plural}, {}", bytes_text(bytes)))
            }
            Err(error) => Some(format!("{shown}: nobody knows what: {error}")),
        }
    }

    fn remove_objects(&self) -> Outcome<()> {
        let Some(own) = self.open(&self.directory)? else { return Ok(()) };
        let removed = own.remove_tree(OBJECTS).and_then(|()| own.remove_file(REGIONS));
        removed.map_err(|error| explain("remove store", error))
    }

    /// Removes this directory or one above it, if it is empty. True: it is not there any more.
    fn remove_empty(&self, directory: &Path) -> Outcome<bool> {
        let Some(own) = self.open(directory)? else { return Ok(true) };
        own.remove().map_err(|error| explain("remove store", error))
    }

    /// Removes the directories above a node's that are ours by their names or were made for it, up to the first one
    /// that is not empty.
    fn remove_above(&self, made: &Path) -> Outcome<()> {
        for (height, directory) in self.directory.ancestors().enumerate().skip(1) {
            let ours = height <= DIRECTORIES_ABOVE || directory.starts_with(made);
            if !ours || !self.remove_empty(directory)? {
                break;
            }
        }
        Ok(())
    }
}

/// Opens a region file of a node that has ended. The kernel closes the files of a killed process after the process is
/// shown as ended: the last of its threads does, or what completes its requests to an io_uring.
fn open_let_go(path: &Path) -> weft_region::Result<FileDevice> {
    let started = Instant::now();
    loop {
        match FileDevice::open(path) {
            Err(Error::InUse) if started.elapsed() < CLOSED_WITHIN => thread::sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    }
}

/// Removes what the stores of several nodes hold, side by side: they may be on devices of their own, and hold millions
/// of objects. Then the directories that were made for them, as far as they are empty. Returns those that are left
/// because they hold foreign files.
pub fn remove(stores: &[Store]) -> Outcome<Vec<PathBuf>> {
    let removed: Vec<Outcome<()>> = thread::scope(|scope| {
        let running: Vec<_> = stores.iter().map(|store| scope.spawn(|| store.remove_objects())).collect();
        let crashed = || Err(Failure::new("a thread that removes a store failed"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| crashed())).collect()
    });
    removed.into_iter().collect::<Outcome<()>>()?;
    let made: Vec<(&Store, &Path)> = stores.iter().filter_map(|store| Some((store, store.made.as_deref()?))).collect();
    let mut left = Vec::new();
    // Those of all nodes first: they stand side by side.
    for (store, _) in &made {
        if !store.remove_empty(&store.directory)? {
            left.push(store.directory.clone());
        }
    }
    made.into_iter().try_for_each(|(store, made)| store.remove_above(made))?;
    Ok(left)
}

/// What the region files of stores hold whose nodes have ended, a sentence for each that holds something: data of a
/// run that was killed.
pub fn held(stores: &[Store]) -> Vec<String> {
    stores.iter().filter_map(Store::held).collect()
}

/// The stores of a file system whose record was lost, where they are by default.
pub fn default_stores(file_system: &str) -> Outcome<Vec<Store>> {
    let below = temporary();
    let directory = stores_directory(&below, file_system);
    let names = match OwnDirectory::open(&below, &directory) {
        Ok(own) => own.names(),
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let names = names.map_err(|error| explain("stores", error))?;
    let store = |directory: PathBuf| Store { made: Some(directory.clone()), directory };
    Ok(names.into_iter().map(|name| store(directory.join(name))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_store_with_something_in_it_is_refused() {
        let directory = std::env::temp_dir().join(format!("weft-store-{}", std::process::id()));
        let store = directory.join("n00");
        assert_eq!(make(&directory, &store).expect("made"), Some(directory.clone()));
        assert_eq!(make(&directory, &store).expect("empty"), None);
        let refused = || make(&directory, &store).expect_err("refused");
        fs::create_dir(store.join(OBJECTS)).expect("made");
        assert!(refused().text().contains("objects of an earlier run"), "{}", refused());
        assert!(refused().remedy_text().is_some_and(|remedy| remedy.contains("rm -r")), "{}", refused());
        fs::write(store.join("mine"), "x").expect("written");
        assert!(refused().text().contains("holds mine"), "{}", refused());
        fs::remove_dir_all(&directory).expect("removed");
        fs::write(&directory, "a file").expect("written");
        assert!(refused().remedy_text().is_some(), "{}", refused());
        fs::remove_file(&directory).expect("removed");
    }

    #[test]
    fn a_store_is_in_directories_of_its_own() {
        let directory = stores_directory(Path::new("/scratch"), "job");
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(directory, Path::new(&format!("/scratch/weft-{uid}/job/store")));
        let store = |made: Option<&str>| Store { directory: directory.join("n00"), made: made.map(PathBuf::from) };
        assert_eq!(store(None).base(), Path::new("/scratch"));
        assert_eq!(store(Some("/scratch/weft-0/job")).base(), Path::new("/scratch"));
        assert_eq!(store(Some("/scratch")).base(), Path::new("/"));
    }

    #[test]
    fn only_what_was_made_goes_and_only_when_it_is_empty() {
        let ground = std::env::temp_dir().join(format!("weft-remove-{}", std::process::id()));
        let store = |number: &str, made: Option<&str>| {
            let directory = ground.join("d/weft-1/w/store").join(number);
            fs::create_dir_all(directory.join("objects/00")).expect("made");
            fs::write(directory.join("objects/00/x"), "x").expect("written");
            Store { directory, made: made.map(|made| ground.join(made)) }
        };
        let all = [store("n00", Some("d")), store("n01", Some("d/weft-1/w/store/n01"))];
        assert_eq!(remove(&all).expect("removed"), Vec::<PathBuf>::new());
        assert!(ground.is_dir() && !ground.join("d").exists());

        let all = [store("n00", Some("d")), store("n01", None)];
        fs::write(all[0].directory.join("mine"), "of the user").expect("written");
        assert_eq!(remove(&all).expect("removed"), [all[0].directory.clone()]);
        assert_eq!(fs::read_dir(&all[1].directory).expect("it was there before, and stays").count(), 0);
        assert!(all[0].directory.join("mine").exists() && !all[0].directory.join("objects").exists());

        fs::remove_dir_all(ground.join("d")).expect("removed");
        let all = [store("n00", Some("d/weft-1"))];
        fs::write(ground.join("d/mine"), "of the user").expect("written");
        assert_eq!(remove(&all).expect("removed"), Vec::<PathBuf>::new());
        assert!(ground.join("d/mine").exists() && !ground.join("d/weft-1").exists());
        fs::remove_dir_all(ground).expect("removed");
    }
}
