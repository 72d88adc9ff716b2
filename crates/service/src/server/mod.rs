//! The service's side.
//!
//! ```text
//! accept     one thread                    checks the user and the limits, starts a session
//! metrics    one thread, where asked for   answers GET /metrics
//! session    a thread for each client      hello, connect, status; sleeps otherwise
//! transfers  the runtime                   its coordinator and worker pools, for all clients
//! intake     helper processes              receive clients' descriptors, and check them
//! ```
//!
//! Each client has a thread, because what it passes may make the kernel wait (for a slow file
//! system, for example), and then only its own thread waits. Transfers never pass through these
//! threads.
//!
//! Unsafe code: the handler of `SIGBUS` (`guard`), asking the kernel for a client's user (`peer`),
//! taking over the sockets that systemd opened (`inherited`), and `fork` (`intake`).

mod config;
mod descriptors;
mod entrance;
mod inherited;
mod journal;
mod log;
mod log_event;
mod metrics;
mod probe;
mod pulse;
mod quotas;
mod session;
mod shared;
mod status;
mod wake;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use datapipes_core::locks::{Condvar, Mutex, RwLock};
use datapipes_core::runtime::RuntimeOptions;
use datapipes_core::{Error, ErrorKind, Machine, Result, Runtime, threads};

pub use config::ServerOptions;
pub use entrance::listen::Listener;
pub use inherited::InheritedSockets;
pub use log::ServiceLog;
pub use log_event::{LogEvent, LogPriority};
pub use metrics::{MetricsAddress, MetricsListener};
pub use probe::{ProbeOutcome, ServiceProbe};
pub use quotas::limits::ServiceLimits;

use descriptors::guard;
use descriptors::intake::Intake;
use entrance::accept;
use pulse::Pulse;
use quotas::account::{Ledger, Most};
use shared::Shared;
use wake::{event, ring};

use crate::status::ExportTotals;

/// A running service.
pub struct Server {
    shared: Arc<Shared>,
    /// The thread that accepts clients, and that of the metrics.
    threads: Vec<threads::JoinHandle<()>>,
    drain: Drain,
}

/// A thread that finishes the transfers in flight when the service stops, because a transfer whose
/// device does not answer would keep us from ending. It is started with the service, because at the
/// end there may be no thread to be had.
struct Drain {
    /// Sends it the threads that must end first.
    begin: Sender<Vec<threads::JoinHandle<()>>>,
    done: Arc<(Mutex<bool>, Condvar)>,
}

impl Drain {
    fn start(shared: Arc<Shared>) -> Result<Drain> {
        let (begin, is_due) = channel::<Vec<threads::JoinHandle<()>>>();
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let told = done.clone();
        let drains = move || {
            let Ok(others) = is_due.recv() else { return };
            for thread in others {
                // It panics only by a bug of ours, and the panic was already printed.
                let _ = threads::join(thread);
            }
            // This is a statement of its own, so that the lock is not held while the runtime
            // drains.
            let runtime = shared.runtime.write().take();
            drop(runtime);
            *told.0.lock() = true;
            told.1.notify_all();
        };
        threads::spawn("dpiped-drain", drains)?;
        Ok(Drain { begin, done })
    }
}

