//! Readers of a few bytes at random: ours and others', for `cargo xtask bench fine`, which starts
//! each run as a process of its own under a limit of memory, and reads the JSON that it prints: a
//! line a phase, and a last one about the process.
//!
//! ```text
//! fine-peers make FILE MIB                  writes the file
//! fine-peers make-rocks FOLDER ITEMS        writes RocksDB's table of the same items
//! fine-peers fit READER BYTES               how many items a cache can have in so much memory, by trying
//! fine-peers weigh READER ITEMS             memory of a cache of so many items, after it was in use
//! fine-peers run READER --file F --load L --items N --limit BYTES --warm-up N --phases 1x1,1x32 --seconds S
//!            [--len B] [--capacity ITEMS] [--folder F] [--policy P] [--fill] [--drop]
//! ```

mod front;
mod hybrid;
mod load;
mod measure;
mod ours;
mod pages;
mod reader;
mod ring;
#[cfg(feature = "rocksdb")]
mod rocks;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::json;

use front::{Front, Fronted};
use load::Load;
use measure::Phase;
use reader::{Outcome, Reader};
use ring::Direct;

/// Memory beside caches: buffers, stacks, what the kernel keeps for the process.
const BESIDE: u64 = 4 << 20;
/// Bytes of foyer's store: as many as the file has.
const STORE: usize = 1 << 30;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("fine-peers: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Outcome<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["make", file, mib] => load::make(file, number(mib)? << 20).map_err(|e| format!("{file}: {e}")),
        #[cfg(feature = "rocksdb")]
        ["make-rocks", folder, items] => rocks::make(folder, number(items)?),
        ["fit", reader, bytes] => fit(reader, number(bytes)?),
        ["weigh", reader, items] => weigh(reader, number(items)? as usize),
        ["run", reader, ..] => measured(reader, &Options(&words[2..])),
        _ => Err("see the first lines of main.rs".into()),
    }
}

/// The words after the reader's name.
struct Options<'a>(&'a [&'a str]);

impl<'a> Options<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|word| *word == name)?;
        self.0.get(at + 1).copied()
    }

    fn text(&self, name: &str) -> Outcome<&'a str> {
        self.get(name).ok_or_else(|| format!("{name} is missing"))
    }

    fn number(&self, name: &str) -> Outcome<u64> {
        number(self.text(name)?)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains(&name)
    }
}

