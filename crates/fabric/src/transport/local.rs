//! A channel between threads of one process, without a controller.

use std::os::fd::AsFd;

use datapipes_core::Result;

use super::{Receiver, Sender, SharedInlet, SharedOutlet};
use crate::channel::layout::{ReceiverPage, SenderPage, State, StatePage};
use crate::channel::memory::{Mapping, Object, Payload, View, page_bytes};
use crate::channel::ring::{Common, ReceiveRing, SendRing};
use crate::channel::{ChannelShape, Copies, Trust};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// Makes the two ends of a channel in this process. It has the same memory objects, mappings, ring
/// and futexes as between processes, but no isolation. It is for measurements, and for programs
/// whose stages are threads.
///
/// ```
/// use datapipes_fabric::channel::{Head, ChannelShape, Trust};
/// use datapipes_fabric::transport::pair;
/// let (mut sender, mut receiver) = pair(ChannelShape::new(4, 4096), Trust::Copy)?;
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         let block = receiver.receive().unwrap();
///         assert_eq!(&*block, b"hello");
///         block.done().unwrap();
///     });
///     sender.send(b"hello", Head::default())?;
///     sender.drain().map(|_| ())
/// })?;
/// # Ok::<(), datapipes_fabric::Error>(())
/// ```
///
/// # Errors
/// `InvalidInput` for a bad shape, and `OutOfMemory`.
pub fn pair(shape: ChannelShape, trust: Trust) -> Result<(Sender, Receiver)> {
    pair_with(shape, trust, Copies::default())
}

/// As [`pair`], with settings for copies.
///
/// # Errors
/// Those of [`pair`].
pub fn pair_with(shape: ChannelShape, trust: Trust, copies: Copies) -> Result<(Sender, Receiver)> {
    shape.check()?;
    let map = |len: usize| -> Result<(Arc<Mapping>, Arc<Mapping>)> {
        let object = Object::create(len)?;
        let own = Mapping::new(object.as_fd(), len, true)?;
        object.seal_for_good()?;
        Ok((own, Mapping::new(object.read_only()?.as_fd(), len, false)?))
    };
    let (sender_own, sender_seen) = map(page_bytes::<SenderPage>())?;
    let (receiver_own, receiver_seen) = map(page_bytes::<ReceiverPage>())?;
    let (payload_own, payload_seen) = map(shape.payload_bytes().next_multiple_of(4096))?;
    let (state_own, state_seen) = map(page_bytes::<StatePage>())?;
    View::<StatePage>::of(state_own)?.state.0.store(State::Active as u32, Ordering::SeqCst);
    let state = View::<StatePage>::of(state_seen)?;
    let common = || Common {
        credits: shape.credits,
        block_bytes: shape.block_bytes,
        epoch: 1,
        state: state.clone(),
        alive: Arc::new(|| true),
    };
    let send = SendRing::new(common(), View::of(sender_own)?, View::of(receiver_seen)?);
    let receive = ReceiveRing::new(common(), View::of(receiver_own)?, View::of(sender_seen)?);
    let outlet = SharedOutlet::new(send, Payload::of(payload_own, shape, copies)?, shape);
    let inlet = SharedInlet::new(receive, Payload::of(payload_seen, shape, copies)?, shape, trust.into())?;
    Ok((Sender::new(Box::new(outlet)), Receiver::new(Box::new(inlet))))
}
