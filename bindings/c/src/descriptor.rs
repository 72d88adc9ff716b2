//! Pipes in the flavor of a file descriptor (CIDR'23, figure 6c).

use std::ffi::c_char;
use std::os::fd::{AsFd, AsRawFd};

use datapipes::descriptor::Completion;
use datapipes::service::ClientPipe;
use datapipes::{ConnectFdOptions, Error, ErrorKind, PipeFd, Result, Span};

use crate::arguments::{self, TextFormat};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, dp_constraints, dp_machine};
use crate::pipe::dp_span;
use crate::place::{PLACES, dp_place};
use crate::runtime::{RUNTIMES, connect_options, dp_runtime, dp_service};

/// A pipe that is a file descriptor. It belongs to the caller, who closes it with
/// `dp_pipe_fd_close`. Any number of threads may use it at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_pipe_fd {
    /// The number; 0 for none.
    pub id: u64,
}

/// A transfer that is done.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_completion {
    /// The number that `dp_pipe_fd_submit` gave.
    pub token: u64,
    /// What the pipe's place was called when it was connected.
    pub place: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// 0, or the error, which belongs to the caller.
    pub error: dp_error,
}

/// A request as `write(2)` on the descriptor takes it, one a packet. Its answer is a
/// `dp_completion_message`. The answer to a packet of another length is DP_INVALID_INPUT with the
/// token `UINT64_MAX`, except that one byte has no answer: the library wakes itself with it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_request_message {
    /// Comes back with the completion. `dp_pipe_fd_submit` counts its tokens from 0: a program that
    /// also writes requests itself gives those others, such as numbers from 2^63 on.
    pub token: u64,
    /// Offset in the source, in bytes.
    pub source: u64,
    /// Offset in the target, in bytes.
    pub target: u64,
    /// Bytes to move.
    pub length: u64,
}

/// A completion as `read(2)` on the descriptor gives it, one a packet. The text of the error follows
/// it, up to 1024 bytes in all.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_completion_message {
    /// The request's.
    pub token: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// What the pipe's place was called when it was connected.
    pub place: u64,
    /// The operating system's number, or 0.
    pub errno_number: u32,
    /// A `dp_error_kind`.
    pub kind: u32,
}

const _: () = assert!(size_of::<dp_request_message>() == datapipes::descriptor::wire::REQUEST_BYTES);
const _: () = assert!(size_of::<dp_completion_message>() == datapipes::descriptor::wire::COMPLETION_BYTES);

/// Who carries out the transfers.
pub(crate) enum PipeDescriptor {
    OfRuntime(PipeFd),
    OfService(ClientPipe),
}

impl PipeDescriptor {
    fn submit(&self, span: Span) -> Result<u64> {
        match self {
            PipeDescriptor::OfRuntime(pipe) => pipe.submit(span),
            PipeDescriptor::OfService(pipe) => pipe.submit(span),
        }
    }

    fn complete(&self) -> Result<Option<Completion>> {
        match self {
            PipeDescriptor::OfRuntime(pipe) => pipe.complete(),
            PipeDescriptor::OfService(pipe) => pipe.complete(),
        }
    }

    fn complete_wait(&self) -> Result<Completion> {
        match self {
            PipeDescriptor::OfRuntime(pipe) => pipe.complete_wait(),
            PipeDescriptor::OfService(pipe) => pipe.complete_wait(),
        }
    }

    fn number(&self) -> i32 {
        match self {
            PipeDescriptor::OfRuntime(pipe) => pipe.as_fd().as_raw_fd(),
            PipeDescriptor::OfService(pipe) => pipe.as_fd().as_raw_fd(),
        }
    }
}

pub(crate) static PIPE_FDS: Table<PipeDescriptor> = Table::new(Kind::DescriptorPipe);

/// Connects two places by a pipe that is a descriptor, with a runtime of its own.
///
/// Errors: DP_UNSUPPORTED where there is no route; DP_SYSTEM where there are no descriptors left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_connect_fd(
    machine: dp_machine,
    source: dp_place,
    target: dp_place,
    pipe: *mut dp_pipe_fd,
) -> dp_error {
    enter(|| {
        arguments::check(pipe, "pipe")?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        let id = PIPE_FDS.put(PipeDescriptor::OfRuntime(MACHINES.get(machine.id)?.connect_fd(&*source, &*target)?))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(pipe, "pipe", dp_pipe_fd { id }) }
    })
}

