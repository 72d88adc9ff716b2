//! Logs that survive a crash.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use datapipes::durable::log::{self, Log, LogFolder, LogOptions, LogReader};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, dp_machine};
use crate::process_lock::ProcessLock;

/// A log that is open for appending. It belongs to the caller, who closes it with `dp_log_close`.
/// Any number of threads may append at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_log {
    /// The number; 0 for none.
    pub id: u64,
}

/// A reader of a log. It belongs to the caller, who closes it with `dp_log_reader_close`. One thread
/// at a time uses it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_log_reader {
    /// The number; 0 for none.
    pub id: u64,
}

static LOGS: Table<ProcessLock<Option<Arc<Log>>>> = Table::new(Kind::Log);

struct Reading {
    reader: LogReader,
    /// The record that was given last: its bytes are lent until the next call.
    last: Vec<u8>,
}

static READERS: Table<ProcessLock<Reading>> = Table::new(Kind::LogReader);

/// The settings of a log. Set `size` to `sizeof(dp_log_options)` and the rest to zero, or pass NULL,
/// for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_log_options {
    /// `sizeof(dp_log_options)`.
    pub size: u32,
    /// Bytes of a batch, a multiple of 4096; 0 for 1 MiB. A record is at most 40 bytes shorter.
    pub batch_bytes: u32,
    /// Bytes of a new segment, a multiple of 4096; 0 for 32 MiB.
    pub segment_bytes: u64,
}

// SAFETY: the fields are numbers.
unsafe impl Options for dp_log_options {
    const FIELDS: &'static [Field] = fields!(dp_log_options { size, batch_bytes, segment_bytes });
}

fn open_log(log: dp_log) -> Result<Arc<Log>> {
    let held = LOGS.get(log.id)?;
    let log = held.lock("append")?.clone();
    log.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "append", "the log is being closed"))
}

/// Opens the log in a folder for appending, and makes it if there is none.
///
/// Errors: DP_BUSY where another writer has it; DP_CORRUPT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_open(
    machine: dp_machine,
    folder: *const c_char,
    options: *const dp_log_options,
    log: *mut dp_log,
) -> dp_error {
    enter(|| {
        arguments::check(log, "log")?;
        // SAFETY: the header says what the pointers are.
        let (folder, asked) = unsafe { (arguments::path(folder, "folder")?, arguments::options(options, "options")?) };
        let machine = MACHINES.get(machine.id)?;
        let mut options = LogOptions::default();
        if asked.batch_bytes != 0 {
            options = options.batch_bytes(asked.batch_bytes);
        }
        if asked.segment_bytes != 0 {
            options = options.segment_bytes(asked.segment_bytes);
        }
        let opened = Log::open(&machine, LogFolder::at(&machine, folder), options)?;
        let id = LOGS.put(ProcessLock::new(Some(Arc::new(opened))))?;
        // SAFETY: as above.
        unsafe { arguments::give(log, "log", dp_log { id }) }
    })
}

/// Appends a record. It is durable when a later `dp_log_sync` or `dp_log_append_durable` has returned.
/// `*number`, if it is not NULL, becomes its number.
///
/// Errors: DP_INVALID_INPUT for a record that is too long; DP_NO_SPACE, DP_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_append(log: dp_log, record: *const c_void, len: usize, number: *mut u64) -> dp_error {
    enter(|| {
        arguments::check_optional(number, "number")?;
        // SAFETY: the header says what the pointers are.
        let record = unsafe { arguments::slice(record.cast::<u8>(), len, "record")? };
        let given = open_log(log)?.append(record)?.number();
        if !number.is_null() {
            // SAFETY: as above.
            unsafe { number.write(given) };
        }
        Ok(())
    })
}

/// Appends a record and returns when it is durable. Records of several threads share a write.
///
/// Errors: as `dp_log_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_append_durable(
    log: dp_log,
    record: *const c_void,
    len: usize,
    number: *mut u64,
) -> dp_error {
    enter(|| {
        arguments::check_optional(number, "number")?;
        // SAFETY: the header says what the pointers are.
        let record = unsafe { arguments::slice(record.cast::<u8>(), len, "record")? };
        let given = open_log(log)?.append_durable(record)?;
        if !number.is_null() {
            // SAFETY: as above.
            unsafe { number.write(given) };
        }
        Ok(())
    })
}

