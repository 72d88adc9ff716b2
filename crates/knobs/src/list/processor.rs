//! Registers of the processor and of PCIe root ports: DDIO, DCA, prefetchers.
//!
//! The registers are described in Intel's Software Developer's Manual, volume 4 (`IA32_DCA_0_CAP`,
//! `MSR_MISC_FEATURE_CONTROL`), by Farshin et al., *Reexamining Direct Cache Access to Optimize I/O
//! Intensive Applications*, ATC 2020 (`IIO_LLC_WAYS`, `perfctrlsts_0`), and in AMD's *Processor
//! Programming Reference* of family 19h (`Prefetch Control`).

use crate::knob::{About, BitForm, MADE_TREES, MachineKnob, Place, chosen};
use crate::tree::MachineTree;

/// The ways of the last-level cache that devices write to.
const IIO_LLC_WAYS: u64 = 0xc8b;
const IA32_DCA_0_CAP: u64 = 0x1fa;
/// `SW_BLOCK`: software asks that no hint is followed.
const DCA_BLOCK: u64 = 1 << 24;
const MISC_FEATURE_CONTROL: u64 = 0x1a4;
const AMD_PREFETCH_CONTROL: u64 = 0xc000_0108;
/// In the configuration space of a root port, with the bit by which writes go to the cache.
const PERFCTRLSTS_0: u64 = 0x180;
const USE_ALLOCATING_FLOW: u64 = 1 << 7;
/// Root ports of the first and second generation of Xeon Scalable.
const ROOT_PORTS: [&str; 4] = ["0x2030", "0x2031", "0x2032", "0x2033"];
/// Skylake-SP and Cascade Lake, of family 6. The literature attests `IIO_LLC_WAYS` of no later one.
const XEON_SCALABLE: u64 = 0x55;
const ZEN_3_AND_4: u64 = 25;
/// Models of family 25 that are Zen 4.
const ZEN_4: [std::ops::RangeInclusive<u64>; 3] = [0x10..=0x1f, 0x60..=0x7f, 0xa0..=0xaf];
const ZEN_5: u64 = 26;

const DEVICES: About = About {
    affects: "pipes from devices into memory: SSD to DRAM, receiving from a network",
    needs: "root and the module msr",
    verified: MADE_TREES,
};
const PORT: About = About { affects: "pipes from the devices behind this port", needs: "root", verified: MADE_TREES };
const CORES: About =
    About { affects: "pipes that the processor carries out", needs: "root and the module msr", verified: MADE_TREES };

/// What /proc/cpuinfo says of the first core, and which cores there are.
#[derive(Debug, Default)]
struct Processor {
    vendor: String,
    family: u64,
    model: u64,
    cores: Vec<u64>,
    /// The first core of each package.
    leaders: Vec<u64>,
}

impl Processor {
    fn of(tree: &MachineTree) -> Processor {
        let mut found = Processor::default();
        let mut packages: Vec<u64> = Vec::new();
        for line in tree.text("proc/cpuinfo").unwrap_or_default().lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let number = value.trim().parse().unwrap_or(0);
            match key.trim() {
                "processor" => found.cores.push(number),
                "vendor_id" if found.vendor.is_empty() => found.vendor = value.trim().to_owned(),
                "cpu family" if found.family == 0 => found.family = number,
                "model" if found.model == 0 => found.model = number,
                "physical id" if !packages.contains(&number) => {
                    packages.push(number);
                    found.leaders.extend(found.cores.last());
                }
                _ => {}
            }
        }
        found.cores.sort_unstable();
        found.cores.dedup();
        if found.leaders.is_empty() {
            found.leaders.extend(found.cores.first());
        }
        found
    }

    fn shown(&self) -> String {
        let vendor = if self.vendor.is_empty() { "an unknown processor" } else { &self.vendor };
        format!("this is {vendor}, family {}, model {:#x}", self.family, self.model)
    }

    fn is_intel(&self) -> bool {
        self.vendor == "GenuineIntel" && self.family == 6
    }

    /// Whether it is a processor for which AMD describes the register.
    fn has_amd_prefetch_control(&self) -> bool {
        let is_zen_4 = self.family == ZEN_3_AND_4 && ZEN_4.iter().any(|models| models.contains(&self.model));
        self.vendor == "AuthenticAMD" && (is_zen_4 || self.family == ZEN_5)
    }
}

/// Whether this core runs.
pub(crate) fn has_core(tree: &MachineTree, core: u64) -> bool {
    Processor::of(tree).cores.contains(&core)
}

