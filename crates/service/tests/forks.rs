//! A client in a child made by `fork`: connection and pipes stay the parent's.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::cell::RefCell;

use datapipes::{ConnectFdOptions, ConnectOptions, ServiceLevel as Asked, Span};
use datapipes_service::ClientPlace;
use datapipes_testkit::child::{assert_forked_error, in_child};
use scene::{MIB, Service, file_of, memory_of, pattern};

#[test]
fn a_child_takes_nothing_of_its_parents_pipes() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(4 * MIB as usize, 3);
    let (source, target) = (file_of(&bytes), memory_of(&vec![0; bytes.len()]));
    // The pipe is so slow that transfers are in flight while there is a child.
    let connect = ConnectOptions::default().service(Asked::default().at_most(20e6));
    let ask = ConnectFdOptions::default().connect(connect);
    let pipe = client.connect_pipe(&ClientPlace::file(&source), &ClientPlace::memory(&target), &ask).unwrap();
    let mut tokens: Vec<u64> =
        (0..4).map(|i| pipe.submit(Span { source: i * MIB, target: i * MIB, len: MIB }).unwrap()).collect();
    let (client, pipe) = (RefCell::new(Some(client)), RefCell::new(Some(pipe)));
    in_child(&|| {
        let (client, mut pipe) = (client.take().unwrap(), pipe.take().unwrap());
        let span = Span { source: 0, target: 0, len: 4096 };
        assert_forked_error(client.status().map(|_| ()));
        assert_forked_error(
            client.connect_pipe(&ClientPlace::file(&source), &ClientPlace::memory(&target), &ask).map(|_| ()),
        );
        assert_forked_error(pipe.submit(span));
        assert_forked_error(pipe.complete());
        assert_forked_error(pipe.complete_wait());
        assert_forked_error(pipe.transfer(span));
        assert_eq!(pipe.under_way(), 0);
        drop((pipe, client));
        // The child can use a connection of its own.
        let own = service.client();
        let target = memory_of(&vec![0; MIB as usize]);
        let mut pipe = own
            .connect_pipe(&ClientPlace::file(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
            .unwrap();
        pipe.transfer(Span { source: MIB, target: 0, len: MIB }).unwrap();
        drop(pipe);
        assert!(target.to_vec().unwrap() == bytes[MIB as usize..2 * MIB as usize]);
    });
    let (client, pipe) = (client.into_inner().unwrap(), pipe.into_inner().unwrap());
    while !tokens.is_empty() {
        let done = pipe.complete_wait().unwrap();
        done.result.unwrap();
        tokens.retain(|token| *token != done.token);
    }
    assert_eq!(pipe.under_way(), 0);
    drop(pipe);
    assert!(target.to_vec().unwrap() == bytes);
    // Only the asking client is connected: the child's own connection ended with the child.
    service.with(1);
    client.status().unwrap();
}
