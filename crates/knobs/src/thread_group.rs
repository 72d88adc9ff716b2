//! A group of threads with shares of caches and memory bandwidth, for as long as a runtime lives.
//!
//! ```text
//! make     -> the lock of resctrl -> groups of dead processes are removed -> the folder, its lock, its shares
//! take in  -> a thread writes its number into `tasks`, and finds it there
//! drop     -> the folder is removed; what is left of its threads gets everything again
//! a crash  -> the kernel frees the lock, and the next group or `dpipe knobs restore` removes the folder
//! ```
//! No journal is needed, as for a transaction: removing the folder restores everything, and the
//! lock of the folder says whether its process lives. (A number of a process in its name would be
//! taken for another one in a container.) So groups of several runtimes exist side by side.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::file_lock::FileLock;
use datapipes_core::process::OwningProcess;
use datapipes_core::runtime::ThreadShare;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags};

use crate::list::RESCTRL;
use crate::plan::KnobPlan;
use crate::tree::MachineTree;
use crate::write::{GROUP, SettingWrite};

const OPERATION: &str = "make a group of threads";
/// How the names of these groups go on, so that nobody takes one of a transaction for one of them.
const OF_THREADS: &str = "threads-";
/// How the names of shares begin.
const SHARE: &str = "share.";
/// How long another program may hold the lock of resctrl.
const MAX_WAIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A group of threads with shares of caches and memory bandwidth. It is removed when it is dropped.
///
/// ```
/// use datapipes_knobs::{MachineTree, ThreadGroup};
/// # let root = std::env::temp_dir().join(format!("group-of-threads-{}", std::process::id()));
/// # std::fs::create_dir_all(root.join("sys/fs/resctrl"))?;
/// # std::fs::write(root.join("sys/fs/resctrl/schemata"), "L3:0=7ff")?;
/// # let live = || MachineTree::under(&root);
/// # /*
/// let live = MachineTree::live;
/// # */
/// let group = ThreadGroup::make(&live(), &[("share.l3".to_owned(), "0=f".to_owned())])?;
/// // For a runtime: `RuntimeOptions::new(&machine).thread_share(group)`.
/// use datapipes_core::runtime::ThreadShare;
/// group.take_in_this_thread()?;
/// assert_eq!(group.summary(), "L3:0=f");
/// # drop(group);
/// # std::fs::remove_dir_all(root)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ThreadGroup {
    tree: MachineTree,
    group: SettingWrite,
    summary: String,
    /// Held while the group exists.
    lock: Option<FileLock>,
    owner: OwningProcess,
}

impl ThreadGroup {
    /// Makes a group with these shares: names and values of the knobs `share.*`.
    ///
    /// # Errors
    /// `InvalidInput` for another knob or a value that is not allowed. `Unavailable` where resctrl
    /// or the share is absent, with the reason. `Busy` while another program changes resctrl. What
    /// the kernel says, as to a group too many; nothing is left then.
    pub fn make(tree: &MachineTree, shares: &[(String, String)]) -> Result<Arc<ThreadGroup>> {
        if let Some((name, _)) = shares.iter().find(|(name, _)| !name.starts_with(SHARE)) {
            let error = Error::new(ErrorKind::InvalidInput, OPERATION, format!("`{name}` is no share of threads"));
            return Err(
                error.with_advice("name knobs that begin with share., as `dpipe knobs --only share` lists them")
            );
        }
        if shares.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, "no share is named"));
        }
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::os(OPERATION, e.raw_os_error(), "a random number"))?;
        let name = format!("{OF_THREADS}{:016x}", u64::from_le_bytes(bytes));
        // The threads are not known yet; the plan wants one.
        let plan = KnobPlan::new(tree, shares, &[std::process::id()], &name)?;
        let Some(SettingWrite::Group { folder, lines, .. }) = plan.writes.into_iter().next() else {
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, "no share is named"));
        };
        let _turn = lock_resctrl(tree)?;
        // One that cannot be removed is in the way only where no group is left.
        let _ = remove_stale(tree);
        let summary = lines.join(", ");
        let group = SettingWrite::Group { folder: folder.clone(), lines, threads: Vec::new() };
        let made = group.make(tree).and_then(|()| {
            let folder = File::open(tree.path(&folder))?;
            FileLock::take(folder).map_err(|refused| match refused {
                TryLockError::WouldBlock => io::Error::other("another program has locked it"),
                TryLockError::Error(e) => e,
            })
        });
        let made = made.map_err(|e| {
            let _ = group.take_back(tree);
            let error = Error::io(OPERATION, e, format!("/{folder}: {summary}"));
            error.with_advice("a processor has few groups; `dpipe knobs restore` removes those of dead processes")
        });
        let lock = Some(made?);
        Ok(Arc::new(ThreadGroup { tree: tree.clone(), group, summary, lock, owner: OwningProcess::here() }))
    }
}

