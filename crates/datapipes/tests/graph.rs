//! Graphs of transfers and computations on real files (CIDR'23, figure 7).
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datapipes::graph::{BufferSet, Graph};
use datapipes::{Dram, ErrorKind, Machine, Runtime, Span, Ssd};
use datapipes_testkit::Random;
use scene::empty_file;

const RUN: u64 = 256 << 10;

/// Makes a file of numbers in random order.
fn numbers(machine: &Machine, runs: u64) -> Ssd {
    let dram = Dram::allocate((runs * RUN) as usize).unwrap();
    let mut random = Random(1);
    for number in dram.lease_mut().unwrap().as_slice_of::<u64>().unwrap() {
        *number = random.next();
    }
    let ssd = empty_file();
    machine.connect(&dram, &ssd).unwrap().transfer(Span { source: 0, target: 0, len: runs * RUN }).unwrap();
    ssd
}

#[test]
fn no_more_threads_compute_than_there_is_to_compute() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let highest = AtomicUsize::new(0);
    let mut graph = Graph::new("few");
    graph.threads(40_000);
    let _ = graph.compute("look", |_| {
        for task in std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok) {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let number = name.trim().strip_prefix("dp-graph-").and_then(|number| number.parse().ok());
            highest.fetch_max(number.unwrap_or(0), Ordering::SeqCst);
        }
        Ok(())
    });
    runtime.run(&graph, 3).unwrap();
    // Items of other graphs of this program are as few.
    assert!(highest.load(Ordering::SeqCst) < 100, "{highest:?}");
}

