//! What the loader has to do before the program begins: a sort of a kilobyte is mostly that.
#![allow(clippy::unwrap_used)]

use std::fs;

#[test]
fn the_program_does_not_load_the_mathematical_library() {
    let program = fs::read(env!("CARGO_BIN_EXE_dpipe")).unwrap();
    // A library that is to be loaded is named among the strings of the dynamic section.
    let names = |library: &str| {
        let name = [b"\0", library.as_bytes(), b"\0"].concat();
        program.windows(name.len()).any(|bytes| bytes == name)
    };
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        assert!(names("libc.so.6"), "the names of libraries were not found");
        assert!(!names("libm.so.6"), "use the crate libm, not f64::exp and others (clippy.toml)");
    }
}
