//! Random pipes, faults and cancellations, in all flavors at once, for any time: no wrong byte, no
//! lost completion, no leak. `cargo xtask soak` runs it.
//!
//! ```text
//! soak [--minutes N] [--seconds N]    default: 10 minutes
//!      [--seed S]                     default: from the clock
//!      [--dir DIR]                    default: the folder for temporary files
//!      [--alone]                      start no other soak
//!      [--refuse-threads]             refuse threads to this process at times
//!      [--no-children]                make no children
//!      [--threads-are-refused-from FILE]  another process refuses threads once FILE exists
//! ```
//!
//! Several threads send bytes of ever new generations through places and back (`work.rs`), over two
//! machines: one whose files work, and one on which requests are randomly cut short, interrupted or
//! failed (`places.rs`). Every few seconds all pause. Then nothing may be in flight, every lease
//! must be free, and there must not be more descriptors, threads and memory than after the start.
//! Callbacks and wakers panic, and children drop what is their parent's (`harm.rs`). Beside all
//! this, soaks in separate processes get no threads for moments, or little memory. If no thread
//! makes progress for two minutes, a completion was lost.

mod flavors;
mod harm;
mod places;
mod random;
mod watch;
mod work;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::Runtime;
use datapipes::runtime::RuntimeOptions;
use datapipes_core::locks::{Mutex, RwLock};
use places::{Bench, Rough, Shared, machine, rough};
use random::{Random, mix};
use watch::Held;
use work::{Counts, Pipes, Side, Worker};

const THREADS: u64 = 4;
/// The time from one pause to the next.
const STRETCH: Duration = Duration::from_secs(10);
/// If no thread completes a round for this time, something is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

struct Options {
    time: Duration,
    seed: u64,
    dir: PathBuf,
    /// Whether to start no other process.
    alone: bool,
    refuse_threads: bool,
    threads_are_refused_from: Option<PathBuf>,
    no_children: bool,
}

fn options() -> Result<Options, String> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_err(|e| e.to_string())?;
    let mut options = Options {
        time: Duration::from_secs(600),
        seed: mix(clock.as_nanos() as u64),
        dir: std::env::temp_dir(),
        alone: false,
        refuse_threads: false,
        threads_are_refused_from: None,
        no_children: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let flag = match name.as_str() {
            "--alone" => Some(&mut options.alone),
            "--refuse-threads" => Some(&mut options.refuse_threads),
            "--no-children" => Some(&mut options.no_children),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--minutes" => options.time = Duration::from_secs_f64(number()? * 60.0),
            "--seconds" => options.time = Duration::from_secs_f64(number()?),
            "--seed" => options.seed = value.parse().map_err(|_| format!("{name} {value}: not a number"))?,
            "--threads-are-refused-from" => options.threads_are_refused_from = Some(value.into()),
            "--dir" => options.dir = value.into(),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("soak: {why}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", options.seed);
    harm::quiet_panics();
    harm::CHILDLESS.store(options.no_children, Ordering::SeqCst);
    if options.threads_are_refused_from.is_some() {
        harm::expect_refusals();
    }
    match soak(&options) {
        Ok(()) => {
            println!("ok (seed {})", options.seed);
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("FAILED with seed {}: {why}", options.seed);
            ExitCode::FAILURE
        }
    }
}

/// The state shared by the threads and their watcher.
struct Stage {
    /// Held for reading during a round. When it can be held for writing, all threads have paused.
    gate: RwLock<()>,
    over: AtomicBool,
    failure: Mutex<Option<String>>,
    counts: Arc<Counts>,
    sides: Arc<[Side; 2]>,
    rough: Arc<Rough>,
    pipes: Vec<Arc<Pipes>>,
    /// The number of pauses so far, which tells an idle watch from a stuck one.
    pauses: AtomicU64,
}

impl Stage {
    fn fail(&self, why: String) {
        self.failure.lock().get_or_insert(why);
        self.over.store(true, Ordering::SeqCst);
    }
}

fn soak(options: &Options) -> Result<(), String> {
    let text = |e: datapipes::Error| e.to_string();
    let rough = rough(options.seed);
    let machines = [machine(None), machine(Some(rough.clone()))];
    let mut sides = Vec::new();
    for (machine, is_rough) in machines.into_iter().zip([false, true]) {
        let config = RuntimeOptions::new(&machine).name(if is_rough { "rough" } else { "sound" });
        let runtime = Runtime::start_with(&machine, config).map_err(text)?;
        sides.push(Side { machine, runtime, is_rough });
    }
    let sides: Arc<[Side; 2]> = Arc::new(sides.try_into().map_err(|_| "two sides")?);
    let shared = Shared::new(&options.dir, &sides[0].machine, THREADS).map_err(text)?;
    let counts = Arc::new(Counts::default());
    let pipes: Vec<Arc<Pipes>> = (0..THREADS).map(|_| Arc::new(Mutex::new(HashMap::new()))).collect();
    let mut workers = Vec::new();
    for number in 0..THREADS {
        let bench = shared.bench(&sides[0].machine, &options.dir, number).map_err(text)?;
        workers.push(Worker {
            number,
            bench,
            sides: sides.clone(),
            pipes: pipes[number as usize].clone(),
            counts: counts.clone(),
            random: Random::new(mix(options.seed ^ number)),
        });
    }
    let stage = Stage {
        gate: RwLock::new(()),
        over: AtomicBool::new(false),
        failure: Mutex::new(None),
        counts,
        sides,
        rough,
        pipes,
        pauses: AtomicU64::new(0),
    };
    let benches = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                let stage = &stage;
                scope.spawn(move || rounds(stage, worker))
            })
            .collect();
        scope.spawn(|| bark(&stage, options.seed));
        if options.refuse_threads {
            scope.spawn(|| harm::refuse_threads(&stage.over));
        }
        if !options.alone {
            scope.spawn(|| beside(&stage, options));
        }
        if let Some(file) = &options.threads_are_refused_from
            && let Err(e) = std::fs::write(file, [])
        {
            stage.fail(format!("{}: {e}", file.display()));
        }
        watch(&stage, options);
        stage.over.store(true, Ordering::SeqCst);
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<Bench>>()
    });
    if let Some(why) = stage.failure.lock().take() {
        return Err(why);
    }
    if benches.len() as u64 != THREADS {
        return Err("a thread panicked".into());
    }
    quiet(&stage)?;
    benches.iter().try_for_each(Worker::is_quiet)?;
    add_up(&stage)
}

