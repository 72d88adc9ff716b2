//! Deliberate harm: panicking code of the caller, children that drop what is their parent's, and
//! soaks in separate processes that get no threads or little memory.

use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use datapipes::runtime::RuntimePipe;
use datapipes::{Error, ErrorKind, Handle, Span};
use datapipes_testkit::ControlGroup;
use datapipes_testkit::child::{NoThreads, in_child};

/// Deliberate panics.
pub(crate) static THROWN: AtomicU64 = AtomicU64::new(0);
/// Children that were made.
pub(crate) static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether no children are made: each has a copy of pinned memory, for which a small control group
/// has no room.
pub(crate) static CHILDLESS: AtomicBool = AtomicBool::new(false);
/// Whether threads are sometimes refused.
static REFUSES: AtomicBool = AtomicBool::new(false);

/// The bytes of memory, with the page cache, of a soak in a control group: two to three times what
/// it needs.
const GROUP_BYTES: u64 = 256 << 20;
/// How long a soak in a separate process runs, in seconds, and how long it may take to end.
const APART: &str = "8";
const PATIENCE: Duration = Duration::from_secs(240);
/// The length of the periods in which threads are refused and given in turns.
const TURN: Duration = Duration::from_millis(40);
/// The first of the user ids that no real user has; each has a count of threads of its own.
const NOBODYS: u32 = 1_620_000_000;

struct OnPurpose;

/// Panics deliberately.
pub(crate) fn throw() {
    THROWN.fetch_add(1, Ordering::SeqCst);
    std::panic::panic_any(OnPurpose);
}

/// Silences deliberate panics; others are printed as usual.
pub(crate) fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<OnPurpose>() {
            usual(info);
        }
    }));
}

struct Throws;

impl Wake for Throws {
    fn wake(self: Arc<Self>) {
        throw();
    }
}

/// Returns a waker that panics whenever it is called.
pub(crate) fn waker() -> Waker {
    Waker::from(Arc::new(Throws))
}

/// In a child, checks that nothing of the parent's can be used, and drops the handles. The parent
/// still has them.
pub(crate) fn fork(pipe: &RuntimePipe, handles: Vec<Handle>, span: Span) -> Vec<Handle> {
    if refuses() || CHILDLESS.load(Ordering::SeqCst) {
        // Without threads there is no child either.
        return handles;
    }
    let handles = RefCell::new(handles);
    FORKS.fetch_add(1, Ordering::SeqCst);
    in_child(&|| {
        let refused = pipe.transfer(span).err().map(|e| e.kind());
        assert_eq!(refused, Some(ErrorKind::Forked));
        drop(handles.take());
        pipe.drain();
    });
    handles.into_inner()
}

/// Records that threads are sometimes refused to this process.
pub(crate) fn expect_refusals() {
    REFUSES.store(true, Ordering::SeqCst);
}

/// Refuses threads to this process again and again, until it ends.
pub(crate) fn refuse_threads(over: &AtomicBool) {
    expect_refusals();
    while !over.load(Ordering::SeqCst) {
        let none = NoThreads::from_now_on();
        std::thread::sleep(TURN);
        drop(none);
        std::thread::sleep(TURN);
    }
}

pub(crate) fn refuses() -> bool {
    REFUSES.load(Ordering::SeqCst)
}

/// Whether an error is that of a deliberately refused thread.
pub(crate) fn is_refusal(e: &Error) -> bool {
    refuses() && e.errno() == Some(libc::EAGAIN)
}

/// Soaks in separate processes, in turns: one whose user's limit refuses threads, one with little
/// memory, and one whose control group refuses threads.
pub(crate) struct SeparateSoaks<'a> {
    dir: &'a Path,
    seed: u64,
    memory: Result<ControlGroup, String>,
    threads: Result<ControlGroup, String>,
    refuses: bool,
    pub(crate) ended: u64,
    running: Option<(&'static str, Child, Instant)>,
}

impl<'a> SeparateSoaks<'a> {
    pub(crate) fn new(dir: &'a Path, seed: u64) -> SeparateSoaks<'a> {
        let memory = ControlGroup::of_memory(GROUP_BYTES);
        if let Err(why) = &memory {
            println!("SKIPPED: a soak with little memory: {why}");
        }
        let threads = ControlGroup::of_threads();
        if let Err(why) = &threads {
            println!("SKIPPED: a soak in a group that gets no threads: {why}");
        }
        SeparateSoaks { dir, seed, memory, threads, refuses: false, ended: 0, running: None }
    }

    /// Checks the running soak, and starts the next one if none runs and there is time left.
    ///
    /// # Errors
    /// The error of one of them.
    pub(crate) fn tend(&mut self, may_start: bool) -> Result<bool, String> {
        if let Ok(group) = &self.threads {
            // Threads are refused and given in turns, at each call. A soak that starts gets the
            // threads that it needs.
            self.refuses = self.running.is_some() && !self.refuses && self.started().exists();
            group.refuse_threads(self.refuses)?;
        }
        if let Some((what, child, begun)) = &mut self.running {
            match child.try_wait().map_err(|e| format!("{what}: {e}"))? {
                Some(status) if status.success() => self.ended += 1,
                Some(status) => return Err(format!("{what}, seed {}: {status}", self.seed + self.ended)),
                None if begun.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("{what} does not end: a completion was lost"));
                }
                None => return Ok(true),
            }
            self.running = None;
            // It may have been one of the others.
            let _ = std::fs::remove_file(self.started());
        }
        if may_start {
            self.running = self.start()?;
        }
        Ok(self.running.is_some())
    }

    fn folder(&self) -> PathBuf {
        self.dir.join(format!("soak-apart-{}", std::process::id()))
    }

    /// The file which says that a soak in the group has all of its threads.
    fn started(&self) -> PathBuf {
        self.folder().join("started")
    }

    fn start(&self) -> Result<Option<(&'static str, Child, Instant)>, String> {
        let program = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        let (what, mut command) = match (self.ended % 3, &self.memory, &self.threads) {
            (1, Ok(group), _) => {
                let mut command = group.command(&program);
                command.arg("--no-children");
                ("a soak with little memory", command)
            }
            (2, _, Ok(group)) => {
                let mut command = group.command(&program);
                command.arg("--threads-are-refused-from").arg(self.started());
                ("a soak in a group that gets no threads now and then", command)
            }
            _ => {
                // Only root can become another user, and the user's other threads would be refused
                // too.
                if !rustix::process::geteuid().is_root() {
                    return Ok(None);
                }
                let user = NOBODYS + std::process::id();
                let mut command = Command::new(&program);
                command.uid(user).gid(user).arg("--refuse-threads");
                ("a soak whose threads are refused", command)
            }
        };
        let dir = self.folder();
        let open = std::fs::Permissions::from_mode(0o777);
        let made = std::fs::create_dir_all(&dir).and_then(|()| std::fs::set_permissions(&dir, open));
        made.map_err(|e| format!("{}: {e}", dir.display()))?;
        command
            .args(["--alone", "--seconds", APART, "--seed", &(self.seed + self.ended).to_string(), "--dir"])
            .arg(dir);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|e| format!("{what}: {}: {e}", program.display()))?;
        Ok(Some((what, child, Instant::now())))
    }
}

impl Drop for SeparateSoaks<'_> {
    fn drop(&mut self) {
        if let Some((_, child, _)) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(self.folder());
    }
}
