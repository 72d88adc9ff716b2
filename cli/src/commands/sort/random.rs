//! The salt of a random order: which of all orders by digest it is.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Read};
use std::os::unix::ffi::OsStrExt;

use datapipes::{Error, ErrorKind, Result};
use datapipes_sort::text::quote;

use super::words::trouble;
use crate::{arguments::quoting, outcome};

/// The first sixteen bytes of the source, or sixteen of the system's random bytes.
///
/// # Errors
/// Where the source cannot be read, or has fewer bytes.
pub(super) fn salt(source: Option<&OsStr>) -> Result<[u8; 16]> {
    let mut salt = [0; 16];
    let Some(source) = source else {
        system(&mut salt)?;
        return Ok(salt);
    };
    let mut file = File::open(source).map_err(|e| Error::io("open failed", e, quoting::where_needed(source)))?;
    file.read_exact(&mut salt).map_err(|e| {
        let shown = quote(source.as_bytes());
        match e.kind() {
            IoKind::UnexpectedEof => {
                trouble(ErrorKind::EndOfFile, format!("{shown}: end of file; 16 bytes are needed"))
            }
            _ => trouble(ErrorKind::Device, format!("{shown}: read error: {}", outcome::reason(&e))),
        }
    })?;
    Ok(salt)
}

fn system(mut salt: &mut [u8]) -> Result<()> {
    while !salt.is_empty() {
        match rustix::rand::getrandom(&mut *salt, rustix::rand::GetRandomFlags::empty()) {
            Ok(got) => salt = &mut salt[got..],
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::os("get random bytes", e.raw_os_error(), "from the system")),
        }
    }
    Ok(())
}
