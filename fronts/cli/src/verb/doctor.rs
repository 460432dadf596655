//! `weft doctor`: whether this machine has what Weft needs.

use crate::failure::{Ending, Outcome};
use crate::output;
use crate::quantity::bytes_text;
use crate::table::Table;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weft_client::Instance;

/// Open files that a node or a mount with many clients needs: connections, objects, descriptors passed.
const OPEN_FILES_WANTED: u64 = 4096;
/// Fewer than this and not even a small file system starts.
const OPEN_FILES_NEEDED: u64 = 256;
/// Memory that a process may keep from being paged out, without which data by RDMA will have no buffers.
const LOCKED_BYTES_WANTED: u64 = 8 << 20;
/// Space for sockets and logs.
const RUNTIME_BYTES_WANTED: u64 = 16 << 20;
/// Space of a store that is worth starting.
const STORE_BYTES_WANTED: u64 = 1 << 30;

const HELP: &str = "\
Each check is ok, warn (something works less well) or fail (something does not
work), with the remedy. Exit code 1: a check fails.

--json prints an object:
  healthy (true or false), checks: [{name, state (\"ok\", \"warn\", \"fail\"), found,
    remedy (or null)}]

Examples:
  weft doctor
  ssh n1.cluster weft doctor";

/// Check what this machine offers: FUSE, limits, network, space, ssh
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

#[derive(Serialize)]
struct Check {
    name: String,
    state: State,
    found: String,
    remedy: Option<String>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    healthy: bool,
    checks: Vec<Check>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state: State::Ok, found: found.into(), remedy: None }
    }

    fn bad(name: &str, state: State, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state, found: found.into(), remedy: Some(remedy.into()) }
    }
}

pub fn run(args: &Args) -> Outcome {
    let checks = all_checks();
    let healthy = checks.iter().all(|check| check.state != State::Fail);
    let report = Report { healthy, checks };
    output::print_either(args.json, &report, || text(&report))?;
    Ok(if healthy { Ending::Done } else { Ending::No })
}

fn all_checks() -> Vec<Check> {
    let store = crate::host::stores::temporary();
    let shared_memory = Path::new("/dev/shm");
    vec![
        fuse_device(),
        fuse_helper(),
        open_files(getrlimit(Resource::Nofile).current),
        locked_memory(getrlimit(Resource::Memlock).current),
        loopback(),
        runtime_directory(&Instance::runtime_directory()),
        space("space for stores", &store, STORE_BYTES_WANTED, "give --store DIR on a larger file system"),
        space("/dev/shm", shared_memory, RUNTIME_BYTES_WANTED, "enlarge it: stores may be there (--store /dev/shm)"),
        stores_in_memory(),
        rdma(),
        memory_between_processes(fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().as_deref()),
        program("ssh", State::Warn, "install it to start nodes on other hosts (`weft up --hosts`)"),
    ]
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["", "", ""]).headless();
    for check in &report.checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "FAIL",
        };
        table.row([state.to_owned(), check.name.clone(), check.found.clone()]);
        if let Some(remedy) = &check.remedy {
            table.row([String::new(), String::new(), format!("remedy: {remedy}")]);
        }
    }
    table.to_string()
}

fn fuse_device() -> Check {
    let name = "/dev/fuse";
    match fs::OpenOptions::new().read(true).write(true).open(name) {
        Ok(_) => Check::ok(name, "can be opened"),
        Err(error) => Check::bad(
            name,
            State::Fail,
            error.to_string(),
            "load the module fuse, or let the container use the device; `weft cp` and `weft cat` work without mounts",
        ),
    }
}

fn fuse_helper() -> Check {
    let name = "fusermount3";
    let root = rustix::process::geteuid().is_root();
    match find_program(name) {
        // It mounts on behalf of users.
        Some(path) => match fs::metadata(&path).map(|metadata| metadata.mode()) {
            Ok(mode) if root || mode & 0o4000 != 0 => Check::ok(name, path.display().to_string()),
            _ => Check::bad(
                name,
                State::Fail,
                format!("{} is not set-user-id root", path.display()),
                "install it again as root",
            ),
        },
        None if root => Check::bad(name, State::Warn, "not found; root mounts without it", "install the package fuse3"),
        None => Check::bad(name, State::Fail, "not found", "install the package fuse3"),
    }
}

/// `None`: no limit.
fn open_files(limit: Option<u64>) -> Check {
    let name = "open files";
    let remedy = format!("`ulimit -n {OPEN_FILES_WANTED}` before `weft up` and `weft mount`");
    match limit {
        Some(limit) if limit < OPEN_FILES_NEEDED => {
            Check::bad(name, State::Fail, format!("{limit} per process"), remedy)
        }
        Some(limit) if limit < OPEN_FILES_WANTED => {
            Check::bad(name, State::Warn, format!("{limit} per process"), remedy)
        }
        Some(limit) => Check::ok(name, format!("{limit} per process")),
        None => Check::ok(name, "no limit"),
    }
}

/// `None`: no limit.
fn locked_memory(limit: Option<u64>) -> Check {
    let name = "locked memory";
    match limit {
        None => Check::ok(name, "no limit"),
        Some(limit) if limit >= LOCKED_BYTES_WANTED => Check::ok(name, format!("{} per process", bytes_text(limit))),
        Some(limit) => Check::bad(
            name,
            State::Warn,
            format!("{} per process; only RDMA needs it", bytes_text(limit)),
            "`ulimit -l unlimited` before `weft up`, or memlock in /etc/security/limits.conf",
        ),
    }
}

