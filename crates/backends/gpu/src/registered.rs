//! Memory of this process that the driver has pinned, so that copy engines reach it without a copy
//! by a core.
//!
//! Registering costs time, and so does a copy by a core through pinned buffers. A slice is
//! registered when the copies so far and the next one would cost as much as that: at most twice the
//! cost of the better choice, whatever comes. Both costs are learned from what happens in the
//! process, since they depend on the size of pages. (On one machine, registering took 27 ms a GiB
//! on huge pages, and a core 100 ms.) A short transfer counts for 64 KiB, since it is its start
//! that costs.
//!
//! All movers of a region share its registration, on whatever devices they are. It ends with the
//! last of them, and the region stays mapped until then. Copies that use it are counted, and it is
//! taken back only while there is none: what the driver does with a copy whose pages are taken back
//! is said nowhere. Pages that were given back to the kernel are registered anew; until the last
//! copy of the old ones is over, copies go through pinned buffers.
//!
//! Unsafe code: addresses are passed to the driver for pinning. They belong to the region that this
//! value holds.
#![allow(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use datapipes_core::memory::Region;
use datapipes_core::process::OwningProcess;

use crate::driver::device::{Device, Entered};
use crate::driver::{Driver, abi};
use crate::hbm::is_pinned;

/// The bytes of a slice. Slices begin at multiples of it, so two of them share no page.
pub(crate) const SLICE_BYTES: usize = 32 << 20;
/// What a transfer counts for at least.
const MIN_COUNTED: usize = 64 << 10;
/// Nothing is registered before so much was asked for: pipes for a few short copies need it not.
const MIN_ASKED: usize = 1 << 20;

/// From this length on, the bytes of a slice decide what registering it costs.
const RATED_FROM: usize = SLICE_BYTES / 4;

/// The state of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// Not registered; so many bytes were asked for.
    Plain(usize),
    /// Registered here.
    Ours,
    /// The driver refuses it; or somebody else has pinned it, who may take that back at any time.
    Refused,
}

/// What something costs by its bytes, as seen so far in this process.
#[derive(Debug, Default)]
struct SeenCost {
    ns_per_byte: Option<f64>,
}

impl SeenCost {
    fn note(&mut self, bytes: usize, took: Duration) {
        if bytes > 0 {
            let seen = took.as_nanos() as f64 / bytes as f64;
            self.ns_per_byte = Some(self.ns_per_byte.map_or(seen, |before| before * 0.75 + seen * 0.25));
        }
    }
}

/// The two costs between which is chosen.
#[derive(Debug, Default)]
struct PinningCosts {
    registering: SeenCost,
    copying: SeenCost,
}

static COSTS: Mutex<PinningCosts> =
    Mutex::new(PinningCosts { registering: SeenCost { ns_per_byte: None }, copying: SeenCost { ns_per_byte: None } });

impl PinningCosts {
    /// How many bytes a core copies in the time in which one is registered: 1 until both were seen.
    fn ratio(&self) -> f64 {
        match (self.registering.ns_per_byte, self.copying.ns_per_byte) {
            (Some(registering), Some(copying)) => (registering / copying.max(1e-6)).clamp(0.25, 16.0),
            _ => 1.0,
        }
    }
}

/// Notes what a core's copy into a pinned buffer took.
pub(crate) fn note_staged(bytes: usize, took: Duration) {
    COSTS.lock().copying.note(bytes, took);
}

struct Slices {
    /// The region's generation when the slices were registered.
    generation: u64,
    slices: Vec<Slice>,
    /// Copies that use what is registered, or go to the bytes past all buffers.
    running: usize,
}

/// How a copy engine comes to bytes.
pub(crate) enum HostReach {
    /// They are pinned, and stay so until this is dropped.
    Pinned(PinnedCopy),
    /// The driver may copy them, through buffers of its own, as long as this is kept.
    Plain(PinnedCopy),
    /// Through pinned buffers of ours.
    Staged,
}

/// A copy of a region's bytes: while it is there, nothing is unregistered.
pub(crate) struct PinnedCopy(Arc<RegisteredRegion>);

impl PinnedCopy {
    fn begin(region: &Arc<RegisteredRegion>, state: &mut Slices) -> PinnedCopy {
        state.running = state.running.saturating_add(1);
        PinnedCopy(region.clone())
    }
}

impl Drop for PinnedCopy {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running = state.running.saturating_sub(1);
    }
}

/// A region with slices that are registered.
pub(crate) struct RegisteredRegion {
    region: Region,
    device: &'static Device,
    state: Mutex<Slices>,
    owner: OwningProcess,
}

/// The regions of all movers of this process. In a child nobody comes here, since the driver is
/// refused there.
static OPEN: Mutex<Vec<(u64, Weak<RegisteredRegion>)>> = Mutex::new(Vec::new());

