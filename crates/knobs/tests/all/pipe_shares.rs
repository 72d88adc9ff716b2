//! Shares of single pipes, on a made tree: threads are in the group during a transfer, and come
//! back.
//!
//! A file `tasks` of a made tree holds the thread that was written last, so a test empties it and
//! looks whether it is written again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datapipes_core::runtime::{ConnectOptions, Runtime, RuntimeOptions, ThreadShare};
use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, Pipe, Result, Span, Ssd};
use datapipes_knobs::ThreadGroup;
use datapipes_testkit::bounded;

use crate::made_tree::Made;
use crate::probe;

const ALL: &str = "sys/fs/resctrl/tasks";
const SPAN: Span = Span { source: 0, target: 0, len: 64 };

/// A made tree with a group that has everything, and a machine's folder as text.
fn made() -> Arc<Made> {
    let made = Made::xeon();
    made.put(ALL, "");
    Arc::new(made)
}

fn share(made: &Made, value: &str) -> (Arc<ThreadGroup>, String) {
    let before = groups(made);
    let group = ThreadGroup::make(&made.tree(), &[("share.l3".to_owned(), value.to_owned())]).unwrap();
    let name = groups(made).into_iter().find(|name| !before.contains(name)).unwrap();
    (group, format!("sys/fs/resctrl/{name}/tasks"))
}

fn groups(made: &Made) -> Vec<String> {
    let entries = std::fs::read_dir(made.path("sys/fs/resctrl")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("datapipes-")).collect()
}

fn this_thread() -> String {
    rustix::thread::gettid().as_raw_nonzero().to_string()
}

fn connect(machine: &Machine, group: Arc<dyn ThreadShare>) -> Result<Pipe> {
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    machine.connect_with_share(&source, &target, &Constraints::default(), group)
}

#[test]
fn a_thread_is_in_the_group_during_a_transfer_and_back_after_it() {
    for is_queued in [false, true] {
        let made = made();
        let (group, tasks) = share(&made, "0=f;1=f");
        let (inside, seen) = (made.clone(), Arc::new(AtomicUsize::new(0)));
        let (within, count) = (tasks.clone(), seen.clone());
        let machine = probe::machine(is_queued, move || {
            assert_eq!(inside.text(&within), this_thread());
            inside.put(ALL, "");
            match count.fetch_add(1, Ordering::Relaxed) {
                0..3 => Ok(()),
                3 => Err(Error::new(ErrorKind::Device, "transfer", "the device is gone")),
                _ => panic!("a mover that panics"),
            }
        });
        let pipe = connect(&machine, group).unwrap();
        assert_eq!(pipe.route().transfer_share.as_deref(), Some("L3:0=f;1=f"));
        assert!(pipe.route().to_string().contains("threads during a transfer: L3:0=f;1=f"), "{}", pipe.route());
        let moves: [&dyn Fn() -> Result<()>; 5] = [
            &|| pipe.transfer(SPAN),
            &|| pipe.start(SPAN)?.wait(),
            &|| pipe.transfer_all(&[SPAN]).map(|_| ()),
            &|| pipe.transfer(SPAN),
            &|| catch_unwind(AssertUnwindSafe(|| pipe.transfer(SPAN))).unwrap_or(Ok(())),
        ];
        for (number, moving) in moves.into_iter().enumerate() {
            made.put(&tasks, "");
            assert_eq!(moving().is_err(), number == 3 || number == 4 && is_queued, "{number}");
            assert_eq!(made.text(ALL), this_thread(), "back after transfer {number}");
        }
        assert_eq!((seen.load(Ordering::Relaxed), pipe.report().share_troubles), (5, 0));
        drop((pipe, machine));
        assert_eq!(groups(&made), Vec::<String>::new(), "the group went with the pipe");
    }
}

