//! The files of a machine's settings: text of sysfs and procfs, registers, folders.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The longest text of a setting; those of sysfs have a page at most.
const MAX_TEXT: u64 = 64 << 10;

/// The files of a machine's settings under one root. All names are relative to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineTree {
    root: PathBuf,
}

impl MachineTree {
    /// Returns the machine that this program runs on.
    pub fn live() -> MachineTree {
        MachineTree { root: PathBuf::from("/") }
    }

    /// Returns a recorded or made tree.
    pub fn under(root: impl Into<PathBuf>) -> MachineTree {
        MachineTree { root: root.into() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the trimmed text of a file.
    pub(crate) fn text(&self, name: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.path(name))?.take(MAX_TEXT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Writes the text of a setting by one call: the kernel takes it whole or not at all.
    pub(crate) fn write_text(&self, name: &str, text: &str) -> io::Result<()> {
        let line = if self.is_live() { format!("{text}\n") } else { shown_again(&self.text(name)?, text) };
        let mut file = File::options().write(true).open(self.path(name))?;
        let written = file.write(line.as_bytes())?;
        if written != line.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("{written} of {} bytes were taken", line.len()),
            ));
        }
        if !self.is_live() {
            // What stands for a setting is a plain file, which keeps what was longer.
            file.set_len(line.len() as u64)?;
        }
        Ok(())
    }

    /// Returns a register of `width` bytes, in the low bytes of the result.
    pub(crate) fn register(&self, name: &str, at: u64, width: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        File::open(self.path(name))?.read_exact_at(&mut bytes[..width.min(8)], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a register of `width` bytes by one call.
    pub(crate) fn write_register(&self, name: &str, at: u64, width: usize, value: u64) -> io::Result<()> {
        let file = File::options().write(true).open(self.path(name))?;
        let bytes = value.to_le_bytes();
        let written = file.write_at(&bytes[..width.min(8)], at)?;
        if written != width.min(8) {
            return Err(io::Error::new(io::ErrorKind::WriteZero, format!("{written} of {width} bytes were taken")));
        }
        Ok(())
    }

    /// Returns the names in a folder, sorted; none where it is absent.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(name)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether this process may write a file, as far as its mode says.
    pub(crate) fn is_writable(&self, name: &str) -> bool {
        rustix::fs::access(self.path(name), rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Makes a folder of a control file system, which fills it.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<()> {
        std::fs::create_dir(self.path(name))?;
        if !self.is_live() {
            // What the kernel would put there.
            for file in ["schemata", "tasks"] {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    self.path(name).join(file),
                    rustix::fs::FileType::RegularFile,
                    rustix::fs::Mode::from_raw_mode(0o644),
                    0,
                )?;
            }
        }
        Ok(())
    }

    /// Removes such a folder. One that is not there is gone.
    pub(crate) fn remove_folder(&self, name: &str) -> io::Result<()> {
        if !self.is_live() {
            for file in ["schemata", "tasks"] {
                let _ = std::fs::remove_file(self.path(name).join(file));
            }
        }
        match std::fs::remove_dir(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// What the kernel shows of a setting with choices after one of them was written.
fn shown_again(before: &str, text: &str) -> String {
    if !(before.contains('[') && before.contains(']')) {
        return format!("{text}\n");
    }
    let words = before.split_whitespace().map(|word| word.trim_matches(['[', ']']));
    let words: Vec<String> = words.map(|word| if word == text { format!("[{word}]") } else { word.into() }).collect();
    words.join(" ") + "\n"
}
