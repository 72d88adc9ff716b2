//! Trees and journals that are not what they should be.

use std::os::unix::fs::PermissionsExt;

use datapipes_core::ErrorKind;
use datapipes_knobs::{KnobPlan, KnobTransaction, MachineTree, list, restore_left_over};
use datapipes_testkit::bounded;

use crate::made_tree::{JOURNAL, Made, XEON};
use crate::transactions::settings;

const AHEAD: &str = "sys/block/nvme0n1/queue/read_ahead_kb";

fn make_pipe(made: &Made, name: &str) {
    let path = made.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = std::fs::remove_file(&path);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn named_pipes_are_not_waited_for() {
    for name in [AHEAD, "proc/cpuinfo", "proc/meminfo", "sys/fs/resctrl/schemata", "dev/cpu/1/msr"] {
        let made = Made::xeon();
        make_pipe(&made, name);
        let tree = made.tree();
        assert!(bounded("a list", move || list(&tree)).len() > 10);
    }
    // One that takes the place of a setting or of the journal while it is set.
    for name in [AHEAD, JOURNAL, "dev/cpu/1/msr"] {
        let made = Made::xeon();
        let tree = made.tree();
        let all = settings(&[("memory.thp", "never"), ("ddio.ways", "0x7"), ("block.nvme0n1.read_ahead_kb", "64")]);
        let set = KnobTransaction::begin(&tree, &all, &[], None, &mut |_| {}).unwrap();
        make_pipe(&made, name);
        let error = bounded("a pipe", move || set.restore(&mut |_| {}).unwrap_err());
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(made.text("sys/kernel/mm/transparent_hugepage/enabled"), "always [madvise] never");
        assert_eq!(made.register("dev/cpu/0/msr", 0xc8b), 0x600);
    }
}

#[test]
fn a_journal_is_a_regular_file_in_a_folder_of_its_owner() {
    let made = Made::xeon();
    let one = settings(&[("block.nvme0n1.read_ahead_kb", "64")]);
    let refused = |kind: ErrorKind, words: &str| {
        let (tree, one) = (made.tree(), one.clone());
        let error = bounded("a journal", move || {
            let error = restore_left_over(&tree, &mut |_| {}).unwrap_err();
            assert!(KnobTransaction::begin(&tree, &one, &[], None, &mut |_| {}).is_err());
            error
        });
        assert!(error.kind() == kind && error.to_string().contains(words), "{words}: {error:?}: {error}");
        assert_eq!(made.text(AHEAD), "128");
    };
    make_pipe(&made, JOURNAL);
    let folder = made.path("run/datapipes");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    refused(ErrorKind::Corrupt, "no regular file");
    std::fs::remove_file(made.path(JOURNAL)).unwrap();
    std::fs::create_dir(made.path(JOURNAL)).unwrap();
    refused(ErrorKind::Corrupt, "rmdir");
    std::fs::remove_dir(made.path(JOURNAL)).unwrap();
    std::os::unix::fs::symlink("elsewhere", made.path(JOURNAL)).unwrap();
    refused(ErrorKind::Corrupt, "link");
    std::fs::remove_file(made.path(JOURNAL)).unwrap();
    // Others could have anything restored.
    for mode in [0o777, 0o770, 0o1777] {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        refused(ErrorKind::PermissionDenied, "chmod go-w");
    }
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&folder, Some(12345), None).unwrap();
        refused(ErrorKind::PermissionDenied, "user 12345");
        std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    }
    assert!(KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).is_ok());
    std::fs::remove_dir(&folder).unwrap();
    std::os::unix::fs::symlink(made.path("sys"), &folder).unwrap();
    assert!(restore_left_over(&made.tree(), &mut |_| {}).is_err(), "a link in place of the folder");
}

