fn main() {
    use datapipes::{Machine, Ssd};
    use datapipes_cache::*;
    use datapipes_testkit::access::*;
    use std::time::Instant;
    let path = std::env::args().nth(1).unwrap();
    let mib: u64 = 1024;
    if std::fs::metadata(&path).map(|m| m.len()).unwrap_or(0) != mib << 20 {
        use std::io::Write;
        let mut f = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(&path).unwrap());
        for i in 0..(mib << 20) / 8 { f.write_all(&(i as u64).to_le_bytes()).unwrap(); }
        f.into_inner().unwrap().sync_all().unwrap();
    }
    let machine = Machine::discover();
    let ssd = Ssd::open(&path).unwrap();
    let layout = Layout { items: (mib << 20) / 128, item_bytes: 128, stride_bytes: 128 };
    let only_hits = std::env::args().nth(2).is_some();
    for depth in if only_hits { vec![] } else { vec![1usize, 32, 128] } {
        let fine = FineGrained::over(&ssd, Config::new(&machine).budget(128 << 20).depth(depth.max(32))).unwrap();
        if depth == 1 { println!("{}", fine.explain()); }
        let mut reads = Items::new(layout, Popularity::Zipf { exponent: 0.8 }, 7);
        let mut phase = |n: usize, name: &str| {
            let cpu = || { let mut u: libc::rusage = unsafe { std::mem::zeroed() }; unsafe { libc::getrusage(0, &mut u) }; (u.ru_utime.tv_sec + u.ru_stime.tv_sec) as f64 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) as f64 / 1e6 };
            let (m0, c0, t0) = (fine.metrics(), cpu(), Instant::now());
            if depth == 1 {
                let mut out = [0; 128];
                for _ in 0..n { let r = reads.next().unwrap(); fine.read(r.offset, &mut out).unwrap(); assert_eq!(out[..8], (r.offset / 8).to_le_bytes()); }
            } else {
                let mut out = vec![0; depth * 128];
                for _ in 0..n / depth {
                    let o: Vec<u64> = (0..depth).map(|_| reads.next().unwrap().offset).collect();
                    fine.gather(&o, 128, &mut out).unwrap().all().unwrap();
                    for (i, o) in o.iter().enumerate() { assert_eq!(out[i*128..i*128+8], (o / 8).to_le_bytes()); }
                }
            }
            let (m, c, t) = (fine.metrics(), cpu() - c0, t0.elapsed().as_secs_f64());
            let (r, h) = (m.reads - m0.reads, m.hits - m0.hits);
            println!("depth {depth} {name}: {:.0} ops/s, {:.1}% hits, {:.2} amp, {:.2} us CPU/read", n as f64 / t, h as f64 * 100. / r as f64, (m.device_bytes - m0.device_bytes) as f64 / (m.asked_bytes - m0.asked_bytes) as f64, c * 1e6 / n as f64);
        };
        let n = if depth == 1 { 150_000 } else { 600_000 };
        phase(if depth == 1 { n } else { 3 * n }, "warm-up");
        phase(n, "measured");
    }
    // Hits only.
    let fine = FineGrained::over(&ssd, Config::new(&machine).budget(128 << 20)).unwrap();
    let small = Layout { items: 600_000, item_bytes: 128, stride_bytes: 128 };
    let all: Vec<u64> = (0..small.items).map(|i| i * 128).collect();
    let mut out = vec![0; 4096 * 128];
    for c in all.chunks(4096) { fine.gather(c, 128, &mut out[..c.len() * 128]).unwrap().all().unwrap(); }
    for threads in [1, 2] {
        for pop in [Popularity::Uniform, Popularity::Zipf { exponent: 0.8 }] {
            let t = Instant::now();
            std::thread::scope(|s| for k in 0..threads { let fine = &fine; s.spawn(move || {
                let offsets: Vec<u64> = Items::new(small, pop, k).take(1 << 16).map(|r| r.offset).collect();
                let mut out = [0; 128];
                for _ in 0..30 { for &o in &offsets { fine.read(o, &mut out).unwrap(); } }
            }); });
            println!("{threads} threads {pop:?}: {:.2} M hits/s each ({:.1}%)", 30.0 * 65536.0 / t.elapsed().as_secs_f64() / 1e6, fine.metrics().hit_percent());
        }
    }
}
