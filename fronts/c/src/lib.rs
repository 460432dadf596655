//! The C library: what `weft.h` declares, over the base of all libraries (`weft-library`).
//!
//! Functions stand in the order of the header, a module for each of its sections. Each checks what comes from C
//! ([`raw`], [`handles`]) and runs behind the [`border`], which stops panics, refuses the calls of forked children and
//! keeps the text of the last failure.
//!
//! Invariant: a handle is a number in a table, never an address: what C passes is looked up, not dereferenced.
//!
//! Not here: what an operation does (`weft-library`, and `weft-client` below it).
#![expect(unsafe_code, reason = "the place for it: each block says why it is sound")]

mod attributes;
mod border;
mod connection;
mod extents;
mod files;
mod handles;
mod hazards;
mod listing;
mod locate;
mod locks;
mod memory;
mod names;
mod queue;
mod raw;
mod requests;
mod table;
mod xattrs;
