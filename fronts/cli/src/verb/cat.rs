//! `weft cat`: writes files to standard output.

use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::Answer;
use crate::session::{Session, Sessions};
use crate::target::{Target, WeftPath};
use std::ffi::OsString;
use weft_client::OpenOptions;
use weft_protocol::{Error, FileKind};

/// Bytes read at once: large enough to bypass the file's own buffer.
const BUFFER_BYTES: usize = 4 << 20;

const HELP: &str = "\
Examples:
  weft cat weft:/results/log.txt
  weft cat job42:/part-0 job42:/part-1 > whole";

/// Write files to standard output
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files: NAME:/path
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "cat")).collect::<Outcome<_>>()?;
    let mut sessions = Sessions::default();
    let mut answer = Answer::new();
    for path in &paths {
        let session = sessions.of(path)?;
        write_out(&session, path, &mut answer)?;
    }
    answer.finish()?;
    sessions.close()?;
    Ok(Ending::Done)
}

fn write_out(session: &Session, path: &WeftPath, answer: &mut Answer) -> Outcome<()> {
    let place = || format!("cat {path}");
    let entry = session.walk(path, true, "cat")?;
    if entry.attributes.kind == FileKind::Directory {
        let failure = Failure::of_weft(place(), &Error::IsDirectory);
        return Err(failure.remedy("`weft ls` lists what is in it"));
    }
    let options = OpenOptions::READ;
    let file = session.client.open(&session.who, entry.attributes.inode, options).explain(place)?;
    // A small file needs no large buffer; one byte more shows whether it grew.
    let size = usize::try_from(entry.attributes.size).unwrap_or(BUFFER_BYTES);
    let mut buffer = vec![0; size.saturating_add(1).min(BUFFER_BYTES)];
    let mut offset = 0;
    loop {
        let count = file.read_at(&mut buffer, offset).explain(place)?;
        if count == 0 {
            return file.close().explain(place);
        }
        answer.bytes(&buffer[..count])?;
        offset += count as u64;
    }
}
