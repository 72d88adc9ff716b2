//! Pipes in the asynchronous flavor: a runtime, futures and callbacks (CIDR'23, figure 6b).

use std::ffi::{c_char, c_void};
use std::fmt;

use datapipes::runtime::RuntimeOptions;
use datapipes::{ConnectOptions, Error, ErrorKind, Handle, PriorityClass, Result, Runtime, RuntimePipe, ServiceLevel};
use serde::Serialize;

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, Shared, constraints_of, dp_constraints, dp_machine};
use crate::pipe::{dp_span, take};
use crate::place::{PLACES, dp_place};
use crate::process_lock::ProcessLock;

/// A runtime: it carries out the transfers of many pipes. It belongs to the caller, who closes it
/// with `dp_runtime_close`. Any thread may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_runtime {
    /// The number; 0 for none.
    pub id: u64,
}

/// A pipe of a runtime. It belongs to the caller, who closes it with `dp_runtime_pipe_close`. Any
/// number of threads may use it at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_runtime_pipe {
    /// The number; 0 for none.
    pub id: u64,
}

/// A transfer that a runtime carries out. `dp_future_wait`, `dp_future_cancel` and `dp_future_on_done`
/// end it; `dp_future_close` forgets it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_future {
    /// The number; 0 for none.
    pub id: u64,
}

/// A function that is told the result of a transfer: 0 or an error, which belongs to the function.
/// It is called once, by a thread of the runtime or by the thread that asked. It may call the
/// library, and must neither throw nor jump out.
pub type dp_callback = Option<unsafe extern "C" fn(user: *mut c_void, result: dp_error)>;

pub(crate) static RUNTIMES: Table<Runtime> = Table::new(Kind::Runtime);
pub(crate) static RUNTIME_PIPES: Table<RuntimePipe> = Table::new(Kind::RuntimePipe);
static FUTURES: Table<ProcessLock<Option<Handle>>> = Table::new(Kind::Future);

/// How a runtime works. Set `size` to `sizeof(dp_runtime_options)` and the rest to zero, or pass
/// NULL, for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_runtime_options {
    /// `sizeof(dp_runtime_options)`.
    pub size: u32,
    /// Threads that copy between memories, at most.
    pub copiers: u32,
    /// Threads for routes of two hops and primitives that block, at most.
    pub blocking: u32,
    /// Transfers that one pipe has under way, at most.
    pub queue: u32,
}

// SAFETY: the fields are numbers.
unsafe impl Options for dp_runtime_options {
    const FIELDS: &'static [Field] = fields!(dp_runtime_options { size, copiers, blocking, queue });
}

/// Starts a runtime.
///
/// Errors: DP_INVALID_INPUT for options that make no sense; DP_SYSTEM where threads are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_start(
    machine: dp_machine,
    options: *const dp_runtime_options,
    runtime: *mut dp_runtime,
) -> dp_error {
    enter(|| {
        arguments::check(runtime, "runtime")?;
        // SAFETY: the header says what the pointer is.
        let asked = unsafe { arguments::options(options, "options")? };
        let machine = MACHINES.get(machine.id)?;
        let mut options = RuntimeOptions::new(&machine);
        let given = [
            (asked.copiers, &mut options.copiers),
            (asked.blocking, &mut options.blocking),
            (asked.queue, &mut options.queue),
        ];
        for (number, option) in given {
            if number != 0 {
                *option = number as usize;
            }
        }
        let id = RUNTIMES.put(Runtime::start_with(&machine, options)?)?;
        // SAFETY: as above.
        unsafe { arguments::give(runtime, "runtime", dp_runtime { id }) }
    })
}

/// The class of a pipe, which decides the order of transfers.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_class {
    /// Between the two others.
    DP_NORMAL = 0,
    /// Short transfers that somebody waits for.
    DP_LATENCY = 1,
    /// What nobody waits for.
    DP_BULK = 2,
}

/// What a pipe asks of its runtime. Set `size` to `sizeof(dp_service)` and the rest to zero, or pass
/// NULL, for the class DP_NORMAL without rates.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_service {
    /// `sizeof(dp_service)`.
    pub size: u32,
    /// A `dp_class`.
    pub priority: u32,
    /// The rate that is promised while there is work, in bytes per second; 0 for none.
    pub at_least: f64,
    /// The rate that is not exceeded, in bytes per second; 0 for none.
    pub at_most: f64,
    /// Transfers under way, at most; 0 for the runtime's option.
    pub queue: u32,
    /// Not used; 0.
    pub reserved: u32,
}

// SAFETY: the fields are numbers.
unsafe impl Options for dp_service {
    const FIELDS: &'static [Field] = fields!(dp_service { size, priority, at_least, at_most, queue, reserved });
}

