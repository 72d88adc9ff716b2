//! A client that checks nothing of what it asks UCX for: what the kernel enforces in the holder.
//!
//! This module's unsafe code starts copies of memory that lives until the connection is dropped.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use datapipes_core::process::page_size;
use datapipes_core::{ErrorKind, Locator, Result};
use datapipes_testkit::bounded;
use datapipes_ucx::{Outcome, Ucx};

use super::{Export, ExportableMemory, Exporter, ExporterOptions, HolderProgram};
use crate::control::messages::EndReason;
use crate::control::settings::{ExportAddress, NetworkOptions, RemoteRights, RemoteTransport};
use crate::remote::{Remote, RemoteLine, RemoteOptions, RemotePlace};

/// The crate's own program, which is built for the tests of the folder `tests`.
fn holder_program() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    Some(test.ancestors().nth(2)?.join("memory-holder")).filter(|path| path.exists())
}

#[test]
fn what_no_client_could_use_is_not_served() {
    let network = NetworkOptions::default()
        .transport(RemoteTransport::Network)
        .trusted_network(true)
        .transports("tcp".to_owned());
    let socket = std::env::temp_dir().join(format!("datapipes-unserved-{}", std::process::id()));
    let socket = format!("unix:{}", socket.display());
    let with =
        |transports: &str, devices: &str| network.clone().transports(transports.to_owned()).devices(devices.to_owned());
    for (address, network) in [
        (&*socket, network.clone()),
        (&*socket, with("all", "lo")),
        ("127.0.0.1:0", with("^tcp", "lo")),
        ("0.0.0.0:0", with("tcp", "lo,all")),
    ] {
        let asked = format!("{address} {network:?}");
        let listened = Exporter::listen(&address.parse().unwrap(), ExporterOptions::default().network(network));
        let kind = listened.map(drop).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidInput, "{asked}");
    }
}

struct Attack {
    memory: ExportableMemory,
    export: Export,
    _exporter: Exporter,
    line: RemoteLine,
}

/// Two pages of four are exported.
fn attack(network: &NetworkOptions, program: PathBuf, rights: RemoteRights) -> Result<Attack> {
    let page = page_size();
    let memory = ExportableMemory::allocate(4 * page)?;
    memory.dram().memory().write(0, &vec![1; 4 * page])?;
    let path = std::env::temp_dir().join(format!("datapipes-attack-{}-{rights:?}", std::process::id()));
    let address = match network.transport {
        RemoteTransport::SharedMemory => ExportAddress::Unix(path),
        RemoteTransport::Network => "127.0.0.1:0".parse()?,
    };
    let options = ExporterOptions::default().network(network.clone()).program(HolderProgram::At(program));
    let exporter = Exporter::listen(&address, options)?;
    let export = exporter.export(&memory, (page, 2 * page), rights)?;
    let remote = Remote::connect(export.ticket(), RemoteOptions::default().network(network.clone()))?;
    let place = RemotePlace::of(&remote.endpoint()).unwrap();
    Ok(Attack { memory, export, line: place.open()?, _exporter: exporter })
}

impl Attack {
    /// Lets the operation arrive, or fail, and returns why the holder has gone, if it has. The
    /// program's bytes are as they were.
    fn end(mut self, mut outcome: Outcome) -> Option<EndReason> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut flushed = false;
        while !self.line.control.stream.is_readable() && Instant::now() < until {
            self.line.memory.progress();
            outcome = match outcome {
                Outcome::Pending(request) => self.line.memory.ask(request),
                Outcome::Done if !std::mem::replace(&mut flushed, true) => self.line.memory.flush(),
                Outcome::Done | Outcome::Failed(_) => break,
            };
        }
        let said = self.line.control.receive(Instant::now() + Duration::from_secs(5)).ok();
        drop(self.line);
        assert!(self.memory.dram().memory().to_vec().unwrap().iter().all(|byte| *byte == 1), "bytes were changed");
        drop(self.export);
        said.and_then(|said| EndReason::from_bytes(&said))
    }
}

