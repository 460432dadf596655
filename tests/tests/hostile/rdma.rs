//! Memory that a client names for the node to move bytes into and out of: what it never showed, and who may not.

use crate::connections::*;
use crate::scene::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use weft_client::Way;
use weft_protocol::data::{BulkDescriptor, DataOperation, DataReply, DataRequest, REPLY_BYTES};
use weft_protocol::handshake::KeyName;
use weft_protocol::limits::RDMA_REGIONS_MAX;
use weft_protocol::{Error, data};
use weft_ucx::{Library, Liveness, Receiver, Region};

/// A client's end, with memory to show.
struct Memory {
    version: [u8; 4],
    receiver: Receiver,
    region: Region,
}

impl Memory {
    fn new() -> Option<Self> {
        let made = Library::get().and_then(|library| {
            Ok(Self { version: library.wire_version(), receiver: Receiver::new()?, region: Region::allocate(8192)? })
        });
        made.inspect_err(|error| println!("skipped: {error}")).ok()
    }

    fn named(&self, key: u32, from: u64) -> BulkDescriptor {
        BulkDescriptor { address: self.region.address().wrapping_add(from), key, memory_type: 0 }
    }
}

impl Data<'_> {
    fn reply(&self) -> Option<DataReply> {
        let mut header = [0; REPLY_BYTES];
        self.socket.receive_exact(&mut header).ok()?;
        Some(DataReply::decode(&header).expect("a reply"))
    }

    fn open_rdma(&self, version: [u8; 4], address: &[u8]) -> Result<(), Error> {
        self.open_rdma_with(version, false, address).map(|_| ())
    }

    /// With requests by the socket, or as messages; the node's address, and whether UCX watches it.
    fn open_rdma_with(&self, version: [u8; 4], messages: bool, address: &[u8]) -> Result<(Vec<u8>, Liveness), Error> {
        let told = [&version[..], &[u8::from(messages)], address].concat();
        let request = DataRequest::about_nothing(DataOperation::OpenRdma, u32::try_from(told.len()).expect("short"));
        self.socket.send_all_with(&request.encode(), &told).expect("sent");
        let reply = self.reply().expect("answered");
        let mut theirs = vec![0; reply.bulk_bytes as usize];
        self.socket.receive_exact(&mut theirs).expect("the node's address");
        let liveness = if reply.size == 0 { Liveness::Caller } else { Liveness::Endpoint };
        reply.result().map(|_| (theirs, liveness))
    }

    fn show(&self, memory: BulkDescriptor, bytes: u64, key: &[u8]) {
        let told = [&bytes.to_le_bytes()[..], key].concat();
        let request = DataRequest::about_nothing(DataOperation::ShowMemory, u32::try_from(told.len()).expect("short"));
        let sent = self.socket.send_all_with(&DataRequest { memory, ..request }.encode(), &told);
        // The node may have hung up on what came before.
        let _ = sent;
    }

    /// Asks for the victim's bytes in this memory. `None`: the node ended the connection.
    fn read_into(&self, memory: BulkDescriptor) -> Option<Result<u32, Error>> {
        let request = self.request(DataOperation::Read, 20, self.signed(self.claims()));
        self.socket.send_all(&DataRequest { memory, ..request }.encode()).ok()?;
        self.reply().map(|reply| reply.result().map(|reply| reply.bulk_bytes))
    }
}

#[test]
fn a_node_moves_bytes_only_where_it_was_shown_memory() {
    let Some(memory) = Memory::new() else { return };
    let mut scene = Scene::new();
    let address = memory.receiver.address().expect("an address");
    let key = memory.region.packed_key().expect("a key");
    let owner = Who::derive(&scene.fs.key, KeyName::Owner);
    let (mut closed, bytes) = (0, memory.region.bytes() as u64);
    let enter = |way| {
        let data = Data::new(&scene, way, &owner);
        assert_eq!(data.open_rdma(memory.version, &address), Ok(()));
        data.show(memory.named(7, 0), bytes, &key);
        data
    };
    for way in [Way::Tcp, Way::Unix] {
        let foreign = [
            memory.named(8, 0),
            memory.named(7, bytes - 19),
            memory.named(7, 0u64.wrapping_sub(1)),
            BulkDescriptor { address: u64::MAX - 3, ..memory.named(7, 0) },
            BulkDescriptor { address: 0, ..memory.named(7, 0) },
        ];
        for named in foreign {
            assert_eq!(enter(way).read_into(named), None, "{named:?}");
            closed += 1;
        }
        let mut data = enter(way);
        let elsewhere = BulkDescriptor { memory_type: 1, ..memory.named(7, 0) };
        assert_eq!(data.read_into(elsewhere), Some(Err(Error::NotSupported)), "memory of an accelerator");
        // Hidden, it is memory that was never shown.
        let hide = DataRequest::about_nothing(DataOperation::ShowMemory, 0);
        data.socket.send_all(&DataRequest { memory: memory.named(7, 0), ..hide }.encode()).expect("sent");
        data.is_in_order();
        assert_eq!(data.read_into(memory.named(7, 0)), None);
        // Lengths that overflow, and more than a connection may show.
        let data = enter(way);
        data.show(BulkDescriptor { address: u64::MAX - 5, key: 9, memory_type: 0 }, 100, &key);
        assert!(data.reply().is_none());
        let data = enter(way);
        (0..=RDMA_REGIONS_MAX).for_each(|number| data.show(memory.named(100 + number as u32, 0), bytes, &key));
        assert!(data.reply().is_none());
        // Nothing was opened.
        let data = Data::new(&scene, way, &owner);
        data.show(memory.named(7, 0), bytes, &key);
        assert!(data.reply().is_none());
        let data = Data::new(&scene, way, &owner);
        assert_eq!(data.read_into(memory.named(7, 0)), None);
        closed += 5;
    }
    let mut untouched = [1; 8192];
    assert!(memory.region.copy_out(0, &mut untouched));
    assert!(untouched.iter().all(|byte| *byte == 0), "nothing was put there");
    scene.has_rejected(closed, 0);
    scene.is_unharmed("named memory");
}

