//! Descriptors and completion records byte by byte: round trips, and the offsets, codes and bits of
//! Linux's `include/uapi/linux/idxd.h` as literals.
#![allow(clippy::unwrap_used)]

use datapipes_dma::{
    CompletionCode, CompletionRecord, CompletionSlot, Descriptor, DescriptorBytes, DescriptorFlags, EngineOperation,
    MalformedDescriptor,
};
use proptest::prelude::*;

fn operation() -> impl Strategy<Value = EngineOperation> {
    let (a, b, c, len) = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>());
    let numbers = (0u8..12, a, b, c, len, any::<u32>(), any::<u8>(), any::<u16>());
    numbers.prop_map(|(kind, a, b, c, len, seed, expected, flags)| match kind {
        0 => EngineOperation::Noop,
        1 => EngineOperation::Batch { list: a, count: len },
        2 => EngineOperation::Drain,
        3 => EngineOperation::Memmove { source: a, target: b, len },
        4 => EngineOperation::Fill { pattern: a, target: b, len },
        5 => EngineOperation::Compare { first: a, second: b, len, expected },
        6 => EngineOperation::Dualcast { source: a, targets: [b, c], len },
        7 => EngineOperation::Crc { source: a, len, seed },
        8 => EngineOperation::CacheFlush { target: b, len },
        9 => EngineOperation::Decompress { source: a, target: b, len, max_target: seed, flags },
        10 => EngineOperation::Compress { source: a, target: b, len, max_target: seed, state: c, flags },
        _ => EngineOperation::Crc64 { source: a, len, polynomial: c, flags },
    })
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let fields = (0u32..1 << 20, any::<bool>(), 0u32..1 << 24, any::<u64>(), any::<u16>(), operation());
    fields.prop_map(|(pasid, privileged, flags, completion, interrupt_handle, operation)| Descriptor {
        pasid,
        privileged,
        flags: DescriptorFlags::from_bits(flags).unwrap(),
        completion,
        interrupt_handle,
        operation,
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

proptest! {
    #[test]
    fn a_descriptor_is_read_as_it_was_written(descriptor in descriptor()) {
        prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
    }

    #[test]
    fn the_fields_are_where_idxd_h_has_them(descriptor in descriptor()) {
        let bytes = descriptor.encode().0;
        prop_assert_eq!(u32_at(&bytes, 0) & 0xf_ffff, descriptor.pasid);
        prop_assert_eq!(u32_at(&bytes, 0) >> 20 & 0x7ff, 0);
        prop_assert_eq!(u32_at(&bytes, 0) >> 31 == 1, descriptor.privileged);
        prop_assert_eq!(u32_at(&bytes, 4) & 0xff_ffff, descriptor.flags.bits());
        prop_assert_eq!(u64_at(&bytes, 8), descriptor.completion);
        prop_assert_eq!(u16::from_le_bytes([bytes[36], bytes[37]]), descriptor.interrupt_handle);
        let (code, first, second, size) = match descriptor.operation {
            EngineOperation::Noop => (0x00, 0, 0, 0),
            EngineOperation::Batch { list, count } => (0x01, list, 0, count),
            EngineOperation::Drain => (0x02, 0, 0, 0),
            EngineOperation::Memmove { source, target, len } => (0x03, source, target, len),
            EngineOperation::Fill { pattern, target, len } => (0x04, pattern, target, len),
            EngineOperation::Compare { first, second, len, expected } => {
                prop_assert_eq!(bytes[40], expected);
                (0x05, first, second, len)
            }
            EngineOperation::Dualcast { source, targets, len } => {
                prop_assert_eq!(u64_at(&bytes, 40), targets[1]);
                (0x09, source, targets[0], len)
            }
            EngineOperation::Crc { source, len, seed } => {
                prop_assert_eq!(u32_at(&bytes, 40), seed);
                (0x10, source, 0, len)
            }
            EngineOperation::CacheFlush { target, len } => (0x20, 0, target, len),
            EngineOperation::Decompress { source, target, len, max_target, .. } => {
                prop_assert_eq!((u64_at(&bytes, 40), u32_at(&bytes, 48), u64_at(&bytes, 52)), (0, max_target, 0));
                (0x42, source, target, len)
            }
            EngineOperation::Compress { source, target, len, max_target, state, .. } => {
                prop_assert_eq!((u64_at(&bytes, 40), u32_at(&bytes, 48), u32_at(&bytes, 52)), (state, max_target, 0x620));
                (0x43, source, target, len)
            }
            EngineOperation::Crc64 { source, len, polynomial, .. } => {
                prop_assert_eq!((&bytes[40..56], u64_at(&bytes, 56)), (&[0; 16][..], polynomial));
                (0x44, source, 0, len)
            }
        };
        let flags = u16::from_le_bytes([bytes[38], bytes[39]]);
        match descriptor.operation {
            EngineOperation::Decompress { flags: asked, .. }
            | EngineOperation::Compress { flags: asked, .. }
            | EngineOperation::Crc64 { flags: asked, .. } => prop_assert_eq!(flags, asked),
            _ => prop_assert_eq!((flags, &bytes[48..]), (0, &[0; 16][..])),
        }
        prop_assert_eq!(bytes[7], code);
        prop_assert_eq!(u64_at(&bytes, 16), first);
        prop_assert_eq!(u64_at(&bytes, 24), second);
        prop_assert_eq!(u32_at(&bytes, 32), size);
    }

    #[test]
    fn any_bytes_are_a_descriptor_or_refused(bytes in any::<[u8; 32]>(), more in any::<[u8; 32]>()) {
        let mut all = [0; 64];
        all[..32].copy_from_slice(&bytes);
        all[32..].copy_from_slice(&more);
        if let Ok(descriptor) = Descriptor::decode(&DescriptorBytes(all)) {
            prop_assert_eq!(descriptor.encode().0, all);
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written(
        status in 1u8..0x80, write_fault: bool, result: u8, fault_info: u8, bytes_completed: u32, fault_address: u64,
        specific: [u8; 16],
    ) {
        let status = CompletionCode(status);
        let record =
            CompletionRecord { status, write_fault, result, fault_info, bytes_completed, fault_address, specific };
        let bytes = record.encode();
        prop_assert_eq!(CompletionRecord::decode(&bytes), record);
        prop_assert_eq!((bytes[0] & 0x7f, bytes[0] & 0x80 != 0), (status.0, write_fault));
        prop_assert_eq!((bytes[1], bytes[2], bytes[3]), (result, fault_info, 0));
        prop_assert_eq!((u32_at(&bytes, 4), u64_at(&bytes, 8)), (bytes_completed, fault_address));
        prop_assert_eq!(&bytes[16..], &specific);
        prop_assert_eq!(record.crc(), u32_at(&bytes, 16));
        let slot = CompletionSlot::default();
        prop_assert_eq!(slot.read(), None);
        slot.write(&record);
        prop_assert_eq!(slot.read(), Some(record));
    }
}

#[test]
fn codes_and_bits_are_those_of_idxd_h() {
    let flags = [
        (DescriptorFlags::FENCE, 0x0001),
        (DescriptorFlags::BLOCK_ON_FAULT, 0x0002),
        (DescriptorFlags::COMPLETION_VALID, 0x0004),
        (DescriptorFlags::REQUEST_COMPLETION, 0x0008),
        (DescriptorFlags::REQUEST_INTERRUPT, 0x0010),
        (DescriptorFlags::CHECK_RESULT, 0x0080),
        (DescriptorFlags::CACHE_CONTROL, 0x0100),
        (DescriptorFlags::READ_STATE, 0x01_0000),
    ];
    assert!(flags.iter().all(|(flag, bits)| flag.bits() == *bits));
    // `enum dsa_completion_status` counts from 0 and goes on at 0x10.
    let statuses = [
        (CompletionCode::SUCCESS, 1),
        (CompletionCode::UNEXPECTED_RESULT, 2),
        (CompletionCode::PAGE_FAULT, 3),
        (CompletionCode::PAGE_FAULT_UNRESOLVED, 4),
        (CompletionCode::BATCH_FAILED, 5),
        (CompletionCode::BATCH_PAGE_FAULT, 6),
        (CompletionCode::ANALYTICS, 0x0a),
        (CompletionCode::OUTPUT_FULL, 0x0b),
        (CompletionCode::BAD_OPERATION, 0x10),
        (CompletionCode::INVALID_FLAGS, 0x11),
        (CompletionCode::RESERVED_FIELD, 0x12),
        (CompletionCode::SIZE_OUT_OF_RANGE, 0x13),
        (CompletionCode::COUNT_OUT_OF_RANGE, 0x14),
        (CompletionCode::OVERLAP, 0x16),
        (CompletionCode::DUALCAST_TARGETS, 0x17),
        (CompletionCode::LIST_MISALIGNED, 0x18),
        (CompletionCode::HARDWARE, 0x20),
        (CompletionCode::TRANSLATION, 0x22),
    ];
    assert!(statuses.iter().all(|(status, code)| status.0 == *code));
    assert_eq!(size_of::<DescriptorBytes>(), 64);
    assert_eq!(align_of::<DescriptorBytes>(), 64);
    // A record of DSA has 32 bytes, one of an analytics accelerator 64.
    assert_eq!((size_of::<CompletionSlot>(), align_of::<CompletionSlot>()), (64, 64));
}

#[test]
fn a_whole_descriptor_as_the_kernels_header_lays_it_out() {
    let descriptor = Descriptor {
        pasid: 0x1_2345,
        privileged: true,
        flags: DescriptorFlags::COMPLETION_VALID | DescriptorFlags::REQUEST_COMPLETION | DescriptorFlags::CACHE_CONTROL,
        completion: 0x1122_3344_5566_7780,
        interrupt_handle: 0xabcd,
        operation: EngineOperation::Dualcast {
            source: 0x0102_0304_0506_0708,
            targets: [0x1112_1314_1516_1718, 0x2122_2324_2526_2728],
            len: 0x3132_3334,
        },
    };
    let mut expected = [0u8; 64];
    expected[..16].copy_from_slice(&[
        0x45, 0x23, 0x01, 0x80, 0x0c, 0x01, 0x00, 0x09, 0x80, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    ]);
    expected[16..32].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
    expected[32..38].copy_from_slice(&[0x34, 0x33, 0x32, 0x31, 0xcd, 0xab]);
    expected[40..48].copy_from_slice(&[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21]);
    assert_eq!(descriptor.encode().0, expected);
    // A reserved bit, and an operation that is not used.
    expected[2] |= 0x10;
    assert_eq!(Descriptor::decode(&DescriptorBytes(expected)), Err(MalformedDescriptor::Reserved));
    expected[7] = 0x12;
    assert_eq!(Descriptor::decode(&DescriptorBytes(expected)), Err(MalformedDescriptor::Operation(0x12)));
}
