use super::*;

const DIRECTORY: InodeNumber = InodeNumber::from_raw(7);
const VALID_MS: u64 = 8000;

fn name(number: usize) -> Name {
    Name::new(format!("n{number}").as_bytes()).expect("a name")
}

fn entry(number: usize) -> LeaseKey {
    LeaseKey::Entry(DIRECTORY, name(number).hash64())
}

fn tell(view: &mut KernelView, number: usize, now_ms: u64) -> u64 {
    let ticket = view.begin();
    let told = view.tell_name(&ticket, DIRECTORY, &name(number), VALID_MS, now_ms);
    view.end(ticket);
    told
}

#[test]
fn a_moved_dentry_is_found_by_its_new_name() {
    let mut view = KernelView::new();
    assert_eq!(tell(&mut view, 0, 0), VALID_MS);
    let ticket = view.begin_change(&[DIRECTORY]);
    assert!(!view.renamed(&ticket, (DIRECTORY, &name(0)), (DIRECTORY, &name(1)), false, true));
    view.end(ticket);
    assert_eq!(view.names_under(entry(0)), [name(0)], "until the kernel has moved it");
    assert_eq!(view.names_under(entry(1)), [name(1)]);
    let mark = view.mark();
    view.dropped(DIRECTORY, &name(0), mark);
    assert_eq!(view.names_under(LeaseKey::Directory(DIRECTORY)), [name(1)]);
    view.dropped(DIRECTORY, &name(1), mark);
    assert_eq!(view.counts(), (0, 0));
}

