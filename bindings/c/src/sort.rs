//! The external sort.

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use datapipes::sort::text::{KeySpec, Modifiers, TextOptions};
use datapipes::sort::{
    Input, MIN_MEMORY, NumberKind, Output, RecordFormat, SortJob, SortProgress, SpillCompression, sort, sort_telling,
};
use datapipes::{Error, ErrorKind, Machine, Result, StagePlace};

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::machine::{MACHINES, dp_machine};
use crate::report::{dp_text_told, tell};

/// The kind of records that are sorted.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_record_kind {
    /// Lines in the order of GNU sort's options, in the C locale.
    DP_LINES = 0,
    /// Binary records of one length, in the order of their keys' bytes.
    DP_RECORDS = 1,
    /// Little-endian unsigned numbers of 32 bits.
    DP_U32 = 2,
    /// Little-endian unsigned numbers of 64 bits.
    DP_U64 = 3,
    /// Little-endian numbers of 64 bits in two's complement.
    DP_I64 = 4,
    /// IEEE 754 doubles, in their total order.
    DP_F64 = 5,
}

/// Whether runs that do not fit the memory are compressed.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_spill_compression {
    /// If that makes the sort faster, as measured while it runs.
    DP_COMPRESSION_AUTO = 0,
    /// Always.
    DP_COMPRESSION_ON = 1,
    /// Never.
    DP_COMPRESSION_OFF = 2,
}

/// How often a function is told how far a sort is.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Is told how far a sort is, about ten times a second and at the end, by the thread that called
/// `dp_sort`. The sort stops with DP_INTERRUPTED if it returns anything but 0. In a child that it
/// makes by `fork`, `dp_sort` returns DP_FORKED.
pub type dp_sort_progress =
    Option<unsafe extern "C" fn(user: *mut c_void, total: u64, read: u64, spilled: u64, written: u64) -> i32>;

/// A sort. Set `size` to `sizeof(dp_sort_options)` and what is not needed to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_sort_options {
    /// `sizeof(dp_sort_options)`.
    pub size: u32,
    /// A `dp_record_kind`.
    pub kind: u32,
    /// Not 0: the order is descending (lines: the letter r).
    pub reverse: u32,
    /// Not 0: only the first of records with the same key is kept.
    pub unique: u32,
    /// Records: their length in bytes.
    pub record_length: u64,
    /// Records: the offset of the key in the record, in bytes.
    pub key_at: u64,
    /// Records: the length of the key in bytes.
    pub key_length: u64,
    /// Lines: GNU sort's ordering letters outside of keys ("bdfghiMnRrV"), or NULL.
    pub letters: *const c_char,
    /// Lines: keys as GNU sort's -k takes them, separated by blanks ("2,2n 1"), or NULL.
    pub keys: *const c_char,
    /// Lines: the byte that separates fields, as -t; 0 for blanks.
    pub separator: u32,
    /// Lines: not 0 to keep the order of lines with equal keys (-s).
    pub stable: u32,
    /// Lines: not 0 if lines end with NUL (-z).
    pub zero_terminated: u32,
    /// Threads; 0 for one a core.
    pub threads: u32,
    /// All the memory that the sort may use, in bytes, at least 16 MiB; 0 for half of what is
    /// available.
    pub memory_bytes: u64,
    /// Places for what does not fit the memory, such as "/fast,/large:100G"; NULL for the output's
    /// folder.
    pub spill: *const c_char,
    /// Is told how far the sort is, or NULL.
    pub progress: dp_sort_progress,
    /// What `progress` is called with.
    pub user: *mut c_void,
    /// Is given the whole report as JSON when the output is complete, or NULL.
    pub report: dp_text_told,
    /// What `report` is called with.
    pub report_user: *mut c_void,
    /// A `dp_spill_compression`: whether what does not fit the memory is compressed.
    pub compression: u32,
    /// Not 0: do not wait until the output is durable. It still appears as a whole, but a power
    /// failure soon afterwards may take bytes of it, as with programs that never sync.
    pub no_sync: u32,
}