#[test]
fn runs_are_read_sorted_and_written_with_two_buffers() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let runs = 20;
    let (input, output) = (numbers(&machine, runs), empty_file());
    let buffers = Dram::allocate(2 * RUN as usize).unwrap();
    let up = runtime.connect(&input, &buffers).unwrap();
    let down = runtime.connect(&buffers, &output).unwrap();

    let slots = BufferSet::new(2);
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
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    for buffers in [1, 2, 5] {
        let owners: Vec<AtomicU64> = (0..buffers).map(|_| AtomicU64::new(u64::MAX)).collect();
        let order = Mutex::new(Vec::new());
        let (most, now) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let set = BufferSet::new(buffers);
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
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let input = numbers(&machine, 4);
    let memory = Dram::allocate(2 * RUN as usize).unwrap();
    let up = runtime.connect(&input, &memory).unwrap();
    let after = AtomicU64::new(0);
    let slots = BufferSet::new(2);
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
    let set = BufferSet::new(0);
    let mut none = Graph::new("no buffers");
    let stage = none.compute("stage", |_| Ok(()));
    none.uses(stage, set).unwrap();
    assert_eq!(runtime.run(&none, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// When each step looked through all items, this took minutes.
#[test]
fn many_items_without_buffers_go_through() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let items = 200_000;
    let (first, second) = (AtomicU64::new(0), AtomicU64::new(0));
    let (ahead, farthest) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut graph = Graph::new("many");
    let one = graph.compute("one", |_| {
        first.fetch_add(1, Ordering::Relaxed);
        farthest.fetch_max(ahead.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Ok(())
    });
    let two = graph.compute("two", |item| {
        assert_eq!(second.fetch_add(1, Ordering::Relaxed), item.index(), "in order");
        ahead.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    });
    graph.after(two, one).unwrap();
    graph.in_order(two).unwrap();
    runtime.run(&graph, items).unwrap();
    drop(graph);
    assert_eq!([first.into_inner(), second.into_inner(), ahead.into_inner()], [items, items, 0]);
    assert!(farthest.into_inner() <= 4096, "as many items as anybody likes take little memory");
}

fn below(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

/// The shape of a stage of a random graph.
struct Shape {
    after: Vec<usize>,
    uses: Vec<usize>,
    in_order: bool,
}

/// What happened, item by item and stage by stage.
struct Seen {
    done: Vec<Vec<bool>>,
    /// The item that has each buffer, by set and buffer.
    held: Vec<Vec<Option<u64>>>,
    turn: Vec<u64>,
}

#[test]
fn every_stage_of_every_item_runs_once_after_what_it_depends_on() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let seeds = match datapipes_testkit::replayed_seed() {
        Some(seed) => seed..seed + 1,
        None => 0..150u64,
    };
    for seed in seeds {
        let mut random = seed;
        let (stages, items) = (1 + below(&mut random, 5) as usize, below(&mut random, 40));
        let counts: Vec<usize> = (0..below(&mut random, 3)).map(|_| 1 + below(&mut random, 3) as usize).collect();
        let sets: Vec<BufferSet> = counts.iter().map(|count| BufferSet::new(*count)).collect();
        let shapes: Vec<Shape> = (0..stages)
            .map(|stage| Shape {
                after: (0..stage).filter(|_| below(&mut random, 2) == 0).collect(),
                uses: (0..sets.len()).filter(|_| below(&mut random, 2) == 0).collect(),
                in_order: below(&mut random, 4) == 0,
            })
            .collect();
        let seen = Mutex::new(Seen {
            done: vec![vec![false; stages]; items as usize],
            held: counts.iter().map(|count| vec![None; *count]).collect(),
            turn: vec![0; stages],
        });
        let mut graph = Graph::new("random");
        let mut earlier_stages = Vec::new();
        for (stage, shape) in shapes.iter().enumerate() {
            let (seen, sets, shapes) = (&seen, &sets, &shapes);
            let declared = graph.compute(format!("{stage}"), move |item| {
                let mut seen = seen.lock().unwrap();
                let at = item.index() as usize;
                assert!(!seen.done[at][stage], "seed {seed}: twice");
                assert!(shape.after.iter().all(|earlier| seen.done[at][*earlier]), "seed {seed}: too early");
                for set in &shape.uses {
                    let buffer = item.buffer(sets[*set])?;
                    let holder = seen.held[*set][buffer].replace(item.index());
                    assert!(holder.is_none_or(|holder| holder == item.index()), "seed {seed}: a buffer of two items");
                }
                if shape.in_order {
                    assert_eq!(seen.turn[stage], item.index(), "seed {seed}: out of order");
                    seen.turn[stage] += 1;
                }
                seen.done[at][stage] = true;
                // The last of its users gives a buffer back.
                for set in 0..sets.len() {
                    let mut users = shapes.iter().enumerate().filter(|(_, shape)| shape.uses.contains(&set));
                    if users.all(|(stage, _)| seen.done[at][stage]) {
                        seen.held[set].iter_mut().for_each(|held| *held = held.filter(|item| *item != at as u64));
                    }
                }
                Ok(())
            });
            shape.after.iter().for_each(|earlier| graph.after(declared, earlier_stages[*earlier]).unwrap());
            earlier_stages.push(declared);
            shape.uses.iter().for_each(|set| graph.uses(declared, sets[*set]).unwrap());
            if shape.in_order {
                graph.in_order(declared).unwrap();
            }
        }
        runtime.run(&graph, items).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        drop(graph);
        let seen = seen.into_inner().unwrap();
        assert!(seen.done.iter().flatten().all(|done| *done), "seed {seed}: left out");
    }
}

#[test]
fn sets_of_any_size_take_memory_only_for_buffers_that_are_used() {
    let runtime = Runtime::start(&datapipes::discover()).unwrap();
    for count in [3, 4_000_000_000, usize::MAX] {
        let (set, highest) = (BufferSet::new(count), AtomicU64::new(0));
        let mut graph = Graph::new("large");
        let stage = graph.compute("look", |item| {
            highest.fetch_max(item.buffer(set)? as u64, Ordering::SeqCst);
            Ok(())
        });
        graph.uses(stage, set).unwrap();
        runtime.run(&graph, 100).unwrap();
        assert!(highest.load(Ordering::SeqCst) < 100);
    }
}
