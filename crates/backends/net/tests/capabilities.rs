//! What a key permits, and that nothing else is possible: rights, ranges, revocation, strangers.
#![allow(clippy::unwrap_used)]

mod scene;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use datapipes_core::process::page_size;
use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_net::{
    ExportAddress, ExportableMemory, Exporter, ExporterOptions, HolderProgram, NetworkOptions, Remote, RemoteOptions,
    RemoteRights, RemoteTicket, RemoteTransport,
};
use datapipes_testkit::{TempFolder, bounded, until};
use scene::{Scene, connect, exporter, has_ucx, holders, machine, networks, options, pattern};

fn whole(len: usize) -> Span {
    Span { source: 0, target: 0, len: len as u64 }
}

#[test]
fn a_key_for_reading_does_not_write() {
    for (name, network) in networks() {
        if !has_ucx("a key for reading does not write") {
            return;
        }
        let scene = Scene::new(&network, 8192, RemoteRights::Read);
        scene.memory.dram().memory().write(0, &[7; 8192]).unwrap();
        let remote = scene.remote().unwrap();
        assert_eq!((remote.rights(), remote.len()), (RemoteRights::Read, 8192));
        let here = Dram::allocate(8192).unwrap();
        let e = connect(name, &here, &remote).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("reading only"), "{name}: {e}");
        connect(name, &remote, &here).unwrap().transfer(whole(8192)).unwrap();
        assert_eq!(here.lease().unwrap()[..], [7; 8192]);
    }
}

#[test]
fn a_range_is_all_that_is_reached() {
    if !has_ucx("a range is all that is reached") {
        return;
    }
    let page = page_size();
    let memory = ExportableMemory::allocate(4 * page).unwrap();
    let before: Vec<u8> = (0..4 * page).map(|i| (i / page) as u8).collect();
    memory.dram().memory().write(0, &before).unwrap();
    let exporter = exporter(&networks()[0].1);
    let export = exporter.export(&memory, (page, 2 * page), RemoteRights::ReadWrite).unwrap();
    let remote = Remote::connect(export.ticket(), options(&networks()[0].1)).unwrap();
    let here = Dram::allocate(2 * page).unwrap();
    machine().connect(&remote, &here).unwrap().transfer(whole(2 * page)).unwrap();
    assert_eq!(here.lease().unwrap()[..], before[page..3 * page]);
    here.lease_mut().unwrap().fill(9);
    machine().connect(&here, &remote).unwrap().transfer(whole(2 * page)).unwrap();
    let after = memory.dram().memory().to_vec().unwrap();
    assert_eq!((&after[..page], &after[3 * page..]), (&before[..page], &before[3 * page..]));
    assert_eq!(after[page..3 * page], vec![9; 2 * page]);
    for wrong in [(1, page), (0, page + 1), (4 * page, 1)] {
        assert!(exporter.export(&memory, wrong, RemoteRights::Read).is_err(), "{wrong:?}");
    }
}

