//! `weft up`: starts a file system.

use crate::cluster;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::start::{self, NodeOrder, Over, StartOrder, Started, StartedNode};
use crate::host::stop::{RuntimeFiles, StopOrder};
use crate::host::{self, Machine, Order, Reply};
use crate::hosts::{self, HostEntry, SITE_DEFAULT, StoreChoice};
use crate::job::{self, Job, Scheduler};
use crate::leftovers;
use crate::listen::Listen;
use crate::output;
use crate::processes::Process;
use crate::quantity::{bytes_text, span_text};
use crate::session;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weft_client::instance::NodeProcess;
use weft_client::{Client, ClientOptions, Instance};
use weft_node::StorePlace;
use weft_protocol::message::node::NodeRequest;
use weft_protocol::{InodeNumber, NodeId, NodeRecord};

/// How long nodes that were just started may take to accept the map.
const MAP_PATIENCE: Duration = Duration::from_secs(10);
/// How long nodes are given to end when another one failed.
const STOP_PATIENCE_MS: u64 = 1000;
/// The least that a node's store may be given: less is a number without its unit.
const STORE_BYTES_MIN: u64 = 1 << 20;
/// Nodes when neither a number nor hosts are given, nor by a batch job.
const NODES_DEFAULT: u16 = 4;
/// Name outside of batch jobs.
const NAME_DEFAULT: &str = "weft";

const HELP: &str = "\
In a batch job of Slurm or PBS, each of the job's hosts runs a node, and NAME
is job-ID. So does each host of mpiexec's host file, where HYDRA_HOST_FILE, or
Open MPI's default_hostfile, names one. Elsewhere, and with --nodes N, the
nodes run on this machine. --hosts slurm, pbs or mpiexec insists on these
hosts. Of a file, each line starts a node:
  HOST [site=NAME] [store=STORE] [listen=IFACE|CIDR|ADDR]     # comment
HOST is reached by ssh, which must not ask (BatchMode) and must find `weft`
there; `localhost` is this machine, without ssh. WEFT_SSH names another program
than ssh; WEFT_SSH=srun starts nodes as steps of the Slurm job.

Stores: each node has the directory DIR/weft-UID/NAME/store/nNN of its own, so
that DIR may hold other things; without --store, DIR is $TMPDIR (unset: /tmp).
SIZE is what all nodes here may use together, on hosts what each node may use.
`weft down` removes the directories that were made.
With `file:DIR:SIZE`, each node has a file of its share of SIZE in such a
directory, set aside as a whole, and with `device:PATH` a block device of its
own, for which `weft store format` has made an empty region store: data go past
the page cache (docs/region.md). A device with objects of a node that did not
end in order is refused; `weft down` leaves it empty, and formatted.
With `memory`, each node has a file system of its own in memory, in huge pages
where the kernel has them (Linux 6.14): up to several times faster than a
directory on a tmpfs such as /dev/shm. It goes with the node, also when that is
killed. Without SIZE it may grow to half of the memory.

With --over DIR the file system begins as DIR is, a directory that all hosts
share. What is in it is read when it is needed, with your rights; `weft drain`
writes changes back.

Names, sockets and logs are in $XDG_RUNTIME_DIR/weft/NAME, or
/tmp/weft-UID/NAME. Metadata is kept in memory: the file system ends with `weft
down`, copy out what is to stay.

Examples:
  weft up
  weft up job42 --nodes 8 --store /nvme/scratch:700GiB
  weft up fast --nodes 1 --store memory:16GiB
  weft up disk --nodes 1 --store device:/dev/nvme1n1
  weft up lab --hosts hosts.txt --listen ib0
  weft up --hosts slurm --store /local/scratch
  weft up job42 --over /project/run42";

