//! The service's side.
//!
//! ```text
//! accept     one thread                    whose user is it, is there room?  -> a session
//! session    a thread for each client      hello, connect, status; sleeps otherwise
//! transfers  the runtime                   its coordinator and worker pools, for all clients
//! intake     processes of their own        descriptors that clients pass, until they are known to be harmless
//! ```
//!
//! A thread for each client, because what a client passes may make the kernel wait (a file whose
//! file system answers slowly, say), and then its own thread waits and no other. Transfers never
//! pass through these threads.
//!
//! What is unsafe here: the handler of `SIGBUS` (`guard`), asking the kernel who a client is
//! (`peer`), taking over the socket that systemd opened (`listen`), and `fork` (`intake`).

mod accept;
mod account;
mod guard;
mod intake;
mod limits;
mod lingering_close;
mod listen;
mod log;
mod numbers;
mod peer;
mod places;
mod session;
mod token_bucket;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapipes_core::runtime::RuntimeConfig;
use datapipes_core::{Error, ErrorKind, Machine, Result, Runtime, threads};
use rustix::event::{EventfdFlags, eventfd};

pub use limits::ServiceLimits;
pub use listen::Listener;
pub use log::ServiceLog;

use account::{Ledger, Most, SessionFacts};
use intake::Intake;

/// How a service works.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// What each client may have, and all together.
    pub limits: ServiceLimits,
    /// Only these users; all that can open the socket, if empty.
    pub allow_uids: Vec<u32>,
    /// Also files of file systems that it does not know to be served by the kernel alone.
    pub any_filesystem: bool,
    /// Where its lines go.
    pub log: ServiceLog,
    /// How the runtime works; by the machine if not given.
    pub runtime: Option<RuntimeConfig>,
}

/// A service that runs.
pub struct Server {
    shared: Arc<Shared>,
    accepts: JoinHandle<()>,
    drain: Drain,
}

/// A thread that carries out what is under way when the service stops: a transfer whose device does
/// not answer would keep us from ending. There from the start, for there may be none to be had
/// then.
struct Drain {
    /// Takes the thread that accepts clients, which ends first.
    begin: Sender<JoinHandle<()>>,
    done: Arc<(Mutex<bool>, Condvar)>,
}

impl Drain {
    fn start(shared: Arc<Shared>) -> Result<Drain> {
        let (begin, is_due) = channel::<JoinHandle<()>>();
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let told = done.clone();
        let drains = move || {
            let Ok(accepts) = is_due.recv() else { return };
            // It ends by a panic only through a bug of ours; there is nothing to add to what was
            // printed.
            let _ = accepts.join();
            // In a statement of its own, so that the lock is not held while the runtime drains.
            let runtime = shared.runtime.write().unwrap_or_else(PoisonError::into_inner).take();
            drop(runtime);
            *told.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
            told.1.notify_all();
        };
        threads::spawn("dpiped-drain", drains)?;
        Ok(Drain { begin, done })
    }
}

/// What the sessions have in common.
struct Shared {
    config: ServerConfig,
    /// None when it stops.
    runtime: RwLock<Option<Runtime>>,
    ledger: Arc<Ledger>,
    intake: Intake,
    sessions: Mutex<BTreeMap<u64, Arc<SessionFacts>>>,
    /// Told when a session is gone.
    left: Condvar,
    stopping: AtomicBool,
    /// No more clients are accepted.
    closing: OwnedFd,
    /// Readable for ever once the sessions are to end.
    ending: OwnedFd,
    turned_away: AtomicU64,
    began: Instant,
}

impl Server {
    /// Starts to serve. The listener's socket is its own from here on.
    ///
    /// # Errors
    /// `InvalidInput` for limits that make no sense ([`ServiceLimits::check`]); `System` where the
    /// kernel gives no thread, process or descriptor.
    pub fn start(machine: &Machine, listener: Listener, config: ServerConfig) -> Result<Server> {
        config.limits.check()?;
        check_descriptors()?;
        // First: what it copies of this process is little then.
        let intake = Intake::start()?;
        guard::install()?;
        if !guard::can_refuse_pages() {
            config.log.line(format_args!(
                "the kernel gives no userfaultfd: pages that clients take out of memory that they passed can add to this process's own"
            ));
        }
        let runtime_config = config.runtime.clone().unwrap_or_else(|| RuntimeConfig::of(machine));
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
            turned_away: AtomicU64::new(0),
            began: Instant::now(),
        });
        let drain = Drain::start(shared.clone())?;
        let ours = shared.clone();
        let accepts = threads::spawn("dpiped-accept", move || accept::run(&ours, listener))?;
        Ok(Server { shared, accepts, drain })
    }

    /// Shut (`POLLHUP`) once it can take no more descriptors from clients, because the process that
    /// it needs for that was killed: it should be stopped, and started again.
    pub fn failed(&self) -> BorrowedFd<'_> {
        self.shared.intake.first()
    }

    /// Stops: accepts no more clients and starts no more transfers, carries out what is under way
    /// and tells of it, and ends the connections, which ends what is left. Waits so long at most
    /// for transfers and clients; false where something was still under way then, and the process
    /// should end.
    pub fn stop(self, patience: Duration) -> bool {
        // Longer than the clock goes: until it is over.
        let until = Instant::now().checked_add(patience);
        let Server { shared, accepts, drain: Drain { begin, done } } = self;
        shared.stopping.store(true, Ordering::SeqCst);
        ring(&shared.closing);
        // It waits for this.
        let _ = begin.send(accepts);
        let left = |until: Option<Instant>| match until {
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        let drained = done.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (drained, _) = done
            .1
            .wait_timeout_while(drained, left(until), |drained| !*drained)
            .unwrap_or_else(PoisonError::into_inner);
        let drained = *drained;
        // Only now: the end of a session ends its pipes, which would keep completions from their
        // clients.
        ring(&shared.ending);
        let sessions = shared.sessions();
        let (sessions, _) = shared
            .left
            .wait_timeout_while(sessions, left(until), |s| !s.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        drained && sessions.is_empty()
    }
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<SessionFacts>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the runtime.
    ///
    /// # Errors
    /// `Unavailable` when the service stops.
    fn with_runtime<R>(&self, what: impl FnOnce(&Runtime) -> Result<R>) -> Result<R> {
        let runtime = self.runtime.read().unwrap_or_else(PoisonError::into_inner);
        match &*runtime {
            Some(runtime) if !self.stopping.load(Ordering::SeqCst) => what(runtime),
            _ => Err(stops()),
        }
    }
}

/// Descriptors that a service and its first client need: fewer, and nobody could be told that there
/// are none.
const MIN_DESCRIPTORS: u64 = 32;

fn check_descriptors() -> Result<()> {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if most < MIN_DESCRIPTORS {
        let context = format!("{most} descriptors, of which it needs {MIN_DESCRIPTORS}");
        return Err(Error::new(ErrorKind::InvalidInput, "start the service", context)
            .advice("raise the limit (`ulimit -n`, LimitNOFILE of systemd)"));
    }
    Ok(())
}

/// What those hear who come too late.
fn stops() -> Error {
    Error::new(ErrorKind::Unavailable, "ask", "the service stops").advice("connect again when it is back")
}

/// An event that others can wait for.
fn event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::os("serve", e.raw_os_error(), "an event"))
}

/// Makes an event readable.
fn ring(event: &OwnedFd) {
    // It fails only where the counter would overflow, and then it is readable.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
