//! The side of the process that offers.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use datapipes_metrics::{Document, Sample};
use serde::Serialize;

use super::folder::Folder;
use super::page::{self, Header, MAX_TEXT_BYTES, PageOwner};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, ForeignCode};
use crate::process::OwningProcess;
use crate::threads;

/// How often a page is written.
const EVERY: Duration = Duration::from_millis(200);

/// The text of a page.
#[derive(Serialize)]
struct Text<'a> {
    program: &'a str,
    measurements: Document<'a>,
}

/// A page of this process, for programs that write it themselves. It is removed with this value.
pub struct PageWriter {
    program: String,
    folder: Folder,
    file: OwnedFd,
    name: String,
    header: Header,
    process: OwningProcess,
}

impl PageWriter {
    /// Makes a page. `program` is what others see of the program: a name, without arguments.
    ///
    /// # Errors
    /// Errors of the folder; `Unsupported` without /proc.
    pub fn create(program: &str) -> Result<PageWriter> {
        let owner = PageOwner::here()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "offer", "/proc does not say when this process began"))?;
        let folder = Folder::create()?;
        let (file, name) = folder.new_page(owner)?;
        let header = Header {
            generation: 0,
            owner,
            len: 0,
            namespace: page::namespace(),
            written_ns: 0,
            checksum: 0,
            every_ms: 0,
        };
        let process = OwningProcess::here();
        let mut page = PageWriter { program: program.to_owned(), folder, file, name, header, process };
        page.write(&[])?;
        Ok(page)
    }

    /// Says how often the page will be written, so that readers know when it is late.
    #[must_use]
    pub fn every(mut self, every: Duration) -> PageWriter {
        self.header.every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Writes samples. If there are more than a page holds, the last ones are left out.
    ///
    /// # Errors
    /// Errors of the write. `Forked` in a child of the process that made the page.
    pub fn write(&mut self, samples: &[Sample]) -> Result<()> {
        self.process.check("offer")?;
        let mut samples = samples;
        let text = loop {
            let text = Text { program: &self.program, measurements: Document(samples) };
            let text = serde_json::to_vec(&text)
                .map_err(|e| Error::new(ErrorKind::System, "offer", e.to_string()).with_source(e))?;
            if text.len() <= MAX_TEXT_BYTES || samples.is_empty() {
                break text;
            }
            samples = &samples[..samples.len() / 2];
        };
        // A reader that sees an odd number, or two numbers, tries again.
        // After a write that failed it is odd already.
        self.header.generation |= 1;
        self.put(&self.header.bytes(), 0)?;
        self.put(&text, page::HEADER_BYTES as u64)?;
        self.header.generation += 1;
        self.header.len = u32::try_from(text.len()).unwrap_or(0);
        self.header.checksum = page::checksum(&text);
        self.header.written_ns = page::now_ns();
        self.put(&self.header.bytes(), 0)
    }

    fn put(&self, bytes: &[u8], at: u64) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.file, &bytes[done..], at + done as u64) {
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::os("write", e.raw_os_error(), "the page of statistics")),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PageWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageWriter").field("program", &self.program).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        // A child of this process leaves the page to it.
        if self.process.is_here() {
            self.folder.remove(&self.name);
        }
    }
}

/// Statistics that are offered as long as this value lives, from a thread of their own.
///
/// ```
/// use datapipes_core::offer::StatisticsOffer;
/// use datapipes_metrics::{Label, Sample, vocabulary};
///
/// let read = || vec![Sample::new(&vocabulary::CACHE_READS, 3u64).label(Label::Outcome, "hit")];
/// let offer = StatisticsOffer::start("my-program", read)?;
/// // ... work, and `dpipe top` shows it ...
/// drop(offer);
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Debug)]
pub struct StatisticsOffer(Option<Running>);

#[derive(Debug)]
struct Running {
    end: Sender<()>,
    thread: threads::JoinHandle<()>,
    process: OwningProcess,
}

impl StatisticsOffer {
    /// Offers what `read` returns, which is called five times a second on a thread of its own. It
    /// ends with this value; the drop waits for a call of `read` that has begun. If `read` panics,
    /// the offer ends. Where the environment says `DATAPIPES_OFFER=0`, nothing is offered.
    ///
    /// # Errors
    /// As [`PageWriter::create`], and `System` where the kernel refuses a thread.
    pub fn start(program: &str, read: impl Fn() -> Vec<Sample> + Send + 'static) -> Result<StatisticsOffer> {
        if !super::is_allowed() {
            return Ok(StatisticsOffer(None));
        }
        let mut page = PageWriter::create(program)?.every(EVERY);
        let (end, ends) = channel::<()>();
        let thread = threads::spawn("dp-offer", move || {
            loop {
                let Ok(samples) = guard::call(ForeignCode::Callback, &read) else { return };
                // A file system without room now may have some later.
                let _ = page.write(&samples);
                if ends.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(StatisticsOffer(Some(Running { end, thread, process: OwningProcess::here() })))
    }

    /// Whether something is offered.
    pub fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|running| running.process.is_here() && !running.thread.is_finished())
    }
}

impl Drop for StatisticsOffer {
    fn drop(&mut self) {
        if let Some(Running { end, thread, process }) = self.0.take()
            && process.is_here()
        {
            drop(end);
            // A panic in it was printed; there is nobody to tell.
            let _ = threads::join(thread);
        }
    }
}
