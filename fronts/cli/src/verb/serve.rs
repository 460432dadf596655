//! `weft serve`: one node. Started by `weft up`, seldom by hand.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::host::start::ReadyLine;
use crate::output;
use crate::processes::{self, Process, Stream};
use std::io::{self, Read};
use tracing::level_filters::LevelFilter;
use weft_node::NodeConfig;
use weft_protocol::NodeAddress;

const HELP: &str = "\
Standard input: the node's configuration as JSON, an object with the fields of
NodeConfig:
  name, node (number), identity (number), node_key (64 hexadecimal digits),
    owner_uid, owner_gid,
  store ({\"place\": {\"directory\": PATH}, \"memory\", {\"device\": PATH} or
    {\"file\": PATH}, \"size\": BYTES or null, \"below\": PATH or null} or
    null); what is between \"below\" and the store must be this user's own,
    over (PATH of a directory that the file system lies over, or null),
    runtime_directory, listen (IP:PORT)
Standard output: one line of JSON when the node listens:
  {\"pid\": N, \"start_time\": N, \"address\": {\"tcp\": \"IP:PORT\", \"unix\": \"PATH\"}}
Standard error: its log. WEFT_LOG=error|warn|info|debug|trace sets how much
(default: info).

The node leaves its session and closes what its starter had open. It serves
once it has been given a map, and ends by SIGTERM, SIGINT or `weft down`.

Examples:
  weft serve --name job < n00.json 2>> n00.log";

/// Be one node of a file system (started by `weft up`)
#[derive(clap::Args, Debug)]
#[command(hide = true, after_long_help = HELP)]
pub struct Args {
    /// Name of the file system: the same as in the configuration, to be seen in lists of processes
    #[arg(long)]
    name: String,
}

pub fn run(args: &Args) -> Outcome {
    processes::leave_starter()?;
    start_log();
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text).explain(|| "read the configuration")?;
    let config = parse(&text, &args.name)?;
    processes::silence(Stream::Input)?;
    processes::raise_descriptor_limit();
    let ended = weft_node::run(&config, |address| {
        if let Err(failure) = report_ready(address) {
            output::warn(&failure);
        }
    });
    ended.map_err(|error| {
        Failure::new(format!("node {}: {error}", config.node)).remedy("`weft doctor` checks this machine")
    })?;
    Ok(Ending::Done)
}

/// Reads the configuration and checks that it is for this file system.
fn parse(text: &[u8], name: &str) -> Outcome<NodeConfig> {
    let config: NodeConfig = serde_json::from_slice(text).map_err(|error| {
        Failure::new(format!("configuration on standard input: {error}")).remedy("`weft serve --help` describes it")
    })?;
    if config.name != name {
        return Err(Failure::new(format!("the configuration is for \"{}\", not \"{name}\"", config.name)));
    }
    Ok(config)
}

/// Tells who waits that the node listens; then nobody reads any more.
fn report_ready(address: &NodeAddress) -> Outcome<()> {
    let line = ReadyLine { process: Process::current()?, address: address.clone() };
    let text = serde_json::to_string(&line).map_err(|error| Failure::new(format!("ready line: {error}")))?;
    output::print(&format!("{text}\n"))?;
    processes::silence(Stream::Output)
}

/// Events go to standard error, as many as WEFT_LOG wants.
pub fn start_log() {
    // An empty word would be taken for a level too: for the quietest one.
    let wanted = std::env::var("WEFT_LOG").ok().filter(|word| !word.is_empty());
    let level = wanted.and_then(|word| word.parse().ok()).unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"name":"w","node":1,"identity":5,"node_key":"00","owner_uid":0,"owner_gid":0,
        "store":{"place":{"directory":"/s"},"size":null},"runtime_directory":"/r","listen":"127.0.0.1:0"}"#;

    #[test]
    fn the_configuration_is_as_documented() {
        let config = parse(TEXT.as_bytes(), "w").expect("parsed");
        assert_eq!((config.node.0, config.identity.0), (1, 5));
        let value = serde_json::to_value(&config).expect("JSON");
        for field in value.as_object().expect("an object").keys() {
            assert!(HELP.contains(field.as_str()), "{field} is not in the help");
        }
    }

    #[test]
    fn a_wrong_configuration_is_refused() {
        assert!(parse(TEXT.as_bytes(), "other").is_err());
        assert!(parse(b"{}", "w").expect_err("refused").remedy_text().is_some());
    }
}
