//! Object stores on real devices, and the one layer that moves bytes between them and sockets.
//!
//! There are two: [`directory`], an object is a file, and [`region`], an object is a region of a device. A store
//! ([`ObjectStore`]) answers a read with a [`Segment`] and a write with a place ([`WritePlan`]): values. The
//! [`executor`] turns them into `sendfile`, `splice`, `pread` and `pwrite`, and [`rdma`] into puts and gets. Servers,
//! benchmarks and tools share it.

mod blocks;
pub mod directory;
pub mod executor;
pub mod guard;
pub mod rdma;
pub mod region;
mod ring_pages;
pub mod space;
pub mod store;
pub mod windows;

pub use blocks::Loans;
pub use directory::DirectoryStore;
pub use executor::Pipe;
pub use guard::WriteGuard;
pub use region::RegionStore;
pub use store::{ObjectHandle, ObjectStat, ObjectStore, Segment, WritePlan};
