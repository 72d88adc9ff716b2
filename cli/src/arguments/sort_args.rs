//! The arguments of `dpipe sort`: those of GNU `sort` with its wording and exit codes, and our own.
//!
//! Above 300 lines because what each option does and the checks between options are read together.
//! Rejected: clap, which neither knows `+POS1 -POS2` nor takes `-k1 -k2` and abbreviations as
//! `getopt_long` does. Our own options have no abbreviations, so that an abbreviation means here
//! what it means to GNU.

pub(crate) mod names;
#[cfg(test)]
mod tests;
mod usage;
mod values;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use names::Takes::{Argument, Nothing};
use names::{CHECK_WORDS, COMPRESSION_WORDS, METHOD_WORDS, SORT_WORDS, SPILL_WORDS, find_long, find_word};
use usage::misuse;
pub(crate) use usage::{RecordShape, UsageError, trouble};
use values::{batch_size, collation_note, most_merged, number, record_shape, size_message};

use datapipes::StageOrder;
use datapipes_sort::text::{BufferSize, KeySpec, TextOptions, TextOrder, quote};
use datapipes_sort::{SortMethod, SpillCompression};

use crate::arguments::quoting;
use crate::system::side_files::SideFileArgument;

/// The kind of records in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// Lines of text, ended by `terminator`.
    #[default]
    Lines,
    /// Fixed-size records, in the order of the bytes of their key.
    Records(RecordShape),
    /// Little-endian unsigned 32-bit numbers.
    U32,
    /// Little-endian unsigned 64-bit numbers.
    U64,
    /// Little-endian signed 64-bit numbers.
    I64,
    /// Little-endian doubles.
    F64,
}

/// The action that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Action {
    #[default]
    Sort,
    /// -m: the inputs are sorted already.
    Merge,
    /// -c, or (quiet) -C: exit with 1 at the first disorder.
    Check {
        quiet: bool,
    },
    Help,
    Version,
}

/// A command line that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Parsed {
    pub(crate) action: Action,
    pub(crate) format: Format,
    /// The order of lines; for other formats only -r, -s and -u of `options` count.
    pub(crate) order: TextOrder,
    pub(crate) options: TextOptions,
    /// Newline, or NUL under -z.
    pub(crate) terminator: u8,
    /// At least one, `-` is the standard input; under -c and -C exactly one.
    pub(crate) inputs: Vec<OsString>,
    pub(crate) output: Option<OsString>,
    /// All -S; see [`Parsed::buffer_bytes`].
    pub(crate) buffer_sizes: Vec<BufferSize>,
    /// All -T in their order; without any, the caller chooses (GNU: `TMPDIR`, then /tmp).
    pub(crate) temp_dirs: Vec<OsString>,
    pub(crate) spill_order: StageOrder,
    pub(crate) method: SortMethod,
    pub(crate) parallel: Option<usize>,
    pub(crate) batch_size: Option<usize>,
    /// Compresses spilled runs, and with `-d` decompresses them.
    pub(crate) compress_program: Option<OsString>,
    pub(crate) compression: SpillCompression,
    /// The list of names, where it was one.
    pub(crate) files0_from: Option<OsString>,
    /// The file with the salt of a random order. Without one, the system provides the salt.
    pub(crate) random_source: Option<OsString>,
    /// Show what of each line is compared, and warn of what is probably not meant.
    pub(crate) debug: bool,
    pub(crate) json: bool,
    /// `None`: where standard error is a terminal.
    pub(crate) progress: Option<bool>,
    pub(crate) report: bool,
    /// The file for a page about the sort.
    pub(crate) report_html: Option<SideFileArgument>,
    /// The file for metrics.
    pub(crate) metrics: Option<SideFileArgument>,
    pub(crate) explain: bool,
    /// Whether files that the command writes are durable when it ends.
    pub(crate) sync: bool,
    /// To be shown once on stderr: the environment asks for another order than that of bytes.
    pub(crate) collation_note: Option<String>,
}

