//! Tests that a plain file cannot replace: a real `MAP_SYNC`, and a DAX device. Each needs hardware
//! that the environment names (`cargo xtask guest` emulates it), and prints that it was skipped
//! where there is none.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::path::PathBuf;

use datapipes_core::locator::Reach;
use datapipes_core::{Dram, ErrorKind, Locator, Persistence, Pmem, PmemOptions, Span, Ssd};
use scene::machine;

const LEN: u64 = 3 << 20;

fn named(variable: &str, test: &str, what: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("SKIPPED: {test}: {variable} names no {what}");
    }
    path
}

fn span(source: u64, target: u64, len: u64) -> Span {
    Span { source, target, len }
}

fn filled(len: u64) -> Dram {
    let dram = Dram::allocate(len as usize).unwrap();
    dram.lease_mut().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 / 7 % 253) as u8);
    dram
}

#[test]
fn a_file_on_dax_is_persistent_without_being_emulated() {
    const TEST: &str = "a_file_on_dax_is_persistent_without_being_emulated";
    let Some(dir) = named("DATAPIPES_DAX_DIR", TEST, "directory on persistent memory") else { return };
    let path = dir.join("real");
    let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN)).unwrap();
    let facts = pmem.endpoint().facts;
    assert_eq!((facts.kind, facts.persistence, facts.reach), ("pmem", Persistence::OnCompletion, Reach::Memory));
    assert_eq!((facts.granularity, facts.name.clone()), (256, format!("pmem:{}", path.display())));
    let (machine, dram) = (machine(), filled(LEN));
    let up = machine.connect(&dram, &pmem).unwrap();
    assert!(!format!("{}{}", up.route(), up.report()).contains("emulated"), "{}", up.route());
    up.transfer(span(1, 77, LEN - 100)).unwrap();
    // Another mapping and the file itself both show that the stored bytes are in the file without a
    // sync.
    let file = Ssd::open(&path).unwrap();
    let back = filled(LEN);
    machine.connect(&file, &back).unwrap().transfer(span(77, 0, LEN - 100)).unwrap();
    assert!(back.lease().unwrap()[..LEN as usize - 100] == dram.lease().unwrap()[1..LEN as usize - 99]);
    pmem.write(0, b"bytes").unwrap();
    pmem.persist(0..5).unwrap();
    // A file is read by two hops, of which the second flushes.
    let source = Ssd::unlinked_in(&dir).unwrap();
    source.preallocate(1 << 20).unwrap();
    let two = machine.connect(&source, &pmem).unwrap();
    assert_eq!(two.route().primitives().last(), Some(&"pmem-flush"));
    two.transfer(span(0, 300, 1 << 19)).unwrap();
    assert!(pmem.memory().to_vec().unwrap()[300..300 + (1 << 19)].iter().all(|byte| *byte == 0));
    // The file is truncated under the mapping.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let e = up.transfer(span(0, 0, LEN)).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Device, Some(1 << 20)), "{e}");
    up.transfer(span(0, 0, 1 << 20)).unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_dax_device_is_mapped_whole_and_keeps_its_bytes() {
    const TEST: &str = "a_dax_device_is_mapped_whole_and_keeps_its_bytes";
    let Some(device) = named("DATAPIPES_DAX_DEVICE", TEST, "DAX device") else { return };
    let (machine, dram) = (machine(), filled(LEN));
    let pmem = Pmem::open(&device).unwrap();
    assert!(pmem.len() >= 16 << 20 && pmem.len().is_multiple_of(2 << 20), "{}", pmem.len());
    assert_eq!(pmem.endpoint().facts.persistence, Persistence::OnCompletion);
    let at = pmem.len() as u64 - LEN - 5;
    machine.connect(&dram, &pmem).unwrap().transfer(span(0, at, LEN)).unwrap();
    pmem.sync().unwrap();
    drop(pmem);
    let again = Pmem::open(&device).unwrap();
    let back = Dram::allocate(LEN as usize).unwrap();
    machine.connect(&again, &back).unwrap().transfer(span(at, 0, LEN)).unwrap();
    assert!(*back.lease().unwrap() == *dram.lease().unwrap());
    let refused =
        |len, emulated| Pmem::open_with(&device, PmemOptions::default().len(len).emulated(emulated)).unwrap_err();
    assert_eq!(refused(4096, false).kind(), ErrorKind::Misaligned);
    assert_eq!(refused(1 << 40, false).kind(), ErrorKind::OutOfRange);
    assert!(refused(2 << 20, true).to_string().contains("only a file can be emulated"));
    assert_eq!(Pmem::open_with(&device, PmemOptions::default().len(2 << 20)).unwrap().len(), 2 << 20);
}
