//! A device that is lost in the middle of transfers, on the model of the driver. One test a
//! process: a lost device stays lost, as with the driver.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_core::{Dram, ErrorKind, Runtime, Span};
use datapipes_gpu::Hbm;
use datapipes_testkit::bounded;
use scene::{machine, model, pattern};

#[test]
fn a_lost_device_ends_all_transfers_and_all_that_comes_later() {
    let Some(model) = model("a lost device") else { return };
    bounded("a lost device", || {
        let len = 8_u64 << 20;
        let (here, hbm) = (pattern(len as usize, 3), Hbm::allocate(0, len).unwrap());
        let back = Dram::allocate(len as usize).unwrap();
        let machine = machine();
        let (up, down) = (machine.connect(&here, &hbm).unwrap(), machine.connect(&hbm, &back).unwrap());
        let within = machine.connect(&hbm.slice(0..1 << 20).unwrap(), &hbm.slice(4 << 20..5 << 20).unwrap()).unwrap();
        let runtime = Runtime::start(&machine).unwrap();
        let other = Hbm::allocate(1, len).unwrap();
        let queued = runtime.connect(&back.range(0, 1 << 20).unwrap(), &other).unwrap();
        (0..2).for_each(|_| up.transfer(Span { source: 0, target: 0, len }).unwrap());
        // Copies stand still, some staged, some not, when the device goes.
        model.set("refuse_register", 1);
        model.set("held", 1);
        let piece = |at: u64| Span { source: at << 20, target: at << 20, len: 1 << 20 };
        let transfers = [up.start(piece(2)).unwrap(), down.start(piece(6)).unwrap()];
        let copy = within.start(Span { source: 0, target: 0, len: 1 << 20 }).unwrap();
        let handle = queued.transfer(Span { source: 0, target: 0, len: 1 << 20 }).unwrap();
        let waiting = std::thread::scope(|scope| {
            let [first, second] = transfers;
            let first = scope.spawn(move || first.wait());
            let second = scope.spawn(move || second.wait());
            std::thread::sleep(std::time::Duration::from_millis(30));
            model.set("lost", 719);
            [first.join().unwrap(), second.join().unwrap(), copy.wait(), handle.wait()]
        });
        for outcome in waiting {
            let e = outcome.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Device, "{e}");
            assert!(e.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)"), "{e}");
            assert!(e.to_string().contains("start the program again"), "{e}");
        }
        assert_eq!(up.report().hops[0].counters.devices_lost, 1);
        // No lease is left, and whatever comes is refused at once.
        drop((here.lease_mut().unwrap(), back.lease_mut().unwrap(), hbm.lease_mut().unwrap()));
        let e = up.transfer(piece(0)).unwrap_err();
        assert!(e.kind() == ErrorKind::Device && e.to_string().contains("is lost"), "{e}");
        assert_eq!(Hbm::allocate(0, 100).unwrap_err().kind(), ErrorKind::Device);
        assert_eq!(hbm.read(0, &mut [0; 8]).unwrap_err().kind(), ErrorKind::Device);
        assert!(machine.connect(&here, &hbm).is_err());
        // What was lost stays lost, whatever the driver says later.
        model.set("lost", 0);
        assert_eq!(Hbm::allocate(0, 100).unwrap_err().kind(), ErrorKind::Device);
        drop((up, down, within, queued, runtime, hbm, other));
    });
}
