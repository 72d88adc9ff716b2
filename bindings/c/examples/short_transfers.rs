//! What a transfer of 64 bytes costs through the interfaces of C and C++, beside the same in Rust, in
//! turns.
//!
//! C is called through a pointer in this process. C++ is a program of its own, which is compiled here
//! and linked with the shared library as a user's is; it sleeps while the others are measured.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use datapipes::{Dram, Runtime, Span};
use datapipes_c::*;
use rustix::time::{ClockId, clock_gettime};

const TURNS: usize = 21;
const CALLS: u32 = 500_000;
const SPAN: Span = Span { source: 0, target: 0, len: 64 };

/// Wall time and processor time of a call, in nanoseconds.
type Cost = (f64, f64);

fn processor_ns() -> f64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as f64 * 1e9 + used.tv_nsec as f64
}

fn cost(mut call: impl FnMut()) -> Cost {
    let (begun, used) = (Instant::now(), processor_ns());
    for _ in 0..CALLS {
        call();
    }
    let (wall, cpu) = (begun.elapsed().as_nanos() as f64, processor_ns() - used);
    (wall / f64::from(CALLS), cpu / f64::from(CALLS))
}

/// The program in C++, and what it is asked and answers.
struct Cpp {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Cpp {
    /// Compiles it beside this program, and starts it.
    fn start() -> Cpp {
        let program = std::env::current_exe().unwrap();
        let here = program.parent().unwrap();
        let built = here.parent().unwrap().join("libdatapipes_c.so");
        let built = if built.exists() { built } else { here.parent().unwrap().join("deps/libdatapipes_c.so") };
        let folder = here.join("short_transfers_cpp");
        std::fs::create_dir_all(&folder).unwrap();
        let program = compile(&folder, &built);
        let child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let (ask, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Cpp { child, ask, answers }
    }

    fn cost(&mut self, flavor: &str) -> Cost {
        writeln!(self.ask, "{flavor} {CALLS}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    fn end(self) {
        let Cpp { mut child, ask, .. } = self;
        drop(ask);
        assert!(child.wait().unwrap().success());
    }
}

/// The compiler is `c++`, or what CXX names.
fn compile(folder: &Path, library: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["libdatapipes.so", "libdatapipes.so.0"] {
        std::fs::copy(library, folder.join(name)).unwrap();
    }
    let program = folder.join("program");
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    compiler.args(["-std=c++20", "-O2", "-pthread", "-I"]).arg(source.join("include"));
    compiler.arg(source.join("examples/short_transfers.cpp")).arg("-o").arg(&program).arg("-L").arg(folder);
    compiler.arg("-ldatapipes").arg(format!("-Wl,-rpath,{}", folder.display()));
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    program
}

fn median(mut of: Vec<f64>) -> (f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[0])
}

fn main() {
    let machine = datapipes::discover();
    let (source, target) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let pipe = machine.connect(&source, &target).unwrap();
    let runtime = Runtime::start(&machine).unwrap();
    let running = runtime.connect(&source, &target).unwrap();

    let (mut machine_c, mut source_c, mut target_c) = (dp_machine { id: 0 }, dp_place { id: 0 }, dp_place { id: 0 });
    let mut pipe_c = dp_pipe { id: 0 };
    // SAFETY: every pointer is to a local value of the type that the function writes.
    let errors = unsafe {
        [
            dp_machine_discover(&mut machine_c),
            dp_dram_allocate(4096, std::ptr::null(), &mut source_c),
            dp_dram_allocate(4096, std::ptr::null(), &mut target_c),
            dp_connect(machine_c, source_c, target_c, std::ptr::null(), &mut pipe_c),
        ]
    };
    assert!(errors.iter().all(|error| error.id == 0));
    // A program in C calls it through the linkage table: it is not inlined.
    let transfer: extern "C" fn(dp_pipe, dp_span) -> dp_error = black_box(dp_pipe_transfer);
    let span_c = dp_span { source: 0, target: 0, length: 64 };

    let mut cpp = Cpp::start();
    let mut found: [(&str, Vec<Cost>); 5] =
        ["Rust", "C", "C++", "Rust, runtime", "C++, runtime"].map(|name| (name, Vec::new()));
    for _ in 0..TURNS {
        let costs = [
            cost(|| pipe.transfer(black_box(SPAN)).unwrap()),
            cost(|| assert_eq!(transfer(pipe_c, black_box(span_c)).id, 0)),
            cpp.cost("blocking"),
            cost(|| running.transfer(black_box(SPAN)).unwrap().wait().unwrap()),
            cpp.cost("runtime"),
        ];
        for ((_, all), cost) in found.iter_mut().zip(costs) {
            all.push(cost);
        }
    }
    cpp.end();
    println!("ns a transfer of 64 bytes, {TURNS} turns of {CALLS} calls: median (least)");
    for (name, costs) in found {
        let (wall, least_wall) = median(costs.iter().map(|cost| cost.0).collect());
        let (cpu, least_cpu) = median(costs.iter().map(|cost| cost.1).collect());
        println!("{name:<14} wall {wall:6.1} ({least_wall:.1})   processor {cpu:6.1} ({least_cpu:.1})");
    }
}
