//! The channels of a body: inlets, outlets, the controller.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_metrics::Histogram;

use super::arguments::DeviceArguments;
use super::progress::{ProgressSink, StreamProgress, StreamStage};
use super::role::{Spread, StreamReport};
use crate::channel::{Head, Patience, Reply};
use crate::control::party::client::ControllerClient;
use crate::transport::{Block, Receiver, Sender, receive_any};

/// The work that runs in a device.
pub trait Body {
    /// Works until its channels end. An error is reported to the application, unless it is the
    /// orderly end of a channel.
    ///
    /// # Errors
    /// The error that ended the work.
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()>;
}

/// Makes a body from its arguments and the given descriptors.
///
/// It runs before the lock-down, with the rights of the controller. Threads and processes that it
/// starts must have ended when it returns. Otherwise the device is ended, with an error that says
/// so. [`Body::run`] may start threads.
pub type MakeBody = Arc<dyn Fn(&DeviceArguments, Vec<OwnedFd>) -> Result<Box<dyn Body>> + Send + Sync>;

/// How long a device waits before it tells so for the first time. It then waits twice as long each
/// time, so what it told last is never older than the wait itself.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(20);
/// The longest time between two tellings of one wait.
pub(super) const MAX_WAIT: Duration = Duration::from_millis(100);

/// The channels of a device while it works.
pub struct DeviceChannels<'a> {
    /// The channels that blocks come from. None where the sender has closed.
    pub inlets: Vec<Option<Receiver>>,
    /// The channels that blocks go to. Calls wait until their channels end, unless a body sets
    /// another patience: see [`Patience::UNTIL_ENDED`].
    pub outlets: Vec<Sender>,
    /// The connection to the controller.
    pub attendant: &'a mut ControllerClient,
    last: usize,
    next_out: usize,
    /// The report on the present stream so far.
    pub so_far: StreamReport,
    /// Receives the progress of the stream, if there is a sink.
    pub(super) meter: Option<Box<dyn ProgressSink>>,
    /// Ends of streams without a reply yet.
    ends: Vec<Block>,
    /// Whether it waits for a block.
    is_idle: bool,
}

