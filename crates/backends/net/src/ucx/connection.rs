//! A worker that is connected to a peer's memory: put, get, flush, and the end.
//!
//! The end is the point: bytes of this process are read and written by operations in flight, until
//! each was asked for and found done, or until the worker is destroyed. UCX copies with this
//! process's threads (shared memory, TCP) or by queues of a device that belong to the worker
//! (RDMA), and destroying the worker ends both. So whoever drops the connection may let go of the
//! memory.
//!
//! This module's unsafe code calls functions of UCX with objects that live as long as the
//! connection. The error handler writes a number that the connection owns, in a box.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::Result;

use super::abi::{self, EndpointParams, Handle, RequestParams, SocketAddress, Started, Status};
use super::worker::{Armed, UcxWorker};
use crate::control::settings::UcxSettings;

/// How long an orderly end may take.
const ORDERLY_END: Duration = Duration::from_millis(200);
/// Zeros behind an address of UCX, which has no length of its own.
const PADDING: usize = 4096;

/// What the exporter says of its memory, for UCX.
#[derive(Clone, Debug)]
pub(crate) struct PeerMemory {
    /// Where the peer's worker is.
    pub(crate) worker: Vec<u8>,
    /// The key of UCX for the memory.
    pub(crate) key: Vec<u8>,
    /// The address of the first byte, in the peer.
    pub(crate) start: u64,
}

/// A connection to a peer's memory.
pub(crate) struct PeerConnection {
    worker: UcxWorker,
    endpoint: Handle,
    key: Handle,
    start: u64,
    /// Whether UCX tells of a peer that fails.
    tells_failure: bool,
    /// Whether an operation ended well, for which both sides must have found each other.
    is_met: bool,
    /// The first error that UCX told, or 0.
    failure: Box<AtomicI32>,
}

// SAFETY: as for the worker, to which all of it belongs.
unsafe impl Send for PeerConnection {}

/// An operation that goes on. It is asked until it is done, and then freed, or it ends with the
/// connection.
#[derive(Debug)]
pub(crate) struct PeerRequest(Handle);

// SAFETY: it is used only with the connection that made it, by one thread at a time.
unsafe impl Send for PeerRequest {}

/// The outcome of an operation that was started or asked.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    Pending(PeerRequest),
    Failed(Status),
}

unsafe extern "C" fn on_error(failure: *mut c_void, _endpoint: Handle, status: Status) {
    // SAFETY: the argument is the number in the connection's box, which outlives the worker that
    // calls this.
    let failure = unsafe { &*failure.cast::<AtomicI32>() };
    let _ = failure.compare_exchange(0, i32::from(status), Ordering::Relaxed, Ordering::Relaxed);
}

impl PeerConnection {
    /// Connects to the memory of a peer that proved to have the same key: UCX believes what the
    /// peer says of itself.
    ///
    /// # Errors
    /// `Unavailable` where UCX finds no way to the peer.
    pub(crate) fn open(settings: &UcxSettings, peer: &PeerMemory) -> Result<PeerConnection> {
        let worker = UcxWorker::open(settings)?;
        let ucx = worker.ucx;
        let failure = Box::new(AtomicI32::new(0));
        let mut address = peer.worker.clone();
        address.resize(peer.worker.len() + PADDING, 0);
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
        let within = |e: datapipes_core::Error| e.within(format!("a way to the exporter by {}", settings.transports));
        ucx.check(status, "connect").map_err(within)?;
        let (start, tells_failure) = (peer.start, settings.tells_failure);
        let key = null_mut();
        let mut connection = PeerConnection { worker, endpoint, key, start, tells_failure, is_met: false, failure };
        let mut key = peer.key.clone();
        key.resize(peer.key.len() + PADDING, 0);
        // SAFETY: the endpoint lives; the bytes live during the call.
        let status = unsafe { (ucx.rkey_unpack)(endpoint, key.as_ptr().cast(), &raw mut connection.key) };
        ucx.check(status, "connect").map_err(within)?;
        Ok(connection)
    }

    /// Starts a copy of this process's bytes to the peer's at `offset`. Its end says that the bytes
    /// here are free; [`flush`](Self::flush) says that they arrived.
    ///
    /// # Safety
    /// `from..from + len` stays readable, and is not written, until the operation was found done or
    /// this connection is dropped. `offset..offset + len` lies within the peer's memory.
    pub(crate) unsafe fn put(&mut self, from: *const u8, len: usize, offset: u64) -> Outcome {
        let (ucx, params) = (self.worker.ucx, RequestParams::new(0, 0));
        // SAFETY: the caller promises the bytes; endpoint and key live as long as `self`.
        self.started(unsafe {
            (ucx.put)(self.endpoint, from.cast(), len, self.start.wrapping_add(offset), self.key, &raw const params)
        })
    }

    /// Starts a copy of the peer's bytes at `offset`.
    ///
    /// # Safety
    /// As for [`put`](Self::put), and nothing else accesses `to..to + len` meanwhile.
    pub(crate) unsafe fn get(&mut self, to: *mut u8, len: usize, offset: u64) -> Outcome {
        let (ucx, params) = (self.worker.ucx, RequestParams::new(0, 0));
        // SAFETY: as in `put`.
        self.started(unsafe {
            (ucx.get)(self.endpoint, to.cast(), len, self.start.wrapping_add(offset), self.key, &raw const params)
        })
    }

    /// Starts an operation that ends when all that were started before it have ended at the peer.
    pub(crate) fn flush(&mut self) -> Outcome {
        let (ucx, params) = (self.worker.ucx, RequestParams::new(0, 0));
        // SAFETY: the endpoint lives as long as `self`.
        self.started(unsafe { (ucx.ep_flush)(self.endpoint, &raw const params) })
    }

    fn started(&mut self, pointer: *mut c_void) -> Outcome {
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
        // SAFETY: the request was made by this connection and not freed: it is freed only here,
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

    /// Does what there is to do; false if there was nothing.
    pub(crate) fn progress(&mut self) -> bool {
        self.worker.progress()
    }

    /// As [`UcxWorker::arm`].
    ///
    /// # Errors
    /// Errors of UCX.
    pub(crate) fn arm(&mut self) -> Result<Armed> {
        self.worker.arm()
    }

    /// The descriptor of the worker, as [`UcxWorker::event`].
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.worker.event()
    }

    /// The error of the peer that UCX told, if any.
    pub(crate) fn failure(&self) -> Option<Status> {
        let status = self.failure.load(Ordering::Relaxed);
        Status::try_from(status).ok().filter(|status| *status != abi::OK)
    }

    /// A status in words.
    pub(crate) fn words_of(&self, status: Status) -> String {
        self.worker.ucx.words_of(status)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let ucx = self.worker.ucx;
        // SAFETY: the key is destroyed once, before its endpoint.
        unsafe {
            if !self.key.is_null() {
                (ucx.rkey_destroy)(self.key);
            }
        }
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
