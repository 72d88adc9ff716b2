//! The machine as a value: the hardware that was discovered, and the backends that move bytes on
//! it.

use std::sync::Arc;

use datapipes_metrics::trace::{TraceLevel, follows};

use crate::backend::{Backend, Constraints, ExtentOptions, ExtentReader};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Locator, StageOrder, StagePlace, Staging};
use crate::pipe::{Pipe, staged};
use crate::plan::{Planner, Route};
use crate::thread_share::{ThreadShare, TransferShare};
use crate::threads;
use crate::topology::Core;
use crate::topology::Topology;

/// The discovered hardware and the backends. It is passed on as a value; there is no global one.
///
/// ```
/// use datapipes::{Constraints, Dram, Ssd};
///
/// fn main() -> datapipes::Result<()> {
///     let machine = datapipes::discover();
///     println!("{} cores", machine.topology().usable_cores().count());
///
///     // Which way bytes would take, without moving any: into a file that has no name.
///     let memory = Dram::allocate(1 << 20)?;
///     let file = Ssd::unlinked_in(std::env::temp_dir())?;
///     let route = machine.explain(&memory, &file, &Constraints::default())?;
///     println!("{route}"); // the primitive, why, and why not the others
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Machine {
    topology: Arc<Topology>,
    backends: Arc<[Arc<dyn Backend>]>,
}

impl Machine {
    /// Makes a machine of these parts. Programs use `datapipes::discover`; models and tests bring
    /// their own parts.
    pub fn new(topology: Topology, backends: Vec<Arc<dyn Backend>>) -> Machine {
        Machine { topology: Arc::new(topology), backends: backends.into() }
    }

    /// The hardware that was discovered.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The index of a core among the usable ones, from 0: the paper's `core_idx`. The kernel's
    /// numbers of cores may have gaps.
    pub fn position(&self, core: &Core) -> usize {
        self.topology.usable_cores().take_while(|c| c.index != core.index).count()
    }

    /// The backends, which move bytes.
    pub fn backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Connects two places by the best route this machine has.
    ///
    /// # Errors
    /// `Unsupported` where there is no route, with what each primitive lacks. The error of opening
    /// the chosen primitive, where no other can be opened instead. `InvalidInput` for constraints
    /// that make no sense ([`Constraints::check`]).
    pub fn connect(&self, source: &dyn Locator, target: &dyn Locator) -> Result<Pipe> {
        self.connect_with(source, target, &Constraints::default())
    }

