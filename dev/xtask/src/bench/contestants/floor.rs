//! The two-pass I/O floor of an external sort: every byte is read twice and written twice, at the
//! best direct rate that fio reaches on the same disk in the same turns.

use crate::bench::contestants::fio::{Clocks, Direction, Fio, Setting};
use crate::bench::context::Context;
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::records::record::{Entry, FloorRecord, Run};
use crate::{TaskResult, steps};
use std::path::{Path, PathBuf};

const SETTINGS: [Setting; 4] = [
    Setting { block_kib: 1024, depth: 16, jobs: 1, clocks: Clocks::Few },
    Setting { block_kib: 1024, depth: 32, jobs: 1, clocks: Clocks::Few },
    Setting { block_kib: 4096, depth: 8, jobs: 1, clocks: Clocks::Few },
    Setting { block_kib: 1024, depth: 16, jobs: 2, clocks: Clocks::Few },
];
/// Longer files do not change the rate; the disk time is better spent on contestants.
const MAX_FILE_BYTES: u64 = 4 << 30;

pub(in crate::bench) struct Floor {
    fio: Fio,
    input: PathBuf,
    scratch: PathBuf,
    sort_bytes: u64,
    probe_bytes: u64,
    /// Reads and writes of each setting, in the order of `SETTINGS`.
    entries: Vec<(Direction, Entry)>,
}

impl Floor {
    pub(in crate::bench) fn new(context: &Context, input: &Path, sort_bytes: u64) -> Result<Self, String> {
        let fio = Fio::find_if_wanted(context)?;
        let probe_bytes = sort_bytes.min(MAX_FILE_BYTES) >> 23 << 23; // whole blocks for every setting
        let scratch = context.file("fio-write.tmp");
        let mut entries = Vec::new();
        for direction in [Direction::Read, Direction::Write] {
            for setting in SETTINGS {
                let file = if direction == Direction::Read { input } else { &scratch };
                entries.push((
                    direction,
                    Entry {
                        name: format!("{}, {}", direction.word(), setting.name()),
                        version: fio.version.clone(),
                        command: steps::shown(&fio.command(setting, direction, file, probe_bytes)),
                        note: fio.note().into(),
                        ..Entry::default()
                    },
                ));
            }
        }
        Ok(Self { fio, input: input.to_path_buf(), scratch, sort_bytes, probe_bytes, entries })
    }

    /// Measures each setting once, reads and writes.
    pub(in crate::bench) fn measure(&mut self, turn: usize) -> TaskResult<()> {
        for (at, (direction, entry)) in self.entries.iter_mut().enumerate() {
            let setting = SETTINGS[at % SETTINGS.len()];
            let file = if *direction == Direction::Read { &self.input } else { &self.scratch };
            make_cold(&[])?;
            let result = self.fio.run(&mut self.fio.command(setting, *direction, file, self.probe_bytes), *direction);
            // A fresh file each time: preallocated, never written, as spills and outputs are.
            let _ = std::fs::remove_file(&self.scratch);
            let (figures, verified) = match result {
                Ok(figures) => (figures, "rate only".to_string()),
                Err(why) => (Default::default(), format!("FAILED: {why}")),
            };
            println!("    fio {}: {figures:.2?} {verified}", entry.name);
            entry.runs.push(Run { turn, figures, verified });
        }
        Ok(())
    }

    pub(in crate::bench) fn finish(mut self) -> Option<FloorRecord> {
        self.entries.iter_mut().for_each(|(_, entry)| entry.take_medians());
        let (read, fastest_read) = self.best(Direction::Read)?;
        let (write, fastest_write) = self.best(Direction::Write)?;
        let figure = |entry: &Entry, direction: Direction| entry.medians[&format!("{}_gib_s", direction.word())];
        let gib = self.sort_bytes as f64 / (1u64 << 30) as f64;
        let seconds = |read_gib_s: f64, write_gib_s: f64| 2.0 * gib / read_gib_s + 2.0 * gib / write_gib_s;
        Some(FloorRecord {
            what: format!(
                "Two-pass I/O floor: 2 x {:.2} GB read + 2 x written, one after the other, at the best direct rate of \
                 fio ({} probes; a disk that reads and writes at once can go below this).",
                self.sort_bytes as f64 / 1e9,
                format_args!("{:.2} GB", self.probe_bytes as f64 / 1e9),
            ),
            best_read: read.name.clone(),
            best_write: write.name.clone(),
            floor_s: seconds(figure(read, Direction::Read), figure(write, Direction::Write)),
            floor_fastest_s: seconds(fastest_read, fastest_write),
            settings: self.entries.into_iter().map(|(_, entry)| entry).collect(),
        })
    }

    /// The setting with the best median, and the fastest single run of any setting.
    fn best(&self, wanted: Direction) -> Option<(&Entry, f64)> {
        let name = format!("{}_gib_s", wanted.word());
        let entries = || self.entries.iter().filter(|(d, _)| *d == wanted).map(|(_, entry)| entry);
        let measured = entries().filter(|e| e.medians.contains_key(&name));
        let best = measured.max_by(|a, b| a.medians[&name].total_cmp(&b.medians[&name]))?;
        let rates = entries().flat_map(|e| &e.runs).filter_map(|run| run.figures.get(&name).copied());
        Some((best, rates.fold(0.0, f64::max)))
    }
}
