//! Places, and leases on the bytes of those in memory.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use datapipes::memory::Region;
use datapipes::service::SharedMemory;
use datapipes::{
    CoreCache, Dram, Endpoint, Error, ErrorKind, FileAccess, Lease, LeaseMut, Locator, MapOptions, NumaMemory, Pages,
    Pmem, PmemOptions, Result, Ssd, StageOrder, StagePlace, Staging,
};

use crate::arguments::{self, Field, Options, fields};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::{MACHINES, dp_machine};

/// A place where bytes are. It belongs to the caller, who closes it with `dp_place_close`; pipes
/// keep what they need. Any thread may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_place {
    /// The number; 0 for none.
    pub id: u64,
}

/// The right to read or write the bytes of a place in memory. It belongs to the caller, who ends it
/// with `dp_lease_close`; the address is valid until then. Any thread may use it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_lease {
    /// The number; 0 for none.
    pub id: u64,
}

pub(crate) enum Place {
    Dram(Dram),
    CoreCache(CoreCache),
    Numa(NumaMemory),
    Ssd(Ssd),
    Pmem(Pmem),
    Staging(Staging),
    Shared(Shared),
}

/// Memory that can be passed to the service, or a part of it.
pub(crate) struct Shared {
    pub(crate) memory: Arc<SharedMemory>,
    /// Where the part begins.
    pub(crate) at: usize,
    pub(crate) part: Dram,
}

impl Place {
    /// The whole of a shared memory.
    pub(crate) fn shared(memory: SharedMemory) -> Place {
        let part = memory.as_dram().clone();
        Place::Shared(Shared { memory: Arc::new(memory), at: 0, part })
    }
}

impl Locator for Place {
    fn endpoint(&self) -> Endpoint {
        match self {
            Place::Dram(place) => place.endpoint(),
            Place::CoreCache(place) => place.endpoint(),
            Place::Numa(place) => place.endpoint(),
            Place::Ssd(place) => place.endpoint(),
            Place::Pmem(place) => place.endpoint(),
            Place::Staging(place) => place.endpoint(),
            Place::Shared(shared) => shared.part.endpoint(),
        }
    }
}

pub(crate) static PLACES: Table<Place> = Table::new(Kind::Place);

/// Leases are only kept, until their handle is closed.
enum Held {
    Read(#[expect(dead_code)] Lease),
    Write(#[expect(dead_code)] LeaseMut),
}

/// The mutex makes a lease for writing usable from several threads; it is never locked.
static LEASES: Table<Mutex<Held>> = Table::new(Kind::Lease);

fn wrong(operation: &'static str, wanted: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation, format!("the place is not {wanted}"))
}

/// The memory of a place.
pub(crate) fn dram_of(place: &Place, operation: &'static str) -> Result<Dram> {
    match place {
        Place::Dram(dram) => Ok(dram.clone()),
        Place::CoreCache(cache) => Ok(cache.backing().clone()),
        Place::Numa(numa) => Ok(numa.as_dram().clone()),
        Place::Pmem(pmem) => Ok(Dram::over(pmem.memory().clone())),
        Place::Shared(shared) => Ok(shared.part.clone()),
        Place::Ssd(_) | Place::Staging(_) => Err(wrong(operation, "in memory")),
    }
}

pub(crate) fn ssd_of(place: &Place, operation: &'static str) -> Result<Ssd> {
    match place {
        Place::Ssd(ssd) => Ok(ssd.clone()),
        _ => Err(wrong(operation, "a file")),
    }
}

/// Makes a place and gives its handle.
///
/// # Safety
/// `place` is null or valid for a write.
pub(crate) unsafe fn make(place: *mut dp_place, make: impl FnOnce() -> Result<Place>) -> dp_error {
    enter(|| {
        arguments::check(place, "place")?;
        let id = PLACES.put(make()?)?;
        // SAFETY: the caller of this function says so.
        unsafe { arguments::give(place, "place", dp_place { id }) }
    })
}

/// A length of memory. No process has more than `isize::MAX` bytes.
pub(crate) fn len_of(len: u64) -> Result<usize> {
    let most = isize::MAX as usize;
    let fits = usize::try_from(len).ok().filter(|len| *len <= most);
    fits.ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "allocate", format!("{len} bytes of memory")))
}