#[test]
fn transfers_within_a_transfer_nest() {
    let made = made();
    let ((outer, outer_tasks), (inner, inner_tasks)) = (share(&made, "0=f"), share(&made, "0=f0"));
    let (tree, at_outer, at_inner) = (made.clone(), outer_tasks.clone(), inner_tasks);
    let innermost = probe::machine(false, move || {
        assert_eq!(tree.text(&at_inner), this_thread());
        tree.put(&at_outer, "");
        Ok(())
    });
    let (tree, at_outer) = (made.clone(), outer_tasks.clone());
    let same = probe::machine(false, move || {
        assert_eq!(tree.text(&at_outer), "", "a thread that is there is not written again");
        Ok(())
    });
    let (inner, same) = (connect(&innermost, inner).unwrap(), connect(&same, outer.clone()).unwrap());
    let (tree, at_outer) = (made.clone(), outer_tasks);
    let machine = probe::machine(false, move || {
        assert_eq!(tree.text(&at_outer), this_thread());
        inner.transfer(SPAN)?;
        assert_eq!(tree.text(&at_outer), this_thread(), "back in the outer group");
        tree.put(&at_outer, "");
        same.transfer(SPAN)?;
        tree.put(ALL, "");
        Ok(())
    });
    let pipe = connect(&machine, outer).unwrap();
    pipe.transfer(SPAN).unwrap();
    assert_eq!(made.text(ALL), this_thread());
}

#[test]
fn a_thread_comes_back_to_the_group_that_it_was_in() {
    let made = made();
    let (mine, counting) = ("sys/fs/resctrl/mine/tasks", "sys/fs/resctrl/mine/mon_groups/m1/tasks");
    made.put(mine, "");
    made.put(counting, "");
    made.put("proc/thread-self/cpu_resctrl_groups", "res:mine\nmon:m1\n");
    let (group, _) = share(&made, "0=f");
    let pipe = connect(&probe::machine(false, || Ok(())), group).unwrap();
    pipe.transfer(SPAN).unwrap();
    assert_eq!((made.text(mine), made.text(counting), made.text(ALL)), (this_thread(), this_thread(), String::new()));
    // One that was removed meanwhile is no place to come back to.
    std::fs::remove_dir_all(made.path("sys/fs/resctrl/mine")).unwrap();
    pipe.transfer(SPAN).unwrap();
    assert_eq!((made.text(ALL), pipe.report().share_troubles), (this_thread(), 0));
}

#[test]
fn a_share_that_a_thread_does_not_get_moves_nothing_and_one_that_it_keeps_is_told() {
    let made = made();
    let moved = Arc::new(AtomicUsize::new(0));
    let (tree, count) = (made.clone(), moved.clone());
    let machine = probe::machine(false, move || {
        count.fetch_add(1, Ordering::Relaxed);
        let _ = std::fs::remove_file(tree.path(ALL));
        Ok(())
    });
    let (group, tasks) = share(&made, "0=f");
    let pipe = connect(&machine, group.clone()).unwrap();
    // The bytes are moved, and the thread cannot go back.
    pipe.transfer(SPAN).unwrap();
    let report = pipe.report();
    assert_eq!((report.share_troubles, moved.load(Ordering::Relaxed)), (1, 1));
    assert!(report.to_string().contains("a thread keeps the share"), "{report}");
    std::fs::remove_file(made.path(&tasks)).unwrap();
    let e = pipe.transfer(SPAN).unwrap_err();
    assert!(e.kind() == ErrorKind::NotFound && e.to_string().contains(&tasks), "{e}");
    assert!(pipe.start(SPAN).is_err() && pipe.transfer_all(&[SPAN]).is_err());
    let mut batch = pipe.batch();
    batch.submit([(7, SPAN)]);
    assert!(batch.next().unwrap().unwrap().result.is_err());
    assert_eq!(moved.load(Ordering::Relaxed), 1, "nothing was moved without the share");
    assert!(connect(&machine, group).is_err(), "nor is a pipe connected");
}

/// Counts who is lent a share, and passes it on.
#[derive(Debug)]
struct Counted {
    group: Arc<ThreadGroup>,
    lent: AtomicUsize,
    back: AtomicUsize,
}

