//! The memory of a cache as a picture: how its budget is divided, and what each size class holds. A
//! pure function.
//!
//! ```text
//!   |tables|128 B slabs     |512 B|4 KiB slabs       |other|   free      |
//!   class     slabs, and how much of them items fill     what came of reads
//! ```

use crate::themed::{Area, Lettering, ShapeTone, ThemedDrawing};

/// The memory of a cache at one moment.
#[derive(Clone, Debug, Default)]
pub struct CacheBudget {
    /// What is above the picture.
    pub title: String,
    /// A line below it.
    pub remark: String,
    /// The budget.
    pub budget_bytes: u64,
    /// The part of it in use.
    pub used_bytes: u64,
    /// Of that, the index, the ghosts and other tables.
    pub table_bytes: u64,
    /// The bytes of a slab.
    pub slab_bytes: u64,
    /// The size classes.
    pub classes: Vec<ClassMemory>,
}

/// A size class.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassMemory {
    /// The most bytes of an item.
    pub capacity_bytes: u64,
    /// Its slabs.
    pub slabs: u64,
    /// The items in them.
    pub items: u64,
    /// Reads that found their bytes.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Items that were evicted for others.
    pub evicted: u64,
    /// Misses that would have been hits with more memory.
    pub ghost_hits: u64,
}

impl CacheBudget {
    fn class_bytes(&self, class: &ClassMemory) -> u64 {
        class.slabs.saturating_mul(self.slab_bytes)
    }

    /// The parts of the budget, in order: name, bytes, tone.
    fn parts(&self) -> Vec<(String, u64, ShapeTone)> {
        let mut parts = vec![("tables".to_owned(), self.table_bytes, ShapeTone::Plain)];
        for (at, class) in self.classes.iter().enumerate().filter(|(_, class)| class.slabs > 0) {
            parts.push((
                format!("slabs of {}", size(class.capacity_bytes)),
                self.class_bytes(class),
                ShapeTone::Series(at),
            ));
        }
        let named: u64 = parts.iter().fold(0, |sum, part| sum.saturating_add(part.1));
        parts.push(("buffers and others".into(), self.used_bytes.saturating_sub(named), ShapeTone::Open));
        let used = self.used_bytes.max(named);
        parts.push(("not in use".into(), self.budget_bytes.saturating_sub(used), ShapeTone::Empty));
        parts.retain(|part| part.1 > 0);
        parts
    }
}

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const BAR: Area = Area { x: MARGIN, y: 112.0, width: WIDTH - 2.0 * MARGIN, height: 44.0 };
const SMALL: f64 = 11.0;
const ROW: f64 = 44.0;
/// Columns of the classes.
const SLABS: f64 = 150.0;
const SLABS_WIDTH: f64 = 420.0;
const ITEMS: f64 = 640.0;
const READS: f64 = 760.0;

/// Draws the memory of a cache.
pub fn svg(cache: &CacheBudget) -> String {
    drawing(cache).finish()
}

fn drawing(cache: &CacheBudget) -> ThemedDrawing {
    let parts = cache.parts();
    let keys = keys(&parts);
    let key_lines = keys.last().map_or(0.0, |key| key.1 + 1.0);
    let classes_top = BAR.y + BAR.height + 22.0 + key_lines * 18.0 + 46.0;
    let height = classes_top + cache.classes.len() as f64 * ROW + 30.0;
    let mut out = ThemedDrawing::new((WIDTH, height), &cache.title, &description(cache, &parts));
    let heading = Lettering::new(18.0).bold();
    out.lines((MARGIN, 36.0), heading, &heading.wrap(&cache.title, BAR.width, 1));
    let faint = Lettering::new(12.0).faint();
    out.lines((MARGIN, 60.0), faint, &faint.wrap(&cache.remark, BAR.width, 1));
    let budget = format!("The budget: {}, {} in use", size(cache.budget_bytes), size(cache.used_bytes));
    out.text((MARGIN, BAR.y - 12.0), Lettering::new(12.0).bold(), &budget);
    bar(&mut out, cache, &parts);
    for ((name, bytes, tone), (x, line)) in parts.iter().zip(&keys) {
        let y = BAR.y + BAR.height + 22.0 + line * 18.0;
        out.area(Area { x: *x, y: y - 9.0, width: 10.0, height: 10.0 }, *tone, "");
        out.text((x + 16.0, y), Lettering::new(SMALL), &key_text(name, *bytes));
    }
    classes(&mut out, cache, classes_top);
    out
}

fn key_text(name: &str, bytes: u64) -> String {
    format!("{name}: {}", size(bytes))
}

/// Where each key of the bar stands: its x, and its line.
fn keys(parts: &[(String, u64, ShapeTone)]) -> Vec<(f64, f64)> {
    let (mut x, mut line) = (MARGIN, 0.0);
    let place = |(name, bytes, _): &(String, u64, ShapeTone)| {
        let width = 16.0 + Lettering::new(SMALL).width_of(&key_text(name, *bytes)) + 24.0;
        if x + width > WIDTH - MARGIN && x > MARGIN {
            (x, line) = (MARGIN, line + 1.0);
        }
        let at = (x, line);
        x += width;
        at
    };
    parts.iter().map(place).collect()
}

fn bar(out: &mut ThemedDrawing, cache: &CacheBudget, parts: &[(String, u64, ShapeTone)]) {
    let whole = parts.iter().map(|part| part.1 as f64).sum::<f64>().max(cache.budget_bytes as f64).max(1.0);
    let mut x = BAR.x;
    for (name, bytes, tone) in parts {
        let width = BAR.width * *bytes as f64 / whole;
        out.area(Area { x, width, ..BAR }, *tone, &key_text(name, *bytes));
        x += width;
    }
}

