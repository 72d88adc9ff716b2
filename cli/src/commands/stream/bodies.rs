//! The devices of a stream: what runs in their locked-down processes. The sink is the fabric's own; source and transform are
//! like the fabric's, and tell how far they are.

use std::os::fd::{AsFd, OwnedFd};

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::channel::{Head, Outcome, Reply};
use datapipes_fabric::device::{Body, Function, Functions, Spread, Stage};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use serde_json::Value;

use super::meter::Teller;

/// The body of a source: descriptors of what is read, and of its meter.
pub(super) const SOURCE: &str = "stream-source";
/// The body of a transform: arguments `function` and `arguments`, the descriptor of its meter.
pub(super) const TRANSFORM: &str = "stream-transform";

/// What processes of this program that are devices can run.
pub(crate) fn functions() -> Functions {
    Functions::default()
        .with("lz4", |_| Ok(Box::new(Frame)))
        .with_body(SOURCE, |_, given| Ok(Box::new(Source::new(given)?)))
        .with_body(TRANSFORM, |arguments, given| Ok(Box::new(Transform::new(arguments, given)?)))
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "launch", format!("{what} was not given"))
}

/// Reads a file or a connection to its end, in whole blocks but for the last: so blocks are the same however a network cuts
/// them, and what becomes of them can be computed again.
struct Source {
    from: OwnedFd,
    teller: Teller,
}

impl Source {
    fn new(given: Vec<OwnedFd>) -> Result<Source> {
        let mut given = given.into_iter();
        let from = given.next().ok_or_else(|| missing("what to read"))?;
        Ok(Source { from, teller: Teller::new(given.next().ok_or_else(|| missing("a meter"))?) })
    }
}

impl Body for Source {
    fn run(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        let mut sum = crc32fast::Hasher::new();
        loop {
            // No credit is held before there is something to send.
            await_bytes(&self.from, stage)?;
            let outlet = stage.outlets.first_mut().ok_or_else(|| missing("an outlet"))?;
            let mut grant = outlet.grant()?;
            let got = fill(&self.from, grant.bytes())?;
            if got == 0 {
                break;
            }
            sum.update(&grant.bytes()[..got]);
            grant.send(got, Head { words: [stage.so_far.bytes_out, 0, 0, 0], end: false })?;
            stage.so_far.blocks_out += 1;
            stage.so_far.bytes_out += got as u64;
            self.teller.note(stage)?;
        }
        stage.finish([stage.so_far.bytes_out, 0, 0, 0])?;
        self.teller.finished(stage)?;
        let crc = sum.finalize();
        let mut report = std::mem::take(&mut stage.so_far);
        (report.blocks_in, report.bytes_in, report.crc) = (report.blocks_out, report.bytes_out, Some(crc));
        stage.attendant.report(report)
    }
}

/// Waits for bytes, looking after the channel meanwhile.
fn await_bytes(from: &OwnedFd, stage: &mut Stage<'_>) -> Result<()> {
    loop {
        let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match poll(&mut [PollFd::new(&from.as_fd(), PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(Error::os("read", e.raw_os_error(), "waiting for the source")),
        }
        stage.outlets.iter_mut().try_for_each(|outlet| outlet.poll())?;
    }
}

/// Reads until the block is full or nothing more comes.
fn fill(from: &OwnedFd, target: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match rustix::io::read(from, &mut target[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("read", e.raw_os_error(), "the source")),
        }
    }
    Ok(done)
}

struct Transform {
    function: Box<dyn Function>,
    teller: Teller,
}

impl Transform {
    fn new(arguments: &Value, given: Vec<OwnedFd>) -> Result<Transform> {
        let name = arguments["function"].as_str().ok_or_else(|| missing("a function"))?;
        let function = functions().function(name, &arguments["arguments"])?;
        let teller = Teller::new(given.into_iter().next().ok_or_else(|| missing("a meter"))?);
        Ok(Transform { function, teller })
    }
}

impl Body for Transform {
    fn run(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        while let Some(block) = stage.receive()? {
            let head = block.head();
            if !block.is_empty() {
                let function = &mut self.function;
                let next = Head { end: false, ..head };
                if let Err(e) = stage.send(Spread::Turns, next, |target| function.apply(&block, target)) {
                    block.reply(Reply { outcome: Outcome::of_error(&e), word: 0 })?;
                    return Err(e);
                }
            }
            self.teller.note(stage)?;
            if head.end {
                // What is still under way is as good as done: the end of the stream waits for it.
                self.teller.finished(stage)?;
                let crc = self.function.finish();
                stage.end(block, None, crc)?;
            } else {
                block.done()?;
            }
        }
        Ok(())
    }
}

/// LZ4 as its command line tool reads it (the legacy frame: a magic number, and the length of the block): each block is a
/// frame, and frames may follow each other.
struct Frame;

const LEGACY_MAGIC: u32 = 0x184C_2102;
/// What compressing asks for beyond a tenth more than a block has: 20 bytes, and 8 for the frame.
pub(super) const FRAME_BYTES: usize = 32;

impl Function for Frame {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let all = output.len();
        let short =
            || Error::new(ErrorKind::OutOfRange, "compress", format!("{} bytes into a block of {all}", input.len()));
        let (head, body) = output.split_first_chunk_mut::<8>().ok_or_else(short)?;
        let len = lz4_flex::block::compress_into(input, body).map_err(|_| short())?;
        head[..4].copy_from_slice(&LEGACY_MAGIC.to_le_bytes());
        // It fits: a block is 8 MiB at most, see `Args`.
        head[4..].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(8 + len)
    }
}
