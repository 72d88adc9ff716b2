use datapipes_core::topology::Topology; use datapipes_core::*; use datapipes_cpu::*; use std::{time::Instant,sync::Arc};
fn main()->Result<()>{ let t=Topology::discover(); let m=Machine::new(t.clone(),vec![Arc::new(CpuBackend::new(&t,Calibration::assumed(&t)))]);
 let (a,b)=(Dram::allocate(1<<20)?,Dram::allocate(1<<20)?); let p=m.connect(&a,&b)?; let ab=Dram::allocate(1<<20)?; let q=m.connect(&ab.range(0,65536)?,&ab.range(65536,65536)?)?;
 println!("{}",p.route());
 for len in [0u64,64,128,256,4096,4097,8192] { for (n,p) in [("two",&p),("one",&q)] { let mut best=vec![]; for _ in 0..31 { let s=Instant::now(); for _ in 0..5000 { p.transfer(std::hint::black_box(Span{source:0,target:0,len}))?; } best.push(s.elapsed().as_nanos() as f64/5000.0);} best.sort_by(f64::total_cmp); print!("{n} {len}: {:.1} ns  ",best[15]); } println!(); }
 Ok(()) }
