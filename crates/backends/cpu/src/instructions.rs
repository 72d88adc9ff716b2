//! The instructions that may be executed on this processor.

use datapipes_core::topology::CpuFeatures;

/// The instructions for moving bytes that this process may execute.
///
/// A feature counts only if both the topology and this processor's CPUID report it, because a
/// recorded topology describes another machine. Executing an instruction without SIGILL proves
/// nothing (CLDEMOTE is a no-op where it is absent). The fields are private, so a value of this
/// type proves a detection.
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
    /// Returns the instructions that both the discovered features and this processor have.
    pub fn detect(features: &CpuFeatures) -> CopyInstructions {
        let Some(CpuFeatures { erms, fsrm, avx2, avx512f, clwb, clflushopt, cldemote, .. }) = features.executable()
        else {
            return CopyInstructions::default();
        };
        CopyInstructions { x86: true, erms, fsrm, avx2, avx512f, clwb, clflushopt, cldemote }
    }

    /// `rep movsb`, with what makes it fast, or why it is not available.
    pub fn rep_movsb(&self) -> Result<String, String> {
        match (self.x86, self.erms, self.fsrm) {
            (false, ..) => Err(not_x86()),
            (true, true, true) => Ok("CPUID: ERMS, FSRM".into()),
            (true, true, false) => Ok("CPUID: ERMS".into()),
            (true, false, _) => Ok("x86-64; without ERMS it is slow".into()),
        }
    }

    /// AVX2, or why it is not available.
    pub fn avx2(&self) -> Result<String, String> {
        self.bit(self.avx2, "AVX2", "CPUID bit clear, or the kernel does not save its registers")
    }

    /// AVX-512 F, or why it is not available.
    pub fn avx512(&self) -> Result<String, String> {
        self.bit(self.avx512f, "AVX512F", "CPUID bit clear, or the kernel does not save its registers")
    }

    /// CLWB, or why it is not available.
    pub fn clwb(&self) -> Result<String, String> {
        self.bit(self.clwb, "CLWB", "CPUID bit clear")
    }

    /// CLFLUSHOPT, or why it is not available.
    pub fn clflushopt(&self) -> Result<String, String> {
        self.bit(self.clflushopt, "CLFLUSHOPT", "CPUID bit clear")
    }

    /// CLDEMOTE, or why it is not available.
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
