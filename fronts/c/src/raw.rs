//! What comes from C as an address.
//!
//! What can be checked is: an address that is NULL, lengths that no memory has, sizes of structures. That the rest of
//! an address is right is the caller's promise, in `weft.h`.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use weft_library::{Failure, Outcome, checked_range};

/// A structure of C that begins with its size, and may grow. Zero bytes are a value of it.
///
/// # Safety
/// All bit patterns are values of it, and its first field is a `usize`: its size.
pub unsafe trait Extensible: Copy {
    /// Its size in the first version.
    const FIRST_BYTES: usize;
    /// Its name in C.
    const NAME: &str;
}

#[cold]
fn null(what: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("{what} is NULL"))
}

/// A pointer that may not be NULL.
pub fn required<T>(pointer: Option<T>, what: &str) -> Outcome<T> {
    pointer.ok_or_else(|| null(what))
}

/// A text, without its 0 byte.
///
/// # Safety
/// `text` is NULL, or ends with a 0 byte and stays as long as the result is used.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a [u8]> {
    // SAFETY: as above.
    unsafe { optional_text(text) }.ok_or_else(|| null(what))
}

/// As [`text`]; `None` for NULL.
///
/// # Safety
/// As of [`text`].
pub unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: it is not NULL, the rest as above.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

#[inline]
fn check_length<T>(is_null: bool, count: usize, what: &str) -> Outcome {
    if is_null && count > 0 {
        return Err(null(what));
    }
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(too_long(count, what)),
    }
}

#[cold]
fn too_long(count: usize, what: &str) -> Failure {
    Failure::invalid(format!("{what}: {count} is more than memory has"))
}

/// Things that are only read.
///
/// # Safety
/// `pointer` is NULL, or has `count` of them, which nobody changes as long as the result is used.
#[inline]
pub unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Outcome<&'a [T]> {
    check_length::<T>(pointer.is_null(), count, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    check_aligned(pointer, what)?;
    // SAFETY: it is aligned and not NULL, the length is one that memory can have, the rest as above.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Things that are stored to.
///
/// # Safety
/// `pointer` is NULL, or has room for `count` of them, which nobody else uses as long as the result is. All bit
/// patterns are values of `T`.
#[inline]
pub unsafe fn slice_mut<'a, T>(pointer: *mut T, count: usize, what: &str) -> Outcome<&'a mut [T]> {
    check_length::<T>(pointer.is_null(), count, what)?;
    if count == 0 {
        return Ok(&mut []);
    }
    check_aligned(pointer, what)?;
    // SAFETY: it is aligned and not NULL, the length is one that memory can have, the rest as above.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, count) })
}

fn check_aligned<T>(pointer: *const T, what: &str) -> Outcome {
    if pointer.is_aligned() { Ok(()) } else { Err(Failure::invalid(format!("{what} is not aligned"))) }
}

/// A structure that begins with its size, as far as its caller knows it: the rest is zero.
///
/// # Safety
/// `pointer` has as many bytes as the size that it begins with.
pub unsafe fn sized<T: Extensible>(pointer: *const T, what: &str) -> Outcome<T> {
    // SAFETY: as above.
    let bytes = unsafe { size_of_given(pointer, what) }?;
    // SAFETY: it has that many bytes.
    let given = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) };
    if given.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::invalid(format!("{what}: has fields that this version of libweft does not know")));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    let known = bytes.min(size_of::<T>());
    // SAFETY: both have `known` bytes and do not overlap; then all bytes of the value are initialized, and any are one.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(value.assume_init())
    }
}

/// Stores a structure that begins with its size, as far as its caller knows it.
///
/// # Safety
/// `pointer` is NULL, or has as many bytes as the size that it begins with, which nobody else uses.
pub unsafe fn store_sized<T: Extensible>(value: &T, pointer: *mut T, what: &str) -> Outcome {
    // SAFETY: as above.
    let bytes = unsafe { size_of_given(pointer, what) }?;
    let known = bytes.min(size_of::<T>()) - size_of::<usize>();
    // SAFETY: both have so many bytes behind their sizes, which stay as they are, and do not overlap.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<usize>().add(1).cast::<u8>();
        std::ptr::copy_nonoverlapping(from, pointer.cast::<usize>().add(1).cast::<u8>(), known);
    }
    Ok(())
}

/// The size that a structure begins with.
///
/// # Safety
/// `pointer` is NULL, or points to such a structure.
unsafe fn size_of_given<T: Extensible>(pointer: *const T, what: &str) -> Outcome<usize> {
    if pointer.is_null() {
        return Err(null(what));
    }
    check_aligned(pointer, what)?;
    // SAFETY: it begins with its size.
    let bytes = unsafe { *pointer.cast::<usize>() };
    if bytes < T::FIRST_BYTES || bytes > usize::from(u16::MAX) {
        return Err(Failure::invalid(format!("{what}: size is {bytes}, not sizeof(struct {})", T::NAME)));
    }
    Ok(bytes)
}

/// An offset, or a length, from C's signed number.
#[inline]
pub fn unsigned(number: i64, what: &str) -> Outcome<u64> {
    u64::try_from(number).map_err(|_| negative(number, what))
}

#[cold]
fn negative(number: i64, what: &str) -> Failure {
    Failure::invalid(format!("{what} is {number}"))
}

/// An offset, from C's.
#[inline]
pub fn offset(offset: i64) -> Outcome<u64> {
    unsigned(offset, "the offset")
}

/// A range of a file: from C's offset, so many bytes.
pub fn range(offset: i64, bytes: usize) -> Outcome<u64> {
    checked_range(self::offset(offset)?, bytes)
}

/// Stores a value, or tells its length where there is no room.
pub fn store(value: &[u8], into: &mut [u8], what: impl FnOnce() -> String) -> Outcome<usize> {
    if !into.is_empty() {
        if value.len() > into.len() {
            let text = format!("{}: has {} bytes, more than {}", what(), value.len(), into.len());
            return Err(Failure::new(libc::ERANGE, text));
        }
        into[..value.len()].copy_from_slice(value);
    }
    Ok(value.len())
}
