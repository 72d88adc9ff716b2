//! Objects in buckets on the command line. A program that was built without the feature `object`
//! knows their addresses, and says what it lacks.

use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};

use crate::remote_memory;

#[cfg(not(feature = "object"))]
mod absent;
mod account;
#[cfg(feature = "object")]
mod built;
mod hidden;

#[cfg(not(feature = "object"))]
pub(crate) use absent::{AnyObject, ObjectAccess, address_in, file_name, unfinished_uploads};
pub(crate) use account::ObjectAccount;
#[cfg(feature = "object")]
pub(crate) use built::{AnyObject, ObjectAccess, address_in, file_name, unfinished_uploads};
pub(crate) use hidden::{hide, without_hidden};

/// How objects' addresses begin.
const SCHEMES: [&str; 5] = ["s3://", "gs://", "az://", "http://", "https://"];

/// Whether a text is meant as an object's address.
pub(crate) fn is_object(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// Whether an address stands for several objects of a bucket.
pub(crate) fn is_pattern(text: &str) -> bool {
    is_object(text) && text.ends_with('*') && !text.starts_with("http")
}

/// The addresses that an input of a command stands for, in the order of their keys.
pub(crate) fn inputs(access: &ObjectAccess, command: &'static str, address: &str) -> Result<Vec<String>> {
    let found = access.list(address)?;
    if found.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, command, format!("{} stands for no object", shown(address))));
    }
    Ok(found)
}

/// Whether a path is meant as an object's address.
pub(crate) fn is_object_path(path: &Path) -> bool {
    path.to_str().is_some_and(is_object)
}

/// An address for messages: of a web server's, a user, a password and a query may be secrets. In
/// the keys of a bucket `?` and `@` are characters like others.
pub(crate) fn shown(address: &str) -> String {
    let web = ["http://", "https://"].into_iter().find_map(|scheme| Some((scheme, address.strip_prefix(scheme)?)));
    let Some((scheme, rest)) = web else { return address.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}{}{path}", host.rsplit('@').next().unwrap_or(host))
}

/// Refuses objects as the files that a command writes beside its results.
pub(crate) fn refuse_paths<'a>(
    command: &'static str,
    paths: impl IntoIterator<Item = Option<&'a PathBuf>>,
) -> Result<()> {
    let names: Vec<&str> = paths.into_iter().flatten().filter_map(|path| path.to_str()).collect();
    refuse(command, &names)
}

/// Options whose values may look like objects: where a checkpoint is restored to, and words that
/// are looked for.
const OPTIONS_OF_OBJECTS: [(&str, &str); 2] = [("checkpoint restore", "output"), ("top", "filter")];

/// The command and the value of an option that is an object, or memory of another process, where
/// the option takes none.
pub(crate) fn among_options(
    definition: &clap::Command,
    matches: &clap::ArgMatches,
    command: &str,
) -> Option<(String, String)> {
    for option in definition.get_arguments().filter(|argument| !argument.is_positional()) {
        let name = option.get_id().as_str();
        let mut values = matches.try_get_raw(name).ok().flatten().into_iter().flatten();
        let object =
            values.find_map(|value| value.to_str().filter(|value| is_object(value) || remote_memory::is_remote(value)));
        if let Some(object) = object.filter(|_| !OPTIONS_OF_OBJECTS.contains(&(command, name))) {
            return Some((command.to_owned(), object.to_owned()));
        }
    }
    let (name, matches) = matches.subcommand()?;
    let command = format!("{command} {name}");
    among_options(definition.find_subcommand(name)?, matches, command.trim_start())
}

/// Refuses objects, and memory of other processes, where a command takes files alone.
pub(crate) fn refuse<'a>(command: &'static str, names: &[&'a str]) -> Result<()> {
    // An option and its value may be one word.
    let value = |name: &'a str| match name.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => name,
    };
    match names.iter().copied().map(value).find(|name| is_object(name)) {
        None => remote_memory::refuse(command, names),
        Some(name) => Err(refusal(command, command, name)),
    }
}

/// The error of a command that takes files alone.
pub(crate) fn refusal(operation: &'static str, command: &str, name: &str) -> Error {
    if remote_memory::is_remote(name) {
        return remote_memory::refusal(operation, command, name);
    }
    let why = format!("{}: `dpipe {command}` takes no objects here", shown(name));
    Error::new(ErrorKind::Unsupported, operation, why).with_advice("copy the object to a file first, by `dpipe copy`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_what_may_be_secret() {
        assert_eq!(shown("s3://b/in/x?3#1"), "s3://b/in/x?3#1");
        assert_eq!(shown("https://user:pass@host/x@y?sig=s#f"), "https://host/x@y");
        assert_eq!(shown("http://user:pass@host?q"), "http://host");
        assert_eq!(shown("a file?"), "a file?");
        let refused = refuse("log", &["--from=https://u:p@h/x?sig=s"]).unwrap_err().to_string();
        assert!(refused.contains("https://h/x:") && !refused.contains("sig"), "{refused}");
    }
}
