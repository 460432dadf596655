//! Golden bytes: every message as it stands on the wire, in `golden/*.txt`, one example a line.
//!
//! Shows that no encoding changes unnoticed (a change needs a new protocol version), that every variant of every
//! message has an example (a new one does not compile here, or is reported, until it has), and that each comes back
//! when decoded. `WEFT_REWRITE=1 cargo test -p weft-protocol --test golden` writes the files anew; read the difference.

#[path = "golden/examples.rs"]
mod examples;

use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::path::Path;
use weft_protocol::data::{DataOperation, DataReply, DataRequest, LentBytes, SharedMemory};
use weft_protocol::handshake::{KeyName, Purpose};
use weft_protocol::message::Message;
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::peer::{PeerAnswer, PeerStep};
use weft_protocol::message::shard::{Access, LockAnswer, RenameMode, ShardAnswer, ShardRequest};
use weft_protocol::message::storage::{StorageAnswer, StorageRequest};
use weft_protocol::{
    Capability, Error, FileKind, Grants, GroupOpen, Layout, LeaseKey, LeaseMode, LockKind, LockMode, Rights,
    TimeChange, UserKey, codec, frame,
};

/// Compares lines with a golden file, or writes it.
fn check(file: &str, lines: &[(String, Vec<u8>)]) {
    let mut text = String::new();
    for (name, bytes) in lines {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{name} {hex}").expect("a string grows");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    if std::env::var_os("WEFT_REWRITE").is_some() {
        std::fs::write(&path, text).expect("the golden file");
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (expected, now)) in golden.lines().zip(text.lines()).enumerate() {
        assert_eq!(now, expected, "{}, line {}: the bytes of a message have changed", path.display(), number + 1);
    }
    let (expected, now) = (golden.lines().count(), text.lines().count());
    assert_eq!(now, expected, "{}: examples were added or taken away: WEFT_REWRITE=1", path.display());
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Vec<u8> {
    let bytes = codec::to_bytes(value);
    assert_eq!(codec::from_bytes::<T>(&bytes).as_ref(), Ok(value));
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(codec::from_bytes::<T>(&longer), Err(Error::Malformed), "a byte behind {value:?}");
    for end in 0..bytes.len() {
        assert!(codec::from_bytes::<T>(&bytes[..end]).is_err(), "the first {end} bytes of {value:?}");
    }
    bytes
}

/// `fn NAME(&TYPE) -> &str` by an exhaustive match, and a test that the examples show each variant.
macro_rules! every_variant {
    ($function:ident, $type:ty, $examples:expr, { $($pattern:pat => $name:literal,)+ }) => {
        fn $function(value: &$type) -> &'static str {
            match value { $($pattern => $name,)+ }
        }

        mod $function {
            use super::*;
            #[test]
            fn has_an_example_of_each_variant() {
                let all: BTreeSet<&str> = [$($name),+].into();
                let examples: Vec<$type> = $examples;
                let shown: BTreeSet<&str> = examples.iter().map($function).collect();
                assert_eq!(shown, all);
            }
        }
    };
}

