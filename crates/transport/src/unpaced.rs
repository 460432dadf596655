//! TCP connections that nothing paces inside a machine.
//!
//! Where the system's congestion control is BBR, a sender sets a timer for every 64 KiB. In a virtual machine each one
//! costs a way to the host: a third of what four writers can do, a third of what one reader can. Inside a machine
//! nothing is lost and nobody shares the link, so the plainest control does, which every process may choose.
//!
//! A connection that BBR had once goes on being paced whatever is chosen for it later (the kernel keeps
//! `sk_pacing_status`). So ours choose before they are connected: clients, and listeners for what they will accept.
//! Connections that leave the machine get the system's control. Decision 0014.

use crate::Socket;
use socket2::{Domain, SockRef, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Paces nobody, and is in every kernel.
const UNPACED: &[u8] = b"reno";

/// Whether a connection between these addresses stays inside the machine of both.
pub(crate) fn is_inside(own: IpAddr, peer: IpAddr) -> bool {
    let (own, peer) = (own.to_canonical(), peer.to_canonical());
    own == peer || (own.is_loopback() && peer.is_loopback())
}

/// Connects, within so long.
pub(crate) fn connect(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if would_stay_inside(address) {
        // A matter of speed only.
        let _ = socket.set_tcp_congestion(UNPACED);
    }
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

/// Whether the address is one of this machine: from which of its own the kernel would speak to it. Nothing is sent.
fn would_stay_inside(address: SocketAddr) -> bool {
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let own = UdpSocket::bind(any).and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()));
    own.is_ok_and(|own| is_inside(own.ip(), address.ip()))
}

/// A TCP socket that listens.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    /// What the system chooses, where that is not what this one has.
    system: Option<Vec<u8>>,
}

impl Listener {
    /// Listens on this address without ever waiting in [`Listener::accept`]; port 0: any free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind(address)?;
        tcp.set_nonblocking(true)?;
        let system = control(&tcp).filter(|system| system != UNPACED);
        let system = system.filter(|_| SockRef::from(&tcp).set_tcp_congestion(UNPACED).is_ok());
        Ok(Self { tcp, system })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next connection; [`io::ErrorKind::WouldBlock`]: there is none now.
    pub fn accept(&self) -> io::Result<Socket> {
        let (stream, peer) = self.tcp.accept()?;
        if !is_inside(stream.local_addr()?.ip(), peer.ip()) {
            self.give_back(&stream);
        }
        Socket::from_tcp(stream)
    }

    /// Gives an accepted connection the system's control; unless it has another one that its route chooses.
    fn give_back(&self, stream: &TcpStream) {
        let Some(system) = self.system.as_deref().filter(|_| control(stream).is_some_and(|now| now == UNPACED)) else {
            return;
        };
        if let Err(error) = SockRef::from(stream).set_tcp_congestion(system) {
            tracing::debug!("a connection keeps {}: {error}", String::from_utf8_lossy(UNPACED));
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

/// The congestion control of a socket.
fn control(socket: &impl AsFd) -> Option<Vec<u8>> {
    let name = SockRef::from(socket).tcp_congestion().ok()?;
    Some(name.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const SOON: Duration = Duration::from_secs(5);

    /// Waits until there is a connection to accept.
    fn wait(listener: &Listener) {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })), Ok(1));
    }

    #[test]
    fn connections_inside_a_machine_have_the_plain_control_from_the_start() {
        let mut addresses = vec![IpAddr::from([127, 0, 0, 1])];
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        // No packet is sent: it tells the machine's own address.
        match udp.connect("192.0.2.1:9").and_then(|()| udp.local_addr()) {
            Ok(own) => addresses.push(own.ip()),
            Err(_) => println!("skipped in part: no address but the loopback's"),
        }
        for address in addresses {
            let listener = Listener::bind((address, 0).into()).unwrap();
            let client = connect(listener.address().unwrap(), SOON).unwrap();
            wait(&listener);
            let server = listener.accept().unwrap();
            assert_eq!((control(&client), control(&server)), (Some(UNPACED.to_vec()), Some(UNPACED.to_vec())));
            assert!(server.is_local(), "{address}");
        }
    }

    #[test]
    fn a_connection_from_elsewhere_gets_the_systems_control_back() {
        let system = control(&TcpListener::bind("127.0.0.1:0").unwrap());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = TcpStream::connect(listener.address().unwrap()).unwrap();
        wait(&listener);
        let (stream, _) = listener.tcp.accept().unwrap();
        assert_eq!(control(&stream), Some(UNPACED.to_vec()), "it was accepted with the listener's");
        listener.give_back(&stream);
        assert_eq!(control(&stream), system);
    }

    #[test]
    fn addresses_tell_what_stays_inside() {
        let inside = |own: &str, peer: &str| is_inside(own.parse().unwrap(), peer.parse().unwrap());
        for (own, peer) in
            [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("10.0.0.7", "10.0.0.7"), ("::1", "::1")]
        {
            assert!(inside(own, peer), "{own} {peer}");
        }
        assert!(inside("::ffff:127.0.0.1", "127.0.0.1") && inside("::ffff:10.0.0.7", "::ffff:10.0.0.7"));
        assert!(!inside("10.0.0.7", "10.0.0.8") && !inside("::ffff:10.0.0.7", "10.0.0.8"));
    }

    #[test]
    fn where_nobody_listens_the_error_says_so() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(connect(address, SOON).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
