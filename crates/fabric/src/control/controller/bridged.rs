//! What the controller does for links whose bytes go by UCX: it begins them, tells the application
//! that they work, or why they do not, and notes their end.

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::UcxSettings;

use super::Controller;
use super::bridging::{Bridging, BridgingTurn, EndBridge, OtherController};
use super::link::{Link, unix};
use super::link_wire::LinkWire;
use super::objects::ControlledObject;
use crate::capability::{Cap, ObjectId, Party};
use crate::channel::ChannelShape;
use crate::control::key::LinkSpec;
use crate::control::noise::Agreed;
use crate::control::protocol::{Answer, DeviceEvent, Tell};
use crate::error_text::text_of;

/// The most links by UCX at a time.
const MAX_BRIDGED: usize = 128;

impl Controller {
    /// Whether the application waits for the answer to a request.
    pub(super) fn owes_answer(&self) -> bool {
        self.bridges.values().any(Bridging::owes_answer)
    }

    /// Begins a channel by UCX within this machine. The application hears of it when the bridges
    /// have met, or cannot.
    pub(super) fn bridge_within(&mut self, shape: ChannelShape) {
        let settings = UcxSettings::shared_memory();
        let mut bridges = Vec::new();
        let begun = self.check_bridges().and_then(|()| {
            self.create(Party::APPLICATION, |epoch| {
                let (link, ends) = Link::bridged(shape, epoch)?;
                for end in ends {
                    bridges.push(EndBridge::start(&settings, end)?);
                }
                ControlledObject::link(link)
            })
        });
        match begun {
            Ok((object, cap)) => drop(self.bridges.insert(object, Bridging::within(cap, bridges))),
            Err(e) => self.refuse(Party::APPLICATION, &e),
        }
    }

    /// Begins to move the bytes of a link to another machine by UCX: its controller is at the other
    /// end of the wire, and has proved the key.
    pub(super) fn bridge_across(
        &mut self,
        object: ObjectId,
        (cap, spec): (Cap, LinkSpec),
        wire: LinkWire,
        agreed: Agreed,
    ) -> Result<()> {
        self.check_bridges()?;
        let settings = self.ucx_links.clone().unwrap_or_default().settings(wire.local()?)?;
        let (own, end) = unix(spec.shape)?;
        let other = OtherController::new(wire, &agreed.keys_of_controllers())?;
        let bridge = EndBridge::start(&settings, end)?;
        let end = (own, agreed.token, agreed.keys(spec.encryption));
        self.bridges.insert(object, Bridging::across(cap, bridge, other, end));
        Ok(())
    }

    fn check_bridges(&self) -> Result<()> {
        if self.bridges.len() < MAX_BRIDGED {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace, "create", format!("more than {MAX_BRIDGED} links by UCX at a time")))
    }

    /// Continues with a link by UCX.
    pub(super) fn bridged(&mut self, object: ObjectId, buffer: &mut [u8]) {
        loop {
            let Some(bridging) = self.bridges.get_mut(&object) else { return };
            let went_on = match bridging.go_on(buffer) {
                Ok(BridgingTurn::Waits) => return,
                Ok(BridgingTurn::Met) => self.met(object),
                Ok(BridgingTurn::Over(bytes)) => {
                    self.bridged_bytes = self.bridged_bytes.saturating_add(bytes);
                    self.bridges.remove(&object);
                    return;
                }
                Err(e) => Err(e),
            };
            if let Err(e) = went_on {
                return self.lose_bridges(object, &e);
            }
        }
    }

    /// Handles that the bridges of a link have met: it works from now on.
    fn met(&mut self, object: ObjectId) -> Result<()> {
        let Some(bridging) = self.bridges.get_mut(&object) else { return Ok(()) };
        match bridging.end.take() {
            None => {
                let cap = bridging.cap;
                self.tell(Party::APPLICATION, Tell::Answer(Answer::Created { cap }), Vec::new());
            }
            Some((socket, token, keys)) => {
                self.joined(object, socket, token, keys)?;
                self.tell_link(object, None);
            }
        }
        Ok(())
    }

    /// Handles that a link has lost a bridge, or never had one. Its other bridge is killed, so both
    /// ends learn that the other side has gone.
    fn lose_bridges(&mut self, object: ObjectId, why: &Error) {
        let Some(bridging) = self.bridges.remove(&object) else { return };
        let (cap, owes_answer) = (bridging.cap, bridging.owes_answer());
        drop(bridging);
        if owes_answer {
            // Nobody knows it.
            let _ = self.revoke(Party::APPLICATION, cap);
            self.refuse(Party::APPLICATION, why);
        } else if self.joins.contains_key(&object) {
            self.tell_link(object, Some(why));
        } else {
            let event = DeviceEvent::Link { cap, error: Some(text_of(why)) };
            self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
        }
    }
}
