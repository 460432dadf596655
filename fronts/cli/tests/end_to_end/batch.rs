//! The life of a batch job: `weft up` takes the hosts that the scheduler gave, here with a stand-in for ssh.

use super::Ground;
use super::hosts::install_ssh;
use std::fs;
use std::process::Output;

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
    ] {
        let output = in_job(&ground, variables, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(text) && said.contains("remedy:"), "{said}");
    }
    assert!(!ground.path("run/weft/x").exists());
}
