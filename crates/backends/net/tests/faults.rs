//! The other side is lost in all ways: transfers end with an error, their leases end, and nothing
//! touches the memory afterwards.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_net::{ExportableMemory, NetworkOptions, Remote, RemoteRights, RemoteTicket};
use datapipes_testkit::{bounded, until};
use scene::{Scene, connect, exporter, has_ucx, holders, holders_of, is_holder, networks, options, pattern};

const LEN: usize = 8 << 20;

fn whole(len: usize) -> Span {
    Span { source: 0, target: 0, len: len as u64 }
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// In a process of its own: exports memory, prints the ticket, and waits to be killed.
#[test]
#[ignore = "run by an_exporter_that_is_killed_ends_transfers"]
fn exporting_process() {
    let Ok(name) = std::env::var("DATAPIPES_NETWORK") else { return };
    let network = networks().into_iter().find(|(known, _)| *known == name).unwrap().1;
    let memory = ExportableMemory::allocate(LEN).unwrap();
    let exporter = exporter(&network);
    let export = exporter.export(&memory, (0, LEN), RemoteRights::ReadWrite).unwrap();
    print!("\nTICKET {}", export.ticket().secret_text());
    std::io::stdout().flush().unwrap();
    if std::env::var_os("DATAPIPES_FORKS").is_some() {
        // A child that has copies of all descriptors, made while a client is connected.
        std::io::stdin().read_line(&mut String::new()).unwrap();
        datapipes_testkit::child::in_child(&|| {
            println!("\nFORKED {}", std::process::id());
            std::io::stdout().flush().unwrap();
            std::thread::sleep(Duration::from_secs(100));
        });
    }
    std::thread::sleep(Duration::from_secs(100));
}

fn exporting_child(name: &str) -> (Child, RemoteTicket) {
    let mut command = exporting_command(name);
    let mut child = command.spawn().unwrap();
    let ticket = said(&mut BufReader::new(child.stdout.take().unwrap()), "TICKET ");
    (child, RemoteTicket::from_secret_text(&ticket).unwrap())
}

fn exporting_command(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "exporting_process", "--nocapture", "--test-threads=1"]);
    command.env("DATAPIPES_NETWORK", name).stdout(Stdio::piped());
    command
}

/// What a line says behind its first word.
fn said(lines: &mut impl BufRead, word: &str) -> String {
    lines.lines().map_while(Result::ok).find_map(|line| line.strip_prefix(word).map(str::to_owned)).unwrap()
}

/// What a program forks has copies of the exporter's connections.
#[test]
fn an_exporter_that_dies_is_not_survived_by_what_it_forked() {
    const TEST: &str = "an exporter that dies is not survived by what it forked";
    for (name, network) in networks() {
        if !has_ucx(TEST) {
            return;
        }
        bounded(TEST, move || {
            let mut child = exporting_command(name).env("DATAPIPES_FORKS", "1").stdin(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap());
            let ticket = RemoteTicket::from_secret_text(&said(&mut lines, "TICKET ")).unwrap();
            let remote = Remote::connect(&ticket, options(&network)).unwrap();
            let here = pattern(LEN, 1);
            let put = connect(name, &here, &remote).unwrap();
            put.transfer(whole(LEN)).unwrap();
            child.stdin.take().unwrap().write_all(b"now\n").unwrap();
            let forked: i32 = said(&mut lines, "FORKED ").parse().unwrap();
            put.transfer(whole(LEN)).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            // The holder hears of it in its own time.
            let mut error = None;
            until("transfers end", || {
                error = put.transfer(whole(LEN)).err();
                error.is_some()
            });
            let e = error.unwrap();
            signal(forked, rustix::process::Signal::KILL);
            assert!(e.kind() == ErrorKind::Device && !e.to_string().contains("nothing moved"), "{name}: {e}");
        });
    }
}

#[test]
fn an_exporter_that_is_killed_ends_transfers() {
    for (name, network) in networks() {
        if !has_ucx("an exporter that is killed ends transfers") {
            return;
        }
        bounded("an exporter that is killed ends transfers", move || {
            let (mut child, ticket) = exporting_child(name);
            let remote = Remote::connect(&ticket, options(&network)).unwrap();
            let (here, back) = (pattern(LEN, 1), Dram::allocate(LEN).unwrap());
            let (put, get) = (connect(name, &here, &remote).unwrap(), connect(name, &remote, &back).unwrap());
            put.transfer(whole(LEN)).unwrap();
            // Several are under way in both directions when it dies.
            let part = |i: u64| Span { source: i << 20, target: i << 20, len: 1 << 20 };
            let started: Vec<_> = (0..8).map(|i| (put.start(part(i)).unwrap(), get.start(part(i)).unwrap())).collect();
            let orphans = holders_of(child.id());
            assert_eq!(orphans.len(), 2);
            child.kill().unwrap();
            child.wait().unwrap();
            for (put, get) in started {
                for outcome in [put.wait(), get.wait()] {
                    if let Err(e) = outcome {
                        assert_eq!(e.kind(), ErrorKind::Device, "{name}: {e}");
                    }
                }
            }
            // A holder lives until it hears of the death, and takes bytes until then.
            until("the holders of a dead exporter end", || !orphans.iter().any(|pid| is_holder(*pid)));
            for pipe in [&put, &get] {
                let e = pipe.transfer(whole(LEN)).unwrap_err();
                assert!(e.kind() == ErrorKind::Device && e.to_string().contains("remote:"), "{name}: {e}");
                assert_eq!(pipe.report().hops[0].counters.devices_lost, 1, "{name}");
            }
            drop((here.lease_mut().unwrap(), back.lease_mut().unwrap()));
            assert!(Remote::connect(&ticket, options(&network)).is_err());
        });
    }
}

