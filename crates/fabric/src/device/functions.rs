//! The functions of transforms.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::{Body, DeviceArguments, MakeBody};

/// A function from blocks to blocks.
pub trait Function: Send {
    /// Makes one block from another: reads `input`, writes to `output`, and returns the number of
    /// bytes written.
    ///
    /// # Errors
    /// `Corrupt` for an invalid input. `OutOfRange` where `output` is too small.
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize>;

    /// Whether blocks stay unchanged. Then the bytes are copied from memory to memory, and
    /// [`apply`](Self::apply) is not called. Nothing looks at the bytes, so no private copy is
    /// needed for protection from the sender.
    fn carries(&self) -> bool {
        false
    }

    /// Ends the stream. Returns its checksum, if the function computes one. Afterwards the function
    /// is in its initial state.
    fn finish(&mut self) -> Option<u32> {
        None
    }
}

/// Makes a function from its arguments. It runs before the lock-down, and must leave no thread and
/// no process behind, like a [`MakeBody`].
pub type MakeFunction = Arc<dyn Fn(&DeviceArguments) -> Result<Box<dyn Function>> + Send + Sync>;

/// The functions and bodies that devices of this program can run.
///
/// | Function | Arguments | Result for a block |
/// |---|---|---|
/// | `forward` | | the block itself |
/// | `crc32` | | the block itself; the report has the CRC-32 of the stream |
/// | `xor` | `{"key": 0..=255}` | each byte xor the key |
/// | `lz4-compress`, `lz4-decompress` | | LZ4 of each block, with the length before it |
/// | `sort-u64` | | the little-endian numbers of each block in order |
#[derive(Clone)]
pub struct Functions {
    functions: BTreeMap<String, MakeFunction>,
    bodies: BTreeMap<String, MakeBody>,
}

impl Default for Functions {
    /// Returns the functions of the table.
    fn default() -> Self {
        let none = Functions { functions: BTreeMap::new(), bodies: BTreeMap::new() };
        none.with("forward", |_| Ok(Box::new(Forward)))
            .with("crc32", |_| Ok(Box::new(Crc32(crc32fast::Hasher::new()))))
            .with("xor", |arguments| {
                let wrong =
                    |e| Error::new(ErrorKind::InvalidInput, "launch", "xor needs a key from 0 to 255").with_source(e);
                Ok(Box::new(Xor(arguments.parse::<XorKey>().map_err(wrong)?.key)))
            })
            .with("lz4-compress", |_| Ok(Box::new(Compress)))
            .with("lz4-decompress", |_| Ok(Box::new(Decompress)))
            .with("sort-u64", |_| Ok(Box::new(Sort)))
    }
}

impl Functions {
    /// Adds a function under a name.
    #[must_use]
    pub fn with<F>(mut self, name: &str, make: F) -> Functions
    where
        F: Fn(&DeviceArguments) -> Result<Box<dyn Function>> + Send + Sync + 'static,
    {
        self.functions.insert(name.into(), Arc::new(make));
        self
    }

    /// Adds a body under a name.
    #[must_use]
    pub fn with_body<F>(mut self, name: &str, make: F) -> Functions
    where
        F: Fn(&DeviceArguments, Vec<OwnedFd>) -> Result<Box<dyn Body>> + Send + Sync + 'static,
    {
        self.bodies.insert(name.into(), Arc::new(make));
        self
    }

    /// Makes the function with this name.
    ///
    /// # Errors
    /// `NotFound`, with the known names. Errors of the function about its arguments.
    pub fn function(&self, name: &str, arguments: &DeviceArguments) -> Result<Box<dyn Function>> {
        let make = self.functions.get(name).ok_or_else(|| unknown("function", name, self.functions.keys()))?;
        make(arguments)
    }

    pub(crate) fn body(&self, name: &str) -> Result<MakeBody> {
        self.bodies.get(name).cloned().ok_or_else(|| unknown("body", name, self.bodies.keys()))
    }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let known: Vec<&str> = known.map(String::as_str).collect();
    Error::new(ErrorKind::NotFound, "launch", format!("{what} `{name}`"))
        .with_advice(format!("there are {}", known.join(", ")))
}

fn room(output: &mut [u8], len: usize) -> Result<&mut [u8]> {
    let has = output.len();
    let short = || Error::new(ErrorKind::OutOfRange, "compute", format!("{len} bytes for a block of {has}"));
    output.get_mut(..len).ok_or_else(short)
}

struct Forward;

