//! Devices by script: late answers, errors of each kind, refusals, death at each step.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive};
use datapipes_core::locks::Mutex;
use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, ErrorKind, Machine, Pipe, Result, Span};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_testkit::{Random, bounded, seed};

use super::device::DmaChannel;
use super::portal::{DevicePages, DmadevPortal};
use crate::discovery::{QueueDiscovery, QueueMode, WorkQueueFacts};
use crate::engines::EngineSet;
use crate::family::DMADEV;
use crate::portal::Portal;

/// What a device does with a copy.
#[derive(Clone, Copy)]
enum Step {
    /// It copies, and answers when it was asked so often.
    Copy { after: u32 },
    /// It answers with this status and has copied a part.
    Fail(c_int),
    /// It does not take it.
    Refuse(c_int),
    /// It takes it, answers nothing from then on, and says so if asked.
    Die { reported: bool },
}

#[derive(Default)]
struct ScriptState {
    plan: Option<Box<dyn FnMut(u64) -> Step + Send>>,
    seen: u64,
    waiting: VecDeque<(c_int, u32)>,
    dead: bool,
    reported: bool,
    /// Whether it can be stopped.
    stops: bool,
    needs_pages: bool,
    /// Pages are refused.
    refuses_pages: bool,
    held: i64,
}

#[derive(Clone)]
struct Script(Arc<Mutex<ScriptState>>);

impl Script {
    fn new(plan: impl FnMut(u64) -> Step + Send + 'static) -> Script {
        let state = ScriptState { plan: Some(Box::new(plan)), stops: true, ..ScriptState::default() };
        Script(Arc::new(Mutex::new(state)))
    }

    fn set(self, change: impl FnOnce(&mut ScriptState)) -> Script {
        change(&mut self.0.lock());
        self
    }

    fn machine(&self) -> Machine {
        let facts = WorkQueueFacts {
            name: "scripted".into(),
            device: "a script".into(),
            path: PathBuf::new(),
            sysfs: [PathBuf::new(), PathBuf::new()],
            mode: QueueMode::Dedicated,
            size: 4,
            priority: 0,
            group: None,
            max_transfer_bytes: 4096,
            max_batch: 0,
            block_on_fault: false,
            node: None,
        };
        let script = self.clone();
        let open = move |facts: &WorkQueueFacts| -> Result<Box<dyn Portal>> {
            Ok(Box::new(DmadevPortal::new(script.clone(), script.clone(), facts.size)))
        };
        let found = QueueDiscovery { usable: vec![facts], absent: Vec::new() };
        let engines = EngineSet { patience: Some(Duration::from_millis(50)), ..EngineSet::new(&DMADEV, found, open) };
        let topology = Topology::discover();
        let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
        Machine::new(topology, vec![Arc::new(cpu), Arc::new(Scripted(engines))])
    }
}

// SAFETY: it copies before it returns, and never after.
unsafe impl DmaChannel for Script {
    fn needs_pages(&self) -> bool {
        self.0.lock().needs_pages
    }