#[test]
fn a_journal_names_settings_only() {
    let made = Made::xeon();
    made.put("etc/passwd", "root");
    made.put("sys/fs/resctrl/other/tasks", "");
    made.put("etc/datapipes-1/tasks", "");
    let before = made.snapshot();
    let text = |file: &str| format!(r#""kind": "text", "knob": "k", "file": "{file}", "old": "x", "new": "root""#);
    let bits = |width: u32| {
        format!(
            r#""kind": "bits", "knob": "k", "file": "dev/cpu/0/msr", "at": 6, "width": {width}, "mask": 1, "old": 0, "new": 1"#
        )
    };
    let group = |folder: &str| format!(r#""kind": "group", "folder": "{folder}", "lines": [], "threads": []"#);
    let outside = made.path("etc/passwd").display().to_string();
    for write in [
        text("etc/passwd"),
        text("sys/../etc/passwd"),
        text("./etc/passwd"),
        text(&outside),
        text("proc/1/oom_score_adj"),
        text(""),
        bits(0),
        bits(9),
        group("sys/fs/resctrl/other"),
        group("etc/datapipes-1"),
        group("sys/fs/resctrl/datapipes-1/../other"),
        group("sys/fs/resctrl/datapipes-1/mon_groups"),
        group("/sys/fs/resctrl/datapipes-1"),
    ] {
        made.put_journal(&format!(r#"{{"version": 2, "id": "x", "is_settled": false, "writes": [{{{write}}}]}}"#));
        let error = restore_left_over(&made.tree(), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{write}: {error}");
        assert_eq!(made.snapshot(), before, "{write}");
    }
    // What a transaction writes is taken.
    let write = text(AHEAD).replace(r#""x""#, r#""12""#);
    made.put_journal(&format!(r#"{{"version": 2, "id": "x", "is_settled": false, "writes": [{{{write}}}]}}"#));
    assert_eq!(restore_left_over(&made.tree(), &mut |_| {}).unwrap().unwrap().restored, ["k"]);
    assert_eq!(made.text(AHEAD), "12");
}

#[test]
fn a_text_of_any_length_is_read_whole_or_is_an_error() {
    let made = Made::xeon();
    // As of 80 cores; 2 KiB each.
    let cores = 80;
    let mut cpus = String::new();
    for core in 0..cores {
        cpus += &format!("processor\t: {core}\n{XEON}{}\nflags\t\t: {}\n\n", core / 40, "flag ".repeat(400));
        let name = format!("dev/cpu/{core}/msr");
        made.put(&name, "");
        for at in [0xc8b, 0x1a4, 0x1fa] {
            made.set_register(&name, at, 0);
        }
    }
    assert!(cpus.len() > 128 << 10);
    made.put("proc/cpuinfo", &cpus);
    let one = settings(&[("prefetch.l2_stream", "off")]);
    let set = KnobTransaction::begin(&made.tree(), &one, &[], None, &mut |_| {}).unwrap();
    for core in 0..cores {
        assert_eq!(made.register(&format!("dev/cpu/{core}/msr"), 0x1a4), 1, "core {core}");
    }
    drop(set);
    made.put("sys/kernel/mm/transparent_hugepage/defrag", "");
    let long = std::fs::File::create(made.path("sys/kernel/mm/transparent_hugepage/defrag")).unwrap();
    long.set_len((16 << 20) + 1).unwrap();
    assert!(made.knob("memory.thp_defrag").absent.unwrap().contains("longer than 16 MiB"));
}

#[test]
fn what_could_not_be_restored_is_not_changed() {
    let made = Made::xeon();
    for (name, file, old, new) in [
        ("block.nvme0n1.read_ahead_kb", AHEAD, "99999999999", "64"),
        ("block.nvme0n1.nr_requests", "sys/block/nvme0n1/queue/nr_requests", "-1", "64"),
        ("block.nvme0n1.max_sectors_kb", "sys/block/nvme0n1/queue/max_sectors_kb", "", "64"),
    ] {
        made.put(file, old);
        let error = KnobPlan::new(&made.tree(), &settings(&[(name, new)]), &[], "x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("could not be restored"), "{error}");
    }
}

#[test]
fn huge_pages_of_all_sizes_share_the_memory_that_is_left() {
    let made = Made::xeon();
    // 8 GB are available; 6 may be taken.
    made.put("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0");
    made.put("sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages", "0");
    let plan = |all: &[(&str, &str)]| KnobPlan::new(&made.tree(), &settings(all), &[], "x");
    assert!(plan(&[("memory.hugepages_1G", "5")]).is_ok());
    assert!(plan(&[("memory.hugepages_2M", "2800")]).is_ok());
    assert!(plan(&[("memory.hugepages_64K", "80000")]).is_ok());
    let error = plan(&[("memory.hugepages_1G", "5"), ("memory.hugepages_2M", "2800")]).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("together"), "{error}");
    // What another size gives back is not counted: the kernel may keep it.
    made.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3000");
    assert!(plan(&[("memory.hugepages_1G", "5"), ("memory.hugepages_2M", "0")]).is_ok());
}

#[test]
fn the_root_stays_the_same_folder() {
    let made = Made::xeon();
    std::os::unix::fs::symlink(made.root(), made.path("link")).unwrap();
    let whole = std::fs::canonicalize(made.root()).unwrap();
    for path in [made.path("link"), made.path("sys/.."), made.path("sys/block/../../link/proc/..")] {
        assert_eq!(MachineTree::under(path).root(), whole);
    }
    assert_eq!(MachineTree::under(made.path("sys").join("../../../../../../../../../../..")), MachineTree::live());
    assert!(MachineTree::under("no-such-folder").root().is_absolute());
}

#[test]
fn devices_with_strange_names_are_left_out() {
    let made = Made::xeon();
    for name in ["sd\u{1b}[31m", "sd\na", "sd\u{9b}x"] {
        made.put(&format!("sys/block/{name}/size"), "9");
        made.put(&format!("sys/block/{name}/queue/read_ahead_kb"), "128");
    }
    made.put("sys/block/sdä/size", "9");
    made.put("sys/block/sdä/queue/read_ahead_kb", "128");
    let knobs = list(&made.tree());
    assert!(
        knobs.iter().all(|knob| !knob.name.contains(char::is_control) && !knob.lives_at.contains(char::is_control))
    );
    assert!(knobs.iter().any(|knob| knob.name == "block.sdä.read_ahead_kb"));
}
