//! Ours: the cache of this project, over a file.

use datapipes::Ssd;
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained};

use crate::reader::{Outcome, Reader, Session};

pub struct Ours(FineGrained);

impl Ours {
    pub fn open(path: &str, budget: usize, policy: &str, depth: usize) -> Outcome<Ours> {
        let told = |e: datapipes::Error| e.to_string();
        let machine = datapipes::discover();
        let ssd = Ssd::open(path).map_err(told)?;
        let policy: CachePolicy = policy.parse().map_err(told)?;
        let config = CacheOptions::new(&machine).budget(budget).policy(policy).depth(depth);
        Ok(Ours(FineGrained::over(&ssd, config).map_err(told)?))
    }
}

impl Reader for Ours {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(&self.0))
    }

    fn hits_by(&self) -> &'static str {
        "its own count"
    }

    fn counts(&self) -> Option<(u64, u64)> {
        let metrics = self.0.metrics();
        Some((metrics.hits, metrics.reads))
    }

    fn notes(&self) -> Vec<(&'static str, f64)> {
        let m = self.0.metrics();
        vec![
            ("items", m.items as f64),
            ("bytes_per_item", m.bytes_per_item()),
            ("budget_mib", m.budget as f64 / 1048576.0),
            ("own_device_bytes", m.device_bytes as f64),
            ("own_amplification", m.amplification()),
        ]
    }
}

impl Session for &FineGrained {
    #[inline]
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        FineGrained::read(self, offset, out).map_err(|e| e.to_string())
    }

    fn batch(&mut self, offsets: &[u64], len: usize, _depth: usize, out: &mut [u8]) -> Outcome<()> {
        let gathered = self.gather(offsets, len, out).and_then(|g| g.all());
        gathered.map(|_| ()).map_err(|e| e.to_string())
    }
}
