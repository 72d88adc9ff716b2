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

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::channel::{ChannelShape, Trust};
    use crate::control::packet::{self, Arrived, PACKET_BYTES};
    use crate::control::party::client::ControllerClient;
    use crate::control::protocol::Ask;
    use crate::device::progress::StreamProgress;
    use crate::device::{DevicePlace, DeviceRole, Functions, StreamReport, body};
    use crate::transport::pair;

    struct Notes(Arc<Mutex<Vec<StreamProgress>>>);

    impl ProgressSink for Notes {
        fn note(&mut self, standing: &StreamProgress) -> Result<()> {
            self.0.lock().unwrap().push(*standing);
            Ok(())
        }
    }

    /// Runs a source of zeros with or without a sink. Returns its report.
    fn run(len: u64, notes: Option<&Arc<Mutex<Vec<StreamProgress>>>>) -> StreamReport {
        let flags = SocketFlags::CLOEXEC;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut attendant = ControllerClient::new(there);
        let (sender, mut receiver) = pair(ChannelShape::new(2, 4096), Trust::Copy).unwrap();
        let role = DeviceRole::Source { place: DevicePlace::Nothing { len }, sum: true };
        let mut source = body(role, Vec::new(), &Functions::default()).unwrap();
        if let Some(notes) = notes {
            source = metered(source, Box::new(Notes(notes.clone())));
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
        let report = run(10_000, Some(&notes));
        let (sent, crc) = ((report.blocks_out, report.bytes_out), report.crc);
        assert_eq!((sent, crc), ((3, 10_000), Some(crc32fast::hash(&[0; 10_000]))));
        let notes = notes.lock().unwrap();
        let told: Vec<_> = notes.iter().map(|s| (s.blocks_out, s.bytes_out, s.at_end)).collect();
        // The empty block of a source that found the end of its place is not counted.
        let end = [false, true, true].map(|at_end| (3, 10_000, at_end));
        assert_eq!(told, [&[(1, 4096, false), (2, 8192, false), (3, 10_000, false)][..], &end].concat());
        assert!(notes.iter().all(|s| s.under_way <= 2) && notes[5].under_way == 0, "{notes:?}");
        // The report is the same without a sink.
        assert_eq!(run(10_000, None), report);
    }
}
