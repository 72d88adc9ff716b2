//! The file backend: its offers for a pair of places, and the movers that it opens.

use std::sync::Arc;

use datapipes_core::backend::{
    Backend, Constraints, ExtentOptions, ExtentReader, Knob, Mover, Offer, OfferQuery, Primitive,
};
use datapipes_core::locator::FilePlace;
use datapipes_core::memory::MemoryRange;
use datapipes_core::{Error, ErrorKind, FileAccess, Persistence, Result};

use crate::choice::{self, Engine};
use crate::faults::FaultInjector;
use crate::kernel_copy::{self, KernelCopy};
use crate::mover::{Blocking, CacheMode, Direction, FileExtentReader, MoverContext, QueueSettings, Ring, Rules};
use crate::nvme::{self, Claims, NvmeNamespace, OpenNamespace};
use crate::short_requests::ring_serves;
use crate::uring_facts::UringFacts;
use io_uring::squeue;

const KERNEL_COPY: &str = "kernel-copy";
const COMMANDS: &str = "uring-nvme";
/// By name: engine, cache mode, and the direction served (`None` for both).
const PRIMITIVES: [(&str, Engine, CacheMode, Option<Direction>); 7] = [
    ("uring-direct", Engine::Ring, CacheMode::Direct, None),
    ("uring-cached", Engine::Ring, CacheMode::Cached, None),
    ("pread-direct", Engine::Blocking, CacheMode::Direct, Some(Direction::Read)),
    ("pread-cached", Engine::Blocking, CacheMode::Cached, Some(Direction::Read)),
    ("pwrite-direct", Engine::Blocking, CacheMode::Direct, Some(Direction::Write)),
    ("pwrite-cached", Engine::Blocking, CacheMode::Cached, Some(Direction::Write)),
    (COMMANDS, Engine::Commands, CacheMode::Direct, None),
];

/// Requests outstanding on a device that does not report its limit.
const DEPTH: u32 = 16;
/// Bytes of a request of a short job, and of any request if the device reports no limit.
const REQUEST: u64 = 1 << 20;
/// Bytes of a request of a long job, if the device accepts them: it cost 5 core ms a GiB in a
/// measurement, where 1 MiB cost 9.
const LONG_REQUEST: u64 = 2 << 20;
/// Bytes of memory registered at a time. It takes 50 us if the memory is prefaulted. Otherwise it
/// is faulted in, 16 MiB in 1 to 5 ms (64 MiB: 4 to 260), and memory that is not used yet is not
/// touched.
const SLICE: usize = 16 << 20;
/// The most slices of a range; in a longer range the slices are larger.
const SLICES: usize = 1 << 13;

/// The settings of a [`FileBackend`]. Defaults follow the device and the machine.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct FileBackendOptions {
    /// Behaves as on a machine without io_uring.
    pub force_no_uring: bool,
    /// Registers no memory with the kernel.
    pub no_registered_memory: bool,
    /// Requests outstanding at once, for pipes whose constraints do not set it.
    pub queue_depth: Option<u32>,
    /// Bytes of one request, for pipes whose constraints do not set it.
    pub request_bytes: Option<u32>,
    /// Bytes of memory registered at a time. The value is rounded up to a power of two between 1
    /// MiB and 1 GiB; the default is 16 MiB.
    pub slice_bytes: Option<usize>,
    /// Injects short transfers and errors, for tests.
    pub faults: Option<Arc<dyn FaultInjector>>,
}

datapipes_core::setters! {
    FileBackendOptions {
        force_no_uring: bool,
        no_registered_memory: bool,
        queue_depth: into Option<u32>,
        request_bytes: into Option<u32>,
        slice_bytes: into Option<usize>,
    }
}

