//! The bridges of a link whose bytes go by UCX, as the controller has them: it starts one beside
//! each local end, passes on where the peers are, and kills them when the link is revoked or has
//! lost its other half.
//!
//! ```text
//! within a machine   both bridges say their addresses; each is told the other's; both have met;
//!                    only then the application hears that there is a channel
//! between machines   the controllers have proved the key to each other; each says its bridge's
//!                    address over that connection, sealed; the bridge has met; only then the ends
//!                    get their socket. The connection stays, and its end is that of the link.
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::UcxSettings;

use super::link_wire::LinkWire;
use crate::bridge::process::BridgeProcess;
use crate::bridge::spec::{BridgeSaid, MAX_ADDRESS_BYTES};
use crate::capability::Cap;
use crate::error_text::relayed;
use crate::transport::Token;
use crate::transport::seal::{Keys, Seal, TAG_BYTES};

/// The longest time until bridges must have met. It is shorter than an application's patience.
const START: Duration = Duration::from_secs(8);
/// How long a bridge may take to end by itself when the other controller has hung up: the other
/// bridge may have ended well a moment before.
const FAREWELL: Duration = Duration::from_secs(1);
/// The bytes before a sealed address, which say its length.
const LEN_BYTES: usize = 2;

/// A link whose bytes go by UCX.
pub(crate) struct Bridging {
    pub(super) cap: Cap,
    bridges: Vec<EndBridge>,
    /// The time by which the bridges must have met.
    until: Option<Instant>,
    /// The other controller, which has the other bridge.
    other: Option<OtherController>,
    /// What the local end gets when the bridge has met its peer.
    pub(super) end: Option<LocalEnd>,
}

/// The local end of a link to another machine: its socket, its token, and its keys, if there are
/// any.
pub(super) type LocalEnd = (OwnedFd, Token, Option<Keys>);

/// The bridge of an end on this machine.
pub(super) struct EndBridge {
    process: BridgeProcess,
    address: Option<Vec<u8>>,
    is_told: bool,
    is_met: bool,
    /// The bytes that it sent, once it has ended well.
    ended: Option<u64>,
}

/// The connection to the controller of another machine.
pub(super) struct OtherController {
    wire: LinkWire,
    out: Seal,
    into: Seal,
    has_said: bool,
    heard: Vec<u8>,
    address: Option<Vec<u8>>,
    /// The time until which a bridge may go on whose other controller has hung up.
    left: Option<Instant>,
}

/// The result of continuing with a link.
pub(super) enum BridgingTurn {
    Waits,
    /// The bridges have just met.
    Met,
    /// They have ended well, after so many bytes.
    Over(u64),
}

impl EndBridge {
    /// Starts a bridge for the bytes of a socket.
    pub(super) fn start(settings: &UcxSettings, end: OwnedFd) -> Result<EndBridge> {
        let process = BridgeProcess::start(settings, end)?;
        Ok(EndBridge { process, address: None, is_told: false, is_met: false, ended: None })
    }

    /// Takes all that the bridge has said.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<()> {
        while self.ended.is_none() {
            match self.process.hear(buffer)? {
                None => return Ok(()),
                Some(BridgeSaid::Address(address))
                    if self.address.is_none() && (1..=MAX_ADDRESS_BYTES).contains(&address.len()) =>
                {
                    self.address = Some(address);
                }
                Some(BridgeSaid::Met) if self.is_told && !self.is_met => self.is_met = true,
                Some(BridgeSaid::Ended(bytes)) if self.is_met => self.ended = Some(bytes.sent),
                Some(BridgeSaid::Failed { kind, errno, text }) => {
                    return Err(relayed(&kind, errno, text).within("a bridge of a link by UCX"));
                }
                Some(_) => return Err(Error::new(ErrorKind::Corrupt, "bridge", "a bridge broke its protocol")),
            }
        }
        Ok(())
    }

    fn tell_peer(&mut self, address: &[u8]) -> Result<()> {
        if !self.is_told {
            self.process.tell_peer(address)?;
            self.is_told = true;
        }
        Ok(())
    }
}

impl OtherController {
    /// Makes what is said over a connection on which both sides have proved the key.
    pub(super) fn new(wire: LinkWire, keys: &Keys) -> Result<OtherController> {
        let (out, into) = (Seal::new(&keys.out)?, Seal::new(&keys.into)?);
        Ok(OtherController { wire, out, into, has_said: false, heard: Vec::new(), address: None, left: None })
    }

    /// Says the address of the local bridge, once.
    fn say(&mut self, address: &[u8]) -> Result<()> {
        if std::mem::replace(&mut self.has_said, true) {
            return Ok(());
        }
        let mut piece = address.to_vec();
        piece.resize(address.len() + TAG_BYTES, 0);
        self.out.seal(&mut piece, 0)?;
        self.out.keep(1, piece.len())?;
        // It is short: see `EndBridge::hear`.
        let len = (piece.len() as u16).to_le_bytes();
        self.wire.say(&[&len[..], &piece].concat())
    }

