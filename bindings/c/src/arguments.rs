//! What C passes: pointers that may be null, texts, arrays, structs that say their size.

use std::ffi::{CStr, OsStr, c_char};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use datapipes::metrics::{Sample, prometheus};
use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

fn null(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "call", format!("{what}: a null pointer"))
}

/// Writes a result through a pointer.
///
/// # Safety
/// `at` is null or valid for a write.
#[inline]
pub(crate) unsafe fn give<T>(at: *mut T, what: &str, value: T) -> Result<()> {
    check(at, what)?;
    // SAFETY: the caller of this function says so.
    unsafe { at.write(value) };
    Ok(())
}

/// Refuses a null pointer, and one that no object can have, before anything is done.
#[inline]
pub(crate) fn check<T>(at: *const T, what: &str) -> Result<()> {
    if at.is_null() {
        return Err(null(what));
    }
    if at.is_aligned() { Ok(()) } else { Err(misaligned(what, align_of::<T>())) }
}

/// As [`check`], for a pointer that may be null.
#[inline]
pub(crate) fn check_optional<T>(at: *const T, what: &str) -> Result<()> {
    if at.is_null() { Ok(()) } else { check(at, what) }
}

#[cold]
fn misaligned(what: &str, align: usize) -> Error {
    Error::new(ErrorKind::Misaligned, "call", format!("{what}: the address is no multiple of {align}"))
        .with_advice("pass the address of an object of that type")
}

/// Bytes of a caller.
///
/// # Safety
/// `at` is null or valid for reads of `len` elements while the result is used.
pub(crate) unsafe fn slice<'a, T>(at: *const T, len: usize, what: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(at, what)?;
    check_len::<T>(len, what)?;
    // SAFETY: the caller of this function says so.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Bytes of a caller that are written.
///
/// # Safety
/// `at` is null or valid for reads and writes of `len` bytes, by nobody else, while the result is
/// used.
pub(crate) unsafe fn slice_mut<'a>(at: *mut u8, len: usize, what: &str) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(at, what)?;
    check_len::<u8>(len, what)?;
    // SAFETY: the caller of this function says so.
    Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
}

fn check_len<T>(len: usize, what: &str) -> Result<()> {
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidInput, "call", format!("{what}: {len} elements fit no memory"))),
    }
}

/// The bytes of a text that ends with NUL.
///
/// # Safety
/// `at` is null or a text that ends with NUL, unchanged while the result is used.
pub(crate) unsafe fn bytes<'a>(at: *const c_char, what: &str) -> Result<&'a [u8]> {
    check(at, what)?;
    // SAFETY: the caller of this function says so.
    Ok(unsafe { CStr::from_ptr(at) }.to_bytes())
}

/// A path: any bytes.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn path<'a>(at: *const c_char, what: &str) -> Result<&'a Path> {
    // SAFETY: the caller of this function says so.
    Ok(Path::new(OsStr::from_bytes(unsafe { bytes(at, what)? })))
}

/// A text in UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str> {
    // SAFETY: the caller of this function says so.
    let bytes = unsafe { bytes(at, what)? };
    std::str::from_utf8(bytes)
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "call", format!("{what}: the text is not UTF-8")))
}

/// A struct of options: its first field is its size in the program that was compiled, which may be
/// older or newer than this library.
///
/// # Safety
/// Every pattern of bits must be valid for the struct, and zeros must stand for what is not given.
pub(crate) unsafe trait Options: Copy {
    /// Its fields.
    const FIELDS: &'static [Field];
}

/// Where a field lies in its struct.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The length of what a function gives a reference to.
pub(crate) const fn len_of_field<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// The fields of a struct; the compiler refuses a list that lacks one.
macro_rules! fields {
    ($options:ident { $($field:ident),+ $(,)? }) => {{
        const _: fn($options) = |$options { $($field: _),+ }| ();
        &[$($crate::arguments::Field {
            name: stringify!($field),
            at: std::mem::offset_of!($options, $field),
            len: $crate::arguments::len_of_field(|options: &$options| &options.$field),
        }),+]
    }};
}
pub(crate) use fields;

/// Refuses options that set a field which has no use yet: a later version may give it one.
pub(crate) fn unused(reserved: u32, what: &str) -> Result<()> {
    if reserved == 0 { Ok(()) } else { Err(unknown(what)) }
}

fn unknown(what: &str) -> Error {
    let why = format!("{what}: it has fields that this version of the library does not know");
    Error::new(ErrorKind::Unsupported, "call", why).with_advice("leave them zero, or install the newer library")
}

