//! The progress of a working device, reported to a sink if its channels have one.

use datapipes_core::Result;

use super::progress::ProgressSink;
use super::{Body, DeviceChannels};

/// Returns the body with a progress sink on its channels.
pub fn metered(body: Box<dyn Body>, meter: Box<dyn ProgressSink>) -> Box<dyn Body> {
    Box::new(Metered { body, meter: Some(meter) })
}

struct Metered {
    body: Box<dyn Body>,
    /// None while the body runs, because its channels have it.
    meter: Option<Box<dyn ProgressSink>>,
}

impl Body for Metered {
    fn run(&mut self, stage: &mut DeviceChannels<'_>) -> Result<()> {
        if self.meter.as_ref().is_some_and(|meter| meter.measures_latencies()) {
            stage.outlets.iter_mut().for_each(|outlet| outlet.measure_latencies(true));
        }
        stage.meter = self.meter.take();
        let done = self.body.run(stage);
        self.meter = stage.meter.take();
        done
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::{Arc, Mutex};

    use datapipes_metrics::Histogram;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::channel::{ChannelShape, Trust};
    use crate::control::packet::{self, Arrived, PACKET_BYTES};
    use crate::control::party::client::ControllerClient;
    use crate::control::protocol::Ask;
    use crate::device::progress::{StreamProgress, StreamStage};
    use crate::device::{DevicePlace, DeviceRole, Functions, StreamReport, body};
    use crate::transport::pair;

    struct Notes(Arc<Mutex<Vec<StreamProgress>>>);

    impl ProgressSink for Notes {
        fn note(&mut self, standing: &StreamProgress) -> Result<()> {
            self.0.lock().unwrap().push(*standing);
            Ok(())
        }

        fn note_latencies(&mut self, _: &dyn Fn() -> Histogram) -> Result<()> {
            panic!("they are not measured")
        }
    }

    /// A sink that wants the times of blocks.
    struct Times(Arc<Mutex<Vec<u64>>>);

    impl ProgressSink for Times {
        fn note(&mut self, _: &StreamProgress) -> Result<()> {
            Ok(())
        }

        fn measures_latencies(&self) -> bool {
            true
        }

        fn note_latencies(&mut self, times: &dyn Fn() -> Histogram) -> Result<()> {
            self.0.lock().unwrap().push(times().count());
            Ok(())
        }
    }

    /// Runs a source of zeros with or without a sink. Returns its report.
    fn run(len: u64, sink: Option<Box<dyn ProgressSink>>) -> StreamReport {
        let flags = SocketFlags::CLOEXEC;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut attendant = ControllerClient::new(there);
        let (sender, mut receiver) = pair(ChannelShape::new(2, 4096), Trust::Copy).unwrap();
        let role = DeviceRole::Source { place: DevicePlace::Nothing { len }, sum: true };
        let mut source = body(role, Vec::new(), &Functions::default()).unwrap();
        if let Some(sink) = sink {
            source = metered(source, sink);
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while let Ok(block) = receiver.receive() {
                    block.done().unwrap();
                }
            });
            source.run(&mut DeviceChannels::new(Vec::new(), vec![sender], &mut attendant)).unwrap();
        });
        match packet::receive::<Ask>(here.as_fd(), &mut vec![0; PACKET_BYTES + 1], false).unwrap() {
            Arrived::Packet(Ask::Report(report), _) => report,
            _ => panic!("no report"),
        }
    }

    #[test]
    fn a_meter_hears_of_each_block_and_of_the_end() {
        let notes = Arc::default();
        let report = run(10_000, Some(Box::new(Notes(Arc::clone(&notes)))));
        let (sent, crc) = ((report.blocks_out, report.bytes_out), report.crc);
        assert_eq!((sent, crc), ((3, 10_000), Some(crc32fast::hash(&[0; 10_000]))));
        let notes = notes.lock().unwrap();
        // How often it waited depends on the receiver.
        let told: Vec<_> = notes.iter().filter(|s| s.stage != StreamStage::Waiting).collect();
        let told: Vec<_> = told.iter().map(|s| (s.blocks_out, s.bytes_out, s.stage)).collect();
        use StreamStage::{Ended, Ending, Sending};
        // A source that finds the end of its place sends nothing for it but the end.
        assert_eq!(told[..3], [(1, 4096, Sending), (2, 8192, Sending), (3, 10_000, Sending)]);
        assert!(told.len() > 4 && told[3..told.len() - 1].iter().all(|s| *s == (3, 10_000, Ending)), "{told:?}");
        assert_eq!(told.last(), Some(&(3, 10_000, Ended)));
        assert!(notes.iter().all(|s| s.under_way <= 2) && notes.last().unwrap().under_way == 0, "{notes:?}");
        // The report is the same without a sink.
        assert_eq!(run(10_000, None), report);
    }

    #[test]
    fn a_device_that_waits_tells_so_before_it_goes_on() {
        let notes: Arc<Mutex<Vec<StreamProgress>>> = Arc::default();
        let flags = SocketFlags::CLOEXEC;
        let (_here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut attendant = ControllerClient::new(there);
        let (sender, mut receiver) = pair(ChannelShape::new(2, 4096), Trust::Copy).unwrap();
        let role = DeviceRole::Source { place: DevicePlace::Nothing { len: 5 * 4096 }, sum: false };
        let mut source =
            metered(body(role, Vec::new(), &Functions::default()).unwrap(), Box::new(Notes(Arc::clone(&notes))));
        let told = Arc::clone(&notes);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let heard = |what: &str, wanted: &dyn Fn(&StreamProgress) -> bool| {
                    datapipes_testkit::until(what, || told.lock().unwrap().last().is_some_and(wanted));
                };
                heard("both credits are in use", &|s| s.stage == StreamStage::Waiting && s.under_way == 2);
                (0..3).for_each(|_| receiver.receive().unwrap().done().unwrap());
                heard("all was sent, and two are under way", &|s| s.blocks_out == 5 && s.under_way == 2);
                let held = receiver.receive().unwrap();
                receiver.receive().unwrap().done().unwrap();
                // What is told at the end has the replies that came.
                heard("the end waits for two", &|s| s.stage == StreamStage::Ending && s.under_way == 2);
                held.done().unwrap();
                // The end.
                let end = receiver.receive().unwrap();
                assert!(end.head().end && end.is_empty());
                end.done().unwrap();
            });
            source.run(&mut DeviceChannels::new(Vec::new(), vec![sender], &mut attendant)).unwrap();
        });
        let last = *notes.lock().unwrap().last().unwrap();
        assert_eq!((last.stage, last.under_way), (StreamStage::Ended, 0));
    }

    #[test]
    fn a_meter_that_wants_times_gets_those_of_all_blocks() {
        let counts = Arc::default();
        let report = run(10_000, Some(Box::new(Times(Arc::clone(&counts)))));
        let counts = counts.lock().unwrap();
        assert!(counts.is_sorted(), "{counts:?}");
        // At the end every block was replied to. The empty one of the end is none of the stream's.
        assert_eq!(*counts.last().unwrap(), report.blocks_out, "{counts:?} {report:?}");
    }
}
