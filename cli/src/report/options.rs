//! The option, and the file of the page.

use datapipes::{Error, ErrorKind, Result};
use datapipes_picture::page::HtmlPage;

use crate::outcome::{note, shown_path};
use crate::system::side_files::{SideDraft, SideFile, SideFileArgument, SideFiles};
use crate::system::signals;

/// A variable that a command sets for another that it runs, whose page it reads: then nobody is to
/// be told where that page is.
pub(crate) const READ_BY_CALLER: &str = "DPIPE_PAGE_IS_READ_BY_CALLER";

/// The option that several commands have.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReportArgs {
    /// Write a page about what happened, for a browser: rates over time, the bottleneck, routes,
    /// what was verified. It is one file that loads nothing; if its name ends with .json, it has
    /// the same as JSON
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) report_html: Option<SideFileArgument>,
}

impl ReportArgs {
    /// Takes the file of the option, if it was given.
    pub(crate) fn take(&self, side_files: &mut SideFiles) -> Result<Option<SideFile>> {
        side_files.take("--report-html", self.report_html.as_ref())
    }
}

/// The file of a page. It gets its name when the page is complete.
#[derive(Debug)]
pub(crate) struct PageFile(SideDraft);

impl PageFile {
    /// Makes sure that the page can be written, before anything is done.
    pub(crate) fn open(file: Option<SideFile>) -> Result<Option<PageFile>> {
        file.map(|file| file.begin().map(PageFile)).transpose()
    }

    /// Writes the page, and says where it is.
    pub(crate) fn write(self, page: &HtmlPage) -> Result<()> {
        // From here on a signal finds the work done.
        signals::undo_says("the work is done; of its page nothing is left");
        let path = self.0.path().to_path_buf();
        let json = path.extension().is_some_and(|ending| ending == "json");
        let text = if json { as_json(page)? } else { page.html() };
        // Whoever reads that this failed is to know that the rest did not.
        let told = |e: Error| e.within("the work is done, but not its page");
        self.0.write_text(&text).map_err(told)?;
        // The demo reads this page, and removes it.
        if std::env::var_os(READ_BY_CALLER).is_none() {
            note(&format!("the report is in {}\n", shown_path(&path)));
        }
        signals::undo_says("the work is done, and the page about it is complete");
        // A signal that came after the work still ends the program, as its parent expects.
        signals::check("write")
    }
}

fn as_json(page: &HtmlPage) -> Result<String> {
    serde_json::to_string_pretty(page)
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the page as JSON: {e}")).with_source(e))
}