/// Reports a panic of a thread to all others.
struct Panicked<'a>(&'a Stage);

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail("a thread panicked".into());
        }
    }
}

fn rounds(stage: &Stage, mut worker: Worker) -> Bench {
    let _panicked = Panicked(stage);
    while !stage.over.load(Ordering::SeqCst) {
        let gate = stage.gate.read();
        if let Err(why) = worker.round() {
            stage.fail(format!("thread {}: {why}", worker.number));
        }
        drop(gate);
        // A lock that many want for reading might never be free for writing.
        std::thread::yield_now();
    }
    worker.bench
}

/// Ends the process if no thread makes progress.
fn bark(stage: &Stage, seed: u64) {
    let mut last = (u64::MAX, u64::MAX, Instant::now());
    while !stage.over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(500));
        let (rounds, pauses) = (Counts::of(&stage.counts.rounds), stage.pauses.load(Ordering::SeqCst));
        if (rounds, pauses) != (last.0, last.1) {
            last = (rounds, pauses, Instant::now());
        } else if last.2.elapsed() > PATIENCE {
            eprintln!("FAILED with seed {seed}: no round for {PATIENCE:?}: a completion was lost");
            for side in stage.sides.iter() {
                eprintln!("{:#?}", side.runtime.report());
            }
            std::process::abort();
        }
    }
}

