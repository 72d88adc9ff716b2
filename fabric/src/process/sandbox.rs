//! A device locks itself down, once it has what it was given and before it sees a byte of anybody.
//!
//! * a user without rights (65534), where it was started by root; no new privileges; 64 descriptors at most;
//! * Landlock with no rule: no path, no port, no signal and no abstract socket outside of the device;
//! * a filter of system calls that lets through what moving bytes needs. What is not named in [`allowed`] answers `EPERM`: no
//!   open (so nothing is reopened through /proc), no fcntl, no exec, no new process, no ptrace, no signal to others, no new
//!   socket or memfd, no ioctl, no io_uring (its requests would go around this filter).
//!
//! What is trusted nevertheless: the kernel, and for memory that is mapped, that the process keeps to the protocol or is killed
//! for it. A real device with DMA but without an IOMMU between it and memory would have to be trusted with all of it: there is
//! no such interface here, and nothing of this module replaces one.

use std::collections::BTreeMap;

use datapipes_core::{Error, ErrorKind, Result};
use landlock::{ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus, Scope};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::control::Confined;

/// Who has no rights.
const NOBODY: u32 = 65534;
/// Descriptors that a device can have, and how many it needs for endpoints while they are being mapped.
const DESCRIPTORS: u64 = 64;

/// Locks this process down; it must have one thread.
///
/// # Errors
/// `Unavailable` where the filter of system calls cannot be had: a device does not run without it.
pub(crate) fn confine() -> Result<Confined> {
    let unprivileged = become_nobody()?;
    let limit = |resource, value| {
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).map_err(|e| Error::os("confine", e.raw_os_error(), "a limit"))
    };
    limit(Resource::Nofile, DESCRIPTORS)?;
    limit(Resource::Core, 0)?;
    let os = |e: rustix::io::Errno| Error::os("confine", e.raw_os_error(), "this process");
    rustix::thread::set_no_new_privs(true).map_err(os)?;
    // The controller's end is the device's end. Changing the user would have reset it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(os)?;
    let landlock = landlocked();
    let refused = |e: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Unavailable, "confine", format!("the filter of system calls: {e}"))
    };
    for filter in filters().map_err(|e| refused(&e))? {
        seccompiler::apply_filter(&filter).map_err(|e| refused(&e))?;
    }
    Ok(Confined { landlock, seccomp: true, unprivileged })
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

/// The two filters, in the order in which they are installed (the second would refuse to install another).
fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let errno = |e: i32| SeccompAction::Errno(e as u32);
    let absent: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let absent = SeccompFilter::new(absent, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let allowed = SeccompFilter::new(allowed()?, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What a device may ask the kernel for.
fn allowed() -> Result<Rules, seccompiler::BackendError> {
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
        libc::SYS_sendto,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_recvmsg,
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
    // Memory without execution.
    let no_exec = || {
        let exec = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
        let exec = SeccompCondition::new(2, SeccompCmpArgLen::Dword, exec, 0)?;
        SeccompRule::new(vec![exec])
    };
    rules.insert(libc::SYS_mmap, vec![no_exec()?]);
    rules.insert(libc::SYS_mprotect, vec![no_exec()?]);
    // Memory that the allocator grows; moving a mapping elsewhere is of no harm to others.
    rules.insert(libc::SYS_mremap, Vec::new());
    // A panic ends the process by a signal to itself.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, std::process::id().into())?;
    let abort = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::SIGABRT as u64)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own, abort])?]);
    // Threads, not processes.
    let thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64);
    let thread = SeccompCondition::new(0, SeccompCmpArgLen::Qword, thread, libc::CLONE_THREAD as u64)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    rules.insert(libc::SYS_set_robust_list, Vec::new());
    // Its flags lie in memory, where no filter sees them: the other filter says that there is no such call.
    rules.insert(libc::SYS_clone3, Vec::new());
    Ok(rules)
}
