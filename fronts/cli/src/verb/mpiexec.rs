//! `weft mpiexec`: an MPI program whose MPI-IO knows file systems of Weft.
//!
//! The launcher replaces this process, so that signals reach it and its exit code is this command's.

use crate::failure::{Explain, Failure, Outcome};
use crate::keys;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use weft_client::find;
use weft_mpi::{Kind, Launcher};

const HELP: &str = "\
Runs the launcher with the words that follow, and has it load Weft's MPI-IO
driver into the processes of the program, which stays as it is. File names:
  weft:/path         in the only file system that runs
  weft:NAME:/path    in the file system of this name
  /mount/path        below a mount, on the first process's machine
All other names are files of the machine, as ever. The exit code is the
launcher's. The program has to be linked with mpich (libmpich.so.12) of the
version that the driver was built for (`make mpi`).

Examples:
  weft mpiexec -n 4 ./simulation weft:/results
  weft mpiexec -hosts n1,n2 -n 64 ./simulation weft:job42:/results
  weft mpiexec --launcher srun -- -N 2 ./simulation weft:/results";

/// Run an MPI program that reads and writes files of a file system by MPI-IO
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Program that starts the processes [default: mpiexec, or mpich's of several]
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<OsString>,
    /// Library with the driver [default: libweft-romio.so where weft is, in ../lib or ../mpi]
    #[arg(long, value_name = "FILE")]
    driver: Option<PathBuf>,
    /// Words for the launcher: its options, the program, that one's words
    #[arg(value_name = "WORD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    let driver = driver(args)?;
    let launcher = launcher(args)?;
    let mut command = launcher.command(&driver, &args.words);
    if let Some(key) = keys::path() {
        command.env(find::VARIABLE, key);
    }
    let error = command.exec();
    Err(Failure::of_io(format_args!("mpiexec: {}", launcher.program.display()), &error).failed())
}

fn driver(args: &Args) -> Outcome<PathBuf> {
    let driver = match &args.driver {
        Some(driver) => driver.canonicalize().explain(|| format!("mpiexec: driver {}", driver.display())),
        None => {
            let program = env::current_exe().explain(|| "mpiexec: own program")?;
            weft_mpi::find_driver(&program).ok_or_else(|| {
                let directory = program.parent().unwrap_or(&program).display();
                Failure::new(format!("mpiexec: no {} in {directory}, ../lib or ../mpi", weft_mpi::DRIVER))
            })
        }
    };
    let driver = driver.map_err(|failure| failure.failed().remedy("`make mpi` builds it; --driver names another"))?;
    if !weft_mpi::can_be_preloaded(&driver) {
        return Err(Failure::new(format!("mpiexec: driver {}: the loader takes no such path", driver.display()))
            .remedy("put it where the path has no spaces and colons"));
    }
    Ok(driver)
}

fn launcher(args: &Args) -> Outcome<Launcher> {
    let found = args.launcher.as_deref().map_or_else(Launcher::find, Launcher::named);
    let name = args.launcher.as_deref().unwrap_or("mpiexec".as_ref()).display();
    match found {
        Some(Launcher { kind: Kind::OpenMpi, program }) => Err(Failure::new(format!(
            "mpiexec: {} is Open MPI's, whose programs have another MPI-IO",
            program.display()
        ))
        .remedy("use mpich: --launcher names its mpiexec")),
        Some(launcher) => Ok(launcher),
        None => Err(Failure::new(format!("mpiexec: {name}: cannot be run"))
            .remedy("install mpich, or name the launcher: --launcher srun")),
    }
}
