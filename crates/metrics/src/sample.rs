//! A value of a measurement.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::measurement::{Label, Measurement};

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
