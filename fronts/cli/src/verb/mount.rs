//! `weft mount`: a file system as a directory of this machine.
//!
//! The command starts itself again in the background (`--foreground --report`), waits for one line that says that
//! programs can use the mount or why not, and ends. The background process serves until it is unmounted.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::keys;
use crate::mounts::{self, Mount};
use crate::output::{self, note};
use crate::processes::{self, Process, Stream};
use crate::quantity::{ByteSize, Soft};
use crate::session::Session;
use crate::target::{Target, WeftPath};
use crate::verb::{guard, serve};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::{Instance, Registration, Rpc, Way};
use weft_fuse::{MountOptions, Mounted};

/// How long a mount may take until programs can use it.
const READY_PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
Options for -o, separated by commas:
  direct             reads and writes go past the kernel's page cache
  nopassthrough      the kernel does not read and write objects of this machine
                     by itself; it does (passthrough, the default) where the
                     mount has CAP_SYS_ADMIN
  noxattr            no extended attributes (default: xattr, of the namespaces
                     user and trusted): programs that look for some, as ls -l
                     does, cost the kernel one question instead of one per file
  spill              writes to split files go on at another node when that of
                     this machine is full (default: they fail)
  local_lock         locks of files are this mount's alone (NFS has the same):
                     programs of other mounts do not see them, and they cost
                     nothing
  noepoch            names are dropped as before Linux 6.16, for tests
  allow_other        other users may use it (root, or user_allow_other in
                     /etc/fuse.conf)
  ro                 nothing can be changed
  max_transfer=SIZE  largest request of the kernel (default 1MiB)
  transport=WAY      auto, sockets, tcp (sockets of no other kind) or ucx
                     (default WEFT_TRANSPORT, or auto)
  registration=WHICH whose memory is registered for RDMA: auto, static, dynamic
  rpc=HOW            requests for RDMA go by socket or am (active messages)
`weft status -v` shows what the kernel agreed to. The log of a mount is
mounts/PID.log in the runtime directory of the file system. SIGTERM and SIGINT
unmount.

Examples:
  weft mount weft /mnt/w
  weft mount job42:/ ~/job42 -o direct,ro
  weft mount job42 /mnt/j --foreground";

/// Mount a file system on a directory
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// NAME or NAME:/
    file_system: OsString,
    /// Empty directory to mount on
    mount_point: PathBuf,
    /// Mount options, separated by commas
    #[arg(short, value_name = "OPTION,...", value_delimiter = ',')]
    options: Vec<String>,
    /// Threads that take requests of the kernel [default: by the number of processors]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Fail calls (EIO) that a node has not answered for TIME (from 1s); off: wait
    #[arg(long, value_name = "TIME", default_value = "10s")]
    soft: Soft,
    /// Stay until it is unmounted, instead of going to the background
    #[arg(long)]
    foreground: bool,
    /// Be the background process: say on standard output how it went
    #[arg(long, hide = true, requires = "foreground")]
    report: bool,
}

/// What is to be mounted, checked.
struct Plan {
    name: Option<String>,
    mount_point: PathBuf,
    options: MountOptions,
    transfer: Transfer,
    soft: Option<Duration>,
}

/// What the options say of how file data goes; the environment says the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Transfer {
    way: Option<Way>,
    registration: Option<Registration>,
    rpc: Option<Rpc>,
}

/// The line that the background process prints.
#[derive(Serialize, Deserialize)]
enum Report {
    Ready(Mount),
    Failed { text: String, remedy: Option<String> },
}

pub fn run(args: &Args) -> Outcome {
    if args.report {
        processes::leave_starter()?;
    }
    let report = args.report;
    let background = !args.foreground;
    let words = background_words(args);
    match check(args) {
        Ok(plan) if background => start_background(&plan, &words),
        Ok(plan) => serve(&plan, report),
        Err(failure) => Err(failure),
    }
    .or_else(|failure| if report { report_failure(&failure) } else { Err(failure) })
}

fn check(args: &Args) -> Outcome<Plan> {
    let name = file_system_name(&args.file_system)?;
    let (options, transfer) = parse_options(&args.options, args.threads)?;
    let mount_point = check_mount_point(&args.mount_point)?;
    check_fuse()?;
    Ok(Plan { name, mount_point, options, transfer, soft: args.soft.0 })
}

