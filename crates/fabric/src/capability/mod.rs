//! Capabilities: the rights of each party, and from whom it got them (section 3.1.2 of the paper).
//!
//! The tree is a value without processes, and the controller consults it before every action. A
//! capability names an object, its rights and its holder. Delegating makes a child with the same
//! rights or fewer. Revoking removes a capability and all that was delegated from it, whoever holds
//! that. Initially there are none.
//!
//! The number of delegations of a party is limited (see [`Tree::with_limits`]), and so is their
//! cost for others. Revoking takes as many steps as capabilities are removed. Finding who commands
//! one takes as many steps as its depth.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// A holder of capabilities: a device or the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Party(pub u32);

impl Party {
    /// The application that the controller serves.
    pub const APPLICATION: Party = Party(0);
}

/// The object of a capability: a channel or a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u64);

/// The name of a capability. Names are not secret: only the holder, and the party that delegated
/// it, can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cap(pub u64);

/// The rights to an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rights(u8);

impl Rights {
    /// No rights.
    pub const NONE: Rights = Rights(0);
    /// The right to be the sender of a channel.
    pub const SEND: Rights = Rights(1);
    /// The right to be the receiver of a channel.
    pub const RECEIVE: Rights = Rights(2);
    /// The right to read a memory.
    pub const READ: Rights = Rights(4);
    /// The right to write a memory.
    pub const WRITE: Rights = Rights(8);
    /// The right to delegate.
    pub const DELEGATE: Rights = Rights(16);

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all rights of `other` are included.
    pub const fn include(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Rights::SEND, "send"), (Rights::RECEIVE, "receive"), (Rights::READ, "read")];
        let names = names.into_iter().chain([(Rights::WRITE, "write"), (Rights::DELEGATE, "delegate")]);
        f.debug_set().entries(names.filter(|(r, _)| self.include(*r)).map(|(_, n)| n)).finish()
    }
}

/// A capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The object.
    pub object: ObjectId,
    /// The rights.
    pub rights: Rights,
    /// The holder.
    pub holder: Party,
    /// The capability that it was delegated from.
    pub parent: Option<Cap>,
}

/// A capability in the tree.
#[derive(Debug)]
struct Node {
    capability: Capability,
    /// The party that delegated it. For a root capability it is the holder.
    by: Party,
    children: BTreeSet<Cap>,
}

/// The most capabilities delegated by a party that exist at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DelegationLimits {
    /// The limit for the application.
    pub application: usize,
    /// The limit for each device.
    pub device: usize,
}

datapipes_core::setters! {
    DelegationLimits {
        application: usize,
        device: usize,
    }
}

impl Default for DelegationLimits {
    /// Returns 65,536 for the application and 1,024 for each device.
    fn default() -> Self {
        DelegationLimits { application: 1 << 16, device: 1 << 10 }
    }
}

/// All capabilities.
#[derive(Debug, Default)]
pub struct Tree {
    all: BTreeMap<Cap, Node>,
    /// The capabilities of each holder.
    held: BTreeMap<Party, BTreeSet<Cap>>,
    /// The root capabilities of each object.
    roots: BTreeMap<ObjectId, BTreeSet<Cap>>,
    /// The number of existing capabilities that a party delegated.
    delegated: BTreeMap<Party, usize>,
    limits: DelegationLimits,
    last: u64,
}

impl Tree {
    /// Makes an empty tree with the default limits.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// Makes an empty tree with these limits.
    pub fn with_limits(limits: DelegationLimits) -> Tree {
        Tree { limits, ..Tree::default() }
    }

    /// The number of capabilities.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Makes the first capability of an object.
    pub fn root(&mut self, object: ObjectId, rights: Rights, holder: Party) -> Cap {
        let cap = self.add(Capability { object, rights, holder, parent: None }, holder);
        self.roots.entry(object).or_default().insert(cap);
        cap
    }

    /// Returns the capability with this name.
    ///
    /// # Errors
    /// `NotFound` if it never existed, or was revoked.
    pub fn get(&self, cap: Cap) -> Result<&Capability> {
        let node = self.all.get(&cap).map(|node| &node.capability);
        node.ok_or_else(|| Error::new(ErrorKind::NotFound, "use", format!("capability {}", cap.0)))
    }

