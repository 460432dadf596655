//! Whole nodes and clients over real sockets and files: one program, since each one would take the compiler about as
//! long as all of them together. Alone in programs of their own are those that look at their process (`memory.rs`,
//! `limits.rs`), and those whose cases are processes (`rdma.rs`).

mod across;
mod away;
mod behind;
mod changing;
mod conversions;
mod fenced;
mod files;
mod flow_control;
mod full;
mod given_up;
mod groups;
mod late_bytes;
mod lists;
mod locks;
mod moves;
mod orders;
mod orphans;
mod over;
mod pages;
mod paths;
mod peer_memory;
mod placement;
mod posix;
mod ranges;
mod regions;
mod releases;
mod serving;
mod spill;
mod split;
mod streams;
mod striped;
mod xattrs;
