//! Connecting to file systems.

use crate::border::status;
use crate::handles::{Handle, Kind};
use crate::raw::{self, Extensible};
use crate::table::Table;
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;
use weft_library::{Failure, FileSystem, Outcome, Process, Settings};

impl Kind for FileSystem {
    const NUMBER: usize = 1;
    const NAME: &str = "weft_t";

    fn table() -> &'static Table<Self> {
        static TABLE: Table<FileSystem> = Table::new();
        &TABLE
    }

    fn made_in(&self) -> Process {
        FileSystem::made_in(self)
    }
}

/// A handle of one.
pub type FsHandle = Handle<FileSystem>;

/// `struct weft_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    key_file: *const c_char,
    transport: *const c_char,
    soft_ms: u32,
    hard: u32,
    write_buffer: u64,
}

// SAFETY: integers and pointers, which are looked at only as `weft.h` says; the size is the first.
unsafe impl Extensible for Options {
    const FIRST_BYTES: usize = size_of::<Options>();
    const NAME: &str = "weft_options";
}

impl Options {
    /// # Safety
    /// `options` is NULL, or as `weft.h` says.
    unsafe fn settings(options: *const Options) -> Outcome<Settings> {
        let mut settings = Settings::new()?;
        if options.is_null() {
            return Ok(settings);
        }
        // SAFETY: as above.
        let options = unsafe { raw::sized(options, "options") }?;
        // SAFETY: as above.
        let (key_file, transport) =
            unsafe { (raw::optional_text(options.key_file), raw::optional_text(options.transport)) };
        settings.key_file = key_file.map(|path| Path::new(OsStr::from_bytes(path)).to_owned());
        if let Some(text) = transport {
            settings.set_transport(&String::from_utf8_lossy(text))?;
        }
        let soft = (options.soft_ms != 0).then(|| Duration::from_millis(options.soft_ms.into()));
        settings.set_waits(soft, options.hard != 0)?;
        settings.client.buffer_bytes = usize::try_from(options.write_buffer)
            .map_err(|_| Failure::invalid("write_buffer is more than memory has"))?;
        Ok(settings)
    }
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_connect(name: *const c_char, options: *const Options, fs: Option<&mut FsHandle>) -> c_int {
    status(|| {
        let fs = raw::required(fs, "fs")?;
        *fs = FsHandle::NONE;
        // SAFETY: both are as `weft.h` says.
        let (name, settings) = unsafe { (raw::optional_text(name), Options::settings(options)?) };
        let name = name.map(|name| std::str::from_utf8(name).map_err(|_| Failure::invalid("the name is not text")));
        *fs = FsHandle::new(FileSystem::connect(name.transpose()?, settings)?)?;
        Ok(())
    })
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_disconnect(fs: FsHandle) -> c_int {
    status(|| fs.take()?.disconnect())
}

/// See `weft.h`.
#[unsafe(no_mangle)]
extern "C" fn weft_statvfs(fs: FsHandle, space: Option<&mut libc::statvfs>) -> c_int {
    status(|| {
        let (fs, space) = (fs.get()?, raw::required(space, "space")?);
        let told = fs.statfs()?;
        // SAFETY: integers, of which any are values.
        *space = unsafe { std::mem::zeroed() };
        (space.f_bsize, space.f_frsize) = (told.block_bytes.into(), told.block_bytes.into());
        (space.f_blocks, space.f_bfree, space.f_bavail) = (told.blocks, told.blocks_free, told.blocks_free);
        (space.f_files, space.f_ffree, space.f_favail) = (told.inodes, told.inodes_free, told.inodes_free);
        space.f_namemax = told.name_bytes_max.into();
        Ok(())
    })
}
