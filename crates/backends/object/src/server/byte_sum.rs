//! Checksums of bytes as servers state them: CRC-64/NVME, or CRC-32C where a server has only that.

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};
use http::header::HeaderMap;

/// The checksums of S3, the better one first.
const OF_S3: [(&str, SumKind); 2] =
    [("x-amz-checksum-crc64nvme", SumKind::Crc64), ("x-amz-checksum-crc32c", SumKind::Crc32c)];
/// Whether a checksum of S3 is that of the whole object, or of the checksums of its parts.
const KIND_OF_S3: &str = "x-amz-checksum-type";
/// The checksums of Google: `crc32c=n03x6A==,md5=Ojk9c3dhfxgoKVVHYwFbHQ==`, of the whole object.
const OF_GOOGLE: &str = "x-goog-hash";
/// The checksum of Azure, of the bytes of a request.
pub(crate) const OF_AZURE: &str = "x-ms-content-crc64";

/// How a checksum is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumKind {
    /// CRC-64/NVME.
    Crc64,
    /// CRC-32C.
    Crc32c,
}

impl SumKind {
    fn algorithm(self) -> CrcAlgorithm {
        match self {
            SumKind::Crc64 => CrcAlgorithm::Crc64Nvme,
            SumKind::Crc32c => CrcAlgorithm::Crc32Iscsi,
        }
    }

    /// Its name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SumKind::Crc64 => "CRC-64",
            SumKind::Crc32c => "CRC-32C",
        }
    }

    /// What makes it of bytes that come piece by piece.
    pub(crate) fn digest(self) -> Digest {
        Digest::new(self.algorithm())
    }

    /// The sum of bytes.
    pub(crate) fn of(self, bytes: &[u8]) -> u64 {
        checksum(self.algorithm(), bytes)
    }

    /// The sum of bytes that are followed by `len` others.
    pub(crate) fn join(self, before: u64, sum: u64, len: u64) -> u64 {
        checksum_combine(self.algorithm(), before, sum, len)
    }

    /// Reads a sum in base64, as it is in headers.
    fn read(self, text: &[u8]) -> Option<u64> {
        match self {
            SumKind::Crc64 => from_base64::<8>(text).map(u64::from_be_bytes),
            SumKind::Crc32c => from_base64::<4>(text).map(|bytes| u64::from(u32::from_be_bytes(bytes))),
        }
    }
}

/// A checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSum {
    pub(crate) kind: SumKind,
    pub(crate) value: u64,
}

/// The checksum of a whole object, by the answer to a look at it.
pub(crate) fn whole_object(headers: &HeaderMap) -> Option<ByteSum> {
    let is_whole = headers.get(KIND_OF_S3).is_none_or(|kind| kind.as_bytes() == b"FULL_OBJECT");
    let of_s3 = OF_S3.into_iter().filter(|_| is_whole).find_map(|(name, kind)| {
        let value = kind.read(headers.get(name)?.as_bytes())?;
        Some(ByteSum { kind, value })
    });
    let of_google = || {
        let sums = headers.get_all(OF_GOOGLE).into_iter().filter_map(|sums| sums.to_str().ok());
        let mut sums = sums.flat_map(|sums| sums.split(','));
        let text = sums.find_map(|sum| sum.trim().strip_prefix("crc32c="))?;
        Some(ByteSum { kind: SumKind::Crc32c, value: SumKind::Crc32c.read(text.as_bytes())? })
    };
    of_s3.or_else(of_google)
}

/// The CRC-64 with which a part or an object is sent.
pub(crate) fn sent_crc64(headers: &HeaderMap) -> Option<u64> {
    let (name, kind) = OF_S3[0];
    kind.read(headers.get(name)?.as_bytes())
}

