//! Listings under concurrent calls: a name that lasts from the opening to the end is returned exactly once, and no
//! name that did not exist at any time in between.

use super::history::{History, Moment, Record};
use crate::call::{Call, HandleId, RenameHow, WorkerId};
use crate::outcome::Outcome;
use crate::violation::{Rule, Wrong};
use std::collections::BTreeMap;

/// A change that makes a name be there, or not.
struct Change {
    path: String,
    appears: bool,
    begun: Moment,
    ended: Moment,
    /// It may have been made, or not.
    is_doubtful: bool,
}

/// Compares all listings that were read to their end.
pub fn check(history: &History) -> Result<(), Wrong> {
    let changes: Vec<Change> = history.effective().flat_map(changes_of).collect();
    let mut passes: BTreeMap<(WorkerId, HandleId), (Moment, Vec<String>)> = BTreeMap::new();
    for record in history.effective() {
        match (&record.call, &record.outcome) {
            (Call::OpenDirectory { handle, .. }, Outcome::Opened(_)) | (Call::Rewind { handle }, Outcome::Done) => {
                passes.insert((record.who, *handle), (record.begun, Vec::new()));
            }
            (Call::ReadDirectory { handle, .. }, Outcome::Entries(entries)) => {
                let key = (record.who, *handle);
                let Some((begun, told)) = passes.get_mut(&key) else { continue };
                let own = entries.iter().map(|entry| entry.name.clone()).filter(|name| name != "." && name != "..");
                told.extend(own);
                if entries.is_empty() {
                    let directory = record.handle.as_ref().map_or("", |opened| &opened.path);
                    compare(&changes, directory, told, (*begun, record.ended))
                        .map_err(|text| record.wrong(Rule::Listings, &text))?;
                    passes.remove(&key);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn changes_of(record: &Record) -> Vec<Change> {
    if !record.is_done() && !record.is_lost {
        return Vec::new();
    }
    let change = |path: &str, appears: bool, is_certain: bool| Change {
        path: path.to_owned(),
        appears,
        begun: record.begun,
        // The node may still be at work on a lost call.
        ended: if record.is_lost { Moment::MAX } else { record.ended },
        is_doubtful: record.is_lost || !is_certain,
    };
    match &record.call {
        // It was made by then, by this call or before.
        Call::Open { path, flags, .. } if flags.create => vec![change(path, true, true)],
        Call::MakeDirectory { path } => vec![change(path, true, true)],
        Call::Link { to, .. } => vec![change(to, true, true)],
        // Two names of one file both stay.
        Call::Rename { from, to, how: RenameHow::Replace | RenameHow::NoReplace } => {
            vec![change(from, false, false), change(to, true, true)]
        }
        Call::Unlink { path } | Call::RemoveDirectory { path } => vec![change(path, false, true)],
        _ => Vec::new(),
    }
}

fn compare(
    changes: &[Change],
    directory: &str,
    told: &[String],
    (since, until): (Moment, Moment),
) -> Result<(), String> {
    let prefix = if directory == "." { String::new() } else { format!("{directory}/") };
    let mut names: Vec<&str> = changes
        .iter()
        .filter_map(|change| change.path.strip_prefix(&prefix))
        .filter(|name| !name.contains('/'))
        .collect();
    names.sort_unstable();
    names.dedup();
    if let Some(name) = told.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("got entry {name}, which nobody made"));
    }
    for name in names {
        let path = format!("{prefix}{name}");
        let count = told.iter().filter(|entry| *entry == name).count();
        let of_name = || changes.iter().filter(|change| change.path == path);
        let may_vanish = of_name().any(|change| !change.appears && change.begun < until && change.ended > since);
        let appears = of_name().filter(|change| change.appears);
        // There at the beginning: it certainly appeared before, and nothing took it away after that.
        let was_there = appears
            .clone()
            .filter(|change| !change.is_doubtful && change.ended < since)
            .any(|made| !of_name().any(|change| !change.appears && change.ended > made.begun && change.begun < until));
        // There at some time: it may have appeared, and nothing certainly took it away before the beginning.
        let can_be_there = appears.filter(|change| change.begun < until).any(|made| {
            !of_name().any(|change| {
                !change.appears && !change.is_doubtful && change.begun > made.ended && change.ended < since
            })
        });
        if count == 0 && was_there && !may_vanish {
            return Err(format!("the listing ended without {name}, there all the time"));
        }
        if count > 1 && was_there && !may_vanish {
            return Err(format!("got entry {name} {count} times, which was there all the time"));
        }
        if count > 0 && !can_be_there {
            return Err(format!("got entry {name}, which was removed before the listing"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrent::history::Fault;
    use crate::outcome::{Entry, Reply};
    use rustix::io::Errno;

    fn holds(lines: &[(&str, Moment, Moment, Outcome)]) -> bool {
        holds_with(lines, Vec::new())
    }

    fn holds_with(lines: &[(&str, Moment, Moment, Outcome)], faults: Vec<Fault>) -> bool {
        let done = lines.iter().map(|(line, begun, ended, outcome)| {
            let (who, call) = line.split_once(' ').expect("a worker and a call");
            let reply = Reply { outcome: outcome.clone(), begun: *begun, ended: *ended, wall_begun: 0, wall_ended: 0 };
            (who.parse().expect(who), call.parse().expect(call), reply)
        });
        check(&History::new(done.collect(), faults)).is_ok()
    }

    fn entries(names: &[&str]) -> Outcome {
        Outcome::Entries(names.iter().map(|name| Entry { name: (*name).to_owned(), is_directory: false }).collect())
    }

    #[test]
    fn what_lasts_is_told_once_and_what_was_removed_is_not() {
        let listing = |names: &[&str]| {
            holds(&[
                ("a0 open h0 f wronly creat", 1, 2, Outcome::Opened(1)),
                ("a0 open h1 g wronly creat", 3, 4, Outcome::Opened(2)),
                ("a0 open h2 h wronly creat", 5, 6, Outcome::Opened(3)),
                ("a0 unlink h", 7, 8, Outcome::Done),
                ("b0 opendir h0 .", 10, 11, Outcome::Opened(9)),
                ("a0 unlink g", 12, 14, Outcome::Done),
                ("b0 readdir h0 4096", 13, 15, entries(names)),
                ("b0 readdir h0 4096", 16, 17, entries(&[])),
            ])
        };
        assert!(listing(&[".", "..", "f"]) && listing(&["g", "f"]));
        assert!(!listing(&["g"]) && !listing(&["f", "f"]) && !listing(&["f", "h"]) && !listing(&["f", "x"]));
    }

    /// As `spread-4` 28090009 had it.
    #[test]
    fn a_lost_rename_may_be_made_after_its_mount_was_killed() {
        let listing = |names: &[&str], faults: Vec<Fault>| {
            let lines = [
                ("a0 open h0 g wronly creat", 1, 2, Outcome::Opened(1)),
                ("b0 rename g f", 3, 6, Outcome::Failed(Errno::CONNABORTED.raw_os_error())),
                ("n0 open h0 g rdonly creat", 7, 8, Outcome::Opened(1)),
                ("a0 opendir h1 .", 10, 11, Outcome::Opened(9)),
                ("a0 readdir h1 4096", 12, 13, entries(names)),
                ("a0 readdir h1 4096", 14, 15, entries(&[])),
            ];
            holds_with(&lines, faults)
        };
        let killed = vec![Fault { mount: 'b', begun: 5, ended: 9, is_kill: true }];
        assert!(listing(&["f"], killed.clone()) && listing(&["g"], killed.clone()));
        assert!(!listing(&["f"], Vec::new()) && listing(&["g"], Vec::new()) && !listing(&["x"], killed));
    }
}
