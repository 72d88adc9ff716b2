//! The end of every help: exit codes and examples.

use std::fmt::Write as _;

/// The exit codes and the examples of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// What else a user should know; may be empty.
    pub(crate) notes: &'static str,
    /// When the command exits with 0.
    pub(crate) zero: &'static str,
    /// When it exits with 1, if it does.
    pub(crate) one: Option<&'static str>,
    /// Command lines that can be copied. The tests run all of them, but for those that end with a
    /// comment `# needs ...`.
    pub(crate) examples: &'static [&'static str],
}

impl Ending {
    /// Returns the text for clap's `after_help`.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if !self.notes.is_empty() {
            text = format!("{}\n\n", self.notes);
        }
        let _ = writeln!(text, "Exit status:\n  0  {}", self.zero);
        if let Some(one) = self.one {
            let _ = writeln!(text, "  1  {one}");
        }
        text += "  2  an error, or a command line that makes no sense\n\nExamples:";
        for example in self.examples {
            let _ = write!(text, "\n  {example}");
        }
        text
    }

    /// Returns the text with another text before it.
    pub(crate) fn after(&self, before: &str) -> String {
        format!("{before}\n\n{}", self.text())
    }
}
