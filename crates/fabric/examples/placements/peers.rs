//! Code that one would write by hand between two processes, for comparison: a ring in shared
//! memory, a pipe with spliced pages, and a plain pipe. There is no isolation, no revocation and no
//! check: the processes trust each other.
//!
//! The unsafe code shares the ring's memory with the other process, which runs this module as well.
//! Spliced pages must not change before they are read, and the feeder waits for that.
#![allow(unsafe_code)]

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::json;

use super::bodies::{filled, words};
use super::{CREDITS, Outcome, cpu_seconds, row};

/// The argument of a process that is a feeder or taker.
pub(super) const PEER: &str = "--peer";

const KINDS: [&str; 4] = ["ring, in place", "ring, one copy", "vmsplice and read", "pipe"];

/// Measures all peers at one size, in one turn.
pub(super) fn run(size: usize, span: Duration) -> Outcome<()> {
    for kind in KINDS {
        let (gb_s, cpu_s_per_gb) = throughput(kind, size, span)?;
        row(&format!("by hand: {kind}"), 2, size, json!({ "gb_s": gb_s, "cpu_s_per_gb": cpu_s_per_gb }));
    }
    Ok(())
}

/// The throughput in 10^9 bytes a second, and the processor time for a gigabyte.
pub(super) fn throughput(kind: &str, size: usize, span: Duration) -> Outcome<(f64, f64)> {
    let (reader, writer) = std::io::pipe()?;
    let shared = if kind.starts_with("ring") {
        let fd = rustix::fs::memfd_create("peer", rustix::fs::MemfdFlags::empty())?;
        rustix::fs::ftruncate(&fd, (HEADER_BYTES + CREDITS as usize * size) as u64)?;
        Some(fd)
    } else {
        // It is made as large as possible: a larger pipe needs fewer wake-ups.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20);
        None
    };
    let start = |role: &str, fd: BorrowedFd<'_>| -> Outcome<Child> {
        let number = fd.as_raw_fd().to_string();
        let arguments = [PEER, role, kind, &number, &size.to_string(), &span.as_millis().to_string()];
        // The child inherits only this end. Otherwise it would never see the other end closed.
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
        let child = Command::new("/proc/self/exe").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(child?)
    };
    let (of_taker, of_feeder) = match &shared {
        Some(fd) => (fd.as_fd(), fd.as_fd()),
        None => (reader.as_fd(), writer.as_fd()),
    };
    let (mut taker, mut feeder) = (start("take", of_taker)?, start("feed", of_feeder)?);
    drop((reader, writer));
    super::pin(&[feeder.id(), taker.id()]);
    let before = [feeder.id(), taker.id()].map(cpu_seconds).iter().sum::<f64>();
    let (mut fed, mut taken) = (String::new(), String::new());
    let line = |child: &mut Child, text: &mut String| -> Outcome<()> {
        let out = child.stdout.as_mut().ok_or("no output")?;
        let mut byte = [0];
        while out.read(&mut byte)? == 1 && byte[0] != b'\n' {
            text.push(byte[0] as char);
        }
        Ok(())
    };
    line(&mut feeder, &mut fed)?;
    line(&mut taker, &mut taken)?;
    let cpu = [feeder.id(), taker.id()].map(cpu_seconds).iter().sum::<f64>() - before;
    // They stay until their standard input ends, so that their processor time can be read.
    drop((feeder.stdin.take(), taker.stdin.take()));
    feeder.wait()?;
    taker.wait()?;
    let fed: Vec<u64> = fed.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [bytes, nanoseconds, sum] = fed[..] else { return Err(format!("{kind}: {fed:?}").into()) };
    if taken.parse() != Ok(sum) {
        return Err(format!("WRONG: {kind}: {taken} arrived of {sum}").into());
    }
    let gb = bytes as f64 / 1e9;
    Ok((gb / (nanoseconds as f64 / 1e9), cpu / gb))
}