every_variant!(message, Message, examples::messages(), {
    Message::Shard(_) => "Shard",
    Message::ShardReply(_) => "ShardReply",
    Message::Storage(_) => "Storage",
    Message::StorageReply(_) => "StorageReply",
    Message::Node(_) => "Node",
    Message::NodeReply(_) => "NodeReply",
    Message::Peer(_) => "Peer",
    Message::PeerReply(_) => "PeerReply",
    Message::Recall(_) => "Recall",
    Message::RecallAnswer(_) => "RecallAnswer",
    Message::Renew { .. } => "Renew",
    Message::RenewReply { .. } => "RenewReply",
    Message::DropPages(_) => "DropPages",
    Message::PagesDropped(_) => "PagesDropped",
    Message::LockGranted(_) => "LockGranted",
    Message::LockGrantTaken(_) => "LockGrantTaken",
});
every_variant!(shard_request, ShardRequest, examples::shard_requests(), {
    ShardRequest::Lookup { .. } => "Lookup",
    ShardRequest::GetAttributes { .. } => "GetAttributes",
    ShardRequest::Publish { .. } => "Publish",
    ShardRequest::GetParts { .. } => "GetParts",
    ShardRequest::SetAttributes { .. } => "SetAttributes",
    ShardRequest::OpenAt { .. } => "OpenAt",
    ShardRequest::Open { .. } => "Open",
    ShardRequest::Commit { .. } => "Commit",
    ShardRequest::MakeDirectory { .. } => "MakeDirectory",
    ShardRequest::MakeSymlink { .. } => "MakeSymlink",
    ShardRequest::ReadLink { .. } => "ReadLink",
    ShardRequest::Link { .. } => "Link",
    ShardRequest::Unlink { .. } => "Unlink",
    ShardRequest::UnlinkBatch { .. } => "UnlinkBatch",
    ShardRequest::RemoveDirectory { .. } => "RemoveDirectory",
    ShardRequest::Rename { .. } => "Rename",
    ShardRequest::ReadDirectory { .. } => "ReadDirectory",
    ShardRequest::Release { .. } => "Release",
    ShardRequest::EndSession => "EndSession",
    ShardRequest::Ping => "Ping",
    ShardRequest::HoldDirectory { .. } => "HoldDirectory",
    ShardRequest::Lock { .. } => "Lock",
    ShardRequest::Unlock { .. } => "Unlock",
    ShardRequest::CancelLock { .. } => "CancelLock",
    ShardRequest::TestLock { .. } => "TestLock",
    ShardRequest::TakeLocks { .. } => "TakeLocks",
    ShardRequest::SetXattr { .. } => "SetXattr",
    ShardRequest::RemoveXattr { .. } => "RemoveXattr",
    ShardRequest::GetXattrs { .. } => "GetXattrs",
    ShardRequest::SetInherited { .. } => "SetInherited",
    ShardRequest::Relocate { .. } => "Relocate",
    ShardRequest::Spread { .. } => "Spread",
    ShardRequest::OpenGroup { .. } => "OpenGroup",
    ShardRequest::ReadBelow { .. } => "ReadBelow",
    ShardRequest::NoteBelow { .. } => "NoteBelow",
});
every_variant!(shard_answer, ShardAnswer, examples::shard_answers(), {
    ShardAnswer::Done => "Done",
    ShardAnswer::Parts { .. } => "Parts",
    ShardAnswer::Entry { .. } => "Entry",
    ShardAnswer::Remote { .. } => "Remote",
    ShardAnswer::Absent { .. } => "Absent",
    ShardAnswer::Opened { .. } => "Opened",
    ShardAnswer::Target(_) => "Target",
    ShardAnswer::Page(_) => "Page",
    ShardAnswer::Removed { .. } => "Removed",
    ShardAnswer::RemovedBatch { .. } => "RemovedBatch",
    ShardAnswer::Renamed { .. } => "Renamed",
    ShardAnswer::Lock(_) => "Lock",
    ShardAnswer::LockTested(_) => "LockTested",
    ShardAnswer::Xattrs { .. } => "Xattrs",
    ShardAnswer::Below(_) => "Below",
});
every_variant!(storage_request, StorageRequest, examples::storage_requests(), {
    StorageRequest::LeaseObjects { .. } => "LeaseObjects",
    StorageRequest::Stat { .. } => "Stat",
    StorageRequest::Make { .. } => "Make",
    StorageRequest::Truncate { .. } => "Truncate",
    StorageRequest::Remove { .. } => "Remove",
    StorageRequest::Space => "Space",
    StorageRequest::Fence { .. } => "Fence",
    StorageRequest::ListBelow { .. } => "ListBelow",
    StorageRequest::FillFromBelow { .. } => "FillFromBelow",
});
every_variant!(storage_answer, StorageAnswer, examples::storage_answers(), {
    StorageAnswer::Done => "Done",
    StorageAnswer::Batch { .. } => "Batch",
    StorageAnswer::Object { .. } => "Object",
    StorageAnswer::Space(_) => "Space",
    StorageAnswer::NamesBelow { .. } => "NamesBelow",
    StorageAnswer::Filled { .. } => "Filled",
});
every_variant!(node_request, NodeRequest, examples::node_requests(), {
    NodeRequest::Ping => "Ping",
    NodeRequest::GetMap => "GetMap",
    NodeRequest::SetMap(_) => "SetMap",
    NodeRequest::Status => "Status",
    NodeRequest::Stuck => "Stuck",
    NodeRequest::Shutdown => "Shutdown",
    NodeRequest::RevokeKey(_) => "RevokeKey",
    NodeRequest::AskToServe { .. } => "AskToServe",
    NodeRequest::AskOfObject { .. } => "AskOfObject",
    NodeRequest::Join { .. } => "Join",
    NodeRequest::Move { .. } => "Move",
    NodeRequest::Change { .. } => "Change",
    NodeRequest::Ship { .. } => "Ship",
    NodeRequest::Take { .. } => "Take",
});
every_variant!(node_answer, NodeAnswer, examples::node_answers(), {
    NodeAnswer::Done => "Done",
    NodeAnswer::Map(_) => "Map",
    NodeAnswer::Status(_) => "Status",
    NodeAnswer::InFlight(_) => "InFlight",
    NodeAnswer::Serving(_) => "Serving",
    NodeAnswer::OfObject { .. } => "OfObject",
});
every_variant!(peer_step, PeerStep, examples::peer_steps(), {
    PeerStep::MakeDirectoryInode { .. } => "MakeDirectoryInode",
    PeerStep::Forget => "Forget",
    PeerStep::Undo => "Undo",
    PeerStep::Lock { .. } => "Lock",
    PeerStep::Carry { .. } => "Carry",
    PeerStep::AskOutcome { .. } => "AskOutcome",
    PeerStep::Ancestors { .. } => "Ancestors",
    PeerStep::FillPart { .. } => "FillPart",
});
every_variant!(peer_answer, PeerAnswer, examples::peer_answers(), {
    PeerAnswer::Made(_) => "Made",
    PeerAnswer::Forgotten { .. } => "Forgotten",
    PeerAnswer::Locked { .. } => "Locked",
    PeerAnswer::Blocked { .. } => "Blocked",
    PeerAnswer::Carried { .. } => "Carried",
    PeerAnswer::Open => "Open",
    PeerAnswer::Filled { .. } => "Filled",
    PeerAnswer::Above { .. } => "Above",
});
every_variant!(lease_key, LeaseKey, examples::lease_keys(), {
    LeaseKey::Attributes(_) => "Attributes",
    LeaseKey::Entry(..) => "Entry",
    LeaseKey::Directory(_) => "Directory",
    LeaseKey::Data(_) => "Data",
    LeaseKey::Permissions(_) => "Permissions",
    LeaseKey::Inode(_) => "Inode",
    LeaseKey::Names(_) => "Names",
    LeaseKey::Ranges(_) => "Ranges",
});
every_variant!(lease_mode, LeaseMode, examples::lease_modes(), {
    LeaseMode::None => "None",
    LeaseMode::Open => "Open",
    LeaseMode::Shared => "Shared",
    LeaseMode::Exclusive => "Exclusive",
});
every_variant!(access, Access, examples::access(), {
    Access::Read => "Read",
    Access::Write => "Write",
    Access::ReadWrite => "ReadWrite",
    Access::Execute => "Execute",
});
every_variant!(rename_mode, RenameMode, examples::rename_modes(), {
    RenameMode::Replace => "Replace",
    RenameMode::NoReplace => "NoReplace",
    RenameMode::Exchange => "Exchange",
});
every_variant!(file_kind, FileKind, examples::file_kinds(), {
    FileKind::Regular => "Regular",
    FileKind::Directory => "Directory",
    FileKind::Symlink => "Symlink",
});
every_variant!(lock_kind, LockKind, examples::lock_kinds(), {
    LockKind::Flock => "Flock",
    LockKind::Process => "Process",
    LockKind::Description => "Description",
    LockKind::Append => "Append",
});
every_variant!(lock_mode, LockMode, examples::lock_modes(), {
    LockMode::Shared => "Shared",
    LockMode::Exclusive => "Exclusive",
});
every_variant!(lock_answer, LockAnswer, examples::lock_answers(), {
    LockAnswer::Granted => "Granted",
    LockAnswer::Queued => "Queued",
    LockAnswer::Cancelled => "Cancelled",
});
every_variant!(layout, Layout, examples::layouts(), {
    Layout::Empty => "Empty",
    Layout::Split { .. } => "Split",
    Layout::Whole { .. } => "Whole",
    Layout::Planned(_) => "Planned",
    Layout::Striped(_) => "Striped",
});
every_variant!(time_change, TimeChange, examples::time_changes(), {
    TimeChange::Now => "Now",
    TimeChange::To(_) => "To",
});
every_variant!(key_name, KeyName, examples::key_names(), {
    KeyName::Node(_) => "Node",
    KeyName::Owner => "Owner",
    KeyName::User { .. } => "User",
});
every_variant!(purpose, Purpose, examples::purposes(), {
    Purpose::Control => "Control",
    Purpose::Data => "Data",
    Purpose::Recall => "Recall",
});
every_variant!(data_operation, DataOperation, examples::data_operations(), {
    DataOperation::Read => "Read",
    DataOperation::Write => "Write",
    DataOperation::Append => "Append",
    DataOperation::Sync => "Sync",
    DataOperation::Stat => "Stat",
    DataOperation::IsHeld => "IsHeld",
    DataOperation::Descriptor => "Descriptor",
    DataOperation::Share => "Share",
    DataOperation::Lend => "Lend",
    DataOperation::OpenRdma => "OpenRdma",
    DataOperation::ShowMemory => "ShowMemory",
    DataOperation::ProbeMemory => "ProbeMemory",
    DataOperation::Revoke => "Revoke",
});

