//! A consistency checker for real mounts.
//!
//! Worker processes make system calls through several mounts of one file system, and calls of the client library; every
//! result is held against a plain POSIX model.
//!
//! - [`call`], [`outcome`], [`script`]: calls and their results as values and text.
//! - [`model`]: what a call must return when calls are made one after another.
//! - [`file_system`], [`ground`], [`worker`]: nodes, mounts and processes.
//! - [`sequential`]: runs a script one call after another; [`generate`] makes random ones.
//! - [`concurrent`]: runs scripts in which calls overlap, with faults, and judges what happened.
//! - [`violation`]: what a run may show to be wrong; [`minimize`] shortens a script that does.
//! - [`campaign`]: modes and seeds in turn.
//!
//! Not here: the decisions of clients and nodes; nothing of this crate knows how the file system works.

pub mod call;
pub mod campaign;
pub mod concurrent;
pub mod file_system;
pub mod generate;
pub mod ground;
pub mod minimize;
pub mod mode;
pub mod model;
pub mod outcome;
pub mod random;
pub mod script;
pub mod sequential;
pub mod stop;
pub mod violation;
pub mod worker;
