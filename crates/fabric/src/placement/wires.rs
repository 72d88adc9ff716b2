//! The wires of a graph, which depend on the placement.

use super::{DeviceGraph, DeviceNode, Placement};

/// The begin or end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The application's process.
    Application,
    /// The n-th device's process, from 0.
    Device(usize),
    /// The process of the resource-side CPU.
    Hub,
    /// The n-th link, from 0: a process on another machine.
    Elsewhere(usize),
}

/// A planned data channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Its sender.
    pub from: Stop,
    /// Its receiver.
    pub to: Stop,
    /// The edge of the graph that it carries, or of which it carries a part.
    pub edge: usize,
    /// Whether its receiver relays the blocks to the next wire.
    pub relayed: bool,
}

/// All wires of a graph under a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// The wires in the order of the edges. The parts of an edge are consecutive.
    pub wires: Vec<Wire>,
}

impl Wiring {
    /// Makes the wires of edges under a placement. (`Auto` counts as distributed, as it is resolved
    /// before.)
    pub fn new(edges: &[(DeviceNode, DeviceNode)], placement: Placement) -> Wiring {
        let mut wires = Vec::new();
        for (edge, (from, to)) in edges.iter().enumerate() {
            let (from, to) = (stop(*from), stop(*to));
            let through = match placement {
                Placement::DistributedResourceSide | Placement::Auto => None,
                Placement::CentralResourceSide => Some(Stop::Hub),
                Placement::ApplicationSide => Some(Stop::Application).filter(|via| from != *via && to != *via),
            };
            match through {
                None => wires.push(Wire { from, to, edge, relayed: false }),
                Some(via) => {
                    wires.push(Wire { from, to: via, edge, relayed: true });
                    wires.push(Wire { from: via, to, edge, relayed: false });
                }
            }
        }
        Wiring { wires }
    }

    /// The wires that begin at a stop, by index, without second halves of a relay there.
    pub fn from(&self, stop: Stop) -> Vec<usize> {
        let own = |(at, wire): (usize, &Wire)| (wire.from == stop).then_some(at);
        self.wires.iter().enumerate().filter_map(own).collect()
    }

    /// The wires that end at a stop, by index.
    pub fn to(&self, stop: Stop) -> Vec<usize> {
        let own = |(at, wire): (usize, &Wire)| (wire.to == stop).then_some(at);
        self.wires.iter().enumerate().filter_map(own).collect()
    }

    /// Whether a wire relays the blocks of another.
    pub fn carries_on(&self, wire: usize) -> bool {
        wire > 0 && self.wires[wire - 1].relayed
    }

    /// Whether there is a resource-side CPU.
    pub fn has_hub(&self) -> bool {
        self.wires.iter().any(|w| w.to == Stop::Hub)
    }
}

fn stop(node: DeviceNode) -> Stop {
    match node.0.checked_sub(DeviceNode::LINKS) {
        Some(link) => Stop::Elsewhere(link),
        None if node == DeviceGraph::APPLICATION => Stop::Application,
        None => Stop::Device(node.0 - 1),
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figure_1_of_the_paper() {
        let (app, yellow, pink) = (DeviceNode(0), DeviceNode(1), DeviceNode(2));
        let edges = [(app, yellow), (yellow, pink), (pink, app)];
        let hops = |placement| {
            let wires = Wiring::new(&edges, placement).wires;
            wires.iter().map(|w| (w.from, w.to)).collect::<Vec<_>>()
        };
        use Stop::{Application as A, Device, Hub};
        let (y, p) = (Device(0), Device(1));
        assert_eq!(hops(Placement::DistributedResourceSide), [(A, y), (y, p), (p, A)]);
        // Each device has two data channels, outbound and inbound.
        assert_eq!(hops(Placement::ApplicationSide), [(A, y), (y, A), (A, p), (p, A)]);
        assert_eq!(hops(Placement::CentralResourceSide), [(A, Hub), (Hub, y), (y, Hub), (Hub, p), (p, Hub), (Hub, A)]);
    }

    proptest! {
        /// Under every placement each edge is a path between its nodes, and only permitted parties
        /// talk to each other.
        #[test]
        fn a_placement_keeps_the_edges(edges in proptest::collection::vec((0usize..5, 0usize..5), 0..12)) {
            let edges: Vec<_> = edges.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (DeviceNode(a), DeviceNode(b))).collect();
            for placement in Placement::ALL {
                let wiring = Wiring::new(&edges, placement);
                for (edge, (from, to)) in edges.iter().enumerate() {
                    let way: Vec<_> = wiring.wires.iter().filter(|w| w.edge == edge).collect();
                    prop_assert_eq!(way.first().unwrap().from, stop(*from));
                    prop_assert_eq!(way.last().unwrap().to, stop(*to));
                    prop_assert!(way.windows(2).all(|w| w[0].to == w[1].from && w[0].relayed && !w[1].relayed));
                    prop_assert!(!way.last().unwrap().relayed);
                }
                for wire in &wiring.wires {
                    let direct = matches!((wire.from, wire.to), (Stop::Device(_), Stop::Device(_)));
                    prop_assert!(!direct || placement == Placement::DistributedResourceSide);
                    let hub = wire.from == Stop::Hub || wire.to == Stop::Hub;
                    prop_assert_eq!(hub, placement == Placement::CentralResourceSide);
                }
                // A hub relays its n-th inlet to its n-th outlet.
                prop_assert_eq!(wiring.to(Stop::Hub).len(), wiring.from(Stop::Hub).len());
                for (into, out) in wiring.to(Stop::Hub).into_iter().zip(wiring.from(Stop::Hub)) {
                    prop_assert_eq!(into + 1, out);
                }
            }
        }
    }
}
