//! What goes wrong: refusals of the driver, lost devices, forks, leases; on the model of the
//! driver.
#![allow(clippy::unwrap_used, unsafe_code)]

mod scene;

use std::sync::Mutex;

use datapipes_core::{Dram, ErrorKind, Pmem, PmemOptions, Runtime, Span};
use datapipes_gpu::Hbm;
use datapipes_testkit::{TempFolder, bounded};
use scene::{bytes_of, devices, ground, machine, model, only, pattern};

/// The model is one for the process, so a test at a time sets it.
static ONE: Mutex<()> = Mutex::new(());

fn whole(len: u64) -> Span {
    Span { source: 0, target: 0, len }
}

#[test]
fn leases_of_a_gpus_memory_are_refused_as_those_of_main_memory() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("leases of a GPU's memory") else { return };
    let hbm = Hbm::allocate(0, 10_000).unwrap();
    let here = pattern(10_000, 3);
    let pipe = machine().connect(&here, &hbm).unwrap();
    let (first, second) = (hbm.slice(0..5000).unwrap(), hbm.slice(5000..10_000).unwrap());
    assert_eq!(second.address(), hbm.address() + 5000);
    let reader = first.lease().unwrap();
    let beside = hbm.slice(10..20).unwrap().lease().unwrap();
    assert_eq!((beside.address(), beside.len()), (hbm.address() + 10, 10));
    assert_eq!(first.lease_mut().unwrap_err().kind(), ErrorKind::Busy);
    let writer = second.lease_mut().unwrap();
    assert_eq!(hbm.lease().unwrap_err().kind(), ErrorKind::Busy);
    let e = pipe.transfer(Span { source: 0, target: 4999, len: 1 }).unwrap_err();
    assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("bytes 4999..5000"), "{e}");
    assert_eq!(hbm.write(9999, &[1]).unwrap_err().kind(), ErrorKind::Busy);
    drop((reader, beside, writer));
    pipe.transfer(whole(10_000)).unwrap();
    assert!(bytes_of(&hbm) == here.lease().unwrap()[..]);
    // Offsets that do not lie within.
    for (start, end) in [(0, 10_001), (9, 8)] {
        assert_eq!(hbm.slice(start..end).unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(hbm.read(u64::MAX, &mut [0; 2]).unwrap_err().kind(), ErrorKind::OutOfRange);
    assert_eq!(pipe.transfer(Span { source: 0, target: u64::MAX, len: 2 }).unwrap_err().kind(), ErrorKind::OutOfRange);
}

#[test]
fn memory_that_cannot_be_had_is_refused() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("memory that cannot be had") else { return };
    let e = Hbm::allocate(0, 1 << 50).unwrap_err();
    assert!(e.kind() == ErrorKind::OutOfMemory && e.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{e}");
    assert_eq!(Hbm::allocate(0, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(Hbm::allocate(77, 1).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn memory_of_others_is_checked_and_its_owner_dropped_last() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("memory of others") else { return };
    let tensor = Hbm::allocate(0, 4096).unwrap();
    tensor.write(0, &[7; 4096]).unwrap();
    let owner = std::sync::Arc::new(());
    // SAFETY: `tensor` outlives the place, and nothing else uses its bytes.
    let taken = unsafe { Hbm::foreign(0, tensor.address() + 96, 4000, Box::new(owner.clone())) }.unwrap();
    let slice = taken.slice(0..100).unwrap();
    drop(taken);
    let back = Dram::allocate(100).unwrap();
    let pipe = machine().connect(&slice, &back).unwrap();
    pipe.transfer(whole(100)).unwrap();
    assert_eq!(back.lease().unwrap()[..], [7; 100]);
    drop(slice);
    assert_eq!(std::sync::Arc::strong_count(&owner), 2, "the pipe still has it");
    drop(pipe);
    assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    let here = [0_u8; 8];
    let other = if devices() > 1 { (1, tensor.address()) } else { (0, 4096) };
    for (device, address, len) in [(0, here.as_ptr() as u64, 8), (0, tensor.address(), u64::MAX), (other.0, other.1, 8)]
    {
        // SAFETY: nothing is used of what is refused.
        let refused = unsafe { Hbm::foreign(device, address, len, Box::new(())) };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput, "{device} {address:#x}");
    }
}

#[test]
fn work_of_other_streams_comes_before_transfers_that_were_told_of_it() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("work of other streams") else { return };
    bounded("work of other streams", || {
        let hbm = Hbm::allocate(0, 1 << 20).unwrap();
        let back = Dram::allocate(1 << 20).unwrap();
        if let Some(model) = model("work of other streams, held") {
            // A stream of the program, as a library would make it.
            let stream = model.stream();
            let lease = hbm.lease_mut().unwrap();
            model.set("held", 2);
            model.fill(stream, lease.address(), 9, 1 << 20);
            // SAFETY: the stream lives.
            unsafe { lease.order_after(stream) }.unwrap();
            drop(lease);
            let pipe = machine().connect_with(&hbm, &back, &only(&["gpu-download"])).unwrap();
            let transfer = pipe.start(whole(1 << 20)).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!transfer.is_done());
            model.set("held", 0);
            transfer.wait().unwrap();
            assert!(back.lease().unwrap().iter().all(|byte| *byte == 9));
            // A second stream comes after the first.
            let (lease, second) = (hbm.lease_mut().unwrap(), model.stream());
            // SAFETY: the streams live.
            unsafe {
                lease.order_after(stream).unwrap();
                lease.order_before(second).unwrap();
            }
        }
        // The default stream.
        let lease = hbm.lease().unwrap();
        // The model has none.
        if model("the default stream").is_none() {
            // SAFETY: it always lives.
            unsafe { lease.order_after(0).and_then(|()| lease.order_before(0)) }.unwrap();
        }
    });
}

#[test]
fn what_the_driver_refuses_is_an_error_with_its_words_and_the_pipe_goes_on() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("what the driver refuses") else { return };
    bounded("what the driver refuses", || {
        let (here, hbm) = (pattern(100 << 20, 3), Hbm::allocate(0, 100 << 20).unwrap());
        let pipe = machine().connect(&here, &hbm).unwrap();
        // The first copy of a job, one in its middle, and one of a short job.
        for (len, number) in [(100 << 20, 1), (100 << 20, 3), (100, 1)] {
            model.set("refuse_copy", number);
            let e = pipe.transfer(whole(len)).unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{e}");
            assert!(e.to_string().contains("cuMemcpyHtoDAsync"), "{e}");
            // Nothing is held any more.
            drop((here.lease_mut().unwrap(), hbm.lease_mut().unwrap()));
            pipe.transfer(whole(len)).unwrap();
        }
        assert!(bytes_of(&hbm) == here.lease().unwrap()[..]);
        assert_eq!(pipe.report().hops[0].counters.failed, 3);
    });
}

