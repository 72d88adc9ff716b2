//! What a process that a peer of UCX could take over may do, so that the peer has gained nothing
//! but what it was given: the holder of an export, or a bridge of a link.
//!
//! Over TCP and shared memory a peer of UCX can write any memory of the process, its stack
//! included, and so run code in it. It has what it moves, and nothing else that is worth having:
//!
//! * Landlock, before UCX is opened: files below system folders can be read, and nothing can be
//!   written, but RDMA's devices. From Linux 6.12 on no signal reaches others. Tracing others is
//!   refused. Without Landlock nothing is opened.
//! * A filter of system calls, once UCX is ready and its threads run, and before a peer can know
//!   its address: what moves bytes over descriptors that there are, and over connections that come
//!   in. No program, process or thread starts, nothing listens, no memory becomes executable.
//! * A second one for a bridge that has met its peer: from there on nothing connects.
//!
//! Rejected for holders: another user without rights, as for the devices of the fabric, since a
//! peer of shared memory must be of the same user. A holder of shared memory can therefore attach
//! other System V segments of its user, which its client can do anyway.

use std::collections::BTreeMap;

use datapipes_core::{Error, ErrorKind, Result};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// What UCX reads: libraries, what the kernel says of devices and interfaces.
const READ: [&str; 8] = ["/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev/null", "/dev/infiniband"];
/// What it writes below them.
const WRITTEN: [&str; 2] = ["/dev/null", "/dev/infiniband"];

/// What a confined process uses UCX for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfinedUse<'a> {
    /// Nothing: the kernel copies for it.
    Nothing,
    /// A peer reads and writes its memory, by these transports.
    Memory(&'a str),
    /// It connects to a peer, with which it will exchange messages by these transports.
    Meeting(&'a str),
    /// It exchanges messages with a peer that it has met, by these transports.
    Messages(&'a str),
}

/// Takes away files and signals. It must be the only thread.
///
/// # Errors
/// `Unavailable` where the process cannot give up privileges, and where this kernel has no
/// Landlock: a peer could then read all files of the user.
pub fn confine_paths() -> Result<()> {
    match enforce_paths()? {
        true => Ok(()),
        false => Err(refused("this kernel has no Landlock, so a peer could reach the user's files")
            .with_advice("Landlock must be on (`lsm=landlock,...` on the kernel's command line, Linux 5.13 or later)")),
    }
}

/// The same where the kernel has Landlock: for a process into which no peer has a way.
///
/// # Errors
/// `Unavailable` where the process cannot give up privileges.
pub fn confine_paths_if_possible() -> Result<()> {
    enforce_paths().map(drop)
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "confine", format!("a process that uses UCX: {why}"))
}

/// Whether files and signals are out of reach now.
fn enforce_paths() -> Result<bool> {
    let os = |e: rustix::io::Errno| Error::os("confine", e.raw_os_error(), "a process that uses UCX");
    rustix::thread::set_no_new_privs(true).map_err(os)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).map_err(os)?;
    let rule = |path: &&str, access| PathFd::new(path).map(|fd| PathBeneath::new(fd, access)).ok();
    let read = AccessFs::from_read(ABI::V5);
    let rules: Vec<_> = READ.iter().filter_map(|path| rule(path, read)).collect();
    let written: Vec<_> =
        WRITTEN.iter().filter_map(|path| rule(path, read | AccessFs::WriteFile | AccessFs::IoctlDev)).collect();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|r| r.scope(Scope::Signal))
        .and_then(|r| r.create())
        .and_then(|r| r.add_rules(rules.into_iter().chain(written).map(Ok::<_, landlock::RulesetError>)))
        .and_then(|r| r.restrict_self());
    match ruleset {
        Ok(status) => Ok(status.ruleset != RulesetStatus::NotEnforced),
        Err(e) => Err(refused(&e.to_string())),
    }
}

/// Takes away system calls, from all threads.
///
/// # Errors
/// `Unavailable` where the kernel has no such filters: such a process does not run without one.
pub fn confine_calls(used_for: ConfinedUse<'_>) -> Result<()> {
    let refused =
        |e: &dyn std::fmt::Display| Error::new(ErrorKind::Unavailable, "confine", format!("the filter of calls: {e}"));
    let filter = filter(used_for).map_err(|e| refused(&e))?;
    seccompiler::apply_filter_all_threads(&filter).map_err(|e| refused(&e))
}

