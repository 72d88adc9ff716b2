//! The header of a safetensors file: a JSON object of tensors by name.
//!
//! It is not trusted. What is read into memory is only what a tensor may have, so a header costs no
//! more than the tensors that it describes. All is checked before Python makes an object of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use datapipes::{Error, ErrorKind, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// What is made of a header takes up to so many times its bytes. Where that much memory cannot be had,
/// it is not begun.
const SPREAD: usize = 8;

/// Types of numbers that the format has, and that no array has.
const KNOWN: [&str; 3] = ["F4", "F6_E2M3", "F6_E3M2"];

/// The most dimensions of a tensor: those of NumPy.
const MAX_DIMENSIONS: usize = 64;

/// The texts about a file, by their names (`__metadata__`).
pub(crate) type Texts = BTreeMap<String, String>;

/// A tensor: its name, the name of its type, its shape, and where its bytes begin and end.
pub(crate) type Tensor = (String, String, Vec<u64>, u64, u64);

/// Fails where there is no memory for what a header of `len` bytes describes: the parsers that follow
/// would end the process.
pub(crate) fn check_memory(len: usize, file: &str) -> Result<()> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(len.saturating_mul(SPREAD)).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory, "load", format!("{file}: there is no memory for a header of {len} bytes"))
    })
}

/// Reads the header of a file that has `payload` bytes after it. Returns the tensors in the order of
/// their bytes, and the texts about the file. `sizes` are the bytes of a number by the names of types.
///
/// # Errors
/// `Corrupt` where it is no table of tensors, or where they are not exactly the payload.
pub(crate) fn parse(
    text: &[u8],
    payload: u64,
    sizes: &HashMap<String, u64>,
    file: &str,
) -> Result<(Vec<Tensor>, Texts)> {
    check_memory(text.len(), file)?;
    let corrupt = |(why, offset): (String, u64)| {
        Error::new(ErrorKind::Corrupt, "load", format!("{file}: {why}")).with_offset(offset)
    };
    let header = serde_json::from_slice::<Header>(text);
    let header = header.map_err(|why| corrupt((format!("the header is no table of tensors: {why}"), FIRST)))?;
    let Header(mut tensors, texts) = header;
    if let Some((name, kind, ..)) = tensors.iter().find(|tensor| KNOWN.contains(&tensor.1.as_str())) {
        let why = format!("{file}: tensor {name:?} is {kind}, which no array is");
        return Err(Error::new(ErrorKind::Unsupported, "load", why));
    }
    let mut names = HashSet::new();
    if names.try_reserve(tensors.len()).is_err() {
        let why = format!("{file}: the names of {} tensors", tensors.len());
        return Err(Error::new(ErrorKind::OutOfMemory, "load", why));
    }
    for tensor in &tensors {
        check(tensor, payload, sizes).map_err(|why| corrupt((why, FIRST)))?;
        if !names.insert(tensor.0.as_str()) {
            return Err(corrupt((format!("the header has the name {:?} twice", tensor.0), FIRST)));
        }
    }
    drop(names);
    tensors.sort_by_key(|tensor| (tensor.3, tensor.4));
    check_order(&tensors, text.len() as u64, payload).map_err(corrupt)?;
    Ok((tensors, texts))
}

/// The offset of the header in its file.
const FIRST: u64 = 8;

/// Checks a tensor by itself.
fn check(tensor: &Tensor, payload: u64, sizes: &HashMap<String, u64>) -> std::result::Result<(), String> {
    let (name, kind, shape, begin, end) = tensor;
    let Some(size) = sizes.get(kind) else {
        return Err(format!("tensor {name:?} has the unknown dtype {kind:?}"));
    };
    if begin > end || *end > payload {
        return Err(format!("tensor {name:?} lies at {begin}..{end}, and there are {payload} bytes"));
    }
    // NumPy multiplies empty dimensions out, too.
    let bytes = shape.iter().try_fold(*size, |product, len| product.checked_mul((*len).max(1)));
    if bytes.is_none_or(|bytes| bytes > MAX_BYTES) {
        return Err(format!("tensor {name:?}: no array has the shape {shape:?}"));
    }
    if shape.iter().product::<u64>() * size != end - begin {
        return Err(format!("tensor {name:?}: {shape:?} of {kind} are not {} bytes", end - begin));
    }
    Ok(())
}

/// The most bytes of an array.
const MAX_BYTES: u64 = (1 << 62) - 1;

/// Checks that tensors follow each other without a gap, to the last byte. Returns what is wrong,
/// and its offset in the file.
fn check_order(tensors: &[Tensor], header: u64, payload: u64) -> std::result::Result<(), (String, u64)> {
    let mut at = 0;
    for (name, _, _, begin, end) in tensors {
        if *begin != at {
            let what = if *begin < at { "overlaps the tensor before" } else { "leaves a gap before it" };
            return Err((format!("tensor {name:?} {what}"), FIRST + header + begin));
        }
        at = *end;
    }
    if at != payload {
        let why = format!("the tensors have {at} bytes, and the file has {payload} after its header");
        return Err((why, FIRST + header + at));
    }
    Ok(())
}

struct Header(Vec<Tensor>, Texts);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Header, D::Error> {
        from.deserialize_map(Tensors)
    }
}

struct Tensors;

impl<'de> Visitor<'de> for Tensors {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
        let (mut tensors, mut texts) = (Vec::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                let entry: Entry = map.next_value()?;
                tensors.push((name, entry.kind, entry.shape, entry.offsets.0, entry.offsets.1));
            } else if texts.replace(map.next_value::<Texts>()?).is_some() {
                return Err(A::Error::duplicate_field("__metadata__"));
            }
        }
        Ok(Header(tensors, texts.unwrap_or_default()))
    }
}

struct Entry {
    kind: String,
    shape: Vec<u64>,
    offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Entry, D::Error> {
        from.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tensor's dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entry, A::Error> {
        let (mut kind, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let is_second = match field.as_str() {
                "dtype" => kind.replace(map.next_value::<String>()?).is_some(),
                "shape" => shape.replace(map.next_value::<Shape>()?.0).is_some(),
                "data_offsets" => offsets.replace(map.next_value::<(u64, u64)>()?).is_some(),
                other => return Err(A::Error::unknown_field(other, &["dtype", "shape", "data_offsets"])),
            };
            if is_second {
                return Err(A::Error::custom(format!("the tensor has the field {field:?} twice")));
            }
        }
        Ok(Entry {
            kind: kind.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Shape, D::Error> {
        from.deserialize_seq(Sizes)
    }
}

struct Sizes;

impl<'de> Visitor<'de> for Sizes {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_DIMENSIONS} sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> std::result::Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if shape.len() == MAX_DIMENSIONS {
                return Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
            }
            shape.push(size);
        }
        Ok(Shape(shape))
    }
}
