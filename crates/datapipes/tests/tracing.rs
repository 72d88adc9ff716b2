//! What a subscriber of `tracing` hears. CI runs this with the feature; without it nothing is
//! traced.
#![cfg(all(feature = "tracing", feature = "cache", feature = "fabric", feature = "log", feature = "sort"))]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use datapipes::cache::{CacheOptions, FineGrained};
use datapipes::durable::checkpoint::{Checkpoints, SaveOptions};
use datapipes::durable::log::{Log, LogFolder, LogOptions};
use datapipes::metrics::spans;
use datapipes::sort::{RecordFormat, SortJob};
use datapipes::{Dram, Runtime, Span, Ssd};
use datapipes_testkit::TempFolder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Everything that was heard: name, fields.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Line>>>, Arc<AtomicU64>);

#[derive(Clone, Debug, Default)]
struct Line {
    name: String,
    level: String,
    lasts: bool,
    fields: BTreeMap<String, String>,
    declared: Vec<String>,
    is_closed: bool,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().into(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Line {
    fn of(metadata: &Metadata<'_>) -> Line {
        assert_eq!(metadata.target(), "datapipes");
        Line {
            name: metadata.name().into(),
            level: metadata.level().to_string(),
            lasts: metadata.is_span(),
            declared: metadata.fields().iter().map(|field| field.name().to_owned()).collect(),
            ..Line::default()
        }
    }
}

impl Heard {
    fn named(&self, name: &str) -> Vec<Line> {
        self.0.lock().unwrap().iter().filter(|line| line.name == name).cloned().collect()
    }
}

impl Subscriber for Heard {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::of(span.metadata());
        span.record(&mut line);
        let mut lines = self.0.lock().unwrap();
        lines.push(line);
        Id::from_u64(lines.len() as u64)
    }
    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut self.0.lock().unwrap()[span.into_u64() as usize - 1]);
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::of(event.metadata());
        event.record(&mut line);
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &Id) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn exit(&self, span: &Id) {
        self.1.fetch_sub(1, Ordering::Relaxed);
        self.0.lock().unwrap()[span.into_u64() as usize - 1].is_closed = true;
    }
}

fn heard_of(work: impl FnOnce()) -> Heard {
    let heard = Heard::default();
    tracing::subscriber::with_default(heard.clone(), work);
    assert_eq!(heard.1.load(Ordering::Relaxed), 0, "spans that were entered are left");
    for line in heard.0.lock().unwrap().iter() {
        let known = spans::ALL.iter().find(|known| known.name == line.name);
        let known = known.unwrap_or_else(|| panic!("nothing is called {}", line.name));
        assert_eq!((known.lasts, known.level.as_str()), (line.lasts, line.level.as_str()), "{}", line.name);
        let declared: Vec<&str> = line.declared.iter().map(String::as_str).filter(|name| *name != "outcome").collect();
        assert_eq!(declared, known.fields, "{}", line.name);
        assert!(!line.lasts || line.is_closed && line.fields.contains_key("outcome"), "{line:?}");
    }
    heard
}

#[test]
fn pipes_are_heard_and_a_failure_is_one() {
    let machine = datapipes::discover();
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let file = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let heard = heard_of(|| {
        let pipe = machine.connect(&source, &target).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 64 }).unwrap();
        let empty = machine.connect(&file, &target).unwrap();
        empty.transfer(Span { source: 0, target: 0, len: 4096 }).unwrap_err();
        let runtime = Runtime::start(&machine).unwrap();
        let pipe = runtime.connect(&source, &target).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 128 }).unwrap().wait().unwrap();
    });
    let transfers = heard.named("transfer");
    assert_eq!(transfers[0].fields["len_bytes"], "64");
    assert_eq!(transfers[0].fields["outcome"], "completed");
    assert_eq!(transfers[1].fields["outcome"], "failed");
    let connected = heard.named("connect");
    assert!(connected.len() >= 3 && connected.iter().all(|line| !line.fields["route"].is_empty()), "{connected:?}");
    assert_eq!(heard.named("submit")[0].fields["class"], "normal");
}

