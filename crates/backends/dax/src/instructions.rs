//! The instructions that may be executed on this processor.

pub(crate) use datapipes_core::memory::guarded::{Flush, Width};
use datapipes_core::topology::CpuFeatures;

/// The instructions for persistent memory that this process may execute. An instruction counts only
/// if both the topology and this processor's CPUID report it, since a recorded topology describes
/// another machine. The fields are private, so a value proves a detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushInstructions {
    x86: bool,
    avx2: bool,
    avx512f: bool,
    clwb: bool,
    clflushopt: bool,
}

impl FlushInstructions {
    /// Returns the instructions that both the discovered features and this processor have.
    pub fn detect(features: &CpuFeatures) -> FlushInstructions {
        let Some(CpuFeatures { avx2, avx512f, clwb, clflushopt, .. }) = features.executable() else {
            return FlushInstructions::default();
        };
        FlushInstructions { x86: true, avx2, avx512f, clwb, clflushopt }
    }

    /// Returns the same processor without some of its features, so that a test can take the paths
    /// of other processors.
    #[cfg(test)]
    pub(crate) fn without(self, features: &[&str]) -> FlushInstructions {
        let lacks = |name| features.contains(&name);
        FlushInstructions {
            x86: self.x86,
            avx2: self.avx2 && !lacks("avx2"),
            avx512f: self.avx512f && !lacks("avx512f"),
            clwb: self.clwb && !lacks("clwb"),
            clflushopt: self.clflushopt && !lacks("clflushopt"),
        }
    }

    /// Returns the best instruction to write lines back, or why there is none.
    pub(crate) fn flush(&self) -> Result<Flush, String> {
        match self {
            FlushInstructions { x86: false, .. } => Err(not_x86()),
            FlushInstructions { clwb: true, .. } => Ok(Flush::Clwb),
            FlushInstructions { clflushopt: true, .. } => Ok(Flush::Clflushopt),
            _ => Ok(Flush::Clflush),
        }
    }

    /// Returns the widest stores that bypass the caches, or why there are none.
    pub(crate) fn width(&self) -> Result<Width, String> {
        match self {
            FlushInstructions { x86: false, .. } => Err(not_x86()),
            FlushInstructions { avx512f: true, .. } => Ok(Width::Avx512),
            FlushInstructions { avx2: true, .. } => Ok(Width::Avx2),
            _ => Ok(Width::Sse2),
        }
    }

    /// Returns the names of the better flushes and stores that this processor lacks; empty where it
    /// has the best.
    pub(crate) fn absent(&self) -> String {
        let all = [
            ("CLWB", self.clwb),
            ("CLFLUSHOPT", self.clflushopt || self.clwb),
            ("AVX-512", self.avx512f),
            ("AVX2", self.avx2 || self.avx512f),
        ];
        let absent: Vec<&str> = all.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
        if absent.is_empty() { String::new() } else { format!("; absent: {}", absent.join(", ")) }
    }
}

fn not_x86() -> String {
    if cfg!(target_arch = "x86_64") {
        "the topology was not read from this processor's CPUID".into()
    } else {
        format!("it is written only for x86-64, and this is {}", std::env::consts::ARCH)
    }
}
