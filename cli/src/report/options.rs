//! The option, and the file of the page.

use std::path::{Path, PathBuf};

use datapipes::{AtomicFile, Error, ErrorKind, FileMode, Result};
use datapipes_picture::page::HtmlPage;

use crate::outcome::{harmless, note};
use crate::system::files::{self, Stream};
use crate::system::signals;

/// The most characters of a name that are shown.
const MAX_NAME: usize = 4096;

/// The option that several commands have.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReportArgs {
    /// Write a page about what happened, for a browser: rates over time, the bottleneck, routes,
    /// what was verified. It is one file that loads nothing; if its name ends with .json, it has
    /// the same as JSON
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) report_html: Option<PathBuf>,
}

impl ReportArgs {
    /// The option with its file, to be kept apart from other files.
    pub(crate) fn side_file(&self) -> (&'static str, Option<&Path>) {
        ("--report-html", self.report_html.as_deref())
    }

    /// Opens the file, before the work that the page is about.
    pub(crate) fn open(&self) -> Result<Option<PageFile>> {
        self.report_html.as_deref().map(PageFile::open).transpose()
    }
}

/// The file of a page. It gets its name when the page is complete.
#[derive(Debug)]
pub(crate) struct PageFile {
    path: PathBuf,
    target: PageTarget,
}

#[derive(Debug)]
enum PageTarget {
    Draft(AtomicFile),
    Stream(Stream),
}

impl PageFile {
    /// Makes sure that the page can be written, before anything is done.
    pub(crate) fn open(path: &Path) -> Result<PageFile> {
        let target = match Stream::open(path)? {
            Some(stream) => PageTarget::Stream(stream),
            None => PageTarget::Draft(AtomicFile::replacing(path, FileMode::USUAL)?),
        };
        Ok(PageFile { path: path.to_path_buf(), target })
    }

    /// Writes the page, and says where it is.
    pub(crate) fn write(self, page: &HtmlPage) -> Result<()> {
        let json = self.path.extension().is_some_and(|ending| ending == "json");
        let text = if json { as_json(page)? } else { page.html() };
        match self.target {
            PageTarget::Draft(draft) => {
                draft.write(text.as_bytes())?;
                files::publish(draft, text.len() as u64)?;
            }
            PageTarget::Stream(mut stream) => stream.write(text.as_bytes())?,
        }
        note(&format!("the report is in {}\n", harmless(&self.path.display().to_string(), MAX_NAME)));
        // A signal that came after the work still ends the program, as its parent expects.
        signals::check("write")
    }
}

fn as_json(page: &HtmlPage) -> Result<String> {
    serde_json::to_string_pretty(page)
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the page as JSON: {e}")).with_source(e))
}
