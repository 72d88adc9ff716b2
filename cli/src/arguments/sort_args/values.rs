//! What stands behind options: counts, sizes, shapes of records; and what the environment asks for.

use std::ffi::OsString;

use datapipes_sort::text::{SizeError, quote};

use super::usage::{RecordShape, UsageError, trouble};

/// GNU sort holds all files of a merge open beside the standard streams; a larger --batch-size is
/// refused here too.
pub(super) fn most_merged() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = limit.current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.min(u32::MAX as usize).saturating_sub(3)
}

pub(super) fn batch_size(text: &[u8], most: usize) -> Result<usize, UsageError> {
    let size = number(text, "--batch-size")?;
    let shown = quote(text);
    if size < 2 {
        let first = format!("invalid --batch-size argument {shown}");
        return Err(trouble(format!("{first}\ndpipe sort: minimum --batch-size argument is '2'")));
    }
    if size > most {
        let first = format!("--batch-size argument {shown} too large");
        let second = format!("dpipe sort: maximum --batch-size argument with current rlimit is {most}");
        return Err(trouble(format!("{first}\n{second}")));
    }
    Ok(size)
}

/// A count; one that is too large saturates.
pub(super) fn number(text: &[u8], option: &str) -> Result<usize, UsageError> {
    let start = text.trim_ascii_start();
    let start = start.strip_prefix(b"+").unwrap_or(start);
    let digits = start.iter().take_while(|b| b.is_ascii_digit()).count();
    let error = match digits {
        0 => SizeError::Invalid,
        _ if digits < start.len() => SizeError::Suffix,
        _ => {
            let add = |n: usize, &digit: &u8| n.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
            return Ok(start.iter().fold(0, add));
        }
    };
    Err(trouble(size_message(error, option, text)))
}

pub(super) fn size_message(error: SizeError, option: &str, argument: &[u8]) -> String {
    let argument = quote(argument);
    match error {
        SizeError::Invalid => format!("invalid {option} argument {argument}"),
        SizeError::Suffix => format!("invalid suffix in {option} argument {argument}"),
        SizeError::TooLarge => format!("{option} argument {argument} too large"),
    }
}

/// `LEN[:KEYOFFSET[:KEYLEN]]`; without KEYLEN the key goes to the end of the record.
pub(super) fn record_shape(text: Option<&[u8]>) -> Result<RecordShape, UsageError> {
    let Some(text) = text else {
        return Ok(RecordShape { len_bytes: 100, key_offset_bytes: 0, key_len_bytes: 10 });
    };
    let numbers = text.split(|&b| b == b':').map(|part| {
        let part = std::str::from_utf8(part).ok().filter(|part| part.bytes().all(|b| b.is_ascii_digit()));
        part.and_then(|part| part.parse::<usize>().ok())
    });
    let shape = match numbers.collect::<Option<Vec<usize>>>().as_deref() {
        Some(&[len]) => Some((len, 0, len)),
        Some(&[len, offset]) => Some((len, offset, len.saturating_sub(offset))),
        Some(&[len, offset, key]) => Some((len, offset, key)),
        _ => None,
    };
    let fits = |&(len, offset, key): &(usize, usize, usize)| key > 0 && offset < len && key <= len - offset;
    let (len_bytes, key_offset_bytes, key_len_bytes) = shape.filter(fits).ok_or_else(|| {
        let rule = "give LEN[:KEYOFFSET[:KEYLEN]] in bytes, with the key inside the record";
        trouble(format!("invalid --records argument {}: {rule}", quote(text)))
    })?;
    Ok(RecordShape { len_bytes, key_offset_bytes, key_len_bytes })
}

/// What to say where LC_ALL, LC_COLLATE or LANG (the first that is set) asks for another order than
/// that of bytes.
pub(super) fn collation_note(env: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let variables = ["LC_ALL", "LC_COLLATE", "LANG"].into_iter();
    let (variable, value) = variables.filter_map(|v| Some((v, env(v).filter(|value| !value.is_empty())?))).next()?;
    let value = value.to_string_lossy().into_owned();
    // C.UTF-8 collates by code point, which is by bytes.
    let language = value.split('.').next().unwrap_or_default();
    if matches!(language, "C" | "POSIX") {
        return None;
    }
    Some(format!("order is by bytes (as LC_ALL=C), not by {variable}={value}"))
}
