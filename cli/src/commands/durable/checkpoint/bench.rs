//! `dpipe checkpoint bench`: how fast memory becomes durable here, and comes back.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::locks::Mutex;
use datapipes::metrics::CourseColumn;
use datapipes::{Dram, Error, ErrorKind, Result};
use datapipes_durable::checkpoint::{CheckpointProgress, Checkpoints, SaveOptions, SavedCheckpoint};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, Tone};
use serde::Serialize;

use super::shown::{CheckpointPhase, shown, watched};
use crate::arguments::ending::Ending;
use crate::arguments::units::{parse_count, parse_size};
use crate::metrics_file::CommandMetrics;
use crate::outcome::{CommandStatus, print, print_json};
use crate::progress::{self, State};
use crate::report::bottleneck::{Share, headline, percent};
use crate::report::held_up::{self, HeldUp};
use crate::report::options::{PageFile, ReportArgs};
use crate::report::parts;
use crate::report::recorder::{Recording, record};
use crate::system::files::{WorkFolder, is_in_memory};
use crate::system::side_files::SideFile;
use crate::system::signals::{self, WaitsFor};
use crate::{arguments::units, system::child};

const ENDING: Ending = Ending {
    notes: "",

    zero: "the measurement is shown",
    one: Some("the restored bytes are not the saved ones"),
    examples: &["dpipe checkpoint bench --size 16M --dir .", "dpipe checkpoint bench --size 16M --regions 2 --json"],
};

/// Measures how fast memory becomes durable here, and is restored. The checkpoint is removed
/// afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Folder on the disk to measure [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Bytes of all regions together
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Number of regions
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = parse_count::<u64>)]
    regions: u64,
    #[command(flatten)]
    pub(super) report_page: ReportArgs,
    /// Print JSON: saved, save_bytes_per_second, save_cpu_seconds, restore_seconds,
    /// restore_bytes_per_second, restore_cpu_seconds, same
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    saved: SavedCheckpoint,
    /// Bytes by the time until they were durable under a name.
    save_bytes_per_second: f64,
    save_cpu_seconds: f64,
    restore_seconds: f64,
    /// Into memory that is there, checked.
    restore_bytes_per_second: f64,
    restore_cpu_seconds: f64,
    /// Whether the restored bytes are equal to the saved ones.
    same: bool,
}

pub(crate) fn run(args: &Args, metrics: &CommandMetrics<'_>, side_file: Option<SideFile>) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    signals::undo_says("the checkpoint of the measurement was removed");
    let machine = datapipes::discover();
    let page_file = PageFile::open(side_file)?;
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let len = usize::try_from(args.size / args.regions.max(1)).unwrap_or(usize::MAX);
    if len == 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "checkpoint", "regions of no bytes")
            .with_advice("give a larger --size"));
    }
    let names: Vec<String> = (0..args.regions.max(1)).map(|n| format!("region-{n}")).collect();
    let regions: Vec<Dram> = names.iter().map(|_| Dram::allocate(len)).collect::<Result<_>>()?;
    let targets: Vec<Dram> = names.iter().map(|_| Dram::allocate(len)).collect::<Result<_>>()?;
    fill_all(&regions)?;
    let place = WorkFolder::under(&parent, "dpipe-checkpoint-bench", false)?;
    let store = Checkpoints::at(&machine, place.path());
    let named =
        |memory: &'_ [Dram]| -> Vec<(String, Dram)> { names.iter().cloned().zip(memory.iter().cloned()).collect() };
    let (sources, into) = (named(&regions), named(&targets));
    let moved = Mutex::new([0.0; 2]);
    let noting = |column: usize, watch: Watch<'_>, p: CheckpointProgress| {
        moved.lock()[column] = p.done as f64;
        watch(p)
    };
    let work = || -> Result<(SavedCheckpoint, [f64; 3])> {
        let cpu = child::own_cpu_seconds();
        let saved = watched(CheckpointPhase { later: args.size, ..CheckpointPhase::SAVING }, |watch| {
            store.save(&borrowed(&sources), &SaveOptions::default(), &mut |p| noting(SAVED, watch, p))
        })?;
        let save_cpu_seconds = child::own_cpu_seconds() - cpu;
        let (since, cpu) = (Instant::now(), child::own_cpu_seconds());
        watched(CheckpointPhase::RESTORING, |watch| {
            store.open(saved.number)?.restore_into(&borrowed(&into), &mut |p| noting(RESTORED, watch, p))
        })?;
        let restore_cpu_seconds = child::own_cpu_seconds() - cpu;
        Ok((saved, [save_cpu_seconds, since.elapsed().as_secs_f64(), restore_cpu_seconds]))
    };
    let columns = page_file.is_some().then(|| vec![CourseColumn::Sum; 2]);
    let (done, recording) = record(columns, || moved.lock().to_vec(), work);
    let (saved, [save_cpu_seconds, restore_seconds, restore_cpu_seconds]) = done?;
    metrics.keep(saved.samples());
    let mut same = true;
    for (one, other) in regions.iter().zip(&targets) {
        same &= one.lease()?[..] == other.lease()?[..];
    }
    let bytes = saved.bytes as f64;
    let outcome = Outcome {
        save_bytes_per_second: bytes / (saved.write_seconds + saved.publish_seconds),
        save_cpu_seconds,
        restore_seconds,
        restore_bytes_per_second: bytes / restore_seconds,
        restore_cpu_seconds,
        same,
        saved,
    };
    if args.json {
        print_json(&outcome)?;
    } else {
        let o = &outcome;
        print(&format!(
            "{}computing checksums took {:.3} s of it, while the disk worked; {save_cpu_seconds:.3} s of processor time in all\n\
             restored and checked in {restore_seconds:.3} s ({}), {restore_cpu_seconds:.3} s of processor time; {}\n",
            shown(&o.saved),
            o.saved.checksum_seconds,
            units::rate(o.saved.bytes, restore_seconds),
            if same { "the same bytes" } else { "NOT THE SAME BYTES" }
        ))?;
    }
    if let (Some(file), Some(recording)) = (page_file, &recording) {
        file.write(&page(&outcome, recording, is_in_memory(&parent)))?;
    }
    Ok(if same { CommandStatus::Good } else { CommandStatus::Bad })
}

