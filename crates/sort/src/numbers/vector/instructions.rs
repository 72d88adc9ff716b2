//! The instructions that this CPU was found to have, as values, and how code is compiled for them.
//!
//! A value of [`Avx512`] or [`Avx2`] exists only after the CPU was asked. So what is built on one
//! is safe to call; only operations that follow a pointer are not.
#![allow(unsafe_code)]

/// A proof that this CPU has the AVX-512 instructions that the sort uses.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Asks the CPU for the instructions (std caches the answer).
    pub(crate) fn detect() -> Option<Self> {
        let is_available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        is_available.then_some(Self(()))
    }
}

/// A proof that this CPU has AVX2 and the bit instructions that came with it.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Asks the CPU for the instructions (std caches the answer).
    pub(crate) fn detect() -> Option<Self> {
        let is_available = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        is_available.then_some(Self(()))
    }
}

/// A piece of work that is compiled once for each set of instructions.
pub(super) trait Work {
    type Output;

    /// Does the work. It must be `inline(always)`, or it is compiled without the instructions.
    fn run(self) -> Self::Output;
}

/// A set of instructions that the CPU has.
pub(super) trait Instructions: Copy {
    /// Does the work in a function that is compiled for these instructions. It is not inlined into
    /// callers without them, so work may call itself by it.
    fn run<W: Work>(self, work: W) -> W::Output;
}

impl Instructions for Avx512 {
    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Output {
        // SAFETY: the proof exists only where the CPU has these instructions (`Avx512::detect`).
        unsafe { with_avx512(work) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
fn with_avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

impl Instructions for Avx2 {
    #[inline(always)]
    fn run<W: Work>(self, work: W) -> W::Output {
        // SAFETY: the proof exists only where the CPU has these instructions (`Avx2::detect`).
        unsafe { with_avx2(work) }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn with_avx2<W: Work>(work: W) -> W::Output {
    work.run()
}
