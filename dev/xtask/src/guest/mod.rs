//! `cargo xtask guest`: the tests that need hardware which this machine lacks, in a virtual machine
//! that has it.
//!
//! ```text
//! test programs, built here ─┐
//! kernel, modules, busybox ──┼─ archive ─ QEMU (software emulation) ─ init ─ mounts our root over 9p, read-only ─ the tests
//! made-up hardware ──────────┘
//! ```
//!
//! | guest | hardware | what runs there |
//! |---|---|---|
//! | `pmem` | two NVDIMMs: a DAX file system, a DAX device | conformance and tests of persistent memory, with a real `MAP_SYNC` |
//! | `numa` | a second node, of memory alone, and an HMAT | tests and conformance of NUMA memory, what the firmware says of it |
//! | `nvme` | an NVMe disk, four namespaces with blocks of 512 bytes and 4 KiB | conformance of block devices, also by NVMe commands |
//! | `cxl` | memory behind CXL, made a node by a region | conformance of NUMA memory |
//! | `iommu` | the NVMe disk behind a virtio-IOMMU | NVMe commands, also refused ones |
//! | `rdma` | soft-RoCE: verbs over an interface of software | conformance and tests of remote memory by RDMA |
//!
//! What is not shown there: that a flush was forgotten (the emulation ignores flushes), and any
//! speed.

mod archive;
mod fetch;
mod machines;
mod modules;
mod parts;

use crate::TaskResult;
use crate::steps::{cargo, root};
use crate::tally::TestOutputParser;
use crate::test::OPTIONAL;
use machines::Guest;
use parts::Parts;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What a guest may take: a bound against hanging for ever.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

const HELP: &str = "\
usage: cargo xtask guest [--fetch] [GUEST ...]

  GUEST     pmem, numa, nvme, cxl, iommu or rdma; all of them by default
  --fetch   first get what is missing with the system's package tools (apt-get and dpkg), into the cache folder,
            with lists of its own; from the backports if there are any (`cxl` and `iommu` need these on Debian 12)

It needs a QEMU for x86-64, a Linux kernel with its modules, and a static busybox; for `rdma` also UCX, the verbs'
providers and iproute2. It looks for them
  in DATAPIPES_QEMU, DATAPIPES_GUEST_KERNEL, DATAPIPES_GUEST_MODULES (a folder lib/modules/VERSION), DATAPIPES_GUEST_BUSYBOX;
  in a folder into which packages were extracted: DATAPIPES_GUEST_DIR, by default datapipes/guest in the user's cache;
  in this system.
";

