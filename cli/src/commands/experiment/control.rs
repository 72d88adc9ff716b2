//! What moving a payload costs in control, in software (Larsen and Lee, *Platform IO DMA
//! Transaction Acceleration*, figure 10): requests and answers, system calls, doorbells.
//!
//! Measured: system calls, changes of threads, processor time. Counted from the interfaces:
//! bytes of control, which are all that the program and the kernel exchange beside the payload.
//!
//! ```text
//! a system call          8 bytes for its number, each argument and the result (System V ABI)
//! a request of io_uring  an entry of 64 bytes, and an answer of 16 (io_uring(7))
//! NVMe with SPDK         the same by the device's own queues, and a doorbell of 4 bytes for each
//!                        queue (NVM Express 2.0, 3.3.3); lists of pages beyond the second one
//! ```

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datapipes::runtime::{ConnectOptions, Runtime, RuntimeOptions};
use datapipes::{Dram, Error, ErrorKind, FileAccess, Locator, Machine, Pipe, Result, Span, Ssd};
use datapipes_counters::{CounterReading, CounterSet, difference};
use serde::Serialize;

use super::figure::{LeftOut, absence, show_left_out};
use super::ring::RingByHand;
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{print, print_json};
use crate::system::child::own_cpu_seconds;
use crate::system::signals::{self, WaitsFor};
use crate::table::Table;

const ENDING: Ending = Ending {
    notes: "\
Payloads are read from a file in the page cache, so that no device's time hides the control.
System calls are counted by the kernel, which needs root; else those of pipes that pipes count
themselves are shown. What is derived and not measured is marked so.",
    zero: "measured",
    one: None,
    examples: &["dpipe experiment control --ms 5", "dpipe experiment control --sizes 64,4K --ms 5 --json"],
};

/// Counts what moving a payload costs in control.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// The folder of the file that is read
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Lengths of payloads
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    /// The time of each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    ms: u64,
    /// Print JSON: processor, kernel, rows (way, payload_bytes, payloads, per payload:
    /// system_calls, context_switches, doorbells, control_bytes, cpu_ns, time_ns; standing),
    /// left_out
    #[arg(long)]
    json: bool,
}

const SIZES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
const FILE_BYTES: u64 = 16 << 20;
/// Payloads under way, where a way has several.
const DEPTH: u64 = 32;
/// Of a system call with four arguments.
const CALL_OF_FOUR: f64 = 48.0;
/// Of io_uring_enter, and of others at most.
const CALL_OF_SIX: f64 = 64.0;
const ENTRY_AND_ANSWER: f64 = 64.0 + 16.0;
const DOORBELL: f64 = 4.0;
const PAGE: u64 = 4096;

/// What a way costs for a payload.
#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    payload_bytes: u64,
    payloads: u64,
    system_calls: Option<f64>,
    context_switches: Option<f64>,
    /// What tells the other side to look: calls of the kernel, or stores to a device's register.
    doorbells: Option<f64>,
    control_bytes: Option<f64>,
    cpu_ns: Option<f64>,
    time_ns: Option<f64>,
    /// `measured`, or `derived` from an interface's definition.
    standing: &'static str,
}

#[derive(Debug, Serialize)]
struct Shown {
    experiment: &'static str,
    processor: Option<String>,
    kernel: Option<String>,
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut sizes: Vec<u64> = Vec::new();
    for size in if args.sizes.is_empty() { &SIZES[..] } else { &args.sizes } {
        // One that is named twice is measured once.
        if !sizes.contains(size) {
            sizes.push(*size);
        }
    }
    if let Some(size) = sizes.iter().find(|size| **size == 0 || **size > FILE_BYTES) {
        let error = Error::new(ErrorKind::InvalidInput, "experiment", format!("payloads of {size} bytes"));
        return Err(error.with_advice("give 1 to 16M"));
    }
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let file = Ssd::unlinked_in(&args.dir)?.with_access(FileAccess::Cached)?;
    // Written, so it is in the page cache.
    let content = Dram::allocate(FILE_BYTES as usize)?;
    content.lease_mut()?.iter_mut().zip(0u64..).for_each(|(byte, at)| *byte = (at * 31 + at / PAGE) as u8);
    machine.connect(&content, &file)?.transfer(Span { source: 0, target: 0, len: FILE_BYTES })?;
    let measure = Measure { machine: &machine, file: &file, content: &content, span: Duration::from_millis(args.ms) };
    let topology = machine.topology();
    let mut shown = Shown {
        experiment: "control",
        processor: topology.cpu.model_name.clone(),
        kernel: topology.kernel.clone(),
        rows: Vec::new(),
        left_out: Vec::new(),
    };
    for size in &sizes {
        signals::check("experiment")?;
        measure.all(*size, &mut shown)?;
    }
    if let Some(why) = absence(&CounterSet::open().read(), "system_calls") {
        shown.left_out.push(LeftOut { what: "system calls that the kernel counts".into(), why });
    }
    if args.json { print_json(&shown) } else { show(&shown, &sizes) }
}

