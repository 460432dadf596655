//! Pieces of memory and the places in a file where they belong.

use crate::raw;
use std::ffi::c_void;
use weft_library::{Failure, OpenFile, Outcome, ReadList};

/// `struct weft_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    memory: *mut c_void,
    length: usize,
    offset: i64,
}

// SAFETY: the caller owns the memory, and lends it to whichever thread of the library serves the request.
unsafe impl Send for Extent {}

/// `struct weft_strided`.
#[repr(C)]
pub struct Strided {
    memory: *mut c_void,
    block: usize,
    count: usize,
    memory_stride: usize,
    offset: i64,
    file_stride: i64,
}

impl Extent {
    fn range(&self) -> Outcome<u64> {
        raw::range(self.offset, self.length)
    }
}

impl Strided {
    /// Its blocks; where they touch in both memory and file, as one.
    pub fn extents(&self) -> Outcome<Vec<Extent>> {
        let Self { memory, block, count, memory_stride, offset, file_stride } = *self;
        let stride = usize::try_from(file_stride).ok().filter(|stride| *stride >= block && memory_stride >= block);
        let Some(stride) = stride else {
            let text = format!("blocks of {block} bytes overlap: strides are {memory_stride} and {file_stride}");
            return Err(Failure::invalid(text));
        };
        if block == 0 || count == 0 {
            return Ok(Vec::new());
        }
        let too_long = || Failure::invalid(format!("{count} blocks {stride} bytes apart end beyond all offsets"));
        let bytes = stride.checked_mul(count - 1).and_then(|bytes| bytes.checked_add(block)).ok_or_else(too_long)?;
        raw::range(offset, bytes)?;
        memory_stride.checked_mul(count).filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(too_long)?;
        if stride == block && memory_stride == block {
            return Ok(vec![Extent { memory, length: bytes, offset }]);
        }
        let extent = |index: usize| Extent {
            memory: memory.wrapping_byte_add(index * memory_stride),
            length: block,
            offset: offset + (index * stride) as i64,
        };
        Ok((0..count).map(extent).collect())
    }
}

/// The pieces of a vector, one after another in the file.
pub fn of_vector(vector: &[libc::iovec], offset: i64) -> Outcome<Vec<Extent>> {
    let bytes = vector.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.iov_len));
    let bytes = bytes.ok_or_else(|| Failure::invalid("the vector is longer than memory"))?;
    raw::range(offset, bytes)?;
    let mut next = offset;
    let place = |piece: &libc::iovec| {
        let offset = next;
        next += piece.iov_len as i64;
        Extent { memory: piece.iov_base, length: piece.iov_len, offset }
    };
    Ok(vector.iter().map(place).collect())
}

/// Extents to be read, of which a range and an address that is not NULL were checked.
struct Reads<'a>(&'a [Extent]);

impl ReadList for Reads<'_> {
    fn ranges(&self) -> Vec<(u64, usize)> {
        let range = |extent: &Extent| (extent.range().expect("it was checked"), extent.length);
        self.0.iter().map(range).collect()
    }

    fn memory(&mut self, index: usize) -> &mut [u8] {
        let Extent { memory, length, .. } = self.0[index];
        // SAFETY: as `read` says; the list uses one piece of memory at a time.
        unsafe { raw::slice_mut(memory.cast(), length, "the memory of an extent") }.expect("it was checked")
    }
}

/// Reads all extents, until the end of the file cuts one. Returns the sum of bytes.
///
/// # Safety
/// Each has memory of its length, or NULL, which nobody else uses meanwhile.
pub unsafe fn read(file: &OpenFile, extents: &[Extent]) -> Outcome<usize> {
    for extent in extents {
        extent.range()?;
        // SAFETY: as above.
        unsafe { raw::slice_mut::<u8>(extent.memory.cast(), extent.length, "the memory of an extent") }?;
    }
    file.read_list(&mut Reads(extents))
}

/// Writes all extents. Returns the sum of bytes.
///
/// # Safety
/// Each has memory of its length, or NULL, which nobody changes meanwhile.
pub unsafe fn write(file: &OpenFile, extents: &[Extent]) -> Outcome<usize> {
    let part = |extent: &Extent| {
        // SAFETY: as above.
        let bytes = unsafe { raw::slice(extent.memory.cast(), extent.length, "the memory of an extent") }?;
        Ok((bytes, extent.range()?))
    };
    file.write_list(&extents.iter().map(part).collect::<Outcome<Vec<_>>>()?)
}

/// As [`write`], of extents that follow one another: a file that appends gets them in one piece.
///
/// # Safety
/// As of [`write`].
pub unsafe fn write_together(file: &OpenFile, extents: &[Extent]) -> Outcome<usize> {
    if !file.appends || extents.len() < 2 {
        // SAFETY: as above.
        return unsafe { write(file, extents) };
    }
    let mut whole: Vec<u8> = Vec::new();
    for extent in extents {
        // SAFETY: as above.
        whole.extend_from_slice(unsafe { raw::slice(extent.memory.cast(), extent.length, "the memory of an extent") }?);
    }
    file.write(&whole, 0)?;
    Ok(whole.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(block: usize, count: usize, memory_stride: usize, file_stride: i64) -> Strided {
        Strided { memory: std::ptr::null_mut(), block, count, memory_stride, offset: 100, file_stride }
    }

    #[test]
    fn a_pattern_is_its_blocks_and_one_without_gaps_a_single_one() {
        let extents = strided(10, 3, 20, 50).extents().unwrap();
        let places: Vec<_> =
            extents.iter().map(|extent| (extent.memory as usize, extent.length, extent.offset)).collect();
        assert_eq!(places, [(0, 10, 100), (20, 10, 150), (40, 10, 200)]);
        assert_eq!(strided(10, 3, 10, 10).extents().unwrap()[0].length, 30);
        assert!(strided(0, 3, 0, 0).extents().unwrap().is_empty());
    }

    #[test]
    fn blocks_that_overlap_or_end_nowhere_are_refused() {
        for bad in [
            strided(10, 2, 9, 10),
            strided(10, 2, 10, 9),
            strided(10, 2, 10, -10),
            strided(1, usize::MAX, 1, 1),
            strided(1, 3, 1, i64::MAX),
            strided(1, 3, usize::MAX / 2, 1),
        ] {
            assert_eq!(bad.extents().unwrap_err().errno(), libc::EINVAL);
        }
    }
}
