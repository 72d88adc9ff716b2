//! What client and exporter say to each other, checked once where it arrives.

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::{MAX_BLOB_BYTES, PeerMemory};

use super::settings::{RemoteRights, RemoteTransport};
use crate::direct::peer::DirectMemory;

/// The version of these messages.
const VERSION: u8 = 2;
/// The longest reason that is shown.
const MAX_REASON_BYTES: usize = 500;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientAsk {
    /// To know the facts.
    Facts,
    /// To use the memory by UCX, for as long as the connection stays.
    Memory,
    /// To use it by the kernel's copies.
    Direct,
}

/// The facts of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportFacts {
    pub(crate) len: u64,
    pub(crate) rights: RemoteRights,
    pub(crate) transport: RemoteTransport,
}

/// What the exporter answers.
#[derive(Clone, Debug)]
pub(crate) enum ExporterAnswer {
    Facts(ExportFacts),
    Memory(ExportFacts, PeerMemory),
    Direct(ExportFacts, DirectMemory),
    Refused(String),
}

/// Why an export ended for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Revoked,
    HolderEnded,
}

impl ClientAsk {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        vec![VERSION, self as u8]
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<ClientAsk> {
        match bytes {
            [VERSION, 0] => Ok(ClientAsk::Facts),
            [VERSION, 1] => Ok(ClientAsk::Memory),
            [VERSION, 2] => Ok(ClientAsk::Direct),
            _ => Err(strange("a request of another version")),
        }
    }
}

impl EndReason {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        vec![u8::from(self == EndReason::Revoked)]
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<EndReason> {
        match bytes {
            [0] => Some(EndReason::HolderEnded),
            [1] => Some(EndReason::Revoked),
            _ => None,
        }
    }
}

impl ExporterAnswer {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let facts = |tag, facts: &ExportFacts| {
            let mut bytes = vec![tag, u8::from(facts.rights == RemoteRights::ReadWrite)];
            bytes.push(u8::from(facts.transport == RemoteTransport::Network));
            bytes.extend(facts.len.to_le_bytes());
            bytes
        };
        match self {
            ExporterAnswer::Refused(why) => [&[0], why.as_bytes()].concat(),
            ExporterAnswer::Facts(of) => facts(1, of),
            ExporterAnswer::Direct(of, memory) => {
                let mut bytes = facts(3, of);
                bytes.extend(memory.process.to_le_bytes());
                bytes.extend(memory.start.to_le_bytes());
                bytes.extend(memory.proof_at.to_le_bytes());
                bytes.extend(memory.proof);
                bytes
            }
            ExporterAnswer::Memory(of, memory) => {
                let mut bytes = facts(2, of);
                bytes.extend(memory.start.to_le_bytes());
                for blob in [&memory.worker, &memory.key] {
                    // Both were made by UCX in a holder, and checked when they came from it.
                    bytes.extend((blob.len() as u16).to_le_bytes());
                    bytes.extend(blob);
                }
                bytes
            }
        }
    }

    /// # Errors
    /// `Corrupt` for anything that an exporter of this version does not say.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<ExporterAnswer> {
        let (tag, mut rest) = bytes.split_first().ok_or_else(|| strange("an empty answer"))?;
        if *tag == 0 {
            let text = String::from_utf8_lossy(rest.get(..rest.len().min(MAX_REASON_BYTES)).unwrap_or_default());
            return Ok(ExporterAnswer::Refused(text.chars().filter(|c| !c.is_control()).collect()));
        }
        let [rights, transport] = array(&mut rest)?;
        let rights = match rights {
            0 => RemoteRights::Read,
            1 => RemoteRights::ReadWrite,
            _ => return Err(strange("rights that do not exist")),
        };
        let transport = match transport {
            0 => RemoteTransport::SharedMemory,
            1 => RemoteTransport::Network,
            _ => return Err(strange("a transport that does not exist")),
        };
        let len = u64::from_le_bytes(array(&mut rest)?);
        if len == 0 || len > isize::MAX as u64 {
            return Err(strange("a length that no memory has"));
        }
        let facts = ExportFacts { len, rights, transport };
        let answer = match tag {
            1 => ExporterAnswer::Facts(facts),
            2 => {
                let start = u64::from_le_bytes(array(&mut rest)?);
                if start.checked_add(len).is_none() {
                    return Err(strange("an address that wraps"));
                }
                let (worker, key) = (blob(&mut rest)?, blob(&mut rest)?);
                ExporterAnswer::Memory(facts, PeerMemory { worker, key, start })
            }
            3 => {
                let process = i32::from_le_bytes(array(&mut rest)?);
                let start = u64::from_le_bytes(array(&mut rest)?);
                // 0 and negative numbers mean other things than a process.
                if process <= 0 || start.checked_add(len).is_none() {
                    return Err(strange("a process or an address that there is not"));
                }
                let proof_at = u64::from_le_bytes(array(&mut rest)?);
                ExporterAnswer::Direct(facts, DirectMemory { process, start, proof_at, proof: array(&mut rest)? })
            }
            _ => return Err(strange("an answer of another version")),
        };
        if rest.is_empty() { Ok(answer) } else { Err(strange("more than an answer")) }
    }
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (first, behind) = rest.split_first_chunk::<N>().ok_or_else(|| strange("half of an answer"))?;
    *rest = behind;
    Ok(*first)
}

