//! What every contestant implements.

pub type Outcome<T> = Result<T, String>;

/// A way to read, shared by all threads.
pub trait Reader: Sync {
    /// What one thread uses; made on that thread.
    fn session(&self) -> Outcome<Box<dyn Session + '_>>;

    /// (reads found in a cache, reads) so far, where it is the reader that counts.
    fn counts(&self) -> Option<(u64, u64)> {
        None
    }

    /// How hits are counted; `unknown` where they are not.
    fn hits_by(&self) -> &'static str;

    /// What stays of a run to be told: settings, own figures.
    fn notes(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// How many requests at the end of the warm-up stream are enough, and by how many threads: what
    /// caches pages reaches its steady state soon. Without, all.
    fn warm_up(&self) -> Option<(usize, usize)> {
        None
    }

    /// Takes what a request would have brought without reading it, to warm up. `false`: it has to
    /// be read.
    fn admit(&self, _offset: u64, _bytes: &dyn Fn(&mut [u8])) -> bool {
        false
    }
}

/// One thread's use of a reader.
pub trait Session {
    /// One read.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()>;

    /// Many reads of `len` bytes, at most `depth` at the device at once.
    fn batch(&mut self, offsets: &[u64], len: usize, depth: usize, out: &mut [u8]) -> Outcome<()> {
        let _ = depth;
        offsets.iter().zip(out.chunks_exact_mut(len)).try_for_each(|(offset, out)| self.read(*offset, out))
    }

    /// (reads found in a cache, reads) so far, where it is the session that counts.
    fn counts(&self) -> (u64, u64) {
        (0, 0)
    }
}
