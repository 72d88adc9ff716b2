//! What a program can choose.

use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};

/// The options of an [`ObjectClient`](crate::ObjectClient).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObjectOptions {
    /// The most requests at once, 1 to 256. How many are made follows from the rates seen.
    pub connections: u32,
    /// Bytes of a ranged read, at least 4096; by default 8 MiB, or up to 64 MiB where the server
    /// was seen to be slow to answer and fast to send.
    pub read_bytes: Option<u64>,
    /// Bytes of a part of an upload; by default 8 MiB, or more where an object needs more than
    /// 10,000 parts of that. Servers take 5 MiB to 5 GiB.
    pub part_bytes: Option<u64>,
    /// The most bytes of parts that are put together in memory, for each object that is written. At
    /// least two parts are allowed, and two more for each writer ([`CreateOptions::writers`]).
    pub buffered_bytes: u64,
    /// How often a request that failed is made again.
    pub retries: u32,
    /// The longest pause before a request is made again. The first pause is a hundredth of it.
    pub longest_pause: Duration,
    /// A request on which no byte moves for this long has failed. A handshake of TLS may take a
    /// third of it.
    pub idle_time: Duration,
    /// An unfinished upload to the same key without progress for this long is of a process that
    /// ended: [`ObjectClient::create`](crate::ObjectClient::create) removes it.
    pub leftover_age: Duration,
    /// The most objects that a listing returns.
    pub max_listed: usize,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        ObjectOptions {
            connections: 32,
            read_bytes: None,
            part_bytes: None,
            buffered_bytes: 64 << 20,
            retries: 8,
            longest_pause: Duration::from_secs(10),
            idle_time: Duration::from_secs(30),
            leftover_age: Duration::from_secs(600),
            max_listed: 100_000,
        }
    }
}

datapipes_core::setters! {
    ObjectOptions {
        connections: u32,
        read_bytes: into Option<u64>,
        part_bytes: into Option<u64>,
        buffered_bytes: u64,
        retries: u32,
        longest_pause: Duration,
        idle_time: Duration,
        leftover_age: Duration,
        max_listed: usize,
    }
}

impl ObjectOptions {
    /// Checks that the numbers make sense.
    ///
    /// # Errors
    /// `InvalidInput` with what is wrong.
    pub fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(ErrorKind::InvalidInput, "open", why));
        if !(1..=256).contains(&self.connections) {
            return bad(format!("connections: {} is not 1 to 256", self.connections));
        }
        if let Some(read) = self.read_bytes.filter(|read| *read < 4096) {
            return bad(format!("read_bytes: {read} is less than 4096"));
        }
        if let Some(part) = self.part_bytes
            && !(MIN_PART..=MAX_PART).contains(&part)
        {
            return bad(format!("part_bytes: {part} is not 5 MiB to 5 GiB"));
        }
        if self.idle_time.is_zero() {
            return bad("idle_time: no request is done in no time".into());
        }
        Ok(())
    }
}

/// The least and the most bytes of a part, and the most parts of an upload, as S3 has them.
pub(crate) const MIN_PART: u64 = 5 << 20;
pub(crate) const MAX_PART: u64 = 5 << 30;
pub(crate) const MAX_PARTS: u64 = 10_000;

/// The options of an object that is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The length that is expected, by which the length of parts is chosen. Without it, an object
    /// ends at 10,000 parts of the usual length (78 GiB).
    pub expected_len: Option<u64>,
    /// Publishing fails where there is an object of this key by then.
    pub only_new: bool,
    /// Threads that write it at once, each in the order of offsets; 0 counts as 1. Each may have a
    /// part that fills, and one that it left to its neighbour.
    pub writers: usize,
}

datapipes_core::setters! {
    CreateOptions {
        expected_len: into Option<u64>,
        only_new: bool,
        writers: usize,
    }
}
