//! The machine: what was discovered, and what routes it has.

use std::ffi::{c_char, c_void};

use datapipes::{Constraints, Error, ErrorKind, Machine, Result};

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::place::{PLACES, dp_place};

/// The machine as it was discovered. It belongs to the caller, who closes it with
/// `dp_machine_close`. Any thread may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_machine {
    /// The number; 0 for none.
    pub id: u64,
}

pub(crate) static MACHINES: Table<Machine> = Table::new(Kind::Machine);

/// Discovers the machine: its cores, caches, memories, and the primitives that it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_machine_discover(machine: *mut dp_machine) -> dp_error {
    enter(|| {
        arguments::check(machine, "machine")?;
        let id = MACHINES.put(datapipes::discover())?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(machine, "machine", dp_machine { id }) }
    })
}

/// Ends a machine. Pipes and runtimes that were made from it live on.
///
/// Errors: DP_INVALID_INPUT for a machine that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_machine_close(machine: dp_machine) -> dp_error {
    enter(|| MACHINES.close(machine.id))
}

/// Gives the number of usable cores and the size of the smallest one's L2 cache in bytes (figure
/// 6a's `CacheSize`). Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_machine_cores(machine: dp_machine, cores: *mut u32, l2_bytes: *mut u64) -> dp_error {
    enter(|| {
        arguments::check_optional(cores, "cores")?;
        arguments::check_optional(l2_bytes, "l2_bytes")?;
        let machine = MACHINES.get(machine.id)?;
        // SAFETY: the header says what the pointers are.
        unsafe {
            if !cores.is_null() {
                cores.write(u32::try_from(machine.topology().usable_cores().count()).unwrap_or(u32::MAX));
            }
            if !l2_bytes.is_null() {
                l2_bytes.write(machine.l2_size());
            }
        }
        Ok(())
    })
}

/// Gives the position among the usable cores of the core that runs this thread now (figure 6a's
/// `core_idx`).
///
/// Errors: DP_UNAVAILABLE if it is not among the usable ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_machine_current_core(machine: dp_machine, core: *mut u32) -> dp_error {
    enter(|| {
        let machine = MACHINES.get(machine.id)?;
        let here = current_core();
        let at = machine.topology().usable_cores().position(|core| Some(core.index) == here).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "find the core", "this thread's core is not a usable one")
        })?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(core, "core", u32::try_from(at).unwrap_or(u32::MAX)) }
    })
}

fn current_core() -> Option<usize> {
    // Declared here, where cbindgen does not see it: the header must not declare the machine's
    // functions, which its own headers declare otherwise.
    unsafe extern "C" {
        fn sched_getcpu() -> i32;
    }
    // SAFETY: the function takes nothing and returns a number.
    usize::try_from(unsafe { sched_getcpu() }).ok()
}

/// Calls `work(core, user)` on every usable core at once, each call on a thread bound to its core;
/// `core` is its position. Returns the first error that `work` returned, or what starting the
/// threads met. `work` must be safe to call from several threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_machine_each_core(
    machine: dp_machine,
    work: Option<unsafe extern "C" fn(core: u32, user: *mut c_void) -> dp_error>,
    user: *mut c_void,
) -> dp_error {
    enter(|| {
        let machine: Machine = MACHINES.get(machine.id)?.clone();
        let work = work.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "call", "work: a null pointer"))?;
        let user = Shared(user);
        machine.each_core(|core| {
            let at = u32::try_from(machine.position(core)).unwrap_or(u32::MAX);
            // SAFETY: the caller says that threads may make this call with this argument.
            unsafe { work(at, user.get()) }.into_result("run on each core")
        })
    })
}

/// A pointer of the caller's that is passed on to the caller's functions.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut c_void);

