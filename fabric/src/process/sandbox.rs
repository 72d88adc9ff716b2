//! A device locks itself down, once it has what it was given and before it sees a byte of anybody.
//!
//! * a user without rights (65534), where it was started by root; no new privileges; 64 descriptors
//!   at most;
//! * Landlock with no rule: no path, no port, no signal and no abstract socket outside of the
//!   device;
//! * a filter of system calls that lets through what moving bytes needs. What is not named in
//!   [`allowed`] answers `EPERM`: no open (so nothing is reopened through /proc), no fcntl, no
//!   exec, no new process, no ptrace, no signal to others, no new socket or memfd, no ioctl, no
//!   io_uring (its requests would go around this filter);
//! * no descriptor leaves it (`sendmsg` is refused, and what is left carries bytes only), and
//!   descriptors come in over the control socket alone; all its threads share one table of them. So
//!   what it has of a memory is in its map and in that table, where the controller looks when it
//!   takes the memory away;
//! * no memory but private memory, which is charged to it and limited, of usual pages and in
//!   mappings that do not grow; a first stack of 8 MiB at most; one thread, or as many as it was
//!   given. It must be one thread without children when it locks itself down (see `alone`).
//!
//! What is trusted nevertheless: the kernel. A real device with DMA but without an IOMMU between it
//! and memory would have to be trusted with all of it: there is no such interface here, and nothing
//! of this module replaces one.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};

use datapipes_core::{Error, ErrorKind, Result};
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::alone;
use super::namespace::limit_threads;
use crate::control::protocol::{DEVICE_DESCRIPTORS, Threads};
use crate::control::{Confined, STACK_BYTES};

/// Who has no rights.
const NOBODY: u32 = 65534;
/// Ways of mapping that are let through: those that the C library and allocators use. All others
/// are refused. Two of those are charged to nobody: a mapping that grows downwards counts as a
/// stack, and huge pages are the whole machine's.
const MAPPED: i32 = libc::MAP_SHARED
    | libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_STACK;

/// Locks this process down. Over `control` alone descriptors come in.
///
/// # Errors
/// `PermissionDenied` where it has another thread, or a child: nobody would lock them down.
/// `Unavailable` where the filter of system calls cannot be had: a device does not run without it.
pub(crate) fn confine(control: BorrowedFd<'_>, threads: Threads) -> Result<Confined> {
    alone::check()?;
    let unprivileged = become_nobody()?;
    let bounded = bound_threads(threads);
    let limit = |resource, value| {
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).map_err(|e| Error::os("confine", e.raw_os_error(), "a limit"))
    };
    limit(Resource::Nofile, DEVICE_DESCRIPTORS as u64)?;
    limit(Resource::Core, 0)?;
    // The first thread's stack is not among what RLIMIT_DATA counts.
    let stack = getrlimit(Resource::Stack);
    limit(Resource::Stack, [stack.current, stack.maximum].into_iter().flatten().fold(STACK_BYTES, u64::min))?;
    let os = |e: rustix::io::Errno| Error::os("confine", e.raw_os_error(), "this process");
    rustix::thread::set_no_new_privs(true).map_err(os)?;
    // The controller's end is the device's end. Changing the user would have reset it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(os)?;
    let landlock = landlocked();
    let refused = |e: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Unavailable, "confine", format!("the filter of system calls: {e}"))
    };
    for filter in filters(control, threads).map_err(|e| refused(&e))? {
        seccompiler::apply_filter(&filter).map_err(|e| refused(&e))?;
    }
    Ok(Confined { landlock, seccomp: true, unprivileged, threads: bounded })
}

/// What bounds its threads, for people.
fn bound_threads(threads: Threads) -> String {
    match threads {
        Threads::One => "one, by the filter of system calls".into(),
        Threads::Grouped => "as many as its control group has room for".into(),
        Threads::Limited(most) => match limit_threads(most) {
            Ok(()) => format!("{most}, in a user namespace of its own"),
            Err(e) => format!("not bounded: no control group, and no user namespace: {e}"),
        },
    }
}

