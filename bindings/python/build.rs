//! Refuses interpreters that this package cannot serve, before it is compiled for them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if pyo3_build_config::get().is_free_threaded() {
        let why = "it has no stable interface; use the ordinary build";
        println!("cargo::error=datapipes does not support the free-threaded build of CPython (3.13t, 3.14t): {why}");
    }
}
