//! What io_uring can do here, asked of the kernel itself.

use io_uring::{IoUring, Probe, opcode};
use serde::Serialize;

/// What a probe of io_uring found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UringFacts {
    /// Whether a ring can be had, and if not, why.
    pub available: Result<(), String>,
    /// The kernel's release.
    pub kernel: String,
    /// Features that the kernel reports for a ring.
    pub features: Vec<&'static str>,
    /// Operations that the kernel takes, of those that move or copy bytes.
    pub operations: Vec<&'static str>,
    /// Whether memory can be registered slice by slice (kernel 5.19), and if not, why.
    pub registered_memory: Result<(), String>,
}

impl UringFacts {
    /// Opens a ring, asks, and closes it.
    pub fn probe() -> UringFacts {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        // With nothing to submit: a filter may refuse to enter what it lets be set up.
        match IoUring::new(2).and_then(|ring| ring.submit().map(|_| ring)) {
            Ok(ring) => UringFacts {
                available: Ok(()),
                kernel,
                features: features(&ring),
                operations: operations(&ring),
                registered_memory: ring.submitter().register_buffers_sparse(1).map_err(|e| e.to_string()),
            },
            Err(e) => UringFacts::without(refusal(&e), kernel),
        }
    }

    /// As on a machine where io_uring is not to be used.
    pub(crate) fn forbidden() -> UringFacts {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        UringFacts::without("the configuration forbids it".into(), kernel)
    }

    fn without(why: String, kernel: String) -> UringFacts {
        let registered_memory = Err("there is no ring".into());
        UringFacts { available: Err(why), kernel, features: Vec::new(), operations: Vec::new(), registered_memory }
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

fn operations(ring: &IoUring) -> Vec<&'static str> {
    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        // A kernel before 5.6 does not answer, and lacks what a mover needs.
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

/// Why the kernel gives no ring, in words.
fn refusal(e: &std::io::Error) -> String {
    let why = match e.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring (ENOSYS)".to_owned(),
        Some(libc::EPERM | libc::EACCES) => match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
            Ok(level) if level.trim() != "0" => {
                format!("the sysctl kernel.io_uring_disabled is {} (EPERM)", level.trim())
            }
            _ => "refused to this process, as by a seccomp filter of a container (EPERM)".to_owned(),
        },
        Some(libc::ENOMEM) => "the limit of locked memory is too low (ENOMEM)".to_owned(),
        _ => e.to_string(),
    };
    format!("no io_uring: {why}")
}
