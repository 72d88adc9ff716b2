//! The processor's instructions, found only by CPUID.
//!
//! Executing an instruction without SIGILL does not detect it: CLDEMOTE is a no-op encoding on
//! processors that lack it. Under a hypervisor each CPUID leaves the guest (10 to 20 us measured),
//! so each leaf is read once in a process.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::topology::tree::Tree;

/// The instructions for moving bytes that exist. All are false where `source` is `none`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CpuFeatures {
    /// Where the bits come from: `cpuid`, `cpuinfo` (a recorded tree) or `none`. Only `cpuid`
    /// permits executing the instructions.
    pub source: String,
    /// `GenuineIntel`, `AuthenticAMD`, ...
    pub vendor: Option<String>,
    /// The marketing name.
    pub model_name: Option<String>,
    /// Whether a hypervisor is running and says so.
    pub hypervisor: bool,
    /// Enhanced `rep movsb`.
    pub erms: bool,
    /// Fast short `rep movsb`.
    pub fsrm: bool,
    /// AVX2, where the operating system saves its registers.
    pub avx2: bool,
    /// AVX-512 F, where the operating system saves its registers.
    pub avx512f: bool,
    /// CLWB: write back a line and keep it.
    pub clwb: bool,
    /// CLFLUSHOPT: write back a line and drop it, weakly ordered.
    pub clflushopt: bool,
    /// CLDEMOTE, a hint: move a line to a more distant cache.
    pub cldemote: bool,
    /// MOVDIR64B: a 64-byte direct store.
    pub movdir64b: bool,
    /// MOVDIRI: a 4- or 8-byte direct store.
    pub movdiri: bool,
    /// ENQCMD: enqueue a command to a shared device queue.
    pub enqcmd: bool,
    /// PREFETCHW: prefetch with the intent to write.
    pub prefetchw: bool,
    /// CLZERO: zero a line (AMD).
    pub clzero: bool,
    /// UMONITOR, UMWAIT, TPAUSE.
    pub waitpkg: bool,
}

impl CpuFeatures {
    /// The features of this processor, by CPUID; `source` is `none` where there is no CPUID.
    pub fn of_this_processor() -> &'static CpuFeatures {
        static FOUND: OnceLock<CpuFeatures> = OnceLock::new();
        FOUND.get_or_init(by_cpuid)
    }

    /// The instructions that this process may execute: those that both these features and this
    /// processor's CPUID report, because a recorded topology describes another machine. `None` if
    /// these features do not come from CPUID, and on other architectures.
    pub fn executable(&self) -> Option<CpuFeatures> {
        if self.source != "cpuid" || cfg!(not(target_arch = "x86_64")) {
            return None;
        }
        let here = CpuFeatures::of_this_processor();
        Some(CpuFeatures {
            erms: self.erms && here.erms,
            fsrm: self.fsrm && here.fsrm,
            avx2: self.avx2 && here.avx2,
            avx512f: self.avx512f && here.avx512f,
            clwb: self.clwb && here.clwb,
            clflushopt: self.clflushopt && here.clflushopt,
            cldemote: self.cldemote && here.cldemote,
            movdir64b: self.movdir64b && here.movdir64b,
            movdiri: self.movdiri && here.movdiri,
            enqcmd: self.enqcmd && here.enqcmd,
            prefetchw: self.prefetchw && here.prefetchw,
            clzero: self.clzero && here.clzero,
            waitpkg: self.waitpkg && here.waitpkg,
            ..self.clone()
        })
    }

    /// The features by name in a fixed order, for tables and fingerprints.
    pub fn named(&self) -> [(&'static str, bool); 13] {
        [
            ("erms", self.erms),
            ("fsrm", self.fsrm),
            ("avx2", self.avx2),
            ("avx512f", self.avx512f),
            ("clwb", self.clwb),
            ("clflushopt", self.clflushopt),
            ("cldemote", self.cldemote),
            ("movdir64b", self.movdir64b),
            ("movdiri", self.movdiri),
            ("enqcmd", self.enqcmd),
            ("prefetchw", self.prefetchw),
            ("clzero", self.clzero),
            ("waitpkg", self.waitpkg),
        ]
    }
}

/// Uses CPUID for a live machine, and the kernel's `flags` line for a recorded tree.
pub(super) fn discover(tree: &Tree) -> CpuFeatures {
    // The kernel writes a page for each core, so this is read only where it tells more.
    let cpuinfo = || tree.text("proc/cpuinfo").unwrap_or_default();
    let mut features = if tree.is_live() { CpuFeatures::of_this_processor().clone() } else { by_cpuinfo(&cpuinfo()) };
    if tree.is_live() && features.source == "none" {
        tree.unknown(format!("processor features: no CPUID on {}", std::env::consts::ARCH));
    }
    if features.vendor.is_none() || features.model_name.is_none() {
        let cpuinfo = cpuinfo();
        features.vendor = features.vendor.or_else(|| field(&cpuinfo, "vendor_id"));
        features.model_name = features.model_name.or_else(|| field(&cpuinfo, "model name"));
    }
    if features.model_name.is_none() {
        tree.unknown("processor: neither CPUID nor /proc/cpuinfo gives a model name");
    }
    features
}

