//! A real terminal for tests: a tmux server of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use super::on_path;

/// How long something on the screen is waited for. It only bounds a test that fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell in a terminal of a size.
pub(crate) struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts a shell in a folder, with `dpipe` on its path; `None`, said by name, without tmux.
    pub(crate) fn start(test: &str, folder: &Path, size: (u16, u16)) -> Option<Tmux> {
        if !on_path("tmux") {
            println!("SKIPPED: {test}: tmux is not installed");
            return None;
        }
        let tmux = Tmux { socket: folder.join("tmux.sock") };
        let programs = Path::new(env!("CARGO_BIN_EXE_dpipe")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = tmux.command();
        command.args(["-f", "/dev/null", "new-session", "-d", "-x", &size.0.to_string(), "-y", &size.1.to_string()]);
        command.arg("-c").arg(folder).args(["env", "-u", "NO_COLOR", "-u", "CLICOLOR", "-u", "CLICOLOR_FORCE"]);
        command.arg(format!("PATH={path}")).arg(format!("XDG_RUNTIME_DIR={}", folder.display()));
        command.args(["PS1=$ ", "LC_ALL=C.UTF-8", "sh"]);
        let output = command.env_remove("TMUX").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        tmux.wait_for("$");
        Some(tmux)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output
    }

    /// Types a line and Enter.
    pub(crate) fn line(&self, text: &str) {
        self.run(&["send-keys", "-l", text]);
        self.run(&["send-keys", "Enter"]);
    }

    /// Presses a key, by tmux's name for it.
    pub(crate) fn key(&self, key: &str) {
        self.run(&["send-keys", key]);
    }

    /// Makes the terminal of another size.
    pub(crate) fn resize(&self, width: u16, height: u16) {
        self.run(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.run(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// What is on the screen, with its colours.
    pub(crate) fn colored_screen(&self) -> String {
        String::from_utf8_lossy(&self.run(&["capture-pane", "-p", "-e"]).stdout).into_owned()
    }

    /// Waits until the screen holds what is wanted, and returns it.
    pub(crate) fn wait_until(&self, wanted: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < PATIENCE, "this does not come:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until words are on the screen.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        self.wait_until(|screen| screen.contains(words))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // The server of this test, with all that runs in it; no other server has this socket.
        let _ = self.command().arg("kill-server").output();
    }
}
