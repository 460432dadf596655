//! Random concurrent scripts: few files under few names, each worker on its own course, and faults.

use crate::call::{Access, Call, HandleId, OpenFlags, RenameHow, WorkerId};
use crate::generate::Choice;
use crate::mode::Mode;
use crate::random::Random;
use crate::script::{Script, Step};
use std::collections::BTreeSet;

const FILES: [&str; 4] = ["f", "g", "d/f", "d/g"];
/// Made and removed, with nothing in it.
const EMPTY_DIRECTORY: &str = "x";
/// There all the time.
const LASTING: u64 = 12;
const HANDLES: u64 = 2;
const PAGE: u64 = 4096;
/// Each written value is another one, so that a byte tells which write it is of.
const VALUES: u64 = 255;

/// Makes the script of a seed: setup, an overlapping part of `calls` calls, and a look at everything from everywhere.
pub fn script(seed: u64, mode: &Mode, choice: &Choice, calls: usize, with_faults: bool) -> Script {
    let workers = &choice.workers;
    let mut random = Random::new(seed);
    let Some(first) = workers.first().copied() else { return Script::default() };
    let mut steps = vec![Step::Call(first, Call::MakeDirectory { path: "d".to_owned() })];
    for number in 0..LASTING {
        let path = format!("s{number}");
        steps.extend(make(first, path));
    }
    steps.push(Step::Barrier);
    let mut courses: Vec<Course> = workers.iter().map(|who| Course { who: *who, open: BTreeSet::new() }).collect();
    let mut values = 0;
    for _ in 0..calls {
        let index = random.below(courses.len() as u64) as usize;
        steps.push(courses[index].next(choice, &mut random, &mut values));
    }
    if with_faults && mode.weft.is_some() {
        add_faults(&mut steps, &mut random, mode, workers);
    }
    steps.push(Step::Barrier);
    for course in &courses {
        steps.extend(course.open.iter().map(|handle| Step::Call(course.who, Call::Close { handle: *handle })));
    }
    steps.push(Step::Barrier);
    for who in workers {
        for path in FILES {
            steps.extend(look_at(*who, path));
        }
        steps.extend(list(*who, "."));
        steps.extend(list(*who, "d"));
    }
    Script { is_concurrent: true, repeat: 1, modes: Vec::new(), steps }
}

fn make(who: WorkerId, path: String) -> [Step; 2] {
    let flags = OpenFlags { create: true, ..OpenFlags::default() };
    [
        Step::Call(who, Call::Open { handle: 0, path, access: Access::Write, flags }),
        Step::Call(who, Call::Close { handle: 0 }),
    ]
}

fn look_at(who: WorkerId, path: &str) -> Vec<Step> {
    let (handle, path) = (0, path.to_owned());
    let flags = OpenFlags::default();
    let calls = [
        Call::Stat { path: path.clone() },
        Call::Open { handle, path, access: Access::Read, flags },
        Call::StatHandle { handle },
        Call::ReadAt { handle, offset: 0, bytes: 64 * PAGE },
        Call::Close { handle },
    ];
    calls.into_iter().map(|call| Step::Call(who, call)).collect()
}

fn list(who: WorkerId, path: &str) -> Vec<Step> {
    let (handle, path) = (0, path.to_owned());
    let mut calls = vec![Call::OpenDirectory { handle, path }];
    calls.extend((0..3).map(|_| Call::ReadDirectory { handle, bytes: 4096 }));
    calls.push(Call::Close { handle });
    calls.into_iter().map(|call| Step::Call(who, call)).collect()
}

/// What one worker does.
struct Course {
    who: WorkerId,
    /// Handles that are open unless their open failed.
    open: BTreeSet<HandleId>,
}

