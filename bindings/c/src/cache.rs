//! Reads of a few bytes from files, through the cache of bytes (*Pipette*, DAC'22).

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use datapipes::cache::{CacheOptions, CachePolicy, FineGrained, Writer};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, dp_machine};
use crate::place::{PLACES, dp_place, ssd_of};
use crate::process_lock::ProcessLock;

/// A cache of bytes in front of a file. It belongs to the caller, who closes it with
/// `dp_cache_close`. Any number of threads may use it at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_cache {
    /// The number; 0 for none.
    pub id: u64,
}

struct Cache {
    fine: FineGrained,
    /// Made by the first write.
    writer: ProcessLock<Option<Arc<Writer>>>,
}

impl Cache {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let writer = {
            let mut held = self.writer.lock("write")?;
            match &*held {
                Some(writer) => writer.clone(),
                None => held.insert(Arc::new(self.fine.writer()?)).clone(),
            }
        };
        writer.write(offset, bytes)
    }
}

static CACHES: Table<Cache> = Table::new(Kind::Cache);

/// The settings of a cache. Set `size` to `sizeof(dp_cache_options)` and the rest to zero, or pass
/// NULL, for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_cache_options {
    /// `sizeof(dp_cache_options)`.
    pub size: u32,
    /// Requests that one thread has outstanding at the device; 0 for the default.
    pub depth: u32,
    /// The memory budget in bytes, for everything; 0 for 64 MiB; at least 2 MiB.
    pub budget: u64,
    /// Reads of more bytes than this from one page use the block path; 0 for the default.
    pub large: u64,
    /// The policy by name ("adaptive", ...), or NULL for the default.
    pub policy: *const c_char,
}

// SAFETY: the fields are numbers and a pointer.
unsafe impl Options for dp_cache_options {
    const FIELDS: &'static [Field] = fields!(dp_cache_options { size, depth, budget, large, policy });
}

/// Opens a cache in front of a file.
///
/// Errors: DP_INVALID_INPUT for a place that is no file, and for settings that make no sense;
/// DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_open(
    machine: dp_machine,
    file: dp_place,
    options: *const dp_cache_options,
    cache: *mut dp_cache,
) -> dp_error {
    enter(|| {
        arguments::check(cache, "cache")?;
        // SAFETY: the header says what the pointer is.
        let asked = unsafe { arguments::options(options, "options")? };
        let ssd = ssd_of(&*PLACES.get(file.id)?, "open a cache")?;
        let mut options = CacheOptions::new(&*MACHINES.get(machine.id)?);
        let size = |bytes: u64| {
            usize::try_from(bytes)
                .map_err(|_| Error::new(ErrorKind::InvalidInput, "open a cache", format!("{bytes} bytes")))
        };
        if asked.budget != 0 {
            options = options.budget(size(asked.budget)?);
        }
        if asked.large != 0 {
            options = options.large(size(asked.large)?);
        }
        if asked.depth != 0 {
            options = options.depth(asked.depth as usize);
        }
        if !asked.policy.is_null() {
            // SAFETY: as above.
            let name = unsafe { arguments::text(asked.policy, "policy")? };
            let known = CachePolicy::ALL.into_iter().find(|policy| policy.name() == name);
            options = options.policy(known.ok_or_else(|| {
                let names: Vec<_> = CachePolicy::ALL.iter().map(|policy| policy.name()).collect();
                Error::new(ErrorKind::InvalidInput, "open a cache", format!("`{name}` is no policy"))
                    .with_advice(format!("say one of {}", names.join(", ")))
            })?);
        }
        let fine = FineGrained::over(&ssd, options)?;
        let id = CACHES.put(Cache { fine, writer: ProcessLock::new(None) })?;
        // SAFETY: as above.
        unsafe { arguments::give(cache, "cache", dp_cache { id }) }
    })
}

/// Reads `len` bytes at `offset` of the file.
///
/// Errors: DP_END_OF_FILE, DP_DEVICE; DP_BUSY where a write to the same bytes takes too long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_read(cache: dp_cache, offset: u64, into: *mut c_void, len: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let into = unsafe { arguments::slice_mut(into.cast(), len, "into")? };
        CACHES.get(cache.id)?.fine.read(offset, into)
    })
}

/// Reads `count` pieces of `len` bytes at `offsets` of the file, one after the other into `into`,
/// which has `count * len` bytes. `*failed`, if it is not NULL, becomes the index of the piece whose
/// error is returned; the others were read nonetheless.
///
/// Errors: as `dp_cache_read`, of the first piece that failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_gather(
    cache: dp_cache,
    offsets: *const u64,
    count: usize,
    len: usize,
    into: *mut c_void,
    failed: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(failed, "failed")?;
        let bytes = count.checked_mul(len).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "read", format!("{count} pieces of {len} bytes fit no memory"))
        })?;
        // SAFETY: the header says what the pointers are.
        let (offsets, into) = unsafe {
            (arguments::slice(offsets, count, "offsets")?, arguments::slice_mut(into.cast(), bytes, "into")?)
        };
        let mut gathered = CACHES.get(cache.id)?.fine.gather(offsets, len, into)?;
        gathered.failed.sort_by_key(|(number, _)| *number);
        if gathered.failed.is_empty() {
            return Ok(());
        }
        let (at, error) = gathered.failed.swap_remove(0);
        if !failed.is_null() {
            // SAFETY: as above.
            unsafe { failed.write(at) };
        }
        Err(error.within(format!("piece {at}")))
    })
}

/// Writes `len` bytes at `offset` of the file, through the cache: what it has of them is the new bytes
/// when this returns. They are durable after `dp_ssd_sync` of the file.
///
/// Errors: DP_UNSUPPORTED for a file that is open for reading only; DP_NO_SPACE, DP_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_write(cache: dp_cache, offset: u64, from: *const c_void, len: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let from = unsafe { arguments::slice(from.cast::<u8>(), len, "from")? };
        CACHES.get(cache.id)?.write(offset, from)
    })
}

/// Drops all that is cached.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cache_clear(cache: dp_cache) -> dp_error {
    enter(|| {
        CACHES.get(cache.id)?.fine.clear();
        Ok(())
    })
}

/// Copies how a cache reads its file, and why, as `snprintf` does; `*len` becomes the whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_explain(
    cache: dp_cache,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let shown = CACHES.get(cache.id)?.fine.explain();
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Copies what a cache did, as `snprintf` does; `*len` becomes the whole length. `format` is a
/// `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_report(
    cache: dp_cache,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let metrics = CACHES.get(cache.id)?.fine.metrics();
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::report(&metrics, || metrics.samples(), format, (text, capacity, len)) }
    })
}

/// Drops what is cached of `len` bytes at `offset`, because they were changed by others.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cache_invalidate(cache: dp_cache, offset: u64, len: u64) -> dp_error {
    enter(|| {
        CACHES.get(cache.id)?.fine.invalidate(offset..offset.saturating_add(len));
        Ok(())
    })
}

/// Copies the counters of a cache as JSON, as `snprintf` does; `*len` becomes the whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_cache_metrics(
    cache: dp_cache,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let metrics = CACHES.get(cache.id)?.fine.metrics();
        let shown = arguments::json(&metrics)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Ends a cache.
///
/// Errors: DP_INVALID_INPUT for a cache that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cache_close(cache: dp_cache) -> dp_error {
    enter(|| CACHES.close(cache.id))
}
