//! Whole command lines of `dpipe sort` against GNU sort in the C locale: the same output, exit
//! code, words and files over seeded options and inputs. The generator of orders and inputs is that
//! of the engine's test.
//!
//! `DATAPIPES_SEED` and `LINES_CASES` choose another seed and a longer run, `GNU_SORT` another
//! sort. Where the machine has no GNU sort the test says so and is skipped.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[path = "../../crates/sort/tests/cases/mod.rs"]
mod cases;
mod scene;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cases::{Case, GnuSort, Random, SALT, setting};
use scene::folder;

/// Where the standard input comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stdin {
    Null,
    /// The file `in`, redirected.
    File,
    /// The bytes of the file `in`, through a pipe.
    Pipe,
}

/// A command line and the files it finds.
struct Line {
    arguments: Vec<OsString>,
    stdin: Stdin,
    files: BTreeMap<String, Vec<u8>>,
}

/// What a program did.
#[derive(PartialEq)]
struct Did {
    code: Option<i32>,
    out: Vec<u8>,
    err: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Line {
    fn shown(&self) -> String {
        let arguments = self.arguments.iter().map(|a| format!("'{}'", a.as_encoded_bytes().escape_ascii()));
        format!("sort {} ({:?})", arguments.collect::<Vec<_>>().join(" "), self.stdin)
    }

    /// Runs it in a fresh folder.
    fn run(&self, mut command: Command, place: &Path) -> Did {
        let _ = fs::remove_dir_all(place);
        fs::create_dir(place).unwrap();
        for (name, bytes) in &self.files {
            fs::write(place.join(name), bytes).unwrap();
        }
        command.args(&self.arguments).current_dir(place).env("LC_ALL", "C").env_remove("TMPDIR");
        match self.stdin {
            Stdin::Null => command.stdin(Stdio::null()),
            Stdin::File => command.stdin(File::open(place.join("in")).unwrap()),
            Stdin::Pipe => command.stdin(Stdio::piped()),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(mut stdin) = child.stdin.take() {
            // Whoever complains of its options does not read; what an input has at most fits a
            // pipe.
            let _ = stdin.write_all(&self.files["in"]);
        }
        let output = child.wait_with_output().unwrap();
        let files = fs::read_dir(place).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        });
        Did { code: output.status.code(), out: output.stdout, err: words(&output.stderr), files: files.collect() }
    }
}

/// The words of a program without its name, and without what 9.1 said before them.
fn words(err: &[u8]) -> String {
    let text = String::from_utf8_lossy(err).replace("'dpipe sort ", "'sort ");
    let lines = text.split_inclusive('\n').map(|line| line.strip_prefix("dpipe ").unwrap_or(line));
    lines.collect::<String>().replace("sort: note numbers", "sort: numbers")
}

fn dpipe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dpipe"));
    command.arg("sort");
    command
}

/// Runs both, and says where they differ.
fn compare(gnu: &GnuSort, line: &Line, places: &[PathBuf; 2], context: &str) -> Option<String> {
    let (want, got) = (line.run(gnu.command(), &places[0]), line.run(dpipe(), &places[1]));
    if want == got {
        return None;
    }
    let mut text = format!("{context}: {}: GNU ended with {:?}, dpipe with {:?}", line.shown(), want.code, got.code);
    for (name, want, got) in
        [("output", &want.out[..], &got.out[..]), ("words", want.err.as_bytes(), got.err.as_bytes())]
    {
        let lines = |bytes: &[u8]| bytes.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let (want, got) = (lines(want), lines(got));
        if let Some(at) = (0..want.len().max(got.len())).find(|at| want.get(*at) != got.get(*at)) {
            let show =
                |lines: &[Vec<u8>]| lines.get(at).map_or("nothing".into(), |l| format!("\"{}\"", l.escape_ascii()));
            text += &format!("\n  {name}, line {}: GNU {}, dpipe {}", at + 1, show(&want), show(&got));
        }
    }
    if want.files != got.files {
        text += "\n  the files they leave differ";
    }
    Some(text)
}

