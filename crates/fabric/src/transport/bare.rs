//! A channel within one process, for tests: the pages are on the heap, and the test acts as the
//! controller.

use super::{Receiver, Sender, SharedInlet, SharedOutlet};
use crate::channel::layout::{ReceiverPage, SenderPage, State, StatePage};
use crate::channel::memory::{Payload, View};
use crate::channel::ring::{Common, ReceiveRing, SendRing};
use crate::channel::{ChannelShape, Trust, bell};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// The pages, as an attacker on either side has them.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) sender: View<SenderPage>,
    pub(crate) receiver: View<ReceiverPage>,
    pub(crate) state: View<StatePage>,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages {
            sender: View::local(SenderPage::zeroed()),
            receiver: View::local(ReceiverPage::zeroed()),
            state: View::local(StatePage::active()),
        }
    }

    /// Acts as the controller.
    pub(crate) fn set(&self, state: State) {
        self.state.state.0.store(state as u32, Ordering::SeqCst);
        bell::wake(&self.state.state.0, &self.state);
    }

    pub(crate) fn ends(&self, shape: ChannelShape, trust: Trust) -> (Sender, Receiver) {
        let common = || Common {
            credits: shape.credits,
            block_bytes: shape.block_bytes,
            epoch: 7,
            state: self.state.clone(),
            alive: Arc::new(|| true),
        };
        let (out, into) = Payload::local(shape);
        let send = SendRing::new(common(), self.sender.clone(), self.receiver.clone());
        let receive = ReceiveRing::new(common(), self.receiver.clone(), self.sender.clone());
        let inlet = SharedInlet::new(receive, into, shape, trust.into()).unwrap();
        (Sender::new(Box::new(SharedOutlet::new(send, out, shape))), Receiver::new(Box::new(inlet)))
    }
}
