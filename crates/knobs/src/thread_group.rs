//! A group of threads with shares of caches and memory bandwidth: those of a runtime as long as it
//! lives, those that carry out a pipe's transfers meanwhile.
//!
//! ```text
//! make     -> the lock of resctrl -> groups of dead processes are removed -> the folder, its lock, its shares
//! take in  -> a thread writes its number into `tasks`, and finds it there
//! lend     -> the same; take back -> into `tasks` of the group that it was in before
//! drop     -> the folder is removed; what is left of its threads gets everything again
//! a crash  -> the kernel frees the lock, and the next group or `dpipe knobs restore` removes the folder
//! ```
//! No journal is needed, as for a transaction: removing the folder restores everything, and the
//! lock of the folder says whether its process lives. (A number of a process in its name would be
//! taken for another one in a container.) So groups of several runtimes exist side by side.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::file_lock::FileLock;
use datapipes_core::process::OwningProcess;
use datapipes_core::runtime::ThreadShare;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags};

use crate::knob::hexadecimal;
use crate::list::RESCTRL;
use crate::plan::KnobPlan;
use crate::thread_stay::{self, this_thread};
use crate::tree::{FileError, MachineTree};
use crate::write::{GROUP, SettingWrite, reason_of_kernel};

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
/// A processor has few groups (16, say), and one serves any number of runtimes and pipes: give them
/// clones of the [`Arc`].
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
/// // For a runtime: `RuntimeOptions::new(&machine).thread_share(group)`; for a pipe:
/// // `machine.connect_with_share(&source, &target, &constraints, group)`.
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
    /// The folder of the group.
    folder: Arc<str>,
    summary: String,
    confines_cache: bool,
    /// Whether a thread that was lent the share was found in the group.
    is_verified: AtomicBool,
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
        let confines_cache = confines(tree, &lines);
        let group = SettingWrite::Group { folder: folder.clone(), lines, threads: Vec::new() };
        let locked = || {
            let folder = File::open(tree.path(&folder))?;
            FileLock::take(folder).map_err(|refused| match refused {
                TryLockError::WouldBlock => io::Error::other("another program has locked it"),
                TryLockError::Error(e) => e,
            })
        };
        let made = group.make(tree).and_then(|()| locked().map_err(FileError::of(&*folder)));
        let made = made.map_err(|FileError { file, error }| {
            // The reason is read before the next command to resctrl.
            let error = not_made(error, &format!("/{file}: {summary}{}", reason_of_kernel(tree)));
            let _ = group.take_back(tree);
            error
        });
        let lock = Some(made?);
        Ok(Arc::new(ThreadGroup {
            tree: tree.clone(),
            group,
            folder: folder.into(),
            summary,
            confines_cache,
            is_verified: AtomicBool::new(false),
            lock,
            owner: OwningProcess::here(),
        }))
    }
}

impl ThreadGroup {
    /// Finds this thread among those of the group.
    fn find_this_thread(&self) -> io::Result<()> {
        let thread = this_thread();
        // In a namespace of processes, the kernel shows the numbers of that namespace, as `gettid`
        // does; before Linux 6.5 it shows those of the machine, and only what it shows of the
        // thread itself is right.
        let is_listed = self.tree.text(&format!("{}/tasks", self.folder))?.lines().any(|line| line.trim() == thread);
        if is_listed || thread_stay::is_in(&self.tree, &self.folder) {
            return Ok(());
        }
        Err(io::Error::other(format!("thread {thread} was written, and is not there")))
    }

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
        let tasks = format!("{}/tasks", self.folder);
        let taken = self.tree.write_text(&tasks, &this_thread()).and_then(|()| self.find_this_thread());
        taken.map_err(|e| Error::io("take in a thread", e, format!("/{tasks}")))?;
        thread_stay::settle(&self.folder);
        Ok(())
    }

    fn lend_to_this_thread(&self) -> Result<()> {
        let failed = |FileError { file, error }| Error::io("take in a thread", error, format!("/{file}"));
        thread_stay::begin(&self.tree, &self.folder).map_err(failed)?;
        // That the kernel took the number is enough after the first time: looking costs as much.
        if !self.is_verified.load(Ordering::Relaxed) {
            if let Err(e) = self.find_this_thread() {
                // The first error is told.
                let _ = thread_stay::end(&self.tree);
                return Err(failed(FileError::of(format!("{}/tasks", self.folder))(e)));
            }
            self.is_verified.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take_back_from_this_thread(&self) -> Result<()> {
        let failed = |FileError { file, error }| Error::io("let a thread go", error, format!("/{file}"));
        thread_stay::end(&self.tree).map_err(failed)
    }

    fn confines_cache(&self) -> bool {
        self.confines_cache
    }

    fn summary(&self) -> String {
        self.summary.clone()
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // Without the lock of resctrl, too: the group is of nobody else. If the kernel refuses,
            // the lock of the group is free, and the next one removes it.
            let _turn = lock_resctrl(&self.tree).ok();
            let _ = self.group.take_back(&self.tree);
        }
        drop(self.lock.take());
    }
}