fn each_network(test: &'static str, run: impl Fn(&NetworkOptions, PathBuf) + Send + Sync + Copy + 'static) {
    if let Err(why) = Ucx::get() {
        return println!("SKIPPED: {test}: {why}");
    }
    let Some(program) = holder_program() else {
        return println!(
            "SKIPPED: {test}: the program memory-holder is not built: `cargo test` without `--lib` builds it"
        );
    };
    let tcp = NetworkOptions::default().transport(RemoteTransport::Network).trusted_network(true);
    for network in [NetworkOptions::default(), tcp] {
        let program = program.clone();
        bounded(test, move || run(&network, program));
    }
}

#[test]
fn a_put_with_a_key_for_reading_ends_the_holder_and_changes_nothing() {
    each_network("a put with a key for reading", |network, program| {
        let mut attack = attack(network, program, RemoteRights::Read).unwrap();
        let bytes = [9u8; 64];
        // SAFETY: the bytes live until after the connection was dropped.
        let outcome = unsafe { attack.line.memory.put(bytes.as_ptr(), bytes.len(), 0) };
        assert_eq!(attack.end(outcome), Some(EndReason::HolderEnded));
    });
}

#[test]
fn what_lies_beside_the_range_is_not_mapped() {
    each_network("what lies beside the range", |network, program| {
        let page = page_size() as u64;
        for (name, offset) in [("before", 0u64.wrapping_sub(page)), ("behind", 2 * page), ("far", 1 << 40)] {
            let mut attack = attack(network, program.clone(), RemoteRights::ReadWrite).unwrap();
            let bytes = [9u8; 64];
            // SAFETY: as above. That the offset lies outside is what is tested: the peer is a
            // holder.
            let outcome = unsafe { attack.line.memory.put(bytes.as_ptr(), bytes.len(), offset) };
            // Beside the range something else of the holder may be mapped, and may be overwritten:
            // what counts is that the bytes of the program are not (`end` compares them).
            let ended = attack.end(outcome);
            println!("{name}: {ended:?}");
        }
    });
}

/// The same attacks by the kernel's copies.
#[test]
fn what_the_kernel_copies_for_a_client_is_the_export_and_nothing_else() {
    const TEST: &str = "what the kernel copies for a client";
    if let Some(why) = crate::direct::peer::absence() {
        return println!("SKIPPED: {TEST}: {why}");
    }
    let Some(program) = holder_program() else {
        return println!(
            "SKIPPED: {TEST}: the program memory-holder is not built: `cargo test` without `--lib` builds it"
        );
    };
    bounded(TEST, move || {
        let page = page_size();
        let memory = ExportableMemory::allocate(4 * page).unwrap();
        memory.dram().memory().write(0, &vec![1; 4 * page]).unwrap();
        let path = std::env::temp_dir().join(format!("datapipes-attack-direct-{}", std::process::id()));
        let options = ExporterOptions::default().program(HolderProgram::At(program));
        let exporter = Exporter::listen(&ExportAddress::Unix(path), options).unwrap();
        for rights in [RemoteRights::Read, RemoteRights::ReadWrite] {
            let export = exporter.export(&memory, (page, 2 * page), rights).unwrap();
            let remote = Remote::connect(export.ticket(), RemoteOptions::default()).unwrap();
            let line = RemotePlace::of(&remote.endpoint()).unwrap().open_direct().unwrap();
            let mut bytes = [9u8; 64];
            // SAFETY: the bytes are this test's. That offsets lie outside is what is tested: the
            // kernel looks at what the holder maps.
            unsafe {
                line.memory.read(bytes.as_mut_ptr(), 64, 0).unwrap();
                assert_eq!(bytes, [1; 64]);
                let written = line.memory.write(bytes.as_ptr(), 64, 0);
                assert_eq!(written.is_ok(), rights == RemoteRights::ReadWrite, "{written:?}");
                // What lies there may be mapped by the holder, but it is not the program's.
                for offset in [0u64.wrapping_sub(page as u64), 2 * page as u64, 1 << 40] {
                    let _ = line.memory.write([9; 64].as_ptr(), 64, offset);
                }
                assert!(memory.dram().memory().to_vec().unwrap().iter().all(|byte| *byte == 1));
                export.revoke();
                // Before the client has let go, nobody else has the holder's number.
                let errno = line.memory.write(bytes.as_ptr(), 64, 0).unwrap_err().errno;
                assert_eq!(errno, rustix::io::Errno::SRCH);
                let process = rustix::process::Pid::from_raw(line.memory.process).unwrap();
                rustix::process::test_kill_process(process).unwrap();
            }
        }
    });
}
