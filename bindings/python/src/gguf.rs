//! The header of a GGUF file (versions 2 and 3): metadata by keys, and a table of tensors.
//!
//! ```text
//! "GGUF" | version | tensors | pairs | (key, type, value) ... | (name, sizes, type, offset) ... | padding | bytes
//! ```
//!
//! It is not trusted. Counts and lengths are compared with the bytes that are there before anything
//! is allocated for them. All is checked before Python makes an object of it.

use std::collections::HashSet;

use crate::header::check_memory;
use datapipes::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

/// The longest header that is read: that of safetensors.
pub(crate) const MAX_HEADER: u64 = 100_000_000;
/// The most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// How deep arrays of arrays go, at most.
const MAX_DEPTH: u32 = 8;
const DEFAULT_ALIGNMENT: u64 = 32;
/// The most bytes of an array.
const MAX_BYTES: u64 = (1 << 62) - 1;
/// The shortest pair: an empty key, its type, a byte.
const MIN_PAIR: u64 = 8 + 4 + 1;
/// The shortest entry of a tensor: an empty name, no sizes, its type, its offset.
const MIN_TENSOR: u64 = 8 + 4 + 4 + 8;

/// A type of tensors: its number, its name, the numbers of a block, and the bytes of a block.
type TensorType = (u32, &'static str, u64, u64);

/// The types that files have.
const TYPES: [TensorType; 30] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

/// A tensor: its name, the name of its type, its shape with the last dimension contiguous, and where
/// its bytes begin and end after the header. The shape of a quantized one is that of its bytes.
pub(crate) type Tensor = (String, &'static str, Vec<u64>, u64, u64);

/// A header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: Vec<(String, Value)>,
    /// In the order of their bytes.
    pub(crate) tensors: Vec<Tensor>,
    /// The offset in the file from which tensors are counted.
    pub(crate) first: u64,
}

/// A value of the metadata.
#[derive(Debug)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    /// The bytes of numbers, and their type as NumPy names it.
    Numbers(&'static str, Vec<u8>),
    Texts(Vec<String>),
    Arrays(Vec<Value>),
}

/// What reading a part of a file found.
pub(crate) enum Read {
    Header(Header),
    /// The header is longer than the part.
    Longer,
}

enum Wrong {
    /// What is wrong, and its offset in the file.
    Corrupt(String, u64),
    Unsupported(String),
    /// The bytes end before the header does.
    Ends,
}

type Checked<T> = std::result::Result<T, Wrong>;

/// Reads the header of a file of `size` bytes that begins with `bytes`.
///
/// # Errors
/// `Corrupt` where it is no header of the format, or where tensors do not lie in the file.
/// `Unsupported` for another version, another order of bytes, and types of tensors that are not known.
pub(crate) fn parse(bytes: &[u8], size: u64, file: &str) -> Result<Read> {
    check_memory(bytes.len(), file)?;
    let fail = |kind, why: String| Error::new(kind, "load", format!("{file}: {why}"));
    match (Reader { bytes, at: 0, size }).header() {
        Ok(header) => Ok(Read::Header(header)),
        Err(Wrong::Corrupt(why, at)) => Err(fail(ErrorKind::Corrupt, why).with_offset(at)),
        Err(Wrong::Unsupported(why)) => Err(fail(ErrorKind::Unsupported, why)),
        Err(Wrong::Ends) if size > bytes.len() as u64 && (bytes.len() as u64) < MAX_HEADER => Ok(Read::Longer),
        Err(Wrong::Ends) => {
            let why = format!("the header has not ended after {} bytes", bytes.len());
            Err(fail(ErrorKind::Corrupt, why).with_offset(bytes.len() as u64))
        }
    }
}

/// A name for a message: its beginning, where it is long.
fn named(name: &str) -> String {
    match name.char_indices().nth(80) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// Reads numbers and texts, one after the other.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    size: u64,
}

impl<'a> Reader<'a> {
    fn header(mut self) -> Checked<Header> {
        if self.take(4)? != b"GGUF" {
            return Err(Wrong::Corrupt("it does not begin as a GGUF file does".into(), 0));
        }
        match self.u32()? {
            2 | 3 => {}
            other if other.swap_bytes() <= 3 => {
                return Err(Wrong::Unsupported("a GGUF file whose numbers are big-endian".into()));
            }
            other => return Err(Wrong::Unsupported(format!("GGUF version {other}; 2 and 3 are read"))),
        }
        let (tensors, pairs) = (self.u64()?, self.u64()?);
        self.has_room(tensors, MIN_TENSOR, "tensors")?;
        self.has_room(pairs, MIN_PAIR, "pairs of metadata")?;
        let metadata = self.metadata(pairs)?;
        let alignment = self.alignment(&metadata)?;
        let mut found = self.tensors(tensors, alignment)?;
        let first = (self.at as u64).next_multiple_of(alignment);
        check_order(&mut found, first, self.size)?;
        Ok(Header { metadata, tensors: found, first })
    }

    fn metadata(&mut self, pairs: u64) -> Checked<Vec<(String, Value)>> {
        let mut metadata: Vec<(String, Value)> = Vec::new();
        let mut keys = HashSet::new();
        for _ in 0..pairs {
            let key = self.text("a key")?;
            if !keys.insert(key) {
                return self.corrupt(format!("the key {} is there twice", named(key)));
            }
            let kind = self.u32()?;
            let value = self.value(kind, key, 0)?;
            metadata.push((key.to_owned(), value));
        }
        Ok(metadata)
    }

    fn alignment(&self, metadata: &[(String, Value)]) -> Checked<u64> {
        match metadata.iter().find(|(key, _)| key == "general.alignment") {
            None => Ok(DEFAULT_ALIGNMENT),
            Some((_, Value::Unsigned(bytes))) if bytes.is_power_of_two() && *bytes <= 1 << 31 => Ok(*bytes),
            Some((_, Value::Unsigned(bytes))) => self.corrupt(format!("the alignment {bytes} is no power of two")),
            Some(_) => self.corrupt("the alignment is no positive number".into()),
        }
    }

    fn tensors(&mut self, count: u64, alignment: u64) -> Checked<Vec<Tensor>> {
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..count {
            let name = self.text("a tensor's name")?;
            if !names.insert(name) {
                return self.corrupt(format!("the tensor {} is there twice", named(name)));
            }
            let dimensions = self.u32()?;
            if dimensions > MAX_DIMENSIONS {
                return self
                    .corrupt(format!("tensor {} has {dimensions} dimensions; at most {MAX_DIMENSIONS}", named(name)));
            }
            let mut shape = (0..dimensions).map(|_| self.u64()).collect::<Checked<Vec<u64>>>()?;
            let (kind, begin) = (self.u32()?, self.u64()?);
            let Some((_, kind, numbers, bytes)) = TYPES.iter().find(|known| known.0 == kind) else {
                let why = format!("tensor {} has the type {kind}, whose length is not known", named(name));
                return Err(Wrong::Unsupported(why));
            };
            // The first dimension of the file is the contiguous one, and is whole blocks.
            if *numbers > 1 {
                match shape.first_mut() {
                    Some(row) if *row % numbers == 0 => *row = (*row / numbers).saturating_mul(*bytes),
                    _ => return self.corrupt(format!("tensor {}: its rows are no blocks of {kind}", named(name))),
                }
            }
            shape.reverse();
            let element = if *numbers > 1 { 1 } else { *bytes };
            // NumPy multiplies empty dimensions out, too.
            let most = shape.iter().try_fold(element, |product, len| product.checked_mul((*len).max(1)));
            if most.is_none_or(|bytes| bytes > MAX_BYTES) {
                return self.corrupt(format!("tensor {}: no array has the shape {shape:?}", named(name)));
            }
            if begin % alignment != 0 {
                return self
                    .corrupt(format!("tensor {} lies at {begin}, which is no multiple of {alignment}", named(name)));
            }
            let len = shape.iter().product::<u64>() * element;
            let Some(end) = begin.checked_add(len) else {
                return self.corrupt(format!("tensor {} lies at {begin}, beyond all files", named(name)));
            };
            tensors.push((name.to_owned(), kind, shape, begin, end));
        }
        Ok(tensors)
    }

    fn value(&mut self, kind: u32, key: &str, depth: u32) -> Checked<Value> {
        Ok(match kind {
            0 => Value::Unsigned(u64::from(self.array::<1>()?[0])),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array()?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Value::Unsigned(u64::from(self.u32()?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.array()?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array()?))),
            7 => match self.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return self.corrupt(format!("{}: {other} is no truth value", named(key))),
            },
            8 => Value::Text(self.text(key)?.to_owned()),
            9 => {
                let (kind, len) = (self.u32()?, self.u64()?);
                self.values(kind, len, key, depth)?
            }
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return self.corrupt(format!("{} has the unknown type {other}", named(key))),
        })
    }

    fn values(&mut self, kind: u32, len: u64, key: &str, depth: u32) -> Checked<Value> {
        let numbers = match kind {
            0 => ("|u1", 1),
            1 => ("|i1", 1),
            2 => ("<u2", 2),
            3 => ("<i2", 2),
            4 => ("<u4", 4),
            5 => ("<i4", 4),
            6 => ("<f4", 4),
            7 => ("|b1", 1),
            10 => ("<u8", 8),
            11 => ("<i8", 8),
            12 => ("<f8", 8),
            8 => {
                self.has_room(len, 8, key)?;
                return (0..len).map(|_| self.text(key).map(str::to_owned)).collect::<Checked<_>>().map(Value::Texts);
            }
            9 if depth == MAX_DEPTH => return self.corrupt(format!("{}: arrays are nested too deep", named(key))),
            9 => {
                self.has_room(len, 4 + 8, key)?;
                return (0..len).map(|_| self.value(9, key, depth + 1)).collect::<Checked<_>>().map(Value::Arrays);
            }
            other => return self.corrupt(format!("{} is an array of the unknown type {other}", named(key))),
        };
        self.has_room(len, numbers.1, key)?;
        let bytes = self.take(len * numbers.1)?;
        if kind == 7 && bytes.iter().any(|byte| *byte > 1) {
            return self.corrupt(format!("{}: a truth value that is neither 0 nor 1", named(key)));
        }
        Ok(Value::Numbers(numbers.0, bytes.to_vec()))
    }

    /// Refuses a count of things of which the file cannot have as many.
    fn has_room(&self, count: u64, each: u64, what: &str) -> Checked<()> {
        let left = self.size.min(MAX_HEADER).saturating_sub(self.at as u64);
        if count > left / each {
            return self.corrupt(format!("{count} {what} where {left} bytes are left of the header"));
        }
        Ok(())
    }

    fn text(&mut self, what: &str) -> Checked<&'a str> {
        let len = self.u64()?;
        self.has_room(len, 1, "bytes of a text")?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).or_else(|_| self.corrupt(format!("{}: a text that is not UTF-8", named(what))))
    }

    fn u32(&mut self) -> Checked<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Checked<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Checked<[u8; N]> {
        self.take(N as u64)?.try_into().map_err(|_| Wrong::Ends)
    }

    fn take(&mut self, len: u64) -> Checked<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(Wrong::Ends)?;
        self.at += taken.len();
        Ok(taken)
    }

    fn corrupt<T>(&self, why: String) -> Checked<T> {
        Err(Wrong::Corrupt(why, self.at as u64))
    }
}

