//! The batch job that this process is part of, as its environment tells.
//!
//! Not here: the job's hosts, which only `weft up` needs (`fronts/cli/src/job.rs`).

use crate::instance::{INSTANCE_NAME_BYTES_MAX, Instance};

/// Variables that hold a job's identifier: Slurm's, and that of PBS and Torque.
const IDENTIFIERS: [&str; 2] = ["SLURM_JOB_ID", "PBS_JOBID"];
/// Names of jobs' file systems begin with this.
const PREFIX: &str = "job-";

/// The name that the job's file system has unless another one is given; `None`: this is not part of a job.
pub fn file_system_name() -> Option<String> {
    name_from(|variable| std::env::var(variable).ok())
}

/// Whether a file system of this name is that of a job, unless somebody gave it such a name.
pub fn is_of_job(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// As [`file_system_name`], of these variables.
pub fn name_from(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    IDENTIFIERS.iter().filter_map(|name| variable(name)).find_map(|identifier| name_of(&identifier))
}

/// `job-IDENTIFIER`, without the server's name that PBS puts behind a dot.
fn name_of(identifier: &str) -> Option<String> {
    let number = identifier.split('.').next().unwrap_or_default();
    let plain = number.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let plain = plain.trim_matches('-');
    let mut name = format!("{PREFIX}{plain}");
    name.truncate(INSTANCE_NAME_BYTES_MAX);
    (!plain.is_empty() && Instance::is_name(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_names_its_file_system() {
        let long = "7".repeat(100);
        for (identifier, name) in [
            ("4711", Some("job-4711")),
            ("4711.pbs.cluster", Some("job-4711")),
            ("12[3].pbs", Some("job-12-3")),
            ("a é/b", Some("job-a---b")),
            (long.as_str(), Some("job-7777777777777777777777777777")),
            ("", None),
            (".x", None),
            ("[]", None),
        ] {
            assert_eq!(name_of(identifier).as_deref(), name, "{identifier}");
        }
    }

    #[test]
    fn slurm_comes_first() {
        let both = |variable: &str| Some(if variable == "PBS_JOBID" { "1.pbs" } else { "2" }.to_owned());
        assert_eq!(name_from(both).as_deref(), Some("job-2"));
        assert_eq!(
            name_from(|variable| both(variable).filter(|_| variable != "SLURM_JOB_ID")).as_deref(),
            Some("job-1")
        );
        assert_eq!(name_from(|_| None), None);
    }
}
