//! Counters of this machine, as far as it has them, and of made trees.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use datapipes_counters::{CounterReading, CounterScope, CounterSet, difference};
use datapipes_metrics::{Sample, prometheus, vocabulary};
use datapipes_testkit::TempFolder;

fn of<'a>(all: &'a [CounterReading], name: &str) -> &'a CounterReading {
    all.iter().find(|reading| reading.name == name).unwrap()
}

fn text(readings: &[CounterReading]) -> String {
    let samples: Vec<Sample> = readings.iter().map(CounterReading::sample).collect();
    prometheus(&samples)
}

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Puts a unit there with an event that counts bytes: its name, its code, and its part of a MiB.
fn put_unit(root: &Path, unit: &str, (event, code, scale): (&str, &str, &str)) {
    for (file, text) in [
        // No kernel has as many kinds.
        ("type".to_owned(), "4294967295"),
        ("cpumask".to_owned(), "0"),
        ("format/event".to_owned(), "config:0-7"),
        ("format/umask".to_owned(), "config:8-15"),
        (format!("events/{event}"), code),
        (format!("events/{event}.scale"), scale),
        (format!("events/{event}.unit"), "MiB"),
    ] {
        put(root, &format!("sys/bus/event_source/devices/{unit}/{file}"), text);
    }
}

#[test]
fn every_counter_has_a_value_or_a_reason() {
    let counters = CounterSet::open();
    for reading in counters.read() {
        assert!(reading.value.is_some() != reading.absent.is_some(), "{reading:?}");
        assert!(!reading.source.is_empty() && !reading.what.is_empty());
    }
}

#[test]
fn what_a_thread_and_its_threads_do_is_counted() {
    const PAGES: usize = 4096;
    let counters = CounterSet::open();
    let before = counters.read();
    if let Some(why) = &of(&before, "page_faults").absent {
        return println!("SKIPPED: what_a_thread_and_its_threads_do_is_counted: {why}");
    }
    let touch = || {
        let mut pages = vec![0u8; PAGES * 4096];
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        // Each call of it is one of the kernel.
        (0..1000).for_each(|_| _ = std::hint::black_box(rustix::process::getppid()));
        std::hint::black_box(pages);
    };
    std::thread::spawn(touch).join().unwrap();
    let counted = difference(&before, &counters.read());
    // Pages may be huge ones, and memory used again.
    assert!(of(&counted, "page_faults").value.unwrap() > 0);
    assert!(of(&counted, "cpu_time").value.unwrap() > 0);
    if let Some(calls) = of(&counted, "system_calls").value {
        assert!((1000..100_000).contains(&calls), "{calls}");
    }
    let nothing = difference(&before, &before);
    assert!(nothing.iter().filter(|reading| !reading.is_gauge).all(|reading| reading.value.unwrap_or(0) == 0));
}

#[test]
fn files_of_a_made_tree_are_summed() {
    let folder = TempFolder::new().unwrap();
    let root = folder.at();
    for (cache, bytes) in [("00", 100), ("01", 20)] {
        put(root, &format!("sys/fs/resctrl/mon_data/mon_L3_{cache}/llc_occupancy"), &format!("{bytes}\n"));
        put(root, &format!("sys/fs/resctrl/mon_data/mon_L3_{cache}/mbm_total_bytes"), &format!("{bytes}000\n"));
    }
    put(root, "sys/devices/system/node/node0/numastat", "numa_hit 9\nnuma_miss 3\nother_node 5\n");
    put(root, "sys/devices/system/node/node12/numastat", "numa_hit 9\nnuma_miss 4\nother_node 6\n");
    put(root, "sys/devices/system/node/possible", "0-12");
    put(root, "sys/block/sda/stat", "1 0 10 0 2 0 40 0 0 0 0");
    // What it passes on is counted below it.
    put(root, "sys/block/dm-0/stat", "1 0 10 0 2 0 40 0 0 0 0");
    put(root, "sys/block/dm-0/slaves/sda/x", "");
    let counters = CounterSet::open_under(root);
    put(root, "sys/block/sda/stat", "1 0 30 0 2 0 41 0 0 0 0");
    put(root, "sys/devices/system/node/node0/numastat", "numa_hit 9\nnuma_miss 13\nother_node 5\n");
    put(root, "sys/fs/resctrl/mon_data/mon_L3_01/mbm_total_bytes", "21000\n");
    let all = counters.read();
    let value = |name: &str| of(&all, name).value;
    assert_eq!(value("llc_occupancy"), Some(120), "of this moment");
    assert_eq!(value("memory_bandwidth"), Some(1000), "since it was opened");
    assert_eq!((value("disk_read"), value("disk_written")), (Some(20 * 512), Some(512)));
    assert_eq!((value("numa_misses"), value("numa_remote")), (Some(10), Some(0)));
    assert!(of(&all, "memory_bandwidth_local").absent.as_ref().unwrap().contains("mbm_local_bytes"));
    assert_eq!(of(&all, "disk_read").scope, CounterScope::Machine);
    // A node that says nothing is named.
    put(root, "sys/devices/system/node/node3/numastat", "numa_hit 9\n");
    assert!(of(&counters.read(), "numa_misses").absent.as_ref().unwrap().contains("node3/numastat has no `numa_miss`"));
    // A value that is lost meanwhile is no zero.
    put(root, "sys/fs/resctrl/mon_data/mon_L3_01/llc_occupancy", "Unavailable");
    assert!(of(&counters.read(), "llc_occupancy").absent.is_some());
}