/// Returns when all records that were appended before are durable.
#[unsafe(no_mangle)]
pub extern "C" fn dp_log_sync(log: dp_log) -> dp_error {
    enter(|| open_log(log)?.sync())
}

/// Gives up the records before `number`, as far as whole segments hold nothing else.
#[unsafe(no_mangle)]
pub extern "C" fn dp_log_release_before(log: dp_log, number: u64) -> dp_error {
    enter(|| open_log(log)?.release_before(number).map(|_| ()))
}

/// Copies what a log did as JSON, as `snprintf` does; `*len` becomes its whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_stats(log: dp_log, text: *mut c_char, capacity: usize, len: *mut usize) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let shown = arguments::json(&open_log(log)?.stats())?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Reads the whole log in a folder, and copies what is in it as JSON, as `snprintf` does: its records,
/// whether its end is torn off, and what is damaged. `*len` becomes the whole length.
///
/// Errors: DP_NOT_FOUND where there is no log. Damage is no error: it is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_examine(
    machine: dp_machine,
    folder: *const c_char,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        // SAFETY: the header says what the pointer is.
        let folder = unsafe { arguments::path(folder, "folder")? };
        let machine = MACHINES.get(machine.id)?;
        let shown = arguments::json(&log::examine(&machine, &LogFolder::at(&machine, folder))?)?;
        // SAFETY: as above.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Makes what was appended durable, and ends the log.
///
/// Errors: DP_BUSY while another thread appends: the log stays open; those of writing.
#[unsafe(no_mangle)]
pub extern "C" fn dp_log_close(log: dp_log) -> dp_error {
    enter(|| {
        let taken = {
            let held = LOGS.get(log.id)?;
            if !held.owner().is_here() {
                return LOGS.close(log.id); // A child ends its copy of the handle, and writes nothing.
            }
            let mut held = held.lock("close")?;
            let taken = held
                .take()
                .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "close", "another thread closes the log"))?;
            match Arc::try_unwrap(taken) {
                Ok(taken) => taken,
                Err(shared) => {
                    *held = Some(shared);
                    return Err(Error::new(ErrorKind::Busy, "close", "another thread uses the log"));
                }
            }
        };
        LOGS.close(log.id)?;
        taken.close()
    })
}

/// Opens a reader of the log in a folder, from record `from` on; 0 for the first that there is.
///
/// Errors: DP_NOT_FOUND where there is no log; DP_OUT_OF_RANGE for a record that was released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_read(
    machine: dp_machine,
    folder: *const c_char,
    from: u64,
    reader: *mut dp_log_reader,
) -> dp_error {
    enter(|| {
        arguments::check(reader, "reader")?;
        // SAFETY: the header says what the pointers are.
        let folder = unsafe { arguments::path(folder, "folder")? };
        let machine = MACHINES.get(machine.id)?;
        let opened = LogReader::open(&machine, &LogFolder::at(&machine, folder), from)?;
        let id = READERS.put(ProcessLock::new(Reading { reader: opened, last: Vec::new() }))?;
        // SAFETY: as above.
        unsafe { arguments::give(reader, "reader", dp_log_reader { id }) }
    })
}

/// Reads the next record: `*len` bytes at `*record`, which are valid until the next call for this
/// reader. At the end of the log `*record` becomes NULL.
///
/// Errors: DP_CORRUPT, DP_DEVICE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_log_reader_next(
    reader: dp_log_reader,
    number: *mut u64,
    record: *mut *const c_void,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check(number, "number")?;
        arguments::check(record, "record")?;
        arguments::check(len, "len")?;
        let reader = READERS.get(reader.id)?;
        let mut reading = reader
            .try_lock("read")?
            .ok_or_else(|| Error::new(ErrorKind::Busy, "read", "another thread uses the reader"))?;
        let next = reading.reader.next().transpose()?;
        let (given, bytes) = match next {
            Some(next) => (next.number, Some(next.payload)),
            None => (0, None),
        };
        let is_there = bytes.is_some();
        reading.last = bytes.unwrap_or_default();
        // SAFETY: the header says what the pointers are. An empty record is no null pointer.
        unsafe {
            number.write(given);
            record.write(if is_there { reading.last.as_ptr().cast() } else { std::ptr::null() });
            len.write(reading.last.len());
        }
        Ok(())
    })
}

/// Ends a reader.
///
/// Errors: DP_INVALID_INPUT for a reader that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_log_reader_close(reader: dp_log_reader) -> dp_error {
    enter(|| READERS.close(reader.id))
}
