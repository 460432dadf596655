//! The back machine: each operation by itself, and random operations against a plain model of a POSIX tree.

mod model;
mod operations;
mod posix;
mod size;
