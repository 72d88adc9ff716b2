//! CRC-64, compression and decompression, on a model of an analytics accelerator (Intel IAA).
#![allow(clippy::unwrap_used)]

mod scene;

use std::fs;
use std::io::Write;
use std::time::Duration;

use datapipes_core::{Dram, ErrorKind};
use datapipes_dma::{
    AnalyticsQueue, AnalyticsRecord, CompletionCode, CompletionSlot, CompressState, Crc64Convention, QueueDiscovery,
    WorkQueue,
};
use datapipes_testkit::child::{assert_forked_error, in_child};
use datapipes_testkit::{TempFolder, bounded};
use flate2::write::{DeflateDecoder, DeflateEncoder};
use flate2::{Compression, Crc};
use proptest::prelude::*;
use scene::{Behaviour, DeviceOptions, End, SoftwareDevice, pattern};

const LEN: usize = 10_007;

fn options() -> DeviceOptions {
    DeviceOptions { max_transfer_bytes: 1 << 20, ..DeviceOptions::default() }
}

/// One that runs everything, and one where each second descriptor meets a missing page first.
fn devices() -> [SoftwareDevice; 2] {
    let faulty = SoftwareDevice::with_plan(options(), |number, _| match number % 2 {
        0 => Behaviour::PageFault { done: 0, backward: false },
        _ => Behaviour::Run,
    });
    [SoftwareDevice::new(options()), faulty]
}

fn with(bytes: &[u8]) -> Dram {
    let memory = Dram::allocate(bytes.len()).unwrap();
    memory.lease_mut().unwrap().copy_from_slice(bytes);
    memory
}

fn inflated(stream: &[u8]) -> Vec<u8> {
    let mut decoder = DeflateDecoder::new(Vec::new());
    decoder.write_all(stream).unwrap();
    decoder.finish().unwrap()
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Bytes that are nowhere alike, and runs of all lengths.
fn input() -> Vec<u8> {
    let runs = (1..300_usize).flat_map(|len| std::iter::repeat_n(len as u8, len));
    pattern(LEN).into_iter().chain(runs).collect()
}

#[test]
fn a_crc64_is_that_of_its_convention() {
    bounded("a crc64 is that of its convention", || {
        for device in devices() {
            let queue = device.analytics();
            let check = with(b"123456789");
            // The check values of the catalogue of parametrised CRC algorithms.
            for (convention, value) in
                [(Crc64Convention::ECMA_182, 0x6c40_df5f_0b49_7347), (Crc64Convention::XZ, 0x995d_c9bb_df19_39fa)]
            {
                assert_eq!(queue.crc64(check.memory(), convention).unwrap(), value);
            }
        }
    });
}

#[test]
fn what_is_compressed_is_read_by_others_and_the_other_way_round() {
    bounded("what is compressed is read by others and the other way round", || {
        for device in devices() {
            let (queue, plain) = (device.analytics(), input());
            let (source, target) = (with(&plain), Dram::allocate(2 * plain.len()).unwrap());
            let done = queue.compress(source.memory(), target.memory()).unwrap();
            let stream = target.lease().unwrap()[..done.bytes].to_vec();
            assert!(inflated(&stream) == plain && done.crc32 == crc32(&plain));
            assert!(stream.len() < plain.len(), "runs are short: {} of {}", stream.len(), plain.len());
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&plain).unwrap();
            for stream in [stream, encoder.finish().unwrap()] {
                let (source, target) = (with(&stream), Dram::allocate(plain.len()).unwrap());
                let done = queue.decompress(source.memory(), target.memory()).unwrap();
                assert_eq!((done.bytes, done.crc32), (plain.len(), crc32(&plain)));
                assert!(*target.lease().unwrap() == plain);
            }
        }
    });
}

