//! The devices of a stream: what runs in their locked-down processes. Most are the fabric's own; a
//! codec is not, because what it makes of a block may come out much later. Those that send have a
//! meter, for the command to see how far they are.

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::channel::{BlockOutcome, Head, Reply};
use datapipes_fabric::device::{Body, DeviceArguments, DeviceChannels, DeviceRole, Functions, Spread, body, metered};
use datapipes_fabric::transport::Block;

use super::blocks::told;
use super::codecs::{Codec, fill};
use super::device_progress::ProgressWriter;

/// A device with a meter: its arguments are the role, and the last descriptor given is the meter's.
const METERED: &str = "stream-metered";
/// The same, with the times of its blocks.
const TIMED: &str = "stream-timed";
/// A device that compresses or decompresses: its arguments are the codec.
const RECODE: &str = "stream-recode";

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "launch", what)
}

/// The functions that a device process of this program can run.
pub(crate) fn functions() -> Functions {
    let functions = Functions::default().with_body(RECODE, |codec, _| Ok(Box::new(Recode(codec.parse()?))));
    [(METERED, false), (TIMED, true)].into_iter().fold(functions, |functions, (name, measures)| {
        functions.with_body(name, move |role, given| with_progress(role, given, measures))
    })
}

fn with_progress(role: &DeviceArguments, mut given: Vec<OwnedFd>, measures: bool) -> Result<Box<dyn Body>> {
    let meter = given.pop().ok_or_else(|| wrong("a meter was not given".into()))?;
    let body = body(role.parse()?, given, &functions())?;
    Ok(metered(body, Box::new(ProgressWriter::new(meter, measures))))
}

/// The role, with a meter that measures times of blocks or does not.
pub(in crate::commands::stream) fn with_meter(role: &DeviceRole, measures: bool) -> Result<DeviceRole> {
    let name = if measures { TIMED } else { METERED };
    Ok(DeviceRole::Custom { name: name.into(), arguments: DeviceArguments::of(role)? })
}

/// The role of a codec.
pub(in crate::commands::stream) fn recode(codec: Codec) -> Result<DeviceRole> {
    Ok(DeviceRole::Custom { name: RECODE.into(), arguments: DeviceArguments::of(&codec)? })
}

struct Recode(Codec);

impl Body for Recode {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        if stage.inlets.len() != 1 || stage.outlets.len() != 1 {
            return Err(Error::new(ErrorKind::InvalidInput, "compress", "more than one stream in, or out"));
        }
        let mut target = vec![0; stage.outlets[0].shape().block_bytes];
        while let Some(block) = stage.receive()? {
            let input = RefCell::new(Input { stage, block: Some(block), at: 0 });
            let done = one(self.0, &input, &mut target);
            let Input { block, .. } = input.into_inner();
            match (done, block) {
                (Ok(()), Some(end)) => stage.end(end, None, None).map(|_| ())?,
                (Ok(()), None) => return Err(Error::new(ErrorKind::Corrupt, "compress", "a stream without its end")),
                (Err(e), block) => {
                    if let Some(block) = block {
                        block.reply(Reply { outcome: BlockOutcome::of_error(&e), word: 0 })?;
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }
}

/// One stream, but for its end.
fn one(codec: Codec, input: &RefCell<Input<'_, '_>>, target: &mut [u8]) -> Result<()> {
    let operation = "compress or decompress";
    let mut out = codec.over(Bytes(input)).map_err(|e| told(operation, e))?;
    let mut sent = 0u64;
    loop {
        // Blocks are whole, so that what becomes of them can be computed again.
        let len = fill(&mut out, target).map_err(|e| told(operation, e))?;
        if len == 0 {
            break;
        }
        input.borrow_mut().stage.send(Spread::Turns, Head { words: [sent, 0, 0, 0], end: false }, |block| {
            block[..len].copy_from_slice(&target[..len]);
            Ok(len)
        })?;
        sent += len as u64;
    }
    drop(out);
    match Bytes(input).read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Corrupt, operation, "bytes behind the last frame")),
        Err(e) => Err(told(operation, e)),
    }
}

/// The blocks that arrive.
struct Input<'a, 'b> {
    stage: &'a mut DeviceChannels<'b>,
    /// What is being read; at the end, the end of the stream.
    block: Option<Block>,
    at: usize,
}

/// Its bytes.
struct Bytes<'a, 'b, 'c>(&'c RefCell<Input<'a, 'b>>);

impl Read for Bytes<'_, '_, '_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let input = &mut *self.0.borrow_mut();
        loop {
            if let Some(block) = &input.block {
                let left = block.get(input.at..).unwrap_or_default();
                if !left.is_empty() {
                    let n = left.len().min(target.len());
                    target[..n].copy_from_slice(&left[..n]);
                    input.at += n;
                    return Ok(n);
                }
                if block.head().end {
                    return Ok(0);
                }
            }
            if let Some(block) = input.block.take() {
                block.done().map_err(io::Error::other)?;
            }
            input.at = 0;
            input.block = input.stage.receive().map_err(io::Error::other)?;
            if input.block.is_none() {
                let cut = Error::new(ErrorKind::Device, "receive", "the sender closed before the end of its stream");
                return Err(io::Error::other(cut));
            }
        }
    }
}
