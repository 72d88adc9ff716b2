//! Places from the command line: URIs and plain paths, opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use datapipes::{
    CoreCache, Dram, Endpoint, Error, ErrorKind, FileAccess, FileMode, Locator, Machine, MapOptions, NumaMemory, Pages,
    Pmem, PmemOptions, Result, Ssd, Uri,
};

use crate::gpu_memory::AnyHbm;
use crate::objects::{AnyObject, ObjectAccess, address_in, file_name, is_object};
use crate::remote_memory::{AnyRemote, is_remote, ticket_of};

/// The memory to allocate for a URI that names memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Its length where the URI gives none; 0 for a whole cache.
    pub(crate) len_bytes: u64,
    /// Whether the memory will be used at once.
    pub(crate) prefault: bool,
}

/// A place of a command line, not opened.
#[derive(Debug)]
pub(crate) enum NamedPlace {
    Uri(Uri),
    Object(String),
    Remote(String),
}

impl NamedPlace {
    pub(crate) fn parse(text: &str) -> Result<NamedPlace> {
        if is_remote(text) {
            return Ok(NamedPlace::Remote(text.to_owned()));
        }
        if is_object(text) { Ok(NamedPlace::Object(text.to_owned())) } else { text.parse().map(NamedPlace::Uri) }
    }

    /// The path of a file or device; `None` for all else.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            NamedPlace::Uri(uri) => uri.path(),
            NamedPlace::Object(_) | NamedPlace::Remote(_) => None,
        }
    }

    /// The name that a file made of it gets in a folder, as far as that is known before it is
    /// opened.
    pub(crate) fn file_name(&self) -> Option<OsString> {
        match self {
            NamedPlace::Uri(uri) => uri.path().and_then(Path::file_name).map(OsStr::to_owned),
            NamedPlace::Object(address) => file_name(address).map(OsString::from),
            NamedPlace::Remote(_) => None,
        }
    }

    /// The place of this name in it, if it is a folder, or an address of a bucket that ends in `/`.
    pub(crate) fn place_in(&self, name: &str) -> Option<NamedPlace> {
        match self {
            NamedPlace::Uri(Uri::Ssd { path, access }) if path.is_dir() => {
                Some(NamedPlace::Uri(Uri::Ssd { path: path.join(name), access: *access }))
            }
            NamedPlace::Object(address) if address.ends_with('/') => {
                Some(NamedPlace::Object(address_in(address, name)))
            }
            NamedPlace::Uri(_) | NamedPlace::Object(_) | NamedPlace::Remote(_) => None,
        }
    }

    /// The file that is read to reach it, where that is not the place itself.
    pub(crate) fn ticket(&self) -> Option<&Path> {
        match self {
            NamedPlace::Remote(address) => Some(ticket_of(address)),
            NamedPlace::Uri(_) | NamedPlace::Object(_) => None,
        }
    }
}

/// An open place.
#[derive(Debug)]
pub(crate) enum AnyLocator {
    Object(AnyObject),
    Remote(AnyRemote),
    Ssd(Ssd),
    Dram(Dram),
    Cache(CoreCache),
    Pmem(Pmem),
    Numa(NumaMemory),
    Hbm(AnyHbm),
}

/// The most bytes of a file that does not say how long it is.
const UNSTATED: u64 = 1 << 30;

