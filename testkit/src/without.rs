//! Work on a thread for which the kernel refuses some system calls, as a container's filter does, or a file system that
//! lacks them.

use std::collections::BTreeMap;

use seccompiler::{SeccompAction, SeccompFilter, apply_filter};

/// A system call that is refused, and how.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCall {
    /// Its number (`libc::SYS_fallocate`, say).
    pub number: i64,
    /// What it answers.
    pub errno: i32,
}

/// Runs `work` on a thread of its own, for which and for whose threads these calls are refused.
///
/// # Errors
/// Why no such filter can be set here, for a line that says that a test was skipped.
///
/// # Panics
/// As `work` does.
pub fn without_calls<R: Send>(refused: &[RefusedCall], work: impl FnOnce() -> R + Send) -> Result<R, String> {
    let mut programs = Vec::new();
    for RefusedCall { number, errno } in refused {
        let architecture = std::env::consts::ARCH.try_into().map_err(|_| "not an architecture with filters")?;
        let errno = u32::try_from(*errno).map_err(|_| "an errno is positive")?;
        let rules = BTreeMap::from([(*number, Vec::new())]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    #[test]
    fn what_is_refused_is_refused_there_and_nowhere_else() {
        let folder = Folder::under(std::env::temp_dir()).unwrap();
        std::fs::write(folder.path("a"), "x").unwrap();
        let link = || std::fs::hard_link(folder.path("a"), folder.path("b"));
        let refused = RefusedCall { number: libc::SYS_linkat, errno: libc::EMLINK };
        match without_calls(&[refused], link) {
            Ok(outcome) => assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EMLINK)),
            Err(why) => println!("SKIPPED: what_is_refused_is_refused_there_and_nowhere_else: {why}"),
        }
        link().unwrap();
    }
}
