//! What an interrupt (SIGINT, SIGTERM, SIGHUP) does to a command that is connected: it ends the connections before it
//! ends the process. A client that just vanished would keep its leases until its session's term is over, and hold up
//! others.
//!
//! Not here: the mount, which unmounts on these signals.

use crate::failure::{Explain, Outcome};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use weft_client::Client;

/// How long the end of connections may take: nodes that hang do not keep a command alive.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Connections of this process. Rank 1, the only lock here; not held while they are ended.
static CLIENTS: Mutex<Vec<Client>> = Mutex::new(Vec::new());
/// The thread that listens was started.
static LISTENING: AtomicBool = AtomicBool::new(false);
/// A signal came: failures from here on are its consequences.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether the command is being ended by a signal.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Has this connection ended when a signal comes.
pub fn end_on_signals(client: &Client) -> Outcome<()> {
    CLIENTS.lock().unwrap_or_else(PoisonError::into_inner).push(client.clone());
    if LISTENING.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).explain(|| "listen for signals")?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            end_all();
            // Whoever waits for this process sees that a signal ended it.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}

fn end_all() {
    let clients = std::mem::take(&mut *CLIENTS.lock().unwrap_or_else(PoisonError::into_inner));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for client in clients {
            // Nobody is left to hear of an error.
            let _ = client.close();
        }
        let _ = sender.send(());
    });
    let _ = receiver.recv_timeout(END_PATIENCE);
}
