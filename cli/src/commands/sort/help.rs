//! What `dpipe sort --help` prints.

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
      --records[=LEN[:KEYOFFSET[:KEYLEN]]]  binary records by the bytes of their key; 100:0:10 without a value
      --u32, --u64, --i64, --f64   little-endian binary numbers
      --report                 show on standard error which bytes went which way
      --json                   the same as JSON, on standard output with -o, else on standard error: records,
                               records_out, bytes, bytes_out, runs, merge_passes, memory_bytes, threads, phases,
                               movements (role, between, primitive, pipes, counters), spill, seconds
      --spill-order=WORD       take the places of -T as given, or by what this machine's ways to them and back cost: cost
      --explain                show on standard error which way bytes will go, and why; then sort
      --progress, --no-progress    a bar on standard error; by default where that is a terminal

Places of -T: DIR, ssd:DIR[?access=direct|cached], dram:SIZE[?node=N], numa:NODE?len=SIZE, pmem:DIR?limit=SIZE, each with
?limit=SIZE if it is to hold no more at once. Memory among them is beside -S. A place that fills up or fails while the sort
runs is left for the next; --report and --json say what went where, and why.

Without -S it takes half of the memory that is available, limits of the container honoured. Nothing is left behind
after an error or a signal: inputs are intact, the output is the old one or the complete new one; only where a new file
could not be all that the old one is (hard links, mounts, ...), -o writes in place once all is sorted; --report says why.

Not as GNU sort: always the C locale; -S below 16M is 16M; -T '' is refused; a PROG that cannot be started is an error.
GNU sort 9.1 orders otherwise: NaNs (-g), units R and Q (-h), names that begin with a dot (-V), the byte 0x80 (-n).

Exit codes: 0 sorted (or in order); 1 not in order (-c, -C); 2 an error.
";
