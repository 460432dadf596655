//! Makes a store in a file, puts an object into it, and finds it again: `cargo run --example objects FILE`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_region::{FileDevice, Format, Kind, Result, Store};

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("objects.store"), PathBuf::from);
    println!("{}", keep_and_find(&path)?);
    Ok(())
}

/// What the store in a new file of 64 MiB says of an object.
pub fn keep_and_find(path: &Path) -> Result<String> {
    let device = Arc::new(FileDevice::create(path, 64 << 20)?);
    let store = Store::format(device, Format::default())?;
    let object = store.create(Kind::Direct)?;
    object.write(0, b"what is written here")?;
    // Far behind it, with nothing between: a hole takes no space.
    object.write(1 << 30, b"and there")?;
    object.sync()?;
    let id = object.id();
    store.close()?;
    drop((object, store));

    let store = Store::open(Arc::new(FileDevice::open(path)?))?;
    let object = store.object(id, Kind::Direct)?;
    let mut found = [0; 20];
    object.read(0, &mut found)?;
    let usage = store.usage();
    let size = object.stat().map_or(0, |stat| stat.size);
    Ok(format!("object {id}: {:?}, {size} bytes; {} in use", String::from_utf8_lossy(&found), usage.total - usage.free))
}