#[test]
fn products_are_heard() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let machine = datapipes::discover();
    let heard = heard_of(|| {
        // A sort in less memory than it has bytes.
        let numbers: Vec<u8> =
            (0..4_000_000_u64).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        std::fs::write(folder.path("in"), &numbers).unwrap();
        let format = RecordFormat::Records { len: 8, key_at: 0, key_len: 8, reverse: false };
        let job = SortJob::new(&machine, format, folder.path("in"), folder.path("out")).unwrap();
        let job = job.memory_bytes(16 << 20).spill(vec![datapipes::StagePlace::folder(folder.at())]);
        datapipes::sort::sort(&machine, job).unwrap();
        // A log of small segments.
        let options = LogOptions::default().batch_bytes(64 << 10).segment_bytes(256 << 10);
        let log = Log::open(&machine, LogFolder::at(&machine, folder.path("log")), options).unwrap();
        (0..60).for_each(|_| {
            log.append_durable(&[7; 30_000]).unwrap();
        });
        let (region, again) = (Dram::allocate(8192).unwrap(), Dram::allocate(8192).unwrap());
        let store = Checkpoints::at(&machine, folder.path("saves"));
        let saved = store
            .save(&[("a", &region)], &SaveOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
        store
            .open(saved.number)
            .unwrap()
            .restore_into(&[("a", &again)], &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
    });
    assert_eq!(heard.named("sort").len(), 1);
    assert_eq!(heard.named("sort")[0].fields["memory_bytes"], (16 << 20).to_string());
    assert!(!heard.named("merge_pass").is_empty());
    let segments: u64 =
        heard.named("log_rotation").iter().map(|line| line.fields["segments"].parse::<u64>().unwrap()).sum();
    assert!(segments >= 4, "{segments}");
    assert_eq!(heard.named("checkpoint_save")[0].fields["len_bytes"], "8192");
    assert_eq!(heard.named("checkpoint_restore")[0].fields["number"], "1");
    assert!(
        heard
            .0
            .lock()
            .unwrap()
            .iter()
            .all(|line| { line.fields.values().all(|value| !value.contains(folder.at().to_str().unwrap())) }),
        "a path of the user"
    );
}

#[test]
fn evictions_of_a_cache_are_heard() {
    let machine = datapipes::discover();
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(folder.path("file"), vec![7; 64 << 20]).unwrap();
    let ssd = Ssd::open(folder.path("file")).unwrap();
    let cache = FineGrained::over(&ssd, CacheOptions::new(&machine).budget(4 << 20)).unwrap();
    let mut heard = Heard::default();
    let mut bytes = [0; 128];
    // The cache's own thread looks now and then, too, and what it tells is not heard here.
    for round in 0..200u64 {
        (0..2000u64).for_each(|n| {
            let at = (round * 2000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % ((64 << 20) - 128);
            cache.read(at, &mut bytes).unwrap();
        });
        heard = heard_of(|| cache.maintain());
        if !heard.named("evictions").is_empty() {
            break;
        }
    }
    let evictions = heard.named("evictions");
    assert!(evictions[0].fields["items"].parse::<u64>().unwrap() > 0, "{evictions:?}");
}

#[test]
fn a_subscriber_that_panics_or_appends_breaks_nothing() {
    struct Panics;
    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            panic!("a subscriber panics")
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            panic!("a subscriber panics")
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
    let machine = datapipes::discover();
    tracing::subscriber::with_default(Panics, || {
        let (source, target) = (Dram::allocate(64).unwrap(), Dram::allocate(64).unwrap());
        source.lease_mut().unwrap().fill(3);
        machine.connect(&source, &target).unwrap().transfer(Span { source: 0, target: 0, len: 64 }).unwrap();
        assert_eq!(target.lease().unwrap()[..], [3; 64]);
    });

    /// Writes a record for each event into the log that the event is about.
    struct Appends(Arc<Log>, AtomicU64);
    impl Subscriber for Appends {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.name() == "log_rotation"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.append_durable(&[1; 1000]).unwrap();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let options = LogOptions::default().batch_bytes(64 << 10).segment_bytes(256 << 10);
    let log = Arc::new(Log::open(&machine, LogFolder::at(&machine, folder.path("log")), options).unwrap());
    let appends = Arc::new(Appends(log.clone(), AtomicU64::new(0)));
    datapipes_testkit::bounded("a subscriber appends", move || {
        tracing::subscriber::with_default(appends.clone(), || {
            (0..60).for_each(|_| {
                log.append_durable(&[7; 30_000]).unwrap();
            });
        });
        assert!(appends.1.load(Ordering::Relaxed) >= 4);
    });
}