#[test]
fn what_does_not_fit_or_cannot_be_read_is_told() {
    bounded("what does not fit or cannot be read is told", || {
        let queue = SoftwareDevice::new(options()).analytics();
        let (source, small) = (with(&pattern(LEN)), Dram::allocate(100).unwrap());
        assert_eq!(queue.compress(source.memory(), small.memory()).unwrap_err().kind(), ErrorKind::NoSpace);
        let target = Dram::allocate(2 * LEN).unwrap();
        let done = queue.compress(source.memory(), target.memory()).unwrap();
        let stream = target.memory().range(0, done.bytes).unwrap();
        assert_eq!(queue.decompress(&stream, small.memory()).unwrap_err().kind(), ErrorKind::NoSpace);
        let cut = target.memory().range(0, done.bytes - 1).unwrap();
        let back = Dram::allocate(2 * LEN).unwrap();
        let e = queue.decompress(&cut, back.memory()).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("4096 bytes"), "{e}");
        // One block with fixed codes, and in it a length code that stands for nothing (286).
        let wrong = with(&[0x1b, 0x03, 0, 0]);
        let e = queue.decompress(wrong.memory(), back.memory()).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("0x0b"), "{e}");
        let long = Dram::allocate((1 << 20) + 1).unwrap();
        let e = queue.crc64(long.memory(), Crc64Convention::XZ).unwrap_err();
        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("1 to 1048576"), "{e}");
        // The output is leased alone.
        assert_eq!(queue.compress(&stream, target.memory()).unwrap_err().kind(), ErrorKind::Busy);
        let failing = SoftwareDevice::with_plan(options(), |_, _| Behaviour::Fail(CompletionCode::TRANSLATION));
        let e = failing.analytics().crc64(source.memory(), Crc64Convention::XZ).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("could not be translated"), "{e}");
    });
}

#[test]
fn a_child_submits_nothing() {
    bounded("a child submits nothing", || {
        let device = SoftwareDevice::new(options());
        let (queue, source, target) = (device.analytics(), with(&pattern(LEN)), Dram::allocate(2 * LEN).unwrap());
        in_child(&|| {
            assert_forked_error(queue.crc64(source.memory(), Crc64Convention::XZ));
            assert_forked_error(queue.compress(source.memory(), target.memory()));
            assert_forked_error(queue.decompress(source.memory(), target.memory()));
        });
        queue.crc64(source.memory(), Crc64Convention::XZ).unwrap();
    });
}

#[test]
fn memory_that_a_lost_accelerator_may_write_is_never_given_back() {
    bounded("memory that a lost accelerator may write is never given back", || {
        for (end, is_kept) in [(End::Unstoppable, true), (End::Reported, false)] {
            let device = SoftwareDevice::with_plan(DeviceOptions { end, ..options() }, |_, _| Behaviour::Die);
            let queue = WorkQueue::new(device.facts(), Box::new(device.portal()));
            let queue = AnalyticsQueue::over(queue.with_patience(Duration::from_millis(100)));
            let (source, target) = (with(&pattern(LEN)), Dram::allocate(2 * LEN).unwrap());
            let e = queue.compress(source.memory(), target.memory()).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Device, "{e}");
            assert_eq!(target.lease_mut().is_err(), is_kept, "{end:?}");
        }
    });
}

#[test]
fn the_codes_are_those_of_rfc_1951_as_the_kernels_driver_has_them() {
    let state = CompressState::fixed();
    let number = |at: usize| u32::from_le_bytes(state.bytes()[at..at + 4].try_into().unwrap());
    assert_eq!((state.bytes().len(), align_of::<CompressState>(), number(28), number(32)), (0x620, 64, 3, 3));
    // `fixed_ll_sym` and `fixed_d_sym` of drivers/crypto/intel/iaa/iaa_crypto_comp_fixed.c.
    for (symbol, entry) in [
        (0, 0x40030),
        (143, 0x400bf),
        (144, 0x48190),
        (255, 0x481ff),
        (256, 0x38000),
        (279, 0x38017),
        (280, 0x400c0),
        (285, 0x400c5),
    ] {
        assert_eq!(number(288 + 4 * symbol), entry, "{symbol}");
    }
    assert_eq!((number(1440), number(1440 + 4 * 29), number(1440 + 4 * 30)), (0x28000, 0x2801d, 0));
}

