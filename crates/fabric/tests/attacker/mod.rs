//! The bodies of attacking devices. They use raw packets and descriptors, without the library.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unsafe_code)]

pub(crate) mod greedy;
pub(crate) mod revoked;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use datapipes_core::Result;
use datapipes_fabric::channel::Head;
use datapipes_fabric::device::{Body, DeviceChannels, Functions};
use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde_json::{Map, Value, json};

/// The forgeries of a sender in its own page.
pub(crate) const SENDER_FORGERIES: &[&str] =
    &["counter", "counter-back", "slot", "length", "epoch", "sequence", "flags", "twice", "held"];
/// The forgeries of a receiver in its own page.
pub(crate) const RECEIVER_FORGERIES: &[&str] = &["counter", "slot", "epoch"];

type Attack = fn(&Value, &mut DeviceChannels<'_>) -> Result<()>;
struct Attacker(Attack, Value);

impl Body for Attacker {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        (self.0)(&self.1, stage)
    }
}

pub(crate) fn functions() -> Functions {
    macro_rules! attacks {
        ($functions:expr, $($name:literal => $attack:expr),* $(,)?) => {
            $functions$(.with_body($name, |arguments, _| {
                find_control();
                Ok(Box::new(Attacker($attack, arguments.parse()?)))
            }))*
        };
    }
    let functions = Functions::default().with_body("leaving", revoked::leaving);
    attacks!(functions,
        "system-calls" => system_calls,
        "pages" => pages,
        "forging-sender" => forging_sender,
        "forging-receiver" => forging_receiver,
        "overwriting" => overwriting,
        "flooding" => flooding,
        "nonsense" => nonsense,
        "asking" => asking,
        "lying" => lying,
        "vouching" => vouching,
        "forging-result" => forging_result,
        "silent" => |_, _| stay(),
        "overfilling" => overfilling,
        "keeping" => revoked::keeping,
        "forging-later" => revoked::forging_later,
        "passing-on" => revoked::passing_on,
        "taking" => revoked::taking,
        "peeking" => revoked::peeking,
        "colluding" => revoked::colluding,
        "honest" => revoked::honest,
        "eating" => greedy::eating,
        "tabling" => greedy::tabling,
        "multiplying" => greedy::multiplying,
        "speaking" => greedy::speaking,
        "panicking" => greedy::panicking,
        "chaining" => greedy::chaining,
        "pestering" => greedy::pestering,
        "reporting" => greedy::reporting,
        "always-ready" => greedy::always_ready,
    )
}

fn tell(stage: &mut DeviceChannels<'_>, value: &Value) -> Result<()> {
    stage.outlets[0].send(&serde_json::to_vec(value).unwrap(), Head::default())
}

/// The descriptor of the control socket.
static CONTROL: AtomicI32 = AtomicI32::new(0);

/// Finds the control socket: the only socket with separate packets. This is possible only before
/// the lock-down.
fn find_control() {
    let is_it = |fd: &i32| {
        // SAFETY: it only asks for a property of whatever is open there.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        rustix::net::sockopt::socket_type(fd).is_ok_and(|t| t == rustix::net::SocketType::SEQPACKET)
    };
    // It is the highest one. The others may be closed later.
    CONTROL.store((0..16).rev().find(is_it).unwrap(), Ordering::SeqCst);
}

fn control() -> BorrowedFd<'static> {
    // SAFETY: the control socket stays open.
    unsafe { BorrowedFd::borrow_raw(CONTROL.load(Ordering::SeqCst)) }
}