/// `Error` may grow outside of this crate's view, so its variants are counted on the wire: the first number that
/// decodes with no payload is the first that is not a variant.
#[test]
fn every_error_has_an_example() {
    let decodes =
        |number: u8| (0..4).any(|zeros| codec::from_bytes::<Error>(&[&[number], &[0; 4][..zeros]].concat()).is_ok());
    let variants = (0..=u8::MAX).take_while(|number| decodes(*number)).count();
    let shown: BTreeSet<u8> = examples::errors().iter().map(|error| codec::to_bytes(error)[0]).collect();
    assert_eq!(shown.len(), variants, "an error without an example in tests/golden/examples.rs");
}

#[test]
fn control_messages() {
    let mut lines = Vec::new();
    for example in examples::messages() {
        let inner = match &example {
            Message::Shard(call) => shard_request(&call.request).to_owned(),
            Message::ShardReply(reply) => reply.result.as_ref().map_or_else(debug, |a| shard_answer(a).to_owned()),
            Message::Storage(request) => storage_request(request).to_owned(),
            Message::StorageReply(result) => result.as_ref().map_or_else(debug, |a| storage_answer(a).to_owned()),
            Message::Node(request) => node_request(request).to_owned(),
            Message::NodeReply(result) => (**result).as_ref().map_or_else(debug, |a| node_answer(a).to_owned()),
            Message::Peer(call) => peer_step(&call.step).to_owned(),
            Message::PeerReply(reply) => reply.result.as_ref().map_or_else(debug, |a| peer_answer(a).to_owned()),
            Message::Recall(recall) => format!("{}.{}", lease_key(&recall.key), lease_mode(&recall.to)),
            Message::RecallAnswer(answer) => lease_mode(&answer.kept).to_owned(),
            Message::Renew { .. } | Message::DropPages(_) | Message::PagesDropped(_) => String::new(),
            Message::LockGranted(_) | Message::LockGrantTaken(_) => String::new(),
            Message::RenewReply { refused, .. } => (if *refused { "Refused" } else { "Renewed" }).to_owned(),
        };
        let name = format!("{}.{inner}", message(&example));
        lines.push((name.trim_end_matches('.').to_owned(), round_trip(&example)));
    }
    check("message.txt", &lines);
}