fn classes(out: &mut ThemedDrawing, cache: &CacheBudget, top: f64) {
    if cache.classes.is_empty() {
        return;
    }
    let head = Lettering::new(12.0).bold();
    for (x, words) in [
        (MARGIN, "Items of up to"),
        (SLABS, "Slabs, and their part that items fill"),
        (ITEMS, "Items"),
        (READS, "Reads, evictions"),
    ] {
        out.text((x, top - 12.0), head, words);
    }
    let most = cache.classes.iter().map(|class| cache.class_bytes(class)).max().unwrap_or(0).max(1) as f64;
    let small = Lettering::new(SMALL);
    for (at, class) in cache.classes.iter().enumerate() {
        let y = top + at as f64 * ROW;
        out.line(&[(MARGIN, y), (WIDTH - MARGIN, y)], ShapeTone::Empty, false, false);
        out.text((MARGIN, y + 26.0), Lettering::new(13.0).bold(), &size(class.capacity_bytes));
        let bytes = cache.class_bytes(class);
        let width = SLABS_WIDTH * bytes as f64 / most;
        let filled = (class.items.saturating_mul(class.capacity_bytes)).min(bytes) as f64 / bytes.max(1) as f64;
        let words = format!("{} slabs, {}, {:.0}% filled", class.slabs, size(bytes), filled * 100.0);
        if class.slabs > 0 {
            out.area(Area { x: SLABS, y: y + 8.0, width, height: 12.0 }, ShapeTone::Empty, &words);
            let full = Area { x: SLABS, y: y + 8.0, width: width * filled, height: 12.0 };
            out.area(full, ShapeTone::Series(at), &words);
        }
        out.text((SLABS, y + 35.0), small.faint(), &words);
        out.text((ITEMS, y + 26.0), small, &class.items.to_string());
        let reads = class.hits.saturating_add(class.misses);
        let percent = if reads == 0 { 0.0 } else { class.hits as f64 * 100.0 / reads as f64 };
        let room = WIDTH - MARGIN - READS;
        let said = format!("{reads} reads, {percent:.0}% hits");
        out.lines((READS, y + 19.0), small, &small.wrap(&said, room, 1));
        let lost = format!("{} evicted, {} ghost hits", class.evicted, class.ghost_hits);
        out.lines((READS, y + 35.0), small.faint(), &small.wrap(&lost, room, 1));
    }
}

/// A size in binary units, without digits that are zero.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut at) = (bytes as f64, 0);
    while value >= 1024.0 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    if value.fract() < 0.05 { format!("{value:.0} {}", units[at]) } else { format!("{value:.1} {}", units[at]) }
}

/// The picture in words.
fn description(cache: &CacheBudget, parts: &[(String, u64, ShapeTone)]) -> String {
    let mut text = format!("Of a budget of {}: ", size(cache.budget_bytes));
    let named: Vec<String> = parts.iter().map(|(name, bytes, _)| key_text(name, *bytes)).collect();
    text += &format!("{}. ", named.join(", "));
    for class in &cache.classes {
        text += &format!(
            "Items of up to {}: {} in {} slabs, {} hits, {} misses, {} evicted. ",
            size(class.capacity_bytes),
            class.items,
            class.slabs,
            class.hits,
            class.misses,
            class.evicted
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(scale: u64, classes: usize) -> CacheBudget {
        let class = |at: usize| ClassMemory {
            capacity_bytes: 16 << at,
            slabs: scale * (at as u64 % 5) * 3,
            items: scale * 1000,
            hits: scale.saturating_mul(123_456),
            misses: scale.saturating_mul(7_654_321),
            evicted: scale.saturating_mul(99_999),
            ghost_hits: scale,
        };
        CacheBudget {
            title: "A cache & its memory".into(),
            remark: "after some reads".repeat(scale.min(20) as usize),
            budget_bytes: scale.saturating_mul(64 << 20),
            used_bytes: scale.saturating_mul(40 << 20),
            table_bytes: scale.saturating_mul(3 << 20),
            slab_bytes: 64 << 10,
            classes: (0..classes).map(class).collect(),
        }
    }

    #[test]
    fn all_texts_stay_in_the_frame_and_off_each_other() {
        for scale in [0, 1, 1000, 1 << 30] {
            for classes in [0, 1, 9, 16] {
                let drawing = drawing(&cache(scale, classes));
                assert!(drawing.faults().is_empty(), "{scale}, {classes} classes: {:#?}", drawing.faults());
            }
        }
    }

    #[test]
    fn the_parts_are_the_budget() {
        let cache = cache(1, 9);
        let sum: u64 = cache.parts().iter().map(|part| part.1).sum();
        assert_eq!(sum, cache.budget_bytes);
        let picture = svg(&cache);
        assert!(picture.contains("tables: 3 MiB") && picture.contains("not in use: 24 MiB"), "{picture}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert_eq!([0, 1023, 1536, 64 << 20, u64::MAX].map(size), ["0 B", "1023 B", "1.5 KiB", "64 MiB", "16 EiB"]);
    }

    #[test]
    fn slabs_beyond_the_budget_are_drawn_within_the_frame() {
        let mut cache = cache(1, 3);
        cache.budget_bytes = 1 << 16;
        let picture = svg(&cache);
        assert!(!picture.contains("not in use") && drawing(&cache).faults().is_empty());
    }
}
