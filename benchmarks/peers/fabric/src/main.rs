//! Blocks from a process to another over iceoryx2's publish-subscribe, as `placements` measures
//! them over our channels: `fabric-peers in-place|one-copy SIZE MS` prints a JSON object.
//!
//! The feeder copies the same block into a loaned sample again and again. The taker adds up all words,
//! in the sample or in a private copy of it. Both look for the other without sleeping, which is the
//! fastest that iceoryx2 offers. Four samples may be on the way. With `PIN=apart` each has a core.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iceoryx2::port::backpressure_strategy::BackpressureStrategy;
use iceoryx2::prelude::*;

type Outcome<T> = Result<T, Box<dyn Error>>;

const CREDITS: usize = 4;
/// Blocks before the clock starts.
const WARM: u64 = 8;

fn main() -> Outcome<()> {
    set_log_level(LogLevel::Error);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["feed", name, size, ms] => feed(name, size.parse()?, Duration::from_millis(ms.parse()?)),
        ["take", name, kind, size] => take(name, kind == "one-copy", size.parse()?),
        [kind @ ("in-place" | "one-copy"), size, ms] => measure(kind, size, ms),
        _ => Err("fabric-peers in-place|one-copy SIZE MS".into()),
    }
}

fn measure(kind: &str, size: &str, ms: &str) -> Outcome<()> {
    let name = format!("datapipes/{}", std::process::id());
    let start = |arguments: &[&str]| -> Outcome<Child> {
        let mut command = Command::new("/proc/self/exe");
        Ok(command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
    };
    let line = |child: &mut Child| -> Outcome<Vec<u64>> {
        let (mut text, mut byte) = (String::new(), [0]);
        let out = child.stdout.as_mut().ok_or("no output")?;
        while out.read(&mut byte)? == 1 && byte[0] != b'\n' {
            text.push(byte[0] as char);
        }
        Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    };
    let mut taker = start(&["take", &name, kind, size])?;
    // It has subscribed. Two processes that create the service at once can fail.
    line(&mut taker)?;
    let mut feeder = start(&["feed", &name, size, ms])?;
    if std::env::var("PIN").is_ok_and(|pin| pin == "apart") {
        for (core, child) in [&feeder, &taker].into_iter().enumerate() {
            // SAFETY: the set is plain data, and lives for the call.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(core, &mut set);
                libc::sched_setaffinity(child.id() as i32, size_of_val(&set), &raw const set);
            }
        }
    }
    let fed = line(&mut feeder)?;
    let [bytes, nanoseconds, sum] = fed[..] else {
        taker.kill()?;
        return Err(format!("the feeder said {fed:?}").into());
    };
    let taken = line(&mut taker)?;
    let cpu = cpu_seconds(feeder.id())? + cpu_seconds(taker.id())?;
    // They stay until their standard input ends, so that their processor time can be read.
    drop((feeder.stdin.take(), taker.stdin.take()));
    feeder.wait()?;
    taker.wait()?;
    if taken != [sum] {
        return Err(format!("WRONG: {taken:?} arrived of {sum}").into());
    }
    let gb = bytes as f64 / 1e9;
    println!("{{\"gb_s\": {}, \"cpu_s_per_gb\": {}}}", gb / (nanoseconds as f64 / 1e9), cpu / gb);
    Ok(())
}

/// The processor time that a process has used, of all its threads.
fn cpu_seconds(process: u32) -> Outcome<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat"))?;
    Ok(text.split(' ').next().ok_or("schedstat")?.parse::<f64>()? / 1e9)
}

fn feed(name: &str, size: usize, span: Duration) -> Outcome<()> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = service(&node, name)?;
    let publisher = service
        .publisher_builder()
        .initial_max_slice_len(size)
        .max_loaned_samples(1)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?;
    let block: Vec<u8> = (0..size).map(|at| (at * 131 + at / 4096) as u8).collect();
    let of_block = words(&block);
    // Nobody gets a block before the taker has connected, which its first look does.
    let send = |block: &[u8]| -> Outcome<()> {
        while publisher.loan_slice_uninit(block.len())?.write_from_slice(block).send()? == 0 {}
        Ok(())
    };
    (0..WARM).try_for_each(|_| send(&block))?;
    let (since, mut blocks) = (Instant::now(), 0u64);
    while since.elapsed() < span || blocks == 0 {
        send(&block)?;
        blocks += 1;
    }
    // A block of one byte is the end.
    send(&[0])?;
    let bytes = blocks * size as u64;
    stay(&format!("{bytes} {} {}", since.elapsed().as_nanos(), of_block.wrapping_mul(blocks + WARM)))
}

fn take(name: &str, copies: bool, size: usize) -> Outcome<()> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let subscriber = service(&node, name)?.subscriber_builder().buffer_size(CREDITS).create()?;
    println!();
    let (mut sum, mut copy) = (0u64, vec![0; size]);
    loop {
        let Some(sample) = subscriber.receive()? else {
            std::hint::spin_loop();
            continue;
        };
        match sample.payload() {
            [_] => return stay(&sum.to_string()),
            block if copies => {
                copy.copy_from_slice(block);
                drop(sample);
                sum = sum.wrapping_add(words(&copy));
            }
            block => sum = sum.wrapping_add(words(block)),
        }
    }
}

type Service = iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, [u8], ()>;

fn service(node: &Node<ipc::Service>, name: &str) -> Outcome<Service> {
    Ok(node
        .service_builder(&name.try_into()?)
        .publish_subscribe::<[u8]>()
        .payload_alignment(Alignment::new(4096).ok_or("an alignment")?)
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(CREDITS)
        .subscriber_max_borrowed_samples(1)
        .history_size(0)
        .max_publishers(1)
        .max_subscribers(1)
        .open_or_create()?)
}

/// The sum of all words. It reads every byte and does little else.
fn words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

/// Says a line, and stays until the parent has read the processor time.
fn stay(line: &str) -> Outcome<()> {
    println!("{line}");
    std::io::stdout().flush()?;
    let _ = std::io::stdin().read(&mut [0])?;
    Ok(())
}
