//! A page that a mapped file has lost, or has no room for, is an error in every access to it, and
//! kills no process. Each access is tried in a process of its own: this program again, with its
//! task in the environment.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use datapipes::locator::{EndpointHandle, PlaceFacts, Reader};
use datapipes::runtime::ConnectOptions;
use datapipes::{
    Constraints, CoreCache, Dram, Endpoint, ErrorKind, Locator, Machine, Pmem, PmemOptions, Result, Runtime, Span, Ssd,
    StagePlace, Staging,
};
use datapipes_testkit::Mounted;
use scene::{file_of, memory_of, pattern};

const VARIABLE: &str = "DATAPIPES_GONE_PAGE";
const LEN: u64 = 256 << 10;
/// The length that is left of the file.
const CUT: u64 = 64 << 10;
/// The offset and the length of a piece that ends beyond it.
const AT: u64 = CUT - 4096;
const MANY: u64 = 16 << 10;

/// Pages that exist, pages that do not, and places to move their bytes to or from.
struct Child {
    pmem: Pmem,
    memory: Dram,
    file: Ssd,
    machine: Machine,
}

/// A place that generates its bytes itself.
struct Sevens;

impl Reader for Sevens {
    fn read_at(&self, _: u64, into: &mut [u8]) -> Result<()> {
        into.fill(7);
        Ok(())
    }
}

impl Locator for Sevens {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts { reach: datapipes::Reach::Reader, ..(*file_of(&[0]).endpoint().facts).clone() };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Reader(Arc::new(Sevens)) }
    }
}

impl Child {
    fn dram(&self) -> Dram {
        Dram::over(self.pmem.memory().clone())
    }

    /// The cache of a core over the piece; `None` if no core is known.
    fn cache(&self) -> Option<CoreCache> {
        let core = self.machine.topology().usable_cores().next()?;
        CoreCache::over(core, &self.part()).ok()
    }

    fn part(&self) -> Dram {
        self.dram().range(AT as usize, MANY as usize).unwrap()
    }

    fn by(&self, ends: (&dyn Locator, &dyn Locator), span: (u64, u64), direct: bool) -> Result<()> {
        let constraints = Constraints::default().bypass_page_cache(direct);
        let pipe = self.machine.connect_with(ends.0, ends.1, &constraints).unwrap();
        pipe.transfer(Span { source: span.0, target: span.1, len: MANY })
    }
}

/// The ends of a pipe, the offsets, and whether it must go past the page cache.
type Pipes = for<'a> fn(&'a Child) -> Option<(Box<dyn Locator + 'a>, Box<dyn Locator + 'a>, (u64, u64), bool)>;

fn pipes() -> Vec<(&'static str, Pipes)> {
    vec![
        ("pmem to memory", |c| Some((Box::new(c.pmem.clone()), Box::new(c.memory.clone()), (AT, 3), false))),
        ("memory to pmem", |c| Some((Box::new(c.memory.clone()), Box::new(c.pmem.clone()), (3, AT), false))),
        ("dram over it to memory", |c| Some((Box::new(c.dram()), Box::new(c.memory.clone()), (AT, 3), false))),
        ("memory to dram over it", |c| Some((Box::new(c.memory.clone()), Box::new(c.dram()), (3, AT), false))),
        ("pmem to a file", |c| Some((Box::new(c.pmem.clone()), Box::new(c.file.clone()), (AT, 0), false))),
        ("a file to pmem", |c| Some((Box::new(c.file.clone()), Box::new(c.pmem.clone()), (0, AT), false))),
        ("a file to dram over it", |c| Some((Box::new(c.file.clone()), Box::new(c.dram()), (0, AT), false))),
        ("pmem to a file, direct", |c| Some((Box::new(c.pmem.clone()), Box::new(c.file.clone()), (AT, 0), true))),
        ("a file to pmem, direct", |c| Some((Box::new(c.file.clone()), Box::new(c.pmem.clone()), (0, AT), true))),
        ("pmem to a file, bounced", |c| {
            Some((Box::new(c.pmem.clone()), Box::new(c.file.clone()), (AT + 1, 4096), true))
        }),
        ("a file to pmem, bounced", |c| {
            Some((Box::new(c.file.clone()), Box::new(c.pmem.clone()), (4096, AT + 1), true))
        }),
        ("a reader to pmem", |c| Some((Box::new(Sevens), Box::new(c.pmem.clone()), (0, AT), false))),
        ("lines into a core's cache", |c| Some((Box::new(c.part()), Box::new(c.cache()?), (0, 0), false))),
        ("lines back from a core's cache", |c| Some((Box::new(c.cache()?), Box::new(c.part()), (0, 0), false))),
        ("memory to a core's cache", |c| Some((Box::new(c.memory.clone()), Box::new(c.cache()?), (3, 0), false))),
        ("a file to a core's cache", |c| Some((Box::new(c.file.clone()), Box::new(c.cache()?), (0, 0), false))),
    ]
}

