//! A session and the ends of channels in a child that was made by `fork` belong to the parent.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod scene;

use std::cell::RefCell;

use datapipes_fabric::capability::Rights;
use datapipes_fabric::channel::{ChannelShape, Head, Reply, Trust};
use datapipes_testkit::child::{assert_forked_error, in_child};
use scene::*;

#[test]
fn a_child_ends_nothing_and_replies_to_nothing() {
    let mut session = session();
    let before = session.status().unwrap();
    let cap = session.channel(ChannelShape::new(4, 4096)).unwrap();
    session.activate(cap, "in", Rights::RECEIVE, IN_PLACE).unwrap();
    session.activate(cap, "out", Rights::SEND, Trust::Copy).unwrap();
    let mut sender = session.sender("out", LONG).unwrap().with_patience(LONG);
    let mut receiver = session.receiver("in", LONG).unwrap().with_patience(LONG);
    let head = |word| Head { words: [word, 0, 0, 0], end: false };
    sender.send(b"one", head(1)).unwrap();
    sender.send(b"two", head(2)).unwrap();
    let block = receiver.receive().unwrap();
    let memory = session.memory(4096).unwrap();
    session.activate(memory, "memory", Rights::READ.and(Rights::WRITE), Trust::Copy).unwrap();
    let shared = session.shared_memory("memory", LONG).unwrap();
    shared.write(0, b"parent").unwrap();
    let grant = RefCell::new(sender.grant().unwrap());
    grant.borrow_mut().bytes()[..6].copy_from_slice(b"parent");
    in_child(&|| {
        assert!(grant.borrow_mut().bytes().is_empty());
        assert_forked_error(shared.write(0, b"child!"));
        assert_forked_error(shared.read(0, &mut [0; 6]));
    });
    let mut grant = grant.into_inner();
    assert_eq!(&grant.bytes()[..6], b"parent");
    drop(grant);
    let mut bytes = [0; 6];
    shared.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"parent");
    drop(shared);
    session.revoke(memory).unwrap();
    let all = RefCell::new(Some((session, sender, receiver, block)));
    in_child(&|| {
        let (mut session, mut sender, mut receiver, block) = all.take().unwrap();
        assert_forked_error(session.status());
        assert_forked_error(session.attend());
        assert_forked_error(session.channel(ChannelShape::new(4, 4096)));
        assert_forked_error(session.revoke(cap));
        assert_forked_error(sender.send(b"theirs", head(9)));
        assert_forked_error(sender.grant().map(|_| ()));
        assert_forked_error(sender.reply());
        assert_forked_error(sender.poll());
        assert_forked_error(sender.drain());
        assert_forked_error(receiver.receive().map(|_| ()));
        assert_forked_error(receiver.try_receive().map(|_| ()));
        assert_eq!(&block[..], b"one", "memory is a copy, or shared");
        assert_forked_error(block.reply(Reply::DONE));
        drop((sender, receiver, session));
    });
    let (mut session, mut sender, mut receiver, block) = all.into_inner().unwrap();
    assert_eq!((sender.outstanding(), &block[..]), (2, &b"one"[..]));
    block.done().unwrap();
    let block = receiver.receive().unwrap();
    assert_eq!((&block[..], block.head().words[0]), (&b"two"[..], 2));
    block.done().unwrap();
    assert_eq!(sender.drain().unwrap(), Reply::DONE);
    drop((sender, receiver));
    session.revoke(cap).unwrap();
    nothing_is_left(&mut session, &before);
}
