//! Addresses of objects: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`, and
//! `http(s)://host/path` for reading.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use datapipes_core::{Error, ErrorKind, Result};

/// The most bytes of a key; S3, Google Cloud Storage and Azure (in characters) take no longer one.
const MAX_KEY: usize = 1024;
/// The most bytes of a URL.
const MAX_URL: usize = 8192;

/// The kind of server that has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectScheme {
    /// S3, or a server that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A web server, which is only read.
    Http,
}

/// The address of an object. It is shown without what could be a secret in it (a user, a query).
///
/// Keys of a bucket are written as they are, but for their end. A `*` there makes a pattern, so a
/// key that ends in `*` itself is written with `%2A` there. One that ends in `%2A` is written with
/// `%252A`.
///
/// ```
/// use datapipes_object::{ObjectAddress, ObjectScheme};
/// let address: ObjectAddress = "s3://logs/2026/11.txt".parse()?;
/// assert_eq!((address.scheme(), address.bucket(), address.key()), (ObjectScheme::S3, "logs", "2026/11.txt"));
/// let address: ObjectAddress = "https://host/x?X-Amz-Signature=secret".parse()?;
/// assert_eq!(address.to_string(), "https://host/x?...");
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    scheme: ObjectScheme,
    /// The bucket or container; of HTTP, the scheme and the host.
    bucket: String,
    /// The key; of HTTP, the path and the query.
    key: String,
    is_pattern: bool,
    shown: String,
}

/// Whether a text is meant as an object's address, by how it begins.
pub fn is_object(text: &str) -> bool {
    scheme_of(text).is_some()
}

/// The scheme of a text, and what follows it.
fn scheme_of(text: &str) -> Option<(ObjectScheme, &'static str, &str)> {
    let schemes = [
        ("s3://", ObjectScheme::S3),
        ("gs://", ObjectScheme::Gcs),
        ("az://", ObjectScheme::Azure),
        ("http://", ObjectScheme::Http),
        ("https://", ObjectScheme::Http),
    ];
    schemes.into_iter().find_map(|(prefix, scheme)| Some((scheme, prefix, text.strip_prefix(prefix)?)))
}

impl ObjectAddress {
    /// The kind of server.
    pub fn scheme(&self) -> ObjectScheme {
        self.scheme
    }

    /// The bucket or container; of HTTP, the scheme and the host.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key within the bucket. Of HTTP it is the path and the query, which may hold a secret.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether it is a pattern of several objects: its key ends in `*`.
    pub fn is_pattern(&self) -> bool {
        self.is_pattern
    }

    /// The last part of the key, by which a copy in a folder is called.
    pub fn file_name(&self) -> Option<&str> {
        // In the keys of a bucket these are characters like others.
        let path = match self.scheme {
            ObjectScheme::Http => self.key.split(['?', '#']).next().unwrap_or(""),
            _ => &self.key,
        };
        path.rsplit('/').next().filter(|name| !name.is_empty() && !matches!(*name, "." | ".."))
    }

    /// The address of another key of the same bucket.
    pub(crate) fn with_key(&self, key: &str) -> Result<ObjectAddress> {
        let (scheme, _) = self.shown.split_once("://").unwrap_or(("s3", ""));
        format!("{scheme}://{}/{}", self.bucket, escaped_key(key)).parse()
    }
}

/// A key of a bucket as an address has it: with an end that is no pattern.
///
/// ```
/// use datapipes_object::{ObjectAddress, escaped_key};
/// assert_eq!(escaped_key("weights*"), "weights%2A");
/// let address: ObjectAddress = format!("s3://models/{}", escaped_key("weights*")).parse()?;
/// assert_eq!((address.key(), address.is_pattern()), ("weights*", false));
/// # Ok::<(), datapipes_core::Error>(())
/// ```
pub fn escaped_key(key: &str) -> Cow<'_, str> {
    if let Some(rest) = key.strip_suffix('*') {
        return format!("{rest}%2A").into();
    }
    match star_of(key) {
        Some((rest, end)) => format!("{rest}%25{end}").into(),
        None => key.into(),
    }
}

/// The key of a bucket that the key of an address means.
fn key_meant(written: &str) -> Cow<'_, str> {
    match star_of(written) {
        Some((rest, end)) => match end.strip_prefix("25") {
            Some(end) => format!("{rest}%{end}").into(),
            None => format!("{rest}*").into(),
        },
        None => written.into(),
    }
}

/// Divides a text that ends in `%2A`, `%252A` and so on: what is before the `%`, and what is behind
/// it. Nothing else of a key is encoded, so that keys with `%` elsewhere are what they look like.
fn star_of(text: &str) -> Option<(&str, &str)> {
    let (rest, end) = text.rsplit_once('%')?;
    let star = end.strip_suffix("2A").or_else(|| end.strip_suffix("2a"))?;
    let fives = star.as_bytes().chunks(2).all(|pair| pair == b"25");
    fives.then_some((rest, end))
}

