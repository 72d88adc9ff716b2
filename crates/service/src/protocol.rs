//! The protocol between a client and the service, over a Unix socket of the type `SOCK_SEQPACKET`.
//!
//! Each packet is one JSON value. Descriptors are passed with it (`SCM_RIGHTS`) and named by their
//! position. The client sends requests, and gets one answer to each:
//!
//! ```text
//! {"ask":"hello","version":1,"name":"backup"}
//!     -> {"answer":"hello","version":1,"limits":{...}}
//! {"ask":"connect",
//!  "source":{"kind":"file","fd":0,"direct":1},
//!  "target":{"kind":"memory","fd":2,"offset":0,"len":1048576},
//!  "service":{"class":"bulk"},"depth":8,"place":7}
//!     -> {"answer":"pipe","route":"..."} and a descriptor
//! {"ask":"status"}
//!     -> {"answer":"status","len":1234} and packets with the JSON
//! a request that is refused
//!     -> {"answer":"error","kind":1,"errno":null,"text":"..."}
//! ```
//!
//! A client that is refused or cut off, or that is connected when the service stops, receives an
//! unsolicited error, and then the end of the connection.
//!
//! An answer with a descriptor waits until the client has read the answers before it. The end of a
//! session waits until the client has read or closed everything sent to it, including completions
//! of its pipes.
//!
//! The kinds of errors have the numbers of [`datapipes_core::descriptor::wire`], which the pipe's
//! descriptor uses too.

use datapipes_core::descriptor::wire;
use datapipes_core::{Constraints, Error, FileAccess, ServiceLevel};
use serde::{Deserialize, Serialize};

use crate::server::ServiceLimits;

/// The version of the protocol. Other versions are refused.
pub const VERSION: u32 = 1;
/// The longest request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// The longest answer, in bytes.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Bytes of each packet of a status, except the last one.
pub const STATUS_PIECE: usize = 32 << 10;
/// The most descriptors of one request.
pub const MAX_DESCRIPTORS: usize = 4;
/// The longest text within an answer, in bytes; longer texts are cut.
const TEXT_BYTES: usize = 24 << 10;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientRequest {
    /// Opens the session; it must come first.
    Hello {
        /// The version of the protocol: [`VERSION`].
        version: u32,
        /// The client's name for the service's log.
        #[serde(default)]
        name: String,
    },
    /// Asks for a pipe.
    Connect(Box<PipeSpec>),
    /// Asks what the service is doing.
    Status,
}

/// The pipe that a client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeSpec {
    /// The place of the bytes.
    pub source: PlaceSpec,
    /// The place that they are moved to.
    pub target: PlaceSpec,
    /// Constraints on the route.
    #[serde(default)]
    pub constraints: Constraints,
    /// The priority class and the rates.
    #[serde(default)]
    pub service: ServiceLevel,
    /// The most transfers that the pipe takes at a time; 64 if not given.
    #[serde(default)]
    pub depth: Option<usize>,
    /// The number that completions carry as their place.
    #[serde(default)]
    pub place: u64,
}

/// A place, named by the descriptors that came with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PlaceSpec {
    /// A memfd that is sealed against shrinking and fully populated (written, or allocated by
    /// fallocate(2)): the kernel charges a page to the process that touches it first, which must
    /// not be the service. Offsets of transfers begin at `offset`.
    Memory {
        /// The position of its descriptor.
        fd: usize,
        /// The offset in it of the place's first byte.
        #[serde(default)]
        offset: u64,
        /// Bytes of the place; up to the end if not given.
        #[serde(default)]
        len: Option<u64>,
    },
    /// A file or a block device, with its own offsets. A file in memory (a memfd, tmpfs) can only
    /// be a source; as a target it is passed as memory. A file of an overlay must be of a mount in
    /// the service's namespace.
    File {
        /// The position of a descriptor that goes through the page cache.
        fd: usize,
        /// The position of a descriptor of the same file that goes past the page cache
        /// (`O_DIRECT`). Without one, all bytes go through the page cache.
        #[serde(default)]
        direct: Option<usize>,
        /// Whether transfers go past the page cache.
        #[serde(default)]
        access: FileAccess,
    },
}

