//! A link between two nodes that a test cuts and heals. While it is cut no byte passes, and no connection is refused or
//! closed: neither end learns of it but by its timeouts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a link that is cut looks if it was healed.
const LOOK: Duration = Duration::from_millis(5);

/// A relay to a node. Its threads end with their connections.
pub struct Link {
    pub address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Link {
    /// A link to this address.
    pub fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(to) else { return };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    from.set_nodelay(true).expect("a socket");
                    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                    let (from, to, cut) = (copy(from), copy(to), Arc::clone(&cut));
                    std::thread::spawn(move || relay(from, to, &cut));
                }
            }
        });
        Self { address, is_cut }
    }

    /// Cuts the link, or heals it.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut bytes = [0; 65_536];
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
    {
        while is_cut.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either end may be closed already.
    let _ = to.shutdown(Shutdown::Both);
}
