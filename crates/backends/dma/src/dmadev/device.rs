//! DPDK's devices: which there are, and one that is open.
//!
//! This module's unsafe code promises: an open device is this value's alone in the process
//! (`taken`), it was configured and started, and its functions are called by one thread at a time.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use datapipes_core::{Error, ErrorKind, Result};

use super::environment::Environment;
use super::library::{ChannelConf, DmaConf, DmaInfo, FastPath};
use crate::discovery::{QueueDiscovery, QueueMode, WorkQueueFacts};

/// The name of DPDK's software device begins so: a thread that copies.
const SOFTWARE: &str = "dma_skeleton";

/// `RTE_DMA_CAPA_MEM_TO_MEM` and `RTE_DMA_CAPA_OPS_COPY`: what is needed.
const COPIES_MEMORY: u64 = 1 | 1 << 32;
/// `RTE_DMA_CAPA_SVA`: it takes the process's addresses by itself.
const KNOWS_ADDRESSES: u64 = 1 << 4;

/// `RTE_DMA_DIR_MEM_TO_MEM`.
const MEMORY_TO_MEMORY: c_int = 0;
/// `RTE_DMA_OP_FLAG_SUBMIT`: begin at once.
const SUBMIT: u64 = 1 << 1;
/// `RTE_DMA_VCHAN_HALTED_ERROR`.
const HALTED: c_int = 2;

/// The most operations in flight that are asked of a device.
const MAX_ENTRIES: u16 = 1024;

/// The most bytes of an operation. Devices do not tell theirs; I/OAT's is 1 MiB or more.
const MAX_TRANSFER_BYTES: u64 = 1 << 20;

/// The devices of DPDK, and whether the usable ones are engines rather than devices in software.
pub(super) fn discover(environment: &Environment) -> (QueueDiscovery, bool) {
    let dpdk = &environment.dpdk;
    let mut found = QueueDiscovery::default();
    let (mut software, mut at) = (Vec::new(), 0i16);
    loop {
        // SAFETY: it takes any number, and returns the next device's or -1.
        let id = unsafe { (dpdk.next_dev)(at) };
        if id < 0 {
            break;
        }
        match facts(environment, id) {
            Ok(facts) if facts.name.starts_with(SOFTWARE) => software.push(facts),
            Ok(facts) => found.usable.push(facts),
            Err(why) => found.absent.push(why),
        }
        let Some(next) = id.checked_add(1) else { break };
        at = next;
    }
    let has_engine = !found.usable.is_empty();
    if has_engine {
        let besides = |facts: WorkQueueFacts| format!("{}: a device in software, and there is an engine", facts.name);
        found.absent.extend(software.into_iter().map(besides));
    } else {
        found.usable = software;
    }
    if found.usable.is_empty() && found.absent.is_empty() {
        found.absent.push(format!("{} has no DMA device", dpdk.version));
    }
    (found, has_engine)
}

fn info(environment: &Environment, id: i16) -> std::result::Result<(DmaInfo, String), String> {
    let mut info = DmaInfo {
        name: std::ptr::null(),
        capabilities: 0,
        max_vchans: 0,
        max_desc: 0,
        min_desc: 0,
        max_sges: 0,
        numa_node: -1,
        nb_vchans: 0,
    };
    // SAFETY: the structure has the layout of this version, and DPDK fills it.
    let answer = unsafe { (environment.dpdk.info_get)(id, &mut info) };
    if answer != 0 || info.name.is_null() {
        return Err(format!("DMA device {id}: {}", environment.dpdk.words_of(answer)));
    }
    // SAFETY: the name ends with a zero, and lives as long as the device, which nobody removes.
    let name = unsafe { CStr::from_ptr(info.name) }.to_string_lossy().into_owned();
    Ok((info, name))
}

