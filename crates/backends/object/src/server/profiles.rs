//! AWS's profile files: sections of settings, read as the cloud's own tools read them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The most bytes of a profile file.
const MAX_PROFILE: u64 = 1 << 20;

/// The settings of a section. Their names are in lower case.
pub(super) type Section = BTreeMap<String, String>;

/// Returns the settings of the sections of these names, if the file has one, and `None` for a file
/// that is not there.
///
/// # Errors
/// Why the file cannot be read, or what in it makes no sense. What it was meant to say is not known
/// then.
pub(super) fn section(path: &Path, names: &[&str]) -> Result<Option<Section>, String> {
    let why = |what: String| format!("{}: {what}", path.display());
    match text(path) {
        Ok(Some(text)) => section_of(&text, names).map_err(why),
        Ok(None) => Ok(None),
        Err(e) => Err(why(e)),
    }
}

fn text(path: &Path) -> Result<Option<String>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(format!("it cannot be read: {e}")),
    };
    let mut bytes = Vec::new();
    file.take(MAX_PROFILE + 1).read_to_end(&mut bytes).map_err(|e| format!("it cannot be read: {e}"))?;
    if bytes.len() as u64 > MAX_PROFILE {
        return Err(format!("it has more than {MAX_PROFILE} bytes"));
    }
    // Comments may be of any encoding. A value that is no text is refused by its name.
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned()))
}

fn section_of(text: &str, names: &[&str]) -> Result<Option<Section>, String> {
    let mut found: Option<Section> = None;
    let mut within = None;
    // The indentation of the setting before, once the section has one.
    let mut indent: Option<usize> = None;
    for (at, line) in text.lines().enumerate() {
        let words = line.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        // Lines that are indented further belong to the value of the setting before.
        if indent.is_some_and(|indent| depth > indent) {
            continue;
        }
        if let Some(rest) = words.strip_prefix('[') {
            let Some((name, _)) = rest.rsplit_once(']') else {
                return Err(format!("line {}: a section without `]`", at + 1));
            };
            within = Some(names.contains(&name.trim()));
            indent = None;
            if within == Some(true) {
                found.get_or_insert_default();
            }
            continue;
        }
        let setting = words.find(['=', ':']).map(|sign| (words[..sign].trim(), words[sign + 1..].trim()));
        let (Some((name, value)), Some(within)) = (setting, within) else {
            return Err(format!("line {}: neither [SECTION] nor NAME = VALUE within one", at + 1));
        };
        indent = Some(depth);
        if within {
            found.get_or_insert_default().insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_read_as_by_the_clouds_own_tools() {
        let read = |text: &str| section_of(text, &["default"]);
        let of = |text: &str, name: &str| read(text).unwrap().unwrap_or_default().get(name).cloned();
        for (text, endpoint) in [
            ("[default]\nendpoint_url = http://h\n", Some("http://h")),
            ("[default]\r\nENDPOINT_URL: http://h:1\r\n", Some("http://h:1")),
            ("  [default] ; comment\n  # another\n  endpoint_url=http://h\n", Some("http://h")),
            ("[default]\ns3 =\n  endpoint_url = http://nested\nregion = x\n", None),
            ("[other]\nendpoint_url = http://other\n[default]\nregion = x\n", None),
            ("[default]\nregion = x\n[other]\n[default]\nendpoint_url = http://h\n", Some("http://h")),
            ("", None),
        ] {
            assert_eq!(of(text, "endpoint_url").as_deref(), endpoint, "{text}");
        }
        assert!(read("[other]\n").unwrap().is_none() && read("[default]\n").unwrap().is_some());
        for (text, line) in [("a = b\n[default]\n", 1), ("\n[default\nregion = x\n", 2), ("[default]\nregion\n", 2)] {
            assert!(read(text).unwrap_err().starts_with(&format!("line {line}: ")), "{text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_file_that_says_nothing() {
        let folder = datapipes_testkit::TempFolder::beside_the_program().unwrap();
        assert_eq!(section(&folder.path("none"), &["default"]), Ok(None));
        assert!(section(folder.at(), &["default"]).unwrap_err().contains("cannot be read"));
        std::fs::write(folder.path("long"), vec![b'#'; 2 << 20]).unwrap();
        assert!(section(&folder.path("long"), &["default"]).unwrap_err().contains("more than"));
        std::fs::write(folder.path("odd"), b"\xef\xbb\xbf# J\xfcrgen\n[default]\nregion = here\n").unwrap();
        assert_eq!(section(&folder.path("odd"), &["default"]).unwrap().unwrap()["region"], "here");
    }
}
