//! The life of a batch job: `weft up` takes the hosts that the scheduler gave, here with a stand-in for ssh.

use super::hosts::install_ssh;
use super::{Ground, runs};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command with variables as a scheduler sets them.
fn in_job(ground: &Ground, variables: &[(&str, &str)], words: &[&str]) -> Output {
    ground.command(words).envs(variables.iter().copied()).output().expect("weft starts")
}

/// As [`in_job`], for what has to succeed; answers its standard output.
fn done(ground: &Ground, variables: &[(&str, &str)], words: &[&str]) -> String {
    let output = in_job(ground, variables, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "weft {}: {said}", words.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

/// Host and address of each node, in the order of their numbers.
fn nodes(ground: &Ground, job: &[(&str, &str)]) -> Vec<String> {
    let output = in_job(ground, job, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = status["file_systems"][0]["nodes"].as_array().expect("nodes").clone();
    nodes.iter().map(|node| node["host"].as_str().expect("a host").to_owned()).collect()
}

#[test]
fn in_a_slurm_job_each_host_has_a_node_and_the_name_is_the_jobs() {
    let ground = Ground::new("slurm-job");
    install_ssh(&ground);
    let job = [("SLURM_JOB_ID", "47"), ("SLURM_JOB_NODELIST", "n[08-09],m-1x"), ("SLURMD_NODENAME", "n09")];
    let said = done(&ground, &job, &["up", "--listen", "127.0.0.1"]);
    assert!(said.starts_with("job-47 is up: 3 nodes on the hosts of this Slurm job, 3 shards, in "), "{said}");
    let machine = nodes(&ground, &job)[1].clone();
    assert_eq!(nodes(&ground, &job), ["n08", &machine, "m-1x"]);
    assert!(ground.path("run/weft/job-47/n01.sock").exists(), "this host's node is started without ssh");
    for host in ["n08", "m-1x"] {
        assert!(ground.path(&format!("run-{host}/weft/job-47/instance.json")).exists(), "{host}");
    }
    // Another one beside it: inside of the job, its own is meant.
    ground.weft(&["up", "e2e", "--nodes", "1"]);
    fs::write(ground.path("word"), "of the job").expect("written");
    done(&ground, &job, &["cp", "-q", "word", "weft:/"]);
    assert_eq!(done(&ground, &job, &["cat", "job-47:/word"]), "of the job");
    assert!(ground.weft_fails(2, &["ls", "weft:/"]).contains("several file systems"));
    done(&ground, &job, &["down"]);
    assert!(!ground.path("run/weft/job-47").exists() && !ground.path("run-n08/weft").exists());
    assert_eq!(ground.weft(&["ls", "e2e:/"]), "");
}

/// `weft down` after a `weft up` that has failed, say, with another job of the same user on the machine.
#[test]
fn a_job_does_not_take_the_file_system_of_another_for_its_own() {
    let ground = Ground::new("two-jobs");
    let (other, own) = ([("SLURM_JOB_ID", "9")], [("SLURM_JOB_ID", "5")]);
    done(&ground, &other, &["up", "job-9", "--nodes", "1"]);
    fs::write(ground.path("word"), "of the other").expect("written");
    for words in [&["down"][..], &["cp", "-q", "word", "weft:/"], &["status", "weft"], &["rm", "weft:/word"]] {
        let output = in_job(&ground, &own, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let names_both = said.contains("job-5, the file system of this batch job, does not run here; job-9 does");
        assert!(!output.status.success() && names_both, "{words:?}: {said}");
    }
    assert_eq!(done(&ground, &own, &["ls", "job-9:/"]), "", "its name means it");
    done(&ground, &other, &["down"]);
    // One that no job has begun is as good as the job's own.
    ground.weft(&["up", "lab", "--nodes", "1"]);
    done(&ground, &own, &["cp", "-q", "word", "weft:/"]);
    done(&ground, &own, &["down"]);
}

#[test]
fn in_a_pbs_job_each_host_has_one_node() {
    let ground = Ground::new("pbs-job");
    install_ssh(&ground);
    fs::write(ground.path("nodefile"), "a.cluster\na.cluster\nb.cluster\na.cluster\n").expect("written");
    let job = [("PBS_JOBID", "12[3].server"), ("PBS_NODEFILE", "nodefile")];
    let said = done(&ground, &job, &["up"]);
    assert!(said.starts_with("job-12-3 is up: 2 nodes on the hosts of this PBS job"), "{said}");
    assert_eq!(nodes(&ground, &job), ["a.cluster", "b.cluster"]);
    done(&ground, &job, &["down"]);
}

#[test]
fn each_host_of_plain_mpiexec_has_one_node() {
    let ground = Ground::new("mpiexec-job");
    install_ssh(&ground);
    fs::write(ground.path("machines"), "# the lab\na.cluster:2\nb.cluster slots=4\n").expect("written");
    let job = [("HYDRA_HOST_FILE", "machines")];
    let said = done(&ground, &job, &["up"]);
    assert!(said.starts_with("weft is up: 2 nodes on mpiexec's hosts, 2 shards, in "), "{said}");
    assert_eq!(nodes(&ground, &job), ["a.cluster", "b.cluster"]);
    done(&ground, &job, &["down"]);
}

#[test]
fn what_is_said_comes_before_what_the_job_says() {
    let ground = Ground::new("said-job");
    install_ssh(&ground);
    let job = [("SLURM_JOB_ID", "47"), ("SLURM_JOB_NODELIST", "n[1-2]")];
    let said = done(&ground, &job, &["up", "e2e", "--nodes", "1"]);
    assert!(said.starts_with("e2e is up: 1 nodes, 1 shards, in "), "{said}");
    fs::write(ground.path("hosts"), "a\n").expect("written");
    let said = done(&ground, &job, &["up", "--hosts", "hosts"]);
    assert!(said.starts_with("job-47 is up: 1 nodes, 1 shards, in "), "{said}");
    done(&ground, &job, &["down"]);
    // What is wrong is named, and nothing is started.
    for (variables, words, text) in [
        (&[("SLURM_JOB_NODELIST", "n[1-")][..], &["up", "x"][..], "SLURM_JOB_NODELIST: \"n[1-\" does not close"),
        (&[("PBS_NODEFILE", "gone")], &["up", "x"], "PBS_NODEFILE: gone: no such file or directory"),
        (&[], &["up", "x", "--hosts", "slurm"], "not in a job of Slurm: SLURM_JOB_NODELIST is not set"),
        (&job, &["up", "x", "--hosts", "pbs"], "not in a job of PBS: PBS_NODEFILE is not set"),
        (&job, &["up", "x", "--hosts", "mpiexec"], "none of HYDRA_HOST_FILE, OMPI_MCA_orte_default_hostfile, "),
    ] {
        let output = in_job(&ground, variables, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(text) && said.contains("remedy:"), "{said}");
    }
    assert!(!ground.path("run/weft/x").exists());
}

/// A script of examples/slurm with its directory of jobs here, as slurmd runs it for job 47 of this user.
fn site_script(ground: &Ground, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm").join(name);
    let text = fs::read_to_string(&path).expect("an example");
    let text = text.replacen("jobs=/local/scratch/weft-jobs", &format!("jobs={}", ground.path("jobs").display()), 1);
    let program = Path::new(env!("CARGO_BIN_EXE_weft")).parent().expect("a directory").display().to_string();
    let search = std::env::var("PATH").expect("a path of programs");
    let user = fs::metadata(&ground.directory).expect("there").uid().to_string();
    let mut script = Command::new("sh");
    script.args(["-c", &text]).env("SLURM_JOB_ID", "47").env("SLURM_JOB_UID", user);
    let output = script.env("PATH", format!("{program}:{search}")).output().expect("a shell");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_sites_scripts_prepare_a_job_and_clear_up_after_it() {
    let ground = Ground::new("site-scripts");
    assert_eq!(site_script(&ground, "task-prolog.sh"), "", "without the prolog nothing is set");
    site_script(&ground, "prolog.sh");
    let directory = ground.path("jobs/47");
    assert_eq!(fs::metadata(&directory).expect("made").permissions().mode() & 0o777, 0o700);
    let told = site_script(&ground, "task-prolog.sh");
    let variables: Vec<(&str, &str)> =
        told.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('=')).collect();
    let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["XDG_RUNTIME_DIR", "WEFT_JOB_DIRECTORY", "WEFT_SSH"]);
    // A job that starts one and never ends it.
    let store = directory.display().to_string();
    done(&ground, &variables, &["up", "e2e", "--nodes", "2", "--store", &store]);
    let status = in_job(&ground, &variables, &["status", "--json", "e2e"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let nodes = status["file_systems"][0]["nodes"].as_array().expect("nodes").clone();
    let pids: Vec<u64> = nodes.iter().filter_map(|node| node["pid"].as_u64()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(*pid)));
    site_script(&ground, "epilog.sh");
    assert!(!pids.iter().any(|pid| runs(*pid)) && !directory.exists());
    site_script(&ground, "epilog.sh");
}
