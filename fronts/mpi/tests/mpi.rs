//! MPI programs on files of Weft: compiled by mpich's compilers, they know nothing of it, and run as 4 processes on 4
//! nodes of this machine. `openmpi/` has those that are compiled by Open MPI's.
//!
//! `programs/` is a suite in C, a part for each kind of promise; `alone/` are programs of their own; those of
//! `examples/mpi` run, too. The drivers are
//! built by `scripts/mpi-driver.sh` first, of what `cargo build --workspace` has built. Where the headers of an MPI are
//! missing, or the sources of ROMIO cannot be fetched, the tests are skipped, and say so.

mod openmpi;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use weft_mpi::Mpi;
use weft_tests::command::{Up, binaries, is_installed, run};
use weft_tests::eventually;

/// Name of the file system of a test.
const NAME: &str = "mpi";
/// Processes that wait for one another look all the time: several programs at once would take each other's processors.
static TURN: Mutex<()> = Mutex::new(());

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the drivers and of the programs, if there can be one of mpich's.
fn built() -> Option<&'static Path> {
    (is_installed("mpicc.mpich") && is_installed("mpiexec.hydra")).then(place)?
}

/// The folder of the drivers and of the programs; `None`, and why, if there can be none. An MPI is installed.
fn place() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let place = binaries().join("mpi");
    let mut script = Command::new(package().join("../../scripts/mpi-driver.sh"));
    script.arg(binaries()).arg(&place).arg(binaries().join("../mpi/romio"));
    let told = script.env("WEFT_NO_INSTALL", "1").env("CFLAGS", "-Werror").output().expect("bash runs");
    let text = String::from_utf8_lossy(&told.stderr).into_owned();
    if !told.status.success() && text.contains("apt-get source failed") {
        eprintln!("skip: the sources of ROMIO are not here: {text}");
        return None;
    }
    assert!(told.status.success(), "{text}");
    Some(place)
}

/// A compiler of C that makes a program.
fn compiler(name: &str, output: &Path, sources: &[PathBuf]) -> Command {
    let mut command = Command::new(name);
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(output).args(sources);
    command
}

/// Compiles a program.
fn program(name: &str, sources: &[PathBuf]) -> PathBuf {
    let output = built().expect("it is built").join(name);
    run(&mut compiler("mpicc.mpich", &output, sources));
    output
}

/// Compiles one of the programs of their own.
fn alone(name: &str) -> PathBuf {
    program(name, &[package().join("tests/alone").join(name).with_extension("c")])
}

/// A program of `examples/mpi`.
fn example(name: &str) -> PathBuf {
    package().join("../../examples/mpi").join(name)
}

fn suite_sources() -> [PathBuf; 5] {
    let folder = package().join("tests/programs");
    ["main.c", "views.c", "model.c", "modes.c", "locks.c"].map(|file| folder.join(file))
}

fn suite() -> PathBuf {
    program("suite", &suite_sources())
}

/// A file system of four nodes, and the turn to use this machine.
struct Ground {
    up: Up,
    _turn: MutexGuard<'static, ()>,
}

impl Ground {
    /// `None`: MPI programs cannot be run.
    fn new(test: &str) -> Option<Self> {
        Self::of_size(test, "")
    }

    fn of_size(test: &str, size: &str) -> Option<Self> {
        built()?;
        Some(Self::start(test, size))
    }

    fn start(test: &str, size: &str) -> Self {
        Self::of(|| Up::of_nodes(NAME, test, 4, size))
    }

