//! The hosts of the batch job that this process is part of, as its environment tells.
//!
//! Slurm lists them in a variable, compressed ([`hostlist`]); PBS and Torque name a file with a line per processor.
//! Without a scheduler, mpiexec is told of its hosts by a file with a line per host, which a variable may name: mpich's
//! by `host:processes`, Open MPI's by `host slots=processes`.

mod hostlist;

use crate::failure::{Failure, Outcome};
use std::fs;
use weft_protocol::limits::NODES_MAX;

/// Where Slurm lists the hosts of a job; the second one is the older name.
const SLURM_HOSTS: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
/// The host on which Slurm runs this process, as Slurm calls it.
const SLURM_OWN_HOST: &str = "SLURMD_NODENAME";
/// Names PBS's file of hosts.
const PBS_HOSTS: &str = "PBS_NODEFILE";
/// Name the file of hosts of mpich's mpiexec, of Open MPI's up to 4, and from 5 on.
const MPIEXEC_HOSTS: [&str; 3] =
    ["HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"];

/// Who gave the job its hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    Slurm,
    Pbs,
    /// None: the hosts are those of plain mpiexec.
    Mpiexec,
}

/// The hosts of a batch job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    pub scheduler: Scheduler,
    /// Each once, in the scheduler's order; at least one.
    pub hosts: Vec<String>,
    /// Which of them this machine is, if any.
    pub own_host: Option<String>,
}

/// The variables of a process, which tests replace.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables of this process; an empty one is as good as none.
pub fn own_variables(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Scheduler {
    /// In the order in which they are asked: a scheduler's mpiexec is told its hosts by it.
    const ALL: [Self; 3] = [Scheduler::Slurm, Scheduler::Pbs, Scheduler::Mpiexec];

    /// As `--hosts` names it.
    pub fn word(self) -> &'static str {
        match self {
            Scheduler::Slurm => "slurm",
            Scheduler::Pbs => "pbs",
            Scheduler::Mpiexec => "mpiexec",
        }
    }

    /// The scheduler of this word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheduler| scheduler.word() == word)
    }

    /// The hosts of this process's job; `None`: it is not part of one of this scheduler.
    pub fn job(self, variables: Variables<'_>) -> Outcome<Option<Job>> {
        let listed = match self {
            Scheduler::Slurm => slurm_hosts(variables)?,
            Scheduler::Pbs => pbs_hosts(variables)?,
            Scheduler::Mpiexec => mpiexec_hosts(variables)?,
        };
        let Some(hosts) = listed else { return Ok(None) };
        let own = variables(SLURM_OWN_HOST).filter(|_| self == Scheduler::Slurm);
        let machine = crate::host::start::host_name();
        let is_own = |host: &&String| own.as_ref() == Some(*host) || is_same_host(host, &machine);
        let own_host = hosts.iter().find(is_own).cloned();
        Ok(Some(Job { scheduler: self, hosts, own_host }))
    }

    /// As [`Scheduler::job`]; it is an error to be outside of a job.
    pub fn require_job(self, variables: Variables<'_>) -> Outcome<Job> {
        let missing = match self {
            Scheduler::Slurm => format!("not in a job of Slurm: {} is not set", SLURM_HOSTS[0]),
            Scheduler::Pbs => format!("not in a job of PBS: {PBS_HOSTS} is not set"),
            Scheduler::Mpiexec => format!("none of {} is set", MPIEXEC_HOSTS.join(", ")),
        };
        let word = self.word();
        self.job(variables)?.ok_or_else(|| {
            Failure::new(format!("--hosts {word}: {missing}")).remedy(format!(
                "run it in a job script; or --hosts FILE (./{word} for a file of that name), or --nodes N for this \
                 machine"
            ))
        })
    }

    /// What the hosts are to a user.
    pub fn hosts_text(self) -> &'static str {
        match self {
            Scheduler::Slurm => "the hosts of this Slurm job",
            Scheduler::Pbs => "the hosts of this PBS job",
            Scheduler::Mpiexec => "mpiexec's hosts",
        }
    }
}

/// The job that this process is part of, whichever scheduler's.
pub fn find(variables: Variables<'_>) -> Outcome<Option<Job>> {
    Scheduler::ALL.into_iter().find_map(|scheduler| scheduler.job(variables).transpose()).transpose()
}

fn slurm_hosts(variables: Variables<'_>) -> Outcome<Option<Vec<String>>> {
    let found = SLURM_HOSTS.iter().find_map(|name| Some((name, variables(name)?)));
    let Some((name, text)) = found else { return Ok(None) };
    hostlist::parse(&text, NODES_MAX).map(Some).map_err(|error| {
        Failure::new(format!("hosts of this Slurm job: {name}: {error}"))
            .remedy("`scontrol show hostnames` lists them: write them to a file for --hosts FILE")
    })
}

fn pbs_hosts(variables: Variables<'_>) -> Outcome<Option<Vec<String>>> {
    let Some(path) = variables(PBS_HOSTS) else { return Ok(None) };
    let remedy = "the file is on the job's first host: run it there, or give --hosts FILE or --nodes N";
    hosts_of_file(&format!("hosts of this PBS job: {PBS_HOSTS}: {path}"), &path, remedy).map(Some)
}

fn mpiexec_hosts(variables: Variables<'_>) -> Outcome<Option<Vec<String>>> {
    let found = MPIEXEC_HOSTS.iter().find_map(|name| Some((name, variables(name)?)));
    let Some((name, path)) = found else { return Ok(None) };
    let remedy = "correct the file or the variable, or give --hosts FILE or --nodes N";
    hosts_of_file(&format!("mpiexec's hosts: {name}: {path}"), &path, remedy).map(Some)
}

