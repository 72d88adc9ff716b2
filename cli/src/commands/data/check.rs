//! `dpipe check`: order, number, duplicates and checksum of records.
//!
//! ```text
//! a file or an object is cut into as many parts as there are cores, at the ends of records
//! each core: part -> pipe -> window -> checker;  then the summaries are joined, part by part
//! ```

use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::{Dram, Error, ErrorKind, Locator, Machine, Result, Span, Ssd};
use datapipes_data::validate::{Checker, DataFormat, ValidationSummary};
use datapipes_sort::Input;
use datapipes_sort::text::{KeySpec, TextOptions};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::kind::{self, DataKind};
use crate::objects::{self, AnyObject, ObjectAccess, is_object};
use crate::outcome::{CommandStatus, print, print_json, shown_path};
use crate::progress::{self, State};
use crate::system::signals::{self, WaitsFor};
use crate::system::window::Window;
use crate::{arguments::units, system::threads};

/// Bytes of a look for the end of a line.
const PEEK: usize = 64 << 10;

const ENDING: Ending = Ending {
    notes: "\
An object (s3://BUCKET/KEY, gs://, az://, http://, https://) is read at one version; credentials and
endpoint are those of the cloud's own tools. A pattern that ends in `*` (s3://BUCKET/sorted/part-*)
stands for all objects that it fits, in the order of their keys. Several files are checked as if
they were one, in the order given (`dpipe check records sorted/part-*`): the first record of a file
must not be less than the last one of the file before.",
    zero: "the records are in order",
    one: Some("the records are not in order, or the last one is incomplete"),
    examples: &[
        "dpipe check lines sorted.txt",
        "dpipe check u64 sorted.u64 --json",
        "dpipe sort -n lines.txt | dpipe check lines --order n -",
    ],
};

/// Checks the order of files, counts their records and duplicates, and adds up their checksum.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.after(&kind::help()))]
pub(crate) struct Args {
    /// Kind of data in the files; the list is below
    #[arg(value_parser = kind::parser(), hide_possible_values = true)]
    kind: DataKind,
    /// Files or objects to check, in order; `-` alone is the standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Check lines by this key, as sort -k takes it (may be repeated)
    #[arg(short, long, value_name = "KEYDEF")]
    key: Vec<String>,
    /// Separator of the fields of a line, as sort -t takes it
    #[arg(short = 't', long, value_name = "SEP")]
    field_separator: Option<char>,
    /// Ordering letters of sort, such as `n` or `bf`, for whole lines and for keys without any
    #[arg(long, value_name = "LETTERS", default_value = "")]
    order: String,
    /// Count lines with equal keys as duplicates, whatever else is in them
    #[arg(short, long)]
    stable: bool,
    /// Read lines that end with NUL, not with a newline
    #[arg(short, long)]
    zero_terminated: bool,
    /// Print JSON: kind, sorted, files, records, bytes, unordered, first_unordered_record and
    /// first_unordered_offset (counted over all files), first_unordered_file, duplicates, checksum,
    /// trailing_bytes, seconds, bytes_per_second
    #[arg(long)]
    json: bool,
}

/// The shape of a record.
struct Shape {
    format: DataFormat,
    /// The byte that ends a line.
    terminator: u8,
}

