//! The three placements as graphs of units and channels. They differ in nothing else.
//!
//! ```text
//! application   A > 1 > A > 2 > A
//! central       A > C > 1 > C > 2 > C > A
//! distributed   A > 1 > 2 > A
//! ```

use super::parameters::{Scenario, SimulatedPlacement};

/// A participant: a device, or a CPU that runs protocol code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Application,
    Cpu,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) kind: Kind,
    pub(super) machine: usize,
}

/// A channel, and the one into which the receiver forwards its blocks; `None` for the last, whose
/// blocks are consumed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) next: Option<usize>,
}

/// The units (the application is the first) and the channels (in the order in which a block passes
/// through them).
#[derive(Clone, Debug)]
pub(super) struct Wiring {
    pub(super) units: Vec<Unit>,
    pub(super) channels: Vec<Channel>,
}

impl Wiring {
    /// Builds the graph. Machine 0 is the application's; the pools are 1, 2, ...; a scenario
    /// without devices gets one.
    pub(super) fn of(placement: SimulatedPlacement, shape: &Scenario) -> Wiring {
        let devices = shape.devices.max(1);
        let pools = shape.pools.clamp(1, devices);
        let mut units = vec![Unit { kind: Kind::Application, machine: 0 }];
        units.extend((0..devices).map(|d| Unit { kind: Kind::Device, machine: 1 + d * pools / devices }));
        let device = |d: usize| 1 + d;
        let mut stops = vec![0];
        match placement {
            SimulatedPlacement::DistributedResourceSide => stops.extend((0..devices).map(device)),
            SimulatedPlacement::ApplicationSide => (0..devices).for_each(|d| stops.extend([device(d), 0])),
            SimulatedPlacement::CentralResourceSide => {
                let cpu = |pool: usize| 1 + devices + pool;
                units.extend((0..pools).map(|pool| Unit { kind: Kind::Cpu, machine: 1 + pool }));
                for d in 0..devices {
                    let cpu = cpu(units[device(d)].machine - 1);
                    // At the beginning of a pool the block first comes to the pool's CPU.
                    if stops.last() != Some(&cpu) {
                        stops.push(cpu);
                    }
                    stops.extend([device(d), cpu]);
                }
            }
        }
        if stops.last() != Some(&0) {
            stops.push(0);
        }
        let count = stops.len() - 1;
        let channel = |(at, pair): (usize, &[usize])| Channel {
            from: pair[0],
            to: pair[1],
            next: (at + 1 < count).then_some(at + 1),
        };
        Wiring { units, channels: stops.windows(2).enumerate().map(channel).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_passes_where_the_figure_says() {
        let path = |placement, devices, pools| {
            let shape = Scenario { devices, pools, ..Scenario::paper(1) };
            let wiring = Wiring::of(placement, &shape);
            let name = |u: usize| match wiring.units[u].kind {
                Kind::Application => "A".to_owned(),
                Kind::Cpu => format!("C{}", wiring.units[u].machine),
                Kind::Device => format!("{u}"),
            };
            wiring.channels.iter().map(|c| format!("{}>{}", name(c.from), name(c.to))).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(path(SimulatedPlacement::ApplicationSide, 2, 1), "A>1 1>A A>2 2>A");
        assert_eq!(path(SimulatedPlacement::CentralResourceSide, 2, 1), "A>C1 C1>1 1>C1 C1>2 2>C1 C1>A");
        assert_eq!(path(SimulatedPlacement::DistributedResourceSide, 2, 1), "A>1 1>2 2>A");
        let two = "A>C1 C1>1 1>C1 C1>2 2>C1 C1>C2 C2>3 3>C2 C2>A";
        assert_eq!(path(SimulatedPlacement::CentralResourceSide, 3, 2), two);
        assert_eq!(path(SimulatedPlacement::DistributedResourceSide, 0, 9), "A>1 1>A");
    }
}
