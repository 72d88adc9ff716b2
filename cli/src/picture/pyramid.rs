//! The storage pyramid of a machine as a picture: figure 1 of the Data Pipes paper (CIDR'23), with
//! this machine's figures.
//!
//! ```text
//!   primitives between two layers        pyramid        figures of the layer
//!   [ mov ] [ prefetch ]  - - - - - - -   /L1 \   ----  48 KiB, 1.1 ns, 100 GB/s
//!   [ CLDEMOTE: absent ]  - - - - - - -  / L2  \  ----  ...
//! ```
//! A pure function from values to text: it measures nothing. The SVG stands alone (no scripts,
//! fonts or links).

use datapipes::topology::Size;

use datapipes_picture::svg::{Drawing, FAINT, Text, escape};

/// One layer of the pyramid; the caller gives them fastest first.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Its name (`L2`, `DRAM`).
    pub(crate) name: String,
    /// Capacity in bytes.
    pub(crate) capacity_bytes: Option<u64>,
    /// Measured latency in nanoseconds.
    pub(crate) latency_ns: Option<f64>,
    /// Measured bandwidth in GB/s (10^9 bytes).
    pub(crate) bandwidth_gb_s: Option<f64>,
    /// A line of remarks; may be empty.
    pub(crate) note: String,
    /// What moves data between this layer and the next one down (in the last layer: within it).
    pub(crate) primitives: Vec<PrimitiveNote>,
}

/// One primitive between two layers.
#[derive(Clone, Debug)]
pub(crate) struct PrimitiveNote {
    /// Its name.
    pub(crate) name: String,
    /// Whether this machine has it.
    pub(crate) available: bool,
    /// Why it is absent, or a remark on one that is there; may be empty.
    pub(crate) reason: String,
    /// Measured rate in GB/s.
    pub(crate) gb_s: Option<f64>,
    /// How easy it is to program.
    pub(crate) ease: Ease,
}

/// How easy and how precise a primitive is to program: the paper's colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ease {
    /// Effortless and precise (system calls): green.
    Easy,
    /// Instructions for a savvy programmer: amber.
    Instruction,
    /// Highly specialised, or only advice to the hardware: red.
    Specialised,
}

const WIDTH: f64 = 1280.0;
const MARGIN: f64 = 24.0;
const TOP: f64 = 104.0;
const CHIP: (f64, f64) = (292.0, 50.0);
const CHIP_GAP: f64 = 8.0;
const COLUMNS: usize = 2;
/// The right end of the primitives, and the axis of the pyramid.
const CHIPS_RIGHT: f64 = MARGIN + 2.0 * CHIP.0 + CHIP_GAP;
const AXIS: f64 = 802.0;
/// Half the width of the pyramid at its top and bottom; the top is cut so that a name fits.
const HALF: (f64, f64) = (56.0, 150.0);
const FACTS: f64 = 984.0;
/// The height that a layer's own name and figures need.
const LAYER: f64 = 66.0;
const SLABS: [&str; 6] = ["#0b3c6f", "#14539a", "#2c6db8", "#4d88cb", "#73a3da", "#9abde6"];

/// Draws the pyramid of `machine` as a self-contained SVG document.
pub(crate) fn svg(machine: &str, layers: &[Layer]) -> String {
    let rows = rows(layers);
    let bottom = rows.last().map_or(TOP, |row| row.bottom);
    let height = bottom + 64.0;
    let title = format!("Storage pyramid of {machine}");
    let mut out = Drawing::new((WIDTH, height), &title);
    text(&mut out, Text::new((MARGIN, 36.0), 20.0).bold(), &title, WIDTH - 2.0 * MARGIN);
    text(
        &mut out,
        Text::new((MARGIN, 60.0), 12.0).fill(FAINT),
        "Left: what moves data between two layers. Right: the layers, with the figures of this machine.",
        WIDTH - 2.0 * MARGIN,
    );
    for (x, heading) in [(MARGIN, "Data movement primitives"), (FACTS, "Capacity, latency, bandwidth")] {
        text(&mut out, Text::new((x, 88.0), 13.0).bold(), heading, 292.0);
    }
    text(&mut out, Text::new((AXIS, 88.0), 13.0).bold().anchor("middle"), "Storage layers", 300.0);
    for (at, (layer, row)) in layers.iter().zip(&rows).enumerate() {
        slab(&mut out, layer, row, at, bottom);
        band(&mut out, layer, layers.get(at + 1), row, bottom);
    }
    legend(&mut out, bottom + 36.0);
    out.finish()
}

