//! A stream with jobs in it, oldest first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::backend::Job;
use datapipes_core::{Error, Result};

use super::bell::Bell;
use crate::driver::device::Device;
use crate::driver::stream::{Event, Stream, StreamPriority};
use crate::driver::{Driver, Failure};
use crate::hbm::HbmHold;
use crate::registered::PinnedCopy;

/// A rate to begin with, in bytes per second: greater than any, so that nobody sleeps too long
/// before a copy was observed.
const FIRST_RATE: f64 = 4e12;
/// By how much a rate is corrected where a thread slept beyond the end of a copy.
const OVERSLEPT: f64 = 1.25;
/// What a copy takes beside the time for its bytes.
const LATENCY: Duration = Duration::from_micros(8);
/// The least bytes by which a rate is learned.
const LEARNED_FROM: u64 = 256 << 10;

/// The job that a copy belongs to, with its leases.
pub(super) struct OpenJob {
    pub(super) job: Job,
    /// What it holds of this process's memory, while a copy engine or the driver uses it.
    pub(super) host: Option<PinnedCopy>,
    /// What it holds of devices' memory: source and target, where they are that.
    pub(super) holds: [Option<HbmHold>; 2],
    /// Why it fails, when nothing of it is under way any more.
    pub(super) error: Option<Error>,
}

/// A mark in a lane: what ends there, and its bytes.
pub(super) struct Mark<T> {
    pub(super) event: Event,
    pub(super) bytes: u64,
    pub(super) what: T,
}

/// A stream and the marks in it.
pub(super) struct Lane<T> {
    pub(super) stream: Stream,
    bells: Stream,
    bell: Arc<Bell>,
    marks: VecDeque<Mark<T>>,
    /// When the front mark became the front.
    front_since: Instant,
    /// Whether the front mark was found to be over.
    is_front_over: bool,
    rate: f64,
}

impl<T> Lane<T> {
    pub(super) fn new(device: &'static Device, priority: StreamPriority, bell: Arc<Bell>) -> Result<Lane<T>> {
        let (stream, bells) = (Stream::new(device, priority)?, Stream::new(device, StreamPriority::High)?);
        let marks = VecDeque::new();
        Ok(Lane { stream, bells, bell, marks, front_since: Instant::now(), is_front_over: false, rate: FIRST_RATE })
    }

    /// Puts a mark behind what the stream has; gives `what` back where the driver refuses.
    pub(super) fn mark(&mut self, driver: &Driver, event: Event, bytes: u64, what: T) -> Result<(), (T, Failure)> {
        if let Err(failure) = self.stream.record(driver, &event) {
            return Err((what, failure));
        }
        if self.marks.is_empty() {
            self.front_since = Instant::now();
        }
        self.marks.push_back(Mark { event, bytes, what });
        Ok(())
    }

    /// Takes the oldest mark, if the stream has come there. `is_prompt` tells that this was asked a
    /// moment ago too, or that the driver rang; otherwise the copy may have ended long before.
    ///
    /// # Errors
    /// Those of the driver: the device is lost.
    pub(super) fn next_done(&mut self, driver: &Driver, is_prompt: bool) -> Result<Option<Mark<T>>, Failure> {
        if !self.ask(driver)? {
            return Ok(None);
        }
        self.is_front_over = false;
        let mark = self.marks.pop_front();
        if self.marks.is_empty() && mark.as_ref().is_some_and(|mark| mark.bytes < LEARNED_FROM) {
            // Nobody needs the time.
            return Ok(mark);
        }
        let now = Instant::now();
        if let Some(mark) = &mark
            && mark.bytes >= LEARNED_FROM
        {
            let took = now.duration_since(self.front_since).saturating_sub(LATENCY);
            let seen = mark.bytes as f64 / took.as_secs_f64().max(1e-6);
            self.rate = match is_prompt {
                true => self.rate.min(2.0 * seen) * 0.5 + seen * 0.5,
                false => (self.rate * OVERSLEPT).max(seen).min(FIRST_RATE),
            };
        }
        self.front_since = now;
        Ok(mark)
    }

    /// Whether the stream has come to the oldest mark.
    ///
    /// # Errors
    /// Those of the driver: the device is lost.
    pub(super) fn ask(&mut self, driver: &Driver) -> Result<bool, Failure> {
        if let Some(front) = self.marks.front()
            && !self.is_front_over
        {
            self.is_front_over = front.event.is_over(driver)?;
        }
        Ok(self.is_front_over)
    }

    /// When the oldest mark is expected to be over.
    pub(super) fn next_expected(&self) -> Option<Instant> {
        let front = self.marks.front()?;
        let time = Duration::from_secs_f64((front.bytes as f64 / self.rate).min(3600.0));
        Some(self.front_since + LATENCY + time)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether a mark is of this kind.
    pub(super) fn has(&self, is: impl Fn(&T) -> bool) -> bool {
        self.marks.iter().any(|mark| is(&mark.what))
    }

    /// Has the driver ring when the oldest mark is over.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn arm(&self, driver: &Driver) -> Result<(), Failure> {
        match self.marks.front() {
            Some(front) => self.bell.arm(driver, &self.bells, &front.event),
            None => Ok(()),
        }
    }

    /// Takes all marks, of a device that is lost.
    pub(super) fn take_all(&mut self) -> VecDeque<Mark<T>> {
        self.is_front_over = false;
        std::mem::take(&mut self.marks)
    }
}