#[derive(Serialize)]
struct Outcome {
    kind: String,
    /// Whether no record is less than the one before it, and the last one is complete.
    sorted: bool,
    /// The number of files.
    files: usize,
    /// The file with the first record that is less than the one before it.
    first_unordered_file: Option<String>,
    /// The checksum in it is valsort's: the sum of the records' CRC-32, in hexadecimal, the same
    /// for every order.
    #[serde(flatten)]
    summary: ValidationSummary,
    seconds: f64,
    bytes_per_second: f64,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let shape = shape(args)?;
    let machine = datapipes::discover();
    let started = Instant::now();
    let mut checking = Checking { machine: &machine, shape: &shape, access: None, catches: false };
    let (mut summary, mut first) = (ValidationSummary::default(), None);
    let files = checking.files(&args.files)?;
    // Before any of them is read: one whose turn comes late may have been cut by then.
    let lens = files.iter().map(|file| first_len(file)).collect::<Result<Vec<_>>>()?;
    for (file, least) in files.iter().zip(lens) {
        let before = summary.records;
        let next = checking.file(file, least, files.len() == 1)?;
        summary = summary.join(next, &shape.format);
        if first.is_none() {
            first = summary.first_unordered_record.map(|record| FirstUnordered { file, record: record - before });
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let outcome = Outcome {
        kind: args.kind.to_string(),
        sorted: summary.is_ordered(),
        files: files.len(),
        first_unordered_file: first.as_ref().map(|first| shown_path(first.file)),
        seconds,
        bytes_per_second: units::bytes_per_second(summary.bytes, seconds),
        summary,
    };
    if args.json {
        print_json(&outcome)?
    } else {
        print(&text(&files, first, &outcome))?
    }
    Ok(if outcome.sorted { CommandStatus::Good } else { CommandStatus::Bad })
}

/// The first record that is less than the one before it.
struct FirstUnordered<'a> {
    file: &'a Path,
    /// Its number in this file.
    record: u64,
}

/// What is needed to check one file after the other.
struct Checking<'a> {
    machine: &'a Machine,
    shape: &'a Shape,
    /// The way to objects, once there was one.
    access: Option<ObjectAccess>,
    /// Whether signals are caught: not where a stream may say nothing for ever.
    catches: bool,
}

impl Checking<'_> {
    fn access(&mut self) -> Result<&ObjectAccess> {
        match &mut self.access {
            Some(access) => Ok(access),
            none => Ok(none.insert(ObjectAccess::to_read()?)),
        }
    }

    /// The files by their names. A pattern of objects stands for each of them, in the order of
    /// their keys.
    fn files(&mut self, names: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for name in names {
            match name.to_str().filter(|name| is_object(name)) {
                None => files.push(name.clone()),
                Some(address) => {
                    files.extend(objects::inputs(self.access()?, "check", address)?.into_iter().map(PathBuf::from));
                }
            }
        }
        Ok(files)
    }

    /// Checks a file that had at least so many bytes.
    fn file(&mut self, file: &Path, least: u64, alone: bool) -> Result<ValidationSummary> {
        if let Some(address) = file.to_str().filter(|name| is_object(name)) {
            let object = self.access()?.open(address)?;
            self.catch();
            return in_parallel(self.machine, &Subject::object(self.machine, &object)?, self.shape);
        }
        let (input, len) = open_whole(file, least)?;
        match input {
            // What a `-` before it has read would be missing.
            Input::File { ssd, from: 0 } if alone || file != Path::new("-") => {
                self.catch();
                in_parallel(self.machine, &Subject::file(&ssd, len), self.shape)
            }
            // An empty file, and one of the kernel's, has no length to cut.
            input if alone || is_regular(file) => stream(input, len, &self.shape.format),
            _ => {
                let why = format!("{}: a stream is checked alone, beside no other file", shown_path(file));
                Err(Error::new(ErrorKind::InvalidInput, "check", why)
                    .with_advice("`cat` what is to be checked into one"))
            }
        }
    }

    fn catch(&mut self) {
        if !std::mem::replace(&mut self.catches, true) {
            signals::catch(WaitsFor::Places);
        }
    }
}

fn is_regular(file: &Path) -> bool {
    file != Path::new("-") && file.metadata().is_ok_and(|facts| facts.is_file())
}

