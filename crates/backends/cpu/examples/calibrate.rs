//! Measures this machine, and prints the calibration as JSON, its settings, and the time it took.

use datapipes_core::Result;
use datapipes_core::topology::Topology;
use datapipes_cpu::Calibration;

fn main() -> Result<()> {
    let topology = Topology::discover();
    let calibration = Calibration::measure(&topology)?;
    for cost in &calibration.copies {
        let cold = cost.cold_ns.map_or(String::new(), |ns| format!("  cold {:7.2} GB/s", cost.len_bytes as f64 / ns));
        println!(
            "{:10} {:>10} B  {:12.1} ns  {:7.2} GB/s{cold}",
            cost.kernel.name(),
            cost.len_bytes,
            cost.hot_ns,
            cost.bytes_per_s() / 1e9
        );
    }
    for knob in calibration.knobs() {
        println!("{} = {} ({})", knob.name, knob.value, knob.origin);
    }
    println!("{:?}", calibration.lines);
    for layer in &calibration.layers {
        println!("{layer:?}");
    }
    println!("{} ms; saved as {}", calibration.took_ms, calibration.save(&topology)?.display());
    Ok(())
}
