//! The archive that a kernel unpacks as its first file system: the "newc" form of cpio.

/// An archive that grows by one file after another.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    pub(crate) fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(name, 0o100_000 | mode, contents);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Magic and 13 numbers of 8 hexadecimal digits; then the name and the contents, each filled up
    /// to 4 bytes.
    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.files += 1;
        let (len, name_len) = (contents.len() as u32, name.len() as u32 + 1);
        let fields = [self.files, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| self.bytes.extend_from_slice(format!("{field:08X}").as_bytes()));
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.fill();
        self.bytes.extend_from_slice(contents);
        self.fill();
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        let field =
            |n: usize| u32::from_str_radix(std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap(), 16).unwrap();
        assert_eq!((field(1), field(6), field(11)), (0o100_755, 5, 5));
        // The header of 110 bytes, the name and its zero, filled up to 116.
        assert_eq!((&bytes[110..115], &bytes[116..121]), (&b"init\0"[..], &b"hello"[..]));
        assert_eq!(&bytes[124..130], b"070701", "the next entry begins at a multiple of 4");
        assert!(bytes.windows(10).any(|w| w == b"TRAILER!!!"));
    }
}
