//! Formats that other programs read and write: LZ4 frames, Zstandard, gzip, in both directions, by
//! libraries of the formats.
//!
//! ```text
//! lz4, zstd, gzip         a stream becomes one frame (a member, in gzip's words), with a checksum of its contents
//! unlz4, unzstd, gunzip   frames, one after the other, become what they hold; every checksum is looked at
//! ```
//! What ends within a frame, what follows the last frame and is none, and a stream without any
//! frame are errors: the tools of the formats let some of that pass. A frame of the old kind of LZ4
//! has no mark of its end: cut between two blocks it is a frame, and nobody can tell.

use std::io::{self, ErrorKind, Read};

use flate2::Compression;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use serde::{Deserialize, Serialize};

/// A format and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands::stream) enum Codec {
    Lz4,
    Unlz4,
    /// The level, from 1 to 19.
    Zstd(i32),
    Unzstd,
    /// The level, from 0 to 9.
    Gzip(u32),
    Gunzip,
}

/// The names of the codecs, for messages.
pub(in crate::commands::stream) const NAMES: &str = "lz4, unlz4, zstd, unzstd, gzip, gunzip";

impl Codec {
    /// The one of that name; None where it is another's name.
    pub(in crate::commands::stream) fn named(name: &str, argument: Option<&str>) -> Option<Result<Codec, String>> {
        let level = |least: u32, usual: u32, most: u32| match argument {
            None => Ok(usual),
            Some(text) => {
                let level = text.parse().ok().filter(|level| (least..=most).contains(level));
                level.ok_or_else(|| format!("{name} takes a level from {least} to {most}"))
            }
        };
        Some(match name {
            "zstd" => level(1, 3, 19).map(|level| Codec::Zstd(level.cast_signed())),
            "gzip" => level(0, 6, 9).map(Codec::Gzip),
            "lz4" | "unlz4" | "unzstd" | "gunzip" if argument.is_some() => Err(format!("{name} takes no argument")),
            "lz4" => Ok(Codec::Lz4),
            "unlz4" => Ok(Codec::Unlz4),
            "unzstd" => Ok(Codec::Unzstd),
            "gunzip" => Ok(Codec::Gunzip),
            _ => return None,
        })
    }

    /// Feeds bytes in, and returns what comes out.
    pub(in crate::commands::stream) fn over<'a>(self, from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Codec::Lz4 => Box::new(Lz4::new(from)),
            Codec::Unlz4 => Box::new(Unlz4 { from: Some(from), magic: None, frame: None, frames: 0 }),
            Codec::Zstd(level) => {
                let mut encoder = zstd::stream::read::Encoder::new(from, level)?;
                encoder.include_checksum(true)?;
                Box::new(encoder)
            }
            Codec::Unzstd => Box::new(zstd::stream::read::Decoder::new(SomeBytes::of(from))?),
            Codec::Gzip(level) => Box::new(flate2::read::GzEncoder::new(from, Compression::new(level))),
            Codec::Gunzip => Box::new(flate2::read::MultiGzDecoder::new(SomeBytes::of(from))),
        })
    }
}

fn nothing() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "an empty stream, where a frame was due")
}

/// A stream of no bytes is an error to who reads it.
struct SomeBytes<R> {
    from: R,
    some: bool,
}

impl<R> SomeBytes<R> {
    fn of(from: R) -> SomeBytes<R> {
        SomeBytes { from, some: false }
    }
}

impl<R: Read> Read for SomeBytes<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self.from.read(target)? {
            0 if !self.some && !target.is_empty() => Err(nothing()),
            n => {
                self.some = true;
                Ok(n)
            }
        }
    }
}

/// One frame: blocks of a megabyte that do not depend on each other, as `lz4` makes them.
struct Lz4<R> {
    from: R,
    /// None when the frame is complete.
    encoder: Option<FrameEncoder<Vec<u8>>>,
    ready: Vec<u8>,
    at: usize,
    buffer: Vec<u8>,
}

impl<R: Read> Lz4<R> {
    fn new(from: R) -> Lz4<R> {
        let info =
            FrameInfo::new().block_size(BlockSize::Max1MB).block_mode(BlockMode::Independent).content_checksum(true);
        let encoder = Some(FrameEncoder::with_frame_info(info, Vec::new()));
        Lz4 { from, encoder, ready: Vec::new(), at: 0, buffer: vec![0; 64 << 10] }
    }
}

