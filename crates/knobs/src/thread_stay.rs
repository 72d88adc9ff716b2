//! Where a thread is among the groups of resctrl (Linux, Documentation/filesystems/resctrl.rst),
//! and what it comes back to after a stay in another one.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use crate::list::RESCTRL;
use crate::tree::{FileError, MachineTree};

/// What the kernel shows of a thread's groups, since Linux 5.6.
const GROUPS_OF_THIS_THREAD: &str = "proc/thread-self/cpu_resctrl_groups";

/// A control group, and perhaps a group in it that only counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadPlace {
    /// The folder of the control group.
    control: String,
    /// The folder of the monitoring group.
    monitor: Option<String>,
}

impl ThreadPlace {
    fn of_folder(control: &str) -> ThreadPlace {
        ThreadPlace { control: control.to_owned(), monitor: None }
    }

    /// Where this thread is, as the kernel shows it; `None` where it does not.
    fn of_this_thread(tree: &MachineTree) -> Option<ThreadPlace> {
        parse(&tree.text(GROUPS_OF_THIS_THREAD).ok()?)
    }

    /// Moves this thread there.
    fn enter(&self, tree: &MachineTree) -> Result<(), FileError> {
        let write = |folder: &str| {
            let tasks = format!("{folder}/tasks");
            tree.write_text(&tasks, &this_thread()).map_err(FileError::of(tasks))
        };
        write(&self.control)?;
        // The kernel takes a thread into a monitoring group only within its control group.
        match &self.monitor {
            Some(monitor) if tree.exists(monitor) => write(monitor),
            _ => Ok(()),
        }
    }
}

/// Reads `res:/` or `res:NAME`, and `mon:` or `mon:NAME`. A thread in no group of its own is in the
/// one that has everything.
fn parse(text: &str) -> Option<ThreadPlace> {
    let name_after = |key: &str| {
        let name = text.lines().find_map(|line| line.trim().strip_prefix(key))?.trim().trim_start_matches('/');
        // A name with a slash is not one of a group.
        (!name.contains('/')).then_some(name)
    };
    let control = match name_after("res:")? {
        "" => RESCTRL.to_owned(),
        name => format!("{RESCTRL}/{name}"),
    };
    let monitor = name_after("mon:").filter(|name| !name.is_empty());
    let monitor = monitor.map(|name| format!("{control}/mon_groups/{name}"));
    Some(ThreadPlace { control, monitor })
}

/// The number of this thread, as the kernel wants it. A child that was forked has another one.
pub(crate) fn this_thread() -> String {
    rustix::thread::gettid().as_raw_nonzero().to_string()
}

/// Whether the kernel shows this thread in a control group.
pub(crate) fn is_in(tree: &MachineTree, folder: &str) -> bool {
    ThreadPlace::of_this_thread(tree).is_some_and(|place| place.control == folder)
}

/// A stay of this thread in a group, for a transfer.
struct Stay {
    folder: Arc<str>,
    /// `None` where the thread was in the group already.
    before: Option<ThreadPlace>,
}

#[derive(Default)]
struct Stays {
    /// The group that took the thread in for good, if one of this process did.
    home: Option<Arc<str>>,
    /// Those that are not over, the innermost last.
    open: Vec<Stay>,
}

thread_local! {
    static STAYS: RefCell<Stays> = RefCell::default();
}

/// Calls `f` with the stays of this thread. They are gone where the thread is ending.
fn with_stays<R>(f: impl FnOnce(&mut Stays) -> Result<R, FileError>) -> Result<R, FileError> {
    let ending = |_| Err(FileError::of(RESCTRL)(io::Error::other("this thread is ending")));
    STAYS.try_with(|stays| f(&mut stays.borrow_mut())).unwrap_or_else(ending)
}

/// Notes that a group took this thread in for good.
pub(crate) fn settle(folder: &Arc<str>) {
    // A thread that is ending makes no stay any more.
    let _ = with_stays(|stays| {
        stays.home = Some(folder.clone());
        Ok(())
    });
}

/// Moves this thread into a group, unless it is there, until [`end`].
pub(crate) fn begin(tree: &MachineTree, folder: &Arc<str>) -> Result<(), FileError> {
    with_stays(|stays| {
        let now = match stays.open.last() {
            Some(stay) => ThreadPlace::of_folder(&stay.folder),
            // Somebody else may have moved it since the last stay, so the kernel is asked each
            // time.
            None => ThreadPlace::of_this_thread(tree).unwrap_or_else(|| {
                let home = stays.home.as_deref().filter(|home| tree.exists(home));
                ThreadPlace::of_folder(home.unwrap_or(RESCTRL))
            }),
        };
        let before = (*now.control != **folder).then_some(now);
        if before.is_some() {
            ThreadPlace::of_folder(folder).enter(tree)?;
        }
        stays.open.push(Stay { folder: folder.clone(), before });
        Ok(())
    })
}

/// Moves this thread back to where it was before its innermost stay.
pub(crate) fn end(tree: &MachineTree) -> Result<(), FileError> {
    // It is over in any case: the next stay begins at what the kernel shows.
    let stay = with_stays(|stays| Ok(stays.open.pop()))?;
    let Some(before) = stay.and_then(|stay| stay.before) else { return Ok(()) };
    match before.enter(tree) {
        // That group was removed meanwhile, and its threads went to the one that has everything.
        Err(_) if !tree.exists(&before.control) => ThreadPlace::of_folder(RESCTRL).enter(tree),
        entered => entered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_thread_are_read_as_the_kernel_shows_them() {
        let place = |control: &str, monitor: Option<&str>| {
            Some(ThreadPlace { control: control.to_owned(), monitor: monitor.map(str::to_owned) })
        };
        let default = place("sys/fs/resctrl", None);
        assert_eq!(parse("res:/\nmon:\n"), default);
        assert_eq!(parse("res:\nmon:\n"), default, "resctrl is not mounted");
        assert_eq!(parse("res:/\nmon:m0\n"), place("sys/fs/resctrl", Some("sys/fs/resctrl/mon_groups/m0")));
        assert_eq!(parse("res:g0\nmon:\n"), place("sys/fs/resctrl/g0", None));
        assert_eq!(parse("res:g0\nmon:m1\n"), place("sys/fs/resctrl/g0", Some("sys/fs/resctrl/g0/mon_groups/m1")));
        assert_eq!(parse("res:a/../../b\nmon:\n"), None);
        assert_eq!(parse(""), None);
    }
}
