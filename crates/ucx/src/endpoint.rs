//! A worker that is connected to a peer's: its failure, its requests, and its end.
//!
//! The end is the point: bytes of this process are read and written by operations in flight, until
//! each was asked for and found done, or until the worker is destroyed. UCX copies with this
//! process's threads (shared memory, TCP) or by queues of a device that belong to the worker
//! (RDMA), and destroying the worker ends both. So whoever drops the endpoint may let go of the
//! memory.
//!
//! This module's unsafe code calls functions of UCX with objects that live as long as the endpoint.
//! The error handler writes a number that the endpoint owns, in a box.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::{Error, Result};

use crate::abi::{self, EndpointParams, Handle, RequestParams, SocketAddress, Started, Status};
use crate::settings::UcxSettings;
use crate::worker::UcxWorker;

/// How long an orderly end may take.
const ORDERLY_END: Duration = Duration::from_millis(200);
/// Zeros behind an address of UCX, which has no length of its own.
pub(crate) const PADDING: usize = 4096;

/// A worker with a way to one peer.
pub(crate) struct PeerEndpoint {
    pub(crate) worker: UcxWorker,
    pub(crate) endpoint: Handle,
    /// Whether UCX tells of a peer that fails.
    tells_failure: bool,
    /// Whether an operation ended well, for which both sides must have found each other.
    is_met: bool,
    /// The first error that UCX told, or 0.
    failure: Box<AtomicI32>,
}

// SAFETY: as for the worker, to which all of it belongs.
unsafe impl Send for PeerEndpoint {}

/// An operation that goes on. It is asked until it is done, and then freed, or it ends with the
/// connection.
#[derive(Debug)]
pub struct PeerRequest(Handle);

// SAFETY: it is used only with the connection that made it, by one thread at a time.
unsafe impl Send for PeerRequest {}

/// The outcome of an operation that was started or asked.
#[derive(Debug)]
pub enum Outcome {
    /// The operation is done.
    Done,
    /// The operation goes on.
    Pending(PeerRequest),
    /// The operation failed, with UCX's number.
    Failed(Status),
}

unsafe extern "C" fn on_error(failure: *mut c_void, _endpoint: Handle, status: Status) {
    // SAFETY: the argument is the number in the endpoint's box, which outlives the worker that
    // calls this.
    let failure = unsafe { &*failure.cast::<AtomicI32>() };
    let _ = failure.compare_exchange(0, i32::from(status), Ordering::Relaxed, Ordering::Relaxed);
}

impl PeerEndpoint {
    /// Makes a way from a worker to a peer's. It is used first by the first operation.
    ///
    /// # Errors
    /// `Unavailable` where UCX finds no way to the peer.
    pub(crate) fn open(worker: UcxWorker, settings: &UcxSettings, peer: &[u8]) -> Result<PeerEndpoint> {
        let ucx = worker.ucx;
        let failure = Box::new(AtomicI32::new(0));
        let mut address = peer.to_vec();
        address.resize(peer.len() + PADDING, 0);
        let none = || SocketAddress { address: std::ptr::null(), len: 0 };
        let params = EndpointParams {
            field_mask: abi::EP_REMOTE_ADDRESS | abi::EP_ERROR_MODE | abi::EP_ERROR_HANDLER,
            address: address.as_ptr().cast(),
            error_mode: if settings.tells_failure { abi::ERROR_MODE_PEER } else { abi::ERROR_MODE_NONE },
            on_error: Some(on_error),
            on_error_argument: std::ptr::from_ref::<AtomicI32>(&failure).cast_mut().cast(),
            user_data: null_mut(),
            flags: 0,
            socket: none(),
            connection_request: null_mut(),
            name: std::ptr::null(),
            local_socket: none(),
        };
        let mut endpoint = null_mut();
        // SAFETY: the worker lives, the structure lives during the call, and the handler's argument
        // is in a box that is dropped after the worker.
        let status = unsafe { (ucx.ep_create)(worker.worker, &raw const params, &raw mut endpoint) };
        if let Err(e) = ucx.check(status, "connect") {
            // Before the box: a handler of this endpoint may still be called.
            drop(worker);
            return Err(within(e, settings));
        }
        let tells_failure = settings.tells_failure;
        Ok(PeerEndpoint { worker, endpoint, tells_failure, is_met: false, failure })
    }

    /// Starts an operation that ends when all that were started before it have ended at the peer.
    pub(crate) fn flush(&mut self) -> Outcome {
        let (ucx, params) = (self.worker.ucx, RequestParams::new(0, 0));
        // SAFETY: the endpoint lives as long as `self`.
        self.started(unsafe { (ucx.ep_flush)(self.endpoint, &raw const params) })
    }

    /// What became of an operation that was just started.
    pub(crate) fn started(&mut self, pointer: *mut c_void) -> Outcome {
        match Started::of(pointer) {
            Started::Done => {
                self.is_met = true;
                Outcome::Done
            }
            Started::Failed(status) => Outcome::Failed(status),
            Started::Pending(request) => Outcome::Pending(PeerRequest(request)),
        }
    }

    /// Asks an operation, and frees it where it is done.
    pub(crate) fn ask(&mut self, request: PeerRequest) -> Outcome {
        let ucx = self.worker.ucx;
        // SAFETY: the request was made by this endpoint and not freed: it is freed only here,
        // where the value is not given back.
        let status = unsafe { (ucx.request_status)(request.0) };
        if status == abi::IN_PROGRESS {
            return Outcome::Pending(request);
        }
        // SAFETY: it is done, and this is its last use.
        unsafe { (ucx.request_free)(request.0) };
        if status != abi::OK {
            return Outcome::Failed(status);
        }
        self.is_met = true;
        Outcome::Done
    }

    /// Asks an operation until it is done, or an orderly end takes too long.
    fn finish(&mut self, mut outcome: Outcome) {
        let since = Instant::now();
        while let Outcome::Pending(request) = outcome {
            if since.elapsed() > ORDERLY_END {
                break;
            }
            self.worker.progress();
            outcome = self.ask(request);
        }
    }

    /// The error of the peer that UCX told, if any.
    pub(crate) fn failure(&self) -> Option<Status> {
        let status = self.failure.load(Ordering::Relaxed);
        Status::try_from(status).ok().filter(|status| *status != abi::OK)
    }
}

/// Says by what transports a way was looked for.
pub(crate) fn within(e: Error, settings: &UcxSettings) -> Error {
    e.within(format!("a way to the peer by {}", settings.transports))
}

impl Drop for PeerEndpoint {
    fn drop(&mut self) {
        let ucx = self.worker.ucx;
        // UCX before 1.14 aborts where an endpoint is closed by force while queues of RDMA are
        // being connected. One that is never connected ends with the worker, without a word.
        if self.tells_failure && !self.is_met && self.failure().is_none() {
            let outcome = self.flush();
            self.finish(outcome);
        }
        if self.tells_failure && (self.is_met || self.failure().is_some()) {
            // Ends what is in flight, and tells the peer. It may be used only where UCX watches
            // peers.
            let params = RequestParams::new(abi::OP_FLAGS, abi::CLOSE_FORCE);
            // SAFETY: the endpoint is closed once and not used afterwards.
            let started = unsafe { (ucx.ep_close)(self.endpoint, &raw const params) };
            let outcome = self.started(started);
            self.finish(outcome);
        }
        // The worker is destroyed with the fields: with it what is still in flight ends.
    }
}