#[test]
fn memory_that_the_driver_does_not_register_goes_through_buffers() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("memory that is not registered") else { return };
    bounded("memory that is not registered", || {
        model.set("refuse_register", 1);
        let len = (5 << 20) + 11;
        let (here, hbm) = (pattern(len, 3), Hbm::allocate(0, len as u64).unwrap());
        let back = Dram::allocate(len).unwrap();
        let (up, down) = (machine().connect(&here, &hbm).unwrap(), machine().connect(&hbm, &back).unwrap());
        for _ in 0..3 {
            up.transfer(whole(len as u64)).unwrap();
            down.transfer(whole(len as u64)).unwrap();
        }
        model.set("refuse_register", 0);
        assert!(back.lease().unwrap()[..] == here.lease().unwrap()[..]);
        assert_eq!(down.report().hops[0].counters.bounced_bytes, 3 * len as u64);
        // A copy of a staged job that is refused, at its start and in its middle.
        for number in [1, 4] {
            for pipe in [&up, &down] {
                model.set("refuse_copy", number);
                let e = pipe.transfer(whole(len as u64)).unwrap_err();
                assert!(e.kind() == ErrorKind::InvalidInput && e.bytes_done() <= 4 << 20, "{e}");
                drop((here.lease_mut().unwrap(), hbm.lease_mut().unwrap(), back.lease_mut().unwrap()));
            }
        }
        down.transfer(whole(len as u64)).unwrap();
    });
}

