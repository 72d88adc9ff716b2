//! A page: what is in it, and how it is read.
//!
//! ```text
//! at  bytes
//!  0    8   "DPSTATS2"
//!  8    8   generation: odd while the page is written
//! 16    4   process number          20  4  length of the text
//! 24    8   when the process began, in clock ticks since the boot
//! 32    8   the namespaces of the process number and of the time since the boot
//! 40    8   when it was written, in nanoseconds since the boot
//! 48    8   checksum of the text
//! 56    8   how often it is written, in milliseconds; 0: when the program likes
//! 64        text: {"program": "...", "measurements": [...]}, as `datapipes_metrics::Document` has it
//! ```
//! Numbers are little-endian.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::time::ClockId;

pub(super) const HEADER_BYTES: usize = 64;
/// The longest text of a page.
pub(super) const MAX_TEXT_BYTES: usize = 256 << 10;
const MAGIC: u64 = u64::from_le_bytes(*b"DPSTATS2");
/// How often a page is read that is being written.
const MAX_TRIES: usize = 20;
/// How long to wait before it is read again.
const PAUSE: Duration = Duration::from_micros(200);

/// A process, told apart from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOwner {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the boot.
    pub started: u64,
}

impl PageOwner {
    /// This process; `None` where /proc does not say.
    pub(super) fn here() -> Option<PageOwner> {
        let pid = std::process::id();
        Some(PageOwner { pid, started: started(pid)? })
    }

    /// Whether it still runs. A process that has ended and was not waited for does not.
    pub(super) fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// When a process began; `None` for one that does not run.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program is in parentheses, and may have any bytes in it.
    let behind = &stat[stat.iter().rposition(|byte| *byte == b')')? + 1..];
    let mut fields = std::str::from_utf8(behind).ok()?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The namespaces in which this process has its number and its times since the boot, as one number.
/// A page from other ones says nothing of a process that can be found here.
pub(super) fn namespace() -> u64 {
    let numbers = ["/proc/self/ns/pid", "/proc/self/ns/time"]
        .map(|path| rustix::fs::stat(path).map_or(0, |stat| stat.st_ino).to_le_bytes());
    checksum(numbers.as_flattened())
}

/// Nanoseconds since the boot.
pub(super) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000) + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The head of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) generation: u64,
    pub(super) owner: PageOwner,
    pub(super) len: u32,
    pub(super) namespace: u64,
    pub(super) written_ns: u64,
    pub(super) checksum: u64,
    pub(super) every_ms: u64,
}

impl Header {
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let words = [
            MAGIC,
            self.generation,
            u64::from(self.owner.pid) | u64::from(self.len) << 32,
            self.owner.started,
            self.namespace,
            self.written_ns,
            self.checksum,
            self.every_ms,
        ];
        let mut bytes = [0; HEADER_BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        if word(0) != MAGIC {
            return Err("it does not begin as a page does");
        }
        let owner = PageOwner { pid: word(2) as u32, started: word(3) };
        let len = (word(2) >> 32) as u32;
        if len as usize > MAX_TEXT_BYTES {
            return Err("its text is longer than can be");
        }
        Ok(Header {
            generation: word(1),
            owner,
            len,
            namespace: word(4),
            written_ns: word(5),
            checksum: word(6),
            every_ms: word(7),
        })
    }
}

/// FNV-1a: it tells a whole text from one that was changed while it was read, and is no protection
/// against anybody.
pub(super) fn checksum(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A page as it was read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OfferedPage {
    /// The process that offers it, as its name says.
    pub owner: PageOwner,
    /// Its number among the pages of the process, which may offer several.
    pub number: u32,
    /// When it was written, since the boot; zero where it cannot be read. Rates are by the time
    /// between two pages, not between two looks at them.
    pub written: Duration,
    /// How long ago it was written.
    pub age: Duration,
    /// How often it is written; zero where that is not known.
    pub every: Duration,
    /// Its text, JSON if the process keeps to it: `program`, and `measurements` as
    /// `datapipes_metrics::Document` writes them. Otherwise why it cannot be read.
    pub text: Result<String, String>,
}

/// The pages of a user.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OfferedPages {
    /// Those that were read, or that cannot be.
    pub pages: Vec<OfferedPage>,
    /// How many more there are: only so many are read that a person could look at them.
    pub left_out: usize,
}