#[test]
fn all_groups_of_threads_are_counted_and_one_that_goes_is_no_zero() {
    let folder = TempFolder::new().unwrap();
    let root = folder.at();
    let group = |name: &str, occupancy: u64, bandwidth: u64| {
        let cache = format!("sys/fs/resctrl/{name}mon_data/mon_L3_00");
        put(root, &format!("{cache}/llc_occupancy"), &format!("{occupancy}\n"));
        put(root, &format!("{cache}/mbm_total_bytes"), &format!("{bandwidth}\n"));
    };
    group("", 100, 1000);
    group("mine/", 20, 500);
    // What a group of monitors counts is in the group that it belongs to.
    group("mon_groups/m1/", 7, 70);
    group("mine/mon_groups/m2/", 3, 30);
    put(root, "sys/fs/resctrl/info/L3_MON/num_rmids", "32\n");
    let counters = CounterSet::open_under(root);
    group("mine/", 25, 900);
    // One that comes meanwhile counts from zero.
    group("new/", 1, 60);
    let value = |name: &str| of(&counters.read(), name).value;
    assert_eq!((value("llc_occupancy"), value("memory_bandwidth")), (Some(126), Some(460)));
    // More of one does not hide that another one is gone, or began anew.
    group("", 100, 9000);
    group("mine/", 25, 400);
    let why = |name: &str| of(&counters.read(), name).absent.clone().unwrap();
    assert!(why("memory_bandwidth").contains("mine/mon_data/mon_L3_00/mbm_total_bytes counts less"));
    std::fs::remove_dir_all(root.join("sys/fs/resctrl/mine")).unwrap();
    assert!(why("memory_bandwidth").contains("mine/mon_data/mon_L3_00/mbm_total_bytes is gone"));
    assert_eq!(value("llc_occupancy"), Some(101));
}

#[test]
fn what_is_absent_is_named_with_its_reason() {
    let folder = TempFolder::new().unwrap();
    let counters = CounterSet::open_under(folder.at());
    let all = counters.read();
    for (name, reason) in [
        ("llc_occupancy", "no resctrl"),
        ("numa_misses", "no node"),
        ("disk_read", "no block device"),
        ("memory_read", "no uncore_imc"),
        ("pcie_bytes", "no uncore_iio"),
        ("system_calls", "tracefs"),
    ] {
        let reading = of(&all, name);
        assert!(reading.value.is_none() && reading.absent.as_ref().unwrap().contains(reason), "{reading:?}");
    }
    let text = text(&all);
    assert!(text.contains("# datapipes_disk_read_bytes_total{scope=\"machine\"} is absent: no block device"), "{text}");
    assert!(!text.contains("\ndatapipes_disk_read_bytes_total{"));
    // Units without named events.
    put(folder.at(), "sys/bus/event_source/devices/uncore_iio_0/type", "40");
    put(folder.at(), "sys/bus/event_source/devices/uncore_imc_0/type", "41");
    let all = CounterSet::open_under(folder.at()).read();
    assert!(of(&all, "pcie_bytes").absent.as_ref().unwrap().contains("1 units"));
    assert!(of(&all, "memory_read").absent.as_ref().unwrap().contains("names no such event"));
}