/// Reads options: those of an older program are filled up with zeros; null gives all zeros; unknown
/// fields of a newer program must be zero.
///
/// # Safety
/// `at` is null or points to a struct whose first field, a `uint32_t`, is the struct's size.
pub(crate) unsafe fn options<T: Options>(at: *const T, what: &str) -> Result<T> {
    // SAFETY: `Options` says that zeros are valid.
    let mut options: T = unsafe { std::mem::zeroed() };
    if at.is_null() {
        return Ok(options);
    }
    check(at.cast::<u32>(), what)?;
    // SAFETY: the first field is there, and its address was just checked.
    let size = unsafe { at.cast::<u32>().read() } as usize;
    if size < size_of::<u32>() || size > 4096 {
        let why = format!("{what}: its field `size` is {size}");
        return Err(Error::new(ErrorKind::InvalidInput, "call", why).with_advice("set it to sizeof the struct"));
    }
    // Half of a field is none: half of a pointer would be followed.
    if let Some(cut) = T::FIELDS.iter().find(|field| field.at < size && size < field.at + field.len) {
        let why = format!("{what}: its field `size` is {size}, which ends within its field `{}`", cut.name);
        return Err(Error::new(ErrorKind::InvalidInput, "call", why).with_advice("set it to sizeof the struct"));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the program's struct has `size` bytes, ours at least `known`.
    unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut options).cast::<u8>(), known) };
    // SAFETY: as above, for the bytes that only the program's struct has.
    let rest = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(unknown(what));
    }
    Ok(options)
}

/// How a text about something is written.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_format {
    /// For people.
    DP_TEXT = 0,
    /// For programs.
    DP_JSON = 1,
    /// Measurements for Prometheus, of reports only: what `/metrics` of a program shows. They name no
    /// paths.
    DP_PROMETHEUS = 2,
}

/// How a text that is no measurement is written.
#[derive(Clone, Copy)]
pub(crate) enum TextFormat {
    Text,
    Json,
}

/// The format of a text that has no measurements. Numbers that are no format are refused: C passes
/// any.
pub(crate) fn format_of(number: u32) -> Result<TextFormat> {
    match number {
        0 => Ok(TextFormat::Text),
        1 => Ok(TextFormat::Json),
        2 => Err(Error::new(ErrorKind::InvalidInput, "call", "it has no measurements")
            .with_advice("ask for DP_TEXT or DP_JSON; reports have measurements")),
        other => Err(Error::new(ErrorKind::InvalidInput, "call", format!("{other} is no dp_format"))),
    }
}

/// Copies a text as `snprintf` does: cut to `capacity` bytes with its NUL; its whole length comes
/// back through `len`, if that is not null.
///
/// # Safety
/// `into` is null or valid for writes of `capacity` bytes; `len` is null or valid for a write.
pub(crate) unsafe fn copy_text(text: &str, into: *mut c_char, capacity: usize, len: *mut usize) {
    if !into.is_null() && capacity > 0 {
        let mut fits = text.len().min(capacity - 1);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        // SAFETY: `fits` is less than the capacity, which the caller vouches for.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast::<u8>(), fits);
            into.add(fits).write(0);
        }
    }
    if !len.is_null() {
        // SAFETY: the caller of this function says so.
        unsafe { len.write(text.len()) };
    }
}

/// Copies what is asked for, its text or its JSON, as [`copy_text`] does.
///
/// # Safety
/// As [`copy_text`].
pub(crate) unsafe fn show(
    value: &(impl Display + Serialize),
    format: u32,
    into: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> Result<()> {
    let text = shown(value, format)?;
    // SAFETY: the caller of this function says so.
    unsafe { copy_text(&text, into, capacity, len) };
    Ok(())
}

/// What is asked for: the text of a value, or its JSON.
pub(crate) fn shown(value: &(impl Display + Serialize), format: u32) -> Result<String> {
    match format_of(format)? {
        TextFormat::Text => Ok(value.to_string()),
        TextFormat::Json => json(value),
    }
}

/// Copies a report, or its measurements, as [`copy_text`] does.
///
/// # Safety
/// As [`copy_text`].
pub(crate) unsafe fn report(
    value: &(impl Display + Serialize),
    samples: impl FnOnce() -> Vec<Sample>,
    format: u32,
    (into, capacity, len): (*mut c_char, usize, *mut usize),
) -> Result<()> {
    let text = if format == dp_format::DP_PROMETHEUS as u32 { prometheus(&samples()) } else { shown(value, format)? };
    // SAFETY: the caller of this function says so.
    unsafe { copy_text(&text, into, capacity, len) };
    Ok(())
}

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::new(ErrorKind::System, "write JSON", e.to_string()))
}
