//! A connected client.

use crate::block_on::block_on;
use crate::counters::ClientCounters;
use crate::data_way::DataWay;
use crate::device_error::device;
use crate::identity::Identity;
use crate::instance::Instance;
use crate::invalidator::{Invalidator, OpenInodes};
use crate::native::NativeShell;
use crate::options::{ClientOptions, Way};
use crate::recall_connections::RecallConnections;
use crate::recalls;
use crate::waits::Waits;
use std::sync::{Arc, Weak};
use weft_client_core::{
    Caller, Calls, DirectoryListing, Entry, Files, IdleLimits, Location, PartUse, Placement, Tuning, XattrKey,
};
use weft_protocol::message::node::{NodeAnswer, NodeRequest};
use weft_protocol::message::shard::{RenameMode, ShardRequest};
use weft_protocol::{
    AttributeChanges, BelowNote, BelowPage, ClusterMap, Cookie, Credentials, Error, InheritedChange, InodeNumber, Name,
    NodeId, NodeIdentity, Plan, Result, SessionId, ShardId, XattrExpectation, XattrName, XattrValue,
};
use weft_ucx::{LastingMemory, RegisteredMemory};

/// A client of one file system.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Connected>);

/// The client machine over its shell. The session ends when the last clone of the client and the last file are gone.
pub(crate) struct Connected(pub Arc<Files<NativeShell>>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.shell().recalls.stop();
        self.shell().waits.client_ends();
        block_on(self.0.calls().end_sessions());
    }
}

impl Connected {
    pub fn shell(&self) -> &NativeShell {
        &self.0.calls().shell
    }
}

impl OpenInodes for Files<NativeShell> {
    fn open_inodes(&self) -> Vec<InodeNumber> {
        Files::open_inodes(self)
    }
}

impl Client {
    /// Connects to a running file system. Fails when none of its nodes answers or the key is refused.
    pub fn connect(instance: &Instance, options: &ClientOptions) -> Result<Client> {
        let first =
            SessionId::of_client(getrandom::u64().map_err(|_| Error::Device(weft_protocol::error::errno::EIO))?);
        let (identity, map) = Identity::of(instance, first)?;
        let caller = Caller { credentials: identity.credentials.clone(), is_fixed: identity.is_user() };
        let recalls = RecallConnections::new().map_err(device)?;
        let shell = NativeShell::new(identity, DataWay::of(options), recalls, Waits::new(options.soft));
        let mut tuning = Tuning { idle: idle_limits(), ..Tuning::NATIVE };
        if options.buffer_bytes != 0 {
            tuning.buffer_bytes = options.buffer_bytes;
        }
        let files = Arc::new(Files::new(Calls::new(shell, caller, map), tuning)?);
        let open: Weak<Files<NativeShell>> = Arc::downgrade(&files);
        files.calls().shell.invalidators.set_open(open);
        recalls::start(&files).map_err(device)?;
        Ok(Client(Arc::new(Connected(files))))
    }

    pub(crate) fn files(&self) -> &Files<NativeShell> {
        &self.0.0
    }

    /// The client machine, for fronts with procedures of their own over it (`weft-mount-core`). To be used while this
    /// client lives: the session ends with it.
    pub fn machine(&self) -> Arc<Files<NativeShell>> {
        Arc::clone(&self.0.0)
    }

    /// The credentials of the key that the client connected with.
    pub fn credentials(&self) -> Credentials {
        self.files().calls().caller.credentials.clone()
    }

    /// Whether the key speaks for one user only: whoever calls, the servers take it as that user.
    pub fn is_for_one_user(&self) -> bool {
        self.files().calls().caller.is_fixed
    }

    /// The machine that this client runs on.
    pub fn identity(&self) -> NodeIdentity {
        self.0.shell().identity.node
    }