fn shape(args: &Args) -> Result<Shape> {
    let bad = |why: String| Error::new(ErrorKind::InvalidInput, "check", why);
    let mut options = TextOptions::default().stable(args.stable);
    for letter in args.order.bytes() {
        if !options.modifiers.set(letter) {
            return Err(bad(format!("`{}` is no ordering letter", letter.escape_ascii())));
        }
    }
    options.keys = args.key.iter().map(|key| KeySpec::parse(key.as_bytes())).collect::<Result<_>>()?;
    if let Some(separator) = args.field_separator {
        options.separator = Some(u8::try_from(separator).map_err(|_| bad(format!("-t {separator}: give one byte")))?);
    }
    let format = kind::format(args.kind);
    if options == TextOptions::default() && !args.zero_terminated {
        return Ok(Shape { format, terminator: b'\n' });
    }
    if !matches!(args.kind, DataKind::Lines(_)) {
        return Err(bad(format!("-k, -t, -s, -z and --order are for lines, not for {}", args.kind)));
    }
    let order = options.compile()?;
    let format = format.ordered_by(move |one, other| order.compare(one, other));
    let terminator = if args.zero_terminated { 0 } else { b'\n' };
    Ok(Shape { format: format.terminated_by(terminator), terminator })
}

/// A look at the bytes at an offset, of which fewer come at the end.
type Peek<'a> = Box<dyn Fn(u64, &mut [u8]) -> Result<usize> + 'a>;

/// What is checked: a place of known length.
struct Subject<'a> {
    place: &'a (dyn Locator + Sync),
    len: u64,
    peek: Peek<'a>,
}

