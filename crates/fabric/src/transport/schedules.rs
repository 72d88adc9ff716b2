//! The ring under schedules chosen at random: `cargo xtask shuttle`.

use datapipes_testkit::schedules;
use shuttle::thread;

use super::bare::Pages;
use crate::channel::layout::State;
use crate::channel::{ChannelShape, Head, Trust};

#[allow(unsafe_code)]
// SAFETY: every sender here belongs to this crate.
const IN_PLACE: Trust = unsafe { Trust::in_place() };

fn stream(credits: u32, blocks: u64, trust: Trust) {
    let pages = Pages::new();
    let (mut sender, mut receiver) = pages.ends(ChannelShape::new(credits, 8), trust);
    let sending = thread::spawn(move || {
        for block in 0..blocks {
            sender.send(&block.to_le_bytes(), Head { words: [block, 0, 0, 0], end: false }).unwrap();
        }
        sender.finish([0; 4]).unwrap();
    });
    for block in 0.. {
        let arrived = receiver.receive().unwrap();
        if arrived.head().end {
            assert_eq!(block, blocks);
            arrived.done().unwrap();
            break;
        }
        assert_eq!((arrived.head().words[0], &*arrived), (block, &block.to_le_bytes()[..]));
        arrived.done().unwrap();
    }
    sending.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_with_one_credit() {
    schedules(|| stream(1, 3, Trust::Copy));
}

#[test]
fn blocks_arrive_in_order_and_whole_with_several_credits() {
    schedules(|| stream(3, 5, IN_PLACE));
}

#[test]
fn replies_in_any_order_from_another_thread_return_their_own_slots() {
    schedules(|| {
        let pages = Pages::new();
        let (mut sender, mut receiver) = pages.ends(ChannelShape::new(2, 8), IN_PLACE);
        let sending = thread::spawn(move || {
            for block in 0..4u64 {
                sender.send(&block.to_le_bytes(), Head::default()).unwrap();
            }
            sender.drain().unwrap();
        });
        for pair in 0..2u64 {
            let (one, two) = (receiver.receive().unwrap(), receiver.receive().unwrap());
            assert_eq!((&*one, &*two), (&(2 * pair).to_le_bytes()[..], &(2 * pair + 1).to_le_bytes()[..]));
            let replying = thread::spawn(move || two.done().unwrap());
            one.done().unwrap();
            replying.join().unwrap();
        }
        sending.join().unwrap();
    });
}

#[test]
fn a_revocation_ends_both_sides_wherever_they_are() {
    schedules(|| {
        let pages = Pages::new();
        let (mut sender, mut receiver) = pages.ends(ChannelShape::new(1, 8), Trust::Copy);
        let sending = thread::spawn(move || (0..4).take_while(|_| sender.send(&[1], Head::default()).is_ok()).count());
        let receiving = thread::spawn(move || {
            while let Ok(block) = receiver.receive() {
                let _ = block.done();
            }
        });
        pages.set(State::Revoked);
        sending.join().unwrap();
        receiving.join().unwrap();
    });
}

#[test]
fn an_end_that_goes_is_noticed_by_the_other() {
    schedules(|| {
        let (mut sender, mut receiver) = Pages::new().ends(ChannelShape::new(1, 8), Trust::Copy);
        let receiving = thread::spawn(move || receiver.receive().map(|b| b.done()).is_ok());
        let sent = sender.send(&[1], Head::default()).is_ok();
        drop(sender);
        assert!(sent && receiving.join().unwrap());
        let (sender, mut receiver) = Pages::new().ends(ChannelShape::new(1, 8), Trust::Copy);
        let receiving = thread::spawn(move || receiver.receive().unwrap_err().kind());
        drop(sender);
        assert_eq!(receiving.join().unwrap(), datapipes_core::ErrorKind::EndOfFile);
    });
}
