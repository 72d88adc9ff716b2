//! Saving memory by hand, as a program without this crate would: `plain_save FILE SIZE REGIONS WAY`
//! writes SIZE bytes of memory to FILE.tmp, syncs it, renames it to FILE and syncs the folder; then
//! it reads the bytes back into other memory and compares them. It prints rates and processor time
//! as JSON. `cargo xtask bench checkpoint` compares `dpipe checkpoint` with it.
//!
//! ```text
//! cached      through the page cache, one thread; the pages are dropped before they are read
//! direct      past the page cache, a thread for each region, space reserved
//! direct-crc  the same, with a CRC-32 of each piece, written beside and checked on reading
//! ```
//! All memory is prefaulted, in huge pages where there are some.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use datapipes::Dram;
use rustix::fs::{Advice, FallocateFlags, OFlags};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A request of as many bytes as a disk takes at once.
const PIECE: usize = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Cached,
    Direct,
    DirectCrc,
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, size, regions, way] = &args[..] else { return Err("plain_save FILE SIZE REGIONS WAY".into()) };
    let way = match way.as_str() {
        "cached" => Way::Cached,
        "direct" => Way::Direct,
        "direct-crc" => Way::DirectCrc,
        other => return Err(format!("no way `{other}`").into()),
    };
    let (path, regions) = (Path::new(file), regions.parse::<usize>()?.max(1));
    let len = size.parse::<usize>()? / regions;
    if len == 0 || !len.is_multiple_of(PIECE) {
        return Err(format!("a region of {len} bytes is not whole pieces of {PIECE}").into());
    }
    let memories = || -> Outcome<Vec<Dram>> { (0..regions).map(|_| Ok(Dram::allocate(len)?)).collect() };
    let (sources, targets) = (memories()?, memories()?);
    for (nth, source) in sources.iter().enumerate() {
        fill(nth as u64, &mut source.lease_mut()?);
    }
    let gib = (len * regions) as f64 / f64::from(1 << 30);
    let (since, cpu) = (Instant::now(), cpu_ms());
    let sums = save(path, &sources, len, way)?;
    let (write_s, write_ms) = (since.elapsed().as_secs_f64(), cpu_ms() - cpu);
    if way == Way::Cached {
        // Reading back from memory is another job.
        rustix::fs::fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
    }
    let (since, cpu) = (Instant::now(), cpu_ms());
    restore(path, &targets, len, way, &sums)?;
    let (read_s, read_ms) = (since.elapsed().as_secs_f64(), cpu_ms() - cpu);
    std::fs::remove_file(path)?;
    for (source, target) in sources.iter().zip(&targets) {
        if source.lease()?[..] != target.lease()?[..] {
            return Err("what was read is not what was written".into());
        }
    }
    println!(
        "{{\"write_gib_s\":{:.3},\"cpu_ms_per_gib_write\":{:.2},\"read_gib_s\":{:.3},\"cpu_ms_per_gib_read\":{:.2}}}",
        gib / write_s,
        write_ms / gib,
        gib / read_s,
        read_ms / gib
    );
    Ok(())
}

/// Returns the checksums of each region, none if they are not asked for.
fn save(path: &Path, regions: &[Dram], len: usize, way: Way) -> Outcome<Vec<Vec<u32>>> {
    let unnamed = path.with_extension("tmp");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if way != Way::Cached {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let file = options.open(&unnamed)?;
    let write = |nth: usize| -> Outcome<Vec<u32>> {
        let mut sums = Vec::new();
        for (piece, bytes) in regions[nth].lease()?.chunks(PIECE).enumerate() {
            if way == Way::DirectCrc {
                sums.push(crc32fast::hash(bytes));
            }
            file.write_all_at(bytes, (nth * len + piece * PIECE) as u64)?;
        }
        Ok(sums)
    };
    let sums = match way {
        Way::Cached => (0..regions.len()).map(write).collect::<Outcome<Vec<_>>>()?,
        Way::Direct | Way::DirectCrc => {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, (len * regions.len()) as u64)?;
            on_threads(regions.len(), write)?
        }
    };
    file.sync_all()?;
    if way == Way::DirectCrc {
        let bytes: Vec<u8> = sums.iter().flatten().flat_map(|sum| sum.to_le_bytes()).collect();
        let beside = path.with_extension("crc");
        std::fs::write(&beside, bytes)?;
        File::open(&beside)?.sync_all()?;
        std::fs::remove_file(&beside)?;
    }
    std::fs::rename(&unnamed, path)?;
    File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(sums)
}

fn restore(path: &Path, regions: &[Dram], len: usize, way: Way, sums: &[Vec<u32>]) -> Outcome<()> {
    let mut options = OpenOptions::new();
    options.read(true);
    if way != Way::Cached {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let file = options.open(path)?;
    let read = |nth: usize| -> Outcome<()> {
        for (piece, bytes) in regions[nth].lease_mut()?.chunks_mut(PIECE).enumerate() {
            file.read_exact_at(bytes, (nth * len + piece * PIECE) as u64)?;
            if way == Way::DirectCrc && crc32fast::hash(bytes) != sums[nth][piece] {
                return Err(format!("the checksum of piece {piece} of region {nth} is wrong").into());
            }
        }
        Ok(())
    };
    match way {
        Way::Cached => (0..regions.len()).try_for_each(read),
        Way::Direct | Way::DirectCrc => on_threads(regions.len(), read).map(drop),
    }
}

fn on_threads<T: Send>(count: usize, work: impl Fn(usize) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|nth| scope.spawn(move || work(nth))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?).collect()
    })
}

/// Bytes that no layer below can compress or share.
fn fill(seed: u64, bytes: &mut [u8]) {
    let mut state = 0x2545_F491_4F6C_DD1D ^ (seed + 1);
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

fn cpu_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