fn debug(error: &Error) -> String {
    format!("Err.{error:?}")
}

#[test]
fn handshake() {
    let mut lines = Vec::new();
    for name in examples::key_names() {
        for purpose_of in examples::purposes() {
            let line = format!("ClientHello.{}.{}", key_name(&name), purpose(&purpose_of));
            lines.push((line, round_trip(&examples::client_hello(name.clone(), purpose_of))));
        }
    }
    lines.push(("ServerHello".to_owned(), round_trip(&examples::server_hello())));
    lines.push(("ClientProof".to_owned(), round_trip(&examples::client_proof())));
    for welcome in examples::welcomes() {
        let name = if welcome.result.is_ok() { "Welcome.Ok" } else { "Welcome.Err" };
        lines.push((name.to_owned(), round_trip(&welcome)));
    }
    check("handshake.txt", &lines);
}

#[test]
fn data_headers() {
    let mut lines = Vec::new();
    for operation in examples::data_operations() {
        let request = examples::data_request(operation);
        assert_eq!(DataRequest::decode(&request.encode()), Ok(request));
        // What older versions used is not taken for anything else.
        for gone in [8, 9] {
            let mut header = request.encode();
            header[3] = gone;
            assert_eq!(DataRequest::decode(&header), Err(Error::Malformed));
        }
        lines.push((format!("DataRequest.{}", data_operation(&operation)), request.encode().to_vec()));
    }
    for reply in examples::data_replies() {
        assert_eq!(DataReply::decode(&reply.encode()), Ok(reply));
        lines.push((format!("DataReply.{:#06x}", reply.status), reply.encode().to_vec()));
    }
    let shared = examples::shared_memory();
    assert_eq!(SharedMemory::decode(&shared.encode()), shared);
    lines.push(("SharedMemory".to_owned(), shared.encode().to_vec()));
    let (reply, lent) = (examples::lending_reply(), examples::lent_bytes());
    assert_eq!(DataReply::decode(&reply.encode()), Ok(reply));
    assert_eq!(lent.encode().len(), reply.lent_bytes_length());
    assert_eq!(LentBytes::decode(&lent.encode(), reply.bulk_bytes), Ok(lent.clone()));
    lines.push(("DataReply.lent".to_owned(), reply.encode().to_vec()));
    lines.push(("LentBytes".to_owned(), lent.encode()));
    check("data.txt", &lines);
}