#[test]
fn a_mapped_file_that_loses_its_pages_is_an_error() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("a mapped file that loses its pages") else { return };
    bounded("a mapped file that loses its pages", || {
        let folder = TempFolder::under(std::env::temp_dir()).unwrap();
        let path = folder.at().join("mapped");
        let len = 3_u64 << 20;
        let pmem = Pmem::open_with(&path, PmemOptions::default().len(len).emulated(true)).unwrap();
        let hbm = Hbm::allocate(0, len).unwrap();
        let (up, down) = (machine().connect(&pmem, &hbm).unwrap(), machine().connect(&hbm, &pmem).unwrap());
        up.transfer(whole(len)).unwrap();
        down.transfer(whole(len)).unwrap();
        assert_eq!(up.report().hops[0].counters.bounced_bytes, len);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        for pipe in [&up, &down] {
            let e = pipe.transfer(whole(len)).unwrap_err();
            assert!(e.kind() == ErrorKind::Device && e.bytes_done() <= 1 << 20, "{e} {}", e.bytes_done());
            pipe.transfer(whole(1 << 20)).unwrap();
        }
    });
}

#[test]
fn a_bell_that_the_driver_refuses_hangs_nobody() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("a bell that the driver refuses") else { return };
    bounded("a bell that the driver refuses", || {
        let (here, hbm) = (pattern(1 << 20, 3), Hbm::allocate(0, 1 << 20).unwrap());
        model.set("delay_us", 30_000);
        // One that nobody waits for: the driver rings.
        let (runtime, calls) = (Runtime::start(&machine()).unwrap(), model.get("host_calls"));
        let pipe = runtime.connect(&here, &hbm).unwrap();
        drop(pipe.transfer(whole(1 << 20)).unwrap());
        pipe.drain();
        assert!(model.get("host_calls") > calls);
        model.set("refuse_host_call", 2);
        machine().connect(&here, &hbm).unwrap().transfer(whole(1 << 20)).unwrap();
        let runtime = Runtime::start(&machine()).unwrap();
        runtime.connect(&here, &hbm).unwrap().transfer(whole(1 << 20)).unwrap().wait().unwrap();
        model.set("refuse_host_call", 0);
        model.set("delay_us", 0);
    });
}

#[test]
fn nothing_of_the_driver_is_left_behind() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("nothing of the driver is left behind") else { return };
    bounded("nothing of the driver is left behind", || {
        let all = || ["streams", "events", "allocations", "registered", "pinned"].map(|key| model.get(key));
        let before = all();
        {
            let (here, hbm) = (pattern(40 << 20, 3), Hbm::allocate(0, 40 << 20).unwrap());
            let pipe = machine().connect(&here, &hbm).unwrap();
            (0..3).for_each(|_| pipe.transfer(whole(40 << 20)).unwrap());
            let second = machine().connect(&hbm, &here).unwrap();
            let registered = model.get("registrations");
            second.transfer(whole(40 << 20)).unwrap();
            assert_eq!(model.get("registrations"), registered, "pipes of one region share its registration");
            drop(pipe.start(whole(1 << 20)).unwrap());
            assert!(all()[3] > before[3]);
        }
        assert_eq!(all(), before);
        // The context of device 0 stays on a thread that had none; that of another does not.
        assert_eq!(model.get("depth"), 1);
        let there = std::thread::spawn(|| {
            drop(Hbm::allocate(1, 1).unwrap());
            scene::model("depth").unwrap().get("depth")
        });
        assert_eq!(there.join().unwrap(), 0);
    });
}

