//! Errors of this machine, as the file system's.

use std::io;
use weft_protocol::Error;
use weft_protocol::error::errno::EIO;

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
pub(crate) fn device(error: io::Error) -> Error {
    Error::Device(error.raw_os_error().unwrap_or(EIO))
}
