//! Random scripts, and how one that differs is made short.

use crate::difference;
use crate::model;
use crate::script::{CONFIG, Change, Fate, LONG, Script, Step};
use std::time::{Duration, Instant};
use weft_sim::kernel::requests::{Access, Errno, NodeId, Notification, OpenFlags, RenameMode};
use weft_sim::kernel::{Call, CallId, Config, Handle};

const PAGE: u64 = 4096;
const PROGRAMS: usize = 3;
/// Runs that a script which differs may cost to be made short.
const ATTEMPTS_MAX: usize = 60;
/// Orders in which the model settles races, to find out whether there is one.
const RACE_SEEDS: u64 = 10;

/// Steele, Lea, Flood 2014.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }
}

/// What a family of scripts does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Names,
    Pages,
    Listings,
    Mappings,
    WriteBack,
}

struct Maker {
    random: Random,
    family: Family,
    steps: Vec<Step>,
    handles: u64,
    open: Vec<u64>,
    directories: Vec<u64>,
    mappings: Vec<u64>,
    held: u64,
}

impl Maker {
    fn name(&mut self) -> String {
        self.random.one_of(&["a", "b", "c"]).to_owned()
    }

    fn path(&mut self) -> Vec<String> {
        let name = self.name();
        match self.random.below(4) {
            0 => vec!["d".to_owned(), name],
            1 => vec!["e".to_owned(), name],
            _ => vec![name],
        }
    }

    fn directory_path(&mut self) -> Vec<String> {
        vec![self.random.one_of(&["d", "e"]).to_owned()]
    }

    fn node(&mut self) -> NodeId {
        2 + self.random.below(6)
    }

    fn offset(&mut self) -> u64 {
        self.random.below(6) * PAGE + self.random.one_of(&[0, 0, 100, 4000])
    }

    fn size(&mut self) -> u64 {
        self.random.one_of(&[10, 100, PAGE, PAGE + 100, 3 * PAGE])
    }

    fn data(&mut self) -> Vec<u8> {
        let value = 2 + self.random.below(200) as u8;
        vec![value; self.size() as usize]
    }

    fn handle(&mut self) -> Handle {
        let open = self.open.clone();
        Handle(if open.is_empty() { 999 } else { self.random.one_of(&open) })
    }

    fn directory(&mut self) -> Handle {
        let open = self.directories.clone();
        Handle(if open.is_empty() { 999 } else { self.random.one_of(&open) })
    }

    fn mapping(&mut self) -> Handle {
        let mapped = self.mappings.clone();
        Handle(if mapped.is_empty() { 999 } else { self.random.one_of(&mapped) })
    }

    fn open(&mut self) -> Call {
        self.handles += 1;
        self.open.push(self.handles);
        let flags = OpenFlags {
            access: Access::ReadWrite,
            create: self.random.one_in(2),
            exclusive: self.family == Family::Names && self.random.one_in(6),
            truncate: self.random.one_in(8),
            append: self.random.one_in(8),
            direct: self.family == Family::Pages && self.random.one_in(8),
        };
        Call::Open { path: self.path(), flags, mode: 0o644, handle: Handle(self.handles) }
    }

