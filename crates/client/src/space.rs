//! Space of the file system: what its storage servers have, added up.

use crate::block_on::block_on;
use crate::client::Client;
use std::collections::BTreeMap;
use weft_protocol::message::storage::{Space, StorageAnswer, StorageRequest};
use weft_protocol::{Error, NodeId, NodeIdentity, Result};

/// Space of the whole file system: the sum, and each storage server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileSystemSpace {
    pub total: u64,
    pub free: u64,
    /// Files that have an object.
    pub files: u64,
    pub nodes: Vec<(NodeId, Result<Space>)>,
}

impl Client {
    /// Space of the file system. What several storage servers of one machine have on one device counts once in the
    /// sums.
    pub fn space(&self) -> Result<FileSystemSpace> {
        let mut nodes = BTreeMap::new();
        let mut devices: BTreeMap<(u64, NodeIdentity), Vec<Space>> = BTreeMap::new();
        for record in self.map().nodes.iter().filter(|record| record.stores) {
            let space = match block_on(self.0.0.calls().storage_call(record.id, StorageRequest::Space)) {
                Ok(StorageAnswer::Space(space)) => Ok(space),
                Ok(_) => Err(Error::Malformed),
                Err(error) => Err(error),
            };
            if let Ok(space) = &space {
                devices.entry((space.device, record.identity)).or_default().push(*space);
            }
            nodes.insert(record.id, space);
        }
        let sums: Vec<(u64, u64)> = devices.values().map(|stores| on_one_device(stores)).collect();
        Ok(FileSystemSpace {
            total: sums.iter().map(|(total, _)| *total).fold(0, u64::saturating_add),
            free: sums.iter().map(|(_, free)| *free).fold(0, u64::saturating_add),
            files: nodes.values().flatten().map(|space| space.objects).sum(),
            nodes: nodes.into_iter().collect(),
        })
    }
}

/// What stores on one device have together, in all and free: not more than the device has.
fn on_one_device(stores: &[Space]) -> (u64, u64) {
    if let Some(whole) = stores.iter().find(|space| space.reserve == 0) {
        // One without a cap may take all of it.
        return (whole.total, whole.free);
    }
    let sum = |field: fn(&Space) -> u64| stores.iter().map(field).fold(0, u64::saturating_add);
    let device_free = stores.iter().map(|space| space.device_free).min().unwrap_or(0);
    let free = sum(|space| space.free).min(device_free);
    (sum(|space| space.total.saturating_sub(space.free)).saturating_add(free), free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_on_one_device_have_not_more_than_it_has() {
        let capped = |used: u64, free: u64| Space {
            total: used + 1 + free,
            free,
            reserve: 1,
            objects: 0,
            device: 5,
            device_free: 1000,
        };
        assert_eq!(on_one_device(&[capped(10, 300), capped(0, 300)]), (612, 600), "the caps fit");
        assert_eq!(on_one_device(&[capped(10, 700), capped(0, 700)]), (1012, 1000), "they promise more than is there");
        let whole = Space { total: 5000, free: 1000, reserve: 0, ..capped(0, 1000) };
        assert_eq!(on_one_device(&[whole, whole, capped(0, 300)]), (5000, 1000), "one without a cap");
    }
}