/// The positions of one layer and of the primitives under it.
struct Row {
    /// Top and bottom of the slab in the pyramid.
    slab: (f64, f64),
    /// Baseline area of the layer's own figures.
    facts: f64,
    /// Top of the band of primitives.
    band: f64,
    /// Bottom of the band.
    bottom: f64,
}

/// Layers take turns with bands of primitives; a slab reaches to the middle of the bands next to
/// it, so the pyramid is solid and each border lies beside the primitives that cross it.
fn rows(layers: &[Layer]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::with_capacity(layers.len());
    let mut top = TOP;
    for (at, layer) in layers.iter().enumerate() {
        let band = top + LAYER;
        let lines = layer.primitives.len().div_ceil(COLUMNS);
        let bottom = match lines {
            0 => band + 10.0,
            // At most some dozens of primitives: exact in a float.
            lines => band + 20.0 + lines as f64 * (CHIP.1 + CHIP_GAP),
        };
        let is_last = at + 1 == layers.len();
        let slab_top = rows.last().map_or(top, |above| above.slab.1);
        let slab_bottom = if is_last { bottom } else { (band + bottom) / 2.0 };
        rows.push(Row { slab: (slab_top, slab_bottom), facts: (top + band) / 2.0, band, bottom });
        top = bottom;
    }
    rows
}

/// Half the width of the pyramid at a height.
fn half_width(y: f64, bottom: f64) -> f64 {
    HALF.0 + (HALF.1 - HALF.0) * (y - TOP) / (bottom - TOP).max(1.0)
}

/// A layer in the pyramid, and its figures beside it.
fn slab(out: &mut Drawing, layer: &Layer, row: &Row, at: usize, bottom: f64) {
    let (top, low) = (row.slab.0 + 1.5, row.slab.1 - 1.5);
    let (wide_top, wide_low) = (half_width(top, bottom), half_width(low, bottom));
    let fill = SLABS[at.min(SLABS.len() - 1)];
    let middle = row.facts;
    let half = half_width(middle, bottom);
    out.add(format_args!(
        "<path d=\"M{:.1} {top:.1}L{:.1} {top:.1}L{:.1} {low:.1}L{:.1} {low:.1}Z\" fill=\"{fill}\"/>\n\
         <path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"#afb8c1\" stroke-width=\"1\"/>",
        AXIS - wide_top,
        AXIS + wide_top,
        AXIS + wide_low,
        AXIS - wide_low,
        AXIS + half + 4.0,
        FACTS - 8.0,
    ));
    let ink = if at < 4 { "#ffffff" } else { "#0b2545" };
    let name = Text::new((AXIS, middle + 5.0), 15.0).bold().fill(ink).anchor("middle");
    text(out, name, &layer.name, 2.0 * half - 16.0);
    let width = WIDTH - MARGIN - FACTS;
    let figures = format!("{}  ·  {}", capacity(layer.capacity_bytes), latency(layer.latency_ns));
    let at = |y: f64, size: f64| Text::new((FACTS, middle + y), size);
    text(out, at(-8.0, 12.0).bold(), &figures, width);
    text(out, at(8.0, 12.0), &bandwidth(layer.bandwidth_gb_s), width);
    text(out, at(24.0, 10.5).fill(FAINT), &layer.note, width);
}

/// The primitives between a layer and the next.
fn band(out: &mut Drawing, layer: &Layer, below: Option<&Layer>, row: &Row, bottom: f64) {
    if layer.primitives.is_empty() {
        return;
    }
    let heading = match below {
        Some(below) => format!("{} ↔ {}", layer.name, below.name),
        None => format!("within {}", layer.name),
    };
    text(out, Text::new((MARGIN, row.band + 11.0), 11.0).bold().fill(FAINT), &heading, 400.0);
    for (at, primitive) in layer.primitives.iter().enumerate() {
        let column = (at % COLUMNS) as f64;
        let line = (at / COLUMNS) as f64;
        chip(out, primitive, MARGIN + column * (CHIP.0 + CHIP_GAP), row.band + 18.0 + line * (CHIP.1 + CHIP_GAP));
    }
    // A bracket around the chips, and a line from it to the border that they cross.
    let (x, from, to) = (CHIPS_RIGHT + 8.0, row.band + 18.0, row.bottom - CHIP_GAP - 2.0);
    let border = if below.is_some() { row.slab.1 } else { (from + to) / 2.0 };
    out.add(format_args!(
        "<path d=\"M{:.1} {from:.1}H{x:.1}V{to:.1}H{:.1}M{x:.1} {border:.1}H{:.1}\" fill=\"none\" stroke=\"#8c959f\"/>",
        x - 5.0,
        x - 5.0,
        AXIS - half_width(border, bottom) - 3.0,
    ));
}

