//! A pipe whose descriptor somebody else has, seen by who gave it away.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::ConnectFdOptions;
use super::passing;
use super::server::DescriptorServer;
use crate::error::Result;
use crate::locator::Locator;
use crate::runtime::{Runtime, RuntimePipe};

/// The giver's hold on a pipe. It keeps the socket alone: the pipe ends when the last copy of its
/// descriptor is closed and nothing is under way.
#[derive(Clone)]
pub struct PassedPipe {
    serving: Weak<DescriptorServer>,
    socket: Arc<OwnedFd>,
}

impl PassedPipe {
    pub(super) fn new(serving: &Arc<DescriptorServer>) -> PassedPipe {
        PassedPipe { serving: Arc::downgrade(serving), socket: serving.socket() }
    }

    /// Takes no further request, whoever has the descriptor, and stops what is under way as far as
    /// it was not begun: parts that a device or a thread has already (a few megabytes each, at
    /// most) are carried out. Nobody is told of any of it.
    pub fn end(&self) {
        if let Some(serving) = self.serving.upgrade() {
            serving.end();
        }
    }

    /// Whether who has the descriptor has not taken all that was sent to it, and has not closed it.
    /// It is charged to this process so long, also when the pipe has ended.
    pub fn has_unread(&self) -> bool {
        passing::has_unread(&*self.socket)
    }

    /// The pipe, while there is one.
    pub fn pipe(&self) -> Option<RuntimePipe> {
        self.serving.upgrade().map(|serving| serving.pipe().clone())
    }
}

impl fmt::Debug for PassedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GivenPipe({:?})", self.pipe())
    }
}

impl Runtime {
    /// As [`connect_raw_fd`](Runtime::connect_raw_fd), for who must know when the pipe has ended:
    /// `keeper` is dropped then, by the thread that ended it, after the pipe. It should not block.
    ///
    /// # Errors
    /// As [`connect_fd`](Runtime::connect_fd).
    pub fn pass_fd(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        ask: &ConnectFdOptions,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Result<(OwnedFd, PassedPipe)> {
        let (socket, serving) = self.connect_kept(source, target, ask, Some(keeper))?;
        Ok((socket, PassedPipe::new(&serving)))
    }
}