    fn of(up: impl FnOnce() -> Up) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { up: up(), _turn: turn }
    }

    /// `weft mpiexec`, of so many processes. It is ended when it hangs: the launcher ends its processes then.
    fn mpiexec(&self, processes: u32, program: &Path, words: &[&str]) -> Command {
        self.mpiexec_with(Mpi::Mpich, processes, program, words)
    }

    fn mpiexec_with(&self, mpi: Mpi, processes: u32, program: &Path, words: &[&str]) -> Command {
        let mut command = self.up.command(Path::new("timeout"));
        command
            .args(["--kill-after", "10", "300"])
            .arg(binaries().join("weft"))
            .arg("mpiexec")
            .arg("--driver")
            .arg(place().expect("it is built").join(mpi.driver()));
        command.args(["-n", &processes.to_string()]).arg(program).args(words);
        command.current_dir(self.up.directory());
        command
    }

    /// A mount, `mount` in the directory of the test. `None`, with a reason: there can be none.
    fn mounted(&self) -> Option<PathBuf> {
        if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            eprintln!("skip: mounts: /dev/fuse: {error}");
            return None;
        }
        let mount = self.up.directory().join("mount");
        std::fs::create_dir(&mount).expect("made");
        self.up.weft(&["mount", NAME, &mount.display().to_string()]);
        Some(mount)
    }

    /// Numbers of this name in what `weft status` tells of the nodes, in their order.
    fn status(&self, name: &str) -> Vec<u64> {
        let told = self.up.weft(&["status", "--json", NAME]);
        let prefix = format!("\"{name}\": ");
        let numbers = told.lines().filter_map(|line| line.trim().strip_prefix(&prefix));
        numbers.map(|number| number.trim_end_matches(',').parse().expect("a number")).collect()
    }

    /// Calls that the shards have served.
    fn calls(&self) -> u64 {
        self.status("calls").iter().sum()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a program that has to print this.
fn expect(command: &mut Command, expected: &str) -> Output {
    let told = run(command);
    assert!(text(&told.stdout).contains(expected), "{command:?}: {}{}", text(&told.stdout), text(&told.stderr));
    told
}

#[test]
fn programs_in_c_get_what_mpi_promises() {
    let Some(ground) = Ground::new("suite") else { return };
    let suite = suite();
    expect(&mut ground.mpiexec(4, &suite, &["weft:/"]), "passed-on holds");
    // No file of a shared pointer, nor another one of the driver's, stays.
    let names = ground.up.weft(&["ls", "-a", &format!("{NAME}:/")]);
    assert!(names.contains("interleaved-alone") && !names.contains("shfp"), "{names}");
    // What a hint has said is the layout that others see.
    let layout = ground.up.weft(&["layout", &format!("{NAME}:/striped")]);
    assert!(layout.contains("128 KiB") && layout.contains('3'), "{layout}");
    // The same over sockets, as between machines, where it differs.
    let words = ["weft:mpi:/", "interleaved", "requests", "shared", "made-by-one"];
    expect(ground.mpiexec(3, &suite, &words).env("WEFT_TRANSPORT", "tcp"), "shared holds");
}

/// Each process has a part of each file: the same programs, in a directory whose files are split.
#[test]
fn files_with_a_part_for_each_process_keep_the_promises_too() {
    let Some(ground) = Ground::new("split") else { return };
    let suite = suite();
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    expect(&mut ground.mpiexec(4, &suite, &["weft:/split/"]), "passed-on holds");
    let words = ["weft:mpi:/split/", "interleaved", "requests", "shared", "made-by-one"];
    expect(ground.mpiexec(3, &suite, &words).env("WEFT_TRANSPORT", "tcp"), "shared holds");
    // What was written is then read by other processes, fewer than wrote it, and in other ways.
    for processes in [3, 1] {
        expect(&mut ground.mpiexec(processes, &suite, &["weft:/split/", "read-later"]), "read-later holds");
    }
    let grid = program("grid-split", &[example("grid.c")]);
    let here = ground.up.directory().join("grid-here");
    for name in ["weft:/split/grid", &here.display().to_string()] {
        expect(&mut ground.mpiexec(4, &grid, &[name, "300"]), "all there");
    }
    let read = run(ground.up.command(&binaries().join("weft")).args(["cat", &format!("{NAME}:/split/grid")]));
    assert!(read.stdout == std::fs::read(&here).expect("it is a file of this machine"));
    let layout = ground.up.weft(&["layout", &format!("{NAME}:/split/grid")]);
    assert!(layout.contains("a part for each writer"), "{layout}");
}

/// Calls that the shards serve between the two moments that a program of `alone/` tells of, with some of those who
/// look: their sessions end at each shard.
fn calls_while(ground: &Ground, command: &mut Command) -> u64 {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut input = child.stdin.take().expect("it is piped");
    let mut told = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let counts = ["ready", "done"].map(|moment| {
        let is_told = told.by_ref().map_while(Result::ok).any(|line| line == moment);
        assert!(is_told, "{command:?} ended before it was {moment}");
        let calls = ground.calls();
        input.write_all(b"\n").expect("it reads");
        calls
    });
    assert!(child.wait().expect("it ends").success(), "{command:?}");
    counts[1] - counts[0]
}

/// A collective open is one call of metadata, and a close none, however many processes there are, whether the file is
/// there or the open makes it.
#[test]
fn one_process_opens_for_all() {
    let Some(ground) = Ground::new("group") else { return };
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    ground.up.weft(&["mkdir", "--width", "3", &format!("{NAME}:/striped")]);
    let opens = alone("opens");
    for (place, how) in
        ["weft:/", "weft:/striped/", "weft:/split/"].into_iter().flat_map(|place| [(place, "again"), (place, "anew")])
    {
        for processes in [2, 6] {
            let calls = calls_while(&ground, &mut ground.mpiexec(processes, &opens, &[place, how]));
            eprintln!("calls of metadata for 20 opens and closes of {place} by {processes}, {how}: {calls}");
            assert!((20..40).contains(&calls), "{place} {how} {processes}: {calls}");
        }
    }
}

/// Of a split file the processes of a machine publish what they have written by one call.
#[test]
fn processes_of_a_machine_publish_together() {
    let Some(ground) = Ground::new("together") else { return };
    ground.up.weft(&["layout", "--split", &format!("{NAME}:/")]);
    let suite = suite();
    let count = |processes| {
        let before = ground.calls();
        expect(&mut ground.mpiexec(processes, &suite, &["weft:/", "synced"]), "synced holds");
        ground.calls() - before
    };
    let (two, six) = (count(2), count(6));
    // Each process that published by itself would cost a call a round, 80 in 20 rounds. What they cost is their
    // connection, and what they ask of others' records twice.
    eprintln!("calls of metadata for 20 synchronizations: {two} by two processes, {six} by six");
    assert!(six < two + 60, "{two} {six}");
}

/// Of a split file no byte goes through a socket, and neither messages nor what the shards keep depend on how many
/// records a process writes. `bench/mpi_scale.py` has more processes, on nodes that are further away from each other.
#[test]
fn records_of_split_files_cost_no_messages() {
    let Some(ground) = Ground::new("records") else { return };
    ground.up.weft(&["layout", "--split", &format!("{NAME}:/")]);
    let scale = program("scale", &[package().join("../../bench/mpi/scale.c")]);
    let cost = |name: &str, records: &str, pattern: &str| {
        let count = || (ground.calls(), ground.status("store_bytes").iter().sum::<u64>());
        let before = count();
        expect(&mut ground.mpiexec(4, &scale, &[&format!("weft:/{name}"), records, "4096", pattern]), "pss");
        (count().0 - before.0, count().1 - before.1)
    };
    cost("first", "4", "strided");
    for pattern in ["segmented", "strided"] {
        let (few, many) =
            (cost(&format!("{pattern}-few"), "16", pattern), cost(&format!("{pattern}-many"), "256", pattern));
        eprintln!("{pattern}: 16 records (calls, bytes of index) {few:?}, 256 records {many:?}");
        assert!(many.0 <= few.0 + 12 && many.0 <= 60, "calls {few:?} {many:?}");
        assert!(many.1 <= few.1 + 1024, "bytes of index {few:?} {many:?}");
    }
    let read = ["read_tcp_bytes", "read_unix_bytes", "read_memory_bytes"];
    for way in read.into_iter().chain(["write_tcp_bytes", "write_unix_bytes", "write_memory_bytes"]) {
        assert_eq!(ground.status(way), [0; 4], "{way}");
    }
}

#[test]
fn programs_in_fortran_work() {
    let Some(ground) = Ground::new("fortran") else { return };
    if !is_installed("mpifort.mpich") {
        return;
    }
    let records = built().expect("it is built").join("records");
    run(Command::new("mpifort.mpich").arg("-o").arg(&records).arg(package().join("tests/alone/records.f90")));
    expect(&mut ground.mpiexec(4, &records, &["weft:/records"]), "records hold");
}

#[test]
fn threads_call_at_once() {
    let Some(ground) = Ground::new("threads") else { return };
    expect(&mut ground.mpiexec(2, &alone("threads"), &["weft:/"]), "threads hold");
}

/// HDF5 knows nothing of Weft either.
#[test]
fn hdf5_writes_and_reads_one_data_set() {
    let Some(ground) = Ground::new("hdf5") else { return };
    let told = Command::new("pkg-config").args(["--cflags", "--libs", "hdf5-mpich"]).output();
    let Some(flags) = told.ok().filter(|told| told.status.success()) else {
        eprintln!("skip: parallel HDF5 for mpich (libhdf5-mpich-dev) or pkg-config is not installed");
        return;
    };
    let program = built().expect("it is built").join("hdf5");
    run(compiler("mpicc.mpich", &program, &[example("hdf5.c")]).args(text(&flags.stdout).split_whitespace()));
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    for name in ["weft:/grid.h5", "weft:/split/grid.h5"] {
        expect(&mut ground.mpiexec(4, &program, &[name]), "hdf5 holds");
    }
}

#[test]
fn python_programs_with_mpi4py_work() {
    let Some(ground) = Ground::new("python") else { return };
    let probe = "from mpi4py import MPI; assert 'MPICH' in MPI.Get_library_version()";
    let is_there = Command::new("python3").args(["-c", probe]).output().is_ok_and(|told| told.status.success());
    if !is_there {
        eprintln!("skip: python3 has no mpi4py that was built for mpich");
        return;
    }
    let vector = example("vector.py").display().to_string();
    expect(&mut ground.mpiexec(4, Path::new("python3"), &[&vector, "weft:/vector"]), "4000 numbers: all there");
}

#[test]
fn names_lead_to_file_systems_mounts_and_this_machine() {
    let Some(ground) = Ground::new("names") else { return };
    let grid = program("grid", &[example("grid.c")]);
    let here = ground.up.directory().join("grid-here");
    let told = "4 processes, 300 x 300 numbers: all there";
    for name in ["weft:/grid", "weft:mpi:/grid-too", &here.display().to_string()] {
        expect(&mut ground.mpiexec(4, &grid, &[name, "300"]), told);
    }
    let bytes = std::fs::read(&here).expect("it is a file of this machine");
    assert_eq!(bytes.len(), 300 * 300 * 8);
    for name in ["grid", "grid-too"] {
        let read = run(ground.up.command(&binaries().join("weft")).args(["cat", &format!("{NAME}:/{name}")]));
        assert!(read.stdout == bytes, "{name}");
    }
    // The program ends by itself: a launcher may lose what processes print right before they abort.
    let nowhere =
        expect(&mut ground.mpiexec(2, &alone("faults"), &["weft:nothing-of-this-name:/x", "nowhere"]), "as expected");
    assert!(text(&nowhere.stderr).contains("nothing-of-this-name"), "{}", text(&nowhere.stderr));
    below_a_mount(&ground, &grid, told, &bytes);
}

/// Paths below a mount go to the file system, not through the kernel; one with a colon, too.
fn below_a_mount(ground: &Ground, grid: &Path, told: &str, bytes: &[u8]) {
    let Some(mount) = ground.mounted() else { return };
    ground.up.weft(&["mkdir", &format!("{NAME}:/below")]);
    std::os::unix::fs::symlink(mount.join("below"), ground.up.directory().join("link")).expect("made");
    for name in ["mount/below/grid", "mount/./below/12:30", "link/linked"] {
        expect(ground.mpiexec(4, grid, &[name, "300"]).env("ROMIO_PRINT_HINTS", "1"), "romio_filesystem_type");
        let by_driver = expect(ground.mpiexec(4, grid, &[name, "300"]).env("ROMIO_PRINT_HINTS", "1"), told);
        assert!(text(&by_driver.stdout).contains("value = weft"), "{name}: {}", text(&by_driver.stdout));
        let read = std::fs::read(mount.join("below").join(Path::new(name).file_name().expect("a name")));
        assert!(read.expect("the mount has it") == bytes, "{name}");
    }
    ground.up.weft(&["umount", &mount.display().to_string()]);
    ground.up.weft(&["mount", NAME, &mount.display().to_string(), "-o", "ro"]);
    expect(&mut ground.mpiexec(4, &alone("faults"), &["mount/below/grid", "refused"]), "as expected");
    ground.up.weft(&["umount", &mount.display().to_string()]);
}

#[test]
fn faults_are_told_and_leave_nothing_behind() {
    let Some(ground) = Ground::new("faults") else { return };
    let faults = alone("faults");
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/parts")]);
    let is_ended = |name: &str, what| {
        let ended = ground.mpiexec(4, &faults, &[&format!("weft:/{name}"), what]).output().expect("it runs");
        assert!(!ended.status.success() && ended.status.signal().is_none(), "{ended:?}");
        assert_ne!(ended.status.code(), Some(124), "the time limit has ended it: {ended:?}");
    };
    is_ended("parts/missing", "missing");
    for (name, left) in [("killed", "left"), ("parts/killed", "left-split")] {
        is_ended(name, "killed");
        // What a process had synchronized is there, what the living wrote later too, and no lock is left.
        expect(&mut ground.mpiexec(4, &faults, &[&format!("weft:/{name}"), left]), "as expected");
    }
    eventually("no session is left", 120, || ground.status("sessions").iter().sum::<u64>() == 0);
    expect(&mut ground.mpiexec(4, &suite(), &["weft:/", "made-by-one"]), "made-by-one holds");
}

#[test]
fn hints_say_where_parts_go_and_what_drains_write() {
    if built().is_none() {
        return;
    }
    let ground = Ground::of(|| Up::over_a_directory(NAME, "hints", 4));
    expect(&mut ground.mpiexec(4, &alone("hints"), &["weft:/"]), "hints hold");
    for (kind, count) in [("own", 1), ("spread", 4)] {
        let mut nodes = BTreeSet::new();
        for index in 0..4 {
            let located = ground.up.weft(&["locate", "--json", &format!("{NAME}:/{kind}-{index}")]);
            nodes.extend(located.lines().filter(|line| line.contains("\"node\":")).map(str::to_owned));
        }
        assert_eq!(nodes.len(), count, "{kind}: {nodes:?}");
    }
    ground.up.weft(&["drain", NAME]);
    let below = ground.up.directory().join("below");
    let is_there = |name: &str| below.join(name).exists();
    assert!(["again", "kept", "usual", "unknown", "own-0", "spread-3"].into_iter().all(is_there));
    assert!(!is_there("scratch"));
    assert_eq!(std::fs::read(below.join("kept")).expect("read").len(), 400_000);
    // Nothing of it is missing below.
    assert_eq!(ground.up.weft(&["drain", "--dry-run", NAME]), "");
}

/// Processes with different keys cannot import each other's handles: each opens the file as its user may.
#[test]
fn a_process_of_another_user_opens_the_file_itself() {
    let Some(ground) = Ground::new("users") else { return };
    let key = ground.up.directory().join("ann.key").display().to_string();
    ground.up.weft(&["user", "add", "ann", NAME, "--uid", "4242", "--gid", "4242", "--output", &key]);
    let of_ann_and_others = |program: &Path, words: &[&str]| {
        let mut command = ground.mpiexec(1, Path::new("-env"), &["WEFT_KEY", &key]);
        command.arg(program).args(words).args([":", "-n", "3"]).arg(program).args(words);
        command
    };
    expect(&mut of_ann_and_others(&suite(), &["weft:mpi:/", "made-by-one"]), "made-by-one holds");
    expect(&mut of_ann_and_others(&alone("faults"), &["weft:mpi:/made-by-one", "denied"]), "as expected");
}

#[test]
fn a_full_store_is_no_space_to_each_process() {
    let Some(ground) = Ground::of_size("full", ":64MiB") else { return };
    expect(&mut ground.mpiexec(4, &alone("faults"), &["weft:/full", "full"]), "as expected");
}

/// With either MPI: children of processes, and a node that is full.
fn children_and_a_full_node_are_survived(ground: &Ground, mpiexec: impl Fn(&[&str]) -> Command) {
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/parts")]);
    for name in ["forked", "parts/forked"] {
        expect(&mut mpiexec(&[&format!("weft:/{name}"), "forked"]), "as expected");
    }
    for what in ["one-full", "one-alone"] {
        expect(&mut mpiexec(&[&format!("weft:/parts/{what}"), what]), "as expected");
        ground.up.weft(&["rm", &format!("{NAME}:/parts/{what}")]);
    }
    expect(&mut mpiexec(&["weft:/parts/one-spills", "one-spills"]), "as expected");
}

#[test]
fn children_and_a_full_node_are_survived_by_programs() {
    let Some(ground) = Ground::of_size("survived", ":256MiB") else { return };
    let faults = alone("faults");
    children_and_a_full_node_are_survived(&ground, |words| ground.mpiexec(4, &faults, words));
}

/// With either MPI: a node is killed while programs use files.
fn a_lost_node_is_survived(ground: &Ground, mpiexec: impl Fn(&[&str]) -> Command) {
    // The first node has the shard of the root directory, and of its files.
    ground.up.weft(&["layout", "--split", &format!("{NAME}:/")]);
    let told = expect(&mut mpiexec(&["weft:/lost", "lost", &ground.status("pid")[3].to_string()]), "as expected");
    eprint!("{}", text(&told.stdout));
    expect(&mut mpiexec(&["weft:/forked", "forked"]), "as expected");
}

#[test]
fn a_lost_node_is_survived_by_programs() {
    let Some(ground) = Ground::new("lost") else { return };
    let faults = alone("faults");
    a_lost_node_is_survived(&ground, |words| ground.mpiexec(4, &faults, words));
}

/// mpich's messages and the driver's data both go by UCX, in the same processes.
#[test]
fn ucx_is_shared_with_mpi() {
    let Some(ground) = Ground::new("ucx") else { return };
    data_goes_by_ucx(&ground, |words| ground.mpiexec(3, &suite(), words));
}

fn data_goes_by_ucx(ground: &Ground, mpiexec: impl Fn(&[&str]) -> Command) {
    ground.up.weft(&["mkdir", "--split", &format!("{NAME}:/split")]);
    for place in ["weft:/", "weft:/split/"] {
        let words = [place, "interleaved", "requests", "shared", "made-by-one"];
        let mut by_ucx = mpiexec(&words);
        by_ucx.envs([("WEFT_TRANSPORT", "ucx"), ("WEFT_UCX_TLS", "tcp"), ("WEFT_UCX_NET_DEVICES", "lo")]);
        let told = by_ucx.output().expect("it runs");
        if text(&told.stderr).contains("libucp") {
            eprintln!("skip: libucp is not installed: {}", text(&told.stderr));
            return;
        }
        assert!(text(&told.stdout).contains("shared holds"), "{told:?}");
    }
    let moved = [ground.status("puts"), ground.status("gets")].map(|counts| counts.iter().sum::<u64>());
    assert!(moved[0] > 0 && moved[1] > 0, "{moved:?}");
}

#[test]
fn mpiexec_passes_the_exit_code_on_and_says_what_is_missing() {
    let Some(ground) = Ground::new("mpiexec") else { return };
    let code = ground.mpiexec(2, Path::new("/bin/sh"), &["-c", "exit 7"]).status().expect("it runs").code();
    assert_eq!(code, Some(7));
    let fails = |words: &[&str], expected: &str| {
        let told = ground.up.command(&binaries().join("weft")).arg("mpiexec").args(words).output().expect("it runs");
        let told = (told.status.code(), text(&told.stderr));
        assert!(told.0 == Some(2) && told.1.contains(expected) && told.1.contains("remedy:"), "{told:?}");
    };
    fails(&["--driver", "/nothing-of-this-name", "-n", "1", "true"], "/nothing-of-this-name: no such file");
    let driver = built().expect("it is built").join("libweft-romio.so").display().to_string();
    fails(&["--driver", &driver, "--launcher", "nothing-of-this-name", "true"], "nothing-of-this-name: cannot be run");
}
