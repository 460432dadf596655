//! `weft user`: keys for users other than the owner.
//!
//! A key is derived from the node key, so that every node knows it at once and none keeps a list (see
//! `weft_protocol::UserKey`). What is kept are records for people (`users.rs`), and at the nodes the keys that were
//! taken back.

use crate::accounts::{self, Accounts};
use crate::calendar;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::{self, note};
use crate::session::{self, ANSWER_PATIENCE, node_name};
use crate::table::Table;
use crate::users::{self, User};
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use weft_client::instance::local_identity;
use weft_client::key_file::is_user_name;
use weft_client::{Instance, KeyFile};
use weft_protocol::limits::GROUPS_MAX;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::{Credentials, KeyId, NodeId};
use weft_sys::own_directory;

const ADD_HELP: &str = "\
USER is an account of this machine, whose uid and groups the key has from then
on; or any name, with --uid and --gid. The key is all that the user needs, here
and on other machines that reach the nodes:

  weft --key FILE ls NAME:/      or WEFT_KEY=FILE, or the file as
                                 ~/.config/weft/NAME.key

Without --output it is printed. The file has mode 0600; when root makes it, it
is the user's. Who has the key can do what that user may: give it to nobody
else. A key of uid 0 may read and change every file.

Examples:
  weft user add ann job42 --output ann.key
  weft user add ann --uid 2001 --gid 100,2001 -o ann.key";

const REMOVE_HELP: &str = "\
From then on the nodes refuse the key, and cut off what is connected with it. A
file that the user has open by its descriptor stays open until he closes it.

ID is the `id` in the file of the key. Keys that were made on another host are
removed by it, or there.

Examples:
  weft user remove ann job42
  weft user remove 8d0f3b5c2a914e67";

const LIST_HELP: &str = "\
Keys that were made on another host of the file system are listed there.

--json prints an object:
  name, users: [{user, id, uid, gid, groups, made}]

Examples:
  weft user list
  weft user list job42 --json";

/// Make, list and remove keys for other users
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    Add(Add),
    Remove(Remove),
    List(List),
}

/// Make a key with which a user can work with a file system, as himself
#[derive(clap::Args, Debug)]
#[command(after_long_help = ADD_HELP)]
struct Add {
    /// The user's name
    user: String,
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// User id, instead of the one that USER has on this machine
    #[arg(long, value_name = "N", requires = "gid")]
    uid: Option<u32>,
    /// Group ids, the primary one first
    #[arg(long, value_name = "N,...", value_delimiter = ',', requires = "uid")]
    gid: Vec<u32>,
    /// File to write the key to, which must not be there
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Revoke all keys of a user, or one key
#[derive(clap::Args, Debug)]
#[command(after_long_help = REMOVE_HELP)]
struct Remove {
    /// Name of the user, or id of a key
    #[arg(value_name = "USER|ID")]
    which: String,
    /// Name of the file system [default: the only one]
    name: Option<String>,
}

/// List the keys that were made for users on this machine
#[derive(clap::Args, Debug)]
#[command(after_long_help = LIST_HELP)]
struct List {
    /// Name of the file system [default: the only one]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `list --json` prints.
#[derive(Serialize)]
struct Report {
    name: String,
    users: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    user: String,
    id: String,
    uid: u32,
    gid: u32,
    groups: Box<[u32]>,
    made: String,
}

pub fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Add(args) => add(args),
        What::Remove(args) => remove(args),
        What::List(args) => list(args),
    }
}

fn add(args: &Add) -> Outcome {
    if !is_user_name(&args.user) {
        return Err(Failure::new(format!("\"{}\" cannot name a user", output::printable(args.user.as_bytes())))
            .remedy("a name without spaces that does not begin with '-'"));
    }
    let instance = owned(args.name.as_deref(), "user add")?;
    let credentials = credentials(args)?;
    let node_key = instance.node_key().explain(|| "the file system's key").map_err(Failure::failed)?;
    let id = getrandom::u64().map_err(|error| Failure::new(format!("random numbers for the key: {error}")))?;
    let key = KeyFile::make(&node_key, &instance.map, &args.user, KeyId(id), credentials);
    let record = User::of(&key, i64::try_from(UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()).unwrap_or(0));
    // First the record: a key that nobody can find again could not be taken back by its user's name.
    record.record(&instance)?;
    let handed_out = hand_out(&key, args.output.as_deref());
    if handed_out.is_err() {
        record.forget(&instance)?;
    }
    handed_out?;
    let here = |address: &String| address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback());
    if key.addresses.iter().all(here) {
        note(format_args!(
            "the nodes of {} listen on the loopback interface: the key works here only",
            key.file_system
        ));
    }
    Ok(Ending::Done)
}

/// The key's uid and groups.
fn credentials(args: &Add) -> Outcome<Credentials> {
    let credentials = match (args.uid, args.gid.split_first()) {
        (Some(uid), Some((gid, groups))) => Credentials { uid, gid: *gid, groups: groups.into() },
        _ => accounts::find(&args.user)?.ok_or_else(|| {
            Failure::no(format!("user {}: this machine has no account of that name", args.user))
                .remedy("for a user of other machines give --uid N --gid N[,N...]")
        })?,
    };
    credentials.check().map_err(|_| {
        let count = credentials.groups.len();
        Failure::new(format!("user {}: is in {count} groups; a key has at most {GROUPS_MAX}", args.user))
            .remedy("name those that matter: --uid N --gid N[,N...]")
    })?;
    Ok(credentials)
}

