//! How a command ends.

use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;

use datapipes::{Error, ErrorKind, Result};
use rustix::stdio::stderr;
use serde::Serialize;

use crate::objects::{unfinished_uploads, without_hidden};
use crate::{system::signals, system::standard_streams};

/// The result of a command that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// Done, and everything holds.
    Good,
    /// A check does not hold.
    Bad,
}

/// The exit code of a command; an error is printed as `dpipe COMMAND: ...`.
pub(crate) fn exit_code(command: &str, outcome: Result<CommandStatus>) -> ExitCode {
    exit_code_in_words(command, outcome, |error| shown(command, error))
}

/// Returns the same as `exit_code`. The caller chooses the text behind `dpipe COMMAND: `.
pub(crate) fn exit_code_in_words(
    command: &str,
    outcome: Result<CommandStatus>,
    words: impl FnOnce(&Error) -> String,
) -> ExitCode {
    let unfinished = unfinished_uploads();
    if unfinished > 0 {
        let uploads = if unfinished == 1 { "an unfinished upload" } else { "unfinished uploads" };
        print_error(&format!(
            "dpipe {command}: {uploads} may be left at the server; a later command that writes the same object removes \
             what is left\n"
        ));
    }
    let is_told = || rustix::termios::isatty(stderr()) || signals::warns();
    if let (Ok(_), Some(text)) = (&outcome, signals::late(command)) {
        if is_told() {
            note(&format!("{}\n", harmless(text.trim_end(), usize::MAX)));
        }
        signals::die_of_signal();
    }
    let code = match outcome {
        Ok(CommandStatus::Good) => 0,
        Ok(CommandStatus::Bad) => 1,
        Err(error) => {
            // Everything was cleaned up on the way here: now the signal may do what it does to
            // others.
            if let Some(text) = signals::undone(command, unfinished == 0)
                && is_told()
            {
                note(&format!("{}\n", harmless(text.trim_end(), usize::MAX)));
            }
            signals::die_of_signal();
            if is_abandoned_output(&error) && !standard_streams::sigpipe_was_ignored() {
                signals::die_of(libc::SIGPIPE);
            }
            // It is one line, whatever is in a name.
            print_error(&format!("dpipe {command}: {}\n", harmless(&words(&error), usize::MAX)));
            2
        }
    };
    // A message that could not be printed must show in the exit code.
    ExitCode::from(if standard_streams::unheard() { 2 } else { code })
}

/// Whether the reader of the standard output went away. Of other outputs that is an error with a
/// word.
fn is_abandoned_output(error: &Error) -> bool {
    error.errno() == Some(libc::EPIPE) && error.context().ends_with(standard_streams::OUTPUT)
}

/// An error for people: without the number behind the system's words, and without saying the
/// command twice.
pub(crate) fn shown(command: &str, error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(errno) = error.errno() {
        text = text.replace(&format!(" (os error {errno})"), "");
    }
    if error.kind() == ErrorKind::EndOfFile && !text.contains("end of file") {
        text += ": end of file; it became shorter while it was read";
    }
    for (setting, option) in OPTIONS {
        text = text.replace(&format!("`{setting}`"), option);
    }
    text.strip_prefix(&format!("{command}: ")).map(str::to_owned).unwrap_or(text)
}

/// Options by the settings that advice of the sort names, as a program in Rust knows them.
const OPTIONS: [(&str, &str); 4] =
    [("memory_bytes", "-S"), ("spill", "-T"), ("threads", "--parallel"), ("compression", "--spill-compression=on")];

/// The system's words for an error, without their number.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(errno) => text.replace(&format!(" (os error {errno})"), ""),
        None => text,
    }
}

/// Prints to the standard error what has to be known: where that fails, the exit code is 2. It is
/// text for people, see [`clean`].
pub(crate) fn print_error(text: &str) {
    print_error_as_it_is(&clean(text));
}

/// The same for what a program reads.
pub(crate) fn print_error_as_it_is(text: &str) {
    standard_streams::print_error(text.as_bytes());
}

/// Prints to the standard error what nobody misses where it cannot be printed. It is text for
/// people, see [`clean`].
pub(crate) fn note(text: &str) {
    draw(&clean(text));
}

/// The same with sequences for the terminal, which are ours.
pub(crate) fn draw(text: &str) {
    standard_streams::note(text.as_bytes());
}

/// Whether a terminal would obey a character, or hide others behind it.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Words of others, such as names of files, without what a terminal would obey or hide, in one line
/// and with at most `most` characters.
pub(crate) fn harmless(words: &str, most: usize) -> String {
    words.chars().map(|c| if is_harmful(c) { '\u{fffd}' } else { c }).take(most).collect()
}

/// The name of a file, or the address of an object, as part of a line.
pub(crate) fn shown_path(path: &Path) -> String {
    harmless(&crate::objects::shown(&path.display().to_string()), usize::MAX)
}

/// A text of a library, in which these names stand as they are, with each in one line.
pub(crate) fn with_names<'a>(text: String, names: impl IntoIterator<Item = &'a Path>) -> String {
    names.into_iter().fold(text, |text, name| {
        let raw = name.display().to_string();
        if raw.contains(char::is_control) { text.replace(&raw, &shown_path(name)) } else { text }
    })
}

/// A text for people without what a terminal would obey or hide, and without what may be secret of
/// this command's arguments. Whatever it is made of, this is the last that happens to it. Lines end
/// as they do: a name of a file is put into one by [`shown_path`].
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| is_harmful(c) && !matches!(c, '\n' | '\t');
    let text = without_hidden(text);
    if text.chars().any(is_harmful) { text.replace(is_harmful, "\u{fffd}").into() } else { text }
}

/// Prints text for people to the standard output, see [`clean`]; a reader that went away is an
/// error like others, not a panic.
pub(crate) fn print(text: &str) -> Result<()> {
    print_as_it_is(&clean(text))
}

/// The same for what a program reads, and for sequences for the terminal, which are ours.
pub(crate) fn print_as_it_is(text: &str) -> Result<()> {
    use std::io::Write;
    standard_streams::output()?.write_all(text.as_bytes()).map_err(|e| Error::io("write", e, standard_streams::OUTPUT))
}

/// Prints a value as JSON, on the standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print_as_it_is(&(json(value)? + "\n"))
}

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map(|text| without_hidden(&text).into_owned())
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the report as JSON: {e}")).with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_people_commands_no_terminal() {
        assert_eq!(clean("a\tb\nc"), "a\tb\nc");
        assert!(matches!(clean("plain"), Cow::Borrowed(_)));
        assert_eq!(clean("a\x1b[31mb\r\u{9b}\u{202e}\n"), "a\u{fffd}[31mb\u{fffd}\u{fffd}\u{fffd}\n");
        let name = Path::new("a\nb\x1b[2J");
        assert_eq!(shown_path(name), "a\u{fffd}b\u{fffd}[2J");
        let text = with_names(format!("1\n{}: 2\n", name.display()), [name, Path::new("1")]);
        assert_eq!(text, "1\na\u{fffd}b\u{fffd}[2J: 2\n");
    }

    #[test]
    fn advice_of_libraries_names_options_here() {
        let why = "give more memory (`memory_bytes`), fewer threads (`threads`), room (`spill`), or (`compression`)";
        let error = Error::new(ErrorKind::OutOfMemory, "sort", "1 byte").with_advice(why);
        let expected =
            "1 byte; give more memory (-S), fewer threads (--parallel), room (-T), or (--spill-compression=on)";
        assert_eq!(shown("sort", &error), expected);
    }
}