impl Parsed {
    /// The largest of all -S, as GNU takes it; an error where one is a percentage that comes to
    /// 2^64 bytes or more.
    pub(crate) fn buffer_bytes(&self, physical_bytes: u64) -> Result<Option<u64>, UsageError> {
        let resolve = |size: &BufferSize| match (size.resolve(physical_bytes), size) {
            (None, BufferSize::Percent(percent)) => Err(trouble(format!("-S argument '{percent}%' too large"))),
            (bytes, _) => Ok(bytes),
        };
        self.buffer_sizes.iter().map(resolve).try_fold(None, |largest, bytes| Ok(largest.max(bytes?)))
    }

    /// Bytes of a record, where all have the same.
    pub(crate) fn record_len(&self) -> Option<usize> {
        match self.format {
            Format::Lines => None,
            Format::Records(shape) => Some(shape.len_bytes),
            Format::U32 => Some(4),
            Format::U64 | Format::I64 | Format::F64 => Some(8),
        }
    }
}

/// The parser: arguments still to come, and what the ones before said.
#[derive(Default)]
pub(crate) struct SortArgs {
    left: VecDeque<Vec<u8>>,
    options: TextOptions,
    check: Option<u8>,
    merge: bool,
    zero: bool,
    formats: Vec<(&'static str, Format)>,
    inputs: Vec<OsString>,
    files0_from: Option<OsString>,
    output: Option<OsString>,
    buffer_sizes: Vec<BufferSize>,
    temp_dirs: Vec<OsString>,
    spill_order: StageOrder,
    method: SortMethod,
    parallel: Option<usize>,
    batch_size: Option<usize>,
    compress_program: Option<OsString>,
    compression: SpillCompression,
    random_source: Option<OsString>,
    debug: bool,
    json: bool,
    progress: Option<bool>,
    report: bool,
    report_html: Option<SideFileArgument>,
    metrics: Option<SideFileArgument>,
    explain: bool,
    no_sync: bool,
    /// --help or --version: nothing behind it counts.
    stop: Option<Action>,
    /// Whether `+POS1` is a key.
    obsolescent: bool,
    posix: bool,
    /// The most inputs that --batch-size may name.
    most_merged: usize,
}

impl SortArgs {
    /// Parses the arguments behind `dpipe sort`; `env` looks up a variable of the environment,
    /// `list` reads the names in the file of --files0-from.
    pub(crate) fn parse(
        args: impl Iterator<Item = OsString>,
        env: impl Fn(&str) -> Option<OsString>,
        list: impl FnOnce(&OsStr) -> Result<Vec<OsString>, UsageError>,
    ) -> Result<Parsed, UsageError> {
        let version = env("_POSIX2_VERSION").and_then(|v| v.to_str()?.parse::<i64>().ok());
        let mut parser = SortArgs {
            left: args.map(OsString::into_vec).collect(),
            posix: env("POSIXLY_CORRECT").is_some(),
            obsolescent: !(200_112..200_809).contains(&version.unwrap_or(200_809)),
            most_merged: most_merged(),
            ..SortArgs::default()
        };
        while let Some(argument) = parser.left.pop_front() {
            if parser.options_are_over(&argument) {
                parser.inputs.push(OsString::from_vec(argument));
            } else if argument == b"--" {
                parser.inputs.extend(parser.left.drain(..).map(OsString::from_vec));
            } else if let Some(long) = argument.strip_prefix(b"--") {
                parser.long(long)?;
            } else if argument.len() > 1 && argument[0] == b'-' {
                parser.cluster(&argument[1..])?;
            } else {
                parser.operand(argument)?;
            }
            if parser.stop.is_some() {
                break;
            }
        }
        if let Some(action) = parser.stop {
            let nothing = SortArgs::default().finish(None)?;
            return Ok(Parsed { action, ..nothing });
        }
        parser.take_list(list)?;
        parser.finish(collation_note(env))
    }

