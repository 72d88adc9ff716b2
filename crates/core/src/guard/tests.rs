//! Panics are caught and reported, and no foreign code is called in the middle of an operation.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::sync::Mutex;
use std::task::Wake;

use super::*;

fn note(list: &Arc<Mutex<Vec<u32>>>, n: u32) -> Call {
    let list = list.clone();
    Call::Run(Box::new(move || list.lock().unwrap().push(n)))
}

#[test]
fn a_panic_is_reported_by_its_text_whatever_its_payload_is() {
    assert_eq!(call(ForeignCode::Storage, || 3).unwrap(), 3);
    let text = |f: fn()| call(ForeignCode::Compute, f).unwrap_err().to_string();
    assert_eq!(text(|| panic!("plain")), "a closure that computes panicked: plain");
    assert_eq!(text(|| panic!("number {}", 7)), "a closure that computes panicked: number 7");
    assert!(text(|| std::panic::panic_any(7)).contains("not text"));
    /// A payload whose destructor panics with another payload.
    struct Again(u32);
    impl Drop for Again {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Again(self.0 - 1));
            }
        }
    }
    let before = panics();
    assert!(text(|| std::panic::panic_any(Again(2))).contains("not text"));
    assert!(panics() > before);
    let panics = Panics::default();
    for text in ["one", "two"] {
        panics.note(&call(ForeignCode::Waker, || panic!("{text}")).unwrap_err());
    }
    assert_eq!((panics.count(), panics.first()), (2, Some("a waker panicked: one")));
}

#[test]
fn deferred_calls_are_made_in_order_when_the_outermost_work_is_done() {
    let called = Arc::new(Mutex::new(Vec::new()));
    call_or_defer(note(&called, 0), 0);
    assert_eq!(*called.lock().unwrap(), [0], "nothing is under way");
    let outer = defer_calls();
    call_or_defer(note(&called, 1), 0);
    let inner = defer_calls();
    call_or_defer(note(&called, 2), 0);
    drop(inner);
    assert_eq!(*called.lock().unwrap(), [0]);
    drop(outer);
    assert_eq!(*called.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn a_panic_does_not_keep_other_calls_from_being_made() {
    let (called, panics) = (Arc::new(Mutex::new(Vec::new())), Panics::with_number());
    let held = defer_calls();
    for n in 0..9 {
        call_or_defer(note(&called, n), panics.number());
        call_or_defer(Call::Run(Box::new(move || panic!("after {n}"))), panics.number());
    }
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("a destructor");
        }
    }
    call_or_defer(Call::Drop(Box::new(Bad)), panics.number());
    struct Loud;
    impl Wake for Loud {
        fn wake(self: Arc<Self>) {
            panic!("a waker");
        }
    }
    call_or_defer(Call::Wake(Arc::new(Loud).into()), panics.number());
    drop(held);
    assert_eq!(*called.lock().unwrap(), (0..9).collect::<Vec<_>>());
    assert_eq!((panics.count(), panics.first()), (11, Some("a callback panicked: after 0")));
    assert!(!is_in_foreign_code());
}

#[test]
fn a_chain_of_calls_is_a_loop_and_not_a_recursion() {
    fn link(n: u32, end: &Arc<AtomicU64>) {
        let (end, address) = (end.clone(), std::ptr::from_ref(&n).addr() as u64);
        if n == 0 {
            end.store(address, Ordering::SeqCst);
        } else {
            call_or_defer(Call::Run(Box::new(move || link(n - 1, &end))), 0);
        }
    }
    let end = Arc::new(AtomicU64::new(0));
    link(100_000, &end);
    let here = std::ptr::from_ref(&end).addr() as u64;
    assert!(here.abs_diff(end.load(Ordering::SeqCst)) < 1 << 20, "the last link is deep in the stack");
}

#[test]
fn a_thread_that_sleeps_within_a_call_makes_the_other_calls_first() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let (first, list) = (note(&called, 1), called.clone());
    call_or_defer(
        Call::Run(Box::new(move || {
            let _held = defer_calls();
            call_or_defer(first, 0);
            assert!(list.lock().unwrap().is_empty() && is_in_foreign_code());
            run_deferred_before_sleep();
            assert_eq!(*list.lock().unwrap(), [1]);
        })),
        0,
    );
    assert!(!is_in_foreign_code());
}

/// The bytes that this thread's variables have.
fn capacities() -> [usize; 3] {
    let [entries, put_off] = with(|outbox| [outbox.entries.capacity(), outbox.put_off.capacity()]).unwrap();
    [entries, put_off, reentry::capacity()]
}

/// A variable of a thread whose destructor uses the library, and says what the thread's variables
/// have then.
struct Late(std::cell::RefCell<Option<std::sync::mpsc::Sender<[usize; 3]>>>);

impl Drop for Late {
    fn drop(&mut self) {
        use_outbox();
        self.0.take().unwrap().send(capacities()).unwrap();
    }
}

std::thread_local! {
    static LATE: Late = const { Late(std::cell::RefCell::new(None)) };
}

/// Makes calls that were deferred, and others that were postponed within a transfer.
fn use_outbox() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let held = defer_calls();
    let queue = reentry::enter_queue(1, true);
    for n in 0..40 {
        call_or_defer(note(&called, n), 0);
        reentry::postpone(note(&called, n), 0);
    }
    drop(queue);
    drop(held);
    assert_eq!(called.lock().unwrap().len(), 80);
}

#[test]
fn destructors_of_a_threads_variables_leak_nothing_by_using_the_library() {
    for first in [true, false] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Destructors run in the opposite order of the first uses.
            if first {
                LATE.with(|late| late.0.replace(Some(sender)));
                use_outbox();
            } else {
                use_outbox();
                LATE.with(|late| late.0.replace(Some(sender)));
            }
            assert!(capacities().into_iter().sum::<usize>() > 0, "memory is used again");
        });
        thread.join().unwrap();
        let left = receiver.recv().unwrap();
        assert_eq!(left == [0; 3], first, "{left:?}");
    }
}
