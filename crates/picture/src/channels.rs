//! The data channels of a graph of devices, as one picture for each placement of their protocol. A
//! pure function.
//!
//! ```text
//!   distributed                       application-side
//!                                              [ application ]
//!                                               /\  \   /\  \
//!   [ a ] ---> [ b ] ---> [ c ]       [ a ]-----/    [ b ]   -> [ c ]
//! ```

use crate::svg::Point;
use crate::themed::{Area, Lettering, ShapeTone, ThemedDrawing};

/// A graph of channels under one placement.
#[derive(Clone, Debug, Default)]
pub struct ChannelGraph {
    /// The placement, and what its run was like.
    pub heading: String,
    /// The devices, in the order of the stream.
    pub devices: Vec<String>,
    /// What relays blocks above them: the application, the process in the middle; `None` where the
    /// devices talk to each other.
    pub relay: Option<String>,
    /// The channels.
    pub wires: Vec<ChannelWire>,
    /// What went from a device to the next, below the space between them.
    pub edges: Vec<String>,
}

/// A channel of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelWire {
    /// Its sender.
    pub from: ChannelEnd,
    /// Its receiver.
    pub to: ChannelEnd,
}

/// An end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEnd {
    /// The n-th device.
    Device(usize),
    /// The relay above the devices.
    Relay,
}

const MARGIN: f64 = 24.0;
const TOP: f64 = 84.0;
const BOX: (f64, f64) = (136.0, 46.0);
const GAP: f64 = 124.0;
const HEADING: f64 = 30.0;
/// Between the relay and the devices.
const RISE: f64 = 84.0;
const BELOW: f64 = 58.0;
const SMALL: f64 = 11.0;

/// Draws the graphs below each other.
pub fn svg(title: &str, remark: &str, graphs: &[ChannelGraph]) -> String {
    drawing(title, remark, graphs).finish()
}

fn drawing(title: &str, remark: &str, graphs: &[ChannelGraph]) -> ThemedDrawing {
    let most = graphs.iter().map(|graph| graph.devices.len()).max().unwrap_or(0).max(3) as f64;
    let width = (most * BOX.0 + (most - 1.0) * GAP + 2.0 * MARGIN).max(800.0);
    let height = TOP + graphs.iter().map(graph_height).sum::<f64>() + 30.0;
    let mut out = ThemedDrawing::new((width, height), title, &description(graphs));
    let heading = Lettering::new(18.0).bold();
    out.lines((MARGIN, 36.0), heading, &heading.wrap(title, width - 2.0 * MARGIN, 1));
    let faint = Lettering::new(12.0).faint();
    out.lines((MARGIN, 60.0), faint, &faint.wrap(remark, width - 2.0 * MARGIN, 1));
    let mut top = TOP;
    for graph in graphs {
        draw(&mut out, graph, top, width);
        top += graph_height(graph);
    }
    let words = "An arrow is a data channel: a ring of blocks in memory that its two ends share.";
    out.text((MARGIN, top + 10.0), Lettering::new(SMALL).faint(), words);
    out
}

fn graph_height(graph: &ChannelGraph) -> f64 {
    let above = if graph.relay.is_some() { BOX.1 + RISE } else { 0.0 };
    HEADING + above + BOX.1 + BELOW
}