    /// Under POSIXLY_CORRECT options end at the first file, but for GNU's `file... -o output`.
    fn options_are_over(&self, argument: &[u8]) -> bool {
        let output = argument.starts_with(b"-o") && (argument.len() > 2 || !self.left.is_empty());
        self.posix && !self.inputs.is_empty() && !(self.obsolescent && self.check.is_none() && output)
    }

    /// A file, or the obsolescent `+POS1 [-POS2]`.
    fn operand(&mut self, operand: Vec<u8>) -> Result<(), UsageError> {
        if operand.first() == Some(&b'+') {
            let minus = self.left.front().is_some_and(|a| matches!(a[..], [b'-', b'0'..=b'9', ..]));
            self.obsolescent |= minus && !self.posix;
            if self.obsolescent
                && let Some(mut key) = KeySpec::parse_plus(&operand)
            {
                if minus && let Some(end) = self.left.pop_front() {
                    key = key.end_minus(&end).map_err(|e| trouble(e.context()))?;
                }
                self.options.keys.push(key);
                return Ok(());
            }
        }
        self.inputs.push(OsString::from_vec(operand));
        Ok(())
    }

    /// Short options in one argument.
    fn cluster(&mut self, cluster: &[u8]) -> Result<(), UsageError> {
        for (at, &letter) in cluster.iter().enumerate() {
            let behind = &cluster[at + 1..];
            match letter {
                b'k' | b'o' | b'S' | b't' | b'T' | b'y' => {
                    let separate = behind.is_empty();
                    let argument = if separate { self.left.pop_front() } else { Some(behind.to_vec()) };
                    let missing = || misuse(format!("option requires an argument -- '{}'", letter as char));
                    let argument = argument.ok_or_else(missing)?;
                    if letter == b'y' {
                        // Solaris: ignored, and its argument only where it is a number.
                        if separate && !argument.iter().all(u8::is_ascii_digit) {
                            self.left.push_front(argument);
                        }
                        return Ok(());
                    }
                    return self.with_argument(letter, &format!("-{}", letter as char), argument);
                }
                _ => self.switch(letter)?,
            }
        }
        Ok(())
    }

    fn switch(&mut self, letter: u8) -> Result<(), UsageError> {
        match letter {
            b'c' | b'C' => {
                if self.check.is_some_and(|check| check != letter) {
                    return Err(trouble("options '-cC' are incompatible"));
                }
                self.check = Some(letter);
            }
            b'm' => self.merge = true,
            b's' => self.options.stable = true,
            b'u' => self.options.unique = true,
            b'z' => self.zero = true,
            _ if self.options.modifiers.set(letter) => {}
            _ => return Err(misuse(format!("invalid option -- '{}'", letter.escape_ascii()))),
        }
        Ok(())
    }

    /// An option with its argument; `shown` is how messages call it.
    fn with_argument(&mut self, letter: u8, shown: &str, argument: Vec<u8>) -> Result<(), UsageError> {
        match letter {
            b'k' => self.options.keys.push(KeySpec::parse(&argument).map_err(|e| trouble(e.context()))?),
            b'o' => only(&mut self.output, argument, "multiple output files specified")?,
            b'S' => {
                let size = BufferSize::parse(&argument);
                self.buffer_sizes.push(size.map_err(|e| trouble(size_message(e, shown, &argument)))?);
            }
            b't' => self.separator(&argument)?,
            _ => self.temp_dirs.push(OsString::from_vec(argument)),
        }
        Ok(())
    }

    fn separator(&mut self, argument: &[u8]) -> Result<(), UsageError> {
        let separator = match argument {
            [] => return Err(trouble("empty tab")),
            [byte] => *byte,
            b"\\0" => 0,
            _ => return Err(trouble(format!("multi-character tab {}", quote(argument)))),
        };
        if self.options.separator.is_some_and(|other| other != separator) {
            return Err(trouble("incompatible tabs"));
        }
        self.options.separator = Some(separator);
        Ok(())
    }

