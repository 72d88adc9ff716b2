//! Samples for the crate `metrics`, the facade that many programs and exporters know.

use std::collections::BTreeMap;

use metrics::{Key, Level, Metadata, Unit as FacadeUnit, with_recorder};

use crate::histogram::Histogram;
use crate::measurement::{Label, Measurement, MeasurementKind, Unit};
use crate::sample::{Sample, SampleValue};
use crate::vocabulary;

/// A sample's name and labels.
type SampleKey = (&'static str, Vec<(Label, String)>);

/// Publishes samples to the recorder that the program installed. Without one it does nothing.
///
/// Counters of things and bytes are counters there, and hold the sum. Counters of seconds are
/// gauges, because the facade's counters are whole numbers. Of a histogram each publication records
/// the times since the one before, at the longest time of their bucket. What is absent is not
/// published. A publisher is the one that publishes its samples; two would record times twice, and
/// so does one that publishes a sample less often than once in a hundred publications.
///
/// ```
/// use datapipes_metrics::{FacadePublisher, Sample, vocabulary};
///
/// let mut publisher = FacadePublisher::new();
/// publisher.publish(&[Sample::new(&vocabulary::CACHE_ITEMS, 3u64)]); // every ten seconds, say
/// ```
#[derive(Debug, Default)]
pub struct FacadePublisher {
    /// What was recorded of each histogram, by the name and labels of its samples, and in which
    /// publication it was last.
    recorded: BTreeMap<SampleKey, (u64, Histogram)>,
    /// How often samples were published.
    publications: u64,
}

/// For so many publications a histogram is remembered that is published no more. Labels such as the
/// number of a client are new again and again.
const MAX_ABSENT: u64 = 100;

const METADATA: Metadata<'static> = Metadata::new("datapipes", Level::INFO, None);

impl FacadePublisher {
    /// Makes a publisher, and describes every measurement to the recorder.
    pub fn new() -> FacadePublisher {
        with_recorder(|recorder| {
            for (_, measurement) in vocabulary::ALL {
                let (name, unit, help) = (measurement.name.into(), unit(measurement.unit), measurement.help.into());
                match kind(measurement) {
                    MeasurementKind::Counter => recorder.describe_counter(name, unit, help),
                    MeasurementKind::Gauge => recorder.describe_gauge(name, unit, help),
                    MeasurementKind::Histogram => recorder.describe_histogram(name, unit, help),
                }
            }
        });
        FacadePublisher::default()
    }

    /// Publishes samples.
    pub fn publish(&mut self, samples: &[Sample]) {
        self.publications += 1;
        let now = self.publications;
        self.recorded.retain(|_, (last, _)| now - *last <= MAX_ABSENT);
        for sample in samples {
            let measurement = sample.measurement();
            let labels =
                sample.labels().iter().map(|(label, value)| metrics::Label::new(label.as_str(), value.clone()));
            let key = Key::from_parts(measurement.name, labels.collect::<Vec<_>>());
            with_recorder(|recorder| match (kind(measurement), sample.value()) {
                (MeasurementKind::Counter, SampleValue::Integer(value)) => {
                    recorder.register_counter(&key, &METADATA).absolute(*value);
                }
                (_, SampleValue::Integer(value)) => recorder.register_gauge(&key, &METADATA).set(*value as f64),
                (_, SampleValue::Float(value)) => recorder.register_gauge(&key, &METADATA).set(*value),
                (_, SampleValue::Histogram(times)) => {
                    let histogram = recorder.register_histogram(&key, &METADATA);
                    for (ns, count) in self.since(sample, times) {
                        let count = usize::try_from(count).unwrap_or(usize::MAX);
                        histogram.record_many(ns as f64 / 1e9, count);
                    }
                }
                (_, SampleValue::Absent(_)) => {}
            });
        }
    }

    /// The times that a histogram has and had not when it was published before.
    fn since(&mut self, sample: &Sample, times: &Histogram) -> Vec<(u64, u64)> {
        let mut labels = sample.labels().to_vec();
        labels.sort();
        let (last, before) = self.recorded.entry((sample.measurement().name, labels)).or_default();
        *last = self.publications;
        let had = |ns: u64| before.buckets().iter().find(|bucket| bucket.0 == ns).map_or(0, |bucket| bucket.1);
        // Where there are fewer than before, what is measured began anew.
        let is_new = times.count() < before.count();
        let more = times.buckets().iter().map(|&(ns, n)| (ns, if is_new { n } else { n.saturating_sub(had(ns)) }));
        let more = more.filter(|(_, n)| *n > 0).collect();
        before.clone_from(times);
        more
    }
}

/// The kind that a measurement has there.
fn kind(measurement: &Measurement) -> MeasurementKind {
    match (measurement.kind, measurement.unit) {
        (MeasurementKind::Counter, Unit::Seconds) => MeasurementKind::Gauge,
        (kind, _) => kind,
    }
}

fn unit(unit: Unit) -> Option<FacadeUnit> {
    match unit {
        Unit::Count | Unit::Pages => Some(FacadeUnit::Count),
        Unit::Bytes => Some(FacadeUnit::Bytes),
        Unit::Seconds => Some(FacadeUnit::Seconds),
        // The facade knows bits in a second, and no ratio.
        Unit::BytesPerSecond | Unit::Ratio => None,
    }
}
