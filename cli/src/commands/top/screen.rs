//! The terminal while the view has it: its other screen, no echo, no cursor. It is given back as it
//! was, after a panic too.

use std::sync::Once;
use std::time::Duration;

use datapipes::locks::Mutex;
use datapipes::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use rustix::time::Timespec;

use super::draw::ScreenLine;
use super::keys::{Key, KeyReader};
use crate::columns;
use crate::outcome::print_as_it_is;

/// The settings of the terminal before the view had it; `None` while it has not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// To the other screen, without a cursor and with marks around pasted text; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?2004h";
const LEAVE: &str = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l";
/// Where the terminal does not say how large it is.
const USUAL: (usize, usize) = (80, 24);

/// Whether the standard streams are a terminal that can be drawn on.
pub(super) fn is_possible() -> bool {
    let is_able = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    is_able && isatty(stdout()) && isatty(stdin())
}

/// The terminal, until it is dropped.
pub(super) struct Screen {
    /// The size for which it was drawn last.
    drawn: Option<(usize, usize)>,
    reader: KeyReader,
}

impl Screen {
    pub(super) fn open() -> Result<Screen> {
        restore_before_panics();
        let screen = Screen { drawn: None, reader: KeyReader::default() };
        enter()?;
        Ok(screen)
    }

    /// Gives the terminal back and stops this process, as the key Ctrl-Z does elsewhere. Returns
    /// when it is continued.
    pub(super) fn stop(&mut self) -> Result<()> {
        restore();
        let stopped = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        stopped.map_err(|e| Error::os("stop", e.raw_os_error(), "this process"))?;
        self.drawn = None;
        enter()
    }

    /// Sets the terminal up again if somebody else has set it up meanwhile: after a stop that
    /// nobody could see coming. Returns whether everything is to be drawn again.
    pub(super) fn take_back(&mut self) -> Result<bool> {
        let now = tcgetattr(stdin()).map_err(|e| Error::os("look at", e.raw_os_error(), "the terminal"))?;
        if !now.local_modes.contains(LocalModes::ICANON) {
            return Ok(false);
        }
        self.drawn = None;
        enter()?;
        Ok(true)
    }

    /// Whether the terminal has another size than when it was drawn.
    pub(super) fn has_changed(&self) -> bool {
        self.drawn != Some(size())
    }

    /// Draws lines for the present size, in one write.
    pub(super) fn draw(&mut self, lines: impl FnOnce(usize, usize) -> Vec<ScreenLine>) -> Result<()> {
        let (width, height) = size();
        // What was drawn for another size may have been wrapped by the terminal.
        let mut text = String::from(if self.has_changed() { "\x1b[2J\x1b[H" } else { "\x1b[H" });
        self.drawn = Some((width, height));
        for (nth, line) in lines(width, height).iter().enumerate() {
            if nth > 0 {
                text.push_str("\r\n");
            }
            // A full line leaves the cursor where to erase would take its last character.
            let is_full = columns::count(&line.text) >= width;
            match line.is_bright {
                true => text.push_str(&format!("\x1b[1m{}\x1b[0m", line.text)),
                false => text.push_str(&line.text),
            }
            text.push_str(if is_full { "" } else { "\x1b[K" });
        }
        write(&text)
    }

    /// Waits for keys, at most so long.
    pub(super) fn keys(&mut self, wait: Duration) -> Result<Vec<Key>> {
        let mut polled = [PollFd::from_borrowed_fd(stdin(), PollFlags::IN)];
        let wait = Timespec::try_from(wait).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut polled, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(e) => return Err(Error::os("wait for", e.raw_os_error(), "the terminal")),
        }
        let mut bytes = [0; 256];
        match rustix::io::read(stdin(), &mut bytes) {
            Ok(0) => Err(Error::new(ErrorKind::EndOfFile, "read", "the terminal is gone")),
            Ok(n) => Ok(self.reader.keys(&bytes[..n])),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Vec::new()),
            Err(e) => Err(Error::os("read", e.raw_os_error(), "the terminal")),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Takes the terminal. How it was before is kept from the first time on.
fn enter() -> Result<()> {
    let fail = |e: Errno| Error::os("set up", e.raw_os_error(), "the terminal");
    let before = tcgetattr(stdin()).map_err(fail)?;
    let mut raw = before.clone();
    raw.make_raw();
    BEFORE.lock().get_or_insert(before);
    tcsetattr(stdin(), OptionalActions::Drain, &raw).map_err(fail)?;
    write(ENTER)
}

/// The columns and lines of the terminal.
fn size() -> (usize, usize) {
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(USUAL, |size| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

fn write(text: &str) -> Result<()> {
    print_as_it_is(text)
}

/// Gives the terminal back, once. A terminal that is gone cannot be told.
fn restore() {
    if let Some(before) = BEFORE.lock().take() {
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &before);
    }
}

/// The words of a panic are to be read on the ordinary screen.
fn restore_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}
