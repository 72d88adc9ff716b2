//! Messages: requests over the connection, and over a pipe. Most of them are valid.

use datapipes::Span;
use datapipes::descriptor::wire::TransferRequest;

use super::Choices;

/// Makes a request for a pipe, and the kinds of the descriptors that go with it.
pub(super) fn connect(choices: &mut Choices<'_>) -> (String, Vec<u8>) {
    let mut kinds = Vec::new();
    let source = place(choices, &mut kinds);
    let target = place(choices, &mut kinds);
    let mut text = format!(r#"{{"ask":"connect","source":{source},"target":{target}"#);
    if choices.once_in(3) {
        text.push_str(&format!(r#","constraints":{{{}}}"#, constraints(choices)));
    }
    if choices.once_in(3) {
        let class = ["normal", "bulk", "latency", "none"][choices.below(4)];
        let (least, most) = (rate(choices), rate(choices));
        text.push_str(&format!(r#","service":{{"class":"{class}","at_least":{least},"at_most":{most}}}"#));
    }
    if choices.once_in(3) {
        text.push_str(&format!(r#","depth":{}"#, choices.number() / 64));
    }
    if choices.once_in(4) {
        text.push_str(&format!(r#","place":{}"#, choices.number()));
    }
    text.push('}');
    // Sometimes there is one descriptor more or fewer than is named.
    match choices.below(16) {
        14 => kinds.push(choices.byte()),
        15 => drop(kinds.pop()),
        _ => {}
    }
    (text, kinds)
}

/// Makes a place, with the descriptors that it names.
fn place(choices: &mut Choices<'_>, kinds: &mut Vec<u8>) -> String {
    // Memory and files by their kinds (`descriptors`), sometimes the other way round.
    let kind = choices.byte();
    let is_memory = kind.is_multiple_of(2) != choices.once_in(24);
    let mut fd = kinds.len();
    kinds.push(kind);
    if choices.once_in(24) {
        fd = usize::try_from(choices.number()).unwrap_or(0);
    }
    if is_memory {
        let offset = if choices.once_in(4) { choices.number() } else { 0 };
        let len = if choices.once_in(4) { choices.number().to_string() } else { "null".into() };
        return format!(r#"{{"kind":"memory","fd":{fd},"offset":{offset},"len":{len}}}"#);
    }
    let access = ["auto", "cached", "direct"][choices.below(3)];
    if choices.once_in(4) {
        kinds.push(choices.byte());
        return format!(r#"{{"kind":"file","fd":{fd},"direct":{},"access":"{access}"}}"#, fd.wrapping_add(1));
    }
    format!(r#"{{"kind":"file","fd":{fd}}}"#)
}

fn constraints(choices: &mut Choices<'_>) -> String {
    let number = |choices: &mut Choices<'_>| (choices.number() / 64).to_string();
    let mut knobs = Vec::new();
    for _ in 0..=choices.below(3) {
        knobs.push(match choices.below(9) {
            0 => format!(r#""request_bytes":{}"#, number(choices)),
            1 => format!(r#""queue_depth":{}"#, number(choices)),
            2 => format!(r#""typical_len":{}"#, choices.number()),
            3 => format!(r#""at_least":{}"#, rate(choices)),
            4 => r#""bypass_page_cache":true"#.to_owned(),
            5 => r#""bypass_processor_cache":true"#.to_owned(),
            6 => r#""urgent":true"#.to_owned(),
            7 => r#""deny":["kernel-copy","uring-cached"]"#.to_owned(),
            _ => r#""only":["pread-cached","pwrite-cached","rep-movsb"]"#.to_owned(),
        });
    }
    knobs.join(",")
}

fn rate(choices: &mut Choices<'_>) -> &'static str {
    let rates = ["null", "null", "null", "1e6", "1e9", "1", "4096", "1e-300", "1e308", "0", "-1", "1e999", "NaN"];
    rates[choices.below(rates.len())]
}

/// Makes a request over a pipe.
pub(super) fn span(choices: &mut Choices<'_>) -> Vec<u8> {
    let (source, target, len) = (choices.number(), choices.number(), choices.number());
    // Mostly it lies within the places, which have 64 KiB.
    let len = if choices.once_in(8) { len } else { len % (32 << 10) };
    let span = Span { source, target, len };
    TransferRequest { token: u64::from(choices.byte()), span }.to_bytes().to_vec()
}

/// Changes some bytes of a message.
pub(super) fn change(choices: &mut Choices<'_>, mut message: Vec<u8>) -> Vec<u8> {
    for _ in 0..=choices.below(3) {
        let len = message.len();
        let at = (choices.below(256) * 256 + choices.below(256)) % len.max(1);
        match choices.below(6) {
            _ if len == 0 => return message,
            0 => message[at] ^= 1 << choices.below(8),
            1 => message.truncate(at),
            2 => message[at] = choices.byte(),
            3 => message.insert(at, b"0123456789-.eE{}[]\",:"[choices.below(21)]),
            4 => drop(message.remove(at)),
            _ => {
                let end = (at + 1 + choices.below(64)).min(len);
                let copy = message[at..end].to_vec();
                message.splice(at..at, copy);
            }
        }
    }
    message
}
