//! What the kernel's own engines do for a process.

use std::path::Path;

use serde::Serialize;

/// The kernel's DMA engines, which a process cannot ask for a copy.
#[derive(Serialize)]
pub(super) struct KernelOffload {
    /// Their channels, by name.
    pub(super) channels: Vec<String>,
    /// What a process can reach instead.
    pub(super) why_not: &'static str,
}

const WHY_NOT: &str = "the kernel has no interface by which a process asks them for a copy; processes reach DSA by its own \
    queues (backend `dsa`), other engines by DPDK (backend `dmadev`), and copies between files by `kernel-copy`";

impl KernelOffload {
    pub(super) fn find() -> KernelOffload {
        KernelOffload::under(Path::new("/sys/class/dma"))
    }

    fn under(folder: &Path) -> KernelOffload {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut channels: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        channels.retain(|name| !name.contains(char::is_control));
        channels.sort();
        KernelOffload { channels, why_not: WHY_NOT }
    }

    pub(super) fn text(&self) -> String {
        let channels = match self.channels.as_slice() {
            [] => "no channels in /sys/class/dma".to_owned(),
            some => format!("{} channels ({}, ...), for the kernel alone", some.len(), some[0]),
        };
        format!("offload by the kernel\n  {channels}; {}\n\n", self.why_not)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_counted_and_absent_ones_named() {
        let folder = made_folder();
        assert!(KernelOffload::under(&folder.join("nothing")).text().contains("no channels"));
        for name in ["dma0chan1", "dma0chan0"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let found = KernelOffload::under(&folder);
        assert_eq!(found.channels, ["dma0chan0", "dma0chan1"]);
        assert!(found.text().contains("2 channels (dma0chan0, ...)"), "{}", found.text());
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn made_folder() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("dpipe-offload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
