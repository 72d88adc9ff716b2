//! What io_uring supports here, found by asking the kernel.

use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use serde::Serialize;

/// The results of a probe of io_uring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UringFacts {
    /// Whether a ring can be made, or why not.
    pub available: Result<(), String>,
    /// The kernel's release.
    pub kernel: String,
    /// Features that the kernel reports for a ring.
    pub features: Vec<&'static str>,
    /// The supported operations that move or copy bytes.
    pub operations: Vec<&'static str>,
    /// Whether memory can be registered slice by slice (kernel 5.19), or why not.
    pub registered_memory: Result<(), String>,
    /// Whether commands to a device can be passed through (kernel 5.19), or why not.
    pub commands: Result<(), String>,
}

impl UringFacts {
    /// Opens a ring, queries it, and closes it.
    pub fn probe() -> UringFacts {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        // This enters the ring with nothing to submit: a filter may allow the setup but refuse the
        // entry.
        match IoUring::new(2).and_then(|ring| ring.submit().map(|_| ring)) {
            Ok(ring) => UringFacts {
                available: Ok(()),
                kernel,
                features: features(&ring),
                operations: operations(&ring),
                registered_memory: ring.submitter().register_buffers_sparse(1).map_err(|e| e.to_string()),
                commands: commands(&ring),
            },
            Err(e) => UringFacts::without(refusal(&e), kernel),
        }
    }

    /// Returns the facts of a machine where io_uring must not be used.
    pub(crate) fn forbidden() -> UringFacts {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        UringFacts::without("the configuration forbids it".into(), kernel)
    }

    fn without(why: String, kernel: String) -> UringFacts {
        let registered_memory = Err("there is no ring".into());
        UringFacts {
            commands: Err(why.clone()),
            available: Err(why),
            kernel,
            features: Vec::new(),
            operations: Vec::new(),
            registered_memory,
        }
    }
}

fn features(ring: &IoUring) -> Vec<&'static str> {
    let p = ring.params();
    let all = [
        ("single-mmap", p.is_feature_single_mmap()),
        ("nodrop", p.is_feature_nodrop()),
        ("submit-stable", p.is_feature_submit_stable()),
        ("fast-poll", p.is_feature_fast_poll()),
        ("ext-arg", p.is_feature_ext_arg()),
        ("native-workers", p.is_feature_native_workers()),
        ("resource-tagging", p.is_feature_resource_tagging()),
        ("skip-cqe-on-success", p.is_feature_skip_cqe_on_success()),
        ("linked-file", p.is_feature_linked_file()),
        ("min-timeout", p.is_feature_min_timeout()),
    ];
    all.iter().filter(|f| f.1).map(|f| f.0).collect()
}

/// Returns whether commands can be passed through: the operation, and a ring whose entries have
/// room for them.
fn commands(ring: &IoUring) -> Result<(), String> {
    if !operations(ring).contains(&"uring-cmd") {
        return Err("the kernel has no IORING_OP_URING_CMD (kernel 5.19)".into());
    }
    match IoUring::<squeue::Entry128, cqueue::Entry32>::builder().build(2) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("a ring with entries of 128 bytes is refused: {e}")),
    }
}

fn operations(ring: &IoUring) -> Vec<&'static str> {
    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        // A kernel before 5.6 does not answer, and lacks operations that a mover needs.
        return Vec::new();
    }
    let all = [
        ("read", opcode::Read::CODE),
        ("write", opcode::Write::CODE),
        ("read-fixed", opcode::ReadFixed::CODE),
        ("write-fixed", opcode::WriteFixed::CODE),
        ("fsync", opcode::Fsync::CODE),
        ("fallocate", opcode::Fallocate::CODE),
        ("splice", opcode::Splice::CODE),
        ("msg-ring", opcode::MsgRingData::CODE),
        ("uring-cmd", opcode::UringCmd80::CODE),
        ("futex-wait", opcode::FutexWait::CODE),
    ];
    all.iter().filter(|o| probe.is_supported(o.1)).map(|o| o.0).collect()
}

/// Returns why the kernel refuses a ring, in words.
fn refusal(e: &std::io::Error) -> String {
    let why = match e.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring (ENOSYS)".to_owned(),
        Some(libc::EPERM | libc::EACCES) => match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
            Ok(level) if level.trim() != "0" => {
                format!("the sysctl kernel.io_uring_disabled is {} (EPERM)", level.trim())
            }
            _ => "the process may not use it, for example because of a container's seccomp filter (EPERM)".to_owned(),
        },
        Some(libc::ENOMEM) => "the limit of locked memory is too low (ENOMEM)".to_owned(),
        _ => e.to_string(),
    };
    format!("no io_uring: {why}")
}
