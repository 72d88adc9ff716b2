//! What the paper prints (Vogel et al., *Data Pipes*, CIDR 2023, sections 4.1 to 4.3). Its figures'
//! axes and curves are not in the text.

/// Section 4.1: fewer misses with `IIO_LLC_WAYS` from 2 to 11, "by up to", as a part.
pub(super) const FEWER_MISSES: f64 = 0.41;
/// Section 4.1: "at chunk sizes below 1 MiB".
pub(super) const BELOW_BYTES: u64 = 1 << 20;
/// Section 4.2: the engine's rate over one core's, from persistent memory to DRAM, "up to".
pub(super) const ENGINE_TIMES: f64 = 2.57;
/// Section 4.2: the cores that copy as fast as the engine.
pub(super) const CORES: f64 = 3.0;
/// Section 4.3: the bytes that the media writes a second, about 10 GiB.
pub(super) const MEDIA_WRITE_BYTES_PER_S: f64 = 10.0 * (1u64 << 30) as f64;
/// Section 4.3: the write amplification that was measured, and the largest.
pub(super) const AMPLIFICATION: f64 = 3.27;
pub(super) const MAX_AMPLIFICATION: f64 = 4.0;
/// Section 4.3: the engine's writes over its reads, "a third".
pub(super) const WRITE_OVER_READ: f64 = 1.0 / 3.0;
/// Section 4.3: the largest chunk at which the engine's writes are still faster than a core's.
pub(super) const FASTER_UP_TO_BYTES: u64 = 512 << 10;
