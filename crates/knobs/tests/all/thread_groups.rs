//! Groups of threads for runtimes, on a made tree.

use std::process::{Command, Stdio};
use std::sync::Arc;

use datapipes_core::runtime::{Runtime, RuntimeOptions, ThreadShare};
use datapipes_core::topology::Topology;
use datapipes_core::{Dram, ErrorKind, Machine, Span};
use datapipes_knobs::{MachineTree, ThreadGroup, remove_stale_groups};
use datapipes_testkit::{bounded, until};

use crate::made_tree::Made;

fn share(value: &str) -> [(String, String); 1] {
    [("share.l3".to_owned(), value.to_owned())]
}

fn groups(made: &Made) -> Vec<String> {
    let entries = std::fs::read_dir(made.path("sys/fs/resctrl")).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("datapipes-"));
    names
}

#[test]
fn a_group_has_its_shares_and_goes_with_its_last_user() {
    let made = Made::xeon();
    let both = [share("0=f;1=f0").to_vec(), vec![("share.memory_bandwidth".to_owned(), "0=50;1=50".to_owned())]];
    let group = ThreadGroup::make(&made.tree(), &both.concat()).unwrap();
    let beside = ThreadGroup::make(&made.tree(), &share("0=1")).unwrap();
    assert_eq!(groups(&made).len(), 2);
    assert_eq!(group.summary(), "L3:0=f;1=f0, MB:0=50;1=50");
    group.take_in_this_thread().unwrap();
    drop(beside);
    let [name] = &groups(&made)[..] else { panic!("{:?}", groups(&made)) };
    let file = |file: &str| std::fs::read_to_string(made.path(&format!("sys/fs/resctrl/{name}/{file}"))).unwrap();
    assert_eq!(file("schemata"), "L3:0=f;1=f0\nMB:0=50;1=50\n");
    assert_eq!(file("tasks").trim(), rustix::thread::gettid().as_raw_nonzero().to_string());
    drop(group);
    assert_eq!(groups(&made), Vec::<String>::new());
}

#[test]
fn what_cannot_be_given_is_refused_with_the_reason_and_leaves_nothing() {
    let made = Made::xeon();
    let refused = |settings: &[(String, String)]| ThreadGroup::make(&made.tree(), settings).unwrap_err();
    assert_eq!(refused(&[]).kind(), ErrorKind::InvalidInput);
    assert_eq!(refused(&share("0=0")).kind(), ErrorKind::InvalidInput, "no way at all");
    assert_eq!(refused(&share("0=a")).kind(), ErrorKind::InvalidInput, "ways that are not neighbours");
    assert_eq!(refused(&share("7=f")).kind(), ErrorKind::InvalidInput, "no such cache");
    let other = [share("0=f").to_vec(), vec![("memory.thp".to_owned(), "always".to_owned())]].concat();
    let e = refused(&other);
    assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("`memory.thp` is no share"), "{e}");
    assert_eq!(groups(&made), Vec::<String>::new());
    // Without resctrl: the reason is that of the knob.
    std::fs::remove_dir_all(made.path("sys/fs/resctrl")).unwrap();
    let e = refused(&share("0=f"));
    assert!(e.kind() == ErrorKind::Unavailable && e.to_string().contains("mount -t resctrl"), "{e}");
    // A kernel that has no group left says so with an error at the folder.
    let made = Made::xeon();
    std::fs::remove_file(made.path("sys/fs/resctrl/schemata")).unwrap();
    let e = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}

#[test]
fn a_thread_that_is_not_taken_in_is_an_error() {
    let made = Made::xeon();
    let group = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
    let name = groups(&made).remove(0);
    std::fs::remove_file(made.path(&format!("sys/fs/resctrl/{name}/tasks"))).unwrap();
    let e = group.take_in_this_thread().unwrap_err();
    assert!(e.kind() == ErrorKind::NotFound && e.to_string().contains("/tasks"), "{e}");
}

