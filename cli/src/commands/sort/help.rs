//! The help of `dpipe sort`, and the options in it as clap describes them: for completions and man
//! pages. The help is the one list of the options.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};

use crate::arguments::sort_args::names::{CHECK_WORDS, COMPRESSION_WORDS, METHOD_WORDS, SORT_WORDS, SPILL_WORDS};

pub(super) const TEXT: &str = "\
Usage: dpipe sort [OPTION]... [FILE]...
  or:  dpipe sort [OPTION]... --files0-from=F
Write sorted concatenation of all FILE(s) to standard output. With no FILE, or when FILE is -, read standard input.
Bytes, options and exit codes are those of GNU sort (coreutils 9.11) in the C locale; order is by bytes.

Ordering options:
  -b, --ignore-leading-blanks  ignore leading blanks
  -d, --dictionary-order       consider only blanks and alphanumeric characters
  -f, --ignore-case            fold lower case to upper case characters
  -g, --general-numeric-sort   compare according to general numerical value
  -i, --ignore-nonprinting     consider only printable characters
  -M, --month-sort             compare (unknown) < 'JAN' < ... < 'DEC'
  -h, --human-numeric-sort     compare human readable numbers (e.g., 2K 1G)
  -n, --numeric-sort           compare according to string numerical value
  -R, --random-sort            shuffle, but group identical keys
      --random-source=FILE     get random bytes from FILE
  -r, --reverse                reverse the result of comparisons
      --sort=WORD              general-numeric -g, human-numeric -h, month -M, numeric -n, random -R, version -V
  -V, --version-sort           natural sort of (version) numbers within text

Other options:
      --batch-size=NMERGE      merge at most NMERGE runs at once
  -c, --check, --check=diagnose-first   check for sorted input; do not sort
  -C, --check=quiet            like -c, but do not report the first bad line
      --compress-program=PROG  compress runs that do not fit the memory with PROG; decompress them with PROG -d
      --debug                  underline the part of each line that is compared, and warn of odd options
      --files0-from=F          read names of files from F, ended by NULs; if F is -, from standard input
  -k, --key=KEYDEF             sort via a key; KEYDEF gives location and type: F[.C][OPTS][,F[.C][OPTS]]
  -m, --merge                  merge already sorted files; do not sort
  -o, --output=FILE            write result to FILE: it appears when it is complete, and may be one of the inputs
  -s, --stable                 stabilize sort by disabling last-resort comparison
  -S, --buffer-size=SIZE       use SIZE of memory for everything: b, K (default), M, G, ..., or % of physical memory
  -t, --field-separator=SEP    use SEP instead of non-blank to blank transition
  -T, --temporary-directory=LIST  put runs that do not fit the memory there, not in $TMPDIR or /tmp: a directory, or places
                               with commas between them, each taken when the one before is full; several -T take turns
      --parallel=N             change the number of sorts run concurrently to N
  -u, --unique                 output only the first of lines with equal keys; with -c, check for strict ordering
  -z, --zero-terminated        line delimiter is NUL, not newline
      --help                   display this help and exit
      --version                output version information and exit

Options that GNU sort does not have:
      --memory=SIZE            the same as -S: the memory budget, as other commands call it
      --threads=N              the same as --parallel, as other commands call it
      --records[=LEN[:KEYOFFSET[:KEYLEN]]]  binary records by the bytes of their key; 100:0:10 without a value
      --u32, --u64, --i64, --f64   little-endian binary numbers
      --report                 show on standard error which bytes went which way
      --report-html=FILE       write a page about the sort to FILE, for a browser: what its threads did over time,
                               the bottleneck, routes, what was verified; as JSON if the name ends with .json
      --json                   what --report shows as JSON, on standard output with -o, else on standard error: records,
                               records_out, bytes, bytes_out, runs, merge_passes, memory_bytes, memory_touched_bytes, memory_huge_bytes,
                               threads, phases, movements (role, between, primitive, pipes, counters), method, spill,
                               compression, waits (what, seconds), record_sum, written, dropped (records, bytes, sum),
                               seconds
      --metrics=FILE           write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
                               seconds and at the end
      --method=WORD            sort what does not fit memory by runs and merge (merge), by buckets where that is
                                 possible (distribute), or as usually takes less time (auto): buckets for
                                 numbers, runs and merge for everything else
      --spill-order=WORD       use the places of -T as given (given), or the cheapest of this machine first (cost)
      --spill-compression=WORD  compress runs that do not fit the memory: if that makes this sort faster, as
                               measured while it runs (auto, the default), always (on), or never (off)
      --no-sync                do not wait until files are durable that it writes: faster for many small files, and a power
                               failure or a crash of the system soon afterwards may leave it incomplete
      --explain                show on standard error which way bytes will go, and why; then sort
      --progress, --no-progress    a bar on standard error; by default where that is a terminal

Places of -T: DIR, ssd:DIR[?access=direct|cached], dram:SIZE[?node=N], numa:NODE?len=SIZE, pmem:DIR?limit=SIZE, each with
?limit=SIZE if it is to hold no more at once. Memory among them is beside -S. A place that fills up or fails while the sort
runs is left for the next; --report and --json say what went where, and why.

