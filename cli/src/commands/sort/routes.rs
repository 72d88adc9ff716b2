//! Which way the bytes of a sort will go: `--explain`.

use std::fmt;
use std::path::Path;

use datapipes::{
    Constraints, Dram, FileMode, Locator, Machine, MapOptions, OutputFile, Pages, Result, Route, StageOrder, StagePlace,
};
use datapipes_sort::{Input, Output, SpillCompression};

use crate::outcome::shown_path;

/// Bytes that a sort moves at a time, about.
const PIECE: usize = 4 << 20;

/// One kind of movement of a sort.
pub(crate) struct Way {
    /// The purpose of the route.
    pub(crate) title: String,
    /// The route, or why there is none to show.
    pub(crate) route: Result<Route, String>,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.route {
            Ok(route) => write!(f, "{}: {route}", self.title),
            Err(why) => writeln!(f, "{}: {why}", self.title),
        }
    }
}

/// The ways that the bytes of a sort would take; runs are only spilled where the input does not fit
/// the memory.
pub(crate) fn ways(
    machine: &Machine,
    inputs: &[Input],
    output: &Output,
    spill: &[StagePlace],
    order: StageOrder,
) -> Result<Vec<Way>> {
    let memory = Dram::allocate_with(PIECE, MapOptions::default().pages(Pages::Huge).prefault(false))?;
    let explain = |title: String, from: &dyn Locator, to: &dyn Locator| {
        let constraints = Constraints::default().typical_len(PIECE as u64);
        Way { title, route: machine.explain(from, to, &constraints).map_err(|e| e.to_string()) }
    };
    let mut ways = Vec::new();
    for input in inputs {
        ways.push(match input {
            short if short.is_short_file() => Way {
                title: "input".into(),
                route: Err("by read: for so short a file a pipe costs more than it saves".to_owned()),
            },
            Input::File { ssd, .. } | Input::Range { ssd, .. } => explain("input".into(), ssd, &memory),
            Input::Memory { memory: bytes, .. } => explain("input".into(), bytes, &memory),
            Input::Place(place) => explain("input".into(), place.locator(), &memory),
            Input::Stream { name, .. } | Input::Begun { name, .. } | Input::Counted { name, .. } => {
                stream("input", name, "read")
            }
            // A named pipe is not opened twice.
            Input::Deferred { path, .. } if input.may_block() || path == Path::new("-") => {
                stream("input", path, "read")
            }
            Input::Deferred { path, .. } => match Input::open(path)? {
                Input::File { ssd, .. } => explain("input".into(), &ssd, &memory),
                _ => stream("input", path, "read"),
            },
        });
    }
    let names: Vec<&str> = spill.iter().map(StagePlace::name).collect();
    let title = format!("spill in {}", names.join(", "));
    match machine.staging(spill.to_vec(), order) {
        Ok(places) => {
            ways.push(explain(title, &memory, &places));
            ways.push(explain("merge".into(), &places, &memory));
        }
        Err(error) => ways.push(Way { title, route: Err(error.to_string()) }),
    }
    ways.push(match output {
        Output::File { path, .. } => match opened(path) {
            Ok((title, file)) => explain(title, &memory, file.ssd()),
            Err(error) => Way { title: "output".into(), route: Err(error.to_string()) },
        },
        Output::Memory { memory: bytes, .. } => explain("output".into(), &memory, bytes),
        Output::Place(place) => explain("output".into(), &memory, &**place),
        Output::Stream { name, .. } => stream("output", name, "write"),
    });
    Ok(ways)
}

/// What decides whether runs are compressed.
pub(crate) fn compression(chosen: SpillCompression, program: bool) -> &'static str {
    match (program, chosen) {
        (true, _) => "compression of runs: by the program that was named\n",
        (_, SpillCompression::On) => "compression of runs: LZ4, as asked for\n",
        (_, SpillCompression::Off) => "compression of runs: none, as asked for\n",
        _ => {
            "compression of runs: LZ4, from the run on before which the threads waited for the place, if compressed \
             bytes would then be written at least a fifth faster\n"
        }
    }
}

/// The output as it will be opened; a file that is begun is as long as such a file would be at
/// least.
fn opened(path: &Path) -> Result<(String, OutputFile)> {
    let file = OutputFile::open(path, FileMode::USUAL)?;
    let title = match file.in_place() {
        Some(reason) => format!("output, in place, because {reason}"),
        None => {
            file.ssd().preallocate(PIECE as u64)?;
            format!("output, beside {}", shown_path(path))
        }
    };
    Ok((title, file))
}

fn stream(title: &str, name: &Path, call: &str) -> Way {
    Way { title: title.into(), route: Err(format!("{}, a stream, by {call}", shown_path(name))) }
}