type Way = Box<dyn Fn(&Child) -> Option<Result<()>>>;

fn ways() -> Vec<(String, Way)> {
    let mut ways: Vec<(String, Way)> = Vec::new();
    let mut way = |name: &str, work: fn(&Child) -> Result<()>| {
        ways.push((name.to_owned(), Box::new(move |c| Some(work(c)))));
    };
    way("Pmem::read", |c| c.pmem.read(AT as usize, &mut [0; MANY as usize]));
    way("Pmem::write", |c| c.pmem.write(AT as usize, &[1; MANY as usize]));
    way("MemoryRange::read", |c| c.pmem.memory().read(AT as usize, &mut [0; MANY as usize]));
    way("MemoryRange::write", |c| c.pmem.memory().write(AT as usize, &[1; MANY as usize]));
    way("to_vec", |c| c.part().memory().to_vec().map(drop));
    way("Dram::over, write", |c| c.part().memory().write(0, &[1; MANY as usize]));
    way("persist", |c| c.pmem.persist(AT as usize..(AT + MANY) as usize));
    way("sync", |c| c.pmem.sync());
    way("prefault of the memory", |c| c.pmem.memory().prefault());
    for (name, ends) in pipes() {
        let blocking = move |c: &Child| {
            let (source, target, span, direct) = ends(c)?;
            Some(c.by((&*source, &*target), span, direct))
        };
        ways.push((name.to_owned(), Box::new(blocking)));
        let on_runtime = move |c: &Child| {
            let (source, target, span, direct) = ends(c)?;
            let runtime = Runtime::start(&c.machine).unwrap();
            let mut connect = ConnectOptions::default();
            connect.constraints.bypass_page_cache = direct;
            let pipe = runtime.connect_with(&*source, &*target, &connect).unwrap();
            let span = Span { source: span.0, target: span.1, len: MANY };
            Some(pipe.transfer(span).unwrap().wait())
        };
        ways.push((format!("{name}, by a runtime"), Box::new(on_runtime)));
    }
    ways
}

/// Performs the access on the file that the environment names, and prints how it ended.
#[test]
#[ignore = "run by its parent, which says what to do"]
fn act_as_a_child() {
    let told = std::env::var(VARIABLE).expect("its parent names the access");
    let (number, path) = told.split_once(' ').unwrap();
    let options = PmemOptions::default().emulated(true);
    let child = Child {
        pmem: Pmem::open_with(path, options).unwrap(),
        memory: memory_of(&pattern(LEN)),
        file: file_of(&pattern(LEN)),
        machine: datapipes::discover(),
    };
    if !path.contains("full") {
        // The file is cut as another program would do it, which knows of no mapping.
        std::fs::File::options().write(true).open(path).unwrap().set_len(CUT).unwrap();
    }
    match ways()[number.parse::<usize>().unwrap()].1(&child) {
        None => println!("ANSWER skipped"),
        Some(Ok(())) => println!("ANSWER done"),
        Some(Err(e)) => println!("ANSWER {:?} at {:?} done {}: {e}", e.kind(), e.offset(), e.bytes_done()),
    }
}

fn ask(number: usize, path: &Path) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "act_as_a_child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(VARIABLE, format!("{number} {}", path.display())).output().unwrap()
}

