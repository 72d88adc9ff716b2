//! Pipes of the service `dpiped`, for programs in C.

use std::ffi::c_char;
use std::os::fd::{AsFd, AsRawFd};

use datapipes::ConnectFdOptions;
use datapipes::service::{Client, ClientPlace, SharedMemory};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments;
use crate::descriptor::{PIPE_FDS, PipeDescriptor, dp_pipe_fd};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::dp_constraints;
use crate::place::{PLACES, Place, dp_place, duplicate, len_of, make};
use crate::runtime::{connect_options, dp_service};

/// A connection to the service `dpiped`, which moves bytes for all programs of a machine. It belongs
/// to the caller, who closes it with `dp_client_close`. Any number of threads may use it at once;
/// their requests take turns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_client {
    /// The number; 0 for none.
    pub id: u64,
}

static CLIENTS: Table<Client> = Table::new(Kind::Client);

/// Allocates memory that can be passed to the service: zeroed, on ordinary pages. In this process it
/// is a place like any other, but other processes may change its bytes, so leases on it are refused:
/// use `dp_place_read` and `dp_place_write`.
///
/// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_shared_memory_create(len: u64, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointer is.
    unsafe { make(place, || Ok(Place::shared(SharedMemory::create(len_of(len)?)?))) }
}

/// Makes the whole of a memfd of the caller's a place that can be passed to the service. It must be
/// sealed against shrinking (`F_SEAL_SHRINK`). The descriptor is duplicated and stays the caller's.
///
/// Errors: DP_INVALID_INPUT for another descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_shared_memory_from_descriptor(descriptor: i32, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointer is.
    unsafe { make(place, || Ok(Place::shared(SharedMemory::from_fd(duplicate(descriptor)?)?))) }
}

/// Gives the descriptor of memory that was made by the two functions before, for passing it to other
/// processes. It belongs to the place: do not close it.
///
/// Errors: DP_INVALID_INPUT for another place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_shared_memory_descriptor(place: dp_place, descriptor: *mut i32) -> dp_error {
    enter(|| {
        let place = PLACES.get(place.id)?;
        let Place::Shared(shared) = &*place else {
            return Err(Error::new(ErrorKind::InvalidInput, "take the descriptor", "the place is not shared memory"));
        };
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(descriptor, "descriptor", shared.memory.as_fd().as_raw_fd()) }
    })
}

/// Connects to the service whose socket is at `path`, or, with NULL, to the first that runs at
/// `$XDG_RUNTIME_DIR/dpiped.sock` and `/run/dpiped.sock`.
///
/// Errors: DP_UNAVAILABLE where no service runs; DP_PERMISSION_DENIED; DP_BUSY where it has too many
/// clients; DP_UNSUPPORTED where it speaks another version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_client_connect(path: *const c_char, client: *mut dp_client) -> dp_error {
    enter(|| {
        arguments::check(client, "client")?;
        let connected = match path.is_null() {
            true => Client::connect_default()?,
            // SAFETY: the header says what the pointers are.
            false => Client::connect(unsafe { arguments::path(path, "path")? })?,
        };
        let id = CLIENTS.put(connected)?;
        // SAFETY: as above.
        unsafe { arguments::give(client, "client", dp_client { id }) }
    })
}

/// What is passed to the service of a place.
fn passed<'a>(place: &'a Place, role: &'static str) -> Result<ClientPlace<'a>> {
    match place {
        Place::Ssd(ssd) => Ok(ClientPlace::file(ssd)),
        Place::Shared(shared) => ClientPlace::memory_range(&shared.memory, shared.at, shared.part.len()),
        _ => Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{role}: it is in this process only"))
            .with_advice("pass a file, or memory of dp_shared_memory_create")),
    }
}

/// Connects two places by a pipe that the service carries out: files, with the rights of their
/// descriptors, and shared memory. The other arguments are those of `dp_runtime_connect_fd`; the
/// `queue` of the service level must be 0. The pipe keeps the connection open. While a transfer is
/// under way, its bytes are leased in this process until its completion is taken.
///
/// Errors: DP_INVALID_INPUT for a place that cannot be passed; DP_PERMISSION_DENIED for a descriptor
/// without the right; DP_BUSY where a limit is reached; DP_UNSUPPORTED; DP_UNAVAILABLE where the
/// service is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_client_connect_fd(
    client: dp_client,
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
        let client = CLIENTS.get(client.id)?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        // SAFETY: the header says what the pointers are.
        let connect = unsafe { connect_options(constraints, service)? };
        let depth = (depth != 0).then_some(depth as usize);
        let options = ConnectFdOptions::default().connect(connect).place(place).depth(depth);
        let made = client.connect_pipe(&passed(&source, "the source")?, &passed(&target, "the target")?, &options)?;
        let id = PIPE_FDS.put(PipeDescriptor::OfService(made))?;
        // SAFETY: as above.
        unsafe { arguments::give(pipe, "pipe", dp_pipe_fd { id }) }
    })
}

/// Copies what the service is doing as JSON, as `snprintf` does; `*len` becomes the whole length.
///
/// Errors: DP_UNAVAILABLE where the service is gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_client_status(
    client: dp_client,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let shown = arguments::json(&CLIENTS.get(client.id)?.status()?)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Ends a connection to the service, which stays open until its last pipe is closed.
///
/// Errors: DP_INVALID_INPUT for a client that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_client_close(client: dp_client) -> dp_error {
    enter(|| CLIENTS.close(client.id))
}
