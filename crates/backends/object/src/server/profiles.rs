//! AWS's profile files: sections of settings, read as the cloud's own tools read them.
//!
//! What those refuse is refused here, too, but for a byte order mark and comments that are no text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The most bytes of a profile file.
const MAX_PROFILE: u64 = 1 << 20;

/// The settings of a section. Their names are in lower case.
pub(super) type Section = BTreeMap<String, String>;

/// The settings whose values are taken: none of them has several lines.
const TAKEN: [&str; 7] = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_security_token",
    "aws_session_token",
    "endpoint_url",
    "ignore_configured_endpoint_urls",
    "region",
];

/// The two kinds of files, which name profiles differently.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProfileFile {
    /// `[NAME]`.
    Credentials,
    /// `[profile NAME]`, where NAME may be quoted as for a shell, and `[default]`. As in those
    /// tools, the first word need only begin so.
    Config,
}

/// Returns the settings of a profile, if the file has it, and `None` for a file that is not there.
///
/// # Errors
/// Why the file cannot be read, or what in it makes no sense. What it was meant to say is not known
/// then.
pub(super) fn profile(path: &Path, kind: ProfileFile, name: &str) -> Result<Option<Section>, String> {
    let why = |what: String| format!("{}: {what}", path.display());
    match text(path) {
        Ok(Some(text)) => profile_of(&text, kind, name).map_err(why),
        Ok(None) => Ok(None),
        Err(e) => Err(why(e)),
    }
}

fn text(path: &Path) -> Result<Option<String>, String> {
    let unread = |e: &std::io::Error| format!("it cannot be read: {e}");
    let is_absent = |e: &std::io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => {}
        // `/dev/null` stands for no file.
        Ok(meta) if meta.file_type().is_char_device() => return Ok(None),
        // A pipe may wait for its writer for ever.
        Ok(_) => return Err("it cannot be read: it is no file".to_owned()),
        Err(e) if is_absent(&e) => return Ok(None),
        Err(e) => return Err(unread(&e)),
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if is_absent(&e) => return Ok(None),
        Err(e) => return Err(unread(&e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_PROFILE + 1).read_to_end(&mut bytes).map_err(|e| unread(&e))?;
    if bytes.len() as u64 > MAX_PROFILE {
        return Err(format!("it has more than {MAX_PROFILE} bytes"));
    }
    // Comments may be of any encoding. A value that is no text is refused by its name.
    let text = String::from_utf8_lossy(&bytes);
    Ok(Some(text.strip_prefix('\u{feff}').unwrap_or(&text).replace("\r\n", "\n").replace('\r', "\n")))
}

/// A file that is read line by line, as by the configuration parser of Python's library, on which
/// the cloud's tools are built.
#[derive(Default)]
struct Reading {
    /// Sections with their settings, in their order.
    sections: Vec<(String, Section)>,
    /// The settings of `[DEFAULT]`, which all sections have.
    common: Section,
    /// Whether settings belong to `[DEFAULT]`, to the last section, or to none yet.
    within: Within,
    /// The name of the setting before in this section, and its indentation.
    setting: Option<(String, usize)>,
}

#[derive(Default, PartialEq, Eq)]
enum Within {
    #[default]
    Nothing,
    Common,
    Section,
}

impl Reading {
    fn settings(&mut self) -> Option<&mut Section> {
        match self.within {
            Within::Nothing => None,
            Within::Common => Some(&mut self.common),
            Within::Section => self.sections.last_mut().map(|(_, settings)| settings),
        }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let words = line.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            return Ok(());
        }
        // For the parser of those tools these are white space, which they are not here.
        if line.contains(['\u{1c}', '\u{1d}', '\u{1e}', '\u{1f}']) {
            return Err("a control character".to_owned());
        }
        let depth = line.chars().take_while(|letter| letter.is_whitespace()).count();
        // Lines that are indented further belong to the value of the setting before.
        if let Some((name, _)) = self.setting.as_ref().filter(|(_, indent)| depth > *indent) {
            let name = name.clone();
            if TAKEN.contains(&name.as_str()) {
                return Err(format!("the value of `{name}` has a second line, because the line is indented further"));
            }
            let is_nested = self.settings().and_then(|settings| settings.get(&name)).is_some_and(String::is_empty);
            if is_nested && !words.contains('=') {
                return Err(format!("within `{name}`, it is no NAME = VALUE"));
            }
            return Ok(());
        }
        if let Some((name, _)) = words.strip_prefix('[').and_then(|rest| rest.rsplit_once(']')) {
            if name.is_empty() {
                return Err("a section without a name".to_owned());
            }
            self.setting = None;
            if name == "DEFAULT" {
                self.within = Within::Common;
                return Ok(());
            }
            if self.sections.iter().any(|(there, _)| there == name) {
                return Err(format!("a second section [{}]", name.escape_debug()));
            }
            self.within = Within::Section;
            self.sections.push((name.to_owned(), Section::new()));
            return Ok(());
        }
        if words.starts_with('[') {
            return Err("a section without `]`".to_owned());
        }
        let setting = words.find(['=', ':']).map(|sign| (words[..sign].trim(), words[sign + 1..].trim()));
        let neither = || "neither [SECTION] nor NAME = VALUE within one".to_owned();
        let (name, value) = setting.filter(|(name, _)| !name.is_empty()).ok_or_else(neither)?;
        let name = name.to_lowercase();
        self.setting = Some((name.clone(), depth));
        let settings = self.settings().ok_or_else(neither)?;
        match settings.insert(name.clone(), value.to_owned()) {
            Some(_) => Err(format!("a second `{}` in a section", name.escape_debug())),
            None => Ok(()),
        }
    }
}

