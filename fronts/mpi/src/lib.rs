//! How MPI programs are started with the MPI-IO driver: a library that is loaded into their processes.
//!
//! The driver is C, in `driver/`: a table of functions for ROMIO, the MPI-IO of mpich, over the C library (`weft.h`).
//! `romio/` has what ROMIO needs of libmpich or Open MPI when it is built beside it. `scripts/mpi-driver.sh` builds a
//! shared library of all of them for each MPI ([`Mpi`]). For mpich it is preloaded: its functions `MPI_File_*`
//! replace those of libmpich, in programs that know nothing of it. For Open MPI it is a component, which is loaded
//! from one more folder of components. Tests in `tests/` run such programs.
//!
//! Here: where that library is ([`find_driver`]), which launcher starts programs ([`Launcher`]), and with which words
//! the library gets into their processes ([`Launcher::command`]).
//!
//! Not here: the command `weft mpiexec`, its options and errors (`fronts/cli/src/verb/mpiexec.rs`).

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File name of the component of Open MPI; Open MPI knows components by their names.
const COMPONENT: &str = "mca_io_romio321.so";
/// The loader takes libraries from this variable.
const PRELOAD: &str = "LD_PRELOAD";
/// Open MPI takes folders of components from this variable.
const COMPONENTS: &str = "OMPI_MCA_mca_base_component_path";
/// Variables with this prefix are the client's.
const OWN_PREFIX: &str = "WEFT_";
/// Launchers that are looked for, in this order.
const LAUNCHERS: [&str; 3] = ["mpiexec", "mpiexec.hydra", "mpiexec.mpich"];

/// An MPI library that there is a driver for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mpi {
    Mpich,
    OpenMpi,
}

impl Mpi {
    /// File name of the driver, in a folder of drivers.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Mpich => "libweft-romio.so",
            Self::OpenMpi => "weft-openmpi/mca_io_romio321.so",
        }
    }

    /// The library that a driver is for.
    pub fn of_driver(driver: &Path) -> Self {
        if driver.file_name().is_some_and(|name| name == COMPONENT) { Self::OpenMpi } else { Self::Mpich }
    }

    /// The variable, with its value, that has processes load the driver. What it has already stays: libraries that
    /// watch calls of MPI before the driver, other folders of components behind it.
    fn variable(self, driver: &Path) -> (&'static str, OsString) {
        let before = |name| env::var_os(name).filter(|value| !value.is_empty());
        let folder = driver.parent().unwrap_or(driver).as_os_str();
        let (name, parts) = match self {
            Self::Mpich => (PRELOAD, [before(PRELOAD), Some(driver.as_os_str().to_owned())]),
            Self::OpenMpi => {
                let others = before(COMPONENTS).unwrap_or_else(|| "SYS_DEFAULT:USER_DEFAULT".into());
                (COMPONENTS, [Some(folder.to_owned()), Some(others)])
            }
        };
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        (name, parts.join(OsStr::new(":")))
    }
}

/// Places where the driver is looked for: beside a program, and where `make` and an installation put it.
pub fn driver_places(program: &Path, mpi: Mpi) -> Vec<PathBuf> {
    let Some(directory) = program.parent() else { return Vec::new() };
    ["", "../lib", "../mpi"].map(|place| directory.join(place).join(mpi.driver())).into()
}

/// The driver, absolute, for a program that is one of Weft's.
pub fn find_driver(program: &Path, mpi: Mpi) -> Option<PathBuf> {
    driver_places(program, mpi).into_iter().find_map(|place| place.canonicalize().ok())
}

/// Whether programs can be told of a driver: they take a list, which spaces and colons separate.
pub fn can_be_loaded(driver: &Path) -> bool {
    !driver.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte))
}

/// Kind of a launcher: how variables get to the processes that it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// mpich's, and those that are made of it.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
    /// Open MPI's.
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

    /// The MPI library that its programs have, as far as one can tell.
    pub fn mpi(self) -> Mpi {
        if self == Self::OpenMpi { Mpi::OpenMpi } else { Mpi::Mpich }
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

    /// The first of the usual ones that suits, or else the first; `None`: there is none.
    pub fn find(suits: impl Fn(Kind) -> bool) -> Option<Self> {
        let found: Vec<_> = LAUNCHERS.iter().filter_map(|name| Self::named(OsStr::new(name))).collect();
        found.iter().find(|launcher| suits(launcher.kind)).or(found.first()).cloned()
    }

    /// Starts programs that have the driver, and these variables.
    pub fn command(&self, driver: &Path, variables: &[(&str, &OsStr)], words: &[OsString]) -> Command {
        let (name, value) = Mpi::of_driver(driver).variable(driver);
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Hydra => drop(command.arg("-genv").arg(name).arg(&value)),
            Kind::Slurm => {
                let mut export = OsString::from(format!("--export=ALL,{name}="));
                export.push(&value);
                command.arg(export);
            }
            // Open MPI hands its own variables on to other hosts, and of the others those that it is told.
            Kind::OpenMpi => {
                let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                let names = names.filter(|name| name.starts_with(OWN_PREFIX));
                let given = variables.iter().map(|&(name, _)| name.to_owned());
                for name in names.chain(given).collect::<BTreeSet<_>>() {
                    command.arg("-x").arg(name);
                }
                command.env(name, &value);
            }
            Kind::Other => drop(command.env(name, &value)),
        }
        command.envs(variables.iter().copied()).args(words);
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
        let told = |kind, driver: &str, variables: &[_]| {
            let command = Launcher { program: "launch".into(), kind }.command(Path::new(driver), variables, &words);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            (words.join(" "), command.get_envs().count())
        };
        let (mpich, openmpi) = ("/d/l.so", "/d/weft-openmpi/mca_io_romio321.so");
        assert_eq!(told(Kind::Hydra, mpich, &[]), ("-genv LD_PRELOAD /d/l.so -n 2 ./program".to_owned(), 0));
        assert_eq!(told(Kind::Slurm, mpich, &[]), ("--export=ALL,LD_PRELOAD=/d/l.so -n 2 ./program".to_owned(), 0));
        assert_eq!(told(Kind::Other, mpich, &[]), ("-n 2 ./program".to_owned(), 1));
        let told = told(Kind::OpenMpi, openmpi, &[("WEFT_KEY", "/key".as_ref())]);
        assert!(told.0.contains("-x WEFT_KEY ") && told.0.ends_with("-n 2 ./program") && told.1 == 2, "{told:?}");
    }

    #[test]
    fn a_component_is_found_before_those_of_open_mpi() {
        let driver = Path::new("/d").join(Mpi::OpenMpi.driver());
        assert_eq!(Mpi::of_driver(&driver), Mpi::OpenMpi);
        let (name, value) = Mpi::OpenMpi.variable(&driver);
        assert_eq!(name, COMPONENTS);
        assert!(value.to_string_lossy().starts_with("/d/weft-openmpi:"), "{value:?}");
    }

    #[test]
    fn the_driver_is_looked_for_where_it_is_built_and_installed() {
        let places = driver_places(Path::new("/p/bin/weft"), Mpi::Mpich);
        assert!(places.contains(&PathBuf::from("/p/bin/../lib/libweft-romio.so")), "{places:?}");
        assert!(can_be_loaded(Path::new("/p/lib/l.so")) && !can_be_loaded(Path::new("/p q/l.so")));
    }
}
