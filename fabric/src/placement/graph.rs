//! Which devices there are, and what flows where.

use std::os::fd::OwnedFd;

use datapipes_core::{Error, ErrorKind, Result};

use super::{Choice, Flow, Placement};
use crate::channel::{Shape, Trust};
use crate::control::Session;
use crate::device::Role;

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub(super) usize);

pub(super) struct DeviceSpec {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) given: Vec<OwnedFd>,
}

pub(super) struct Edge {
    pub(super) from: Node,
    pub(super) to: Node,
    pub(super) shape: Shape,
    pub(super) trust: Trust,
}

/// Devices and the channels between them, before anything of it exists.
pub struct Graph {
    shape: Shape,
    trust: Trust,
    pub(super) devices: Vec<DeviceSpec>,
    pub(super) edges: Vec<Edge>,
}

impl Graph {
    /// The application: where edges may begin and end.
    pub const APPLICATION: Node = Node(0);

    /// A graph whose channels have this shape, and whose receivers trust their senders so far, where nothing else is said.
    pub fn new(shape: Shape, trust: Trust) -> Graph {
        Graph { shape, trust, devices: Vec::new(), edges: Vec::new() }
    }

    /// Adds a device, with the descriptors that it works on.
    pub fn device(&mut self, name: &str, role: Role, given: Vec<OwnedFd>) -> Node {
        self.devices.push(DeviceSpec { name: name.into(), role, given });
        Node(self.devices.len())
    }

    /// Lets blocks flow from one node to another. Several edges out of a node fan out, several into it fan in.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub fn connect(&mut self, from: Node, to: Node) -> Result<()> {
        self.connect_with(from, to, self.shape, self.trust)
    }

    /// The same with another shape or trust.
    ///
    /// # Errors
    /// `InvalidInput` for a node of another graph, a node to itself, a bad shape, a trust that needs checks the shape has not.
    pub fn connect_with(&mut self, from: Node, to: Node, shape: Shape, trust: Trust) -> Result<()> {
        shape.check()?;
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidInput, "connect", what));
        if from == to || from.0.max(to.0) > self.devices.len() {
            return wrong("a node to itself, or one that is not of this graph");
        }
        if trust == Trust::InPlaceChecked && !shape.checked {
            return wrong("in place and checked, over a channel whose blocks carry no check");
        }
        self.edges.push(Edge { from, to, shape, trust });
        Ok(())
    }

    /// The edges, from and to.
    pub fn edges(&self) -> Vec<(Node, Node)> {
        self.edges.iter().map(|e| (e.from, e.to)).collect()
    }

    /// Launches the devices, connects them as the placement says, and lets them work. `Auto` measures first.
    ///
    /// # Errors
    /// `InvalidInput` for a graph without edges; `Device` for a device that does not come up; `OutOfMemory`.
    pub fn start(self, session: &mut Session, placement: Placement) -> Result<Flow> {
        if self.edges.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "start", "a graph without edges"));
        }
        let choice = match placement {
            Placement::Auto => Some(Choice::make(&self.edges(), &super::Costs::measure(self.shape)?)?),
            _ => None,
        };
        let placement = choice.as_ref().map_or(placement, |c| c.placement);
        Flow::start(self, session, placement, choice)
    }
}
