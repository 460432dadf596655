//! `weft mpiexec`: an MPI program whose MPI-IO knows file systems of Weft.
//!
//! The launcher replaces this process, so that signals reach it and its exit code is this command's.

use crate::failure::{Explain, Failure, Outcome};
use crate::keys;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use weft_client::find;
use weft_mpi::{Kind, Launcher, Mpi};

const HELP: &str = "\
Runs the launcher with the words that follow, and has the processes of the
program, which stays as it is, load Weft's MPI-IO driver. File names:
  weft:/path         in the only file system that runs
  weft:NAME:/path    in the file system of this name
  /mount/path        below a mount, on the first process's machine
All other names are files of the machine, as ever. The exit code is the
launcher's. The program has to be linked with mpich (libmpich.so.12) or Open
MPI (libmpi.so.40) of the version that the driver was built for (`make mpi`).
Which of them is told by the launcher, or by the driver that is named.

Examples:
  weft mpiexec -n 4 ./simulation weft:/results
  weft mpiexec -hosts n1,n2 -n 64 ./simulation weft:job42:/results
  weft mpiexec --launcher srun -- -N 2 ./simulation weft:/results";

/// Run an MPI program that reads and writes files of a file system by MPI-IO
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Program that starts the processes [default: mpiexec, if there is a driver for it]
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<OsString>,
    /// Library with the driver [default: that for the launcher, where weft is, in ../lib or ../mpi]
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Words for the launcher: its options, the program, that one's words
    #[arg(value_name = "WORD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    let program = env::current_exe().explain(|| "mpiexec: own program")?;
    let named = args.driver.as_deref().map(named_driver).transpose()?;
    let launcher = launcher(args, |kind| match &named {
        Some(driver) => kind.mpi() == Mpi::of_driver(driver),
        None => weft_mpi::find_driver(&program, kind.mpi()).is_some(),
    })?;
    let driver = match named {
        Some(driver) => driver,
        None => found_driver(&program, launcher.kind.mpi())?,
    };
    if !weft_mpi::can_be_loaded(&driver) {
        return Err(Failure::new(format!("mpiexec: driver {}: the loader takes no such path", driver.display()))
            .remedy("put it where the path has no spaces and colons"));
    }
    let key = keys::path();
    let variables: Vec<_> = key.iter().map(|key| (find::VARIABLE, key.as_ref())).collect();
    let error = launcher.command(&driver, &variables, &args.words).exec();
    Err(Failure::of_io(format_args!("mpiexec: {}", launcher.program.display()), &error).failed())
}

fn named_driver(driver: &Path) -> Outcome<PathBuf> {
    let found = driver.canonicalize().explain(|| format!("mpiexec: driver {}", driver.display()));
    found.map_err(|failure| failure.failed().remedy("`make mpi` builds it"))
}

fn found_driver(program: &Path, mpi: Mpi) -> Outcome<PathBuf> {
    weft_mpi::find_driver(program, mpi).ok_or_else(|| {
        let directory = program.parent().unwrap_or(program).display();
        let remedy = "`make mpi` builds it where that MPI's headers are; --driver names another";
        Failure::new(format!("mpiexec: no {} in {directory}, ../lib or ../mpi", mpi.driver())).failed().remedy(remedy)
    })
}

fn launcher(args: &Args, suits: impl Fn(Kind) -> bool) -> Outcome<Launcher> {
    let found = args.launcher.as_deref().map_or_else(|| Launcher::find(suits), Launcher::named);
    let name = args.launcher.as_deref().unwrap_or("mpiexec".as_ref()).display();
    found.ok_or_else(|| {
        Failure::new(format!("mpiexec: {name}: cannot be run"))
            .remedy("install mpich or Open MPI, or name the launcher: --launcher srun")
    })
}