#[test]
fn an_event_of_a_memory_controller_is_asked_of_the_kernel() {
    let folder = TempFolder::new().unwrap();
    put_unit(folder.at(), "uncore_imc_0", ("cas_count_read", "event=0x04,umask=0x03", "6.103515625e-5"));
    // One that has no such event counts other things.
    put(folder.at(), "sys/bus/event_source/devices/uncore_imc_free_running_0/type", "77");
    let all = CounterSet::open_under(folder.at()).read();
    let reading = of(&all, "memory_read");
    assert!(reading.source.ends_with("uncore_imc_0/events/cas_count_read"), "{reading:?}");
    assert!(
        reading.absent.as_ref().unwrap().contains("not count it")
            || reading.absent.as_ref().unwrap().contains("permitted")
    );
    // A sum without one of two controllers would be too small.
    put_unit(folder.at(), "uncore_imc_1", ("cas_count_read", "event=0x04,umask=0x03", "nan"));
    let all = CounterSet::open_under(folder.at()).read();
    let reading = of(&all, "memory_read");
    assert!(reading.absent.as_ref().unwrap().contains("uncore_imc_1/events/cas_count_read is not understood"));
}

#[test]
fn events_of_ports_are_asked_of_the_kernel() {
    let folder = TempFolder::new().unwrap();
    let unit = "uncore_iio_free_running_0";
    put_unit(folder.at(), unit, ("bw_in_port2", "event=0xff,umask=0x22", "3.814697266e-6"));
    // It counts no bytes.
    put(folder.at(), &format!("sys/bus/event_source/devices/{unit}/events/ioclk"), "event=0xff,umask=0x10");
    let all = CounterSet::open_under(folder.at()).read();
    let reading = of(&all, "pcie_bytes");
    assert!(reading.source.ends_with("uncore_iio_free_running_0/events/bw_in_port2"), "{reading:?}");
    let why = reading.absent.as_ref().unwrap();
    assert!(why.contains("not count it") || why.contains("permitted"), "{why}");
}

#[test]
fn disks_are_counted_once_and_one_that_goes_is_no_zero() {
    let folder = TempFolder::new().unwrap();
    let stat = |read: u64| format!("1 0 {read} 0 0 0 0 0 0 0 0");
    put(folder.at(), "sys/block/sda/stat", &stat(100));
    put(folder.at(), "sys/block/sdb/stat", &stat(100));
    // What a loop device reads is read from a disk.
    put(folder.at(), "sys/block/loop0/stat", &stat(100));
    put(folder.at(), "sys/block/loop0/loop/backing_file", "/file");
    // One of the paths to a disk.
    put(folder.at(), "sys/block/sdb-path/stat", &stat(100));
    put(folder.at(), "sys/block/sdb-path/hidden", "1\n");
    let counters = CounterSet::open_under(folder.at());
    ["sda", "sdb", "sdb-path", "loop0"]
        .iter()
        .for_each(|disk| put(folder.at(), &format!("sys/block/{disk}/stat"), &stat(110)));
    assert_eq!(of(&counters.read(), "disk_read").value, Some(2 * 10 * 512));
    put(folder.at(), "sys/block/sda/stat", "");
    let reading = of(&counters.read(), "disk_read").clone();
    assert!(reading.value.is_none() && reading.absent.as_ref().unwrap().contains("sda/stat"), "{reading:?}");
    std::fs::remove_dir_all(folder.at().join("sys/block/sda")).unwrap();
    let reading = of(&counters.read(), "disk_read").clone();
    assert!(reading.value.is_none() && reading.absent.as_ref().unwrap().contains("sda is gone"), "{reading:?}");
}

#[test]
fn a_reading_is_a_sample_in_the_units_of_the_vocabulary() {
    let mut reading = CounterReading {
        name: "llc_occupancy",
        what: "Bytes",
        unit: "bytes",
        scope: CounterScope::Machine,
        is_gauge: true,
        value: Some(7),
        absent: None,
        source: "a file".into(),
        counted_part: None,
        measurement: &vocabulary::LLC_OCCUPANCY,
    };
    let shown = text(std::slice::from_ref(&reading));
    assert!(shown.ends_with("gauge\ndatapipes_llc_occupancy_bytes{scope=\"machine\"} 7\n"), "{shown}");
    // The kernel counts nanoseconds.
    reading.measurement = &vocabulary::CPU_TIME;
    reading.value = Some(1_500_000_000);
    assert!(text(&[reading]).ends_with("datapipes_cpu_time_seconds_total{scope=\"machine\"} 1.5\n"));
}
