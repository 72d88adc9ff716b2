//! Conversations made of random bytes, through the whole protocol, with a real service (`grammar`).
//! Beside them a client checks every byte. The service lives, the honest client is served, and
//! nothing grows.
//!
//! The seed is printed and can be given again (`DATAPIPES_SEED`); `INPUTS` is the number of
//! conversations. The fuzz target `dpiped` has the same conversations with bytes chosen by
//! coverage.
#![allow(clippy::unwrap_used)]

mod grammar;
mod scene;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::{ConnectFdOptions, Span, Ssd};
use datapipes_service::{Client, ClientPlace, SharedMemory};
use grammar::{Depth, World, converse};
use scene::{Dir, MIB, Service, content, file_of, memory_of, pattern};

/// Conversations that may start threads and open descriptors of the runtime, which stay.
const WARM: u64 = 60;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 29)
    }

    /// Bytes of which some are zeros, which stand for the usual choice.
    fn input(&mut self) -> Vec<u8> {
        let len = 64 + self.next() % 1500;
        (0..len).map(|_| if self.next().is_multiple_of(4) { 0 } else { self.next() as u8 }).collect()
    }
}

/// Moves bytes between memory and files until it is told to stop, and checks every byte.
fn honest(client: &Client, stop: &AtomicBool, rounds: &AtomicU64) {
    let bytes = pattern(MIB as usize, 5);
    let (memory, file) = (memory_of(&bytes), file_of(&bytes));
    let (into, copy) = (SharedMemory::create(bytes.len()).unwrap(), Ssd::unlinked_in(scene::disk()).unwrap());
    let places = [
        (ClientPlace::memory(&memory), ClientPlace::memory(&into)),
        (ClientPlace::file(&file), ClientPlace::memory(&into)),
        (ClientPlace::file(&file), ClientPlace::file(&copy)),
    ];
    let mut pipes = places.map(|(from, to)| client.connect_pipe(&from, &to, &ConnectFdOptions::default()).unwrap());
    while !stop.load(Ordering::SeqCst) {
        let round = rounds.load(Ordering::SeqCst);
        let which = round as usize % 3;
        into.write(0, &vec![0; bytes.len()]).unwrap();
        pipes[which].transfer(Span { source: 0, target: 0, len: MIB }).unwrap();
        let found = if which == 2 { content(&copy, bytes.len()) } else { into.to_vec().unwrap() };
        assert!(found == bytes, "round {round} of the honest client");
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Bytes that the honest client is charged for: its memory, and the own memory of a pipe between
/// two files.
const HONEST: u64 = 2 * MIB + datapipes::STAGED_BYTES as u64;

/// The resources that a process has, according to the kernel.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    anonymous_kb: u64,
}

impl Holdings {
    fn of(pid: u32) -> Holdings {
        let text = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
        let status = text("status");
        let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        Holdings {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().filter(|task| !is_of_kernel(task)).count(),
            // Only memory of clients: that of the allocator and of stacks comes and goes.
            mappings: text("maps").lines().filter(|line| line.contains("memfd:")).count(),
            anonymous_kb: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
        }
    }
}

/// Whether a thread is a worker that the kernel started for an io_uring ring.
fn is_of_kernel(task: &std::io::Result<std::fs::DirEntry>) -> bool {
    let name = task.as_ref().map(|task| std::fs::read_to_string(task.path().join("comm")));
    // A thread that has just ended has no name.
    name.is_ok_and(|name| name.is_ok_and(|name| name.starts_with("iou-")))
}

#[test]
fn whatever_bytes_say_the_service_lives_and_serves_others() {
    let seed = datapipes_testkit::seed(3);
    let inputs = number("INPUTS", 240).max(2 * WARM);
    println!("DATAPIPES_SEED={seed} INPUTS={inputs}");
    let dir = Dir::new();
    let socket = dir.0.join("s");
    // The size of its files is bounded, to protect the disk under this test; clients get an error
    // for a full file.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 65536; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dpiped"), "--socket"]).arg(&socket);
    let limits = "--clients 16 --clients-per-uid 12 --pipes 8 --transfers 2000 --descriptors 64 --mapped-bytes 40M \
                  --all-mapped-bytes 160M --hello-ms 10000";
    command.args(limits.split_whitespace());
    let service = Service::of(command, socket, dir);
    let (pid, world) = (service.child.id(), World { socket: service.socket.clone(), dir: scene::disk().to_path_buf() });
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (client, told, counted) = (service.client(), stop.clone(), rounds.clone());
    let thread = std::thread::spawn(move || honest(&client, &told, &counted));
    let (mut random, mut depth, mut warm) = (Random(seed), Depth::default(), None);
    let asker = service.client();
    for nth in 0..inputs {
        depth.add(converse(&world, &random.input()));
        assert!(!thread.is_finished(), "input {nth}, DATAPIPES_SEED={seed}: the honest client was harmed");
        if nth % 20 != 19 {
            continue;
        }
        // The clients have left, and all that they had must go.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let now = asker.status().unwrap();
            if now.connected == 2 && now.mapped_bytes <= HONEST && now.runtime.under_way <= 1 {
                break;
            }
            assert!(Instant::now() < until, "input {nth}, DATAPIPES_SEED={seed}: something of them stays: {now:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let served = rounds.load(Ordering::SeqCst);
        while rounds.load(Ordering::SeqCst) < served + 3 {
            assert!(Instant::now() < until, "input {nth}, DATAPIPES_SEED={seed}: the honest client waits for ever");
            assert!(!thread.is_finished(), "input {nth}, DATAPIPES_SEED={seed}: the honest client was harmed");
            std::thread::sleep(Duration::from_millis(1));
        }
        if nth + 1 >= WARM && warm.is_none() {
            warm = Some(Holdings::of(pid));
        }
    }
    // A thread that reported its client's leaving may not have ended yet.
    let mut last = Holdings::of(pid);
    let until = Instant::now() + Duration::from_secs(60);
    while warm.is_some_and(|warm: Holdings| last.threads > warm.threads || last.descriptors > warm.descriptors)
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(5));
        last = Holdings::of(pid);
    }
    stop.store(true, Ordering::SeqCst);
    drop(asker);
    let harmed = thread.join();
    assert!(harmed.is_ok(), "DATAPIPES_SEED={seed}: the honest client was harmed");
    let now = service.until("all have left", |now| now.connected == 1 && now.mapped_bytes == 0);
    assert_eq!(now.runtime.panics, 0, "DATAPIPES_SEED={seed}: {now:?}");
    let (warm, alone) = (warm.unwrap(), Holdings::of(pid));
    println!("{depth:?}\n{rounds:?} honest rounds; warm {warm:?}, at last {last:?}, alone {alone:?}");
    // The conversations were not refused at the start.
    assert!(
        depth.pipes > inputs && depth.done > inputs && depth.refusals > inputs && depth.failed > inputs / 4,
        "{depth:?}"
    );
    assert!(last.descriptors <= warm.descriptors, "DATAPIPES_SEED={seed}: {warm:?}, then {last:?}");
    assert!(last.threads <= warm.threads, "DATAPIPES_SEED={seed}: {warm:?}, then {last:?}");
    assert_eq!(alone.mappings, 0, "DATAPIPES_SEED={seed}: {alone:?}");
    // The allocator keeps the memory that was used at the same time. What each client leaves behind
    // would still show.
    assert!(last.anonymous_kb < warm.anonymous_kb + (32 << 10), "DATAPIPES_SEED={seed}: {warm:?}, then {last:?}");
}
