//! Spans of a client whose numbers wrap, or end beyond all ranges: the service refuses them, and
//! nothing changes.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes::{ConnectFdOptions, ErrorKind, Span, Ssd};
use datapipes_service::{ClientPipe, ClientPlace, SharedMemory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scene::{MIB, Service, content, file_of, memory_of, pattern};

const LAST: u64 = i64::MAX as u64;

/// Sends a request as a client does that does not check it.
fn ask(pipe: &ClientPipe, span: Span) -> datapipes::Result<()> {
    rustix::io::write(pipe, &TransferRequest { token: 5, span }.to_bytes()).unwrap();
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&patience)).unwrap(), 1, "no answer to {span:?}");
    let mut message = [0; MESSAGE_BYTES];
    let len = rustix::io::read(pipe, &mut message).unwrap();
    Completion::from_bytes(&message[..len]).unwrap().result
}

#[test]
fn spans_that_wrap_are_refused_by_the_service() {
    let service = Service::start(&[]);
    let client = service.client();
    let bytes = pattern(MIB as usize, 3);
    let (memory, file) = (memory_of(&bytes), file_of(&bytes));
    let into = SharedMemory::create(MIB as usize).unwrap();
    let to = Ssd::unlinked_in(scene::disk()).unwrap();
    let pairs = [
        (ClientPlace::memory(&memory), ClientPlace::file(&to)),
        (ClientPlace::file(&file), ClientPlace::file(&to)),
        (ClientPlace::file(&file), ClientPlace::memory(&into)),
        (ClientPlace::memory(&memory), ClientPlace::memory(&into)),
    ];
    for (source, target) in &pairs {
        let pipe = client.connect_pipe(source, target, &ConnectFdOptions::default()).unwrap();
        for (source, target, len) in [
            (0, 0u64.wrapping_sub(16 << 10), 64 << 10),
            (0u64.wrapping_sub(16 << 10), 0, 64 << 10),
            (0, 0, 0u64.wrapping_sub(11)),
            (0, LAST - 10, 11),
            (LAST, 0, 1),
            (1, 1, LAST),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            let span = Span { source, target, len };
            assert_eq!(ask(&pipe, span).map_err(|e| e.kind()), Err(ErrorKind::OutOfRange), "{span:?}");
        }
        assert_eq!(to.len().unwrap(), 0);
        assert!(into.to_vec().unwrap().iter().all(|byte| *byte == 0));
    }
    for (source, target) in &pairs {
        let pipe = client.connect_pipe(source, target, &ConnectFdOptions::default()).unwrap();
        ask(&pipe, Span { source: 0, target: 0, len: MIB }).unwrap();
    }
    assert!(content(&to, bytes.len()) == bytes && into.to_vec().unwrap() == bytes);
}
