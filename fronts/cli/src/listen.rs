//! Which address a node listens on: given as an address, a network, or an interface.

use crate::failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

/// A port to name an address with: nothing is sent there.
const DISCARD_PORT: u16 = 9;

/// Where to listen. What it means is found out on the machine that listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// This address: `10.0.0.7`.
    Address(IpAddr),
    /// The machine's address in this network: `10.0.0.0/24`.
    Network(IpAddr, u8),
    /// The first address of this interface: `ib0`.
    Interface(String),
}

impl Listen {
    /// Only this machine reaches it.
    pub const LOOPBACK: Listen = Listen::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// The address of this machine from which another host is reached. Nothing is sent there.
    pub fn toward(host: &str) -> Outcome<Listen> {
        let found = (host, DISCARD_PORT).to_socket_addrs().and_then(|addresses| {
            let local = |address: SocketAddr| {
                let any: IpAddr =
                    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                let socket = UdpSocket::bind((any, 0))?;
                socket.connect(address)?;
                socket.local_addr()
            };
            let addresses: Vec<SocketAddr> = addresses.collect();
            let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
            local(*first.ok_or(io::ErrorKind::NotFound)?)
        });
        found.map(|address| Listen::Address(address.ip())).map_err(|error| {
            Failure::of_io(format_args!("address of this machine that {host} reaches"), &error)
                .failed()
                .remedy("give --listen IFACE|CIDR|ADDR")
        })
    }

    /// The address on this machine.
    pub fn resolve(&self) -> Outcome<IpAddr> {
        self.choose(&own_addresses()?)
    }

    /// The address among those of a machine's interfaces.
    fn choose(&self, own: &[(String, IpAddr)]) -> Outcome<IpAddr> {
        let found = match self {
            Listen::Address(address) => Some(*address),
            Listen::Network(network, bits) => {
                own.iter().map(|(_, address)| *address).find(|address| in_network(*address, *network, *bits))
            }
            Listen::Interface(name) => {
                let of_interface =
                    || own.iter().filter(|(interface, _)| interface == name).map(|(_, address)| *address);
                of_interface().find(IpAddr::is_ipv4).or_else(|| of_interface().find(|address| !link_local(*address)))
            }
        };
        found.ok_or_else(|| {
            let own: Vec<String> = own.iter().map(|(interface, address)| format!("{interface} {address}")).collect();
            Failure::new(format!("listen on {self}: no such address on this machine"))
                .remedy(format!("choose one of: {}", own.join(", ")))
        })
    }
}

/// Whether an address is good on one wire only: it would need the interface named beside it.
fn link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
}

fn in_network(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differing = u32::from(address) ^ u32::from(network);
            bits == 0 || differing >> (32 - u32::from(bits)) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differing = u128::from(address) ^ u128::from(network);
            bits == 0 || differing >> (128 - u32::from(bits)) == 0
        }
        _ => false,
    }
}

/// Addresses of the interfaces of this machine, in the kernel's order.
fn own_addresses() -> Outcome<Vec<(String, IpAddr)>> {
    let listed =
        nix::ifaddrs::getifaddrs().map_err(|error| Failure::new(format!("list network interfaces: {error}")))?;
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((interface.interface_name, v4.or(v6)?))
    };
    Ok(listed.filter_map(address).collect())
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Listen::Address(address));
        }
        if let Some((network, bits)) = text.split_once('/') {
            let network: IpAddr = network.parse().map_err(|_| format!("\"{network}\" is not an IP address"))?;
            let bits_max = if network.is_ipv4() { 32 } else { 128 };
            return match bits.parse() {
                Ok(bits) if bits <= bits_max => Ok(Listen::Network(network, bits)),
                _ => Err(format!("\"{bits}\" is not a number of bits up to {bits_max}")),
            };
        }
        if !text.is_empty() && text.len() <= 15 && !text.contains(|c: char| c.is_whitespace() || c == ':') {
            return Ok(Listen::Interface(text.to_owned()));
        }
        Err(format!("\"{text}\" is not an interface, network (10.0.0.0/24) or IP address"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Address(address) => address.fmt(f),
            Listen::Network(network, bits) => write!(f, "{network}/{bits}"),
            Listen::Interface(name) => f.write_str(name),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        listen.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let own = [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "192.168.7.9"),
            ("ib0", "10.1.200.3"),
            ("wg0", "fe80::2"),
            ("wg0", "fd00::3"),
        ];
        let own = own.map(|(interface, address)| (interface.to_owned(), address.parse().expect("address")));
        let listen: Listen = text.parse().expect("parsed");
        assert_eq!(listen.to_string(), text);
        let chosen = listen.choose(&own).ok();
        assert_eq!(chosen, expected.map(|address| address.parse().expect("address")), "{text}");
    }

    #[test]
    fn an_interface_network_or_address_becomes_an_address() {
        check("10.9.9.9", Some("10.9.9.9"));
        check("eth0", Some("192.168.7.9"));
        check("wg0", Some("fd00::3"));
        check("eth7", None);
        check("10.1.0.0/16", Some("10.1.200.3"));
        check("10.1.0.0/17", None);
        check("fd00::/8", Some("fd00::3"));
        check("0.0.0.0/0", Some("127.0.0.1"));
    }

    #[test]
    fn what_is_none_of_them_is_refused() {
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "an interface", "10.0.0.1:80", "sixteen-letters-"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert!(Listen::Network(IpAddr::V4(Ipv4Addr::LOCALHOST), 8).resolve().expect("resolved").is_loopback());
    }
}
