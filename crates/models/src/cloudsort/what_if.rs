//! What other inputs would change, and which inputs matter.

use serde::Serialize;

use super::estimate::{CloudSortEstimate, estimate};
use super::inputs::{CloudInput as C, CloudSortInputs, InputLevel};

/// A change of the inputs, and what it gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudSortWhatIf {
    /// The change in words.
    pub change: String,
    /// The estimate, with all other inputs as likely.
    pub estimate: CloudSortEstimate,
}

/// Returns changes of the nodes, of the object store, of the network and of losses.
pub fn what_ifs(inputs: &CloudSortInputs) -> Vec<CloudSortWhatIf> {
    let what_if = |change: String, inputs: CloudSortInputs| CloudSortWhatIf {
        change,
        estimate: estimate(&inputs, InputLevel::Likely),
    };
    let nodes = |factor: f64| {
        let nodes = ((inputs.nodes as f64 * factor).round() as u64).max(1);
        what_if(format!("{nodes} nodes"), CloudSortInputs { nodes, ..inputs.clone() })
    };
    let scaled = |change: &str, input, factor| what_if(change.to_owned(), inputs.clone().scaled(input, factor));
    let set = |change: &str, input, value| what_if(change.to_owned(), inputs.clone().with(input, value));
    vec![
        nodes(0.5),
        nodes(2.0),
        scaled("half the rate of the object store", C::ObjectStore, 0.5),
        scaled("twice the rate of the object store", C::ObjectStore, 2.0),
        set("the network at its lasting rate", C::Network, 1.17),
        scaled("the exchange for a third of the processor", C::ExchangeSeconds, 1.0 / 3.0),
        scaled("sorts and merges of twice the processor", C::SortSeconds, 2.0),
        set("no node is lost", C::Losses, 0.0),
        set("25 nodes are lost in 1000 node hours", C::Losses, 25.0),
    ]
}

/// How much the range of one input matters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputInfluence {
    /// The input's name.
    pub name: &'static str,
    /// Seconds of the sort with this input at its worst, and all others as likely.
    pub worst_seconds: f64,
    /// The same with this input at its best.
    pub best_seconds: f64,
}

/// Returns the inputs whose range changes the time, those that change it most first.
pub fn influences(inputs: &CloudSortInputs) -> Vec<InputInfluence> {
    let mut all: Vec<InputInfluence> = inputs
        .inputs
        .iter()
        .map(|one| {
            let seconds = |value| estimate(&inputs.clone().with(one.input, value), InputLevel::Likely).seconds;
            InputInfluence { name: one.name, worst_seconds: seconds(one.worst), best_seconds: seconds(one.best) }
        })
        .filter(|one| (one.worst_seconds - one.best_seconds).abs() > 0.5)
        .collect();
    let range = |one: &InputInfluence| one.worst_seconds - one.best_seconds;
    all.sort_by(|a, b| range(b).total_cmp(&range(a)));
    all
}
