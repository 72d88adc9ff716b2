//! Pipes in the blocking flavor (CIDR'23, figure 6a).

use std::ffi::c_char;
use std::os::fd::AsRawFd;

use datapipes::{Error, ErrorKind, Pipe, Result, Span, Transfer};

use crate::arguments;
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, constraints_of, dp_constraints, dp_machine};
use crate::place::{PLACES, dp_place};
use crate::process_lock::ProcessLock;

/// A connection of two places. It belongs to the caller, who closes it with `dp_pipe_close`. Any
/// number of threads may use it at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_pipe {
    /// The number; 0 for none.
    pub id: u64,
}

/// A transfer that was started. `dp_transfer_wait` ends it; `dp_transfer_close` forgets it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_transfer {
    /// The number; 0 for none.
    pub id: u64,
}

/// What a transfer moves: `length` bytes from offset `source` of the source to offset `target` of
/// the target, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_span {
    /// Offset in the source, in bytes.
    pub source: u64,
    /// Offset in the target, in bytes.
    pub target: u64,
    /// Bytes to move.
    pub length: u64,
}

impl From<dp_span> for Span {
    fn from(span: dp_span) -> Span {
        Span { source: span.source, target: span.target, len: span.length }
    }
}

static PIPES: Table<Pipe> = Table::new(Kind::Pipe);
static TRANSFERS: Table<ProcessLock<Option<Transfer>>> = Table::new(Kind::Transfer);

/// Connects two places by the best route that this machine has and that meets the constraints.
///
/// Errors: DP_UNSUPPORTED where there is no route, with what each primitive lacks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_connect(
    machine: dp_machine,
    source: dp_place,
    target: dp_place,
    constraints: *const dp_constraints,
    pipe: *mut dp_pipe,
) -> dp_error {
    enter(|| {
        arguments::check(pipe, "pipe")?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        // SAFETY: the header says what the pointers are.
        let constraints = unsafe { constraints_of(constraints)? };
        let made = MACHINES.get(machine.id)?.connect_with(&*source, &*target, &constraints)?;
        let id = PIPES.put(made)?;
        // SAFETY: as above.
        unsafe { arguments::give(pipe, "pipe", dp_pipe { id }) }
    })
}

/// Moves a span; returns when the bytes are there.
///
/// Errors: DP_OUT_OF_RANGE, DP_BUSY, DP_END_OF_FILE, DP_NO_SPACE, DP_DEVICE; those of I/O have errno,
/// offset and the bytes done.
#[unsafe(no_mangle)]
pub extern "C" fn dp_pipe_transfer(pipe: dp_pipe, span: dp_span) -> dp_error {
    enter(|| PIPES.get(pipe.id)?.transfer(span.into()))
}

/// Moves many spans; returns when all are there. Where the route has a queue, many are under way at
/// once, in no particular order; neighbors that continue each other at both ends are moved as one.
/// `*bytes`, if it is not NULL, becomes the number of their bytes.
///
/// Errors: before anything moves, DP_OUT_OF_RANGE for a span beyond an end, DP_INVALID_INPUT for spans
/// that write the same bytes; later, the error of the failed span that comes first, after everything
/// that was started has ended. The text names the span's number, from 0, and `dp_error_bytes_done`
/// counts the bytes of all spans that were moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_transfer_all(
    pipe: dp_pipe,
    spans: *const dp_span,
    count: usize,
    bytes: *mut u64,
) -> dp_error {
    enter(|| {
        arguments::check_optional(bytes, "bytes")?;
        let pipe = PIPES.get(pipe.id)?;
        // SAFETY: the header says what the pointers are.
        let spans = unsafe { arguments::slice(spans, count, "spans")? };
        let spans: Vec<Span> = spans.iter().map(|span| Span::from(*span)).collect();
        let moved = pipe.transfer_all(&spans)?;
        if !bytes.is_null() {
            // SAFETY: as above.
            unsafe { bytes.write(moved) };
        }
        Ok(())
    })
}

/// Starts a transfer. Where the route has no queue, it is complete on return.
///
/// Errors: DP_OUT_OF_RANGE, DP_BUSY: nothing was started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_start(pipe: dp_pipe, span: dp_span, transfer: *mut dp_transfer) -> dp_error {
    enter(|| {
        arguments::check(transfer, "transfer")?;
        let started = PIPES.get(pipe.id)?.start(span.into())?;
        let id = TRANSFERS.put(ProcessLock::new(Some(started)))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(transfer, "transfer", dp_transfer { id }) }
    })
}

/// Waits until the bytes are there, and ends the handle, also where it returns an error.
///
/// Errors: the transfer's own; DP_INVALID_INPUT for a transfer that was waited for or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_transfer_wait(transfer: dp_transfer) -> dp_error {
    enter(|| take(&TRANSFERS, transfer.id, "transfer")?.wait())
}

/// Takes the value of a handle that is used up by its one user, and ends the handle, also in a child
/// of the process that made it.
pub(crate) fn take<T>(table: &'static Table<ProcessLock<Option<T>>>, id: u64, what: &str) -> Result<T> {
    let taken = table.get(id)?.lock("wait").map(|mut held| held.take());
    if !matches!(taken, Ok(None)) {
        table.close(id)?;
    }
    taken?.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "wait", format!("another thread waits for the {what} or has done so"))
    })
}

/// Tells whether `dp_transfer_wait` would return at once: `*done` becomes 0 or 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_transfer_is_done(transfer: dp_transfer, done: *mut u32) -> dp_error {
    enter(|| {
        let transfer = TRANSFERS.get(transfer.id)?;
        let held = transfer.lock("ask")?;
        let is_done = held.as_ref().is_none_or(Transfer::is_done);
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(done, "done", u32::from(is_done)) }
    })
}

/// Forgets a transfer: it is carried out, and its result is lost.
///
/// Errors: DP_INVALID_INPUT for a transfer that was waited for or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_transfer_close(transfer: dp_transfer) -> dp_error {
    enter(|| TRANSFERS.close(transfer.id))
}

/// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
/// `format` is a `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_route(
    pipe: dp_pipe,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let pipe = PIPES.get(pipe.id)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::show(pipe.route(), format, text, capacity, len) }
    })
}

/// Copies what really happened on a pipe so far, as `snprintf` does; `*len` becomes its whole
/// length. `format` is a `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_report(
    pipe: dp_pipe,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let report = PIPES.get(pipe.id)?.report();
        let samples = || report.samples(&format!("pipe-{}", pipe.id));
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::report(&report, samples, format, (text, capacity, len)) }
    })
}

/// Gives a descriptor that is readable (`poll`, `epoll`) when transfers that were started on the pipe
/// may be done: then ask `dp_transfer_is_done` of each. It is the pipe's, and must neither be read nor
/// closed; it ends with the pipe. Where the route has none, as copies between memories, which are
/// complete when they are started, it becomes -1.
///
/// Errors: DP_FORKED in a child of the process that connected the pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_event(pipe: dp_pipe, descriptor: *mut i32) -> dp_error {
    enter(|| {
        arguments::check(descriptor, "descriptor")?;
        let event = PIPES.get(pipe.id)?.event()?.map_or(-1, |event| event.as_raw_fd());
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(descriptor, "descriptor", event) }
    })
}

/// Ends a pipe; waits for what it started.
///
/// Errors: DP_INVALID_INPUT for a pipe that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_pipe_close(pipe: dp_pipe) -> dp_error {
    enter(|| PIPES.close(pipe.id))
}
