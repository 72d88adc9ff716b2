//! `dpipe man`: a man page for each command.

use std::path::{Path, PathBuf};

use datapipes::{AtomicFile, Error, FileMode, Result};

use crate::arguments::ending::Ending;
use crate::outcome::{CommandStatus, print, shown_path};
use crate::system::files;

const ENDING: Ending = Ending {
    notes: "",

    zero: "the pages are written",
    one: None,
    examples: &["dpipe man man1", "dpipe man man1 && man -l man1/dpipe-sort.1 | cat"],
};

/// Writes a man page for each command, such as dpipe-sort.1, into a folder.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Folder for the pages; it is created if it does not exist
    dir: PathBuf,
}

/// Writes the pages for a definition of the command line.
pub(crate) fn run(args: &Args, definition: clap::Command) -> Result<CommandStatus> {
    let fail = |e: std::io::Error| Error::io("create", e, args.dir.display().to_string());
    std::fs::create_dir_all(&args.dir).map_err(fail)?;
    let mut definition = definition.disable_help_subcommand(true);
    definition.build();
    let count = write(&definition, &args.dir)?;
    print(&format!("{count} pages are in {}\n", shown_path(&args.dir)))?;
    Ok(CommandStatus::Good)
}

/// Writes the page of a command and those of its subcommands, and counts them.
fn write(command: &clap::Command, dir: &Path) -> Result<usize> {
    let page = clap_mangen::Man::new(command.clone());
    let path = dir.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text).map_err(|e| Error::io("write", e, path.display().to_string()))?;
    let draft = AtomicFile::replacing(&path, FileMode::USUAL)?;
    draft.write(&text)?;
    files::publish(draft, text.len() as u64)?;
    let mut count = 1;
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        count += write(subcommand, dir)?;
    }
    Ok(count)
}
