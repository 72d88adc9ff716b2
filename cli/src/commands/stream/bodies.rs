//! The devices of a stream: what runs in their locked-down processes. All are the fabric's own; those that send have a meter, for
//! the command to see how far they are.

use datapipes::{Error, ErrorKind, Result};
use datapipes_fabric::device::{Function, Functions, Role, body, metered};

use super::meter::Teller;

/// A device with a meter: its arguments are the role, and the last descriptor given is the meter's.
const METERED: &str = "stream-metered";

/// What processes of this program that are devices can run.
pub(crate) fn functions() -> Functions {
    Functions::default().with("lz4", |_| Ok(Box::new(Frame))).with_body(METERED, |role, mut given| {
        let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "launch", what);
        let role = serde_json::from_value(role.clone()).map_err(|e| wrong(format!("the role of a device: {e}")))?;
        let meter = given.pop().ok_or_else(|| wrong("a meter was not given".into()))?;
        Ok(metered(body(role, given, &functions())?, Box::new(Teller::new(meter))))
    })
}

/// The role, with a meter.
pub(super) fn with_meter(role: &Role) -> Result<Role> {
    let arguments = serde_json::to_value(role);
    let told = |e| Error::new(ErrorKind::InvalidInput, "launch", format!("the role of a device: {e}"));
    Ok(Role::Custom { name: METERED.into(), arguments: arguments.map_err(told)? })
}

/// LZ4 as its command line tool reads it (the legacy frame: a magic number, and the length of the block): each block is a
/// frame, and frames may follow each other.
struct Frame;

const LEGACY_MAGIC: u32 = 0x184C_2102;
/// What compressing asks for beyond a tenth more than a block has: 20 bytes, and 8 for the frame.
pub(super) const FRAME_BYTES: usize = 32;

impl Function for Frame {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let all = output.len();
        let short =
            || Error::new(ErrorKind::OutOfRange, "compress", format!("{} bytes into a block of {all}", input.len()));
        let (head, body) = output.split_first_chunk_mut::<8>().ok_or_else(short)?;
        let len = lz4_flex::block::compress_into(input, body).map_err(|_| short())?;
        head[..4].copy_from_slice(&LEGACY_MAGIC.to_le_bytes());
        // It fits: a block is 8 MiB at most, see `Args`.
        head[4..].copy_from_slice(&(len as u32).to_le_bytes());
        Ok(8 + len)
    }
}
