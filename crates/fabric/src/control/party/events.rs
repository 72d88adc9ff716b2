//! Events of devices and links, kept for the application.

use std::collections::{BTreeMap, VecDeque};

use crate::capability::Party;
use crate::control::protocol::DeviceEvent;

/// The most reports that are kept of one device. A further one replaces its oldest.
const MAX_REPORTS: usize = 256;

/// The events in order of arrival.
///
/// A device becomes ready once and ends once, and a link is connected once. These events are kept
/// until they are taken. A device can send any number of reports, so each device has its own share.
#[derive(Debug, Default)]
pub(crate) struct Events {
    all: VecDeque<DeviceEvent>,
    reports: BTreeMap<Party, usize>,
}

impl Events {
    pub(crate) fn add(&mut self, event: DeviceEvent) {
        if let DeviceEvent::Report { device, .. } = &event {
            let (device, count) = (*device, self.reports.entry(*device).or_default());
            *count += 1;
            if *count > MAX_REPORTS {
                let of_it = |e: &DeviceEvent| matches!(e, DeviceEvent::Report { device: d, .. } if *d == device);
                self.take(of_it);
            }
        }
        self.all.push_back(event);
    }

    /// Takes the first event that is wanted.
    pub(crate) fn take(&mut self, wanted: impl Fn(&DeviceEvent) -> bool) -> Option<DeviceEvent> {
        let event = self.all.remove(self.all.iter().position(wanted)?)?;
        if let DeviceEvent::Report { device, .. } = &event
            && let Some(count) = self.reports.get_mut(device)
        {
            *count -= 1;
            if *count == 0 {
                self.reports.remove(device);
            }
        }
        Some(event)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::capability::Cap;
    use crate::control::Confined;
    use crate::device::StreamReport;

    #[test]
    fn a_flood_of_one_device_takes_nothing_of_another_s_and_no_end() {
        let (honest, loud) = (Party(1), Party(2));
        let mut events = Events::default();
        events.add(DeviceEvent::Ready { device: honest, confined: Confined::default() });
        events.add(DeviceEvent::Report { device: honest, report: StreamReport::default() });
        events.add(DeviceEvent::Link { cap: Cap(1), error: None });
        for blocks_in in 0..100_000 {
            events.add(DeviceEvent::Report {
                device: loud,
                report: StreamReport { blocks_in, ..StreamReport::default() },
            });
        }
        events.add(DeviceEvent::Ended { device: loud, how: "well".into() });
        assert_eq!(events.all.len(), 4 + MAX_REPORTS);
        let of = |events: &mut Events, party| events.take(|e| e.device() == Some(party));
        assert!(matches!(of(&mut events, honest), Some(DeviceEvent::Ready { .. })));
        assert!(matches!(of(&mut events, honest), Some(DeviceEvent::Report { .. })));
        assert!(matches!(events.take(|e| e.device().is_none()), Some(DeviceEvent::Link { .. })));
        // The newest ones were kept, in order.
        let first = of(&mut events, loud);
        assert!(
            matches!(first, Some(DeviceEvent::Report { report, .. }) if report.blocks_in == 100_000 - MAX_REPORTS as u64)
        );
        assert!(matches!(events.all.back(), Some(DeviceEvent::Ended { .. })));
        while of(&mut events, loud).is_some() {}
        assert!(events.all.is_empty() && events.reports.is_empty());
    }
}
