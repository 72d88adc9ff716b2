//! The name by which programs find the shared library at run time. The number is that of the ABI.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdatapipes.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