#[test]
fn capability_and_bits() {
    let capability = examples::capability();
    assert_eq!(Capability::from_bytes(&capability.to_bytes()), Ok(capability));
    let mut lines = vec![
        ("Capability.header".to_owned(), capability.to_bytes().to_vec()),
        ("Capability.message".to_owned(), round_trip(&capability)),
    ];
    for (name, grant) in Grants::all().iter_names() {
        lines.push((format!("Grants.{name}"), round_trip(&grant)));
    }
    for (name, right) in Rights::all().iter_names() {
        lines.push((format!("Rights.{name}"), round_trip(&right)));
    }
    for example in examples::layouts() {
        lines.push((format!("Layout.{}", layout(&example)), round_trip(&example)));
    }
    for example in examples::group_opens() {
        let key = UserKey::new([7; 32]);
        let bytes = example.to_bytes(&key);
        assert_eq!(GroupOpen::from_bytes(&bytes, &key).as_ref(), Ok(&example));
        assert_eq!(GroupOpen::from_bytes(&bytes, &UserKey::new([8; 32])), Err(Error::CapabilityRejected));
        for end in 0..bytes.len() {
            assert!(GroupOpen::from_bytes(&bytes[..end], &key).is_err(), "the first {end} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(GroupOpen::from_bytes(&damaged, &key).is_err(), "bit {bit}");
        }
        lines.push((format!("GroupOpen.{}", layout(&example.layout)), bytes));
    }
    check("capability.txt", &lines);
}

#[test]
fn frames() {
    let mut lines = Vec::new();
    for (name, id, example) in [
        ("Frame.Renew", 1, Message::Renew { groups: Vec::new() }),
        ("Frame.Shard", u64::MAX, examples::messages().swap_remove(0)),
    ] {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, id, &example);
        let split = frame::split(&bytes).unwrap().unwrap();
        assert_eq!((split.id, split.bytes(), codec::from_bytes(split.body)), (id, bytes.len(), Ok(example)));
        assert!((0..bytes.len()).all(|end| frame::split(&bytes[..end]) == Ok(None)), "{name} before it is whole");
        lines.push((name.to_owned(), bytes));
    }
    check("frame.txt", &lines);
}