#[test]
fn queues_of_accelerators_are_found_beside_those_of_engines() {
    let root = TempFolder::new().unwrap();
    let put = |device: &str, attribute: &str, value: &str| {
        let folder = root.path("sys/bus/dsa/devices").join(device);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(attribute), format!("{value}\n")).unwrap();
    };
    put("dsa0", "state", "enabled");
    let found = QueueDiscovery::analytics_under(root.at());
    assert!(found.reason().contains("no analytics accelerator (IAA)"), "{found:?}");
    for (attribute, value) in [
        ("state", "enabled"),
        ("pasid_enabled", "1"),
        ("max_transfer_size", "2147483648"),
        ("version", "0x100"),
        ("op_cap", "0,7f331c,0,d"),
    ] {
        put("iax1", attribute, value);
    }
    for (attribute, value) in [("type", "user"), ("state", "enabled"), ("mode", "shared"), ("size", "16")] {
        put("wq1.0", attribute, value);
    }
    let found = QueueDiscovery::analytics_under(root.at());
    assert!(found.reason().contains("/dev/iax/wq1.0 does not exist"), "{found:?}");
    fs::create_dir_all(root.path("dev/iax")).unwrap();
    fs::write(root.path("dev/iax/wq1.0"), "").unwrap();
    let found = QueueDiscovery::analytics_under(root.at());
    let [queue] = found.usable.as_slice() else { panic!("{found:?}") };
    assert_eq!((queue.device.as_str(), queue.path.clone(), queue.max_batch), ("iax1", root.path("dev/iax/wq1.0"), 0));
    let capabilities = queue.capabilities();
    assert_eq!(capabilities, [("version", "0x100".to_owned()), ("op_cap", "0,7f331c,0,d".to_owned())]);
    assert!(QueueDiscovery::under(root.at()).usable.is_empty(), "it copies nothing");
}

proptest! {
    #[test]
    fn a_record_of_an_accelerator_is_read_as_it_was_written(
        status in 1u8..0x80, write_fault: bool, error_code: u8, fault_info: u8, bytes_completed: u32, fault_address: u64,
        invalid_flags: u32, output_bytes: u32, output_bits: u8, xor_checksum: u16, checksum: u64,
    ) {
        let status = CompletionCode(status);
        let record = AnalyticsRecord {
            status, write_fault, error_code, fault_info, bytes_completed, fault_address, invalid_flags, output_bytes,
            output_bits, xor_checksum, checksum,
        };
        let bytes = record.encode();
        prop_assert_eq!(AnalyticsRecord::decode(&bytes), record);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        prop_assert_eq!((bytes[0] & 0x7f, bytes[0] >> 7, bytes[1]), (status.0, u8::from(write_fault), error_code));
        prop_assert_eq!((u32_at(4), u32_at(16), u32_at(24)), (bytes_completed, invalid_flags, output_bytes));
        prop_assert_eq!((bytes[28], bytes[30], bytes[31]), (output_bits, xor_checksum as u8, (xor_checksum >> 8) as u8));
        prop_assert_eq!(u64::from_le_bytes(bytes[32..40].try_into().unwrap()), checksum);
        prop_assert_eq!(&bytes[40..], &[0; 24]);
        let slot = CompletionSlot::default();
        prop_assert_eq!(AnalyticsRecord::read_from(&slot), None);
        record.write_to(&slot);
        prop_assert_eq!(AnalyticsRecord::read_from(&slot), Some(record));
    }

    #[test]
    fn any_bytes_come_back(bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 1..2000)) {
        let queue = SoftwareDevice::new(options()).analytics();
        let (source, target) = (with(&bytes), Dram::allocate(2 * bytes.len() + 16).unwrap());
        let done = queue.compress(source.memory(), target.memory()).unwrap();
        let back = Dram::allocate(bytes.len()).unwrap();
        let stream = target.memory().range(0, done.bytes).unwrap();
        prop_assert_eq!(queue.decompress(&stream, back.memory()).unwrap().bytes, bytes.len());
        prop_assert!(*back.lease().unwrap() == bytes);
    }
}