#[test]
fn revocation_ends_pipes_and_tickets() {
    if !has_ucx("revocation ends pipes and tickets") {
        return;
    }
    for (name, network) in networks() {
        bounded("revocation ends pipes and tickets", move || {
            let len = 1 << 20;
            let mut scene = Scene::new(&network, len, RemoteRights::ReadWrite);
            let (remote, ticket) = (scene.remote().unwrap(), scene.ticket());
            let here = pattern(len, 3);
            let pipe = connect(name, &here, &remote).unwrap();
            pipe.transfer(whole(len)).unwrap();
            assert_eq!(scene.export.as_ref().unwrap().clients(), 1);
            scene.export.take().unwrap().revoke();
            // The holder is gone when `revoke` returns, so whatever the client sends reaches
            // nothing.
            assert_eq!(scene.bytes(), here.lease().unwrap()[..]);
            here.lease_mut().unwrap().fill(1);
            let e = pipe.transfer(whole(len)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{name}: {e}");
            assert!(e.to_string().contains("revoked"), "{name}: {e}");
            assert!(scene.bytes() != here.lease().unwrap()[..]);
            // No lease is left.
            drop(here.lease_mut().unwrap());
            let e = machine().connect(&here, &remote).unwrap_err();
            assert!(e.to_string().contains("no such export"), "{name}: {e}");
            let e = Remote::connect(&ticket, options(&network)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{name}: {e}");
        });
    }
}

#[test]
fn holders_end_with_their_pipes() {
    if !has_ucx("holders end with their pipes") {
        return;
    }
    bounded("holders end with their pipes", || {
        let scene = Scene::new(&networks()[0].1, 4096, RemoteRights::ReadWrite);
        let remote = scene.remote().unwrap();
        let export = scene.export.as_ref().unwrap();
        assert_eq!(export.clients(), 0, "asking for facts needs no holder");
        let here = Dram::allocate(4096).unwrap();
        let machine = machine();
        let pipes: Vec<_> = (0..3).map(|_| machine.connect(&here, &remote).unwrap()).collect();
        assert_eq!(export.clients(), 3);
        // Those of other tests may just begin or end.
        let is_confined = |pid: &i32| {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let mut texts = threads.flat_map(|thread| std::fs::read_to_string(thread.path().join("status")));
            texts.all(|status| ["NoNewPrivs:\t1", "Seccomp:\t2"].iter().all(|word| status.contains(word)))
        };
        assert!(holders().iter().filter(|pid| is_confined(pid)).count() >= 3);
        until("all holders are confined", || holders().iter().all(is_confined));
        drop(pipes);
        until("the holders end", || export.clients() == 0);
    });
}

/// What the exporting program has beside its exports does not get into a holder, whose memory its
/// client can read.
#[test]
fn a_holder_has_nothing_of_the_program() {
    const TEST: &str = "a holder has nothing of the program";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        // For children of this program. No program opens a file of this name by itself.
        let folder = TempFolder::new().unwrap();
        let file = std::fs::File::create(folder.path("inherited")).unwrap();
        let inherited = rustix::io::fcntl_dupfd_cloexec(&file, 100).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        for (name, network) in networks() {
            let scene = Scene::new(&network, 4096, RemoteRights::Read);
            let remote = scene.remote().unwrap();
            let here = Dram::allocate(4096).unwrap();
            let pipe = connect(name, &remote, &here).unwrap();
            // One of another test may begin or end meanwhile: it has something for a moment.
            let is_bare = |pid: i32| {
                let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return true };
                let Ok(target) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
                let mut targets = target.flatten().map(|entry| std::fs::read_link(entry.path()).unwrap_or_default());
                let inherits = targets.any(|target| target.starts_with(folder.at()));
                !inherits && !String::from_utf8_lossy(&environment).contains("CARGO")
            };
            assert!(!holders().is_empty());
            for pid in holders() {
                until(&format!("{name}: a holder has nothing of the program"), || is_bare(pid));
            }
            drop(pipe);
        }
    });
}

#[test]
fn as_many_clients_as_may_be_are_told_so_and_silent_ones_do_not_count() {
    const TEST: &str = "as many clients as may be are told so";
    if !has_ucx(TEST) {
        return;
    }
    bounded(TEST, || {
        let memory = ExportableMemory::allocate(4096).unwrap();
        let path = std::env::temp_dir().join(format!("datapipes-full-{}", std::process::id()));
        let program = HolderProgram::At(scene::HOLDER.into());
        let options = ExporterOptions::default().program(program).max_clients(1);
        let exporter = Exporter::listen(&ExportAddress::Unix(path.clone()), options).unwrap();
        let export = exporter.export(&memory, (0, 4096), RemoteRights::Read).unwrap();
        let silent: Vec<_> = (0..200).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let remote = Remote::connect(export.ticket(), RemoteOptions::default()).unwrap();
        let here = Dram::allocate(4096).unwrap();
        let pipe = connect("vm", &remote, &here).unwrap();
        let e = Remote::connect(export.ticket(), RemoteOptions::default()).unwrap_err();
        assert!(e.to_string().contains("max_clients"), "{e}");
        drop((pipe, silent));
        until("the client has gone", || Remote::connect(export.ticket(), RemoteOptions::default()).is_ok());
    });
}

