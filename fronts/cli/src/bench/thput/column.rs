//! What is measured beside each other: a transport, how its requests go, and whether through a mount.

use crate::bench::phase::Setup;
use crate::bench::{Playground, thput::mounts::MountPair};
use crate::verb::bench::{Front, RpcName, ThputArgs, Transport, WayName};
use serde::Serialize;
use std::fmt;
use weft_client::Registration;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Column {
    pub transport: Transport,
    /// `None`: as the environment says.
    pub rpc: Option<RpcName>,
    pub front: Front,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transport.word())?;
        if let Some(rpc) = self.rpc {
            write!(f, " {}", rpc.word())?;
        }
        match self.front {
            Front::Native => Ok(()),
            front => write!(f, ", {}", front.word()),
        }
    }
}

impl Column {
    /// All that the arguments ask for. The ways of requests are of UCX only.
    pub fn of(args: &ThputArgs) -> Vec<Self> {
        let mut columns = Vec::new();
        for &transport in &args.transport {
            let ways: Vec<_> =
                if transport.is_ucx() { args.rpc.iter().copied().map(Some).collect() } else { Vec::new() };
            let ways = if ways.is_empty() { vec![None] } else { ways };
            for rpc in ways {
                let fronts =
                    if args.posix { &[Front::Native, Front::Mount, Front::MountDirect][..] } else { &[Front::Native] };
                columns.extend(fronts.iter().map(|&front| Self { transport, rpc, front }));
            }
        }
        columns
    }

    /// The way of a client, and whose memory is registered where that is by RDMA.
    pub fn way(&self) -> (WayName, Option<Registration>) {
        match self.transport {
            Transport::Tcp => (WayName::Tcp, None),
            Transport::Unix => (WayName::Unix, None),
            Transport::Static => (WayName::Ucx, Some(Registration::Static)),
            Transport::Dynamic => (WayName::Ucx, Some(Registration::Dynamic)),
            Transport::Auto => (WayName::Ucx, Some(Registration::Auto)),
        }
    }

    /// Workers of it.
    pub fn setups(
        &self,
        playground: &Playground,
        mounts: Option<&MountPair>,
        processes: usize,
    ) -> impl Iterator<Item = Setup> {
        let (way, registration) = self.way();
        let setup = Setup {
            name: playground.instance().map.name.clone(),
            way,
            registration,
            rpc: self.rpc.map(Into::into),
            mounted: mounts.map(MountPair::mounted),
            index: 0,
            directory: String::from_utf8_lossy(playground.path()).into_owned(),
        };
        (0..processes).map(move |index| Setup { index, ..setup.clone() })
    }
}