impl FileBackendOptions {
    /// Sets [`faults`](#structfield.faults).
    #[must_use]
    pub fn faults(mut self, faults: Arc<dyn FaultInjector>) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Checks that the numbers make sense. With settings that do not, opening a pipe fails.
    ///
    /// # Errors
    /// `InvalidInput` for a queue, a request or a slice of length 0.
    pub fn check(&self) -> Result<()> {
        let knobs = [
            ("queue_depth", self.queue_depth.map(u64::from)),
            ("request_bytes", self.request_bytes.map(u64::from)),
            ("slice_bytes", self.slice_bytes.map(|bytes| bytes as u64)),
        ];
        match knobs.iter().find(|knob| knob.1 == Some(0)) {
            None => Ok(()),
            Some((knob, _)) => {
                let context = format!("the file backend's {knob} is 0");
                Err(Error::new(ErrorKind::InvalidInput, "open", context)
                    .with_advice("give at least 1, or leave it out"))
            }
        }
    }
}

/// Moves bytes between files or block devices and memory, and from file to file.
///
/// ```
/// use std::sync::Arc;
/// use datapipes_core::{Dram, Machine, Span, Ssd, topology::Topology};
/// let machine = Machine::new(Topology::discover(), vec![Arc::new(datapipes_file::FileBackend::probe())]);
/// let (file, memory) = (Ssd::unlinked_in(std::env::temp_dir())?, Dram::allocate(4 << 20)?);
/// file.preallocate(4 << 20)?;
/// memory.lease_mut()?.fill(7);
/// let pipe = machine.connect(&memory, &file)?;
/// pipe.transfer(Span { source: 1, target: 0, len: 3_000_000 })?;
/// assert_eq!(pipe.report().bytes(), 3_000_000);
/// println!("{}{}", pipe.route(), pipe.report());
/// # Ok::<(), datapipes_core::Error>(())
/// ```
pub struct FileBackend {
    config: FileBackendOptions,
    facts: UringFacts,
    /// The namespaces that pipes write by commands.
    claims: Claims,
}

impl FileBackend {
    /// Makes the backend, and asks the kernel what it supports.
    pub fn probe() -> FileBackend {
        FileBackend::with(FileBackendOptions::default())
    }

    /// As [`probe`](Self::probe), with settings.
    pub fn with(config: FileBackendOptions) -> FileBackend {
        let facts = if config.force_no_uring { UringFacts::forbidden() } else { UringFacts::probe() };
        FileBackend { config, facts, claims: Claims::default() }
    }

    /// The result of the probe of io_uring.
    pub fn uring(&self) -> &UringFacts {
        &self.facts
    }

    /// Why an engine does not serve a file, if it does not.
    fn serves(&self, engine: Engine, file: &FilePlace) -> std::result::Result<(), String> {
        self.engine(engine)?;
        if engine == Engine::Blocking { Ok(()) } else { ring_serves(file) }
    }

    /// Why commands to a file's namespace do not serve a pipe, if they do not. They are taken only
    /// where they are asked for: nothing has measured that they are faster.
    fn passes_commands(
        &self,
        file: &FilePlace,
        direction: Direction,
        constraints: &Constraints,
    ) -> std::result::Result<(), String> {
        let namespace = NvmeNamespace::of(file)?;
        self.facts.available.clone()?;
        self.facts.commands.clone()?;
        if !constraints.only.iter().any(|only| only == COMMANDS) {
            return Err(format!(
                "it is taken only where it is named, and its place would be /dev/{}",
                namespace.generic
            ));
        }
        if direction == Direction::Write && file.not_writable().is_some() {
            // The quality says why.
            return Ok(());
        }
        OpenNamespace::open(file, direction == Direction::Write, &self.claims).map(|_| ())
    }

    /// Why an engine is available, or why it is not.
    fn engine(&self, engine: Engine) -> std::result::Result<String, String> {
        match (engine, &self.facts.available) {
            (Engine::Ring, Ok(())) => Ok(format!("io_uring of kernel {}", self.facts.kernel)),
            (Engine::Ring, Err(why)) => Err(why.clone()),
            (Engine::Blocking, _) => Ok("every kernel has it".into()),
            (Engine::Commands, Err(why)) => Err(why.clone()),
            (Engine::Commands, Ok(())) => {
                self.facts.commands.clone()?;
                Ok(nvme::generic_devices()?.join(", "))
            }
        }
    }

