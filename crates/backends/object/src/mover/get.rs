//! From an object: ranges, in parallel, each written to memory as it comes.

use std::sync::Arc;
use std::time::Instant;

use datapipes_core::{Error, ErrorKind, Result};
use futures_util::stream::{StreamExt, iter};
use object_store::GetResultPayload;

use super::leased::LeasedJob;
use super::settings::RequestSettings;
use crate::place::{ObjectPlace, Pinned, Side};
use crate::server::failure::{failed, status};

/// Reads a job's span.
pub(super) async fn carry_out(place: Arc<ObjectPlace>, job: Arc<LeasedJob>, settings: RequestSettings) {
    let Side::Source(pinned) = &place.side else { return };
    let len = job.span().len;
    let client = &place.client;
    let step = settings.read_bytes.unwrap_or_else(|| client.read_costs.piece_of(len, client.reads.level())).max(1);
    let pieces = (0..len.div_ceil(step)).map(|n| n * step);
    iter(pieces)
        .for_each_concurrent(settings.depth, |at| {
            let (place, job) = (&place, &job);
            async move {
                if job.has_failed() {
                    return;
                }
                let ranged = range(place, pinned, job, at, step.min(len - at));
                if let Err(error) = place.client.unless_stopped("read", ranged).await {
                    job.fail(error);
                }
            }
        })
        .await;
}

/// Reads the `len` bytes at `at` of the job's span. After a passing failure, it goes on where it
/// was.
async fn range(place: &ObjectPlace, pinned: &Pinned, job: &LeasedJob, at: u64, len: u64) -> Result<()> {
    let begin = job.span().source + at;
    let mut attempts = place.client.attempts();
    let mut sum = pinned.digest();
    let mut done = 0;
    while done < len {
        let mut turn = place.client.reads.enter().await;
        job.completions().asked();
        let (before, outcome) = (done, part(place, pinned, job, (at, len), &mut done, &mut sum).await);
        job.completions().answered();
        turn.moved(done - before);
        drop(turn);
        let pause = match outcome {
            Ok(()) if done == len => break,
            Ok(()) => {
                job.completions().short();
                attempts.next_pause().ok_or_else(|| {
                    let why = format!("{}: the answers end {} bytes early, again and again", place.name, len - done);
                    Error::new(ErrorKind::Device, "read", why)
                })
            }
            Err(Unread::Final(error)) => Err(error),
            Err(Unread::Store(error)) => attempts.after(&error).ok_or_else(|| match status(&error) {
                Some(412) => crate::place::changed(&place.name),
                _ => failed("read", &place.name, &error, &place.store.secrets),
            }),
        };
        match pause {
            Ok(pause) => {
                job.completions().again();
                place.store.exchange.again();
                tokio::time::sleep(pause).await;
            }
            Err(error) => {
                job.moved(at, done);
                return Err(error.with_offset(begin + done));
            }
        }
    }
    job.moved(at, len);
    match sum {
        Some(sum) => pinned.note_sum(begin, len, sum.finalize(), &place.name).map_err(|e| e.with_offset(begin)),
        None => Ok(()),
    }
}

/// Why a range did not come.
enum Unread {
    Store(object_store::Error),
    Final(Error),
}

/// Makes one request for what is left of a range, and writes what comes.
async fn part(
    place: &ObjectPlace,
    pinned: &Pinned,
    job: &LeasedJob,
    (at, len): (u64, u64),
    done: &mut u64,
    sum: &mut Option<crc_fast::Digest>,
) -> std::result::Result<(), Unread> {
    let begin = job.span().source + at;
    let range = begin + *done..begin + len;
    let asked = Instant::now();
    let answer = place.store.objects.get_opts(&place.store.path, pinned.request(range)).await.map_err(Unread::Store)?;
    let (answered, before) = (Instant::now(), *done);
    place.client.read_costs.waited(answered - asked);
    pinned.check(&answer.meta, &place.name).map_err(Unread::Final)?;
    let GetResultPayload::Stream(mut stream) = answer.payload;
    while let Some(bytes) = stream.next().await {
        let bytes = bytes.map_err(Unread::Store)?;
        let after = *done + bytes.len() as u64;
        if after > len {
            let why = format!("{}: the server sends more than was asked for", place.name);
            return Err(Unread::Final(Error::new(ErrorKind::Corrupt, "read", why)));
        }
        job.put(at + *done, &bytes).map_err(Unread::Final)?;
        if let Some(sum) = sum {
            sum.update(&bytes);
        }
        *done = after;
    }
    place.client.read_costs.carried(*done - before, answered.elapsed());
    Ok(())
}
