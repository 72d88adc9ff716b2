//! Work on a thread for which the kernel refuses some system calls, as a container's filter does,
//! or a file system that lacks them.

use std::collections::BTreeMap;

use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};

/// A system call that is refused, and how.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCall {
    /// Its number (`libc::SYS_fallocate`, say).
    pub number: i64,
    /// The errno that it fails with.
    pub errno: i32,
}

impl RefusedCall {
    /// The call is refused only with these bits in one of its arguments, which is of 32 bits; the
    /// first is number 0.
    pub fn with_bits(self, argument: u8, bits: u32) -> RefusedUse {
        RefusedUse { call: self, bits: Some((argument, bits)) }
    }
}

/// A system call that is refused, always or with certain bits in an argument.
#[derive(Clone, Copy, Debug)]
pub struct RefusedUse {
    call: RefusedCall,
    /// The argument, and the bits in it.
    bits: Option<(u8, u32)>,
}

impl From<RefusedCall> for RefusedUse {
    fn from(call: RefusedCall) -> RefusedUse {
        RefusedUse { call, bits: None }
    }
}

/// Runs `work` on a thread of its own, for which and for whose threads these calls are refused.
///
/// # Errors
/// Why no such filter can be set here, for a line that says that a test was skipped.
///
/// # Panics
/// As `work` does.
pub fn without_calls<R: Send>(
    refused: &[impl Into<RefusedUse> + Copy],
    work: impl FnOnce() -> R + Send,
) -> Result<R, String> {
    let mut programs = Vec::new();
    for refused in refused {
        let RefusedUse { call: RefusedCall { number, errno }, bits } = (*refused).into();
        let architecture = std::env::consts::ARCH.try_into().map_err(|_| "not an architecture with filters")?;
        let errno = u32::try_from(errno).map_err(|_| "an errno is positive")?;
        let rules = bits.map(rule).transpose().map_err(|e| format!("no filter can be made: {e}"))?;
        let rules = BTreeMap::from([(number, rules.into_iter().collect())]);
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), architecture);
        let program: seccompiler::BpfProgram =
            filter.and_then(TryInto::try_into).map_err(|e| format!("no filter can be made: {e}"))?;
        programs.push(program);
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            for program in &programs {
                apply_filter(program).map_err(|e| format!("no filter can be set: {e}"))?;
            }
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What a call must have to be refused.
fn rule((argument, bits): (u8, u32)) -> Result<SeccompRule, seccompiler::BackendError> {
    let bits = u64::from(bits);
    let masked = SeccompCmpOp::MaskedEq(bits);
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, bits)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempFolder;

    #[test]
    fn what_is_refused_is_refused_there_and_nowhere_else() {
        let folder = TempFolder::under(std::env::temp_dir()).unwrap();
        std::fs::write(folder.path("a"), "x").unwrap();
        let link = || std::fs::hard_link(folder.path("a"), folder.path("b"));
        let refused = RefusedCall { number: libc::SYS_linkat, errno: libc::EMLINK };
        match without_calls(&[refused], link) {
            Ok(outcome) => assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EMLINK)),
            Err(why) => println!("SKIPPED: what_is_refused_is_refused_there_and_nowhere_else: {why}"),
        }
        link().unwrap();
    }

    #[test]
    fn bits_of_an_argument_count() {
        let folder = TempFolder::under(std::env::temp_dir()).unwrap();
        std::fs::write(folder.path("a"), "x").unwrap();
        let refused = RefusedCall { number: libc::SYS_openat, errno: libc::EMLINK }.with_bits(2, libc::O_WRONLY as u32);
        let work = || {
            let write = std::fs::OpenOptions::new().write(true).open(folder.path("a"));
            (write.map_err(|e| e.raw_os_error()), std::fs::read(folder.path("a")))
        };
        match without_calls(&[refused], work) {
            Ok((write, read)) => {
                assert_eq!((write.unwrap_err(), read.unwrap()), (Some(libc::EMLINK), b"x".to_vec()));
            }
            Err(why) => println!("SKIPPED: bits_of_an_argument_count: {why}"),
        }
    }
}