#[test]
fn a_child_is_refused_and_takes_nothing_of_its_parents() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(_ground) = ground("a child is refused") else { return };
    let (here, hbm) = (pattern(1 << 20, 3), Hbm::allocate(0, 1 << 20).unwrap());
    let pipe = machine().connect(&here, &hbm).unwrap();
    pipe.transfer(whole(1 << 20)).unwrap();
    let lease = hbm.lease().unwrap();
    // SAFETY: the child calls the library, which refuses it, and ends without any cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
        let all = refused(pipe.transfer(whole(1)).err().map(|e| e.kind()))
            && refused(Hbm::allocate(0, 1).err().map(|e| e.kind()))
            && refused(hbm.lease().err().map(|e| e.kind()))
            && refused(hbm.read(0, &mut [0]).err().map(|e| e.kind()))
            && refused(machine().connect(&here, &hbm).err().map(|e| e.kind()));
        drop((lease, pipe, hbm, here));
        // SAFETY: it ends the child.
        unsafe { libc::_exit(i32::from(!all)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and nobody else waits for it.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child was not refused everywhere, or it ended by a signal");
    drop(lease);
    pipe.transfer(whole(1 << 20)).unwrap();
    assert!(bytes_of(&hbm) == here.lease().unwrap()[..]);
}

#[test]
fn pages_are_taken_back_only_when_no_copy_uses_them() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("pages are taken back") else { return };
    bounded("pages are taken back", || {
        const PART: u64 = 32 << 20;
        let (here, hbm) = (pattern(3 * PART as usize, 4), Hbm::allocate(0, 3 * PART).unwrap());
        let pipe = machine().connect_with(&here, &hbm, &only(&["gpu-upload"])).unwrap();
        for _ in 0..20 {
            pipe.transfer(whole(3 * PART)).unwrap();
        }
        assert!(model.get("registered") >= 3, "{}", model.get("registered"));
        model.set("held", 1);
        let first = pipe.start(whole(PART)).unwrap();
        // Other pages of the region are given back, and are used by the next transfer. The model
        // ends the program where pages are taken back under a copy.
        here.range(2 * PART as usize, PART as usize).unwrap().memory().release().unwrap();
        let last = Span { source: 2 * PART, target: 2 * PART, len: PART };
        let second = pipe.start(last).unwrap();
        let third = pipe.start(Span { source: 2 * PART + 5, target: PART, len: 100 });
        model.set("held", 0);
        first.wait().unwrap();
        second.wait().unwrap();
        third.unwrap().wait().unwrap();
        let bytes = bytes_of(&hbm);
        assert!(bytes[..PART as usize] == here.lease().unwrap()[..PART as usize]);
        assert!(bytes[2 * PART as usize..].iter().all(|byte| *byte == 0));
        assert!(bytes[PART as usize..][..100].iter().all(|byte| *byte == 0));
        // The pages that are there now are registered again.
        for _ in 0..20 {
            pipe.transfer(last).unwrap();
        }
        assert!(model.get("registered") >= 1);
        drop(pipe);
        assert_eq!(model.get("registered"), 0);
    });
}

#[test]
fn a_graph_that_is_captured_elsewhere_ends_no_transfer() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(model) = model("a graph that is captured elsewhere") else { return };
    bounded("a graph that is captured elsewhere", || {
        let (here, hbm) = (pattern(8 << 20, 5), Hbm::allocate(0, 8 << 20).unwrap());
        let pipe = machine().connect(&here, &hbm).unwrap();
        model.set("held", 1);
        let transfer = pipe.start(whole(8 << 20)).unwrap();
        model.set("capturing", 1);
        model.set("held", 0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!transfer.is_done(), "nobody can know");
        // What a captured stream is given is not done now, so nothing may wait for it.
        let stream = model.stream();
        let beside = Hbm::allocate(0, 16).unwrap();
        // SAFETY: the stream lives.
        assert!(unsafe { beside.lease().unwrap().order_after(stream) }.is_err());
        model.set("capturing", 0);
        transfer.wait().unwrap();
        assert!(bytes_of(&hbm) == here.lease().unwrap()[..]);
    });
}
