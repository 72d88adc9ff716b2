//! Figure 5 as rates: copies by one core, and by a DMA engine, between DRAM and persistent memory.
//!
//! A copy is limited by the lines under way over the latency of the slower side (Little's law), by
//! the memory, and by what each request costs. Nothing is simulated: the inputs are named, and the
//! results follow.

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

/// The inputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadRates {
    /// Lines that one core has under way. Assumed: 10, the line fill buffers of a core that Intel
    /// documents up to Broadwell (later cores have a few more, which prefetchers share).
    pub core_lines: u32,
    /// Lines that the engine has under way. Calibrated to the paper's 2.57.
    pub engine_lines: u32,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Nanoseconds of a read of persistent memory in sequence (Yang et al., USENIX FAST 2020: 169).
    pub read_latency_ns: f64,
    /// Nanoseconds that a call of memcpy costs beside its bytes. Assumed.
    pub call_ns: f64,
    /// Nanoseconds that a core needs to submit a request to the engine, and to see its end.
    /// Assumed, such that the engine is slower for small requests (paper, section 7.2).
    pub submit_ns: f64,
    /// Nanoseconds between a request and its first byte. Assumed.
    pub setup_ns: f64,
    /// Requests under way (paper, section 4.2: 8).
    pub depth: u32,
    /// What six modules read (Izraelevitz et al. 2019: 39.4 GB/s).
    #[serde(rename = "media_read_bytes_per_second")]
    pub media_read_bytes_per_s: f64,
    /// What the media writes (paper, section 4.3: about 10 GiB/s, "close to PMem's maximum").
    #[serde(rename = "media_write_bytes_per_second")]
    pub media_write_bytes_per_s: f64,
}

/// The lines under way that meet the paper's 2.57. Calibrated.
pub const CALIBRATED_ENGINE_LINES: u32 = 26;

impl OffloadRates {
    /// Returns the paper's machine.
    pub fn paper() -> OffloadRates {
        OffloadRates {
            core_lines: 10,
            engine_lines: CALIBRATED_ENGINE_LINES,
            line_bytes: 64,
            read_latency_ns: 169.0,
            call_ns: 20.0,
            submit_ns: 500.0,
            setup_ns: 1000.0,
            depth: 8,
            media_read_bytes_per_s: 39.4e9,
            media_write_bytes_per_s: super::published::MEDIA_WRITE_BYTES_PER_S,
        }
    }

    /// Checks that the rates can be computed.
    ///
    /// # Errors
    /// `InvalidInput`: lines, depth, latency or rates of the media that are not above 0.
    pub fn check(&self) -> Result<()> {
        let counts = [self.core_lines, self.engine_lines, self.depth];
        let amounts = [self.read_latency_ns, self.media_read_bytes_per_s, self.media_write_bytes_per_s];
        let costs = [self.call_ns, self.submit_ns, self.setup_ns];
        if counts.contains(&0)
            || self.line_bytes == 0
            || amounts.iter().any(|a| !a.is_finite() || *a <= 0.0)
            || costs.iter().any(|c| !c.is_finite() || *c < 0.0)
        {
            return Err(Error::new(ErrorKind::InvalidInput, "model", "rates of nothing, or in no time")
                .with_advice("give lines, depth, latency and rates above 0"));
        }
        Ok(())
    }

    /// Returns bytes a second of one core that copies chunks from persistent memory to DRAM.
    pub fn core_read_bytes_per_s(&self, chunk_bytes: u64) -> f64 {
        let bytes = chunk_bytes as f64;
        (bytes / (self.call_ns + bytes / self.in_flight(self.core_lines)) * 1e9).min(self.media_read_bytes_per_s)
    }

    /// Returns bytes a second of the engine on the same way. Requests overlap up to the depth, and
    /// one core submits them.
    pub fn engine_read_bytes_per_s(&self, chunk_bytes: u64) -> f64 {
        self.engine_bytes_per_s(chunk_bytes).min(self.media_read_bytes_per_s)
    }

    /// Returns bytes a second of the engine from DRAM to persistent memory, where the media writes
    /// `media_bytes_per_byte` bytes for each. The latency is taken to be that of reads: assumed.
    pub fn engine_write_bytes_per_s(&self, chunk_bytes: u64, media_bytes_per_byte: f64) -> f64 {
        let engine = self.engine_bytes_per_s(chunk_bytes);
        if media_bytes_per_byte > 0.0 {
            engine.min(self.media_write_bytes_per_s / media_bytes_per_byte)
        } else {
            engine
        }
    }

    fn engine_bytes_per_s(&self, chunk_bytes: u64) -> f64 {
        let bytes = chunk_bytes as f64;
        let moving_ns = bytes / self.in_flight(self.engine_lines);
        let overlapped_ns = (self.setup_ns + moving_ns) / f64::from(self.depth);
        bytes / moving_ns.max(overlapped_ns).max(self.submit_ns) * 1e9
    }

    /// Returns bytes a nanosecond of so many lines under way.
    fn in_flight(&self, lines: u32) -> f64 {
        f64::from(lines) * self.line_bytes as f64 / self.read_latency_ns
    }
}

/// The rates for one chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadPoint {
    /// Bytes of a request.
    pub chunk_bytes: u64,
    /// One core, from persistent memory to DRAM.
    #[serde(rename = "core_read_bytes_per_second")]
    pub core_read_bytes_per_s: f64,
    /// The engine, the same way.
    #[serde(rename = "engine_read_bytes_per_second")]
    pub engine_read_bytes_per_s: f64,
    /// The engine's rate over the core's.
    pub times: f64,
    /// The engine from DRAM to persistent memory, with the amplification of DCA.
    #[serde(rename = "engine_write_dca_bytes_per_second")]
    pub engine_write_dca_bytes_per_s: f64,
    /// The same past the cache.
    #[serde(rename = "engine_write_past_bytes_per_second")]
    pub engine_write_past_bytes_per_s: f64,
}

/// What the media writes for each byte of the engine, with DCA and past the cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MediaBytes {
    /// The media's bytes with DCA.
    pub dca: f64,
    /// The media's bytes past the cache.
    pub past: f64,
}

/// Returns the rates over chunk sizes.
///
/// # Errors
/// Those of [`OffloadRates::check`].
pub fn figure(rates: &OffloadRates, chunks: &[u64], media: MediaBytes) -> Result<Vec<OffloadPoint>> {
    rates.check()?;
    let point = |&chunk_bytes: &u64| {
        let (core, engine) = (rates.core_read_bytes_per_s(chunk_bytes), rates.engine_read_bytes_per_s(chunk_bytes));
        OffloadPoint {
            chunk_bytes,
            core_read_bytes_per_s: core,
            engine_read_bytes_per_s: engine,
            times: engine / core,
            engine_write_dca_bytes_per_s: rates.engine_write_bytes_per_s(chunk_bytes, media.dca),
            engine_write_past_bytes_per_s: rates.engine_write_bytes_per_s(chunk_bytes, media.past),
        }
    };
    Ok(chunks.iter().map(point).collect())
}
