//! Places to certify: how they are made anew for each case, and their bytes without a pipe.

use std::any::Any;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use datapipes_core::locator::{Endpoint, EndpointHandle};
use datapipes_core::locks::Mutex;
use datapipes_core::topology::Topology;
use datapipes_core::{
    CoreCache, Dram, Error, ErrorKind, FileAccess, Locator, MapOptions, NumaMemory, Pages, Pool, Result, Ssd,
};

/// Bytes of a place that may choose its length: neither blocks, pages nor cache lines.
pub const LEN: usize = (96 << 10) + 37;

/// A place that was made for one case.
pub struct TestPlace {
    locator: Box<dyn Locator>,
    /// What must live as long (a pool).
    _keeper: Box<dyn Any>,
    /// The place that has its bytes, where they are reached only through it or by a backend.
    behind: Option<Box<dyn Locator>>,
    /// How its bytes are seen, where only its backend knows them.
    content: Option<Box<dyn PlaceContent>>,
}

/// The bytes of a place that only its backend knows, without a pipe.
pub trait PlaceContent {
    /// Returns all of them.
    ///
    /// # Errors
    /// Those of the place.
    fn bytes(&self) -> Result<Vec<u8>>;

    /// Makes them these.
    ///
    /// # Errors
    /// Those of the place.
    fn fill(&self, bytes: &[u8]) -> Result<()>;
}

impl TestPlace {
    /// A place by its locator.
    pub fn new(locator: impl Locator + 'static) -> TestPlace {
        TestPlace::kept_by(locator, ())
    }

    /// A place that gives out the bytes of another, a file or memory.
    pub fn in_front_of(locator: impl Locator + 'static, behind: impl Locator + 'static) -> TestPlace {
        TestPlace { behind: Some(Box::new(behind)), ..TestPlace::new(locator) }
    }

    /// The same with what must live as long.
    #[must_use]
    pub fn with_keeper(self, keeper: impl Any) -> TestPlace {
        TestPlace { _keeper: Box::new(keeper), ..self }
    }

    /// A place that lives on what `keeper` holds.
    pub fn kept_by(locator: impl Locator + 'static, keeper: impl Any) -> TestPlace {
        TestPlace { locator: Box::new(locator), _keeper: Box::new(keeper), behind: None, content: None }
    }

    /// A place whose bytes are seen by `content`.
    pub fn seen_by(locator: impl Locator + 'static, content: impl PlaceContent + 'static) -> TestPlace {
        TestPlace { content: Some(Box::new(content)), ..TestPlace::new(locator) }
    }

    /// The locator.
    pub fn locator(&self) -> &dyn Locator {
        &*self.locator
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.locator.endpoint()
    }

    /// What has the bytes.
    fn holder(&self) -> Endpoint {
        self.behind.as_ref().map_or_else(|| self.endpoint(), |behind| behind.endpoint())
    }

    /// The bytes, read without a pipe.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        if let Some(content) = &self.content {
            return content.bytes();
        }
        match &self.holder().handle {
            EndpointHandle::Memory(range) => range.to_vec(),
            EndpointHandle::File(file) => {
                let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
                descriptor(file.cached_fd())?
                    .read_exact_at(&mut bytes, 0)
                    .map_err(|e| Error::io("read", e, "a twin"))?;
                Ok(bytes)
            }
            _ => Err(strange()),
        }
    }

    /// Fills it with these bytes, without a pipe.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<()> {
        if let Some(content) = &self.content {
            return content.fill(bytes);
        }
        match &self.holder().handle {
            EndpointHandle::Memory(range) => range.write(0, bytes)?,
            EndpointHandle::File(file) => {
                // Who gives out bytes of the file hears of it, as of what a pipe writes.
                let change = file.write_observers().begin(0..bytes.len() as u64);
                let written = descriptor(file.cached_fd())?.write_all_at(bytes, 0);
                file.write_observers().end(change);
                written.map_err(|e| Error::io("write", e, "a twin"))?;
            }
            _ => return Err(strange()),
        }
        Ok(())
    }
}

