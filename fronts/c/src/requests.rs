//! What is handed to a queue, and what it completes with.

use crate::border::count;
use crate::extents::{self, Extent};
use crate::handles::FileHandle;
use crate::raw::{self, Extensible};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use weft_library::{Explain, Failure, OpenFile, Outcome};

const READ: c_int = 1;
const WRITE: c_int = 2;
const FSYNC: c_int = 3;

/// `struct weft_request`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    size: usize,
    operation: c_int,
    file: FileHandle,
    extents: *const Extent,
    count: usize,
    tag: *mut c_void,
}

// SAFETY: integers and pointers, which are looked at only as `weft.h` says; the size is the first.
unsafe impl Extensible for Request {
    const FIRST_BYTES: usize = size_of::<Request>();
    const NAME: &str = "weft_request";
}

/// `struct weft_completion`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    pub tag: Tag,
    pub result: isize,
}

/// What the caller knows a request by. It is not followed.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub usize);

/// A request, checked.
pub struct Job {
    operation: Operation,
    file: Arc<OpenFile>,
    extents: Vec<Extent>,
    pub tag: Tag,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Read,
    Write,
    Sync,
}

impl Request {
    /// Checks it. The extents are copied, the memory that they name is not looked at.
    ///
    /// # Safety
    /// It is as `weft.h` says.
    pub unsafe fn job(&self) -> Outcome<Job> {
        let operation = match self.operation {
            READ => Operation::Read,
            WRITE => Operation::Write,
            FSYNC => Operation::Sync,
            other => return Err(Failure::invalid(format!("operation {other}: WEFT_READ, WEFT_WRITE or WEFT_FSYNC"))),
        };
        // SAFETY: as above.
        let extents = unsafe { raw::slice(self.extents, self.count, "extents") }?.to_vec();
        let file = Arc::clone(&*self.file.get()?);
        file.file()?;
        Ok(Job { operation, file, extents, tag: Tag(self.tag as usize) })
    }
}

/// The requests at an address, which are as large as the first says.
///
/// # Safety
/// They are as `weft.h` says.
pub unsafe fn jobs(requests: *const Request, length: usize) -> Outcome<Vec<Job>> {
    let mut jobs = Vec::new();
    let mut bytes = 0;
    for index in 0..length {
        // SAFETY: as above; those before were of the first one's size.
        let request = unsafe { raw::sized(requests.wrapping_byte_add(index * bytes), "a request") }?;
        if index > 0 && request.size != bytes {
            return Err(Failure::invalid(format!("requests of {bytes} and of {} bytes", request.size)));
        }
        bytes = request.size;
        // SAFETY: as above.
        jobs.push(unsafe { request.job() }?);
    }
    Ok(jobs)
}

impl Job {
    /// Does it.
    pub fn run(&self) -> Completion {
        let file = &self.file;
        let result = count(|| match self.operation {
            // SAFETY: the caller has lent their memory until completion.
            Operation::Read => unsafe { extents::read(file, &self.extents) },
            // SAFETY: likewise.
            Operation::Write => unsafe { extents::write(file, &self.extents) },
            Operation::Sync => file.file()?.sync().map(|()| 0).explain(|| "fsync"),
        });
        Completion { tag: self.tag, result }
    }

    /// Its completion when it is not done.
    pub fn cancelled(&self) -> Completion {
        Completion { tag: self.tag, result: -(libc::ECANCELED as isize) }
    }
}