    /// A long option, without its dashes.
    fn long(&mut self, text: &[u8]) -> Result<(), UsageError> {
        let equals = text.iter().position(|&b| b == b'=');
        let (name, value) = match equals {
            Some(at) => (&text[..at], Some(text[at + 1..].to_vec())),
            None => (text, None),
        };
        let (name, takes, letter) = find_long(name)?;
        let value = match (takes, value) {
            (Nothing, Some(_)) => return Err(misuse(format!("option '--{name}' doesn't allow an argument"))),
            (Argument, None) => {
                let missing = || misuse(format!("option '--{name}' requires an argument"));
                Some(self.left.pop_front().ok_or_else(missing)?)
            }
            (_, value) => value,
        };
        match (letter, value) {
            (0, value) => self.long_only(name, value),
            (_, Some(value)) => self.with_argument(letter, &format!("--{name}"), value),
            (_, None) => self.switch(letter),
        }
    }

    fn long_only(&mut self, name: &'static str, value: Option<Vec<u8>>) -> Result<(), UsageError> {
        let given = value.as_deref().unwrap_or_default();
        match name {
            "check" => {
                let word = value.as_deref().map(|v| find_word(v, "--check", &CHECK_WORDS)).transpose()?;
                return self.switch(word.unwrap_or(b'c'));
            }
            "sort" => return self.switch(find_word(given, "--sort", &SORT_WORDS)?),
            "compress-program" => {
                only(&mut self.compress_program, given.to_vec(), "multiple compress programs specified")?;
            }
            "random-source" => only(&mut self.random_source, given.to_vec(), "multiple random sources specified")?,
            "debug" => self.debug = true,
            "files0-from" => self.files0_from = value.map(OsString::from_vec),
            "batch-size" => self.batch_size = Some(batch_size(given, self.most_merged)?),
            "parallel" | "threads" => {
                // As in GNU, more than can be counted is merely very many.
                self.parallel = Some(number(given, &format!("--{name}"))?);
                if self.parallel == Some(0) {
                    return Err(trouble("number in parallel must be nonzero"));
                }
            }
            "memory" => return self.with_argument(b'S', "--memory", given.to_vec()),
            "help" => self.stop = Some(Action::Help),
            "version" => self.stop = Some(Action::Version),
            "json" => self.json = true,
            "progress" => self.progress = Some(true),
            "no-progress" => self.progress = Some(false),
            "report" => self.report = true,
            "report-html" => only(&mut self.report_html, given.to_vec(), "multiple report files specified")?,
            "metrics" => self.metrics = value.map(|name| OsString::from_vec(name).into()),
            "explain" => self.explain = true,
            "no-sync" => self.no_sync = true,
            "spill-order" => {
                let given = find_word(given, "--spill-order", &SPILL_WORDS)?;
                self.spill_order = if given == b'c' { StageOrder::Cost } else { StageOrder::Given };
            }
            "spill-compression" => {
                self.compression = match find_word(given, "--spill-compression", &COMPRESSION_WORDS)? {
                    b'n' => SpillCompression::On,
                    b'f' => SpillCompression::Off,
                    _ => SpillCompression::Auto,
                };
            }
            "method" => {
                self.method = match find_word(given, "--method", &METHOD_WORDS)? {
                    b'm' => SortMethod::Merge,
                    b'd' => SortMethod::Distribution,
                    _ => SortMethod::Auto,
                };
            }
            "records" => self.formats.push((name, Format::Records(record_shape(value.as_deref())?))),
            "u32" => self.formats.push((name, Format::U32)),
            "u64" => self.formats.push((name, Format::U64)),
            "i64" => self.formats.push((name, Format::I64)),
            _ => self.formats.push((name, Format::F64)),
        }
        Ok(())
    }

