//! Reads of 128 bytes at random from a file eight times as large as all memory that a reader has:
//! the cache of this project beside the page cache, plain direct reads, and the same direct reads
//! behind other caches.

use crate::TaskResult;
use crate::bench::contestants::fine_readers::{Cell, Fit, ITEM_BYTES, Readers, Sizes};
use crate::bench::context::Context;
use crate::bench::records::record::{Better, Comparison, Entry, Figures, Record, Run, Target};
use serde_json::Value;
use std::collections::BTreeMap;

pub(in crate::bench) const ABOUT: &str =
    "128-byte random reads from 8 times the memory: ours, page cache, io_uring, quick_cache, moka, foyer, RocksDB";

const ZIPF: (&str, &str) = ("zipf:0.8", "zipf 0.8");
const STEEP: (&str, &str) = ("zipf:0.99", "zipf 0.99");
const UNIFORM: (&str, &str) = ("uniform", "uniform");
/// One item of so many fits into an eighth of the file with all that any of the caches needs for
/// it.
const FITTING_PART: u64 = 24;
const BLOCK_BYTES: u64 = 4096;

/// `THREADSxREQUESTS OF A CALL[/DEPTH]`; a long call keeps the queue full.
const ALL: &str = "1x1,2x1,1x8,1x32,2x32,1x128,2x128,1x2048/128";
const BATCHES: &str = "1x1,1x8,1x32,2x32,1x128,2x128";
/// Batches at which rates and processor time of a read are compared with the peers'.
const BATCH_SIZES: [u64; 4] = [1, 8, 32, 128];
const SINGLE: &str = "1x1,2x1";

fn cells(sizes: &Sizes) -> Vec<Cell> {
    let cell = |(load, called): (&'static str, &'static str), reader, phases| Cell {
        reader,
        load,
        called,
        phases,
        item_bytes: ITEM_BYTES,
        fits: None,
    };
    let mut cells = vec![
        cell(ZIPF, "ours", ALL),
        cell(ZIPF, "pread", SINGLE),
        cell(ZIPF, "quick_cache", BATCHES),
        cell(ZIPF, "quick_cache-boxed", BATCHES),
        cell(ZIPF, "ring", "1x1,1x8,1x32,1x128"),
        cell(ZIPF, "mmap", SINGLE),
        cell(ZIPF, "moka", BATCHES),
        cell(ZIPF, "foyer", "1x32,1x128"),
        cell(ZIPF, "rocksdb", "1x1,2x1,2x32"),
        cell(STEEP, "ours", "1x1,1x32,1x128,2x128"),
        cell(STEEP, "pread", SINGLE),
        cell(STEEP, "quick_cache", "1x1,1x32,1x128,2x128"),
        cell(UNIFORM, "ours", ALL),
        cell(UNIFORM, "ring", ALL),
        cell(UNIFORM, "quick_cache", "1x1,1x8,1x32,1x128"),
        cell(UNIFORM, "pread", SINGLE),
    ];
    for reader in ["ours", "quick_cache"] {
        let fits = Some(sizes.items() / FITTING_PART);
        cells.push(Cell { called: "all fits", fits, ..cell(UNIFORM, reader, "1x1,2x1,1x128,2x128") });
    }
    for reader in ["ours", "ring"] {
        cells.push(Cell {
            called: "4 KiB blocks, uniform",
            item_bytes: BLOCK_BYTES,
            ..cell(UNIFORM, reader, "1x1,1x32,1x128")
        });
    }
    cells
}

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let small = context.options.small;
    let file_mib = context.options.file_mib.unwrap_or(if small { 256 } else { 1024 });
    let sizes = Sizes {
        file_mib,
        limit_bytes: file_mib << 20 >> 3,
        // Half as many again as there are items to be met in the file: hit ratios stand still then.
        warm_up: (file_mib << 20) / ITEM_BYTES / if small { 8 } else { 2 },
        seconds: if small { 0.1 } else { 1.0 },
    };
    let readers = Readers::build(context, &sizes)?;
    let cells: Vec<Cell> = cells(&sizes).into_iter().filter(|c| context.wants(c.reader)).collect();
    let wants_rocksdb = cells.iter().any(|c| c.reader == "rocksdb") && readers.has_rocksdb.is_ok();
    readers.make(context, &sizes, wants_rocksdb)?;
    let mut record = context.record();
    describe(&mut record, &readers, &sizes);
    let fits = fit_all(&readers, &cells, &sizes);
    for turn in 1..=context.options.runs {
        for (number, cell) in cells.iter().enumerate() {
            println!("    turn {turn}, {} of {}: {} ({})", number + 1, cells.len(), cell.reader, cell.called);
            let fit = fits.get(cell.reader);
            let outcome = match (cell.reader, &readers.has_rocksdb, fit) {
                ("rocksdb", Err(why), _) => Err(why.clone()),
                (_, _, Some(Err(why))) => Err(why.clone()),
                (_, _, fit) => {
                    let capacity = fit.and_then(|f| f.as_ref().ok()).map(|f| f.capacity);
                    readers.run(cell, &sizes, capacity).map_err(|e| e.to_string())
                }
            };
            let fit = fit.and_then(|f| f.as_ref().ok()).copied();
            file_rows(&mut record, cell, turn, outcome, fit);
        }
    }
    if !context.options.keep {
        readers.remove(&sizes);
    }
    record.contestants.iter_mut().for_each(Entry::take_medians);
    compare(&mut record);
    Ok(record)
}