impl<R: Read> Read for Lz4<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        while self.at == self.ready.len() {
            let Some(encoder) = &mut self.encoder else { return Ok(0) };
            self.at = 0;
            self.ready.clear();
            match self.from.read(&mut self.buffer)? {
                0 => {
                    encoder.try_finish()?;
                    self.ready.append(encoder.get_mut());
                    self.encoder = None;
                }
                n => {
                    io::Write::write_all(encoder, &self.buffer[..n])?;
                    self.ready.append(encoder.get_mut());
                }
            }
        }
        let n = target.len().min(self.ready.len() - self.at);
        target[..n].copy_from_slice(&self.ready[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

const LEGACY: u32 = 0x184C_2102;
const SKIPPABLE: std::ops::RangeInclusive<u32> = 0x184D_2A50..=0x184D_2A5F;
/// Bytes that a block of a frame of the old kind holds, at most, and bytes that it has itself. A
/// longer length is no length, but the first word of the next frame.
const LEGACY_BYTES: usize = 8 << 20;
const LEGACY_PACKED_BYTES: usize = LEGACY_BYTES + LEGACY_BYTES / 255 + 16;

/// Frames one after the other.
struct Unlz4<R: Read> {
    /// None while a frame has it.
    from: Option<R>,
    /// The first bytes of the next frame, where they were read already.
    magic: Option<[u8; 4]>,
    frame: Option<Frame<R>>,
    frames: u64,
}

enum Frame<R: Read> {
    /// The library's decoder takes an end of its input between two blocks for the frame's own; only
    /// who hands it the bytes can tell that from a frame that is complete.
    Modern(Box<FrameDecoder<Rest<R>>>),
    /// The library's decoder takes any end of the input for the frame's, so it is not used.
    Legacy(Legacy<R>),
}

/// A frame of the old kind: blocks, each behind its length, until the input ends or another frame
/// begins.
struct Legacy<R> {
    from: R,
    packed: Vec<u8>,
    bytes: Vec<u8>,
    /// What of `bytes` is there, and not given out.
    ready: std::ops::Range<usize>,
    /// The first bytes of the next frame.
    next: Option<[u8; 4]>,
}

impl<R: Read> Legacy<R> {
    fn new(from: R) -> Legacy<R> {
        Legacy { from, packed: Vec::new(), bytes: Vec::new(), ready: 0..0, next: None }
    }
}

impl<R: Read> Read for Legacy<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() {
            if self.next.is_some() {
                return Ok(0);
            }
            let mut word = [0; 4];
            match fill(&mut self.from, &mut word)? {
                0 => return Ok(0),
                4 => {}
                _ => return Err(cut_short()),
            }
            let len = u32::from_le_bytes(word) as usize;
            if len > LEGACY_PACKED_BYTES {
                self.next = Some(word);
                return Ok(0);
            }
            self.packed.resize(len, 0);
            if fill(&mut self.from, &mut self.packed)? != len {
                return Err(cut_short());
            }
            self.bytes.resize(LEGACY_BYTES, 0);
            let damaged = |e| io::Error::new(ErrorKind::InvalidData, format!("a block of a frame is damaged: {e}"));
            self.ready = 0..lz4_flex::block::decompress_into(&self.packed, &mut self.bytes).map_err(damaged)?;
        }
        let n = target.len().min(self.ready.len());
        target[..n].copy_from_slice(&self.bytes[self.ready.start..][..n]);
        self.ready.start += n;
        Ok(n)
    }
}

/// The first bytes of a frame, which were looked at, and all that follows.
struct Rest<R> {
    magic: [u8; 4],
    given: usize,
    from: R,
    /// Whether a read asked for more bytes than are there.
    over: bool,
}

impl<R: Read> Read for Rest<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let first = self.magic.get(self.given..).unwrap_or_default();
        if !first.is_empty() {
            let n = first.len().min(target.len());
            target[..n].copy_from_slice(&first[..n]);
            self.given += n;
            return Ok(n);
        }
        let n = self.from.read(target)?;
        self.over |= n == 0 && !target.is_empty();
        Ok(n)
    }
}