impl ThreadShare for Counted {
    fn take_in_this_thread(&self) -> Result<()> {
        self.group.take_in_this_thread()
    }
    fn summary(&self) -> String {
        self.group.summary()
    }
    fn lend_to_this_thread(&self) -> Result<()> {
        self.group.lend_to_this_thread()?;
        self.lent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn take_back_from_this_thread(&self) -> Result<()> {
        self.back.fetch_add(1, Ordering::Relaxed);
        self.group.take_back_from_this_thread()
    }
}

#[test]
fn many_pipes_and_threads_share_one_group() {
    bounded("many pipes and threads share one group", || {
        let made = made();
        let (group, _) = share(&made, "0=f");
        let counted = Arc::new(Counted { group, lent: AtomicUsize::new(0), back: AtomicUsize::new(0) });
        let machine = probe::machine(false, || Ok(()));
        let pipes: Vec<Pipe> = (0..8).map(|_| connect(&machine, counted.clone()).unwrap()).collect();
        assert_eq!(groups(&made).len(), 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pipes.iter().for_each(|pipe| pipe.transfer(SPAN).unwrap()));
            }
        });
        // Each pipe was tried once when it was connected.
        let (lent, back) = (counted.lent.load(Ordering::Relaxed), counted.back.load(Ordering::Relaxed));
        assert_eq!((lent, back), (8 + 32, 8 + 32));
        assert!(pipes.iter().all(|pipe| pipe.report().share_troubles == 0));
    });
}

#[test]
fn a_runtime_lends_the_share_of_a_pipe_to_the_thread_that_copies() {
    bounded("a runtime lends the share of a pipe to the thread that copies", || {
        let made = made();
        let ((of_all, home), (of_pipe, tasks)) = (share(&made, "0=f0"), share(&made, "0=f"));
        let (tree, at_home) = (made.clone(), home.clone());
        let caller = this_thread();
        let machine = probe::machine(false, move || {
            assert_eq!(tree.text(&tasks), this_thread());
            assert_ne!(this_thread(), caller, "callers copy nothing");
            tree.put(&at_home, "");
            Ok(())
        });
        let runtime = Runtime::start_with(&machine, RuntimeOptions::new(&machine).thread_share(of_all)).unwrap();
        let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
        let options = ConnectOptions::default().thread_share(of_pipe.clone());
        let pipe = runtime.connect_with(&source, &target, &options).unwrap();
        let route = pipe.route().to_string();
        assert!(route.contains("threads of the runtime: L3:0=f0"), "{route}");
        assert!(route.contains("threads during a transfer: L3:0=f\n"), "{route}");
        pipe.transfer(SPAN).unwrap().wait().unwrap();
        assert!(!made.text(&home).is_empty(), "back in the group of the runtime");
        assert_eq!(pipe.report().share_troubles, 0);
        // Where threads serve a device in common, no pipe has a share of its own.
        for machine in [probe::machine(true, || Ok(())), probe::engine()] {
            let queued = Runtime::start(&machine).unwrap();
            let e = queued.connect_with(&source, &target, &options).unwrap_err();
            assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("to the runtime"), "{e}");
        }
    });
}

#[test]
fn what_has_arrived_is_taken_without_the_share() {
    let made = made();
    let (group, _) = share(&made, "0=f");
    let counted = Arc::new(Counted { group, lent: AtomicUsize::new(0), back: AtomicUsize::new(0) });
    let pipe = connect(&probe::machine(true, || Ok(())), counted.clone()).unwrap();
    let mut batch = pipe.batch();
    let before = counted.lent.load(Ordering::Relaxed);
    batch.submit((0..8).map(|tag| (tag, Span { source: 64 * tag, target: 64 * tag, len: 64 })));
    while let Some(finished) = batch.next().unwrap() {
        finished.result.unwrap();
    }
    // Once to submit, and once to wait for all of them.
    let (lent, back) = (counted.lent.load(Ordering::Relaxed), counted.back.load(Ordering::Relaxed));
    assert_eq!((lent - before, lent), (2, back));
}