/// `NAME`, `NAME:` or `NAME:/`.
fn file_system_name(text: &OsString) -> Outcome<Option<String>> {
    if let Some(name) = text.to_str().filter(|name| Instance::is_name(name)) {
        return Ok(Some(name.to_owned()));
    }
    match Target::parse(text) {
        Target::Weft(WeftPath { file_system, path }) if path.iter().all(|byte| *byte == b'/') => Ok(file_system),
        Target::Weft(path) => Err(Failure::new(format!("mount {path}: only a whole file system can be mounted"))
            .remedy("mount NAME:/ and use the directory below the mount point")),
        Target::Local(path) => Err(Failure::new(format!("mount {}: is not NAME or NAME:/", path.display()))
            .remedy("`weft status` lists what runs")),
    }
}

fn parse_options(options: &[String], threads: usize) -> Outcome<(MountOptions, Transfer)> {
    let mut transfer = Transfer::default();
    let mut parsed = MountOptions { threads, ..MountOptions::default() };
    for option in options.iter().filter(|option| !option.is_empty()) {
        let refuse = |why: &str| {
            Failure::new(format!("mount option \"{option}\": {why}")).remedy("`weft mount --help` lists them")
        };
        match option.split_once('=').unwrap_or((option, "")) {
            ("direct", "") => parsed.direct = true,
            ("passthrough", "") => parsed.passthrough = true,
            ("nopassthrough", "") => parsed.passthrough = false,
            ("xattr", "") => parsed.xattrs = true,
            ("noxattr", "") => parsed.xattrs = false,
            ("spill", "") => parsed.spill = true,
            ("local_lock", "") => parsed.local_lock = true,
            ("noepoch", "") => parsed.no_epoch = true,
            ("allow_other", "") => parsed.allow_other = true,
            ("ro", "") => parsed.read_only = true,
            ("rw", "") => parsed.read_only = false,
            ("max_transfer", size) => {
                let size: ByteSize = size.parse().map_err(|error: String| refuse(&error))?;
                parsed.max_transfer_bytes = u32::try_from(size.0).map_err(|_| refuse("is too large"))?;
            }
            ("transport", text) => {
                transfer.way = Some(Way::of_transport(text).ok_or_else(|| refuse("is not auto, sockets, tcp or ucx"))?);
            }
            ("registration", text) => {
                let registration = Registration::parse(text).ok_or_else(|| refuse("is not auto, static or dynamic"))?;
                transfer.registration = Some(registration);
            }
            ("rpc", text) => transfer.rpc = Some(Rpc::parse(text).ok_or_else(|| refuse("is not socket or am"))?),
            _ => return Err(refuse("is not known")),
        }
    }
    Ok((parsed, transfer))
}

/// The mount point, absolute: an empty directory on which nothing is mounted.
fn check_mount_point(path: &Path) -> Outcome<PathBuf> {
    let shown = path.display();
    let absolute = mounts::absolute(path).explain(|| format!("mount point {shown}")).map_err(Failure::failed)?;
    if mounts::is_mounted(&absolute) {
        return Err(Failure::new(format!("mount point {shown}: something is mounted there"))
            .remedy(format!("`weft umount {shown}`, or choose another mount point")));
    }
    let listed = fs::read_dir(&absolute).explain(|| format!("mount point {shown}"));
    let mut listed =
        listed.map_err(|failure| failure.failed().remedy(format!("`mkdir {shown}`, or choose another one")))?;
    if listed.next().is_some() {
        return Err(Failure::new(format!("mount point {shown}: not an empty directory"))
            .remedy("choose another mount point, or empty this one"));
    }
    // What it is called when it is a symbolic link would not be found again.
    absolute.canonicalize().explain(|| format!("mount point {shown}")).map_err(Failure::failed)
}

fn check_fuse() -> Outcome<()> {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    opened.map(|_| ()).explain(|| "/dev/fuse").map_err(|failure| {
        failure
            .failed()
            .remedy("this machine or container does not allow FUSE mounts; `weft cp`, `weft cat` work without")
    })
}