#[test]
fn the_names_of_an_inode_are_those_that_the_kernel_may_use() {
    let mut view = KernelView::new();
    let inode = InodeNumber::from_raw(9);
    for number in 0..4 {
        tell(&mut view, number, 0);
    }
    for number in [0, 1, 5] {
        view.name_is_of((DIRECTORY, &name(number)), inode);
    }
    let sorted = |view: &KernelView| {
        let mut names: Vec<_> = view.names_of(inode).into_iter().map(|(_, name)| name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(&view), [name(0), name(1)]);
    let ticket = view.begin_change(&[DIRECTORY]);
    view.renamed(&ticket, (DIRECTORY, &name(1)), (DIRECTORY, &name(4)), false, true);
    view.end(ticket);
    assert_eq!(sorted(&view), [name(0), name(1), name(4)], "the kernel may not have moved it yet");
    tell(&mut view, 0, 0);
    assert_eq!(sorted(&view), [name(1), name(4)], "the name was told as absent");
}

#[test]
fn a_moved_dentry_without_a_lease_has_to_go() {
    let mut view = KernelView::new();
    tell(&mut view, 0, 0);
    let (from, to) = (name(0), name(1));
    let ticket = view.begin_change(&[DIRECTORY]);
    assert!(view.renamed(&ticket, (DIRECTORY, &from), (DIRECTORY, &to), false, false), "no lease");
    view.end(ticket);
    let ticket = view.begin_change(&[DIRECTORY]);
    view.recall(entry(0));
    assert!(view.renamed(&ticket, (DIRECTORY, &to), (DIRECTORY, &from), false, true), "a lease recalled meanwhile");
    view.end(ticket);
    let ticket = view.begin_change(&[DIRECTORY]);
    assert!(!view.renamed(&ticket, (DIRECTORY, &name(2)), (DIRECTORY, &name(3)), false, false), "nothing was told");
    view.end(ticket);
}

#[test]
fn a_recall_takes_what_earlier_requests_would_tell() {
    let mut view = KernelView::new();
    let inode = InodeNumber::from_raw(9);
    let (early, place) = (view.begin(), name(0));
    view.recall(entry(0));
    view.recall(LeaseKey::Attributes(inode));
    let late = view.begin();
    assert_eq!(view.tell_name(&early, DIRECTORY, &place, VALID_MS, 0), 0);
    assert_eq!(view.tell_attributes(&early, inode, None, VALID_MS, 0), 0);
    assert_eq!(view.tell_name(&early, DIRECTORY, &name(1), VALID_MS, 0), VALID_MS, "another name");
    assert_eq!(view.tell_name(&late, DIRECTORY, &place, VALID_MS, 0), VALID_MS);
    assert_eq!(view.tell_attributes(&late, inode, Some((DIRECTORY, &place)), VALID_MS, 0), VALID_MS);
    assert_eq!(view.place(inode), Some((DIRECTORY, place)));
    view.recall(LeaseKey::Names(DIRECTORY));
    assert_eq!(view.tell_name(&late, DIRECTORY, &name(2), VALID_MS, 0), 0, "all names");
    let last = view.begin();
    view.recall(LeaseKey::Directory(DIRECTORY));
    assert_eq!(view.tell_name(&last, DIRECTORY, &name(2), VALID_MS, 0), 0, "the whole directory");
    for ticket in [early, late, last] {
        view.end(ticket);
    }
    assert_eq!(tell(&mut view, 0, 0), VALID_MS);
}

#[test]
fn what_is_told_after_a_notification_was_sent_stays_recorded() {
    let mut view = KernelView::new();
    tell(&mut view, 0, 0);
    let mark = view.mark();
    tell(&mut view, 0, 0);
    view.dropped(DIRECTORY, &name(0), mark);
    assert_eq!(view.names_under(entry(0)), [name(0)]);
    view.epoch_incremented(mark);
    assert_eq!(view.names_under(entry(0)), [name(0)]);
    let mark = view.mark();
    view.epoch_incremented(mark);
    assert_eq!(view.counts(), (0, 0));
}

#[test]
fn a_name_that_is_moved_to_a_place_after_a_notification_dropped_what_was_there_stays_recorded() {
    let mut view = KernelView::new();
    tell(&mut view, 0, 0);
    tell(&mut view, 1, 0);
    let mark = view.mark();
    // The kernel drops the one name, and moves the other one there before the record hears of it.
    let ticket = view.begin_change(&[DIRECTORY]);
    assert!(!view.renamed(&ticket, (DIRECTORY, &name(0)), (DIRECTORY, &name(1)), false, true));
    view.end(ticket);
    view.dropped(DIRECTORY, &name(1), mark);
    assert_eq!(view.names_under(entry(1)), [name(1)]);
}

#[test]
fn an_inode_may_be_told_of_until_the_requests_of_that_moment_have_ended() {
    let mut view = KernelView::new();
    let [inode, other] = [8, 9].map(InodeNumber::from_raw);
    assert!(!view.may_tell(inode, 1), "nothing is in flight");
    let (first, second) = (view.begin(), view.begin());
    assert!(view.may_tell(inode, 5));
    let third = view.begin();
    assert_eq!(view.end(second), []);
    assert!(view.may_tell(other, 6));
    assert_eq!(view.end(first), [(inode, 5)]);
    let fourth = view.begin();
    assert!(view.may_tell(other, 7), "asked once more");
    assert_eq!(view.end(third), []);
    assert_eq!(view.end(fourth), [(other, 6)], "what replies up to the first question have told");
    assert!(!view.may_tell(inode, 8));
}

#[test]
fn a_listing_in_flight_is_not_covered_by_the_epoch() {
    let mut view = KernelView::new();
    let ticket = view.begin();
    view.tell_listed(&ticket, DIRECTORY, &name(0), VALID_MS, 0);
    view.end(ticket);
    assert!(!view.is_settled(DIRECTORY));
    let mark = view.mark();
    view.epoch_incremented(mark);
    assert_eq!(view.names_under(entry(0)), [name(0)]);
    let ticket = view.begin_change(&[DIRECTORY]);
    assert!(view.is_settled(DIRECTORY), "a change has the lock that the listing had");
    view.end(ticket);
    view.epoch_incremented(mark);
    assert_eq!(view.counts(), (0, 0));
}

#[test]
fn records_end_with_their_time_and_are_bounded() {
    let mut view = KernelView::new();
    for number in 0..NAMES_MAX + 10 {
        assert_eq!(tell(&mut view, number, 0) > 0, number < NAMES_MAX, "{number}");
    }
    assert_eq!(view.counts().0, NAMES_MAX);
    assert_eq!(tell(&mut view, 0, VALID_MS), VALID_MS, "it has a record already");
    tell(&mut view, NAMES_MAX, VALID_MS + SLACK_MS);
    assert_eq!(view.counts().0, 2);
    for _ in 0..5 * NAMES_MAX {
        tell(&mut view, 0, VALID_MS + SLACK_MS);
    }
    assert!(view.name_ends.len() <= 4 * NAMES_MAX + 1, "{}", view.name_ends.len());
    let ticket = view.begin();
    for inode in 0..INODES_MAX as u64 + 10 {
        let told = view.tell_attributes(&ticket, InodeNumber::from_raw(inode), None, VALID_MS, 0);
        assert_eq!(told > 0, inode < INODES_MAX as u64, "{inode}");
    }
    view.end(ticket);
    view.forgotten(InodeNumber::from_raw(3));
    assert_eq!(view.counts().1, INODES_MAX - 1);
}

/// A kernel's dentries, requests in flight and the directory's lock, against a shard that another mount uses too.
mod model {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const NAMES: usize = 2;
    /// Requests in flight, so that the directory's lock is free now and then.
    const REQUESTS_MAX: usize = 3;

    /// What a name stands for; `None`: it is not there.
    type Target = Option<u64>;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Operation {
        Lookup(usize),
        /// Of a dentry that is there; takes no lock. The dentry may be moved meanwhile.
        Revalidate {
            dentry: u64,
            name: usize,
        },
        Listing,
        Create(usize),
        Unlink(usize),
        Rename {
            from: usize,
            to: usize,
            exchange: bool,
        },
    }

    impl Operation {
        fn is_change(self) -> bool {
            matches!(self, Operation::Create(_) | Operation::Unlink(_) | Operation::Rename { .. })
        }

        fn locks(self) -> bool {
            !matches!(self, Operation::Revalidate { .. })
        }
    }

    #[derive(Debug)]
    struct Request {
        operation: Operation,
        /// The kernel's epoch at its beginning.
        epoch: u64,
        ticket: Option<Ticket>,
        /// What the shard answered, and whether a lease covers it. `None` outside: not served yet.
        served: Option<Vec<(usize, Target, bool)>>,
        /// With the times that the reply tells: written to the kernel.
        reply: Option<Vec<(usize, Target, bool)>>,
    }

    #[derive(Clone, Debug)]
    struct Dentry {
        number: u64,
        target: Target,
        valid: bool,
        epoch: u64,
    }

    /// A change of another mount that waits for this one's answer.
    #[derive(Debug)]
    struct Foreign {
        name: usize,
        to_drop: Vec<Name>,
        mark: u64,
    }

    #[derive(Default)]
    struct Model {
        view: KernelView,
        truth: BTreeMap<usize, u64>,
        leases: BTreeSet<usize>,
        foreign: Option<Foreign>,
        dentries: BTreeMap<usize, Dentry>,
        epoch: u64,
        latest: u64,
        requests: Vec<Request>,
        has_epoch: bool,
        increments: u64,
        notifications: u64,
    }

    impl Model {
        fn number(&mut self) -> u64 {
            self.latest += 1;
            self.latest
        }

        fn begin(&mut self, operation: Operation) {
            let held = |request: &Request| request.operation.locks();
            let excluded = if operation.is_change() {
                self.requests.iter().any(held)
            } else {
                operation.locks() && self.requests.iter().any(|request| request.operation.is_change())
            };
            if excluded || self.requests.len() == REQUESTS_MAX {
                return;
            }
            let epoch = self.epoch;
            self.requests.push(Request { operation, epoch, ticket: None, served: None, reply: None });
        }

        /// The request reaches the mount, which asks the shard.
        fn serve(&mut self, index: usize) {
            let operation = self.requests[index].operation;
            let ticket = if operation.is_change() { self.view.begin_change(&[DIRECTORY]) } else { self.view.begin() };
            let new = self.number();
            let mut told = Vec::new();
            let mut names = vec![];
            match operation {
                Operation::Lookup(name) | Operation::Revalidate { name, .. } => names.push(name),
                Operation::Listing => names.extend(self.truth.keys().copied()),
                Operation::Create(name) => {
                    self.truth.entry(name).or_insert(new);
                    names.push(name);
                }
                Operation::Unlink(name) => drop(self.truth.remove(&name)),
                Operation::Rename { from, to, exchange } => {
                    let (moved, replaced) = (self.truth.remove(&from), self.truth.remove(&to));
                    moved.map(|inode| self.truth.insert(to, inode));
                    replaced.filter(|_| exchange).map(|inode| self.truth.insert(from, inode));
                    names.push(to);
                    names.extend(exchange.then_some(from));
                }
            }
            for name in names {
                let claimed = self.foreign.as_ref().is_some_and(|foreign| foreign.name == name);
                if !claimed {
                    self.leases.insert(name);
                }
                told.push((name, self.truth.get(&name).copied(), self.leases.contains(&name)));
            }
            (self.requests[index].ticket, self.requests[index].served) = (Some(ticket), Some(told));
        }

        /// The mount writes its reply.
        fn reply(&mut self, index: usize) {
            let operation = self.requests[index].operation;
            let Some(ticket) = self.requests[index].ticket.take() else { return };
            let mut told = self.requests[index].served.clone().unwrap_or_default();
            match operation {
                Operation::Rename { from, to, exchange } => {
                    let covered = told.iter().all(|(name, _, leased)| *leased && self.leases.contains(name));
                    let (from, to) = ((DIRECTORY, &name(from)), (DIRECTORY, &name(to)));
                    if self.view.renamed(&ticket, from, to, exchange, covered) {
                        self.increment_epoch();
                    }
                }
                Operation::Unlink(at) => self.view.removed(DIRECTORY, &name(at)),
                _ => {
                    for (at, _, valid) in &mut told {
                        let valid_ms = if *valid { VALID_MS } else { 0 };
                        let listed = operation == Operation::Listing;
                        let tell = if listed { KernelView::tell_listed } else { KernelView::tell_name };
                        *valid = tell(&mut self.view, &ticket, DIRECTORY, &name(*at), valid_ms, 0) > 0;
                    }
                }
            }
            self.view.end(ticket);
            self.requests[index].reply = Some(told);
        }

        /// The kernel processes the reply.
        fn process(&mut self, index: usize) {
            let Request { operation, epoch, reply, .. } = self.requests.swap_remove(index);
            let told = reply.expect("written");
            match operation {
                Operation::Revalidate { dentry, .. } => {
                    let Some((_, target, valid)) = told.first().copied() else { return };
                    let Some((at, known)) = self.dentries.iter_mut().find(|(_, known)| known.number == dentry) else {
                        return;
                    };
                    if known.target != target || target.is_none() {
                        let at = *at;
                        self.dentries.remove(&at);
                    } else {
                        known.valid = valid;
                    }
                }
                Operation::Unlink(name) => drop(self.dentries.remove(&name)),
                Operation::Rename { from, to, exchange } => {
                    let (moved, replaced) = (self.dentries.remove(&from), self.dentries.remove(&to));
                    moved.map(|dentry| self.dentries.insert(to, dentry));
                    replaced.filter(|_| exchange).map(|dentry| self.dentries.insert(from, dentry));
                }
                Operation::Lookup(_) | Operation::Create(_) | Operation::Listing => {
                    // A listing's entries have the epoch of now.
                    let epoch = if operation == Operation::Listing { self.epoch } else { epoch };
                    for (name, target, valid) in told {
                        let number = self.number();
                        self.dentries.insert(name, Dentry { number, target, valid, epoch });
                    }
                }
            }
        }

        fn increment_epoch(&mut self) {
            let mark = self.view.mark();
            self.epoch += 1;
            self.increments += 1;
            self.view.epoch_incremented(mark);
        }

        fn begin_foreign(&mut self, at: usize) {
            if self.foreign.is_none() {
                self.foreign = Some(Foreign { name: at, to_drop: Vec::new(), mark: 0 });
                if self.leases.remove(&at) {
                    self.view.recall(entry(at));
                    let (to_drop, mark) = (self.view.names_under(entry(at)), self.view.mark());
                    self.foreign = Some(Foreign { name: at, to_drop, mark });
                }
            }
        }

        /// The notification gets the lock, or the epoch is incremented; then the recall is answered, and the other
        /// mount's change done.
        fn go_on_foreign(&mut self) {
            let Some(foreign) = &mut self.foreign else { return };
            if let Some(name_to_drop) = foreign.to_drop.pop() {
                if !self.requests.iter().any(|request| request.operation.locks()) {
                    let (at, mark) = (foreign.name, foreign.mark);
                    self.dentries.remove(&at);
                    self.notifications += 1;
                    self.view.dropped(DIRECTORY, &name_to_drop, mark);
                } else if self.has_epoch && self.view.is_settled(DIRECTORY) {
                    foreign.to_drop.clear();
                    self.increment_epoch();
                } else {
                    foreign.to_drop.push(name_to_drop);
                    return;
                }
            }
            let at = self.foreign.take().expect("it is there").name;
            let new = self.number();
            if self.truth.remove(&at).is_none() || new.is_multiple_of(2) {
                self.truth.insert(at, new);
            }
            self.check(at);
        }

        /// Whether a program that looks a name up is told what was true after the other mount's change.
        fn check(&self, at: usize) {
            if let Some(dentry) = self.dentries.get(&at)
                && dentry.valid
                && dentry.epoch >= self.epoch
            {
                assert_eq!(
                    dentry.target,
                    self.truth.get(&at).copied(),
                    "n{at} is stale: {dentry:?}, {:?}",
                    self.requests
                );
            }
        }
    }

    fn run(seed: u64, has_epoch: bool, steps: usize) -> (u64, u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below
        };
        let mut model = Model { has_epoch, ..Model::default() };
        for _ in 0..steps {
            let (one, other) = (random(NAMES), random(NAMES));
            match random(12) {
                0 => model.begin(Operation::Lookup(one)),
                1 => {
                    if let Some(dentry) = model.dentries.get(&one).filter(|dentry| dentry.target.is_some()) {
                        let dentry = dentry.number;
                        model.begin(Operation::Revalidate { dentry, name: one });
                    }
                }
                2 => model.begin(Operation::Listing),
                3 => model.begin(Operation::Create(one)),
                4 => model.begin(Operation::Unlink(one)),
                5 | 6 if one != other && model.truth.contains_key(&one) => {
                    let exchange = random(3) == 0 && model.truth.contains_key(&other);
                    model.begin(Operation::Rename { from: one, to: other, exchange });
                }
                7 => model.begin_foreign(one),
                8 => model.go_on_foreign(),
                _ if model.requests.is_empty() => {}
                _ => {
                    let index = random(model.requests.len());
                    let request = &model.requests[index];
                    if request.served.is_none() {
                        model.serve(index);
                    } else if request.reply.is_none() {
                        model.reply(index);
                    } else {
                        model.process(index);
                    }
                }
            }
            let changes = |request: &Request| request.operation.is_change() && request.served.is_some();
            if model.foreign.is_none() && !model.requests.iter().any(changes) {
                (0..NAMES).for_each(|at| model.check(at));
            }
        }
        (model.notifications, model.increments)
    }

    #[test]
    fn no_name_that_another_mount_has_changed_is_believed() {
        for has_epoch in [true, false] {
            let counts = (0..300).map(|seed| run(seed, has_epoch, 3000));
            let (notifications, increments) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            assert!(notifications > 500 && increments > 500, "{notifications} {increments}");
        }
    }
}
