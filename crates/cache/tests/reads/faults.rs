//! The cache over a failing device, compared with a plain byte array: random operations, one
//! thread, all policies.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::fixture::array::{Array, Fault};
use crate::fixture::{Random, mix, noise, seed, small, steps};
use datapipes_cache::{CachePolicy, FineGrained};
use datapipes_core::{Error, ErrorKind};

const LONGEST: u64 = 300 << 10;

/// The cache, the device, and the bytes that the cache must return.
struct Twin {
    fine: FineGrained,
    array: Arc<Array>,
    grain: u64,
    bytes: Vec<u8>,
    faults: Vec<(Range<u64>, Fault)>,
    context: String,
    failed: u64,
    served: u64,
}

impl Twin {
    fn new(policy: CachePolicy, granularity: u32, seed: u64) -> Twin {
        let bytes = noise(200 << 10, seed);
        let array = Arc::new(Array::new(granularity, bytes.clone()));
        let fine = FineGrained::with_engine(array.clone(), small(policy), "array").unwrap();
        let context = format!("seed {seed}, {}, granularity {granularity}", policy.name());
        let grain = u64::from(granularity);
        Twin { fine, array, grain, bytes, faults: Vec::new(), context, failed: 0, served: 0 }
    }

    fn range(&self, r: &mut Random) -> (u64, usize) {
        let most = [1, 8, 64, 128, 600, 4096, 9000, 70_000][r.below(8) as usize];
        let len = 1 + r.below(most);
        let span = if r.one_in(4) { LONGEST } else { 64 << 10 };
        let offset = if r.one_in(3) { r.below(span) } else { r.below(span) / 64 * 64 };
        (offset, len as usize)
    }

    /// Whether the smallest pieces with these bytes have a fault.
    fn concerned(&self, offset: u64, len: usize) -> bool {
        let (from, to) = (offset / self.grain * self.grain, (offset + len as u64).next_multiple_of(self.grain));
        self.faults.iter().any(|(range, fault)| *fault != Fault::Slow && range.start < to && from < range.end)
    }

    fn expected(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.bytes.get(offset as usize..offset as usize + len)
    }

    fn check(&mut self, offset: u64, len: usize, result: Result<&[u8], &Error>) {
        let context = &self.context;
        match (result, self.expected(offset, len)) {
            (Ok(bytes), Some(expected)) => {
                if let Some(at) = bytes.iter().zip(expected).position(|(a, b)| a != b) {
                    panic!("{context}: byte {at} of {len} at {offset} is wrong");
                }
                self.served += 1;
            }
            (Ok(_), None) => panic!("{context}: {len} bytes at {offset} of a file of {}", self.bytes.len()),
            (Err(error), None) => {
                assert_eq!((error.kind(), error.offset()), (ErrorKind::EndOfFile, Some(offset)), "{context}: {error}");
                let said = format!("{len} bytes at {offset} of {}", self.bytes.len());
                assert!(error.to_string().contains(&said), "{context}: {error}");
            }
            (Err(error), Some(_)) => {
                let met = format!("{context}: {len} bytes at {offset}: {error}; faults: {:?}", self.faults);
                assert!(self.concerned(offset, len), "an error of others: {met}");
                let at = error.offset().unwrap();
                assert!(offset <= at && at < offset + len as u64, "{met}");
                match error.kind() {
                    ErrorKind::Device => assert_eq!(error.errno(), Some(libc::EIO), "{met}"),
                    ErrorKind::EndOfFile => {}
                    other => panic!("{other:?}: {met}"),
                }
                self.failed += 1;
            }
        }
    }