/// Runs as a feeder or a taker, according to the arguments.
pub(super) fn be(arguments: &[String]) -> Outcome<()> {
    let [role, kind, fd, size, span_ms] = arguments else { return Err("a peer's arguments".into()) };
    let (size, span) = (size.parse::<usize>()?, Duration::from_millis(span_ms.parse()?));
    // SAFETY: the parent left this descriptor open for this process, and nothing else here owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.parse()?) };
    let said = match (role.as_str(), kind.as_str()) {
        ("feed", kind) if kind.starts_with("ring") => feed(size, span, &mut Ring::new(&fd, size)?)?,
        ("take", "ring, in place") => take(&mut InPlace(Ring::new(&fd, size)?))?,
        ("take", "ring, one copy") => take(&mut Copied(Ring::new(&fd, size)?, vec![0; size]))?,
        ("feed", "vmsplice and read") => feed(size, span, &mut Spliced(fd))?,
        ("feed", _) => feed(size, span, &mut Written(fd))?,
        ("take", _) => take(&mut Piped(fd, vec![0; size]))?,
        _ => return Err("an unknown role".into()),
    };
    println!("{said}");
    std::io::stdout().flush()?;
    // It stays until the parent has read its processor time.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// The destination of blocks. An empty block is the end.
trait Into {
    fn send(&mut self, block: &[u8]) -> Outcome<()>;
    fn end(&mut self) -> Outcome<()>;
}

/// The source of blocks. It yields the sum of a block's words, or None at the end.
trait From {
    fn sum_next(&mut self) -> Outcome<Option<u64>>;
}

fn feed(size: usize, span: Duration, into: &mut dyn Into) -> Outcome<String> {
    let block = filled(size);
    let of_block = words(&block);
    // The path is warm before the clock starts.
    for _ in 0..8 {
        into.send(&block)?;
    }
    let (since, mut blocks) = (Instant::now(), 0u64);
    while since.elapsed() < span || blocks == 0 {
        into.send(&block)?;
        blocks += 1;
    }
    into.end()?;
    let sum = of_block.wrapping_mul(blocks + 8);
    Ok(format!("{} {} {sum}", blocks * size as u64, since.elapsed().as_nanos()))
}

fn take(from: &mut dyn From) -> Outcome<String> {
    let mut sum = 0u64;
    while let Some(of_block) = from.sum_next()? {
        sum = sum.wrapping_add(of_block);
    }
    Ok(sum.to_string())
}

const HEADER_BYTES: usize = 4096;

/// Two counters and two flags of sleepers, each on its own line. The slots follow.
#[repr(C, align(128))]
struct Line<T>(T);

#[repr(C)]
struct Counters {
    sent: Line<AtomicU32>,
    taken: Line<AtomicU32>,
    sender_sleeps: Line<AtomicU32>,
    taker_sleeps: Line<AtomicU32>,
    ended: Line<AtomicU64>,
}

struct Ring {
    counters: &'static Counters,
    slots: *mut u8,
    size: usize,
    /// The number of blocks so far.
    count: u32,
    /// The number of looks before sleeping.
    looks: u32,
}

impl Ring {
    fn new(fd: &OwnedFd, size: usize) -> Outcome<Ring> {
        let (len, both) = (HEADER_BYTES + CREDITS as usize * size, ProtFlags::READ | ProtFlags::WRITE);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: it is a new mapping, which stays as long as the process.
        let at = unsafe { mmap(std::ptr::null_mut(), len, both, flags, fd.as_fd(), 0) }?.cast::<u8>();
        // SAFETY: the mapping begins with a page for the counters, which are atomics. The slots
        // follow.
        let (counters, slots) = unsafe { (&*at.cast::<Counters>(), at.add(HEADER_BYTES)) };
        Ok(Ring { counters, slots, size, count: 0, looks: 4 })
    }

    fn slot(&self) -> *mut u8 {
        // SAFETY: the index is below the number of slots.
        unsafe { self.slots.add((self.count % CREDITS) as usize * self.size) }
    }

    /// Looks a few times, more often where that helped, and then sleeps.
    fn wait(&mut self, word: &'static AtomicU32, sleeps: &'static AtomicU32, ready: impl Fn(u32) -> bool) {
        for _ in 0..self.looks {
            if ready(word.load(Ordering::SeqCst)) {
                self.looks = (self.looks * 2).min(256);
                return;
            }
            std::hint::spin_loop();
        }
        self.looks = (self.looks / 2).max(4);
        loop {
            sleeps.store(1, Ordering::SeqCst);
            let seen = word.load(Ordering::SeqCst);
            if ready(seen) {
                sleeps.store(0, Ordering::SeqCst);
                return;
            }
            let _ = rustix::thread::futex::wait(word, rustix::thread::futex::Flags::empty(), seen, None);
        }
    }

    fn wake(word: &AtomicU32, sleeps: &AtomicU32) {
        if sleeps.load(Ordering::SeqCst) != 0 {
            let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
        }
    }

    /// Waits for a free slot, for the feeder.
    fn free(&mut self) {
        let (c, count) = (self.counters, self.count);
        self.wait(&c.taken.0, &c.sender_sleeps.0, |taken| count.wrapping_sub(taken) < CREDITS);
    }

    fn sent(&mut self) {
        self.count = self.count.wrapping_add(1);
        self.counters.sent.0.store(self.count, Ordering::SeqCst);
        Ring::wake(&self.counters.sent.0, &self.counters.taker_sleeps.0);
    }

    /// Waits for a full slot, for the taker. Returns false at the end.
    fn full(&mut self) -> bool {
        let (c, count) = (self.counters, self.count);
        self.wait(&c.sent.0, &c.taker_sleeps.0, |sent| sent != count);
        u64::from(count) + 1 != c.ended.0.load(Ordering::SeqCst)
    }

    fn taken(&mut self) {
        self.count = self.count.wrapping_add(1);
        self.counters.taken.0.store(self.count, Ordering::SeqCst);
        Ring::wake(&self.counters.taken.0, &self.counters.sender_sleeps.0);
    }
}

impl Into for Ring {
    fn send(&mut self, block: &[u8]) -> Outcome<()> {
        self.free();
        // SAFETY: the slot is free, so only this process accesses it.
        unsafe { self.slot().copy_from_nonoverlapping(block.as_ptr(), self.size) };
        self.sent();
        Ok(())
    }

    fn end(&mut self) -> Outcome<()> {
        self.free();
        self.counters.ended.0.store(u64::from(self.count) + 1, Ordering::SeqCst);
        self.sent();
        // It waits until all blocks are taken, as the other ways wait for their last reply.
        let (c, count) = (self.counters, self.count);
        self.wait(&c.taken.0, &c.sender_sleeps.0, |taken| taken == count);
        Ok(())
    }
}

struct InPlace(Ring);

impl From for InPlace {
    fn sum_next(&mut self) -> Outcome<Option<u64>> {
        let more = self.0.full();
        // SAFETY: the slot is full, so nobody writes it before it is taken.
        let sum = more.then(|| words(unsafe { std::slice::from_raw_parts(self.0.slot(), self.0.size) }));
        self.0.taken();
        Ok(sum)
    }
}

struct Copied(Ring, Vec<u8>);

impl From for Copied {
    fn sum_next(&mut self) -> Outcome<Option<u64>> {
        let more = self.0.full();
        if more {
            // SAFETY: as above, and the buffer is as long as a slot.
            unsafe { self.1.as_mut_ptr().copy_from_nonoverlapping(self.0.slot(), self.0.size) };
        }
        self.0.taken();
        Ok(more.then(|| words(&self.1)))
    }
}

struct Spliced(OwnedFd);

impl Into for Spliced {
    fn send(&mut self, block: &[u8]) -> Outcome<()> {
        let mut done = 0;
        while done < block.len() {
            let slices = [IoSlice::new(&block[done..])];
            let slices = [rustix::pipe::IoSliceRaw::from_slice(&slices[0])];
            // SAFETY: the pages stay and do not change, because the same block is sent each time.
            done += unsafe { rustix::pipe::vmsplice(&self.0, &slices, rustix::pipe::SpliceFlags::empty()) }?;
        }
        Ok(())
    }

    fn end(&mut self) -> Outcome<()> {
        self.0 = std::fs::File::open("/dev/null")?.into();
        Ok(())
    }
}

struct Written(OwnedFd);

impl Into for Written {
    fn send(&mut self, mut block: &[u8]) -> Outcome<()> {
        while !block.is_empty() {
            block = &block[rustix::io::write(&self.0, block)?..];
        }
        Ok(())
    }

    fn end(&mut self) -> Outcome<()> {
        self.0 = std::fs::File::open("/dev/null")?.into();
        Ok(())
    }
}

struct Piped(OwnedFd, Vec<u8>);

impl From for Piped {
    fn sum_next(&mut self) -> Outcome<Option<u64>> {
        let mut done = 0;
        while done < self.1.len() {
            match rustix::io::read(&self.0, &mut self.1[done..])? {
                0 if done == 0 => return Ok(None),
                0 => return Err("a torn block".into()),
                n => done += n,
            }
        }
        Ok(Some(words(&self.1)))
    }
}
