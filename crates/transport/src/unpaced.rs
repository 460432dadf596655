//! TCP connections that nothing paces inside a machine.
//!
//! Where the system's congestion control is BBR, a sender sets a timer for every 64 KiB. In a virtual machine each one
//! costs a way to the host: a third of what four writers can do, two thirds of what one reader can. Over the loopback
//! nothing is lost and nobody shares the link, so the plainest control does, which every process may choose.
//!
//! A connection that BBR had once goes on being paced whatever is chosen for it later (the kernel keeps
//! `sk_pacing_status`). So ours choose before they are connected, and listeners before they listen for others: what
//! they accept inherits it. Connections that leave the machine get the system's control.

use crate::Socket;
use socket2::{Domain, SockRef, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Paces nobody, and is in every kernel.
const UNPACED: &[u8] = b"reno";

/// Connects, within so long.
pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.ip().is_loopback() {
        // A matter of speed only.
        let _ = socket.set_tcp_congestion(UNPACED);
    }
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

/// A TCP socket that listens.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    /// What the system chooses, where it is not what this one has.
    others: Option<Vec<u8>>,
}

impl Listener {
    /// Listens on this address without ever waiting in [`Listener::accept`]; port 0: any free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        let options = SockRef::from(&tcp);
        let chosen = options.tcp_congestion().ok();
        let others = chosen.filter(|_| options.set_tcp_congestion(UNPACED).is_ok());
        Ok(Self { tcp, others })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next connection; [`io::ErrorKind::WouldBlock`]: there is none now.
    pub fn accept(&self) -> io::Result<Socket> {
        let (stream, peer) = self.tcp.accept()?;
        if let Some(others) = self.others.as_deref().filter(|_| !peer.ip().is_loopback()) {
            // As above.
            let _ = SockRef::from(&stream).set_tcp_congestion(others);
        }
        Socket::from_tcp(stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::UdpSocket;

    const SOON: Duration = Duration::from_secs(5);

    fn control(socket: &impl AsFd) -> Vec<u8> {
        let name = SockRef::from(socket).tcp_congestion().unwrap();
        name.split(|byte| *byte == 0).next().unwrap().to_vec()
    }

    /// The controls of both ends of a connection that was made to this address.
    fn controls(address: &str) -> (Vec<u8>, Vec<u8>) {
        let listener = Listener::bind(format!("{address}:0").parse().unwrap()).unwrap();
        let client = connect(listener.address().unwrap(), SOON).unwrap();
        let mut ready = [PollFd::new(&listener, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })), Ok(1));
        (control(&client), control(&listener.accept().unwrap()))
    }

    #[test]
    fn connections_inside_a_machine_have_the_plain_control_from_the_start() {
        assert_eq!(controls("127.0.0.1"), (UNPACED.to_vec(), UNPACED.to_vec()));
    }

    #[test]
    fn other_connections_have_what_the_system_chooses() {
        let system = control(&TcpListener::bind("127.0.0.1:0").unwrap());
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        // No packet is sent: it tells the machine's own address.
        let Ok(own) = udp.connect("192.0.2.1:9").and_then(|()| udp.local_addr()) else {
            println!("skipped: no address but the loopback's");
            return;
        };
        assert_eq!(controls(&own.ip().to_string()), (system.clone(), system));
    }

    #[test]
    fn where_nobody_listens_the_error_says_so() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(connect(address, SOON).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