    fn name_call(&mut self) -> Call {
        match self.random.below(12) {
            0 => Call::CountLinks { path: self.path() },
            1..4 => Call::Stat { path: self.path() },
            4 | 5 => self.open(),
            6 => Call::Unlink { path: self.path() },
            7 => Call::Link { from: self.path(), to: self.path() },
            8 => Call::Chmod { path: self.path(), mode: 0o600 },
            9 => Call::Fstat { handle: self.handle() },
            _ => {
                let modes = [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = self.random.one_of(&modes);
                Call::Rename { from: self.path(), to: self.path(), mode }
            }
        }
    }

    fn page_call(&mut self) -> Call {
        match self.random.below(10) {
            0..4 => Call::Pread { handle: self.handle(), offset: self.offset(), size: self.size() },
            4..7 => Call::Pwrite { handle: self.handle(), offset: self.offset(), data: self.data() },
            7 => Call::Fstat { handle: self.handle() },
            8 => Call::Ftruncate { handle: self.handle(), size: self.offset() },
            _ => Call::Fsync { handle: self.handle(), data_only: false },
        }
    }

    fn listing_call(&mut self) -> Call {
        match self.random.below(8) {
            0 => {
                self.handles += 1;
                self.directories.push(self.handles);
                let flags = OpenFlags::default();
                Call::Open { path: self.directory_path(), flags, mode: 0, handle: Handle(self.handles) }
            }
            1 => Call::Seekdir { handle: self.directory(), position: self.random.below(4) },
            2 | 3 => self.name_call(),
            _ => {
                let bytes = self.random.one_of(&[60, 100, 4096]);
                Call::Getdents { handle: self.directory(), bytes }
            }
        }
    }

    fn mapping_call(&mut self) -> Call {
        match self.random.below(8) {
            0 => {
                self.handles += 1;
                self.mappings.push(self.handles);
                Call::Map { handle: self.handle(), mapping: Handle(self.handles), writable: true }
            }
            1..3 => Call::Load { mapping: self.mapping(), offset: self.offset(), size: 50 },
            3..5 => Call::Store { mapping: self.mapping(), offset: self.offset(), data: vec![7; 50] },
            5 => Call::Msync { mapping: self.mapping() },
            _ => self.page_call(),
        }
    }

    fn call(&mut self) -> Call {
        if self.random.one_in(6) {
            return self.open();
        }
        match self.family {
            Family::Names => self.name_call(),
            Family::Pages | Family::WriteBack => self.page_call(),
            Family::Listings => self.listing_call(),
            Family::Mappings => self.mapping_call(),
        }
    }

    fn change(&mut self) -> Change {
        let parent = self.random.one_of(&[1, 2, 3]);
        let opens_direct = self.family == Family::Pages || self.family == Family::Mappings;
        match self.random.below(9) {
            0 => Change::Unlink { parent, name: self.name() },
            1 => Change::Create { parent, name: self.name(), content: self.data() },
            2 => Change::Write { node: self.node() + 2, offset: self.offset(), data: self.data() },
            3 => Change::Truncate { node: self.node() + 2, size: self.offset() },
            4 => Change::Rename { parent, name: self.name(), new_parent: 1, new_name: self.name() },
            5 => Change::Negative { entry_ms: self.random.one_of(&[None, Some(LONG)]) },
            6 => Change::Opens {
                direct_io: opens_direct && self.random.one_in(3),
                keep_cache: self.random.one_in(2),
                cache_dir: self.random.one_in(2),
                parallel: self.random.one_in(2),
                passthrough: false,
            },
            _ => {
                let entry_ms = self.random.one_of(&[0, LONG]);
                Change::Timeouts { entry_ms, attributes_ms: self.random.one_of(&[0, LONG]) }
            }
        }
    }

    fn notification(&mut self) -> Notification {
        // To others it is of no use.
        let stores = matches!(self.family, Family::Pages | Family::Mappings);
        match self.random.below(if stores { 8 } else { 6 }) {
            0 | 1 => Notification::InvalidateEntry {
                parent: self.random.one_of(&[1, 2, 3]),
                name: self.name(),
                expire_only: self.random.one_in(2),
            },
            2 => Notification::IncrementEpoch,
            3 => Notification::InvalidateInode { node: self.node(), offset: -1, bytes: 0 },
            4 => Notification::InvalidateInode { node: self.node(), offset: 0, bytes: 0 },
            6 => {
                let (node, offset, data) = (self.node(), self.offset(), self.data());
                Notification::Store { node, offset, data }
            }
            7 => Notification::Grow { node: self.node(), size: self.offset() + 1 },
            _ => Notification::InvalidateInode {
                node: self.node(),
                offset: self.offset() as i64,
                bytes: self.size() as i64,
            },
        }
    }

    fn fate(&mut self) -> Step {
        let kinds: &[&'static str] = match self.family {
            Family::Names => &["lookup", "getattr", "create", "rename", "unlink", "open"],
            Family::Pages | Family::Mappings | Family::WriteBack => &["read", "read", "write", "setattr", "getattr"],
            Family::Listings => &["readdir", "readdir", "lookup", "opendir"],
        };
        let kind = self.random.one_of(kinds);
        let fate = match self.random.below(6) {
            0 => Fate::Fail(self.random.one_of(&[Errno::EIO, Errno::ESTALE, Errno::ENOENT])),
            1 if kind == "read" => Fate::Short(self.random.one_of(&[0, 100, 5000])),
            2 => Fate::HoldRequest,
            _ => Fate::HoldReply,
        };
        self.held += u64::from(matches!(fate, Fate::HoldReply | Fate::HoldRequest));
        Step::Fate { kind, fate }
    }

    fn step(&mut self) -> Step {
        match self.random.below(20) {
            0..12 => Step::Call { program: self.random.below(PROGRAMS as u64) as usize, call: self.call() },
            12..14 => Step::Outside(self.change()),
            14..16 => Step::Notify(self.notification()),
            16 if self.held < 3 => self.fate(),
            _ if self.held > 0 => {
                self.held -= 1;
                Step::Release
            }
            _ => Step::Outside(self.change()),
        }
    }
}

fn make(seed: u64, family: Family, length: usize) -> Script {
    let mut random = Random(seed);
    let config = Config {
        readdirplus: random.one_in(2),
        readdirplus_auto: random.one_in(2),
        auto_inval_data: random.one_in(4),
        explicit_inval_data: !random.one_in(3),
        atomic_o_trunc: !random.one_in(4),
        writeback_cache: family == Family::WriteBack,
        ..CONFIG
    };
    let mut maker = Maker {
        random,
        family,
        steps: Vec::new(),
        handles: 0,
        open: Vec::new(),
        directories: Vec::new(),
        mappings: Vec::new(),
        held: 0,
    };
    for (parent, name) in [(1, "d"), (1, "e")] {
        maker.steps.push(Step::Outside(Change::Mkdir { parent, name: name.to_owned() }));
    }
    for (parent, name) in [(1, "a"), (1, "b"), (2, "a"), (3, "b")] {
        let content = vec![1; 5 * PAGE as usize + 77];
        maker.steps.push(Step::Outside(Change::Create { parent, name: name.to_owned(), content }));
    }
    maker.steps.push(Step::Outside(Change::Timeouts { entry_ms: LONG, attributes_ms: LONG }));
    for _ in 0..length {
        let step = maker.step();
        maker.steps.push(step);
    }
    playable(Script { config, steps: maker.steps })
}

/// Leaves out calls of programs that are still in one, and steps after which it depends on a race what happens: the
/// rest has to be the same in the real kernel each time.
fn playable(script: Script) -> Script {
    let mut kept = Script { config: script.config, steps: Vec::new() };
    let mut busy: Vec<(usize, CallId)> = Vec::new();
    for step in script.steps {
        if let Step::Call { program, .. } = &step
            && busy.iter().any(|(other, _)| other == program)
        {
            continue;
        }
        kept.steps.push(step.clone());
        let run = model::run(&kept);
        if (0..RACE_SEEDS).any(|seed| model::run(&with_seed(&kept, seed)) != run) {
            kept.steps.pop();
            continue;
        }
        if let Step::Call { program, .. } = step {
            busy.push((program, CallId(kept.steps.len() as u64 - 1)));
        }
        let returned: Vec<CallId> =
            run[..kept.steps.len()].iter().flat_map(|events| events.returned.iter().map(|(id, _)| *id)).collect();
        busy.retain(|(_, id)| !returned.contains(id));
    }
    kept
}

fn with_seed(script: &Script, seed: u64) -> Script {
    Script { config: Config { seed: Some(seed), ..script.config }, steps: script.steps.clone() }
}

/// How long a script is made shorter: one that waits in vain for an event takes a minute for each attempt.
const SHORTEN_FOR: Duration = Duration::from_secs(240);

/// Removes steps while the script still differs.
fn shorten(script: &Script) -> Script {
    let mut shortest = script.clone();
    let mut attempts = 0;
    let begun = Instant::now();
    let mut chunk = shortest.steps.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < shortest.steps.len() && attempts < ATTEMPTS_MAX && begun.elapsed() < SHORTEN_FOR {
            let mut shorter = shortest.clone();
            shorter.steps.drain(at..(at + chunk).min(shortest.steps.len()));
            let shorter = playable(shorter);
            attempts += 1;
            if differs(&shorter) {
                shortest = shorter;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    shortest
}

/// Whether a script differs each time. A machine that is busy may be late once.
fn differs(script: &Script) -> bool {
    (0..3).all(|_| difference(script).is_some())
}

fn explore(family: Family, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let script = make(seed, family, 25);
        if differs(&script) {
            let whole = difference(&script);
            let shortest = shorten(&script);
            let text = difference(&shortest).or(whole).unwrap_or_default();
            panic!("{family:?} {seed}: model and kernel differ with {:?}:\n{text}", shortest.config);
        }
    }
}

/// Scripts of each family; more with `WEFT_KERNEL_MODEL_SEEDS`.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("WEFT_KERNEL_MODEL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let from = std::env::var("WEFT_KERNEL_MODEL_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    from..from + count
}

#[test]
fn random_scripts_of_names() {
    explore(Family::Names, seeds());
}

#[test]
fn random_scripts_of_pages() {
    explore(Family::Pages, seeds());
}

#[test]
fn random_scripts_of_listings() {
    explore(Family::Listings, seeds());
}

#[test]
fn random_scripts_of_mappings() {
    explore(Family::Mappings, seeds());
}

#[test]
fn random_scripts_of_write_back() {
    explore(Family::WriteBack, seeds());
}