/// One primitive.
fn chip(out: &mut Drawing, primitive: &PrimitiveNote, x: f64, y: f64) {
    let (fill, stroke) = match (primitive.available, primitive.ease) {
        (false, _) => ("#f3f4f6", "#c0c6cd"),
        (_, Ease::Easy) => ("#e2f5e6", "#1a7f37"),
        (_, Ease::Instruction) => ("#fff3d1", "#b07800"),
        (_, Ease::Specialised) => ("#fde6e4", "#c0281f"),
    };
    let dash = if primitive.available { "" } else { " stroke-dasharray=\"4 3\"" };
    let (width, height) = CHIP;
    let remark = match (primitive.available, primitive.reason.is_empty()) {
        (true, _) => primitive.reason.clone(),
        (false, true) => "absent".to_owned(),
        (false, false) => format!("absent: {}", primitive.reason),
    };
    out.add(format_args!(
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width}\" height=\"{height}\" rx=\"5\" \
         fill=\"{fill}\" stroke=\"{stroke}\"{dash}/>",
        escape(&format!("{}: {remark}", primitive.name)),
    ));
    mark(out, primitive.ease, if primitive.available { stroke } else { "#9aa3ad" }, x + 13.0, y + 13.0);
    let ink = if primitive.available { "#1f2328" } else { "#6b737c" };
    let rate = primitive.gb_s.filter(|_| primitive.available).and_then(|rate| rounded(rate, "GB/s"));
    let at = Text::new((x + width - 8.0, y + 17.0), 11.0).fill(ink).anchor("end");
    let rate_width = rate.as_deref().map_or(0.0, |rate| at.width_of(rate) + 10.0);
    let name = Text::new((x + 25.0, y + 17.0), 12.0).bold().fill(ink);
    text(out, name, &primitive.name, width - 33.0 - rate_width);
    if let Some(rate) = rate {
        text(out, at, &rate, width);
    }
    let line = |y: f64| Text::new((x + 25.0, y), 9.5).fill(ink);
    let (first, second) = two_lines(line(0.0), &remark, width - 33.0);
    for (words, y) in [(first, y + 31.0), (second, y + 43.0)] {
        text(out, line(y), &words, width - 33.0);
    }
    out.add(format_args!("</g>"));
}

/// A shape for each colour, for those who do not see colours: disc, diamond, triangle.
fn mark(out: &mut Drawing, ease: Ease, fill: &str, x: f64, y: f64) {
    let shape = match ease {
        Ease::Easy => format!("M{:.1} {y:.1}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z", x - 5.0),
        Ease::Instruction => format!("M{x:.1} {:.1}l6 6l-6 6l-6 -6Z", y - 6.0),
        Ease::Specialised => format!("M{x:.1} {:.1}l6 10.5h-12Z", y - 6.0),
    };
    out.add(format_args!("<path d=\"{shape}\" fill=\"{fill}\"/>"));
}

fn legend(out: &mut Drawing, y: f64) {
    let entries = [
        (Ease::Easy, "#1a7f37", "easy and precise", 190.0),
        (Ease::Instruction, "#b07800", "instructions", 160.0),
        (Ease::Specialised, "#c0281f", "specialised, or only advice", 250.0),
        (Ease::Easy, "#9aa3ad", "grey: absent on this machine, with the reason", 0.0),
    ];
    let mut x = MARGIN + 6.0;
    for (ease, fill, words, step) in entries {
        mark(out, ease, fill, x, y - 4.0);
        text(out, Text::new((x + 13.0, y), 12.0), words, 400.0);
        x += step;
    }
    let at = Text::new((FACTS, y), 11.0).fill(FAINT);
    text(out, at, "top: small and fast; bottom: large and slow", WIDTH - MARGIN - FACTS);
}

/// Sets one line, cut with an ellipsis where it would be wider than `room`.
fn text(out: &mut Drawing, at: Text, words: &str, room: f64) {
    out.text(at, &at.cut(words, room));
}

