//! Options that commands which copy have in common: `cp`, `stage` and `drain`.

use crate::copy::Choices;
use crate::failure::Outcome;

/// How to copy.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Copying {
    /// Read each copy again, and compare it with its source
    #[arg(long)]
    pub verify: bool,
    /// Threads of each host that copy, files and parts of large files at a time [default: one per processor, 4 to 16]
    #[arg(short, long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Say each name that is copied
    #[arg(short, long)]
    pub verbose: bool,
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// What copies keep of their sources. Not for `drain`, which never writes extended attributes back.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Keeping {
    /// Copy without extended attributes
    #[arg(long)]
    no_xattrs: bool,
}

/// Who copies, and what is printed, where all hosts do.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OnHosts {
    /// Copy with this machine alone
    #[arg(long)]
    pub here: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Keeping {
    /// Whether copies keep extended attributes of users.
    pub fn xattrs(self) -> bool {
        !self.no_xattrs
    }
}

impl Copying {
    /// Checks the options. Trees are copied, interrupted copies resumed, and extended attributes left out.
    pub fn choices(self, verb: &'static str) -> Outcome<Choices> {
        let Self { verify, jobs, verbose, quiet } = self;
        let jobs = jobs.unwrap_or_else(|| Choices::default().jobs);
        let (recursive, resume, xattrs) = (true, true, false);
        let choices = Choices { verb, recursive, resume, verify, jobs, verbose, quiet, plan: None, xattrs };
        choices.check()?;
        Ok(choices)
    }
}
