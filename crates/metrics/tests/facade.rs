//! What a recorder of the crate `metrics` hears.
#![cfg(feature = "facade")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapipes_metrics::{FacadePublisher, Label, Recorder, Sample, SampleValue, vocabulary};
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};

type Heard = Arc<Mutex<BTreeMap<String, Vec<f64>>>>;

#[derive(Clone, Default)]
struct Listener(Heard);

struct One(Heard, String);

impl One {
    fn hear(&self, value: f64) {
        self.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for One {
    fn increment(&self, _: u64) {
        panic!("sums are absolute");
    }
    fn absolute(&self, value: u64) {
        self.hear(value as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, _: f64) {
        panic!("values are set");
    }
    fn decrement(&self, _: f64) {
        panic!("values are set");
    }
    fn set(&self, value: f64) {
        self.hear(value);
    }
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.hear(value);
    }
}

impl Listener {
    fn one(&self, kind: &str, key: &Key) -> Arc<One> {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(One(self.0.clone(), format!("{kind} {} {}", key.name(), labels.join(","))))
    }
    fn describe(&self, kind: &str, name: &KeyName) {
        self.0.lock().unwrap().insert(format!("{kind} {}", name.as_str()), Vec::new());
    }
}

impl metrics::Recorder for Listener {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("counter", &name);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("gauge", &name);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("histogram", &name);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one("counter", key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one("gauge", key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.one("histogram", key))
    }
}

#[test]
fn a_recorder_hears_sums_values_and_each_time_once() {
    let listener = Listener::default();
    let times = Recorder::default();
    let samples = |reads: u64| {
        vec![
            Sample::new(&vocabulary::CACHE_READS, reads).label(Label::Outcome, "hit"),
            Sample::new(&vocabulary::CACHE_ITEMS, 7u64),
            Sample::new(&vocabulary::PIPE_BUSY, Duration::from_millis(1500)),
            Sample::new(&vocabulary::CACHE_READ_TIME, times.histogram()).label(Label::Outcome, "hit"),
            Sample::new(&vocabulary::CACHE_BUDGET, SampleValue::Absent("not asked".into())),
        ]
    };
    metrics::with_local_recorder(&listener, || {
        let mut publisher = FacadePublisher::new();
        assert_eq!(listener.0.lock().unwrap().len(), vocabulary::ALL.len(), "each is described");
        (0..3).for_each(|_| times.record(Duration::from_micros(10)));
        publisher.publish(&samples(5));
        publisher.publish(&samples(5));
        times.record(Duration::from_micros(10));
        times.record(Duration::from_millis(1));
        publisher.publish(&samples(9));
        // Those that come no more are forgotten, and what is published all the time is not.
        for client in 0..5000 {
            let of_client = Sample::new(&vocabulary::CLIENT_TRANSFER_TIME, times.histogram());
            publisher.publish(&[of_client.label(Label::Client, client.to_string()), samples(9).swap_remove(3)]);
        }
        let remembered = format!("{publisher:?}").matches("datapipes_client_transfer_seconds").count();
        assert!((50..=101).contains(&remembered), "{remembered}");
    });
    let heard = listener.0.lock().unwrap();
    assert_eq!(heard["counter datapipes_cache_reads_total outcome=hit"], [5.0, 5.0, 9.0]);
    assert_eq!(heard["gauge datapipes_cache_items "], [7.0; 3]);
    assert_eq!(heard["gauge datapipes_pipe_busy_seconds_total "], [1.5; 3]);
    let recorded = &heard["histogram datapipes_cache_read_seconds outcome=hit"];
    assert_eq!(recorded.len(), 5, "{recorded:?}");
    assert!(recorded[..4].iter().all(|s| (1e-5..1.07e-5).contains(s)) && (1e-3..1.07e-3).contains(&recorded[4]));
    assert!(!heard.keys().any(|key| key.ends_with("datapipes_cache_budget_bytes ")));
}