#[test]
fn an_error_names_the_file_that_the_kernel_refused() {
    let made = Made::xeon();
    let group = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
    made.put("sys/fs/resctrl/tasks", "");
    group.lend_to_this_thread().unwrap();
    std::fs::remove_file(made.path("sys/fs/resctrl/tasks")).unwrap();
    let e = group.take_back_from_this_thread().unwrap_err().to_string();
    assert!(e.contains("/sys/fs/resctrl/tasks") && !e.contains("datapipes-threads-"), "{e}");
    // The group's own.
    let name = groups(&made).remove(0);
    std::fs::remove_file(made.path(&format!("sys/fs/resctrl/{name}/tasks"))).unwrap();
    let e = group.lend_to_this_thread().unwrap_err().to_string();
    assert!(e.contains(&format!("/sys/fs/resctrl/{name}/tasks")), "{e}");
}

#[test]
fn every_thread_of_a_runtime_is_taken_in_and_callers_copy_nothing() {
    bounded("every thread of a runtime is taken in and callers copy nothing", || {
        let made = Made::xeon();
        let group = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
        let taken = Arc::new(Recorded { group, threads: std::sync::Mutex::default() });
        let topology = Topology::discover();
        let cpu = datapipes_cpu::CpuBackend::new(&topology, datapipes_cpu::Calibration::assumed(&topology));
        let machine = Machine::new(topology, vec![Arc::new(cpu)]);
        let options = RuntimeOptions::new(&machine).thread_share(taken.clone());
        let runtime = Runtime::start_with(&machine, options).unwrap();
        let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
        source.lease_mut().unwrap().fill(7);
        let pipe = runtime.connect(&source, &target).unwrap();
        assert!(pipe.route().to_string().contains("threads of the runtime: L3:0=f"), "{}", pipe.route());
        pipe.transfer(Span { source: 0, target: 0, len: 4096 }).unwrap().wait().unwrap();
        assert_eq!(target.lease().unwrap()[4095], 7);
        assert_eq!(runtime.report().thread_share.as_deref(), Some("L3:0=f"));
        assert_eq!(runtime.report().threads_refused, 0, "{:?}", runtime.report().first_refusal);
        // A transfer may be done before a thread that it does not need has begun.
        for name in ["dp-coord", "dp-copy-0"] {
            until(name, || taken.threads.lock().unwrap().iter().any(|taken| taken == name));
        }
        drop((pipe, runtime, taken));
        assert_eq!(groups(&made), Vec::<String>::new(), "the group went with the runtime");
    });
}

/// Passes threads on to a group, and notes their names.
#[derive(Debug)]
struct Recorded {
    group: Arc<ThreadGroup>,
    threads: std::sync::Mutex<Vec<String>>,
}

impl ThreadShare for Recorded {
    fn take_in_this_thread(&self) -> datapipes_core::Result<()> {
        // One after the other: the file of a made tree holds what was written last.
        let mut threads = self.threads.lock().unwrap();
        threads.push(std::thread::current().name().unwrap_or("").to_owned());
        self.group.take_in_this_thread()
    }
    fn summary(&self) -> String {
        self.group.summary()
    }
}

/// A share that is refused, or that panics.
#[derive(Debug)]
struct Refusing(bool);

impl ThreadShare for Refusing {
    fn take_in_this_thread(&self) -> datapipes_core::Result<()> {
        assert!(!self.0, "a share that panics");
        Err(datapipes_core::Error::new(ErrorKind::Unavailable, "take in a thread", "there is no share left"))
    }
    fn summary(&self) -> String {
        String::new()
    }
}

#[test]
fn a_runtime_does_not_start_without_the_share_it_was_to_have() {
    let topology = Topology::discover();
    let machine = Machine::new(topology, Vec::new());
    for (panics, word) in [(false, "there is no share left"), (true, "a share that panics")] {
        let options = RuntimeOptions::new(&machine).thread_share(Arc::new(Refusing(panics)));
        let Err(e) = Runtime::start_with(&machine, options) else { panic!("it started") };
        assert!(e.to_string().contains(word), "{e}");
    }
}

const ROOT: &str = "DATAPIPES_ROOT_OF_GROUPS";

