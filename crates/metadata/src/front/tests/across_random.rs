//! Random operations over several shards, with lost, doubled and late messages.

use super::across::{Several, ln, make_directory, mv, rm, with_guess};
use super::harness::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_protocol::message::shard::*;
use weft_protocol::*;

/// Random operations of three sessions at once, with lost, doubled and late messages: in the end the names are what
/// some order of them makes, and each inode has as many links as names.
#[test]
fn whatever_happens_links_are_counted_and_nothing_stays_locked() {
    for seed in 0..400u64 {
        let mut random = Random(seed * 2 + 1);
        let mut several = Several::new();
        let directories = several.directories.clone();
        let mut files = Vec::new();
        for directory in &directories {
            files.push(several.make((*directory, "a")));
        }
        for _ in 0..30 {
            for session in [A, B, C] {
                let mut place = || (directories[random.below(4)], ["a", "b"][random.below(2)]);
                let (from, to) = (place(), place());
                let request = match random.below(5) {
                    0 => ln(files[random.below(4)], to),
                    1 => rm(from),
                    2 => mv(from, to, RenameMode::Exchange),
                    3 => mv(from, to, RenameMode::NoReplace),
                    _ => mv(from, to, RenameMode::Replace),
                };
                several.begin(session, request);
            }
            several.shuffle(&mut random);
        }
        several.come_to_rest(seed);
        several.check_links(seed);
    }
}

/// The same of directories, which are moved into each other, too: in the end each has one name, and is below `/`.
#[test]
fn whatever_happens_directories_are_in_one_place_and_below_the_root() {
    for seed in 0..300u64 {
        let mut random = Random(seed * 2 + 1);
        let mut several = Several::new();
        let mut parents = several.directories.clone();
        for (index, text) in ["a", "b", "c", "d", "a", "b", "c", "d"].into_iter().enumerate() {
            let (parent, shard) = (parents[index], u16::try_from(random.below(4)).expect("a small number"));
            parents.push(make_directory(&mut several, (parent, text), shard));
        }
        for _ in 0..30 {
            for session in [A, B, C] {
                let mut place = || (parents[random.below(12)], ["a", "b", "c", "d"][random.below(4)]);
                let (from, to) = (place(), place());
                let guess = parents[random.below(12)];
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][random.below(3)];
                let request = match random.below(8) {
                    0 => rmdir(from.0, from.1),
                    1 | 2 => with_guess(mv(from, to, mode), (guess, FileKind::Directory)),
                    _ => mv(from, to, mode),
                };
                several.begin(session, request);
            }
            several.shuffle(&mut random);
        }
        several.come_to_rest(seed);
        several.check_tree(&parents, seed);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % bound as u64).expect("below a usize")
    }
}

impl Several {
    /// Some of what is on its way arrives, in any order; some is lost, or comes twice.
    fn shuffle(&mut self, random: &mut Random) {
        for _ in 0..random.below(6) {
            let mut calls = self.take_calls();
            while !calls.is_empty() {
                let call = calls.swap_remove(random.below(calls.len()));
                match random.below(12) {
                    0 => {}
                    1 => self.unreachable(&call),
                    2 => {
                        self.deliver(call.clone());
                        self.unreachable(&call);
                    }
                    3 => {
                        self.deliver(call.clone());
                        self.deliver(call);
                    }
                    _ => self.deliver(call),
                }
            }
            if random.below(3) > 0 {
                self.deliver_replies();
            }
            if random.below(3) > 0 {
                self.worlds.iter_mut().for_each(|world| world.answer_recalls(LeaseMode::None));
            }
        }
        self.worlds.iter_mut().for_each(|world| world.pass(500, &[A, B, C]));
    }

    fn come_to_rest(&mut self, seed: u64) {
        for _ in 0..200 {
            self.worlds.iter_mut().for_each(|world| world.pass(500, &[A, B, C]));
            self.settle();
        }
        let stuck = self.worlds.iter().map(|world| world.shard.stuck()).collect::<Vec<_>>();
        assert!(self.has_no_locks(), "seed {seed}: {stuck:?}");
    }

    /// Each of these is found once below `/`, or gone.
    fn check_tree(&mut self, directories: &[InodeNumber], seed: u64) {
        let (mut seen, mut left) = (BTreeSet::new(), vec![(ROOT, ROOT)]);
        while let Some((directory, parent)) = left.pop() {
            assert!(seen.insert(directory), "seed {seed}: {directory} has two names");
            let ShardAnswer::Page(page) = self.ok(B, list(directory, None, 100)) else { panic!("a page") };
            assert_eq!(page.parent, parent, "seed {seed}: what {directory} is in");
            let below = page.entries.iter().map(|entry| (entry.inode, directory));
            left.extend(below);
            let links = self.links(directory);
            assert_eq!(usize::try_from(links).expect("small"), 2 + page.entries.len(), "seed {seed}: {directory}");
        }
        for directory in directories {
            let is_there = self.call(B, stat(*directory)).is_ok_and(|found| attributes(&found).links > 0);
            assert_eq!(is_there, seen.contains(directory), "seed {seed}: {directory}");
        }
    }

    fn check_links(&mut self, seed: u64) {
        let mut names: BTreeMap<InodeNumber, u32> = BTreeMap::new();
        for directory in self.directories.clone() {
            for text in ["a", "b"] {
                if let Some(inode) = self.names((directory, text)) {
                    *names.entry(inode).or_default() += 1;
                }
            }
        }
        for (inode, count) in names {
            assert_eq!(self.links(inode), count, "seed {seed}: names of {inode}");
        }
    }
}