impl RegisteredRegion {
    /// The registration of a region.
    pub(crate) fn of(region: &Region, device: &'static Device) -> Arc<RegisteredRegion> {
        loop {
            let mut open = OPEN.lock();
            match open.iter().find(|(id, _)| *id == region.id()) {
                Some((_, weak)) => {
                    if let Some(known) = weak.upgrade() {
                        return known;
                    }
                }
                None => {
                    let slices = vec![Slice::Plain(0); slice_of(region, region.len().saturating_sub(1)) + 1];
                    let state = Mutex::new(Slices { generation: region.generation(), slices, running: 0 });
                    let made = Arc::new(RegisteredRegion {
                        region: region.clone(),
                        device,
                        state,
                        owner: OwningProcess::here(),
                    });
                    open.push((region.id(), Arc::downgrade(&made)));
                    return made;
                }
            }
            // It is just being taken back, in `drop`, which removes the entry in the end.
            drop(open);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// How these bytes of the region are reached. Slices for which that pays are registered now.
    /// `may_be_plain` where the caller would have the driver copy them through its own buffers.
    pub(crate) fn reach(self: &Arc<Self>, driver: &Driver, (at, len): (usize, usize), may_be_plain: bool) -> HostReach {
        let Some(last) = at.checked_add(len).and_then(|end| end.checked_sub(1)) else { return HostReach::Staged };
        let mut state = self.state.lock();
        let generation = self.region.generation();
        if generation != state.generation {
            // The pages at these addresses are others now. Until the old ones are let go, the
            // driver would take them for these.
            if state.running > 0 {
                return HostReach::Staged;
            }
            self.unregister(driver, &mut state.slices);
            state.generation = generation;
        }
        let touched = slice_of(&self.region, at)..slice_of(&self.region, last) + 1;
        let mut all = true;
        for number in touched {
            let Some(slice) = state.slices.get_mut(number) else { return HostReach::Staged };
            if let Slice::Plain(asked) = slice {
                let part = part_of(&self.region, number);
                let begin = part.0.addr() - self.region.address().addr();
                let touched = last.min(begin + part.1 - 1) + 1 - at.max(begin);
                *asked = asked.saturating_add(touched.max(MIN_COUNTED));
                let ratio = if part.1 >= RATED_FROM { COSTS.lock().ratio() } else { 1.0 };
                // A sixteenth less: transfers that leave out a few bytes are whole ones too.
                if *asked as f64 >= (part.1 as f64 * ratio).max(MIN_ASKED as f64) * (15.0 / 16.0) {
                    *slice = self.register(driver, part);
                }
            }
            all &= *slice == Slice::Ours;
        }
        if all {
            return HostReach::Pinned(PinnedCopy::begin(self, &mut state));
        }
        // What somebody else has pinned is reached past all buffers, and not at once.
        let is_strange = |byte: usize| is_pinned(driver, self.region.address().wrapping_add(byte));
        match may_be_plain && !is_strange(at) && !is_strange(last) {
            true => HostReach::Plain(PinnedCopy::begin(self, &mut state)),
            false => HostReach::Staged,
        }
    }

    fn register(&self, driver: &Driver, (start, len): (*mut u8, usize)) -> Slice {
        let begun = Instant::now();
        // SAFETY: the bytes belong to the region, which stays mapped as long as `self`, whose drop
        // unregisters them. Pinning changes no byte.
        match unsafe { (driver.functions.host_register)(start.cast(), len, abi::PORTABLE) } {
            abi::SUCCESS => {
                if len >= RATED_FROM {
                    COSTS.lock().registering.note(len, begun.elapsed());
                }
                Slice::Ours
            }
            _ => Slice::Refused,
        }
    }

    /// Takes back what is registered, while no copy uses it.
    fn unregister(&self, driver: &Driver, slices: &mut [Slice]) {
        for (number, slice) in slices.iter_mut().enumerate() {
            if *slice == Slice::Ours {
                let (start, _) = part_of(&self.region, number);
                // SAFETY: it was registered at this address, and no copy is under way: they are
                // counted.
                unsafe { (driver.functions.host_unregister)(start.cast()) };
            }
            *slice = Slice::Plain(0);
        }
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // A lock may be held for ever there, and what is pinned is the parent's.
            return;
        }
        // The movers are gone, and all copies: each holds this value.
        let entered: Result<Entered, _> = self.device.enter("close");
        let mut slices = std::mem::take(&mut self.state.get_mut().slices);
        match entered {
            Ok(entered) => self.unregister(entered.driver, &mut slices),
            // The driver keeps the pages of these addresses until the process ends, so nothing else
            // may get the addresses.
            Err(_) if slices.contains(&Slice::Ours) => std::mem::forget(self.region.clone()),
            Err(_) => {}
        }
        let id = self.region.id();
        OPEN.lock().retain(|(other, _)| *other != id);
    }
}

/// The number of the slice that holds a byte of a region.
fn slice_of(region: &Region, at: usize) -> usize {
    let start = region.address().addr();
    start.saturating_add(at) / SLICE_BYTES - start / SLICE_BYTES
}

/// The bytes of a region in a slice.
fn part_of(region: &Region, number: usize) -> (*mut u8, usize) {
    let start = region.address().addr();
    let begin = ((start / SLICE_BYTES + number) * SLICE_BYTES).max(start);
    let end = ((start / SLICE_BYTES + number + 1) * SLICE_BYTES).min(start + region.len());
    (region.address().wrapping_add(begin - start), end - begin)
}

/// The length of the piece at `at` of a region, which ends with its slice.
pub(crate) fn piece_len(region: &Region, at: usize, len: usize) -> usize {
    let address = region.address().addr().saturating_add(at);
    len.min(SLICE_BYTES - address % SLICE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_core::{MapOptions, Pages};

    #[test]
    fn slices_and_pieces_cover_a_region_without_overlap() {
        let options = MapOptions::default().prefault(false).pages(Pages::Small);
        for len in [1, 4096, SLICE_BYTES, 2 * SLICE_BYTES + 5] {
            let region = Region::map(len, options).unwrap();
            let (mut at, mut pieces) = (0, 0);
            while at < len {
                let (start, part) = part_of(&region, slice_of(&region, at));
                assert_eq!(start.addr(), region.address().addr() + at);
                assert_eq!(piece_len(&region, at, len - at), part);
                at += part;
                pieces += 1;
            }
            assert_eq!((at, pieces), (len, slice_of(&region, len - 1) + 1));
        }
    }
}
