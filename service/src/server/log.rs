//! Plain lines, one a fact.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

type Sink = Arc<Mutex<dyn Write + Send>>;

/// Where a service's lines go: the standard error, unless told otherwise.
#[derive(Clone, Default)]
pub struct Log(Option<Sink>);

impl Log {
    /// Lines go there.
    pub fn to(sink: impl Write + Send + 'static) -> Log {
        Log(Some(Arc::new(Mutex::new(sink))))
    }

    /// Writes a line. One that cannot be written is lost: the service goes on.
    pub fn line(&self, line: fmt::Arguments<'_>) {
        let line = format!("dpiped: {line}\n");
        let _ = match &self.0 {
            Some(sink) => sink.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None => std::io::stderr().lock().write_all(line.as_bytes()),
        };
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Log" } else { "Log(stderr)" })
    }
}

/// What a client said, fit for a line: short, without line breaks and control characters.
pub(super) fn tame(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(300).map(shown).collect()
}
