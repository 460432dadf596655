//! A relay between a client and a node, which holds a reply when it is told to.
//!
//! It is passed on late, or lost: the client's connection then breaks after the node has done what was asked, and the
//! client sends it again.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Longest message that is not a call: renewals and answers to recalls.
const NO_CALL_BYTES: usize = 40;

/// A relay. Its threads end with their connections.
pub struct Proxy {
    pub address: SocketAddr,
    armed: Arc<AtomicBool>,
    held: Mutex<Receiver<Held>>,
}

impl Proxy {
    /// A relay to this address.
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let armed = Arc::new(AtomicBool::new(false));
        let (sender, held) = channel();
        let is_armed = Arc::clone(&armed);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(to) else { return };
                relay(client, server, Arc::clone(&is_armed), sender.clone());
            }
        });
        Self { address, armed, held: Mutex::new(held) }
    }

    /// From the next call on, its connection answers no more until [`Held::pass_on`].
    pub fn hold_next_reply(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Waits until the node has answered that call. The connection breaks when the result is dropped.
    pub fn held(&self) -> Held {
        let held = self.held.lock().expect("no test panicked with it");
        held.recv().expect("the relay runs")
    }
}

/// A connection whose reply is held.
pub struct Held {
    reply: Vec<u8>,
    from: TcpStream,
    to: TcpStream,
    passes_on: bool,
}

impl Held {
    /// The reply reaches the client now, and so do all after it.
    pub fn pass_on(mut self) {
        self.passes_on = true;
        self.to.write_all(&self.reply).expect("the client waits for it");
        let (mut from, mut to) = (copy(&self.from), copy(&self.to));
        std::thread::spawn(move || {
            // Until either end closes.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.passes_on {
            // The other end may be gone already.
            let _ = self.to.shutdown(Shutdown::Both);
        }
    }
}

fn copy(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

fn relay(client: TcpStream, server: TcpStream, armed: Arc<AtomicBool>, held: Sender<Held>) {
    let holds = Arc::new(AtomicBool::new(false));
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    let (mut from, mut to, marks) = (copy(&client), copy(&server), Arc::clone(&holds));
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            if count > NO_CALL_BYTES && armed.swap(false, Ordering::SeqCst) {
                marks.store(true, Ordering::SeqCst);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (server, client);
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            if holds.load(Ordering::SeqCst) {
                // A test that has ended waits for nothing.
                let _ = held.send(Held { reply: bytes[..count].to_vec(), from, to, passes_on: false });
                return;
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
