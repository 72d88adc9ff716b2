//! The machine as layers of the storage pyramid: the paper's figure 1, with what was found and
//! measured here.

use datapipes_cpu::Calibration;

use super::facts::{BackendFacts, Facts};
use super::storage::StorageCost;
use crate::arguments::units;
use crate::picture::pyramid::{Ease, Layer, PrimitiveNote, svg};

/// The picture.
pub(super) fn draw(facts: &Facts<'_>) -> String {
    let mut layers: Vec<Layer> = facts.calibration.layers.iter().map(layer).collect();
    let notes: Vec<(Belongs, PrimitiveNote)> = facts.backends.iter().flat_map(|b| notes(facts, b)).collect();
    if let Some(cost) = &facts.storage_cost {
        layers.push(storage_layer(facts, cost));
    }
    let memory = layers.iter().position(|l| l.name == "DRAM").unwrap_or(0);
    for (belongs, note) in notes {
        let at = match belongs {
            // What is under a layer in the picture moves bytes between it and the next one.
            Belongs::InCaches => memory.saturating_sub(2),
            Belongs::CacheAndMemory => memory.saturating_sub(1),
            Belongs::MemoryAndStorage => memory,
            Belongs::InStorage => layers.len() - 1,
        };
        if let Some(layer) = layers.get_mut(at) {
            layer.primitives.push(note);
        }
    }
    svg(&title(facts), &layers)
}

fn title(facts: &Facts<'_>) -> String {
    let model = facts.topology.cpu.model_name.clone().unwrap_or_else(|| "a machine".into());
    let cores = facts.topology.usable_cores().count();
    format!("{model}, {cores} core{}", if cores == 1 { "" } else { "s" })
}

fn layer(layer: &datapipes_cpu::Layer) -> Layer {
    let copy = layer.copy_bytes_per_s.map(|rate| format!("; copies {:.0} GB/s", rate / 1e9)).unwrap_or_default();
    Layer {
        name: layer.name.clone(),
        capacity_bytes: layer.size_bytes,
        latency_ns: Some(layer.latency_ns),
        bandwidth_gb_s: Some(layer.read_bytes_per_s / 1e9),
        note: format!("one core, {}{copy}", units::memory(layer.over_bytes)),
        primitives: Vec::new(),
    }
}

fn storage_layer(facts: &Facts<'_>, cost: &StorageCost) -> Layer {
    let storage = facts.storage.as_ref();
    let device = storage.and_then(|s| s.device.as_ref()).map_or_else(|| cost.dir.clone(), |d| d.name.clone());
    let system = storage.and_then(|s| s.fs_type.clone()).unwrap_or_default();
    Layer {
        name: "SSD".into(),
        capacity_bytes: storage.and_then(|s| s.total_bytes),
        latency_ns: Some(cost.random_read_p50_ns),
        bandwidth_gb_s: Some(cost.read_bytes_per_second / 1e9),
        note: format!("{device} {system}; writes {:.2} GB/s", cost.write_bytes_per_second / 1e9),
        primitives: Vec::new(),
    }
}

/// Between which layers a primitive moves bytes.
#[derive(Clone, Copy)]
enum Belongs {
    InCaches,
    CacheAndMemory,
    MemoryAndStorage,
    InStorage,
}

fn notes(facts: &Facts<'_>, backend: &BackendFacts) -> Vec<(Belongs, PrimitiveNote)> {
    let mut notes = Vec::new();
    for p in &backend.primitives {
        let in_storage = p.name == "kernel-copy";
        let (belongs, ease) = match (backend.name, p.name) {
            // What only takes a name, and moves nothing.
            (_, "leave") => continue,
            ("file", _) if in_storage => (Belongs::InStorage, Ease::Easy),
            ("file", _) => (Belongs::MemoryAndStorage, Ease::Easy),
            (_, "cldemote") => (Belongs::InCaches, Ease::Specialised),
            (_, "memcpy" | "copy-by-size") => (Belongs::CacheAndMemory, Ease::Easy),
            _ => (Belongs::CacheAndMemory, Ease::Instruction),
        };
        let (available, why) = match &p.available {
            Ok(_) => (true, p.what.to_owned()),
            Err(why) => (false, why.clone()),
        };
        let rate = cpu_rate(&facts.calibration, p.name).or_else(|| storage_rate(facts.storage_cost.as_ref()?, p.name));
        let gb_s = rate.map(|rate| rate / 1e9);
        notes.push((belongs, PrimitiveNote { name: p.name.into(), available, reason: why, gb_s, ease }));
    }
    notes
}

/// The rate of a processor's primitive on bytes that are in no cache, in bytes per second.
fn cpu_rate(calibration: &Calibration, name: &str) -> Option<f64> {
    const LINE: f64 = 64.0;
    let lines = &calibration.lines;
    match name {
        "load-into-cache" => Some(lines.load_bytes_per_s),
        "cldemote" => lines.cldemote_ns.map(|ns| LINE / ns * 1e9),
        "clwb" => lines.clwb_ns.map(|ns| LINE / ns * 1e9),
        "clflushopt" => lines.clflushopt_ns.map(|ns| LINE / ns * 1e9),
        _ => {
            let long = calibration.copies.iter().filter(|c| name == "copy-by-size" || c.kernel.name() == name);
            let longest = long.clone().map(|c| c.len_bytes).max()?;
            let rates = long.filter(|c| c.len_bytes == longest).map(datapipes_cpu::CopyCost::bytes_per_s);
            rates.max_by(f64::total_cmp)
        }
    }
}

fn storage_rate(cost: &StorageCost, name: &str) -> Option<f64> {
    let of_name = cost.primitives.iter().filter(|p| p.name == name);
    of_name.filter_map(|p| p.bytes_per_second.as_ref().ok().copied()).max_by(f64::total_cmp)
}