/// How memory is allocated. Set `size` to `sizeof(dp_memory_options)` and the rest to zero, or pass
/// NULL, for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_memory_options {
    /// `sizeof(dp_memory_options)`.
    pub size: u32,
    /// Not 0: ordinary pages instead of huge ones.
    pub small_pages: u32,
    /// Not 0: pages are not touched now, but by the first transfer.
    pub no_prefault: u32,
}

// SAFETY: the fields are numbers.
unsafe impl Options for dp_memory_options {
    const FIELDS: &'static [Field] = fields!(dp_memory_options { size, small_pages, no_prefault });
}

/// Allocates main memory: zeroed, prefaulted, on huge pages where the kernel has them.
///
/// Errors: DP_INVALID_INPUT for 0 bytes; DP_OUT_OF_MEMORY for more bytes than there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_dram_allocate(
    len: u64,
    options: *const dp_memory_options,
    place: *mut dp_place,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe { make(place, || Dram::allocate_with(len_of(len)?, map_options(options)?).map(Place::Dram)) }
}

/// # Safety
/// `at` is null or points to options that say their size.
unsafe fn map_options(at: *const dp_memory_options) -> Result<MapOptions> {
    // SAFETY: the caller of this function says so.
    let asked = unsafe { arguments::options(at, "options")? };
    let pages = if asked.small_pages != 0 { Pages::Small } else { Pages::Huge };
    Ok(MapOptions::default().pages(pages).prefault(asked.no_prefault == 0))
}

/// Allocates main memory for `len` bytes at `offset` of a file, at an address that agrees with the
/// offset modulo a page. So direct transfers from there, and of parts at the same distance, bounce at
/// their two edges only.
///
/// Errors: as `dp_dram_allocate`; DP_INVALID_INPUT for a place that is no file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_dram_allocate_for(
    file: dp_place,
    offset: u64,
    len: u64,
    options: *const dp_memory_options,
    place: *mut dp_place,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let ssd = ssd_of(&*PLACES.get(file.id)?, "allocate for")?;
            Dram::allocate_for_with(&ssd, offset, len_of(len)?, map_options(options)?).map(Place::Dram)
        })
    }
}

/// Makes memory of the `len` bytes at `offset` of a file without reading them: what the page cache has
/// is used where it is. What is written to the memory stays there, and changes no file. If the file is
/// truncated, its pages are gone: transfers, `dp_place_read` and `dp_place_write` return DP_DEVICE.
/// The bytes are not leased, because others may change the file.
///
/// Errors: DP_INVALID_INPUT for a place that is no file, or 0 bytes; DP_OUT_OF_RANGE where the file ends
/// before; DP_PERMISSION_DENIED for a file that is open for writing only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_dram_map_file(file: dp_place, offset: u64, len: u64, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointer is.
    unsafe {
        make(place, || {
            let ssd = ssd_of(&*PLACES.get(file.id)?, "map")?;
            Dram::map_file(&ssd, offset, len_of(len)?).map(Place::Dram)
        })
    }
}

/// Gives the share of a file that the page cache has, from 0 to 1.
///
/// Errors: DP_INVALID_INPUT for a place that is no file; DP_UNAVAILABLE where the kernel does not tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_ssd_cached_share(file: dp_place, share: *mut f64) -> dp_error {
    enter(|| {
        arguments::check(share, "share")?;
        let ssd = ssd_of(&*PLACES.get(file.id)?, "look at")?;
        let found = datapipes::cached_share(&ssd).ok_or_else(|| {
            let why = format!("{}: the kernel does not tell what the page cache has", ssd.path().display());
            Error::new(ErrorKind::Unavailable, "look at", why)
        })?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(share, "share", found) }
    })
}

