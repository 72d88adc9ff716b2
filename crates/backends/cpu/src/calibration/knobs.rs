//! The settings (CIDR'23, section 6, principle 3). Each can be read, and set in place of what was
//! measured.

use datapipes_core::backend::Knob;
use datapipes_core::{Error, ErrorKind, Result, parse_size};

use super::{Calibration, SizeClass};
use crate::kernel::Kernel;

const MAX_PREFETCH_BYTES: u64 = 16 << 10;

impl Calibration {
    /// Returns every setting with its value and the origin of the value.
    pub fn knobs(&self) -> Vec<Knob> {
        let fixed = [
            ("rep_movsb_min_bytes", threshold(self.first(|kernel| kernel == Kernel::RepMovsb))),
            ("nt_threshold_bytes", threshold(self.first(Kernel::non_temporal))),
            ("nt_kernel", self.nt_chosen().map_or("none", Kernel::name).to_owned()),
            ("prefetch_distance_bytes", self.prefetch_bytes.to_string()),
            ("handoff_nt_threshold_bytes", threshold(self.handoff_nt_min_bytes)),
            ("handoff_rep_movsb_min_bytes", threshold(self.handoff_rep_movsb_min_bytes)),
        ];
        let classes = self.classes.iter().map(|class| (class_knob(class.from_bytes), class.kernel.name().to_owned()));
        let named = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
        named.chain(classes).map(|(name, value)| Knob { origin: self.origin(&name), name, value }).collect()
    }

    /// Sets a value in place of what was measured. [`save`](Self::save) makes it permanent.
    ///
    /// `rep_movsb_min_bytes` and `nt_threshold_bytes` take a size (rounded up to a power of two) or
    /// `off`. `nt_kernel` and `kernel_64` .. `kernel_1G` (lengths from that power of two to the
    /// next) take a kernel's name. `prefetch_distance_bytes` takes a size up to 16 KiB, where 0
    /// means no prefetching. `handoff_nt_threshold_bytes` takes a size or `off`: from that length
    /// on, bytes for another process are stored past the caches. `handoff_rep_movsb_min_bytes`
    /// takes the same: from that length on, bytes of another process are copied by `rep movsb`.
    ///
    /// ```
    /// use datapipes_core::topology::Topology;
    /// use datapipes_cpu::Calibration;
    /// let mut calibration = Calibration::assumed(&Topology::discover());
    /// calibration.set("kernel_1M", "rep-movsb")?;
    /// let knobs = calibration.knobs();
    /// assert!(knobs.iter().any(|k| k.name == "kernel_1M" && k.origin == "set by the user"));
    /// assert!(calibration.set("kernel_3M", "memcpy").is_err());
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` where there is no such setting, or where it does not take the value. Nothing
    /// is changed then.
    pub fn set(&mut self, knob: &str, value: &str) -> Result<()> {
        match knob {
            "nt_threshold_bytes" => {
                let kernel = self.nt_chosen().unwrap_or(Kernel::NtAvx512);
                self.threshold_to(parse_threshold(knob, value)?, kernel, Kernel::non_temporal);
            }
            "rep_movsb_min_bytes" => {
                let at = parse_threshold(knob, value)?;
                let past_caches = self.first(Kernel::non_temporal).unwrap_or(u64::MAX);
                for class in self.classes.iter_mut().filter(|class| class.from_bytes < past_caches) {
                    class.kernel = if class.from_bytes >= at { Kernel::RepMovsb } else { Kernel::Memcpy };
                }
            }
            "nt_kernel" => {
                let kernel = parse_kernel(knob, value)?;
                if !kernel.non_temporal() {
                    return Err(refuse(knob, value, "give nt-avx2 or nt-avx512"));
                }
                for class in self.classes.iter_mut().filter(|class| class.kernel.non_temporal()) {
                    class.kernel = kernel;
                }
            }
            "prefetch_distance_bytes" => {
                let bytes = parse_size(value)?;
                if bytes > MAX_PREFETCH_BYTES {
                    return Err(refuse(knob, value, "give a size up to 16K"));
                }
                self.prefetch_bytes = bytes as usize;
            }
            "handoff_nt_threshold_bytes" => {
                let at = parse_threshold(knob, value)?;
                self.handoff_nt_min_bytes = Some(at).filter(|at| *at < u64::MAX);
            }
            "handoff_rep_movsb_min_bytes" => {
                let at = parse_threshold(knob, value)?;
                self.handoff_rep_movsb_min_bytes = Some(at).filter(|at| *at < u64::MAX);
            }
            _ => {
                let class = self.classes.iter_mut().find(|class| class_knob(class.from_bytes) == knob);
                let class = class.ok_or_else(|| refuse(knob, value, "see `dpipe calibrate` for the knobs"))?;
                class.kernel = parse_kernel(knob, value)?;
            }
        }
        self.set.insert(knob.to_owned(), value.to_owned());
        Ok(())
    }

    fn threshold_to(&mut self, at: u64, kernel: Kernel, is_kind: fn(Kernel) -> bool) {
        let ordinary: Vec<Kernel> = self.classes.iter().map(|c| self.ordinary_kernel(c.from_bytes)).collect();
        for (class, ordinary) in self.classes.iter_mut().zip(ordinary) {
            if class.from_bytes < at {
                class.kernel = ordinary;
            } else if !is_kind(class.kernel) {
                class.kernel = kernel;
            }
        }
    }

    /// Returns the shortest class with such a kernel.
    fn first(&self, is_kind: impl Fn(Kernel) -> bool) -> Option<u64> {
        self.classes.iter().find(|class| is_kind(class.kernel)).map(|class| class.from_bytes)
    }

    fn nt_chosen(&self) -> Option<Kernel> {
        let measured = self.copies.iter().rev().map(|cost| cost.kernel);
        let chosen = self.classes.iter().rev().map(|class| class.kernel);
        chosen.chain(measured).find(|kernel| kernel.non_temporal())
    }

    fn origin(&self, knob: &str) -> String {
        let origin = match (self.set.contains_key(knob), self.measured) {
            (true, _) => "set by the user",
            (false, true) => "measured",
            (false, false) => "default",
        };
        origin.to_owned()
    }
}

impl SizeClass {
    /// The name of the class's setting.
    pub fn knob(&self) -> String {
        class_knob(self.from_bytes)
    }
}

fn class_knob(from_bytes: u64) -> String {
    match from_bytes.max(1).ilog2() {
        30.. => format!("kernel_{}G", from_bytes >> 30),
        20..30 => format!("kernel_{}M", from_bytes >> 20),
        10..20 => format!("kernel_{}K", from_bytes >> 10),
        _ => format!("kernel_{from_bytes}"),
    }
}

fn threshold(from_bytes: Option<u64>) -> String {
    from_bytes.map_or("off".into(), |bytes| bytes.to_string())
}

fn parse_threshold(knob: &str, value: &str) -> Result<u64> {
    if value == "off" {
        return Ok(u64::MAX);
    }
    parse_size(value)?.checked_next_power_of_two().ok_or_else(|| refuse(knob, value, "give a size or `off`"))
}

fn parse_kernel(knob: &str, value: &str) -> Result<Kernel> {
    let names = Kernel::ALL.map(Kernel::name).join(", ");
    Kernel::from_name(value).ok_or_else(|| refuse(knob, value, &format!("give one of {names}")))
}

fn refuse(knob: &str, value: &str, advice: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "set", format!("knob `{knob}` to `{value}`")).with_advice(advice)
}
