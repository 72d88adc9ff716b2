//! The files that an example makes where it is given none.

use std::path::PathBuf;

use datapipes::{Error, Result};

/// Files of an example, which vanish with this value.
pub(crate) struct MadeFiles {
    example: &'static str,
    paths: Vec<PathBuf>,
}

impl MadeFiles {
    /// For the example of this name; there are none yet.
    pub(crate) fn of(example: &'static str) -> MadeFiles {
        MadeFiles { example, paths: Vec::new() }
    }

    /// The path of a file that is about to be made.
    pub(crate) fn path(&mut self, kind: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{}-{}.{kind}", self.example, std::process::id()));
        self.paths.push(path.clone());
        path
    }

    /// Makes a file of so many bytes: 64-bit numbers in random order.
    #[allow(dead_code)] // One figure makes its runs itself.
    pub(crate) fn numbers(&mut self, len: u64) -> Result<PathBuf> {
        let path = self.path("u64");
        let numbers: Vec<u8> = random_numbers().take(len as usize / 8).flat_map(u64::to_le_bytes).collect();
        std::fs::write(&path, numbers).map_err(|e| Error::io("write", e, path.display().to_string()))?;
        Ok(path)
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.paths {
            // One of them may not have been made.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Numbers in random order, the same in every run.
pub(crate) fn random_numbers() -> impl Iterator<Item = u64> {
    let mut state = 1_u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ (state >> 29)
    })
}