fn describe(record: &mut Record, readers: &Readers, sizes: &Sizes) {
    record.inputs = vec![format!(
        "a file of {} MiB; items of {ITEM_BYTES} bytes, popular ones scattered; {} requests before measuring, then {} s a row; \
         the same requests for all (seed 7)",
        sizes.file_mib, sizes.warm_up, sizes.seconds
    )];
    let limit = match &readers.limits {
        Ok(limits) => limits.describe(sizes.limit_bytes),
        Err(why) => format!(
            "NO memory limit ({why}): caches are sized for {} MiB; pread drops the file from the page cache whenever it may hold \
             as much (fewer hits than a least-recently-used page cache), mmap is left out",
            sizes.limit_bytes >> 20
        ),
    };
    record.page_cache = "before each process: posix_fadvise(DONTNEED) on the file".into();
    record.notes.extend([
        limit,
        "amplification, written_per_byte: bytes that the process made the device read and write by /proc/self/io (page cache and \
         direct alike), for each byte asked"
            .into(),
        "hit_pct: own count of caches; of page readers, pages that did not have to be read".into(),
        "block_bytes: the smallest direct read of the disk, found by trying, which readers behind the page cache use".into(),
        "latency is that of a call: of a whole batch, where there is one; cpu_us is of one read, drawing requests left out".into(),
        "page readers warm up with the last 200,000 requests on 8 threads (several times the pages they can hold); caches in front \
         of direct reads are warmed up with all requests, without the device"
            .into(),
        "rows of a process are measured one after the other with the same warm cache; peak_mib, items and bytes_per_item are the \
         process's; bytes an item of quick_cache, moka and foyer: anonymous memory by their capacity, fitted to the limit"
            .into(),
    ]);
}

/// Capacities of the caches that count items.
fn fit_all(readers: &Readers, cells: &[Cell], sizes: &Sizes) -> BTreeMap<&'static str, Result<Fit, String>> {
    let mut fits = BTreeMap::new();
    for cell in cells.iter().filter(|c| ["quick_cache", "quick_cache-boxed", "moka", "foyer"].contains(&c.reader)) {
        fits.entry(cell.reader).or_insert_with(|| {
            println!("    fitting {} into {} MiB", cell.reader, sizes.limit_bytes >> 20);
            let fit = readers.fit(cell.reader, sizes).map_err(|e| e.to_string());
            if let Ok(fit) = &fit {
                println!("    {}: {} items of {:.0} bytes", cell.reader, fit.capacity, fit.bytes_per_item);
            }
            fit
        });
    }
    fits
}

/// What a row is called.
fn name(cell: &Cell, threads: u64, batch: u64) -> String {
    name_of(cell.reader, cell.called, threads, batch)
}

fn name_of(reader: &str, called: &str, threads: u64, batch: u64) -> String {
    let reader = if reader == "ours" { "dpipe" } else { reader };
    let threads = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    let batch = if batch == 1 { "single".into() } else { format!("batch {batch}") };
    format!("{reader}, {called}, {threads}, {batch}")
}