Without -S it takes half of the memory that is available, limits of the container honoured. Nothing is left behind
after an error or a signal: inputs are intact, the output is the old one or the complete new one; only where a new file
could not be all that the old one is (hard links, mounts, ...), -o writes in place once all is sorted; --report says why.

Not as GNU sort: always the C locale; -S below 16M is 16M; -T '' is refused; a PROG that cannot be started is an error;
a number or version that is a key (-n, -g, -h, -V) has a 64th of -S at most (64K to 1M) where the input does not fit.
GNU sort 9.1 orders otherwise: NaNs (-g), units R and Q (-h), names that begin with a dot (-V), the byte 0x80 (-n).

Exit status:
  0  sorted, or in order (-c, -C)
  1  not in order (-c, -C)
  2  an error, or a command line that makes no sense

Examples:
  dpipe sort lines.txt -o sorted.txt
  dpipe sort -n -k2,2 --memory=64M lines.txt
  dpipe sort --records input.records -o sorted.records --report
  dpipe sort --u64 --memory=16M --threads=2 -T . numbers.u64 -o sorted.u64 --json
  dpipe sort -c sorted.txt
";

/// Returns the options of the help as a clap command. It describes; `SortArgs` parses.
pub(crate) fn command() -> Command {
    let mut command = Command::new("sort")
        .about("Sorts files or the standard input, as GNU sort in the C locale does, or binary records and numbers")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .after_help(TEXT.find("Places of -T").and_then(|at| TEXT.get(at..)).unwrap_or_default());
    let mut known: Vec<&str> = Vec::new();
    let mut entries: Vec<(&str, String)> = Vec::new();
    for line in TEXT.lines() {
        let start = line.trim_start();
        match line.len() - start.len() {
            2 | 6 if start.starts_with('-') => {
                let (names, help) = start.split_once("  ").unwrap_or((start, ""));
                entries.push((names, help.trim_start().to_owned()));
            }
            20.. => entries.iter_mut().next_back().into_iter().for_each(|(_, help)| *help += &format!(" {start}")),
            _ => {}
        }
    }
    for (names, help) in &entries {
        for argument in arguments(names, &mut known) {
            command = command.arg(argument.help(help.clone()));
        }
    }
    command.arg(
        Arg::new("FILE").help("Files to sort; - is the standard input").num_args(0..).value_hint(ValueHint::FilePath),
    )
}

/// The options of one entry, such as `-k, --key=KEYDEF`. A short and a long name are one option;
/// further long names are options of their own.
fn arguments(names: &'static str, known: &mut Vec<&'static str>) -> Vec<Arg> {
    let mut short = None;
    let mut found = Vec::new();
    for name in names.split(", ") {
        let Some(long) = name.strip_prefix("--") else {
            short = name.chars().nth(1);
            continue;
        };
        let end = long.find(['=', '[']).unwrap_or(long.len());
        let (long, value) = (&long[..end], long[end..].trim_matches(['[', ']', '=']));
        if !known.contains(&long) {
            known.push(long);
            found.push(with_value(Arg::new(long).long(long), long, value, name.contains('[')).short(short.take()));
        }
    }
    if let (true, Some(letter)) = (found.is_empty(), short) {
        // Another letter for a value of an option that is known.
        found.push(Arg::new(&names[..2]).short(letter).action(ArgAction::SetTrue));
    }
    found
}

fn with_value(argument: Arg, long: &str, value: &'static str, optional: bool) -> Arg {
    let words: &'static [(&'static str, u8)] = match long {
        "check" => &CHECK_WORDS,
        "sort" => &SORT_WORDS,
        "method" => &METHOD_WORDS,
        "spill-order" => &SPILL_WORDS,
        "spill-compression" => &COMPRESSION_WORDS,
        _ => &[],
    };
    if value.is_empty() && words.is_empty() {
        return argument.action(ArgAction::SetTrue);
    }
    let least = usize::from(!(optional || long == "check"));
    let argument = argument.num_args(least..=1).require_equals(least == 0).action(ArgAction::Append);
    let argument = match value {
        "" => argument.value_name("WORD"),
        _ => argument.value_name(value),
    };
    match (words, value) {
        ([_, ..], _) => argument.value_parser(PossibleValuesParser::new(words.iter().map(|(word, _)| *word))),
        ([], "FILE" | "F" | "LIST") => argument.value_hint(ValueHint::AnyPath),
        ([], "PROG") => argument.value_hint(ValueHint::CommandName),
        ([], _) => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::sort_args::names::all_long;

    #[test]
    fn the_help_has_every_option_that_is_parsed_and_no_other() {
        let command = command();
        let mut shown: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
        let mut parsed = all_long();
        shown.sort_unstable();
        parsed.sort_unstable();
        assert_eq!(shown, parsed);
        let letters: String = command.get_arguments().filter_map(Arg::get_short).collect();
        assert_eq!(letters, "bdfgiMhnRrVcCkmosStTuz");
        assert!(command.get_arguments().all(|a| a.get_help().is_some_and(|help| !help.to_string().is_empty())));
        command.debug_assert();
    }
}