/// Connects two places by a pipe of a runtime that is a descriptor. `place` comes back with its
/// completions; `depth` is how many transfers it takes before it stops being writable, 0 for 64.
///
/// Errors: as `dp_connect_fd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_connect_fd(
    runtime: dp_runtime,
    source: dp_place,
    target: dp_place,
    constraints: *const dp_constraints,
    service: *const dp_service,
    place: u64,
    depth: u32,
    pipe: *mut dp_pipe_fd,
) -> dp_error {
    enter(|| {
        arguments::check(pipe, "pipe")?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        // SAFETY: the header says what the pointers are.
        let connect = unsafe { connect_options(constraints, service)? };
        let depth = (depth != 0).then_some(depth as usize);
        let options = ConnectFdOptions::default().connect(connect).place(place).depth(depth);
        let made = RUNTIMES.get(runtime.id)?.connect_fd_with(&*source, &*target, &options)?;
        let id = PIPE_FDS.put(PipeDescriptor::OfRuntime(made))?;
        // SAFETY: as above.
        unsafe { arguments::give(pipe, "pipe", dp_pipe_fd { id }) }
    })
}

/// Gives the descriptor, for poll, select and epoll: writable when it can take a transfer, readable
/// when one is done. It belongs to the pipe: do not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_fd_descriptor(pipe: dp_pipe_fd, descriptor: *mut i32) -> dp_error {
    enter(|| {
        let number = PIPE_FDS.get(pipe.id)?.number();
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(descriptor, "descriptor", number) }
    })
}

/// Starts a transfer; `*token`, if it is not NULL, becomes the number that comes back with its
/// completion.
///
/// Errors: DP_BUSY while the descriptor is not writable. What starting the transfer meets comes as
/// its completion. A service's pipe also refuses spans beyond its memory (DP_OUT_OF_RANGE) and bytes
/// that are leased in this process (DP_BUSY) at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_fd_submit(pipe: dp_pipe_fd, span: dp_span, token: *mut u64) -> dp_error {
    enter(|| {
        arguments::check_optional(token, "token")?;
        let number = PIPE_FDS.get(pipe.id)?.submit(span.into())?;
        if !token.is_null() {
            // SAFETY: the header says what the pointer is.
            unsafe { token.write(number) };
        }
        Ok(())
    })
}

fn for_c(done: Completion) -> dp_completion {
    let error = match done.result {
        Ok(()) => dp_error::NONE,
        Err(error) => dp_error::of(error),
    };
    dp_completion { token: done.token, place: done.place, bytes: done.bytes, error }
}

/// Takes a transfer that is done, if there is one; it does not block. `*is_there` becomes 0 or 1.
///
/// Errors: DP_UNAVAILABLE where the runtime or the service is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_fd_complete(
    pipe: dp_pipe_fd,
    completion: *mut dp_completion,
    is_there: *mut u32,
) -> dp_error {
    enter(|| {
        arguments::check(completion, "completion")?;
        arguments::check(is_there, "is_there")?;
        let done = PIPE_FDS.get(pipe.id)?.complete()?;
        // SAFETY: the header says what the pointers are.
        unsafe {
            is_there.write(u32::from(done.is_some()));
            if let Some(done) = done {
                completion.write(for_c(done));
            }
        }
        Ok(())
    })
}

/// Sleeps until a transfer is done, and takes it.
///
/// Errors: DP_UNAVAILABLE where the runtime or the service is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_fd_complete_wait(pipe: dp_pipe_fd, completion: *mut dp_completion) -> dp_error {
    enter(|| {
        arguments::check(completion, "completion")?;
        let done = PIPE_FDS.get(pipe.id)?.complete_wait()?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(completion, "completion", for_c(done)) }
    })
}

/// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
/// `format` is a `dp_format`. The route of a service's pipe is text only, as the service describes
/// it.
///
/// Errors: DP_UNSUPPORTED for the JSON of a service's pipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pipe_fd_route(
    pipe: dp_pipe_fd,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let pipe = PIPE_FDS.get(pipe.id)?;
        let shown = match (&*pipe, arguments::format_of(format)?) {
            (PipeDescriptor::OfRuntime(pipe), TextFormat::Text) => pipe.route().to_string(),
            (PipeDescriptor::OfRuntime(pipe), TextFormat::Json) => arguments::json(pipe.route())?,
            (PipeDescriptor::OfService(pipe), TextFormat::Text) => pipe.route().to_owned(),
            (PipeDescriptor::OfService(_), TextFormat::Json) => {
                return Err(Error::new(ErrorKind::Unsupported, "show the route", "the service gives its text only"));
            }
        };
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Ends a pipe and closes its descriptor. It waits for the transfers of a service's pipe. A thread
/// that waits in `dp_pipe_fd_complete_wait` for a pipe of a runtime gets DP_UNAVAILABLE.
///
/// Errors: DP_INVALID_INPUT for a pipe that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_pipe_fd_close(pipe: dp_pipe_fd) -> dp_error {
    enter(|| {
        if let PipeDescriptor::OfRuntime(pipe) = &*PIPE_FDS.get(pipe.id)? {
            pipe.close();
        }
        PIPE_FDS.close(pipe.id)
    })
}
