//! Two programs in the same scene: the same exit code, and afterwards the same files: contents,
//! types, modes, owners, groups, links, extended attributes, ACLs and flags. A case needs root
//! where it changes users or mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{TempFolder, folder, is_root, on_path};

/// One scene: how it is made, what is run in it, by whom. `$TOOL` is the program under test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) make: &'static str,
    pub(crate) run: &'static str,
    pub(crate) who: Who,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Who {
    /// Whoever runs the tests.
    Any,
    /// The user 65534 of the group 65534 and the group 100, in a folder of its own; needs root.
    Nobody,
    /// Root, in a mount namespace of its own.
    Mounts,
}

pub(crate) const fn case(name: &'static str, make: &'static str, run: &'static str, who: Who) -> Case {
    Case { name, make, run, who }
}

/// A shell in a folder, run by somebody, with the program as `$SORT`. It is not told of what it
/// prints.
fn shell(dir: &Path, who: Who, program: &str, script: &str) -> (Option<i32>, String) {
    let mut command = match who {
        Who::Any => Command::new("sh"),
        Who::Nobody => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--groups", "65534,100", "sh"]);
            command
        }
        Who::Mounts => {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh"]);
            command
        }
    };
    command.args(["-c", script]).current_dir(dir).env("LC_ALL", "C").env("TOOL", program).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What a shell prints of a file's hidden properties.
fn told(dir: &Path, tool: &str, name: &str) -> String {
    let output =
        Command::new("sh").args(["-c", &format!("{tool} \"$1\"",), "sh", name]).current_dir(dir).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every file: what it is, to whom it belongs, what it holds, and which other names it has here.
fn picture(folder: &TempFolder) -> BTreeMap<String, String> {
    let mut inodes: BTreeMap<u64, String> = BTreeMap::new();
    let mut picture = BTreeMap::new();
    for name in folder.names().unwrap() {
        let path = folder.path(&name);
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let first = inodes.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        let mut text =
            format!("mode {:o}, {}:{}, first name {first}", meta.permissions().mode(), meta.uid(), meta.gid());
        if kind.is_symlink() {
            let leads = fs::read_link(&path).unwrap();
            text += &format!(", -> {}", leads.strip_prefix(folder.at()).unwrap_or(&leads).display());
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
            text += &format!(", {} names, {} bytes: {start:?}", meta.nlink(), bytes.len());
            for tool in ["getfattr -d -m - -e text", "getfacl -n -c", "lsattr -d"] {
                text += &told(folder.at(), tool, &name);
            }
        } else {
            text += if kind.is_fifo() { ", a pipe" } else { ", no file" };
        }
        picture.insert(name, text);
    }
    picture
}

/// What became of a scene.
type Outcome = (Option<i32>, String, BTreeMap<String, String>);

/// Makes the scene in a fresh folder and runs the program in it. `first` makes what all scenes
/// have.
fn play(case: &Case, program: &str, first: &str) -> Result<Outcome, String> {
    let folder = folder();
    let own = if case.who == Who::Nobody { "chown 65534:65534 .; umask 022; " } else { "umask 022; " };
    let give = if case.who == Who::Nobody { "chown 65534:65534 *; " } else { "" };
    let (code, error) = if case.who == Who::Mounts {
        // A mount ends with its namespace, so the scene and what is run in it are one script.
        let script = format!("set -e; {own}{first}; {}; set +e; {}", non_empty(case.make), case.run);
        shell(folder.at(), Who::Mounts, program, &script)
    } else {
        let make = as_user(case.who, non_empty(case.make));
        let (code, error) = shell(folder.at(), Who::Any, program, &format!("set -e; {own}{first}; {give}{make}"));
        if code != Some(0) {
            return Err(format!("the scene cannot be made here: {error}"));
        }
        shell(folder.at(), case.who, program, case.run)
    };
    Ok((code, error, picture(&folder)))
}

fn non_empty(script: &str) -> &str {
    if script.is_empty() { ":" } else { script }
}

/// The user makes the scene, and root then does what only root can: give files away.
fn as_user(who: Who, script: &str) -> String {
    if who != Who::Nobody {
        return script.to_owned();
    }
    let only_root = |c: &&str| c.starts_with("chown") || c.starts_with("chgrp 7");
    let (root, user): (Vec<&str>, Vec<&str>) = script.split("; ").partition(only_root);
    let user = user.join("; ");
    let by_root = root.join("; ");
    format!("setpriv --reuid 65534 --regid 65534 --groups 65534,100 sh -c '{user}'; {}", non_empty(&by_root))
}

/// Why a case cannot be played here.
fn missing(case: &Case) -> Option<String> {
    let text = format!("{} {}", case.make, case.run);
    if !is_root() && (case.who != Who::Any || ["chgrp", "chattr", "chown"].iter().any(|tool| text.contains(tool))) {
        return Some("it needs root".into());
    }
    let tools = ["setfattr", "setfacl", "chattr", "setcap"].into_iter().filter(|tool| text.contains(tool));
    let runs_by: &[&str] = match case.who {
        Who::Any => &[],
        Who::Nobody => &["setpriv"],
        Who::Mounts => &["unshare", "setpriv"],
    };
    let tool = tools.chain(runs_by.iter().copied()).find(|tool| !on_path(tool))?;
    Some(format!("there is no {tool}"))
}

/// Two programs that are to do the same.
pub(crate) struct Twins<'a> {
    /// Name of the test, for messages.
    pub(crate) test: &'a str,
    /// The peer and its arguments.
    pub(crate) theirs: &'a str,
    /// Our program and its arguments.
    pub(crate) ours: &'a str,
    /// What all scenes have.
    pub(crate) first: &'a str,
    /// Whether exit codes must be equal, and not only both 0 or both not.
    pub(crate) same_code: bool,
}

