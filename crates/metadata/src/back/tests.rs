//! The back machine: each operation by itself, and random operations against a plain model of a POSIX tree,
//! also where many names collide.

mod collisions;
mod model;
mod operations;
mod posix;
mod shards;
mod size;
mod slots;
mod split;
mod xattrs;