fn profile_of(text: &str, kind: ProfileFile, name: &str) -> Result<Option<Section>, String> {
    let mut reading = Reading::default();
    for (at, line) in text.split('\n').enumerate() {
        reading.line(line).map_err(|why| format!("line {}: {why}", at + 1))?;
    }
    let is_it = |section: &str| match kind {
        ProfileFile::Credentials => section == name,
        ProfileFile::Config => match section.strip_prefix("profile") {
            // The last of those that have the name counts.
            Some(rest) => of_shell(rest).is_some_and(|words| matches!(&words[..], [_, named] if named == name)),
            None => section == "default" && name == "default",
        },
    };
    let found = reading.sections.into_iter().rfind(|(section, _)| is_it(section));
    Ok(found.map(|(_, settings)| {
        let mut all = reading.common;
        all.extend(settings);
        all
    }))
}

/// Words, quoted as for a shell: the end of the first one, and the others. `None` where a quote has
/// no end.
fn of_shell(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word = Some(String::new());
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('"'), '\\') => {
                let next = letters.next()?;
                let word = word.get_or_insert_default();
                if !['"', '\\'].contains(&next) {
                    word.push('\\');
                }
                word.push(next);
            }
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\\') => word.get_or_insert_default().push(letters.next()?),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t' | '\r' | '\n') => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_read_as_by_the_clouds_own_tools() {
        let read = |text: &str| profile_of(text, ProfileFile::Config, "default");
        let of = |text: &str, name: &str| read(text).unwrap().unwrap_or_default().get(name).cloned();
        for (text, endpoint) in [
            ("[default]\nendpoint_url = http://h\n", Some("http://h")),
            ("[default]\r\nENDPOINT_URL: http://h:1\r\n", Some("http://h:1")),
            ("  [default] ; comment\n  # another\n  endpoint_url=http://h\n", Some("http://h")),
            ("[default]\ns3 =\n  endpoint_url = http://nested\nregion = x\n", None),
            ("[other]\nendpoint_url = http://other\n[default]\nregion = x\n", None),
            ("[DEFAULT]\nendpoint_url = http://all\n[default]\nregion = x\n", Some("http://all")),
            ("[default]\nendpoint_url = http://h\n\n[DEFAULT]\nendpoint_url = http://all\n", Some("http://h")),
            ("[default]\nregion = x\n[profile default]\nendpoint_url = http://h\n", Some("http://h")),
            ("[profile \"default\"] text\nendpoint_url = http://h\n", Some("http://h")),
            ("[profile  'default' ]\nendpoint_url = http://h\n", Some("http://h")),
            ("[ default ]\nendpoint_url = http://h\n", None),
            ("[default]\nregion = x\n[profiles-old default]\nendpoint_url = http://h\n", Some("http://h")),
            ("[profile default more]\nendpoint_url = http://h\n", None),
            // The sign of Kelvin, which is a `k` in lower case; a space of two bytes.
            ("[default]\nas\u{212a} = 1\n\u{a0}\u{a0}\nendpoint_url = http://h\n", Some("http://h")),
            ("[default]\nservices = x\n[services x]\ns3 =\n  endpoint_url = http://nested\n", None),
            ("", None),
        ] {
            assert_eq!(of(text, "endpoint_url").as_deref(), endpoint, "{text}");
        }
        assert!(read("[other]\n").unwrap().is_none() && read("[default]\n").unwrap().is_some());
        for (text, line) in [
            ("a = b\n[default]\n", 1),
            ("\n[default\nregion = x\n", 2),
            ("[default]\nregion\n", 2),
            ("[default]\n= x\n", 2),
            ("[]\n", 1),
            // An accident of indentation, and values that are not taken as they are written.
            ("[default]\nregion = x\n  endpoint_url = http://h\n", 3),
            ("[default]\nendpoint_url =\n\n  http://h\n", 4),
            ("[default]\naws_access_key_id = AK\n  BK\n", 3),
            ("[default]\ns3 =\n  nonsense\n", 3),
            ("[default]\n\u{a0}region = x\n  endpoint_url = http://h\n", 3),
            ("[default]\naws_access_key_id\u{1f} = AK\n", 2),
            ("[default]\nregion = x\n[default]\n", 3),
            ("[other]\nregion = x\nREGION = y\n", 3),
        ] {
            assert!(read(text).unwrap_err().starts_with(&format!("line {line}: ")), "{text}");
        }
        // Each kind of file names profiles in its own way.
        let both = "[x]\nregion = plain\n[profile x]\nregion = prefixed\n[profile 'my team']\nregion = quoted\n";
        for (kind, name, region) in [
            (ProfileFile::Config, "x", Some("prefixed")),
            (ProfileFile::Credentials, "x", Some("plain")),
            (ProfileFile::Config, "my team", Some("quoted")),
            (ProfileFile::Config, "profile x", None),
            (ProfileFile::Credentials, "my team", None),
        ] {
            let found = profile_of(both, kind, name).unwrap();
            assert_eq!(found.and_then(|found| found.get("region").cloned()).as_deref(), region, "{name}");
        }
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for (text, words) in [
            (" x", &["", "x"][..]),
            ("\t\"a b\"  ", &["", "a b"]),
            (" a\\ b", &["", "a b"]),
            (" 'a'\"b\"c", &["", "abc"]),
            (" \"a\\\"b\\c\"", &["", "a\"b\\c"]),
            ("s x", &["s", "x"]),
            (" ''", &["", ""]),
        ] {
            assert_eq!(of_shell(text).unwrap(), words, "{text}");
        }
        assert!(of_shell(" 'a").is_none() && of_shell(" a\\").is_none());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_file_that_says_nothing() {
        let folder = datapipes_testkit::TempFolder::beside_the_program().unwrap();
        let read = |path: &Path| profile(path, ProfileFile::Config, "default");
        assert_eq!(read(Path::new("/dev/null")), Ok(None));
        rustix::fs::mknodat(rustix::fs::CWD, folder.path("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&folder.path("pipe")).unwrap_err().contains("no file"));
        std::fs::write(folder.path("old"), "[default]\rregion = here\r").unwrap();
        assert_eq!(read(&folder.path("old")).unwrap().unwrap()["region"], "here");
        assert_eq!(read(&folder.path("none")), Ok(None));
        assert!(read(folder.at()).unwrap_err().contains("cannot be read"));
        std::fs::write(folder.path("long"), vec![b'#'; 2 << 20]).unwrap();
        assert!(read(&folder.path("long")).unwrap_err().contains("more than"));
        std::fs::write(folder.path("odd"), b"\xef\xbb\xbf# J\xfcrgen\n[default]\nregion = here\n").unwrap();
        assert_eq!(read(&folder.path("odd")).unwrap().unwrap()["region"], "here");
    }
}
