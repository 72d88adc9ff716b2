//! What must arrive: the origin is read once more, and the transforms are applied to it here, block
//! by block.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::Result;

use super::origin::{Sum, Summing};
use crate::commands::stream::job::Job;
use crate::commands::stream::steps::blocks::{Applied, Blocks, recoded};
use crate::commands::stream::steps::bodies::functions;
use crate::commands::stream::steps::chain::{Step, Work};
use crate::progress::{self, State};
use crate::system::signals;

/// What was sent and what must be on disk; None where the origin cannot be read again, or a program
/// not be run again.
pub(in crate::commands::stream) fn replay(job: &Job) -> Result<Option<(Sum, Sum)>> {
    if job.steps.iter().any(|step| matches!(step.work, Work::Program(_))) {
        return Ok(None);
    }
    let (done, total) = (AtomicU64::new(0), job.origin.len());
    let state = || State { phase: "applying", done: done.load(Relaxed), total, later: 0 };
    progress::during(progress::wanted(), state, || {
        applied(job, &|bytes| {
            done.store(bytes, Relaxed);
            signals::check("stream")
        })
    })
}

fn applied(job: &Job, look: &dyn Fn(u64) -> Result<()>) -> Result<Option<(Sum, Sum)>> {
    let (sent, mut due) = (RefCell::new(Summing::default()), Summing::default());
    let Some(mut blocks) = job.origin.again(job.shapes[0].block_bytes, &sent, look)? else { return Ok(None) };
    for (step, shape) in job.steps.iter().zip(&job.shapes[1..]) {
        blocks = behind(blocks, step, shape.block_bytes)?;
    }
    let mut block = Vec::new();
    while blocks.next(&mut block)? {
        due.add(&block);
    }
    drop(blocks);
    Ok(Some((sent.into_inner().sum(), due.sum())))
}

/// The blocks behind a step.
fn behind<'a>(from: Box<dyn Blocks + 'a>, step: &Step, block_bytes: usize) -> Result<Box<dyn Blocks + 'a>> {
    Ok(match &step.work {
        Work::Function { function, arguments } => {
            let function = functions().function(function, arguments)?;
            Box::new(Applied { from, function, block_bytes, input: Vec::new() })
        }
        Work::Codec(codec) => Box::new(recoded(from, *codec, block_bytes)?),
        // Never asked for: see `replay`.
        Work::Program(_) => from,
    })
}