/// Start a file system: nodes on this machine, or on hosts reached by ssh
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Name of the file system [default: weft; in a batch job: job-ID]
    name: Option<String>,
    /// Nodes on this machine [default: 4; in a batch job: one on each of its hosts]
    #[arg(long, value_name = "N", conflicts_with = "hosts")]
    nodes: Option<u16>,
    /// Directory for the nodes' stores, or memory, and bytes that they may use; or a device, or files
    #[arg(long, value_name = "DIR[:SIZE]|memory[:SIZE]|device:PATH|file:DIR:SIZE")]
    store: Option<StoreChoice>,
    /// File with a host per line, or those of this batch job, or of mpiexec
    #[arg(long, value_name = "FILE|slurm|pbs|mpiexec")]
    hosts: Option<PathBuf>,
    /// Interface, network or address that nodes listen on [default: loopback; of hosts: where ssh came in]
    #[arg(long, value_name = "IFACE|CIDR|ADDR")]
    listen: Option<Listen>,
    /// Shards of the namespace per node [default: 1]
    #[arg(long, value_name = "K")]
    shards_per_node: Option<usize>,
    /// Nodes of one machine count as different machines: data between them goes by TCP (tests, benchmarks)
    #[arg(long)]
    identity_per_node: bool,
    /// Lie over this directory: what is in it is read when it is needed
    #[arg(long, value_name = "DIR")]
    over: Option<PathBuf>,
}

/// What is to be started, checked.
struct Plan {
    name: String,
    /// Whose job the hosts are from, if from one.
    scheduler: Option<Scheduler>,
    nodes: Vec<NodePlan>,
    shards_per_node: usize,
    identity_per_node: bool,
    over: Option<PathBuf>,
}

/// A node to be started.
pub(super) struct NodePlan {
    machine: Machine,
    site: String,
    pub(super) order: NodeOrder,
}

pub fn run(args: Args) -> Outcome {
    let plan = check(args, &job::own_variables)?;
    let begun = Instant::now();
    let instance = start_all(&plan)?;
    output::print(&summary(&plan, &instance, begun.elapsed()))?;
    Ok(Ending::Done)
}

/// From what was typed, and the variables of this process, to what is to be done.
fn check(args: Args, variables: job::Variables<'_>) -> Outcome<Plan> {
    let of_job = || weft_client::job::name_from(variables);
    let name = args.name.or_else(of_job).unwrap_or_else(|| NAME_DEFAULT.to_owned());
    if !Instance::is_name(&name) {
        return Err(Failure::new(format!("\"{name}\" cannot name a file system"))
            .remedy("use up to 32 letters, digits, '-', '_' and '.', the first one a letter or digit"));
    }
    let job = match (&args.hosts, args.nodes) {
        (Some(hosts), _) => {
            let scheduler = hosts.to_str().and_then(Scheduler::named);
            scheduler.map(|scheduler| scheduler.require_job(variables)).transpose()?
        }
        (None, Some(_)) => None,
        (None, None) => job::find(variables)?,
    };
    let store = args.store.as_ref().map(absolute_store).transpose()?;
    let (store, listen) = (store.as_ref(), args.listen.as_ref());
    let nodes = match (&job, &args.hosts) {
        (Some(job), _) => job_nodes(job, store, listen)?,
        (None, Some(file)) => host_nodes(0, file, store, listen)?,
        (None, None) => local_nodes(0, args.nodes.unwrap_or(NODES_DEFAULT), store, listen)?,
    };
    let shards_per_node = args.shards_per_node.unwrap_or(cluster::SHARDS_PER_NODE_DEFAULT);
    cluster::check_counts(nodes.len(), shards_per_node)?;
    check_sizes(&nodes)?;
    let scheduler = job.map(|job| job.scheduler);
    let over = args.over.as_deref().map(directory_below).transpose()?;
    Ok(Plan { name, scheduler, nodes, shards_per_node, identity_per_node: args.identity_per_node, over })
}

/// The directory that is to be below, as all hosts name it.
fn directory_below(path: &Path) -> Outcome<PathBuf> {
    let path = path.canonicalize().explain(|| format!("--over {}", path.display()))?;
    if !path.is_dir() {
        return Err(Failure::new(format!("--over {}: is not a directory", path.display())));
    }
    Ok(path)
}

/// A node on each host of a batch job. The one where this runs needs no ssh; the others have to reach it.
fn job_nodes(job: &Job, store: Option<&StoreChoice>, listen: Option<&Listen>) -> Outcome<Vec<NodePlan>> {
    let is_own = |host: &String| job.own_host.as_ref() == Some(host);
    let other = job.hosts.iter().find(|host| !is_own(host));
    let own_listen = match (&job.own_host, other, listen) {
        (Some(_), Some(other), None) => Some(Listen::toward(other)?),
        _ => None,
    };
    let entry = |host: &String| match is_own(host) {
        true => HostEntry { listen: own_listen.clone(), ..HostEntry::of(None) },
        false => HostEntry::of(Some(host.clone())),
    };
    nodes_of_hosts(0, job.hosts.iter().map(entry).collect(), &"hosts of this job", store, listen)
}

