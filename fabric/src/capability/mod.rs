//! Capabilities: who may use what, and from whom they have it (section 3.1.2 of the paper).
//!
//! The tree is a value without processes: the controller asks it before it does anything. A
//! capability names an object, its rights and its holder. Delegating makes a child with the same
//! rights or fewer; revoking takes a capability away with all that was delegated from it, whoever
//! holds that. By default nobody has any.
//!
//! A party can delegate so often and no more (see [`Tree::with_limits`]): what a device does by
//! delegating costs others no more than that. Revoking takes as many steps as capabilities go;
//! asking who commands one, as many as it is deep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Who holds capabilities: a device, the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Party(pub u32);

impl Party {
    /// The application that the controller serves.
    pub const APPLICATION: Party = Party(0);
}

/// What a capability is about: a channel, a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u64);

/// The name of a capability. Names are not secret: only the holder, and who delegated it, can do
/// anything with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cap(pub u64);

/// What may be done with an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rights(u8);

impl Rights {
    /// None.
    pub const NONE: Rights = Rights(0);
    /// Be the sender of a channel.
    pub const SEND: Rights = Rights(1);
    /// Be the receiver of a channel.
    pub const RECEIVE: Rights = Rights(2);
    /// Read a memory.
    pub const READ: Rights = Rights(4);
    /// Write a memory.
    pub const WRITE: Rights = Rights(8);
    /// Give it to others.
    pub const DELEGATE: Rights = Rights(16);

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
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
    /// What it is about.
    pub object: ObjectId,
    /// What may be done.
    pub rights: Rights,
    /// Who may do it.
    pub holder: Party,
    /// From which one it was delegated.
    pub parent: Option<Cap>,
}

/// A capability in the tree.
#[derive(Debug)]
struct Node {
    capability: Capability,
    /// Who delegated it; of a first capability, its holder.
    by: Party,
    children: BTreeSet<Cap>,
}

/// How many capabilities that a party delegated may be there at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelegationLimits {
    /// By the application.
    pub application: usize,
    /// By each device.
    pub device: usize,
}

impl Default for DelegationLimits {
    /// 65,536 by the application, 1,024 by each device.
    fn default() -> Self {
        DelegationLimits { application: 1 << 16, device: 1 << 10 }
    }
}

/// All capabilities.
#[derive(Debug, Default)]
pub struct Tree {
    all: BTreeMap<Cap, Node>,
    /// By holder.
    held: BTreeMap<Party, BTreeSet<Cap>>,
    /// By object.
    roots: BTreeMap<ObjectId, BTreeSet<Cap>>,
    /// How many of those that a party delegated are there.
    delegated: BTreeMap<Party, usize>,
    limits: DelegationLimits,
    last: u64,
}

impl Tree {
    /// No capabilities, and the usual limits.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// No capabilities, and these limits.
    pub fn with_limits(limits: DelegationLimits) -> Tree {
        Tree { limits, ..Tree::default() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first capability of an object.
    pub fn root(&mut self, object: ObjectId, rights: Rights, holder: Party) -> Cap {
        let cap = self.add(Capability { object, rights, holder, parent: None }, holder);
        self.roots.entry(object).or_default().insert(cap);
        cap
    }

    /// The capability of that name.
    ///
    /// # Errors
    /// `NotFound`: there never was one, or it was revoked.
    pub fn get(&self, cap: Cap) -> Result<&Capability> {
        let node = self.all.get(&cap).map(|node| &node.capability);
        node.ok_or_else(|| Error::new(ErrorKind::NotFound, "use", format!("capability {}", cap.0)))
    }

    /// Gives `to` a child of a capability that `by` holds.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` where `by` does not hold it, may not delegate, or has not all
    /// of `rights`; `InvalidInput` for no rights at all; `NoSpace` where `by` has delegated as
    /// often as it may.
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
            return Err(Error::new(ErrorKind::NoSpace, "delegate", context).advice("revoke what is not needed"));
        }
        *so_far += 1;
        let child = self.add(Capability { object, rights, holder: to, parent: Some(cap) }, by);
        if let Some(parent) = self.all.get_mut(&cap) {
            parent.children.insert(child);
        }
        Ok(child)
    }

    /// Whether a party commands a capability: it holds it, or one that it was delegated from.
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

    /// Takes a capability away with everything delegated from it; children come before their
    /// parents.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` where `by` does not command it.
    pub fn revoke(&mut self, cap: Cap, by: Party) -> Result<Vec<(Cap, Capability)>> {
        self.get(cap)?;
        if !self.commands(cap, by) {
            return Err(denied("revoke", cap, "neither it nor what it was delegated from is held by who asks"));
        }
        Ok(self.remove(cap))
    }

    /// Takes away all that a party holds, with everything delegated from it.
    pub fn drop_party(&mut self, party: Party) -> Vec<(Cap, Capability)> {
        let held = self.held.remove(&party).unwrap_or_default();
        held.into_iter().flat_map(|cap| self.remove(cap)).collect()
    }

    /// Takes away all capabilities of an object.
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

    /// Removes it and all below it, if it is there; children come before their parents.
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

    /// Takes one out of all books.
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

/// Takes a capability out of a book, and the page with it when nothing else is on it.
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
