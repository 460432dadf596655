//! Threads that have the kernel drop pages which another client is about to change.
//!
//! One for each node that asks: what one node's pages wait for does not hold up those of another. They take no lock
//! of the client (`weft_client_core`, `page_drops.rs`), and end with the listener.

use crate::block_on::{block_on, lock};
use crate::native::NativeShell;
use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use weft_client_core::Files;
use weft_protocol::message::Message;
use weft_protocol::message::recall::DropPages;
use weft_protocol::{InodeNumber, NodeId, ObjectId};
use weft_transport::ControlConnection;

type Connection = Arc<Mutex<ControlConnection>>;
/// What is being dropped: what is asked again is not dropped twice.
type Working = Arc<Mutex<BTreeSet<(ObjectId, u64)>>>;

enum Job {
    /// What a node has asked for, and where it is answered.
    Asked(DropPages, Connection),
    /// All pages of these files.
    Unheard(BTreeSet<InodeNumber>),
}

/// See the module.
pub(crate) struct PageDrops {
    files: Weak<Files<NativeShell>>,
    threads: HashMap<NodeId, Sender<Job>>,
    working: Working,
}

impl PageDrops {
    /// No threads yet.
    pub fn new(files: Weak<Files<NativeShell>>) -> Self {
        Self { files, threads: HashMap::new(), working: Working::default() }
    }

    /// A node has asked.
    pub fn asked(&mut self, node: NodeId, drop: DropPages, answer_on: Connection) {
        let key = (drop.object, drop.number);
        if lock(&self.working).insert(key) && !self.give(node, Job::Asked(drop, answer_on)) {
            // It asks again.
            lock(&self.working).remove(&key);
        }
    }

    /// A node has not been heard.
    pub fn unheard(&mut self, node: NodeId, inodes: BTreeSet<InodeNumber>) {
        self.give(node, Job::Unheard(inodes));
    }

    /// Gives a job to a node's thread. Returns false if there is none.
    fn give(&mut self, node: NodeId, job: Job) -> bool {
        if !self.threads.contains_key(&node) {
            let (jobs, receiver) = channel();
            let (files, working) = (self.files.clone(), Arc::clone(&self.working));
            let work = move || work(&files, &receiver, &working);
            if let Err(error) = std::thread::Builder::new().name("weft-pages".to_owned()).spawn(work) {
                tracing::error!("no thread to drop pages: {error}");
                return false;
            }
            self.threads.insert(node, jobs);
        }
        self.threads.get(&node).is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

fn work(files: &Weak<Files<NativeShell>>, jobs: &Receiver<Job>, working: &Working) {
    while let Ok(job) = jobs.recv() {
        let Some(files) = files.upgrade() else { return };
        let (drop, answer_on) = match job {
            Job::Asked(drop, answer_on) => (drop, answer_on),
            Job::Unheard(inodes) => {
                block_on(files.drop_unheard(&inodes));
                continue;
            }
        };
        let dropped = block_on(files.drop_pages(&drop));
        lock(working).remove(&(drop.object, drop.number));
        // On a dead connection the node asks again, or takes the session's end for the answer.
        let mut connection = lock(&answer_on);
        let _ = connection.post(0, &Message::PagesDropped(dropped));
        if connection.has_posted() {
            files.calls().shell.recalls.wake();
        }
    }
}
