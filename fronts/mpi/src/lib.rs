//! How MPI programs are started with the MPI-IO driver: a library that is preloaded into their processes.
//!
//! The driver is C, in `driver/`: a table of functions for ROMIO, the MPI-IO of mpich, over the C library (`weft.h`).
//! `romio/` has what ROMIO needs of libmpich when it is built beside it. `scripts/mpi-driver.sh` builds one shared
//! library of all of them; its functions `MPI_File_*` take the place of those of libmpich, in programs that know
//! nothing of it. Tests in `tests/` run such programs.
//!
//! Here: where that library is ([`find_driver`]), which launcher starts programs ([`Launcher`]), and with which words
//! the library gets into their processes, but not into the launcher's own ([`Launcher::command`]).
//!
//! Not here: the command `weft mpiexec`, its options and errors (`fronts/cli/src/verb/mpiexec.rs`).

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File name of the driver.
pub const DRIVER: &str = "libweft-romio.so";
/// The loader takes libraries from this variable.
const PRELOAD: &str = "LD_PRELOAD";
/// Launchers that are looked for, in this order.
const LAUNCHERS: [&str; 3] = ["mpiexec", "mpiexec.hydra", "mpiexec.mpich"];

/// Places where the driver is looked for: beside a program, and where `make` and an installation put it.
pub fn driver_places(program: &Path) -> Vec<PathBuf> {
    let Some(directory) = program.parent() else { return Vec::new() };
    ["", "../lib", "../mpi"].map(|place| directory.join(place).join(DRIVER)).into()
}

/// The driver, absolute, for a program that is one of Weft's.
pub fn find_driver(program: &Path) -> Option<PathBuf> {
    driver_places(program).into_iter().find_map(|place| place.canonicalize().ok())
}

/// Whether the loader can be told of a library: it takes a list, which spaces and colons separate.
pub fn can_be_preloaded(driver: &Path) -> bool {
    !driver.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte))
}

/// Kind of a launcher: how variables get to the processes that it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// mpich's, and those that are made of it.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
    /// Open MPI's: its programs have another MPI-IO.
    OpenMpi,
    /// Another one, which is expected to hand its environment down.
    Other,
}

impl Kind {
    /// By what the launcher says of its version.
    fn of_version(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        match () {
            () if text.contains("hydra") => Self::Hydra,
            () if text.contains("slurm") => Self::Slurm,
            () if ["open mpi", "openrte", "open-mpi", "prte"].iter().any(|word| text.contains(word)) => Self::OpenMpi,
            () => Self::Other,
        }
    }
}

/// A program that starts the processes of MPI programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launcher {
    pub program: OsString,
    pub kind: Kind,
}

impl Launcher {
    /// The launcher of this name or path; `None`: it cannot be run.
    pub fn named(program: &OsStr) -> Option<Self> {
        let told = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = [told.stdout, told.stderr].concat();
        Some(Self { program: program.to_owned(), kind: Kind::of_version(&String::from_utf8_lossy(&text)) })
    }

    /// The first of the usual ones that is not Open MPI's, or else that; `None`: there is none.
    pub fn find() -> Option<Self> {
        let found: Vec<_> = LAUNCHERS.iter().filter_map(|name| Self::named(OsStr::new(name))).collect();
        found.iter().find(|launcher| launcher.kind != Kind::OpenMpi).or(found.first()).cloned()
    }

    /// Starts programs that have the driver. What is preloaded already stays before it: tools that watch calls of MPI.
    pub fn command(&self, driver: &Path, words: &[OsString]) -> Command {
        let mut libraries = env::var_os(PRELOAD).filter(|libraries| !libraries.is_empty()).unwrap_or_default();
        if !libraries.is_empty() {
            libraries.push(":");
        }
        libraries.push(driver);
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Hydra => drop(command.arg("-genv").arg(PRELOAD).arg(&libraries)),
            Kind::Slurm => {
                let mut export = OsString::from("--export=ALL,LD_PRELOAD=");
                export.push(&libraries);
                command.arg(export);
            }
            Kind::OpenMpi | Kind::Other => drop(command.env(PRELOAD, &libraries)),
        }
        command.args(words);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_say() {
        for (text, kind) in [
            ("HYDRA build details:\n    Version:  4.0.2", Kind::Hydra),
            ("slurm 22.05.8", Kind::Slurm),
            ("mpiexec (OpenRTE) 4.1.4", Kind::OpenMpi),
            ("mpirun (Open MPI) 5.0.1", Kind::OpenMpi),
            ("aprun 1.0", Kind::Other),
        ] {
            assert_eq!(Kind::of_version(text), kind, "{text}");
        }
    }

    #[test]
    fn the_driver_gets_into_the_processes_and_not_into_the_launcher() {
        let words = ["-n", "2", "./program"].map(OsString::from);
        let command = |kind| Launcher { program: "launch".into(), kind }.command(Path::new("/d/l.so"), &words);
        let told = |kind| {
            let command = command(kind);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            (words.join(" "), command.get_envs().count())
        };
        assert_eq!(told(Kind::Hydra), ("-genv LD_PRELOAD /d/l.so -n 2 ./program".to_owned(), 0));
        assert_eq!(told(Kind::Slurm), ("--export=ALL,LD_PRELOAD=/d/l.so -n 2 ./program".to_owned(), 0));
        assert_eq!(told(Kind::Other), ("-n 2 ./program".to_owned(), 1));
    }

    #[test]
    fn the_driver_is_looked_for_where_it_is_built_and_installed() {
        let places = driver_places(Path::new("/p/bin/weft"));
        assert!(places.contains(&PathBuf::from("/p/bin/../lib/libweft-romio.so")), "{places:?}");
        assert!(can_be_preloaded(Path::new("/p/lib/l.so")) && !can_be_preloaded(Path::new("/p q/l.so")));
    }
}