impl Twins<'_> {
    /// Plays all cases, or those whose name has the text of `ONLY_CASE`.
    pub(crate) fn compare(&self, cases: &[Case]) {
        let peer = self.theirs.split(' ').next().unwrap();
        if !on_path(peer) {
            println!("SKIPPED: {}: there is no {peer} to compare with", self.test);
            return;
        }
        let only = std::env::var("ONLY_CASE").ok();
        let (mut wrong, mut played) = (Vec::new(), 0);
        for case in cases.iter().filter(|case| only.as_ref().is_none_or(|only| case.name.contains(only.as_str()))) {
            let skipped = |why: &str| println!("SKIPPED: {}: {}: {why}", self.test, case.name);
            if let Some(why) = missing(case) {
                skipped(&why);
                continue;
            }
            match (play(case, self.theirs, self.first), play(case, self.ours, self.first)) {
                (Ok(theirs), Ok(ours)) => {
                    played += 1;
                    wrong.extend(self.difference(case, &theirs, &ours));
                }
                (Err(why), _) | (_, Err(why)) => skipped(&why),
            }
        }
        println!("{}: {played} of {} cases were played", self.test, cases.len());
        assert!(wrong.is_empty(), "{} of {played} differ:\n{}", wrong.len(), wrong.join("\n"));
        assert!(played > 0 || only.is_some());
    }

    fn difference(&self, case: &Case, theirs: &Outcome, ours: &Outcome) -> Option<String> {
        let same = if self.same_code { theirs.0 == ours.0 } else { (theirs.0 == Some(0)) == (ours.0 == Some(0)) };
        if same && theirs.2 == ours.2 {
            return None;
        }
        let mut text = format!("{}: {:?}, dpipe {:?}\n  {}  {}", case.name, theirs.0, ours.0, theirs.1, ours.1);
        let names: BTreeSet<&String> = theirs.2.keys().chain(ours.2.keys()).collect();
        for name in names.into_iter().filter(|name| theirs.2.get(*name) != ours.2.get(*name)) {
            let (one, other) = (theirs.2.get(name), ours.2.get(name));
            text += &format!("    {name}\n      peer  {one:?}\n      dpipe {other:?}\n");
        }
        Some(text)
    }
}
