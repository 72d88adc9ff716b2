//! Traces of accesses of real transfers: one access a line, checked when they are read.
//!
//! ```text
//!   # who   what   address  bytes
//!   device  write  0x10000  4096
//!   core    read   0x10000  4096
//! ```
//! Addresses are decimal, or hexadecimal with `0x`. Empty lines, and what is behind a `#`, are left
//! out. A program writes such a trace by printing a [`TraceAccess`] for each transfer and each
//! pass of a core over its bytes:
//!
//! ```
//! use datapipes_models::io_cache::{AccessAgent, AccessKind, AccessTrace, TraceAccess};
//! let buffer = vec![0u8; 4096];
//! let address = buffer.as_ptr() as u64;
//! let filled = TraceAccess { agent: AccessAgent::Device, kind: AccessKind::Write, address, bytes: 4096 };
//! let summed = TraceAccess { agent: AccessAgent::Core, kind: AccessKind::Read, ..filled };
//! let text = format!("{filled}\n{summed}\n");
//! assert_eq!(AccessTrace::read(text.as_bytes()).unwrap().accesses(), [filled, summed]);
//! ```

use std::fmt;
use std::io::{BufRead, Read};

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::cache::{AccessAgent, AccessKind, LastLevelCache, LineAccess, LineOutcome};

/// One access of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TraceAccess {
    /// Who: a device or a core.
    pub agent: AccessAgent,
    /// What.
    pub kind: AccessKind,
    /// The first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The line of the trace.
impl fmt::Display for TraceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agent = match self.agent {
            AccessAgent::Device => "device",
            AccessAgent::Core | AccessAgent::Load => "core",
        };
        let kind = match self.kind {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
        };
        write!(f, "{agent} {kind} {:#x} {}", self.address, self.bytes)
    }
}

/// The longest line of a trace, in bytes.
pub const MAX_TRACE_LINE: usize = 256;
/// The most accesses of a trace: each takes 24 bytes of memory.
pub const MAX_TRACE_ACCESSES: usize = 1 << 23;
/// The most bytes that all accesses of a trace touch.
pub const MAX_TRACE_BYTES: u64 = 1 << 36;

/// A list of accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessTrace(Vec<TraceAccess>);

impl AccessTrace {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// `InvalidInput`, with the number of the line and what to write there: a line that is no
    /// access, is longer than [`MAX_TRACE_LINE`], or is no text; a trace without accesses, or with
    /// more than [`MAX_TRACE_ACCESSES`] or [`MAX_TRACE_BYTES`]. Errors of the reader.
    pub fn read(mut from: impl BufRead) -> Result<AccessTrace> {
        let (mut accesses, mut total) = (Vec::new(), 0u64);
        let mut line = Vec::new();
        for number in 1u64.. {
            line.clear();
            let limit = MAX_TRACE_LINE as u64 + 1;
            let read = from.by_ref().take(limit).read_until(b'\n', &mut line);
            if read.map_err(|e| Error::io("read", e, format!("line {number}")))? == 0 {
                break;
            }
            let Some(access) = parse(&line).map_err(|wrong| wrong.at(number))? else { continue };
            total = total.saturating_add(access.bytes);
            if accesses.len() == MAX_TRACE_ACCESSES || total > MAX_TRACE_BYTES {
                return Err(TOO_LONG.at(number));
            }
            accesses.push(access);
        }
        if accesses.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "read", "a trace without accesses").with_advice(FORM));
        }
        Ok(AccessTrace(accesses))
    }

    /// Returns the accesses in order.
    pub fn accesses(&self) -> &[TraceAccess] {
        &self.0
    }

    /// Returns the bytes of all accesses.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|access| access.bytes).sum()
    }

    /// Makes all accesses in a cache whose lines have `line_bytes`, and hands each line's number
    /// and outcome to `each`.
    pub fn replay(&self, cache: &mut LastLevelCache, line_bytes: u64, mut each: impl FnMut(u64, LineOutcome)) {
        for access in &self.0 {
            let end = access.address + access.bytes;
            for line in access.address / line_bytes..=(end - 1) / line_bytes {
                let is_whole = access.address <= line * line_bytes && end - line * line_bytes >= line_bytes;
                let TraceAccess { agent, kind, .. } = *access;
                each(line, cache.access(LineAccess { agent, kind, line, is_whole }));
            }
        }
    }
}

const FORM: &str = "write `device|core read|write ADDRESS BYTES`, such as `device write 0x10000 4096`";

/// What is wrong with a line, and what to do.
#[derive(Clone, Debug)]
struct Wrong {
    what: String,
    advice: &'static str,
}

const TOO_LONG: Wrong =
    Wrong { what: String::new(), advice: "cut the trace: it has at most 8388608 accesses and 64 GiB" };

impl Wrong {
    fn at(&self, number: u64) -> Error {
        let what = if self.what.is_empty() { "the trace is too long" } else { &self.what };
        Error::new(ErrorKind::InvalidInput, "read", format!("line {number}: {what}")).with_advice(self.advice)
    }
}

/// Reads a line; nothing if it is empty or a remark.
fn parse(line: &[u8]) -> Result<Option<TraceAccess>, Wrong> {
    let wrong = |what: String| Wrong { what, advice: FORM };
    if line.len() > MAX_TRACE_LINE {
        return Err(wrong(format!("it is longer than {MAX_TRACE_LINE} bytes")));
    }
    let text = std::str::from_utf8(line).map_err(|_| wrong("it is no text".into()))?;
    let text = text.split('#').next().unwrap_or("");
    let words: Vec<&str> = text.split_whitespace().collect();
    let [who, what, address, bytes] = words[..] else {
        if words.is_empty() {
            return Ok(None);
        }
        return Err(wrong(format!("it has {} words instead of 4", words.len())));
    };
    let agent = match who {
        "device" => AccessAgent::Device,
        "core" => AccessAgent::Core,
        _ => return Err(wrong(format!("`{who}` is neither device nor core"))),
    };
    let kind = match what {
        "read" => AccessKind::Read,
        "write" => AccessKind::Write,
        _ => return Err(wrong(format!("`{what}` is neither read nor write"))),
    };
    let address = number(address).ok_or_else(|| wrong(format!("the address `{address}` is no number of 64 bits")))?;
    let bytes = number(bytes).ok_or_else(|| wrong(format!("the bytes `{bytes}` are no number of 64 bits")))?;
    if bytes == 0 {
        return Err(Wrong { what: "an access of 0 bytes".into(), advice: "leave the line out, or give its bytes" });
    }
    if address.checked_add(bytes).is_none() {
        let what = "the access ends beyond the last address".into();
        return Err(Wrong { what, advice: "give the first byte's address, and the number of bytes" });
    }
    Ok(Some(TraceAccess { agent, kind, address, bytes }))
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // `from_str_radix` takes a sign.
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        None if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}