fn number(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

fn measured(name: &str, options: &Options) -> Outcome<()> {
    let len = options.get("--len").map_or(Ok(front::ITEM as u64), number)?;
    let load = Load::parse(options.text("--load")?, options.number("--items")?, len as u32)?;
    let seconds: f64 = options.text("--seconds")?.parse().map_err(|_| "--seconds takes a number")?;
    let phases: Vec<Phase> = options.text("--phases")?.split(',').map(Phase::parse).collect::<Outcome<_>>()?;
    let depth = phases.iter().map(|p| p.depth).max().unwrap_or(1);
    let reader = open(name, options, len, depth)?;
    let mut stream = match options.has("--fill") {
        true => measure::fill(&*reader, &load, 128).map(|()| load.requests()),
        false => measure::warm_up(&*reader, &load, options.number("--warm-up")? as usize, 128),
    }?;
    for phase in phases {
        println!("{}", measure::phase(&*reader, &load, phase, seconds, &mut stream)?);
    }
    let mut process =
        json!({ "hits_by": reader.hits_by(), "anonymous_mib": measure::anonymous_bytes() as f64 / 1048576.0 });
    for (note, value) in reader.notes() {
        process[note] = json!(value);
    }
    println!("{process}");
    Ok(())
}

fn open(name: &str, options: &Options, len: u64, depth: usize) -> Outcome<Box<dyn Reader>> {
    let file = options.text("--file")?;
    let items = || options.number("--capacity").map(|n| n as usize);
    let left = || -> Outcome<usize> {
        let limit = options.number("--limit")?.saturating_sub(BESIDE + measure::anonymous_bytes());
        usize::try_from(limit).map_err(|e| e.to_string())
    };
    Ok(match name {
        "ours" => {
            let policy = options.get("--policy").unwrap_or("adaptive");
            Box::new(ours::Ours::open(file, left()?, policy, depth.clamp(32, 128))?)
        }
        "pread" => {
            let pages = options.number("--limit")? / 4096;
            Box::new(pages::Pread::open(file, options.has("--drop").then_some(pages))?)
        }
        "mmap" if options.has("--drop") => return Err("mmap cannot be measured without a memory cgroup".into()),
        "mmap" => Box::new(pages::Mapped::open(file)?),
        "ring" => Box::new(Direct::open(file, len)?),
        "foyer" => {
            let folder = Path::new(options.text("--folder")?);
            Box::new(hybrid::Foyer::open(Direct::open(file, len)?, folder, items()?, STORE)?)
        }
        #[cfg(feature = "rocksdb")]
        "rocksdb" => {
            // Beside the row cache: the index of a gigabyte of small blocks; and what its allocator
            // needs for small values.
            let row_cache = left()?.saturating_sub(12 << 20) / 10 * 7;
            Box::new(rocks::Rocks::open(options.text("--folder")?, row_cache)?)
        }
        name => {
            let capacity = NonZeroUsize::new(items()?).ok_or("--capacity 0")?;
            let cache = front(name, capacity.get())?;
            Box::new(Fronted { cache, direct: Direct::open(file, len)?, capacity })
        }
    })
}

fn front(name: &str, items: usize) -> Outcome<Box<dyn Front>> {
    Ok(match name {
        "quick_cache" => Box::new(front::QuickCache::new(items)),
        "quick_cache-boxed" => Box::new(front::QuickCacheBoxed::new(items)),
        "moka" => Box::new(front::Moka::new(items)),
        _ => return Err(format!("no reader `{name}`")),
    })
}

/// Uses a cache of so many items, without a device, and prints how much memory it takes then.
fn weigh(name: &str, items: usize) -> Outcome<()> {
    let load = Load::parse("zipf:0.8", 1 << 23, front::ITEM as u32)?;
    let (mut row, requests) = ([0; front::ITEM], load.requests().take(items * 3));
    let (held, beside) = if name == "foyer" {
        let folder = std::env::temp_dir().join(format!("fine-peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        // Nothing is read here: any file will do.
        let any = Direct::open(&std::env::current_exe().map_err(|e| e.to_string())?.to_string_lossy(), front::ITEM as u64)?;
        let before = measure::anonymous_bytes();
        let reader = hybrid::Foyer::open(any, &folder, items, STORE)?;
        requests.for_each(|r| {
            load::fill(r.offset, &mut row);
            reader.play(r.offset, row);
        });
        let took = measure::anonymous_bytes();
        drop(reader);
        let _ = std::fs::remove_dir_all(&folder);
        (items, (before, took))
    } else {
        let before = measure::anonymous_bytes();
        let cache = front(name, items)?;
        for request in requests {
            if !cache.get(request.offset, &mut row) {
                load::fill(request.offset, &mut row);
                cache.put(request.offset, row);
            }
        }
        (cache.len(), (before, measure::anonymous_bytes()))
    };
    let (before, took) = beside;
    println!(
        "{}",
        json!({ "items": held, "anonymous_bytes": took, "bytes_per_item": (took - before) as f64 / held as f64 })
    );
    Ok(())
}

/// Tries capacities, each in a process of its own, until the memory is what may be used.
fn fit(name: &str, limit: u64) -> Outcome<()> {
    let limit = limit - BESIDE;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut items = limit / 256;
    let mut best = None;
    for _ in 0..8 {
        let output =
            Command::new(&own).args(["weigh", name, &items.to_string()]).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let weighed: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("{name}: {e}: {text}"))?;
        let took = weighed["anonymous_bytes"].as_u64().unwrap_or(u64::MAX);
        if took <= limit && best.as_ref().is_none_or(|(most, _)| items > *most) {
            best = Some((items, weighed.clone()));
        }
        // What is there without items stays; a little less than fits, for memory comes in steps.
        let each = weighed["bytes_per_item"].as_f64().unwrap_or(256.0).max(128.0);
        let next = ((items as f64 + (limit as f64 - took as f64) / each) * 0.995).max(1000.0) as u64;
        if took <= limit && next.abs_diff(items) < items / 50 {
            break;
        }
        // Above the limit, but by little: a little less, for what it takes is not the same each
        // time.
        items = if took > limit { next.min(items - items / 100) } else { next };
    }
    let (items, mut weighed) = best.ok_or("no capacity fits")?;
    weighed["capacity"] = json!(items);
    println!("{weighed}");
    Ok(())
}
