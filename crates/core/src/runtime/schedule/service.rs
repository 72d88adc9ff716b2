//! What a pipe asks of the runtime, and how a resource is shared.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::backend::{check_count, check_rate};
use crate::error::{Error, ErrorKind, Result};

/// How urgent the transfers of a pipe are: `latency` before `normal` before `bulk`, above each
/// class's minimum share.
///
/// Platform-DMA paper, section 3: priorities keep a large storage transaction from blocking a
/// network operation.
///
/// ```
/// use datapipes_core::runtime::PriorityClass;
/// assert_eq!("bulk".parse::<PriorityClass>()?, PriorityClass::Bulk);
/// assert_eq!(PriorityClass::default().to_string(), "normal");
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    /// Short transfers that somebody waits for.
    Latency,
    /// Transfers without a class of their own.
    #[default]
    Normal,
    /// Large transfers that nobody waits for.
    Bulk,
}

impl PriorityClass {
    /// All classes, the most urgent first; the position of one is `class as usize`.
    pub const ALL: [PriorityClass; 3] = [PriorityClass::Latency, PriorityClass::Normal, PriorityClass::Bulk];

    /// The word for it, as [`FromStr`] takes it.
    pub const fn name(self) -> &'static str {
        match self {
            PriorityClass::Latency => "latency",
            PriorityClass::Normal => "normal",
            PriorityClass::Bulk => "bulk",
        }
    }

    /// Whether it gives way to latency flows.
    pub(super) const fn is_lower(self) -> bool {
        !matches!(self, PriorityClass::Latency)
    }
}

impl fmt::Display for PriorityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PriorityClass {
    type Err = Error;

    fn from_str(text: &str) -> Result<PriorityClass> {
        let found = PriorityClass::ALL.into_iter().find(|class| class.name() == text);
        found.ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "parse", format!("`{text}` is no class of service"))
                .with_advice("say latency, normal or bulk")
        })
    }
}

/// What a pipe asks of the runtime: a class, and optionally a rate to be promised and a rate to
/// stay below.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ServiceLevel {
    /// The class, which decides the order.
    pub class: PriorityClass,
    /// Promised while there is work, in bytes/s. Refused at connect if the resource cannot promise
    /// it.
    pub at_least: Option<f64>,
    /// Not exceeded, in bytes/s, over any window longer than the burst (10 ms, or two chunks at low
    /// rates).
    pub at_most: Option<f64>,
}

crate::setters! {
    ServiceLevel {
        class: PriorityClass,
        at_least: into Option<f64>,
        at_most: into Option<f64>,
    }
}

impl ServiceLevel {
    /// A class without rates.
    pub const fn of(class: PriorityClass) -> ServiceLevel {
        ServiceLevel { class, at_least: None, at_most: None }
    }
}

/// How a resource (a device, or those who copy memory) is shared.
///
/// Values that make no sense are put right when the scheduler takes the policy, see each field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SchedulePolicy {
    /// The most bytes one chunk has, at least 1. A multiple of 4 KiB keeps all chunks of an aligned
    /// request aligned.
    pub chunk_bytes: u64,
    /// Minimum share of each class (indexed by `class as usize`) of the bytes while it has work;
    /// the rest goes by priority. Raised to 0.01 so that no class can starve, scaled down if they
    /// sum to more than 1.
    pub shares: [f64; 3],
    /// Cap on the bytes outstanding at the resource; one chunk may always be outstanding.
    pub outstanding_bytes: u64,
    /// Cap on the chunks outstanding, at least 1.
    pub outstanding_chunks: u32,
    /// Cap on the outstanding bytes of the classes below `latency` together while a latency flow is
    /// active; one chunk of theirs may always be outstanding. It yields to promised rates and
    /// minimum shares that it would break.
    pub contended_bytes: u64,
    /// The most bytes one chunk of theirs has then, at most `chunk_bytes`.
    pub contended_chunk_bytes: u64,
    /// A latency flow is active while it has work and for this long after, in nanoseconds.
    pub active_ns: u64,
    /// What the resource delivers in bytes/s, if known. Only what is known can be promised.
    pub rate: Option<f64>,
}

crate::setters! {
    SchedulePolicy {
        chunk_bytes: u64,
        shares: [f64; 3],
        outstanding_bytes: u64,
        outstanding_chunks: u32,
        contended_bytes: u64,
        contended_chunk_bytes: u64,
        active_ns: u64,
        rate: into Option<f64>,
    }
}

impl SchedulePolicy {
    /// How a runtime shares the cores' copies between memories if nothing else is said.
    pub const fn for_memory() -> SchedulePolicy {
        SchedulePolicy {
            // Asking before each 64 KiB costs a copy 11% of its rate, so that is for when
            // somebody is in a hurry.
            chunk_bytes: 256 << 10,
            shares: [0.5, 0.2, 0.1],
            outstanding_bytes: u64::MAX,
            outstanding_chunks: u32::MAX,
            contended_bytes: u64::MAX,
            contended_chunk_bytes: 64 << 10,
            active_ns: 10_000_000,
            rate: None,
        }
    }

    /// How a runtime shares a device if nothing else is said.
    pub const fn for_device() -> SchedulePolicy {
        SchedulePolicy {
            chunk_bytes: 4 << 20,
            shares: [0.5, 0.2, 0.1],
            outstanding_bytes: 64 << 20,
            outstanding_chunks: 4096,
            contended_bytes: 768 << 10,
            contended_chunk_bytes: 256 << 10,
            active_ns: 10_000_000,
            rate: None,
        }
    }

    /// Whether the numbers make sense. What is merely more than can be kept is put right, see each
    /// field.
    ///
    /// # Errors
    /// `InvalidInput` for chunks of nothing, for shares and rates that are no numbers, and for
    /// those below zero.
    pub fn check(&self) -> Result<()> {
        check_count("chunk_bytes", Some(self.chunk_bytes))?;
        check_count("contended_chunk_bytes", Some(self.contended_chunk_bytes))?;
        check_count("outstanding_chunks", Some(u64::from(self.outstanding_chunks)))?;
        if let Some(share) = self.shares.iter().find(|share| !share.is_finite() || **share < 0.0) {
            return Err(Error::new(ErrorKind::InvalidInput, "start", format!("shares: {share} is no share"))
                .with_advice("give numbers from 0 to 1"));
        }
        self.rate.map_or(Ok(()), |rate| check_rate("rate", rate))
    }

    /// The policy as it can be kept.
    pub(super) fn normalized(mut self) -> SchedulePolicy {
        self.chunk_bytes = self.chunk_bytes.max(1);
        self.contended_chunk_bytes = self.contended_chunk_bytes.clamp(1, self.chunk_bytes);
        self.outstanding_chunks = self.outstanding_chunks.max(1);
        let possible = |share: f64| if share.is_nan() { MIN_SHARE } else { share.clamp(MIN_SHARE, 1.0) };
        self.shares = self.shares.map(possible);
        let sum: f64 = self.shares.iter().sum();
        if sum > 1.0 {
            self.shares = self.shares.map(|share| share / sum);
        }
        self.rate = self.rate.filter(|rate| rate.is_finite() && *rate > 0.0);
        self
    }

    /// What the minimum shares leave: the part of the rate that can be promised to flows.
    pub(super) fn promisable(&self) -> f64 {
        (1.0 - self.shares.iter().sum::<f64>()).max(0.0)
    }
}

/// Every class gets this much, so that none starves by a policy.
const MIN_SHARE: f64 = 0.01;