    /// Gives `to` a child of a capability that `by` holds.
    ///
    /// # Errors
    /// `NotFound`. `PermissionDenied` where `by` does not hold it, may not delegate, or lacks some
    /// of `rights`. `InvalidInput` for no rights. `NoSpace` where `by` has reached its limit of
    /// delegations.
    pub fn delegate(&mut self, cap: Cap, by: Party, to: Party, rights: Rights) -> Result<Cap> {
        let own = self.get(cap)?;
        if own.holder != by {
            return Err(denied("delegate", cap, "somebody else holds it"));
        }
        if !own.rights.include(Rights::DELEGATE) {
            return Err(denied("delegate", cap, "it does not include the right to delegate"));
        }
        if !own.rights.include(rights) {
            return Err(denied("delegate", cap, &format!("{rights:?} is not within {:?}", own.rights)));
        }
        if rights == Rights::NONE {
            return Err(Error::new(ErrorKind::InvalidInput, "delegate", "no rights"));
        }
        let object = own.object;
        let most = if by == Party::APPLICATION { self.limits.application } else { self.limits.device };
        let so_far = self.delegated.entry(by).or_default();
        if *so_far >= most {
            let context = format!("capability {}: {most} that this party delegated are there", cap.0);
            return Err(Error::new(ErrorKind::NoSpace, "delegate", context).with_advice("revoke what is not needed"));
        }
        *so_far += 1;
        let child = self.add(Capability { object, rights, holder: to, parent: Some(cap) }, by);
        if let Some(parent) = self.all.get_mut(&cap) {
            parent.children.insert(child);
        }
        Ok(child)
    }

    /// Whether a party commands a capability: it holds the capability, or one from which it was
    /// delegated.
    pub fn commands(&self, cap: Cap, party: Party) -> bool {
        let mut next = Some(cap);
        while let Some(current) = next.and_then(|c| self.all.get(&c)) {
            if current.capability.holder == party {
                return true;
            }
            next = current.capability.parent;
        }
        false
    }

    /// Removes a capability and everything delegated from it. Returns them, children before their
    /// parents.
    ///
    /// # Errors
    /// `NotFound`, and `PermissionDenied` where `by` does not command it.
    pub fn revoke(&mut self, cap: Cap, by: Party) -> Result<Vec<(Cap, Capability)>> {
        self.get(cap)?;
        if !self.commands(cap, by) {
            return Err(denied(
                "revoke",
                cap,
                "the caller holds neither it nor a capability that it was delegated from",
            ));
        }
        Ok(self.remove(cap))
    }

    /// Removes all capabilities of a party, and everything delegated from them.
    pub fn drop_party(&mut self, party: Party) -> Vec<(Cap, Capability)> {
        let held = self.held.remove(&party).unwrap_or_default();
        held.into_iter().flat_map(|cap| self.remove(cap)).collect()
    }

    /// Removes all capabilities of an object.
    pub fn drop_object(&mut self, object: ObjectId) {
        for root in self.roots.get(&object).cloned().unwrap_or_default() {
            self.remove(root);
        }
    }

    fn add(&mut self, capability: Capability, by: Party) -> Cap {
        self.last += 1;
        let cap = Cap(self.last);
        self.held.entry(capability.holder).or_default().insert(cap);
        self.all.insert(cap, Node { capability, by, children: BTreeSet::new() });
        cap
    }

    /// Removes it and all below it, if it exists. Returns them, children before their parents.
    fn remove(&mut self, cap: Cap) -> Vec<(Cap, Capability)> {
        let mut doomed = vec![cap];
        let mut seen = 0;
        while let Some(next) = doomed.get(seen) {
            doomed.extend(
                self.all.get(next).into_iter().flat_map(|node| node.children.iter().copied()).collect::<Vec<_>>(),
            );
            seen += 1;
        }
        let gone = doomed.into_iter().rev().filter_map(|name| Some((name, self.forget(name)?)));
        gone.collect()
    }

    /// Removes one capability from all indexes.
    fn forget(&mut self, cap: Cap) -> Option<Capability> {
        let Node { capability, by, .. } = self.all.remove(&cap)?;
        strike(&mut self.held, capability.holder, cap);
        match capability.parent {
            None => strike(&mut self.roots, capability.object, cap),
            Some(parent) => {
                if let Some(parent) = self.all.get_mut(&parent) {
                    parent.children.remove(&cap);
                }
                if let Some(count) = self.delegated.get_mut(&by) {
                    *count -= 1;
                    if *count == 0 {
                        self.delegated.remove(&by);
                    }
                }
            }
        }
        Some(capability)
    }
}

/// Removes a capability from an index, and the index entry if it becomes empty.
fn strike<K: Ord>(book: &mut BTreeMap<K, BTreeSet<Cap>>, key: K, cap: Cap) {
    if let Some(page) = book.get_mut(&key) {
        page.remove(&cap);
        if page.is_empty() {
            book.remove(&key);
        }
    }
}

fn denied(operation: &'static str, cap: Cap, why: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, operation, format!("capability {}: {why}", cap.0))
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
