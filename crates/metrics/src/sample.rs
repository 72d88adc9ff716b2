//! A value of a measurement.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::measurement::{Label, Measurement, MeasurementKind};

/// A value, or the reason why there is none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SampleValue {
    /// A number of things, bytes or pages.
    Integer(u64),
    /// Seconds, rates and parts of a whole.
    Float(f64),
    /// A distribution of times.
    Histogram(Histogram),
    /// It is not known, for this reason. It is never shown as 0.
    Absent(String),
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> SampleValue {
        SampleValue::Integer(value)
    }
}

impl From<u32> for SampleValue {
    fn from(value: u32) -> SampleValue {
        SampleValue::Integer(value.into())
    }
}

impl From<usize> for SampleValue {
    fn from(value: usize) -> SampleValue {
        SampleValue::Integer(value as u64)
    }
}

impl From<bool> for SampleValue {
    fn from(value: bool) -> SampleValue {
        SampleValue::Integer(value.into())
    }
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> SampleValue {
        SampleValue::Float(value)
    }
}

impl From<Duration> for SampleValue {
    fn from(value: Duration) -> SampleValue {
        SampleValue::Float(value.as_secs_f64())
    }
}

impl From<Histogram> for SampleValue {
    fn from(value: Histogram) -> SampleValue {
        SampleValue::Histogram(value)
    }
}

/// A value of a measurement, with what distinguishes it from its other values.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    measurement: &'static Measurement,
    labels: Vec<(Label, String)>,
    value: SampleValue,
}

impl Sample {
    /// Makes a sample without labels.
    pub fn new(measurement: &'static Measurement, value: impl Into<SampleValue>) -> Sample {
        Sample { measurement, labels: Vec::new(), value: value.into() }
    }

    /// Adds a label, or replaces its value. A label that the measurement does not have is a mistake
    /// of ours, and is left out.
    #[must_use]
    pub fn label(mut self, label: Label, value: impl Into<String>) -> Sample {
        let is_known = self.measurement.labels.contains(&label);
        debug_assert!(is_known, "{} has no label {}", self.measurement.name, label.as_str());
        if is_known {
            self.labels.retain(|(other, _)| *other != label);
            self.labels.push((label, value.into()));
        }
        self
    }

    /// Returns the measurement of which this is a value.
    pub fn measurement(&self) -> &'static Measurement {
        self.measurement
    }

    /// The labels, as they were added.
    pub fn labels(&self) -> &[(Label, String)] {
        &self.labels
    }

    /// The value.
    pub fn value(&self) -> &SampleValue {
        &self.value
    }
}

/// The samples of work in several steps whose counters begin at 0 again: those of the steps
/// `before` and those of the step that is measured now. Counters and distributions are added up.
/// Other values are of a moment, so those of `before` are over.
pub fn continued(before: &[Sample], mut now: Vec<Sample>) -> Vec<Sample> {
    for earlier in before.iter().filter(|earlier| earlier.measurement.kind != MeasurementKind::Gauge) {
        let is_same = |s: &&mut Sample| s.measurement.name == earlier.measurement.name && s.labels == earlier.labels;
        let Some(later) = now.iter_mut().find(is_same) else {
            now.push(earlier.clone());
            continue;
        };
        match (&mut later.value, &earlier.value) {
            (SampleValue::Integer(sum), SampleValue::Integer(more)) => *sum = sum.saturating_add(*more),
            (SampleValue::Float(sum), SampleValue::Float(more)) => *sum += more,
            (SampleValue::Histogram(sum), SampleValue::Histogram(more)) => sum.add(more),
            // What one of the steps did not know, their sum does not know either.
            (sum, _) if matches!(earlier.value, SampleValue::Absent(_)) => *sum = earlier.value.clone(),
            _ => {}
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{CACHE_MEMORY, CACHE_READ_TIME, CACHE_READS};

    #[test]
    fn steps_add_up_and_the_present_is_that_of_the_last() {
        let step = |hits: u64, ns: u64, memory: u64| {
            let times = crate::Recorder::default();
            times.record_ns(ns);
            vec![
                Sample::new(&CACHE_READS, hits).label(Label::Outcome, "hit"),
                Sample::new(&CACHE_READ_TIME, times.histogram()),
                Sample::new(&CACHE_MEMORY, memory),
            ]
        };
        let misses = Sample::new(&CACHE_READS, 1u64).label(Label::Outcome, "miss");
        let before = [step(3, 10, 100), vec![misses.clone()]].concat();
        let mut sum = continued(&before, step(4, 1000, 50));
        assert_eq!(sum.pop(), Some(misses));
        assert_eq!(sum[0].value, SampleValue::Integer(7));
        let SampleValue::Histogram(times) = &sum[1].value else { panic!("{sum:?}") };
        assert!(times.count() == 2 && times.max_ns() >= 1000, "{times:?}");
        assert_eq!(sum[2].value, SampleValue::Integer(50));
        let unknown = [Sample::new(&CACHE_READS, SampleValue::Absent("no counter".into()))];
        let known = vec![Sample::new(&CACHE_READS, 1u64)];
        assert_eq!(continued(&unknown, known)[0].value, SampleValue::Absent("no counter".into()));
    }
}
