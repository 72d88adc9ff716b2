//! Side files are taken here, and nowhere else.

use std::sync::Arc;

use datapipes::Result;

use super::argument::SideFileArgument;
use super::places::CommandPlaces;
use super::writing::{SideDraft, SideFile};
use crate::objects;

/// Gives side files to be written, each after it was compared with all that the command reads and
/// writes, and with the side files before it.
#[derive(Debug)]
pub(crate) struct SideFiles {
    places: Arc<CommandPlaces>,
    sync: bool,
}

impl SideFiles {
    /// Those of a command with these places. None is added afterwards.
    pub(crate) fn beside(places: CommandPlaces) -> SideFiles {
        SideFiles { places: Arc::new(places), sync: true }
    }

    /// Sets whether files that are taken from now on are durable when they are written.
    #[must_use]
    pub(crate) fn synced(self, sync: bool) -> SideFiles {
        SideFiles { sync, ..self }
    }

    /// The file of an option, if it was given.
    ///
    /// # Errors
    /// `InvalidInput` with the option and both names, where it is one of the places. `Unsupported`
    /// for objects and memory of other processes.
    pub(crate) fn take(&mut self, option: &'static str, given: Option<&SideFileArgument>) -> Result<Option<SideFile>> {
        let Some(path) = given.map(SideFileArgument::path) else { return Ok(None) };
        if let Some(text) = path.to_str() {
            objects::refuse(self.places.command(), &[text])?;
        }
        let file = SideFile::new(option, path, self.places.clone(), self.sync)?;
        Arc::make_mut(&mut self.places).add_side_file(option, path);
        Ok(Some(file))
    }

    /// The same, for a file that is written after long work: it is opened now, and gets its name
    /// when it is written.
    ///
    /// # Errors
    /// As [`take`](Self::take), and why it cannot be written.
    pub(crate) fn begin(
        &mut self,
        option: &'static str,
        given: Option<&SideFileArgument>,
    ) -> Result<Option<SideDraft>> {
        self.take(option, given)?.map(SideFile::begin).transpose()
    }
}
