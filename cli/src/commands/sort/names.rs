//! Which files are sorted: the operands, or the list of `--files0-from`.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use datapipes::{Error, ErrorKind, Result};
use rustix::fs::{Access, AtFlags, CWD};

use super::words::trouble;
use crate::sort_args::Parsed;
use crate::{quoting, standard};

/// The inputs' names in their order, at least one.
pub(super) fn inputs(parsed: &Parsed) -> Result<Vec<OsString>> {
    match &parsed.files0_from {
        Some(list) => listed(list),
        None => Ok(parsed.inputs.clone()),
    }
}

/// The names to sort. The standard input is read to its end by the first `-`: a second one adds nothing, unless it is a
/// terminal, which goes on behind an end of file.
pub(super) fn to_sort(parsed: &Parsed) -> Result<Vec<OsString>> {
    let mut names = inputs(parsed)?;
    if !standard::input_is_terminal() {
        let mut seen = false;
        names.retain(|name| name != "-" || !std::mem::replace(&mut seen, true));
    }
    check(&names)?;
    Ok(names)
}

/// Refuses what cannot be read before anything is read or written.
fn check(names: &[OsString]) -> Result<()> {
    for name in names.iter().filter(|name| *name != "-") {
        rustix::fs::accessat(CWD, Path::new(name), Access::READ_OK, AtFlags::EACCESS)
            .map_err(|e| Error::os("cannot read", e.raw_os_error(), quoting::where_needed(name)))?;
    }
    Ok(())
}

/// The names in a file, each ended by a NUL; the last one may lack it.
fn listed(list: &OsStr) -> Result<Vec<OsString>> {
    let mut bytes = Vec::new();
    if list == "-" {
        read(&mut standard::input()?, list, &mut bytes)?;
    } else {
        let open = std::fs::File::open(list);
        let mut file = open.map_err(|e| Error::io("open failed", &e, quoting::where_needed(list)))?;
        read(&mut file, list, &mut bytes)?;
    }
    if bytes.is_empty() {
        return Err(trouble(ErrorKind::InvalidInput, format!("no input from {}", quoting::always(list))));
    }
    let body = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let names: Vec<OsString> = body.split(|b| *b == 0).map(|name| OsString::from_vec(name.to_vec())).collect();
    for (at, name) in names.iter().enumerate() {
        if name == "-" {
            let why = "when reading file names from standard input, no file name of '-' allowed";
            return Err(trouble(ErrorKind::InvalidInput, why));
        }
        if name.is_empty() {
            let why = format!("{}:{}: invalid zero-length file name", quoting::where_needed(list), at + 1);
            return Err(trouble(ErrorKind::InvalidInput, why));
        }
    }
    Ok(names)
}

fn read(from: &mut impl Read, list: &OsStr, into: &mut Vec<u8>) -> Result<()> {
    let failed = |e: std::io::Error| {
        trouble(ErrorKind::System, format!("cannot read file names from {}: {e}", quoting::always(list)))
    };
    from.read_to_end(into).map(|_| ()).map_err(failed)
}
