//! Keys of exports, and the ticket that a client needs.

use std::fmt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use datapipes_core::{Error, ErrorKind, Result};

use super::settings::ExportAddress;

/// The longest file of a ticket.
const MAX_FILE_BYTES: u64 = 8 << 10;
/// The first word of a ticket's text.
const MARK: &str = "datapipes-remote-1";

/// The public number of an export, by which an exporter finds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ExportNumber(pub(crate) [u8; 16]);

/// A secret of 32 random bytes. It is never sent, shown or written but by
/// [`RemoteTicket::save`] and [`RemoteTicket::secret_text`].
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ExportKey(pub(crate) [u8; 32]);

impl fmt::Debug for ExportKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExportKey(..)")
    }
}

impl ExportNumber {
    pub(crate) fn random() -> Result<ExportNumber> {
        random().map(ExportNumber)
    }
}

impl fmt::Display for ExportNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hexadecimal(&self.0))
    }
}

impl fmt::Debug for ExportNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ExportKey {
    pub(crate) fn random() -> Result<ExportKey> {
        random().map(ExportKey)
    }
}

/// What a client needs to reach an export: the address, the export's number and its key. Whoever
/// has it has the export's rights until they are revoked, so bring it to the other side in a secure
/// way.
///
/// It shows everything but the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteTicket {
    address: ExportAddress,
    pub(crate) number: ExportNumber,
    pub(crate) key: ExportKey,
}

impl RemoteTicket {
    pub(crate) fn new(address: ExportAddress, number: ExportNumber, key: ExportKey) -> RemoteTicket {
        RemoteTicket { address, number, key }
    }

    /// Where the exporter is.
    pub fn address(&self) -> &ExportAddress {
        &self.address
    }

    /// The same for another address, for a client that reaches the exporter by a tunnel.
    #[must_use]
    pub fn at(self, address: ExportAddress) -> RemoteTicket {
        RemoteTicket { address, ..self }
    }

    /// The name of the export, without the key: `remote:ADDRESS/NUMBER`.
    pub(crate) fn name(&self) -> String {
        let number = self.number.to_string();
        format!("remote:{}/{}", self.address, number.get(..8).unwrap_or_default())
    }

    /// The whole ticket in one line, **with the key**.
    pub fn secret_text(&self) -> String {
        format!("{MARK} {} {} {}\n", self.address, self.number, hexadecimal(&self.key.0))
    }

    /// Reads a ticket from its text.
    ///
    /// # Errors
    /// `InvalidInput`, without the text.
    pub fn from_secret_text(text: &str) -> Result<RemoteTicket> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::InvalidInput, "read", format!("it is no ticket: {what} is not that of one"))
        };
        let mut words = text.trim_end().rsplitn(3, ' ');
        let key = words.next().and_then(bytes_of::<32>).ok_or_else(|| wrong("the key"))?;
        let number = words.next().and_then(bytes_of::<16>).ok_or_else(|| wrong("the number"))?;
        let address = words.next().and_then(|rest| rest.strip_prefix(MARK)?.strip_prefix(' '));
        let address = address.ok_or_else(|| wrong("the first word or the address"))?.parse()?;
        Ok(RemoteTicket { address, number: ExportNumber(number), key: ExportKey(key) })
    }

    /// Writes the ticket to a new file that only this user may read.
    ///
    /// # Errors
    /// Errors of writing; a file that exists is left alone.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |e| Error::io("write", e, path.display().to_string());
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(failed)?;
        let written =
            std::io::Write::write_all(&mut file, self.secret_text().as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|e| {
            // A half of a ticket is of no use.
            let _ = std::fs::remove_file(path);
            failed(e)
        })
    }

    /// Reads a ticket from a file that only its owner may read.
    ///
    /// # Errors
    /// `PermissionDenied` where others may read the file or it is another user's, as for private
    /// keys of SSH; `InvalidInput` where it is no ticket; errors of reading.
    pub fn load(path: &Path) -> Result<RemoteTicket> {
        let shown = path.display().to_string();
        // A pipe would be waited for.
        let options = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).clone();
        let file = options.open(path).map_err(|e| Error::io("open", e, &shown))?;
        let about = file.metadata().map_err(|e| Error::io("look at", e, &shown))?;
        if !about.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "read", format!("{shown}: a ticket is in a regular file")));
        }
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(&file, MAX_FILE_BYTES), &mut bytes)
            .map_err(|e| Error::io("read", e, &shown))?;
        // Bytes that are no text are no ticket either.
        let text = String::from_utf8_lossy(&bytes);
        // What is no ticket gets no advice to change whose it is, or who may read it.
        let ticket = RemoteTicket::from_secret_text(&text).map_err(|e| e.within(&shown))?;
        // Whoever wrote the ticket chose the exporter, which is trusted with this process's memory.
        if about.uid() != rustix::process::geteuid().as_raw() {
            let why = format!("{shown}: it belongs to user {}, and this is another one", about.uid());
            return Err(Error::new(ErrorKind::PermissionDenied, "read", why).with_advice("use a copy of your own"));
        }
        if about.mode() & 0o077 != 0 {
            return Err(Error::new(ErrorKind::PermissionDenied, "read", format!("{shown}: others may read this key"))
                .with_advice(format!("chmod 600 {shown}")));
        }
        Ok(ticket)
    }
}

/// Random bytes of the kernel.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let got = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
        done += got.map_err(|e| Error::os("make", e.raw_os_error(), "random bytes"))?;
    }
    Ok(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, two) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(address: &str) -> RemoteTicket {
        RemoteTicket::new(address.parse().unwrap(), ExportNumber::random().unwrap(), ExportKey::random().unwrap())
    }

    #[test]
    fn a_ticket_is_read_as_it_was_written_and_shows_no_key() {
        for address in ["127.0.0.1:7", "unix:/a place/with spaces"] {
            let one = ticket(address);
            assert_eq!(RemoteTicket::from_secret_text(&one.secret_text()).unwrap(), one);
            let key = hexadecimal(&one.key.0);
            assert!(one.secret_text().contains(&key));
            assert!(!format!("{one:?} {}", one.name()).contains(&key[..8]), "{one:?}");
        }
        assert_ne!(ticket("127.0.0.1:7").key, ticket("127.0.0.1:7").key);
        let text = ticket("127.0.0.1:7").secret_text();
        for wrong in ["", "datapipes-remote-1", &text[1..], &text[..text.len() - 2], &text.replace(' ', "")] {
            let e = RemoteTicket::from_secret_text(wrong).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("datapipes-ticket-{}", std::process::id()));
        let one = ticket("127.0.0.1:7");
        one.save(&path).unwrap();
        assert!(one.save(&path).is_err(), "it is not written over");
        assert_eq!(RemoteTicket::load(&path).unwrap(), one);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let e = RemoteTicket::load(&path).unwrap_err();
            assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("user 12345"), "{e}");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        } else {
            println!("SKIPPED: a ticket of another user: this needs root");
        }
        let pipe = path.with_extension("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let e = RemoteTicket::load(&pipe).unwrap_err();
        std::fs::remove_file(&pipe).unwrap();
        assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("regular file"), "{e}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let e = RemoteTicket::load(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(e.kind() == ErrorKind::PermissionDenied && e.to_string().contains("chmod 600"), "{e}");
    }
}
