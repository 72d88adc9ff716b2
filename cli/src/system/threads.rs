//! Work on as many threads as can be had.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datapipes::Result;
use datapipes::locks::Mutex;
use datapipes::threads::spawn_scoped;

use crate::outcome::note;

/// Does pieces of work, each once, on as many threads, of which this is one; where the kernel
/// refuses a thread, those that there are do all, and a note says so. The results are in the order
/// of the pieces; after an error no piece is begun.
///
/// # Errors
/// The first one of the pieces, in their order.
pub(crate) fn map_on_threads<T: Send>(
    command: &str,
    pieces: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<T>)>> = Mutex::new(Vec::with_capacity(pieces));
    let work = || {
        loop {
            let piece = next.fetch_add(1, Relaxed);
            if piece >= pieces {
                return;
            }
            let result = work(piece);
            if result.is_err() {
                next.store(pieces, Relaxed);
            }
            done.lock().push((piece, result));
        }
    };
    std::thread::scope(|scope| {
        for count in 1..pieces {
            if let Err(error) = spawn_scoped(scope, command, work) {
                note(&format!("dpipe {command}: note: {count} of {pieces} threads do the work: {error}\n"));
                break;
            }
        }
        work();
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(piece, _)| *piece);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::{Error, ErrorKind};

    #[test]
    fn each_piece_is_done_once_and_in_order() {
        for pieces in [0, 1, 2, 7] {
            let squares = map_on_threads("test", pieces, |piece| Ok(piece * piece)).unwrap();
            assert_eq!(squares, (0..pieces).map(|n| n * n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_first_error_counts_and_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let outcome = map_on_threads("test", 1000, |piece| {
            begun.fetch_add(1, Relaxed);
            if piece < 2 { Err(Error::new(ErrorKind::System, "try", piece.to_string())) } else { Ok(()) }
        });
        assert_eq!(outcome.unwrap_err().context(), "0");
        assert!(begun.load(Relaxed) <= 1000);
    }
}