    fn step(&mut self, r: &mut Random) {
        let (offset, len) = self.range(r);
        match r.below(100) {
            0..=39 => {
                let mut out = vec![0; len];
                let result = self.fine.read(offset, &mut out);
                self.check(offset, len, result.as_ref().map(|()| &*out));
            }
            40..=54 => {
                let bytes = self.fine.get(offset, len);
                self.check(offset, len, bytes.as_deref());
            }
            55..=69 => {
                let len = len.min(3000);
                let offsets: Vec<u64> = (0..r.below(40)).map(|_| self.range(r).0).collect();
                let mut out = vec![0; len * offsets.len()];
                let gathered = self.fine.gather(&offsets, len, &mut out).unwrap();
                assert_eq!(gathered.hits + gathered.misses, offsets.len() as u64);
                let ranges: Vec<_> = offsets.iter().map(|&o| (o, len)).collect();
                self.gathered(&ranges, &out, &gathered.failed);
            }
            70..=79 => {
                let ranges: Vec<_> = (0..r.below(20)).map(|_| self.range(r)).collect();
                let mut out = vec![0; ranges.iter().map(|(_, len)| len).sum()];
                let gathered = self.fine.gather_ranges(&ranges, &mut out).unwrap();
                self.gathered(&ranges, &out, &gathered.failed);
            }
            80..=87 => {
                let salt = r.next();
                let end = (offset as usize + len).min(self.bytes.len());
                let Some(part) = self.bytes.get_mut(offset as usize..end) else { return };
                part.iter_mut().enumerate().for_each(|(i, b)| *b = mix(salt ^ i as u64) as u8);
                self.array.change(|bytes| bytes.clone_from(&self.bytes));
                self.fine.invalidate(offset..offset + len as u64);
            }
            88..=91 => {
                let (old, new) = (self.bytes.len(), (offset as usize).max(5000));
                self.bytes.resize(new, 0);
                self.array.change(|bytes| bytes.resize(new, 0));
                self.fine.invalidate(old.min(new) as u64..u64::MAX);
            }
            92..=95 => {
                let fault = [Fault::Device, Fault::Device, Fault::Short, Fault::Slow][r.below(4) as usize];
                let at = r.below(200 << 10);
                let range = at..at + 1 + r.below(600);
                self.array.fail(range.clone(), fault);
                self.faults.push((range, fault));
            }
            96..=97 => {
                self.array.heal();
                self.faults.clear();
            }
            98 => self.fine.maintain(),
            _ if r.one_in(20) => self.fine.clear(),
            _ => {}
        }
    }

    fn gathered(&mut self, ranges: &[(u64, usize)], out: &[u8], failed: &[(usize, Error)]) {
        let mut at = 0;
        for (number, &(offset, len)) in ranges.iter().enumerate() {
            let mut of_this = failed.iter().filter(|(n, _)| *n == number);
            let error = of_this.next();
            assert!(of_this.next().is_none(), "{}: read {number} failed twice", self.context);
            self.check(offset, len, error.map_or(Ok(&out[at..at + len]), |(_, e)| Err(e)));
            at += len;
        }
    }
}

#[test]
fn errors_hit_the_reads_they_concern_and_nothing_is_wrong_afterwards() {
    let (seed, steps) = (seed(), steps(60_000) / 15);
    for policy in CachePolicy::ALL {
        for granularity in [1, 512, 4096] {
            let mut twin = Twin::new(policy, granularity, seed);
            let mut r = Random(seed ^ u64::from(granularity));
            for _ in 0..steps {
                twin.step(&mut r);
            }
            assert!(twin.failed > steps / 1000, "{}: only {} faults were met", twin.context, twin.failed);
            assert!(twin.served > steps / 2, "{}: only {} reads were served", twin.context, twin.served);
            // After the faults are removed, all reads succeed with the right bytes.
            twin.array.heal();
            twin.faults.clear();
            for page in 0..twin.bytes.len() as u64 / 4096 {
                let mut out = [0; 4096];
                twin.fine.read(page * 4096, &mut out).unwrap();
                twin.check(page * 4096, 4096, Ok(&out));
            }
            let metrics = twin.fine.metrics();
            assert!(metrics.hits > steps / 10, "{}: {metrics:?}", twin.context);
            assert_eq!(metrics.under_way, 0);
        }
    }
}

#[test]
fn a_fault_beside_a_read_does_not_concern_it() {
    for policy in CachePolicy::ALL {
        let bytes = noise(64 << 10, 1);
        let array = Arc::new(Array::new(512, bytes.clone()));
        let fine = FineGrained::with_engine(array.clone(), small(policy), "array").unwrap();
        // Sectors 3 and 4 of page 2 cannot be read.
        array.fail(8192 + 3 * 512..8192 + 5 * 512, Fault::Device);
        let mut out = [0; 2100];
        let error = fine.read(8192, &mut out).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)));
        assert_eq!(error.offset(), Some(8192));
        // All sectors beside them can be read, one by one and in a batch, though the whole page was
        // demanded.
        let sectors = [0u64, 1, 2, 5, 6, 7].map(|s| 8192 + s * 512);
        let mut all = vec![0; 6 * 512];
        fine.gather(&sectors, 512, &mut all).unwrap().all().unwrap();
        for (i, &at) in sectors.iter().enumerate() {
            let expected = &bytes[at as usize..at as usize + 512];
            assert_eq!(&all[i * 512..][..512], expected);
            let mut one = [0; 512];
            fine.read(at, &mut one).unwrap();
            assert_eq!(one, expected);
        }
        let failed = fine.gather(&[8192 + 1400, 8192 + 1800, 0], 500, &mut [0; 1500]).unwrap().failed;
        let numbers: Vec<_> = failed.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, [0, 1]);
        array.heal();
        fine.read(8192, &mut out).unwrap();
        assert_eq!(out, bytes[8192..8192 + 2100]);
    }
}