fn loopback() -> Check {
    let name = "loopback";
    let exchange = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        client.write_all(b"weft")?;
        let mut heard = [0; 4];
        server.read_exact(&mut heard)?;
        Ok::<_, std::io::Error>(heard)
    };
    match exchange() {
        Ok(heard) if heard == *b"weft" => Check::ok(name, "connects to a port of 127.0.0.1"),
        Ok(_) => Check::bad(name, State::Fail, "bytes were changed on the way", "look at the firewall of this machine"),
        Err(error) => Check::bad(name, State::Fail, error.to_string(), "`ip link set lo up`, or look at the firewall"),
    }
}

fn runtime_directory(directory: &Path) -> Check {
    let name = "runtime directory";
    let shown = directory.display().to_string();
    // All file systems are found there, so what is wrong with it shows here.
    if let Err(error) = Instance::all() {
        return Check::bad(name, State::Fail, error.to_string(), "set XDG_RUNTIME_DIR to a directory of yours");
    }
    let room = directory.as_os_str().len() + "/".len() + 32 + "/n0000.sock".len();
    if room > 107 {
        return Check::bad(
            name,
            State::Warn,
            format!("{shown}: a long path leaves little room for names"),
            "set XDG_RUNTIME_DIR to a shorter one",
        );
    }
    let checked = space(name, directory, RUNTIME_BYTES_WANTED, "free some space there, or set XDG_RUNTIME_DIR");
    Check { found: format!("{shown}: {}", checked.found), ..checked }
}

/// Space below a directory that need not be there yet.
fn space(name: &str, directory: &Path, wanted: u64, remedy: &str) -> Check {
    let existing = directory.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let shown = format!("{} free in {}", bytes_text(free), existing.display());
            if free < wanted { Check::bad(name, State::Warn, shown, remedy) } else { Check::ok(name, shown) }
        }
        Err(error) => Check::bad(name, State::Warn, error.to_string(), remedy),
    }
}

/// Whether a node can have a file system of its own in memory.
fn stores_in_memory() -> Check {
    let name = "stores in memory";
    match weft_sys::tmpfs::mount_private(Some(RUNTIME_BYTES_WANTED)) {
        Ok(_) => Check::ok(name, "can be made (--store memory)"),
        Err(error) => Check::bad(
            name,
            State::Warn,
            format!("{error}: --store memory does not work"),
            "as root: sysctl user.max_user_namespaces=10000; or slower, a directory there: --store /dev/shm",
        ),
    }
}

/// Whether nodes can move file data themselves.
fn rdma() -> Check {
    let name = "RDMA";
    let devices = weft_ucx::adapters();
    match weft_ucx::Library::get() {
        Ok(library) if devices.is_empty() => {
            Check::ok(name, format!("UCX {}; no adapter, so that sockets are used", library.version()))
        }
        Ok(library) => Check::ok(name, format!("UCX {} with {}", library.version(), devices.join(", "))),
        // Without an adapter nothing is missing.
        Err(weft_ucx::Error::Absent(_)) if devices.is_empty() => Check::ok(name, "no adapter, and no UCX: sockets"),
        Err(error) => Check::bad(name, State::Warn, error.to_string(), "as root: apt-get install libucx0"),
    }
}

/// Whether a node may take what its user's programs write out of their memory, and they what they read out of its;
/// `scope`: what Yama says, where it is.
fn memory_between_processes(scope: Option<&str>) -> Check {
    let name = "memory between processes";
    match scope.map(str::trim) {
        None | Some("0") => Check::ok(name, "can be read by processes of the same user"),
        Some(scope) => Check::bad(
            name,
            State::Warn,
            format!(
                "not allowed (kernel.yama.ptrace_scope is {scope}): writes to stores with a size, and reads of region \
                 stores, take longer"
            ),
            "as root: sysctl kernel.yama.ptrace_scope=0",
        ),
    }
}

fn program(name: &str, state: State, remedy: &str) -> Check {
    match find_program(name) {
        Some(path) => Check::ok(name, path.display().to_string()),
        None => Check::bad(name, state, "not found", remedy),
    }
}

/// Where in PATH a program is.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_judged() {
        let states = [100, 1024, 1 << 20].map(|limit| open_files(Some(limit)).state);
        assert_eq!(states, [State::Fail, State::Warn, State::Ok]);
        assert_eq!(open_files(None).state, State::Ok);
        let states = [Some(65_536), Some(LOCKED_BYTES_WANTED), None].map(|limit| locked_memory(limit).state);
        assert_eq!(states, [State::Warn, State::Ok, State::Ok]);
        let scopes = [None, Some("0\n"), Some("1\n")].map(|scope| memory_between_processes(scope).state);
        assert_eq!(scopes, [State::Ok, State::Ok, State::Warn]);
    }

    #[test]
    fn whatever_is_not_ok_has_a_remedy() {
        let checks = all_checks();
        assert!(checks.iter().all(|check| (check.state == State::Ok) == check.remedy.is_none()));
        assert_eq!(loopback().state, State::Ok);
        let report =
            Report { healthy: false, checks: vec![Check::bad("a", State::Fail, "b", "c"), Check::ok("d", "e")] };
        assert_eq!(text(&report), "FAIL  a  b\n         remedy: c\nok    d  e\n");
        let value = serde_json::to_value(&report).expect("JSON");
        assert_eq!(value["checks"][0]["state"], "fail");
    }

    #[test]
    fn a_directory_that_is_not_there_has_the_space_of_the_one_above() {
        assert!(space("x", Path::new("/nothing/of/this/name"), 0, "").found.ends_with("free in /"));
    }
}