/// An answer of the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum ServiceAnswer {
    /// The answer to a hello.
    Hello {
        /// The version of the protocol: [`VERSION`].
        version: u32,
        /// The limits of the client.
        limits: ServiceLimits,
    },
    /// A pipe was made. Its descriptor comes with this answer.
    Pipe {
        /// The route with reasons, for people.
        route: String,
    },
    /// A status follows: `len` bytes of JSON (a [`Status`](crate::ServiceStatus)) in packets of
    /// [`STATUS_PIECE`] bytes. They are not passed in memory, because that would be charged to the
    /// service for as long as a client keeps it.
    Status {
        /// The length of the JSON, in bytes.
        len: u64,
    },
    /// The request was refused.
    Error {
        /// The number of the error's kind.
        kind: u32,
        /// The error number of the operating system, if the error came from there.
        errno: Option<i32>,
        /// The whole text of the error.
        text: String,
    },
}

impl ServiceAnswer {
    /// Returns the answer that reports an error.
    pub fn error(error: &Error) -> ServiceAnswer {
        let (kind, errno) = (wire::code_of(error.kind()), error.errno());
        ServiceAnswer::Error { kind, errno, text: cut(error.to_string()) }
    }

    /// Returns the answer for a new pipe.
    pub(crate) fn pipe(route: String) -> ServiceAnswer {
        ServiceAnswer::Pipe { route: cut(route) }
    }

    /// Returns the answer, or the error that it reports.
    ///
    /// # Errors
    /// The error that the service reported.
    pub fn into_result(self) -> datapipes_core::Result<ServiceAnswer> {
        match self {
            ServiceAnswer::Error { kind, errno, text } => {
                let error = Error::relayed(wire::kind_of(kind), text);
                Err(match errno {
                    Some(errno) => error.with_errno(errno),
                    None => error,
                })
            }
            answer => Ok(answer),
        }
    }
}

/// Cuts a text. Quotes and control characters take more bytes in JSON than in the text, at most
/// six; few texts have any.
fn cut(mut text: String) -> String {
    let escaped = |c: char| if c == '"' || c == '\\' || c.is_control() { 6 } else { c.len_utf8() };
    let mut bytes = 0;
    let end = text.char_indices().find(|(_, c)| {
        bytes += escaped(*c);
        bytes > TEXT_BYTES
    });
    if let Some((end, _)) = end {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use datapipes_core::{ErrorKind, PriorityClass};

    use super::*;

    #[test]
    fn the_example_of_the_module_is_understood() {
        let text = r#"{"ask":"connect","source":{"kind":"file","fd":0,"direct":1},
            "target":{"kind":"memory","fd":2,"offset":0,"len":1048576},"service":{"class":"bulk"},"depth":8,"place":7}"#;
        let ClientRequest::Connect(ask) = serde_json::from_str(text).unwrap() else { panic!("no connect") };
        assert_eq!(ask.source, PlaceSpec::File { fd: 0, direct: Some(1), access: FileAccess::Auto });
        assert_eq!(ask.target, PlaceSpec::Memory { fd: 2, offset: 0, len: Some(1 << 20) });
        assert_eq!((ask.service.class, ask.depth, ask.place), (PriorityClass::Bulk, Some(8), 7));
        assert_eq!(
            serde_json::from_str::<ClientRequest>(
                &serde_json::to_string(&ClientRequest::Connect(ask.clone())).unwrap()
            )
            .unwrap(),
            ClientRequest::Connect(ask)
        );
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let good = r#"{"ask":"hello","version":1}"#;
        assert!(serde_json::from_str::<ClientRequest>(good).is_ok());
        for bad in [
            r#"{"ask":"hello"}"#,
            r#"{"ask":"hello","version":1,"colour":"red"}"#,
            r#"{"ask":"open","path":"/etc/shadow"}"#,
            r#"{"ask":"connect","source":{"kind":"path","fd":0},"target":{"kind":"memory","fd":0}}"#,
            r#"{"ask":"connect","source":{"kind":"memory","fd":-1},"target":{"kind":"memory","fd":0}}"#,
            r#"{"ask":"connect","source":{"kind":"memory","fd":0}}"#,
            "{",
            "",
            "null",
            "[]",
        ] {
            assert!(serde_json::from_str::<ClientRequest>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_comes_back_as_it_was_and_always_fits() {
        let error = Error::new(ErrorKind::NoSpace, "write", "a \"place\"").with_errno(28);
        let answer = ServiceAnswer::error(&error);
        let text = serde_json::to_string(&answer).unwrap();
        let back = serde_json::from_str::<ServiceAnswer>(&text).unwrap().into_result().unwrap_err();
        assert_eq!((back.kind(), back.errno(), back.to_string()), (ErrorKind::NoSpace, Some(28), error.to_string()));
        let long = Error::new(ErrorKind::System, "read", "\u{1}".repeat(1 << 20));
        assert!(serde_json::to_string(&ServiceAnswer::error(&long)).unwrap().len() < MAX_ANSWER_BYTES);
    }
}