    fn site(
        &self,
        ask: &OfferQuery<'_>,
        ends: &FileAndMemory<'_>,
        (engine, lane): (Engine, CacheMode),
    ) -> Result<MoverContext> {
        let file = ends.file;
        let namespace = match engine {
            Engine::Ring | Engine::Blocking => None,
            Engine::Commands => {
                let opened = OpenNamespace::open(file, ends.direction == Direction::Write, &self.claims);
                Some(opened.map_err(|why| {
                    let context = format!("{COMMANDS} for {}: {why}", file.path().display());
                    Error::new(ErrorKind::Unavailable, "open", context).with_advice("use uring-direct")
                })?)
            }
        };
        let limits = Limits::of(file);
        let asked = ask.constraints.request_bytes.or(self.config.request_bytes).map(u64::from);
        let request = asked.unwrap_or(limits.request);
        let depth = ask.constraints.queue_depth.or(self.config.queue_depth).unwrap_or(limits.depth);
        let offset_align = match &namespace {
            None => u64::from(file.offset_align()).next_power_of_two(),
            Some(namespace) => namespace.facts.block_bytes,
        };
        let block = rustix::fs::fstat(file.cached_fd()).map_or(4096, |s| u64::try_from(s.st_blksize).unwrap_or(4096));
        let page = datapipes_core::process::page_size() as u64;
        // A file system on several disks may report a whole stripe as its block size, which is not
        // the unit of its cache.
        let block = if block.is_power_of_two() && block <= 64 << 10 { block } else { page };
        let edge_align = offset_align.max(page).max(block);
        let most = namespace.as_ref().map_or(1 << 30, |namespace| namespace.facts.command_bytes);
        if most < edge_align {
            let context = format!("{COMMANDS} for {}: a command moves {most} bytes at most", file.path().display());
            return Err(Error::new(ErrorKind::Unavailable, "open", context).with_advice("use uring-direct"));
        }
        let rules = Rules {
            direction: ends.direction,
            lane,
            offset_align,
            memory_align: u64::from(file.memory_align()).next_power_of_two(),
            edge_align,
            request_bytes: request.clamp(edge_align, most) / edge_align * edge_align,
        };
        let slice = self.config.slice_bytes.unwrap_or(SLICE).max(ends.memory.len() / SLICES);
        let slice = slice.clamp(1 << 20, 1 << 30).next_power_of_two();
        let registers = !self.config.no_registered_memory && self.facts.registered_memory.is_ok();
        let queue = QueueSettings {
            depth: depth.clamp(1, 4096),
            short_request: asked.unwrap_or(REQUEST),
            slice_bytes: if registers { slice } else { 0 },
            io_priority: if ask.constraints.urgent { crate::priority::urgent() } else { 0 },
        };
        let falls_back = lane == CacheMode::Direct && may_fall_back(ask, ends);
        let ends = (file.clone(), ends.memory.clone());
        let site = MoverContext::new(ends, rules, falls_back, queue, self.config.faults.clone())?;
        Ok(match namespace {
            None => site,
            Some(namespace) => site.by_commands(namespace),
        })
    }

    fn why(
        &self,
        (engine, lane): (Engine, CacheMode),
        direction: Direction,
        file: &FilePlace,
        choice: &choice::Choice,
    ) -> String {
        let how = match (engine, &self.facts.registered_memory) {
            (Engine::Blocking, _) => match self.serves(Engine::Ring, file) {
                Ok(()) => "one request at a time on the caller's core".to_owned(),
                Err(why) => format!("one request at a time on the caller's core ({why})"),
            },
            (Engine::Ring | Engine::Commands, _) if self.config.no_registered_memory => "deep queue".to_owned(),
            (Engine::Ring | Engine::Commands, Ok(())) => "deep queue, registered memory".to_owned(),
            (Engine::Ring | Engine::Commands, Err(why)) => format!("deep queue, memory not registered ({why})"),
        };
        let where_ = match (lane, direction) {
            (CacheMode::Direct, Direction::Read) => "past the page cache",
            (CacheMode::Direct, Direction::Write) => "past the page cache (except for edges that share a page)",
            (CacheMode::Cached, _) => "through the page cache",
        };
        let align = file.offset_align();
        let how = match lane {
            CacheMode::Direct if align > 1 => {
                format!("{how}; bytes whose offset and address differ modulo {align} are copied once more")
            }
            CacheMode::Direct | CacheMode::Cached => how,
        };
        let chosen = if choice.lane == lane { "" } else { "though not preferred: " };
        format!("{where_}, {chosen}{}; {how}", choice.why)
    }
}