#[test]
fn a_stranger_gets_nothing() {
    if !has_ucx("a stranger gets nothing") {
        return;
    }
    bounded("a stranger gets nothing", || {
        let scene = Scene::new(&networks()[0].1, 4096, RemoteRights::ReadWrite);
        let text = scene.ticket().secret_text();
        // One digit of the key, and one of the number.
        let (key_at, number_at) = (text.len() - 2, text.len() - 67);
        for at in [key_at, number_at] {
            let mut wrong = text.clone().into_bytes();
            wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
            let ticket = RemoteTicket::from_secret_text(std::str::from_utf8(&wrong).unwrap()).unwrap();
            let e = Remote::connect(&ticket, options(&scene.network)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
        }
        let ExportAddress::Unix(path) = scene.exporter.address().clone() else { panic!("a Unix socket") };
        for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 72], &[255; 4000]] {
            let mut socket = UnixStream::connect(&path).unwrap();
            let _ = socket.write_all(said);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert!(answer.is_empty(), "{said:?}: {answer:?}");
        }
        // It still serves those who know the key.
        scene.remote().unwrap();
        assert!(holders().len() <= 64);
    });
}

#[test]
fn a_network_is_used_only_where_it_is_trusted() {
    if !has_ucx("a network is used only where it is trusted") {
        return;
    }
    let network = NetworkOptions::default().transport(RemoteTransport::Network);
    let listen = |address: &str, network: &NetworkOptions| {
        Exporter::listen(&address.parse().unwrap(), ExporterOptions::default().network(network.clone()))
    };
    for (address, network) in [("0.0.0.0:0", &NetworkOptions::default()), ("127.0.0.1:0", &network)] {
        let e = listen(address, network).err().unwrap();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("trusted_network"), "{e}");
    }
    // Both sides must say so, and the same.
    let trusted = network.clone().trusted_network(true);
    let scene = Scene::new(&trusted, 4096, RemoteRights::Read);
    let connect = |network: &NetworkOptions| Remote::connect(&scene.ticket(), options(network)).unwrap_err();
    assert_eq!(connect(&network).kind(), ErrorKind::PermissionDenied);
    let e = connect(&NetworkOptions::default());
    assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("by a network"), "{e}");
}

#[test]
fn memory_that_may_lose_pages_is_refused() {
    if !has_ucx("memory that may lose pages is refused") {
        return;
    }
    let scene = Scene::new(&networks()[0].1, 4096, RemoteRights::ReadWrite);
    let remote = scene.remote().unwrap();
    let lossy = std::env::temp_dir().join(format!("datapipes-lossy-{}", std::process::id()));
    let e = connect("shm", scene.memory.dram(), &remote).unwrap_err();
    assert!(e.to_string().contains("may lose pages"), "{e}");
    // The kernel ends a copy at such a page, and not the process.
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&lossy).unwrap();
    file.set_len(8192).unwrap();
    let near = datapipes_core::Pmem::open_with(&lossy, datapipes_core::PmemOptions::default().emulated(true)).unwrap();
    let pipe = connect("vm", &near, &remote).unwrap();
    pipe.transfer(whole(4096)).unwrap();
    file.set_len(0).unwrap();
    let e = pipe.transfer(whole(4096)).unwrap_err();
    std::fs::remove_file(&lossy).unwrap();
    assert!(e.kind() == ErrorKind::Device && e.to_string().contains("a page"), "{e}");
}