/// Breaks at the last blank that fits; the second line is cut by `text`.
fn two_lines(at: Text, words: &str, room: f64) -> (String, String) {
    if at.width_of(words) <= room {
        return (words.to_owned(), String::new());
    }
    let blanks = words.match_indices(' ').map(|(blank, _)| blank);
    match blanks.take_while(|blank| at.width_of(&words[..*blank]) <= room).last() {
        Some(blank) => (words[..blank].to_owned(), words[blank + 1..].to_owned()),
        None => (words.to_owned(), String::new()),
    }
}

/// Three significant digits; None for what is not a measurement.
fn rounded(value: f64, unit: &str) -> Option<String> {
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    let digits = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    Some(format!("{value:.digits$} {unit}"))
}

fn bandwidth(gb_s: Option<f64>) -> String {
    gb_s.and_then(|rate| rounded(rate, "GB/s")).unwrap_or_else(|| "bandwidth not measured".to_owned())
}

fn latency(ns: Option<f64>) -> String {
    let measured = ns.and_then(|ns| match ns {
        ns if ns >= 1e9 => rounded(ns / 1e9, "s"),
        ns if ns >= 1e6 => rounded(ns / 1e6, "ms"),
        ns if ns >= 1e3 => rounded(ns / 1e3, "µs"),
        ns => rounded(ns, "ns"),
    });
    measured.unwrap_or_else(|| "latency not measured".to_owned())
}