fn draw(out: &mut ThemedDrawing, graph: &ChannelGraph, top: f64, width: f64) {
    let heading = Lettering::new(13.0).bold();
    out.lines((MARGIN, top + 8.0), heading, &heading.wrap(&graph.heading, width - 2.0 * MARGIN, 1));
    let row = top + HEADING + if graph.relay.is_some() { BOX.1 + RISE } else { 0.0 };
    let left = |at: usize| MARGIN + at as f64 * (BOX.0 + GAP);
    for (at, name) in graph.devices.iter().enumerate() {
        node(out, (left(at), row), name, ShapeTone::Plain);
    }
    let whole = graph.devices.len() as f64 * (BOX.0 + GAP) - GAP;
    let relay_width = (whole * 0.6).max(BOX.0);
    let relay_left = MARGIN + ((whole - relay_width) / 2.0).max(0.0);
    if let Some(name) = &graph.relay {
        let area = Area { x: relay_left, y: top + HEADING, width: relay_width, height: BOX.1 };
        out.area(area, ShapeTone::Open, name);
        let letters = Lettering::new(12.0).bold().centered();
        let middle = (relay_left + relay_width / 2.0, top + HEADING + BOX.1 / 2.0 + 4.0);
        out.lines(middle, letters, &letters.wrap(name, relay_width - 12.0, 1));
    }
    let relayed = graph.wires.iter().filter(|wire| wire.from == ChannelEnd::Relay || wire.to == ChannelEnd::Relay);
    let landings = relayed.count().max(1) as f64;
    let mut landing = 0.0;
    for wire in &graph.wires {
        // Channels reach the relay side by side, in the order of the stream.
        let mut relay_point = || -> Point {
            landing += 1.0;
            (relay_left + relay_width * (landing - 0.5) / landings, top + HEADING + BOX.1)
        };
        let points = match (wire.from, wire.to) {
            (ChannelEnd::Device(from), ChannelEnd::Device(to)) if to == from + 1 => {
                [(left(from) + BOX.0, row + BOX.1 / 2.0), (left(to), row + BOX.1 / 2.0)]
            }
            // Not neighbours: from the top of one to the top of the other.
            (ChannelEnd::Device(from), ChannelEnd::Device(to)) => {
                [(left(from) + BOX.0 / 2.0, row), (left(to) + BOX.0 / 2.0, row)]
            }
            (ChannelEnd::Device(from), ChannelEnd::Relay) => [(left(from) + BOX.0 * 0.7, row), relay_point()],
            (ChannelEnd::Relay, ChannelEnd::Device(to)) => [relay_point(), (left(to) + BOX.0 * 0.3, row)],
            (ChannelEnd::Relay, ChannelEnd::Relay) => continue,
        };
        out.line(&points, ShapeTone::Chosen, true, false);
    }
    let small = Lettering::new(SMALL).faint().centered();
    for (at, words) in graph.edges.iter().enumerate() {
        let middle = left(at) + BOX.0 + GAP / 2.0;
        out.lines((middle, row + BOX.1 + 18.0), small, &small.wrap(words, BOX.0 + GAP - 24.0, 2));
    }
}

fn node(out: &mut ThemedDrawing, (x, y): Point, name: &str, tone: ShapeTone) {
    out.area(Area { x, y, width: BOX.0, height: BOX.1 }, tone, name);
    let letters = Lettering::new(12.0).bold().centered();
    let lines = letters.wrap(name, BOX.0 - 10.0, 2);
    let first = y + BOX.1 / 2.0 + 4.0 - (lines.len() as f64 - 1.0) * 8.0;
    out.lines((x + BOX.0 / 2.0, first), letters, &lines);
}

/// The picture in words.
fn description(graphs: &[ChannelGraph]) -> String {
    let of = |graph: &ChannelGraph| {
        let name = |end: ChannelEnd| match end {
            ChannelEnd::Device(at) => graph.devices.get(at).map_or("?", String::as_str),
            ChannelEnd::Relay => graph.relay.as_deref().unwrap_or("?"),
        };
        let wires: Vec<String> =
            graph.wires.iter().map(|wire| format!("from {} to {}", name(wire.from), name(wire.to))).collect();
        format!("{}: channels {}. ", graph.heading, wires.join(", "))
    };
    graphs.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(devices: usize, relayed: bool) -> ChannelGraph {
        let pair = |at: usize| {
            let (from, to) = (ChannelEnd::Device(at), ChannelEnd::Device(at + 1));
            match relayed {
                true => vec![ChannelWire { from, to: ChannelEnd::Relay }, ChannelWire { from: ChannelEnd::Relay, to }],
                false => vec![ChannelWire { from, to }],
            }
        };
        ChannelGraph {
            heading: "application-side: 2.5 GB/s, 4 channels".into(),
            devices: (0..devices).map(|at| format!("exec:'a long command' --with-option={at}")).collect(),
            relay: relayed.then(|| "the application".into()),
            wires: (0..devices.saturating_sub(1)).flat_map(pair).collect(),
            edges: (1..devices).map(|at| format!("{at}234567 blocks, {at}23456.7 MiB")).collect(),
        }
    }

    #[test]
    fn all_texts_stay_in_the_frame_and_off_each_other() {
        for devices in [0, 1, 2, 3, 8, 20] {
            let graphs = [graph(devices, false), graph(devices, true), graph(2, true)];
            let drawing = drawing("Channels", "one stream under each placement", &graphs);
            assert!(drawing.faults().is_empty(), "{devices} devices: {:#?}", drawing.faults());
        }
    }

    #[test]
    fn every_channel_is_an_arrow() {
        let picture = svg("t & u", "", &[graph(3, false), graph(3, true)]);
        assert_eq!(picture.matches("class=\"head chosen\"").count(), 2 + 4);
        assert!(picture.contains("t &amp; u") && picture.contains("from the application to"));
    }
}
