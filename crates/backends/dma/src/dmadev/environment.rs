//! DPDK's environment, which starts once a process and stays.
//!
//! ```text
//! arguments checked -> libraries loaded -> rte_eal_init in a thread of its own -> ready, or why not
//! ```
//!
//! It starts only on request (`DATAPIPES_DMADEV`, or a program that passes arguments), since it
//! changes a process for good: threads, memory, devices taken from the kernel. It pins the thread
//! that starts it to a core, so a thread of its own does, which then ends. That thread blocks
//! signals, and DPDK's threads inherit it. A child made by `fork` has none of these threads and is
//! refused.
//!
//! This module's unsafe code calls functions of DPDK with the arguments that its headers declare.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::ops::Range;
use std::sync::{OnceLock, mpsc};

use datapipes_core::locks::Mutex;
use datapipes_core::process::OwningProcess;
use datapipes_core::threads;

use super::library::Dpdk;
use super::mapped_pages::{MappedPages, PageMapper};

/// The variable with DPDK's arguments.
pub(super) const VARIABLE: &str = "DATAPIPES_DMADEV";

/// The default container of VFIO, in DPDK's functions.
const DEFAULT_CONTAINER: c_int = -1;

/// `RTE_IOVA_VA`: engines take the process's addresses.
const VIRTUAL_ADDRESSES: c_int = 2;

/// DPDK, started. DPDK has one state for a whole process, and so has this.
pub(super) struct Environment {
    pub(super) dpdk: Dpdk,
    owner: OwningProcess,
    arguments: Vec<String>,
    /// Whether the program itself had started DPDK.
    is_the_programs: bool,
    /// The devices that are open, by number.
    pub(super) taken: Mutex<Vec<i16>>,
    pages: Mutex<MappedPages>,
}

static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();

impl Environment {
    /// Starts DPDK, or returns it if it was started.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn start(arguments: &[String]) -> Result<&'static Environment, String> {
        let begun = ENVIRONMENT.get_or_init(|| {
            check(arguments)?;
            let arguments = arguments.to_vec();
            let (tell, hear) = mpsc::channel();
            let begin = move || _ = tell.send(start_here(arguments));
            // Its end is not joined: that could run foreign code, which may ask for DPDK again.
            threads::spawn("dpdk-start", begin).map_err(|e| e.to_string())?;
            hear.recv().unwrap_or_else(|_| Err("the thread that starts DPDK ended early".into()))
        });
        let environment = begun.as_ref().map_err(Clone::clone)?;
        if !environment.owner.is_here() {
            return Err("DPDK was started by a parent of this process, whose threads are not here".into());
        }
        if !environment.is_the_programs && environment.arguments != arguments {
            let other = environment.arguments.join(" ");
            return Err(format!("DPDK was started in this process with other arguments: {other}"));
        }
        Ok(environment)
    }

    pub(super) fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    /// Whether an engine can be given pages of this process by the IOMMU.
    ///
    /// # Errors
    /// What is missing.
    pub(super) fn can_map(&self) -> Result<(), String> {
        // SAFETY: it takes nothing.
        if unsafe { (self.dpdk.iova_mode)() } != VIRTUAL_ADDRESSES {
            return Err("it takes physical addresses, which a process does not know (bind it to vfio-pci)".into());
        }
        // SAFETY: the name ends with a zero.
        if unsafe { (self.dpdk.vfio_is_enabled)(c"vfio".as_ptr()) } != 1 {
            return Err("VFIO is not in use, so nothing maps pages for it (bind it to vfio-pci)".into());
        }
        Ok(())
    }

    /// Maps the pages of a range for all engines of the process.
    ///
    /// # Errors
    /// Why the kernel refuses.
    pub(super) fn hold_pages(&self, bytes: Range<usize>) -> Result<Vec<usize>, String> {
        self.pages.lock().hold(bytes, &mut Vfio(&self.dpdk))
    }

    /// Gives back what [`hold_pages`](Self::hold_pages) returned.
    pub(super) fn release_pages(&self, held: &[usize]) {
        self.pages.lock().release(held, &mut Vfio(&self.dpdk));
    }
}

/// Maps pages by VFIO, at the addresses that they have in the process.
struct Vfio<'a>(&'a Dpdk);

