//! Where rows come from: pages of processes, and the service's status.

use std::time::{Duration, Instant};

use datapipes::metrics::{Document, Sample};
use datapipes::service::{Client, ClientStatus};
use datapipes::{ErrorKind, offer};
use serde::Deserialize;
use serde_json::Value;

use super::figures::figures;
use super::look::{Look, ProcessLook, Trouble};
use super::words::{MAX_REASON, printable};
use crate::outcome::harmless;

/// The text of a page.
#[derive(Deserialize)]
struct PageText {
    program: String,
    measurements: Value,
}

/// A service that takes longer for an answer is stopped, or hangs: nothing can be done here
/// meanwhile.
const ANSWER: Duration = Duration::from_millis(500);

/// After a service did not answer, it is not asked for so long.
const RETRY: Duration = Duration::from_secs(5);

/// The sources, and the connection to the service.
#[derive(Default)]
pub(super) struct Sources {
    service: Option<Client>,
    asked: Option<Instant>,
    /// Why the service that is there could not be asked, until it is asked again.
    why_not: Option<String>,
}

impl Sources {
    /// Looks at everything.
    pub(super) fn look(&mut self) -> Look {
        let mut look = Look { processes: Vec::new(), clients: Vec::new(), troubles: Vec::new() };
        match offer::pages() {
            Ok(found) => {
                found.pages.into_iter().for_each(|page| add_page(page, &mut look));
                if found.left_out > 0 {
                    let why = format!("{} pages were not read: there are too many", found.left_out);
                    look.troubles.push(Trouble { place: "pages of processes".into(), why });
                }
            }
            Err(error) => look
                .troubles
                .push(Trouble { place: "pages of processes".into(), why: harmless(&error.to_string(), MAX_REASON) }),
        }
        self.add_service(&mut look);
        look
    }

    fn add_service(&mut self, look: &mut Look) {
        if self.service.is_none() && self.asked.is_none_or(|asked| asked.elapsed() > RETRY) {
            (self.asked, self.why_not) = (Some(Instant::now()), None);
            match Client::connect_default_within(ANSWER) {
                Ok(client) => self.service = Some(client),
                // That no service runs is no trouble: most machines have none.
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                Err(error) => self.why_not = Some(harmless(&error.to_string(), MAX_REASON)),
            }
        }
        let Some(client) = &self.service else {
            let why = self.why_not.clone();
            return look.troubles.extend(why.map(|why| Trouble { place: "dpiped".into(), why }));
        };
        match client.status() {
            Ok(status) => {
                let pid = status.pid;
                add_process(look, pid, "dpiped", &status.samples());
                // Whoever looks is a client too; it moves nothing.
                let is_other = |client: &ClientStatus| u32::try_from(client.pid) != Ok(std::process::id());
                look.clients.extend(status.clients.into_iter().filter(is_other).map(|client| (pid, client)));
            }
            Err(error) => {
                let why = harmless(&error.to_string(), MAX_REASON);
                look.troubles.push(Trouble { place: "dpiped".into(), why: why.clone() });
                // One that ended is looked for at once; one that hangs is not.
                if error.kind() == ErrorKind::Busy {
                    (self.asked, self.why_not) = (Some(Instant::now()), Some(why));
                }
                self.service = None;
            }
        }
    }
}

fn add_page(page: offer::OfferedPage, look: &mut Look) {
    let pid = page.owner.pid;
    let trouble = |why: String| Trouble { place: format!("page of process {pid}"), why: harmless(&why, MAX_REASON) };
    let text = match &page.text {
        Ok(text) => text,
        Err(why) => return look.troubles.push(trouble(why.clone())),
    };
    match serde_json::from_str::<PageText>(text) {
        Ok(PageText { program, measurements }) => {
            let is_late = !page.every.is_zero() && page.age > page.every.saturating_mul(10).max(Duration::from_secs(2));
            let offerer = (pid, page.owner.started, page.number);
            let (age, every) = (page.age, page.every);
            let process =
                ProcessLook { is_late, age, every, ..ProcessLook::new(offerer, printable(&program), page.written) };
            look.add(process, figures(&measurements));
        }
        Err(e) => look.troubles.push(trouble(format!("it is not what a page has: {e}"))),
    }
}

/// By the clock of the pages.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Adds a process that told its samples just now.
fn add_process(look: &mut Look, pid: u32, program: &str, samples: &[Sample]) {
    let measurements = serde_json::to_value(Document(samples)).unwrap_or(Value::Null);
    look.add(ProcessLook::new((pid, 0, 0), program.to_owned(), since_boot()), figures(&measurements));
}
