//! Movement and computation that depend on each other, declared and then run (CIDR'23, section 6,
//! principle 2: composable; figure 7).
//!
//! ```text
//! item 0   read -> sort -> spill
//! item 1           read -> sort -> spill          with two buffers: one is filled while the other is worked on
//! item 2                    ^ read -> ...         starts when item 0 gives its buffer back
//! ```
//!
//! A graph has stages: transfers of pipes, and computations. Every item goes through all of them,
//! each stage after those it depends on. Buffers are numbered places of the caller's; an item holds
//! one of a set from the first stage that uses the set to the last. Items overlap as far as buffers
//! allow, so two buffers make double buffering.
//!
//! Sets are granted in the order of items, so no two items ever wait for each other.

mod report;
mod run;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

pub use report::{GraphReport, StageReport};

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::RuntimePipe;
use crate::span::Span;

/// The most threads that compute for one graph: each has a stack, and maps of which a process may
/// have some ten thousand.
const MAX_THREADS: usize = 1024;

/// A stage of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageId(usize);

/// A set of buffers, numbered from 0. What they are is the caller's business: ranges of a locator,
/// say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSet {
    id: u64,
    count: usize,
}

impl BufferSet {
    /// A set of `count` buffers.
    pub fn new(count: usize) -> BufferSet {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        BufferSet { id: NEXT.fetch_add(1, Ordering::Relaxed), count }
    }
}

/// One item on its way through the stages.
#[derive(Clone, Debug)]
pub struct Item {
    index: u64,
    /// By set of the graph: the set, and the number of a buffer.
    held: Vec<(BufferSet, Option<usize>)>,
}

impl Item {
    /// Its number, from 0.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The number of the buffer that it holds of a set.
    ///
    /// # Errors
    /// `InvalidInput` where the stage that asks does not use the set.
    pub fn buffer(&self, set: BufferSet) -> Result<usize> {
        self.held.iter().find(|held| held.0 == set).and_then(|held| held.1).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "run", format!("item {} holds no buffer of {set:?}", self.index))
                .with_advice("say that the stage uses the set")
        })
    }
}

type SpanOf<'a> = Box<dyn Fn(&Item) -> Result<Span> + Send + Sync + 'a>;
type Work<'a> = Box<dyn Fn(&Item) -> Result<()> + Send + Sync + 'a>;

enum Action<'a> {
    Transfer(RuntimePipe, SpanOf<'a>),
    Compute(Work<'a>),
}

struct Declared<'a> {
    name: String,
    action: Action<'a>,
    after: Vec<usize>,
    uses: Vec<usize>,
    /// One item at a time, in the order of items.
    in_order: bool,
}

/// Stages, their dependencies and their buffers.
///
/// ```
/// use datapipes::graph::{BufferSet, Graph};
/// use datapipes::{Dram, Runtime, Span, Ssd};
///
/// const LEN: u64 = 64 << 10;
///
/// fn main() -> datapipes::Result<()> {
///     let machine = datapipes::discover();
///     let runtime = Runtime::start(&machine)?;
///     let file = Ssd::unlinked_in(std::env::temp_dir())?;
///     file.preallocate(16 * LEN)?;
///
///     // Each of 16 parts of the file is read into one of two buffers, and summed up there.
///     let memory = Dram::allocate(2 * LEN as usize)?;
///     let buffers = BufferSet::new(2);
///     let pipe = runtime.connect(&file, &memory)?;
///     let mut graph = Graph::new("sums");
///     let read = graph.pipe("read", &pipe, |item| {
///         Ok(Span { source: item.index() * LEN, target: item.buffer(buffers)? as u64 * LEN, len: LEN })
///     });
///     let sum = graph.compute("sum", |item| {
///         let at = item.buffer(buffers)? * LEN as usize;
///         let bytes = memory.range(at, LEN as usize)?.lease()?;
///         assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0);
///         Ok(())
///     });
///     graph.after(sum, read)?;
///     graph.uses(read, buffers)?;
///     graph.uses(sum, buffers)?;
///     println!("{}", runtime.run(&graph, 16)?);
///     Ok(())
/// }
/// ```
pub struct Graph<'a> {
    name: String,
    stages: Vec<Declared<'a>>,
    sets: Vec<BufferSet>,
    threads: Option<usize>,
}