impl<'a> Subject<'a> {
    fn file(ssd: &'a Ssd, len: u64) -> Subject<'a> {
        // A look at some bytes to find where to cut; all that is checked goes through the pipe.
        let peek = |at: u64, piece: &mut [u8]| {
            rustix::io::pread(ssd.file().cached_fd(), piece, at)
                .map_err(|e| Error::os("read", e.raw_os_error(), ssd.path().display().to_string()).with_offset(at))
        };
        Subject { place: ssd, len, peek: Box::new(peek) }
    }

    fn object(machine: &Machine, object: &'a AnyObject) -> Result<Subject<'a>> {
        let memory = Dram::allocate(PEEK)?;
        let pipe = machine.connect(object, &memory)?;
        let len = object.len();
        let peek = move |at: u64, piece: &mut [u8]| {
            let there = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX).min(piece.len()).min(PEEK);
            pipe.transfer(Span { source: at, target: 0, len: there as u64 })?;
            piece[..there].copy_from_slice(&memory.range(0, there)?.lease()?);
            Ok(there)
        };
        Ok(Subject { place: object, len, peek: Box::new(peek) })
    }
}

fn in_parallel(machine: &Machine, subject: &Subject<'_>, shape: &Shape) -> Result<ValidationSummary> {
    let len = subject.len;
    let done = AtomicU64::new(0);
    let parts = cut(subject, shape, machine.topology().usable_cores().count().max(1))?;
    let place = subject.place;
    let state = || State { phase: "checking", done: done.load(Relaxed), total: len, later: 0 };
    let summaries = progress::during(progress::wanted(), state, || {
        let one = |part: usize| look(machine, place, &shape.format, parts[part].clone(), &done);
        threads::map_on_threads("check", parts.len(), one)
    })?;
    Ok(summaries.into_iter().fold(ValidationSummary::default(), |before, next| before.join(next, &shape.format)))
}

/// Parts of about the same length that begin where records begin.
fn cut(subject: &Subject<'_>, shape: &Shape, count: usize) -> Result<Vec<Range<u64>>> {
    const WORTH_IT: u64 = 16 << 20;
    let len = subject.len;
    let count = (len / WORTH_IT).clamp(1, count as u64);
    let mut starts = vec![0];
    for part in 1..count {
        let about = len / count * part;
        let start = match shape.format.record_len() {
            Some(record) => about / record as u64 * record as u64,
            None => next_line(&subject.peek, shape.terminator, about)?.unwrap_or(len),
        };
        starts.push(start.max(starts[starts.len() - 1]));
    }
    starts.push(len);
    Ok(starts.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

/// Returns the start of the first line behind an offset.
fn next_line(peek: &Peek<'_>, terminator: u8, from: u64) -> Result<Option<u64>> {
    let mut piece = vec![0; PEEK];
    let mut at = from;
    loop {
        let read = peek(at, &mut piece)?;
        if read == 0 {
            return Ok(None);
        }
        if let Some(found) = memchr::memchr(terminator, &piece[..read]) {
            return Ok(Some(at + found as u64 + 1));
        }
        at += read as u64;
    }
}

fn look(
    machine: &Machine,
    place: &dyn Locator,
    format: &DataFormat,
    part: Range<u64>,
    done: &AtomicU64,
) -> Result<ValidationSummary> {
    let mut checker = Checker::new(format.clone());
    Window::over(machine, place, part.end)?.read(part, |bytes| {
        signals::check("check")?;
        checker.feed(bytes);
        done.fetch_add(bytes.len() as u64, Relaxed);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(checker.finish())
}

/// Checks an input that is a stream, or that begins in the middle of a file.
fn stream(input: Input, least: u64, format: &DataFormat) -> Result<ValidationSummary> {
    let mut checker = Checker::new(format.clone());
    each_piece(input, least, |bytes| {
        checker.feed(bytes);
        ControlFlow::Continue(())
    })?;
    Ok(checker.finish())
}

/// Returns the bytes that a file has to give, or 0 if it is no file or does not say its length.
pub(crate) fn first_len(name: &Path) -> Result<u64> {
    match name.to_str().is_some_and(is_object) {
        true => Ok(0),
        false => match Input::deferred(name)? {
            Input::Deferred { least, .. } => Ok(least),
            _ => Ok(0),
        },
    }
}

/// Opens an input that had at least so many bytes at first. Returns how many it has to give, or 0
/// if it does not say that. From here on no other length of it counts.
pub(crate) fn open_whole(name: &Path, least: u64) -> Result<(Input, u64)> {
    let input = Input::open(name)?;
    // A file that does not say its length is a stream.
    let Input::File { ssd, from } = &input else { return Ok((input, least)) };
    let len = ssd.len()?.saturating_sub(*from);
    match len < least {
        true => Err(was_cut(&input.name().display().to_string(), least, len)),
        false => Ok((input, len)),
    }
}

fn was_cut(name: &str, had: u64, has: u64) -> Error {
    Error::new(ErrorKind::EndOfFile, "read", format!("{name}: it had {had} bytes at first, and gives only {has}"))
        .with_advice("check it again while no other program shortens it")
}

/// Reads an input with `read`, and hands on each piece. That it gives fewer bytes than the least is
/// an error.
pub(crate) fn each_piece(input: Input, least: u64, mut look: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<()> {
    let name = input.name().display().to_string();
    let fail = |e: std::io::Error| Error::io("read", e, name.clone());
    let (mut file, mut read) = (input.into_file()?, 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) if read < least => return Err(was_cut(&name, least, read)),
            Ok(0) => return Ok(()),
            Ok(n) => {
                read += n as u64;
                if look(&buffer[..n]).is_break() {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(fail(e)),
        }
    }
}

fn text(files: &[PathBuf], first: Option<FirstUnordered<'_>>, outcome: &Outcome) -> String {
    let o = &outcome.summary;
    let name = match files {
        [file] => shown_path(file),
        several => format!("{} files", several.len()),
    };
    let mut out = format!(
        "{name}: {} records, {}, checksum {}, {} duplicates, {}\n",
        o.records,
        units::bytes(o.bytes),
        o.checksum_hex(),
        o.duplicates,
        units::rate(o.bytes, outcome.seconds)
    );
    match first {
        Some(FirstUnordered { file, record }) => {
            let of = if files.len() > 1 { format!(" of {}", shown_path(file)) } else { String::new() };
            out += &format!("NOT IN ORDER: {} records, the first is record {record}{of}, counted from 0\n", o.unordered)
        }
        None => out += "in order\n",
    }
    if o.trailing_bytes > 0 {
        let at = if files.len() > 1 { "ends" } else { "end" };
        out += &format!("INCOMPLETE: {} bytes at the {at} are less than a record\n", o.trailing_bytes);
    }
    out
}
