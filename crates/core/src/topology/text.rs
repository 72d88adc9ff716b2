//! The topology as text for people: sections, aligned columns, human sizes. Programs read the JSON.

use std::fmt;

use crate::topology::{Cache, CacheKind, Core, Memlock, NumaNode, Size, StorageFacts, Topology};

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| Size(bytes).to_string())
}

fn or_unknown<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

/// Writes `[0,1,2,3,8]` as `0-3,8`.
pub(super) fn list(numbers: &[usize]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut rest = numbers;
    while let Some(&first) = rest.first() {
        let run = rest.iter().enumerate().take_while(|(at, number)| **number == first + at).count();
        out.push(if run == 1 { first.to_string() } else { format!("{first}-{}", first + run - 1) });
        rest = &rest[run..];
    }
    if out.is_empty() { "none".to_owned() } else { out.join(",") }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, value: impl fmt::Display) -> fmt::Result {
    writeln!(f, "  {name:<14}{value}")
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processor")?;
        row(f, "model", or_unknown(self.cpu.model_name.as_ref()))?;
        row(f, "vendor", or_unknown(self.cpu.vendor.as_ref()))?;
        let named = self.cpu.named();
        let those = |wanted: bool| {
            let names: Vec<&str> = named.iter().filter(|(_, there)| *there == wanted).map(|(name, _)| *name).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(" ") }
        };
        row(f, "has", those(true))?;
        row(f, "lacks", those(false))?;
        row(f, "kernel", or_unknown(self.kernel.as_ref()))?;
        cores(f, self)?;
        if !self.nodes.is_empty() {
            writeln!(f, "\nNUMA nodes")?;
            self.nodes.iter().try_for_each(|one| node(f, one))?;
        }
        memory(f, self)?;
        if !self.unknown.is_empty() {
            writeln!(f, "\nnot known")?;
            self.unknown.iter().try_for_each(|reason| writeln!(f, "  {reason}"))?;
        }
        Ok(())
    }
}

fn cores(f: &mut fmt::Formatter<'_>, topology: &Topology) -> fmt::Result {
    let indices = |keep: fn(&Core) -> bool| -> Vec<usize> {
        topology.cores.iter().filter(|core| keep(core)).map(|core| core.index).collect()
    };
    writeln!(f, "\ncores")?;
    row(f, "online", list(&indices(|core| core.online)))?;
    row(f, "usable", list(&indices(|core| core.usable)))?;
    row(f, "physical", indices(|core| core.online && core.is_first_sibling()).len())?;
    for kind in ["performance", "efficiency"] {
        let of_kind: Vec<usize> =
            topology.cores.iter().filter(|core| core.kind.as_deref() == Some(kind)).map(|core| core.index).collect();
        if !of_kind.is_empty() {
            row(f, kind, list(&of_kind))?;
        }
    }
    writeln!(f, "\ncaches        {:>10}  {:>5}  {:>5}  {:>6}  shared by", "size", "ways", "line", "sets")?;
    let mut shown: Vec<&Cache> = Vec::new();
    for cache in topology.cores.iter().flat_map(|core| &core.caches) {
        // One row for each physical cache would fill screens on large machines. Equal ones are
        // shown once, with their number.
        let alike = |other: &&Cache| same_geometry(other, cache);
        if shown.iter().any(alike) {
            continue;
        }
        shown.push(cache);
        let mut places: Vec<&[usize]> = topology
            .cores
            .iter()
            .flat_map(|core| &core.caches)
            .filter(alike)
            .map(|cache| cache.shared_with.as_slice())
            .collect();
        places.sort_unstable();
        places.dedup();
        let kind = match cache.kind {
            CacheKind::Data => "data",
            CacheKind::Instruction => "instr",
            CacheKind::Unified => "",
        };
        writeln!(
            f,
            "  L{} {kind:<9}{:>10}  {:>5}  {:>5}  {:>6}  {}",
            cache.level,
            size(cache.size_bytes),
            or_unknown(cache.ways),
            or_unknown(cache.line_bytes),
            or_unknown(cache.sets),
            shared(&places),
        )?;
    }
    if shown.is_empty() { row(f, "unknown", "") } else { Ok(()) }
}

fn same_geometry(one: &Cache, other: &Cache) -> bool {
    let key = |cache: &Cache| (cache.level, cache.kind, cache.size_bytes, cache.ways, cache.line_bytes, cache.sets);
    key(one) == key(other) && one.shared_with.len() == other.shared_with.len()
}

fn shared(places: &[&[usize]]) -> String {
    const SHOWN: usize = 4;
    let mut text: Vec<String> = places.iter().take(SHOWN).map(|cores| list(cores)).collect();
    if places.len() > SHOWN {
        text.push(format!("... ({} caches)", places.len()));
    }
    format!("cores {}", text.join(" | "))
}

