//! Events of a package's memory controllers and PCI Express ports, which the kernel names in sysfs
//! (Linux, Documentation/ABI/testing/sysfs-bus-event_source-devices-events).

use std::path::Path;

use crate::perf::EventCode;
use crate::tree;

/// An event of one device of a package.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UncoreEvent {
    pub(crate) code: EventCode,
    /// The cores of which each counts its package's part.
    pub(crate) cores: Vec<u32>,
    /// The bytes for which a count of 1 stands.
    pub(crate) bytes: f64,
    pub(crate) source: String,
}

const DEVICES: &str = "sys/bus/event_source/devices";

/// Returns the devices whose name begins so.
pub(crate) fn devices(root: &Path, begin: &str) -> Vec<String> {
    let mut names = tree::names(&root.join(DEVICES));
    names.retain(|name| name.starts_with(begin));
    names
}

/// Returns the events of one of these names, of all memory controllers that have one.
pub(crate) fn memory_events(root: &Path, names: &[&str]) -> Result<Vec<UncoreEvent>, String> {
    let all = devices(root, "uncore_imc");
    all.iter().filter_map(|device| names.iter().find_map(|name| event(root, device, name))).collect()
}

/// Returns the events that count the bytes of PCI Express ports, in both directions. Counters that
/// always run have names (Linux, arch/x86/events/intel/uncore_snbep.c: `bw_in_port0`).
pub(crate) fn port_events(root: &Path) -> Result<Vec<UncoreEvent>, String> {
    let is_of_port = |name: &str| {
        ["bw_in_port", "bw_out_port"].iter().any(|begin| {
            name.strip_prefix(begin).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    let mut all = Vec::new();
    for device in devices(root, "uncore_iio") {
        for name in tree::names(&root.join(DEVICES).join(&device).join("events")) {
            if is_of_port(&name) {
                all.extend(event(root, &device, &name).transpose()?);
            }
        }
    }
    Ok(all)
}

/// Returns an event; `None` where the device has none of that name. One that is not understood is
/// an error: without it, a sum would be too small.
fn event(root: &Path, device: &str, name: &str) -> Option<Result<UncoreEvent, String>> {
    let file = format!("{DEVICES}/{device}/events/{name}");
    let is_there = root.join(&file).exists();
    is_there.then(|| understood(root, device, name).ok_or_else(|| format!("/{file} is not understood")))
}

fn understood(root: &Path, device: &str, name: &str) -> Option<UncoreEvent> {
    let folder = root.join(DEVICES).join(device);
    let text = |file: &str| tree::text(&folder.join(file));
    let mut code = EventCode { kind: text("type")?.parse().ok()?, config: [0; 3] };
    for part in text(&format!("events/{name}"))?.split(',') {
        let (field, value) = part.split_once('=').unwrap_or((part, "1"));
        put(&mut code, &text(&format!("format/{}", field.trim()))?, number(value.trim())?)?;
    }
    let scale: f64 = text(&format!("events/{name}.scale"))?.parse().ok()?;
    let unit = match text(&format!("events/{name}.unit"))?.as_str() {
        "MiB" => 1024.0 * 1024.0,
        "Bytes" => 1.0,
        _ => return None,
    };
    let bytes = scale * unit;
    let cores = numbers(&text("cpumask")?)?;
    (bytes.is_finite() && bytes > 0.0 && !cores.is_empty()).then(|| UncoreEvent {
        code,
        cores,
        bytes,
        source: format!("/{DEVICES}/{device}/events/{name}"),
    })
}

/// Puts a field's value where its format says: `config:0-7,21` or `config1:3`.
fn put(code: &mut EventCode, format: &str, mut value: u64) -> Option<()> {
    let (word, ranges) = format.split_once(':')?;
    let word = match word {
        "config" => 0,
        "config1" => 1,
        "config2" => 2,
        _ => return None,
    };
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        if low > high || high > 63 {
            return None;
        }
        let bits = high - low + 1;
        let mask = u64::MAX >> (64 - bits);
        code.config[word] |= (value & mask) << low;
        value = value.checked_shr(bits).unwrap_or(0);
    }
    // What did not fit would be another event.
    (value == 0).then_some(())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The most cores that a list may name.
const MAX_CORES: u32 = 1 << 16;

/// Parses a list of the kernel, as `0-2,5`.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        if low > high || high >= MAX_CORES {
            return None;
        }
        all.extend(low..=high);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_where_their_format_says() {
        let mut code = EventCode::default();
        put(&mut code, "config:0-7", 0x04).unwrap();
        put(&mut code, "config:8-15", 0x0f).unwrap();
        put(&mut code, "config1:0-3,32-35", 0xab).unwrap();
        put(&mut code, "config2:63", 1).unwrap();
        assert_eq!(code.config, [0x0f04, 0xa_0000_000b, 1 << 63]);
        for (format, value) in [("config:0-7", 0x100), ("config:9-3", 1), ("config:60-64", 1), ("other:0", 1), ("x", 1)]
        {
            assert_eq!(put(&mut code, format, value), None, "{format}");
        }
        put(&mut code, "config:0-63", u64::MAX).unwrap();
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(numbers("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(numbers(""), Some(vec![]));
        for wrong in ["a", "3-1", "0-4294967295", "1-"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }
}
