//! Every measurement, once. `docs/metrics.md` lists them for people.
//!
//! Names begin with `datapipes_`, end with their unit, and counters with `_total` after it.

use crate::measurement::{Label, Measurement, MeasurementKind, Unit};

use Label::*;
use MeasurementKind::*;
use Unit::*;

/// Declares measurements, and the list of all.
macro_rules! measurements {
    ($($name:ident = $text:literal, $kind:ident, $unit:ident, [$($label:ident),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $name: Measurement =
                Measurement { name: $text, kind: $kind, unit: $unit, labels: &[$($label),*], help: $help };
        )*

        /// Every measurement with the name of its constant, in the order of this file.
        pub static ALL: &[(&str, &Measurement)] = &[$((stringify!($name), &$name)),*];
    };
}

measurements! {
    // The machine (datapipes-counters).
    LLC_REFERENCES = "datapipes_llc_references_total", Counter, Count, [Scope],
        "Accesses to the last-level cache";
    LLC_MISSES = "datapipes_llc_misses_total", Counter, Count, [Scope],
        "Accesses that missed the last-level cache";
    LLC_READ_MISSES = "datapipes_llc_read_misses_total", Counter, Count, [Scope],
        "Loads that missed the last-level cache";
    INSTRUCTIONS = "datapipes_instructions_total", Counter, Count, [Scope],
        "Instructions that were completed";
    CYCLES = "datapipes_cycles_total", Counter, Count, [Scope],
        "Cycles of the cores";
    CPU_TIME = "datapipes_cpu_time_seconds_total", Counter, Seconds, [Scope],
        "Time on a core";
    PAGE_FAULTS = "datapipes_page_faults_total", Counter, Count, [Scope],
        "Page faults";
    CONTEXT_SWITCHES = "datapipes_context_switches_total", Counter, Count, [Scope],
        "Changes from one thread to another";
    SYSTEM_CALLS = "datapipes_system_calls_total", Counter, Count, [Scope],
        "Calls of the kernel";
    MEMORY_READ = "datapipes_memory_read_bytes_total", Counter, Bytes, [Scope],
        "Bytes that memory controllers read";
    MEMORY_WRITTEN = "datapipes_memory_written_bytes_total", Counter, Bytes, [Scope],
        "Bytes that memory controllers wrote";
    PCIE = "datapipes_pcie_bytes_total", Counter, Bytes, [Scope],
        "Bytes of devices over PCI Express";
    LLC_OCCUPANCY = "datapipes_llc_occupancy_bytes", Gauge, Bytes, [Scope],
        "Bytes of the last-level caches that hold what threads brought there";
    MEMORY_BANDWIDTH = "datapipes_memory_bandwidth_bytes_total", Counter, Bytes, [Scope],
        "Bytes between caches and memory";
    MEMORY_BANDWIDTH_LOCAL = "datapipes_memory_bandwidth_local_bytes_total", Counter, Bytes, [Scope],
        "Bytes between caches and the memory of their own node";
    NUMA_MISSES = "datapipes_numa_misses_pages_total", Counter, Pages, [Scope],
        "Pages that were allocated on a node because the wanted one was full";
    NUMA_REMOTE = "datapipes_numa_remote_pages_total", Counter, Pages, [Scope],
        "Pages of a node that threads of another one allocated";
    DISK_READ = "datapipes_disk_read_bytes_total", Counter, Bytes, [Scope],
        "Bytes that disks read";
    DISK_WRITTEN = "datapipes_disk_written_bytes_total", Counter, Bytes, [Scope],
        "Bytes that disks wrote";

    // A pipe, by the primitives of its route (datapipes-core, and the products for their pipes).
    PIPE_BYTES = "datapipes_pipe_bytes_total", Counter, Bytes, [Product, Pipe, Route, Step, Primitive],
        "Bytes that a step of a route moved; what arrived at the target is the last step's";
    PIPE_TRANSFERS = "datapipes_pipe_transfers_total", Counter, Count, [Product, Pipe, Route, Step, Primitive, Outcome],
        "Transfers that a primitive completed, or that failed in it";
    PIPE_REQUESTS = "datapipes_pipe_requests_total", Counter, Count, [Product, Pipe, Route, Step, Primitive],
        "Requests to the device or the kernel";
    PIPE_SYSTEM_CALLS = "datapipes_pipe_system_calls_total", Counter, Count, [Product, Pipe, Route, Step, Primitive],
        "System calls that a primitive made";
    PIPE_DIRECT = "datapipes_pipe_direct_bytes_total", Counter, Bytes, [Product, Pipe, Route, Step, Primitive],
        "Bytes that went past the page cache";
    PIPE_CACHED = "datapipes_pipe_cached_bytes_total", Counter, Bytes, [Product, Pipe, Route, Step, Primitive],
        "Bytes that went through the page cache";
    PIPE_BOUNCED = "datapipes_pipe_bounced_bytes_total", Counter, Bytes, [Product, Pipe, Route, Step, Primitive],
        "Bytes that went through a bounce buffer, because of alignment";
    PIPE_CORE_FINISHED = "datapipes_pipe_core_finished_bytes_total", Counter, Bytes, [Product, Pipe, Route, Step, Primitive],
        "Bytes that a device left and a core copied";
    PIPE_RETRIES = "datapipes_pipe_retries_total", Counter, Count, [Product, Pipe, Route, Step, Primitive],
        "Requests that were repeated or finished by another";
    PIPE_REFUSED = "datapipes_pipe_refused_requests_total", Counter, Count, [Product, Pipe, Route, Step, Primitive],
        "Requests that the file system or the kernel refused as they were made, and that were made another way";
    PIPE_DEVICES_LOST = "datapipes_pipe_devices_lost_total", Counter, Count, [Product, Pipe, Route, Step, Primitive],
        "Devices that were lost during transfers";
    PIPE_BUSY = "datapipes_pipe_busy_seconds_total", Counter, Seconds, [Product, Pipe, Route, Step, Primitive],
        "Time during which a primitive had work";
    PIPE_MOST_OUTSTANDING = "datapipes_pipe_most_outstanding", Gauge, Count, [Product, Pipe, Route, Step, Primitive],
        "The most requests outstanding at once";

    // A runtime (datapipes-core).
    RUNTIME_TRANSFERS = "datapipes_runtime_transfers_total", Counter, Count, [Outcome],
        "Transfers that ended";
    RUNTIME_UNDER_WAY = "datapipes_runtime_transfers_under_way", Gauge, Count, [],
        "Transfers under way";
    RUNTIME_PANICS = "datapipes_runtime_panics_total", Counter, Count, [],
        "Panics of foreign code that were caught";
    RUNTIME_THREADS_REFUSED = "datapipes_runtime_threads_refused_total", Counter, Count, [],
        "Threads that the kernel refused";
    TRANSFER_TIME = "datapipes_runtime_transfer_seconds", Histogram, Seconds, [Class],
        "Times of transfers, from the call to the end";

    // What transfers compete for.
    DEVICE_BYTES = "datapipes_device_bytes_total", Counter, Bytes, [Device, Class],
        "Bytes that were released to a device or a group of threads";
    DEVICE_CHUNKS = "datapipes_device_chunks_total", Counter, Count, [Device, Class],
        "Chunks that were released to it";
    DEVICE_LONGEST_WAIT = "datapipes_device_longest_wait_seconds", Gauge, Seconds, [Device, Class],
        "The longest time between the arrival of a transfer and the release of its first chunk";
    DEVICE_THROTTLED = "datapipes_device_throttled_seconds_total", Counter, Seconds, [Device, Class],
        "Time in which only limits of pipes stood in the way of their transfers";
    DEVICE_OUTSTANDING = "datapipes_device_outstanding_bytes", Gauge, Bytes, [Device, Class],
        "Bytes that are at the device";
    DEVICE_MINIMUM_SHARE = "datapipes_device_minimum_share_ratio", Gauge, Ratio, [Device, Class],
        "The part of the bytes that a class has while it has work";
    DEVICE_WAITING = "datapipes_device_waiting_transfers", Gauge, Count, [Device],
        "Transfers of which something is not released yet";
    DEVICE_OUTSTANDING_CHUNKS = "datapipes_device_outstanding_chunks", Gauge, Count, [Device],
        "Chunks that are at the device";
    DEVICE_MOST_OUTSTANDING = "datapipes_device_most_outstanding_bytes", Gauge, Bytes, [Device],
        "The most bytes that were at the device at once";
    DEVICE_PROMISED = "datapipes_device_promised_bytes_per_second", Gauge, BytesPerSecond, [Device],
        "The rate that is promised to the connected pipes together";
    DEVICE_PAST_CAP = "datapipes_device_chunks_past_cap_total", Counter, Count, [Device],
        "Chunks that went past the cap of contended bytes, for a promised rate or a minimum share";

    // The pipes of a runtime, as their device's scheduler sees them.
    FLOW_BYTES = "datapipes_flow_bytes_total", Counter, Bytes, [Device, Pipe, Class],
        "Bytes of a pipe that were released to its device";
    FLOW_LONGEST_WAIT = "datapipes_flow_longest_wait_seconds", Gauge, Seconds, [Device, Pipe, Class],
        "The longest time between the arrival of a pipe's transfer and the release of its first chunk";
    FLOW_THROTTLED = "datapipes_flow_throttled_seconds_total", Counter, Seconds, [Device, Pipe, Class],
        "Time in which only its limit stood in the way of a pipe's transfers";
    FLOW_OUTSTANDING = "datapipes_flow_outstanding_bytes", Gauge, Bytes, [Device, Pipe, Class],
        "Bytes of a pipe that are at its device";
    FLOW_WAITING = "datapipes_flow_waiting_transfers", Gauge, Count, [Device, Pipe, Class],
        "Transfers of a pipe of which something is not released yet";

    // The cache (datapipes-cache).
    CACHE_READS = "datapipes_cache_reads_total", Counter, Count, [Outcome],
        "Reads of pieces that lie in one page";
    CACHE_READ_TIME = "datapipes_cache_read_seconds", Histogram, Seconds, [Outcome],
        "Times of calls that read, from the call to its return; a call is a hit if all of its ranges were cached";
    CACHE_ASKED = "datapipes_cache_asked_bytes_total", Counter, Bytes, [],
        "Bytes that were asked for";
    CACHE_DEVICE_BYTES = "datapipes_cache_device_bytes_total", Counter, Bytes, [],
        "Bytes that the device moved for reads";
    CACHE_DEVICE_READS = "datapipes_cache_device_reads_total", Counter, Count, [],
        "Requests to the device";
    CACHE_JOINED = "datapipes_cache_joined_reads_total", Counter, Count, [],
        "Reads of extents that another thread was reading already";
    CACHE_REPEATED = "datapipes_cache_repeated_reads_total", Counter, Count, [],
        "Reads that were repeated because their bytes changed meanwhile";
    CACHE_FAILED = "datapipes_cache_failed_reads_total", Counter, Count, [],
        "Reads that failed";
    CACHE_PATHS = "datapipes_cache_path_reads_total", Counter, Count, [Path],
        "Reads by the way to their bytes";
    CACHE_CHANGES = "datapipes_cache_changes_total", Counter, Count, [Origin],
        "Changes of files that are cached";
    CACHE_UNCERTAIN = "datapipes_cache_uncertain_total", Counter, Count, [],
        "How often all items of a file were dropped because others may have changed it unseen";
    CACHE_BUDGET = "datapipes_cache_budget_bytes", Gauge, Bytes, [],
        "The memory budget";
    CACHE_MEMORY = "datapipes_cache_memory_bytes", Gauge, Bytes, [],
        "The part of the budget in use";
    CACHE_TABLES = "datapipes_cache_table_bytes", Gauge, Bytes, [],
        "The memory of the index, the ghosts and other tables";
    CACHE_ITEMS = "datapipes_cache_items", Gauge, Count, [],
        "Cached items";
    CACHE_ITEM_BYTES = "datapipes_cache_item_bytes", Gauge, Bytes, [],
        "Bytes of cached items";
    CACHE_UNDER_WAY = "datapipes_cache_reads_under_way", Gauge, Count, [],
        "Extents that are being read";
    CACHE_REASSIGNED = "datapipes_cache_reassigned_slabs_total", Counter, Count, [],
        "Slabs that changed their size class";
    CACHE_CLASS_SLABS = "datapipes_cache_class_slabs", Gauge, Count, [Capacity],
        "Slabs of a size class";
    CACHE_CLASS_ITEMS = "datapipes_cache_class_items", Gauge, Count, [Capacity],
        "Items of a size class";
    CACHE_CLASS_READS = "datapipes_cache_class_reads_total", Counter, Count, [Capacity, Outcome],
        "Reads of items of a size class";
    CACHE_CLASS_ADMITTED = "datapipes_cache_class_admitted_total", Counter, Count, [Capacity],
        "Items that were admitted";
    CACHE_CLASS_BYPASSED = "datapipes_cache_class_bypassed_total", Counter, Count, [Capacity],
        "Items that were returned to the reader but not admitted";
    CACHE_CLASS_EVICTED = "datapipes_cache_class_evicted_total", Counter, Count, [Capacity],
        "Items that were evicted for others";
    CACHE_CLASS_INVALIDATED = "datapipes_cache_class_invalidated_total", Counter, Count, [Capacity],
        "Items that were removed because their bytes changed, or because of the time to live";
    CACHE_CLASS_MOVED = "datapipes_cache_class_moved_total", Counter, Count, [Capacity],
        "Items that were moved when their slab changed its class";
    CACHE_CLASS_GHOSTS = "datapipes_cache_class_ghost_hits_total", Counter, Count, [Capacity],
        "Misses that would have been hits with more memory";

    // Logs and checkpoints (datapipes-durable).
    LOG_RECORDS = "datapipes_log_records_total", Counter, Count, [],
        "Records that were appended";
    LOG_PAYLOAD = "datapipes_log_payload_bytes_total", Counter, Bytes, [],
        "Bytes of the records' payloads";
    LOG_WRITTEN = "datapipes_log_written_bytes_total", Counter, Bytes, [],
        "Bytes that were written for records, with headers and marks";
    LOG_BATCHES = "datapipes_log_batches_total", Counter, Count, [],
        "Batches that became durable, by one write and one sync each";
    LOG_LARGEST_BATCH = "datapipes_log_largest_batch_records", Gauge, Count, [],
        "Records of the largest batch";
    LOG_WAITS = "datapipes_log_waits_for_room_total", Counter, Count, [],
        "How often an append waited for room";
    LOG_SEGMENTS = "datapipes_log_segments_begun_total", Counter, Count, [],
        "Segments that were begun";
    LOG_UNDURABLE = "datapipes_log_undurable_records", Gauge, Count, [],
        "Records that were appended and are not durable yet";
    LOG_FAILED = "datapipes_log_failed", Gauge, Count, [],
        "1 if the log takes no more records";
    LOG_APPEND_TIME = "datapipes_log_append_seconds", Histogram, Seconds, [],
        "Times from append to acknowledgement, of appends that were waited for";
    LOG_WRITE_TIME = "datapipes_log_write_seconds", Histogram, Seconds, [],
        "Times of writes of a batch";
    LOG_SYNC_TIME = "datapipes_log_sync_seconds", Histogram, Seconds, [],
        "Times of syncs of a batch";
    LOG_ROTATION_TIME = "datapipes_log_rotation_seconds", Histogram, Seconds, [],
        "Times of changes to a new segment";
    CHECKPOINT_NUMBER = "datapipes_checkpoint_number", Gauge, Count, [],
        "The number of the last checkpoint that was saved";
    CHECKPOINT_BYTES = "datapipes_checkpoint_bytes", Gauge, Bytes, [],
        "Bytes of the last checkpoint";
    CHECKPOINT_PHASES = "datapipes_checkpoint_phase_seconds", Gauge, Seconds, [Phase],
        "Times of the last save: write, publish, checksum (which runs beside the write)";
    CHECKPOINT_REMOVED = "datapipes_checkpoint_removed", Gauge, Count, [],
        "Older checkpoints that the last save removed";

    // The fabric (datapipes-fabric).
    FABRIC_DEVICES = "datapipes_fabric_devices", Gauge, Count, [],
        "Running devices of a controller";
    FABRIC_OBJECTS = "datapipes_fabric_objects", Gauge, Count, [],
        "Channels and memories that exist";
    FABRIC_OBJECT_BYTES = "datapipes_fabric_object_bytes", Gauge, Bytes, [],
        "Bytes of the channels and memories";
    FABRIC_CAPABILITIES = "datapipes_fabric_capabilities", Gauge, Count, [],
        "Capabilities that exist";
    FABRIC_DESCRIPTORS = "datapipes_fabric_descriptors", Gauge, Count, [],
        "Descriptors that the controller has open";
    FABRIC_RELEASING = "datapipes_fabric_releasing", Gauge, Count, [],
        "Revoked endpoints that are not yet known to be unmapped";
    CHANNEL_BLOCKS = "datapipes_channel_blocks_total", Counter, Count, [Pipe, Direction],
        "Blocks that an end of a channel, or a device, sent or received";
    CHANNEL_BYTES = "datapipes_channel_bytes_total", Counter, Bytes, [Pipe, Direction],
        "Bytes of these blocks";
    CHANNEL_OUTSTANDING = "datapipes_channel_outstanding_blocks", Gauge, Count, [Pipe],
        "Blocks that were sent and not replied to";
    CHANNEL_CREDITS = "datapipes_channel_credits", Gauge, Count, [Pipe],
        "Blocks that may be outstanding";
    CHANNEL_BLOCK_TIME = "datapipes_channel_block_seconds", Histogram, Seconds, [Pipe],
        "Times from the push of a block until its receiver replied, without the empty ones that end streams";

    // The sort (datapipes-sort).
    SORT_RECORDS = "datapipes_sort_records", Gauge, Count, [Direction],
        "Records that the sort read and wrote";
    SORT_BYTES = "datapipes_sort_bytes", Gauge, Bytes, [Direction],
        "Bytes that the sort read and wrote";
    SORT_TIME = "datapipes_sort_seconds", Gauge, Seconds, [],
        "The time of the sort";
    SORT_PHASES = "datapipes_sort_phase_seconds", Gauge, Seconds, [Phase],
        "The times of its phases";
    SORT_RUNS = "datapipes_sort_runs", Gauge, Count, [],
        "Runs that were spilled";
    SORT_PASSES = "datapipes_sort_merge_passes", Gauge, Count, [],
        "Merge passes over spilled runs";
    SORT_MEMORY = "datapipes_sort_memory_bytes", Gauge, Bytes, [],
        "The memory budget";
    SORT_THREADS = "datapipes_sort_threads", Gauge, Count, [],
        "Threads that sorted and merged";
    SORT_SPILLED = "datapipes_sort_spilled_bytes", Gauge, Bytes, [],
        "Room that runs were given at spill places, in all; known at the end";

    // A command of dpipe that was asked for metrics.
    COMMAND_STATE = "datapipes_command_state", Gauge, Count, [Command, Outcome],
        "1 for how the command stands (running, completed, mismatch, failed, interrupted), and 0 for the others";
    COMMAND_BEGAN = "datapipes_command_begin_timestamp_seconds", Gauge, Seconds, [Command],
        "When the command began, in seconds since 1970";
    COMMAND_ENDED = "datapipes_command_end_timestamp_seconds", Gauge, Seconds, [Command],
        "When the command ended, in seconds since 1970";
    COMMAND_TIME = "datapipes_command_seconds", Gauge, Seconds, [Command],
        "How long the command has run";
    COMMAND_CPU = "datapipes_command_cpu_seconds", Gauge, Seconds, [Command],
        "Time on cores of the command and of the processes that it started and that have ended";

    // dpiped (datapipes-service).
    SERVICE_UP = "datapipes_service_up_seconds", Gauge, Seconds, [],
        "Time since the service was started";
    SERVICE_DESCRIPTORS = "datapipes_service_descriptors", Gauge, Count, [],
        "Descriptors that the service has open";
    SERVICE_MAPPED = "datapipes_service_mapped_bytes", Gauge, Bytes, [],
        "Bytes of clients' memory that are mapped";
    SERVICE_MAPPED_LIMIT = "datapipes_service_mapped_limit_bytes", Gauge, Bytes, [],
        "The most bytes of clients' memory that may be mapped";
    SERVICE_TURNED_AWAY = "datapipes_service_clients_turned_away_total", Counter, Count, [],
        "Clients that were refused or cut off";
    SERVICE_CLIENTS = "datapipes_service_clients", Gauge, Count, [],
        "Clients that are connected";
    SERVICE_CLIENT_LIMIT = "datapipes_service_client_limit", Gauge, Count, [],
        "The most clients that may be connected";
    SERVICE_EXPORTED = "datapipes_service_exported_bytes", Gauge, Bytes, [],
        "Memory that the service exports to other processes and machines (--export)";
    SERVICE_EXPORT_PIPES = "datapipes_service_export_pipes", Gauge, Count, [],
        "Pipes of others that have exported memory open. The kernel or UCX moves their bytes, and they count them";
    SERVICE_SCRAPES = "datapipes_service_scrapes_total", Counter, Count, [Outcome],
        "Requests for metrics: completed with an answer, refused with a reason, cut off before an answer";
    CLIENT_PIPES = "datapipes_client_pipes", Gauge, Count, [Client],
        "Pipes of a client";
    CLIENT_MAPPED = "datapipes_client_mapped_bytes", Gauge, Bytes, [Client],
        "Bytes of a client's memory that are mapped";
    CLIENT_BYTES = "datapipes_client_bytes_total", Counter, Bytes, [Client, Class],
        "Bytes that transfers of a client moved";
    CLIENT_TRANSFERS = "datapipes_client_transfers_total", Counter, Count, [Client, Class, Outcome],
        "Transfers of a client that ended";
    CLIENT_UNDER_WAY = "datapipes_client_transfers_under_way", Gauge, Count, [Client, Class],
        "Transfers of a client that are under way";
    CLIENT_TRANSFER_TIME = "datapipes_client_transfer_seconds", Histogram, Seconds, [Client, Class],
        "Times of a client's transfers, from the call to the end";
}