/// Tries all accesses, and returns those that did not end with a device error with an offset.
fn wrong(scene: impl Fn() -> PathBuf) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, (name, _)) in ways().iter().enumerate() {
        let path = scene();
        let output = ask(number, &path);
        std::fs::remove_file(&path).unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let answer = text.lines().find_map(|line| Some(line.split_once("ANSWER ")?.1));
        match answer {
            Some(answer) if answer.starts_with(&format!("{:?} at Some(", ErrorKind::Device)) => {}
            Some("skipped") => println!("SKIPPED: {name}: no usable core was discovered"),
            // The hint has no effect on lines that do not exist.
            Some("done") if name.starts_with("lines back") => println!("{name}: done"),
            Some(answer) => wrong.push(format!("{name}: {answer}")),
            None => wrong.push(format!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr))),
        }
    }
    wrong
}

#[test]
fn a_file_that_was_cut_is_an_error_in_every_way_to_touch_it() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cut-{}", std::process::id()));
    let wrong = wrong(|| {
        std::fs::write(&path, pattern(LEN)).unwrap();
        path.clone()
    });
    assert!(wrong.is_empty(), "{} of {} ways: {wrong:#?}", wrong.len(), ways().len());
}

#[test]
fn a_sparse_file_without_room_is_an_error_in_every_way_to_touch_it() {
    let name = "a_sparse_file_without_room_is_an_error_in_every_way_to_touch_it";
    let mounted = match Mounted::small(env!("CARGO_TARGET_TMPDIR"), 1 << 20) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    // Nothing is left for a page of the other file. (On a file system in memory, reading a hole
    // needs a page too.)
    let _ = std::fs::write(mounted.path("all"), vec![1; 2 << 20]).unwrap_err();
    let wrong = wrong(|| {
        let path = mounted.path("full");
        std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
        path
    });
    assert!(wrong.is_empty(), "{} of {} ways: {wrong:#?}", wrong.len(), ways().len());
}

#[test]
fn bytes_that_are_read_after_a_file_was_cut_and_extended_are_in_the_file() {
    // On a file system in memory, the kernel lets a ring pin pages, which a cut then takes from the
    // file.
    let name = "bytes_that_are_read_after_a_file_was_cut_and_extended_are_in_the_file";
    let mounted = match Mounted::small(env!("CARGO_TARGET_TMPDIR"), 4 << 20) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let path = mounted.path("pinned");
    let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN).emulated(true)).unwrap();
    let (bytes, machine) = (pattern(LEN), datapipes::discover());
    let file = file_of(&bytes);
    for (number, only) in ["uring-cached", "uring-direct"].into_iter().enumerate() {
        let constraints = Constraints::default().only(vec![only.into()]);
        let pipe = match machine.connect_with(&file, &pmem, &constraints) {
            Ok(pipe) => pipe,
            Err(e) => {
                println!("SKIPPED: {name}, {only}: {e}");
                continue;
            }
        };
        for turn in 0..2 {
            pipe.transfer(Span { source: 0, target: 0, len: LEN }).unwrap();
            let there = std::fs::read(&path).unwrap();
            assert!(
                there == bytes,
                "{only}, {number}, turn {turn}: the transfer is done and its bytes are not in the file"
            );
            let other = std::fs::File::options().write(true).open(&path).unwrap();
            other.set_len(0).unwrap();
            other.set_len(LEN).unwrap();
        }
    }
}

#[test]
fn a_page_that_the_source_lost_is_held_against_no_place_of_a_staging() {
    std::fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("staged-{}", std::process::id()));
    std::fs::write(&path, pattern(LEN)).unwrap();
    let pmem = Pmem::open_with(&path, PmemOptions::default().emulated(true)).unwrap();
    let (machine, memory) = (datapipes::discover(), memory_of(&pattern(LEN)));
    let places = [StagePlace::folder(env!("CARGO_TARGET_TMPDIR")), StagePlace::memory(4 << 20, None)];
    for place in places {
        let staging = Staging::open(vec![place]).unwrap();
        let up = machine.connect(&pmem, &staging).unwrap();
        let span = Span { source: 0, target: 0, len: LEN };
        let other = std::fs::File::options().write(true).open(&path).unwrap();
        other.set_len(CUT).unwrap();
        let e = up.transfer(span).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Device, "{e}");
        assert!(staging.uses().iter().all(|place| place.left.is_none()), "{:?}", staging.uses());
        other.set_len(LEN).unwrap();
        up.transfer(span).unwrap();
        machine.connect(&memory, &staging).unwrap().transfer(Span { target: LEN, ..span }).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}
