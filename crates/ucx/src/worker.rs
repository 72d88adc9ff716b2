//! A context of UCX with one worker: what it does next, when to look at it, where it is.
//!
//! A worker is used by one thread at a time: every function takes `&mut`. UCX starts threads of its
//! own for some transports, which must take no signal of the program, so the worker is made by a
//! thread of ours, in which signals are blocked.
//!
//! This module's unsafe code calls functions of UCX with objects that live as long as the worker.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use datapipes_core::{Error, ErrorKind, Result, threads};

use crate::abi::{self, ContextParams, Handle, MapParams, WorkerParams};
use crate::library::Ucx;
use crate::segments::SegmentsBefore;
use crate::settings::UcxSettings;

/// The longest address or packed key of UCX that is believed.
pub const MAX_BLOB_BYTES: usize = 16 << 10;

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcxUse {
    /// Reading and writing a peer's memory, or letting a peer do so.
    Memory,
    /// Messages to a peer and from it.
    Messages,
}

/// What a worker has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Its event tells of what comes next.
    Yes,
    /// There is something already: progress first.
    Busy,
}

/// A context with one worker.
pub struct UcxWorker {
    pub(crate) ucx: &'static Ucx,
    context: Handle,
    pub(crate) worker: Handle,
    /// A duplicate of the worker's descriptor, so that it is open as long as this value.
    event: OwnedFd,
    exposed: Vec<Handle>,
}

// SAFETY: UCX was told that several threads use the worker, one at a time (`SERIALIZED`).
unsafe impl Send for UcxWorker {}

impl UcxWorker {
    /// Makes a worker.
    ///
    /// # Errors
    /// `Unavailable` where UCX is absent or lacks the transports.
    pub fn open(settings: &UcxSettings, use_for: UcxUse) -> Result<UcxWorker> {
        let ucx = Ucx::required("open")?;
        let settings = settings.clone();
        let opened = threads::spawn("ucx-open", move || {
            let before = (settings.transports == "sysv").then(SegmentsBefore::now);
            let made = UcxWorker::make(ucx, &settings, use_for);
            if let Some(before) = before {
                before.take_new_ones_from_group();
            }
            made
        })?;
        threads::join(opened).map_err(|none| none.error("open"))?
    }

    fn make(ucx: &'static Ucx, settings: &UcxSettings, use_for: UcxUse) -> Result<UcxWorker> {
        let context = open_context(ucx, settings, use_for)?;
        let mut params = WorkerParams {
            field_mask: abi::WORKER_THREAD_MODE,
            thread_mode: abi::THREAD_MODE_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: null_mut(),
            event_fd: -1,
            flags: 0,
            name: std::ptr::null(),
            am_alignment: 0,
            client_id: 0,
        };
        let mut worker = null_mut();
        // SAFETY: the context is open, and both structures live during the call.
        let made = unsafe { (ucx.worker_create)(context, &raw mut params, &raw mut worker) };
        let made = ucx.check(made, "open").map_err(|e| e.within(format!("a worker over {}", settings.transports)));
        let event = made.and_then(|()| {
            let mut fd = -1;
            // SAFETY: the worker was just made, with the feature that has the descriptor.
            ucx.check(unsafe { (ucx.worker_efd)(worker, &raw mut fd) }, "open")?;
            // SAFETY: UCX keeps the descriptor open until the worker is destroyed.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            borrowed.try_clone_to_owned().map_err(|e| Error::io("open", e, "the event of a worker of UCX"))
        });
        match event {
            Ok(event) => Ok(UcxWorker { ucx, context, worker, event, exposed: Vec::new() }),
            Err(e) => {
                // SAFETY: what was made is destroyed once, in the reverse order.
                unsafe {
                    if !worker.is_null() {
                        (ucx.worker_destroy)(worker);
                    }
                    (ucx.cleanup)(context);
                }
                Err(e)
            }
        }
    }

    /// Does what there is to do, and returns whether there was something.
    pub fn progress(&mut self) -> bool {
        // SAFETY: the worker lives, and `&mut` keeps other threads out.
        unsafe { (self.ucx.progress)(self.worker) != 0 }
    }

    /// Makes the event tell of what comes next.
    ///
    /// # Errors
    /// Errors of UCX.
    pub fn arm(&mut self) -> Result<Armed> {
        // SAFETY: as in `progress`.
        match unsafe { (self.ucx.arm)(self.worker) } {
            abi::BUSY => Ok(Armed::Busy),
            status => self.ucx.check(status, "wait").map(|()| Armed::Yes),
        }
    }

    /// The descriptor that is readable when an armed worker has something to do.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Where peers find the worker.
    ///
    /// # Errors
    /// Errors of UCX.
    pub fn address(&mut self) -> Result<Vec<u8>> {
        let (mut address, mut len) = (null_mut(), 0);
        // SAFETY: the worker lives; both variables live during the call.
        let status = unsafe { (self.ucx.worker_address)(self.worker, &raw mut address, &raw mut len) };
        self.ucx.check(status, "export")?;
        // SAFETY: UCX made `len` bytes at `address`, which stay until they are released below.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), len) }.to_vec();
        // SAFETY: it is released once, and not used afterwards.
        unsafe { (self.ucx.release_address)(self.worker, address) };
        Ok(bytes)
    }