impl Function for Forward {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        room(output, input.len())?.copy_from_slice(input);
        Ok(input.len())
    }

    fn carries(&self) -> bool {
        true
    }
}

struct Crc32(crc32fast::Hasher);

impl Function for Crc32 {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let output = room(output, input.len())?;
        // The pieces stay in the first-level cache between the checksum and the copy.
        for (from, to) in input.chunks(16 << 10).zip(output.chunks_mut(16 << 10)) {
            self.0.update(from);
            to.copy_from_slice(from);
        }
        Ok(input.len())
    }

    fn finish(&mut self) -> Option<u32> {
        Some(std::mem::take(&mut self.0).finalize())
    }
}

struct Xor(u8);

/// The arguments of `xor`.
#[derive(Deserialize)]
struct XorKey {
    key: u8,
}

impl Function for Xor {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let output = room(output, input.len())?;
        output.iter_mut().zip(input).for_each(|(to, from)| *to = from ^ self.0);
        Ok(input.len())
    }
}

struct Compress;

impl Function for Compress {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let all = output.len();
        let short = || {
            let error = Error::new(ErrorKind::OutOfRange, "compress", format!("{} bytes into {all}", input.len()));
            error.with_advice("make blocks downstream a tenth and 24 bytes longer")
        };
        let (len, body) = output.split_first_chunk_mut::<4>().ok_or_else(short)?;
        *len = (input.len() as u32).to_le_bytes();
        Ok(4 + lz4_flex::block::compress_into(input, body).map_err(|_| short())?)
    }
}

struct Decompress;

impl Function for Decompress {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let wrong = |what: String| Error::new(ErrorKind::Corrupt, "decompress", what);
        let (len, body) = input.split_first_chunk::<4>().ok_or_else(|| wrong("a block without its length".into()))?;
        let output = room(output, u32::from_le_bytes(*len) as usize)?;
        let wrote = lz4_flex::block::decompress_into(body, output).map_err(|e| wrong(e.to_string()))?;
        if wrote != output.len() {
            return Err(wrong(format!("{wrote} bytes where {} were announced", output.len())));
        }
        Ok(wrote)
    }
}

struct Sort;

impl Function for Sort {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let (numbers, rest) = input.as_chunks::<8>();
        if !rest.is_empty() {
            let context = format!("{} bytes are not a multiple of 8", input.len());
            return Err(Error::new(ErrorKind::Corrupt, "sort", context));
        }
        let (output, _) = room(output, input.len())?.as_chunks_mut::<8>();
        output.copy_from_slice(numbers);
        output.sort_unstable_by_key(|n| u64::from_le_bytes(*n));
        Ok(input.len())
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn compressed_blocks_come_back_and_damaged_ones_do_not() {
        let input: Vec<u8> = (0..50_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let (mut packed, mut back) = (vec![0; input.len() + input.len() / 10 + 24], vec![0; input.len()]);
        let len = Compress.apply(&input, &mut packed).unwrap();
        assert!(len < input.len() / 2);
        assert_eq!(Decompress.apply(&packed[..len], &mut back).unwrap(), input.len());
        assert_eq!(back, input);
        let kind = |input: &[u8], output: &mut [u8]| Decompress.apply(input, output).unwrap_err().kind();
        assert_eq!(kind(&packed[..len], &mut back[..100]), ErrorKind::OutOfRange);
        assert_eq!(kind(&packed[..len - 3], &mut back), ErrorKind::Corrupt);
        assert_eq!(kind(&packed[..3], &mut back), ErrorKind::Corrupt);
        assert_eq!(Compress.apply(&input, &mut [0; 3]).unwrap_err().kind(), ErrorKind::OutOfRange);
    }

    #[test]
    fn functions_are_found_by_name_and_others_are_named() {
        let functions = Functions::default();
        let e = functions.function("rot13", &DeviceArguments::default()).err().unwrap();
        assert!(e.kind() == ErrorKind::NotFound && e.to_string().contains("sort-u64"), "{e}");
        assert!(functions.function("xor", &DeviceArguments::of(&serde_json::json!({"key": 256})).unwrap()).is_err());
        let mut out = [0; 24];
        let mut sort = functions.function("sort-u64", &DeviceArguments::default()).unwrap();
        let input: Vec<u8> = [3u64, 1, 2].into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(sort.apply(&input, &mut out).unwrap(), 24);
        assert_eq!(out.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n)).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(sort.apply(&input[1..], &mut out).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
