//! The files of a machine's settings: text of sysfs and procfs, registers, folders.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The longest text that is read. /proc/cpuinfo has 1.3 KiB for each processor; settings of sysfs
/// have a page at most.
const MAX_TEXT: u64 = 16 << 20;
/// The file systems in which the kernel shows settings (linux/magic.h): sysfs, procfs, resctrl.
const FILE_SYSTEMS_OF_SETTINGS: [i64; 3] = [0x6265_6572, 0x9fa0, 0x0765_5821];

/// What the kernel says of a file, by its name in the tree.
#[derive(Debug)]
pub(crate) struct FileError {
    pub(crate) file: String,
    pub(crate) error: io::Error,
}

impl FileError {
    pub(crate) fn of(file: impl Into<String>) -> impl FnOnce(io::Error) -> FileError {
        |error| FileError { file: file.into(), error }
    }
}

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

    /// Returns a recorded or made tree. The root stays the same folder where the program goes to
    /// another one, or where a link in its path changes.
    pub fn under(root: impl Into<PathBuf>) -> MachineTree {
        let root = root.into();
        // A root that is not there has no settings, whatever its name.
        let whole = std::fs::canonicalize(&root).or_else(|_| std::path::absolute(&root));
        MachineTree { root: whole.unwrap_or(root) }
    }

    /// The root, from the beginning and without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the trimmed text of a file.
    pub(crate) fn text(&self, name: &str) -> io::Result<String> {
        let file = self.open(name, File::options().read(true))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_TEXT {
            let why = format!("it is longer than {} MiB", MAX_TEXT >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Writes the text of a setting by one call: the kernel takes it whole or not at all.
    pub(crate) fn write_text(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = self.open(name, File::options().write(true))?;
        let is_made = !is_of_the_kernel(&file)?;
        let line = if is_made { shown_again(&self.text(name)?, text) } else { format!("{text}\n") };
        let written = file.write(line.as_bytes())?;
        if written != line.len() {
            return Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("{written} of {} bytes were taken", line.len()),
            ));
        }
        if is_made {
            // What stands for a setting is a plain file, which keeps what was longer.
            file.set_len(line.len() as u64)?;
        }
        Ok(())
    }

    /// Opens a file. What is there is not waited for: a named pipe may stand in its place.
    fn open(&self, name: &str, how: &mut std::fs::OpenOptions) -> io::Result<File> {
        how.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(self.path(name))
    }

    /// Returns a register of `width` bytes, in the low bytes of the result.
    pub(crate) fn register(&self, name: &str, at: u64, width: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let file = self.open(name, File::options().read(true))?;
        file.read_exact_at(&mut bytes[..width.min(8)], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a register of `width` bytes by one call.
    pub(crate) fn write_register(&self, name: &str, at: u64, width: usize, value: u64) -> io::Result<()> {
        let file = self.open(name, File::options().write(true))?;
        let bytes = value.to_le_bytes();
        let written = file.write_at(&bytes[..width.min(8)], at)?;
        if written != width.min(8) {
            return Err(io::Error::new(io::ErrorKind::WriteZero, format!("{written} of {width} bytes were taken")));
        }
        Ok(())
    }

    /// Returns the names in a folder, sorted; none where it is absent. Names with control
    /// characters are left out: no kernel makes them, and a terminal would obey them.
    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(name)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| !name.contains(char::is_control));
        names.sort();
        names
    }

    /// Whether this process may write a file, as far as its mode says.
    pub(crate) fn is_writable(&self, name: &str) -> bool {
        rustix::fs::access(self.path(name), rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Makes a folder of a control file system, which fills it.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        std::fs::create_dir(&path)?;
        if !is_of_the_kernel(&File::open(&path)?)? {
            // What the kernel would put there.
            for file in ["schemata", "tasks"] {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    path.join(file),
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
        let path = self.path(name);
        // A link in its place is not followed: what it points to is no group.
        if std::fs::symlink_metadata(&path).is_ok_and(|facts| !facts.is_dir()) {
            return Err(io::Error::other("it is no folder"));
        }
        if File::open(&path).is_ok_and(|folder| is_of_the_kernel(&folder).is_ok_and(|is| !is)) {
            for file in ["schemata", "tasks"] {
                let _ = std::fs::remove_file(path.join(file));
            }
        }
        match std::fs::remove_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Whether a file is a setting of a running kernel, wherever its file system is mounted.
fn is_of_the_kernel(file: &File) -> io::Result<bool> {
    Ok(FILE_SYSTEMS_OF_SETTINGS.contains(&rustix::fs::fstatfs(file)?.f_type))
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