fn not_made(error: io::Error, context: &str) -> Error {
    let is_full = error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error());
    let error = Error::io(OPERATION, error, context);
    if !is_full {
        return error;
    }
    error.with_advice("a processor has few groups; `dpipe knobs restore` removes those of dead processes")
}

/// Whether lines of a group's schemata leave ways of every last-level cache to others.
fn confines(tree: &MachineTree, lines: &[String]) -> bool {
    let whole = tree.text(&format!("{RESCTRL}/schemata")).unwrap_or_default();
    let masks_of = |line: &str| -> Vec<(String, u64)> {
        let parts = line.split(';').filter_map(|part| part.trim().split_once('='));
        parts.filter_map(|(domain, mask)| Some((domain.trim().to_owned(), hexadecimal(mask.trim())?))).collect()
    };
    // What threads bring there is data, where code has ways of its own (CDP).
    ["L3", "L3DATA"].iter().any(|resource| {
        let of = |text: &str| text.trim().strip_prefix(resource)?.strip_prefix(':').map(masks_of);
        let (Some(all), Some(ours)) = (whole.lines().find_map(of), lines.iter().find_map(|line| of(line))) else {
            return false;
        };
        let all_ways = tree.text(&format!("{RESCTRL}/info/{resource}/cbm_mask")).ok();
        let all_ways = all_ways.and_then(|mask| hexadecimal(&mask));
        let all_ways = all_ways.unwrap_or_else(|| all.iter().fold(0, |ways, (_, mask)| ways | mask));
        // A cache that the group does not name gives its threads all ways.
        all.iter().all(|(domain, _)| ours.iter().any(|(named, mask)| named == domain && mask & all_ways != all_ways))
    })
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
pub(crate) fn lock_resctrl(tree: &MachineTree) -> Result<FileLock> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_with_resctrl() -> (datapipes_testkit::TempFolder, MachineTree) {
        let root = datapipes_testkit::TempFolder::new().unwrap();
        std::fs::create_dir_all(root.path("sys/fs/resctrl/info")).unwrap();
        std::fs::create_dir_all(root.path("proc/thread-self")).unwrap();
        std::fs::write(root.path("sys/fs/resctrl/schemata"), "L3:0=7ff").unwrap();
        let tree = MachineTree::under(root.at());
        (root, tree)
    }

    #[test]
    fn the_kernels_reason_is_told_and_groups_are_called_few_only_where_they_are() {
        let (root, tree) = tree_with_resctrl();
        assert_eq!(reason_of_kernel(&tree), "");
        std::fs::write(root.path("sys/fs/resctrl/info/last_cmd_status"), "ok\n").unwrap();
        assert_eq!(reason_of_kernel(&tree), "");
        let said = "Mask out of range\n";
        std::fs::write(root.path("sys/fs/resctrl/info/last_cmd_status"), said).unwrap();
        assert_eq!(reason_of_kernel(&tree), " (the kernel says: Mask out of range)");
        let of = |errno: rustix::io::Errno| not_made(io::Error::from_raw_os_error(errno.raw_os_error()), "/g");
        assert!(of(rustix::io::Errno::NOSPC).to_string().contains("few groups"));
        assert!(!of(rustix::io::Errno::INVAL).to_string().contains("few groups"));
    }

    #[test]
    fn a_thread_is_found_by_what_the_kernel_shows_of_it_where_numbers_are_of_another_namespace() {
        let (root, tree) = tree_with_resctrl();
        let group = ThreadGroup::make(&tree, &[("share.l3".to_owned(), "0=f".to_owned())]).unwrap();
        // Nothing is written to `tasks`, as where it shows numbers of another namespace.
        assert!(group.find_this_thread().is_err());
        let groups = root.path("proc/thread-self/cpu_resctrl_groups");
        std::fs::write(&groups, "res:/\nmon:\n").unwrap();
        assert!(group.find_this_thread().is_err());
        let name = group.folder.rsplit('/').next().unwrap();
        std::fs::write(&groups, format!("res:{name}\nmon:\n")).unwrap();
        group.find_this_thread().unwrap();
    }
}
