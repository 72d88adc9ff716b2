//! Graphs: movement and computation that depend on each other (CIDR'23, section 6 and figure 7).

use std::ffi::{c_char, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use datapipes::graph::{BufferSet, Graph, Item, StageId};
use datapipes::{Error, ErrorKind, Result, Span};

use crate::arguments;
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::Shared;
use crate::pipe::dp_span;
use crate::process_lock::ProcessLock;
use crate::report::{dp_text_told, tell};
use crate::runtime::{RUNTIME_PIPES, RUNTIMES, dp_runtime, dp_runtime_pipe};

/// A graph of stages. It belongs to the caller, who closes it with `dp_graph_close`. One thread at a
/// time declares it; it may be run many times.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_graph {
    /// The number; 0 for none.
    pub id: u64,
}

/// One item on its way through a graph, while a function of the caller's is called for it.
pub struct dp_item {
    item: Item,
    sets: Vec<BufferSet>,
}

/// Gives the span that a stage moves for an item. It may be called by any thread.
pub type dp_span_of =
    Option<unsafe extern "C" fn(item: *const dp_item, user: *mut c_void, span: *mut dp_span) -> dp_error>;

/// Computes for an item. It may be called by several threads at once.
pub type dp_work = Option<unsafe extern "C" fn(item: *const dp_item, user: *mut c_void) -> dp_error>;

/// The sets of a graph by number. Stages see those that are declared after them, too.
type Sets = Arc<RwLock<Vec<BufferSet>>>;

struct Declared {
    graph: Graph<'static>,
    stages: Vec<StageId>,
    sets: Sets,
}

fn sets_of(sets: &Sets) -> Vec<BufferSet> {
    sets.read().unwrap_or_else(PoisonError::into_inner).clone()
}

static GRAPHS: Table<ProcessLock<Declared>> = Table::new(Kind::Graph);

/// Does something with a graph that nobody runs.
fn with<R>(graph: dp_graph, work: impl FnOnce(&mut Declared) -> Result<R>) -> Result<R> {
    let graph = GRAPHS.get(graph.id)?;
    let mut declared = graph
        .try_lock("use a graph")?
        .ok_or_else(|| Error::new(ErrorKind::Busy, "declare", "the graph runs, or another thread declares it"))?;
    work(&mut declared)
}

/// Makes a graph without stages. `name` is for messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_new(name: *const c_char, graph: *mut dp_graph) -> dp_error {
    enter(|| {
        arguments::check(graph, "graph")?;
        // SAFETY: the header says what the pointers are.
        let name = unsafe { arguments::text(name, "name")? };
        let declared = Declared { graph: Graph::new(name), stages: Vec::new(), sets: Sets::default() };
        let id = GRAPHS.put(ProcessLock::new(declared))?;
        // SAFETY: as above.
        unsafe { arguments::give(graph, "graph", dp_graph { id }) }
    })
}

/// Declares `count` buffers of which an item holds one, numbered from 0; `*set` becomes the number
/// of the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_buffers(graph: dp_graph, count: usize, set: *mut u32) -> dp_error {
    enter(|| {
        arguments::check(set, "set")?;
        with(graph, |declared| {
            let mut sets = declared.sets.write().unwrap_or_else(PoisonError::into_inner);
            let number = u32::try_from(sets.len()).unwrap_or(u32::MAX);
            sets.push(BufferSet::new(count));
            // SAFETY: the header says what the pointer is.
            unsafe { arguments::give(set, "set", number) }
        })
    })
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "declare", format!("{what}: a null pointer"))
}

/// Declares a stage that moves the span which `span_of(item, user, &span)` gives; `*stage` becomes
/// its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_pipe(
    graph: dp_graph,
    name: *const c_char,
    pipe: dp_runtime_pipe,
    span_of: dp_span_of,
    user: *mut c_void,
    stage: *mut u32,
) -> dp_error {
    enter(|| {
        arguments::check(stage, "stage")?;
        let span_of = span_of.ok_or_else(|| missing("span_of"))?;
        let user = Shared(user);
        // SAFETY: the header says what the pointers are.
        let name = unsafe { arguments::text(name, "name")? };
        let pipe = RUNTIME_PIPES.get(pipe.id)?;
        with(graph, |declared| {
            let sets = declared.sets.clone();
            let id = declared.graph.pipe(name, &pipe, move |item| {
                let item = dp_item { item: item.clone(), sets: sets_of(&sets) };
                let mut span = dp_span { source: 0, target: 0, length: 0 };
                // SAFETY: the caller gave the function for this argument; the item and the span
                // live until it returns.
                unsafe { span_of(&item, user.get(), &mut span) }.into_result("name a span")?;
                Ok(Span::from(span))
            });
            // SAFETY: as above.
            unsafe { add(declared, id, stage) }
        })
    })
}

