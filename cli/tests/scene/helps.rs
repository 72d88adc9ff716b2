//! The helps of all commands, as the tree of the command line has them.

use std::process::Command;

const DPIPE: &str = env!("CARGO_BIN_EXE_dpipe");

/// A command with its help.
pub(crate) struct Help {
    /// The words behind `dpipe`.
    pub(crate) words: Vec<String>,
    pub(crate) text: String,
}

impl Help {
    pub(crate) fn name(&self) -> String {
        format!("dpipe {}", self.words.join(" "))
    }

    /// The entries below a heading, up to an empty line, by their first lines.
    pub(crate) fn below(&self, heading: &str) -> Vec<&str> {
        let lines = self.text.lines().skip_while(|line| *line != heading).skip(1);
        let entries = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("      "));
        entries.map(str::trim).collect()
    }
}

/// The helps of the program and of all its commands.
pub(crate) fn helps() -> Vec<Help> {
    fn walk(words: Vec<String>, found: &mut Vec<Help>) {
        let output = Command::new(DPIPE).args(&words).arg("--help").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        let help = Help { words, text: String::from_utf8(output.stdout).unwrap() };
        let below: Vec<Vec<String>> = help
            .below("Commands:")
            .iter()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(|name| help.words.iter().cloned().chain([name.to_owned()]).collect())
            .collect();
        found.push(help);
        below.into_iter().for_each(|words| walk(words, found));
    }
    let mut found = Vec::new();
    walk(Vec::new(), &mut found);
    assert!(found.len() > 25, "only {} helps were found", found.len());
    found
}

/// The long options that a help lists.
pub(crate) fn options(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names = lines.flat_map(|line| line.split("  ").next().unwrap().split(", "));
    let long = names.filter_map(|name| name.strip_prefix("--"));
    long.map(|name| name.split(['=', '[', ' ']).next().unwrap()).collect()
}
