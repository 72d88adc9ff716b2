//! Plain lines, one a fact.
//!
//! Clients cause lines, by connecting and being refused say, and a log takes space: lines about
//! clients are limited, and how many were left out is said. The service's own lines are not.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Lines about clients that may come at once.
const BURST: f64 = 200.0;
/// Lines about clients a second, after that.
const RATE: f64 = 10.0;

type Sink = Box<dyn Write + Send>;

/// Where a service's lines go: the standard error, unless told otherwise.
#[derive(Clone)]
pub struct ServiceLog(Arc<Mutex<State>>);

struct State {
    /// The standard error, if there is none.
    sink: Option<Sink>,
    allowance: Allowance,
}

/// How many lines about clients may be written now.
struct Allowance {
    left: f64,
    since: Instant,
    omitted: u64,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance { left: BURST, since: now, omitted: 0 }
    }

    /// Whether a line may be written now, and how many were left out before it.
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
    /// Lines go there.
    pub fn to(sink: impl Write + Send + 'static) -> ServiceLog {
        ServiceLog::of(Some(Box::new(sink)))
    }

    fn of(sink: Option<Sink>) -> ServiceLog {
        ServiceLog(Arc::new(Mutex::new(State { sink, allowance: Allowance::new(Instant::now()) })))
    }

    /// Writes a line. One that cannot be written is lost: the service goes on.
    pub fn line(&self, line: fmt::Arguments<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(line);
    }

    /// Writes a line that a client caused, if there were not too many of them.
    pub(super) fn of_client(&self, line: fmt::Arguments<'_>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.allowance.take(Instant::now()) {
            None => {}
            Some(0) => state.write(line),
            Some(omitted) => {
                state.write(format_args!("{omitted} lines about clients were left out: there were too many"));
                state.write(line);
            }
        }
    }
}

impl State {
    fn write(&mut self, line: fmt::Arguments<'_>) {
        let line = format!("dpiped: {line}\n");
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

/// What a client said, fit for a line: short, without line breaks and control characters.
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
        // A second later some more, the first of which says how many are missing.
        let later = begun + Duration::from_secs(1);
        assert_eq!(allowance.take(later), Some(1000 - BURST as u64));
        let written = (0..1000).filter(|_| allowance.take(later).is_some()).count();
        assert_eq!(written, RATE as usize - 1);
        // After a long pause no more than at first; a clock that stands still gives nothing.
        let much_later = later + Duration::from_secs(1 << 30);
        assert_eq!((0..1000).filter(|_| allowance.take(much_later).is_some()).count(), BURST as usize);
    }
}
