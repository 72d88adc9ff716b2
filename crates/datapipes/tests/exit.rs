//! `exit` within foreign code: its handlers may use the library, and close what is the program's,
//! on the thread that was in the middle of a callback or a waker.
//!
//! Unsafe code: a handler is registered with the C library.
#![allow(unsafe_code, clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::future::Future;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use datapipes::{Dram, Runtime, RuntimePipe, Span};
use datapipes_testkit::output_of;
use scene::{MIB, file_of, pattern};

/// In the environment of the program that calls `exit`: in which case.
const CASE: &str = "DATAPIPES_TEST_EXIT";
/// The status that it ends with.
const STATUS: i32 = 6;

const WAYS: [&str; 4] = ["drop", "drain", "transfer", "block_on"];
const PLACES: [&str; 3] = ["callback", "waker", "destructor"];

/// What the handler uses and closes.
static KEPT: Mutex<Option<(Runtime, RuntimePipe)>> = Mutex::new(None);

extern "C" fn at_exit() {
    let case = std::env::var(CASE).unwrap_or_default();
    let Some((runtime, pipe)) = KEPT.lock().unwrap().take() else { return };
    let span = Span { source: 0, target: 2 * MIB, len: MIB };
    match case.split_once(' ').unwrap().1 {
        "drop" => {}
        "drain" => runtime.drain(),
        "transfer" => pipe.transfer(span).unwrap().wait().unwrap(),
        _ => runtime.block_on(pipe.transfer(span).unwrap()).unwrap(),
    }
    drop(runtime);
    println!("closed");
}

fn leave() -> ! {
    println!("leaves");
    std::process::exit(STATUS)
}

/// A waker, or a value that memory keeps, which calls `exit`.
struct Leaves;

impl Wake for Leaves {
    fn wake(self: Arc<Self>) {
        leave();
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        leave();
    }
}

/// The program that exits.
fn exits(place: &str) -> ! {
    // SAFETY: the handler is a function of this program.
    unsafe { libc::atexit(at_exit) };
    let runtime = Runtime::start(&datapipes::discover()).unwrap();
    let (file, target) = (file_of(&pattern(4 * MIB)), Dram::allocate(4 * MIB as usize).unwrap());
    let pipe = runtime.connect(&file, &target).unwrap();
    let memory = Dram::allocate(4 * MIB as usize).unwrap();
    let copies = runtime.connect(&memory, &target).unwrap();
    *KEPT.lock().unwrap() = Some((runtime, pipe.clone()));
    let span = Span { source: 0, target: 0, len: MIB };
    match place {
        "callback" => pipe.transfer(span).unwrap().on_done(|_| leave()),
        "waker" => {
            // On a thread that copies.
            let mut handle = Box::pin(copies.transfer(span).unwrap());
            let waker = Waker::from(Arc::new(Leaves));
            if handle.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                leave();
            }
            std::mem::forget((handle, waker));
        }
        _ => {
            let value = Leaves;
            pipe.transfer(span).unwrap().on_done(move |_| drop(value));
        }
    }
    loop {
        std::thread::park();
    }
}

#[test]
fn handlers_of_exit_may_close_a_runtime_within_its_own_callback() {
    let name = "handlers_of_exit_may_close_a_runtime_within_its_own_callback";
    if let Ok(case) = std::env::var(CASE) {
        exits(case.split_once(' ').unwrap().0);
    }
    for place in PLACES {
        for way in WAYS {
            let case = format!("{place} {way}");
            let mut command = Command::new(std::env::current_exe().unwrap());
            let output = output_of(command.args([name, "--exact", "--nocapture"]).env(CASE, &case)).unwrap();
            let shown =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(output.status.code(), Some(STATUS), "{case}: {shown}");
            assert!(shown.contains("closed") && !shown.contains("panicked"), "{case}: {shown}");
        }
    }
}