impl<'a> Graph<'a> {
    /// A graph without stages.
    pub fn new(name: impl Into<String>) -> Graph<'a> {
        Graph { name: name.into(), stages: Vec::new(), sets: Vec::new(), threads: None }
    }

    /// Declares a stage that moves a span for each item.
    pub fn pipe(
        &mut self,
        name: impl Into<String>,
        pipe: &RuntimePipe,
        span: impl Fn(&Item) -> Result<Span> + Send + Sync + 'a,
    ) -> StageId {
        self.stage(name.into(), Action::Transfer(pipe.clone(), Box::new(span)))
    }

    /// Declares a stage that computes, on one of the graph's threads.
    pub fn compute(
        &mut self,
        name: impl Into<String>,
        work: impl Fn(&Item) -> Result<()> + Send + Sync + 'a,
    ) -> StageId {
        self.stage(name.into(), Action::Compute(Box::new(work)))
    }

    /// The stages of which something holds, by number.
    fn stages_where(&self, holds: impl Fn(&Declared<'_>) -> bool) -> Vec<usize> {
        (0..self.stages.len()).filter(|stage| holds(&self.stages[*stage])).collect()
    }

    fn stage(&mut self, name: String, action: Action<'a>) -> StageId {
        self.stages.push(Declared { name, action, after: Vec::new(), uses: Vec::new(), in_order: false });
        StageId(self.stages.len() - 1)
    }

    /// The stage begins with an item when another is done with it.
    ///
    /// # Errors
    /// `InvalidInput` for a stage that was declared later (so that there is no circle), or of
    /// another graph.
    pub fn after(&mut self, stage: StageId, earlier: StageId) -> Result<()> {
        if earlier.0 >= stage.0 || stage.0 >= self.stages.len() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "declare",
                format!("graph {}: stage {} after stage {}", self.name, stage.0, earlier.0),
            )
            .with_advice("declare stages in an order in which they can run"));
        }
        self.stages[stage.0].after.push(earlier.0);
        Ok(())
    }

    /// The stage works with a buffer of the set. The item holds it from its first stage that does
    /// to its last.
    ///
    /// # Errors
    /// `InvalidInput` for a stage of another graph.
    pub fn uses(&mut self, stage: StageId, set: BufferSet) -> Result<()> {
        let Some(declared) = self.stages.get_mut(stage.0) else {
            let context = format!("graph {}: stage {}", self.name, stage.0);
            return Err(Error::new(ErrorKind::InvalidInput, "declare", context));
        };
        let at = self.sets.iter().position(|known| *known == set).unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        });
        declared.uses.push(at);
        Ok(())
    }

    /// The stage takes items one at a time, in their order.
    ///
    /// # Errors
    /// `InvalidInput` for a stage of another graph.
    pub fn in_order(&mut self, stage: StageId) -> Result<()> {
        match self.stages.get_mut(stage.0) {
            Some(declared) => declared.in_order = true,
            None => {
                let context = format!("graph {}: stage {}", self.name, stage.0);
                return Err(Error::new(ErrorKind::InvalidInput, "declare", context));
            }
        }
        Ok(())
    }

    /// Threads that compute; as many as cores are usable if not said. From 1 to 1024, and no more
    /// than there are computations.
    pub fn threads(&mut self, threads: usize) {
        self.threads = Some(threads.clamp(1, MAX_THREADS));
    }
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({}:", self.name)?;
        for stage in &self.stages {
            write!(f, " {}", stage.name)?;
        }
        f.write_str(")")
    }
}