/// Refuses stores that are too small.
pub(super) fn check_sizes(nodes: &[NodePlan]) -> Outcome<()> {
    if let Some(size) = nodes.iter().filter_map(|node| node.order.store_size).find(|size| *size < STORE_BYTES_MIN) {
        let (size, least) = (bytes_text(size), bytes_text(STORE_BYTES_MIN));
        return Err(Failure::new(format!("a store of {size} for a node is too small: {least} is the least")).remedy(
            "give a size with its unit: --store DIR:100GiB; on one machine, it is what all nodes have together",
        ));
    }
    Ok(())
}

/// Nodes run with another working directory than this command.
pub(super) fn absolute_store(store: &StoreChoice) -> Outcome<StoreChoice> {
    let absolute = |path: &PathBuf| std::path::absolute(path).explain(|| path.display());
    let place = match &store.place {
        StorePlace::Directory(directory) => StorePlace::Directory(absolute(directory)?),
        StorePlace::Memory => StorePlace::Memory,
        StorePlace::Device(device) => StorePlace::Device(absolute(device)?),
        StorePlace::File(directory) => StorePlace::File(absolute(directory)?),
    };
    Ok(StoreChoice { place, size: store.size })
}

/// So many nodes on this machine, numbered from `first` on.
pub(super) fn local_nodes(
    first: u16,
    count: u16,
    store: Option<&StoreChoice>,
    listen: Option<&Listen>,
) -> Outcome<Vec<NodePlan>> {
    if let Some(StorePlace::Device(device)) = store.map(|store| &store.place)
        && count > 1
    {
        return Err(Failure::new(format!("{}: a device is the store of one node, not of {count}", device.display()))
            .remedy("--nodes 1; or a device for each node, in a file of hosts: localhost store=device:PATH"));
    }
    let size = store.and_then(|store| match (&store.place, store.size) {
        (_, Some(size)) => Some(size.0),
        (StorePlace::Memory, None) => Some(memory_bytes() / 2),
        (StorePlace::Directory(_) | StorePlace::Device(_) | StorePlace::File(_), None) => None,
    });
    let share = size.map(|size| size / u64::from(count.max(1)));
    let node = |id| NodePlan {
        machine: Machine::Here,
        site: SITE_DEFAULT.to_owned(),
        order: NodeOrder {
            node: NodeId(id),
            store: store.map(|store| store.place.clone()),
            store_size: share,
            listen: Some(listen.cloned().unwrap_or(Listen::LOOPBACK)),
        },
    };
    Ok((first..first.saturating_add(count)).map(node).collect())
}

/// Of this machine.
fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram * u64::from(machine.mem_unit)
}

/// The nodes of a file of hosts, numbered from `first` on.
pub(super) fn host_nodes(
    first: u16,
    file: &Path,
    store: Option<&StoreChoice>,
    listen: Option<&Listen>,
) -> Outcome<Vec<NodePlan>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::of_io(format_args!("file of hosts {}", file.display()), &error)
            .failed()
            .remedy("--hosts names a file with a line per node: `weft up --help` shows what it may have")
    })?;
    let entries = hosts::parse(&text).map_err(|error| {
        Failure::new(format!("{}: {error}", file.display())).remedy("`weft up --help` shows what a line may have")
    })?;
    nodes_of_hosts(first, entries, &file.display(), store, listen)
}