// SAFETY: the fields are numbers, pointers, and a function that may be absent.
unsafe impl Options for dp_sort_options {
    const FIELDS: &'static [Field] = fields!(dp_sort_options {
        size,
        kind,
        reverse,
        unique,
        record_length,
        key_at,
        key_length,
        letters,
        keys,
        separator,
        stable,
        zero_terminated,
        threads,
        memory_bytes,
        spill,
        progress,
        user,
        report,
        report_user,
        compression,
        no_sync,
    });
}

/// # Safety
/// The texts are null or end with NUL.
unsafe fn format(asked: &dp_sort_options) -> Result<RecordFormat> {
    let number = |kind| RecordFormat::Numbers { kind, reverse: asked.reverse != 0 };
    let len = |bytes: u64| {
        usize::try_from(bytes).map_err(|_| Error::new(ErrorKind::InvalidInput, "sort", format!("{bytes} bytes")))
    };
    Ok(match asked.kind {
        0 => {
            let mut modifiers = Modifiers::default();
            if !asked.letters.is_null() {
                // SAFETY: the caller of this function says so.
                for letter in unsafe { arguments::bytes(asked.letters, "letters")? } {
                    if !modifiers.set(*letter) {
                        let why = format!("`{}` is no ordering letter", char::from(*letter));
                        return Err(Error::new(ErrorKind::InvalidInput, "sort", why));
                    }
                }
            }
            modifiers.reverse |= asked.reverse != 0;
            let mut keys = Vec::new();
            if !asked.keys.is_null() {
                // SAFETY: as above.
                let text = unsafe { arguments::bytes(asked.keys, "keys")? };
                for key in text.split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
                    keys.push(KeySpec::parse(key)?);
                }
            }
            let separator = match u8::try_from(asked.separator) {
                Ok(0) => None,
                Ok(byte) => Some(byte),
                Err(_) => {
                    let why = format!("the separator {} is no byte", asked.separator);
                    return Err(Error::new(ErrorKind::InvalidInput, "sort", why));
                }
            };
            let options = TextOptions::default()
                .modifiers(modifiers)
                .keys(keys)
                .separator(separator)
                .stable(asked.stable != 0)
                .unique(asked.unique != 0);
            let terminator = if asked.zero_terminated != 0 { 0 } else { b'\n' };
            RecordFormat::Lines { order: options.compile()?, terminator }
        }
        1 => RecordFormat::Records {
            len: len(asked.record_length)?,
            key_at: len(asked.key_at)?,
            key_len: len(asked.key_length)?,
            reverse: asked.reverse != 0,
        },
        2 => number(NumberKind::U32),
        3 => number(NumberKind::U64),
        4 => number(NumberKind::I64),
        5 => number(NumberKind::F64),
        other => return Err(Error::new(ErrorKind::InvalidInput, "sort", format!("{other} is no dp_record_kind"))),
    })
}

/// What the options of a sort say, checked: all but its inputs and its output.
pub(crate) struct SortSettings {
    format: RecordFormat,
    unique: bool,
    memory_bytes: u64,
    threads: usize,
    spill: Option<Vec<StagePlace>>,
    compression: SpillCompression,
    sync: bool,
}