/// UCX would end the node's process, should it hear of that first.
#[test]
fn a_client_that_vanishes_while_it_is_being_connected_harms_nobody() {
    let mut scene = Scene::new();
    let owner = Who::derive(&scene.fs.key, KeyName::Owner);
    for milliseconds in [0, 1, 5, 50] {
        let Some(memory) = Memory::new() else { return };
        let mut data = Data::new(&scene, Way::Tcp, &owner);
        let address = memory.receiver.address().expect("an address");
        assert_eq!(data.open_rdma(memory.version, &address), Ok(()));
        data.show(memory.named(7, 0), memory.region.bytes() as u64, &memory.region.packed_key().expect("a key"));
        // The memory is there until the node knows it.
        data.is_in_order();
        let read = data.request(DataOperation::Read, 20, data.signed(data.claims()));
        data.socket.send_all(&DataRequest { memory: memory.named(7, 0), ..read }.encode()).expect("sent");
        // Its own end does nothing meanwhile.
        std::thread::sleep(Duration::from_millis(milliseconds));
        drop(data);
    }
    scene.is_unharmed("clients that vanish");
}

#[test]
fn addresses_are_taken_from_the_owner_and_of_the_same_library_only() {
    let Some(memory) = Memory::new() else { return };
    let mut scene = Scene::new();
    let address = memory.receiver.address().expect("an address");
    // What a user says is not even looked at: it would end the node.
    let mut data = Data::new(&scene, Way::Tcp, &scene.user());
    assert_eq!(data.open_rdma(memory.version, &[0xff; 300]), Err(Error::NotSupported));
    assert_eq!(data.open_rdma(memory.version, &address), Err(Error::NotSupported));
    let request = DataRequest::about_nothing(DataOperation::Stat, 0);
    assert_eq!(data.ask(request), Err(Error::CapabilityRejected), "the connection is in order");
    let mut data = Data::new(&scene, Way::Tcp, &Who::derive(&scene.fs.key, KeyName::Owner));
    let [major, a, minor, b] = memory.version;
    assert_eq!(data.open_rdma([major, a, minor.wrapping_add(1), b], &[0xff; 300]), Err(Error::NotSupported));
    data.is_in_order();
    for bytes in [0, data::RDMA_PREFACE_BYTES as u32, 1 << 20] {
        let data = Data::new(&scene, Way::Tcp, &Who::derive(&scene.fs.key, KeyName::Owner));
        let request = DataRequest::about_nothing(DataOperation::OpenRdma, bytes);
        data.socket.send_all(&request.encode()).expect("sent");
        assert!(data.reply().is_none(), "{bytes} bytes");
    }
    scene.has_rejected(3, 1);
    scene.is_unharmed("addresses");
}

/// A connection whose requests go as messages, and an end of its own for them.
fn enter_with_messages<'a>(scene: &'a Scene, owner: &Who) -> Option<(Data<'a>, Memory)> {
    let mut memory = Memory::new()?;
    let data = Data::new(scene, Way::Tcp, owner);
    let address = memory.receiver.address().expect("an address");
    let (theirs, liveness) = data.open_rdma_with(memory.version, true, &address).expect("opened");
    memory.receiver.connect(&theirs, liveness).expect("connected");
    Some((data, memory))
}

const LOOK: Duration = Duration::from_micros(50);
const PATIENCE: Duration = Duration::from_secs(20);