/// Holders of all tests of this program are told apart by the test's lock.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn holder_of(scene: &Scene) -> i32 {
    assert_eq!(scene.export.as_ref().unwrap().clients(), 1);
    let found = holders();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[test]
fn a_holder_that_is_killed_ends_transfers_and_a_new_pipe_has_a_new_one() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (name, network) in networks() {
        if !has_ucx("a holder that is killed ends transfers") {
            return;
        }
        bounded("a holder that is killed ends transfers", move || {
            until("the holders before end", || holders().is_empty());
            let scene = Scene::new(&network, LEN, RemoteRights::ReadWrite);
            let remote = scene.remote().unwrap();
            let here = pattern(LEN, 2);
            let pipe = connect(name, &here, &remote).unwrap();
            pipe.transfer(whole(LEN)).unwrap();
            let transfer = pipe.start(whole(LEN)).unwrap();
            let holder = holder_of(&scene);
            signal(holder, rustix::process::Signal::KILL);
            if let Err(e) = transfer.wait() {
                assert_eq!(e.kind(), ErrorKind::Device, "{name}: {e}");
            }
            // It may take bytes until the kernel has ended it.
            until("the holder has ended", || !is_holder(holder));
            let e = pipe.transfer(whole(LEN)).unwrap_err();
            assert!(e.to_string().contains("has ended"), "{name}: {e}");
            // The memory is as it was, and reached again by a new pipe.
            let pipe = connect(name, &here, &remote).unwrap();
            pipe.transfer(whole(LEN)).unwrap();
            assert_eq!(scene.bytes(), here.lease().unwrap()[..]);
        });
    }
}

#[test]
fn a_holder_that_hangs_ends_transfers_when_patience_ends() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (name, network) in networks() {
        if !has_ucx("a holder that hangs ends transfers") {
            return;
        }
        bounded("a holder that hangs ends transfers", move || {
            until("the holders before end", || holders().is_empty());
            let scene = Scene::new(&network, LEN, RemoteRights::ReadWrite);
            scene.memory.dram().memory().write(0, &[1; LEN]).unwrap();
            let patient = options(&network).patience(Duration::from_millis(300));
            let remote = Remote::connect(&scene.ticket(), patient).unwrap();
            let here = Dram::allocate(LEN).unwrap();
            let pipe = connect(name, &remote, &here).unwrap();
            let holder = holder_of(&scene);
            signal(holder, rustix::process::Signal::STOP);
            if name == "vm" {
                // The kernel needs nothing of it but its memory.
                pipe.transfer(whole(LEN)).unwrap();
                assert!(here.lease().unwrap().iter().all(|byte| *byte == 1));
                drop(pipe);
                until("the holder ends", || scene.export.as_ref().unwrap().clients() == 0);
                return;
            }
            let e = pipe.transfer(whole(LEN)).unwrap_err();
            assert!(e.kind() == ErrorKind::Device && e.to_string().contains("nothing moved"), "{name}: {e}");
            // The leases ended, and nothing of what the holder sends afterwards arrives.
            here.lease_mut().unwrap().fill(7);
            drop(pipe);
            // The holder may be killed already.
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_raw(holder).unwrap(),
                rustix::process::Signal::CONT,
            );
            until("the holder ends", || scene.export.as_ref().unwrap().clients() == 0);
            assert!(here.lease().unwrap().iter().all(|byte| *byte == 7), "{name}: memory was written after its lease");
        });
    }
}

#[test]
fn an_exporter_that_goes_ends_its_exports() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !has_ucx("an exporter that goes ends its exports") {
        return;
    }
    bounded("an exporter that goes ends its exports", || {
        let Scene { memory, export, exporter, network } =
            Scene::new(&NetworkOptions::default(), 4096, RemoteRights::ReadWrite);
        let remote = Remote::connect(export.as_ref().unwrap().ticket(), options(&network)).unwrap();
        let here = Dram::allocate(4096).unwrap();
        let pipes = ["vm", "shm"].map(|name| connect(name, &here, &remote).unwrap());
        pipes.iter().for_each(|pipe| pipe.transfer(whole(4096)).unwrap());
        drop(exporter);
        for pipe in &pipes {
            let e = pipe.transfer(whole(4096)).unwrap_err();
            assert!(e.to_string().contains("revoked"), "{e}");
        }
        assert_eq!(export.as_ref().unwrap().clients(), 0);
        drop((export, memory));
    });
}

#[test]
fn a_pipe_belongs_to_its_process() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !has_ucx("a pipe belongs to its process") {
        return;
    }
    let scene = Scene::new(&NetworkOptions::default(), 4096, RemoteRights::ReadWrite);
    let remote = scene.remote().unwrap();
    let here = Dram::allocate(4096).unwrap();
    let pipes = ["vm", "shm"].map(|name| connect(name, &here, &remote).unwrap());
    datapipes_testkit::child::in_child(&|| {
        for pipe in &pipes {
            datapipes_testkit::child::assert_forked_error(pipe.transfer(whole(4096)));
        }
        datapipes_testkit::child::assert_forked_error(scene.exporter.export(
            &scene.memory,
            (0, 4096),
            RemoteRights::Read,
        ));
    });
    pipes.iter().for_each(|pipe| pipe.transfer(whole(4096)).unwrap());
}