impl PageMapper for Vfio<'_> {
    fn map(&mut self, pages: Range<usize>) -> Result<(), String> {
        let (start, len) = (pages.start as u64, pages.len() as u64);
        // SAFETY: numbers alone. The kernel pins the pages of this process, or refuses.
        let answer = unsafe { (self.0.vfio_map)(DEFAULT_CONTAINER, start, start, len) };
        if answer == 0 { Ok(()) } else { Err(self.0.words_of(self.0.last_error())) }
    }

    fn unmap(&mut self, pages: Range<usize>) -> Result<(), String> {
        let (start, len) = (pages.start as u64, pages.len() as u64);
        // SAFETY: as above.
        let answer = unsafe { (self.0.vfio_unmap)(DEFAULT_CONTAINER, start, start, len) };
        if answer == 0 { Ok(()) } else { Err(self.0.words_of(self.0.last_error())) }
    }
}

/// Refuses arguments by which DPDK would end the process, or which are none.
fn check(arguments: &[String]) -> Result<(), String> {
    for argument in arguments {
        if ["-h", "--help", "--"].contains(&argument.as_str()) || argument.contains('\0') {
            return Err(format!("{argument:?} is not accepted among DPDK's arguments"));
        }
    }
    Ok(())
}

/// The arguments of `rte_eal_init`: ours first, so that the caller's win.
fn with_defaults(arguments: &[String], cores: Option<&str>) -> Vec<String> {
    // No files in /run or in huge pages, no socket, no word unless something fails. Without huge
    // pages, DPDK refuses the option that stands for all of these.
    let is_plain = arguments.iter().any(|a| a == "--no-huge" || a == "--legacy-mem");
    let no_files = if is_plain { "--no-shconf" } else { "--in-memory" };
    let mut all: Vec<String> = ["datapipes", no_files, "--no-telemetry", "--log-level=error"].map(str::to_owned).into();
    let chooses_cores =
        |a: &String| a.starts_with("--lcores") || ["-l", "-c", "-s", "-S"].iter().any(|short| a.starts_with(short));
    // One thread on any core: by default, DPDK starts one thread for each core.
    if let Some(cores) = cores
        && !arguments.iter().any(chooses_cores)
    {
        all.push(format!("--lcores=0@({cores})"));
    }
    all.extend_from_slice(arguments);
    all
}

/// The cores that this process may use, as a list such as `0-3,8`.
fn usable_cores() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

fn start_here(arguments: Vec<String>) -> Result<Environment, String> {
    let dpdk = Dpdk::load()?;
    let all = with_defaults(&arguments, usable_cores().as_deref());
    let texts: Vec<CString> = all.iter().filter_map(|argument| CString::new(argument.as_str()).ok()).collect();
    let count = c_int::try_from(texts.len()).map_err(|_| "too many arguments".to_owned())?;
    // DPDK keeps pointers to its arguments and changes their order, so they are never freed.
    let mut texts: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
    texts.push(std::ptr::null_mut());
    let texts = texts.leak();
    // SAFETY: a list of so many strings that end with a zero, and a null pointer behind it, which
    // live for ever and belong to DPDK alone.
    let answer = unsafe { (dpdk.eal_init)(count, texts.as_mut_ptr()) };
    let error = dpdk.last_error();
    let is_the_programs = answer < 0 && error == libc::EALREADY;
    if answer < 0 && !is_the_programs {
        let shown = arguments.join(" ");
        return Err(format!("{} does not start with `{shown}`: {}", dpdk.version, dpdk.words_of(error)));
    }
    Ok(Environment {
        dpdk,
        owner: OwningProcess::here(),
        arguments,
        is_the_programs,
        taken: Mutex::default(),
        pages: Mutex::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_end_the_process_are_refused_and_cores_are_the_callers() {
        let list = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        for wrong in ["-h", "--no-huge --help", "--", "a\0b"] {
            assert!(check(&list(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(check(&list("--no-huge --vdev=dma_skeleton")), Ok(()));
        let all = with_defaults(&list("--no-huge"), Some("0-1"));
        assert_eq!(all.last().unwrap(), "--no-huge");
        assert!(all.contains(&"--lcores=0@(0-1)".to_owned()));
        for chosen in ["-l 0", "-c3", "--lcores=1", "-s 0xff"] {
            assert!(!with_defaults(&list(chosen), Some("0-1")).contains(&"--lcores=0@(0-1)".to_owned()), "{chosen}");
        }
    }
}
