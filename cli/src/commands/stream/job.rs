//! What a stream is asked to do, as all of its runs need it.

use std::fmt;
use std::path::PathBuf;

use datapipes_fabric::channel::{ChannelShape, Copies};

use super::ends::origin::{Origin, Sum};
use super::ends::waiting::WaitTimeout;
use super::steps::chain::{ChannelPlan, Step};
use super::steps::trust::TrustLevel;

/// The target of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands::stream) enum Target {
    File(PathBuf),
    /// The standard output.
    Output,
}

impl From<std::ffi::OsString> for Target {
    fn from(text: std::ffi::OsString) -> Target {
        if text == "-" { Target::Output } else { Target::File(text.into()) }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(path) => path.display().fmt(f),
            Target::Output => f.write_str("-"),
        }
    }
}

/// The settings that all runs share.
#[derive(Debug)]
pub(in crate::commands::stream) struct Job {
    pub(in crate::commands::stream) origin: Origin,
    pub(in crate::commands::stream) steps: Vec<Step>,
    pub(in crate::commands::stream) to: Target,
    /// The shapes of the channels, in order: into each transform, and into the sink.
    pub(in crate::commands::stream) shapes: Vec<ChannelShape>,
    pub(in crate::commands::stream) trust: TrustLevel,
    pub(in crate::commands::stream) patience: WaitTimeout,
    /// The copies that go past the caches.
    pub(in crate::commands::stream) copies: Copies,
    /// Whether the standard error has the report as JSON, and nothing else.
    pub(in crate::commands::stream) quiet: bool,
    /// Whether the origin is read once more and the file is read back.
    pub(in crate::commands::stream) verifies: bool,
    /// Whether a page is to be made, for which the channels are watched.
    pub(in crate::commands::stream) records: bool,
    /// Whether somebody may look at the times of blocks, so that the devices measure them.
    pub(in crate::commands::stream) measures: bool,
    /// The sums of the origin and of the expected file, if they can be computed again.
    pub(in crate::commands::stream) due: Option<(Sum, Sum)>,
    /// How long that took, before anything was started.
    pub(in crate::commands::stream) replay_seconds: f64,
}

impl Job {
    /// The steps and the channels between them.
    pub(in crate::commands::stream) fn plan(&self) -> ChannelPlan<'_> {
        ChannelPlan { steps: &self.steps, shapes: &self.shapes, trust: self.trust, measures: self.measures }
    }
}
