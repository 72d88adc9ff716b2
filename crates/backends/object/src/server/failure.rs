//! What a server or a connection refused, in words without secrets.

use std::error::Error as StdError;
use std::fmt;

use datapipes_core::{Error, ErrorKind};

use super::secrets::Secrets;
use super::xml::text_of;

/// The most characters of a server's name for a refusal that are shown.
const MAX_CODE: usize = 64;
/// The most characters of a server's message that are shown.
const MAX_MESSAGE: usize = 240;

/// An answer that is no success. Its words may hold secrets, so they are shown by
/// [`words`](Self::words) alone.
#[derive(Clone)]
pub(crate) struct ServerRefusal {
    pub(crate) status: u16,
    /// The server's name for it, such as `NoSuchKey`.
    code: String,
    message: String,
}

/// A request that got no answer, or only a part of one.
#[derive(Clone, Debug)]
pub(crate) struct BrokenExchange {
    pub(crate) what: String,
    /// Whether another attempt may succeed.
    pub(crate) passing: bool,
    pub(crate) trouble: Trouble,
    /// Whether the request may have reached the server.
    pub(crate) sent: bool,
}

/// What broke an exchange, as far as a user can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Network,
    /// The server has no certificate that is believed, with advice.
    Untrusted(&'static str),
    /// There is no TLS at this port, or it does not answer.
    NoTls,
}

impl ServerRefusal {
    /// Reads the answer of a server: XML of S3, Google and Azure, or anything else.
    pub(crate) fn new(status: u16, body: &[u8]) -> ServerRefusal {
        let text = String::from_utf8_lossy(body);
        let word = |name: &str| text_of(&text, name).unwrap_or_default();
        ServerRefusal { status, code: word("Code").trim().to_owned(), message: word("Message") }
    }

    /// What a user is told of it.
    pub(crate) fn words(&self, secrets: &Secrets) -> String {
        let mut words = self.to_string();
        let (code, message) = (secrets.shown(&self.code, MAX_CODE), secrets.shown(&self.message, MAX_MESSAGE));
        if !code.is_empty() {
            words.push_str(&format!(" {code}"));
        }
        if !message.is_empty() {
            words.push_str(&format!(" ({message})"));
        }
        words
    }

    /// Whether another attempt may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        let code = matches!(self.code.as_str(), "SlowDown" | "InternalError" | "RequestTimeout" | "ServiceUnavailable");
        code || self.is_conflict()
            || self.status >= 500 && !matches!(self.status, 501 | 507)
            || matches!(self.status, 408 | 425 | 429)
    }

    /// Whether another request for the same object was under way, which says nothing of what is
    /// there.
    fn is_conflict(&self) -> bool {
        matches!(self.code.as_str(), "ConditionalRequestConflict" | "OperationAborted" | "LeaseIdMissing")
    }

    /// Whether the upload that was to be completed is not there any more.
    fn has_no_upload(&self) -> bool {
        self.status == 404 || self.code == "InvalidBlockList"
    }

    fn kind(&self) -> ErrorKind {
        match (self.status, self.code.as_str()) {
            (
                _,
                "BadDigest" | "InvalidDigest" | "XAmzContentChecksumMismatch" | "ChecksumMismatch" | "Crc64Mismatch",
            ) => ErrorKind::Corrupt,
            (401 | 403, _) | (..300, "AccessDenied") => ErrorKind::PermissionDenied,
            (404, _) => ErrorKind::NotFound,
            (_, "ConditionalRequestConflict" | "OperationAborted" | "LeaseIdMissing") => ErrorKind::Busy,
            (412, _) => ErrorKind::Corrupt,
            (416, _) => ErrorKind::OutOfRange,
            (507, _) => ErrorKind::NoSpace,
            (501, _) => ErrorKind::Unsupported,
            (..300 | 408 | 429 | 500.., _) => ErrorKind::Device,
            _ => ErrorKind::System,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        match (self.status, self.code.as_str()) {
            (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => {
                Some("the credentials are expired: get new ones")
            }
            (_, "ConditionalRequestConflict" | "OperationAborted") => {
                Some("another program writes this object: try later")
            }
            (_, "RequestTimeTooSkewed") => Some("set this machine's clock"),
            (_, "SignatureDoesNotMatch" | "InvalidAccessKeyId") => Some("check the credentials"),
            (_, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException") => {
                Some("the bucket is in another region: set AWS_REGION")
            }
            (_, "NoSuchBucket" | "ContainerNotFound") => Some("the bucket does not exist at this endpoint"),
            (_, "InvalidBlockList") => Some("another program wrote this object meanwhile: write it again"),
            (_, "LeaseIdMissing") => Some("another program holds a lease of this object: end it, or wait"),
            (_, "NoSuchKey" | "BlobNotFound") => {
                Some("there is no object of this key: check its spelling, and the bucket's")
            }
            (401 | 403, _) => Some("check the credentials and the permissions of the bucket"),
            (429 | 503, _) => Some("the server is overloaded: try later, or with fewer connections"),
            (301 | 302 | 307 | 308, _) => Some("the bucket is in another region, or at another endpoint"),
            _ => None,
        }
    }
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered {}", self.status)
    }
}

impl fmt::Debug for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerRefusal({})", self.status)
    }
}

impl StdError for ServerRefusal {}

impl fmt::Display for BrokenExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for BrokenExchange {}

/// What is at the bottom of an error of the protocols' library.
pub(crate) enum Cause<'a> {
    Refused(&'a ServerRefusal),
    Broken(&'a BrokenExchange),
    Other,
}

pub(crate) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Cause<'a> {
    let mut at = Some(error);
    // A chain of errors is short; the bound is against one that is not.
    for _ in 0..16 {
        let Some(error) = at else { break };
        if let Some(refusal) = error.downcast_ref::<ServerRefusal>() {
            return Cause::Refused(refusal);
        }
        if let Some(broken) = error.downcast_ref::<BrokenExchange>() {
            return Cause::Broken(broken);
        }
        at = error.source();
    }
    Cause::Other
}