/// The two ends of a pipe between a file and memory.
struct FileAndMemory<'a> {
    file: &'a Arc<FilePlace>,
    memory: &'a MemoryRange,
    direction: Direction,
}

fn ends<'a>(ask: &OfferQuery<'a>) -> Option<FileAndMemory<'a>> {
    if let (Some(file), Some(memory)) = (ask.source.file(), ask.target.memory()) {
        return Some(FileAndMemory { file, memory, direction: Direction::Read });
    }
    let (memory, file) = (ask.source.memory()?, ask.target.file()?);
    Some(FileAndMemory { file, memory, direction: Direction::Write })
}

/// Whether requests may go through the page cache although the primitive bypasses it. They may not
/// if the caller demands the bypass.
fn may_fall_back(ask: &OfferQuery<'_>, ends: &FileAndMemory<'_>) -> bool {
    let (access, demands) = (ends.file.access(), ask.constraints);
    let through =
        |p: &&(&str, Engine, CacheMode, Option<Direction>)| p.2 == CacheMode::Cached && serves(ends.direction, p.3);
    let is_left = |name: &str| {
        (demands.only.is_empty() || demands.only.iter().any(|only| only == name))
            && !demands.deny.iter().any(|deny| deny == name)
    };
    access == FileAccess::Auto
        && !demands.bypass_page_cache
        && !demands.require_offload
        && PRIMITIVES.iter().filter(through).any(|p| is_left(p.0))
}

fn serves(direction: Direction, only: Option<Direction>) -> bool {
    only.is_none_or(|only| only == direction)
}

/// The depth and the request size that suit the device behind a file.
struct Limits {
    depth: u32,
    request: u64,
}

impl Limits {
    fn of(file: &FilePlace) -> Limits {
        let Some(queue) = file.queue() else { return Limits { depth: DEPTH, request: REQUEST } };
        // An eighth of what the kernel queues, because others use the device too.
        let depth = queue.requests.map_or(DEPTH, |n| (n / 8).clamp(8, 32));
        let takes = queue.request_bytes.unwrap_or(0);
        Limits { depth, request: takes.clamp(REQUEST, LONG_REQUEST) }
    }
}

