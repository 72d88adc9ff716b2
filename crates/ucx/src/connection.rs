//! A connection to a peer's memory: put, get, flush.
//!
//! This module's unsafe code calls functions of UCX with objects that live as long as the
//! connection.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use datapipes_core::Result;

use crate::abi::{Handle, RequestParams, Status};
use crate::endpoint::{Outcome, PADDING, PeerEndpoint, PeerRequest, within};
use crate::settings::UcxSettings;
use crate::worker::{Armed, UcxUse, UcxWorker};

/// What the other side says of its memory, for UCX.
#[derive(Clone, Debug)]
pub struct PeerMemory {
    /// Where the peer's worker is.
    pub worker: Vec<u8>,
    /// The key of UCX for the memory.
    pub key: Vec<u8>,
    /// The address of the first byte, in the peer.
    pub start: u64,
}

/// A connection to a peer's memory.
///
/// The memory that its operations use may be let go of when it is dropped.
pub struct PeerConnection {
    endpoint: PeerEndpoint,
    key: Handle,
    start: u64,
}

// SAFETY: as for the worker, to which all of it belongs.
unsafe impl Send for PeerConnection {}

impl PeerConnection {
    /// Connects to the memory of a peer that proved to have the same key: UCX believes what the
    /// peer says of itself.
    ///
    /// # Errors
    /// `Unavailable` where UCX finds no way to the peer.
    pub fn open(settings: &UcxSettings, peer: &PeerMemory) -> Result<PeerConnection> {
        let worker = UcxWorker::open(settings, UcxUse::Memory)?;
        let ucx = worker.ucx;
        let endpoint = PeerEndpoint::open(worker, settings, &peer.worker)?;
        let mut connection = PeerConnection { endpoint, key: null_mut(), start: peer.start };
        let mut key = peer.key.clone();
        key.resize(peer.key.len() + PADDING, 0);
        let endpoint = connection.endpoint.endpoint;
        // SAFETY: the endpoint lives; the bytes live during the call.
        let status = unsafe { (ucx.rkey_unpack)(endpoint, key.as_ptr().cast(), &raw mut connection.key) };
        ucx.check(status, "connect").map_err(|e| within(e, settings))?;
        Ok(connection)
    }

    /// Starts a copy of this process's bytes to the peer's at `offset`. Its end says that the bytes
    /// here are free; [`flush`](Self::flush) says that they arrived.
    ///
    /// # Safety
    /// `from..from + len` stays readable, and is not written, until the operation was found done or
    /// this connection is dropped. `offset..offset + len` lies within the peer's memory.
    pub unsafe fn put(&mut self, from: *const u8, len: usize, offset: u64) -> Outcome {
        let (ucx, params) = (self.endpoint.worker.ucx, RequestParams::new(0, 0));
        let (endpoint, at) = (self.endpoint.endpoint, self.start.wrapping_add(offset));
        // SAFETY: the caller promises the bytes; endpoint and key live as long as `self`.
        let started = unsafe { (ucx.put)(endpoint, from.cast(), len, at, self.key, &raw const params) };
        self.endpoint.started(started)
    }

    /// Starts a copy of the peer's bytes at `offset`.
    ///
    /// # Safety
    /// As for [`put`](Self::put), and nothing else accesses `to..to + len` meanwhile.
    pub unsafe fn get(&mut self, to: *mut u8, len: usize, offset: u64) -> Outcome {
        let (ucx, params) = (self.endpoint.worker.ucx, RequestParams::new(0, 0));
        let (endpoint, at) = (self.endpoint.endpoint, self.start.wrapping_add(offset));
        // SAFETY: as in `put`.
        let started = unsafe { (ucx.get)(endpoint, to.cast(), len, at, self.key, &raw const params) };
        self.endpoint.started(started)
    }

    /// Starts an operation that ends when all that were started before it have ended at the peer.
    pub fn flush(&mut self) -> Outcome {
        self.endpoint.flush()
    }

    /// Asks an operation, and frees it where it is done.
    pub fn ask(&mut self, request: PeerRequest) -> Outcome {
        self.endpoint.ask(request)
    }

    /// Does what there is to do, and returns whether there was something.
    pub fn progress(&mut self) -> bool {
        self.endpoint.worker.progress()
    }

    /// Makes the event tell of what comes next, as [`UcxWorker::arm`].
    ///
    /// # Errors
    /// Errors of UCX.
    pub fn arm(&mut self) -> Result<Armed> {
        self.endpoint.worker.arm()
    }

    /// The descriptor of the worker, as [`UcxWorker::event`].
    pub fn event(&self) -> BorrowedFd<'_> {
        self.endpoint.worker.event()
    }

    /// The error of the peer that UCX told, if any.
    pub fn failure(&self) -> Option<Status> {
        self.endpoint.failure()
    }

    /// A status in words.
    pub fn words_of(&self, status: Status) -> String {
        self.endpoint.worker.ucx.words_of(status)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        // SAFETY: the key is destroyed once, before its endpoint, which is dropped with the fields.
        unsafe {
            if !self.key.is_null() {
                (self.endpoint.worker.ucx.rkey_destroy)(self.key);
            }
        }
    }
}
