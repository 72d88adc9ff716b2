//! Remote memory over RDMA's verbs: the conformance suite, large and small transfers, revocation.
//! It needs a device, which `DATAPIPES_RDMA_DEVICE` names (`mlx5_0:1`), and may be told the
//! transports (`DATAPIPES_RDMA_TRANSPORTS`, `rc` by default). It ran in the guest `rdma` alone: see
//! `docs/hardware.md`.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_core::{Dram, ErrorKind, Span};
use datapipes_net::{NetworkOptions, RemoteRights, RemoteTransport};
use datapipes_testkit::{bounded, seed};
use scene::{BY_UCX, Scene, certify, has_ucx, machine, pattern};

/// Transports that UCX has over verbs, with the device; says where there is none.
fn networks(test: &str) -> Vec<(&'static str, NetworkOptions)> {
    let Some(device) = std::env::var("DATAPIPES_RDMA_DEVICE").ok().filter(|device| !device.is_empty()) else {
        println!("SKIPPED: {test}: DATAPIPES_RDMA_DEVICE names no device of RDMA");
        return Vec::new();
    };
    if !has_ucx(test) {
        return Vec::new();
    }
    let transports = std::env::var("DATAPIPES_RDMA_TRANSPORTS").unwrap_or_else(|_| "rc".to_owned());
    let network = NetworkOptions::default().transport(RemoteTransport::Network).trusted_network(true);
    vec![("rdma", network.transports(transports).devices(device))]
}

#[test]
fn remote_memory_by_rdma_passes_the_suite() {
    for (name, network) in networks("remote memory by RDMA") {
        certify(name, network, BY_UCX, seed(0x0c5));
    }
}

#[test]
fn bytes_go_out_and_come_back() {
    for (name, network) in networks("bytes go out and come back") {
        bounded("bytes go out and come back", move || {
            let len = (1 << 20) + 5;
            let scene = Scene::new(&network, len, RemoteRights::ReadWrite);
            let remote = scene.remote().unwrap();
            let (here, back) = (pattern(len, 5), Dram::allocate(len).unwrap());
            let (put, get) = (machine().connect(&here, &remote).unwrap(), machine().connect(&remote, &back).unwrap());
            for (at, len) in [(0, 1), (3, 64), (100, 5000), (0, len as u64)] {
                put.transfer(Span { source: at, target: at, len }).unwrap();
                get.transfer(Span { source: at, target: at, len }).unwrap();
            }
            assert_eq!(scene.bytes(), here.lease().unwrap()[..], "{name}");
            assert_eq!(back.lease().unwrap()[..], here.lease().unwrap()[..], "{name}");
            println!("{name}: {}", put.route());
        });
    }
}

#[test]
fn a_revoked_export_is_out_of_reach() {
    for (name, network) in networks("a revoked export is out of reach") {
        bounded("a revoked export is out of reach", move || {
            let mut scene = Scene::new(&network, 1 << 16, RemoteRights::ReadWrite);
            let remote = scene.remote().unwrap();
            let here = pattern(1 << 16, 3);
            let whole = Span { source: 0, target: 0, len: 1 << 16 };
            let pipe = machine().connect(&here, &remote).unwrap();
            pipe.transfer(whole).unwrap();
            scene.export.take().unwrap().revoke();
            let before = scene.bytes();
            here.lease_mut().unwrap().fill(1);
            let e = pipe.transfer(whole).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Device), "{name}: {e}");
            assert_eq!(scene.bytes(), before, "{name}");
        });
    }
}
