//! Offers a command's statistics to `dpipe top` while it works: see `datapipes::offer`.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use datapipes::metrics::Sample;
use datapipes::offer::{self, PageWriter};

/// How often the page is written. A command that is over sooner has none.
const EVERY: Duration = Duration::from_millis(200);

/// Does the work, and meanwhile offers what `read` returns. Nobody has to look, so what fails is no
/// trouble of the work: then nothing is offered.
pub(crate) fn during<T>(program: &'static str, read: impl Fn() -> Vec<Sample> + Sync, work: impl FnOnce() -> T) -> T {
    if !offer::is_allowed() {
        return work();
    }
    std::thread::scope(|scope| {
        let (finished, end) = channel::<()>();
        let read = &read;
        let publish = move || {
            let mut page = None;
            while end.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                if page.is_none() {
                    // A file system without room now may have some later.
                    page = PageWriter::create(program).ok().map(|page| page.every(EVERY));
                }
                let _ = page.as_mut().map(|page| page.write(&read()));
            }
        };
        let _ = datapipes::threads::spawn_scoped(scope, "offer", publish);
        let value = work();
        drop(finished);
        value
    })
}
