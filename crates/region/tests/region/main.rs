//! The store on a device that remembers what it was asked, against plain models.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod appended;
mod campaign;
mod cleaner;
mod damage;
mod device;
mod failures;
mod feed;
mod gone;
mod grow;
mod latent;
mod layer;
mod partway;
mod ready;
mod recorder;
mod scrub;
mod sizes;
mod sparse;
mod store;
mod stream;
mod sums;
mod sweep;
mod together;
mod versions;
mod watched;
