//! The handler of `SIGBUS`: one for all parts of the library that handle such faults. It is
//! installed on first use and passes other faults on to the previous handler.
//!
//! It asks in this order: the functions given to [`add_fault_handler`], the guarded copies, the
//! previous handler. It allocates nothing, takes no lock, and reads only constants and atomic
//! pointers, so it may run at any instruction.
//!
//! This module's unsafe code promises: a fault that the library does not handle has the effect that
//! it would have without the library.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::locks::Mutex;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::routines::answer_in_routine;
use crate::error::{Error, ErrorKind, Result};

/// A function that returns whether it handled a fault at an address. The access is then made again.
pub type FaultAnswer = fn(address: usize) -> bool;

/// The functions that handle faults. Each is set once, before or after the handler is installed.
static ANSWERS: [OnceLock<FaultAnswer>; 4] = [const { OnceLock::new() }; 4];

/// Adds a function that handles faults of accesses. A function that is added twice is asked once.
///
/// # Errors
/// `Busy` where no slot is free; the kernel's error where the handler cannot be installed.
///
/// # Safety
/// The function may run in any thread at any instruction. It must call only what is safe in a
/// signal handler (signal-safety(7)), take no lock, allocate nothing, not unwind, and preserve
/// `errno`.
pub unsafe fn add_fault_handler(answer: FaultAnswer) -> Result<()> {
    let same = |there: &FaultAnswer| std::ptr::fn_addr_eq(*there, answer);
    let has = ANSWERS.iter().any(|place| place.set(answer).is_ok() || place.get().is_some_and(same));
    if !has {
        return Err(Error::new(ErrorKind::Busy, "install", "a handler of SIGBUS beside four others"));
    }
    install()
}

/// The previous action; null while this handler is not installed. It is leaked because a handler
/// may read it at any time.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Installs the handler if that was not done yet.
pub(crate) fn install() -> Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING.lock();
    if !PREVIOUS.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let failed = || Error::io("install", std::io::Error::last_os_error(), "a handler of SIGBUS");
    // SAFETY: all zeros is a valid value of the structure, the default action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call only queries; the structure outlives it.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) } != 0 {
        return Err(failed());
    }
    // This comes before the handler is in place, so that the handler never finds a null pointer.
    PREVIOUS.store(Box::leak(Box::new(before)), Ordering::Release);
    let mut ours = before;
    ours.sa_sigaction = on_sigbus as *const () as usize;
    // The flags and the mask of the previous handler still apply when this handler calls it.
    // SA_ONSTACK is needed because a thread may fault at the end of its stack, which the standard
    // library's handler checks.
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_NOCLDSTOP;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (before.sa_flags & kept);
    let mut replaced = before;
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO requires, and stays a function of this
    // program.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut replaced) } != 0 {
        let e = failed();
        PREVIOUS.store(std::ptr::null_mut(), Ordering::Release);
        return Err(e);
    }
    if replaced.sa_sigaction != before.sa_sigaction {
        // Another thread installed a handler between the two calls.
        PREVIOUS.store(Box::leak(Box::new(replaced)), Ordering::Release);
    }
    Ok(())
}

/// Handles a fault or passes it on.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with a valid `siginfo_t`. For SIGBUS the address is set where
    // the code is positive.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A code of 0 or less means that a program sent the signal. BUS_MCEERR_AO means that the kernel
    // found a bad block which this thread did not touch.
    let raised_by_an_access = code > 0 && code != libc::BUS_MCEERR_AO;
    if raised_by_an_access && ANSWERS.iter().filter_map(OnceLock::get).any(|answer| answer(address)) {
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: with SA_SIGINFO the third argument is the context of the interrupted thread, which
    // the handler may change.
    if raised_by_an_access && answer_in_routine(unsafe { &mut *context.cast() }, address, code == libc::BUS_MCEERR_AR) {
        return;
    }
    // SAFETY: the arguments are those of this call.
    unsafe { pass_on(signal, info, context, raised_by_an_access) }
}

/// Does what would happen without this handler.
///
/// # Safety
/// The arguments must be those of a running handler.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, by_access: bool) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: the pointer is not null, since `install` stores it before this handler can run. It is
    // leaked, so it stays valid.
    let previous = unsafe { &*previous };
    match previous.sa_sigaction {
        // An ignored SIGBUS stays ignored if it was sent. One from an access would repeat for ever,
        // so the kernel takes the default action for it, and so does this handler.
        libc::SIG_IGN if !by_access => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action needs no handler. On return the faulting instruction is
            // executed again, and a signal that was sent is sent again. Either ends the process as
            // without this handler.
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
            // SAFETY: SA_SIGINFO was set, so the previous handler has this signature.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without SA_SIGINFO a handler takes only the signal number.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