/// Runs soaks in other processes, one after the other.
fn beside(stage: &Stage, options: &Options) {
    let _panicked = Panicked(stage);
    let mut separate = harm::SeparateSoaks::new(&options.dir, options.seed);
    loop {
        let may_start = !stage.over.load(Ordering::SeqCst);
        // Starting one needs descriptors for a moment.
        let gate = stage.gate.read();
        let outcome = separate.tend(may_start);
        drop(gate);
        match outcome {
            Ok(runs) if !runs && !may_start => break println!("{} soaks in other processes", separate.ended),
            Ok(_) => {}
            Err(why) => return stage.fail(why),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn watch(stage: &Stage, options: &Options) {
    let begun = Instant::now();
    let mut first: Option<Held> = None;
    while begun.elapsed() < options.time && !stage.over.load(Ordering::SeqCst) {
        let until = Instant::now() + STRETCH.min(options.time.saturating_sub(begun.elapsed()));
        while Instant::now() < until && !stage.over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
        let gate = stage.gate.write();
        stage.pauses.fetch_add(1, Ordering::SeqCst);
        if let Err(why) = quiet(stage) {
            return stage.fail(why);
        }
        let mut held = Held::now();
        if let Some(first) = &first {
            // The coordinator closes its end of a descriptor soon after ours was closed.
            let patient = Instant::now() + Duration::from_secs(20);
            while held.leaks(first).is_some() && Instant::now() < patient {
                std::thread::sleep(Duration::from_millis(50));
                held = Held::now();
            }
            if let Some(leak) = held.leaks(first) {
                return stage.fail(leak);
            }
        }
        print(stage, begun.elapsed(), &held);
        // The second pause is the first to compare with: by then everything was used once.
        if stage.pauses.load(Ordering::SeqCst) == 2 {
            // Descriptors that the coordinator has not closed yet must not be counted, because
            // growth below that number would go unnoticed.
            for _ in 0..40 {
                std::thread::sleep(Duration::from_millis(50));
                held.descriptors = held.descriptors.min(Held::now().descriptors);
            }
            first = Some(held);
        }
        drop(gate);
    }
}

/// While no thread starts anything: closes all pipes, and checks that nothing is in flight.
fn quiet(stage: &Stage) -> Result<(), String> {
    for pipes in &stage.pipes {
        pipes.lock().clear();
    }
    for side in stage.sides.iter() {
        side.runtime.drain();
        let report = side.runtime.report();
        if report.under_way != 0 {
            return Err(format!("{} under way after draining", report.under_way));
        }
        let busy = report.resources.iter().find(|resource| {
            let stats = &resource.stats;
            stats.outstanding_bytes != 0 || stats.outstanding_chunks != 0 || stats.requests != 0
        });
        if let Some(resource) = busy {
            return Err(format!("the resource {} is not empty: {:?}", resource.name, resource.stats));
        }
    }
    Ok(())
}

fn print(stage: &Stage, time: Duration, held: &Held) {
    let counts = &*stage.counts;
    let of = Counts::of;
    println!(
        "{:5.0} s  {} rounds, {} MiB verified, {} pipes; {} started: {} completed, {} failed, {} cancelled, {} unheard; {held}",
        time.as_secs_f64(),
        of(&counts.rounds),
        of(&counts.verified_bytes) >> 20,
        of(&counts.connects),
        of(&counts.started),
        of(&counts.completed),
        of(&counts.failed),
        of(&counts.cancelled),
        of(&counts.unheard),
    );
}

/// Checks that every transfer had one outcome, and that only injected failures occurred.
fn add_up(stage: &Stage) -> Result<(), String> {
    let counts = &*stage.counts;
    let of = Counts::of;
    let ended = of(&counts.completed) + of(&counts.failed) + of(&counts.cancelled) + of(&counts.unheard);
    if of(&counts.started) != ended {
        return Err(format!("{} were started, and {ended} ended", of(&counts.started)));
    }
    let (thrown, forks) = (harm::THROWN.load(Ordering::SeqCst), harm::FORKS.load(Ordering::SeqCst));
    println!("{thrown} panics on purpose, {forks} children, {} connections without a thread", of(&counts.refused));
    let caught: u64 = stage.sides.iter().map(|side| side.runtime.report().panics).sum();
    if caught != thrown {
        return Err(format!("{thrown} panics were thrown on purpose, and {caught} were caught and counted"));
    }
    let injected = stage.rough.errors.load(Ordering::Relaxed);
    println!("{injected} errors were injected");
    if of(&counts.rounds) == 0 {
        return Err("not one round".into());
    }
    let sound = stage.sides[0].runtime.report();
    println!("sound: {} completed, {} failed or cancelled", sound.completed, sound.failed);
    // If threads were refused, more may have failed: each was moved again.
    if sound.failed != of(&counts.cancelled_sound) && !harm::refuses() {
        return Err(format!("{} were cancelled on sound files", of(&counts.cancelled_sound)));
    }
    let rough = stage.sides[1].runtime.report();
    println!("rough: {} completed, {} failed or cancelled", rough.completed, rough.failed);
    Ok(())
}