fn facts(environment: &Environment, id: i16) -> std::result::Result<WorkQueueFacts, String> {
    let (info, name) = info(environment, id)?;
    if info.capabilities & COPIES_MEMORY != COPIES_MEMORY || info.max_vchans == 0 {
        return Err(format!("{name}: it does not copy from memory to memory"));
    }
    if info.capabilities & KNOWS_ADDRESSES == 0 {
        environment.can_map().map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(WorkQueueFacts {
        device: if name.starts_with(SOFTWARE) { "DPDK (a device in software)" } else { "DPDK" }.into(),
        name,
        path: PathBuf::new(),
        sysfs: [PathBuf::new(), PathBuf::new()],
        mode: QueueMode::Dedicated,
        size: u32::from(entries(&info)),
        priority: 0,
        group: None,
        max_transfer_bytes: MAX_TRANSFER_BYTES,
        max_batch: 0,
        block_on_fault: false,
        node: u32::try_from(info.numa_node).ok(),
    })
}

/// The entries of the ring that is asked for. Several drivers take powers of two alone.
fn entries(info: &DmaInfo) -> u16 {
    let most = MAX_ENTRIES.min(info.max_desc).max(1);
    let power = 1 << most.ilog2();
    if power < info.min_desc { info.min_desc } else { power }
}

/// What a channel of a device does: that of DPDK, or a scripted one in tests.
///
/// # Safety
/// An implementation uses the memory of an operation only between `copy` and the answer, and not
/// after `stop` has returned without an error.
pub(super) unsafe trait DmaChannel: Send {
    /// Whether operations need pages that were mapped for them before.
    fn needs_pages(&self) -> bool;

    /// Starts a copy.
    ///
    /// # Errors
    /// The negative error of DPDK; the operation was not taken then.
    ///
    /// # Safety
    /// The memory stays valid, and is accessed by nobody else as far as it is written, until the
    /// answer is there or `stop` has returned without an error.
    unsafe fn copy(&mut self, source: u64, target: u64, len: u32) -> std::result::Result<(), c_int>;

    /// Takes answers in the order of the operations, as `rte_dma_status_code`. Returns how many.
    fn completed(&mut self, status: &mut [c_int]) -> usize;

    /// Whether it works.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&mut self) -> std::result::Result<(), String>;

    /// Stops the device: it accesses no memory any more.
    ///
    /// # Errors
    /// Why that is not certain.
    fn stop(&mut self) -> std::result::Result<(), String>;
}

/// A device of DPDK that is open.
pub(super) struct OpenDevice {
    environment: &'static Environment,
    id: i16,
    path: FastPath,
    needs_pages: bool,
    is_started: bool,
}

// SAFETY: the device is this value's alone, and any thread may call its functions in turn.
unsafe impl Send for OpenDevice {}

impl OpenDevice {
    /// Configures and starts the device of this name.
    ///
    /// # Errors
    /// `Busy` where this process has it open; `Unavailable` where DPDK refuses.
    pub(super) fn open(environment: &'static Environment, name: &str) -> Result<OpenDevice> {
        let dpdk = &environment.dpdk;
        let refused = |step: &str, why: String| {
            Error::new(ErrorKind::Unavailable, "open", format!("{name} of DPDK: {step}: {why}"))
        };
        let mut at = 0i16;
        let (id, info) = loop {
            // SAFETY: it takes any number.
            let id = unsafe { (dpdk.next_dev)(at) };
            if id < 0 {
                return Err(refused("find", "it is gone".into()));
            }
            match info(environment, id) {
                Ok((info, its)) if its == name => break (id, info),
                _ => at = id.saturating_add(1),
            }
        };
        {
            let mut taken = environment.taken.lock();
            if taken.contains(&id) {
                let why = format!("{name} of DPDK: another backend of this process has it open");
                return Err(Error::new(ErrorKind::Busy, "open", why));
            }
            taken.push(id);
        }
        match start(environment, id, &info) {
            Ok(path) => Ok(OpenDevice {
                environment,
                id,
                path,
                needs_pages: info.capabilities & KNOWS_ADDRESSES == 0,
                is_started: true,
            }),
            Err((step, why)) => {
                environment.taken.lock().retain(|taken| *taken != id);
                Err(refused(step, why))
            }
        }
    }
}

fn start(environment: &Environment, id: i16, info: &DmaInfo) -> std::result::Result<FastPath, (&'static str, String)> {
    let dpdk = &environment.dpdk;
    let one = DmaConf { nb_vchans: 1, enable_silent: false };
    let channel = ChannelConf { direction: MEMORY_TO_MEMORY, nb_desc: entries(info), ports: [[0; 5]; 2] };
    let ok = |step, answer: c_int| if answer == 0 { Ok(()) } else { Err((step, dpdk.words_of(answer))) };
    // SAFETY: structures of this version's layout, which DPDK reads before it returns. Nobody else
    // in this process configures the device.
    unsafe {
        ok("configure", (dpdk.configure)(id, &one))?;
        ok("set up a channel", (dpdk.vchan_setup)(id, 0, &channel))?;
        ok("start", (dpdk.start)(id))?;
    }
    let path = u16::try_from(id).ok().and_then(|id| dpdk.fast_path(id));
    match path {
        Some(path) if path.copy.is_some() && path.completed_status.is_some() => Ok(path),
        _ => {
            // SAFETY: it was started, and nothing was given to it.
            unsafe { (dpdk.stop)(id) };
            Err(("start", "it has no function to copy".into()))
        }
    }
}

// SAFETY: a device of DPDK touches memory only for operations that it was given and did not answer,
// and `rte_dma_stop` returns 0 once it is stopped.
unsafe impl DmaChannel for OpenDevice {
    fn needs_pages(&self) -> bool {
        self.needs_pages
    }

    unsafe fn copy(&mut self, source: u64, target: u64, len: u32) -> std::result::Result<(), c_int> {
        let Some(copy) = self.path.copy.filter(|_| self.is_started) else { return Err(-libc::EINVAL) };
        // SAFETY: the device is started, and is this value's alone. The caller answers for memory.
        let answer = unsafe { copy(self.path.device, 0, source, target, len, SUBMIT) };
        if answer < 0 { Err(answer) } else { Ok(()) }
    }

    fn completed(&mut self, status: &mut [c_int]) -> usize {
        let Some(completed) = self.path.completed_status.filter(|_| self.is_started) else { return 0 };
        let most = u16::try_from(status.len()).unwrap_or(u16::MAX);
        let mut last = 0;
        // SAFETY: as above; there is room for `most` answers.
        let done = unsafe { completed(self.path.device, 0, most, &mut last, status.as_mut_ptr()) };
        usize::from(done.min(most))
    }

    fn check(&mut self) -> std::result::Result<(), String> {
        if !self.environment.is_here() {
            return Err("this process is a child of the one that started DPDK".into());
        }
        let mut state = 0;
        // SAFETY: it writes one number. A device that cannot tell says so.
        let answer = unsafe { (self.environment.dpdk.vchan_status)(self.id, 0, &mut state) };
        if answer == 0 && state == HALTED { Err("its channel halted after an error".into()) } else { Ok(()) }
    }

    fn stop(&mut self) -> std::result::Result<(), String> {
        if !self.is_started {
            return Ok(());
        }
        if !self.environment.is_here() {
            return Err("this process is a child of the one that started DPDK".into());
        }
        // SAFETY: it was started, and is this value's alone.
        let answer = unsafe { (self.environment.dpdk.stop)(self.id) };
        if answer != 0 {
            // It stays taken: nobody may configure it while it may still run.
            return Err(format!("DPDK cannot stop it: {}", self.environment.dpdk.words_of(answer)));
        }
        self.is_started = false;
        self.environment.taken.lock().retain(|taken| *taken != self.id);
        Ok(())
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