pub(crate) fn run(options: &[String]) -> TaskResult<()> {
    if options.iter().any(|o| o == "--help" || o == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let folder = parts::folder()?;
    // A system whose packages cannot be had lacks them as one that was never asked does: what is
    // there is used.
    let unfetched = match options.iter().any(|o| o == "--fetch") {
        true => fetch::run(&folder).err(),
        false => None,
    };
    let named: Vec<&str> = options.iter().map(String::as_str).filter(|o| *o != "--fetch").collect();
    if let Some(unknown) = named.iter().find(|name| Guest::ALL.iter().all(|g| g.name() != **name)) {
        return Err(format!("no guest is called `{unknown}`\n\n{HELP}").into());
    }
    let parts = match Parts::find(&folder) {
        Ok(parts) => parts,
        Err(why) => {
            let why = unfetched.map_or(why.clone(), |fetching| format!("{why}; fetching: {fetching}"));
            println!("SKIPPED: guest: {why} (`cargo xtask guest --help` says what it takes)");
            return Ok(());
        }
    };
    println!("{parts}");
    if let Some(why) = unfetched {
        println!("not fetched: {why}; these are used as they are");
    }
    let programs = programs()?;
    let mut failed = Vec::new();
    for guest in Guest::ALL.into_iter().filter(|g| named.is_empty() || named.contains(&g.name())) {
        println!("==> {}", guest.name());
        if let Some(why) = guest.lacks(&parts) {
            println!("SKIPPED: guest {}: {why}", guest.name());
            continue;
        }
        let begun = Instant::now();
        let outcome = boot(&parts, guest, &programs);
        let took = begun.elapsed().as_secs();
        match outcome {
            Ok(()) => println!("<== {}: ok in {took} s", guest.name()),
            Err(why) => {
                println!("<== {}: FAILED in {took} s: {why}", guest.name());
                failed.push(guest.name());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// Builds the test programs; by package and target, those of libraries by package.
///
/// The choice is that of `cargo xtask test`, whose programs these are: any other would build most
/// packages once more, with other features.
fn programs() -> TaskResult<BTreeMap<String, PathBuf>> {
    let mut command = cargo(&["test", "--workspace", "--features", OPTIONAL, "--no-run", "--message-format=json"]);
    command.arg("--lib");
    machines::test_targets().for_each(|name| _ = command.args(["--test", name]));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the test programs do not build".into());
    }
    let messages = output.stdout.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    Ok(messages.filter_map(|message| program(&message)).collect())
}

/// The name and the file of a test program that a message of cargo tells of.
fn program(message: &Value) -> Option<(String, PathBuf)> {
    let executable = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let package = package_of(message["package_id"].as_str()?)?;
    let (target, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
    let name = if kind == "test" { format!("{package}/{target}") } else { package.to_owned() };
    Some((name, executable.into()))
}

/// The name in `path+file:///there/datapipes#0.1.0` or in
/// `path+file:///there/net#datapipes-net@0.1.0`.
fn package_of(id: &str) -> Option<&str> {
    let (path, version) = id.rsplit_once('#')?;
    version.split_once('@').map(|(name, _)| name).or_else(|| path.rsplit('/').next())
}

/// Boots one guest, shows what its tests print, and fails unless each of its programs ran to its
/// end and passed.
fn boot(parts: &Parts, guest: Guest, programs: &BTreeMap<String, PathBuf>) -> TaskResult<()> {
    let work = root().join("target/guest");
    std::fs::create_dir_all(&work)?;
    let runs = guest.runs(programs)?;
    let initial = work.join(format!("{}.cpio", guest.name()));
    std::fs::write(&initial, machines::initial(parts, guest, &runs)?)?;
    let mut child = guest.command(parts, &work, &initial)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (over, hurry) = (std::sync::mpsc::channel::<()>(), rustix::process::Pid::from_child(&child));
    std::thread::spawn(move || {
        // The sender is dropped when the guest has ended.
        if over.1.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            println!("  the guest did not end within {PATIENCE:?}, and is killed");
            let _ = rustix::process::kill_process(hurry, rustix::process::Signal::KILL);
        }
    });
    let (mut tally, mut ended, mut last) = (TestOutputParser::default(), BTreeMap::new(), Vec::new());
    if let Some(console) = child.stdout.take() {
        for line in BufReader::new(console).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
            if let Some((name, code)) = machines::ended(&line) {
                ended.insert(name.to_owned(), code);
            }
            if tally.line(&line) {
                println!("  {line}");
            }
            last.push(line);
            if last.len() > 40 {
                last.remove(0);
            }
        }
    }
    let status = child.wait()?;
    drop(over.0);
    let totals = tally.totals();
    println!(
        "  {}: {} passed, {} failed, {} skipped, {} not applicable",
        guest.name(),
        totals.passed,
        totals.failed,
        totals.skipped.len(),
        totals.not_applicable.len()
    );
    let bad: Vec<String> = runs
        .iter()
        .filter_map(|run| match ended.get(&run.name) {
            Some(0) => None,
            Some(code) => Some(format!("{} ended with {code}", run.name)),
            None => Some(format!("{} did not run to its end", run.name)),
        })
        .collect();
    if bad.is_empty() && totals.failed == 0 && totals.passed > 0 && status.success() {
        return Ok(());
    }
    println!("  the end of the console:\n    {}", last.join("\n    "));
    Err(format!("{}; QEMU: {status}", if bad.is_empty() { "no test passed".to_owned() } else { bad.join(", ") }).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_told_apart_by_their_packages() {
        let built = |id: &str, kind: &str, target: &str, is_test: bool| {
            let target = serde_json::json!({ "name": target, "kind": [kind] });
            let profile = serde_json::json!({ "test": is_test });
            let message = serde_json::json!({
                "package_id": id, "target": target, "profile": profile, "executable": "/there/program",
            });
            program(&message).map(|(name, _)| name)
        };
        let (one, other) = ("path+file:///x/datapipes#0.1.0", "path+file:///x/net#datapipes-net@0.1.0");
        assert_eq!(built(one, "test", "conformance", true).as_deref(), Some("datapipes/conformance"));
        assert_eq!(built(other, "test", "conformance", true).as_deref(), Some("datapipes-net/conformance"));
        assert_eq!(built(other, "lib", "datapipes_net", true).as_deref(), Some("datapipes-net"));
        assert_eq!(built(other, "bin", "memory-holder", false), None);
    }

    #[test]
    fn every_guest_has_the_programs_that_it_runs() {
        let built = machines::tests().map(|name| (name.to_owned(), PathBuf::new()));
        let libraries = ["datapipes-core", "datapipes-file"].map(|name| (name.to_owned(), PathBuf::new()));
        let programs = built.chain(libraries).collect();
        Guest::ALL.iter().for_each(|guest| assert!(guest.runs(&programs).is_ok(), "{}", guest.name()));
    }
}
