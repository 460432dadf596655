//! The front by event scripts: each lease rule, expiry, lost and doubled messages, exactly once, two shards together.

mod across;
mod across_random;
mod below;
mod costs;
mod cuts;
mod data;
mod fences;
mod groups;
mod harness;
mod leases;
mod limits;
mod locks;
mod moving;
mod orphans;
mod passing;
mod random;
mod relocations;
mod renames;
mod repeats;
mod shards;
mod slots;
mod split;
mod spread;
mod striped;
mod times;
mod xattrs;
