//! Samples as a document of JSON, or of any other format that serde writes.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::histogram::Histogram;
use crate::measurement::Measurement;
use crate::sample::{Sample, SampleValue};

/// Samples by measurement. It is written as a list of objects: `name`, `kind`, `unit`, `help`,
/// `samples`. A sample has `labels` and one of `value`, `histogram` and `absent`; a histogram has
/// `count`, `sum_s`, percentiles, and its non-empty buckets as pairs of the longest time in
/// nanoseconds and the number of times.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a>(pub &'a [Sample]);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(None)?;
        for (at, sample) in self.0.iter().enumerate() {
            let family = sample.measurement();
            let is_first = !self.0[..at].iter().any(|other| other.measurement().name == family.name);
            if is_first {
                list.serialize_element(&Family { measurement: family, all: self.0 })?;
            }
        }
        list.end()
    }
}

struct Family<'a> {
    measurement: &'static Measurement,
    all: &'a [Sample],
}

impl Serialize for Family<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Measurement { name, kind, unit, help, .. } = self.measurement;
        let own: Vec<Shown> = self.all.iter().filter(|sample| sample.measurement().name == *name).map(Shown).collect();
        let mut map = to.serialize_map(Some(5))?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("unit", unit)?;
        map.serialize_entry("help", help)?;
        map.serialize_entry("samples", &own)?;
        map.end()
    }
}

struct Shown<'a>(&'a Sample);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(2))?;
        map.serialize_entry("labels", &Labels(self.0))?;
        match self.0.value() {
            SampleValue::Integer(value) => map.serialize_entry("value", value)?,
            SampleValue::Float(value) => map.serialize_entry("value", value)?,
            SampleValue::Histogram(times) => map.serialize_entry("histogram", &Times(times))?,
            SampleValue::Absent(why) => map.serialize_entry("absent", why)?,
        }
        map.end()
    }
}

struct Labels<'a>(&'a Sample);

impl Serialize for Labels<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.labels().iter().map(|(label, value)| (label, value)))
    }
}

struct Times<'a>(&'a Histogram);

impl Serialize for Times<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(7))?;
        map.serialize_entry("count", &self.0.count())?;
        map.serialize_entry("sum_s", &(self.0.sum_ns() as f64 / 1e9))?;
        for (name, percent) in [("p50_ns", 50.0), ("p99_ns", 99.0), ("p999_ns", 99.9)] {
            map.serialize_entry(name, &self.0.percentile_ns(percent))?;
        }
        map.serialize_entry("max_ns", &self.0.max_ns())?;
        map.serialize_entry("buckets", self.0.buckets())?;
        map.end()
    }
}
