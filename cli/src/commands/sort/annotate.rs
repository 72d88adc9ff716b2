//! `--debug`: each sorted line with its keys underlined.
//!
//! ```text
//! engine --sorted lines--> a pipe of the system --> thread --line, underlines--> standard output
//! ```

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};

use datapipes::{Error, ErrorKind, Result};
use datapipes_sort::Output;
use datapipes_sort::text::{KeySpec, TextOptions};
use rustix::pipe::{PipeFlags, pipe_with};

use super::words::trouble;
use crate::arguments::sort_args::Parsed;
use crate::system::standard_streams;

/// The thread that underlines.
pub(super) struct Annotator(datapipes::threads::JoinHandle<Result<()>>);

/// Starts it before an output; the sorted lines are to be written to the one that is returned.
pub(super) fn start(parsed: &Parsed, output: Output) -> Result<(Annotator, Output)> {
    let Output::Stream { name, file: out } = output else {
        return Err(trouble(ErrorKind::InvalidInput, "--debug is for a standard output"));
    };
    let (from, to) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::os("make a pipe", e.raw_os_error(), "for --debug"))?;
    let underlines = Underlines::new(&parsed.options);
    let terminator = parsed.terminator;
    let work = move || annotate(BufReader::new(File::from(from)), terminator, &underlines, BufWriter::new(out));
    let thread = datapipes::threads::spawn("annotate", move || {
        work().map_err(|e| Error::io("write", e, standard_streams::OUTPUT))
    })?;
    Ok((Annotator(thread), Output::Stream { name, file: File::from(to) }))
}

impl Annotator {
    /// Waits until everything is written. Of two errors the thread's counts: where it ends, the
    /// engine only finds that its reader is gone.
    pub(super) fn finish<T>(self, sorted: Result<T>) -> Result<T> {
        datapipes::threads::join(self.0).map_err(|lost| lost.error("annotate"))??;
        sorted
    }
}

fn annotate(mut lines: impl BufRead, terminator: u8, underlines: &Underlines, mut out: impl Write) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.read_until(terminator, &mut line)? == 0 {
            return out.flush();
        }
        line.pop_if(|last| *last == terminator);
        let shown: Vec<u8> = line.iter().map(|byte| if *byte == b'\t' { b'>' } else { *byte }).collect();
        out.write_all(&shown)?;
        out.write_all(b"\n")?;
        underlines.write(&line, &mut out)?;
    }
}

/// The parts of a line that are underlined.
struct Underlines {
    keys: Vec<KeySpec>,
    separator: Option<u8>,
    /// Whether the whole line is compared, too.
    line: bool,
}

impl Underlines {
    fn new(options: &TextOptions) -> Underlines {
        let keys = options.effective_keys();
        let line = keys.is_empty() || !(options.stable || options.unique);
        Underlines { keys, separator: options.separator, line }
    }

    fn write(&self, line: &[u8], out: &mut impl Write) -> io::Result<()> {
        let keys = self.keys.iter().map(|key| key.extent(self.separator, line));
        for extent in keys.chain(self.line.then_some(0..line.len())) {
            let (before, marked) = (columns(&line[..extent.start]), columns(&line[extent]));
            write!(out, "{:before$}", "")?;
            match marked {
                0 => out.write_all("^ no match for key\n".as_bytes())?,
                marked => writeln!(out, "{:_<marked$}", "")?,
            }
        }
        Ok(())
    }
}

/// How many columns the bytes take on a terminal: control characters take none, but a tab is shown
/// as one character.
fn columns(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| !byte.is_ascii_control() || **byte == b'\t').count()
}