fn entry(record: &mut Record, name: String) -> &mut Entry {
    let at = record.contestants.iter().position(|e| e.name == name).unwrap_or_else(|| {
        let version = "this commit, and Cargo.lock of benchmarks/peers/fine".to_string();
        record.contestants.push(Entry { name, version, ..Entry::default() });
        record.contestants.len() - 1
    });
    &mut record.contestants[at]
}

fn file_rows(
    record: &mut Record,
    cell: &Cell,
    turn: usize,
    outcome: Result<(String, Vec<Value>), String>,
    fit: Option<Fit>,
) {
    let (command, mut rows) = match outcome {
        Ok(done) => done,
        Err(why) => {
            println!("        {why}");
            let entry = entry(record, format!("{}, {}", cell.reader, cell.called).replace("ours", "dpipe"));
            // Ours, and whatever is wrong, makes the command fail; a peer that cannot be had is a
            // result.
            if cell.reader == "ours" || why.contains("WRONG") {
                let verified = if why.contains("WRONG") { format!("WRONG: {why}") } else { format!("FAILED: {why}") };
                entry.runs.push(Run { turn, figures: Figures::new(), verified });
            } else {
                entry.not_measured = Some(format!("SKIPPED: {why}"));
            }
            return;
        }
    };
    let process = rows.pop().unwrap_or_default();
    for row in rows {
        let whole = |key: &str| row[key].as_u64().unwrap_or_default();
        let entry = entry(record, name(cell, whole("threads"), whole("batch")));
        entry.command.clone_from(&command);
        let mut figures = Figures::new();
        for key in ["ops_s", "p50_us", "p99_us", "hit_pct", "amplification", "written_per_byte", "cpu_us"] {
            figures.extend(row[key].as_f64().map(|v| (key.to_string(), v)));
        }
        for key in ["peak_mib", "items", "bytes_per_item", "block_bytes"] {
            figures.extend(process[key].as_f64().map(|v| (key.to_string(), v)));
        }
        if let Some(fit) = fit {
            figures.insert("bytes_per_item".into(), fit.bytes_per_item);
        }
        let shown = |key: &str| figures.get(key).copied().unwrap_or(f64::NAN);
        println!(
            "        {:<44} {:>9.0}/s  p50 {:>7.2} us  p99 {:>7.1} us  hits {:>5.1}%  moved {:>5.2}x  CPU {:>6.3} us",
            entry.name,
            shown("ops_s"),
            shown("p50_us"),
            shown("p99_us"),
            shown("hit_pct"),
            shown("amplification"),
            shown("cpu_us")
        );
        let verified = "first and last 8 bytes of each read".to_string();
        entry.runs.push(Run { turn, figures, verified });
    }
}