/// What one look at all pages may cost, however many there are and whatever is in them.
pub(super) struct LookBudget {
    text_bytes: usize,
    tries: usize,
}

impl LookBudget {
    pub(super) fn new() -> LookBudget {
        LookBudget { text_bytes: 4 << 20, tries: 200 }
    }
}

impl OfferedPage {
    pub(super) fn unreadable(owner: PageOwner, number: u32, why: String) -> OfferedPage {
        let never = Duration::ZERO;
        OfferedPage { owner, number, written: never, age: never, every: never, text: Err(why) }
    }
}

/// The namespaces that a page is from: see [`namespace`]. `None` for what is no page.
pub(super) fn namespace_of(file: &OwnedFd) -> Option<u64> {
    header(file).ok().map(|header| header.namespace)
}

/// Reads a page of a process.
pub(super) fn read(
    file: &OwnedFd,
    (owner, number): (PageOwner, u32),
    budget: &mut LookBudget,
) -> Result<OfferedPage, String> {
    for _ in 0..MAX_TRIES {
        let before = header(file)?;
        if before.owner != owner {
            return Err("it is in the name of another process".to_owned());
        }
        if before.generation % 2 == 0 {
            if before.len as usize > budget.text_bytes {
                return Err("it is not read: the pages before it are too long".to_owned());
            }
            let mut text = vec![0; before.len as usize];
            let whole = read_exactly(file, &mut text, HEADER_BYTES as u64);
            // The text may be of another moment than its header; then the next try has both.
            if whole && header(file)? == before && checksum(&text) == before.checksum {
                budget.text_bytes -= text.len();
                let text = String::from_utf8(text).map_err(|_| "its text is not UTF-8".to_owned())?;
                let age = Duration::from_nanos(now_ns().saturating_sub(before.written_ns));
                let every = Duration::from_millis(before.every_ms);
                let written = Duration::from_nanos(before.written_ns);
                return Ok(OfferedPage { owner, number, written, age, every, text: Ok(text) });
            }
        }
        let Some(left) = budget.tries.checked_sub(1) else { break };
        budget.tries = left;
        std::thread::sleep(PAUSE);
    }
    Err("it did not come to rest, or is damaged".to_owned())
}

fn header(file: &OwnedFd) -> Result<Header, String> {
    let mut bytes = [0; HEADER_BYTES];
    if !read_exactly(file, &mut bytes, 0) {
        return Err("it is too short".to_owned());
    }
    Header::parse(&bytes).map_err(str::to_owned)
}

fn read_exactly(file: &OwnedFd, buffer: &mut [u8], from: u64) -> bool {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(file.as_fd(), &mut buffer[done..], from + done as u64) {
            Ok(0) => return false,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_was_written_and_nothing_else_is() {
        let owner = PageOwner { pid: 7, started: 99 };
        let header = Header { generation: 4, owner, len: 10, namespace: 3, written_ns: 5, checksum: 6, every_ms: 200 };
        assert_eq!(Header::parse(&header.bytes()), Ok(header));
        assert!(Header::parse(&[0; HEADER_BYTES]).is_err());
        let long = Header { len: u32::MAX, ..header };
        assert!(Header::parse(&long.bytes()).is_err());
    }

    #[test]
    fn this_process_runs_and_another_beginning_is_another_process() {
        let here = PageOwner::here().unwrap();
        assert!(here.is_alive());
        assert!(!PageOwner { started: here.started + 1, ..here }.is_alive());
        assert!(namespace() != 0 && namespace() == namespace() && now_ns() > 0);
    }
}