/// Takes `len` bytes of the caller's at `address` as a place. `release(user)`, if it is not NULL, is
/// called once: when nothing of the library refers to the bytes any more, by whatever thread that
/// is; or before this function returns, if it fails. Until then the bytes must stay valid, and
/// nobody may access them while a lease or a transfer holds them. They must not be those of a mapped
/// file that may be cut off: the library does not know the file, and a copy from a page that is gone
/// ends the process (SIGBUS). `dp_dram_map_file` and `dp_pmem_open` map files.
///
/// Errors: DP_INVALID_INPUT for 0 bytes and NULL; DP_OUT_OF_RANGE for bytes beyond the addresses of
/// a process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_dram_foreign(
    address: *mut c_void,
    len: u64,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
    place: *mut dp_place,
) -> dp_error {
    let keeper = Keeper { release, user };
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let refused = |kind| Error::new(kind, "take memory", format!("{len} bytes at {address:p}"));
            let (Some(start), 1..) = (NonNull::new(address.cast::<u8>()), len) else {
                return Err(refused(ErrorKind::InvalidInput));
            };
            let len = len_of(len).map_err(|_| refused(ErrorKind::OutOfRange))?;
            if (address as usize).checked_add(len).is_none() {
                return Err(refused(ErrorKind::OutOfRange));
            }
            let region = Region::foreign(start, len, Box::new(keeper));
            Ok(Place::Dram(Dram::over(region.range(0, len)?)))
        })
    }
}

/// Calls the caller's function when it is dropped.
pub(crate) struct Keeper {
    pub(crate) release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    pub(crate) user: *mut c_void,
}

// SAFETY: the header says that any thread may make the call.
unsafe impl Send for Keeper {}
// SAFETY: as above.
unsafe impl Sync for Keeper {}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller gave the function for this argument; it is called once.
            unsafe { release(self.user) };
        }
    }
}

/// Allocates memory on a NUMA node.
///
/// Errors: DP_NOT_FOUND for a node that does not exist; DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_numa_allocate(node: u32, len: u64, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe { make(place, || NumaMemory::allocate(node, len_of(len)?).map(Place::Numa)) }
}

/// Makes the cache of a core a place, over memory that backs it. `core` is a position among the
/// usable cores, from 0; `level` is 1 to 3, or 0 for the private cache (L2).
///
/// Errors: DP_INVALID_INPUT for a place that is not memory; DP_OUT_OF_RANGE for memory larger than
/// the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_core_cache(
    machine: dp_machine,
    core: u32,
    level: u32,
    backing: dp_place,
    place: *mut dp_place,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let machine = MACHINES.get(machine.id)?;
            let backing = dram_of(&*PLACES.get(backing.id)?, "make a core cache")?;
            let topology = machine.topology();
            let core = topology.usable_cores().nth(core as usize).ok_or_else(|| {
                let count = topology.usable_cores().count();
                Error::new(ErrorKind::OutOfRange, "make a core cache", format!("core {core} of {count}"))
            })?;
            let made = match level {
                0 => CoreCache::over(core, &backing),
                1..=3 => CoreCache::at_level(core, level as u8, &backing),
                other => Err(Error::new(ErrorKind::InvalidInput, "make a core cache", format!("level {other}"))),
            };
            made.map(Place::CoreCache)
        })
    }
}

/// How a file is opened.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_open_mode {
    /// An existing file, for reading.
    DP_READ = 0,
    /// An existing file, for reading and writing.
    DP_READ_WRITE = 1,
    /// A new file or an existing one, which is emptied, for reading and writing.
    DP_CREATE = 2,
    /// A file that must not exist yet, for reading and writing.
    DP_CREATE_NEW = 3,
    /// A file without a name in this folder, which the kernel frees with its last user.
    DP_UNLINKED = 4,
}

/// Whether transfers go past the page cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_access {
    /// Decided at connect, by residency and size.
    DP_AUTO = 0,
    /// Past the page cache; opening fails where the file system cannot.
    DP_DIRECT = 1,
    /// Through the page cache.
    DP_CACHED = 2,
}

fn access_of(number: u32) -> Result<FileAccess> {
    match number {
        0 => Ok(FileAccess::Auto),
        1 => Ok(FileAccess::Direct),
        2 => Ok(FileAccess::Cached),
        other => Err(Error::new(ErrorKind::InvalidInput, "open", format!("{other} is no dp_access"))),
    }
}

fn with_access(ssd: Ssd, access: FileAccess) -> Result<Place> {
    if access == FileAccess::Auto { Ok(Place::Ssd(ssd)) } else { ssd.with_access(access).map(Place::Ssd) }
}