    unsafe fn copy(&mut self, source: u64, target: u64, len: u32) -> std::result::Result<(), c_int> {
        let mut state = self.0.lock();
        assert!(!state.dead || state.plan.is_some());
        let number = state.seen;
        let step = state.plan.as_mut().unwrap()(number);
        let copy = |len: u32| {
            let from = std::ptr::with_exposed_provenance::<u8>(source as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(target as usize);
            // SAFETY: the caller answers for both.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len as usize) };
        };
        let answer = match step {
            Step::Refuse(error) => {
                state.seen += 1;
                return Err(error);
            }
            Step::Copy { after } => {
                copy(len);
                (0, after)
            }
            Step::Fail(status) => {
                copy(len / 3);
                (status, 0)
            }
            Step::Die { reported } => {
                copy(len / 2);
                (state.dead, state.reported) = (true, reported);
                (0, 0)
            }
        };
        state.seen += 1;
        state.waiting.push_back(answer);
        Ok(())
    }

    fn completed(&mut self, status: &mut [c_int]) -> usize {
        let mut state = self.0.lock();
        let mut done = 0;
        while !state.dead && done < status.len() {
            match state.waiting.front_mut() {
                Some((answer, 0)) => {
                    status[done] = *answer;
                    done += 1;
                    state.waiting.pop_front();
                }
                Some((_, after)) => {
                    *after -= 1;
                    break;
                }
                None => break,
            }
        }
        done
    }

    fn check(&mut self) -> std::result::Result<(), String> {
        let state = self.0.lock();
        if state.dead && state.reported { Err("halted by script".into()) } else { Ok(()) }
    }

    fn stop(&mut self) -> std::result::Result<(), String> {
        if self.0.lock().stops { Ok(()) } else { Err("it does not stop, by script".into()) }
    }
}

impl DevicePages for Script {
    fn hold(&self, bytes: Range<usize>) -> std::result::Result<Vec<usize>, String> {
        let mut state = self.0.lock();
        if state.refuses_pages {
            return Err("refused by script".into());
        }
        state.held += 1;
        Ok(vec![bytes.start])
    }

    fn release(&self, held: &[usize]) {
        self.0.lock().held -= held.len() as i64;
    }
}

struct Scripted(EngineSet);

impl Backend for Scripted {
    fn name(&self) -> &'static str {
        "dmadev"
    }
    fn primitives(&self) -> Vec<Primitive> {
        self.0.primitives()
    }
    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        self.0.offers(ask)
    }
    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        self.0.open(ask, primitive)
    }
    fn knobs(&self) -> Vec<Knob> {
        self.0.knobs()
    }
}

const LEN: usize = 30_000;

struct Scene {
    pipe: Pipe,
    source: Dram,
    target: Dram,
}

fn scene(script: &Script, demand: bool) -> Scene {
    let (source, target) = (Dram::allocate(LEN).unwrap(), Dram::allocate(LEN).unwrap());
    let mut random = Random(seed(5));
    source.lease_mut().unwrap().iter_mut().for_each(|byte| *byte = random.next() as u8);
    let constraints = match demand {
        true => Constraints::default().require_offload(true),
        false => Constraints::default().only(vec!["dmadev-move".into()]),
    };
    let pipe = script.machine().connect_with(&source, &target, &constraints).unwrap();
    Scene { pipe, source, target }
}

const ALL: Span = Span { source: 3, target: 5, len: (LEN - 5) as u64 };

impl Scene {
    fn is_copied(&self) -> bool {
        let (source, target) = (self.source.lease().unwrap(), self.target.lease().unwrap());
        source[3..3 + LEN - 5] == target[5..]
    }
}

#[test]
fn late_answers_and_full_queues_lose_nothing() {
    bounded("late answers and full queues lose nothing", || {
        let script = Script::new(|number| match number % 5 {
            1 => Step::Refuse(-libc::ENOSPC),
            _ => Step::Copy { after: (number % 7) as u32 },
        })
        .set(|state| state.needs_pages = true);
        let scene = scene(&script, true);
        scene.pipe.transfer(ALL).unwrap();
        assert!(scene.is_copied());
        assert_eq!(script.0.lock().held, 0, "pages are given back");
        let counters = scene.pipe.report().hops[0].counters.clone();
        assert_eq!((counters.core_finished_bytes, counters.bytes), (0, ALL.len));
    });
}