#[test]
fn a_part_of_the_cache_meets_the_demand_to_keep_bytes_out_of_the_rest_where_nothing_bypasses_it() {
    let made = made();
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let bypass = Constraints::default().bypass_processor_cache(true);
    let machine = probe::machine(false, || Ok(()));
    let refused = machine.connect_with(&source, &target, &bypass).unwrap_err();
    assert!(refused.to_string().contains("displaces the processor's caches"), "{refused}");
    let with = |machine: &Machine, group| machine.connect_with_share(&source, &target, &bypass, group);
    let pipe = with(&machine, share(&made, "0=f;1=f").0).unwrap();
    assert!(pipe.route().to_string().contains("stay in this part of the cache"), "{}", pipe.route());
    // All ways of a cache, or of a cache that is not named, are no part.
    for value in ["0=7ff;1=7ff", "0=f;1=7ff", "0=f"] {
        let e = with(&machine, share(&made, value).0).unwrap_err();
        assert!(
            e.kind() == ErrorKind::Unsupported && e.to_string().contains("does not confine every last-level cache"),
            "{value}: {e}"
        );
    }
    let bandwidth = [("share.memory_bandwidth".to_owned(), "0=50;1=50".to_owned())];
    let e = with(&machine, ThreadGroup::make(&made.tree(), &bandwidth).unwrap()).unwrap_err();
    assert!(e.to_string().contains("does not confine every last-level cache"), "{e}");
    // Pages of a file come by the disk, also where the thread that calls asks for them.
    let folder = datapipes_testkit::TempFolder::new().unwrap();
    let file = Ssd::unlinked_in(folder.at()).unwrap();
    file.preallocate(4096).unwrap();
    let (group, relaxed) = (share(&made, "0=f;1=f").0, Constraints::default());
    assert!(machine.connect_with_share(&file, &target, &relaxed, group.clone()).is_ok());
    let e = machine.connect_with_share(&file, &target, &bypass, group).unwrap_err();
    assert!(e.to_string().contains("does not confine probe"), "{e}");
    // A device's queue is served by whoever comes.
    let e = with(&probe::machine(true, || Ok(())), share(&made, "0=f;1=f").0).unwrap_err();
    assert!(e.to_string().contains("does not confine probe"), "{e}");
}

/// A share for the threads of a runtime alone, as programs had them before, and one that panics.
#[derive(Debug)]
struct Other(bool);

impl ThreadShare for Other {
    fn take_in_this_thread(&self) -> Result<()> {
        Ok(())
    }
    fn summary(&self) -> String {
        assert!(!self.0, "a share that panics");
        "of a test".to_owned()
    }
}

#[test]
fn a_share_of_somebody_else_may_refuse_pipes_and_may_panic() {
    let machine = probe::machine(false, || Ok(()));
    let e = connect(&machine, Arc::new(Other(false))).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("threads of a runtime"), "{e}");
    let e = connect(&machine, Arc::new(Other(true))).unwrap_err();
    assert!(e.kind() == ErrorKind::Panicked && e.to_string().contains("a share that panics"), "{e}");
}

#[test]
fn who_asks_an_engine_has_the_share_and_who_asks_a_queue_with_an_event_needs_none() {
    for (machine, lends) in [(probe::engine(), 1), (probe::machine(true, || Ok(())), 0)] {
        let made = made();
        let (group, _) = share(&made, "0=f");
        let counted = Arc::new(Counted { group, lent: AtomicUsize::new(0), back: AtomicUsize::new(0) });
        let pipe = connect(&machine, counted.clone()).unwrap();
        let transfer = pipe.start(SPAN).unwrap();
        let before = counted.lent.load(Ordering::Relaxed);
        assert!(transfer.is_done());
        let (lent, back) = (counted.lent.load(Ordering::Relaxed), counted.back.load(Ordering::Relaxed));
        assert_eq!((lent - before, lent), (lends, back));
        transfer.wait().unwrap();
    }
}
