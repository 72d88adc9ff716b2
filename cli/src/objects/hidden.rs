//! What of this command's arguments is never printed: in addresses of web servers, a user, a
//! password and a query may be secrets. Messages are made in many places, by libraries too, so it
//! is taken out where text is printed.

use std::borrow::Cow;
use std::ffi::OsString;
use std::sync::OnceLock;

/// Texts, and what is printed in their place.
static HIDDEN: OnceLock<Vec<(String, &'static str)>> = OnceLock::new();

/// Notes what is not printed of these arguments. `printed` is what messages make of words.
pub(crate) fn hide(arguments: &[OsString], printed: fn(&str) -> String) {
    // An argument without such an address is the rule, and is seen at once: what follows is code
    // that the start would have to read from the file.
    let has_scheme = |text: &[u8]| text.windows(3).any(|bytes| bytes == b"://");
    let may_hide = |argument: &&OsString| has_scheme(argument.as_encoded_bytes());
    let texts = arguments.iter().filter(may_hide).map(|argument| argument.to_string_lossy());
    let hidden: Vec<_> = texts.flat_map(|text| secret_parts(&text, printed)).collect();
    if !hidden.is_empty() {
        // The command line is read once.
        let _ = HIDDEN.set(hidden);
    }
}

/// A text without what is not printed.
pub(crate) fn without_hidden(text: &str) -> Cow<'_, str> {
    HIDDEN.get().map_or(Cow::Borrowed(text), |hidden| without(text, hidden))
}

fn without<'a>(text: &'a str, hidden: &[(String, &'static str)]) -> Cow<'a, str> {
    hidden.iter().fold(Cow::Borrowed(text), |text, (secret, shown)| {
        if text.contains(secret.as_str()) { Cow::Owned(text.replace(secret.as_str(), shown)) } else { text }
    })
}

/// What may be secret in the address of an argument, or of an option's value.
fn secret_parts(argument: &str, printed: fn(&str) -> String) -> Vec<(String, &'static str)> {
    let rests = ["http://", "https://"].into_iter().filter_map(|scheme| argument.split_once(scheme));
    let mut parts = Vec::new();
    for (_, rest) in rests {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        if let Some(at) = host.rfind('@') {
            parts.push((host[..=at].to_owned(), ""));
        }
        if let Some(query) = path.find(['?', '#']).and_then(|at| path.get(at..)).filter(|query| query.len() > 1) {
            parts.push((query.to_owned(), "?..."));
        }
    }
    // Characters that a terminal would obey are replaced in messages.
    let printed: Vec<_> = parts.iter().map(|(secret, shown)| (printed(secret), *shown)).collect();
    parts.extend(printed);
    parts.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
    parts.dedup();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_arguments_are_not_printed() {
        let printed = |text: &str| text.replace(char::is_control, "\u{fffd}");
        let shown = |argument: &str, text: &str| without(text, &secret_parts(argument, printed)).into_owned();
        let address = "https://user:pass@h/x?sig=S&t=1";
        assert_eq!(shown(address, &format!("open: {address}: no")), "open: https://h/x?...: no");
        assert_eq!(shown(&format!("--from={address}"), "'https:/user:pass@h/x?sig=S&t=1'"), "'https:/h/x?...'");
        assert_eq!(shown("http://h?a\nb", "http://h?a\u{fffd}b"), "http://h?...");
        for plain in ["s3://b/x?3#1", "file?x", "http://h/x", "http://h/x?"] {
            assert_eq!(shown(plain, plain), plain);
        }
    }
}
