//! Threads that have the kernel drop pages which another client is about to change.
//!
//! One for each node that asks: what one node's pages wait for does not hold up those of another. They take no lock
//! of the client (`weft_client_core`, `page_drops.rs`), and end with the listener.

use crate::block_on::{block_on, lock};
use crate::native::NativeShell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use weft_client_core::Files;
use weft_protocol::message::Message;
use weft_protocol::message::recall::DropPages;
use weft_protocol::{NodeId, ObjectId};
use weft_transport::ControlConnection;

type Connection = Arc<Mutex<ControlConnection>>;
/// What is being dropped: what is asked again is not dropped twice.
type Working = Arc<Mutex<BTreeSet<(ObjectId, u64)>>>;

/// See the module.
pub(crate) struct PageDrops {
    files: Weak<Files<NativeShell>>,
    threads: HashMap<NodeId, Sender<(DropPages, Connection)>>,
    working: Working,
}

impl PageDrops {
    /// No threads yet.
    pub fn new(files: Weak<Files<NativeShell>>) -> Self {
        Self { files, threads: HashMap::new(), working: Working::default() }
    }

    /// A node has asked. An error: there is no thread for it, and the node asks again.
    pub fn asked(&mut self, node: NodeId, drop: DropPages, answer_on: Connection) -> io::Result<()> {
        if !self.threads.contains_key(&node) {
            let (jobs, receiver) = channel();
            let (files, working) = (self.files.clone(), Arc::clone(&self.working));
            let work = move || work(&files, &receiver, &working);
            std::thread::Builder::new().name("weft-pages".to_owned()).spawn(work)?;
            self.threads.insert(node, jobs);
        }
        if let Some(jobs) = self.threads.get(&node)
            && lock(&self.working).insert((drop.object, drop.number))
        {
            // The thread ends only after this.
            let _ = jobs.send((drop, answer_on));
        }
        Ok(())
    }
}

fn work(files: &Weak<Files<NativeShell>>, jobs: &Receiver<(DropPages, Connection)>, working: &Working) {
    while let Ok((drop, answer_on)) = jobs.recv() {
        let Some(files) = files.upgrade() else { return };
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
