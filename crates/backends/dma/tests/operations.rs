//! Fill, compare, CRC, copies to two targets and flushes, on the model of a device.
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::Arc;

use datapipes_core::{Dram, ErrorKind};
use datapipes_dma::{CompletionCode, DescriptorFlags, EngineOperation, WorkQueue};
use datapipes_testkit::bounded;
use datapipes_testkit::child::{assert_forked_error, in_child};
use scene::{Behaviour, DeviceOptions, End, SoftwareDevice, crc32c, pair, pattern};

const LEN: usize = 100_003;

fn queue(device: &SoftwareDevice) -> Arc<WorkQueue> {
    device.backend().queue(None).unwrap()
}

/// Each second descriptor meets a missing page first.
fn faulty() -> SoftwareDevice {
    SoftwareDevice::with_plan(DeviceOptions::default(), |number, _| match number % 2 {
        0 => Behaviour::PageFault { done: 0, backward: false },
        _ => Behaviour::Run,
    })
}

fn devices() -> [SoftwareDevice; 2] {
    [SoftwareDevice::new(DeviceOptions::default()), faulty()]
}

#[test]
fn a_fill_repeats_its_pattern_over_all_parts() {
    bounded("a fill repeats its pattern over all parts", || {
        for device in devices() {
            let memory = Dram::allocate(LEN).unwrap();
            let pattern = 0x1122_3344_5566_7788_u64;
            queue(&device).fill(memory.memory(), pattern).unwrap();
            let expected: Vec<u8> = pattern.to_le_bytes().into_iter().cycle().take(LEN).collect();
            assert_eq!(*memory.lease().unwrap(), expected);
        }
    });
}