impl Course {
    fn next(&mut self, choice: &Choice, random: &mut Random, values: &mut u64) -> Step {
        let handle = random.below(HANDLES) as HandleId;
        let call = match random.below(10) {
            0..3 => on_names(choice, random),
            _ if self.open.insert(handle) => open(handle, choice, random),
            _ => self.on_handle(handle, choice, random, values),
        };
        Step::Call(self.who, call)
    }

    fn on_handle(&mut self, handle: HandleId, choice: &Choice, random: &mut Random, values: &mut u64) -> Call {
        let (offset, bytes) = range(random);
        match random.below(14) {
            0..2 => {
                self.open.remove(&handle);
                Call::Close { handle }
            }
            2..6 if *values < VALUES => {
                *values += 1;
                Call::WriteAt { handle, offset, bytes, value: *values as u8 }
            }
            6 if choice.has("sizes") => Call::TruncateHandle { handle, size: offset },
            7 if choice.has("sync") => Call::Sync { handle },
            8 => Call::StatHandle { handle },
            9 if choice.has("mmap") && !self.who.is_native() => Call::MapRead { handle, offset: 0, bytes: PAGE },
            _ => Call::ReadAt { handle, offset, bytes: 4 * bytes },
        }
    }
}

fn range(random: &mut Random) -> (u64, u64) {
    match random.below(3) {
        0 => (random.below(16) * PAGE, PAGE * (1 + random.below(4))),
        1 => (random.below(16 * PAGE), 1 + random.below(2 * PAGE)),
        _ => (random.below(64), 1 + random.below(64)),
    }
}

fn open(handle: HandleId, choice: &Choice, random: &mut Random) -> Call {
    let path = (*random.choose(&FILES)).to_owned();
    let access = *random.choose(&[Access::Read, Access::ReadWrite, Access::ReadWrite]);
    let flags = OpenFlags {
        create: random.below(3) > 0,
        exclusive: false,
        truncate: choice.has("sizes") && access != Access::Read && random.one_in(10),
        sync: choice.has("sync") && random.one_in(12),
        ..OpenFlags::default()
    };
    let flags = OpenFlags { exclusive: flags.create && random.one_in(6), ..flags };
    Call::Open { handle, path, access, flags }
}

fn on_names(choice: &Choice, random: &mut Random) -> Call {
    let mut path = || (*random.choose(&FILES)).to_owned();
    let (path, other) = (path(), path());
    let how = *random.choose(&[RenameHow::Replace, RenameHow::Replace, RenameHow::NoReplace, RenameHow::Exchange]);
    match random.below(12) {
        _ if !choice.has("names") => Call::Stat { path },
        0..4 => Call::Stat { path },
        4..7 => Call::Rename { from: path, to: other, how },
        7 => Call::Link { from: path, to: other },
        8..10 => Call::Unlink { path },
        10 => Call::MakeDirectory { path: EMPTY_DIRECTORY.to_owned() },
        _ => Call::RemoveDirectory { path: EMPTY_DIRECTORY.to_owned() },
    }
}

/// Puts a fault beside the calls: a mount is killed, or paused (also beyond its session's end), or a node is paused.
fn add_faults(steps: &mut Vec<Step>, random: &mut Random, mode: &Mode, workers: &[WorkerId]) {
    let mut mounts: Vec<char> = workers.iter().filter(|who| !who.is_native()).map(|who| who.mount).collect();
    mounts.dedup();
    let (Some(weft), false) = (&mode.weft, mounts.is_empty()) else { return };
    let mount = *random.choose(&mounts);
    steps.push(Step::Wait { milliseconds: random.below(20) });
    let fault = match random.below(10) {
        0..4 => Step::Kill { mount },
        4 => Step::Stop { mount, milliseconds: 11_000 + random.below(15_000) },
        5 | 6 => {
            Step::StopNode { node: random.below(u64::from(weft.nodes)) as usize, milliseconds: 1 + random.below(2_000) }
        }
        _ => Step::Stop { mount, milliseconds: 1 + random.below(1_500) },
    };
    steps.push(fault);
}