/// Opens a file or a block device. `mode` is a `dp_open_mode`, `access` a `dp_access`.
///
/// Errors: DP_NOT_FOUND, DP_PERMISSION_DENIED; DP_INVALID_INPUT for what is not a file;
/// DP_UNAVAILABLE for DP_DIRECT where the file system cannot: this is seen only when the file is
/// open, so that a mode that creates or empties has done so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_ssd_open(path: *const c_char, mode: u32, access: u32, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let path = arguments::path(path, "path")?;
            let access = access_of(access)?; // Opening may create a file or empty it.
            let ssd = match mode {
                0 => Ssd::open(path),
                1 => Ssd::open_rw(path),
                2 => Ssd::create(path),
                3 => Ssd::create_new(path),
                4 => Ssd::unlinked_in(path),
                other => Err(Error::new(ErrorKind::InvalidInput, "open", format!("{other} is no dp_open_mode"))),
            }?;
            with_access(ssd, access)
        })
    }
}

/// Makes an open file a place. The descriptor is duplicated and stays the caller's. `name` is for
/// messages.
///
/// Errors: DP_INVALID_INPUT for what is not a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_ssd_from_descriptor(
    descriptor: i32,
    name: *const c_char,
    access: u32,
    place: *mut dp_place,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let (name, access) = (arguments::path(name, "name")?, access_of(access)?);
            with_access(Ssd::from_fd(duplicate(descriptor)?, name)?, access)
        })
    }
}

/// A duplicate of a caller's descriptor.
pub(crate) fn duplicate(descriptor: i32) -> Result<std::os::fd::OwnedFd> {
    if descriptor < 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "open", format!("the descriptor {descriptor}")));
    }
    // SAFETY: it is borrowed for the next call only, which checks whether it is open.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().map_err(|e| Error::io("duplicate", e, format!("the descriptor {descriptor}")))
}

/// Sets the length of a file.
///
/// Errors: DP_INVALID_INPUT for a place that is no file; those of ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn dp_ssd_set_length(place: dp_place, len: u64) -> dp_error {
    enter(|| ssd_of(&*PLACES.get(place.id)?, "set the length")?.set_len(len))
}

/// Makes room for `len` bytes of a file, so that writes to them do not run out of space.
///
/// Errors: DP_NO_SPACE; DP_INVALID_INPUT for a place that is no file.
#[unsafe(no_mangle)]
pub extern "C" fn dp_ssd_preallocate(place: dp_place, len: u64) -> dp_error {
    enter(|| ssd_of(&*PLACES.get(place.id)?, "preallocate")?.preallocate(len).map(|_| ()))
}

/// Waits until what was written to a file is durable.
///
/// Errors: DP_DEVICE; DP_INVALID_INPUT for a place that is no file.
#[unsafe(no_mangle)]
pub extern "C" fn dp_ssd_sync(place: dp_place) -> dp_error {
    enter(|| ssd_of(&*PLACES.get(place.id)?, "sync")?.sync())
}

/// Opens a file of persistent memory, or a device such as `/dev/dax0.0`, as a place. It has the first
/// `len` bytes, and the file is made or made longer if need be; 0 for all that there are. With
/// `emulated` not 0 it may be any file, whose bytes survive a crash only once `dp_pmem_sync` has
/// returned.
///
/// Errors: DP_UNAVAILABLE where stores would not be persistent; DP_NOT_FOUND, DP_PERMISSION_DENIED;
/// those of mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_pmem_open(path: *const c_char, len: u64, emulated: u32, place: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let options = PmemOptions::default().len((len != 0).then_some(len)).emulated(emulated != 0);
            let opened = Pmem::open_with(arguments::path(path, "path")?, options);
            opened.map(Place::Pmem).map_err(|error| match error.kind() {
                ErrorKind::Unavailable if emulated == 0 => {
                    error.with_advice("say `emulated`: then an ordinary file will do")
                }
                _ => error,
            })
        })
    }
}

