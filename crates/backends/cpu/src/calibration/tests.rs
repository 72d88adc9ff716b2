//! Intact, damaged and foreign files; settings; plausibility of what is measured.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use datapipes_core::ErrorKind;
use datapipes_core::topology::Topology;

use datapipes_testkit::TempFolder;

use super::Calibration;
use crate::instructions::CopyInstructions;
use crate::kernel::Kernel;

#[test]
fn what_is_measured_comes_back_from_disk() {
    let topology = Topology::discover();
    let measured = Calibration::measure(&topology).unwrap();
    assert!(measured.measured);
    assert!(measured.copies.iter().any(|cost| cost.kernel == Kernel::Memcpy && cost.cold_ns.is_some()));
    assert_eq!(measured.layers.last().unwrap().name, "DRAM");
    assert!(measured.layers.first().unwrap().latency_ns < measured.layers.last().unwrap().latency_ns);
    assert!(measured.classes.iter().all(|c| c.from_bytes >= 256 << 10 || !c.kernel.non_temporal()));

    let scratch = TempFolder::new().unwrap();
    let file = scratch.path("deep/er/calibration.json");
    measured.save_as(&file).unwrap();
    assert_eq!(Calibration::load_from(&file, &topology).unwrap(), measured);
    let beside = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(beside, 1, "nothing is left beside the file");
}

#[test]
fn a_calibration_that_cannot_be_trusted_is_refused() {
    let topology = Topology::discover();
    let scratch = TempFolder::new().unwrap();
    let file = scratch.path("calibration.json");
    let kind = |file: &PathBuf| Calibration::load_from(file, &topology).unwrap_err().kind();
    assert_eq!(kind(&file), ErrorKind::NotFound);

    let good = Calibration::assumed(&topology);
    good.save_as(&file).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(Calibration::load_from(&file, &topology).unwrap(), good);
    // Truncated anywhere, it is no calibration.
    for at in (0..text.trim_end().len()).step_by(97) {
        fs::write(&file, &text.as_bytes()[..at]).unwrap();
        assert_eq!(kind(&file), ErrorKind::Corrupt, "cut at {at}");
    }
    let broken = |change: &dyn Fn(&mut Calibration)| {
        let mut calibration = good.clone();
        change(&mut calibration);
        calibration.save_as(&file).unwrap();
        assert_eq!(kind(&file), ErrorKind::Corrupt);
    };
    broken(&|c| c.fingerprint = "another machine".into());
    broken(&|c| c.version += 1);
    broken(&|c| c.classes.clear());
    broken(&|c| c.classes.swap(0, 1));
    broken(&|c| c.classes[3].from_bytes += 1);
    broken(&|c| c.copies[0].hot_ns = -1.0);
    broken(&|c| c.lines.load_bytes_per_s = 0.0);
    broken(&|c| c.prefetch_bytes = usize::MAX);
    fs::write(&file, [0xff; 100]).unwrap();
    assert_eq!(kind(&file), ErrorKind::Corrupt);
}