/// Opens a file that is to be read whole. One that does not have the length that it states (in
/// `/proc` and `/sys`, or through FUSE) is read now, to its end: it is in memory then, under its
/// own name and with its own mode.
pub(crate) fn open_to_read(path: &Path) -> Result<Ssd> {
    let ssd = Ssd::open(path)?;
    if ssd.len_is_exact()? {
        return Ok(ssd);
    }
    let fail = |e: std::io::Error| Error::io("read", e, path.display().to_string());
    let file = File::open(path).map_err(fail)?;
    let mode = file.metadata().map_err(fail)?.permissions();
    let memory = rustix::fs::memfd_create("dpipe", rustix::fs::MemfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    let mut memory = File::from(memory);
    let len = std::io::copy(&mut file.take(UNSTATED + 1), &mut memory).map_err(fail)?;
    if len > UNSTATED {
        let why = format!("{} has more than {UNSTATED} bytes, and does not say how many", path.display());
        return Err(bad(why).with_advice("read it with another program, into a file"));
    }
    memory.set_permissions(mode).map_err(fail)?;
    Ssd::from_fd(memory.into(), path)
}

impl AnyLocator {
    /// Opens what is there, for reading. Memory without a size has `len_bytes`.
    pub(crate) fn source(machine: &Machine, place: &NamedPlace, memory: Memory) -> Result<AnyLocator> {
        let uri = match place {
            NamedPlace::Uri(uri) => uri,
            NamedPlace::Object(address) => return ObjectAccess::to_read()?.open(address).map(AnyLocator::Object),
            NamedPlace::Remote(address) => return AnyRemote::open(address).map(AnyLocator::Remote),
        };
        match uri {
            Uri::Ssd { path, access } => Ok(AnyLocator::Ssd(with_access(open_to_read(path)?, *access)?)),
            other => AnyLocator::memory_place(machine, other, memory),
        }
    }

    /// Opens a place in memory: fresh, or what is there of persistent memory.
    pub(crate) fn memory_place(machine: &Machine, uri: &Uri, memory: Memory) -> Result<AnyLocator> {
        let Memory { len_bytes, prefault } = memory;
        match uri {
            Uri::Dram { len, node } => {
                let len = if *len == 0 { len_bytes } else { *len };
                let len = usize::try_from(len)
                    .map_err(|_| bad(format!("dram of {len} bytes: this machine has no such memory")))?;
                let options = MapOptions::default().pages(Pages::Huge).prefault(prefault).node(*node);
                Ok(AnyLocator::Dram(Dram::allocate_with(len.max(1), options)?))
            }
            Uri::CoreCache { level, core: index } => {
                let topology = machine.topology();
                let usable = || topology.usable_cores().map(|c| c.index.to_string()).collect::<Vec<_>>().join(", ");
                let core = topology
                    .core(*index)
                    .filter(|core| core.usable)
                    .ok_or_else(|| bad(format!("core {index} is not ours to use; these are: {}", usable())))?;
                let size = if *level == 2 { topology.l2_size(*index) } else { topology.l3_share(*index) };
                let size = size.ok_or_else(|| {
                    Error::new(
                        ErrorKind::Unavailable,
                        "declare",
                        format!("L{level} of core {index}: its size is not known"),
                    )
                })?;
                let len = if len_bytes == 0 { size } else { size.min(len_bytes) };
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                Ok(AnyLocator::Cache(CoreCache::at_level(core, *level, &Dram::allocate(len)?)?))
            }
            Uri::Pmem { path, emulated } => {
                Ok(AnyLocator::Pmem(Pmem::open_with(path, PmemOptions::default().emulated(*emulated))?))
            }
            Uri::Numa { node, len } => {
                let len = if *len == 0 { len_bytes } else { *len };
                let len = usize::try_from(len)
                    .map_err(|_| bad(format!("{len} bytes of node {node}: this machine has no such memory")))?;
                Ok(AnyLocator::Numa(NumaMemory::allocate(*node, len.max(1))?))
            }
            Uri::Hbm { device, len } => {
                let len = if *len == 0 { len_bytes } else { *len };
                Ok(AnyLocator::Hbm(AnyHbm::allocate(*device, len.max(1))?))
            }
            _ => Err(bad("the place is not memory, as dram:, cache:, numa:, pmem:PATH and hbm: are".to_owned())),
        }
    }

    /// Opens persistent memory to write `len` bytes to: in place, in what is there or in a new file
    /// of this mode.
    pub(crate) fn pmem_target(path: &Path, emulated: bool, len: u64, mode: FileMode) -> Result<AnyLocator> {
        use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
        // A device is mapped whole: it takes no other lengths than multiples of its alignment.
        let whole = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device() || m.len() >= len);
        let len = if whole { None } else { Some(len) };
        // It is mapped, and written where it is: there is no other file that could be given its
        // name.
        let new = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode.bits()).open(path).is_ok();
        let opened = Pmem::open_with(path, PmemOptions::default().len(len).emulated(emulated));
        if new && opened.is_err() {
            // The error is what counts.
            let _ = std::fs::remove_file(path);
        }
        Ok(AnyLocator::Pmem(opened?))
    }

    /// The length in bytes now.
    pub(crate) fn len(&self) -> Result<u64> {
        match self {
            AnyLocator::Object(object) => Ok(object.len()),
            AnyLocator::Remote(remote) => Ok(remote.len()),
            AnyLocator::Ssd(ssd) => ssd.len(),
            AnyLocator::Dram(dram) => Ok(dram.len() as u64),
            AnyLocator::Cache(cache) => Ok(cache.len() as u64),
            AnyLocator::Pmem(pmem) => Ok(pmem.len() as u64),
            AnyLocator::Numa(numa) => Ok(numa.len() as u64),
            AnyLocator::Hbm(hbm) => Ok(hbm.len()),
        }
    }

    /// The memory of the place, if it is memory that may be used over and over.
    pub(crate) fn memory(&self) -> Option<&Dram> {
        match self {
            AnyLocator::Ssd(_)
            | AnyLocator::Pmem(_)
            | AnyLocator::Object(_)
            | AnyLocator::Remote(_)
            | AnyLocator::Hbm(_) => None,
            AnyLocator::Numa(numa) => Some(numa.as_dram()),
            AnyLocator::Dram(dram) => Some(dram),
            AnyLocator::Cache(cache) => Some(cache.backing()),
        }
    }

    /// The file of the place, if it is one.
    pub(crate) fn ssd(&self) -> Option<&Ssd> {
        match self {
            AnyLocator::Ssd(ssd) => Some(ssd),
            AnyLocator::Object(_) | AnyLocator::Remote(_) | AnyLocator::Hbm(_) => None,
            AnyLocator::Dram(_) | AnyLocator::Cache(_) | AnyLocator::Pmem(_) | AnyLocator::Numa(_) => None,
        }
    }

    /// Bytes that are reached by loads, to look at; none of a file.
    pub(crate) fn look(&self, at: usize, len: usize) -> Result<Option<Vec<u8>>> {
        match self {
            AnyLocator::Ssd(_) | AnyLocator::Object(_) | AnyLocator::Remote(_) | AnyLocator::Hbm(_) => Ok(None),
            AnyLocator::Pmem(pmem) => pmem.range(at, len)?.memory().to_vec().map(Some),
            other => other.memory().map(|memory| memory.range(at, len)?.memory().to_vec()).transpose(),
        }
    }

    /// Returns when what was moved here would survive a power failure, where the place can keep it
    /// at all.
    pub(crate) fn sync(&self) -> Result<()> {
        match self {
            AnyLocator::Ssd(ssd) => ssd.sync(),
            AnyLocator::Pmem(pmem) => pmem.sync(),
            // An object is kept once it is published, and memory is not kept.
            AnyLocator::Object(_)
            | AnyLocator::Remote(_)
            | AnyLocator::Dram(_)
            | AnyLocator::Cache(_)
            | AnyLocator::Numa(_)
            | AnyLocator::Hbm(_) => Ok(()),
        }
    }
}

impl Locator for AnyLocator {
    fn endpoint(&self) -> Endpoint {
        match self {
            AnyLocator::Object(object) => object.endpoint(),
            AnyLocator::Remote(remote) => remote.endpoint(),
            AnyLocator::Ssd(ssd) => ssd.endpoint(),
            AnyLocator::Dram(dram) => dram.endpoint(),
            AnyLocator::Cache(cache) => cache.endpoint(),
            AnyLocator::Pmem(pmem) => pmem.endpoint(),
            AnyLocator::Numa(numa) => numa.endpoint(),
            AnyLocator::Hbm(hbm) => hbm.endpoint(),
        }
    }
}

/// The file with the access asked for.
pub(crate) fn with_access(ssd: Ssd, access: FileAccess) -> Result<Ssd> {
    if access == FileAccess::Auto { Ok(ssd) } else { ssd.with_access(access) }
}

/// Whether a path leads to a block device.
pub(crate) fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "open", why)
}
