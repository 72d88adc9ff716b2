//! The instructions that submit descriptors and wait for answers. None of them has ever been
//! executed by our tests: no machine of ours has an engine.
//!
//! This module's unsafe code promises: an instruction is executed only where CPUID reports it, of
//! which a value of [`SubmitInstructions`] is the proof. Source, target and registers are those of
//! Intel's Software Developer's Manual (ENQCMD, MOVDIR64B, UMONITOR, UMWAIT).
#![allow(unsafe_code)]

use datapipes_core::topology::CpuFeatures;

/// The instructions of this processor. The fields are private, so a value proves a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubmitInstructions {
    movdir64b: bool,
    enqcmd: bool,
    waitpkg: bool,
}

impl SubmitInstructions {
    pub(crate) fn detect(features: &CpuFeatures) -> SubmitInstructions {
        features.executable().map_or_else(SubmitInstructions::default, |here| SubmitInstructions {
            movdir64b: here.movdir64b,
            enqcmd: here.enqcmd,
            waitpkg: here.waitpkg,
        })
    }

    pub(crate) fn movdir64b(self) -> Option<Movdir64b> {
        self.movdir64b.then_some(Movdir64b(()))
    }

    pub(crate) fn enqcmd(self) -> Option<Enqcmd> {
        self.enqcmd.then_some(Enqcmd(()))
    }

    pub(crate) fn umwait(self) -> Option<Umwait> {
        self.waitpkg.then_some(Umwait(()))
    }
}

/// Proves that this processor has MOVDIR64B.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Movdir64b(());

/// Proves that this processor has ENQCMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enqcmd(());

/// Proves that this processor has UMONITOR and UMWAIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Umwait(());

impl Movdir64b {
    /// Stores 64 bytes to a portal at once, after all earlier stores.
    ///
    /// # Safety
    /// `portal` is the address of 64 bytes of a mapped portal, a multiple of 64, and the caller
    /// answers for what the descriptor does.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn store(self, portal: *mut u8, descriptor: &[u8; 64]) {
        // SAFETY: the value proves that the instruction exists; the source is a reference, and the
        // caller answers for the target. The fence keeps the descriptor behind the bytes that the
        // engine is to read.
        unsafe {
            std::arch::asm!(
                "sfence",
                "movdir64b {portal}, zmmword ptr [{from}]",
                portal = in(reg) portal,
                from = in(reg) descriptor.as_ptr(),
                options(nostack, preserves_flags)
            );
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) unsafe fn store(self, _portal: *mut u8, _descriptor: &[u8; 64]) {
        unreachable!("no value of this type exists on this architecture")
    }
}

impl Enqcmd {
    /// Enqueues 64 bytes at a portal. Returns whether the queue took them.
    ///
    /// # Safety
    /// As for [`Movdir64b::store`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn store(self, portal: *mut u8, descriptor: &[u8; 64]) -> bool {
        let refused: u8;
        // SAFETY: as in `Movdir64b::store`. The zero flag says that the queue did not take it.
        unsafe {
            std::arch::asm!(
                "sfence",
                "enqcmd {portal}, zmmword ptr [{from}]",
                "setz {refused}",
                portal = in(reg) portal,
                from = in(reg) descriptor.as_ptr(),
                refused = lateout(reg_byte) refused,
                options(nostack)
            );
        }
        refused == 0
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) unsafe fn store(self, _portal: *mut u8, _descriptor: &[u8; 64]) -> bool {
        unreachable!("no value of this type exists on this architecture")
    }
}

/// The time stamps for which UMWAIT sleeps at most; the kernel allows less (`umwait_control`).
#[cfg(target_arch = "x86_64")]
const MAX_UMWAIT_TICKS: u64 = 100_000;

impl Umwait {
    /// Sleeps until the line of `watched` is written or some tens of microseconds have passed,
    /// unless `is_written` says that it already is.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn wait<T>(self, watched: &T, is_written: impl Fn() -> bool) {
        // SAFETY: the value proves that the instructions exist. UMONITOR reads nothing, and the
        // address is that of a reference.
        unsafe {
            std::arch::asm!(
                "umonitor {line}",
                line = in(reg) std::ptr::from_ref(watched),
                options(nostack, preserves_flags)
            );
        }
        if is_written() {
            return;
        }
        // SAFETY: reading the time stamp counter has no precondition.
        let until = unsafe { std::arch::x86_64::_rdtsc() }.saturating_add(MAX_UMWAIT_TICKS);
        // SAFETY: as above; UMWAIT changes only flags. State 0 is C0.2, which saves more.
        unsafe {
            std::arch::asm!(
                "umwait {state:e}",
                state = in(reg) 0u32,
                in("eax") until as u32,
                in("edx") (until >> 32) as u32,
                options(nostack)
            );
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn wait<T>(self, _watched: &T, _is_written: impl Fn() -> bool) {
        unreachable!("no value of this type exists on this architecture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_processor_lacks_cannot_be_executed() {
        let none = SubmitInstructions::detect(&CpuFeatures::default());
        assert!(none.movdir64b().is_none() && none.enqcmd().is_none() && none.umwait().is_none());
    }

    #[test]
    fn movdir64b_stores_all_bytes_at_their_place() {
        // To ordinary memory, since there is no portal.
        let Some(movdir64b) = SubmitInstructions::detect(CpuFeatures::of_this_processor()).movdir64b() else {
            return println!("NOT APPLICABLE: movdir64b_stores_all_bytes_at_their_place: no MOVDIR64B");
        };
        #[repr(align(64))]
        struct Lines([u8; 192]);
        let mut lines = Lines([0; 192]);
        let bytes: [u8; 64] = std::array::from_fn(|i| i as u8 + 1);
        // SAFETY: the middle 64 bytes are aligned and borrowed mutably.
        unsafe { movdir64b.store(lines.0[64..].as_mut_ptr(), &bytes) };
        assert_eq!((&lines.0[..64], &lines.0[64..128], &lines.0[128..]), (&[0; 64][..], &bytes[..], &[0; 64][..]));
    }

    #[test]
    fn umwait_ends_without_a_write() {
        let Some(umwait) = SubmitInstructions::detect(CpuFeatures::of_this_processor()).umwait() else {
            return println!("NOT APPLICABLE: umwait_ends_without_a_write: no UMWAIT");
        };
        let watched = std::sync::atomic::AtomicU64::new(0);
        umwait.wait(&watched, || false);
        umwait.wait(&watched, || true);
    }
}