/// Whether the server may have done what it was asked for: its answer was lost, makes no sense, or
/// is that of a server which failed itself, or of a gateway before it.
pub(crate) fn may_be_done(error: &object_store::Error) -> bool {
    match cause(error) {
        Cause::Refused(refusal) => refusal.status >= 500 || refusal.status == 408 || refusal.status < 300,
        Cause::Broken(broken) => broken.sent,
        Cause::Other => !matches!(error, object_store::Error::NotSupported { .. }),
    }
}

/// Whether a request was sent of which no answer came.
pub(crate) fn answer_is_missing(error: &object_store::Error) -> bool {
    matches!(cause(error), Cause::Broken(broken) if broken.sent)
}

/// Whether the server says that the object is there already, or is another than it was.
pub(crate) fn is_there(error: &object_store::Error) -> bool {
    matches!(cause(error), Cause::Refused(refusal) if matches!(refusal.status, 409 | 412) && !refusal.is_conflict())
}

/// Whether the server says that the upload to be completed is not there any more.
pub(crate) fn upload_is_gone(error: &object_store::Error) -> bool {
    matches!(cause(error), Cause::Refused(refusal) if refusal.has_no_upload())
}

/// What to do where a server was asked for credentials first, and did not give them: the machine's,
/// or one that makes tokens.
fn of_credentials(error: &object_store::Error, name: &str) -> Option<&'static str> {
    // The protocols' library has no type for it that others see.
    if !error.to_string().contains("Error performing token request") {
        return None;
    }
    Some(match name.split_once("://") {
        Some(("gs", _)) => {
            "set GOOGLE_APPLICATION_CREDENTIALS to the file with a key; GOOGLE_SKIP_SIGNATURE=true reads what is public"
        }
        _ => "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
    })
}

/// The status of the answer, where the server gave one.
pub(crate) fn status(error: &object_store::Error) -> Option<u16> {
    match cause(error) {
        Cause::Refused(refusal) => Some(refusal.status),
        Cause::Broken(_) | Cause::Other => None,
    }
}

/// Our error for one of the protocols' library.
pub(crate) fn failed(operation: &'static str, name: &str, error: &object_store::Error, secrets: &Secrets) -> Error {
    let (kind, what, advice) = match cause(error) {
        Cause::Refused(refusal) => (refusal.kind(), refusal.words(secrets), refusal.advice()),
        Cause::Broken(broken) => match broken.trouble {
            Trouble::Untrusted(advice) => (ErrorKind::PermissionDenied, broken.to_string(), Some(advice)),
            Trouble::NoTls => {
                let advice = "check the port, and whether it is one of TLS: addresses without TLS begin with http://";
                (ErrorKind::Device, broken.to_string(), Some(advice))
            }
            Trouble::Network => (ErrorKind::Device, broken.to_string(), None),
        },
        Cause::Other if matches!(error, object_store::Error::NotSupported { .. }) => {
            let advice = "get the object as a file first, with a program that reads it from its beginning";
            (ErrorKind::Unsupported, "the server gives no ranges of its bytes".to_owned(), Some(advice))
        }
        Cause::Other => {
            let text = error.to_string();
            let is_key = text.contains("Error parsing Path");
            let advice = "a key has control characters, or a part that is empty, `.` or `..`, which this library cannot \
                          name: give a longer prefix, or the object another key";
            (ErrorKind::System, secrets.shown(&text, 2 * MAX_MESSAGE), is_key.then_some(advice))
        }
    };
    let (what, advice) = match of_credentials(error, name) {
        Some(advice) => (format!("the request for credentials failed: {what}"), Some(advice)),
        None => (what, advice),
    };
    let made = Error::new(kind, operation, secrets.scrub(&format!("{name}: {what}")));
    match advice {
        Some(advice) => made.with_advice(advice),
        None => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_from_xml_and_from_anything_else() {
        let xml = b"<?xml?><Error><Code>ExpiredToken</Code><Message>it is\nover</Message><X>secret</X></Error>";
        let refusal = ServerRefusal::new(403, xml);
        assert_eq!(refusal.words(&Secrets::default()), "the server answered 403 ExpiredToken (it isover)");
        assert_eq!(refusal.kind(), ErrorKind::PermissionDenied);
        assert!(refusal.advice().is_some_and(|advice| advice.contains("expired")));
        assert!(!refusal.is_passing() && ServerRefusal::new(503, b"").is_passing());
        for odd in [&b"\xff\xfe<Code>"[..], b"</Code><Code>", b""] {
            assert_eq!(ServerRefusal::new(500, odd).words(&Secrets::default()), "the server answered 500");
        }
        let long = format!("<Message>{}</Message>", "x".repeat(10_000));
        assert!(ServerRefusal::new(500, long.as_bytes()).words(&Secrets::default()).len() < 400);
    }

    #[test]
    fn the_words_of_a_server_are_shown_without_secrets() {
        let secrets = Secrets::new(vec!["secret<key>".into()]);
        let xml = format!(
            "<Error><Code>secret&lt;key></Code><Message>{}secret&#60;key&gt;</Message></Error>",
            "x".repeat(235)
        );
        let refusal = ServerRefusal::new(403, xml.as_bytes());
        let words = refusal.words(&secrets);
        assert!(!words.contains("sec") && words.contains("403 *** (xxx") && words.contains("x***"), "{words}");
        assert!(!format!("{refusal} {refusal:?}").contains("sec"));
    }
}