#[test]
fn the_environment_says_where() {
    let topology = Topology::discover();
    let path = |variables: &[(&str, &str)]| {
        let environment = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| OsString::from(v.1));
        Calibration::path_by(&topology, environment)
    };
    let name = format!("datapipes/calibration-{}.json", topology.fingerprint());
    assert_eq!(path(&[("HOME", "/h")]).unwrap(), PathBuf::from(format!("/h/.cache/{name}")));
    assert_eq!(path(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).unwrap(), PathBuf::from(format!("/c/{name}")));
    // By the specification, a relative path is ignored, and an empty one counts as unset.
    assert_eq!(path(&[("HOME", "/h"), ("XDG_CACHE_HOME", "c")]).unwrap(), PathBuf::from(format!("/h/.cache/{name}")));
    assert_eq!(path(&[("HOME", "/h"), ("DATAPIPES_CALIBRATION", "/f")]).unwrap(), PathBuf::from("/f"));
    assert_eq!(path(&[("HOME", "")]).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn knobs_are_listed_set_and_kept() {
    let topology = Topology::discover();
    let mut calibration = Calibration::assumed(&topology);
    let of = |calibration: &Calibration, name: &str| {
        let knob = calibration.knobs().into_iter().find(|knob| knob.name == name).unwrap();
        (knob.value, knob.origin)
    };
    assert_eq!(of(&calibration, "kernel_64").1, "default");
    calibration.set("nt_kernel", "nt-avx2").unwrap();
    calibration.set("nt_threshold_bytes", "3M").unwrap();
    assert_eq!(of(&calibration, "nt_threshold_bytes"), ("4194304".into(), "set by the user".into()));
    assert!(calibration.kernel(4 << 20).non_temporal() && !calibration.kernel((4 << 20) - 1).non_temporal());
    calibration.set("rep_movsb_min_bytes", "1K").unwrap();
    assert_eq!(calibration.kernel(1023), Kernel::Memcpy);
    assert_eq!(calibration.kernel(1024), Kernel::RepMovsb);
    assert!(calibration.kernel(1 << 40).non_temporal());
    calibration.set("nt_threshold_bytes", "off").unwrap();
    assert!(calibration.classes.iter().all(|class| !class.kernel.non_temporal()));
    calibration.set("kernel_1M", "nt-avx512").unwrap();
    assert_eq!(calibration.kernel(1_500_000), Kernel::NtAvx512);
    calibration.set("prefetch_distance_bytes", "1K").unwrap();
    assert_eq!(calibration.prefetch_bytes, 1024);
    assert_eq!(of(&calibration, "handoff_nt_threshold_bytes"), ("off".into(), "default".into()));
    calibration.set("handoff_nt_threshold_bytes", "48K").unwrap();
    assert_eq!(calibration.handoff_nt_min_bytes, Some(64 << 10));
    calibration.set("handoff_nt_threshold_bytes", "off").unwrap();
    assert_eq!(calibration.handoff_nt_min_bytes, None);
    assert_eq!(of(&calibration, "handoff_rep_movsb_min_bytes"), ("off".into(), "default".into()));
    calibration.set("handoff_rep_movsb_min_bytes", "1M").unwrap();
    assert_eq!(calibration.handoff_rep_movsb_min_bytes, Some(1 << 20));

    let scratch = TempFolder::new().unwrap();
    calibration.save_as(&scratch.path("c.json")).unwrap();
    let loaded = Calibration::load_from(&scratch.path("c.json"), &topology).unwrap();
    assert_eq!(of(&loaded, "kernel_1M"), ("nt-avx512".into(), "set by the user".into()));

    let before = calibration.clone();
    for (knob, value) in [
        ("kernel_3M", "memcpy"),
        ("kernel_1M", "fast"),
        ("nt_kernel", "memcpy"),
        ("nt_threshold_bytes", "soon"),
        ("prefetch_distance_bytes", "1M"),
        ("handoff_nt_threshold_bytes", "often"),
        ("handoff_rep_movsb_min_bytes", "-1"),
        ("", ""),
    ] {
        assert_eq!(calibration.set(knob, value).unwrap_err().kind(), ErrorKind::InvalidInput, "{knob}={value}");
    }
    assert_eq!(calibration, before, "a refused value changes nothing");
}

#[test]
fn a_kernel_that_is_absent_is_never_run() {
    let mut calibration = Calibration::assumed(&Topology::discover());
    calibration.set("kernel_4K", "nt-avx512").unwrap();
    let nothing = CopyInstructions::default();
    let copier = calibration.by_size(&nothing, false);
    assert!((0..40).all(|bits| copier.kernel(1 << bits).is_none_or(|kernel| kernel == Kernel::Memcpy)));
    // Into a core's cache, only stores that leave the lines there are used.
    let here = CopyInstructions::detect(&Topology::discover().cpu);
    let copier = calibration.by_size(&here, true);
    assert!((0..40).all(|bits| copier.kernel(1 << bits).is_none_or(|kernel| !kernel.non_temporal())));
}