    /// Lets peers reach memory, and returns the key of UCX that they need.
    ///
    /// # Safety
    /// `start..start + len` must stay mapped until the worker is dropped, and nothing in this
    /// process may hold a reference to it: peers read it, and write it where it is `writable`, at
    /// any time.
    ///
    /// # Errors
    /// Errors of UCX.
    pub unsafe fn expose(&mut self, start: *mut u8, len: usize, writable: bool) -> Result<Vec<u8>> {
        let read = abi::PROTECTION_LOCAL_READ | abi::PROTECTION_REMOTE_READ;
        let write = abi::PROTECTION_LOCAL_WRITE | abi::PROTECTION_REMOTE_WRITE;
        let params = MapParams {
            field_mask: abi::MAP_ADDRESS | abi::MAP_LENGTH | abi::MAP_PROTECTION,
            address: start.cast::<c_void>(),
            len,
            flags: 0,
            protection: if writable { read | write } else { read },
            memory_type: 0,
        };
        let mut memory = null_mut();
        // SAFETY: the caller promises that the memory stays mapped; the structures live.
        let status = unsafe { (self.ucx.mem_map)(self.context, &raw const params, &raw mut memory) };
        self.ucx.check(status, "export").map_err(|e| e.within("registering the memory"))?;
        self.exposed.push(memory);
        let (mut packed, mut len) = (null_mut(), 0);
        // SAFETY: the memory was just registered in this context.
        let status = unsafe { (self.ucx.rkey_pack)(self.context, memory, &raw mut packed, &raw mut len) };
        self.ucx.check(status, "export")?;
        // SAFETY: UCX made `len` bytes, which stay until they are released below.
        let bytes = unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), len) }.to_vec();
        // SAFETY: they are released once.
        unsafe { (self.ucx.rkey_release)(packed) };
        Ok(bytes)
    }
}

impl Drop for UcxWorker {
    fn drop(&mut self) {
        // SAFETY: each object is destroyed once, those that depend on another before it. `&mut`
        // says that no other thread uses them.
        unsafe {
            for memory in self.exposed.drain(..) {
                (self.ucx.mem_unmap)(self.context, memory);
            }
            (self.ucx.worker_destroy)(self.worker);
            (self.ucx.cleanup)(self.context);
        }
    }
}

/// The bytes of a segment over TCP, which is a system call on each side: with UCX's own 8 KiB these
/// take two thirds of the time.
const TCP_SEGMENT: &str = "60k";
/// The room for a segment with what is before it: UCX's own, whatever the environment says. A side
/// with less than the other one sends would wait without end.
const TCP_ROOM: &str = "64k";

fn open_context(ucx: &'static Ucx, settings: &UcxSettings, use_for: UcxUse) -> Result<Handle> {
    let has_tcp = settings.transports.split(',').any(|name| name == "tcp");
    match open_context_with(ucx, settings, use_for, has_tcp) {
        // A version that does not know the setting is slower, no more.
        Err(_) if has_tcp => open_context_with(ucx, settings, use_for, false),
        opened => opened,
    }
}

fn open_context_with(ucx: &'static Ucx, settings: &UcxSettings, use_for: UcxUse, is_tuned: bool) -> Result<Handle> {
    let mut config = null_mut();
    // SAFETY: without names it reads the variables of the environment that begin with `UCX_`.
    let status = unsafe { (ucx.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config) };
    ucx.check(status, "open")?;
    let set = |name: &str, value: &str| -> Result<()> {
        let text = |s: &str| {
            CString::new(s).map_err(|e| Error::new(ErrorKind::InvalidInput, "open", "a setting of UCX").with_source(e))
        };
        let (name, value) = (text(name)?, text(value)?);
        // SAFETY: the configuration is open, and both strings end with a zero.
        ucx.check(unsafe { (ucx.config_modify)(config, name.as_ptr(), value.as_ptr()) }, "open")
    };
    // What the environment says of these could open ports that nobody agreed to.
    let mut outcome = set("TLS", &settings.transports);
    if let Some(devices) = &settings.devices {
        outcome = outcome.and_then(|()| set("NET_DEVICES", devices));
    }
    // The queue of shared memory: twice what a pipe has in flight. A version that does not know the
    // setting by this name has a shorter one, and full queues cost time.
    let _ = set("MM_FIFO_SIZE", "256");
    if is_tuned {
        outcome = outcome.and_then(|()| set(ucx.tcp_names.segment, TCP_SEGMENT));
        outcome = outcome.and_then(|()| set(ucx.tcp_names.room, TCP_ROOM));
    }
    let feature = match use_for {
        UcxUse::Memory => abi::FEATURE_RMA,
        UcxUse::Messages => abi::FEATURE_MESSAGES,
    };
    let params = ContextParams {
        field_mask: abi::PARAM_FEATURES | abi::PARAM_ESTIMATED_PEERS,
        features: abi::FEATURE_WAKEUP | feature,
        request_size: 0,
        request_init: std::ptr::null(),
        request_cleanup: std::ptr::null(),
        tag_sender_mask: 0,
        mt_workers_shared: 0,
        estimated_num_eps: 1,
        estimated_num_ppn: 0,
        name: std::ptr::null(),
    };
    let mut context = null_mut();
    let outcome = outcome.and_then(|()| {
        // SAFETY: the structures live during the call, and the mask names the fields that are set.
        let status = unsafe { (ucx.init)(1, 11, &raw const params, config, &raw mut context) };
        ucx.check(status, "open")
    });
    // SAFETY: it is released once.
    unsafe { (ucx.config_release)(config) };
    outcome.map_err(|e| e.within(format!("the transports {} of UCX", settings.transports)))?;
    Ok(context)
}
