//! Tells what is in a sparse file, part by part, and goes on past what is damaged.

use super::{Header, Sparse};
use crate::address_space::AddressSpace;
use crate::device::Device;
use crate::dump::describe_block;
use crate::error::{Error, Result};
use crate::geometry::COPIES;
use crate::{BLOCK, BLOCK_BYTES};
use std::sync::Arc;

/// Tells of headers and objects in lines. Nothing is written, if the file is a [`Shadow`](crate::Shadow). `scan`: also
/// of regions that have something, and whose object is not there.
pub(crate) fn dump(file: Arc<dyn Device>, scan: bool, tell: &mut dyn FnMut(String)) -> Result<()> {
    for copy in COPIES {
        match Header::read_copy(&*file, copy) {
            Ok(header) => tell(format!("header {copy}: {}", header.describe())),
            Err(error @ Error::Device { .. }) => return Err(error),
            Err(error) => tell(format!("header {copy}: {error}")),
        }
    }
    let sparse = match Sparse::load(file) {
        Ok(sparse) => sparse,
        Err(error) => {
            tell(format!("objects: {error}"));
            return Ok(());
        }
    };
    sparse.each_region(&mut |id| {
        tell(describe(&sparse, id, "an object without super block")?);
        Ok(())
    })?;
    if !scan {
        return Ok(());
    }
    let mut next = 1;
    while let Some(id) = sparse.region_with_data(next)? {
        if !sparse.existence.has(id) {
            tell(format!("not there: {}", describe(&sparse, id, "bytes without super block")?));
        }
        next = id + 1;
    }
    Ok(())
}

fn describe(sparse: &Sparse, id: u64, without: &str) -> Result<String> {
    let mut block = vec![0; BLOCK_BYTES];
    let region = sparse.region(id);
    let text = match sparse.read(region.start, &mut block) {
        Ok(()) => describe_block(&block).unwrap_or_else(|| without.to_owned()),
        Err(error) => error.to_string(),
    };
    let (mut bytes, mut pieces) = (0, 0);
    sparse.each_data(region, &mut |data| {
        (bytes, pieces) = (bytes + (data.end - data.start), pieces + 1);
        Ok(())
    })?;
    Ok(format!("region {id}: {text}; {} blocks in {pieces} pieces", bytes / BLOCK))
}
