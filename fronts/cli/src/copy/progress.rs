//! How a copy goes on: a bar on a terminal, plain lines elsewhere.

use super::{Choices, Place, Report};
use crate::output;
use crate::quantity::{bytes_text, span_text};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts what was found and copied.
pub struct Progress {
    begun: Instant,
    verb: &'static str,
    verbose: bool,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// Bytes found so far: what is to be copied, once the walk has ended.
    found: AtomicU64,
    copied: AtomicU64,
    files: AtomicU64,
    /// Bytes and files that were whole already.
    kept: AtomicU64,
    kept_files: AtomicU64,
    verified_files: AtomicU64,
    without_xattrs: AtomicU64,
    /// When the last line was written. Only tried, never waited for.
    line_at: Mutex<Instant>,
}

impl Progress {
    pub fn new(choices: &Choices) -> Self {
        let begun = Instant::now();
        let bar = (output::story_is_watched() && !choices.quiet).then(|| {
            let style = ProgressStyle::with_template(
                "{bar:30} {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}  {eta} left",
            );
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = style { bar.with_style(style) } else { bar }
        });
        Self {
            begun,
            verb: choices.verb,
            verbose: choices.verbose,
            quiet: choices.quiet,
            bar,
            found: AtomicU64::new(0),
            copied: AtomicU64::new(0),
            files: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            kept_files: AtomicU64::new(0),
            verified_files: AtomicU64::new(0),
            without_xattrs: AtomicU64::new(0),
            line_at: Mutex::new(begun),
        }
    }

    /// A file was found.
    pub fn found(&self, bytes: u64) {
        let found = self.found.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(bar) = &self.bar {
            bar.set_length(found);
        }
    }

    /// Bytes were copied.
    pub fn copied(&self, bytes: u64) {
        let copied = self.copied.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.bar {
            Some(bar) => bar.set_position(copied + self.kept.load(Ordering::Relaxed)),
            None if !self.quiet => self.line(copied),
            None => {}
        }
    }

    /// Bytes need not be copied: they are there from an earlier copy.
    pub fn kept(&self, bytes: u64) {
        let kept = self.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(kept + self.copied.load(Ordering::Relaxed));
        }
    }

    /// A whole file need not be copied.
    pub fn kept_file(&self, bytes: u64) {
        self.kept(bytes);
        self.kept_files.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what another machine has done.
    pub fn add(&self, report: &Report) {
        self.files.fetch_add(report.files, Ordering::Relaxed);
        self.kept_files.fetch_add(report.kept_files, Ordering::Relaxed);
        self.verified_files.fetch_add(report.verified_files, Ordering::Relaxed);
        self.without_xattrs.fetch_add(report.without_xattrs, Ordering::Relaxed);
        self.kept(report.kept_bytes);
        self.copied(report.bytes);
    }

    /// A copy was read again, and is equal to its source.
    pub fn verified_file(&self) {
        self.verified_files.fetch_add(1, Ordering::Relaxed);
    }

    /// A copy goes without its extended attributes.
    pub fn left_xattrs(&self) {
        self.without_xattrs.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn report(&self) -> Report {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Report {
            files: read(&self.files),
            bytes: read(&self.copied),
            kept_files: read(&self.kept_files),
            kept_bytes: read(&self.kept),
            verified_files: read(&self.verified_files),
            without_xattrs: read(&self.without_xattrs),
            failures: Vec::new(),
        }
    }

    /// A file is whole.
    pub fn file_done(&self, target: &Place) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.said(target);
    }

    /// Says a name, when names are wanted.
    pub fn said(&self, target: &Place) {
        if self.verbose {
            self.pause(|| output::note(format_args!("{target}")));
        }
    }

    /// Writes something to standard error without the bar in its way.
    pub fn pause(&self, write: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// A plain line now and then.
    fn line(&self, copied: u64) {
        let mut at = match self.line_at.try_lock() {
            Ok(at) => at,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if at.elapsed() >= LINE_EVERY {
            *at = Instant::now();
            let found = self.found.load(Ordering::Relaxed);
            let verb = self.verb;
            output::note(format_args!("{verb}: {} of {} or more", bytes_text(copied), bytes_text(found)));
        }
    }

    /// The end of the story.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.quiet {
            return;
        }
        let Report { files, bytes, kept_files, kept_bytes, verified_files, .. } = self.report();
        let took = self.begun.elapsed();
        let rate = (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64;
        let kept = match (kept_files, kept_bytes) {
            (0, 0) => String::new(),
            (files, bytes) => format!("; {files} files and {} in all were there already", bytes_text(bytes)),
        };
        let verified = match verified_files {
            0 => String::new(),
            files => format!("; {files} files were compared with their sources"),
        };
        output::note(format_args!(
            "copied {files} files, {} in {} ({}/s){kept}{verified}",
            bytes_text(bytes),
            span_text(took),
            bytes_text(rate)
        ));
    }
}
