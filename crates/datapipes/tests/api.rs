//! What the public interface promises: which values may cross threads, which types no signature
//! shows, that futures run on any executor, and that each entry has an example to copy.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use datapipes::{Dram, Runtime, Span};
use datapipes_testkit::{PATIENCE, joined};

const fn shared<T: Send + Sync + 'static>() {}
const fn sent<T: Send + 'static>() {}

/// Checked by the compiler: nothing of this runs.
#[cfg(all(feature = "cache", feature = "fabric", feature = "log", feature = "service", feature = "sort"))]
const _: () = {
    use datapipes::{cache, descriptor, durable, fabric, graph, runtime, service, sort};

    // Errors, and what is refused.
    shared::<datapipes::Error>();
    shared::<runtime::RefusedTransfer>();
    // The machine, places, and pipes of the three flavors.
    shared::<datapipes::Machine>();
    shared::<Dram>();
    shared::<datapipes::Ssd>();
    shared::<datapipes::Pmem>();
    shared::<datapipes::NumaMemory>();
    shared::<datapipes::CoreCache>();
    shared::<datapipes::Pool>();
    shared::<datapipes::Staging>();
    shared::<datapipes::Pipe>();
    shared::<datapipes::PipeReport>();
    shared::<Runtime>();
    shared::<datapipes::RuntimePipe>();
    shared::<descriptor::PipeFd>();
    shared::<descriptor::PassedPipe>();
    sent::<datapipes::Lease>();
    sent::<datapipes::LeaseMut>();
    sent::<datapipes::OutputFile>();
    sent::<graph::Graph<'static>>();
    // Futures.
    sent::<datapipes::Handle>();
    sent::<datapipes::Handles>();
    sent::<cache::ReadFuture>();
    // Options.
    shared::<datapipes::Constraints>();
    shared::<datapipes::ConnectOptions>();
    shared::<datapipes::ConnectFdOptions>();
    shared::<datapipes::MapOptions>();
    shared::<runtime::RuntimeOptions>();
    shared::<cache::CacheOptions>();
    shared::<cache::AsyncReaderOptions>();
    shared::<durable::log::LogOptions>();
    shared::<durable::checkpoint::SaveOptions>();
    shared::<service::server::ServerOptions>();
    sent::<sort::SortJob>();
    // Products.
    shared::<cache::FineGrained>();
    shared::<cache::BufferPool>();
    shared::<cache::AsyncReader>();
    shared::<cache::Metrics>();
    shared::<durable::log::Log>();
    sent::<durable::log::Ticket<'static>>();
    sent::<durable::log::LogReader>();
    sent::<durable::checkpoint::Checkpoints>();
    sent::<durable::checkpoint::Checkpoint>();
    shared::<sort::Control>();
    shared::<sort::SortReport>();
    sent::<fabric::control::Session>();
    sent::<fabric::transport::Sender>();
    sent::<fabric::transport::Receiver>();
    shared::<service::Client>();
    shared::<service::ClientPipe>();
    shared::<service::SharedMemory>();
    sent::<service::server::Server>();
};

/// An executor of two threads, as a user's may be: each task is polled on whichever thread is free,
/// so that a future wanders from one to the other.
struct TwoThreads {
    ready: Mutex<Option<Sender<Arc<Task>>>>,
    left: Mutex<usize>,
    all_done: Condvar,
}

struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    executor: Arc<TwoThreads>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let ready = self.executor.ready.lock().unwrap().clone();
        if let Some(ready) = ready {
            let _ = ready.send(self);
        }
    }
}

impl Task {
    fn poll(self: Arc<Self>) {
        let mut slot = self.future.lock().unwrap();
        let Some(mut future) = slot.take() else { return };
        match future.as_mut().poll(&mut Context::from_waker(&Waker::from(self.clone()))) {
            Poll::Pending => *slot = Some(future),
            Poll::Ready(()) => {
                let mut left = self.executor.left.lock().unwrap();
                *left -= 1;
                if *left == 0 {
                    self.executor.all_done.notify_all();
                }
            }
        }
    }
}