/// Brings tensors into the order of their bytes, and checks that they lie in the file and do not
/// overlap. Between them there may be bytes that belong to none.
fn check_order(tensors: &mut [Tensor], first: u64, size: u64) -> Checked<()> {
    tensors.sort_by_key(|tensor| (tensor.3, tensor.4));
    let payload = size.saturating_sub(first);
    let mut at = 0;
    for (name, _, _, begin, end) in tensors {
        if *end > payload {
            let why = format!("tensor {} lies at {begin}..{end}, and there are {payload} bytes", named(name));
            return Err(Wrong::Corrupt(why, first.saturating_add(*begin)));
        }
        if *begin < at {
            let why = format!("tensor {} overlaps the tensor before", named(name));
            return Err(Wrong::Corrupt(why, first.saturating_add(*begin)));
        }
        at = *end;
    }
    Ok(())
}

/// The metadata as a dict: numbers, texts, arrays of NumPy, and lists.
///
/// # Errors
/// Those of making objects of Python.
pub(crate) fn dict<'py>(py: Python<'py>, metadata: Vec<(String, Value)>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let frombuffer = py.import("numpy")?.getattr("frombuffer")?;
    for (key, value) in metadata {
        dict.set_item(key, object(py, value, &frombuffer)?)?;
    }
    Ok(dict)
}

fn object<'py>(py: Python<'py>, value: Value, frombuffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Unsigned(number) => number.into_pyobject(py)?.into_any(),
        Value::Signed(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Numbers(dtype, bytes) => frombuffer.call1((PyBytes::new(py, &bytes), dtype))?,
        Value::Texts(texts) => PyList::new(py, texts)?.into_any(),
        Value::Arrays(arrays) => {
            let list = PyList::empty(py);
            for array in arrays {
                list.append(object(py, array, frombuffer)?)?;
            }
            list.into_any()
        }
    })
}
