//! A thread that the kernel refuses is an error each time, from the one function that starts
//! threads.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use datapipes_core::topology::Topology;
use datapipes_core::{ErrorKind, Machine, Runtime, threads};
use datapipes_testkit::child::{NoThreads, as_another_user};

#[test]
fn a_thread_that_is_refused_is_an_error_and_not_a_panic() {
    if !as_another_user("a_thread_that_is_refused_is_an_error_and_not_a_panic") {
        return;
    }
    let machine = Machine::new(Topology::discover(), Vec::new());
    let limit = NoThreads::from_now_on();
    let refused = threads::spawn("one", || ()).unwrap_err();
    assert_eq!((refused.kind(), refused.errno()), (ErrorKind::System, Some(libc::EAGAIN)));
    assert!(refused.to_string().contains("the thread `one`"), "{refused}");
    let refused = std::thread::scope(|scope| threads::spawn_scoped(scope, "two", || ()).unwrap_err());
    assert_eq!(refused.errno(), Some(libc::EAGAIN));
    assert_eq!(Runtime::start(&machine).map(drop).unwrap_err().errno(), Some(libc::EAGAIN));
    assert_eq!(machine.each_core(|_| Ok(())).unwrap_err().errno(), Some(libc::EAGAIN));
    drop(limit);
    threads::join(threads::spawn("three", || 3).unwrap()).unwrap();
    Runtime::start(&machine).unwrap();
    machine.each_core(|_| Ok(())).unwrap();
}
