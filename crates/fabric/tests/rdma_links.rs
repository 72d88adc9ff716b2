//! Links between two controllers by RDMA's verbs. It needs a device, which `DATAPIPES_RDMA_DEVICE`
//! names (`mlx5_0:1`), and may be told the transports (`DATAPIPES_RDMA_TRANSPORTS`, `rc` by
//! default). See `docs/hardware.md` for where it ran.
#![allow(clippy::unwrap_used)]

mod scene;

use std::net::{Ipv4Addr, SocketAddr};

use datapipes_core::ErrorKind;
use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Trust};
use datapipes_fabric::control::{Encryption, Key, LinkCarrier, LinkSpec, UcxLinkOptions};
use datapipes_testkit::bounded;
use scene::*;

const SHAPE: ChannelShape = ChannelShape::new(4, 64 << 10);

/// The options for verbs, with the device; says where there is none.
fn by_verbs(test: &str) -> Option<UcxLinkOptions> {
    let Some(device) = std::env::var("DATAPIPES_RDMA_DEVICE").ok().filter(|device| !device.is_empty()) else {
        println!("SKIPPED: {test}: DATAPIPES_RDMA_DEVICE names no device of RDMA");
        return None;
    };
    let transports = std::env::var("DATAPIPES_RDMA_TRANSPORTS").unwrap_or_else(|_| "rc".to_owned());
    has_ucx(test).then(|| UcxLinkOptions::default().trusted_network(true).transports(transports).devices(device))
}

#[test]
fn blocks_go_over_verbs_and_a_revoked_link_is_dead_on_both_sides() {
    const TEST: &str = "links by RDMA";
    let Some(options) = by_verbs(TEST) else { return };
    bounded(TEST, move || {
        for encryption in [Encryption::On, Encryption::Off] {
            let (mut a, mut b) = (session(), session());
            let before = (a.status().unwrap(), b.status().unwrap());
            a.ucx_links(&options).unwrap();
            b.ucx_links(&options).unwrap();
            let key = Key::random().unwrap();
            let spec = |side| LinkSpec::new(SHAPE, side).encryption(encryption).carrier(LinkCarrier::Ucx);
            let anywhere: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
            let (offered, address) = b.offer_link(spec(Rights::RECEIVE), anywhere, &key).unwrap();
            let link = a.join_link(spec(Rights::SEND), address, &key).unwrap();
            a.joined(link, LONG).unwrap();
            b.joined(offered, LONG).unwrap();
            a.activate(link, "out", Rights::SEND, Trust::Copy).unwrap();
            b.activate(offered, "in", Rights::RECEIVE, Trust::Copy).unwrap();
            let mut sender = a.sender("out", LONG).unwrap().with_patience(LONG);
            let mut receiver = b.receiver("in", LONG).unwrap().with_patience(LONG);
            for (n, len) in [0, 1, 63, 4096, 8193, 65_535, 64 << 10].into_iter().cycle().take(60).enumerate() {
                let data = bytes(n as u64, len);
                sender.send(&data, Head { words: [n as u64; 4], end: false }).unwrap();
                let block = receiver.receive().unwrap();
                assert!(*block == data[..], "block {n} of {len} bytes");
                block.done().unwrap();
            }
            sender.drain().unwrap();
            a.revoke(link).unwrap();
            assert_eq!(receiver.receive().unwrap_err().kind(), ErrorKind::Device);
            drop((sender, receiver));
            b.revoke(offered).unwrap();
            nothing_is_left(&mut a, &before.0);
            nothing_is_left(&mut b, &before.1);
        }
    });
}
