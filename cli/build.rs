//! Links the program so that it starts in little time: a sort of a kilobyte is mostly its start.
//!
//! ```text
//! the unwinder     a part of the program instead of the library `libgcc_s`, which the loader maps,
//!                  relocates and initializes at each start
//! the address      the one that the linker chose: otherwise the loader writes 24,000 addresses into
//!                  100 pages, which are then copies of the program's own
//! the order        what a short sort runs lies side by side (`start.ld`): each 64 KiB of the file
//!                  that are touched cost a page fault, and they were in fifty places of 16 MB; the
//!                  addresses that the loader fills were in seven pages, which it copies
//! ```
//! The second takes 0.4 to 0.6 ms of the processor off 2.6 to 2.8 ms, and the first took 0.2 ms off
//! an empty program (benchmarks/results/2026-11-25-sort-start.md). The third takes a third of what
//! was left (benchmarks/results/2026-11-27-sort-start.md).
//! Libraries, stacks, heap and mappings are still at random addresses; the program's code is not.
//! Nothing here is needed for the program to work.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    let is_gnu_linux = set("CARGO_CFG_TARGET_OS") == "linux" && set("CARGO_CFG_TARGET_ENV") == "gnu";
    let is_static = set("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static");
    // The compiler that is asked must be that of the target. On other processors it was not tried.
    let is_tried = set("CARGO_CFG_TARGET_ARCH") == "x86_64" && set("HOST") == set("TARGET");
    if !is_gnu_linux || is_static || !is_tried {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-no-pie");
    order();
    let Ok(asked) = Command::new("cc").arg("-print-file-name=libgcc_eh.a").output() else { return };
    let Ok(path) = String::from_utf8(asked.stdout) else { return };
    let path = path.trim();
    // A compiler that has none answers with the bare name. Then the library is loaded as usual.
    if Path::new(path).is_absolute() && Path::new(path).is_file() {
        // All of it: the library comes before it on the command line, and only what is in the
        // program goes before that.
        for argument in ["-Wl,--whole-archive", path, "-Wl,--no-whole-archive"] {
            println!("cargo::rustc-link-arg-bins={argument}");
        }
    }
}

/// Lets the linker put functions side by side. Another linker than the usual one may not know such
/// scripts, so it gets none.
fn order() {
    println!("cargo::rerun-if-changed=start.ld");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if std::env::var_os("RUSTC_LINKER").is_some() || flags.contains("link") || flags.contains("fuse-ld") {
        return;
    }
    let Ok(folder) = std::env::var("CARGO_MANIFEST_DIR") else { return };
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", Path::new(&folder).join("start.ld").display());
}
