//! To an object: whole parts from where they are, others through buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use datapipes_core::Result;
use futures_util::stream::{StreamExt, iter};

use super::leased::LeasedJob;
use super::settings::RequestSettings;
use crate::place::{Admission, ObjectPlace, PartBuffer, PartState, Upload};

/// A job that writes an object, which is not published meanwhile.
pub(super) struct Writing(Arc<Upload>);

impl Writing {
    pub(super) fn begin(upload: &Arc<Upload>) -> Writing {
        upload.active.fetch_add(1, SeqCst);
        Writing(upload.clone())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, SeqCst);
    }
}

/// Writes a job's span.
pub(super) async fn carry_out(
    place: Arc<ObjectPlace>,
    writing: Writing,
    job: Arc<LeasedJob>,
    settings: RequestSettings,
) {
    let (span, part_bytes) = (job.span(), writing.0.parts.lock().part_bytes);
    // Where the pieces end: at the ends of parts, and of the span.
    let first = span.target / part_bytes;
    let last = (span.target + span.len).div_ceil(part_bytes);
    let pieces = (first..last).map(|part| {
        let begin = (part * part_bytes).max(span.target);
        let end = ((part + 1) * part_bytes).min(span.target + span.len);
        PieceOfPart { part, within: begin - part * part_bytes, at: begin - span.target, len: end - begin }
    });
    iter(pieces.filter(|piece| piece.len > 0))
        .for_each_concurrent(settings.depth, |piece| {
            let (place, upload, job) = (&place, &writing.0, &job);
            async move {
                if job.has_failed() {
                    return;
                }
                match write(place, upload, job, &piece).await {
                    Ok(()) => job.moved(piece.at, piece.len),
                    Err(error) => job.fail(error.with_offset(span.target + piece.at)),
                }
            }
        })
        .await;
    // A caller that hears of the job may publish or drop the object at once. Neither the job nor
    // its hold on the object counts any more by then.
    drop(writing);
    drop(place);
    drop(job);
}

/// What a job has of one part.
struct PieceOfPart {
    part: u64,
    /// Where it begins in the part.
    within: u64,
    /// Where it begins in the job's span.
    at: u64,
    len: u64,
}

/// What became of a piece.
enum Step {
    /// It is the whole part, to be sent from where it is.
    Send,
    /// It is in the part's buffer, which is returned where it is whole now.
    Filled(Option<PartBuffer>),
    /// No buffer is free.
    Wait,
}

async fn write(
    place: &Arc<ObjectPlace>,
    upload: &Arc<Upload>,
    job: &Arc<LeasedJob>,
    piece: &PieceOfPart,
) -> Result<()> {
    let number = u32::try_from(piece.part).unwrap_or(u32::MAX);
    loop {
        let arrived = upload.changed.notified();
        let mut arrived = std::pin::pin!(arrived);
        // From here on no notice is missed.
        arrived.as_mut().enable();
        match step(place, upload, job, number, piece)? {
            Step::Send => return send(place, upload, job, number, piece).await,
            Step::Filled(whole) => {
                job.completions().asked();
                job.completions().bounced(piece.len);
                job.completions().answered();
                if let Some(buffer) = whole {
                    place.send_later(upload, number, buffer);
                }
                return Ok(());
            }
            Step::Wait => arrived.await,
        }
    }
}

/// Decides on a piece, and copies it where it goes into a buffer.
fn step(place: &ObjectPlace, upload: &Upload, job: &LeasedJob, number: u32, piece: &PieceOfPart) -> Result<Step> {
    let mut parts = upload.parts.lock();
    let admission = parts.admit(number, piece.len, job.is_private(), &place.name)?;
    if matches!(admission, Admission::Fill)
        && let Some(PartState::Filling(buffer)) = parts.states.get(&number)
    {
        let at = usize::try_from(piece.within).unwrap_or(usize::MAX);
        let len = usize::try_from(piece.len).unwrap_or(usize::MAX);
        job.copy_to(piece.at, piece.len, buffer.memory.range(at, len)?.memory())?;
    }
    if !matches!(admission, Admission::Wait) {
        parts.end = parts.end.max(job.span().target + piece.at + piece.len);
    }
    Ok(match admission {
        Admission::Send => Step::Send,
        Admission::Fill => Step::Filled(parts.filled(number, piece.within, piece.len)),
        Admission::Wait => Step::Wait,
    })
}

/// Sends a part from where it is.
async fn send(
    place: &ObjectPlace,
    upload: &Arc<Upload>,
    job: &Arc<LeasedJob>,
    number: u32,
    piece: &PieceOfPart,
) -> Result<()> {
    job.completions().asked();
    let sent = match job.bytes(piece.at, piece.len) {
        Ok(bytes) => place.send_part(upload, number, bytes).await,
        Err(error) => Err(error),
    };
    job.completions().answered();
    let mut parts = upload.parts.lock();
    match sent {
        Ok(id) => {
            parts.states.insert(number, PartState::Stored { id, len: piece.len });
            Ok(())
        }
        Err(error) => {
            // The bytes are still with the caller, who may write them again.
            parts.states.remove(&number);
            Err(error)
        }
    }
}