/// The words with which the background process is started.
fn background_words(args: &Args) -> Vec<OsString> {
    let mut words = keys::words();
    words.extend(["mount", "--foreground", "--report"].map(OsString::from));
    if !args.options.is_empty() {
        words.extend(["-o".into(), args.options.join(",").into()]);
    }
    words.extend(["--threads".into(), args.threads.to_string().into()]);
    words.extend(["--soft".into(), args.soft.to_string().into(), "--".into(), args.file_system.clone()]);
    words
}

/// Starts the background process and waits for its word.
fn start_background(plan: &Plan, words: &[OsString]) -> Outcome {
    let mut child = Command::new(processes::own_program()?)
        .args(words)
        .arg(&plan.mount_point)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .explain(|| "start the mount process")?;
    let deadline = Instant::now() + READY_PATIENCE;
    let line = child.stdout.take().map(|output| processes::read_line(output, deadline)).unwrap_or_default();
    match serde_json::from_slice(&line) {
        Ok(Report::Ready(mount)) => {
            let name = plan.name.as_deref().unwrap_or("weft");
            output::print(&format!("{name} is mounted at {}\n", mount.mount_point.display()))?;
            Ok(Ending::Done)
        }
        Ok(Report::Failed { text, remedy }) => {
            let _ = child.wait();
            let failure = Failure::new(text);
            Err(remedy.into_iter().fold(failure, Failure::remedy))
        }
        Err(_) => {
            let _ = child.kill();
            let _ = child.wait();
            let why = if Instant::now() >= deadline { "did not get ready in time" } else { "ended" };
            Err(Failure::new(format!("mount {}: its process {why}", plan.mount_point.display()))
                .remedy("add --foreground and set WEFT_LOG=debug to see more"))
        }
    }
}

/// Mounts and serves until it is unmounted.
fn serve(plan: &Plan, report: bool) -> Outcome {
    serve::start_log();
    let instance = crate::session::find(plan.name.as_deref())?;
    if let Some(key) = &instance.user_key {
        if plan.options.allow_other {
            return Err(Failure::new(format!("mount option \"allow_other\": the key is of {} only", key.user))
                .remedy("leave it out: whoever used the mount would act as that user"));
        }
        instance.prepare_mounts().map_err(|error| Failure::of_io("runtime directory", &error).failed())?;
    }
    processes::raise_descriptor_limit();
    let mut options = crate::session::options()?;
    // A program that writes in order sends its next request when this one is answered: also the largest go behind.
    options.buffer_bytes = usize::MAX;
    options.soft = plan.soft;
    options.way = plan.transfer.way.unwrap_or(options.way);
    options.rdma.registration = plan.transfer.registration.unwrap_or(options.rdma.registration);
    options.rdma.rpc = plan.transfer.rpc.unwrap_or(options.rdma.rpc);
    let session = Session::open_with(instance, &options)?;
    let (name, instance) = (session.instance.map.name.clone(), session.instance.clone());
    let process = Process::current()?;
    let mut record = None;
    let ready = |mounted: &mut Mounted| match announce(plan, &instance, process, mounted, report) {
        Ok(path) => record = Some(path),
        Err(failure) => output::warn(&failure),
    };
    let served = weft_fuse::mount(session.client.clone(), &name, &plan.mount_point, &plan.options, ready);
    let closed = session.close();
    if let Some(record) = record {
        // `weft umount` removes it too; the log goes with it when all went well.
        let _ = fs::remove_file(&record);
        if served.is_ok() && closed.is_ok() {
            let _ = fs::remove_file(record.with_extension("log"));
        }
        mounts::clear_directories(&record);
    }
    served.explain(|| format!("mount {name} on {}", plan.mount_point.display())).map_err(Failure::failed)?;
    closed?;
    Ok(Ending::Done)
}

/// Programs can use the mount: records it, tells who waits, listens for signals and is guarded from now on.
fn announce(
    plan: &Plan,
    instance: &Instance,
    process: Process,
    mounted: &mut Mounted,
    report: bool,
) -> Outcome<PathBuf> {
    let negotiated = serde_json::to_value(mounted.negotiated()).unwrap_or_default();
    let mount = Mount { mount_point: plan.mount_point.clone(), process, negotiated };
    let record = mount.record(instance)?;
    unmount_on_signals(plan.mount_point.clone())?;
    if report {
        log_to(&record.with_extension("log"))?;
    }
    // What it says goes to the log, too.
    let program = processes::own_program()?;
    let guarded = mounted.start_guard(|watched| guard::command(program, watched));
    if let Err(failure) = guarded.explain(|| "start the guard of the mount") {
        output::warn(&failure);
    }
    if report {
        print_report(&Report::Ready(mount))?;
        processes::silence(Stream::Output)?;
    } else {
        note(format_args!("{} is mounted at {}", instance.map.name, plan.mount_point.display()));
    }
    Ok(record)
}

