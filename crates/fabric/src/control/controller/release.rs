//! The effects of a revocation, a death or an end on endpoints.
//!
//! ```text
//! the state word says "revoked", sockets are shut down  both ends of a channel stop at once
//! each holder is told to release                        the application's memory: see `ports`
//! a device claims to have released                      `audit` inspects it; killed after GRACE
//! no party has it any more                              the revocation is complete
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use datapipes_core::Result;

use super::Controller;
use super::objects::{ControlledObject, Endpoint};
use crate::capability::{Cap, Capability, ObjectId, Party, Rights};
use crate::channel::layout::State;
use crate::control::devices::audit::{Audit, Finding, Inode, Suspect};
use crate::control::protocol::{Answer, DeviceEvent, EndpointId, Tell};

/// The time after which a device is killed if it was told to release something and has not shown
/// that it did. Only the end of a process can take away what it has mapped.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Revocations that are not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    /// The party that asked, and the endpoints that are waited for.
    open: BTreeMap<u64, (Party, BTreeSet<EndpointId>)>,
    last: u64,
}

impl Revocations {
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn wait_for(&mut self, revocation: u64, by: Party, endpoint: EndpointId) {
        self.open.entry(revocation).or_insert_with(|| (by, BTreeSet::new())).1.insert(endpoint);
    }

    fn is_open(&self, revocation: u64) -> bool {
        self.open.contains_key(&revocation)
    }

    /// Notes that an endpoint is gone. If it was the last one, returns the party to tell.
    fn gone(&mut self, revocation: u64, endpoint: EndpointId) -> Option<Party> {
        let (by, waits) = self.open.get_mut(&revocation)?;
        waits.remove(&endpoint);
        if !waits.is_empty() {
            return None;
        }
        let by = *by;
        self.open.remove(&revocation);
        Some(by)
    }
}

impl Controller {
    pub(crate) fn revoke(&mut self, by: Party, cap: Cap) -> Result<Answer> {
        let gone = self.tree.revoke(cap, by)?;
        let count = gone.len();
        let revocation = self.revocations.begin();
        self.withdraw(gone, None, Some((revocation, by)));
        let settles = self.revocations.is_open(revocation).then_some(revocation);
        Ok(Answer::Revoked { count, settles })
    }

    /// Removes endpoints of capabilities that are gone. The party `dead` is not asked to release.
    fn withdraw(&mut self, gone: Vec<(Cap, Capability)>, dead: Option<Party>, asks: Option<(u64, Party)>) {
        for (cap, capability) in gone {
            let Some(controlled) = self.objects.get_mut(&capability.object) else { continue };
            // A channel without one of its ends is useless. A memory stays for the others.
            let channel = controlled.has_two_ends();
            let of_cap = controlled.of_cap(cap).to_vec();
            let lives =
                |id: &EndpointId| controlled.endpoints.get(id).is_some_and(|e| !e.gone && Some(e.party) != dead);
            let mut released: Vec<EndpointId> = of_cap.into_iter().filter(lives).collect();
            if channel && !released.is_empty() {
                released = controlled.endpoints.iter().filter(|(_, e)| !e.gone).map(|(id, _)| *id).collect();
                controlled.end(State::Revoked);
            }
            if capability.parent.is_none() {
                controlled.ended = true;
            }
            for id in released {
                // Memory that others continue to use must be out of reach before the revocation is
                // complete. The memory of a channel is not used again.
                self.release(capability.object, id, asks.filter(|_| !channel));
            }
        }
        self.sweep();
    }

    /// Tells the holder of an endpoint to release it.
    fn release(&mut self, object: ObjectId, id: EndpointId, asks: Option<(u64, Party)>) {
        let Some(end) = self.objects.get_mut(&object).and_then(|controlled| controlled.endpoints.get_mut(&id)) else {
            return;
        };
        if end.asked || end.gone {
            return;
        }
        end.asked = true;
        let party = end.party;
        let Some(peer) = self.peers.get_mut(&party) else { return };
        if peer.unsay(id) {
            return self.gone(id);
        }
        if peer.device.is_some() {
            peer.asked.insert(id, Instant::now());
            if let Some((revocation, by)) = asks {
                end.revocation = Some(revocation);
                self.revocations.wait_for(revocation, by, id);
            }
        }
        self.tell(party, Tell::Release { endpoint: id }, Vec::new());
    }

