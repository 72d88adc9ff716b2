//! -R: an order by MD5 digests, as in GNU sort. The same salt gives the same order, and equal keys
//! stand together.

use std::cmp::Ordering;

use md5::{Digest, Md5};

/// Returns the digest of the salt and the key.
fn digest(salt: &[u8; 16], key: &[u8]) -> [u8; 16] {
    Md5::new().chain_update(salt).chain_update(key).finalize().into()
}

/// Compares two keys by their digests, and by their bytes if these are equal.
pub(super) fn compare(salt: &[u8; 16], a: &[u8], b: &[u8]) -> Ordering {
    digest(salt, a).cmp(&digest(salt, b)).then_with(|| a.cmp(b))
}

/// Returns the first eight bytes of the digest. Their order is that of `compare`, unless they are
/// equal.
pub(super) fn prefix(salt: &[u8; 16], key: &[u8]) -> u64 {
    u64::from_be_bytes(digest(salt, key)[..8].try_into().unwrap_or_default())
}

/// Appends the digest, which decides unless two keys share it.
pub(super) fn push_digest(salt: &[u8; 16], key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&digest(salt, key));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests of RFC 1321; the salt is the beginning of the text.
    #[test]
    fn digests_are_md5() {
        let text = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
        let salt = text.first_chunk::<16>().copied().unwrap_or_default();
        let want = [0xd1, 0x74, 0xab, 0x98, 0xd2, 0x77, 0xd9, 0xf5, 0xa5, 0x61, 0x1c, 0x2c, 0x9f, 0x41, 0x9d, 0x9f];
        assert_eq!(digest(&salt, &text[16..]), want);
        assert_eq!(prefix(&salt, &text[16..]), 0xd174_ab98_d277_d9f5);
    }

    #[test]
    fn equal_keys_are_equal_and_others_follow_their_digests() {
        let salt = [7; 16];
        for (a, b) in [(&b"a"[..], &b"a"[..]), (b"", b""), (b"a", b"b"), (b"a", b"aa"), (b"a\0", b"a")] {
            let order = compare(&salt, a, b);
            assert_eq!(order, digest(&salt, a).cmp(&digest(&salt, b)));
            assert_eq!(compare(&salt, b, a), order.reverse());
            assert_eq!(order == Ordering::Equal, a == b);
        }
    }
}
