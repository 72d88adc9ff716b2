//! What a client and the service say to each other, over a Unix socket of the type
//! `SOCK_SEQPACKET`.
//!
//! Each packet is one JSON value; descriptors travel beside it (`SCM_RIGHTS`) and are named by
//! their position. The client speaks first, and gets one answer to each request:
//!
//! ```text
//! {"ask":"hello","version":1,"name":"backup"}          {"answer":"hello","version":1,"limits":{...}}
//! {"ask":"connect",                                    {"answer":"pipe","route":"..."}      and a descriptor
//!  "source":{"kind":"file","fd":0,"direct":1},
//!  "target":{"kind":"memory","fd":2,"offset":0,"len":1048576},
//!  "service":{"class":"bulk"},"depth":8,"place":7}
//! {"ask":"status"}                                     {"answer":"status","len":1234}       and packets with the JSON
//! anything else                                        {"answer":"error","kind":1,"errno":null,"text":"..."}
//! ```
//!
//! A client that is not let in, or cut off, or there when the service stops, reads an error that it
//! did not ask for, and then the end of the connection.
//!
//! An answer with a descriptor waits until the client has read those before it, and the end of a
//! session until it has read or closed all that was sent to it, completions of its pipes included.
//!
//! The kinds of errors are numbered as in [`datapipes_core::descriptor::wire`], by which the pipe's
//! descriptor speaks, too.

use datapipes_core::descriptor::wire;
use datapipes_core::{Constraints, Error, FileAccess, ServiceLevel};
use serde::{Deserialize, Serialize};

use crate::server::ServiceLimits;

/// The version of the protocol. Another one is refused.
pub const VERSION: u32 = 1;
/// Bytes of the longest request.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Bytes of the longest answer.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Bytes of each packet of a status, but for the last one.
pub const STATUS_PIECE: usize = 32 << 10;
/// Descriptors of one request, at most.
pub const MAX_DESCRIPTORS: usize = 4;
/// Bytes of the longest text within an answer: longer ones are cut.
const TEXT_BYTES: usize = 24 << 10;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClientRequest {
    /// Comes first.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// What the service's log calls the client.
        #[serde(default)]
        name: String,
    },
    /// A pipe, please.
    Connect(Box<PipeSpec>),
    /// What the service is doing.
    Status,
}

/// A pipe that is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeSpec {
    /// Where the bytes are.
    pub source: PlaceSpec,
    /// Where they are to go.
    pub target: PlaceSpec,
    /// Of the route.
    #[serde(default)]
    pub constraints: Constraints,
    /// Class and rates.
    #[serde(default)]
    pub service: ServiceLevel,
    /// Transfers that the pipe takes at a time; 64 if not given.
    #[serde(default)]
    pub depth: Option<usize>,
    /// What completions call it.
    #[serde(default)]
    pub place: u64,
}

/// A place, by the descriptors that came with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PlaceSpec {
    /// A memfd, sealed against shrinking, all of whose pages are there (written, or allocated by
    /// fallocate(2)): the kernel charges a page to whoever touches it first, and that is not the
    /// service. Offsets of transfers begin at `offset`.
    Memory {
        /// Which descriptor.
        fd: usize,
        /// The first byte of the place in it.
        #[serde(default)]
        offset: u64,
        /// Bytes of the place; all to the end if not given.
        #[serde(default)]
        len: Option<u64>,
    },
    /// A file or a block device, with the offsets that it has. A file that lies in memory (a memfd,
    /// tmpfs) can be a source only: as a target it is passed as memory. A file of an overlay must
    /// be of a mount that the service's namespace has, too.
    File {
        /// Which descriptor: one that goes through the page cache.
        fd: usize,
        /// Which descriptor of the same file goes past it (`O_DIRECT`). Without one, all bytes go
        /// through the page cache.
        #[serde(default)]
        direct: Option<usize>,
        /// Whether transfers go past the page cache.
        #[serde(default)]
        access: FileAccess,
    },
}

/// What the service answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum ServiceAnswer {
    /// To a hello.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// What a client may have.
        limits: ServiceLimits,
    },
    /// The pipe's descriptor comes with this.
    Pipe {
        /// The way it takes, with reasons, for people.
        route: String,
    },
    /// So many bytes of JSON, a [`Status`](crate::ServiceStatus), come after this, in packets of
    /// [`STATUS_PIECE`]. They are not in memory that is passed: that would be the service's for as
    /// long as a client keeps it.
    Status {
        /// Bytes.
        len: u64,
    },
    /// It was refused.
    Error {
        /// The kind's number.
        kind: u32,
        /// The operating system's number, if it came from there.
        errno: Option<i32>,
        /// All that is to be said.
        text: String,
    },
}

impl ServiceAnswer {
    /// The answer that tells an error.
    pub fn error(error: &Error) -> ServiceAnswer {
        let (kind, errno) = (wire::code_of(error.kind()), error.raw_os_error());
        ServiceAnswer::Error { kind, errno, text: cut(error.to_string()) }
    }

    /// The answer with a pipe.
    pub(crate) fn pipe(route: String) -> ServiceAnswer {
        ServiceAnswer::Pipe { route: cut(route) }
    }

    /// The error that an answer tells, or the answer.
    ///
    /// # Errors
    /// What the service said.
    pub fn into_result(self) -> datapipes_core::Result<ServiceAnswer> {
        match self {
            ServiceAnswer::Error { kind, errno, text } => {
                let error = Error::relayed(wire::kind_of(kind), text);
                Err(match errno {
                    Some(errno) => error.errno(errno),
                    None => error,
                })
            }
            answer => Ok(answer),
        }
    }
}

/// Quotes and control characters take more bytes in JSON than in the text, six at most; few texts
/// have any.
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
        let error = Error::new(ErrorKind::NoSpace, "write", "a \"place\"").errno(28);
        let answer = ServiceAnswer::error(&error);
        let text = serde_json::to_string(&answer).unwrap();
        let back = serde_json::from_str::<ServiceAnswer>(&text).unwrap().into_result().unwrap_err();
        assert_eq!(
            (back.kind(), back.raw_os_error(), back.to_string()),
            (ErrorKind::NoSpace, Some(28), error.to_string())
        );
        let long = Error::new(ErrorKind::System, "read", "\u{1}".repeat(1 << 20));
        assert!(serde_json::to_string(&ServiceAnswer::error(&long)).unwrap().len() < MAX_ANSWER_BYTES);
    }
}
