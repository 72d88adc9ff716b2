//! The handler of `SIGBUS`: one for all who answer such faults, installed on first use, and kind to
//! whoever was there before.
//!
//! Asked in this order: who answers for addresses ([`add_fault_handler`]), the guarded copies,
//! whoever had a handler before. It allocates nothing, takes no lock and reads constants and atomic
//! pointers, so that it may run at any instruction.
//!
//! This module's unsafe code promises: a fault that nobody answers takes the course it would have
//! taken without us.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::guarded::answer_in_routine;
use crate::error::{Error, ErrorKind, Result};

/// Whether a fault at an address was answered: the access is made again, then.
pub type FaultAnswer = fn(address: usize) -> bool;

/// Those who answer for addresses. Written once, before the handler is installed or while it is.
static ANSWERS: [OnceLock<FaultAnswer>; 4] = [const { OnceLock::new() }; 4];

/// Has faults by accesses answered by a function. Given twice it is asked once.
///
/// # Errors
/// `Busy` where so many are there; what the kernel says where the handler cannot be installed.
///
/// # Safety
/// The function may run in any thread at any instruction: it calls only what is safe in a handler
/// of signals (signal-safety(7)), takes no lock, allocates nothing, does not unwind, and leaves
/// `errno` as it was.
pub unsafe fn add_fault_handler(answer: FaultAnswer) -> Result<()> {
    let same = |there: &FaultAnswer| std::ptr::fn_addr_eq(*there, answer);
    let has = ANSWERS.iter().any(|place| place.set(answer).is_ok() || place.get().is_some_and(same));
    if !has {
        return Err(Error::new(ErrorKind::Busy, "install", "an answer to SIGBUS, beside four others"));
    }
    install()
}

/// The action before ours; null while ours is not installed. Leaked, because a handler may read it
/// at any time.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the handler where that was not done yet.
pub(crate) fn install() -> Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if !PREVIOUS.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let failed = || Error::io("install", &std::io::Error::last_os_error(), "a handler of SIGBUS");
    // SAFETY: all zeros is a value of the structure: the default action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only; the structure outlives the call.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(failed());
    }
    // Before ours is in place, so that it never finds nothing.
    PREVIOUS.store(Box::leak(Box::new(before)), Ordering::Release);
    let mut ours = before;
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // Those flags and the mask that the previous handler wants hold for it when ours calls it.
    // SA_ONSTACK: the fault may be of a thread whose stack is at its end, which the standard
    // library's handler looks into.
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_NOCLDSTOP;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & kept);
    let mut replaced = before;
    // SAFETY: `on_sigbus` has the form that SA_SIGINFO asks for and is a function of this program
    // for ever.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut replaced) } != 0 {
        let e = failed();
        PREVIOUS.store(std::ptr::null_mut(), Ordering::Release);
        return Err(e);
    }
    if replaced.sa_sigaction != before.sa_sigaction {
        // Somebody was quicker between the two calls.
        PREVIOUS.store(Box::leak(Box::new(replaced)), Ordering::Release);
    }
    Ok(())
}

/// Has a fault answered, or passes it on.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with a valid `siginfo_t`; for SIGBUS the address is set where
    // the code is positive.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A code of 0 or less: sent by a program. BUS_MCEERR_AO: a bad block found by somebody else;
    // this thread did not touch it.
    let raised_by_an_access = code > 0 && code != libc::BUS_MCEERR_AO;
    if raised_by_an_access && ANSWERS.iter().filter_map(OnceLock::get).any(|answer| answer(address)) {
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: with SA_SIGINFO the third argument is the context of the interrupted thread, which is
    // ours to change.
    if raised_by_an_access && answer_in_routine(unsafe { &mut *context.cast() }, address, code == libc::BUS_MCEERR_AR) {
        return;
    }
    // SAFETY: the arguments are those of this call.
    unsafe { pass_on(signal, info, context, raised_by_an_access) }
}

/// Does what would have been done without us.
///
/// # Safety
/// The arguments are those of a handler that runs.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, by_access: bool) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: not null, since `install` stores it before this handler can run; leaked, so valid for
    // ever.
    let previous = unsafe { &*previous };
    match previous.sa_sigaction {
        // An ignored SIGBUS is ignored where it was sent; one by an access would repeat for ever,
        // and the kernel takes the default action for it, as we do.
        libc::SIG_IGN if !by_access => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action takes no handler. The faulting instruction is executed
            // again on return, and one that was sent is sent again: either ends the process as if
            // we had not been there.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                if !by_access {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: SA_SIGINFO says that the previous handler has this form.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO a handler takes the number alone.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