fn node(f: &mut fmt::Formatter<'_>, node: &NumaNode) -> fmt::Result {
    let cpus = if node.cpu_less { "no cores (memory only)".to_owned() } else { format!("cores {}", list(&node.cpus)) };
    let distances: Vec<String> =
        node.distances.iter().map(|entry| format!("{}={}", entry.node, entry.distance)).collect();
    let tier = node.memory_tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
    row(
        f,
        &format!("node {}", node.index),
        format!("{cpus}, {} ({} free){tier}", size(node.total_bytes), size(node.free_bytes)),
    )?;
    row(f, "  distance", if distances.is_empty() { "unknown".to_owned() } else { distances.join("  ") })?;
    let Some(access) = &node.access else { return Ok(()) };
    row(
        f,
        "  HMAT",
        format!(
            "read {} ns {} MB/s, write {} ns {} MB/s, from nodes {}",
            or_unknown(access.read_latency_ns),
            or_unknown(access.read_bytes_per_second.map(|rate| rate / 1_000_000)),
            or_unknown(access.write_latency_ns),
            or_unknown(access.write_bytes_per_second.map(|rate| rate / 1_000_000)),
            list(&access.initiators),
        ),
    )
}

fn memory(f: &mut fmt::Formatter<'_>, topology: &Topology) -> fmt::Result {
    let memory = &topology.memory;
    writeln!(f, "\nmemory")?;
    row(f, "total", size(memory.total_bytes))?;
    row(f, "available", size(memory.available_bytes))?;
    row(f, "limit", memory.limit_bytes.map_or_else(|| "none".to_owned(), |limit| Size(limit).to_string()))?;
    for limit in &memory.limits {
        row(
            f,
            "",
            format!("{} of {} left, by {}", Size(limit.headroom_bytes()), Size(limit.limit_bytes), limit.source),
        )?;
    }
    row(f, "usable", size(memory.usable_bytes()))?;
    row(
        f,
        "lockable",
        match memory.memlock {
            Memlock::Unlimited => "unlimited".to_owned(),
            Memlock::Bytes(bytes) => Size(bytes).to_string(),
            Memlock::Unknown => "unknown".to_owned(),
        },
    )?;
    row(f, "page", size(memory.page_bytes))?;
    let thp_bytes = memory.thp_bytes.map_or_else(String::new, |bytes| format!(", {}", Size(bytes)));
    row(f, "huge by THP", format!("{}{thp_bytes}", or_unknown(memory.thp.as_ref())))?;
    for pool in &memory.hugepages {
        row(f, "huge reserved", format!("{} of {} x {} free", pool.free, pool.total, Size(pool.page_bytes)))?;
    }
    Ok(())
}

impl fmt::Display for StorageFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes32 = |bytes: Option<u32>| size(bytes.map(u64::from));
        let yes = |flag: Option<bool>| or_unknown(flag.map(|flag| if flag { "yes" } else { "no" }));
        writeln!(f, "storage behind {}", self.path.display())?;
        let at = self.mount_point.as_ref().map(|at| format!(" at {}", at.display())).unwrap_or_default();
        let of = self.mount_source.as_ref().map(|of| format!(", {of}")).unwrap_or_default();
        row(f, "file system", format!("{}{at}{of} ({})", or_unknown(self.fs_type.as_ref()), self.number))?;
        row(f, "space", format!("{} available of {}", size(self.available_bytes), size(self.total_bytes)))?;
        let io = &self.direct_io;
        let aligned = match (io.offset_align_bytes, io.memory_align_bytes) {
            (None, None) => String::new(),
            (offset, memory) => format!(", offsets to {}, memory to {}", bytes32(offset), bytes32(memory)),
        };
        row(f, "direct I/O", format!("{}{aligned} ({})", yes(io.supported), io.note))?;
        let Some(device) = &self.device else {
            return row(f, "device", format!("none: {}", or_unknown(self.device_absent.as_ref())));
        };
        let model = device.model.as_ref().map(|model| format!(", {model}")).unwrap_or_default();
        let disk = if device.disk == device.name { String::new() } else { format!(" on {}", device.disk) };
        row(f, "device", format!("{}{disk}{model}, {}", device.name, size(device.size_bytes)))?;
        if !device.stacked_on.is_empty() {
            row(f, "  stacked on", device.stacked_on.join(" "))?;
        }
        if let Some(file) = &device.backing_file {
            row(f, "  backed by", file)?;
        }
        let (logical, physical) = (bytes32(device.logical_block_bytes), bytes32(device.physical_block_bytes));
        row(f, "  block", format!("{logical} logical, {physical} physical"))?;
        let kib = |kb: Option<u32>| size(kb.map(|kb| u64::from(kb) * 1024));
        let request = format!("up to {} (hardware {})", kib(device.max_sectors_kb), kib(device.max_hw_sectors_kb));
        row(f, "  request", format!("{request}, {} segments", or_unknown(device.max_segments)))?;
        let optimal =
            device.optimal_io_bytes.map_or_else(|| "no preference".to_owned(), |b| Size(b.into()).to_string());
        row(f, "  optimal I/O", optimal)?;
        let queues = device.hw_queues.map_or_else(String::new, |queues| format!(", {queues} hardware queues"));
        let scheduler = or_unknown(device.scheduler.as_ref());
        row(f, "  queue", format!("{} requests, scheduler {scheduler}{queues}", or_unknown(device.nr_requests)))?;
        row(f, "  write cache", or_unknown(device.write_cache.as_ref()))?;
        let flags = [
            ("rotational", device.rotational),
            ("DAX", device.dax),
            ("discard", device.discard),
            ("polled", device.io_poll),
        ];
        let flags: Vec<String> = flags.iter().map(|(name, flag)| format!("{name} {}", yes(*flag))).collect();
        row(f, "  flags", flags.join(", "))
    }
}