    /// The names of --files0-from are the inputs.
    fn take_list(&mut self, read: impl FnOnce(&OsStr) -> Result<Vec<OsString>, UsageError>) -> Result<(), UsageError> {
        let Some(list) = &self.files0_from else { return Ok(()) };
        if let Some(extra) = self.inputs.first() {
            let extra = quoting::always(extra);
            return Err(misuse(format!("extra operand {extra}\nfile operands cannot be combined with --files0-from")));
        }
        self.inputs = read(list)?;
        Ok(())
    }

    /// The checks that need all options, in GNU's order.
    fn finish(mut self, collation_note: Option<String>) -> Result<Parsed, UsageError> {
        let order = self.options.compile().map_err(|e| trouble(e.context()))?;
        let format = self.format()?;
        if self.debug && format != Format::Lines {
            return Err(trouble("option '--debug' is for lines, not for records or numbers"));
        }
        if self.debug
            && let Some(other) = self.check.or(self.output.as_ref().map(|_| b'o'))
        {
            return Err(trouble(format!("options '-{} --debug' are incompatible", char::from(other))));
        }
        if let Some(check) = self.check.map(char::from) {
            if let Some(extra) = self.inputs.get(1) {
                let extra = quoting::always(extra);
                return Err(trouble(format!("extra operand {extra} not allowed with -{check}")));
            }
            if self.output.is_some() {
                return Err(trouble(format!("options '-{check}o' are incompatible")));
            }
            // Of a check there is no report.
            let of_a_sort = [
                (self.report_html.is_some(), "report-html"),
                (self.report, "report"),
                (self.json, "json"),
                (self.explain, "explain"),
            ];
            if let Some((_, option)) = of_a_sort.iter().find(|(given, _)| *given) {
                return Err(trouble(format!("options '-{check}' and '--{option}' are incompatible")));
            }
        }
        if self.inputs.is_empty() {
            self.inputs.push("-".into());
        }
        let action = match self.check {
            Some(check) => Action::Check { quiet: check == b'C' },
            None if self.merge => Action::Merge,
            None => Action::Sort,
        };
        Ok(Parsed {
            action,
            format,
            order,
            options: self.options,
            terminator: if self.zero { 0 } else { b'\n' },
            inputs: self.inputs,
            output: self.output,
            buffer_sizes: self.buffer_sizes,
            temp_dirs: self.temp_dirs,
            spill_order: self.spill_order,
            method: self.method,
            parallel: self.parallel,
            batch_size: self.batch_size,
            compress_program: self.compress_program,
            compression: self.compression,
            files0_from: self.files0_from,
            random_source: self.random_source,
            debug: self.debug,
            json: self.json,
            progress: self.progress,
            report: self.report,
            report_html: self.report_html,
            metrics: self.metrics,
            explain: self.explain,
            sync: !self.no_sync,
            // Records and numbers have no collation.
            collation_note: collation_note.filter(|_| format == Format::Lines),
        })
    }

    /// The one format; formats exclude each other and what only lines have.
    fn format(&self) -> Result<Format, UsageError> {
        let Some((name, format)) = self.formats.first() else { return Ok(Format::Lines) };
        if let Some((other, _)) = self.formats.iter().find(|(_, other)| other != format) {
            return Err(trouble(format!("options '--{name}' and '--{other}' are incompatible")));
        }
        let of_lines = [
            (!self.options.keys.is_empty(), "-k"),
            (self.options.separator.is_some(), "-t"),
            (self.zero, "-z"),
            (!self.options.modifiers.is_default(), "-bdfghiMnRV"),
        ];
        match of_lines.iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(trouble(format!("options '--{name}' and '{option}' are incompatible"))),
            None => Ok(*format),
        }
    }
}

/// Keeps an argument that may be repeated and must not change.
fn only<T: From<OsString> + PartialEq>(
    kept: &mut Option<T>,
    argument: Vec<u8>,
    otherwise: &str,
) -> Result<(), UsageError> {
    let argument = OsString::from_vec(argument).into();
    match kept {
        Some(other) if *other != argument => Err(trouble(otherwise)),
        _ => {
            *kept = Some(argument);
            Ok(())
        }
    }
}