/// The CRC-64 of the bytes that came with a request, as Azure's answer has it: the lowest byte
/// first.
pub(crate) fn answered_crc64(headers: &HeaderMap) -> Option<u64> {
    from_base64::<8>(headers.get(OF_AZURE)?.as_bytes()).map(u64::from_le_bytes)
}

/// A CRC-64 for a request to Azure.
pub(crate) fn for_azure(sum: u64) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Eight bytes are 64 bits: ten digits and four bits, which two more bits make the eleventh.
    let bits = u128::from(sum.swap_bytes()) << 2;
    let digit = |n: u32| char::from(DIGITS[(bits >> (6 * n) & 63) as usize]);
    (0..11).rev().map(digit).chain(['=']).collect()
}

/// `N` bytes in base64, with padding.
fn from_base64<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digits = (N * 8).div_ceil(6);
    let (text, pad) = text.split_at_checked(digits)?;
    if pad.len() != N.div_ceil(3) * 4 - digits || pad.iter().any(|byte| *byte != b'=') {
        return None;
    }
    let mut bits: u128 = 0;
    for byte in text {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u128::from(six);
    }
    // The last bits are padding.
    let bytes = (bits >> (digits * 6 - N * 8)).to_be_bytes();
    bytes.last_chunk::<N>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn checksums_are_read() {
        let crc64 = |text: &[u8]| SumKind::Crc64.read(text);
        assert_eq!(crc64(b"AAAAAAAAAAE="), Some(1));
        assert_eq!(crc64(b"//////////8="), Some(u64::MAX));
        for wrong in [&b""[..], b"AAAAAAAAAAE", b"AAAAAAAAAA==", b"AAAAA-AAAAE=", b"AAAAAAAAAAAA="] {
            assert_eq!(crc64(wrong), None);
        }
        assert_eq!(SumKind::Crc32c.read(b"AAAAAQ=="), Some(1));
        for wrong in [&b""[..], b"AAAAAQ", b"AAAAAQ=", b"AAAAAQ==-3", b"AAAA!Q=="] {
            assert_eq!(SumKind::Crc32c.read(wrong), None);
        }
        // The check value of the CRC catalogue.
        assert_eq!(SumKind::Crc32c.of(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_better_checksum_of_the_whole_object_counts() {
        let of = |pairs: &[(&'static str, &str)]| whole_object(&headers(pairs)).map(|sum| (sum.kind, sum.value));
        let (long, short) = (("x-amz-checksum-crc64nvme", "AAAAAAAAAAI="), ("x-amz-checksum-crc32c", "AAAAAQ=="));
        assert_eq!(of(&[long, short]), Some((SumKind::Crc64, 2)));
        assert_eq!(of(&[short]), Some((SumKind::Crc32c, 1)));
        assert_eq!(of(&[short, ("x-amz-checksum-type", "COMPOSITE")]), None);
        assert_eq!(of(&[("x-goog-hash", "md5=x, crc32c=AAAAAQ==")]), Some((SumKind::Crc32c, 1)));
        assert_eq!(of(&[("x-goog-hash", "crc32c=?")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_sum_of_azure_has_its_lowest_byte_first() {
        // The check value of the CRC catalogue is ae8b14860a799888.
        assert_eq!(SumKind::Crc64.of(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(answered_crc64(&headers(&[(OF_AZURE, "iJh5CoYUi64=")])), Some(0xae8b_1486_0a79_9888));
        assert_eq!(for_azure(0xae8b_1486_0a79_9888), "iJh5CoYUi64=");
        assert_eq!(answered_crc64(&headers(&[(OF_AZURE, "?")])), None);
        assert_eq!(answered_crc64(&headers(&[])), None);
    }

    #[test]
    fn sums_of_parts_are_joined() {
        for kind in [SumKind::Crc64, SumKind::Crc32c] {
            let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
            let (one, two) = bytes.split_at(333);
            assert_eq!(kind.join(kind.of(one), kind.of(two), two.len() as u64), kind.of(&bytes));
        }
    }
}