impl SortSettings {
    /// # Safety
    /// The texts are null or end with NUL.
    pub(crate) unsafe fn of(asked: &dp_sort_options) -> Result<SortSettings> {
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidInput, "sort", why));
        let memory_bytes = asked.memory_bytes;
        if memory_bytes != 0 && !(MIN_MEMORY..=i64::MAX as u64).contains(&memory_bytes) {
            return invalid(format!("memory_bytes is {memory_bytes}; a sort uses at least {MIN_MEMORY}"));
        }
        let compression = match asked.compression {
            0 => SpillCompression::Auto,
            1 => SpillCompression::On,
            2 => SpillCompression::Off,
            other => return invalid(format!("compression is {other}, no dp_spill_compression")),
        };
        let spill = match asked.spill.is_null() {
            true => None,
            // SAFETY: the caller of this function says so.
            false => Some(StagePlace::parse_list(unsafe { arguments::text(asked.spill, "spill")? })?),
        };
        // They may never be used, and then a wrong one would be found out another day.
        for folder in spill.iter().flatten().filter_map(StagePlace::as_folder) {
            if !folder.is_dir() {
                let why = format!("spill: {} is not a folder", folder.display());
                return Err(Error::new(ErrorKind::NotFound, "sort", why));
            }
        }
        Ok(SortSettings {
            // SAFETY: as above.
            format: unsafe { format(asked)? },
            unique: asked.unique != 0,
            memory_bytes,
            threads: asked.threads as usize,
            spill,
            compression,
            sync: asked.no_sync == 0,
        })
    }

    /// Has runs go to the folder for temporary files where no place is named: there is no folder of
    /// an output.
    pub(crate) fn spill_somewhere(&mut self) {
        self.spill.get_or_insert_with(|| vec![StagePlace::folder(std::env::temp_dir())]);
    }

    pub(crate) fn job(self, machine: &Machine, inputs: Vec<Input>, output: Output) -> SortJob {
        let mut job = SortJob::between(machine, self.format, inputs, output.synced(self.sync)).unique(self.unique);
        if self.memory_bytes != 0 {
            job = job.memory_bytes(self.memory_bytes);
        }
        if self.threads != 0 {
            job = job.threads(self.threads);
        }
        if let Some(spill) = self.spill {
            job = job.spill(spill);
        }
        job.compression(self.compression)
    }
}

/// Tells how far a sort is; false where it is to stop.
///
/// # Safety
/// The caller gave the function for its argument.
pub(crate) unsafe fn goes_on(asked: &dp_sort_options, seen: &SortProgress) -> bool {
    let Some(progress) = asked.progress else { return true };
    let [total, taken, spilled, written] =
        [&seen.total, &seen.read, &seen.spilled, &seen.written].map(|counter| counter.load(Relaxed));
    // SAFETY: the caller of this function says so.
    unsafe { progress(asked.user, total, taken, spilled, written) == 0 }
}

/// Sorts `count` files into one, which appears under its name when it is complete. `output` may be
/// one of the inputs. The report is copied as JSON, as `snprintf` does, if `report` is not NULL;
/// `*len`, if it is not NULL, becomes its whole length.
///
/// Errors: DP_NOT_FOUND, DP_NO_SPACE, DP_OUT_OF_MEMORY, DP_INTERRUPTED by `progress`, DP_DEVICE. After
/// an error nothing is left of the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_sort(
    machine: dp_machine,
    inputs: *const *const c_char,
    count: usize,
    output: *const c_char,
    options: *const dp_sort_options,
    report: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        // SAFETY: the header says what the pointers are.
        let (asked, paths, output) = unsafe {
            let asked = arguments::options(options, "options")?;
            (asked, arguments::slice(inputs, count, "inputs")?, arguments::path(output, "output")?)
        };
        if paths.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "sort", "no inputs"));
        }
        // SAFETY: as above.
        let settings = unsafe { SortSettings::of(&asked)? };
        let machine = MACHINES.get(machine.id)?.clone();
        let mut opened = Vec::with_capacity(paths.len());
        for path in paths {
            // SAFETY: as above.
            opened.push(Input::open(unsafe { arguments::path(*path, "inputs")? })?);
        }
        // The output comes last: opening a named pipe is seen by its reader.
        let job = settings.job(&machine, opened, Output::to(output)?);
        let done = match asked.progress {
            None => sort(&machine, job)?,
            Some(_) => sort_telling(&machine, job, PROGRESS_INTERVAL, |seen| {
                // SAFETY: the caller gave the function for its argument.
                unsafe { goes_on(&asked, seen) }
            })?,
        };
        let shown = arguments::json(&done)?;
        // SAFETY: as above.
        unsafe { arguments::copy_text(&shown, report, capacity, len) };
        tell(asked.report, asked.report_user, shown)
    })
}