fn tell(receiver: &Receiver, message: &[u8]) {
    receiver.tell(message).expect("sent");
}

/// The next message, or `None` when the connection has ended.
fn hear(receiver: &Receiver, data: &Data<'_>) -> Option<Box<[u8]>> {
    let since = Instant::now();
    let goes_on = || if since.elapsed() > PATIENCE { Err(weft_ucx::Error::Late) } else { Ok(()) };
    match receiver.next(data.socket.as_fd(), LOOK, goes_on) {
        Err(weft_ucx::Error::Late) => panic!("neither an answer nor an end"),
        // UCX may hear of the end first.
        heard => heard.ok().flatten(),
    }
}

/// Shows memory with a message, and has it filled; the messages for both.
fn show_and_read(data: &Data<'_>, memory: &Memory) -> (Vec<u8>, Vec<u8>) {
    let show = DataRequest::about_nothing(DataOperation::ShowMemory, 0);
    let key = memory.region.packed_key().expect("a key");
    let shown = [&(memory.region.bytes() as u64).to_le_bytes()[..], &key].concat();
    let bytes = u32::try_from(shown.len()).expect("short");
    let show = [&DataRequest { memory: memory.named(7, 0), bytes, ..show }.encode()[..], &shown].concat();
    tell(&memory.receiver, &show);
    let read = data.request(DataOperation::Read, 20, data.signed(data.claims()));
    let read = DataRequest { memory: memory.named(7, 0), ..read }.encode().to_vec();
    tell(&memory.receiver, &read);
    let reply = hear(&memory.receiver, data).expect("by a message");
    let reply = DataReply::decode(reply.as_ref().try_into().expect("its length")).expect("a reply");
    assert_eq!(reply.result().map(|reply| reply.bulk_bytes), Ok(20));
    (show, read)
}

/// What is registered no more is the adapter's to refuse. (Elsewhere, and where UCX keeps registrations for later, the
/// bytes go to pages that nobody else has.)
#[test]
fn memory_that_a_client_has_freed_takes_its_connection_with_it() {
    let is = |name, begin| std::env::var(name).is_ok_and(|value: String| value.starts_with(begin));
    if !is("WEFT_UCX_TLS", "rc") || !is("UCX_IB_REG_METHODS", "direct") {
        println!("skipped: it takes an adapter alone: WEFT_UCX_TLS=rc_verbs,tcp:aux UCX_IB_REG_METHODS=direct");
        return;
    }
    let mut scene = Scene::new();
    let owner = Who::derive(&scene.fs.key, KeyName::Owner);
    let Some((data, memory)) = enter_with_messages(&scene, &owner) else { return };
    let (_, read) = show_and_read(&data, &memory);
    let Memory { receiver, region, .. } = memory;
    drop(region);
    tell(&receiver, &read);
    let heard = hear(&receiver, &data).map(|reply| DataReply::decode(reply.as_ref().try_into().expect("its length")));
    assert_eq!(heard.map(|reply| reply.expect("a reply").result().map(|reply| reply.bulk_bytes)), None);
    assert!(data.reply().is_none(), "the adapter has refused");
    drop(data);
    scene.is_unharmed("freed memory");
}

#[test]
fn messages_that_are_no_requests_end_the_connection() {
    let mut scene = Scene::new();
    let owner = Who::derive(&scene.fs.key, KeyName::Owner);
    let Some((data, memory)) = enter_with_messages(&scene, &owner) else { return };
    // First what is one.
    let (show, _) = show_and_read(&data, &memory);
    drop((data, memory));

    let sync = scene_request(&scene, &owner, DataOperation::Sync);
    let read = scene_request(&scene, &owner, DataOperation::Read);
    let wrong: [Vec<u8>; 7] = [
        Vec::new(),
        vec![0; 120],
        // What is not about shown memory goes by the socket.
        sync.encode().to_vec(),
        read.encode().to_vec(),
        show[..show.len() - 1].to_vec(),
        [&DataRequest { memory: BulkDescriptor { key: 7, ..read.memory }, ..read }.encode()[..], &[1]].concat(),
        vec![0xff; 100_000],
    ];
    for message in &wrong {
        let (data, memory) = enter_with_messages(&scene, &owner).expect("as before");
        tell(&memory.receiver, message);
        assert!(hear(&memory.receiver, &data).is_none(), "{} bytes", message.len());
        assert!(data.reply().is_none(), "{} bytes", message.len());
    }
    scene.has_rejected(wrong.len() as u64, 0);
    scene.is_unharmed("messages");
}

fn scene_request(scene: &Scene, owner: &Who, operation: DataOperation) -> DataRequest {
    let data = Data::new(scene, Way::Tcp, owner);
    data.request(operation, 20, data.signed(data.claims()))
}
