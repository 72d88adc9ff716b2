//! The families of engines: their names, and what each primitive does.

use datapipes_core::backend::OfferQuery;

/// Engines that are reached in the same way.
pub(crate) struct EngineFamily {
    /// The backend's name.
    pub(crate) backend: &'static str,
    /// What is opened, for errors.
    pub(crate) queue: &'static str,
    /// Where the facts of queues come from.
    pub(crate) origin: &'static str,
    pub(crate) primitives: &'static [EnginePrimitive],
    /// Why these engines cannot serve a pair of places in memory that others could.
    pub(crate) refuses: fn(&OfferQuery<'_>) -> Option<String>,
}

/// A primitive of a family.
pub(crate) struct EnginePrimitive {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) why: &'static str,
    /// Whether written bytes are told to go to the cache.
    pub(crate) to_cache: bool,
    /// Whether they may be found in the cache afterwards.
    pub(crate) fills_cache: bool,
    /// Whether a core copies its share.
    pub(crate) with_core: bool,
}

/// Intel's Data Streaming Accelerator by the driver `idxd`.
pub(crate) const DSA: EngineFamily = EngineFamily {
    backend: "dsa",
    queue: "a DSA work queue",
    origin: "by sysfs",
    primitives: &[
        EnginePrimitive {
            name: "dsa-move",
            what: "copy by a DMA engine (Intel DSA) into memory (never run on hardware)",
            why: "an engine copies past the caches; never run on hardware",
            to_cache: false,
            fills_cache: false,
            with_core: false,
        },
        EnginePrimitive {
            name: "dsa-move-to-cache",
            what: "copy by a DMA engine (Intel DSA) into the last-level cache (never run on hardware)",
            why: "an engine copies and leaves the lines in the last-level cache; never run on hardware",
            to_cache: true,
            fills_cache: true,
            with_core: false,
        },
        EnginePrimitive {
            name: "dsa-and-core",
            what: "copy by a DMA engine (Intel DSA) and a core, each its share (never run on hardware)",
            why: "an engine and a core copy; never run on hardware",
            to_cache: true,
            fills_cache: true,
            with_core: true,
        },
    ],
    refuses: |_| None,
};

/// Engines that DPDK has a driver for.
pub(crate) const DMADEV: EngineFamily = EngineFamily {
    backend: "dmadev",
    queue: "a DMA device of DPDK",
    origin: "by DPDK",
    primitives: &[
        EnginePrimitive {
            name: "dmadev-move",
            what: "copy by a DMA engine that DPDK drives (I/OAT and others; never run on hardware)",
            why: "an engine copies; never run on hardware",
            to_cache: false,
            // Nobody says where bytes go: what a device writes by DDIO is in the last-level cache.
            fills_cache: true,
            with_core: false,
        },
        EnginePrimitive {
            name: "dmadev-and-core",
            what: "copy by a DMA engine that DPDK drives and a core, each its share (never run on hardware)",
            why: "an engine and a core copy; never run on hardware",
            to_cache: false,
            fills_cache: true,
            with_core: true,
        },
    ],
    refuses: |ask| {
        let regions = [ask.source.memory(), ask.target.memory()].into_iter().flatten();
        regions.map(|range| range.region()).find_map(|region| match (region.maps_file(), region.is_shared()) {
            // Its pages may vanish while an engine of DPDK uses them, and few engines survive that.
            (true, _) => Some("the memory maps a file, whose pages may be lost while an engine uses them".into()),
            (_, true) => Some("the memory is shared, and its owner may take pages from the engine".into()),
            _ => None,
        })
    },
};
