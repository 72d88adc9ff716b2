//! The declarations of UCX's interface against its header, by a C program. Skipped where a compiler
//! or the header is absent.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use datapipes_testkit::TempFolder;

#[test]
fn structures_are_those_of_the_header() {
    if !Path::new("/usr/include/ucp/api/ucp.h").exists() {
        println!("SKIPPED: structures are those of the header: libucx-dev is not installed");
        return;
    }
    let Some(compiler) = ["cc", "gcc", "clang"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok())
    else {
        println!("SKIPPED: structures are those of the header: there is no C compiler");
        return;
    };
    let ours = datapipes_ucx::ucx_layout();
    let rows: String = ours.iter().map(|(name, _)| format!("  printf(\"%lld\\n\", (long long)({name}));\n")).collect();
    let program =
        format!("#include <stddef.h>\n#include <stdio.h>\n#include <ucp/api/ucp.h>\nint main(void) {{\n{rows}}}\n");
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, binary) = (folder.at().join("layout.c"), folder.at().join("layout"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new(compiler).arg(&source).arg("-o").arg(&binary).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let theirs: Vec<i64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), ours.len());
    let differ: Vec<_> = ours.iter().zip(&theirs).filter(|((_, ours), theirs)| *ours as i64 != **theirs).collect();
    assert!(differ.is_empty(), "name, ours, theirs: {differ:?}");
    assert!(ours.len() > 50);
}
