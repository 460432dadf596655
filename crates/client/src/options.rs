//! How a client is connected.

use crate::waits::SOFT_DEFAULT;
use std::time::Duration;
use weft_transport::RdmaSettings;

/// Which way file data takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// The shortest: a descriptor of the object where the server is on this machine, else a Unix socket there, else
    /// TCP.
    #[default]
    Auto,
    /// Unix socket to servers of this machine, no descriptors; TCP to others. Where the server may read our memory,
    /// it takes large writes out of that, and only their headers go through the socket; likewise large reads of stores
    /// without files, which we take out of its memory.
    Unix,
    /// As `Unix`, with all bytes through the socket.
    Stream,
    /// TCP only.
    Tcp,
    /// The server moves the bytes through UCX, or nothing does.
    Ucx,
}

impl Way {
    /// From `auto`, `sockets`, `tcp` or `ucx`.
    pub fn of_transport(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "sockets" => Some(Self::Unix),
            "tcp" => Some(Self::Tcp),
            "ucx" => Some(Self::Ucx),
            _ => None,
        }
    }
}

/// How a client is connected.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub way: Way,
    /// Where the server moves the bytes.
    pub rdma: RdmaSettings,
    /// Writes of fewer bytes are gathered and sent behind, those of 1 MiB and more only when they are sequential; 0:
    /// 1 MiB.
    pub buffer_bytes: usize,
    /// A call that a node does not answer for so long fails, once the node has not answered over a new connection
    /// either; `None`: it waits (see [`crate::waits`]).
    pub soft: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { way: Way::default(), rdma: RdmaSettings::default(), buffer_bytes: 0, soft: Some(SOFT_DEFAULT) }
    }
}

impl ClientOptions {
    /// The defaults, and what the variables of the environment say: `WEFT_TRANSPORT` is `auto`, `sockets`, `tcp` or
    /// `ucx`; those of RDMA are in [`RdmaSettings::from_environment`]. An error names the variable and what it may
    /// say.
    pub fn from_environment() -> std::result::Result<Self, String> {
        let way = match std::env::var("WEFT_TRANSPORT") {
            Ok(text) => Way::of_transport(&text)
                .ok_or_else(|| format!("WEFT_TRANSPORT is '{text}', not auto, sockets, tcp or ucx"))?,
            Err(_) => Way::Auto,
        };
        Ok(Self { way, rdma: RdmaSettings::from_environment()?, ..Self::default() })
    }
}
