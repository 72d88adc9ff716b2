//! Reading small text files of sysfs and procfs under a root, so that tests run on recorded trees.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The files under one root, and a list of what could not be read and why.
pub(super) struct Tree {
    root: PathBuf,
    unknown: RefCell<Vec<String>>,
}

impl Tree {
    pub(super) fn at(root: &Path) -> Tree {
        Tree { root: root.to_path_buf(), unknown: RefCell::new(Vec::new()) }
    }

    /// Whether it is the live machine, not a recorded tree.
    pub(super) fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the path of a file under the root. A leading slash is ignored (mount points are
    /// absolute).
    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative.trim_start_matches('/'))
    }

    /// Records a reason, once.
    pub(super) fn unknown(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut unknown = self.unknown.borrow_mut();
        if !unknown.contains(&reason) {
            unknown.push(reason);
        }
    }

    pub(super) fn into_unknown(self) -> Vec<String> {
        self.unknown.into_inner()
    }

    /// Returns the trimmed text of a file. An absent file is ordinary here and leaves no reason.
    pub(super) fn text(&self, relative: &str) -> Option<String> {
        // sysfs may hold bytes that are not UTF-8 (model names). They must not hide the rest.
        let bytes = self.read(relative).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// As `text`, but records the reason of a failure.
    pub(super) fn required(&self, relative: &str, what: &str) -> Option<String> {
        match self.read(relative) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) => {
                self.unknown(format!("{what}: /{}: {error}", relative.trim_start_matches('/')));
                None
            }
        }
    }

    /// Reads all of a file. There are hundreds on a machine, and every start of a program reads
    /// them. So no file is asked for its length, which is not known anyway, and an attribute of
    /// sysfs (a page at most) is not read again to find its end.
    fn read(&self, relative: &str) -> io::Result<Vec<u8>> {
        const PAGE: usize = 4096;
        let mut file = fs::File::open(self.path(relative))?;
        let mut page = [0; PAGE];
        let mut bytes = Vec::new();
        loop {
            match file.read(&mut page) {
                Ok(0) => return Ok(bytes),
                Ok(n) => {
                    bytes.extend_from_slice(&page[..n]);
                    if n < PAGE && relative.starts_with("sys/") {
                        return Ok(bytes);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub(super) fn number<T: FromStr>(&self, relative: &str) -> Option<T> {
        self.text(relative)?.parse().ok()
    }

    /// Reads a list such as `0-3,8`; an empty file is an empty list.
    pub(super) fn list(&self, relative: &str) -> Option<Vec<usize>> {
        parse_list(&self.text(relative)?)
    }

    /// Returns the names in a directory, sorted. The list is empty if the directory is absent.
    pub(super) fn names(&self, relative: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(relative)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the numbers `n` of the entries named `prefix` + n, ascending.
    pub(super) fn numbered(&self, relative: &str, prefix: &str) -> Vec<usize> {
        let mut found: Vec<usize> =
            self.names(relative).iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        found.sort_unstable();
        found
    }
}

/// More entries than any kernel lists. A list that claims more is damaged, and must not fill
/// memory.
const MAX_LIST: usize = 1 << 16;

/// Parses the kernel's list format (`0-3,8,10-11`) and its strided form (`0-31:2/4`). The result is
/// ascending, without repeats.
pub(super) fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (range, stride) = match part.split_once(':') {
            Some((range, stride)) => (range, Some(stride.split_once('/')?)),
            None => (part, None),
        };
        let (first, last): (usize, usize) = match range.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => (range.parse().ok()?, range.parse().ok()?),
        };
        let (used, group): (usize, usize) = match stride {
            Some((used, group)) => (used.parse().ok()?, group.parse().ok()?),
            None => (1, 1),
        };
        if last < first || last - first >= MAX_LIST || group == 0 {
            return None;
        }
        all.extend((first..=last).filter(|n| (n - first) % group < used));
        if all.len() > MAX_LIST {
            return None;
        }
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

/// Parses a cache size as sysfs writes it (`48K`, `2048K`, `1M`) into bytes.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the value in bytes of `Key:   123 kB` in a meminfo text (also `Node 0 Key: 123 kB`).
pub(super) fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.rsplit(' ').next()? != key {
            return None;
        }
        let mut words = value.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        if words.next() == Some("kB") { number.checked_mul(1024) } else { Some(number) }
    })
}

/// Returns the choice in brackets of a sysfs setting: of `always [madvise] never` it is `madvise`.
pub(super) fn chosen(text: &str) -> String {
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some((choice, _)) => choice.to_owned(),
        None => text.to_owned(),
    }
}