/// Nodes on these hosts, which `source` names.
pub(super) fn nodes_of_hosts(
    first: u16,
    entries: Vec<hosts::HostEntry>,
    source: &dyn std::fmt::Display,
    store: Option<&StoreChoice>,
    listen: Option<&Listen>,
) -> Outcome<Vec<NodePlan>> {
    let alone = entries.iter().all(|entry| entry.ssh_host.is_none());
    let node = |(id, entry): (u16, hosts::HostEntry)| {
        let store = entry.store.as_ref().or(store);
        let listen = entry.listen.or_else(|| listen.cloned());
        let listen = listen.or_else(|| alone.then_some(Listen::LOOPBACK));
        if listen.is_none() && entry.ssh_host.is_none() {
            return Err(Failure::new(format!("{source}: localhost: which address do the other hosts reach?"))
                .remedy("write listen=IFACE|CIDR|ADDR behind it, or give --listen"));
        }
        let order = NodeOrder {
            node: NodeId(id),
            store: store.map(|store| store.place.clone()),
            store_size: store.and_then(|store| store.size).map(|size| size.0),
            listen,
        };
        Ok(NodePlan { machine: entry.ssh_host.into(), site: entry.site, order })
    };
    (first..=u16::MAX).zip(entries).map(node).collect()
}

/// Starts the nodes, gives them the map, and records the file system. When anything fails, nothing is left.
fn start_all(plan: &Plan) -> Outcome<Instance> {
    let directory = claim_name(&plan.name)?;
    let started = begin(plan, &directory);
    let (instance, outcome) = match started {
        Ok(instance) => {
            let outcome = complete(&instance);
            (instance, outcome)
        }
        Err(failure) => {
            let map = weft_protocol::ClusterMap { name: plan.name.clone(), ..Default::default() };
            (Instance { map, processes: Vec::new(), over: None, directory, user_key: None }, Err(failure))
        }
    };
    if let Err(failure) = outcome {
        take_back(&instance);
        return Err(failure);
    }
    // From here on the record tells that it runs.
    let _ = std::fs::remove_file(instance.directory.join("up.pid"));
    Ok(instance)
}

/// Makes the runtime directory, which is also the lock against another `weft up` of this name.
fn claim_name(name: &str) -> Outcome<PathBuf> {
    let directory = Instance::make_directory(name).map_err(|error| {
        if error.kind() != io::ErrorKind::AlreadyExists {
            let failure = Failure::of_io("runtime directory", &error).failed();
            let remedy = "set XDG_RUNTIME_DIR to a directory of yours".to_owned();
            let remedy = failure.remedy_text().map(|text| format!("{text}; or {remedy}")).unwrap_or(remedy);
            return failure.remedy(remedy);
        }
        match Instance::all().unwrap_or_default().iter().find(|instance| instance.map.name == name) {
            Some(instance) => leftovers::refuse_start(name, &leftovers::state_of(instance)),
            None => Failure::of_io("runtime directory", &error).remedy("try again"),
        }
    })?;
    Process::current()?.write(&directory.join("up.pid"))?;
    Ok(directory)
}

/// Starts all nodes, on all machines at the same time, and makes the map.
fn begin(plan: &Plan, directory: &Path) -> Outcome<Instance> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| Failure::new(format!("random numbers for the node key: {error}")))?;
    let node_key = output::hexadecimal(&key);
    start::write_key(&directory.join("node.key"), &node_key)?;

    let over = plan.over.as_deref().map(Over::of).transpose()?;
    let order = StartOrder { over, ..start_order(&plan.name, node_key, plan.identity_per_node) };
    let (records, processes, failure) = start_nodes(&plan.nodes, &order);
    let map = cluster::first_map(&plan.name, records, plan.shards_per_node);
    let instance =
        Instance { map, processes, over: plan.over.clone(), directory: directory.to_owned(), user_key: None };
    match failure {
        None => Ok(instance),
        Some(failure) => {
            take_back(&instance);
            Err(failure)
        }
    }
}

/// An order to start no nodes yet.
pub(super) fn start_order(name: &str, node_key: String, identity_per_node: bool) -> StartOrder {
    StartOrder {
        name: name.to_owned(),
        node_key,
        owner_uid: rustix::process::getuid().as_raw(),
        owner_gid: rustix::process::getgid().as_raw(),
        identity_per_node,
        over: None,
        nodes: Vec::new(),
    }
}