    /// Handles a party's claim that it has unmapped an endpoint. The claim of a device is checked.
    pub(crate) fn unmapped(&mut self, by: Party, id: EndpointId) {
        if by == Party::APPLICATION {
            if self.endpoint(id).is_some_and(|end| end.party == by && end.asked) {
                self.gone(id);
                self.sweep();
            }
            return;
        }
        let Some(peer) = self.peers.get_mut(&by) else { return };
        if !peer.asked.contains_key(&id) {
            return self.kill(by, "it broke the control protocol: it gave back what it was not asked for");
        }
        peer.claimed.insert(id);
        peer.audit.get_or_insert_with(Audit::new);
    }

    /// Inspects devices that claim to have given something back, and ends those that are late.
    pub(crate) fn look_into_devices(&mut self) {
        let now = Instant::now();
        let due = |party: &Party| self.peers.get(party).and_then(|p| p.audit.as_ref()).is_some_and(|a| a.next <= now);
        let parties: Vec<Party> = self.peers.keys().copied().filter(due).collect();
        for party in parties {
            self.look_into(party);
        }
        let is_late = |asked: &Instant| *asked + GRACE <= now;
        let silent = self.peers.iter().filter(|(_, p)| p.device.is_some() && p.hung_up.as_ref().is_some_and(is_late));
        for party in silent.map(|(party, _)| *party).collect::<Vec<_>>() {
            self.kill(party, "it closed its control socket and went on");
        }
        let late = self.peers.iter().filter(|(_, p)| p.asked.values().any(is_late)).map(|(party, _)| *party);
        for party in late.collect::<Vec<_>>() {
            self.kill(party, "it did not give back in time what was revoked");
        }
    }

    fn look_into(&mut self, party: Party) {
        let claims = self.whole_claims(party);
        let inodes: BTreeSet<Inode> = claims.iter().flat_map(|(_, inodes)| inodes.iter().copied()).collect();
        let Some(peer) = self.peers.get_mut(&party) else { return };
        let (Some(device), Some(audit)) = (&peer.device, &mut peer.audit) else { return };
        let suspect = Suspect { pid: device.child.id(), pidfd: device.pidfd.as_fd(), socket: peer.socket.as_fd() };
        match audit.go_on(&suspect, &inodes) {
            Finding::NotYet => {}
            Finding::Keeps(what) => self.kill(party, what),
            Finding::Nothing => {
                for (id, _) in claims {
                    self.gone(id);
                }
                if let Some(peer) = self.peers.get_mut(&party).filter(|peer| peer.claimed.is_empty()) {
                    peer.audit = None;
                }
                self.sweep();
            }
        }
    }

    /// The endpoints that a device claims to have given back. It leaves out those of objects of
    /// which the device has another endpoint, because it may have the memory by that one.
    fn whole_claims(&self, party: Party) -> Vec<(EndpointId, Vec<Inode>)> {
        let Some(peer) = self.peers.get(&party) else { return Vec::new() };
        let claim = |id: &EndpointId| -> Option<(EndpointId, Vec<Inode>)> {
            let controlled = self.objects.get(self.object_of.get(id)?)?;
            let has = |(other, end): (&EndpointId, &Endpoint)| {
                end.party == party && !end.gone && !peer.claimed.contains(other)
            };
            (!controlled.endpoints.iter().any(has)).then(|| (*id, controlled.inodes.clone()))
        };
        peer.claimed.iter().filter_map(claim).collect()
    }

    fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.objects.get(self.object_of.get(&id)?)?.endpoints.get(&id)
    }

    /// Notes that no party has any of an endpoint any more.
    fn gone(&mut self, id: EndpointId) {
        let controlled = self.object_of.remove(&id).and_then(|object| self.objects.get_mut(&object));
        let Some(end) = controlled.and_then(|controlled| controlled.gone(id)) else { return };
        if let Some(peer) = self.peers.get_mut(&end.party) {
            peer.forget(id, &end.port);
        }
        if let Some(revocation) = end.revocation
            && let Some(by) = self.revocations.gone(revocation, id)
        {
            self.tell(by, Tell::Settled { revocation }, Vec::new());
        }
    }

    /// Removes objects that no party has and none can get.
    fn sweep(&mut self) {
        let is_over = |controlled: &ControlledObject| controlled.ended && controlled.is_free();
        let over: Vec<ObjectId> = self.objects.iter().filter(|(_, t)| is_over(t)).map(|(object, _)| *object).collect();
        for object in over {
            self.objects.remove(&object);
            self.tree.drop_object(object);
        }
        let objects = &self.objects;
        self.joins.retain(|object, _| objects.get(object).is_some_and(|controlled| !controlled.ended));
        // The bridges of what was revoked are killed.
        self.bridges.retain(|object, _| objects.get(object).is_some_and(|controlled| !controlled.ended));
    }

    /// Notes that a party has closed its socket.
    pub(crate) fn hung_up(&mut self, party: Party) {
        if let Some(peer) = self.peers.get_mut(&party) {
            peer.hung_up.get_or_insert_with(Instant::now);
        }
    }

    pub(crate) fn kill(&mut self, party: Party, why: &str) {
        if let Some(device) = self.peers.get_mut(&party).and_then(|peer| peer.device.as_mut()) {
            device.verdict.get_or_insert_with(|| why.to_owned());
        }
        self.finish_off(party);
    }

    pub(crate) fn finish_off(&mut self, party: Party) {
        if let Some(peer) = self.peers.get_mut(&party) {
            // Nothing more is expected from it, because its end answers everything.
            peer.asked.clear();
            peer.claimed.clear();
            (peer.audit, peer.hung_up) = (None, None);
            peer.device.iter().for_each(|device| device.kill());
        }
    }

    /// Handles the end of a device's process: frees all it had, and tells the parties connected to
    /// it.
    pub(crate) fn buried(&mut self, party: Party) {
        let Some(mut peer) = self.peers.remove(&party) else { return };
        let how = peer.device.take().map_or_else(String::new, |device| self.how_ended(device));
        for id in peer.endpoints.keys().copied() {
            self.lost(id);
        }
        let gone = self.tree.drop_party(party);
        self.withdraw(gone, Some(party), None);
        self.tell(Party::APPLICATION, Tell::Event(DeviceEvent::Ended { device: party, how }), Vec::new());
    }

    /// Handles the death of an endpoint's holder: tells the party at the other end.
    fn lost(&mut self, id: EndpointId) {
        let (side, object) = (self.endpoint(id).map(|end| end.rights), self.object_of.get(&id).copied());
        let end = if side == Some(Rights::SEND) { State::SenderGone } else { State::ReceiverGone };
        if let Some(controlled) = object.and_then(|object| self.objects.get_mut(&object)) {
            controlled.end(end);
        }
        self.gone(id);
        let completed = object.and_then(|object| self.objects.get_mut(&object)).map(ControlledObject::completed);
        match completed {
            Some(Ok(halves)) => {
                for (party, endpoint, fds) in halves {
                    self.tell(party, Tell::Complete { endpoint }, fds);
                }
            }
            // Without its second half the channel cannot report the death by itself.
            Some(Err(_)) => {
                object.and_then(|o| self.objects.get_mut(&o)).into_iter().for_each(|t| t.end(State::Revoked))
            }
            None => {}
        }
    }

    fn how_ended(&mut self, device: super::peers::DeviceProcess) -> String {
        let super::peers::DeviceProcess { mut child, stderr, quota, verdict, .. } = device;
        let status = child.wait();
        let last_words = stderr.end(&self.stderr);
        let (ran_out, failed) = (quota.ran_out(), !status.as_ref().is_ok_and(|s| s.success()));
        quota.close(&mut self.groups);
        let how = match (status, verdict.or(ran_out)) {
            (_, Some(why)) => format!("killed: {why}"),
            (Ok(status), None) => status.to_string(),
            (Err(e), None) => format!("unknown: {e}"),
        };
        match last_words {
            Some(words) if failed => format!("{how}; it said: {words}"),
            _ => how,
        }
    }

    /// The time of the next look, whatever messages arrive before it.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let audits = self.peers.values().filter_map(|peer| peer.audit.as_ref().map(|audit| audit.next));
        let late = self.peers.values().filter_map(|peer| peer.asked.values().chain(&peer.hung_up).min());
        audits.chain(late.map(|since| *since + GRACE)).min()
    }
}