/// Prints the key, or writes it to a file of the user's.
fn hand_out(key: &KeyFile, output: Option<&Path>) -> Outcome<()> {
    let text = key.to_text().explain(|| "the key as text")?;
    let Some(path) = output else { return output::print(&text) };
    let what = || format!("write the key to {}", path.display());
    // The directory may be the user's, who may put another one in its place.
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = fs::File::open(above).explain(what).map_err(Failure::failed)?;
    let reached = own_directory::path_in(&above, path.file_name().unwrap_or_default());
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&reached);
    let mut file = opened.map_err(|error| {
        let failure = Failure::of_io(what(), &error).failed();
        match error.kind() {
            io::ErrorKind::AlreadyExists => failure.remedy("remove it when it is not needed, or choose another name"),
            _ => failure,
        }
    })?;
    let root = rustix::process::geteuid().is_root();
    let Credentials { uid, gid, .. } = key.credentials;
    let owned = if root { std::os::unix::fs::fchown(&file, Some(uid), Some(gid)) } else { Ok(()) };
    if let Err(error) = owned.and_then(|()| file.write_all(text.as_bytes())) {
        // Half a key is of no use to anybody; the failure to write it is the news.
        let _ = fs::remove_file(&reached);
        return Err(Failure::of_io(what(), &error).failed());
    }
    let (user, name) = (&key.user, &key.file_system);
    output::print(&format!(
        "{}: a key of {name} for {user} (uid {uid}); he uses it so:\n\n  weft --key {0} ls {name}:/\n",
        path.display()
    ))
}

fn remove(args: &Remove) -> Outcome {
    let instance = owned(args.name.as_deref(), "user remove")?;
    let (which, name) = (&args.which, &instance.map.name);
    let mut records = users::all(&instance)?;
    records.retain(|record| record.user == *which || record.id.to_string() == *which);
    let ids: Vec<KeyId> = match which.parse() {
        Ok(id) if records.is_empty() => vec![id],
        _ => records.iter().map(|record| record.id).collect(),
    };
    if ids.is_empty() {
        return Err(Failure::no(format!("user remove {which}: no key of \"{name}\" was made for that user here"))
            .remedy("`weft user list` shows them; any key can be removed by the `id` in its file"));
    }
    for id in &ids {
        revoke(&instance, *id)?;
        records.iter().filter(|record| record.id == *id).try_for_each(|record| record.forget(&instance))?;
    }
    let keys = if ids.len() == 1 { "1 key".to_owned() } else { format!("{} keys", ids.len()) };
    output::print(&format!("{name}: {keys} revoked\n"))?;
    Ok(Ending::Done)
}

/// Has every node refuse the key.
fn revoke(instance: &Instance, id: KeyId) -> Outcome<()> {
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let client = session::connect_patiently(instance, ANSWER_PATIENCE)
        .map_err(|error| Failure::of_weft(format_args!("connect to \"{}\"", instance.map.name), &error))?;
    let answers = session::ask_nodes(&client, nodes, &NodeRequest::RevokeKey(id), ANSWER_PATIENCE);
    for (node, answer) in answers {
        if answer.is_err() && has_ended_here(instance, node) {
            continue;
        }
        answer.map_err(|error| {
            let what = format!("revoke key {id}: it is still good at {}", node_name(node));
            Failure::of_weft(what, &error).failed().remedy("run this again when `weft status` shows that it answers")
        })?;
    }
    Ok(())
}

/// Whether the node was on this very machine and its process has ended: it refuses every key. (Of a node elsewhere only
/// its own machine can tell.)
fn has_ended_here(instance: &Instance, node: NodeId) -> bool {
    let here = local_identity().is_ok_and(|here| instance.map.node(node).is_some_and(|node| node.identity == here));
    here && instance.processes.iter().any(|process| process.node == node && !process.is_alive())
}

fn list(args: &List) -> Outcome {
    let instance = session::find_own(args.name.as_deref(), "user list")?;
    let users = users::all(&instance)?;
    let listed = users.iter().map(|user| Listed {
        user: user.user.clone(),
        id: user.id.to_string(),
        uid: user.credentials.uid,
        gid: user.credentials.gid,
        groups: user.credentials.groups.clone(),
        made: calendar::rfc3339(user.made()),
    });
    let report = Report { name: instance.map.name.clone(), users: listed.collect() };
    output::print_either(args.json, &report, || table(&users, &Accounts::read()).to_string())?;
    Ok(Ending::Done)
}

fn table(users: &[User], accounts: &Accounts) -> Table {
    let mut table = Table::new(&["USER", ">UID", "GROUPS", "ID", "MADE (UTC)"]);
    for user in users {
        let Credentials { uid, gid, groups } = &user.credentials;
        let groups: Vec<String> = [gid].into_iter().chain(groups).map(|gid| accounts.group(*gid)).collect();
        let (id, made) = (user.id.to_string(), calendar::date_time(user.made()));
        table.row([user.user.clone(), uid.to_string(), groups.join(","), id, made]);
    }
    table
}

/// The file system, which is this user's own and runs.
fn owned(name: Option<&str>, verb: &str) -> Outcome<Instance> {
    let instance = session::find_own(name, verb)?;
    session::require_alive(&instance)?;
    Ok(instance)
}