#[test]
fn a_comparison_sees_the_last_byte() {
    bounded("a comparison sees the last byte", || {
        for device in devices() {
            let (queue, (first, second)) = (queue(&device), pair(LEN));
            second.lease_mut().unwrap().copy_from_slice(&pattern(LEN));
            assert!(queue.compare(first.memory(), second.memory()).unwrap());
            for at in [LEN - 1, 0, 50_000] {
                second.lease_mut().unwrap()[at] ^= 1;
                assert!(!queue.compare(first.memory(), second.memory()).unwrap());
                second.lease_mut().unwrap()[at] ^= 1;
            }
            let e = queue.compare(first.memory(), &second.memory().range(0, 5).unwrap()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
        }
    });
}

#[test]
fn a_crc_goes_on_from_part_to_part() {
    bounded("a crc goes on from part to part", || {
        // RFC 3720, appendix B.4, and the check value of CRC-32C.
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        for device in devices() {
            let (queue, (source, _)) = (queue(&device), pair(LEN));
            assert_eq!(queue.crc32c(source.memory(), 0).unwrap(), crc32c(0, &pattern(LEN)));
            let (head, tail) = (source.memory().range(0, 777).unwrap(), source.memory().range(777, LEN - 777).unwrap());
            let seed = queue.crc32c(&head, 0).unwrap();
            assert_eq!(queue.crc32c(&tail, seed).unwrap(), crc32c(0, &pattern(LEN)));
        }
    });
}

#[test]
fn a_dualcast_reaches_both_targets_which_lie_alike_in_their_pages() {
    bounded("a dualcast reaches both targets which lie alike in their pages", || {
        for device in devices() {
            let (queue, (source, _)) = (queue(&device), pair(LEN));
            let targets = Dram::allocate(2 * (128 << 10) + 100).unwrap();
            let target = |at| targets.memory().range(at, LEN).unwrap();
            queue.dualcast(source.memory(), [&target(0), &target(128 << 10)]).unwrap();
            for at in [0, 128 << 10] {
                assert_eq!(target(at).to_vec().unwrap(), pattern(LEN));
            }
            let e = queue.dualcast(source.memory(), [&target(0), &target((128 << 10) + 8)]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Misaligned);
            // Targets that overlap cannot both be leased.
            let e = queue.dualcast(source.memory(), [&target(0), &target(4096)]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Busy);
        }
    });
}

#[test]
fn a_flush_names_every_byte_and_drops_the_lines() {
    bounded("a flush names every byte and drops the lines", || {
        for device in devices() {
            let (queue, (memory, _)) = (queue(&device), pair(LEN));
            queue.flush_caches(memory.memory()).unwrap();
            let base = memory.memory().address().addr() as u64;
            let mut flushed: Vec<(u64, u32)> = device
                .log()
                .iter()
                .map(|descriptor| match descriptor.operation {
                    EngineOperation::CacheFlush { target, len } => {
                        assert!(!descriptor.flags.has(DescriptorFlags::CACHE_CONTROL));
                        (target - base, len)
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            flushed.dedup();
            assert_eq!(flushed.iter().map(|(_, len)| u64::from(*len)).sum::<u64>(), LEN as u64);
            assert!(flushed.windows(2).all(|pair| pair[0].0 + u64::from(pair[0].1) == pair[1].0));
            assert_eq!(*memory.lease().unwrap(), pattern(LEN));
        }
    });
}

#[test]
fn failures_are_told_with_the_bytes_done_and_free_the_memory() {
    bounded("failures are told with the bytes done and free the memory", || {
        let failing = SoftwareDevice::with_plan(DeviceOptions::default(), |number, _| match number {
            2 => Behaviour::Fail(CompletionCode::TRANSLATION),
            _ => Behaviour::Run,
        });
        let dying = SoftwareDevice::with_plan(DeviceOptions::default(), |number, _| match number {
            2 => Behaviour::Die,
            _ => Behaviour::Run,
        });
        for (device, said) in [(failing, "could not be translated"), (dying, "was lost")] {
            let memory = Dram::allocate(LEN).unwrap();
            let e = queue(&device).fill(memory.memory(), 7).unwrap_err();
            assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 2 * (16 << 10)), "{e}");
            assert!(e.to_string().contains(said), "{e}");
            drop(memory.lease_mut().unwrap());
        }
        let always = SoftwareDevice::with_plan(DeviceOptions::default(), |_, _| Behaviour::PageFault {
            done: 0,
            backward: false,
        });
        let memory = Dram::allocate(LEN).unwrap();
        let e = queue(&always).fill(memory.memory(), 7).unwrap_err();
        assert!(e.to_string().contains("page fault"), "{e}");
        let full = SoftwareDevice::new(DeviceOptions::default());
        full.refuse(u64::MAX);
        assert_eq!(queue(&full).fill(memory.memory(), 7).unwrap_err().kind(), ErrorKind::Busy);
    });
}

#[test]
fn memory_of_an_operation_that_may_still_run_is_never_given_back() {
    bounded("memory of an operation that may still run is never given back", || {
        let device =
            SoftwareDevice::with_plan(DeviceOptions { end: End::Unstoppable, ..DeviceOptions::default() }, |_, _| {
                Behaviour::Die
            });
        let backend = device.backend().with_patience(std::time::Duration::from_millis(100));
        let memory = Dram::allocate(LEN).unwrap();
        let e = backend.queue(None).unwrap().fill(memory.memory(), 7).unwrap_err();
        assert!(e.to_string().contains("cannot be stopped"), "{e}");
        assert_eq!(memory.lease().unwrap_err().kind(), ErrorKind::Busy);
    });
}

#[test]
fn a_child_submits_nothing() {
    bounded("a child submits nothing", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let (queue, (source, target)) = (queue(&device), pair(LEN));
        let (from, to) = (source.memory(), target.memory());
        in_child(&|| {
            assert_forked_error(queue.fill(to, 7));
            assert_forked_error(queue.compare(from, to));
            assert_forked_error(queue.crc32c(from, 0));
            assert_forked_error(queue.flush_caches(from));
            assert!(!queue.is_usable() && queue.lost().is_none());
            // The memory of the child is its own, and free.
            drop(target.lease_mut().unwrap());
        });
        queue.fill(to, 7).unwrap();
    });
}