    /// Hears the address of the other bridge, and afterwards that the other controller hangs up.
    fn hear(&mut self) -> Result<()> {
        while self.left.is_none() {
            let len = self.heard.first_chunk::<LEN_BYTES>().map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
            if len > MAX_ADDRESS_BYTES + TAG_BYTES {
                return Err(strange("a bridge's address that is too long"));
            }
            let wanted = if self.address.is_some() { 1 } else { LEN_BYTES + len - self.heard.len() };
            let mut bytes = vec![0; wanted];
            match self.wire.hear(&mut bytes) {
                Ok(None) => return Ok(()),
                // A reset is the end of the other controller, as a hang-up is.
                Ok(Some(0)) => self.left = Some(Instant::now() + FAREWELL),
                Err(e) if e.errno().is_some() => self.left = Some(Instant::now() + FAREWELL),
                Ok(Some(count)) if self.address.is_none() => {
                    self.heard.extend(bytes.get(..count).unwrap_or_default());
                    self.open()?;
                }
                Ok(Some(_)) => return Err(strange("more than its bridge's address")),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Opens the other bridge's address, if all of it is there.
    fn open(&mut self) -> Result<()> {
        let Some((len, piece)) = self.heard.split_first_chunk_mut::<LEN_BYTES>() else { return Ok(()) };
        let len = usize::from(u16::from_le_bytes(*len));
        if len <= TAG_BYTES {
            return Err(strange("a bridge without an address"));
        }
        if piece.len() < len {
            return Ok(());
        }
        self.into.open(piece, 0)?;
        self.into.keep(1, len)?;
        self.address = Some(piece.get(..len - TAG_BYTES).unwrap_or_default().to_vec());
        Ok(())
    }
}

impl Bridging {
    /// Notes the two bridges of a link within this machine.
    pub(super) fn within(cap: Cap, bridges: Vec<EndBridge>) -> Bridging {
        Bridging { cap, bridges, until: Some(Instant::now() + START), other: None, end: None }
    }

    /// Notes the bridge of a link to another machine.
    pub(super) fn across(cap: Cap, bridge: EndBridge, other: OtherController, end: LocalEnd) -> Bridging {
        Bridging { other: Some(other), end: Some(end), ..Bridging::within(cap, vec![bridge]) }
    }

    /// The number of bridges that have not ended.
    pub(super) fn running(&self) -> usize {
        self.bridges.iter().filter(|bridge| bridge.ended.is_none()).count()
    }

    /// Whether the application waits for an answer until the bridges have met.
    pub(super) fn owes_answer(&self) -> bool {
        self.other.is_none() && self.until.is_some()
    }

    /// The descriptors to wait for.
    pub(super) fn polled(&self) -> Vec<BorrowedFd<'_>> {
        let bridges = self.bridges.iter().filter(|bridge| bridge.ended.is_none()).map(|bridge| bridge.process.as_fd());
        let other = self.other.iter().filter(|other| other.left.is_none()).map(|other| other.wire.as_fd());
        bridges.chain(other).collect()
    }

    /// The time by which something must have happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until.into_iter().chain(self.other.as_ref().and_then(|other| other.left)).min()
    }

    /// Continues as far as possible without waiting.
    ///
    /// # Errors
    /// The reason why the link has no bridges any more, or will have none.
    pub(super) fn go_on(&mut self, buffer: &mut [u8]) -> Result<BridgingTurn> {
        for bridge in &mut self.bridges {
            bridge.hear(buffer)?;
        }
        self.exchange()?;
        if self.until.is_some() && self.bridges.iter().all(|bridge| bridge.is_met) {
            self.until = None;
            return Ok(BridgingTurn::Met);
        }
        let ended = self.bridges.iter().map(|bridge| bridge.ended);
        // What bridges say may be any number.
        let all = ended.reduce(|one, other| Some(one?.saturating_add(other?))).flatten();
        if let Some(bytes) = all {
            return Ok(BridgingTurn::Over(bytes));
        }
        let now = Instant::now();
        if self.until.is_some_and(|until| until <= now) {
            return Err(Error::new(ErrorKind::Unavailable, "connect", "the bridges of a link did not meet in time")
                .with_advice(
                    "check that UCX works with these transports and devices between the two (`ucx_perftest`)",
                ));
        }
        if self.other.as_ref().and_then(|other| other.left).is_some_and(|left| left <= now) {
            let what = "the other controller has ended, or has revoked the link";
            return Err(Error::new(ErrorKind::Device, "bridge", what));
        }
        Ok(BridgingTurn::Waits)
    }

    /// Tells each bridge where its peer is, once that is known.
    fn exchange(&mut self) -> Result<()> {
        match (&mut self.bridges[..], &mut self.other) {
            ([one, two], None) => {
                if let (Some(of_one), Some(of_two)) = (one.address.clone(), two.address.clone()) {
                    one.tell_peer(&of_two)?;
                    two.tell_peer(&of_one)?;
                }
            }
            ([bridge], Some(other)) => {
                if let Some(address) = &bridge.address {
                    other.say(address)?;
                }
                other.hear()?;
                if let (Some(_), Some(address)) = (&bridge.address, &other.address) {
                    bridge.tell_peer(address)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "join", format!("the other controller sent {what}"))
}