/// A line that makes sense: an order, an input, and a way to use them.
fn sensible(seed: u64, gnu: &GnuSort) -> Line {
    let mut case = Case::new(seed, gnu);
    let random = &mut Random(seed ^ 0x5eed);
    let mut files = BTreeMap::from([("salt".to_owned(), SALT.to_vec())]);
    let mut stdin = Stdin::Null;
    let mut rest: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| rest.extend(words.iter().map(OsString::from));
    add(&["--random-source=salt"]);
    for extra in ["--parallel=3", "-S20M", "--batch-size=3", "-y", "-T."] {
        if random.one_in(6) {
            add(&[extra]);
        }
    }
    match random.below(10) {
        0 => add(&["in"]),
        1 => stdin = Stdin::File,
        2 => stdin = Stdin::Pipe,
        3 => {
            stdin = [Stdin::File, Stdin::Pipe][random.below(2)];
            add(&["-", "in", "-"]);
        }
        4 => {
            files.insert("list".into(), b"in\0in".to_vec());
            add(&["--files0-from=list"]);
        }
        5 => add(&["-o", ["in", "out"][random.below(2)], "in"]),
        // 9.1 looks for months behind the key's end.
        6 if gnu.is_modern() || !case.options.effective_keys().iter().any(|key| key.modifiers.month) => {
            add(&["--debug", "in"]);
        }
        6 => add(&["in"]),
        7 => add(&[["-c", "-C", "--check=quiet", "--check"][random.below(4)], "in"]),
        way => {
            // In order already: what is merged, and what -c finds nothing in.
            let order = case.options.compile().unwrap();
            let mut half = Case::new(seed, gnu);
            half.input.truncate(half.input.len() / 2);
            files.insert("other".into(), half.sorted(&order));
            case.input = case.sorted(&order);
            add(if way == 8 { &["-m", "in", "other"] } else { &["-c", "in"] });
        }
    }
    let mut arguments = case.arguments();
    arguments.extend(rest);
    files.insert("in".into(), case.input);
    Line { arguments, stdin, files }
}

/// A line that most likely makes no sense.
fn wild(seed: u64, gnu: &GnuSort) -> Line {
    const WORDS: [&str; 72] = [
        "in",
        "in",
        "in",
        "-",
        "absent",
        "empty",
        "a b",
        "-c",
        "-C",
        "-m",
        "-u",
        "-s",
        "-z",
        "-n",
        "-g",
        "-h",
        "-M",
        "-V",
        "-R",
        "-d",
        "-i",
        "-f",
        "-b",
        "-r",
        "-k1",
        "-k",
        "2",
        "-k2,1",
        "-k1.0",
        "-k0",
        "-k1x",
        "-k1,1n",
        "-k1,2.3bR",
        "-t",
        ":",
        "-tab",
        "-t,",
        "-o",
        "out",
        "-oin",
        "-S",
        "1x",
        "-S2%",
        "-S1R",
        "-T.",
        "+1",
        "-2",
        "+0.1b",
        "-1.2",
        "--parallel=0",
        "--parallel=2",
        "--batch-size=1",
        "--batch-size=2",
        "--debug",
        "--debug",
        "--sort=x",
        "--sort=g",
        "--check=s",
        "--check=x",
        "--files0-from=list",
        "--files0-from=zero",
        "--random-source=salt",
        "--r",
        "--rev",
        "--key=1",
        "--key",
        "--stable=1",
        "--no-such",
        "-x",
        "--",
        "-y",
        "--zero",
    ];
    let random = &mut Random(seed ^ 0xbad);
    let count = 1 + random.below(6);
    let mut arguments: Vec<OsString> = (0..count).map(|_| WORDS[random.below(WORDS.len())].into()).collect();
    // A size with the suffix R is too large; 9.1 does not know the suffix.
    arguments.retain(|word| gnu.is_modern() || word != "-S1R");
    if random.one_in(2) {
        arguments.push("in".into());
    }
    // Which of random orders it is must be the same for both.
    arguments.insert(0, "--random-source=salt".into());
    let files = [
        ("in", &b"b:2\n a:1\na:1\nB:3\n"[..]),
        ("empty", b""),
        ("list", b"in\0empty\0"),
        ("zero", b"in\0\0in"),
        ("salt", &SALT),
    ];
    let files = files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).into();
    Line { arguments, stdin: [Stdin::Null, Stdin::File, Stdin::Pipe][random.below(3)], files }
}

fn try_all(test: &str, count: u64, line: impl Fn(u64, &GnuSort) -> Line) {
    let Some(gnu) = GnuSort::find(test) else { return };
    let folder = folder();
    let places = [folder.path("gnu"), folder.path("ours")];
    let (first, cases) = (datapipes_testkit::seed(1), setting("LINES_CASES", count));
    let differ = |seed| compare(&gnu, &line(seed, &gnu), &places, &format!("seed {seed}"));
    let found: Vec<String> = (first..first + cases).filter_map(differ).take(3).collect();
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[test]
fn sensible_lines() {
    try_all("sensible_lines", 300, sensible);
}

#[test]
fn wild_lines() {
    try_all("wild_lines", 300, wild);
}
