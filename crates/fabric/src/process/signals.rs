//! The signals that a terminal, or somebody who ends a whole process group, sends to all of it.
//!
//! This module has unsafe code: it sets what a signal does.
#![allow(unsafe_code)]

/// Signals after which the application decides what becomes of its session.
const OF_THE_GROUP: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

extern "C" fn goes_on(_: libc::c_int) {}

/// Lets this process outlive the signals that its application gets with it. A controller ends when
/// its application is gone, and has to remove the control groups of its devices before.
///
/// A signal that is ignored stays ignored, here and in the devices: `nohup` and shells choose so. A
/// device that is started begins with what the others do by default.
pub(super) fn outlive_those_of_the_group() {
    for signal in OF_THE_GROUP {
        // SAFETY: all fields of the structures may be zero, and they outlive the calls. The handler
        // does nothing, so it may run at any time, and it has the type that is called without
        // SA_SIGINFO.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0;
            if !known || old.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = goes_on as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            // It fails only for numbers that are no signals. The signal would do what it did.
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}
