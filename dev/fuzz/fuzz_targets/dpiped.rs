//! Conversations with dpiped over its socket, through the whole protocol: hello, pipes over
//! descriptors of every kind, spans, completions, status, leaving in the middle. The service runs
//! in this process, and beside the conversation an honest client is served after each of them.
#![no_main]
#![allow(dead_code)] // The grammar is a test's module.

#[path = "../../../crates/service/tests/grammar/mod.rs"]
mod grammar;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use datapipes::{ConnectFdOptions, Span};
use datapipes_service::server::{Listener, Server, ServerOptions, ServiceLimits, ServiceLog};
use datapipes_service::{Client, ClientPipe, ClientPlace, SharedMemory};
use libfuzzer_sys::fuzz_target;

const LEN: usize = 64 << 10;
/// Bytes of the longest file that a conversation may leave on the disk.
const FILE_BYTES: u64 = 32 << 20;
/// Conversations after which threads and descriptors of the runtime are all there.
const WARM: u64 = 200;

struct Scene {
    _server: Server,
    world: grammar::World,
    client: Client,
    pipe: std::sync::Mutex<(ClientPipe, u64, usize)>,
    source: SharedMemory,
    target: SharedMemory,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(FILE_BYTES), maximum: None };
    setrlimit(Resource::Fsize, limit).unwrap();
    // SAFETY: a valid signal, and an action without a handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let dir = std::env::temp_dir().join(format!("dpiped-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let socket = dir.join("s");
    let limits = ServiceLimits::default().clients(16).clients_per_uid(12).pipes(8).transfers(2000).descriptors(64).mapped_bytes(16 << 20).mapped_bytes_per_uid(64 << 20).all_mapped_bytes(64 << 20).hello_ms(10_000);
    let config = ServerOptions::default().limits(limits).log(ServiceLog::to(std::io::sink()));
    let listener = Listener::bind(&socket, 0o600).unwrap();
    let server = Server::start(&datapipes::discover(), listener, config).unwrap();
    let client = Client::connect(&socket).unwrap();
    let (source, target) = (SharedMemory::create(LEN).unwrap(), SharedMemory::create(LEN).unwrap());
    let bytes: Vec<u8> = (0..LEN).map(|i| (i * 7 >> 3) as u8).collect();
    source.write(0, &bytes).unwrap();
    let ask = ConnectFdOptions::default();
    let pipe = client.connect_pipe(&ClientPlace::memory(&source), &ClientPlace::memory(&target), &ask).unwrap();
    let world = grammar::World { socket, dir };
    Scene { _server: server, world, client, pipe: std::sync::Mutex::new((pipe, 0, 0)), source, target }
});

fn descriptors_and_threads() -> usize {
    let entries = |what| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    entries("fd") + entries("task")
}

fuzz_target!(|input: &[u8]| {
    let scene = &*SCENE;
    grammar::converse(&scene.world, input);
    // They have left, and with them all that was theirs.
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let now = scene.client.status().unwrap();
        let under_way = now.runtime.under_way;
        if now.connected == 1 && now.mapped_bytes == 2 * LEN as u64 && under_way == 0 {
            break;
        }
        assert!(Instant::now() < until, "something of them stays: {now:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut honest = scene.pipe.lock().unwrap();
    let (pipe, turns, warm) = &mut *honest;
    scene.target.write(0, &[0; LEN]).unwrap();
    pipe.transfer(Span { source: 0, target: 0, len: LEN as u64 }).unwrap();
    assert!(scene.target.to_vec().unwrap() == scene.source.to_vec().unwrap());
    *turns += 1;
    if *turns <= WARM {
        *warm = descriptors_and_threads().max(*warm);
        return;
    }
    // Threads that end are there for a moment longer.
    while descriptors_and_threads() > *warm {
        assert!(Instant::now() < until, "{} descriptors and threads, and {warm} before", descriptors_and_threads());
        std::thread::sleep(Duration::from_millis(1));
    }
});
