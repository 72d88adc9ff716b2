//! Which instructions may be executed here.

use datapipes_core::topology::CpuFeatures;

/// The instructions for moving bytes that this process may execute.
///
/// A feature counts only where the topology says so *and* this processor's CPUID does: a recorded
/// topology describes another machine. That an instruction raises no SIGILL is no evidence
/// (CLDEMOTE is a no-op where it is absent). The fields are private, so that a value of this type
/// is proof of a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyInstructions {
    x86: bool,
    erms: bool,
    fsrm: bool,
    avx2: bool,
    avx512f: bool,
    clwb: bool,
    clflushopt: bool,
    cldemote: bool,
}

impl CopyInstructions {
    /// What both the discovered features and this processor have.
    pub fn detect(features: &CpuFeatures) -> CopyInstructions {
        if features.source != "cpuid" {
            return CopyInstructions::default();
        }
        let here = CpuFeatures::of_this_processor();
        CopyInstructions {
            x86: cfg!(target_arch = "x86_64"),
            erms: here.erms && features.erms,
            fsrm: here.fsrm && features.fsrm,
            avx2: here.avx2 && features.avx2,
            avx512f: here.avx512f && features.avx512f,
            clwb: here.clwb && features.clwb,
            clflushopt: here.clflushopt && features.clflushopt,
            cldemote: here.cldemote && features.cldemote,
        }
    }

    /// `rep movsb`, and what makes it fast; or why not.
    pub fn rep_movsb(&self) -> Result<String, String> {
        match (self.x86, self.erms, self.fsrm) {
            (false, ..) => Err(not_x86()),
            (true, true, true) => Ok("CPUID: ERMS, FSRM".into()),
            (true, true, false) => Ok("CPUID: ERMS".into()),
            (true, false, _) => Ok("x86-64; without ERMS it is slow".into()),
        }
    }

    /// AVX2, or why not.
    pub fn avx2(&self) -> Result<String, String> {
        self.bit(self.avx2, "AVX2", "CPUID bit clear, or the kernel does not save its registers")
    }

    /// AVX-512 F, or why not.
    pub fn avx512(&self) -> Result<String, String> {
        self.bit(self.avx512f, "AVX512F", "CPUID bit clear, or the kernel does not save its registers")
    }

    /// CLWB, or why not.
    pub fn clwb(&self) -> Result<String, String> {
        self.bit(self.clwb, "CLWB", "CPUID bit clear")
    }

    /// CLFLUSHOPT, or why not.
    pub fn clflushopt(&self) -> Result<String, String> {
        self.bit(self.clflushopt, "CLFLUSHOPT", "CPUID bit clear")
    }

    /// CLDEMOTE, or why not.
    pub fn cldemote(&self) -> Result<String, String> {
        self.bit(self.cldemote, "CLDEMOTE", "CPUID bit clear; here it executes as a no-op")
    }

    fn bit(&self, there: bool, name: &str, why_not: &str) -> Result<String, String> {
        match (self.x86, there) {
            (false, _) => Err(not_x86()),
            (true, true) => Ok(format!("CPUID: {name}")),
            (true, false) => Err(format!("{name}: {why_not}")),
        }
    }
}

fn not_x86() -> String {
    if cfg!(target_arch = "x86_64") {
        "the topology was not read from this processor's CPUID".into()
    } else {
        format!("not an instruction of {}", std::env::consts::ARCH)
    }
}