/// Runs the futures to their ends; a bound against hanging for ever.
fn run_all(futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>) {
    let (ready, tasks): (_, Receiver<Arc<Task>>) = channel();
    let executor = Arc::new(TwoThreads {
        ready: Mutex::new(Some(ready.clone())),
        left: Mutex::new(futures.len()),
        all_done: Condvar::new(),
    });
    let tasks = Arc::new(Mutex::new(tasks));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let tasks = tasks.clone();
            std::thread::spawn(move || {
                loop {
                    let Ok(task) = tasks.lock().unwrap().recv() else { return };
                    task.poll();
                }
            })
        })
        .collect();
    for future in futures {
        let task = Task { future: Mutex::new(Some(future)), executor: executor.clone() };
        ready.send(Arc::new(task)).unwrap();
    }
    let left = executor.left.lock().unwrap();
    let (left, _) = executor.all_done.wait_timeout_while(left, PATIENCE, |left| *left > 0).unwrap();
    assert_eq!(*left, 0, "tasks that never ended");
    drop(left);
    *executor.ready.lock().unwrap() = None;
    drop(ready);
    workers.into_iter().for_each(joined);
}

#[test]
fn transfers_are_awaited_on_threads_of_the_users_executor() {
    const LEN: u64 = 1 << 20;
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (source, target) = (Dram::allocate(16 << 20).unwrap(), Dram::allocate(16 << 20).unwrap());
    source.lease_mut().unwrap().fill(7);
    let pipe = Arc::new(runtime.connect(&source, &target).unwrap());
    let span = |i: u64| Span { source: i * LEN, target: i * LEN, len: LEN };
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for i in 0..8 {
        let pipe = pipe.clone();
        futures.push(Box::pin(async move { pipe.transfer(span(i)).unwrap().await.unwrap() }));
    }
    let all = pipe.clone();
    futures.push(Box::pin(async move { all.transfer_all((8..16).map(span)).unwrap().await.unwrap() }));
    run_all(futures);
    assert!(target.lease().unwrap().iter().all(|byte| *byte == 7));
}

#[cfg(feature = "cache")]
#[test]
fn cached_reads_are_awaited_on_threads_of_the_users_executor() {
    use datapipes::cache::{CacheOptions, FineGrained};

    let folder = datapipes_testkit::TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path("numbers");
    std::fs::write(&path, (0..100_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let options = CacheOptions::new(&machine).budget(4 << 20);
    let fine = FineGrained::over(&datapipes::Ssd::open(&path).unwrap(), options).unwrap();
    let reader = fine.on(&runtime, 4).unwrap();
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for number in (0..100_000u32).step_by(997) {
        let reader = reader.clone();
        futures.push(Box::pin(async move {
            let bytes = reader.read(4 * u64::from(number), 4).await.unwrap();
            assert_eq!(bytes[..], number.to_le_bytes());
        }));
    }
    run_all(futures);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|dir| dir.join("Cargo.lock").exists()).unwrap().to_path_buf()
}

fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(under).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            let name = entry.file_name().unwrap().to_str().unwrap();
            if !["target", "tests", "examples", "benches", "bin"].contains(&name) {
                sources(&entry, found);
            }
        } else if entry.extension().is_some_and(|e| e == "rs") && !entry.ends_with("tests.rs") {
            found.push(entry);
        }
    }
}

/// Files of the libraries, with their text up to the tests within them.
fn library() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    sources(&root().join("crates"), &mut found);
    assert!(found.len() > 200, "the sources were not found: {}", found.len());
    let text = |path: &PathBuf| {
        let all = std::fs::read_to_string(path).unwrap();
        all.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()
    };
    found.iter().map(|path| (path.clone(), text(path))).collect()
}

/// The public declarations of a text that name a type: from `pub` (not `pub(crate)`) to the brace,
/// the semicolon or the comma that ends them.
fn public_declarations_with<'a>(text: &'a str, named: &[&str]) -> Vec<&'a str> {
    let starts =
        text.match_indices("pub ").filter(|(at, _)| text[..*at].rsplit('\n').next().unwrap().trim().is_empty());
    let declaration = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let end = if rest.starts_with("pub fn") || rest.starts_with("pub const fn") {
            rest.find(['{', ';'])
        } else {
            rest.find('\n')
        };
        &rest[..end.unwrap_or(rest.len())]
    };
    // The fields of a tuple are private unless they say otherwise.
    let is_shown = |d: &&str| !d.starts_with("pub struct") || d.contains("(pub ");
    starts.map(declaration).filter(is_shown).filter(|d| named.iter().any(|name| d.contains(name))).collect()
}

