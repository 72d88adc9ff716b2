//! Which instructions may be executed here.

use datapipes_core::topology::CpuFeatures;

/// The instructions for moving bytes that this process may execute.
///
/// A feature counts only where the topology says so *and* this processor's CPUID does: a recorded topology describes
/// another machine. That an instruction raises no SIGILL is no evidence (CLDEMOTE is a no-op where it is absent).
/// The fields are private, so that a value of this type is proof of a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instructions {
    x86: bool,
    erms: bool,
    fsrm: bool,
    avx2: bool,
    avx512f: bool,
    clwb: bool,
    clflushopt: bool,
    cldemote: bool,
}

impl Instructions {
    /// What both the discovered features and this processor have.
    pub fn detect(features: &CpuFeatures) -> Instructions {
        if features.source != "cpuid" {
            return Instructions::default();
        }
        let here = Instructions::of_this_processor();
        Instructions {
            x86: here.x86,
            erms: here.erms && features.erms,
            fsrm: here.fsrm && features.fsrm,
            avx2: here.avx2 && features.avx2,
            avx512f: here.avx512f && features.avx512f,
            clwb: here.clwb && features.clwb,
            clflushopt: here.clflushopt && features.clflushopt,
            cldemote: here.cldemote && features.cldemote,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn of_this_processor() -> Instructions {
        let id = raw_cpuid::CpuId::new();
        let seven = id.get_extended_feature_info();
        let has = |bit: fn(&raw_cpuid::ExtendedFeatures) -> bool| seven.as_ref().is_some_and(bit);
        // CLDEMOTE has no accessor in raw-cpuid: leaf 7, ECX, bit 25.
        let leaf_7_ecx = if raw_cpuid::cpuid!(0).eax >= 7 { raw_cpuid::cpuid!(7, 0).ecx } else { 0 };
        Instructions {
            x86: true,
            erms: has(raw_cpuid::ExtendedFeatures::has_rep_movsb_stosb),
            fsrm: raw_cpuid::cpuid!(0).eax >= 7 && raw_cpuid::cpuid!(7, 0).edx >> 4 & 1 == 1,
            // The standard library also asks whether the kernel saves the registers.
            avx2: std::arch::is_x86_feature_detected!("avx2"),
            avx512f: std::arch::is_x86_feature_detected!("avx512f"),
            clwb: has(raw_cpuid::ExtendedFeatures::has_clwb),
            clflushopt: has(raw_cpuid::ExtendedFeatures::has_clflushopt),
            cldemote: leaf_7_ecx >> 25 & 1 == 1,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of_this_processor() -> Instructions {
        Instructions::default()
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
