//! Mounts that do not answer: their process is stopped, or was killed while the kernel waits for it.

use super::away::{LONG, Stopped, has_ended, mounted};
use super::hosts::pids;
use super::{Ground, can_mount};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use serde_json::Value;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

fn record_of_mount(ground: &Ground) -> PathBuf {
    let entries = fs::read_dir(ground.path("run/weft/e2e/mounts")).expect("listed").flatten();
    let mut records =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    records.next().expect("a record")
}

#[test]
fn a_stopped_mount_is_named_and_taken_away_by_force() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new("stopped");
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    let mount_point = mounted(&ground, &["--soft", "off"]);
    let text = fs::read_to_string(record_of_mount(&ground)).expect("read");
    let pid = serde_json::from_str::<Value>(&text).expect("JSON")["pid"].as_u64().expect("a number");
    // The node is stopped before, so that the mount has taken the program's request and cannot answer it.
    let node = Stopped::new(pids(&ground)[0]);
    let mut stat = Command::new("stat");
    let mut program =
        stat.arg(mount_point.join("file")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat");
    assert!(!has_ended(&mut program, Duration::from_secs(1)), "it waits for the node");
    let mount = Stopped::new(pid);
    drop(node);
    let point = mount_point.to_str().expect("a path");
    let said = ground.weft_fails(2, &["umount", point]);
    assert!(said.contains(&format!("process {pid} is stopped")) && said.contains("--force"), "{said}");
    assert!(ground.mount_is_there(&mount_point), "it may yet go on");
    ground.weft(&["umount", "--force", point]);
    std::mem::forget(mount);
    assert!(has_ended(&mut program, LONG), "it gets an error");
    assert!(!ground.mount_is_there(&mount_point));
    assert!(!record_of_mount_exists(&ground));
}

fn record_of_mount_exists(ground: &Ground) -> bool {
    fs::read_dir(ground.path("run/weft/e2e/mounts")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Where the process that [`Hung`] starts mounts, in its environment.
const MOUNT_POINT: &str = "WEFT_TEST_HUNG_MOUNT_POINT";

/// A mount whose process answers nothing and waits for itself.
struct Hung {
    server: Child,
    mount_point: PathBuf,
}

impl Hung {
    /// Starts this program once more, as the test with this name. `None`: that is not possible here.
    fn new(ground: &Ground, test: &str) -> Option<Self> {
        if !can_mount() || !rustix::process::geteuid().is_root() {
            println!("skipped: mounting without a helper takes root");
            return None;
        }
        ground.weft(&["up", "e2e", "--nodes", "1"]);
        let mount_point = ground.path("m");
        fs::create_dir(&mount_point).expect("made");
        let mut server = Command::new(std::env::current_exe().expect("this program"));
        server.args(["--exact", test, "--nocapture"]).env(MOUNT_POINT, &mount_point).stdout(Stdio::piped());
        let mut server = server.spawn().expect("started");
        let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("waits")), "it has taken its own request");
        record(ground, &mount_point, &server);
        Some(Self { server, mount_point })
    }

    fn path(&self) -> &str {
        self.mount_point.to_str().expect("a path")
    }
}

#[test]
fn a_mount_is_taken_away_whose_killed_process_waits_for_itself() {
    serve_if_asked_to();
    let ground = Ground::new("hung");
    let this = "hung::a_mount_is_taken_away_whose_killed_process_waits_for_itself";
    let Some(mut hung) = Hung::new(&ground, this) else { return };
    hung.server.kill().expect("killed");
    let mut program = Command::new("stat").arg(&hung.mount_point).stdout(Stdio::null()).spawn().expect("stat");
    assert!(!has_ended(&mut hung.server, Duration::from_secs(1)), "a thread of it waits in the kernel");
    ground.weft(&["umount", hung.path()]);
    assert!(!ground.mount_is_there(&hung.mount_point));
    assert!(has_ended(&mut hung.server, LONG), "its thread gets an error");
    assert!(has_ended(&mut program, LONG), "the program gets an error");
    assert!(!record_of_mount_exists(&ground));
}

#[test]
fn umount_ends_though_the_mount_takes_its_request_and_never_answers() {
    serve_if_asked_to();
    let ground = Ground::new("silent");
    let this = "hung::umount_ends_though_the_mount_takes_its_request_and_never_answers";
    let Some(mut hung) = Hung::new(&ground, this) else { return };
    let mut umount = ground.command(&["umount", hung.path()]).stderr(Stdio::null()).spawn().expect("weft starts");
    let ended = has_ended(&mut umount, LONG);
    let is_left = ground.mount_is_there(&hung.mount_point);
    ground.weft(&["umount", "--force", hung.path()]);
    assert!(ended, "it waits for the mount itself");
    assert!(is_left, "its process may yet answer");
    assert_eq!(umount.wait().expect("ended").code(), Some(2), "it is busy");
    assert!(has_ended(&mut hung.server, LONG), "it is ended");
}

/// In the process that [`Hung`] starts: serves and never returns.
fn serve_if_asked_to() {
    if std::env::var_os(MOUNT_POINT).is_some() {
        wait_for_own_mount();
    }
}

/// Writes the record that `weft mount` would have written.
fn record(ground: &Ground, mount_point: &Path, server: &Child) {
    let pid = server.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit_once(") ").expect("a name in parentheses").1;
    let start_time: u64 = fields.split(' ').nth(19).expect("field 22").parse().expect("a number");
    let record = serde_json::json!({
        "mount_point": mount_point, "pid": pid, "start_time": start_time, "negotiated": null,
    });
    let directory = ground.path("run/weft/e2e/mounts");
    fs::create_dir_all(&directory).expect("made");
    fs::write(directory.join(format!("{pid}.json")), record.to_string()).expect("written");
}

/// Mounts, takes a request that this process itself has made, and answers nothing: a mount's process comes to this when
/// it has the kernel drop pages, which the kernel waits to be read.
fn wait_for_own_mount() -> ! {
    const INIT: u32 = 26;
    const STATFS: u32 = 17;
    let mount_point = PathBuf::from(std::env::var_os(MOUNT_POINT).expect("set"));
    let connection = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("opened");
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", connection.as_raw_fd());
    let data = CString::new(data).expect("no zero in it");
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    rustix::mount::mount("weft:e2e", &mount_point, "fuse.weft", flags, data.as_c_str()).expect("mounted");
    let mut request = vec![0; 1 << 20];
    thread::spawn(move || rustix::fs::statfs(&mount_point).map(drop));
    loop {
        if rustix::io::read(&connection, &mut request).is_err() {
            // The mount was taken away.
            std::process::exit(0);
        }
        match u32::from_ne_bytes(*request[4..].first_chunk().expect("an opcode")) {
            INIT => {
                // `struct fuse_out_header` and `struct fuse_init_out` of version 7.31.
                let mut reply = vec![0; 16 + 64];
                reply[0..4].copy_from_slice(&80_u32.to_ne_bytes());
                reply[8..16].copy_from_slice(&request[8..16]);
                reply[16..20].copy_from_slice(&7_u32.to_ne_bytes());
                reply[20..24].copy_from_slice(&31_u32.to_ne_bytes());
                rustix::io::write(&connection, &reply).expect("answered");
            }
            // Nobody listens any more after the first.
            STATFS => drop(writeln!(std::io::stdout(), "waits")),
            _ => {}
        }
    }
}
