//! The service's log: plain lines, one for each fact.
//!
//! Where standard error goes to systemd's journal, a line is an entry with fields: its priority,
//! the kind of event, the client (see `journal`). Where the journal takes no entries, the line goes
//! to standard error and begins with its priority (`<4>`), which the journal takes off and keeps as
//! a field (sd-daemon(3)).
//!
//! Clients cause lines, by connecting or by being refused, and a log takes space. So lines about
//! clients are limited, and the number of omitted lines is logged. The service's own lines are not
//! limited.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::locks::Mutex;

use super::journal::{Journal, JournalLine};
use super::log_event::{LogEvent, LogPriority, LoggedClient};

/// Lines about clients that may come at once.
const BURST: f64 = 200.0;
/// Lines about clients per second, after that.
const RATE: f64 = 10.0;

type Sink = Box<dyn Write + Send>;

/// The target of a service's lines: standard error, unless another is given.
#[derive(Clone)]
pub struct ServiceLog(Arc<Mutex<State>>);

struct State {
    /// `None` for standard error.
    sink: Option<Sink>,
    /// The journal, where standard error goes to it.
    journal: Option<Journal>,
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
        let journal = if sink.is_none() { Journal::of_standard_error() } else { None };
        ServiceLog(Arc::new(Mutex::new(State { sink, journal, allowance: Allowance::new(Instant::now()) })))
    }

    /// Writes a line. If that fails, the line is lost and the service goes on.
    pub fn line(&self, line: fmt::Arguments<'_>) {
        self.0.lock().write(None, None, line);
    }

    /// Writes a line about an event.
    pub fn event(&self, event: LogEvent, line: fmt::Arguments<'_>) {
        self.0.lock().write(Some(event), None, line);
    }

    /// Writes a line that a client caused, unless there were too many of them.
    pub(super) fn of_client(&self, event: LogEvent, client: LoggedClient, line: fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        let Some(omitted) = state.allowance.take(Instant::now()) else { return };
        if omitted > 0 {
            let said = format_args!("{omitted} lines about clients were left out: there were too many");
            state.write(Some(LogEvent::LinesLeftOut), None, said);
        }
        state.write(Some(event), Some(client), line);
    }
}

impl State {
    fn write(&mut self, event: Option<LogEvent>, client: Option<LoggedClient>, line: fmt::Arguments<'_>) {
        let priority = event.map_or(LogPriority::Info, LogEvent::priority);
        // The journal knows whose line it is.
        let line = match &self.journal {
            Some(journal) => {
                let message = &line.to_string();
                if journal.send(&JournalLine { priority, event, client, message }) {
                    return;
                }
                format!("<{}>{message}\n", priority.number())
            }
            None => format!("dpiped: {line}\n"),
        };
        let _ = match &mut self.sink {
            Some(sink) => sink.write_all(line.as_bytes()),
            None => std::io::stderr().lock().write_all(line.as_bytes()),
        };
    }
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

    #[test]
    fn numbers_of_events_are_different_and_of_128_bits() {
        let all = [
            LogEvent::Started,
            LogEvent::Stops,
            LogEvent::Stopped,
            LogEvent::StoppedUnfinished,
            LogEvent::HelperKilled,
            LogEvent::NotServing,
            LogEvent::CannotStart,
            LogEvent::ClientTurnedAway,
            LogEvent::ClientCutOff,
            LogEvent::ClientLeft,
            LogEvent::RequestRefused,
            LogEvent::LinesLeftOut,
        ];
        let mut ids: Vec<&str> = all.iter().map(|event| event.message_id()).collect();
        let is_number =
            |id: &&str| id.len() == 32 && id.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        assert!(ids.iter().all(is_number), "{ids:?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
    }
}