fn descriptor(fd: std::os::fd::BorrowedFd<'_>) -> Result<File> {
    fd.try_clone_to_owned().map(File::from).map_err(|e| Error::io("duplicate", e, "a descriptor"))
}

fn strange() -> Error {
    Error::new(ErrorKind::Unsupported, "look at", "a place whose bytes only its backend knows")
}

type Make = Box<dyn Fn() -> Result<TestPlace>>;

/// A kind of place: a name and how one is made, or why there is none here.
pub struct PlaceKind {
    /// Its name in outcomes.
    pub name: String,
    make: Result<Make, String>,
    pub(super) read_only: bool,
}

impl PlaceKind {
    /// A kind by how one is made.
    pub fn new(name: impl Into<String>, make: impl Fn() -> Result<TestPlace> + 'static) -> PlaceKind {
        PlaceKind { name: name.into(), make: Ok(Box::new(make)), read_only: false }
    }

    /// That of places that are read and never written: as a target, a pipe to it must be refused.
    #[must_use]
    pub fn read_only(self) -> PlaceKind {
        PlaceKind { read_only: true, ..self }
    }

    /// A kind that cannot be had here: all its cases are skipped with this reason.
    pub fn absent(name: impl Into<String>, why: impl Into<String>) -> PlaceKind {
        PlaceKind { name: name.into(), make: Err(why.into()), read_only: false }
    }

    pub(super) fn make(&self) -> Result<TestPlace, String> {
        let make = self.make.as_ref().map_err(String::clone)?;
        make().map_err(|e| e.to_string())
    }

    /// Memory on small and huge pages and from a pool, and the L2 and the L3 share of the first
    /// usable core.
    pub fn of_memory(topology: &Topology) -> Vec<PlaceKind> {
        let plain = |len| Dram::allocate_with(len, MapOptions::default().pages(Pages::Small).prefault(false));
        let mut kinds = vec![
            PlaceKind::new("dram", move || plain(LEN).map(TestPlace::new)),
            // Long enough to be aligned to a huge page; the place is a part of it.
            PlaceKind::new("dram-huge", || Dram::allocate(3 << 20)?.range(4097, LEN).map(TestPlace::new)),
            PlaceKind::new("dram-pool", || {
                let pool = Pool::new(4 * LEN, MapOptions::default().prefault(false))?;
                let neighbour = Dram::from_pool(&pool, 1)?;
                Ok(TestPlace::kept_by(Dram::from_pool(&pool, LEN)?, (pool, neighbour)))
            }),
        ];
        for level in [2, 3] {
            let name = format!("cache-l{level}");
            kinds.push(match topology.usable_cores().next().cloned() {
                None => PlaceKind::absent(name, "no usable core was discovered"),
                Some(core) => {
                    PlaceKind::new(name, move || CoreCache::at_level(&core, level, &plain(LEN)?).map(TestPlace::new))
                }
            });
        }
        kinds
    }

    /// Memory of each NUMA node; where there is none, the first one, absent.
    pub fn of_nodes(topology: &Topology) -> Vec<PlaceKind> {
        let with_memory = topology.nodes.iter().filter(|node| node.total_bytes != Some(0));
        let kinds: Vec<PlaceKind> = with_memory
            .filter_map(|node| u32::try_from(node.index).ok())
            .map(|node| {
                PlaceKind::new(format!("numa{node}"), move || NumaMemory::allocate(node, LEN).map(TestPlace::new))
            })
            .collect();
        if kinds.is_empty() { vec![PlaceKind::absent("numa0", "the kernel tells of no NUMA nodes")] } else { kinds }
    }

