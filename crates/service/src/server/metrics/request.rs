//! What a client of the metrics asked for. A pure function of the bytes that came so far.

/// The longest head of a request: its line and its fields.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;

/// What a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The metrics; of a `HEAD` only the length.
    Metrics { with_body: bool },
    /// A refusal: status, its reason, and a word on what to do.
    Refusal(u16, &'static str, &'static str),
}

const MALFORMED: Wanted = Wanted::Refusal(400, "Bad Request", "this is not a request of HTTP/1.1");
const TOO_LONG: Wanted = Wanted::Refusal(431, "Request Header Fields Too Large", "a request has at most 8 KiB here");
const NOT_HERE: Wanted = Wanted::Refusal(404, "Not Found", "the metrics are at /metrics");
const NO_METHOD: Wanted = Wanted::Refusal(405, "Method Not Allowed", "the metrics can be fetched by GET");
const NO_VERSION: Wanted = Wanted::Refusal(505, "HTTP Version Not Supported", "this is HTTP/1.1");

/// Returns what to answer; `None` while more has to come. Fields are not looked at: the page is the
/// same for all.
pub(super) fn wanted(head: &[u8]) -> Option<Wanted> {
    // Empty lines before a request are no mistake (RFC 9112, section 2.2).
    let begin = head.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(head.len());
    let is_whole = ends(&head[begin..]);
    let line_end = head[begin..].iter().position(|b| *b == b'\n');
    match line_end {
        // What is wrong with the line is told before the fields have come.
        Some(end) => match of_line(head[begin..begin + end].trim_ascii_end()) {
            metrics @ Wanted::Metrics { .. } if is_whole => Some(metrics),
            Wanted::Metrics { .. } if head.len() >= MAX_HEAD_BYTES => Some(TOO_LONG),
            Wanted::Metrics { .. } => None,
            refusal => Some(refusal),
        },
        None if head.len() >= MAX_HEAD_BYTES => Some(TOO_LONG),
        None => None,
    }
}

/// Whether the empty line is there that ends a head.
fn ends(head: &[u8]) -> bool {
    head.windows(2).any(|two| two == b"\n\n") || head.windows(4).any(|four| four == b"\r\n\r\n")
}

fn of_line(line: &[u8]) -> Wanted {
    let mut words = line.split(|b| *b == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return MALFORMED;
    };
    let is_token = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_graphic);
    if ![method, target, version].into_iter().all(is_token) || !version.starts_with(b"HTTP/") {
        return MALFORMED;
    }
    if !version.starts_with(b"HTTP/1.") {
        return NO_VERSION;
    }
    let with_body = match method {
        b"GET" => true,
        b"HEAD" => false,
        _ => return NO_METHOD,
    };
    // Clients of proxies name the machine too.
    let path = match target.strip_prefix(b"http://") {
        Some(rest) => rest.iter().position(|b| *b == b'/').map_or(&b"/"[..], |at| &rest[at..]),
        None => target,
    };
    let path = path.split(|b| *b == b'?').next().unwrap_or(path);
    if path == b"/metrics" { Wanted::Metrics { with_body } } else { NOT_HERE }
}

/// The head of an answer.
pub(super) fn head(status: u16, reason: &str, kind: &str, len: usize) -> String {
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> Option<u16> {
        wanted(head).map(|wanted| match wanted {
            Wanted::Metrics { with_body } => 200 + u16::from(!with_body),
            Wanted::Refusal(status, ..) => status,
        })
    }

    #[test]
    fn a_request_is_answered_when_it_is_whole_and_a_wrong_one_before() {
        let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
        for end in 0..get.len() {
            assert_eq!(status(&get[..end]), None, "{end} bytes");
        }
        assert_eq!(status(get), Some(200));
        for (text, answer) in [
            (&b"\r\n\r\nGET /metrics HTTP/1.0\n\n"[..], Some(200)),
            (b"HEAD /metrics?a=b HTTP/1.1\r\n\r\n", Some(201)),
            (b"GET http://localhost:9465/metrics HTTP/1.1\r\n\r\n", Some(200)),
            (b"GET http://localhost HTTP/1.1\r\n", Some(404)),
            (b"GET / HTTP/1.1\r\n", Some(404)),
            (b"GET /metrics/ HTTP/1.1\r\n", Some(404)),
            (b"POST /metrics HTTP/1.1\r\n", Some(405)),
            (b"GET /metrics HTTP/2.0\r\n", Some(505)),
            (b"GET /metrics\r\n", Some(400)),
            (b"GET  /metrics HTTP/1.1\r\n", Some(400)),
            (b"GET /met\x07rics HTTP/1.1\r\n", Some(400)),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", Some(400)),
            (b"\r\n", None),
        ] {
            assert_eq!(status(text), answer, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn no_head_is_longer_than_its_limit() {
        assert_eq!(status(&[b'x'; MAX_HEAD_BYTES]), Some(431));
        assert_eq!(status(&[b'\n'; MAX_HEAD_BYTES]), Some(431));
        let mut long = b"GET /metrics HTTP/1.1\r\nA: ".to_vec();
        long.resize(MAX_HEAD_BYTES - 1, b'a');
        assert_eq!(status(&long), None);
        long.push(b'a');
        assert_eq!(status(&long), Some(431));
    }

    #[test]
    fn any_bytes_have_an_answer_at_the_limit() {
        const ALPHABET: &[u8] = b"GET /metricsHTTP1.\r\n\r\n: ab\0\xff";
        let mut state = 1u64;
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..MAX_HEAD_BYTES)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    ALPHABET[(state >> 33) as usize % ALPHABET.len()]
                })
                .collect();
            assert!(wanted(&bytes).is_some());
        }
    }
}