impl Shared {
    /// The pointer. (A closure that named the field would capture the pointer alone.)
    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

// SAFETY: the library does not follow it; the header says which threads it is passed to.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// What a route must meet. Set `size` to `sizeof(dp_constraints)` and the rest to zero, or pass
/// NULL, for no demands.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_constraints {
    /// `sizeof(dp_constraints)`.
    pub size: u32,
    /// Not 0: the bytes are moved without loads and stores of a core.
    pub require_offload: u32,
    /// Not 0: the bytes do not go through the page cache.
    pub bypass_page_cache: u32,
    /// Not 0: the bytes do not displace what is in the processor's caches.
    pub bypass_processor_cache: u32,
    /// The least estimated rate in bytes per second; 0 for none.
    pub at_least: f64,
    /// The length of a typical transfer in bytes; 0 for the default, 1 MiB.
    pub typical_length: u64,
    /// Requests kept outstanding on a device; 0 for what the device allows.
    pub queue_depth: u32,
    /// Bytes of one request; 0 for what the device allows.
    pub request_bytes: u32,
    /// Not 0: the pipe's requests go before those of others at the device, where the kernel allows.
    pub urgent: u32,
    /// Not 0: the bytes are in the processor's caches afterwards, as far as they fit.
    pub fill_processor_cache: u32,
    /// The primitives that are allowed, separated by commas; NULL for all.
    pub only: *const c_char,
    /// The primitives that are not allowed, separated by commas; NULL for none.
    pub deny: *const c_char,
}

// SAFETY: the fields are numbers and pointers.
unsafe impl Options for dp_constraints {
    const FIELDS: &'static [Field] = fields!(dp_constraints {
        size,
        require_offload,
        bypass_page_cache,
        bypass_processor_cache,
        at_least,
        typical_length,
        queue_depth,
        request_bytes,
        urgent,
        fill_processor_cache,
        only,
        deny,
    });
}

/// # Safety
/// `at` is null or a text that ends with NUL.
unsafe fn names(at: *const c_char, what: &str) -> Result<Vec<String>> {
    if at.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller of this function says so.
    let text = unsafe { arguments::text(at, what)? };
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// # Safety
/// `at` is null or valid, and so are its texts.
pub(crate) unsafe fn constraints_of(at: *const dp_constraints) -> Result<Constraints> {
    // SAFETY: the caller of this function says so.
    let asked = unsafe { arguments::options(at, "constraints")? };
    // SAFETY: as above.
    let (only, deny) = unsafe { (names(asked.only, "only")?, names(asked.deny, "deny")?) };
    let some = |number: u64| (number != 0).then_some(number);
    Ok(Constraints::default()
        .only(only)
        .deny(deny)
        .require_offload(asked.require_offload != 0)
        .bypass_page_cache(asked.bypass_page_cache != 0)
        .bypass_processor_cache(asked.bypass_processor_cache != 0)
        .fill_processor_cache(asked.fill_processor_cache != 0)
        .at_least((asked.at_least != 0.0).then_some(asked.at_least))
        .typical_len(some(asked.typical_length))
        .queue_depth((asked.queue_depth != 0).then_some(asked.queue_depth))
        .request_bytes((asked.request_bytes != 0).then_some(asked.request_bytes))
        .urgent(asked.urgent != 0))
}

/// Copies the route that connecting two places would take, with the reasons, as `snprintf` does;
/// `*len` becomes its whole length. `format` is a `dp_format`.
///
/// Errors: DP_UNSUPPORTED where there is no route.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_explain(
    machine: dp_machine,
    source: dp_place,
    target: dp_place,
    constraints: *const dp_constraints,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        // SAFETY: the header says what the pointers are.
        let constraints = unsafe { constraints_of(constraints)? };
        let route = MACHINES.get(machine.id)?.explain(&*source, &*target, &constraints)?;
        // SAFETY: as above.
        unsafe { arguments::show(&route, format, text, capacity, len) }
    })
}

/// Copies what was discovered, as `snprintf` does; `*len` becomes its whole length. `format` is a
/// `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_machine_describe(
    machine: dp_machine,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let machine = MACHINES.get(machine.id)?;
        let topology = machine.topology();
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::show(topology, format, text, capacity, len) }
    })
}