/// Waits until what was written to persistent memory survives a power failure. It is needed where
/// an ordinary file stands in for it, and for bytes that were not written by a transfer.
///
/// Errors: DP_DEVICE; DP_INVALID_INPUT for a place that is no persistent memory.
#[unsafe(no_mangle)]
pub extern "C" fn dp_pmem_sync(place: dp_place) -> dp_error {
    enter(|| match &*PLACES.get(place.id)? {
        Place::Pmem(pmem) => pmem.sync(),
        _ => Err(wrong("sync", "persistent memory")),
    })
}

/// Opens several places that are used as one, such as `"dram:1G,/fast,/large:100G"`: the library
/// chooses where bytes go. With `by_cost` not 0 the places are ordered by the cost of this machine's
/// routes, otherwise as they are listed.
///
/// Errors: DP_INVALID_INPUT for a list that makes no sense; those of opening the places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_staging_open(
    machine: dp_machine,
    places: *const c_char,
    by_cost: u32,
    place: *mut dp_place,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(place, || {
            let machine = MACHINES.get(machine.id)?;
            let order = if by_cost != 0 { StageOrder::Cost } else { StageOrder::default() };
            let places = StagePlace::parse_list(arguments::text(places, "places")?)?;
            machine.staging(places, order).map(Place::Staging)
        })
    }
}

/// Takes an extent of a staging: `len` bytes at `*offset` of it.
///
/// Errors: DP_NO_SPACE; DP_INVALID_INPUT for a place that is no staging.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_staging_extent(place: dp_place, len: u64, offset: *mut u64) -> dp_error {
    enter(|| {
        arguments::check(offset, "offset")?;
        let place = PLACES.get(place.id)?;
        let Place::Staging(staging) = &*place else { return Err(wrong("take an extent", "a staging")) };
        let extent = staging.extent(len)?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(offset, "offset", extent.offset) }
    })
}

/// Gives an extent of a staging back, or a part of one.
///
/// Errors: DP_INVALID_INPUT for a place that is no staging, and for bytes of which some were given back
/// already or never taken: then none are given back. DP_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn dp_staging_free(place: dp_place, offset: u64, len: u64) -> dp_error {
    enter(|| {
        let place = PLACES.get(place.id)?;
        let Place::Staging(staging) = &*place else { return Err(wrong("free an extent", "a staging")) };
        staging.free_taken(offset, len)
    })
}

/// Makes a place of `len` bytes at `at` of a place in memory: the same bytes.
///
/// Errors: DP_OUT_OF_RANGE; DP_INVALID_INPUT for a place that is not in memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_place_range(place: dp_place, at: u64, len: u64, part: *mut dp_place) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe {
        make(part, || {
            let place = PLACES.get(place.id)?;
            let beyond = || Error::new(ErrorKind::OutOfRange, "range", format!("{len} bytes at {at}"));
            let at = usize::try_from(at).map_err(|_| beyond())?;
            let len = usize::try_from(len).map_err(|_| beyond())?;
            match &*place {
                Place::Dram(dram) => dram.range(at, len).map(Place::Dram),
                Place::Numa(numa) => numa.range(at, len).map(Place::Numa),
                Place::Pmem(pmem) => pmem.range(at, len).map(Place::Pmem),
                Place::Shared(shared) => {
                    let part = shared.part.range(at, len)?;
                    Ok(Place::Shared(Shared { memory: shared.memory.clone(), at: shared.at + at, part }))
                }
                other => dram_of(other, "range")?.range(at, len).map(Place::Dram),
            }
        })
    }
}

/// Gives the length of a place in bytes. That of a file is its length now.
///
/// Errors: DP_UNSUPPORTED for a place without a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_place_length(place: dp_place, len: *mut u64) -> dp_error {
    enter(|| {
        let place = PLACES.get(place.id)?;
        let found = match &*place {
            Place::Ssd(ssd) => ssd.len()?,
            other => other
                .endpoint()
                .facts
                .len
                .ok_or_else(|| Error::new(ErrorKind::Unsupported, "take the length", "a staging has none"))?,
        };
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(len, "len", found) }
    })
}

/// Copies the name of a place, as in routes and messages, as `snprintf` does; `*len` becomes its
/// whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_place_name(
    place: dp_place,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let name = PLACES.get(place.id)?.endpoint().facts.name.clone();
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&name, text, capacity, len) };
        Ok(())
    })
}