fn filter(used_for: ConfinedUse<'_>) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(allowed(used_for)?, refuse, SeccompAction::Allow, arch)?.try_into()
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The system calls that such a process may make.
fn allowed(used_for: ConfinedUse<'_>) -> Result<Rules, seccompiler::BackendError> {
    let plain = [
        // Calls that move bytes over descriptors that there are.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_shutdown,
        libc::SYS_close,
        // Connections that come in, and what UCX asks of its own.
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        // Files that Landlock permits.
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_lseek,
        libc::SYS_getdents64,
        libc::SYS_readlinkat,
        // Waiting, waking and time.
        libc::SYS_ppoll,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_create1,
        libc::SYS_eventfd2,
        libc::SYS_timerfd_create,
        libc::SYS_timerfd_settime,
        libc::SYS_futex,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_sched_yield,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        libc::SYS_set_robust_list,
        // Its own memory.
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Itself, and its end.
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getrandom,
        libc::SYS_getcpu,
        libc::SYS_sched_getaffinity,
        libc::SYS_uname,
        libc::SYS_sysinfo,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_sigaltstack,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut rules: Rules = plain.into_iter().map(|call| (call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    for call in [libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_readlink, libc::SYS_stat] {
        rules.insert(call, Vec::new());
    }
    let word = |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let no_exec = || word(2, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0);
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(vec![no_exec()?])?]);
    rules.insert(libc::SYS_mprotect, vec![SeccompRule::new(vec![no_exec()?])?]);
    // Not `F_SETOWN` and its relatives: they send signals to other processes.
    let fcntl = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    let fcntl = fcntl.map(|what| SeccompRule::new(vec![word(1, SeccompCmpOp::Eq, what as u64)?]));
    rules.insert(libc::SYS_fcntl, fcntl.into_iter().collect::<Result<_, _>>()?);
    if matches!(used_for, ConfinedUse::Meeting(_)) {
        // The second filter, which can take away, and give nothing back.
        rules.insert(libc::SYS_seccomp, Vec::new());
        let no_new = word(0, SeccompCmpOp::Eq, libc::PR_SET_NO_NEW_PRIVS as u64)?;
        rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![no_new])?]);
    }
    // An abort of UCX ends the process by a signal to itself.
    let own = word(0, SeccompCmpOp::Eq, std::process::id().into())?;
    let abort = word(2, SeccompCmpOp::Eq, libc::SIGABRT as u64)?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own, abort])?]);
    // Questions about interfaces (`SIOC...`); devices of RDMA have others.
    let of_interfaces = word(1, SeccompCmpOp::MaskedEq(0xffff_ff00), 0x8900)?;
    let of_blocking = word(1, SeccompCmpOp::Eq, libc::FIONBIO)?;
    let transports = match used_for {
        ConfinedUse::Nothing => "",
        ConfinedUse::Memory(transports) | ConfinedUse::Meeting(transports) | ConfinedUse::Messages(transports) => {
            transports
        }
    };
    let plain = transports.split(',').all(|name| matches!(name, "tcp" | "sysv" | ""));
    let ioctl = vec![SeccompRule::new(vec![of_interfaces])?, SeccompRule::new(vec![of_blocking])?];
    rules.insert(libc::SYS_ioctl, if plain { ioctl } else { Vec::new() });
    if transports == "sysv" {
        // Peers are woken by datagrams to the addresses of their sockets.
        for call in [libc::SYS_shmdt, libc::SYS_shmget, libc::SYS_shmctl, libc::SYS_sendto] {
            rules.insert(call, Vec::new());
        }
        let no_exec = word(2, SeccompCmpOp::MaskedEq(libc::SHM_EXEC as u64), 0)?;
        rules.insert(libc::SYS_shmat, vec![SeccompRule::new(vec![no_exec])?]);
    } else {
        if matches!(used_for, ConfinedUse::Meeting(_) | ConfinedUse::Messages(_)) {
            // UCX gathers what it sends by TCP. Nobody who takes descriptors listens: a device
            // takes them from its controller alone. With this flag it would connect.
            let connects_not = word(2, SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64), 0)?;
            rules.insert(libc::SYS_sendmsg, vec![SeccompRule::new(vec![connects_not])?]);
        }
        if matches!(used_for, ConfinedUse::Meeting(_)) {
            rules.insert(libc::SYS_connect, Vec::new());
        }
        if used_for != ConfinedUse::Nothing {
            // Sockets that stay unconnected, to ask about interfaces: with no address to send to,
            // and no datagrams, they reach nobody.
            let mut sockets = Vec::new();
            for family in [libc::AF_INET, libc::AF_INET6] {
                // Others (MPTCP) connect where they send.
                for protocol in [0, libc::IPPROTO_TCP] {
                    let stream = word(1, SeccompCmpOp::MaskedEq(0xf), libc::SOCK_STREAM as u64)?;
                    let family = word(0, SeccompCmpOp::Eq, family as u64)?;
                    let protocol = word(2, SeccompCmpOp::Eq, protocol as u64)?;
                    sockets.push(SeccompRule::new(vec![family, stream, protocol])?);
                }
            }
            rules.insert(libc::SYS_socket, sockets);
        }
        let no_address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
        rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![no_address])?]);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use datapipes_testkit::child::in_child;

    use super::*;

    #[test]
    fn a_confined_process_reads_system_folders_alone_and_starts_nothing() {
        let secret = std::env::temp_dir().join(format!("datapipes-ucx-secret-{}", std::process::id()));
        std::fs::write(&secret, "secret").unwrap();
        in_child(&|| {
            let refused =
                |e: std::io::Error| assert!(matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)), "{e}");
            if let Err(e) = confine_paths() {
                println!("SKIPPED: files of a confined process: {e}");
            } else {
                refused(std::fs::read(&secret).unwrap_err());
                refused(std::fs::write(&secret, "changed").unwrap_err());
            }
            std::fs::read("/proc/self/status").unwrap();
            assert!(UnixDatagram::unbound().is_ok());
            confine_calls(ConfinedUse::Memory("sysv")).unwrap();
            refused(UnixDatagram::unbound().unwrap_err());
            refused(std::process::Command::new("/bin/true").status().unwrap_err());
            refused(std::thread::Builder::new().spawn(|| ()).map(drop).unwrap_err());
        });
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
        std::fs::remove_file(&secret).unwrap();
    }

    /// A peer that has taken a bridge over starts nothing before they have met, and connects to
    /// nobody once they have: not by `connect`, and not by sending.
    #[test]
    fn a_bridge_connects_until_it_has_met_and_not_by_sending() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        in_child(&|| {
            let unused = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
            let unused = unused.unwrap();
            confine_calls(ConfinedUse::Meeting("tcp")).unwrap();
            std::process::Command::new("/bin/true").status().unwrap_err();
            std::thread::Builder::new().spawn(|| ()).map(drop).unwrap_err();
            drop(std::net::TcpStream::connect(address).unwrap());
            // A socket whose protocol connects where it sends.
            const MPTCP: std::num::NonZeroU32 = std::num::NonZeroU32::new(262).unwrap();
            let protocol = rustix::net::Protocol::from_raw(MPTCP);
            let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
            assert_eq!(rustix::net::socket(family, kind, Some(protocol)).err(), Some(rustix::io::Errno::PERM));
            confine_calls(ConfinedUse::Messages("tcp")).unwrap();
            std::net::TcpStream::connect(address).unwrap_err();
            let sent = rustix::net::sendmsg_addr(
                &unused,
                &address,
                &[std::io::IoSlice::new(b"owned")],
                &mut rustix::net::SendAncillaryBuffer::default(),
                rustix::net::SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32),
            );
            assert_eq!(sent.err(), Some(rustix::io::Errno::PERM));
            // Nor does anything else send to an address.
            let own = i32::try_from(std::process::id()).unwrap();
            // SAFETY: these calls change a descriptor of this process and no memory.
            #[allow(unsafe_code)]
            let set = unsafe { libc::fcntl(0, libc::F_SETOWN, own) };
            assert_eq!(set, -1);
        });
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "before they have met");
        assert!(listener.accept().is_err(), "afterwards");
    }

    /// Memory that is shared does not become executable either.
    #[test]
    fn shared_memory_is_not_executable() {
        in_child(&|| {
            confine_calls(ConfinedUse::Messages("sysv")).unwrap();
            // SAFETY: the segment is new, is attached where the kernel chooses, and is removed.
            #[allow(unsafe_code)]
            unsafe {
                let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
                assert!(id >= 0);
                let (executable, plain) = (
                    libc::shmat(id, std::ptr::null(), libc::SHM_EXEC).addr(),
                    libc::shmat(id, std::ptr::null(), 0).addr(),
                );
                libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
                assert_eq!(executable, usize::MAX);
                assert_ne!(plain, usize::MAX);
            }
        });
    }
}
