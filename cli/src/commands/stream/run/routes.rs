//! The ways of a stream's bytes on its page: from device to device, what moved them, what was not
//! chosen, and why.

use datapipes_fabric::placement::Placement;
use datapipes_picture::page::{BarList, PageBlock, PageSection, PageTable};

use super::one::Run;
use crate::arguments::units;
use crate::commands::stream::ends::origin::Origin;
use crate::commands::stream::job::{Job, Target};
use crate::commands::stream::steps::trust::TrustLevel;

/// A movement: its name, the primitive, why this one; and the bytes.
struct Movement {
    name: String,
    primitive: &'static str,
    why: &'static str,
    bytes: u64,
}

/// A way that was not taken: of which movement, the way, and why.
type Rejection = (&'static str, &'static str, String);

/// `ran` are the placements of all runs on the page.
pub(super) fn section(job: &Job, run: &Run, names: &[String], ran: &[Placement]) -> PageSection {
    let movements = movements(job, run, names);
    let bars = movements.iter().map(|movement| {
        let name = format!("{}: {}", movement.name, movement.primitive);
        (name, movement.bytes as f64, units::bytes(movement.bytes))
    });
    let chosen = movements.iter().map(|m| vec![m.name.clone(), m.primitive.to_owned(), m.why.to_owned()]);
    let placement = vec!["the protocol".to_owned(), run.placement.name().to_owned(), placement_why(run)];
    let rejected =
        rejected(job, run, ran).into_iter().map(|(movement, way, why)| vec![movement.to_owned(), way.to_owned(), why]);
    let table = |caption: &str, columns: [&str; 3], rows: Vec<Vec<String>>| {
        PageBlock::Table(PageTable {
            caption: caption.to_owned(),
            columns: columns.map(str::to_owned).into(),
            rows,
            numbers: 0,
        })
    };
    PageSection {
        title: "Bytes by primitive, and routes".into(),
        blocks: vec![
            PageBlock::Bars(BarList { caption: "Bytes by primitive".into(), bars: bars.collect(), top: None }),
            table(
                "What was chosen, and why",
                ["movement", "primitive", "because"],
                chosen.chain([placement]).collect(),
            ),
            table("What was not chosen, and why", ["movement", "way", "because"], rejected.collect()),
        ],
        ..PageSection::default()
    }
}

fn movements(job: &Job, run: &Run, names: &[String]) -> Vec<Movement> {
    let (primitive, why) = match &job.origin {
        Origin::File(_) => ("pread", "the source reads into the next block of its channel"),
        Origin::Generate(_) | Origin::Tcp(_) => ("recv", "the source takes bytes from a connection"),
        Origin::Input => ("read", "the source takes bytes from a stream"),
    };
    let arrived = run.edges.first().map_or(0, |edge| edge.bytes);
    let mut movements = vec![Movement { name: "into the source".into(), primitive, why, bytes: arrived }];
    let (primitive, why) = match job.trust {
        TrustLevel::Copy => {
            ("copy from shared memory", "the sender is not trusted to leave a block alone, so the receiver copies it")
        }
        TrustLevel::InPlace => {
            ("shared memory, in place", "--trust=in-place: the receiver works on the sender's block")
        }
        TrustLevel::InPlaceChecked => {
            ("shared memory, in place", "--trust=in-place-checked: and a CRC-32 afterwards finds a change")
        }
    };
    movements.extend(run.edges.iter().zip(names).map(|(edge, name)| Movement {
        name: name.clone(),
        primitive,
        why,
        bytes: edge.bytes,
    }));
    let (primitive, why) = match job.to {
        Target::File(_) => ("pwrite, then fdatasync", "the sink's answer to the last block says that all is durable"),
        Target::Output => ("write", "the standard output"),
    };
    movements.push(Movement {
        name: "out of the sink".into(),
        primitive,
        why,
        bytes: run.edges.last().map_or(0, |e| e.bytes),
    });
    movements
}

fn placement_why(run: &Run) -> String {
    match &run.choice {
        Some(_) => "it was estimated to be the best here".to_owned(),
        None => "it was asked for, or is the default".to_owned(),
    }
}

fn rejected(job: &Job, run: &Run, ran: &[Placement]) -> Vec<Rejection> {
    let mut rejected: Vec<Rejection> = Vec::new();
    let cached = "blocks are handed on as they come, and their memory belongs to the channel: through the page cache";
    if matches!(job.origin, Origin::File(_)) {
        rejected.push(("into the source", "past the page cache, by io_uring", cached.to_owned()));
    }
    if job.trust == TrustLevel::Copy {
        let why = "it was not asked for (--trust=in-place): a sender could change a block that was checked";
        rejected.push(("each channel", "shared memory, in place", why.to_owned()));
    }
    if matches!(job.to, Target::File(_)) {
        rejected.push(("out of the sink", "past the page cache, by io_uring", cached.to_owned()));
    }
    for placement in Placement::ALL.into_iter().filter(|placement| *placement != run.placement) {
        let estimate =
            run.choice.as_ref().and_then(|choice| choice.estimates.iter().find(|e| e.placement == placement));
        let why = match estimate {
            Some(e) => format!(
                "{} hops on the longest path: about {:.1} us a block, one every {:.1} us",
                e.longest,
                e.latency_ns / 1e3,
                e.period_ns / 1e3
            ),
            None if ran.contains(&placement) => {
                "it was asked for as well, and ran: it has sections of its own".to_owned()
            }
            None => "it was not asked for; --placement=auto estimates all three".to_owned(),
        };
        rejected.push(("the protocol", placement.name(), why));
    }
    rejected
}
