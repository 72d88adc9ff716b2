//! The live view: a few lines redrawn on a terminal, a line each second elsewhere.

use std::time::{Duration, Instant};

use datapipes_fabric::placement::Placement;

use crate::commands::stream::steps::chain::{Chain, Link};
use crate::commands::stream::steps::device_progress::{Sample, read_all};
use crate::commands::stream::steps::program::Program;
use crate::outcome::{draw, harmless, note};
use crate::{arguments::units, columns, progress};

const REDRAW_EVERY: Duration = Duration::from_millis(100);
const SAY_EVERY: Duration = Duration::from_secs(1);

pub(in crate::commands::stream) struct View {
    placement: Placement,
    /// "source -> crc32", and the credits of that channel.
    edges: Vec<(String, u32)>,
    on_terminal: bool,
    /// Whether nothing but the report goes to the standard error.
    quiet: bool,
    shown: (Instant, Vec<Sample>),
    drawn: bool,
}

impl View {
    pub(in crate::commands::stream) fn new(placement: Placement, chain: &Chain, quiet: bool) -> View {
        let name = |link: &Link| {
            let (from, to) = chain.names(link);
            (harmless(&format!("{from} -> {to}"), usize::MAX), link.credits)
        };
        View { quiet, ..View::of(placement, chain.links.iter().map(name).collect()) }
    }

    fn of(placement: Placement, edges: Vec<(String, u32)>) -> View {
        let (on_terminal, shown) = (progress::wanted(), (Instant::now(), Vec::new()));
        View { placement, edges, on_terminal, quiet: false, shown, drawn: false }
    }

    pub(in crate::commands::stream) fn begin(&self, processes: &str) {
        if !self.quiet {
            note(&format!("{}: {}\n", self.placement.name(), harmless(processes, usize::MAX)));
        }
    }

    /// Shows what programs said, and how far the devices are, if it is time to.
    pub(in crate::commands::stream) fn tick(&mut self, chain: &Chain) {
        if self.quiet {
            return;
        }
        let said: String = chain.programs.iter().flat_map(Program::lines).map(|line| line + "\n").collect();
        if !said.is_empty() {
            // Above the lines that are drawn, and drawn again below.
            self.end();
            note(&said);
        }
        let since = self.shown.0.elapsed();
        if since < if self.on_terminal { REDRAW_EVERY } else { SAY_EVERY } {
            return;
        }
        let now: Vec<Sample> = read_all(chain.links.iter().map(|link| &link.meter));
        let lines = self.lines(&now, since);
        if self.on_terminal {
            let up = if self.drawn { format!("\x1b[{}A", lines.len()) } else { String::new() };
            // A line that wraps would take more lines than are drawn over the next time.
            let wide = progress::width();
            let redrawn: String =
                lines.iter().map(|line| format!("\r\x1b[K{}\n", columns::shortened(line, wide))).collect();
            draw(&(up + &redrawn));
        } else {
            note(&format!("{}: {}\n", self.placement.name(), lines.join("; ")));
        }
        self.drawn = true;
        self.shown = (Instant::now(), now);
    }

    /// Takes the lines off the terminal again: the result says more.
    pub(in crate::commands::stream) fn end(&mut self) {
        if self.on_terminal && self.drawn {
            // What the terminal shows of a key that ends it stands before the cursor.
            draw(&format!("\r\x1b[{}A\x1b[J", self.edges.len()));
        }
        self.drawn = false;
    }

    fn lines(&self, now: &[Sample], since: Duration) -> Vec<String> {
        let wide = self.edges.iter().map(|(name, _)| columns::count(name)).max().unwrap_or(0);
        let wide = if self.on_terminal { wide } else { 0 };
        // The devices have sent everything, and the sink has not answered for the last of it.
        let is_at_end = now.iter().all(|sample| sample.is_ending);
        let line = |(at, (name, credits)): (usize, &(String, u32))| {
            let (sample, before) = (now[at], self.shown.1.get(at).copied().unwrap_or_default());
            let rate = units::rate(sample.bytes.saturating_sub(before.bytes), since.as_secs_f64());
            let used = sample.under_way.min((*credits).into());
            let bar = if self.on_terminal { bar(used, *credits) } else { String::new() };
            let (blocks, bytes) = (sample.blocks, units::bytes(sample.bytes));
            let name = columns::left(name, wide);
            if is_at_end && at + 1 == self.edges.len() {
                return format!("{name}  {blocks:>7} blocks  {bytes:>8}  the sink has the last of it to do");
            }
            format!("{name}  {blocks:>7} blocks  {bytes:>8}  {rate:>10}  credits {bar}{used}/{credits}")
        };
        self.edges.iter().enumerate().map(line).collect()
    }
}

/// Credits in use, as far as ten characters can show them.
fn bar(used: u64, credits: u32) -> String {
    let wide = credits.clamp(1, 10) as usize;
    let filled = (used as usize * wide).div_ceil(credits.max(1) as usize);
    format!("[{}{}] ", "#".repeat(filled), ".".repeat(wide - filled.min(wide)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_blocks_rate_and_credits() {
        let edges = vec![("source -> crc32".into(), 4), ("crc32 -> sink".into(), 16)];
        let mut view = View::of(Placement::DistributedResourceSide, edges);
        let sample = Sample { blocks: 3, bytes: 3_000_000, under_way: 2, ..Sample::default() };
        view.on_terminal = true;
        let lines = view.lines(&[sample, Sample::default()], Duration::from_millis(100));
        assert_eq!(lines[0], "source -> crc32        3 blocks   3.00 MB   30.0 MB/s  credits [##..] 2/4");
        assert!(lines[1].starts_with("crc32 -> sink  ") && lines[1].ends_with("[..........] 0/16"), "{lines:?}");
        assert_eq!(bar(1, 256), "[#.........] ");
        let last = Sample { blocks: 3, bytes: 3_000_000, is_ending: true, ..Sample::default() };
        let lines = view.lines(&[last, Sample { under_way: 1, ..last }], Duration::from_millis(100));
        assert!(lines[0].contains("credits"), "{lines:?}");
        assert!(lines[1].ends_with("3.00 MB  the sink has the last of it to do"), "{lines:?}");
    }
}