fn become_nobody() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Ok(true);
    }
    let (user, group) = (rustix::process::Uid::from_raw(NOBODY), rustix::process::Gid::from_raw(NOBODY));
    let os = |e: rustix::io::Errno| Error::os("confine", e.raw_os_error(), "giving up root");
    rustix::thread::set_thread_groups(&[]).map_err(os)?;
    rustix::thread::set_thread_res_gid(group, group, group).map_err(os)?;
    rustix::thread::set_thread_res_uid(user, user, user).map_err(os)?;
    Ok(true)
}

/// Denies every path, port, and signal; how much of it this kernel enforces.
fn landlocked() -> String {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|r| r.handle_access(AccessNet::from_all(ABI::V5)))
        .and_then(|r| r.scope(Scope::from_all(ABI::V6)))
        .and_then(|r| r.create())
        .and_then(|r| r.restrict_self());
    match ruleset {
        Ok(status) => match status.ruleset {
            RulesetStatus::FullyEnforced => "fully".into(),
            RulesetStatus::PartiallyEnforced => "partially".into(),
            RulesetStatus::NotEnforced => "not: this kernel does not know it".into(),
        },
        Err(e) => format!("not: {e}"),
    }
}

/// The two filters, in the order in which they are installed (the second would refuse to install
/// another).
fn filters(control: BorrowedFd<'_>, threads: Threads) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let errno = |e: i32| SeccompAction::Errno(e as u32);
    let absent: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let allowed = SeccompFilter::new(allowed(control, threads)?, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What a device may ask the kernel for.
fn allowed(control: BorrowedFd<'_>, threads: Threads) -> Result<Rules, seccompiler::BackendError> {
    let plain = [
        // Bytes, over descriptors that it has.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_preadv,
        libc::SYS_pwritev,
        libc::SYS_preadv2,
        libc::SYS_pwritev2,
        libc::SYS_lseek,
        libc::SYS_fstat,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_recvfrom,
        libc::SYS_shutdown,
        libc::SYS_ppoll,
        libc::SYS_close,
        // Its own memory.
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Waiting, waking, time.
        libc::SYS_futex,
        libc::SYS_futex_waitv,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        // Ending, and saying why.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_sigaltstack,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getrandom,
    ];
    let mut rules: Rules = plain.into_iter().map(|call| (call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_poll, Vec::new());
    let word = |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let bits = |argument, mask: i32, value: i32| {
        word(argument, SeccompCmpOp::MaskedEq(u64::from(mask.cast_unsigned())), value as u64)
    };
    // To whom it is connected, and nobody else: `sendmsg` could carry descriptors, and what it is
    // given lies in memory, where no filter sees it.
    let address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![address])?]);
    // Descriptors come from the controller, and each once.
    let from_controller = word(0, SeccompCmpOp::Eq, control.as_raw_fd() as u64)?;
    let taken = bits(2, libc::MSG_PEEK, 0)?;
    rules.insert(libc::SYS_recvmsg, vec![SeccompRule::new(vec![from_controller, taken])?]);
    // Memory without execution: of a descriptor, or private. Shared memory of nobody's would be
    // charged to nobody.
    let no_exec = || bits(2, libc::PROT_EXEC, 0);
    let of_descriptor = SeccompRule::new(vec![no_exec()?, bits(3, libc::MAP_ANONYMOUS | !MAPPED, 0)?])?;
    let kind = libc::MAP_SHARED | libc::MAP_PRIVATE;
    let private = SeccompRule::new(vec![no_exec()?, bits(3, kind | !MAPPED, libc::MAP_PRIVATE)?])?;
    rules.insert(libc::SYS_mmap, vec![of_descriptor, private]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![no_exec()?])?]);
    // Memory that the allocator grows; moving a mapping elsewhere is of no harm to others.
    rules.insert(libc::SYS_mremap, Vec::new());
    // A panic ends the process by a signal to itself.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, std::process::id().into())?;
    let abort = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::SIGABRT as u64)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own, abort])?]);
    // Threads, not processes, and with one table of descriptors for all of them.
    if threads != Threads::One {
        let shared = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND;
        let thread = SeccompCmpOp::MaskedEq(shared as u64);
        let thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, thread, shared as u64)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    }
    rules.insert(libc::SYS_set_robust_list, Vec::new());
    // Its flags lie in memory, where no filter sees them: the other filter says that there is no
    // such call.
    rules.insert(libc::SYS_clone3, Vec::new());
    Ok(rules)
}