fn show(shown: &Shown, sizes: &[u64]) -> Result<()> {
    let unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    print(&format!(
        "Control for a payload, on {}, {}; {DEPTH} under way where a way has several\n",
        unknown(&shown.processor),
        unknown(&shown.kernel)
    ))?;
    for size in sizes {
        let mut head = String::new();
        // Writing to a String cannot fail, hence the discarded result.
        let _ = writeln!(head, "\n{}", units::memory(*size));
        print(&head)?;
        let mut table = Table::default();
        table.row(["", "system calls", "switches", "doorbells", "control B", "a payload B", "CPU ns", "time ns"]);
        for row in shown.rows.iter().filter(|row| row.payload_bytes == *size) {
            let cell = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            let standing = if row.standing == "measured" { "" } else { " (derived)" };
            table.row([
                format!("{}{standing}", row.way),
                cell(row.system_calls, 3),
                cell(row.context_switches, 3),
                cell(row.doorbells, 3),
                cell(row.control_bytes, 1),
                cell(row.control_bytes.map(|bytes| bytes / row.payload_bytes as f64), 4),
                cell(row.cpu_ns, 0),
                cell(row.time_ns, 0),
            ]);
        }
        table.print(2)?;
    }
    show_left_out(&shown.left_out)
}

struct Measure<'a> {
    machine: &'a Machine,
    file: &'a Ssd,
    content: &'a Dram,
    span: Duration,
}

/// What a way's requests are, for their bytes of control.
#[derive(Clone, Copy)]
enum Requests {
    /// A system call each.
    Calls,
    /// Entries of io_uring, as many as this.
    Ring(u64),
    /// None that the kernel sees.
    Memory,
}

/// Counts what happens while the payloads move, without what is set up for them.
struct Meter<'a> {
    counters: &'a CounterSet,
    taken: Option<Taken>,
}

struct Taken {
    counted: Vec<CounterReading>,
    seconds: f64,
    /// Processor time of the process, in seconds.
    cpu: f64,
}

impl Meter<'_> {
    /// Repeats what moves some payloads, given how many were moved, until the time is over. Returns
    /// how many were moved in all.
    fn repeat(&mut self, span: Duration, mut each: impl FnMut(u64) -> Result<u64>) -> Result<u64> {
        let first = self.counters.read();
        let before = self.counters.read();
        let (since, cpu, mut payloads) = (Instant::now(), own_cpu_seconds(), 0);
        while payloads == 0 || since.elapsed() < span && !signals::arrived() {
            payloads += each(payloads)?;
        }
        let (seconds, cpu) = (since.elapsed().as_secs_f64(), own_cpu_seconds() - cpu);
        // What was cut off is no measurement.
        signals::check("experiment")?;
        // A look at the counters makes system calls, too.
        let (mut counted, looked) = (difference(&before, &self.counters.read()), difference(&first, &before));
        for (reading, looked) in counted.iter_mut().zip(looked).filter(|(reading, _)| reading.name == "system_calls") {
            reading.value = reading.value.zip(looked.value).map(|(calls, looked)| calls.saturating_sub(looked));
        }
        self.taken = Some(Taken { counted, seconds, cpu });
        Ok(payloads)
    }
}

/// What a run moved.
struct Moved {
    payloads: u64,
    requests: Requests,
    /// System calls, where the way counts them itself.
    calls: Option<u64>,
}