/// What the project holds itself to.
fn compare(record: &mut Record) {
    let at = |reader: &str, called: &str, threads: u64, batch: u64| name_of(reader, called, threads, batch);
    let (least, most) = (|v| Some(Target::AtLeast(v)), |v| Some(Target::AtMost(v)));
    let zipf = |reader: &str, threads, batch| at(reader, ZIPF.1, threads, batch);
    let pread = zipf("pread", 1, 1);
    record.compare("ops_s", &zipf("ours", 1, 32), &pread, least(5.0));
    record.compare("ops_s", &zipf("ours", 1, 128), &pread, least(8.0));
    record.compare("amplification", &zipf("ours", 1, 32), &pread, most(0.1));
    record.limit("amplification", &zipf("ours", 1, 32), Target::AtMost(1.9));
    record.compare("cpu_us", &zipf("ours", 1, 32), &pread, most(1.0 / 7.0));
    record.compare("cpu_us", &zipf("ours", 1, 128), &pread, most(1.0 / 7.0));
    record.compare("ops_s", &zipf("ours", 1, 1), &pread, least(1.3));
    record.limit("p50_us", &zipf("ours", 1, 1), Target::AtMost(2.0));
    for quick in ["quick_cache", "quick_cache-boxed"] {
        points(record, &zipf("ours", 1, 32), &zipf(quick, 1, 32), 7.0);
        record.compare("bytes_per_item", &zipf("ours", 1, 32), &zipf(quick, 1, 32), most(0.67));
    }
    record.limit("bytes_per_item", &zipf("ours", 1, 32), Target::AtMost(150.0));
    for (threads, batch) in [(1, 32), (2, 32), (1, 128), (2, 128)] {
        record.compare("ops_s", &zipf("ours", threads, batch), &zipf("quick_cache", threads, batch), least(1.1));
    }
    points(record, &zipf("ours", 1, 32), &zipf("moka", 1, 32), 13.0);
    device_bytes(record, &zipf("ours", 1, 32), &zipf("foyer", 1, 32), 1.0 / 7.0);
    record.compare("ops_s", &zipf("ours", 2, 32), &zipf("rocksdb", 2, 32), least(6.0));
    let steep = |reader: &str, threads, batch| at(reader, STEEP.1, threads, batch);
    record.compare("ops_s", &steep("ours", 1, 32), &steep("pread", 1, 1), None);
    record.compare("ops_s", &steep("ours", 1, 128), &steep("quick_cache", 1, 128), None);
    let uniform = |reader: &str, threads, batch| at(reader, UNIFORM.1, threads, batch);
    for (threads, batch) in [(1, 1), (1, 8), (1, 32), (2, 32), (1, 128), (2, 128), (1, 2048)] {
        record.compare("ops_s", &uniform("ours", threads, batch), &uniform("ring", threads, batch), least(0.95));
    }
    for batch in BATCH_SIZES {
        let ours = zipf("ours", 1, batch);
        let behind_ring = [zipf("quick_cache", 1, batch), zipf("quick_cache-boxed", 1, batch)];
        let behind_ring = behind_ring.each_ref().map(String::as_str);
        record.compare_best(("ops_s", Better::More), &ours, &behind_ring, None);
        record.compare_best(("cpu_us", Better::Less), &ours, &behind_ring, most(1.15));
        record.compare("ops_s", &ours, &zipf("ring", 1, batch), None);
        record.compare("cpu_us", &ours, &zipf("ring", 1, batch), None);
        let ours = uniform("ours", 1, batch);
        record.compare("ops_s", &ours, &uniform("quick_cache", 1, batch), None);
        record.compare("cpu_us", &ours, &uniform("quick_cache", 1, batch), most(1.15));
        record.compare("cpu_us", &ours, &uniform("ring", 1, batch), most(1.5));
    }
    for batch in [1, 128] {
        record.limit("ops_s", &at("ours", "all fits", 1, batch), Target::AtLeast(5e6));
        record.limit("ops_s", &at("ours", "all fits", 2, batch), Target::AtLeast(10e6));
        record.compare("ops_s", &at("ours", "all fits", 1, batch), &at("quick_cache", "all fits", 1, batch), None);
        record.compare("ops_s", &at("ours", "all fits", 2, batch), &at("quick_cache", "all fits", 2, batch), None);
    }
    for batch in [1, 32, 128] {
        let called = "4 KiB blocks, uniform";
        record.compare("ops_s", &at("ours", called, 1, batch), &at("ring", called, 1, batch), least(0.97));
    }
}

/// Of a hundred reads, how many more are found.
fn points(record: &mut Record, more: &str, fewer: &str, least: f64) {
    if let (Some(more_pct), Some(fewer_pct)) = (record.median(more, "hit_pct"), record.median(fewer, "hit_pct")) {
        let what = format!("hit_pct: {more} - {fewer}");
        let target = Some(Target::AtLeast(least));
        record.comparisons.push(Comparison { what, value: more_pct - fewer_pct, unit: " points", target });
    }
}

/// Bytes that the device moved, to read and to write.
fn device_bytes(record: &mut Record, fewer: &str, more: &str, most: f64) {
    let moved = |name: &str| Some(record.median(name, "amplification")? + record.median(name, "written_per_byte")?);
    if let (Some(few), Some(many)) = (moved(fewer), moved(more)) {
        let what = format!("device bytes, read and written: {fewer} / {more}");
        record.comparisons.push(Comparison { what, value: few / many, unit: "x", target: Some(Target::AtMost(most)) });
    }
}