#[test]
fn a_short_file_is_an_error_that_says_how_long_it_is() {
    let array = Arc::new(Array::new(512, noise(10_000, 2)));
    let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
    fine.read(9_900, &mut [0; 100]).unwrap();
    for (offset, len) in
        [(9_901, 100), (10_000, 1), (9_000, 4096), (u64::MAX, 1), (u64::MAX - 4095, 4096), (1 << 44, 8)]
    {
        let error = fine.read(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!((error.kind(), error.offset(), error.bytes_done()), (ErrorKind::EndOfFile, Some(offset), 0));
        assert!(error.to_string().contains("of 10000"), "{error}");
        assert_eq!(fine.get(offset, len).unwrap_err().kind(), ErrorKind::EndOfFile);
        let failed = fine.gather(&[0, offset], len, &mut vec![0; 2 * len]).unwrap().failed;
        assert_eq!((failed.len(), failed[0].0, failed[0].1.kind()), (1, 1, ErrorKind::EndOfFile));
    }
    fine.read(10_000, &mut []).unwrap();
    assert_eq!(fine.read(10_001, &mut []).unwrap_err().kind(), ErrorKind::EndOfFile);
    // It grows and shrinks unnoticed by the cache: existing bytes are returned, others are an
    // error.
    array.change(|bytes| bytes.resize(20_000, 7));
    let mut out = [0; 10];
    fine.read(19_990, &mut out).unwrap();
    assert_eq!(out, [7; 10]);
    array.change(|bytes| bytes.truncate(9_000));
    let mut large = [0; 2500];
    assert_eq!(fine.read(8_192, &mut large).unwrap_err().kind(), ErrorKind::EndOfFile);
    let mut out = [0; 10];
    for at in [8_990, 8_192, 8_700] {
        fine.read(at, &mut out).unwrap();
    }
}

#[test]
fn what_a_checksum_rejects_is_neither_given_out_nor_kept() {
    // Records have 128 bytes. The last byte is the sum of the others.
    fn sum(bytes: &[u8]) -> u8 {
        bytes[..127].iter().fold(0u8, |s, b| s.wrapping_add(*b))
    }
    let mut bytes = noise(64 << 10, 3);
    bytes.chunks_exact_mut(128).for_each(|r| r[127] = sum(r));
    let array = Arc::new(Array::new(512, bytes.clone()));
    let bad = [0u64, 5, 31, 100, 256];
    let spoil = |by: u8| {
        array.change(|bytes| bad.iter().for_each(|&n| bytes[n as usize * 128 + 9] ^= by));
    };
    for policy in CachePolicy::ALL {
        let mut config = small(policy);
        config.verify = Some(Arc::new(|offset, bytes: &[u8]| {
            assert!(
                offset.is_multiple_of(128) && bytes.len().is_multiple_of(128),
                "only what was asked for is to be checked"
            );
            match bytes.chunks_exact(128).position(|r| sum(r) != r[127]) {
                Some(n) => Err(format!("record {} is damaged", offset / 128 + n as u64)),
                None => Ok(()),
            }
        }));
        let fine = FineGrained::with_engine(array.clone(), config, "array").unwrap();
        spoil(0x55);
        let mut corrupt = 0;
        // All of them are read several times, so that sectors and pages are in demand.
        for _ in 0..3 {
            for number in 0..512u64 {
                let mut out = [0; 128];
                match fine.read(number * 128, &mut out) {
                    Ok(()) => assert!(!bad.contains(&number), "{policy:?}: record {number} was given out damaged"),
                    Err(error) => {
                        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(number * 128)));
                        assert!(error.to_string().contains(&format!("record {number} is damaged")), "{error}");
                        assert!(bad.contains(&number));
                        corrupt += 1;
                    }
                }
            }
            // This reads two pages at once, and then a batch.
            let error = fine.read(4096 - 256, &mut [0; 512]).map_err(|e| e.kind());
            assert_eq!(error, Err(ErrorKind::Corrupt), "{policy:?}: record 31 is damaged");
            let offsets: Vec<u64> = (0..512).map(|n| n * 128).collect();
            let failed = fine.gather(&offsets, 128, &mut vec![0; 512 * 128]).unwrap().failed;
            let mut numbers: Vec<_> = failed.iter().map(|(n, _)| *n as u64).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, bad, "{policy:?}");
        }
        assert_eq!(corrupt, 3 * bad.len());
        spoil(0x55);
        for number in 0..512u64 {
            let mut out = [0; 128];
            fine.read(number * 128, &mut out).unwrap();
            assert_eq!(out, bytes[number as usize * 128..][..128]);
        }
        assert!(fine.metrics().hits > 500, "what is right is kept");
        let mut out = [0; 512];
        fine.read(4096 - 256, &mut out).unwrap();
        assert_eq!(out, bytes[4096 - 256..4096 + 256]);
    }
}

