//! The devices at both ends of a measured stream.

use std::time::{Duration, Instant};

use datapipes_fabric::channel::{Head, Patience};
use datapipes_fabric::device::{Body, DeviceChannels, Functions, StreamReport};
use datapipes_fabric::{Error, ErrorKind, Result};

/// The body that sends a buffer repeatedly for `ms` milliseconds.
pub(super) const FEED: &str = "feed";
/// The body that adds up all words that arrive.
pub(super) const TAKE: &str = "take";

pub(super) fn functions() -> Functions {
    Functions::default()
        .with_body(FEED, |arguments, _| Ok(Box::new(Feed(Duration::from_millis(arguments.parse()?)))))
        .with_body(TAKE, |_, _| Ok(Box::new(Take)))
}

struct Feed(Duration);

impl Body for Feed {
    /// The report has nanoseconds in the field of received blocks, and the sum of all words, folded
    /// to 32 bits, in the field of the checksum.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        let none = || Error::new(ErrorKind::InvalidInput, "feed", "no outlet");
        let outlet = stage.outlets.first_mut().ok_or_else(none)?;
        outlet.set_patience(Patience::seconds(60));
        let size = outlet.shape().block_bytes;
        let buffer = filled(size);
        let of_block = words(&buffer);
        let (mut blocks, mut sum) = (0u64, 0u64);
        // The path is warm before the clock starts.
        for _ in 0..8 {
            outlet.send(&buffer, Head::default())?;
            (blocks, sum) = (blocks + 1, sum.wrapping_add(of_block));
        }
        outlet.drain()?;
        let (since, warm) = (Instant::now(), blocks);
        while since.elapsed() < self.0 || blocks == warm {
            outlet.send(&buffer, Head { words: [blocks, 0, 0, 0], end: false })?;
            (blocks, sum) = (blocks + 1, sum.wrapping_add(of_block));
        }
        outlet.finish([0; 4])?;
        let elapsed = since.elapsed().as_nanos() as u64;
        // The time of the warm-up is not measured, so the time is scaled up to all blocks.
        let counted = elapsed as f64 * blocks as f64 / (blocks - warm) as f64;
        stage.attendant.report(
            StreamReport::default()
                .blocks_in(counted as u64)
                .blocks_out(blocks)
                .bytes_out(blocks * size as u64)
                .crc(folded(sum)),
        )
    }
}

struct Take;

impl Body for Take {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        let mut sum = 0u64;
        while let Some(block) = stage.receive()? {
            sum = sum.wrapping_add(words(&block));
            if block.head().end {
                stage.end(block, None, Some(folded(sum)))?;
                sum = 0;
            } else {
                block.done()?;
            }
        }
        Ok(())
    }
}

/// The buffer that is sent repeatedly.
pub(super) fn filled(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 131 + at / 4096) as u8).collect()
}

/// The sum of all words. It reads every byte and does little else.
pub(super) fn words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

fn folded(sum: u64) -> u32 {
    (sum ^ (sum >> 32)) as u32
}
