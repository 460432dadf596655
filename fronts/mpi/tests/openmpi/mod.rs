//! The same with Open MPI: the suite, and programs with the libraries that Debian has built for Open MPI. Each is
//! skipped, and says so, where what it needs is not installed.

use super::{
    Ground, NAME, a_lost_node_is_survived, built, children_and_a_full_node_are_survived, compiler, data_goes_by_ucx,
    example, expect, package, place, run, suite_sources, text,
};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_mpi::Mpi;
use weft_tests::command::{binaries, is_installed};

/// Debian's Python, which its packages are for.
const PYTHON: &str = "/usr/bin/python3";

/// `None`: programs of Open MPI cannot be run.
fn ground(test: &str) -> Option<Ground> {
    ground_of_size(test, "")
}

fn ground_of_size(test: &str, size: &str) -> Option<Ground> {
    if !is_installed("mpicc.openmpi") || !is_installed("mpiexec.openmpi") {
        return None;
    }
    place()?;
    Some(Ground::start(&format!("openmpi-{test}"), size))
}

/// `weft mpiexec` by Open MPI, which refuses root and more processes than processors, and binds each to a processor.
fn mpiexec(ground: &Ground, program: &Path, words: &[&str]) -> Command {
    let mut command = ground.mpiexec_with(Mpi::OpenMpi, 4, program, words);
    for name in ["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"] {
        command.env(format!("OMPI_{name}"), "1");
    }
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none").env("OMPI_MCA_mpi_yield_when_idle", "1");
    command
}

fn program(name: &str, sources: &[PathBuf], flags: &[String]) -> PathBuf {
    let output = place().expect("it is built").join(format!("openmpi-{name}"));
    run(compiler("mpicc.openmpi", &output, sources).args(flags));
    output
}

fn grid() -> PathBuf {
    program("grid", &[example("grid.c")], &[])
}

/// An example with a library, if that is installed.
fn with_library(name: &str, library: &str, more: &[&str]) -> Option<PathBuf> {
    let told = Command::new("pkg-config").args(["--cflags", "--libs", library]).output();
    let Some(flags) = told.ok().filter(|told| told.status.success()) else {
        eprintln!("skip: {library} for Open MPI or pkg-config is not installed");
        return None;
    };
    let flags = text(&flags.stdout);
    let flags: Vec<_> = flags.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect();
    Some(program(name, &[example(&format!("{name}.c"))], &flags))
}

/// Whether Debian's Python can import these.
fn python_has(modules: &str) -> bool {
    let is_there = Command::new(PYTHON).args(["-c", &format!("import {modules}")]).output();
    let is_there = is_there.is_ok_and(|told| told.status.success());
    if !is_there {
        eprintln!("skip: {PYTHON} has no {modules}");
    }
    is_there
}

#[test]
fn programs_in_c_get_what_mpi_promises() {
    let Some(ground) = ground("suite") else { return };
    let suite = program("suite", &suite_sources(), &[]);
    expect(&mut mpiexec(&ground, &suite, &["weft:/"]), "passed-on holds");
    let names = ground.up.weft(&["ls", "-a", &format!("{NAME}:/")]);
    assert!(names.contains("interleaved-alone") && !names.contains("shfp"), "{names}");
    let layout = ground.up.weft(&["layout", &format!("{NAME}:/striped")]);
    assert!(layout.contains("128 KiB") && layout.contains('3'), "{layout}");
    let words = ["weft:mpi:/", "interleaved", "requests", "shared", "made-by-one"];
    expect(mpiexec(&ground, &suite, &words).env("WEFT_TRANSPORT", "tcp"), "shared holds");
}

#[test]
fn files_with_a_part_for_each_process_keep_the_promises_too() {
    let Some(ground) = ground("split") else { return };
    let suite = program("suite-split", &suite_sources(), &[]);
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    expect(&mut mpiexec(&ground, &suite, &["weft:/split/"]), "passed-on holds");
    expect(&mut mpiexec(&ground, &grid(), &["weft:/split/grid", "300"]), "all there");
    let layout = ground.up.weft(&["layout", &format!("{NAME}:/split/grid")]);
    assert!(layout.contains("a part for each writer"), "{layout}");
}