/// Starts nodes, on all machines at the same time. Returns those that were started, and the first failure.
pub(super) fn start_nodes(
    nodes: &[NodePlan],
    common: &StartOrder,
) -> (Vec<NodeRecord>, Vec<NodeProcess>, Option<Failure>) {
    let mut orders: BTreeMap<&Machine, StartOrder> = BTreeMap::new();
    for node in nodes {
        let order = orders.entry(&node.machine).or_insert_with(|| common.clone());
        order.nodes.push(node.order.clone());
    }
    let replies: Vec<(&Machine, Outcome<Started>)> = thread::scope(|scope| {
        let starts: Vec<_> = orders
            .into_iter()
            .map(|(machine, order)| (machine, scope.spawn(move || start_on(machine, order))))
            .collect();
        let crashed = || Err(Failure::new("a thread of `weft up` failed"));
        starts.into_iter().map(|(machine, start)| (machine, start.join().unwrap_or_else(|_| crashed()))).collect()
    });
    let mut failures = Vec::new();
    let mut started = BTreeMap::new();
    for (machine, reply) in replies {
        match reply {
            Ok(of_machine) => {
                let host = machine.ssh_host().unwrap_or(of_machine.host);
                started.extend(of_machine.nodes.into_iter().map(|node| (node.node, (machine, host.clone(), node))));
            }
            Err(failure) => failures.push(failure),
        }
    }
    let (records, processes) = record(nodes, &started);
    (records, processes, failures.into_iter().next())
}

fn start_on(machine: &Machine, order: StartOrder) -> Outcome<Started> {
    match machine.perform(&Order::Start(order))? {
        Reply::Started(started) => Ok(started),
        other => {
            Err(Failure::new(format!("unexpected reply {other:?}")).remedy("use the same version of weft on all hosts"))
        }
    }
}

/// Records and processes of the nodes that were started.
fn record(
    nodes: &[NodePlan],
    started: &BTreeMap<NodeId, (&Machine, String, StartedNode)>,
) -> (Vec<NodeRecord>, Vec<NodeProcess>) {
    let sites: BTreeMap<NodeId, &str> = nodes.iter().map(|node| (node.order.node, node.site.as_str())).collect();
    let records = started.values().map(|(_, host, node)| NodeRecord {
        id: node.node,
        host: host.clone(),
        site: sites.get(&node.node).copied().unwrap_or(SITE_DEFAULT).to_owned(),
        identity: node.identity,
        address: node.address.clone(),
        stores: true,
        drains: false,
    });
    let processes = started.values().map(|(machine, _, node)| NodeProcess {
        node: node.node,
        ssh_host: machine.ssh_host(),
        pid: node.process.pid,
        start_time: node.process.start_time,
        store: node.store.clone(),
        store_made: node.store_made.clone(),
    });
    (records.collect(), processes.collect())
}

/// Records the file system, gives every node the map, and sees that `/` answers.
fn complete(instance: &Instance) -> Outcome<()> {
    instance.save().map_err(|error| Failure::of_io("record the file system", &error).failed())?;
    let name = &instance.map.name;
    let client = Client::connect(instance, &ClientOptions::default())
        .map_err(|error| Failure::of_weft("connect to the nodes that were started", &error).failed())?;
    let nodes = instance.map.nodes.iter().map(|node| node.id);
    let request = NodeRequest::SetMap(instance.map.clone());
    for (node, answer) in session::ask_nodes(&client, nodes, &request, MAP_PATIENCE) {
        answer.map_err(|error| {
            Failure::of_weft(format_args!("give node {} the map", session::node_name(node)), &error).failed()
        })?;
    }
    client
        .attributes(&client.credentials(), InodeNumber::ROOT)
        .map_err(|error| Failure::of_weft(format_args!("look at {name}:/"), &error).failed())?;
    // Other machines of the file system get the record, so that clients on them find it.
    let others = host::machines(instance).into_iter().filter(|machine| *machine != Machine::Here);
    others
        .into_iter()
        .try_for_each(|machine| machine.perform(&Order::Install(Box::new(instance.clone()))).map(|_| ()))?;
    client.close().map_err(|error| Failure::of_weft("end the connection", &error).failed())
}

/// Ends what was started, on all machines: on this one last, for its runtime files are those of a node that was reached
/// by this machine's name, too. What fails here is said and does not hide the failure that led here.
fn take_back(instance: &Instance) {
    let order = |machine: &Machine| {
        let of_machine = |process: &&NodeProcess| Machine::from(process.ssh_host.clone()) == *machine;
        Order::Stop(StopOrder {
            name: instance.map.name.clone(),
            processes: instance.processes.iter().filter(of_machine).cloned().collect(),
            alone_ms: 0,
            asked_ms: STOP_PATIENCE_MS,
            runtime_files: RuntimeFiles::Remove,
        })
    };
    let mut others = host::machines(instance);
    others.remove(&Machine::Here);
    let stopped = host::on_all(&others, order).into_iter().chain(host::on_all(&[Machine::Here].into(), order));
    stopped.filter_map(|(_, reply)| reply.err()).for_each(|failure| output::warn(&failure));
}

