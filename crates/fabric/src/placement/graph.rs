//! A graph of devices, and the streams between them.

use std::os::fd::OwnedFd;

use datapipes_core::{Error, ErrorKind, Result};

use super::{Choice, Flow, Placement};
use crate::capability::Cap;
use crate::channel::{ChannelShape, Trust};
use crate::control::Session;
use crate::device::DeviceRole;
use crate::transport::Carrier;

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNode(pub(super) usize);

impl DeviceNode {
    /// Numbers from here on denote links.
    pub(super) const LINKS: usize = usize::MAX / 2;
}

pub(super) struct DeviceSpec {
    pub(super) name: String,
    pub(super) role: DeviceRole,
    pub(super) given: Vec<OwnedFd>,
}

pub(super) struct Edge {
    pub(super) from: DeviceNode,
    pub(super) to: DeviceNode,
    pub(super) shape: ChannelShape,
    pub(super) trust: Trust,
    pub(super) carrier: Carrier,
}

/// Devices and the channels between them, before any of them exists.
pub struct DeviceGraph {
    shape: ChannelShape,
    trust: Trust,
    carrier: Carrier,
    pub(super) devices: Vec<DeviceSpec>,
    pub(super) links: Vec<Cap>,
    pub(super) edges: Vec<Edge>,
}

impl DeviceGraph {
    /// The application, where edges may begin and end.
    pub const APPLICATION: DeviceNode = DeviceNode(0);

    /// Makes a graph with a default shape for channels, and a default trust of receivers in
    /// senders.
    pub fn new(shape: ChannelShape, trust: Trust) -> DeviceGraph {
        DeviceGraph {
            shape,
            trust,
            carrier: Carrier::SharedMemory,
            devices: Vec::new(),
            links: Vec::new(),
            edges: Vec::new(),
        }
    }

    /// Sets the carrier for the channels of edges that are added from now on, within this machine.
    /// The default is shared memory. Devices and application are the same with all carriers.
    #[must_use]
    pub fn over(mut self, carrier: Carrier) -> DeviceGraph {
        self.carrier = carrier;
        self
    }

    /// Adds the other end of a link ([`Session::offer`], [`Session::join`]): a part of a graph on
    /// another machine, which connects its nodes to the other half of the link. A sending link
    /// takes one edge to it, and a receiving link one edge from it, with the link's own shape. The
    /// flow owns the link from its start on, and revokes it at its end.
    pub fn elsewhere(&mut self, link: Cap) -> DeviceNode {
        self.links.push(link);
        DeviceNode(DeviceNode::LINKS + self.links.len() - 1)
    }

    /// Adds a device with the descriptors that it works on.
    pub fn device(&mut self, name: &str, role: DeviceRole, given: Vec<OwnedFd>) -> DeviceNode {
        self.devices.push(DeviceSpec { name: name.into(), role, given });
        DeviceNode(self.devices.len())
    }

    /// Lets blocks flow from one node to another. Several edges from a node are a fan-out, several
    /// edges to a node a fan-in.
    ///
    /// # Errors
    /// As [`connect_with`](Self::connect_with).
    pub fn connect(&mut self, from: DeviceNode, to: DeviceNode) -> Result<()> {
        self.connect_with(from, to, self.shape, self.trust)
    }

    /// As [`connect`](Self::connect), with another shape or trust.
    ///
    /// # Errors
    /// `InvalidInput` for a node of another graph, for an edge from a node to itself, for a bad
    /// shape, and for a trust that needs checks if the shape has none.
    pub fn connect_with(&mut self, from: DeviceNode, to: DeviceNode, shape: ChannelShape, trust: Trust) -> Result<()> {
        shape.check()?;
        let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidInput, "connect", what));
        let known = |node: DeviceNode| match node.0.checked_sub(DeviceNode::LINKS) {
            Some(link) => link < self.links.len(),
            None => node.0 <= self.devices.len(),
        };
        if from == to || !known(from) || !known(to) {
            return wrong("an edge from a node to itself, or to a node of another graph");
        }
        if from.0.min(to.0) >= DeviceNode::LINKS {
            return wrong("one link to another, without a device between them");
        }
        if [from, to].iter().any(|n| n.0 >= DeviceNode::LINKS && self.edges.iter().any(|e| e.from == *n || e.to == *n))
        {
            return wrong("the link is used already: one link is one channel");
        }
        if matches!(trust, Trust::InPlaceChecked(_)) && !shape.checked {
            return wrong("in place and checked, over a channel whose blocks carry no check");
        }
        self.edges.push(Edge { from, to, shape, trust, carrier: self.carrier });
        Ok(())
    }

    /// Returns the edges, as pairs of nodes.
    pub fn edges(&self) -> Vec<(DeviceNode, DeviceNode)> {
        self.edges.iter().map(|e| (e.from, e.to)).collect()
    }

    /// Launches the devices, connects them according to the placement, and starts them. `Auto`
    /// measures first.
    ///
    /// # Errors
    /// `InvalidInput` for a graph without edges, `Device` for a device that does not start, and
    /// `OutOfMemory`.
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
