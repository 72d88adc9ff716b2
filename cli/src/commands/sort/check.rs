//! `dpipe sort -c`: whether an input is in order.

use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use datapipes::{Error, ErrorKind, Locator, Result};
use datapipes_sort::Input;

use super::disorder::{Disorder, Rule, Search, float, signed, unsigned};
use crate::arguments::sort_args::{Format, Parsed};
use crate::commands::data::check::{each_piece, first_len, open_whole};
use crate::objects::{ObjectAccess, is_object, shown};
use crate::outcome::CommandStatus;
use crate::system::signals::{self, WaitsFor};
use crate::system::standard_streams;
use crate::system::window::Window;

/// From as many bytes on a file is read through a pipe.
const LONG: u64 = 128 << 10;

/// Reads up to the first disorder; names it as GNU sort does, unless quiet.
pub(super) fn run(parsed: &Parsed, quiet: bool) -> Result<CommandStatus> {
    let rule = rule(parsed);
    let name = parsed.inputs.first().cloned().unwrap_or_else(|| "-".into());
    let mut search = Search::new(&rule, parsed.options.unique);
    let mut look = |bytes: &[u8]| if search.push(bytes) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let whole = |place: &dyn Locator, range: Range<u64>, look: &mut dyn FnMut(&[u8]) -> ControlFlow<()>| {
        signals::catch(WaitsFor::Places);
        let machine = datapipes::discover();
        Window::over(&machine, place, range.end)?.read(range, |bytes| {
            signals::check("check")?;
            Ok(look(bytes))
        })
    };
    match name.to_str().filter(|name| is_object(name)) {
        Some(address) => {
            let object = ObjectAccess::to_read()?.open(address)?;
            whole(&object, 0..object.len(), &mut look)?;
        }
        None => {
            let name = Path::new(&name);
            match open_whole(name, first_len(name)?)? {
                // A short file is read before the machine is known.
                (Input::File { ssd, from }, len) if len >= LONG || ssd.file().is_block_device() => {
                    whole(&ssd, from..from + len, &mut look)?;
                }
                (other, len) => each_piece(other, len, look)?,
            }
        }
    }
    let found = search.finish().map_err(|left| {
        let len = parsed.record_len().unwrap_or(1);
        let why = format!("its length is not a multiple of the record length {len}: {left} bytes are left over");
        Error::new(ErrorKind::InvalidInput, "check", format!("{}: {why}", shown(&name.to_string_lossy())))
    })?;
    let Some(disorder) = found else { return Ok(CommandStatus::Good) };
    if !quiet {
        let shown = name.to_str().map_or_else(|| name.as_bytes().to_vec(), |name| shown(name).into_bytes());
        tell(&shown, &rule, &disorder);
    }
    Ok(CommandStatus::Bad)
}

/// Bytes as they are: a line need not be text.
fn tell(name: &[u8], rule: &Rule, disorder: &Disorder) {
    let mut message = [b"dpipe sort: ", name].concat();
    let mut end = b'\n';
    match rule {
        Rule::Lines { terminator, .. } => {
            end = *terminator;
            message.extend_from_slice(format!(":{}: disorder: ", disorder.record + 1).as_bytes());
            message.extend_from_slice(&disorder.bytes);
        }
        Rule::Records { .. } | Rule::Numbers { .. } => {
            message.extend_from_slice(format!(": disorder at record {}, counted from 0", disorder.record).as_bytes());
        }
    }
    message.push(end);
    standard_streams::print_error(&message);
}

fn rule(parsed: &Parsed) -> Rule {
    let reverse = parsed.options.modifiers.reverse;
    let numbers = |len, word| Rule::Numbers { len, word, reverse };
    match parsed.format {
        Format::Lines => Rule::Lines { order: Box::new(parsed.order.clone()), terminator: parsed.terminator },
        Format::Records(shape) => Rule::Records {
            len: shape.len_bytes,
            key_at: shape.key_offset_bytes,
            key_len: shape.key_len_bytes,
            reverse,
        },
        Format::U32 => numbers(4, unsigned),
        Format::U64 => numbers(8, unsigned),
        Format::I64 => numbers(8, signed),
        Format::F64 => numbers(8, float),
    }
}