fn blob(rest: &mut &[u8]) -> Result<Vec<u8>> {
    let len = usize::from(u16::from_le_bytes(array(rest)?));
    if len == 0 || len > MAX_BLOB_BYTES {
        return Err(strange("an address or key of UCX of this length"));
    }
    let (first, behind) = rest.split_at_checked(len).ok_or_else(|| strange("half of an answer"))?;
    *rest = behind;
    Ok(first.to_vec())
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "connect", format!("the other side said {what}"))
        .with_advice("both sides need the same version of the library")
}

#[cfg(test)]
mod tests {
    use datapipes_testkit::{Random, seed};

    use super::*;

    fn facts() -> ExportFacts {
        ExportFacts { len: 5000, rights: RemoteRights::ReadWrite, transport: RemoteTransport::SharedMemory }
    }

    fn answers() -> [ExporterAnswer; 4] {
        let memory = PeerMemory { worker: vec![7; 79], key: vec![9; 10], start: 1 << 40 };
        let direct = DirectMemory { process: 7, start: 1 << 40, proof_at: 1 << 41, proof: [5; 16] };
        let refused = ExporterAnswer::Refused("full".into());
        [
            refused,
            ExporterAnswer::Facts(facts()),
            ExporterAnswer::Memory(facts(), memory),
            ExporterAnswer::Direct(facts(), direct),
        ]
    }

    #[test]
    fn what_is_said_is_heard() {
        for answer in answers() {
            let heard = ExporterAnswer::from_bytes(&answer.to_bytes()).unwrap();
            assert_eq!(format!("{heard:?}"), format!("{answer:?}"));
        }
        for ask in [ClientAsk::Facts, ClientAsk::Memory, ClientAsk::Direct] {
            assert_eq!(ClientAsk::from_bytes(&ask.to_bytes()).unwrap(), ask);
        }
        for reason in [EndReason::Revoked, EndReason::HolderEnded] {
            assert_eq!(EndReason::from_bytes(&reason.to_bytes()), Some(reason));
        }
    }

    #[test]
    fn what_no_exporter_says_is_refused_and_nothing_panics() {
        for whole in answers()[2..].iter().map(ExporterAnswer::to_bytes) {
            for len in 1..whole.len() {
                assert!(ExporterAnswer::from_bytes(&whole[..len]).is_err(), "{len} of {} bytes", whole.len());
            }
            assert!(ExporterAnswer::from_bytes(&[&whole[..], &[0]].concat()).is_err());
        }
        // Numbers that mean a group, or every process.
        for process in [0, -1, i32::MIN] {
            let mut bytes = answers()[3].to_bytes();
            bytes[11..15].copy_from_slice(&process.to_le_bytes());
            assert!(ExporterAnswer::from_bytes(&bytes).is_err(), "{process}");
        }
        let whole = answers()[2].to_bytes();
        let with = |at: usize, bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + bytes.len()].copy_from_slice(bytes);
            ExporterAnswer::from_bytes(&changed).map_err(|e| e.kind())
        };
        assert!(with(3, &[0; 8]).is_err() && with(3, &[255; 8]).is_err(), "lengths that no memory has");
        assert!(with(11, &[255; 8]).is_err(), "an address that wraps");
        assert!(with(1, &[2]).is_err() && with(2, &[2]).is_err() && with(0, &[3]).is_err());
        assert!(with(19, &[0, 0]).is_err() && with(19, &[255, 255]).is_err());
        let mut random = Random(seed(0x9e7));
        for _ in 0..20_000 {
            let len = (random.next() % 80) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| (random.next() >> 56) as u8).collect();
            let _ = (ExporterAnswer::from_bytes(&bytes), ClientAsk::from_bytes(&bytes), EndReason::from_bytes(&bytes));
        }
    }

    #[test]
    fn a_reason_is_short_and_has_no_control_characters() {
        let long = [&[0][..], "\x1b[2J".as_bytes(), &[b'a'; 4000]].concat();
        let ExporterAnswer::Refused(why) = ExporterAnswer::from_bytes(&long).unwrap() else { panic!("not refused") };
        assert!(why.len() <= MAX_REASON_BYTES && !why.contains('\x1b'));
    }
}