#[test]
fn no_public_signature_shows_a_json_value() {
    for (path, text) in library() {
        let mut named = vec!["serde_json::Value", "serde_json::Map"];
        let imports = |name: &str| text.lines().any(|l| l.starts_with("use serde_json") && l.contains(name));
        if imports("Value") {
            named.extend(["-> Value", ": Value", "&Value", "<Value", "(Value"]);
        }
        let shown = public_declarations_with(&text, &named);
        assert!(shown.is_empty(), "{}: {shown:?}", path.display());
    }
    // The check finds what it looks for.
    let bad = "pub fn status(\n    &self,\n) -> serde_json::Value {\n";
    assert_eq!(public_declarations_with(bad, &["serde_json::Value"]).len(), 1);
    assert_eq!(public_declarations_with("    pub runtime: serde_json::Value,\n", &["serde_json::Value"]).len(), 1);
    assert!(public_declarations_with("pub(crate) fn f() -> serde_json::Value {", &["serde_json::Value"]).is_empty());
}

/// Structs that users read or fill in may get further fields.
#[test]
fn options_and_reports_may_grow() {
    let words = ["Options", "Report", "Metrics", "Stats", "Summary", "Status", "Limits", "Counters", "Progress"];
    let mut seen = 0;
    for (path, text) in library() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.split([' ', '<', '(']).next())
            else {
                continue;
            };
            // All fields private: nobody builds it or takes it apart anyway.
            let fields = lines[at..].iter().take_while(|l| **l != "}");
            if !words.iter().any(|word| name.ends_with(word)) || !fields.clone().any(|l| l.starts_with("    pub ")) {
                continue;
            }
            seen += 1;
            let attributes = lines[..at].iter().rev().take_while(|l| l.starts_with("#["));
            let grows = attributes.clone().any(|l| l.contains("non_exhaustive"));
            assert!(grows, "{}: {name} is not #[non_exhaustive]", path.display());
        }
    }
    assert!(seen > 30, "only {seen} were looked at");
}

/// The entries of the library, and where each is declared.
const ENTRIES: [(&str, &str); 11] = [
    ("crates/core", "pub struct Machine "),
    ("crates/core", "pub struct Pipe "),
    ("crates/core", "pub struct Runtime "),
    ("crates/core", "pub struct Graph<"),
    ("crates/core", "pub struct PipeFd "),
    ("crates/sort", "pub struct SortJob "),
    ("crates/cache", "pub struct FineGrained"),
    ("crates/durable/src/log", "//! A log:"),
    ("crates/durable/src/checkpoint", "//! Checkpoints:"),
    ("crates/fabric/src/lib.rs", "//! Data channels"),
    ("crates/service", "pub struct Client("),
];

/// Whether a text of documentation has an example that runs, with all of its lines shown.
fn has_whole_example(docs: &[&str]) -> bool {
    let code: Vec<&str> = docs.iter().map(|l| l.trim_start_matches("///").trim_start_matches("//!")).collect();
    code.split(|l| l.trim() == "```").any(|block| {
        // A block begins after its fence, which may say how it runs; the first block is what comes
        // before.
        let block = block.rsplit(|l| l.trim().starts_with("```")).next().unwrap_or_default();
        let hidden = block.iter().any(|l| l.trim_start().starts_with("# ") || l.trim() == "#");
        block.iter().any(|l| l.trim_start().starts_with("fn main()")) && !hidden
    }) && !code.iter().any(|l| l.contains("```no_run") || l.contains("```ignore"))
}

#[test]
fn each_entry_has_an_example_to_copy_whole() {
    for (place, declared) in ENTRIES {
        let mut files = Vec::new();
        let under = root().join(place);
        if under.is_dir() {
            sources(&under, &mut files)
        } else {
            files.push(under)
        }
        let texts: Vec<String> = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let text = texts.iter().find(|text| text.contains(&format!("\n{declared}")) || text.starts_with(declared));
        let text = text.unwrap_or_else(|| panic!("`{declared}` is not declared in {place}"));
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|l| l.starts_with(declared)).unwrap();
        let docs: Vec<&str> = if declared.starts_with("//!") {
            lines[at..].iter().copied().take_while(|l| l.starts_with("//!")).collect()
        } else {
            let above = lines[..at].iter().rev().copied();
            let mut docs: Vec<&str> = above.take_while(|l| l.starts_with("///") || l.starts_with("#[")).collect();
            docs.reverse();
            docs
        };
        assert!(has_whole_example(&docs), "`{declared}` has no example to copy: {docs:#?}");
    }
    assert!(!has_whole_example(&["/// ```", "/// # fn main() {", "/// f();", "/// ```"]));
    assert!(!has_whole_example(&["/// ```no_run", "/// fn main() {", "/// ```"]));
}