/// From now on what is said goes to the log.
fn log_to(path: &Path) -> Outcome<()> {
    let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let log = log.explain(|| path.display())?;
    rustix::stdio::dup2_stderr(&log).explain(|| path.display())
}

/// A thread that unmounts when the process is told to end. A busy mount stays, and the next signal tries again.
fn unmount_on_signals(mount_point: PathBuf) -> Outcome<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).explain(|| "listen for signals")?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = weft_fuse::unmount(&mount_point) {
                note(format_args!("{error}"));
            }
        }
    });
    Ok(())
}

fn print_report(report: &Report) -> Outcome<()> {
    let line = serde_json::to_string(report).map_err(|error| Failure::new(format!("report: {error}")))?;
    output::print(&format!("{line}\n"))
}

/// The failure is told to the command that waits, which prints it.
fn report_failure(failure: &Failure) -> Outcome {
    let (text, remedy) = (failure.text().to_owned(), failure.remedy_text().map(str::to_owned));
    print_report(&Report::Failed { text, remedy })?;
    Ok(Ending::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_system_can_be_mounted() {
        for (text, expected) in [("job", "job"), ("job:", "job"), ("job:/", "job"), ("weft:/", "weft")] {
            assert_eq!(file_system_name(&text.into()).expect("name").as_deref(), Some(expected));
        }
        for bad in ["job:/dir", "/dev/sda", ""] {
            assert!(file_system_name(&bad.into()).is_err_and(|failure| failure.remedy_text().is_some()), "{bad}");
        }
    }

    #[test]
    fn options_are_parsed_and_contradictions_refused() {
        let parse = |text: &str| parse_options(&text.split(',').map(str::to_owned).collect::<Vec<_>>(), 3);
        let (options, transfer) = parse("direct,allow_other,ro,max_transfer=128KiB").expect("options");
        assert!(options.direct && options.allow_other && options.read_only && options.passthrough);
        assert_eq!((options.threads, options.max_transfer_bytes), (3, 128 << 10));
        assert_eq!(transfer, Transfer::default());
        assert!(parse("direct,passthrough").expect("options").0.passthrough);
        assert!(!parse("nopassthrough").expect("options").0.passthrough);
        assert!(!options.spill && parse("spill").expect("options").0.spill);
        assert!(!options.local_lock && parse("local_lock").expect("options").0.local_lock);
        assert!(options.xattrs && !parse("noxattr").expect("options").0.xattrs);
        let transfer = parse("transport=ucx,registration=static,rpc=am").expect("options").1;
        let (way, registration) = (Some(Way::Ucx), Some(Registration::Static));
        assert_eq!(transfer, Transfer { way, registration, rpc: Some(Rpc::Am) });
        for bad in
            ["fast", "transport=smoke", "registration", "direct=1", "writeback", "max_transfer=x", "max_transfer=8GiB"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_option_is_in_the_help() {
        let plain = ["direct", "nopassthrough", "noxattr", "spill", "local_lock", "allow_other", "ro"];
        for option in plain.into_iter().chain(["max_transfer", "transport", "registration", "rpc"]) {
            assert!(HELP.contains(&format!("\n  {option}")), "{option}");
        }
    }

    #[test]
    fn mount_points_are_checked_first() {
        let directory = std::env::temp_dir().join(format!("weft-mount-point-{}", std::process::id()));
        assert!(check_mount_point(&directory).is_err_and(|failure| failure.text().contains("no such file")));
        fs::create_dir(&directory).expect("made");
        assert!(check_mount_point(&directory).is_ok());
        fs::write(directory.join("x"), "").expect("written");
        assert!(check_mount_point(&directory).is_err_and(|failure| failure.text().contains("not an empty")));
        assert!(check_mount_point(&directory.join("x")).is_err());
        fs::remove_dir_all(directory).expect("removed");
    }
}