impl Measure<'_> {
    fn all(&self, size: u64, shown: &mut Shown) -> Result<()> {
        let rows = &mut shown.rows;
        rows.push(self.row("pread, one at a time", size, |meter| self.by_pread(meter, size))?);
        match RingByHand::new(DEPTH as u32) {
            Ok(mut ring) => {
                rows.push(
                    self.row("io_uring by hand, one at a time", size, |meter| self.by_ring(meter, &mut ring, size, 1))?,
                );
                rows.push(self.row("io_uring by hand", size, |meter| self.by_ring(meter, &mut ring, size, DEPTH))?);
            }
            Err(error) => {
                shown.left_out.push(LeftOut { what: "io_uring by hand".into(), why: error.to_string() });
            }
        }
        rows.push(self.row("a pipe, one at a time", size, |meter| self.by_pipe(meter, size, 1))?);
        rows.push(self.row("a pipe's batch", size, |meter| self.by_pipe(meter, size, DEPTH))?);
        rows.push(self.row("futures of a runtime", size, |meter| self.by_runtime(meter, self.file, size, None))?);
        let inline = |bytes: u64| Some(RuntimeOptions::new(self.machine).max_inline_bytes(bytes));
        rows.push(self.row("memory: pushed by the caller", size, |meter| {
            self.by_runtime(meter, self.content, size, inline(u64::MAX))
        })?);
        rows.push(
            self.row("memory: by a worker", size, |meter| self.by_runtime(meter, self.content, size, inline(0)))?,
        );
        for (way, together) in [("NVMe with SPDK, one at a time", 1), ("NVMe with SPDK", DEPTH)] {
            rows.push(derived(way, size, together));
        }
        Ok(())
    }

    /// Repeats a way for the time, and counts what it took.
    fn row(&self, way: &'static str, size: u64, mut run: impl FnMut(&mut Meter<'_>) -> Result<Moved>) -> Result<Row> {
        // Threads that a way starts are counted: they are started after this.
        let counters = CounterSet::open();
        let mut meter = Meter { counters: &counters, taken: None };
        // The path is warm before it counts.
        run(&mut meter)?;
        let moved = run(&mut meter)?;
        let Some(Taken { counted, seconds, cpu }) = meter.taken else {
            return Err(Error::new(ErrorKind::System, "experiment", "nothing was measured"));
        };
        let payloads = moved.payloads.max(1) as f64;
        let of = |name: &str| counted.iter().find(|reading| reading.name == name).and_then(|reading| reading.value);
        let calls = of("system_calls").or(moved.calls).map(|calls| calls as f64 / payloads);
        let requests = match moved.requests {
            Requests::Ring(count) => count as f64 * ENTRY_AND_ANSWER / payloads,
            Requests::Calls | Requests::Memory => 0.0,
        };
        let a_call = if matches!(moved.requests, Requests::Calls) { CALL_OF_FOUR } else { CALL_OF_SIX };
        Ok(Row {
            way,
            payload_bytes: size,
            payloads: moved.payloads,
            system_calls: calls,
            context_switches: of("context_switches").map(|count| count as f64 / payloads),
            doorbells: calls,
            control_bytes: calls.map(|calls| calls * a_call + requests),
            cpu_ns: Some(cpu * 1e9 / payloads),
            time_ns: Some(seconds * 1e9 / payloads),
            standing: "measured",
        })
    }

    /// The place of a payload in the file; the bytes of the first one of a run are compared.
    fn offset(number: u64, size: u64) -> u64 {
        number % (FILE_BYTES / size) * size
    }

    fn check(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let wanted = self.content.range(at as usize, bytes.len())?;
        if wanted.lease()?[..] != *bytes {
            return Err(Error::new(ErrorKind::Corrupt, "experiment", format!("the payload at {at} came as another")));
        }
        Ok(())
    }

    fn by_pread(&self, meter: &mut Meter<'_>, size: u64) -> Result<Moved> {
        let buffer = Dram::allocate(size as usize)?;
        let mut buffer = buffer.lease_mut()?;
        let mut at = 0;
        let payloads = meter.repeat(self.span, |moved| {
            for number in moved..moved + DEPTH {
                at = Self::offset(number, size);
                let read = rustix::io::pread(self.file.file().cached_fd(), &mut buffer[..], at)
                    .map_err(|e| Error::os("read", e.raw_os_error(), "the file of the experiment"))?;
                if read != buffer.len() {
                    return Err(Error::new(ErrorKind::EndOfFile, "read", format!("{read} of {size} bytes at {at}")));
                }
            }
            Ok(DEPTH)
        })?;
        self.check(at, &buffer)?;
        Ok(Moved { payloads, requests: Requests::Calls, calls: Some(payloads) })
    }

    fn by_ring(&self, meter: &mut Meter<'_>, ring: &mut RingByHand, size: u64, together: u64) -> Result<Moved> {
        let buffers = Dram::allocate((together * size) as usize)?;
        let mut buffers = buffers.lease_mut()?;
        let (mut at, mut calls) = (0, 0);
        let payloads = meter.repeat(self.span, |moved| {
            at = Self::offset(moved, size);
            let reads = buffers.chunks_exact_mut(size as usize).zip(moved..);
            let reads = reads.map(|(buffer, number)| (buffer, Self::offset(number, size)));
            calls += ring.read(self.file.file().cached_fd().as_fd(), reads)?;
            Ok(together)
        })?;
        self.check(at, &buffers[..size as usize])?;
        Ok(Moved { payloads, requests: Requests::Ring(payloads), calls: Some(calls) })
    }

    fn by_pipe(&self, meter: &mut Meter<'_>, size: u64, together: u64) -> Result<Moved> {
        let buffers = Dram::allocate((together * size) as usize)?;
        let pipe = self.machine.connect(self.file, &buffers)?;
        let before = work(&pipe);
        let mut at = 0;
        let mut batch = pipe.batch();
        let payloads = meter.repeat(self.span, |moved| {
            at = Self::offset(moved, size);
            let span = |n: u64| Span { source: Self::offset(moved + n, size), target: n * size, len: size };
            if together == 1 {
                pipe.transfer(span(0))?;
            } else {
                batch.submit((0..together).map(|n| (n, span(n))));
                batch.wait_for(together as usize)?;
                while let Some(finished) = batch.next()? {
                    finished.result?;
                }
            }
            Ok(together)
        })?;
        drop(batch);
        self.check(at, &buffers.range(0, size as usize)?.lease()?)?;
        let after = work(&pipe);
        let requests = match after.by_ring {
            true => Requests::Ring(after.requests - before.requests),
            false => Requests::Calls,
        };
        Ok(Moved { payloads, requests, calls: Some(after.calls - before.calls) })
    }

    fn by_runtime(
        &self,
        meter: &mut Meter<'_>,
        source: &dyn Locator,
        size: u64,
        options: Option<RuntimeOptions>,
    ) -> Result<Moved> {
        let buffers = Dram::allocate((DEPTH * size) as usize)?;
        let is_memory = options.is_some();
        let options = options.unwrap_or_else(|| RuntimeOptions::new(self.machine));
        let runtime = Runtime::start_with(self.machine, options)?;
        let pipe = runtime.connect_with(source, &buffers, &ConnectOptions::default())?;
        let mut at = 0;
        let payloads = meter.repeat(self.span, |moved| {
            at = Self::offset(moved, size);
            let span = |n: u64| Span { source: Self::offset(moved + n, size), target: n * size, len: size };
            pipe.transfer_all((0..DEPTH).map(span))?.wait()?;
            Ok(DEPTH)
        })?;
        self.check(at, &buffers.range(0, size as usize)?.lease()?)?;
        let hops = pipe.report().hops;
        let requests = match hops.iter().any(|hop| hop.primitive.contains("uring")) {
            _ if is_memory => Requests::Memory,
            true => Requests::Ring(hops.iter().map(|hop| hop.counters.requests).sum()),
            false => Requests::Calls,
        };
        // What its threads tell each other is not in the movers' counters.
        Ok(Moved { payloads, requests, calls: None })
    }
}