    /// Files in a directory, by each access.
    pub fn of_files(label: &str, dir: &Path) -> Vec<PlaceKind> {
        let accesses = [("auto", FileAccess::Auto), ("direct", FileAccess::Direct), ("cached", FileAccess::Cached)];
        let kind = |(name, access)| {
            let (dir, name) = (dir.to_path_buf(), format!("{label}-{name}"));
            PlaceKind::new(name, move || {
                let ssd = Ssd::unlinked_in(&dir)?.with_access(access)?;
                ssd.preallocate(LEN as u64)?;
                Ok(TestPlace::new(ssd))
            })
        };
        accesses.into_iter().map(kind).collect()
    }

    /// Block devices, by direct and by cached access; at least four, since a case and its pair each
    /// need two.
    pub fn of_devices(devices: Result<Vec<TestBlockDevice>, String>) -> Vec<PlaceKind> {
        let names = [("block-direct", FileAccess::Direct), ("block-cached", FileAccess::Cached)];
        match devices {
            Err(why) => names.into_iter().map(|(name, _)| PlaceKind::absent(name, why.as_str())).collect(),
            Ok(devices) => {
                let free = Arc::new(Mutex::new(devices));
                let kind = |(name, access)| {
                    let free = free.clone();
                    let make = move || {
                        let device = free.lock().pop().ok_or_else(|| {
                            Error::new(ErrorKind::Busy, "take", "a block device: all of them are in use")
                        })?;
                        let place = Ssd::open_rw(&device.device)?.with_access(access)?;
                        Ok(TestPlace::kept_by(place, Taken { device: Some(device), free: free.clone() }))
                    };
                    PlaceKind::new(name, make)
                };
                names.into_iter().map(kind).collect()
            }
        }
    }
}

/// A device that returns to those that are free.
struct Taken {
    device: Option<TestBlockDevice>,
    free: Arc<Mutex<Vec<TestBlockDevice>>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.free.lock().extend(self.device.take());
    }
}

/// A block device whose content may be lost.
#[derive(Debug)]
pub struct TestBlockDevice {
    device: PathBuf,
    /// Whether it is a loop device, to be detached on drop.
    is_loop: bool,
}

/// Devices to use instead of loop devices, at least four, with colons between them.
const GIVEN: &str = "DATAPIPES_BLOCK_DEVICES";

impl TestBlockDevice {
    /// The devices that the environment names in `DATAPIPES_BLOCK_DEVICES`, or loop devices over
    /// files in `dir`.
    pub fn some(dir: &Path) -> Result<Vec<TestBlockDevice>, String> {
        match std::env::var(GIVEN) {
            Ok(given) => {
                Ok(given.split(':').map(|path| TestBlockDevice { device: path.into(), is_loop: false }).collect())
            }
            Err(_) => (0..4).map(|_| TestBlockDevice::over_a_file_in(dir)).collect(),
        }
    }

    /// Sets up a loop device with blocks of 4 KiB over an unnamed file in `dir`; the reason where
    /// that is refused (it takes root and loop devices).
    fn over_a_file_in(dir: &Path) -> Result<TestBlockDevice, String> {
        let file = dir.join(format!("conformance-loop-{}", std::process::id()));
        if !Path::new("/dev/loop-control").exists() {
            return Err("there is no /dev/loop-control".into());
        }
        let made = File::create(&file).and_then(|f| f.set_len(256 << 10)).map_err(|e| e.to_string());
        let losetup = || Command::new("losetup").args(["-b", "4096", "-f", "--show"]).arg(&file).output();
        let output = made.and_then(|()| losetup().map_err(|e| format!("losetup: {e}")));
        // The device keeps the file.
        let _ = std::fs::remove_file(&file);
        let output = output?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(TestBlockDevice { device: String::from_utf8_lossy(&output.stdout).trim().into(), is_loop: true })
    }
}

impl Drop for TestBlockDevice {
    fn drop(&mut self) {
        if self.is_loop {
            let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
        }
    }
}
