//! Opening, refusals, leases and persisting, on files of the test file system; DAX devices by a
//! simulated sysfs.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::open::DaxDevice;
use super::{Pmem, PmemOptions};
use crate::error::ErrorKind;
use datapipes_testkit::TempFolder;

use crate::locator::{Locator, Persistence};
use crate::memory::Access;

/// A file name on the disk of the test's program, in a folder that vanishes.
struct Name(PathBuf, #[allow(dead_code)] TempFolder);

impl Name {
    fn new(name: &str) -> Name {
        let folder = TempFolder::beside_the_program().unwrap();
        Name(folder.path(name), folder)
    }
}

fn emulated(len: u64) -> PmemOptions {
    PmemOptions { len: Some(len), emulated: true }
}

#[test]
fn a_plain_file_is_refused_as_persistent_with_advice() {
    let name = Name::new("refused");
    std::fs::write(&name.0, [7; 8192]).unwrap();
    match Pmem::open(&name.0) {
        Ok(_) => println!("NOT APPLICABLE: a_plain_file_is_refused_as_persistent_with_advice: the tests run on DAX"),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(matches!(e.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)), "{e}");
            for part in ["MAP_SYNC", "dax=always", "emulated", name.0.to_str().unwrap()] {
                assert!(e.to_string().contains(part), "{part} is not in: {e}");
            }
        }
    }
}

#[test]
fn an_emulated_place_says_so_and_its_bytes_reach_the_file() {
    let name = Name::new("emulated");
    let pmem = Pmem::open_with(&name.0, emulated(10_000)).unwrap();
    let facts = pmem.endpoint().facts;
    assert_eq!((facts.kind, facts.persistence), ("pmem-emulated", Persistence::AfterSync));
    assert_eq!(facts.name, format!("pmem:{}?emulated", name.0.display()));
    assert!(pmem.is_emulated() && pmem.len() == 10_000);
    let part = pmem.range(4000, 3000).unwrap();
    assert!(part.endpoint().facts.name.ends_with("@4000+3000?emulated"), "{}", part.endpoint().facts.name);
    part.write(0, &[9; 3000]).unwrap();
    part.persist(0..3000).unwrap();
    pmem.sync().unwrap();
    let file = std::fs::File::open(&name.0).unwrap();
    let mut bytes = vec![1; 10_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, b)| *b == if (4000..7000).contains(&at) { 9 } else { 0 }));
    assert_eq!(part.persist(2999..3001).unwrap_err().kind(), ErrorKind::OutOfRange);
    part.persist(3000..3000).unwrap();
    // Opened again without a length, it has the whole file with the stored bytes.
    drop((part, pmem));
    let again = Pmem::open_with(&name.0, PmemOptions { len: None, emulated: true }).unwrap();
    let memory = again.memory();
    assert_eq!((again.len(), memory.to_vec().unwrap()[6999]), (10_000, 9));
    let _held = memory.raw_lease(Access::Read).unwrap();
    assert_eq!(again.write(9999, &[1]).unwrap_err().kind(), ErrorKind::Busy);
    // Any process that opens the file may change the bytes, so no references are given out.
    assert_eq!(memory.lease().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(memory.lease_mut().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_file_is_extended_never_cut_and_its_space_is_reserved() {
    use std::os::unix::fs::MetadataExt;
    let name = Name::new("length");
    std::fs::write(&name.0, [5; 5000]).unwrap();
    let short = Pmem::open_with(&name.0, emulated(100)).unwrap();
    assert_eq!((short.len(), std::fs::metadata(&name.0).unwrap().len()), (100, 5000));
    let long = Pmem::open_with(&name.0, emulated(1 << 20)).unwrap();
    let meta = std::fs::metadata(&name.0).unwrap();
    assert_eq!((long.len(), meta.len()), (1 << 20, 1 << 20));
    assert!(meta.blocks() * 512 >= 1 << 20, "{} blocks", meta.blocks());
    let mut seen = [1; 2];
    long.read(4999, &mut seen).unwrap();
    assert_eq!(seen, [5, 0]);
}

#[test]
fn anything_but_a_file_with_bytes_is_refused() {
    let kind = |path: &str, len| Pmem::open_with(path, PmemOptions { len, emulated: true }).unwrap_err();
    assert_eq!(kind("/nonexistent/file", None).kind(), ErrorKind::NotFound);
    let null = kind("/dev/null", None);
    assert!(null.kind() == ErrorKind::InvalidInput && null.to_string().contains("not a DAX device"), "{null}");
    let name = Name::new("empty");
    std::fs::write(&name.0, []).unwrap();
    let empty = Pmem::open_with(&name.0, PmemOptions { len: None, emulated: true }).unwrap_err();
    assert!(empty.kind() == ErrorKind::InvalidInput && empty.to_string().contains("give a length"), "{empty}");
}

#[test]
fn a_dax_device_is_known_by_sysfs_and_only_nvdimms_are_persistent() {
    use std::os::unix::fs::symlink;
    let name = Name::new("sysfs");
    let root = &name.0;
    let _ = std::fs::remove_dir_all(root);
    let device = |number: &str, path: &str, files: &[(&str, &str)]| {
        let real = root.join(path);
        std::fs::create_dir_all(&real).unwrap();
        std::fs::create_dir_all(root.join("dev/char")).unwrap();
        symlink(root.join("bus/dax"), real.join("subsystem")).unwrap();
        symlink(&real, root.join("dev/char").join(number)).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(real.join(name), text).unwrap());
    };
    device("252:0", "devices/ndbus0/region0/dax0.0/dax0.0", &[("size", "516947968\n"), ("align", "2097152\n")]);
    device("252:1", "devices/platform/hmem.0/dax1.0", &[("size", "0x40000000\n")]);
    let find = |minor| DaxDevice::find(root, 252, minor);
    assert_eq!(find(0), Ok(DaxDevice { len: 516_947_968, align: 2 << 20, persistent: true }));
    assert_eq!(find(1), Ok(DaxDevice { len: 1 << 30, align: 2 << 20, persistent: false }));
    assert!(find(2).unwrap_err().contains("not a DAX device"));
    std::fs::remove_dir_all(root).unwrap();
}