#[test]
fn each_error_of_an_engine_is_made_good_by_a_core_or_named() {
    bounded("each error of an engine is made good by a core or named", || {
        let named =
            [(1, "hardware"), (3, "translated"), (6, "size"), (7, "operation"), (12, "hardware"), (256, "hardware")];
        for (status, word) in named {
            let plan = move |number| if number == 4 { Step::Fail(status) } else { Step::Copy { after: 1 } };
            let helped = scene(&Script::new(plan), false);
            helped.pipe.transfer(ALL).unwrap();
            assert!(helped.is_copied());
            assert_eq!(helped.pipe.report().hops[0].counters.core_finished_bytes, 4096);
            let demanded = scene(&Script::new(plan), true);
            let e = demanded.pipe.transfer(ALL).unwrap_err();
            assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 4 * 4096), "{e}");
            assert!(e.to_string().contains(word), "{status}: {e}");
        }
        // A page fault goes again, and ends where it stays.
        let once = Script::new(|number| if number == 4 { Step::Fail(14) } else { Step::Copy { after: 0 } });
        let again = scene(&once, true);
        again.pipe.transfer(ALL).unwrap();
        assert!(again.is_copied());
        assert_eq!(again.pipe.report().hops[0].counters.retries, 1);
        let e = scene(&Script::new(|_| Step::Fail(14)), true).pipe.transfer(ALL).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("again and again"), "{e}");
    });
}

#[test]
fn pages_that_cannot_be_mapped_are_a_cores_or_an_error() {
    bounded("pages that cannot be mapped are a cores or an error", || {
        let script = Script::new(|_| Step::Copy { after: 0 }).set(|state| {
            (state.needs_pages, state.refuses_pages) = (true, true);
        });
        let helped = scene(&script, false);
        helped.pipe.transfer(ALL).unwrap();
        assert!(helped.is_copied());
        assert_eq!(script.0.lock().seen, 0, "the engine was given nothing");
        let e = scene(&script, true).pipe.transfer(ALL).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("translated"), "{e}");
    });
}

#[test]
fn an_engine_that_dies_at_any_step_loses_nothing() {
    bounded("an engine that dies at any step loses nothing", || {
        let last = ALL.len.div_ceil(4096) - 1;
        for (at, reported) in [0, 1, last / 2, last].into_iter().flat_map(|at| [(at, true), (at, false)]) {
            let plan = move |number| if number == at { Step::Die { reported } } else { Step::Copy { after: 2 } };
            let script = Script::new(plan).set(|state| state.needs_pages = true);
            let helped = scene(&script, false);
            helped.pipe.transfer(ALL).unwrap();
            assert!(helped.is_copied(), "{at}");
            assert_eq!(helped.pipe.report().hops[0].counters.devices_lost, 1);
            assert_eq!(script.0.lock().held, 0, "{at}");
            let demanded = scene(&Script::new(plan), true);
            let e = demanded.pipe.transfer(ALL).unwrap_err();
            let done = e.bytes_done();
            assert!(e.kind() == ErrorKind::Device && done <= at * 4096 && done.is_multiple_of(4096), "{at}: {e}");
            let (source, target) = (demanded.source.lease().unwrap(), demanded.target.lease().unwrap());
            assert_eq!(source[3..3 + done as usize], target[5..5 + done as usize]);
        }
    });
}

#[test]
fn an_engine_that_cannot_be_stopped_keeps_its_memory_and_its_pages() {
    bounded("an engine that cannot be stopped keeps its memory and its pages", || {
        let plan = |number| if number == 2 { Step::Die { reported: true } } else { Step::Copy { after: 0 } };
        let script = Script::new(plan).set(|state| (state.needs_pages, state.stops) = (true, false));
        let scene = scene(&script, false);
        let e = scene.pipe.transfer(ALL).unwrap_err();
        assert!(e.to_string().contains("does not stop, by script"), "{e}");
        assert_eq!(scene.target.lease().unwrap_err().kind(), ErrorKind::Busy, "the engine may still write to it");
        assert!(script.0.lock().held > 0, "pages under the engine stay mapped");
    });
}

#[test]
fn an_engine_that_takes_nothing_is_lost_and_named() {
    bounded("an engine that takes nothing is lost and named", || {
        let script = Script::new(|_| Step::Refuse(-libc::EINVAL));
        let helped = scene(&script, false);
        helped.pipe.transfer(ALL).unwrap();
        assert!(helped.is_copied());
        let e = scene(&script, true).pipe.transfer(ALL).unwrap_err();
        assert!(e.to_string().contains("takes no copies: error -22"), "{e}");
    });
}
