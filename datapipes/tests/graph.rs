//! Graphs of transfers and computations on real files (CIDR'23, figure 7).
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datapipes::graph::{Buffers, Graph};
use datapipes::{Dram, ErrorKind, Machine, Runtime, Span, Ssd};

fn dir() -> std::path::PathBuf {
    let dir = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

const RUN: u64 = 256 << 10;

/// A file of numbers that are in no order.
fn numbers(machine: &Machine, runs: u64) -> Ssd {
    let dram = Dram::allocate((runs * RUN) as usize).unwrap();
    let mut x = 88_172_645_463_325_252u64;
    for number in dram.lease_mut().unwrap().as_slice_of::<u64>().unwrap() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *number = x;
    }
    let ssd = Ssd::unlinked_in(dir()).unwrap();
    machine.connect(&dram, &ssd).unwrap().transfer(Span { source: 0, target: 0, len: runs * RUN }).unwrap();
    ssd
}

#[test]
fn runs_are_read_sorted_and_written_with_two_buffers() {
    let machine = Machine::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let runs = 20;
    let (input, output) = (numbers(&machine, runs), Ssd::unlinked_in(dir()).unwrap());
    let buffers = Dram::allocate(2 * RUN as usize).unwrap();
    let up = runtime.connect(&input, &buffers).unwrap();
    let down = runtime.connect(&buffers, &output).unwrap();

    let slots = Buffers::new(2);
    let mut graph = Graph::new("sort runs");
    let read = graph.pipe("read", &up, |item| {
        Ok(Span { source: item.index() * RUN, target: item.buffer(slots)? as u64 * RUN, len: RUN })
    });
    let sort = graph.compute("sort", |item| {
        let slot = buffers.range(item.buffer(slots)? * RUN as usize, RUN as usize)?;
        slot.lease_mut()?.as_slice_of::<u64>()?.sort_unstable();
        Ok(())
    });
    let write = graph.pipe("spill", &down, |item| {
        Ok(Span { source: item.buffer(slots)? as u64 * RUN, target: item.index() * RUN, len: RUN })
    });
    graph.after(sort, read).unwrap();
    graph.after(write, sort).unwrap();
    for stage in [read, sort, write] {
        graph.uses(stage, slots).unwrap();
    }
    let report = runtime.run(&graph, runs).unwrap();
    println!("{report}");
    assert_eq!(report.stages.iter().map(|s| s.items).collect::<Vec<_>>(), [runs; 3]);
    assert_eq!(report.stages.iter().map(|s| s.moved_bytes).collect::<Vec<_>>(), [runs * RUN, 0, runs * RUN]);
    assert!(report.stages.iter().all(|s| s.busy_ns > 0 && s.busy_ns <= report.wall_ns && s.busy_ns <= s.work_ns));

    let (before, after) =
        (Dram::allocate((runs * RUN) as usize).unwrap(), Dram::allocate((runs * RUN) as usize).unwrap());
    let whole = Span { source: 0, target: 0, len: runs * RUN };
    machine.connect(&input, &before).unwrap().transfer(whole).unwrap();
    machine.connect(&output, &after).unwrap().transfer(whole).unwrap();
    let (mut before, after) = (before.lease_mut().unwrap(), after.lease().unwrap());
    let per_run = RUN as usize / 8;
    for run in before.as_slice_of::<u64>().unwrap().chunks_mut(per_run) {
        run.sort_unstable();
    }
    assert!(before[..] == after[..]);
}

#[test]
fn a_buffer_has_one_item_at_a_time_and_order_is_kept_where_it_is_asked_for() {
    let machine = Machine::discover();
    let runtime = Runtime::start(&machine).unwrap();
    for buffers in [1, 2, 5] {
        let owners: Vec<AtomicU64> = (0..buffers).map(|_| AtomicU64::new(u64::MAX)).collect();
        let order = Mutex::new(Vec::new());
        let (most, now) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let set = Buffers::new(buffers);
        let mut graph = Graph::new("owners");
        graph.threads(4);
        let take = graph.compute("take", |item| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            assert_eq!(owners[item.buffer(set)?].swap(item.index(), Ordering::SeqCst), u64::MAX);
            Ok(())
        });
        let free = graph.compute("free", |item| {
            std::thread::yield_now();
            assert_eq!(owners[item.buffer(set)?].swap(u64::MAX, Ordering::SeqCst), item.index());
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        });
        let list = graph.compute("list", |item| {
            assert_eq!(item.buffer(set).unwrap_err().kind(), ErrorKind::InvalidInput, "given back before");
            order.lock().unwrap().push(item.index());
            Ok(())
        });
        graph.after(free, take).unwrap();
        graph.after(list, free).unwrap();
        graph.in_order(list).unwrap();
        graph.uses(take, set).unwrap();
        graph.uses(free, set).unwrap();
        assert_eq!(graph.after(take, list).unwrap_err().kind(), ErrorKind::InvalidInput, "no circles");
        runtime.run(&graph, 300).unwrap();
        drop(graph);
        assert_eq!(order.into_inner().unwrap(), (0..300).collect::<Vec<_>>());
        assert!(most.into_inner() <= buffers);
    }
}

#[test]
fn an_error_stops_what_has_not_begun_and_names_stage_and_item() {
    let machine = Machine::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let input = numbers(&machine, 4);
    let memory = Dram::allocate(2 * RUN as usize).unwrap();
    let up = runtime.connect(&input, &memory).unwrap();
    let after = AtomicU64::new(0);
    let slots = Buffers::new(2);
    let mut graph = Graph::new("too far");
    let read = graph.pipe("read", &up, |item| {
        Ok(Span { source: item.index() * RUN, target: item.buffer(slots)? as u64 * RUN, len: RUN })
    });
    let count = graph.compute("count", |_| {
        after.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    graph.after(count, read).unwrap();
    graph.uses(read, slots).unwrap();
    graph.uses(count, slots).unwrap();
    let error = runtime.run(&graph, 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EndOfFile);
    assert!(error.to_string().contains("read, item 4"), "{error}");
    assert!(after.load(Ordering::SeqCst) <= 4);
    assert!(memory.lease_mut().is_ok(), "nothing is under way any more");
    drop(graph);
    assert_eq!(runtime.run(&Graph::new("empty"), 5).unwrap().stages.len(), 0);
    let set = Buffers::new(0);
    let mut none = Graph::new("no buffers");
    let stage = none.compute("stage", |_| Ok(()));
    none.uses(stage, set).unwrap();
    assert_eq!(runtime.run(&none, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
}
