//! A descriptor under schedules of which each is chosen at random: several threads take what is
//! done, over a device that sends its bytes late, or not at all. The socket is a real one; a thread
//! that sleeps beside it for ever exceeds the steps that a schedule may take.

use rustix::net::SendFlags;

use super::{ConnectFdOptions, TransferRequest};
use crate::runtime::schedules::over;
use crate::runtime::schedules::places::{Far, dram, runtime, span};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, thread};
use datapipes_testkit::schedules;

/// Threads that submit and take, `each` so many; and one that waits for transfers of the pipe by
/// itself.
fn takers(far: &Far, each: [usize; 3], waits: u64) {
    let runtime = runtime(8);
    let near = dram(4096);
    let hardware = far.device.run();
    let ask = ConnectFdOptions { depth: Some(8), ..ConnectFdOptions::default() };
    let pipe = Arc::new(runtime.connect_fd_with(far, &near, &ask).unwrap());
    let threads: Vec<_> = each
        .into_iter()
        .enumerate()
        .map(|(i, each)| {
            let pipe = pipe.clone();
            thread::spawn(move || {
                for n in 0..each {
                    pipe.submit(span((3 * n + i) as u64, 1)).unwrap();
                }
                for _ in 0..each {
                    pipe.complete_wait().unwrap().result.unwrap();
                }
            })
        })
        .collect();
    for i in 0..waits {
        pipe.pipe().transfer(span(12 + i, 1)).unwrap().wait().unwrap();
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(pipe.complete().unwrap().is_none(), "a completion that nobody asked for");
    drop((pipe, runtime));
    over([(far, hardware)]);
}

#[test]
fn several_threads_take_each_completion_though_bells_are_late_or_missing() {
    schedules(|| takers(&Far::ringing("a"), [1, 1, 2], 0));
}

#[test]
fn several_threads_take_each_completion_beside_one_that_waits_by_itself() {
    schedules(|| takers(&Far::ringing("a"), [2, 1, 0], 2));
}

#[test]
fn several_threads_take_each_completion_of_a_device_that_rings_none() {
    schedules(|| takers(&Far::evented("a", None), [1, 2, 1], 0));
}

/// Says that it was dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_pipe_that_is_ended_while_it_takes_requests_leaves_nothing() {
    schedules(|| {
        let far = Far::evented("a", None);
        // One part is out at a time: others are held back when it ends.
        let (runtime, near) = (runtime(1), dram(4096));
        let hardware = far.device.run();
        let gone = Arc::new(AtomicBool::new(false));
        let ask = ConnectFdOptions { depth: Some(4), ..ConnectFdOptions::default() };
        let (socket, given) = runtime.pass_fd(&far, &near, &ask, Box::new(Gone(gone.clone()))).unwrap();
        let sender = thread::spawn(move || {
            for token in 0..3 {
                let message = TransferRequest { token, span: span(token, 3) }.to_bytes();
                // Refused once it has ended.
                let _ = rustix::net::send(&socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                thread::yield_now();
            }
        });
        thread::yield_now();
        given.end();
        sender.join().unwrap();
        runtime.drain();
        assert!(near.lease_mut().is_ok(), "a lease was left behind");
        assert_eq!(runtime.report().under_way, 0);
        // The coordinator forgets it when it sees that its socket is shut, or with the runtime.
        drop(runtime);
        assert!(gone.load(Ordering::SeqCst) && given.pipe().is_none(), "the pipe is still there");
        over([(&far, hardware)]);
    });
}