/// Where the stores are.
fn places(plan: &Plan, instance: &Instance) -> String {
    let more = if plan.nodes.len() > 1 { " ..." } else { "" };
    let first = plan.nodes.first().and_then(|node| node.order.store.as_ref());
    match (first, instance.processes.first()) {
        (Some(StorePlace::Memory), _) => "memory".to_owned(),
        (Some(StorePlace::Device(device)), _) => format!("{}{more}", device.display()),
        (_, Some(process)) => format!("{}{more}", process.store.display()),
        (_, None) => String::new(),
    }
}

/// What runs now, and what can be done with it.
fn summary(plan: &Plan, instance: &Instance, took: Duration) -> String {
    let name = &instance.map.name;
    let (nodes, shards) = (instance.map.nodes.len(), instance.map.shards.len());
    let hosts = plan.scheduler.map(|scheduler| format!(" on {}", scheduler.hosts_text())).unwrap_or_default();
    let end = instance.over.as_ref().map_or_else(
        || format!("weft down {name}                 end it; what is in it goes"),
        |below| format!("weft down --drain {name}         write changes back to {} and end it", below.display()),
    );
    format!(
        "{name} is up: {nodes} nodes{hosts}, {shards} shards, in {}; stores: {}\n\n  \
         weft mount {name} MOUNTPOINT     work with it as a directory\n  \
         weft cp -r DIR {name}:/          copy something in\n  \
         weft status {name}               see how it is\n  \
         {end}\n",
        span_text(took),
        places(plan, instance)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &[&str]) -> Outcome<Plan> {
        plan_in(words, &[])
    }

    /// With these variables in the environment.
    fn plan_in(words: &[&str], variables: &[(&str, &str)]) -> Outcome<Plan> {
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let matches = <Line as clap::CommandFactory>::command().try_get_matches_from([&["up"], words].concat());
        let line = matches.and_then(|matches| Line::from_arg_matches(&matches));
        check(line.map_err(|error| Failure::new(error.to_string()))?.args, &value)
    }

    #[test]
    fn in_a_job_each_of_its_hosts_has_a_node() {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURMD_NODENAME", "n2")];
        let machines = |plan: &Plan| plan.nodes.iter().map(|node| node.machine.ssh_host()).collect::<Vec<_>>();
        let of_job = plan_in(&["--listen", "10.0.0.0/8", "--store", "/s:2MiB"], &job).expect("plan");
        assert_eq!((of_job.name.as_str(), of_job.scheduler), ("job-7", Some(Scheduler::Slurm)));
        assert_eq!(machines(&of_job), [Some("n1".to_owned()), None, Some("n3".to_owned())]);
        assert!(of_job.nodes.iter().all(|node| node.order.listen.is_some() && node.order.store_size == Some(2 << 20)));
        // What is said comes first.
        let here = plan_in(&["j", "--nodes", "2"], &job).expect("plan");
        assert_eq!((here.name.as_str(), here.scheduler, machines(&here)), ("j", None, vec![None, None]));
        assert!(
            plan_in(&["--hosts", "/nonexistent"], &job).is_err_and(|failure| failure.text().contains("/nonexistent"))
        );
        assert!(plan_in(&["--hosts", "pbs"], &job).is_err_and(|failure| failure.text().contains("PBS_NODEFILE")));
        assert_eq!(plan_in(&["--hosts", "slurm"], &[job[1]]).expect("plan").name, "weft");
        // A host of its own needs no address that others reach.
        let alone = [("SLURM_JOB_NODELIST", "n2"), job[2]];
        assert_eq!(plan_in(&[], &alone).expect("plan").nodes[0].order.listen, Some(Listen::LOOPBACK));
        // Of several, the one where this runs listens where others reach it.
        let toward = [("SLURM_JOB_NODELIST", "n2,localhost"), job[2]];
        let own = plan_in(&[], &toward).expect("plan").nodes[0].order.listen.clone();
        assert_eq!(own, Some(Listen::Address("127.0.0.1".parse().expect("an address"))));
    }

    #[test]
    fn four_nodes_on_loopback_by_default() {
        let plan = plan(&[]).expect("plan");
        assert_eq!((plan.name.as_str(), plan.nodes.len(), plan.shards_per_node), ("weft", 4, 1));
        assert!(plan.nodes.iter().all(|node| node.machine == Machine::Here));
        assert!(
            plan.nodes.iter().all(|node| node.order.listen == Some(Listen::LOOPBACK) && node.order.store.is_none())
        );
    }

    #[test]
    fn the_size_is_split_over_the_nodes() {
        let plan = plan(&["j", "--nodes", "8", "--store", "/s:8GiB", "--shards-per-node", "1"]).expect("plan");
        assert!(plan.nodes.iter().all(|node| node.order.store_size == Some(1 << 30)));
        assert!(plan.nodes.iter().all(|node| node.order.store == Some(StorePlace::Directory("/s".into()))));
        assert_eq!(plan.shards_per_node, 1);
    }

    #[test]
    fn memory_is_split_over_the_nodes() {
        let orders = |words: &[&str]| -> Vec<_> {
            let nodes = plan(words).expect("plan").nodes;
            nodes.into_iter().map(|node| (node.order.store, node.order.store_size)).collect()
        };
        let in_memory = |size| (Some(StorePlace::Memory), Some(size));
        assert_eq!(orders(&["j", "--nodes", "2", "--store", "memory:8GiB"]), [in_memory(4 << 30), in_memory(4 << 30)]);
        assert_eq!(orders(&["j", "--nodes", "1", "--store", "memory"]), [in_memory(memory_bytes() / 2)]);
    }

    #[test]
    fn a_device_is_one_nodes_and_files_are_split() {
        let nodes = plan(&["j", "--nodes", "2", "--store", "file:/s:8GiB"]).expect("plan").nodes;
        let in_file = (Some(StorePlace::File("/s".into())), Some(4 << 30));
        assert!(nodes.into_iter().all(|node| (node.order.store, node.order.store_size) == in_file));
        let nodes = plan(&["j", "--nodes", "1", "--store", "device:/dev/x"]).expect("plan").nodes;
        assert_eq!(nodes[0].order.store, Some(StorePlace::Device("/dev/x".into())));
        let refused = plan(&["j", "--nodes", "2", "--store", "device:/dev/x"]);
        assert!(refused.is_err_and(|failure| failure.text().contains("one node") && failure.remedy_text().is_some()));
    }

    #[test]
    fn a_host_may_override_what_is_for_all() {
        let file = std::env::temp_dir().join(format!("weft-hosts-{}", std::process::id()));
        std::fs::write(&file, "a site=x listen=ib0\nb store=/t:1MiB\n").expect("written");
        let name = file.to_str().expect("text");
        let plan = plan(&["--hosts", name, "--store", "/s:2MiB", "--listen", "10.0.0.0/8"]).expect("plan");
        let orders: Vec<&NodeOrder> = plan.nodes.iter().map(|node| &node.order).collect();
        assert_eq!((plan.nodes[0].site.as_str(), plan.nodes[1].site.as_str()), ("x", "local"));
        assert_eq!(orders[0].listen, Some(Listen::Interface("ib0".into())));
        assert_eq!(orders[1].listen.as_ref().map(ToString::to_string).as_deref(), Some("10.0.0.0/8"));
        assert_eq!((orders[0].store_size, orders[1].store_size), (Some(2 << 20), Some(1 << 20)));
        std::fs::write(&file, "a\nlocalhost\n").expect("written");
        assert!(self::plan(&["--hosts", name]).is_err_and(|failure| failure.text().contains("localhost")));
        std::fs::remove_file(&file).expect("removed");
        assert!(self::plan(&["--hosts", name]).is_err_and(|failure| failure.exit_code() == 2));
    }

    #[test]
    fn bad_use_is_refused() {
        for words in [
            &["a/b"][..],
            &["--nodes", "0"],
            &["--nodes", "5000"],
            &["--store", ":4G"],
            &["--store", "/s:100"],
            &["--hosts", "x", "--nodes", "2"],
        ] {
            assert!(plan(words).is_err(), "{words:?}");
        }
    }
}
