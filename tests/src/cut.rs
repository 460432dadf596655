//! A link between two nodes that a test cuts and heals. While it is cut no byte passes, and no connection is refused or
//! closed: neither end learns of it but by its timeouts. It can be healed for new connections alone: what was sent over
//! the former ones arrives later.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a link that is cut looks if it was healed.
const LOOK: Duration = Duration::from_millis(5);

/// A relay to a node. Its threads end with their connections.
pub struct Link {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    /// Connections so far.
    made: AtomicUsize,
    /// Those with a lower number are cut.
    cut_below: AtomicUsize,
    /// Connections that have ended, each way counted.
    ended: AtomicUsize,
    /// Both ends of all connections.
    streams: Mutex<Vec<TcpStream>>,
}

impl State {
    fn is_cut(&self, number: usize) -> bool {
        self.is_cut.load(Ordering::SeqCst) || number < self.cut_below.load(Ordering::SeqCst)
    }
}

impl Link {
    /// A link to this address.
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::<State>::default();
        let of_link = Arc::clone(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(to) else { return };
                let number = of_link.made.fetch_add(1, Ordering::SeqCst);
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).expect("a socket");
                    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                    of_link.streams.lock().expect("no test holds it").push(copy(from));
                    let (from, to, state) = (copy(from), copy(to), Arc::clone(&of_link));
                    std::thread::spawn(move || {
                        relay(from, to, || state.is_cut(number));
                        state.ended.fetch_add(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self { address, state }
    }

    /// Cuts the link, or heals it.
    pub fn cut(&self, is_cut: bool) {
        self.state.cut_below.store(0, Ordering::SeqCst);
        self.state.is_cut.store(is_cut, Ordering::SeqCst);
    }

    /// Cuts the link, and breaks its connections: both ends learn of that.
    pub fn sever(&self) {
        self.cut(true);
        for stream in self.state.streams.lock().expect("no test holds it").drain(..) {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Heals a link for connections that are made from now on.
    pub fn heal_for_new(&self) {
        self.state.cut_below.store(self.state.made.load(Ordering::SeqCst), Ordering::SeqCst);
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    /// Number of connections that have ended at both ends.
    pub fn ended(&self) -> usize {
        self.state.ended.load(Ordering::SeqCst) / 2
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, is_cut: impl Fn() -> bool) {
    let mut bytes = [0; 65_536];
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
    {
        while is_cut() {
            std::thread::sleep(LOOK);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either end may be closed already.
    let _ = to.shutdown(Shutdown::Both);
}