impl ThreadGroup {
    /// How many bytes of the last-level caches hold what its threads brought there, as the
    /// processor estimates it.
    ///
    /// # Errors
    /// `Unavailable` where the processor or the kernel does not count it.
    pub fn occupancy_bytes(&self) -> Result<u64> {
        let monitors = format!("{}/mon_data", self.group.file());
        let absent = |why: String| Error::new(ErrorKind::Unavailable, "read", format!("/{monitors}: {why}"));
        let mut caches = self.tree.names(&monitors);
        caches.retain(|name| name.starts_with("mon_L3_"));
        if caches.is_empty() {
            return Err(absent("the processor does not count what is in its caches (cqm_llc)".into()));
        }
        let mut sum = 0u64;
        for cache in caches {
            let text = self.tree.text(&format!("{monitors}/{cache}/llc_occupancy"));
            let text = text.map_err(|e| absent(format!("{cache}: {e}")))?;
            let bytes: u64 = text.parse().map_err(|_| absent(format!("{cache}: `{text}` is no number")))?;
            sum = sum.saturating_add(bytes);
        }
        Ok(sum)
    }
}

impl ThreadShare for ThreadGroup {
    fn take_in_this_thread(&self) -> Result<()> {
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let tasks = format!("{}/tasks", self.group.file());
        let taken = self.tree.write_text(&tasks, &thread).and_then(|()| {
            let there = self.tree.text(&tasks)?;
            // In a namespace of processes, the kernel shows the numbers of that namespace, as
            // `gettid` does.
            if there.lines().any(|line| line.trim() == thread) {
                return Ok(());
            }
            Err(io::Error::other(format!("thread {thread} was written, and is not there")))
        });
        taken.map_err(|e| Error::io("take in a thread", e, format!("/{tasks}")))
    }

    fn summary(&self) -> String {
        self.summary.clone()
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // If the kernel refuses, the lock is free, and the next one removes it.
            let _ = self.group.take_back(&self.tree);
        }
        drop(self.lock.take());
    }
}

/// Removes the groups of threads of processes that died, and returns their folders.
///
/// # Errors
/// `Busy` while another program changes resctrl. The first refusal of the kernel, after all others
/// were tried.
pub fn remove_stale_groups(tree: &MachineTree) -> Result<Vec<String>> {
    if stale_candidates(tree).is_empty() {
        return Ok(Vec::new());
    }
    let _turn = lock_resctrl(tree)?;
    remove_stale(tree)
}

fn stale_candidates(tree: &MachineTree) -> Vec<String> {
    let mut names = tree.names(RESCTRL);
    names.retain(|name| name.strip_prefix(GROUP).is_some_and(|rest| rest.starts_with(OF_THREADS)));
    names.iter().map(|name| format!("{RESCTRL}/{name}")).collect()
}

/// The caller has the lock of resctrl, so no group is half made.
fn remove_stale(tree: &MachineTree) -> Result<Vec<String>> {
    let (mut removed, mut refused) = (Vec::new(), None);
    for folder in stale_candidates(tree) {
        // One that vanished meanwhile is gone, and a link is no group.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(open) = rustix::fs::open(tree.path(&folder), flags, Mode::empty()).map(File::from) else { continue };
        let Ok(lock) = FileLock::take(open) else { continue };
        match tree.remove_folder(&folder) {
            Ok(()) => removed.push(format!("/{folder}")),
            Err(e) => _ = refused.get_or_insert(Error::io("remove a group of threads", e, format!("/{folder}"))),
        }
        drop(lock);
    }
    refused.map_or(Ok(removed), Err)
}

/// Takes the lock by which programs that change resctrl keep out of each other's way (Linux,
/// Documentation/filesystems/resctrl.rst).
fn lock_resctrl(tree: &MachineTree) -> Result<FileLock> {
    let until = Instant::now() + MAX_WAIT;
    loop {
        let folder = File::open(tree.path(RESCTRL)).map_err(|e| Error::io(OPERATION, e, format!("/{RESCTRL}")))?;
        match FileLock::take(folder) {
            Ok(lock) => return Ok(lock),
            Err(TryLockError::Error(e)) => return Err(Error::io(OPERATION, e, format!("/{RESCTRL}: lock"))),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                let error = Error::new(ErrorKind::Busy, OPERATION, format!("another program has locked /{RESCTRL}"));
                return Err(error.with_advice("try again; it holds the lock while it changes groups"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_EVERY),
        }
    }
}