/// # Safety
/// The pointers are null or valid.
pub(crate) unsafe fn connect_options(
    constraints: *const dp_constraints,
    service: *const dp_service,
) -> Result<ConnectOptions> {
    // SAFETY: the caller of this function says so.
    let (constraints, asked) = unsafe { (constraints_of(constraints)?, arguments::options(service, "service")?) };
    arguments::unused(asked.reserved, "service")?;
    let class = match asked.priority {
        0 => PriorityClass::Normal,
        1 => PriorityClass::Latency,
        2 => PriorityClass::Bulk,
        other => return Err(Error::new(ErrorKind::InvalidInput, "connect", format!("{other} is no dp_class"))),
    };
    let rate = |rate: f64| (rate != 0.0).then_some(rate);
    let level = ServiceLevel::of(class).at_least(rate(asked.at_least)).at_most(rate(asked.at_most));
    let queue = (asked.queue != 0).then_some(asked.queue as usize);
    Ok(ConnectOptions::default().constraints(constraints).service(level).queue(queue))
}

/// Connects two places by a pipe of the runtime.
///
/// Errors: DP_UNSUPPORTED where there is no route, or where the rate cannot be promised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_connect(
    runtime: dp_runtime,
    source: dp_place,
    target: dp_place,
    constraints: *const dp_constraints,
    service: *const dp_service,
    pipe: *mut dp_runtime_pipe,
) -> dp_error {
    enter(|| {
        arguments::check(pipe, "pipe")?;
        let (source, target) = (PLACES.get(source.id)?, PLACES.get(target.id)?);
        // SAFETY: the header says what the pointers are.
        let options = unsafe { connect_options(constraints, service)? };
        let made = RUNTIMES.get(runtime.id)?.connect_with(&*source, &*target, &options)?;
        let id = RUNTIME_PIPES.put(made)?;
        // SAFETY: as above.
        unsafe { arguments::give(pipe, "pipe", dp_runtime_pipe { id }) }
    })
}

/// Starts a transfer; waits for room where the pipe's queue is full.
///
/// Errors: DP_OUT_OF_RANGE, DP_BUSY: nothing was started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_pipe_transfer(
    pipe: dp_runtime_pipe,
    span: dp_span,
    future: *mut dp_future,
) -> dp_error {
    enter(|| {
        arguments::check(future, "future")?;
        let handle = RUNTIME_PIPES.get(pipe.id)?.transfer(span.into())?;
        let id = FUTURES.put(ProcessLock::new(Some(handle)))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(future, "future", dp_future { id }) }
    })
}

/// Starts a transfer and has `callback(user, result)` called once when it is done. If it cannot be
/// started, the callback is called with the reason before this function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_pipe_transfer_then(
    pipe: dp_runtime_pipe,
    span: dp_span,
    callback: dp_callback,
    user: *mut c_void,
) {
    let told = Told::new(callback, user);
    let mut waiting = Some(told);
    let outcome = enter(|| {
        let handle = RUNTIME_PIPES.get(pipe.id)?.transfer(span.into())?;
        if let Some(told) = waiting.take() {
            handle.on_done(move |result| told.tell(result));
        }
        Ok(())
    });
    match waiting {
        Some(told) => told.call(outcome),
        None => crate::error::dp_error_close(outcome),
    }
}

/// A callback that is called once, whatever happens to its transfer.
struct Told {
    callback: dp_callback,
    user: Shared,
    is_told: bool,
}

impl Told {
    fn new(callback: dp_callback, user: *mut c_void) -> Told {
        Told { callback, user: Shared(user), is_told: false }
    }

    fn tell(self, result: Result<()>) {
        self.call(match result {
            Ok(()) => dp_error::NONE,
            Err(error) => dp_error::of(error),
        });
    }

    fn call(mut self, result: dp_error) {
        self.is_told = true;
        if let Some(callback) = self.callback {
            // SAFETY: the caller gave the function for this argument, and any thread may call it.
            unsafe { callback(self.user.get(), result) };
        } else {
            crate::error::dp_error_close(result);
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.is_told {
            let lost = Error::new(ErrorKind::Interrupted, "transfer", "the runtime ended before the transfer did");
            Told { callback: self.callback, user: self.user, is_told: true }.tell(Err(lost));
        }
    }
}

/// Waits until the bytes are there, and ends the handle, also where it returns an error.
///
/// Errors: the transfer's own; DP_INVALID_INPUT for a future that was waited for or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_future_wait(future: dp_future) -> dp_error {
    enter(|| ended(future)?.wait())
}

/// Takes the transfer of a future and ends its handle.
fn ended(future: dp_future) -> Result<Handle> {
    take(&FUTURES, future.id, "future")
}