#[test]
fn what_changes_while_it_is_read_is_read_again() {
    // A read of two pages in different stripes of the versions. The first stripe changes during the
    // read, and the second one has changed equally often before. Sums of versions of different
    // stripes must not be compared.
    for (before, changes) in (0..12u64).map(|n| (n / 3, 1 + n % 3)) {
        let array = Arc::new(Array::new(512, noise(256 << 10, 4)));
        let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
        (0..before).for_each(|_| fine.invalidate(65_536..65_537));
        let at = 65_536 - 64;
        let (in_hook, left) = (fine.clone(), AtomicBool::new(true));
        array.hook(Some(Arc::new(move |array, _| {
            if left.swap(false, SeqCst) {
                array.change(|bytes| bytes[at as usize..at as usize + 64].iter_mut().for_each(|b| *b ^= 0xff));
                (0..changes).for_each(|_| in_hook.invalidate(at..at + 64));
            }
        })));
        let mut out = [0; 128];
        fine.read(at, &mut out).unwrap();
        array.hook(None);
        let now = array.change(|bytes| bytes[at as usize..at as usize + 128].to_vec());
        assert_eq!(out, *now, "{before} changes before, {changes} meanwhile: old bytes were given out");
        for (part, of) in [(at, 0..64), (at + 64, 64..128)] {
            let mut out = [0; 64];
            fine.read(part, &mut out).unwrap();
            assert_eq!(out, now[of], "{before} changes before, {changes} meanwhile: old bytes were kept");
        }
        assert_eq!(fine.metrics().hits, 2, "what was read again is kept");
    }
}

#[test]
fn a_read_joins_no_pending_read_that_began_before_a_write_that_ended() {
    // A read across two stripes is in flight with the bytes from before a write, and the write
    // ends. Then a read of the first part begins. It must not get the bytes in flight, however
    // often either stripe changed before.
    for (before_first, before_second, changes) in (0..27u64).map(|n| (n / 9, n / 3 % 3, 1 + n % 3)) {
        let array = Arc::new(Array::new(512, noise(256 << 10, 6)));
        let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
        let at = 65_536 - 64;
        (0..before_first).for_each(|_| fine.invalidate(at..at + 64));
        (0..before_second).for_each(|_| fine.invalidate(65_536..65_537));
        let (in_hook, left) = (fine.clone(), AtomicBool::new(true));
        let (tell, told) = std::sync::mpsc::channel();
        array.hook(Some(Arc::new(move |array, extent| {
            if !left.swap(false, SeqCst) {
                return;
            }
            assert_eq!((extent.offset, extent.len), (at - 448, 1024), "one request over both stripes");
            let new = array.change(|bytes| {
                bytes[at as usize..at as usize + 64].iter_mut().for_each(|b| *b ^= 0xff);
                bytes[at as usize..at as usize + 64].to_vec()
            });
            (0..changes).for_each(|_| in_hook.invalidate(at..at + 64));
            let (fine, tell) = (in_hook.clone(), tell.clone());
            let second = std::thread::spawn(move || {
                let mut out = [0; 64];
                fine.read(at, &mut out).unwrap();
                tell.send((out.to_vec(), new)).unwrap();
            });
            // It waits until the second read has joined this read or has ended without it.
            let started = std::time::Instant::now();
            while in_hook.metrics().joined == 0 && !second.is_finished() {
                assert!(started.elapsed().as_secs() < 60, "the second read neither joins nor ends");
                std::thread::yield_now();
            }
        })));
        let mut out = [0; 128];
        fine.read(at, &mut out).unwrap();
        let (second, new) = told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        array.hook(None);
        let context = format!("{before_first} and {before_second} changes before, {changes} meanwhile");
        assert!(second == new, "{context}: old bytes were given out after the write had ended");
        assert!(out[..64] == new, "{context}: the first read was not repeated");
        let mut again = [0; 64];
        fine.read(at, &mut again).unwrap();
        assert!(again == *new, "{context}: old bytes were kept");
    }
}
