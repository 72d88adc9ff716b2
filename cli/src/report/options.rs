//! The option, and the file of the page.

use std::path::{Path, PathBuf};

use datapipes::locator::target_kind;
use datapipes::{AtomicFile, Error, ErrorKind, FileMode, Result, TargetKind};
use datapipes_picture::page::HtmlPage;

use crate::outcome::note;
use crate::system::files;

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
    /// Opens the file, before the work that the page is about.
    pub(crate) fn open(&self) -> Result<Option<PageFile>> {
        self.report_html.as_deref().map(PageFile::open).transpose()
    }
}

/// The file of a page. It gets its name when the page is complete.
#[derive(Debug)]
pub(crate) struct PageFile {
    path: PathBuf,
    /// `None` for a stream.
    draft: Option<AtomicFile>,
}

impl PageFile {
    /// Makes sure that the page can be written, before anything is done.
    pub(crate) fn open(path: &Path) -> Result<PageFile> {
        let draft = match target_kind(path)? {
            TargetKind::Stream => None,
            _ => Some(AtomicFile::replacing(path, FileMode::USUAL)?),
        };
        Ok(PageFile { path: path.to_path_buf(), draft })
    }

    /// Writes the page, and says where it is.
    pub(crate) fn write(self, page: &HtmlPage) -> Result<()> {
        let json = self.path.extension().is_some_and(|ending| ending == "json");
        let text = if json { as_json(page)? } else { page.html() };
        match self.draft {
            Some(draft) => {
                draft.write(text.as_bytes())?;
                files::publish(draft, text.len() as u64)?;
            }
            None => files::write_text(&self.path, &text)?,
        }
        note(&format!("the report is in {}\n", self.path.display()));
        Ok(())
    }
}

fn as_json(page: &HtmlPage) -> Result<String> {
    serde_json::to_string_pretty(page)
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the page as JSON: {e}")).with_source(e))
}