impl<R: Read> Unlz4<R> {
    /// Begins the next frame; false where none follows.
    fn begin(&mut self) -> io::Result<bool> {
        let Some(mut from) = self.from.take() else { return Ok(false) };
        loop {
            let mut magic = [0; 4];
            match self.magic.take() {
                Some(first) => magic = first,
                None => match fill(&mut from, &mut magic)? {
                    0 if self.frames == 0 => return Err(nothing()),
                    0 => return Ok(false),
                    4 => {}
                    _ => return Err(cut_short()),
                },
            }
            self.frames += 1;
            let number = u32::from_le_bytes(magic);
            if SKIPPABLE.contains(&number) {
                let mut len = [0; 4];
                from.read_exact(&mut len)?;
                let len = u64::from(u32::from_le_bytes(len));
                if io::copy(&mut (&mut from).take(len), &mut io::sink())? != len {
                    return Err(cut_short());
                }
                continue;
            }
            self.frame = Some(match number {
                LEGACY => Frame::Legacy(Legacy::new(from)),
                _ => Frame::Modern(Box::new(FrameDecoder::new(Rest { magic, given: 0, from, over: false }))),
            });
            return Ok(true);
        }
    }
}

impl<R: Read> Read for Unlz4<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if target.is_empty() {
            return Ok(0);
        }
        loop {
            if self.frame.is_none() && !self.begin()? {
                return Ok(0);
            }
            let n = match &mut self.frame {
                Some(Frame::Modern(decoder)) => match decoder.read(target)? {
                    0 if decoder.get_ref().over => return Err(cut_short()),
                    n => n,
                },
                Some(Frame::Legacy(frame)) => frame.read(target)?,
                None => return Ok(0),
            };
            if n > 0 {
                return Ok(n);
            }
            (self.from, self.magic) = match self.frame.take() {
                Some(Frame::Modern(decoder)) => (Some(decoder.into_inner().from), None),
                Some(Frame::Legacy(frame)) => (Some(frame.from), frame.next),
                None => (None, None),
            };
        }
    }
}

fn cut_short() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the stream ends within a frame")
}