impl FromStr for ObjectAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<ObjectAddress> {
        let bad = |why: &str| {
            Error::new(ErrorKind::InvalidInput, "parse", format!("object `{}`: {why}", shown(text)))
                .with_advice("write s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or https://HOST/PATH")
        };
        let Some((scheme, prefix, rest)) = scheme_of(text) else { return Err(bad("it is no address of an object")) };
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad("the bucket is missing"));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("it has control characters"));
        }
        if scheme == ObjectScheme::Http {
            if text.len() > MAX_URL {
                return Err(bad("it is too long"));
            }
            // Nobody would know why the server refuses.
            if bucket.contains('@') {
                return Err(bad("it has a user or a password, which are not sent"));
            }
            let bucket = format!("{prefix}{bucket}");
            return Ok(ObjectAddress { scheme, bucket, key: key.to_owned(), is_pattern: false, shown: shown(text) });
        }
        if matches!(bucket, "." | "..") {
            return Err(bad("the bucket's name is a path of folders"));
        }
        if !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) || bucket.len() > 255 {
            return Err(bad("the bucket's name has characters that no server takes"));
        }
        if key.is_empty() {
            return Err(bad("the key is missing"));
        }
        let is_pattern = key.ends_with('*');
        let key = key_meant(key);
        if key.len() > MAX_KEY {
            return Err(bad("the key has more than 1024 bytes"));
        }
        // The library that speaks the protocols cannot express these keys.
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad("a part of the key is empty, `.` or `..`"));
        }
        let (bucket, key) = (bucket.to_owned(), key.into_owned());
        Ok(ObjectAddress { scheme, bucket, key, is_pattern, shown: text.to_owned() })
    }
}

/// A text for messages: no user, password, query or fragment of a URL, and not too long.
fn shown(text: &str) -> String {
    let Some((ObjectScheme::Http, prefix, rest)) = scheme_of(text) else {
        return text.chars().filter(|c| !c.is_control()).take(200).collect();
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or(host);
    let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
    let path: String = path.chars().filter(|c| !c.is_control()).take(200).collect();
    format!("{prefix}{host}{path}{}", if query.is_empty() { "" } else { "?..." })
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("s3://b/{}", "k".repeat(1025));
        for wrong in ["", "s3:/b/k", "s3://", "s3:///k", "s3://b", "s3://b/", "s3://b/a//c", "s3://b/../k", "s3://b!/k"]
        {
            assert!(wrong.parse::<ObjectAddress>().is_err(), "{wrong}");
        }
        assert!(long.parse::<ObjectAddress>().is_err());
        assert!("s3://b/a\nb".parse::<ObjectAddress>().is_err());
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        let named = "https://user:pass@host/a/b?sig=abc".parse::<ObjectAddress>().unwrap_err().to_string();
        assert!(
            named.contains("https://host/a/b?...") && named.contains("not sent") && !named.contains("pass@"),
            "{named}"
        );
        let address: ObjectAddress = "https://host/a/b?sig=abc".parse().unwrap();
        assert_eq!(address.to_string(), "https://host/a/b?...");
        assert_eq!(format!("{address:?}"), "https://host/a/b?...");
        assert_eq!(address.file_name(), Some("b"));
        let odd: ObjectAddress = "s3://b/in/x?3#1".parse().unwrap();
        assert_eq!((odd.file_name(), odd.to_string().as_str()), (Some("x?3#1"), "s3://b/in/x?3#1"));
        let wrong = "https://".parse::<ObjectAddress>().unwrap_err();
        assert!(!wrong.to_string().contains("pass"), "{wrong}");
    }

    #[test]
    fn patterns_end_in_a_star() {
        let of = |text: &str| text.parse::<ObjectAddress>().unwrap();
        assert!(of("s3://b/a/*").is_pattern() && of("s3://b/part-*").is_pattern());
        assert!(!of("s3://b/a").is_pattern() && !of("http://b/a*").is_pattern());
        assert_eq!(of("s3://b/a/*").with_key("a/x").unwrap().to_string(), "s3://b/a/x");
    }

    #[test]
    fn a_star_at_the_end_of_a_key_can_be_written() {
        let pattern: ObjectAddress = "s3://b/a/*".parse().unwrap();
        // Whatever a server lists, its address leads to it.
        for key in ["a/x*", "a/*", "a/x%2A", "a/x%252A", "a/x%25252a", "a/x%2A*", "a/%", "a/x%25", "a/%2Ax", "a/%352A"]
        {
            let found = pattern.with_key(key).unwrap();
            assert_eq!((found.key(), found.is_pattern()), (key, false), "{found}");
            let again: ObjectAddress = found.to_string().parse().unwrap();
            assert_eq!((again.key(), again.is_pattern()), (key, false), "{found}");
        }
        let of = |text: &str| text.parse::<ObjectAddress>().unwrap();
        assert_eq!((of("s3://b/x%2a").key(), of("s3://b/x%2A").file_name()), ("x*", Some("x*")));
        assert_eq!((of("s3://b/x%252A").key(), of("s3://b/a%20b").key()), ("x%2A", "a%20b"));
        // A web server reads it itself.
        assert_eq!(of("http://b/x%2A").key(), "x%2A");
    }
}
