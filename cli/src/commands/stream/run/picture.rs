//! The channels of streams, one run below the other, as a picture.

use datapipes_fabric::placement::Placement;
use datapipes_picture::channels::{self, ChannelGraph};

use super::one::{Edge, Run};
use crate::arguments::units;

pub(in crate::commands::stream) fn svg(runs: &[Run]) -> String {
    let graphs: Vec<ChannelGraph> = runs.iter().map(graph).collect();
    let remark = match runs.len() {
        1 => "as it ran",
        _ => "the same stream under each placement of the protocol, as it ran",
    };
    channels::svg("Data channels between devices", remark, &graphs)
}

fn graph(run: &Run) -> ChannelGraph {
    // Where no channel leads from a device to the next, a program does.
    let mut edges = vec!["through a program".to_owned(); run.devices.len().saturating_sub(1)];
    for edge in &run.edges {
        if let Some(between) = edges.get_mut(edge.behind) {
            *between = said(edge);
        }
    }
    let relay = match run.placement {
        Placement::ApplicationSide => Some("the application, which relays"),
        Placement::CentralResourceSide => Some("a process beside the devices, which relays"),
        Placement::DistributedResourceSide | Placement::Auto => None,
    };
    ChannelGraph {
        heading: format!(
            "{}: {}, {} channels, {:.3} s of processor time",
            run.placement.name(),
            units::rate(run.sent.bytes, run.seconds),
            run.channels,
            run.cpu_seconds
        ),
        devices: run.devices.clone(),
        relay: relay.map(str::to_owned),
        wires: run.wires.clone(),
        edges,
    }
}

fn said(edge: &Edge) -> String {
    format!("{} blocks, {}", edge.blocks, units::bytes(edge.bytes))
}
