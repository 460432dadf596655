//! The hosts of the batch job that this process is part of, as its environment tells.
//!
//! Slurm lists them in a variable, compressed ([`hostlist`]); PBS and Torque name a file with a line per processor.

mod hostlist;

use crate::failure::{Failure, Outcome};
use std::fmt;
use std::fs;
use weft_protocol::limits::NODES_MAX;

/// Where Slurm lists the hosts of a job; the second one is the older name.
const SLURM_HOSTS: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
/// The host on which Slurm runs this process, as Slurm calls it.
const SLURM_OWN_HOST: &str = "SLURMD_NODENAME";
/// Names PBS's file of hosts.
const PBS_HOSTS: &str = "PBS_NODEFILE";

/// Who gave the job its hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduler {
    Slurm,
    Pbs,
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
    /// As `--hosts` names it.
    pub fn word(self) -> &'static str {
        match self {
            Scheduler::Slurm => "slurm",
            Scheduler::Pbs => "pbs",
        }
    }

    /// The scheduler of this word.
    pub fn named(word: &str) -> Option<Self> {
        [Scheduler::Slurm, Scheduler::Pbs].into_iter().find(|scheduler| scheduler.word() == word)
    }

    /// The hosts of this process's job; `None`: it is not part of one of this scheduler.
    pub fn job(self, variables: Variables<'_>) -> Outcome<Option<Job>> {
        let listed = match self {
            Scheduler::Slurm => slurm_hosts(variables)?,
            Scheduler::Pbs => pbs_hosts(variables)?,
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
        let variable = match self {
            Scheduler::Slurm => SLURM_HOSTS[0],
            Scheduler::Pbs => PBS_HOSTS,
        };
        let word = self.word();
        self.job(variables)?.ok_or_else(|| {
            Failure::new(format!("--hosts {word}: not in a job of {self}: {variable} is not set")).remedy(format!(
                "run it in a job script; or --hosts FILE (./{word} for a file of that name), or --nodes N for this \
                 machine"
            ))
        })
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::Slurm => "Slurm",
            Scheduler::Pbs => "PBS",
        })
    }
}

/// The job that this process is part of, whichever scheduler's.
pub fn find(variables: Variables<'_>) -> Outcome<Option<Job>> {
    match Scheduler::Slurm.job(variables)? {
        None => Scheduler::Pbs.job(variables),
        job => Ok(job),
    }
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
    let what = || format!("hosts of this PBS job: {PBS_HOSTS}: {path}");
    let remedy = "the file is on the job's first host: run it there, or give --hosts FILE or --nodes N";
    let text = fs::read_to_string(&path).map_err(|error| Failure::of_io(what(), &error).failed().remedy(remedy))?;
    hosts_of_lines(&text).map(Some).map_err(|error| Failure::new(format!("{}: {error}", what())).remedy(remedy))
}

/// A host per line; a host that has several processors of the job is there several times.
fn hosts_of_lines(text: &str) -> Result<Vec<String>, String> {
    let mut hosts: Vec<String> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let host = line.trim();
        if host.is_empty() || hosts.iter().any(|known| known == host) {
            continue;
        }
        hostlist::check_host(host).map_err(|error| format!("line {}: {error}", index + 1))?;
        hosts.push(host.to_owned());
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
    fn a_scheduler_that_is_asked_for_has_to_be_there() {
        for scheduler in [Scheduler::Slurm, Scheduler::Pbs] {
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