    /// The map as last seen.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.files().calls().map()
    }

    /// Asks a node as such (status, stuck, shutdown).
    pub fn node_request(&self, node: NodeId, request: NodeRequest) -> Result<NodeAnswer> {
        block_on(self.files().calls().node_call(node, request))
    }

    /// Does nothing at the shard of `/`, and waits for it: the limit of what any call can reach.
    pub fn ping(&self) -> Result<()> {
        let calls = self.files().calls();
        block_on(calls.call(&calls.caller.credentials, ShardId::ROOT, ShardRequest::Ping)).map(|_| ())
    }

    /// Who is told of recalls. At most one; set it before the first operation.
    pub fn set_invalidator(&self, invalidator: Arc<dyn Invalidator>) {
        self.0.shell().invalidators.set(invalidator);
    }

    /// Makes sure that file data goes to the client's home by UCX where that was asked for. An error says in words
    /// why it cannot.
    pub fn require_ucx(&self) -> std::result::Result<(), String> {
        let shell = self.0.shell();
        if shell.data_way.way != Way::Ucx {
            return Ok(());
        }
        let objects = &self.files().objects;
        match block_on(objects.data_connection_at_home()) {
            Ok(connection) => {
                connection.give_back(shell);
                Ok(())
            }
            Err(error) => Err(match shell.data_way.refusal() {
                reason if reason.is_empty() => error.to_string(),
                reason => reason,
            }),
        }
    }

    /// Registers memory for RDMA, for all transfers to come: none of them copies it or registers it again, as far as
    /// its size makes that worth while. Where nothing goes by RDMA the memory is only kept.
    pub fn register_memory(&self, memory: Box<dyn LastingMemory>) -> weft_ucx::Result<RegisteredMemory> {
        self.0.shell().data_way.register(memory)
    }

    /// What was done so far.
    pub fn counters(&self) -> ClientCounters {
        let shell = self.0.shell();
        shell.counters.snapshot(&shell.data_way.counters)
    }

    /// Has the servers end this client's session, as they do when its term has passed: what it then loses, and how it
    /// goes on, can be tried out without the wait.
    pub fn forget_session(&self) {
        let calls = self.files().calls();
        block_on(calls.forget_session());
        calls.begin_new_session(calls.session.id());
    }

    /// Writes back what is buffered and ends the session at every node. Further operations fail.
    pub fn close(&self) -> Result<()> {
        self.0.shell().waits.client_ends();
        block_on(self.files().close())
    }

    /// The inode of a name. `Error::NotFound` when it is not there.
    pub fn lookup(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<Entry> {
        block_on(self.files().lookup(who, parent, name))
    }

    /// Attributes of an inode.
    pub fn attributes(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        block_on(self.files().attributes(who, inode))
    }

    /// Changes attributes; with a size: `truncate`. What is buffered of an open file is written first.
    pub fn set_attributes(&self, who: &Credentials, inode: InodeNumber, changes: &AttributeChanges) -> Result<Entry> {
        block_on(self.files().set_attributes(who, inode, changes))
    }

    /// Sets the layout of files made in a directory from now on, and of those in directories made in it. The
    /// directory's owner may.
    pub fn set_directory_plan(&self, who: &Credentials, inode: InodeNumber, plan: Plan) -> Result<Entry> {
        block_on(self.files().set_inherited(who, inode, InheritedChange::Plan(plan)))
    }

    /// Sets the layout of an empty file.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]: it has bytes; [`Error::InUse`]: another client has it open, or a kernel that reads and
    /// writes the object itself.
    pub fn set_file_plan(&self, who: &Credentials, inode: InodeNumber, plan: Plan) -> Result<()> {
        block_on(self.files().set_file_plan(who, inode, plan))
    }

    /// Spreads the names of a directory over all shards, for many clients that make files in it. It keeps its names,
    /// and may be in use. The directory's owner may.
    pub fn spread(&self, who: &Credentials, inode: InodeNumber) -> Result<Entry> {
        block_on(self.files().spread(who, inode))
    }

    /// Sets where the names of a directory are, and of those that are made in it from now on. What is spread stays so.
    /// The directory's owner may.
    pub fn set_placement(&self, who: &Credentials, inode: InodeNumber, placement: Placement) -> Result<()> {
        block_on(self.files().set_placement(who, inode, placement))
    }

    /// Value of an extended attribute or a setting.
    pub fn value_of(&self, who: &Credentials, inode: InodeNumber, key: &XattrKey) -> Result<Vec<u8>> {
        block_on(self.files().value_of(who, inode, key))
    }

    /// Names of extended attributes. Settings are not among them.
    pub fn list_xattrs(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<XattrName>> {
        block_on(self.files().list_xattrs(who, inode))
    }

    /// Sets an extended attribute, or changes a setting.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoXattr`]: not as expected. For a setting, [`Error::Invalid`]: not a value that it
    /// may have, or an inode of a kind that has no such setting; [`Error::NotEmpty`]: a file that has bytes keeps its
    /// layout; [`Error::InUse`]: others have the file open.
    pub fn set_value(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        key_and_value: (&XattrKey, &XattrValue),
        expects: XattrExpectation,
    ) -> Result<()> {
        block_on(self.files().set_value(who, inode, key_and_value, expects))
    }

    /// Removes an extended attribute. [`Error::NotPermitted`]: a setting always has a value.
    pub fn remove_value(&self, who: &Credentials, inode: InodeNumber, key: &XattrKey) -> Result<()> {
        block_on(self.files().remove_value(who, inode, key))
    }

    /// Makes a directory. `mode` with the umask applied. Its inode is made on a shard of this client's home node.
    pub fn make_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name, mode: u16) -> Result<Entry> {
        block_on(self.files().make_directory(who, parent, name, mode))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, who: &Credentials, parent: InodeNumber, name: &Name, target: &[u8]) -> Result<Entry> {
        block_on(self.files().make_symlink(who, parent, name, target))
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<u8>> {
        block_on(self.files().read_link(who, inode))
    }

    /// Gives an inode one more name.
    pub fn link(&self, who: &Credentials, inode: InodeNumber, parent: InodeNumber, name: &Name) -> Result<Entry> {
        block_on(self.files().link(who, inode, parent, name))
    }

    /// Removes a name of a file or symbolic link.
    pub fn unlink(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        block_on(self.files().unlink(who, parent, name)).map(drop)
    }

    /// Removes names of files or symbolic links in one directory with one message. Returns how many of them, from the
    /// first on: it ends before one that cannot be removed, or that another client still uses. An error is that of the
    /// first one. At most [`UNLINK_NAMES_MAX`](weft_protocol::limits::UNLINK_NAMES_MAX) are removed.
    pub fn unlink_batch(&self, who: &Credentials, parent: InodeNumber, names: &[Name]) -> Result<usize> {
        block_on(self.files().unlink_batch(who, parent, names))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, who: &Credentials, parent: InodeNumber, name: &Name) -> Result<()> {
        block_on(self.files().remove_directory(who, parent, name))
    }

    /// Gives what has one name another.
    pub fn rename(
        &self,
        who: &Credentials,
        parent: InodeNumber,
        name: &Name,
        new_parent: InodeNumber,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        block_on(self.files().rename(who, (parent, name), (new_parent, new_name), mode)).map(drop)
    }

    /// One page of a directory listing: the entries after a cookie, in the order of cookies.
    pub fn read_directory(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        after: Cookie,
        entries_max: u32,
        with_attributes: bool,
    ) -> Result<DirectoryListing> {
        block_on(self.files().read_directory(who, inode, after, entries_max, with_attributes))
    }

    /// The parts of a split file, and what each has of it. `Error::Invalid`: the file is not split.
    pub fn parts(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<PartUse>> {
        block_on(self.files().parts(who, inode))
    }

    /// What is known of the names of a directory below, after one of them; for the owner of the file system.
    pub fn read_below(&self, who: &Credentials, directory: InodeNumber, after: Option<Name>) -> Result<BelowPage> {
        block_on(self.files().read_below(who, directory, after))
    }

    /// Says what is below a directory from now on; for the owner of the file system.
    pub fn note_below(&self, who: &Credentials, directory: InodeNumber, notes: Vec<BelowNote>) -> Result<()> {
        block_on(self.files().note_below(who, directory, notes))
    }

    /// Where the bytes of a file live.
    pub fn locate(&self, who: &Credentials, inode: InodeNumber) -> Result<Vec<Location>> {
        block_on(self.files().locate(who, inode))
    }
}

/// How many closed inodes this process may keep: with a descriptor, as many as a quarter of its own descriptors.
fn idle_limits() -> IdleLimits {
    let IdleLimits { inodes, descriptors } = Tuning::NATIVE.idle;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Without a limit there is nothing to leave to others.
    let quarter = limit.map_or(descriptors, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX));
    IdleLimits { inodes, descriptors: quarter.min(descriptors) }
}
