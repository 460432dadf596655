//! Everything has a limit with a name. Reaching one gives a named error or back-pressure, never growth.

/// Longest name of a directory entry, bytes. What Linux allows (NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, bytes. What Linux allows (PATH_MAX, with its closing zero).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Symbolic links followed in one path walk. What Linux follows.
pub const SYMLINKS_FOLLOWED_MAX: u32 = 40;
/// Largest body of a control message, bytes. A page of a directory listing is the largest one.
pub const CONTROL_BODY_BYTES_MAX: usize = 1 << 20;
/// Largest bulk transfer in one data request, bytes. Larger requests are cut by the client.
pub const BULK_BYTES_MAX: u32 = 16 << 20;
/// Most parts of a server's memory that the bytes of one read are lent in: of buffers of 1 MiB, as many as the largest
/// read needs when it begins inside a block.
pub const LENT_PARTS_MAX: usize = 17;
/// Longest address of a client for transfers that a server makes, bytes: grows with the devices that it has.
pub const RDMA_ADDRESS_BYTES_MAX: usize = 16 << 10;
/// Longest packed key of memory that a client shows, bytes.
pub const RDMA_KEY_BYTES_MAX: usize = 4 << 10;
/// Memory that one data connection has shown at a time, pieces of it.
pub const RDMA_REGIONS_MAX: usize = 256;
/// Bytes of a file below that one request copies: few enough for the time that a request between nodes may take, on a
/// slow file system too.
pub const FILL_BYTES_MAX: u64 = 64 << 20;
/// Names of a directory below that one answer tells, or one call notes; an answer also ends at
/// [`DIRECTORY_PAGE_BYTES_MAX`] bytes of names and targets of symbolic links.
pub const NAMES_BELOW_MAX: usize = 4096;
/// Names that one call removes.
pub const UNLINK_NAMES_MAX: usize = 64;
/// Entries in one page of a directory listing; a page also ends at [`DIRECTORY_PAGE_BYTES_MAX`].
pub const DIRECTORY_PAGE_ENTRIES_MAX: u32 = 4096;
/// Bytes of names in one page of a directory listing: with attributes beside each it stays below the body's limit.
pub const DIRECTORY_PAGE_BYTES_MAX: usize = 256 << 10;
/// Slots of one session at one node: requests that one client has outstanding there.
pub const SLOTS_MAX: u16 = 64;
/// Calls of ended sessions that one call repeats: a client whose sessions end one after the other gives up before.
pub const REPEATED_CALLS_MAX: usize = 4;
/// Last replies of ended sessions that a shard keeps for calls that repeat theirs: 64 MiB at most, without long lists
/// of names. Beyond it those of the sessions that ended first are forgotten.
pub const ENDED_REPLIES_MAX: usize = 262_144;
/// Data connections of one session at one node: each is a thread there. A client shares them among its files.
pub const DATA_CONNECTIONS_PER_SESSION_MAX: usize = 64;
/// Unanswered requests on one data connection. A reply is 40 bytes and costs a Unix socket's buffer up to 1 KiB: their
/// replies fit the kernel's default of 208 KiB, so that a node does not block on a client that is busy sending.
pub const DATA_REQUESTS_IN_FLIGHT_MAX: usize = 128;
/// Leases that one session may hold at one shard. Beyond it replies grant none, and the client asks each time.
pub const LEASES_PER_SESSION_MAX: usize = 1 << 20;
/// Groups that one session may have joined.
pub const GROUPS_PER_SESSION_MAX: usize = 4096;
/// How long a session lives after its last message, milliseconds. All its leases end with it.
pub const SESSION_TERM_MS: u64 = 10_000;
/// How long before its end a client stops to trust its session's term, milliseconds: covers clock drift of the two
/// sides.
pub const SESSION_TERM_MARGIN_MS: u64 = 500;
/// Object identifiers in one batch.
pub const OBJECT_BATCH_COUNT: u32 = 1024;
/// Runs of leased identifiers that one session may have at one node, counted where they do not follow each other: at
/// least 67 million objects. Beyond it the session gets no more.
pub const OBJECT_RUNS_PER_SESSION_MAX: usize = 65_536;
/// Objects in one `Fence`: with their files they stay below the body's limit.
pub const FENCED_OBJECTS_MAX: usize = 32_768;
/// Advisory locks that one session may hold at one shard: ranges, after those of one owner were merged. Beyond it a
/// lock is refused with [`crate::Error::NoLocks`].
pub const LOCKS_PER_SESSION_MAX: usize = 65_536;
/// Requests for locks of one session that may wait at one shard. Beyond it one is refused likewise.
pub const LOCK_WAITS_PER_SESSION_MAX: usize = 4096;
/// Ranges in one request for locks.
pub const LOCK_RANGES_MAX: usize = 1024;
/// Leases in one release message.
pub const RELEASE_KEYS_MAX: usize = 4096;
/// Groups in a user's credentials. What Linux allows is 65,536; NFS allows 16.
pub const GROUPS_MAX: usize = 256;
/// Keys of users that a node remembers as revoked. Beyond it the owner is told `Busy`: a new file system has new keys.
pub const REVOKED_KEYS_MAX: usize = 65_536;
/// Objects of a striped file. Their identifiers stand in its inode's record, and the rights to them in the reply to an
/// open.
pub const STRIPE_WIDTH_MAX: u16 = 64;
/// Least stripe of a striped file, bytes. What is worth a request of its own is far more; simulated files are short.
pub const STRIPE_BYTES_MIN: u32 = 16;
/// Largest stripe of a striped file, bytes.
pub const STRIPE_BYTES_MAX: u32 = 1 << 30;
/// Parts of a split file. Beyond it a publication is refused with [`crate::Error::NoSpace`].
pub const SPLIT_PARTS_MAX: usize = 16_384;
/// Extents of one part. Beyond it likewise. The shard takes about 60 bytes for a run, 80 for a strided one.
pub const SPLIT_EXTENTS_MAX: u64 = 1 << 20;
/// Extents of one file, about 1 GiB at its shard. Beyond it likewise.
pub const SPLIT_FILE_EXTENTS_MAX: u64 = 1 << 24;
/// Strided extents of one file. Beyond it likewise.
pub const SPLIT_STRIDED_MAX: u64 = 1 << 20;
/// Extents in one answer to a reader, half of them runs. With their numbers and the rights to their parts they fit in a
/// control message.
pub const SPLIT_ANSWER_EXTENTS_MAX: usize = 8192;
/// Patterns that one call publishes.
pub const SPLIT_PATTERNS_MAX: usize = 2048;
/// Parts that one call publishes: those of the processes of a node.
pub const SPLIT_PUBLISHED_MAX: usize = 256;
/// Longest name of an extended attribute, bytes, the prefix of its namespace included. What Linux allows.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute, bytes. What Linux allows.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// All extended attributes of one inode, bytes of names and values: one reply has them all, and a list of their names
/// is never longer than what Linux allows (64 KiB with a zero after each).
pub const XATTRS_BYTES_MAX: usize = 128 << 10;
/// Extended attributes of one inode.
pub const XATTRS_MAX: usize = 256;
/// Hard links to one inode.
pub const LINKS_MAX: u32 = 65_000;
/// Largest size of a file, bytes: offsets stay positive as signed 64-bit numbers.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Parts of a `hash` directory, itself included.
pub const DIRECTORY_PARTS_MAX: usize = 64;
/// Dentries of such a part in one `FillPart`.
pub const FILL_DENTRIES_MAX: usize = 1024;
/// Requests parked at one shard while leases are recalled. Beyond it a request is answered "busy, try again".
pub const PARKED_REQUESTS_MAX: usize = 65_536;
/// Requests in one answer to `Stuck`, the oldest ones: with their texts they stay below the body's limit.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Longest text in each of them, bytes; the rest is cut off.
pub const IN_FLIGHT_TEXT_BYTES_MAX: usize = 256;
/// Nodes in one file system.
pub const NODES_MAX: usize = 4096;
/// Largest part of a shard in one `Take`, bytes. The shard serves nobody while its keys are copied into one, some
/// tenths of a millisecond.
pub const SHARD_PART_BYTES_MAX: usize = 256 << 10;
/// Most bytes of what a shard has beside its store: sessions, leases and parked calls in millions.
pub const SHARD_REST_BYTES_MAX: usize = 1 << 30;
/// Logical shards in one file system.
pub const SHARDS_MAX: usize = 16_384;
/// How long a capability is good, seconds. Clocks of two nodes may differ by a small part of it.
pub const CAPABILITY_TERM_SECONDS: u32 = 3600;
/// Longest text in a message (error texts, addresses, paths of stores), bytes.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Time that a peer has for the whole handshake, milliseconds.
pub const HANDSHAKE_MS_MAX: u64 = 5_000;
/// Bytes that an open file buffers for write-behind or read-ahead, by default.
pub const HANDLE_BUFFER_BYTES: usize = 1 << 20;