fn capacity(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "capacity not known".to_owned(), |bytes| Size(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn primitive(name: &str, ease: Ease, gb_s: Option<f64>, reason: &str, available: bool) -> PrimitiveNote {
        PrimitiveNote { name: name.into(), available, reason: reason.into(), gb_s, ease }
    }

    fn layer(name: &str, primitives: Vec<PrimitiveNote>) -> Layer {
        let note = "a note".to_owned();
        Layer {
            name: name.into(),
            capacity_bytes: Some(48 << 10),
            latency_ns: Some(1.25),
            bandwidth_gb_s: None,
            note,
            primitives,
        }
    }

    /// The figures of this project's machines (anchors, section 6), and a stress of 8 primitives in
    /// each layer.
    fn sample(stress: bool) -> Vec<Layer> {
        use Ease::{Easy, Instruction, Specialised};
        let mut layers = vec![
            Layer {
                name: "registers".into(),
                capacity_bytes: Some(2048),
                latency_ns: Some(0.3),
                bandwidth_gb_s: None,
                note: "32 registers of 64 bytes (AVX-512)".into(),
                primitives: vec![
                    primitive("load / store", Easy, Some(210.0), "any instruction with an operand in memory", true),
                    primitive("MOVDIR64B", Instruction, None, "CPUID 7:ECX[28] is clear", false),
                ],
            },
            Layer {
                name: "L1".into(),
                capacity_bytes: Some(48 << 10),
                latency_ns: Some(1.1),
                bandwidth_gb_s: Some(99.0),
                note: "12 ways, 64-byte lines, per core".into(),
                primitives: vec![primitive(
                    "PREFETCHT1",
                    Instruction,
                    Some(58.0),
                    "advice: the processor may ignore it",
                    true,
                )],
            },
            Layer {
                name: "L2".into(),
                capacity_bytes: Some(1 << 20),
                latency_ns: Some(3.8),
                bandwidth_gb_s: Some(58.0),
                note: "16 ways, per core".into(),
                primitives: vec![
                    primitive(
                        "CLDEMOTE",
                        Instruction,
                        None,
                        "CPUID 7:ECX[25] is clear; the encoding runs as a no-op here",
                        false,
                    ),
                    primitive("PREFETCHT2", Instruction, None, "advice", true),
                ],
            },
            Layer {
                name: "L3".into(),
                capacity_bytes: Some(32 << 20),
                latency_ns: Some(14.0),
                bandwidth_gb_s: Some(29.0),
                note: "shared with neighbours that we do not see".into(),
                primitives: vec![
                    primitive("memcpy", Easy, Some(14.2), "libc; allocates in the caches", true),
                    primitive("non-temporal store", Instruction, Some(23.1), "MOVNTI, bypasses the caches", true),
                    primitive("CLWB", Instruction, Some(17.0), "writes back, keeps the line", true),
                    primitive("DDIO", Specialised, None, "AMD processor; no resctrl, no MSR", false),
                    primitive("CAT (resctrl)", Specialised, None, "/sys/fs/resctrl is not there", false),
                ],
            },
            Layer {
                name: "DRAM".into(),
                capacity_bytes: Some(25_276_510_208),
                latency_ns: Some(112.0),
                bandwidth_gb_s: Some(22.4),
                note: "1 node; container limit none".into(),
                primitives: vec![
                    primitive("io_uring, direct, fixed buffers", Easy, Some(1.92), "512-byte alignment by statx", true),
                    primitive("pread / pwrite", Easy, Some(1.61), "", true),
                    primitive("DSA", Specialised, None, "no device in /sys/bus/dsa", false),
                    primitive("DAX + CLWB", Instruction, None, "vda is not byte-addressable", false),
                ],
            },
            Layer {
                name: "SSD".into(),
                capacity_bytes: Some(256 << 30),
                latency_ns: Some(180_000.0),
                bandwidth_gb_s: Some(1.92),
                note: "vda, ext4, mq-deadline".into(),
                primitives: vec![
                    primitive("copy_file_range", Easy, Some(0.9), "in the kernel", true),
                    primitive("reflink", Easy, None, "ext4 has none", false),
                ],
            },
        ];
        if stress {
            let ease = [Easy, Instruction, Specialised];
            for layer in &mut layers {
                layer.name = format!("{} with a long name <&>", layer.name);
                layer.note = "a very long note that goes on and on beyond the room that there is for notes".into();
                layer.primitives = (0..8)
                    .map(|at| {
                        primitive(
                            "a primitive with a rather long name, longer than its box",
                            ease[at % 3],
                            Some(123.456),
                            "a long reason that needs more than the two lines that are there, and is therefore cut at its end, MMMMM WWWWW",
                            at % 2 == 0,
                        )
                    })
                    .collect();
            }
        }
        layers
    }

    /// Writes the pictures where `PYRAMID_OUT` says, to look at them.
    #[test]
    fn pictures() {
        for stress in [false, true] {
            let picture = svg("AMD EPYC, 2 cores, Linux 6.18", &sample(stress));
            assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
            assert_eq!(picture.matches("<g>").count(), picture.matches("</g>").count());
            if let Ok(directory) = std::env::var("PYRAMID_OUT") {
                std::fs::write(format!("{directory}/pyramid-{stress}.svg"), picture).unwrap();
            }
        }
    }

    #[test]
    fn chips_never_overlap() {
        for count in 0..=9 {
            let many = || (0..count).map(|_| primitive("p", Ease::Easy, None, "", true)).collect();
            let layers = [layer("a", many()), layer("b", many()), layer("c", vec![]), layer("d", many())];
            let rows = rows(&layers);
            for pair in rows.windows(2) {
                assert!(pair[0].bottom <= pair[1].band - LAYER && pair[0].slab.1 == pair[1].slab.0);
                assert!(pair[0].facts + 30.0 < pair[0].band + 1.0 && pair[0].slab.1 > pair[0].facts);
            }
            let last_chip = rows[0].band + 18.0 + (count.max(1) - 1) as f64 / 2.0 * (CHIP.1 + CHIP_GAP);
            assert!(count == 0 || last_chip.floor() <= rows[0].bottom);
        }
    }

    #[test]
    fn text_is_escaped_and_absence_is_said() {
        let chips = vec![primitive("<x> & \"y\"\u{1}", Ease::Specialised, Some(3.0), "no <device>", false)];
        let picture = svg("a<b", &[layer("L1", chips)]);
        assert!(picture.contains("a&lt;b") && picture.contains("&lt;x&gt; &amp; &quot;y&quot;\u{fffd}"));
        assert!(picture.contains("absent: no &lt;device&gt;") && !picture.contains("3.00 GB/s"));
        assert!(picture.contains("bandwidth not measured"));
        assert!(svg("", &[]).contains("</svg>"));
    }

    #[test]
    fn figures() {
        assert_eq!(latency(Some(0.3)), "0.30 ns");
        assert_eq!(latency(Some(180_000.0)), "180 µs");
        assert_eq!(latency(Some(f64::NAN)), "latency not measured");
        assert_eq!(bandwidth(Some(22.44)), "22.4 GB/s");
        assert_eq!(capacity(Some(1 << 20)), "1 MiB");
        assert_eq!(capacity(Some(1536)), "1.5 KiB");
        assert_eq!(capacity(Some(u64::MAX)), "16 EiB");
    }
}
