//! Devices that take more than their share of memory, threads, standard error and the controller's
//! time.

use std::time::Duration;

use datapipes_core::Result;
use datapipes_fabric::device::{DeviceChannels, StreamReport};
use serde_json::{Value, json};

use super::*;

/// Takes memory until it is stopped, a mebibyte at a time, and touches all of it.
pub(super) fn eating(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let how = arguments["how"].as_str().unwrap_or_default();
    let (kind, forgets) = match how {
        "private" | "protected" => (libc::MAP_PRIVATE, false),
        "shared" => (libc::MAP_SHARED, true),
        other => unreachable!("{other}"),
    };
    const PIECE: usize = 1 << 20;
    let mut taken = 0u64;
    // This is much more memory than a test machine has.
    while taken < 64 << 30 {
        let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
        // SAFETY: it is a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PIECE, both, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            tell(stage, &json!({"errno": errno(), "taken": taken}))?;
            stay()
        }
        // SAFETY: this is the mapping that was just made.
        unsafe { at.cast::<u8>().write_bytes(1, PIECE) };
        if forgets {
            // Shared memory stays charged, but disappears from the process's own figures. SAFETY:
            // as above.
            unsafe { libc::madvise(at, PIECE, libc::MADV_DONTNEED) };
        }
        if how == "protected" {
            // SAFETY: as above, and it is not written any more.
            unsafe { libc::mprotect(at, PIECE, libc::PROT_READ) };
        }
        taken += PIECE as u64;
    }
    tell(stage, &json!({"errno": 0, "taken": taken}))?;
    stay()
}

/// Reads a byte of every 2 MiB, over as many addresses as possible. Each needs a page of tables.
pub(super) fn tabling(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    const APART: usize = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let mut len = 64usize << 40;
    let at = loop {
        // SAFETY: it is a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
        if at != libc::MAP_FAILED {
            break at.cast::<u8>();
        }
        len /= 2;
    };
    // SAFETY: this is the mapping that was just made.
    unsafe { libc::madvise(at.cast(), len, libc::MADV_NOHUGEPAGE) };
    // These tables need more memory than its limit.
    let tables = (len / APART).min(200_000);
    for n in 0..tables {
        // SAFETY: the address is within the mapping.
        unsafe { at.add(n * APART).read_volatile() };
    }
    tell(stage, &json!({"addresses": len, "tables": tables}))?;
    stay()
}

/// Makes threads until that is refused. Reports their number.
pub(super) fn multiplying(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let sleeps = || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    let made = (0..5000).take_while(|_| std::thread::Builder::new().stack_size(64 << 10).spawn(sleeps).is_ok()).count();
    tell(stage, &json!(made))?;
    stay()
}

/// Tries what can be done with its standard error, and writes many terminal control characters.
pub(super) fn speaking(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let mut byte = [0u8; 1];
    // SAFETY: plain system calls on a descriptor of this process.
    let (read, shut) = unsafe {
        (
            if libc::read(2, byte.as_mut_ptr().cast(), 1) < 0 { errno() } else { 0 },
            if libc::shutdown(2, libc::SHUT_RDWR) < 0 { errno() } else { 0 },
        )
    };
    eprintln!("password: \x1b[2J\x1b]0;title\x07");
    for line in 0..20_000 {
        eprintln!("line {line} {}", "x".repeat(60));
    }
    tell(stage, &json!({"read": read, "shutdown": shut}))?;
    stay()
}

pub(super) fn panicking(_: &Value, _: &mut DeviceChannels<'_>) -> Result<()> {
    panic!("the reason why")
}

/// Delegates to itself repeatedly, each capability from the previous one. Reports how often that
/// worked.
pub(super) fn chaining(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let own = stage.attendant.party();
    let mut cap = loop {
        let found = (1..50).find_map(|cap| ask_for_child(cap, own.0));
        if let Some(found) = found {
            break found;
        }
    };
    let mut links = 1;
    while let Some(child) = ask_for_child(cap, own.0) {
        (cap, links) = (child, links + 1);
        if links >= 100_000 {
            break;
        }
    }
    tell(stage, &json!(links))?;
    stay()
}

fn ask_for_child(cap: u64, to: u32) -> Option<u64> {
    say(json!({"delegate": {"cap": cap, "to": to, "rights": 31 & !12}}).to_string().as_bytes(), &[]).unwrap();
    hear().0["answer"]["created"]["cap"].as_u64()
}

/// Cuts its memory into as many mappings as possible, and repeats requests that take long to check.
pub(super) fn pestering(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    const PAGES: usize = 64_000;
    // SAFETY: it is a new mapping. Every other page gets other rights, which makes each a mapping
    // of its own.
    let cut = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGES * 4096, 1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", errno());
        (0..PAGES).step_by(2).take_while(|n| libc::mprotect(at.add(n * 4096), 4096, 0) == 0).count()
    };
    tell(stage, &json!(cut))?;
    let ask = match arguments["how"].as_str().unwrap_or_default() {
        "asks" => json!({"revoke": {"cap": 999_999}}).to_string(),
        "long" => format!("{}{}", " ".repeat(30_000), json!({"revoke": {"cap": 999_999}})),
        other => unreachable!("{other}"),
    };
    let mut byte = vec![0; 64 << 10];
    loop {
        let _ = say(ask.as_bytes(), &[]);
        let _ = rustix::net::recv(control(), &mut byte[..], RecvFlags::DONTWAIT);
    }
}

/// Reports streams that never existed, as fast as it can.
pub(super) fn reporting(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    loop {
        stage.attendant.report(StreamReport::default().blocks_in(7))?;
    }
}

/// Reports repeatedly that it is ready.
pub(super) fn always_ready(_: &Value, _: &mut DeviceChannels<'_>) -> Result<()> {
    loop {
        let ready = json!({"ready": {"confined": {"landlock": "", "seccomp": true, "unprivileged": true}}});
        if say(ready.to_string().as_bytes(), &[]).is_err() {
            stay();
        }
    }
}