fn say(text: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    if fds.is_empty() {
        return rustix::net::send(control(), text, SendFlags::NOSIGNAL);
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
    let mut control_data = SendAncillaryBuffer::new(&mut space);
    assert!(control_data.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(control(), &[IoSlice::new(text)], &mut control_data, SendFlags::empty())
}

fn hear() -> (Value, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
    let mut control_data = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = vec![0; 64 << 10];
    // The library's half of this socket does not block. That is a property of its calls, not of the
    // socket.
    let got = recvmsg(control(), &mut [IoSliceMut::new(&mut buffer)], &mut control_data, RecvFlags::empty()).unwrap();
    let mut fds = Vec::new();
    for message in control_data.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    (serde_json::from_slice(&buffer[..got.bytes]).unwrap_or(Value::Null), fds)
}

/// Takes both halves of the next endpoint: its number, the writable memory, the readable memory.
fn raw_endpoint() -> (u64, Vec<OwnedFd>, Vec<OwnedFd>) {
    let (tell, own) = hear();
    let endpoint = tell["endpoint"]["endpoint"].as_u64().unwrap();
    say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
    let (_, others) = hear();
    (endpoint, own, others)
}

fn map(fd: &OwnedFd, protection: i32) -> std::result::Result<*mut u8, i32> {
    // SAFETY: it is a new mapping of one page.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(errno()) } else { Ok(at.cast()) }
}

fn map_writable(fd: &OwnedFd, len: usize) -> *mut u8 {
    // SAFETY: it is a new mapping.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "its own page must be writable: errno {}", errno());
    at.cast()
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Tries each system call that could reach beyond the device. Reports the kernel's answers.
fn system_calls(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let controller = arguments["controller"].as_i64().unwrap();
    let passwd = c"/etc/passwd".as_ptr() as i64;
    let own_fd = c"/proc/self/fd/0".as_ptr() as i64;
    let mem = c"/proc/self/mem".as_ptr() as i64;
    let shell = c"/bin/sh".as_ptr() as i64;
    let (at, rw) = (i64::from(libc::AT_FDCWD), i64::from(libc::O_RDWR));
    let mut clone_args = [0u64; 11];
    let clone_args = std::ptr::from_mut(&mut clone_args) as i64;
    let kill = i64::from(libc::SIGKILL);
    let calls: &[(&str, i64, [i64; 6])] = &[
        #[cfg(target_arch = "x86_64")]
        ("open", libc::SYS_open, [passwd, 0, 0, 0, 0, 0]),
        ("openat", libc::SYS_openat, [at, passwd, 0, 0, 0, 0]),
        ("openat of a descriptor through /proc", libc::SYS_openat, [at, own_fd, rw, 0, 0, 0]),
        ("openat of /proc/self/mem", libc::SYS_openat, [at, mem, rw, 0, 0, 0]),
        ("openat2", libc::SYS_openat2, [at, passwd, clone_args, 24, 0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, [at, passwd, 0, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        ("creat", libc::SYS_creat, [c"/tmp/x".as_ptr() as i64, 0o600, 0, 0, 0, 0]),
        ("fcntl", libc::SYS_fcntl, [0, i64::from(libc::F_SETFL), 0, 0, 0, 0]),
        ("dup", libc::SYS_dup, [0, 0, 0, 0, 0, 0]),
        ("ioctl", libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0]),
        ("ftruncate", libc::SYS_ftruncate, [0, 0, 0, 0, 0, 0]),
        ("fallocate", libc::SYS_fallocate, [0, 3, 0, 4096, 0, 0]),
        ("execve", libc::SYS_execve, [shell, 0, 0, 0, 0, 0]),
        ("execveat", libc::SYS_execveat, [at, shell, 0, 0, 0, 0]),
        #[cfg(target_arch = "x86_64")]
        ("fork", libc::SYS_fork, [0; 6]),
        #[cfg(target_arch = "x86_64")]
        ("vfork", libc::SYS_vfork, [0; 6]),
        ("clone of a process", libc::SYS_clone, [i64::from(libc::SIGCHLD), 0, 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, [clone_args, 88, 0, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [16, controller, 0, 0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [controller, 0, 0, 0, 0, 0]),
        ("process_vm_writev", libc::SYS_process_vm_writev, [controller, 0, 0, 0, 0, 0]),
        ("kill", libc::SYS_kill, [controller, kill, 0, 0, 0, 0]),
        ("kill all", libc::SYS_kill, [-1, kill, 0, 0, 0, 0]),
        ("tkill", libc::SYS_tkill, [controller, kill, 0, 0, 0, 0]),
        ("tgkill of another", libc::SYS_tgkill, [controller, controller, i64::from(libc::SIGABRT), 0, 0, 0]),
        (
            "tgkill of itself by another signal",
            libc::SYS_tgkill,
            [i64::from(std::process::id()), i64::from(std::process::id()), kill, 0, 0, 0],
        ),
        ("sendmsg", libc::SYS_sendmsg, [control().as_raw_fd().into(), 0, 0, 0, 0, 0]),
        ("sendmmsg", libc::SYS_sendmmsg, [control().as_raw_fd().into(), 0, 0, 0, 0, 0]),
        ("sendto with an address", libc::SYS_sendto, [0, 0, 0, 0, passwd, 16]),
        ("recvmsg of another descriptor", libc::SYS_recvmsg, [0, 0, 0, 0, 0, 0]),
        ("recvmsg that leaves it there", libc::SYS_recvmsg, [control().as_raw_fd().into(), 0, 2, 0, 0, 0]),
        ("recvmmsg", libc::SYS_recvmmsg, [control().as_raw_fd().into(), 0, 0, 0, 0, 0]),
        ("mmap of shared memory of nobody", libc::SYS_mmap, [0, 4096, 3, 0x21, -1, 0]),
        ("mmap of shared memory of nobody, otherwise", libc::SYS_mmap, [0, 4096, 3, 0x23, -1, 0]),
        ("clone with a table of its own", libc::SYS_clone, [0x0001_0900, 0, 0, 0, 0, 0]),
        ("close_range", libc::SYS_close_range, [900, 1000, 2, 0, 0, 0]),
        ("dup3", libc::SYS_dup3, [0, 60, 0, 0, 0, 0]),
        ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [controller, kill, 0, 0, 0, 0]),
        ("pidfd_open", libc::SYS_pidfd_open, [controller, 0, 0, 0, 0, 0]),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, [0, 0, 0, 0, 0, 0]),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal, [0, kill, 0, 0, 0, 0]),
        ("socket", libc::SYS_socket, [2, 1, 0, 0, 0, 0]),
        ("socketpair", libc::SYS_socketpair, [1, 1, 0, 0, 0, 0]),
        ("connect", libc::SYS_connect, [0, 0, 0, 0, 0, 0]),
        ("bind", libc::SYS_bind, [0, 0, 0, 0, 0, 0]),
        ("accept4", libc::SYS_accept4, [0, 0, 0, 0, 0, 0]),
        ("setsockopt", libc::SYS_setsockopt, [0, 1, 2, 0, 0, 0]),
        ("memfd_create", libc::SYS_memfd_create, [c"x".as_ptr() as i64, 0, 0, 0, 0, 0]),
        ("eventfd2", libc::SYS_eventfd2, [0, 0, 0, 0, 0, 0]),
        ("epoll_create1", libc::SYS_epoll_create1, [0; 6]),
        ("signalfd4", libc::SYS_signalfd4, [-1, 0, 8, 0, 0, 0]),
        ("timerfd_create", libc::SYS_timerfd_create, [1, 0, 0, 0, 0, 0]),
        ("pipe2", libc::SYS_pipe2, [0; 6]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [8, clone_args, 0, 0, 0, 0]),
        ("io_uring_enter", libc::SYS_io_uring_enter, [0; 6]),
        ("io_setup", libc::SYS_io_setup, [8, 0, 0, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [0; 6]),
        ("bpf", libc::SYS_bpf, [0; 6]),
        ("seccomp", libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]),
        ("prctl", libc::SYS_prctl, [1, 0, 0, 0, 0, 0]),
        ("setuid", libc::SYS_setuid, [0; 6]),
        ("setrlimit", libc::SYS_prlimit64, [0, 7, 0, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [0; 6]),
        #[cfg(target_arch = "x86_64")]
        ("unlink", libc::SYS_unlink, [c"/tmp/x".as_ptr() as i64, 0, 0, 0, 0, 0]),
        ("linkat", libc::SYS_linkat, [at, passwd, at, passwd, 0, 0]),
        ("renameat2", libc::SYS_renameat2, [at, passwd, at, passwd, 0, 0]),
        ("splice", libc::SYS_splice, [0; 6]),
        ("vmsplice", libc::SYS_vmsplice, [0; 6]),
        ("sendfile", libc::SYS_sendfile, [0; 6]),
        ("shmget", libc::SYS_shmget, [0, 4096, 0o600, 0, 0, 0]),
        ("mmap to execute", libc::SYS_mmap, [0, 4096, 5, 0x22, -1, 0]),
        ("mmap growing", libc::SYS_mmap, [0, 4096, 3, 0x22 | i64::from(libc::MAP_GROWSDOWN), -1, 0]),
        ("mmap of huge pages", libc::SYS_mmap, [0, 2 << 20, 1, 0x22 | i64::from(libc::MAP_HUGETLB), -1, 0]),
        ("mmap of a descriptor, growing", libc::SYS_mmap, [0, 4096, 1, 2 | i64::from(libc::MAP_GROWSDOWN), 3, 0]),
        ("mmap of a descriptor, in huge pages", libc::SYS_mmap, [0, 4096, 1, 2 | i64::from(libc::MAP_HUGETLB), 3, 0]),
        ("mmap locked", libc::SYS_mmap, [0, 4096, 1, 0x22 | i64::from(libc::MAP_LOCKED), -1, 0]),
        ("personality", libc::SYS_personality, [0; 6]),
    ];
    let mut answers = Map::new();
    for (name, number, a) in calls {
        // SAFETY: the kernel is expected to refuse the calls. The pointers among the arguments are
        // valid or null.
        let rc = unsafe { libc::syscall(*number, a[0], a[1], a[2], a[3], a[4], a[5]) };
        answers.insert((*name).into(), json!(if rc == -1 { errno() } else { 0 }));
    }
    tell(stage, &Value::Object(answers))
}

/// Tries what a party could do with the descriptors of a channel, in both roles.
fn pages(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    for _ in 0..2 {
        let (_, own, others) = raw_endpoint();
        let mut answers = Map::new();
        let mut note = |what: String, failed: bool| {
            answers.insert(what, json!(if failed { "failed" } else { "done" }));
        };
        // The last of its own descriptors is the state page, for reading. The first are its pages,
        // which are sealed by now.
        let own_pages = own.len() - 1;
        for (n, fd) in own.iter().chain(&others).enumerate() {
            let raw = fd.as_raw_fd();
            note(format!("{n}: map for writing"), map(fd, libc::PROT_READ | libc::PROT_WRITE).is_err());
            let read = map(fd, libc::PROT_READ).expect("it may be read");
            // SAFETY: the page was just mapped.
            let made = unsafe { libc::mprotect(read.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
            note(format!("{n}: mprotect for writing"), made != 0);
            // SAFETY: these are plain system calls on a descriptor of this process, with valid
            // pointers.
            unsafe {
                note(format!("{n}: pwrite"), libc::pwrite(raw, [1u8; 8].as_ptr().cast(), 8, 0) < 0);
                note(format!("{n}: ftruncate"), libc::syscall(libc::SYS_ftruncate, raw, 0) != 0);
                note(format!("{n}: punch"), libc::syscall(libc::SYS_fallocate, raw, 3, 0, 4096) != 0);
                note(
                    format!("{n}: seal"),
                    libc::syscall(libc::SYS_fcntl, raw, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) != 0,
                );
                let path = format!("/proc/self/fd/{raw}\0");
                note(format!("{n}: reopen"), libc::open(path.as_ptr().cast(), libc::O_RDWR) < 0);
            }
        }
        assert!(own_pages > 0);
        tell(stage, &Value::Object(answers))?;
    }
    Ok(())
}

/// Offsets in the pages: see `layout.rs`.
const SENT: usize = 0;
const RING: usize = 192;

fn store32(page: *mut u8, at: usize, value: u32) {
    // SAFETY: the address is within a page that is mapped for writing, and aligned.
    unsafe { &*page.add(at).cast::<AtomicU32>() }.store(value, Ordering::SeqCst);
}

fn store64(page: *mut u8, at: usize, value: u64) {
    // SAFETY: the address is within a page that is mapped for writing, and aligned.
    unsafe { &*page.add(at).cast::<AtomicU64>() }.store(value, Ordering::SeqCst);
}

fn wake(page: *mut u8) {
    // SAFETY: it is a futex in a mapped page.
    unsafe { libc::syscall(libc::SYS_futex, page, libc::FUTEX_WAKE, i32::MAX) };
}

/// Keeps what it has until it is ended.
fn stay() -> ! {
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}

/// Writes a descriptor at the n-th place of the ring.
fn forge(page: *mut u8, n: usize, slot: u32, len: u32, sequence: u64, flags: u32, epoch: u64) {
    let at = RING + 64 * n;
    store64(page, at, u64::from(slot) | u64::from(len) << 32);
    store64(page, at + 8, sequence);
    store64(page, at + 16, u64::from(flags));
    store64(page, at + 24, epoch);
}

fn forging_sender(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (tell_it, own) = hear();
    let endpoint = tell_it["endpoint"]["endpoint"].as_u64().unwrap();
    let epoch = tell_it["endpoint"]["kind"]["send"]["epoch"].as_u64().unwrap();
    let page = map_writable(&own[0], 20 << 10);
    say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
    hear();
    let mut sent = 1;
    match arguments["forgery"].as_str().unwrap() {
        "counter" => sent = 3,
        "counter-back" => sent = u32::MAX,
        "slot" => forge(page, 0, 2, 10, 0, 0, epoch),
        "length" => forge(page, 0, 0, 4097, 0, 0, epoch),
        "epoch" => forge(page, 0, 0, 10, 0, 0, epoch - 1),
        "sequence" => forge(page, 0, 0, 10, 1, 0, epoch),
        "flags" => forge(page, 0, 0, 10, 0, 4, epoch),
        // Two valid blocks use one slot. The second would change the first while it is processed.
        "held" => {
            forge(page, 0, 0, 10, 0, 0, epoch);
            forge(page, 1, 0, 10, 1, 0, epoch);
            sent = 2;
        }
        "twice" => {
            // The first is valid, so that the receiver takes it. The receiver drops it, which frees
            // the slot. So the second one has a used sequence number.
            forge(page, 0, 0, u32::MAX, 0, 0, epoch);
            forge(page, 1, 0, 10, 0, 0, epoch);
            sent = 2;
        }
        other => unreachable!("{other}"),
    }
    store32(page, SENT, sent);
    wake(page);
    tell(stage, &json!("forged"))?;
    stay()
}

fn forging_receiver(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (tell_it, own) = hear();
    let endpoint = tell_it["endpoint"]["endpoint"].as_u64().unwrap();
    let epoch = tell_it["endpoint"]["kind"]["receive"]["epoch"].as_u64().unwrap();
    let page = map_writable(&own[0], 12 << 10);
    say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
    let (_, others) = hear();
    // It waits until there is a block to reply to.
    let theirs = map(&others[0], libc::PROT_READ).unwrap();
    // SAFETY: the sender's page is mapped.
    while unsafe { &*theirs.cast::<AtomicU32>() }.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let (mut slot, mut of, mut count) = (0, epoch, 1);
    match arguments["forgery"].as_str().unwrap() {
        "counter" => count = 2,
        "slot" => slot = 1,
        "epoch" => of = epoch + 1,
        other => unreachable!("{other}"),
    }
    store64(page, RING, slot);
    store64(page, RING + 16, of);
    store32(page, SENT, count);
    wake(page);
    tell(stage, &json!("forged"))?;
    stay()
}

fn overwriting(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (tell_it, own) = hear();
    let endpoint = tell_it["endpoint"]["endpoint"].as_u64().unwrap();
    let epoch = tell_it["endpoint"]["kind"]["send"]["epoch"].as_u64().unwrap();
    let (page, payload) = (map_writable(&own[0], 20 << 10), map_writable(&own[1], 8 << 10));
    say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
    let (_, others) = hear();
    let theirs = map(&others[0], libc::PROT_READ).unwrap();
    // SAFETY: this is the first slot of its own payload.
    unsafe { payload.write_bytes(1, 4096) };
    forge(page, 0, 0, 4096, 0, 0, epoch);
    store32(page, SENT, 1);
    wake(page);
    // It waits until the receiver has copied the block. The receiver replies only later, so it
    // waits a moment. If the copy were not complete by then, the test would see a mixture.
    let _ = theirs;
    std::thread::sleep(std::time::Duration::from_secs(2));
    // SAFETY: as above.
    unsafe { payload.write_bytes(2, 4096) };
    tell(stage, &json!("overwritten"))?;
    stay()
}

fn flooding(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let refused = say(br#"{"unmapped":{"endpoint":1}}"#, &[control(); 8]);
    tell(stage, &json!(refused.map_or_else(|e| e.raw_os_error(), |_| 0)))?;
    // The kernel lets no descriptor through. Packets pass until the device is ended for them.
    while say(br#"{"unmapped":{"endpoint":1}}"#, &[]).is_ok() {}
    stay()
}

/// Gives the application an end over which the device sends anything, under the name of a result.
fn forging_result(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let answer = activate(&delegate_any(), "result", "copy");
    tell(stage, &answer)
}

/// Asks until one of its capabilities is delegated to the application. Returns that.
fn delegate_any() -> Value {
    for cap in (1..50).cycle() {
        say(json!({"delegate": {"cap": cap, "to": 0, "rights": 2}}).to_string().as_bytes(), &[]).unwrap();
        let (answer, _) = hear();
        let child = &answer["answer"]["created"]["cap"];
        if child.is_u64() {
            return child.clone();
        }
    }
    unreachable!("the numbers begin again")
}

/// Asks for an endpoint of a capability. Returns the answer as text.
fn activate(cap: &Value, port: &str, trust: &str) -> Value {
    let ask = json!({"cap": cap, "port": port, "rights": 2, "trust": trust});
    say(json!({ "activate": ask }).to_string().as_bytes(), &[]).unwrap();
    json!(hear().0.to_string())
}

fn nonsense(arguments: &Value, _: &mut DeviceChannels<'_>) -> Result<()> {
    let text = arguments["text"].as_str().unwrap();
    let huge = "[".repeat(60 << 10);
    say(if text == "huge" { huge.as_bytes() } else { text.as_bytes() }, &[]).unwrap();
    stay()
}

fn asking(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let asks = [
        json!({"launch": {"name": "mine", "role": "hub", "limits": {"memory_bytes": 1, "threads": 1}}}),
        json!({"channel": {"shape": {"credits": 1, "block_bytes": 64}}}),
        json!({"memory": {"len": 4096}}),
        json!({"run": {"device": 1, "ins": [], "outs": []}}),
        json!({"stop": {"device": 1}}),
        json!({"status": {"after": 0}}),
        json!({"delegate": {"cap": 1, "to": stage.attendant.party().0, "rights": 1}}),
        json!({"activate": {"cap": 1, "port": "stolen", "rights": 2, "trust": "copy"}}),
        json!({"revoke": {"cap": 1}}),
    ];
    let mut answers = Vec::new();
    for ask in asks {
        say(ask.to_string().as_bytes(), &[]).unwrap();
        answers.push(json!(hear().0.to_string()));
    }
    tell(stage, &Value::Array(answers))
}

fn lying(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (endpoint, own, _others) = {
        let (tell_it, own) = hear();
        let endpoint = tell_it["endpoint"]["endpoint"].as_u64().unwrap();
        map_writable(&own[1], 8 << 10);
        say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
        (endpoint, own, hear().1)
    };
    tell(stage, &json!("mapped"))?;
    // The device is told to release it.
    hear();
    say(json!({"unmapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]).unwrap();
    let _kept = own;
    stay()
}

/// Serves files, and replies to a read with more bytes than were asked for, or with those of
/// another offset.
fn overfilling(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let mut requests = stage.inlets[0].take().unwrap();
    loop {
        let block = requests.receive()?;
        let words = block.head().words;
        block.done()?;
        // Each request is replied to with a full block, and each second one with another offset.
        if words[0] != 1 {
            let at = words[1] + u64::from(words[2] == 7);
            let head = Head { words: [at, 0, 0, 0], end: false };
            // The first call may report that an earlier block was dropped.
            if stage.outlets[0].send(&[9; 4096], head).is_err() {
                stage.outlets[0].send(&[9; 4096], head)?;
            }
        }
    }
}

/// Gives the application an endpoint that trusts its sender.
fn vouching(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let cap = delegate_any();
    let answers = ["in-place", "carried", "copy"].map(|trust| activate(&cap, "stolen", trust));
    tell(stage, &Value::Array(answers.into()))
}

/// Opens a shared memory again, and tries all ways of changing it. Returns each way and whether it
/// was refused, or an errno if it cannot be opened.
pub(crate) fn write_through(path: &str) -> std::result::Result<Vec<(&'static str, bool)>, i32> {
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: plain system calls, with valid pointers, on a descriptor of this function.
    unsafe {
        let raw = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if raw < 0 {
            return Err(errno());
        }
        let shared =
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, raw, 0)
                == libc::MAP_FAILED;
        let attempts = vec![
            ("mmap", shared),
            ("pwrite", libc::pwrite(raw, [1u8; 8].as_ptr().cast(), 8, 0) < 0),
            ("ftruncate", libc::ftruncate(raw, 0) != 0),
            ("punch", libc::fallocate(raw, 3, 0, 4096) != 0),
            ("seal", libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) != 0),
        ];
        libc::close(raw);
        Ok(attempts)
    }
}

/// Whether a page that is mapped for reading cannot be made writable.
pub(crate) fn cannot_be_made_writable(at: usize) -> bool {
    // SAFETY: this changes no byte. It is a mapping of the library that stays as long as its
    // channel.
    unsafe { libc::mprotect(at as *mut libc::c_void, 4096, libc::PROT_READ | libc::PROT_WRITE) != 0 }
}