#[test]
fn a_group_of_a_process_that_was_killed_is_removed_and_one_that_lives_is_not() {
    bounded("a group of a process that was killed is removed", || {
        let made = Made::xeon();
        let ours = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["thread_groups::makes_a_group_and_waits", "--exact", "--ignored", "--nocapture"])
            .env(ROOT, made.root())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while groups(&made).len() < 2 {
            assert!(child.try_wait().unwrap().is_none(), "the child ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Its group is whole once the lock of resctrl is free.
        let held = std::fs::File::open(made.path("sys/fs/resctrl")).unwrap();
        held.lock().unwrap();
        drop(held);
        assert_eq!(remove_stale_groups(&made.tree()).unwrap(), Vec::<String>::new(), "both live");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(remove_stale_groups(&made.tree()).unwrap().len(), 1);
        assert_eq!(groups(&made).len(), 1);
        ours.take_in_this_thread().unwrap();
    });
}

#[test]
#[ignore = "run by a_group_of_a_process_that_was_killed_is_removed_and_one_that_lives_is_not"]
fn makes_a_group_and_waits() {
    let tree = MachineTree::under(std::env::var_os(ROOT).unwrap());
    let _group = ThreadGroup::make(&tree, &share("0=f")).unwrap();
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
fn a_locked_resctrl_is_busy() {
    let made = Made::xeon();
    let held = std::fs::File::open(made.path("sys/fs/resctrl")).unwrap();
    held.lock().unwrap();
    let e = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert_eq!(groups(&made), Vec::<String>::new());
}

#[test]
fn a_link_or_a_folder_of_others_in_the_place_of_a_group_is_left_alone() {
    let made = Made::xeon();
    made.put("elsewhere/tasks", "of somebody else");
    let link = made.path("sys/fs/resctrl/datapipes-threads-link");
    std::os::unix::fs::symlink(made.path("elsewhere"), &link).unwrap();
    assert_eq!(remove_stale_groups(&made.tree()).unwrap(), Vec::<String>::new());
    made.put("sys/fs/resctrl/datapipes-threads-full/more", "what no kernel puts there");
    let e = remove_stale_groups(&made.tree()).unwrap_err();
    assert!(e.to_string().contains("datapipes-threads-full"), "{e}");
    // Neither keeps a new group from being made.
    let group = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
    group.take_in_this_thread().unwrap();
    drop(group);
    assert_eq!(std::fs::read_to_string(made.path("elsewhere/tasks")).unwrap(), "of somebody else");
    // Nor does a journal that names a link remove what it points to.
    let journal = r#"{"version":2,"id":"1","is_settled":false,"writes":[
        {"kind":"group","folder":"sys/fs/resctrl/datapipes-threads-link","lines":[],"threads":[]}]}"#;
    made.put_journal(journal);
    assert!(datapipes_knobs::restore_left_over(&made.tree(), &mut |_| {}).is_err());
    assert_eq!(std::fs::read_to_string(made.path("elsewhere/tasks")).unwrap(), "of somebody else");
}

#[test]
fn the_occupancy_is_that_of_all_caches_and_an_absent_one_is_named() {
    let made = Made::xeon();
    let group = ThreadGroup::make(&made.tree(), &share("0=f")).unwrap();
    let e = group.occupancy_bytes().unwrap_err();
    assert!(e.kind() == ErrorKind::Unavailable && e.to_string().contains("does not count"), "{e}");
    let folder = format!("sys/fs/resctrl/{}/mon_data", groups(&made)[0]);
    made.put(&format!("{folder}/mon_L3_00/llc_occupancy"), "65536\n");
    made.put(&format!("{folder}/mon_L3_01/llc_occupancy"), "4096\n");
    assert_eq!(group.occupancy_bytes().unwrap(), 65536 + 4096);
    made.put(&format!("{folder}/mon_L3_01/llc_occupancy"), "Unavailable\n");
    assert!(group.occupancy_bytes().unwrap_err().to_string().contains("mon_L3_01"));
    std::fs::remove_dir_all(made.path(&folder)).unwrap();
}