/// Ends a place. Its bytes live on as long as pipes and leases refer to them.
///
/// Errors: DP_INVALID_INPUT for a place that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_place_close(place: dp_place) -> dp_error {
    enter(|| PLACES.close(place.id))
}

/// Copies `len` bytes at `at` of a place in memory to `into`, also where leases are refused because
/// others may change the bytes (persistent memory, shared memory). The copy may mix old and new
/// bytes if they do meanwhile.
///
/// Errors: DP_OUT_OF_RANGE; DP_BUSY while a lease or transfer may write them; DP_INVALID_INPUT for a
/// place that is not in memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_place_read(place: dp_place, at: u64, into: *mut c_void, len: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let into = unsafe { arguments::slice_mut(into.cast(), len, "into")? };
        let dram = dram_of(&*PLACES.get(place.id)?, "read")?;
        dram.memory().read(offset_of(at, len)?, into)
    })
}

/// Copies `len` bytes at `from` to `at` of a place in memory, also where leases are refused.
///
/// Errors: DP_OUT_OF_RANGE; DP_BUSY while a lease or transfer holds them; DP_INVALID_INPUT for a place
/// that is not in memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_place_write(place: dp_place, at: u64, from: *const c_void, len: usize) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let from = unsafe { arguments::slice(from.cast::<u8>(), len, "from")? };
        let dram = dram_of(&*PLACES.get(place.id)?, "write")?;
        dram.memory().write(offset_of(at, len)?, from)
    })
}

fn offset_of(at: u64, len: usize) -> Result<usize> {
    usize::try_from(at).map_err(|_| Error::new(ErrorKind::OutOfRange, "copy", format!("{len} bytes at {at}")))
}

/// Leases the bytes of a place in memory for reading: `*len` bytes at `*address`.
///
/// Errors: DP_BUSY while another lease or transfer may write them; DP_UNSUPPORTED for bytes that
/// others may change (persistent memory, shared memory).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_lease_read(
    place: dp_place,
    lease: *mut dp_lease,
    address: *mut *const c_void,
    len: *mut usize,
) -> dp_error {
    let take = |dram: &Dram| {
        let held = dram.lease()?;
        Ok((held.as_ptr().cast::<c_void>(), held.len(), Held::Read(held)))
    };
    // SAFETY: the header says what the pointers are.
    unsafe { lend(place, lease, address, len, take) }
}

/// Leases the bytes of a place in memory for writing: `*len` bytes at `*address`.
///
/// Errors: DP_BUSY while another lease or transfer holds them; DP_UNSUPPORTED for bytes that others
/// may change (persistent memory, shared memory).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_lease_write(
    place: dp_place,
    lease: *mut dp_lease,
    address: *mut *mut c_void,
    len: *mut usize,
) -> dp_error {
    let take = |dram: &Dram| {
        let mut held = dram.lease_mut()?;
        Ok((held.as_mut_ptr().cast::<c_void>(), held.len(), Held::Write(held)))
    };
    // SAFETY: the header says what the pointers are.
    unsafe { lend(place, lease, address, len, take) }
}

/// Takes a lease, and gives its handle, address and length.
///
/// # Safety
/// The pointers are null or valid for a write.
unsafe fn lend<P>(
    place: dp_place,
    lease: *mut dp_lease,
    address: *mut P,
    len: *mut usize,
    take: impl FnOnce(&Dram) -> Result<(P, usize, Held)>,
) -> dp_error {
    enter(|| {
        arguments::check(lease, "lease")?;
        arguments::check(address, "address")?;
        arguments::check_optional(len, "len")?;
        let (at, bytes, held) = take(&dram_of(&*PLACES.get(place.id)?, "lease")?)?;
        let id = LEASES.put(Mutex::new(held))?;
        // SAFETY: the caller of this function says so.
        unsafe {
            arguments::give(address, "address", at)?;
            if !len.is_null() {
                len.write(bytes);
            }
            arguments::give(lease, "lease", dp_lease { id })
        }
    })
}

/// Ends a lease. Its address must not be used any more.
///
/// Errors: DP_INVALID_INPUT for a lease that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_lease_close(lease: dp_lease) -> dp_error {
    enter(|| LEASES.close(lease.id))
}