/// Declares a stage that computes by `work(item, user)`; `*stage` becomes its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_compute(
    graph: dp_graph,
    name: *const c_char,
    work: dp_work,
    user: *mut c_void,
    stage: *mut u32,
) -> dp_error {
    enter(|| {
        arguments::check(stage, "stage")?;
        let work = work.ok_or_else(|| missing("work"))?;
        let user = Shared(user);
        // SAFETY: the header says what the pointers are.
        let name = unsafe { arguments::text(name, "name")? };
        with(graph, |declared| {
            let sets = declared.sets.clone();
            let id = declared.graph.compute(name, move |item| {
                let item = dp_item { item: item.clone(), sets: sets_of(&sets) };
                // SAFETY: the caller gave the function for this argument; the item lives until it
                // returns.
                unsafe { work(&item, user.get()) }.into_result("compute")
            });
            // SAFETY: as above.
            unsafe { add(declared, id, stage) }
        })
    })
}

/// # Safety
/// `stage` is null or valid for a write.
unsafe fn add(declared: &mut Declared, id: StageId, stage: *mut u32) -> Result<()> {
    declared.stages.push(id);
    // SAFETY: the caller of this function says so.
    unsafe { arguments::give(stage, "stage", u32::try_from(declared.stages.len() - 1).unwrap_or(u32::MAX)) }
}

fn stage_of(declared: &Declared, number: u32) -> Result<StageId> {
    declared.stages.get(number as usize).copied().ok_or_else(|| {
        let why = format!("stage {number} of a graph with {}", declared.stages.len());
        Error::new(ErrorKind::InvalidInput, "declare", why)
    })
}

/// The stage begins with an item when an earlier stage is done with it.
///
/// Errors: DP_INVALID_INPUT for a stage that was declared later.
#[unsafe(no_mangle)]
pub extern "C" fn dp_graph_after(graph: dp_graph, stage: u32, earlier: u32) -> dp_error {
    enter(|| {
        with(graph, |declared| {
            let (stage, earlier) = (stage_of(declared, stage)?, stage_of(declared, earlier)?);
            declared.graph.after(stage, earlier)
        })
    })
}

/// The stage works with a buffer of a set. The item holds it from its first stage that does to its
/// last.
#[unsafe(no_mangle)]
pub extern "C" fn dp_graph_uses(graph: dp_graph, stage: u32, set: u32) -> dp_error {
    enter(|| {
        with(graph, |declared| {
            let stage = stage_of(declared, stage)?;
            let set = set_of(&sets_of(&declared.sets), set)?;
            declared.graph.uses(stage, set)
        })
    })
}

fn set_of(sets: &[BufferSet], number: u32) -> Result<BufferSet> {
    sets.get(number as usize).copied().ok_or_else(|| {
        let why = format!("set {number} of a graph with {}", sets.len());
        Error::new(ErrorKind::InvalidInput, "use a set of buffers", why)
    })
}

/// The stage takes items one at a time, in their order.
#[unsafe(no_mangle)]
pub extern "C" fn dp_graph_in_order(graph: dp_graph, stage: u32) -> dp_error {
    enter(|| {
        with(graph, |declared| {
            let stage = stage_of(declared, stage)?;
            declared.graph.in_order(stage)
        })
    })
}

/// Sets how many threads compute, at most; as many as cores are usable if it is not called.
#[unsafe(no_mangle)]
pub extern "C" fn dp_graph_threads(graph: dp_graph, threads: u32) -> dp_error {
    enter(|| {
        with(graph, |declared| {
            declared.graph.threads(threads as usize);
            Ok(())
        })
    })
}

/// Runs `items` items through a graph, on this thread and those of the runtime; returns when all are
/// done, or after the first error. A report is copied as `snprintf` does, if `text` is not NULL;
/// `*len`, if it is not NULL, becomes its whole length. `format` is a `dp_format`.
///
/// Errors: the first of a transfer or of a function of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_run(
    runtime: dp_runtime,
    graph: dp_graph,
    items: u64,
    format: u32,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        arguments::format_of(format)?;
        let runtime = RUNTIMES.get(runtime.id)?;
        let report = with(graph, |declared| runtime.run(&declared.graph, items))?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::show(&report, format, text, capacity, len) }
    })
}

/// As `dp_graph_run`; `told(user, text, len)` is given the whole report, however long it is.
///
/// Errors: as `dp_graph_run`; what `told` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_graph_run_told(
    runtime: dp_runtime,
    graph: dp_graph,
    items: u64,
    format: u32,
    told: dp_text_told,
    user: *mut c_void,
) -> dp_error {
    enter(|| {
        arguments::format_of(format)?;
        let runtime = RUNTIMES.get(runtime.id)?;
        let report = with(graph, |declared| runtime.run(&declared.graph, items))?;
        tell(told, user, arguments::shown(&report, format)?)
    })
}

/// Gives the number of an item, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_item_index(item: *const dp_item) -> u64 {
    // SAFETY: the header says that it is what the function was called with, or NULL.
    unsafe { item.as_ref() }.map_or(0, |item| item.item.index())
}

/// Gives the number of the buffer that an item holds of a set.
///
/// Errors: DP_INVALID_INPUT where the stage does not use the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_item_buffer(item: *const dp_item, set: u32, buffer: *mut usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says that it is what the function was called with, or NULL.
        let item = unsafe { item.as_ref() }.ok_or_else(|| missing("item"))?;
        let number = item.item.buffer(set_of(&item.sets, set)?)?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(buffer, "buffer", number) }
    })
}

/// Ends a graph.
///
/// Errors: DP_INVALID_INPUT for a graph that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_graph_close(graph: dp_graph) -> dp_error {
    enter(|| GRAPHS.close(graph.id))
}
