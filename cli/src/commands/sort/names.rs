//! Which files are sorted: the operands, or the list of `--files0-from`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use datapipes::{Error, Result};
use rustix::fs::{Access, AtFlags, CWD};

use crate::arguments::sort_args::{Action, Parsed, UsageError, trouble};
use crate::objects::{is_object, is_object_path, shown};
use crate::{arguments::quoting, outcome, remote_memory, system::standard_streams};

/// The names to sort. The standard input is read to its end by the first `-`: a second one adds
/// nothing, unless it is a terminal, which goes on behind an end of file.
pub(super) fn to_sort(parsed: &Parsed) -> Result<Vec<OsString>> {
    let mut names = parsed.inputs.clone();
    if !standard_streams::input_is_terminal() {
        let mut seen = false;
        names.retain(|name| name != "-" || !std::mem::replace(&mut seen, true));
    }
    check(&names)?;
    // GNU looks at what it sorts to see how long it is; what it merges it only reads.
    if parsed.action == Action::Sort && names.iter().any(|name| name == "-") && standard_streams::input().is_err() {
        return Err(Error::os("stat failed", libc::EBADF, "-"));
    }
    Ok(names)
}

/// Refuses what cannot be read before anything is read or written.
fn check(names: &[OsString]) -> Result<()> {
    let texts: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
    remote_memory::refuse("sort", &texts)?;
    for name in names.iter().filter(|name| *name != "-" && !is_object_path(Path::new(name))) {
        rustix::fs::accessat(CWD, Path::new(name), Access::READ_OK, AtFlags::EACCESS)
            .map_err(|e| Error::os("cannot read", e.raw_os_error(), quoting::where_needed(name)))?;
    }
    Ok(())
}

/// The names in a file, each ended by a NUL; the last one may lack it.
pub(super) fn listed(list: &OsStr) -> Result<Vec<OsString>, UsageError> {
    if let Some(object) = list.to_str().filter(|list| is_object(list)) {
        return Err(trouble(format!("--files0-from: {}: the list is no object; give a file", shown(object))));
    }
    list.to_str().map_or(Ok(()), |list| remote_memory::refuse("sort", &[list])).map_err(|e| trouble(e.to_string()))?;
    let mut bytes = Vec::new();
    let read = if list == "-" {
        standard_streams::input()
            .map_err(|_| io::Error::from_raw_os_error(libc::EBADF))
            .and_then(|mut input| input.read_to_end(&mut bytes))
    } else {
        let opened = File::open(list)
            .map_err(|e| trouble(format!("open failed: {}: {}", quoting::where_needed(list), outcome::reason(&e))));
        opened?.read_to_end(&mut bytes)
    };
    if let Err(e) = read {
        let shown = quoting::always(list);
        return Err(trouble(format!("cannot read file names from {shown}: {}", outcome::reason(&e))));
    }
    if bytes.is_empty() {
        return Err(trouble(format!("no input from {}", quoting::always(list))));
    }
    let body = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let names: Vec<OsString> = body.split(|b| *b == 0).map(|name| OsString::from_vec(name.to_vec())).collect();
    for (at, name) in names.iter().enumerate() {
        if name == "-" {
            let why = "when reading file names from standard input, no file name of '-' allowed";
            return Err(trouble(why));
        }
        if name.is_empty() {
            let why = format!("{}:{}: invalid zero-length file name", quoting::where_needed(list), at + 1);
            return Err(trouble(why));
        }
    }
    Ok(names)
}
