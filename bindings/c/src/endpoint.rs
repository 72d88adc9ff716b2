//! Memory endpoints: memory for which the controller decides who may read and write it.

use std::ffi::{c_char, c_void};

use datapipes::fabric::memory::MemoryEndpoint;

use crate::arguments;
use crate::channel::patience_of;
use crate::door::enter;
use crate::error::dp_error;
use crate::fabric::{created, dp_capability, dp_fabric, fabric_of};
use crate::handles::{Kind, Table};
use crate::place::len_of;

/// A view of a memory of the controller's. It belongs to the caller, who closes it with
/// `dp_endpoint_close`. Any number of threads may use it at once. Other parties may change the bytes at
/// any time, so they are copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_endpoint {
    /// The number; 0 for none.
    pub id: u64,
}

static ENDPOINTS: Table<MemoryEndpoint> = Table::new(Kind::Endpoint);

/// Creates a memory of `len` zeroed bytes. The capability has all rights to it: `dp_fabric_delegate` gives
/// others the right to read or write, `dp_fabric_activate` makes a view of it, and `dp_fabric_revoke`
/// takes both away.
///
/// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_memory(fabric: dp_fabric, len: u64, capability: *mut dp_capability) -> dp_error {
    enter(|| {
        let len = len_of(len)?;
        // SAFETY: the header says what the pointer is.
        unsafe { created(fabric, capability, |session| session.memory(len)) }
    })
}

/// Takes the program's view of a memory at a port. It waits for that, up to `milliseconds`.
///
/// Errors: DP_BUSY where it was not there in time; DP_NOT_FOUND for the port of a channel;
/// DP_UNAVAILABLE where the controller ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_endpoint(
    fabric: dp_fabric,
    port: *const c_char,
    milliseconds: u64,
    endpoint: *mut dp_endpoint,
) -> dp_error {
    enter(|| {
        arguments::check(endpoint, "endpoint")?;
        // SAFETY: the header says what the pointers are.
        let port = unsafe { arguments::text(port, "port")? };
        let patience = patience_of(milliseconds);
        let taken = fabric_of(fabric)?.wait("take", patience, |session, turn| session.shared_memory(port, turn))?;
        let id = ENDPOINTS.put(taken)?;
        // SAFETY: as above.
        unsafe { arguments::give(endpoint, "endpoint", dp_endpoint { id }) }
    })
}

/// Gives the length of a memory in bytes, and whether this view may write it. Either pointer may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_endpoint_facts(endpoint: dp_endpoint, len: *mut u64, writable: *mut u32) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        arguments::check_optional(writable, "writable")?;
        let memory = ENDPOINTS.get(endpoint.id)?;
        // SAFETY: the header says what the pointers are.
        unsafe {
            if !len.is_null() {
                len.write(memory.len() as u64);
            }
            if !writable.is_null() {
                writable.write(memory.writable().into());
            }
        }
        Ok(())
    })
}

/// Copies `len` bytes at `at` out of a memory.
///
/// Errors: DP_OUT_OF_RANGE; DP_PERMISSION_DENIED after a revocation; DP_FORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_endpoint_read(endpoint: dp_endpoint, at: u64, into: *mut c_void, len: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let into = unsafe { arguments::slice_mut(into.cast(), len, "into")? };
        ENDPOINTS.get(endpoint.id)?.read(usize::try_from(at).unwrap_or(usize::MAX), into)
    })
}

/// Copies `len` bytes into a memory at `at`.
///
/// Errors: as `dp_endpoint_read`; DP_PERMISSION_DENIED for a view that may only be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_endpoint_write(
    endpoint: dp_endpoint,
    at: u64,
    from: *const c_void,
    len: usize,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let from = unsafe { arguments::slice(from.cast::<u8>(), len, "from")? };
        ENDPOINTS.get(endpoint.id)?.write(usize::try_from(at).unwrap_or(usize::MAX), from)
    })
}

/// Ends a view of a memory.
///
/// Errors: DP_INVALID_INPUT for one that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_endpoint_close(endpoint: dp_endpoint) -> dp_error {
    enter(|| ENDPOINTS.close(endpoint.id))
}
