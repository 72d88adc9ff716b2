//! The lock-down of a device, after it has its descriptors and before it sees foreign bytes.
//!
//! * The user has no rights (65534), if root started the device; there are no new privileges, and
//!   at most 64 descriptors.
//! * Landlock without a rule forbids every path, port, signal and abstract socket outside the
//!   device.
//! * A filter of system calls allows what is needed to move bytes. A call that is not in
//!   [`allowed`] fails with `EPERM`: no open (so nothing is reopened through /proc), no fcntl, no
//!   exec, no new process, no ptrace, no signal to others, no new socket or memfd, no ioctl, no
//!   io_uring (its requests would bypass this filter).
//! * No descriptor leaves the device: `sendmsg` is refused, and the other calls carry only bytes.
//!   Descriptors arrive only over the control socket. All threads share one table of them. So all
//!   that a device has of a memory is in its memory map and in that table, where the controller
//!   looks when it takes the memory away.
//! * Memory is private memory, which is charged to the device and limited, with normal pages and
//!   mappings that do not grow. The first stack has at most 8 MiB. There is one thread, or as many
//!   as were granted. It must be one thread without children when it locks itself down (see
//!   `alone`).
//!
//! The kernel remains trusted. A real device with DMA but without an IOMMU would have to be trusted
//! with all memory. There is no such interface here, and this module does not replace one.

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
use crate::control::limits::{STACK_BYTES, Threads};
use crate::control::protocol::{Confined, DEVICE_DESCRIPTORS};

/// The user without rights.
const NOBODY: u32 = 65534;
/// The allowed ways of mapping: those of the C library and of allocators. All others are refused.
/// Two of the refused ones are charged to nobody: a mapping that grows downwards counts as a stack,
/// and huge pages belong to the whole machine.
const MAPPED: i32 = libc::MAP_SHARED
    | libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_STACK;

/// Locks this process down. Descriptors arrive only over `control`.
///
/// # Errors
/// `PermissionDenied` where it has another thread or a child, which would not be locked down.
/// `Unavailable` where the filter of system calls is not available: a device does not run without
/// it.
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
    // RLIMIT_DATA does not count the first thread's stack.
    let stack = getrlimit(Resource::Stack);
    limit(Resource::Stack, [stack.current, stack.maximum].into_iter().flatten().fold(STACK_BYTES, u64::min))?;
    let os = |e: rustix::io::Errno| Error::os("confine", e.raw_os_error(), "this process");
    rustix::thread::set_no_new_privs(true).map_err(os)?;
    // The device ends with the controller. This comes last because a change of the user resets it.
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

/// Describes the limit of its threads.
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

/// Takes the user without rights, if this process is root's. It must be the only thread.
///
/// # Errors
/// `PermissionDenied` where the kernel refuses.
pub(crate) fn become_nobody() -> Result<bool> {
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

/// Denies every path, port and signal. Returns how much of that this kernel enforces.
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
            RulesetStatus::NotEnforced => "not enforced: this kernel does not support it".into(),
        },
        Err(e) => format!("not: {e}"),
    }
}

/// The two filters, in the order of installation. (The second one would forbid installing another.)
fn filters(control: BorrowedFd<'_>, threads: Threads) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let errno = |e: i32| SeccompAction::Errno(e as u32);
    let absent: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let allowed = SeccompFilter::new(allowed(control, threads)?, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The system calls that a device may make.
fn allowed(control: BorrowedFd<'_>, threads: Threads) -> Result<Rules, seccompiler::BackendError> {
    let plain = [
        // Calls that move bytes over its descriptors.
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
        libc::SYS_sync_file_range,
        libc::SYS_recvfrom,
        libc::SYS_shutdown,
        libc::SYS_ppoll,
        libc::SYS_close,
        // Calls for its own memory.
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Calls for waiting, waking and time.
        libc::SYS_futex,
        libc::SYS_futex_waitv,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        // Calls for ending, and for reporting why.
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
    // It may send only to its connected peer. `sendmsg` could carry descriptors, and its arguments
    // lie in memory, where no filter sees them.
    let address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![address])?]);
    // Descriptors come from the controller, each once.
    let from_controller = word(0, SeccompCmpOp::Eq, control.as_raw_fd() as u64)?;
    let taken = bits(2, libc::MSG_PEEK, 0)?;
    rules.insert(libc::SYS_recvmsg, vec![SeccompRule::new(vec![from_controller, taken])?]);
    // Memory is not executable, and is private or of a descriptor. Anonymous shared memory would be
    // charged to nobody.
    let no_exec = || bits(2, libc::PROT_EXEC, 0);
    let of_descriptor = SeccompRule::new(vec![no_exec()?, bits(3, libc::MAP_ANONYMOUS | !MAPPED, 0)?])?;
    let kind = libc::MAP_SHARED | libc::MAP_PRIVATE;
    let private = SeccompRule::new(vec![no_exec()?, bits(3, kind | !MAPPED, libc::MAP_PRIVATE)?])?;
    rules.insert(libc::SYS_mmap, vec![of_descriptor, private]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![no_exec()?])?]);
    // This is for memory that the allocator grows. Moving a mapping does not harm others.
    rules.insert(libc::SYS_mremap, Vec::new());
    // A panic ends the process by a signal to itself.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, std::process::id().into())?;
    let abort = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::SIGABRT as u64)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own, abort])?]);
    // New threads are allowed, but not processes, and all share one table of descriptors.
    if threads != Threads::One {
        let shared = libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SIGHAND;
        let thread = SeccompCmpOp::MaskedEq(shared as u64);
        let thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, thread, shared as u64)?;
        rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    }
    rules.insert(libc::SYS_set_robust_list, Vec::new());
    // The flags of clone3 lie in memory, where no filter sees them. The other filter answers that
    // the call does not exist.
    rules.insert(libc::SYS_clone3, Vec::new());
    Ok(rules)
}