/// Tells whether `dp_future_wait` would return at once: `*done` becomes 0 or 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_future_is_done(future: dp_future, done: *mut u32) -> dp_error {
    enter(|| {
        let future = FUTURES.get(future.id)?;
        let held = future.lock("ask")?;
        let is_done = held.as_ref().is_none_or(Handle::is_done);
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(done, "done", u32::from(is_done)) }
    })
}

/// Has `callback(user, result)` called once when the transfer is done, and ends the handle. For a
/// future that was waited for or closed, the callback is called with DP_INVALID_INPUT before this
/// function returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_future_on_done(future: dp_future, callback: dp_callback, user: *mut c_void) {
    let mut waiting = Some(Told::new(callback, user));
    let outcome = enter(|| {
        let handle = ended(future)?;
        if let Some(told) = waiting.take() {
            handle.on_done(move |result| told.tell(result));
        }
        Ok(())
    });
    match waiting {
        Some(told) => told.call(outcome),
        None => crate::error::dp_error_close(outcome),
    }
}

/// Stops a transfer as far as it was not begun, returns when nothing touches its bytes any more,
/// and ends the handle. `*stopped`, if it is not NULL, becomes 1 if it was stopped and 0 if it was
/// complete before.
///
/// Errors: the transfer's own, if it failed by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_future_cancel(future: dp_future, stopped: *mut u32) -> dp_error {
    enter(|| {
        arguments::check_optional(stopped, "stopped")?;
        let outcome = ended(future)?.cancel()?;
        if !stopped.is_null() {
            let is_stopped = matches!(outcome, datapipes::runtime::Cancelled::Stopped { .. });
            // SAFETY: the header says what the pointer is.
            unsafe { stopped.write(u32::from(is_stopped)) };
        }
        Ok(())
    })
}

/// Forgets a transfer: it is carried out, and its result is lost.
///
/// Errors: DP_INVALID_INPUT for a future that was waited for or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_future_close(future: dp_future) -> dp_error {
    enter(|| FUTURES.close(future.id))
}

/// Waits until all transfers of a pipe so far are done.
#[unsafe(no_mangle)]
pub extern "C" fn dp_runtime_pipe_drain(pipe: dp_runtime_pipe) -> dp_error {
    enter(|| {
        let pipe: RuntimePipe = RUNTIME_PIPES.get(pipe.id)?.clone();
        pipe.drain();
        Ok(())
    })
}

/// Copies the route of a pipe, with reasons, as `snprintf` does; `*len` becomes its whole length.
/// `format` is a `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_pipe_route(
    pipe: dp_runtime_pipe,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let pipe = RUNTIME_PIPES.get(pipe.id)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::show(pipe.route(), format, text, capacity, len) }
    })
}

/// Copies what really happened on a pipe so far, as `snprintf` does; `*len` becomes its whole
/// length. `format` is a `dp_format`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_pipe_report(
    pipe: dp_runtime_pipe,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let report = RUNTIME_PIPES.get(pipe.id)?.report();
        let samples = || report.samples(&format!("runtime-pipe-{}", pipe.id));
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::report(&report, samples, format, (text, capacity, len)) }
    })
}

/// Ends a pipe of a runtime. Transfers that were started are carried out.
///
/// Errors: DP_INVALID_INPUT for a pipe that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_runtime_pipe_close(pipe: dp_runtime_pipe) -> dp_error {
    enter(|| RUNTIME_PIPES.close(pipe.id))
}

/// Copies what a runtime did and is doing, as `snprintf` does; `*len` becomes the whole length.
/// `format` is a `dp_format`; its text is the JSON in lines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_runtime_report(
    runtime: dp_runtime,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let report = InLines(RUNTIMES.get(runtime.id)?.report());
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::report(&report, || report.0.samples(), format, (text, capacity, len)) }
    })
}

/// A report that has no text of its own.
#[derive(Serialize)]
#[serde(transparent)]
struct InLines<T>(T);

impl<T: Serialize> fmt::Display for InLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string_pretty(&self.0).map_err(|_| fmt::Error)?)
    }
}

/// Waits until all transfers of a runtime so far are done.
#[unsafe(no_mangle)]
pub extern "C" fn dp_runtime_drain(runtime: dp_runtime) -> dp_error {
    enter(|| {
        RUNTIMES.get(runtime.id)?.drain();
        Ok(())
    })
}

/// Ends a runtime: waits for its transfers and stops its threads. Its pipes refuse transfers then.
///
/// Errors: DP_INVALID_INPUT for a runtime that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_runtime_close(runtime: dp_runtime) -> dp_error {
    enter(|| RUNTIMES.close(runtime.id))
}
