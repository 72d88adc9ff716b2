//! `move_rate FILE SIZE [PRIMITIVE [DEPTH [REQUEST]]]` moves FILE to and from 256 MiB of memory
//! until SIZE bytes went each way, and prints rates and core time as JSON. FILE is created and
//! overwritten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, Machine, Pipe, Result, Span, Ssd};
use datapipes_file::FileBackend;

const MEMORY: u64 = 256 << 20;
const SPAN: u64 = 64 << 20;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(size)) = (args.next(), args.next()) else {
        eprintln!("usage: move_rate FILE SIZE [PRIMITIVE [DEPTH [REQUEST]]]");
        std::process::exit(2);
    };
    let size = datapipes_core::parse_size(&size)?.next_multiple_of(SPAN);
    let constraints = Constraints::default()
        .only(args.next().into_iter().collect())
        .queue_depth(args.next().and_then(|n| n.parse().ok()))
        .request_bytes(args.next().map(|n| datapipes_core::parse_size(&n)).transpose()?.map(|n| n as u32))
        .typical_len(SPAN);
    let machine = Machine::new(Topology::discover(), vec![Arc::new(FileBackend::probe())]);
    let file = Ssd::create(&path)?;
    file.preallocate(size)?;
    let memory = Dram::allocate(MEMORY as usize)?;
    memory.lease_mut()?.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);

    let write = machine.connect_with(&memory, &file, &constraints)?;
    // Blocks that were never written are marked as written on the way, which is not to be measured.
    run(&write, size, true)?;
    let (write_rate, write_cpu) = run(&write, size, true)?;
    let read = machine.connect_with(&file, &memory, &constraints)?;
    let (read_rate, read_cpu) = run(&read, size, false)?;
    eprint!("{}{}{}{}", write.route(), write.report(), read.route(), read.report());
    println!(
        "{{\"read_gib_s\":{read_rate:.3},\"write_gib_s\":{write_rate:.3},\
         \"cpu_ms_per_gib_read\":{read_cpu:.2},\"cpu_ms_per_gib_write\":{write_cpu:.2}}}"
    );
    Ok(())
}

/// Returns the rate in GiB/s and the core time in ms per GiB.
fn run(pipe: &Pipe, size: u64, writing: bool) -> Result<(f64, f64)> {
    let (since, cpu) = (Instant::now(), cpu_ms());
    let mut started = VecDeque::new();
    for at in (0..size).step_by(SPAN as usize) {
        if started.len() as u64 == MEMORY / SPAN
            && let Some(first) = started.pop_front()
        {
            let first: datapipes_core::Transfer = first;
            first.wait()?;
        }
        let (file, memory) = (at, at % MEMORY);
        let (source, target) = if writing { (memory, file) } else { (file, memory) };
        started.push_back(pipe.start(Span { source, target, len: SPAN })?);
    }
    for transfer in started {
        transfer.wait()?;
    }
    let gib = size as f64 / f64::from(1 << 30);
    Ok((gib / since.elapsed().as_secs_f64(), (cpu_ms() - cpu) / gib))
}

fn cpu_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
