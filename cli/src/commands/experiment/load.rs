//! A load on the memory like STREAM's triad: `a[i] = b[i] + s * c[i]` over arrays that no cache
//! holds, on the cores that the experiment does not use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use datapipes::topology::Topology;
use datapipes::{Error, ErrorKind, Result, threads};

/// The arrays are together this many times the last-level cache, as STREAM asks for.
const TIMES_CACHE: u64 = 4;
const MIN_ARRAY_BYTES: u64 = 16 << 20;
const MAX_ARRAY_BYTES: u64 = 256 << 20;
/// Words between two looks at whether to stop.
const STRETCH: usize = 64 << 10;
/// The bytes of a step: two loads and a store.
const STEP_BYTES: u64 = 24;

/// A running load. It ends when this is dropped.
pub(super) struct MemoryLoad {
    shared: Arc<Shared>,
    threads: Vec<threads::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    bytes: AtomicU64,
}

impl MemoryLoad {
    /// Starts a thread on each of the cores.
    pub(super) fn start(topology: &Topology, cores: &[usize]) -> Result<MemoryLoad> {
        let cache = cores.first().and_then(|core| topology.l3_share(*core)).unwrap_or(0);
        let array = (cache * TIMES_CACHE / 3 / cores.len().max(1) as u64).clamp(MIN_ARRAY_BYTES, MAX_ARRAY_BYTES);
        let words = (array / 8) as usize;
        let shared = Arc::new(Shared::default());
        let mut load = MemoryLoad { shared: shared.clone(), threads: Vec::new() };
        for core in cores.iter().copied() {
            let arrays = || {
                let mut words_of = Vec::new();
                words_of.try_reserve_exact(words).map_err(|e| {
                    let what = format!("an array of {array} bytes for the load");
                    Error::new(ErrorKind::OutOfMemory, "experiment", what).with_source(e)
                })?;
                words_of.resize(words, 1.5f64);
                Ok::<_, Error>(words_of)
            };
            let (a, b, c) = (arrays()?, arrays()?, arrays()?);
            let shared = shared.clone();
            load.threads.push(threads::spawn("load", move || {
                // Where it is refused the kernel chooses the core.
                let _ = super::figure::pin(core);
                triad(a, &b, &c, &shared);
            })?);
        }
        Ok(load)
    }

    /// Bytes that it read and wrote so far.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }
}

fn triad(mut a: Vec<f64>, b: &[f64], c: &[f64], shared: &Shared) {
    let mut scale = 3.0;
    loop {
        for ((a, b), c) in a.chunks_mut(STRETCH).zip(b.chunks(STRETCH)).zip(c.chunks(STRETCH)) {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                *a = b + scale * c;
            }
            shared.bytes.fetch_add(a.len() as u64 * STEP_BYTES, Relaxed);
            if shared.stop.load(Relaxed) {
                return;
            }
        }
        // Another factor each time, so that no time is left out as known.
        scale = if std::hint::black_box(&a).first().is_some_and(|first| *first > 5.0) { 2.0 } else { 3.0 };
    }
}

impl Drop for MemoryLoad {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // It computes and returns nothing.
            let _ = threads::join(thread);
        }
    }
}
