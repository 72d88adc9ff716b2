//! The GNU sort that tests compare with: the machine's, or the one that `GNU_SORT` names.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A GNU sort to compare with.
#[derive(Clone, Debug)]
pub struct GnuSort {
    /// The program.
    pub program: OsString,
    /// The first line of its --version.
    pub version: String,
}

impl GnuSort {
    /// Finds it. If there is none, it says so and returns `None`.
    pub fn find(test: &str) -> Option<GnuSort> {
        let program = std::env::var_os("GNU_SORT").unwrap_or_else(|| "sort".into());
        let output = Command::new(&program).arg("--version").output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let version = text.lines().next().unwrap_or_default().to_owned();
        if !version.contains("GNU coreutils") {
            println!("SKIPPED: {test}: this machine has no GNU sort to compare with");
            return None;
        }
        println!("{test}: compared with {version}");
        Some(GnuSort { program, version })
    }

    /// Whether it is 9.1, whose wording some tests compare.
    pub fn is_9_1(&self) -> bool {
        self.number() == (9, 1)
    }

    /// Whether it is later than 9.1. After that version the order of NaNs, of -V and of the byte
    /// 0x80 in numbers changed, and the units R and Q were added.
    pub fn is_modern(&self) -> bool {
        self.number() > (9, 1)
    }

    fn number(&self) -> (u32, u32) {
        let number = self.version.rsplit(' ').next().unwrap_or_default();
        let mut parts = number.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Returns a command that runs it in the C locale.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // Its messages begin with the name by which it is called.
        command.arg0("sort").env("LC_ALL", "C");
        command
    }
}