pub(super) fn knobs(tree: &MachineTree) -> Vec<MachineKnob> {
    let processor = Processor::of(tree);
    let mut all = vec![ddio_ways(tree, &processor)];
    all.extend(ports(tree));
    all.push(register(
        tree,
        &processor,
        Register {
            name: "dca.blocked",
            what: "Whether hints of devices to put bytes into a cache are ignored",
            about: DEVICES,
            at: IA32_DCA_0_CAP,
            mask: DCA_BLOCK,
            form: BitForm::OnIfSet,
            is_here: processor.is_intel(),
            whose: "Intel's processors",
        },
    ));
    let prefetchers = [
        ("prefetch.l2_stream", "The prefetcher of the L2 cache that follows streams", 0, 3),
        ("prefetch.l2_adjacent", "The prefetcher that fetches the neighbour of a line into the L2 cache", 1, 5),
        ("prefetch.l1_stream", "The prefetcher of the L1 cache that follows streams", 2, 0),
        ("prefetch.l1_stride", "The prefetcher of the L1 cache that follows strides of an instruction", 3, 1),
    ];
    for (name, what, intel, amd) in prefetchers {
        let (at, bit) = if processor.is_intel() { (MISC_FEATURE_CONTROL, intel) } else { (AMD_PREFETCH_CONTROL, amd) };
        let register_of = Register {
            name,
            what,
            about: CORES,
            at,
            mask: 1 << bit,
            form: BitForm::OffIfSet,
            is_here: processor.is_intel() || processor.has_amd_prefetch_control(),
            whose: "Intel's processors and AMD's Zen 4 and 5",
        };
        all.push(register(tree, &processor, register_of));
    }
    all
}

/// A register that each core has.
struct Register {
    name: &'static str,
    what: &'static str,
    about: About,
    at: u64,
    mask: u64,
    form: BitForm,
    is_here: bool,
    whose: &'static str,
}

fn register(tree: &MachineTree, processor: &Processor, of: Register) -> MachineKnob {
    if !of.is_here {
        let why = format!("a register of {}; {}", of.whose, processor.shown());
        return MachineKnob::absent(of.name, of.what, of.about, why);
    }
    let files = processor.cores.iter().map(|core| format!("dev/cpu/{core}/msr")).collect();
    let place = Place::Bits { files, at: of.at, width: 8, mask: of.mask, form: of.form };
    MachineKnob::bits(tree, of.name, of.what, of.about, place, WHY_NO_REGISTER)
}

const WHY_NO_REGISTER: &str = " (the module msr and root are needed; a virtual machine may lack the register)";

fn ddio_ways(tree: &MachineTree, processor: &Processor) -> MachineKnob {
    let (name, what) = ("ddio.ways", "The ways of the last-level cache that devices may allocate in (DDIO)");
    if !(processor.is_intel() && processor.model == XEON_SCALABLE) {
        let why = format!(
            "a register of Intel's Xeon Scalable processors of the first and second generation; {}",
            processor.shown()
        );
        return MachineKnob::absent(name, what, DEVICES, why);
    }
    let ways = (0..8).find_map(|index| {
        let file = |name: &str| tree.text(&format!("sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok();
        (file("level")? == "3").then(|| file("ways_of_associativity")?.parse::<u32>().ok()).flatten()
    });
    let Some(ways) = ways.filter(|ways| (1..64).contains(ways)) else {
        return MachineKnob::absent(name, what, DEVICES, "how many ways the last-level cache has is unknown".into());
    };
    let files = processor.leaders.iter().map(|core| format!("dev/cpu/{core}/msr")).collect();
    let place = Place::Bits { files, at: IIO_LLC_WAYS, width: 8, mask: (1 << ways) - 1, form: BitForm::Mask };
    MachineKnob::bits(tree, name, what, DEVICES, place, WHY_NO_REGISTER)
}

/// Root ports whose devices may write past the cache.
fn ports(tree: &MachineTree) -> Vec<MachineKnob> {
    let what = "Whether writes of the devices behind this port go to the last-level cache (DDIO, \
                Use_Allocating_Flow_Wr); NoSnoopOpWrEn and TPHDIS of the same register also decide, and stay";
    let mut found = Vec::new();
    for address in tree.names("sys/bus/pci/devices") {
        let folder = format!("sys/bus/pci/devices/{address}");
        let is = |name: &str, values: &[&str]| {
            tree.text(&format!("{folder}/{name}")).is_ok_and(|value| values.contains(&chosen(&value)))
        };
        if is("vendor", &["0x8086"]) && is("device", &ROOT_PORTS) {
            let place = Place::Bits {
                files: vec![format!("{folder}/config")],
                at: PERFCTRLSTS_0,
                width: 4,
                mask: USE_ALLOCATING_FLOW,
                form: BitForm::OnIfSet,
            };
            found.push(MachineKnob::bits(
                tree,
                &format!("ddio.port.{address}"),
                what,
                PORT,
                place,
                " (root is needed)",
            ));
        }
    }
    if found.is_empty() {
        let why = "no root port of a Xeon Scalable of the first or second generation is on the PCI bus".to_owned();
        found.push(MachineKnob::absent("ddio.port.ADDRESS", what, PORT, why));
    }
    found
}