#[test]
fn libraries_that_debian_has_built_for_open_mpi_work() {
    let Some(ground) = ground("libraries") else { return };
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    if let Some(hdf5) = with_library("hdf5", "hdf5-openmpi", &[]) {
        for name in ["weft:/hdf5.h5", "weft:/split/hdf5.h5"] {
            expect(&mut mpiexec(&ground, &hdf5, &[name]), "hdf5 holds");
        }
    }
    // Its pkg-config file does not say where the headers are.
    let multiarch = text(&Command::new("gcc").arg("-print-multiarch").output().expect("gcc runs").stdout);
    let headers = format!("-I/usr/lib/{}/netcdf/mpi/include", multiarch.trim());
    if let Some(netcdf) = with_library("netcdf", "netcdf-mpi", &[&headers]) {
        for name in ["weft:/netcdf.nc", "weft:/split/netcdf.nc"] {
            expect(&mut mpiexec(&ground, &netcdf, &[name]), "netcdf holds");
        }
    }
    let example = |name: &str| example(name).display().to_string();
    if python_has("mpi4py") {
        for name in ["weft:/vector", "weft:/split/vector"] {
            let words = [&*example("vector.py"), name];
            expect(&mut mpiexec(&ground, Path::new(PYTHON), &words), "4000 numbers: all there");
        }
    }
    if python_has("mpi4py, h5py._debian_h5py_mpi") {
        for name in ["weft:/grid.h5", "weft:/split/grid.h5"] {
            let words = [&*example("grid_h5.py"), name];
            expect(&mut mpiexec(&ground, Path::new(PYTHON), &words), "200 rows: all there");
        }
    }
}

/// Files of the machine stay with Open MPI's own MPI-IO. Those below a mount go to the file system; PnetCDF opens them
/// by open(2), too.
#[test]
fn names_lead_to_file_systems_mounts_and_this_machine() {
    let Some(ground) = ground("names") else { return };
    let grid = grid();
    let here = ground.up.directory().join("grid-here").display().to_string();
    for name in ["weft:/grid", &here] {
        expect(&mut mpiexec(&ground, &grid, &[name, "300"]), "300 x 300 numbers: all there");
    }
    let bytes = std::fs::read(&here).expect("it is a file of this machine");
    let read = run(ground.up.command(&binaries().join("weft")).args(["cat", &format!("{NAME}:/grid")]));
    assert!(read.stdout == bytes);
    let lost = mpiexec(&ground, &grid, &["weft:nothing-of-this-name:/x", "300"]).output().expect("it runs");
    assert!(!lost.status.success(), "{lost:?}");

    let Some(mount) = ground.mounted() else { return };
    let mut by_driver = mpiexec(&ground, &grid, &["mount/12:30", "300"]);
    let told = expect(by_driver.env("ROMIO_PRINT_HINTS", "1"), "300 x 300 numbers: all there");
    assert!(text(&told.stdout).contains("value = weft"), "{}", text(&told.stdout));
    assert!(std::fs::read(mount.join("12:30")).expect("the mount has it") == bytes);
    if let Some(pnetcdf) = with_library("pnetcdf", "pnetcdf", &[]) {
        ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
        for name in ["mount/pnetcdf.nc", "mount/split/pnetcdf.nc"] {
            expect(&mut mpiexec(&ground, &pnetcdf, &[name]), "pnetcdf holds");
        }
        let layout = ground.up.weft(&["layout", &format!("{NAME}:/split/pnetcdf.nc")]);
        assert!(layout.contains("a part for each writer"), "{layout}");
    }
    ground.up.weft(&["umount", &mount.display().to_string()]);
}

/// Without a word it would be a segmentation fault in MPI_Info_dup().
#[test]
fn the_driver_for_mpich_refuses_a_program_of_open_mpi() {
    let Some(ground) = ground("refused") else { return };
    if built().is_none() {
        return;
    }
    let told = ground.mpiexec(2, &grid(), &["weft:/grid", "300"]).output().expect("it runs");
    let said = text(&told.stderr);
    assert!(!told.status.success() && told.status.signal().is_none(), "{told:?}");
    assert!(said.contains("is a program of Open MPI") && said.contains("remedy: `weft mpiexec --launcher"), "{said}");
}

fn faults() -> PathBuf {
    program("faults", &[package().join("tests/alone/faults.c")], &[])
}

#[test]
fn children_and_a_full_node_are_survived_by_programs() {
    let Some(ground) = ground_of_size("survived", ":256MiB") else { return };
    let faults = faults();
    children_and_a_full_node_are_survived(&ground, |words| mpiexec(&ground, &faults, words));
}

#[test]
fn a_lost_node_is_survived_by_programs() {
    let Some(ground) = ground("lost") else { return };
    let faults = faults();
    a_lost_node_is_survived(&ground, |words| mpiexec(&ground, &faults, words));
}

/// Open MPI's messages and the driver's data both go by UCX, in the same processes.
#[test]
fn ucx_is_shared_with_open_mpi() {
    let Some(ground) = ground("ucx") else { return };
    let suite = program("suite-ucx", &suite_sources(), &[]);
    data_goes_by_ucx(&ground, |words| {
        let mut command = mpiexec(&ground, &suite, words);
        // By itself it takes UCX only where there are adapters for it.
        for (name, value) in [("pml", "ucx"), ("opal_common_ucx_tls", "any"), ("opal_common_ucx_devices", "any")] {
            command.env(format!("OMPI_MCA_{name}"), value);
        }
        command
    });
}