/// Returns the value of the first `name : value` in cpuinfo.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn by_cpuinfo(cpuinfo: &str) -> CpuFeatures {
    let Some(flags) = field(cpuinfo, "flags") else {
        return CpuFeatures { source: "none".to_owned(), ..CpuFeatures::default() };
    };
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    CpuFeatures {
        source: "cpuinfo".to_owned(),
        vendor: None,
        model_name: None,
        hypervisor: has("hypervisor"),
        erms: has("erms"),
        fsrm: has("fsrm"),
        avx2: has("avx2"),
        avx512f: has("avx512f"),
        clwb: has("clwb"),
        clflushopt: has("clflushopt"),
        cldemote: has("cldemote"),
        movdir64b: has("movdir64b"),
        movdiri: has("movdiri"),
        enqcmd: has("enqcmd"),
        prefetchw: has("3dnowprefetch"),
        clzero: has("clzero"),
        waitpkg: has("waitpkg"),
    }
}

#[cfg(target_arch = "x86_64")]
fn by_cpuid() -> CpuFeatures {
    use raw_cpuid::{CpuIdResult, cpuid};

    const NOTHING: CpuIdResult = CpuIdResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    const BRAND: [u32; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];
    let bit = |register: u32, bit: u32| register >> bit & 1 == 1;
    let (basic, extended_max) = (cpuid!(0), cpuid!(0x8000_0000_u32).eax);
    // On Intel, a leaf above the maximum returns the data of another leaf. It must read as zero
    // here.
    let leaf = |number: u32| {
        let there = if number >= 0x8000_0000 { number <= extended_max } else { number <= basic.eax };
        if there { cpuid!(number) } else { NOTHING }
    };
    let one_ecx = leaf(1).ecx;
    let CpuIdResult { ebx: seven_ebx, ecx: seven_ecx, edx: seven_edx, .. } = leaf(7);
    let extended_ecx = leaf(0x8000_0001).ecx;
    let eight_ebx = leaf(0x8000_0008).ebx;
    CpuFeatures {
        source: "cpuid".to_owned(),
        vendor: text(&[basic.ebx, basic.edx, basic.ecx]),
        model_name: text(&BRAND.map(leaf).map(|r| [r.eax, r.ebx, r.ecx, r.edx]).concat()),
        hypervisor: bit(one_ecx, 31),
        erms: bit(seven_ebx, 9),
        fsrm: bit(seven_edx, 4),
        // The standard library also reads XCR0, so where the kernel does not save the registers,
        // this is false.
        avx2: std::arch::is_x86_feature_detected!("avx2"),
        avx512f: std::arch::is_x86_feature_detected!("avx512f"),
        clwb: bit(seven_ebx, 24),
        clflushopt: bit(seven_ebx, 23),
        cldemote: bit(seven_ecx, 25),
        movdir64b: bit(seven_ecx, 28),
        movdiri: bit(seven_ecx, 27),
        enqcmd: bit(seven_ecx, 29),
        prefetchw: bit(extended_ecx, 8),
        clzero: bit(eight_ebx, 0),
        waitpkg: bit(seven_ecx, 5),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_cpuid() -> CpuFeatures {
    CpuFeatures { source: "none".to_owned(), ..CpuFeatures::default() }
}

/// Returns the text in registers, up to a zero byte; `None` where it is empty or not text.
#[cfg(target_arch = "x86_64")]
fn text(registers: &[u32]) -> Option<String> {
    let bytes: Vec<u8> = registers.iter().flat_map(|r| r.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// Compares with another reader of the same leaves.
    #[test]
    fn leaves_are_read_as_raw_cpuid_reads_them() {
        let id = raw_cpuid::CpuId::new();
        let here = CpuFeatures::of_this_processor();
        assert_eq!(here.vendor.as_deref(), id.get_vendor_info().as_ref().map(|vendor| vendor.as_str()));
        let brand = id.get_processor_brand_string();
        assert_eq!(here.model_name.as_deref(), brand.as_ref().map(|brand| brand.as_str().trim()));
        let seven = id.get_extended_feature_info();
        let has = |bit: fn(&raw_cpuid::ExtendedFeatures) -> bool| seven.as_ref().is_some_and(bit);
        assert_eq!(here.erms, has(raw_cpuid::ExtendedFeatures::has_rep_movsb_stosb));
        assert_eq!(here.clwb, has(raw_cpuid::ExtendedFeatures::has_clwb));
        assert_eq!(here.clflushopt, has(raw_cpuid::ExtendedFeatures::has_clflushopt));
        assert_eq!(here.waitpkg, has(raw_cpuid::ExtendedFeatures::has_waitpkg));
        assert_eq!(here.hypervisor, id.get_feature_info().is_some_and(|one| one.has_hypervisor()));
    }

    #[test]
    fn texts_end_at_a_zero() {
        assert_eq!(text(&[u32::from_le_bytes(*b" ab "), u32::from_le_bytes(*b"c\0de")]).as_deref(), Some("ab c"));
        assert_eq!(text(&[0, 0]), None);
        assert_eq!(text(&[u32::MAX]), None);
    }
}