/// The function that is told how far a checkpoint is.
type Watch<'a> = &'a mut dyn FnMut(CheckpointProgress) -> ControlFlow<()>;

const SAVED: usize = 0;
const RESTORED: usize = 1;

fn borrowed(regions: &[(String, Dram)]) -> Vec<(&str, &Dram)> {
    regions.iter().map(|(name, memory)| (name.as_str(), memory)).collect()
}

/// The page about a measurement: `--report-html`.
fn page(o: &Outcome, recording: &Recording, in_memory: bool) -> HtmlPage {
    let mut page = parts::page("A checkpoint, saved and restored");
    let saving = o.saved.write_seconds + o.saved.publish_seconds;
    // A file system in memory has no disk, and nothing in it is durable.
    let (writes, durable) = match in_memory {
        true => ("copies of the checkpoint to a file system in memory", "written"),
        false => ("the disk's writes of the checkpoint", "durable"),
    };
    let steps = [
        Share::new(writes, o.saved.write_seconds / saving.max(1e-9)),
        Share::new("the sync and the name", o.saved.publish_seconds / saving.max(1e-9)),
    ];
    let shares = HeldUp::of(recording, 1.0, 0.0, saving).take_off(steps);
    let saved = format!(
        "{} were {durable} in {saving:.2} s ({}).",
        units::bytes(o.saved.bytes),
        units::rate(o.saved.bytes, saving)
    );
    // Two jobs, one after the other: each has a sentence of its own.
    page.headline = headline(&saved, &shares);
    let end = recording.seconds();
    let reads = [Share::new("reads of the checkpoint and their checksums, which overlap", 1.0)];
    let restore = HeldUp::of(recording, 1.0, (end - o.restore_seconds).max(0.0), end).take_off(reads);
    let restored: Vec<String> = restore.iter().map(|share| format!("{} {}", share.what, percent(share.part))).collect();
    page.headline.text += &format!(
        " They were restored in {:.2} s ({}): {}.",
        o.restore_seconds,
        units::rate(o.saved.bytes, o.restore_seconds),
        restored.join(", ")
    );
    let verdict =
        if o.same { "The restored bytes are the saved ones." } else { "The restored bytes are NOT the saved ones." };
    page.headline.text = format!("{verdict} {}", page.headline.text);
    page.headline.tone = if o.same { Tone::Good } else { Tone::Bad };
    parts::say_fallback(&mut page, &o.saved.route);
    page.facts = [
        ("bytes", units::bytes(o.saved.bytes)),
        ("written in", format!("{:.3} s", o.saved.write_seconds)),
        ("synced and named in", format!("{:.3} s", o.saved.publish_seconds)),
        ("checksums, meanwhile", format!("{:.3} s", o.saved.checksum_seconds)),
        ("restored in", format!("{:.3} s", o.restore_seconds)),
        ("processor time", format!("{:.2} + {:.2} s", o.save_cpu_seconds, o.restore_cpu_seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let columns = [(SAVED, "saved"), (RESTORED, "restored")];
    page.sections.push(PageSection {
        title: "Where the time went".into(),
        note: held_up::NOTE.into(),
        blocks: vec![
            parts::shares("Shares of the time of the save", &shares),
            parts::shares("Shares of the time of the restore", &restore),
            parts::rates(recording, "Bytes a second", &columns, &[(saving, "the restore".to_owned())]),
        ],
        ..PageSection::default()
    });
    let text = format!("The restored {} bytes were compared with the saved ones, byte by byte.", o.saved.bytes);
    let blocks = vec![PageBlock::Checks(vec![PageCheck { text, holds: Some(o.same) }])];
    page.sections.push(PageSection { title: "What was verified".into(), blocks, ..PageSection::default() });
    page.sections.push(parts::process(recording, None));
    page.sections.push(parts::primitives(&parts::movements("the save", &o.saved.movements)));
    page.sections
        .extend(o.saved.route.iter().map(|route| parts::routes(&[("the save".to_owned(), Ok(route.clone()))])));
    page.sections.push(parts::printed(&shown(&o.saved)));
    page
}

/// Gives the regions bytes that no layer below can compress or share. It shows how far it is, and
/// ends early if a signal comes.
fn fill_all(regions: &[Dram]) -> Result<()> {
    let total = regions.iter().map(|region| region.len() as u64).sum();
    let done = AtomicU64::new(0);
    let state = || State { phase: "making bytes", done: done.load(Relaxed), total, later: 0 };
    progress::during(progress::wanted(), state, || {
        for (nth, region) in regions.iter().enumerate() {
            let mut state = 0x2545_F491_4F6C_DD1D ^ (nth as u64 + 1);
            for piece in region.lease_mut()?.chunks_mut(1 << 20) {
                signals::check("checkpoint")?;
                fill(&mut state, piece);
                done.fetch_add(piece.len() as u64, Relaxed);
            }
        }
        Ok(())
    })
}

fn fill(state: &mut u64, bytes: &mut [u8]) {
    for word in bytes.chunks_mut(8) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}
