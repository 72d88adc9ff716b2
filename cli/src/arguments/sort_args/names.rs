//! The long options and the words behind `--check=` and `--sort=`, with `getopt_long`'s and
//! `argmatch`'s abbreviations.

use datapipes_sort::text::quote;

use super::usage::{UsageError, misuse};

/// Whether a long option takes an argument.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Takes {
    Nothing,
    Perhaps,
    Argument,
}
use Takes::{Argument, Nothing, Perhaps};

/// GNU's long options in GNU's order, with their short ones.
const LONG: [(&str, Takes, u8); 29] = [
    ("ignore-leading-blanks", Nothing, b'b'),
    ("check", Perhaps, 0),
    ("compress-program", Argument, 0),
    ("debug", Nothing, 0),
    ("dictionary-order", Nothing, b'd'),
    ("ignore-case", Nothing, b'f'),
    ("files0-from", Argument, 0),
    ("general-numeric-sort", Nothing, b'g'),
    ("ignore-nonprinting", Nothing, b'i'),
    ("key", Argument, b'k'),
    ("merge", Nothing, b'm'),
    ("month-sort", Nothing, b'M'),
    ("numeric-sort", Nothing, b'n'),
    ("human-numeric-sort", Nothing, b'h'),
    ("version-sort", Nothing, b'V'),
    ("random-sort", Nothing, b'R'),
    ("random-source", Argument, 0),
    ("sort", Argument, 0),
    ("output", Argument, b'o'),
    ("reverse", Nothing, b'r'),
    ("stable", Nothing, b's'),
    ("batch-size", Argument, 0),
    ("buffer-size", Argument, b'S'),
    ("field-separator", Argument, b't'),
    ("temporary-directory", Argument, b'T'),
    ("unique", Nothing, b'u'),
    ("zero-terminated", Nothing, b'z'),
    ("parallel", Argument, 0),
    ("help", Nothing, 0),
];

/// Options that no abbreviation reaches: ours, and --version, whose abbreviations are shared with
/// --version-sort.
const EXACT: [(&str, Takes); 19] = [
    ("version", Nothing),
    ("records", Perhaps),
    ("u32", Nothing),
    ("u64", Nothing),
    ("i64", Nothing),
    ("f64", Nothing),
    ("json", Nothing),
    ("report-html", Argument),
    ("progress", Nothing),
    ("no-progress", Nothing),
    ("report", Nothing),
    ("metrics", Argument),
    ("explain", Nothing),
    ("memory", Argument),
    ("threads", Argument),
    ("spill-order", Argument),
    ("spill-compression", Argument),
    ("method", Argument),
    ("no-sync", Nothing),
];

pub(crate) const CHECK_WORDS: [(&str, u8); 3] = [("quiet", b'C'), ("silent", b'C'), ("diagnose-first", b'c')];
pub(crate) const METHOD_WORDS: [(&str, u8); 3] = [("auto", b'a'), ("merge", b'm'), ("distribute", b'd')];
pub(crate) const SPILL_WORDS: [(&str, u8); 2] = [("given", b'g'), ("cost", b'c')];
pub(crate) const COMPRESSION_WORDS: [(&str, u8); 3] = [("auto", b'a'), ("on", b'n'), ("off", b'f')];
pub(crate) const SORT_WORDS: [(&str, u8); 6] = [
    ("general-numeric", b'g'),
    ("human-numeric", b'h'),
    ("month", b'M'),
    ("numeric", b'n'),
    ("random", b'R'),
    ("version", b'V'),
];

/// The names of all long options, for tests of the help.
#[cfg(test)]
pub(crate) fn all_long() -> Vec<&'static str> {
    LONG.iter().map(|(name, ..)| *name).chain(EXACT.iter().map(|(name, _)| *name)).collect()
}

/// The option of that name or unambiguous abbreviation.
pub(super) fn find_long(name: &[u8]) -> Result<(&'static str, Takes, u8), UsageError> {
    if let Some(&(name, takes)) = EXACT.iter().find(|(exact, _)| exact.as_bytes() == name) {
        return Ok((name, takes, 0));
    }
    if let Some(exact) = LONG.iter().find(|(long, ..)| long.as_bytes() == name) {
        return Ok(*exact);
    }
    let shown = String::from_utf8_lossy(name);
    let matching: Vec<_> = LONG.iter().filter(|(long, ..)| long.as_bytes().starts_with(name)).collect();
    let also_version = b"version".starts_with(name);
    match matching[..] {
        [] => Err(misuse(format!("unrecognized option '--{shown}'"))),
        [one] if !also_version => Ok(*one),
        _ => {
            let mut names: Vec<String> = matching.iter().map(|(long, ..)| format!("'--{long}'")).collect();
            if also_version {
                names.push("'--version'".into());
            }
            Err(misuse(format!("option '--{shown}' is ambiguous; possibilities: {}", names.join(" "))))
        }
    }
}

/// The options of GNU sort that take words. It exits with 1 for a wrong one, not with 2. For
/// options of ours, 1 would say with -c that the input is not in order.
const GNU_WORDS: [&str; 2] = ["--sort", "--check"];

/// The value of a word or unambiguous abbreviation.
pub(super) fn find_word(word: &[u8], option: &str, words: &[(&str, u8)]) -> Result<u8, UsageError> {
    if let Some((_, value)) = words.iter().find(|(name, _)| name.as_bytes() == word) {
        return Ok(*value);
    }
    let mut values: Vec<u8> =
        words.iter().filter(|(name, _)| name.as_bytes().starts_with(word)).map(|(_, value)| *value).collect();
    values.dedup();
    let why = match values[..] {
        [value] => return Ok(value),
        [] => "invalid",
        _ => "ambiguous",
    };
    let mut message = format!("{why} argument {} for '{option}'\nValid arguments are:", quote(word));
    let mut last = 0;
    for (name, value) in words {
        message += if *value == last { ", " } else { "\n  - " };
        message += &format!("'{name}'");
        last = *value;
    }
    Err(UsageError { exit_code: if GNU_WORDS.contains(&option) { 1 } else { 2 }, ..misuse(message) })
}