impl Backend for FileBackend {
    fn name(&self) -> &'static str {
        "file"
    }

    fn primitives(&self) -> Vec<Primitive> {
        let what = |engine, lane| match (engine, lane) {
            (Engine::Commands, _) => "NVMe commands through io_uring to a namespace, past the kernel's block layer",
            (Engine::Ring, CacheMode::Direct) => {
                "io_uring past the page cache, deep queue, registered files and memory"
            }
            (Engine::Ring, CacheMode::Cached) => {
                "io_uring through the page cache, deep queue, registered files and memory"
            }
            (Engine::Blocking, CacheMode::Direct) => "a system call for each request, past the page cache",
            (Engine::Blocking, CacheMode::Cached) => "a system call for each request, through the page cache",
        };
        let kernel_copy = Primitive {
            name: KERNEL_COPY,
            what: "copy from file to file in the kernel: reflink, else copy_file_range",
            available: Ok("asked for each pair of files".into()),
        };
        let listed = PRIMITIVES.iter().map(|(name, engine, lane, _)| Primitive {
            name,
            what: what(*engine, *lane),
            available: self.engine(*engine),
        });
        listed.chain([kernel_copy]).collect()
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        if let (Some(source), Some(target)) = (ask.source.file(), ask.target.file()) {
            let (verdict, why) = kernel_copy::offer(source, target);
            return vec![Offer { primitive: KERNEL_COPY, verdict, why }];
        }
        let Some(FileAndMemory { file, direction, .. }) = ends(ask) else { return Vec::new() };
        let choice = choice::choose(file, direction, ask.constraints);
        let served = PRIMITIVES.iter().filter(|p| serves(direction, p.3));
        let flushed = ask.target.facts.persistence == Persistence::OnCompletion;
        let offers = served.map(|(name, engine, lane, _)| {
            let quality = || match direction {
                Direction::Read if flushed => Err("it does not flush bytes that arrive in persistent memory".into()),
                _ => choice::quality(file, &choice, direction, (*engine, *lane)),
            };
            let why = self.why((*engine, *lane), direction, file, &choice);
            let serves = || match engine {
                Engine::Ring | Engine::Blocking => self.serves(*engine, file),
                Engine::Commands => self.passes_commands(file, direction, ask.constraints),
            };
            Offer { primitive: name, verdict: serves().and_then(|()| quality()), why }
        });
        offers.collect()
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        self.config.check()?;
        if let (Some(source), Some(target), KERNEL_COPY) = (ask.source.file(), ask.target.file(), primitive) {
            return Ok(Mover::Inline(Box::new(KernelCopy::new(source.clone(), target.clone()))));
        }
        let known = PRIMITIVES.iter().find(|p| p.0 == primitive);
        let (Some(ends), Some((_, engine, lane, only))) = (ends(ask), known) else {
            return Err(not_ours(ask, primitive));
        };
        if !serves(ends.direction, *only) {
            return Err(not_ours(ask, primitive));
        }
        self.serves(*engine, ends.file).map_err(|why| Error::new(ErrorKind::Unavailable, "open", why))?;
        let site = self.site(ask, &ends, (*engine, *lane))?;
        Ok(Mover::Queued(match engine {
            Engine::Ring => Box::new(Ring::<squeue::Entry>::new(site)?),
            Engine::Commands => Box::new(Ring::<squeue::Entry128>::new(site)?),
            Engine::Blocking => Box::new(Blocking::new(site)),
        }))
    }

    fn extent_reader(&self, options: ExtentOptions) -> Option<Result<Box<dyn ExtentReader>>> {
        let reader = FileExtentReader::new(options, self.facts.available.clone(), self.config.faults.clone());
        Some(reader.map(|reader| Box::new(reader) as Box<dyn ExtentReader>))
    }

    fn knobs(&self) -> Vec<Knob> {
        let knob = |name: &str, set: Option<String>, default: String| Knob {
            name: name.to_owned(),
            origin: if set.is_some() { "set by the user" } else { "default" }.to_owned(),
            value: set.unwrap_or(default),
        };
        let c = &self.config;
        let registers = if self.facts.registered_memory.is_ok() { "yes" } else { "no" };
        vec![
            knob(
                "io_uring",
                c.force_no_uring.then(|| "no".into()),
                if self.facts.available.is_ok() { "yes" } else { "no" }.into(),
            ),
            knob("registered_memory", c.no_registered_memory.then(|| "no".into()), registers.into()),
            knob("queue_depth", c.queue_depth.map(|n| n.to_string()), "by the device, 8 to 32".into()),
            knob("request_bytes", c.request_bytes.map(|n| n.to_string()), "by the device, 1 to 2 MiB".into()),
            knob("slice_bytes", c.slice_bytes.map(|n| n.to_string()), SLICE.to_string()),
        ]
    }
}

fn not_ours(ask: &OfferQuery<'_>, primitive: &str) -> Error {
    let context = format!("{primitive} from {} to {}", ask.source.facts.name, ask.target.facts.name);
    Error::new(ErrorKind::Unsupported, "open", context).with_advice("open only what was offered for the pair")
}
