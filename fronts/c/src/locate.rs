//! Where bytes are.

use crate::border::count;
use crate::connection::FsHandle;
use crate::raw;
use std::ffi::c_char;
use weft_library::{Failure, Located, Outcome, Place, locate};

const HOST_BYTES: usize = 256;
const SITE_BYTES: usize = 64;

/// `struct weft_location`.
#[repr(C)]
pub struct LocationOfC {
    file: u64,
    offset: u64,
    length: u64,
    node: i32,
    local: u32,
    spare: [u64; 2],
    host: [u8; HOST_BYTES],
    site: [u8; SITE_BYTES],
}

impl LocationOfC {
    fn new(file: usize, located: &Located) -> Outcome<Self> {
        let location = &located.location;
        Ok(Self {
            file: file as u64,
            offset: location.offset,
            length: location.bytes,
            node: location.node.map_or(-1, |node| i32::from(node.0)),
            local: u32::from(located.is_local),
            spare: [0; 2],
            host: text(&location.host)?,
            site: text(&location.site)?,
        })
    }
}

fn text<const N: usize>(text: &str) -> Outcome<[u8; N]> {
    let mut field = [0; N];
    if text.len() >= N {
        return Err(Failure::new(libc::EOVERFLOW, format!("'{text}' has more than {} bytes", N - 1)));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Ok(field)
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_locate(
    fs: FsHandle,
    paths: *const *const c_char,
    path_count: usize,
    locations: *mut LocationOfC,
    max: usize,
) -> isize {
    count(|| {
        let fs = fs.get()?;
        // SAFETY: both are as `weft.h` says.
        let (paths, into) =
            unsafe { (raw::slice(paths, path_count, "paths")?, raw::slice_mut(locations, max, "locations")?) };
        // SAFETY: each is as `weft.h` says.
        let place = |path: &*const c_char| Ok(Place::new(&fs, unsafe { raw::text(*path, "a path") }?));
        let mut stored = 0;
        for (file, pieces) in locate(&paths.iter().map(place).collect::<Outcome<Vec<_>>>()?)?.iter().enumerate() {
            for located in pieces {
                if let Some(into) = into.get_mut(stored) {
                    *into = LocationOfC::new(file, located)?;
                }
                stored += 1;
            }
        }
        Ok(stored)
    })
}
