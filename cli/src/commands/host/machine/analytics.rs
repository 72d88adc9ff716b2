//! Analytics accelerators (Intel IAA): they copy nothing between places, so they are no backend.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use datapipes_dma::QueueDiscovery;
use serde::Serialize;

/// The work queues of accelerators.
#[derive(Serialize)]
pub(super) struct AnalyticsEngines {
    pub(super) queues: Vec<AnalyticsFacts>,
    /// What is absent, with the reasons.
    pub(super) absent: Vec<String>,
    pub(super) tried_on: &'static str,
}

#[derive(Serialize)]
pub(super) struct AnalyticsFacts {
    pub(super) summary: String,
    /// What sysfs says of the device, by attribute.
    pub(super) capabilities: BTreeMap<&'static str, String>,
}

impl AnalyticsEngines {
    pub(super) fn find() -> AnalyticsEngines {
        AnalyticsEngines::under(Path::new("/"))
    }

    fn under(root: &Path) -> AnalyticsEngines {
        let found = QueueDiscovery::analytics_under(root);
        let of = |queue: &datapipes_dma::WorkQueueFacts| AnalyticsFacts {
            summary: queue.summary(),
            capabilities: queue.capabilities().into_iter().collect(),
        };
        let tried_on = datapipes::TriedOn::DeviceModel.words();
        AnalyticsEngines { queues: found.usable.iter().map(of).collect(), absent: found.absent, tried_on }
    }

    pub(super) fn text(&self) -> String {
        let mut out = "analytics accelerators (Intel IAA: CRC-64, Deflate)\n".to_owned();
        for AnalyticsFacts { summary, capabilities } in &self.queues {
            let facts: Vec<String> = capabilities.iter().map(|(name, value)| format!("{name} {value}")).collect();
            let _ = writeln!(out, "  {summary}; {}", facts.join(", "));
        }
        self.absent.iter().for_each(|why| _ = writeln!(out, "  none: {why}"));
        let _ = writeln!(out, "  tried on {}\n", self.tried_on);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_shown_with_what_their_device_can_do_and_absent_ones_named() {
        let root = std::env::temp_dir().join(format!("dpipe-analytics-{}", std::process::id()));
        assert!(AnalyticsEngines::under(&root).text().contains("none: no driver"));
        for (file, text) in [
            ("sys/bus/dsa/devices/iax3/state", "enabled"),
            ("sys/bus/dsa/devices/iax3/pasid_enabled", "1"),
            ("sys/bus/dsa/devices/iax3/iaa_cap", "0x7"),
            ("sys/bus/dsa/devices/iax3/max_transfer_size", "2147483648"),
            ("sys/bus/dsa/devices/wq3.1/type", "user"),
            ("sys/bus/dsa/devices/wq3.1/state", "enabled"),
            ("sys/bus/dsa/devices/wq3.1/mode", "shared"),
            ("sys/bus/dsa/devices/wq3.1/size", "16"),
            ("dev/iax/wq3.1", ""),
        ] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), text).unwrap();
        }
        let text = AnalyticsEngines::under(&root).text();
        assert!(text.contains("wq3.1 of iax3: shared, 16 entries") && text.contains("; iaa_cap 0x7\n"), "{text}");
        assert!(text.contains("tried on a model of the device, never hardware"), "{text}");
        std::fs::remove_dir_all(root).unwrap();
    }
}