/// What a pipe's movers counted.
struct Work {
    requests: u64,
    calls: u64,
    by_ring: bool,
}

fn work(pipe: &Pipe) -> Work {
    let hops = pipe.report().hops;
    Work {
        requests: hops.iter().map(|hop| hop.counters.requests).sum(),
        calls: hops.iter().map(|hop| hop.counters.system_calls).sum(),
        by_ring: hops.iter().any(|hop| hop.primitive.contains("uring")),
    }
}

/// What a program that polls an NVMe device's queues exchanges with it: no system call, an entry
/// and an answer, the doorbells of both queues, and the list of pages beyond the first two.
fn derived(way: &'static str, size: u64, together: u64) -> Row {
    let pages = size.div_ceil(PAGE);
    let list = if pages > 2 { (pages - 1) as f64 * 8.0 } else { 0.0 };
    let doorbells = 2.0 / together as f64;
    Row {
        way,
        payload_bytes: size,
        payloads: 0,
        system_calls: Some(0.0),
        context_switches: Some(0.0),
        doorbells: Some(doorbells),
        control_bytes: Some(ENTRY_AND_ANSWER + list + doorbells * DOORBELL),
        cpu_ns: None,
        time_ns: None,
        standing: "derived",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_of_nvme_by_hand() {
        assert_eq!(derived("", 64, 1).control_bytes, Some(64.0 + 16.0 + 8.0));
        assert_eq!(derived("", 8192, 1).control_bytes, Some(88.0));
        // 256 pages: the first one is in the entry, and a list has the others.
        assert_eq!(derived("", 1 << 20, 32).control_bytes, Some(80.0 + 255.0 * 8.0 + 0.25));
    }
}
