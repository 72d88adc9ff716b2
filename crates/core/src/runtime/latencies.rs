//! How long transfers take, where somebody wants to know.

use datapipes_metrics::Recorder;

use super::report::ClassLatencies;
use super::schedule::PriorityClass;
use crate::sync::Arc;

/// A recorder for each class.
#[derive(Default)]
pub(super) struct ClassRecorders([Arc<Recorder>; PriorityClass::ALL.len()]);

impl ClassRecorders {
    /// The recorder of a class.
    pub(super) fn of(&self, class: PriorityClass) -> Arc<Recorder> {
        self.0[class as usize].clone()
    }

    /// What was recorded so far.
    pub(super) fn read(&self) -> Vec<ClassLatencies> {
        let of =
            |(class, recorder): (PriorityClass, &Arc<Recorder>)| ClassLatencies { class, times: recorder.histogram() };
        PriorityClass::ALL.into_iter().zip(&self.0).map(of).collect()
    }
}