/// Reads until the target is full, or all is read.
pub(in crate::commands::stream) fn fill(from: &mut impl Read, target: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < target.len() {
        match from.read(&mut target[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(codec: Codec, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        codec.over(bytes)?.read_to_end(&mut out).map(|_| out)
    }

    const PAIRS: [(Codec, Codec); 3] =
        [(Codec::Lz4, Codec::Unlz4), (Codec::Zstd(3), Codec::Unzstd), (Codec::Gzip(6), Codec::Gunzip)];

    /// Blocks of the format, and the edges of them.
    fn samples() -> Vec<Vec<u8>> {
        let len = [0, 1, 4095, 65_536, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000];
        len.into_iter()
            .map(|len| (0..len as u32 / 4 + 1).flat_map(|n| (n / 5).to_le_bytes()).take(len).collect())
            .collect()
    }

    #[test]
    fn what_was_compressed_comes_back_also_frame_after_frame() {
        for (pack, unpack) in PAIRS {
            for sample in samples() {
                let packed = pass(pack, &sample).unwrap();
                assert!(pass(unpack, &packed).unwrap() == sample, "{pack:?}: {} bytes", sample.len());
                let twice = [&packed[..], &packed[..]].concat();
                assert!(pass(unpack, &twice).unwrap() == sample.repeat(2), "{pack:?}: {} bytes twice", sample.len());
            }
        }
    }

    #[test]
    fn no_prefix_of_a_frame_passes_for_a_frame() {
        let sample: Vec<u8> = (0..700_000u32).flat_map(|n| (n / 5).to_le_bytes()).collect();
        for (pack, unpack) in PAIRS {
            let packed = pass(pack, &sample).unwrap();
            let mut lens: Vec<usize> = (0..40).chain(packed.len() - 40..packed.len()).collect();
            lens.extend((0..packed.len()).step_by(packed.len() / 50 + 1));
            if pack == Codec::Lz4 {
                // The edges of blocks, where nothing of a block is missing: the header has 7 bytes.
                let mut at = 7;
                while at + 4 <= packed.len() {
                    lens.push(at);
                    let len = u32::from_le_bytes(packed[at..at + 4].try_into().unwrap()) & 0x7FFF_FFFF;
                    at += 4 + len as usize;
                    lens.push(at.min(packed.len() - 1));
                    if len == 0 {
                        break;
                    }
                }
            }
            for len in lens {
                assert!(pass(unpack, &packed[..len]).is_err(), "{pack:?}: {len} of {} bytes", packed.len());
            }
            let garbage = [&packed[..], b"garbage"].concat();
            assert!(pass(unpack, &garbage).is_err(), "{pack:?}: garbage behind it");
            for at in [packed.len() / 2, packed.len() - 5] {
                let mut damaged = packed.clone();
                damaged[at] ^= 0x10;
                assert!(pass(unpack, &damaged).is_err(), "{pack:?}: damaged at {at}");
            }
        }
    }

    #[test]
    fn lz4_frames_to_be_skipped_are_skipped_and_old_ones_read() {
        let packed = pass(Codec::Lz4, b"abc").unwrap();
        let skipped = [&0x184D_2A53u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"12345"].concat();
        let all = [&skipped[..], &packed, &skipped].concat();
        assert_eq!(pass(Codec::Unlz4, &all).unwrap(), b"abc");
        assert!(pass(Codec::Unlz4, &all[..all.len() - 1]).is_err());
        let old = legacy(&[b"abcabcabcabcabcabcabc"]);
        assert_eq!(pass(Codec::Unlz4, &old).unwrap(), b"abcabcabcabcabcabcabc");
        assert_eq!(pass(Codec::Unlz4, &legacy(&[])).unwrap(), b"");
    }

    /// A frame of the old kind, of these blocks.
    fn legacy(blocks: &[&[u8]]) -> Vec<u8> {
        let blocks = blocks.iter().flat_map(|block| {
            let packed = lz4_flex::block::compress(block);
            [&(packed.len() as u32).to_le_bytes()[..], &packed].concat()
        });
        LEGACY.to_le_bytes().into_iter().chain(blocks).collect()
    }

    #[test]
    fn lz4_frames_of_the_old_kind_end_between_blocks_alone() {
        let (first, second) = (vec![7; LEGACY_BYTES], b"the second block".to_vec());
        let (one, both) = (legacy(&[&first]), legacy(&[&first, &second]));
        assert!(pass(Codec::Unlz4, &both).unwrap() == [&first[..], &second].concat());
        for len in (1..both.len()).filter(|len| *len < 40 || *len + 40 > one.len()) {
            let cut = pass(Codec::Unlz4, &both[..len]);
            // Nothing tells these from frames that are complete.
            let whole = [4, one.len()].contains(&len);
            assert_eq!(cut.is_ok(), whole, "{len} of {} bytes", both.len());
        }
        for behind in [&[1][..], &[1, 2], &[0; 3], &[0; 4], &[0; 40], b"garbage", &[255; 8]] {
            assert!(pass(Codec::Unlz4, &[&both[..], behind].concat()).is_err(), "{behind:?} behind it");
        }
    }

    #[test]
    fn lz4_frames_follow_those_of_the_old_kind() {
        let (old, new) = (legacy(&[b"old "]), pass(Codec::Lz4, b"new ").unwrap());
        let skipped = [&0x184D_2A53u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"12345"].concat();
        let all = [&old[..], &old, &new, &old, &skipped, &old, &legacy(&[]), &new, &legacy(&[b"", b"last"])].concat();
        assert_eq!(pass(Codec::Unlz4, &all).unwrap(), b"old old new old old new last");
    }

    #[test]
    fn levels_are_checked() {
        assert_eq!(Codec::named("zstd", None), Some(Ok(Codec::Zstd(3))));
        assert_eq!(Codec::named("gzip", Some("9")), Some(Ok(Codec::Gzip(9))));
        assert_eq!(Codec::named("crc32", None), None);
        for (name, wrong) in [("zstd", "0"), ("zstd", "20"), ("zstd", ""), ("gzip", "10"), ("gzip", "-1"), ("lz4", "3")]
        {
            assert!(Codec::named(name, Some(wrong)).unwrap().is_err(), "{name}={wrong}");
        }
    }
}