    /// Connects two places by the best route that meets the constraints.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(&self, source: &dyn Locator, target: &dyn Locator, constraints: &Constraints) -> Result<Pipe> {
        constraints.check()?;
        let span = datapipes_metrics::span!(Debug, "connect", [], empty: [route]);
        let pipe = staged::connect(&self.planner(constraints), &source.endpoint(), &target.endpoint());
        if follows(TraceLevel::Debug)
            && let Ok(pipe) = &pipe
        {
            span.record("route", &pipe.route().primitives().join(" > "));
        }
        span.ended(pipe.is_ok());
        pipe
    }

    /// As [`connect_with`](Self::connect_with), and threads get a share of caches and memory
    /// bandwidth while they carry out transfers of this pipe: those that call its `transfer`,
    /// `start` and `transfer_all`, wait for a transfer, or drive a batch. Each call costs what the
    /// share costs (two writes to the kernel's resource control, say), so it is for long transfers.
    ///
    /// Where the bytes must not displace what is in the processor's caches
    /// ([`Constraints::bypass_processor_cache`]) and no primitive can do that, a share that
    /// confines them to a part of the cache meets the demand, if the caller's thread moves them.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with), and where this thread does not get the share.
    pub fn connect_with_share(
        &self,
        source: &dyn Locator,
        target: &dyn Locator,
        constraints: &Constraints,
        share: Arc<dyn ThreadShare>,
    ) -> Result<Pipe> {
        let share = TransferShare::new(share)?;
        match self.connect_with(source, target, constraints) {
            Err(refused) if refused.kind() == ErrorKind::Unsupported && constraints.bypass_processor_cache => {
                if !share.confines_cache() {
                    return Err(refused
                        .within(format!("the share {} does not confine every last-level cache", share.summary())));
                }
                let relaxed = Constraints { bypass_processor_cache: false, ..constraints.clone() };
                match self.connect_with(source, target, &relaxed) {
                    Ok(pipe) if pipe.is_carried_out_by_caller() => Ok(pipe.with_share(share, true)),
                    Ok(pipe) => {
                        let by = pipe.route().primitives().join(" and ");
                        Err(refused.within(format!("the share {} does not confine {by}", share.summary())))
                    }
                    Err(_) => Err(refused),
                }
            }
            connected => Ok(connected?.with_share(share, false)),
        }
    }

    /// Returns the route that `connect_with` would take, without connecting.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn explain(&self, source: &dyn Locator, target: &dyn Locator, constraints: &Constraints) -> Result<Route> {
        constraints.check()?;
        staged::route(&self.planner(constraints), &source.endpoint(), &target.endpoint())
    }

    /// Makes a reader of many short extents of files, by the first backend that has one.
    ///
    /// # Errors
    /// `Unsupported` where no backend reads files, and the errors of making the reader.
    pub fn extent_reader(&self, options: ExtentOptions) -> Result<Box<dyn ExtentReader>> {
        let none = || Err(Error::new(ErrorKind::Unsupported, "read extents", "no backend of this machine reads files"));
        self.backends.iter().find_map(|backend| backend.extent_reader(options)).unwrap_or_else(none)
    }

    /// Opens places to stage data in (CIDR'23, section 5.3). With [`StageOrder::Cost`], they are
    /// ordered by the cost of this machine's routes from memory to each place and back. Places of
    /// equal cost take turns, and a place without free space comes last.
    ///
    /// # Errors
    /// As [`Staging::open`]; with [`StageOrder::Cost`] also `Unsupported` for a place that this
    /// machine cannot write and read.
    pub fn staging(&self, places: Vec<StagePlace>, order: StageOrder) -> Result<Staging> {
        let staging = Staging::open(places)?;
        if order == StageOrder::Cost {
            staged::by_cost(&self.planner(&Constraints::default()), &staging)?;
        }
        Ok(staging)
    }

    /// Runs `work` on every usable core at once, each call on a thread bound to its core, and
    /// returns the first error.
    ///
    /// Where this is called in a callback of a runtime or a reader, `work` must not wait for that
    /// runtime or reader (drain it, drop the last handle). Its threads do not know that they run
    /// within the callback, so the library cannot refuse such a wait.
    ///
    /// # Errors
    /// The first error of `work`; `Unavailable` where no core is usable or a thread cannot be
    /// bound; `System` where the kernel refuses a thread. In that case `work` ran on some of the
    /// cores or on none.
    pub fn each_core<F>(&self, work: F) -> Result<()>
    where
        F: Fn(&Core) -> Result<()> + Sync,
    {
        let cores: Vec<&Core> = self.topology.usable_cores().collect();
        if cores.is_empty() {
            return Err(Error::new(ErrorKind::Unavailable, "run on each core", "no usable core was discovered"));
        }
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = cores
                .iter()
                .map(|core| {
                    threads::spawn_scoped(scope, &format!("dp-core-{}", core.index), move || {
                        bind_to(core.index)?;
                        work(core)
                    })
                })
                .collect();
            let mut result = Ok(());
            for thread in threads {
                match thread.map(|thread| thread.join()) {
                    Ok(Ok(outcome)) => result = result.and(outcome),
                    Err(refused) => result = result.and(Err(refused)),
                    // The caller's closure panicked: the panic goes on in the caller's thread.
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                }
            }
            result
        })
    }

    /// The L2 size of the smallest usable core, in bytes, so that a run of that size fits every
    /// core's cache (`CacheSize` in figure 6a).
    pub fn l2_size(&self) -> u64 {
        self.topology.usable_cores().filter_map(|c| c.data_cache(2)?.size_bytes).min().unwrap_or(256 << 10)
    }

    fn planner<'a>(&'a self, constraints: &'a Constraints) -> Planner<'a> {
        Planner { backends: &self.backends, topology: &self.topology, constraints }
    }
}

/// Binds this thread to a core.
pub(crate) fn bind_to(core: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if core >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Error::new(ErrorKind::Unavailable, "bind", format!("core {core} is beyond the kernel's limit")));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| Error::os("bind", e.raw_os_error(), format!("a thread to core {core}")))
}
