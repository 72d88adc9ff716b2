//! What loading UCX does to the program. It is a program of its own, in which nothing else loads
//! UCX at the same time.
#![allow(clippy::unwrap_used, unsafe_code)]

use datapipes_ucx::Ucx;

/// The handlers of all signals.
fn handlers() -> Vec<libc::sighandler_t> {
    let of = |signal| {
        // SAFETY: zeros are a value of this structure, and the call writes it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0).then_some(action.sa_sigaction)
        }
    };
    (1..32).filter_map(of).collect()
}

#[test]
fn loading_leaves_the_handlers_of_signals_as_they_were() {
    let before = handlers();
    match Ucx::get() {
        Err(why) => println!("SKIPPED: handlers of signals: {why}"),
        Ok(ucx) => {
            println!("UCX {}", ucx.version);
            assert_eq!(before, handlers());
        }
    }
}