fn hosts_of_file(what: &str, path: &str, remedy: &str) -> Outcome<Vec<String>> {
    let text = fs::read_to_string(path).map_err(|error| Failure::of_io(what, &error).failed().remedy(remedy))?;
    hosts_of_lines(&text).map_err(|error| Failure::new(format!("{what}: {error}")).remedy(remedy))
}

/// A host per line, with what mpiexec is told of it: `host:processes` or `host slots=processes`, and comments. A host
/// may be there several times, as in PBS for each of its processors.
fn hosts_of_lines(text: &str) -> Result<Vec<String>, String> {
    let mut hosts: Vec<String> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(word) = line.split('#').next().and_then(|line| line.split_whitespace().next()) else { continue };
        let host = match word.split_once(':') {
            Some((host, processes)) if processes.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => word,
        };
        hostlist::check_host(host).map_err(|error| format!("line {}: {error}", index + 1))?;
        if !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_owned());
        }
    }
    if hosts.is_empty() { Err("names no host".to_owned()) } else { Ok(hosts) }
}

/// Whether two names are of one host, where one of them may lack the domain.
fn is_same_host(a: &str, b: &str) -> bool {
    let is_short_of = |short: &str, long: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.')) && !short.contains('.')
    };
    a == b || is_short_of(a, b) || is_short_of(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn job_of(variables: &[(&str, &str)]) -> Outcome<Option<Job>> {
        let map: BTreeMap<&str, &str> = variables.iter().copied().collect();
        find(&|name| map.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn slurm_lists_hosts_in_a_variable() {
        let job = job_of(&[("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURMD_NODENAME", "n2")]).expect("read").expect("a job");
        let hosts = vec!["n1".to_owned(), "n2".to_owned()];
        assert_eq!(job, Job { scheduler: Scheduler::Slurm, hosts, own_host: Some("n2".into()) });
        let job = job_of(&[("SLURM_NODELIST", "x")]).expect("read").expect("the older name");
        assert_eq!((job.hosts, job.own_host), (vec!["x".to_owned()], None));
        assert_eq!(job_of(&[]).expect("read"), None);
        let failure = job_of(&[("SLURM_JOB_NODELIST", "n[1-")]).expect_err("refused");
        assert!(failure.text().contains("SLURM_JOB_NODELIST") && failure.remedy_text().is_some(), "{failure}");
    }

    #[test]
    fn pbs_names_a_file_with_a_line_per_processor() {
        let path = std::env::temp_dir().join(format!("weft-pbs-{}", std::process::id()));
        let name = path.to_str().expect("text");
        fs::write(&path, "b.x\nb.x\na.x\n\nb.x\n").expect("written");
        let job = job_of(&[("PBS_NODEFILE", name), ("SLURMD_NODENAME", "a.x")]).expect("read").expect("a job");
        let hosts = vec!["b.x".to_owned(), "a.x".to_owned()];
        assert_eq!(job, Job { scheduler: Scheduler::Pbs, hosts, own_host: None });
        fs::write(&path, "a\n-b\n").expect("written");
        let failure = job_of(&[("PBS_NODEFILE", name)]).expect_err("refused");
        assert!(failure.text().contains("line 2") && failure.remedy_text().is_some(), "{failure}");
        fs::remove_file(&path).expect("removed");
        let failure = job_of(&[("PBS_NODEFILE", name)]).expect_err("not there");
        assert!(failure.exit_code() == 2 && failure.text().contains(name), "{failure}");
    }

    #[test]
    fn mpiexec_has_a_file_with_a_line_per_host() {
        let path = std::env::temp_dir().join(format!("weft-mpiexec-{}", std::process::id()));
        let name = path.to_str().expect("text");
        fs::write(&path, "# the lab\na:4 ifname=ib0\nb slots=2 max_slots=8 # two\na:1\nc.x\n").expect("written");
        for variable in MPIEXEC_HOSTS {
            let job = job_of(&[(variable, name)]).expect("read").expect("hosts");
            assert_eq!((job.scheduler, job.hosts), (Scheduler::Mpiexec, ["a", "b", "c.x"].map(str::to_owned).into()));
        }
        // A scheduler says more.
        let job = job_of(&[("HYDRA_HOST_FILE", name), ("SLURM_JOB_NODELIST", "n1")]).expect("read").expect("a job");
        assert_eq!(job.scheduler, Scheduler::Slurm);
        fs::write(&path, "a:b\n").expect("written");
        let failure = job_of(&[("HYDRA_HOST_FILE", name)]).expect_err("refused");
        assert!(failure.text().contains("HYDRA_HOST_FILE") && failure.text().contains("line 1"), "{failure}");
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn a_scheduler_that_is_asked_for_has_to_be_there() {
        for scheduler in Scheduler::ALL {
            assert_eq!(Scheduler::named(scheduler.word()), Some(scheduler));
            let failure = scheduler.require_job(&|_| None).expect_err("not in a job");
            assert!(failure.text().contains(scheduler.word()) && failure.remedy_text().is_some(), "{failure}");
        }
        assert_eq!(Scheduler::named("./slurm"), None);
    }

    #[test]
    fn a_host_is_known_without_its_domain() {
        assert!(is_same_host("a", "a") && is_same_host("a", "a.b.c") && is_same_host("a.b", "a"));
        assert!(!is_same_host("a", "ab") && !is_same_host("a.b", "a.b.c") && !is_same_host("a", "b"));
    }
}