impl<'a> DeviceChannels<'a> {
    pub(crate) fn new(
        inlets: Vec<Option<Receiver>>,
        outlets: Vec<Sender>,
        attendant: &'a mut ControllerClient,
    ) -> DeviceChannels<'a> {
        let outlets = outlets.into_iter().map(|o| o.with_patience(Patience::UNTIL_ENDED)).collect();
        let so_far = StreamReport::default();
        let (last, next_out, ends, is_idle) = (0, 0, Vec::new(), false);
        DeviceChannels { inlets, outlets, attendant, last, next_out, so_far, meter: None, ends, is_idle }
    }

    /// Returns the next block of any inlet, however long it takes. Returns None when all senders
    /// have closed.
    ///
    /// # Errors
    /// Any error that ended a channel.
    pub fn receive(&mut self) -> Result<Option<Block>> {
        let mut wait = FIRST_WAIT;
        loop {
            let patience = if self.meter.is_some() { Patience::up_to(wait) } else { Patience::UNTIL_ENDED };
            let next = match self.next_of_any(patience) {
                // No block came on any of several inlets.
                Err(e) if is_over(&e) && self.meter.is_some() => Some((0, Err(e))),
                next => next?,
            };
            match next {
                None => return Ok(None),
                Some((_, Err(e))) if is_over(&e) && self.meter.is_some() => {
                    self.is_idle = true;
                    let told = self.tell_wait();
                    self.is_idle = false;
                    told?;
                    wait = (wait * 2).min(MAX_WAIT);
                }
                Some((at, Ok(block))) => {
                    self.last = at;
                    self.so_far.blocks_in += u64::from(!block.is_empty());
                    self.so_far.bytes_in += block.len() as u64;
                    return Ok(Some(block));
                }
                Some((at, Err(e))) if e.kind() == ErrorKind::EndOfFile => self.inlets[at] = None,
                Some((_, Err(e))) => return Err(e),
            }
        }
    }

    /// Returns the index of an inlet with its next block, or the error that ended it. Returns None
    /// when none is left.
    fn next_of_any(&mut self, patience: Patience) -> Result<Option<(usize, Result<Block>)>> {
        let mut open = self.inlets.iter_mut().enumerate().filter_map(|(at, inlet)| Some((at, inlet.as_mut()?)));
        match (open.next(), open.next()) {
            (None, _) => Ok(None),
            // A single inlet is awaited in the fastest way for one.
            (Some((at, only)), None) => {
                only.set_patience(patience);
                Ok(Some((at, only.receive())))
            }
            _ => receive_any(&mut self.inlets, self.last, patience).map(Some),
        }
    }

    /// Sends what `fill` writes into the memory of the next receiver. `fill` returns the number of
    /// bytes.
    ///
    /// # Errors
    /// `InvalidInput` where there is no outlet, the error of `fill`, and any error that ended a
    /// channel.
    pub fn send(&mut self, spread: Spread, head: Head, fill: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
        self.send_if(spread, head, fill, |_| true)
    }

    /// As [`send`](Self::send), if what was filled in is to be sent.
    pub(super) fn send_if(
        &mut self,
        spread: Spread,
        head: Head,
        mut fill: impl FnMut(&mut [u8]) -> Result<usize>,
        is_sent: impl Fn(usize) -> bool,
    ) -> Result<()> {
        if self.outlets.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "send", "the device has no outlet"));
        }
        let count = if spread == Spread::All { self.outlets.len() } else { 1 };
        let mut first: Option<Vec<u8>> = None;
        for _ in 0..count {
            let at = self.next_out % self.outlets.len();
            self.next_out = at + 1;
            if self.meter.is_some() {
                self.outlets[at].poll()?;
                if self.outlets[at].outstanding() >= self.outlets[at].shape().credits {
                    // All credits are in use until there is one.
                    self.note(StreamStage::Waiting)?;
                }
            }
            let mut grant = self.outlets[at].grant()?;
            // The function is called once, and its result goes to all.
            let len = match &first {
                None => fill(grant.bytes())?,
                Some(bytes) if bytes.len() <= grant.bytes().len() => {
                    grant.bytes()[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
                Some(bytes) => {
                    let context = format!("{} bytes to several receivers, one of which takes less", bytes.len());
                    return Err(Error::new(ErrorKind::OutOfRange, "send", context));
                }
            };
            if !is_sent(len) {
                return Ok(());
            }
            if count > 1 && first.is_none() {
                first = Some(grant.bytes()[..len].to_vec());
            }
            grant.send(len, head)?;
            self.so_far.blocks_out += u64::from(len > 0);
            self.so_far.bytes_out += len as u64;
            self.note(StreamStage::Sending)?;
        }
        Ok(())
    }

    /// Notes the end of a stream on one inlet. When the streams of all inlets have ended, it ends
    /// the downstream streams, waits until everything there is done, replies upstream and reports.
    ///
    /// # Errors
    /// Any error that ended a channel, and the first failure that a reply reported.
    pub fn end(&mut self, block: Block, word: Option<u64>, crc: Option<u32>) -> Result<bool> {
        let words = block.head().words;
        self.ends.push(block);
        if self.ends.len() < self.inlets.iter().flatten().count() {
            return Ok(false);
        }
        let downstream = self.finish(words)?;
        let reply = Reply { word: word.unwrap_or(downstream.word), ..downstream };
        for end in self.ends.drain(..) {
            end.reply(reply)?;
        }
        let report = StreamReport { crc, ..std::mem::take(&mut self.so_far) };
        self.attendant.report(report)?;
        Ok(true)
    }

    /// Ends the downstream streams, and waits until everything there is done.
    ///
    /// # Errors
    /// Any error that ended a channel, and the first failure that a reply reported.
    pub fn finish(&mut self, words: [u64; 4]) -> Result<Reply> {
        self.note(StreamStage::Ending)?;
        for outlet in &mut self.outlets {
            outlet.send(&[], Head { words, end: true })?;
        }
        let mut last = Reply::DONE;
        for at in 0..self.outlets.len() {
            last = self.drain(at)?;
        }
        self.note(StreamStage::Ended)?;
        Ok(last)
    }

    /// Waits until an outlet has all replies, and tells meanwhile how many it has not.
    fn drain(&mut self, at: usize) -> Result<Reply> {
        let patience = self.outlets[at].patience();
        if self.meter.is_none() || patience != Patience::UNTIL_ENDED {
            return self.outlets[at].drain();
        }
        let mut wait = FIRST_WAIT;
        let last = loop {
            self.outlets[at].set_patience(Patience::up_to(wait));
            match self.outlets[at].drain() {
                Err(e) if is_over(&e) => self.note(StreamStage::Ending)?,
                last => break last,
            }
            wait = (wait * 2).min(MAX_WAIT);
        };
        self.outlets[at].set_patience(patience);
        last
    }

    /// Tells that the device waits, with the replies that came meanwhile.
    ///
    /// # Errors
    /// Any error that ended a channel, and the first failure that a reply reported.
    pub(super) fn tell_wait(&mut self) -> Result<()> {
        self.outlets.iter_mut().try_for_each(Sender::poll)?;
        self.note(StreamStage::Waiting)
    }

    fn note(&mut self, stage: StreamStage) -> Result<()> {
        let Some(meter) = &mut self.meter else { return Ok(()) };
        let StreamReport { blocks_in, blocks_out, bytes_out, .. } = self.so_far;
        let is_idle = self.is_idle;
        let under_way = self.outlets.iter().map(|outlet| u64::from(outlet.outstanding())).sum();
        meter.note(&StreamProgress { blocks_out, bytes_out, under_way, blocks_in, is_idle, stage })?;
        if !meter.measures_latencies() {
            return Ok(());
        }
        let outlets = &self.outlets;
        meter.note_latencies(&|| {
            let mut all = Histogram::default();
            outlets.iter().filter_map(Sender::latencies).for_each(|times| all.add(&times));
            all
        })
    }
}

/// Whether a wait ended because its time was over.
fn is_over(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy
}

/// Takes one of the descriptors that a device was given.
pub(super) fn descriptor(given: &mut [Option<OwnedFd>], at: usize) -> Result<OwnedFd> {
    let fd = given.get_mut(at).and_then(Option::take);
    fd.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "launch", format!("descriptor {at} was not given")))
}
