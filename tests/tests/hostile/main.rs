//! Bytes of strangers, and users who ask for what is not theirs, harm nobody.
//!
//! Each test does something hostile to a running file system, over TCP and over the Unix socket, and then checks that
//! an honest client is served, that a file made before has its contents and the root its names, and that the node's
//! counters have seen it.

mod connections;
mod data;
mod handshakes;
mod keys;
mod messages;
mod rdma;
mod scene;
