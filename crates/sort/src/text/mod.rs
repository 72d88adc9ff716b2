//! The order of text lines: what GNU `sort` (coreutils 9.11) does in the C locale, byte for byte.
//!
//! [`KeySpec`] reads what a user writes behind -k, [`TextOptions`] gathers it, and [`TextOrder`]
//! compares lines and makes words that sort as they do. Comparisons do not allocate, with two
//! exceptions: -V with -f, -d or -i on keys above 256 bytes, and -g on numbers so near a rounding
//! tie that 128 bits do not decide.
//!
//! The module reads no input, keeps no lines and knows no other collation than bytes.
//!
//! coreutils 9.1 differs in these points. Its -h lacks the units R and Q. Under -g it compares
//! uninitialized padding of NaNs, so that even `nan` differs from `nan` (later versions compare
//! their signs). The byte 0x80 inside a number is a thousands separator, since its "no such
//! character" is 128. Under -V names that begin with a dot consist of suffix only. Of a character
//! position past 2^64 only the low bits count.

mod buffer_size;
mod bytes;
mod extent;
mod field;
mod general;
mod key_spec;
mod number;
mod order;
mod random;
mod version;

pub use buffer_size::{BufferSize, SizeError};
pub use bytes::Ignore;
pub use key_spec::{KeyEnd, KeySpec, Modifiers, quote};
pub(crate) use order::pieced::{LineKey, PiecedLine, compare_pieces};
pub use order::{TextOptions, TextOrder};