impl Server {
    /// Starts to serve clients of the listener, which it now owns.
    ///
    /// # Errors
    /// `InvalidInput` for limits that make no sense ([`ServiceLimits::check`]); `System` if the
    /// kernel gives no thread, process or descriptor.
    pub fn start(machine: &Machine, listener: Listener, config: ServerOptions) -> Result<Server> {
        config.limits.check()?;
        check_descriptors()?;
        // The intake comes first: at this time it copies little of this process.
        let intake = Intake::start()?;
        guard::install()?;
        if !guard::can_refuse_pages() {
            config.log.line(format_args!(
                "the kernel gives no userfaultfd: pages that clients remove from passed memory can add to this process's memory"
            ));
        }
        let runtime_config = config.runtime.clone().unwrap_or_else(|| RuntimeOptions::new(machine));
        let runtime = Runtime::start_with(machine, runtime_config)?;
        let shared = Arc::new(Shared {
            ledger: Ledger::new(Most {
                of_client: config.limits.mapped_bytes,
                of_user: config.limits.mapped_bytes_per_uid,
                of_all: config.limits.all_mapped_bytes,
            }),
            config,
            intake,
            runtime: RwLock::new(Some(runtime)),
            sessions: Mutex::default(),
            left: Condvar::new(),
            stopping: AtomicBool::new(false),
            closing: event()?,
            ending: event()?,
            asked: event()?,
            pulse: Pulse::default(),
            turned_away: AtomicU64::new(0),
            began: Instant::now(),
            counts_exports: Mutex::default(),
        });
        let drain = Drain::start(shared.clone())?;
        let ours = shared.clone();
        let accepts = threads::spawn("dpiped-accept", move || accept::run(&ours, listener))?;
        Ok(Server { shared, threads: vec![accepts], drain })
    }

    /// Lets the metrics of the service be fetched at a listener, which it now owns.
    ///
    /// # Errors
    /// `System` if the kernel gives no thread.
    pub fn publish_metrics(&mut self, listener: MetricsListener) -> Result<()> {
        let ours = self.shared.clone();
        self.threads.push(threads::spawn("dpiped-metrics", move || metrics::endpoint::run(&ours, listener))?);
        Ok(())
    }

    /// Shows what the program exports beside the service, in the status and the metrics. `count` is
    /// called at each look, on threads of the service.
    pub fn show_exports(&self, count: impl Fn() -> ExportTotals + Send + Sync + 'static) {
        *self.shared.counts_exports.lock() = Some(Arc::new(count));
    }

    /// Makes a probe that finds out whether the service serves.
    ///
    /// # Errors
    /// `NoMemory` for its memory.
    pub fn probe(&self) -> Result<ServiceProbe> {
        ServiceProbe::new(self.shared.clone())
    }

    /// Returns a descriptor that is shut (`POLLHUP`) when the service can receive no more
    /// descriptors from clients, because a process that it needs for that was killed. Then it
    /// should be stopped and started again.
    pub fn failed(&self) -> BorrowedFd<'_> {
        self.shared.intake.first()
    }

    /// Stops: accepts no more clients and starts no more transfers, finishes those in flight and
    /// reports them, and ends the connections. It waits for at most `patience`. Returns false if
    /// something was still in flight then; the process should end in that case.
    pub fn stop(self, patience: Duration) -> bool {
        // A time beyond the clock's range means to wait without a limit.
        let until = Instant::now().checked_add(patience);
        let Server { shared, threads, drain: Drain { begin, done } } = self;
        shared.stopping.store(true, Ordering::SeqCst);
        ring(&shared.closing);
        // The thread waits for this message.
        let _ = begin.send(threads);
        let left = |until: Option<Instant>| match until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        let drained = done.0.lock();
        let (drained, _) = done.1.wait_timeout_while(drained, left(until), |drained| !*drained);
        let drained = *drained;
        // This comes only now, because the end of a session ends its pipes, and their clients would
        // lose completions.
        ring(&shared.ending);
        let sessions = shared.sessions();
        let (sessions, _) = shared.left.wait_timeout_while(sessions, left(until), |s| !s.is_empty());
        drained && sessions.is_empty()
    }
}

/// The descriptors that a service and its first client need: with fewer, a client could not even be
/// told that there are none.
const MIN_DESCRIPTORS: u64 = 32;

fn check_descriptors() -> Result<()> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if most < MIN_DESCRIPTORS {
        let context = format!("a limit of {most} descriptors; it needs {MIN_DESCRIPTORS}");
        return Err(Error::new(ErrorKind::InvalidInput, "start the service", context)
            .with_advice("raise the limit (`ulimit -n`, LimitNOFILE of systemd)"));
    }
    Ok(())
}
