//! What a program costs: calls, messages between nodes, bytes.

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_protocol::message::Message;
use weft_protocol::message::shard::ShardRequest;

/// What a message is about, with its reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A writer tells the shard of its extents.
    Publication,
    /// A reader asks for extents.
    Question,
    /// A session says that it is over.
    Goodbye,
    /// Names, attributes, opens.
    OtherCall,
    /// A session lives, and is in these groups.
    Renewal,
    Recall,
    /// A storage server may serve the shard for a term.
    Term,
    /// A group has ended.
    Fence,
    /// Requests for file data, and the data.
    Data,
    /// Of a client and its own node, as a rule.
    Other,
}

impl Kind {
    /// Of a request.
    pub fn of(message: &Message) -> Self {
        let Message::Shard(call) = message else {
            return if matches!(message, Message::Renew { .. }) { Self::Renewal } else { Self::Other };
        };
        match call.request {
            ShardRequest::Publish { .. } => Self::Publication,
            ShardRequest::GetParts { .. } => Self::Question,
            ShardRequest::EndSession => Self::Goodbye,
            _ => Self::OtherCall,
        }
    }

    /// What it is called in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Publication => "publications",
            Self::Question => "questions of readers",
            Self::Goodbye => "ends of sessions",
            Self::OtherCall => "other calls",
            Self::Renewal => "renewals of members",
            Self::Recall => "recalls",
            Self::Term => "serving terms",
            Self::Fence => "fences of groups",
            Self::Data => "data",
            Self::Other => "other",
        }
    }
}

/// Messages of one kind between two nodes, both ways.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Traffic {
    pub messages: u64,
    pub bytes: u64,
    /// Of the longest one.
    pub longest: usize,
}

/// How long the shard of `/` took for each event of a kind. Not the same in each run.
#[derive(Clone, Default, Debug)]
pub struct Work(Vec<Duration>);

impl Work {
    /// Events.
    pub fn times(&self) -> u64 {
        self.0.len() as u64
    }

    /// The median, which does not count when the machine did something else meanwhile. Zero if there are no events.
    pub fn usual(&self) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(Duration::ZERO)
    }
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    /// Calls of clients at the shard.
    pub calls: u64,
    /// Control messages that nodes have received, from clients of their own machine too.
    pub requests: u64,
    /// Bytes of file data between nodes.
    pub data_bytes: u64,
    /// Connections between nodes.
    pub connections: u64,
    /// Bytes that the shard stores more at the end of the program.
    pub index_bytes: u64,
    /// What went between nodes.
    pub between: BTreeMap<Kind, Traffic>,
    pub work: BTreeMap<Kind, Work>,
}

impl Counts {
    /// A message between two nodes.
    pub fn add(&mut self, kind: Kind, bytes: usize) {
        let traffic = self.between.entry(kind).or_default();
        traffic.messages += 1;
        traffic.bytes += bytes as u64;
        traffic.longest = traffic.longest.max(bytes);
    }

    /// The shard has taken an event.
    pub fn took(&mut self, kind: Kind, lasted: Duration) {
        self.work.entry(kind).or_default().0.push(lasted);
    }

    /// All messages between nodes.
    pub fn messages(&self) -> Traffic {
        let sum = |a: Traffic, b: &Traffic| Traffic {
            messages: a.messages + b.messages,
            bytes: a.bytes + b.bytes,
            longest: a.longest.max(b.longest),
        };
        self.between.values().fold(Traffic::default(), sum)
    }

    /// How often the shard has taken an event of this kind.
    pub fn times(&self, kind: Kind) -> u64 {
        self.work.get(&kind).map_or(0, Work::times)
    }
}
