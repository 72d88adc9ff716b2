//! Errors of a sort in GNU sort's words.

use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind};

use crate::{arguments::quoting, outcome, system::standard_streams};

/// GNU's words for our operations.
const FAILED: [(&str, &str); 3] = [("open", "open failed"), ("read", "read failed"), ("write", "write failed")];

/// An error whose words are those of GNU already.
pub(super) fn trouble(kind: ErrorKind, words: impl Into<String>) -> Error {
    Error::new(kind, "sort", words)
}

/// What is printed behind `dpipe sort: `. An offset and the bytes done follow the name, as far as
/// they are known. `folders` are those for runs that do not fit the memory.
pub(super) fn words(error: &Error, folders: &[PathBuf]) -> String {
    let text = outcome::shown("sort", error);
    let folder = folders
        .iter()
        .find(|folder| matches!(error.operation(), "open" | "stat") && Path::new(error.context()) == *folder);
    if let Some(folder) = folder {
        let why = text.strip_prefix(&format!("{}: {}", error.operation(), error.context())).unwrap_or(&text);
        return format!("cannot create temporary file in {}{why}", quoting::always(folder));
    }
    let known = FAILED.iter().find(|(operation, _)| *operation == error.operation());
    let has_reason = error.errno().is_some() || error.kind() == ErrorKind::EndOfFile;
    let Some((operation, failed)) = known.filter(|_| has_reason) else { return text };
    match text.strip_prefix(&format!("{operation}: {}", error.context())) {
        // At its very beginning is where a file fails that cannot be read or written at all: GNU's
        // words suffice.
        Some(rest) if error.offset().unwrap_or(0) == 0 && error.bytes_done() == 0 => {
            let why = rest.find(": ").map_or(rest, |at| &rest[at..]);
            format!("{failed}: {}{why}", name(error.context()))
        }
        Some(rest) => format!("{failed}: {}{rest}", name(error.context())),
        None => text,
    }
}

/// The name as GNU shows it. A context of several words is none.
fn name(context: &str) -> String {
    match context {
        standard_streams::INPUT => "-".into(),
        context if context.contains(": ") => context.to_owned(),
        context => quoting::where_needed(context),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gnu_says() {
        let words =
            |operation, errno, context: &str| words(&Error::os(operation, errno, context), &[PathBuf::from("t")]);
        assert_eq!(words("open", libc::ENOENT, "a b"), "open failed: 'a b': No such file or directory");
        let temporary = "cannot create temporary file in 't': No such file or directory";
        assert_eq!(words("open", libc::ENOENT, "t"), temporary);
        assert_eq!(words("read", libc::EISDIR, "standard input"), "read failed: -: Is a directory");
        assert_eq!(
            words("write", libc::ENOSPC, "standard output"),
            "write failed: 'standard output': No space left on device"
        );
        assert_eq!(words("cannot read", libc::EACCES, "x"), "cannot read: x: Permission denied");
        let error = Error::os("write", libc::EPIPE, "x").with_offset(0).with_bytes_done(0);
        assert_eq!(super::words(&error, &[]), "write failed: x: Broken pipe");
        let error = Error::os("read", libc::EIO, "x").with_offset(4096).with_bytes_done(512);
        assert_eq!(super::words(&error, &[]), "read failed: x at offset 4096 after 512 bytes: Input/output error");
        assert_eq!(super::words(&trouble(ErrorKind::InvalidInput, "no input from 'x'"), &[]), "no input from 'x'");
        let cut = Error::new(ErrorKind::EndOfFile, "read", "x").with_offset(4096).with_bytes_done(5);
        let said = super::words(&cut, &[]);
        assert!(said.starts_with("read failed: x at offset 4096 after 5 bytes: end of file; "), "{said}");
        assert_eq!(super::words(&Error::new(ErrorKind::Corrupt, "read", "x"), &[]), "read: x");
    }
}
