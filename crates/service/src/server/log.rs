//! The service's log: plain lines, one for each fact.
//!
//! Where standard error goes to systemd's journal, each line begins with its priority (`<4>`),
//! which the journal takes off and keeps as a field (sd-daemon(3)).
//!
//! Clients cause lines, by connecting or by being refused, and a log takes space. So lines about
//! clients are limited, and the number of omitted lines is logged. The service's own lines are not
//! limited.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::locks::Mutex;

/// Lines about clients that may come at once.
const BURST: f64 = 200.0;
/// Lines about clients per second, after that.
const RATE: f64 = 10.0;

/// How much a line matters, as syslog counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogPriority {
    /// The service cannot do what it is for.
    Error,
    /// Somebody was refused, or something is missing.
    Warning,
    /// What happens in the life of a service.
    Info,
}

impl LogPriority {
    const fn number(self) -> u8 {
        match self {
            LogPriority::Error => 3,
            LogPriority::Warning => 4,
            LogPriority::Info => 6,
        }
    }
}

type Sink = Box<dyn Write + Send>;

/// The target of a service's lines: standard error, unless another is given.
#[derive(Clone)]
pub struct ServiceLog(Arc<Mutex<State>>);

struct State {
    /// `None` for standard error.
    sink: Option<Sink>,
    /// Whether lines begin with their priority.
    has_priorities: bool,
    allowance: Allowance,
}

/// A limit on lines about clients.
struct Allowance {
    left: f64,
    since: Instant,
    omitted: u64,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, since: now, omitted: 0 }
    }

    /// Takes the right to write a line now. Returns how many lines were omitted before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let more = now.saturating_duration_since(self.since).as_secs_f64() * RATE;
        (self.left, self.since) = ((self.left + more).min(BURST), now);
        if self.left < 1.0 {
            self.omitted += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl ServiceLog {
    /// Makes a log that writes lines to `sink`.
    pub fn to(sink: impl Write + Send + 'static) -> ServiceLog {
        ServiceLog::of(Some(Box::new(sink)))
    }

    fn of(sink: Option<Sink>) -> ServiceLog {
        let has_priorities = sink.is_none() && goes_to_journal();
        ServiceLog(Arc::new(Mutex::new(State { sink, has_priorities, allowance: Allowance::new(Instant::now()) })))
    }

    /// Writes a line. If that fails, the line is lost and the service goes on.
    pub fn line(&self, line: fmt::Arguments<'_>) {
        self.line_of(LogPriority::Info, line);
    }

    /// Writes a line of a priority.
    pub fn line_of(&self, priority: LogPriority, line: fmt::Arguments<'_>) {
        self.0.lock().write(priority, line);
    }

    /// Writes a line that a client caused, unless there were too many of them.
    pub(super) fn of_client(&self, line: fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        match state.allowance.take(Instant::now()) {
            None => {}
            Some(0) => state.write(LogPriority::Warning, line),
            Some(omitted) => {
                let said = format_args!("{omitted} lines about clients were left out: there were too many");
                state.write(LogPriority::Warning, said);
                state.write(LogPriority::Warning, line);
            }
        }
    }
}

impl State {
    fn write(&mut self, priority: LogPriority, line: fmt::Arguments<'_>) {
        // The journal knows whose line it is.
        let line = match self.has_priorities {
            true => format!("<{}>{line}\n", priority.number()),
            false => format!("dpiped: {line}\n"),
        };
        let _ = match &mut self.sink {
            Some(sink) => sink.write_all(line.as_bytes()),
            None => std::io::stderr().lock().write_all(line.as_bytes()),
        };
    }
}

/// Whether standard error is the stream that systemd connected to its journal: `JOURNAL_STREAM` has
/// its device and inode. A program may have sent it elsewhere since.
fn goes_to_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr()).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

impl Default for ServiceLog {
    fn default() -> ServiceLog {
        ServiceLog::of(None)
    }
}

impl fmt::Debug for ServiceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// Makes a client's text fit for a line: short, without line breaks and control characters.
pub(super) fn sanitize(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(300).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_about_clients_are_limited_and_those_left_out_are_counted() {
        let begun = Instant::now();
        let mut allowance = Allowance::new(begun);
        let written = (0..1000).filter(|_| allowance.take(begun).is_some()).count();
        assert_eq!(written, BURST as usize);
        // A second later some more may be written; the first says how many are missing.
        let later = begun + Duration::from_secs(1);
        assert_eq!(allowance.take(later), Some(1000 - BURST as u64));
        let written = (0..1000).filter(|_| allowance.take(later).is_some()).count();
        assert_eq!(written, RATE as usize - 1);
        // After a long pause there are no more than at first. A clock that stands still allows
        // none.
        let much_later = later + Duration::from_secs(1 << 30);
        assert_eq!((0..1000).filter(|_| allowance.take(much_later).is_some()).count(), BURST as usize);
    }
}
