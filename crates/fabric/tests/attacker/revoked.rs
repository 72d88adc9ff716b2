//! Devices that keep what was revoked, each in another way, and read it afterwards.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use datapipes_core::Result;
use datapipes_fabric::device::{DeviceArguments, DeviceChannels};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use super::*;

/// The bytes that a reader must never see, and those that it must never be shown.
pub(crate) const SECRET: &[u8] = b"SECRET";
pub(crate) const FORGED: &[u8] = b"FORGED";
pub(crate) const MEMORY_BYTES: usize = 8192;

/// Ways in which a reader keeps a memory.
pub(crate) const READERS: &[&str] = &["descriptor", "mapping", "another", "leader", "queue", "moves"];
/// Ways in which a writer keeps a memory.
pub(crate) const WRITERS: &[&str] = &["maps again", "maps twice"];

/// Leaves a thread or process that was started before the lock-down; or starts them and leaves
/// none.
pub(super) fn leaving(arguments: &DeviceArguments, _: Vec<OwnedFd>) -> Result<Box<dyn Body>> {
    let arguments: Value = arguments.parse()?;
    let shell = |text: &str| std::process::Command::new("/bin/sh").args(["-c", text]).spawn().unwrap();
    match arguments["how"].as_str().unwrap_or_default() {
        "thread" => drop(std::thread::Builder::new().spawn(|| stay())),
        "process" => drop(shell("exec sleep 60")),
        "orphan" => drop(shell("sleep 60 &").wait()),
        "nothing" => {
            std::thread::Builder::new().spawn(|| ()).unwrap().join().unwrap();
            shell("exit 0").wait().unwrap();
        }
        other => unreachable!("{other}"),
    }
    Ok(Box::new(Attacker(|_, _| stay(), Value::Null)))
}

fn unmapped(endpoint: u64) {
    let _ = say(json!({"unmapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]);
}

fn mapped(endpoint: u64) {
    let _ = say(json!({"mapped": {"endpoint": endpoint}}).to_string().as_bytes(), &[]);
}

fn unmap(at: *mut u8) {
    // SAFETY: it is a mapping of this module with that length, and is not used afterwards.
    unsafe { libc::munmap(at.cast(), MEMORY_BYTES) };
}

fn map_all(fd: &OwnedFd, protection: i32) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED;
    // SAFETY: it is a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), MEMORY_BYTES, protection, flags, fd.as_raw_fd(), 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

/// Returns the first bytes of a mapping.
fn seen(at: *const u8) -> [u8; 6] {
    // SAFETY: this is the start of a mapping, and any bytes are valid.
    std::array::from_fn(|i| unsafe { at.add(i).read_volatile() })
}

/// Looks as long as it lives, and reports the secret if it sees it.
fn spy(stage: &mut DeviceChannels<'_>, mut look: impl FnMut() -> Option<[u8; 6]>) -> ! {
    loop {
        if look().is_some_and(|bytes| bytes == SECRET) {
            let _ = tell(stage, &json!("SECRET"));
            stay();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads by `pread`, and otherwise by a new mapping.
fn through(fd: &OwnedFd) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    if rustix::io::pread(fd, &mut bytes, 0) == Ok(6) {
        return Some(bytes);
    }
    let at = map_all(fd, libc::PROT_READ)?;
    let bytes = seen(at);
    unmap(at);
    Some(bytes)
}

pub(super) fn keeping(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let how = arguments["how"].as_str().unwrap_or_default();
    if how == "queue" {
        return keep_in_the_queue(arguments["endpoint"].as_u64().unwrap(), stage);
    }
    let (endpoint, _, others) = raw_endpoint();
    let fd = others.into_iter().next().unwrap();
    let at = map_all(&fd, libc::PROT_READ).unwrap();
    tell(stage, &json!("has it"))?;
    match how {
        "descriptor" => {
            hear();
            unmap(at);
            unmapped(endpoint);
            spy(stage, || through(&fd));
        }
        "mapping" => {
            hear();
            drop(fd);
            unmapped(endpoint);
            spy(stage, || Some(seen(at)));
        }
        "another" => {
            hear();
            drop(fd);
            // Nobody has this endpoint.
            unmapped(endpoint + 1000);
            spy(stage, || Some(seen(at)));
        }
        "leader" => {
            drop(fd);
            end_of_the_leader(endpoint, at as usize, stage)
        }
        "moves" => {
            hear();
            drop(fd);
            let mut at = at;
            // It moves from address to address during the inspection.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(1));
                    unmapped(endpoint);
                });
                for _ in 0..2000 {
                    // SAFETY: it moves the whole mapping, if that is allowed.
                    let to = unsafe { libc::mremap(at.cast(), MEMORY_BYTES, MEMORY_BYTES * 2, libc::MREMAP_MAYMOVE) };
                    if to != libc::MAP_FAILED {
                        at = to.cast();
                        // SAFETY: it unmaps the part by which the mapping grew.
                        unsafe { libc::munmap(at.add(MEMORY_BYTES).cast(), MEMORY_BYTES) };
                    }
                }
            });
            spy(stage, || Some(seen(at)));
        }
        other => unreachable!("{other}"),
    }
}

/// Sends all required messages without reading its own, so the descriptor stays in its socket until
/// the inspection is over.
fn keep_in_the_queue(endpoint: u64, stage: &mut DeviceChannels<'_>) -> Result<()> {
    tell(stage, &json!("has it"))?;
    std::thread::sleep(Duration::from_millis(200));
    mapped(endpoint);
    std::thread::sleep(Duration::from_millis(400));
    unmapped(endpoint);
    std::thread::sleep(Duration::from_millis(400));
    hear();
    let (_, others) = hear();
    let Some(fd) = others.into_iter().next() else { stay() };
    spy(stage, || through(&fd))
}

/// Ends its first thread while another goes on: `/proc/PID/maps` is empty then.
fn end_of_the_leader(endpoint: u64, at: usize, stage: &mut DeviceChannels<'_>) -> ! {
    let stage = std::ptr::from_mut(stage) as usize;
    let other = move || {
        hear();
        // The leader is gone by then.
        std::thread::sleep(Duration::from_millis(50));
        unmapped(endpoint);
        // SAFETY: the leader's stack stays, and the leader has ended and does not use it.
        let stage = unsafe { &mut *(stage as *mut DeviceChannels<'_>) };
        spy(stage, || Some(seen(at as *const u8)))
    };
    std::thread::Builder::new().spawn(other).unwrap();
    // SAFETY: this ends only this thread, and the contents of its stack are never freed.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("it has ended")
}

/// Writes to a memory after it claimed to have given it back.
pub(super) fn forging_later(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (endpoint, own, _) = raw_endpoint();
    let fd = own.into_iter().next().unwrap();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (one, two) = (map_all(&fd, both).unwrap(), map_all(&fd, both).unwrap());
    tell(stage, &json!("has it"))?;
    hear();
    unmap(one);
    let again = arguments["how"] == "maps again";
    if again {
        unmap(two);
    }
    unmapped(endpoint);
    std::thread::sleep(Duration::from_millis(20));
    let at = if again { map_all(&fd, both) } else { Some(two) };
    let Some(at) = at else { stay() };
    loop {
        // SAFETY: this is the start of a mapping for writing.
        FORGED.iter().enumerate().for_each(|(i, byte)| unsafe { at.add(i).write_volatile(*byte) });
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Passes a descriptor of its memory to another device, over a socket channel.
pub(super) fn passing_on(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (_, _, memory) = raw_endpoint();
    tell(stage, &json!("has it"))?;
    let (_, own, _) = raw_endpoint();
    let passed = [memory[0].as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control_data = SendAncillaryBuffer::new(&mut space);
    assert!(control_data.push(SendAncillaryMessage::ScmRights(&passed)));
    let sent = sendmsg(&own[0], &[IoSlice::new(b"x")], &mut control_data, SendFlags::NOSIGNAL);
    tell(stage, &json!(sent.map_or_else(|e| e.raw_os_error(), |_| 0)))?;
    stay()
}

/// Takes descriptors that another device passes on.
pub(super) fn taking(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (_, own, _) = raw_endpoint();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control_data = RecvAncillaryBuffer::new(&mut space);
    tell(stage, &json!("listens"))?;
    let mut byte = [0];
    let got = recvmsg(&own[0], &mut [IoSliceMut::new(&mut byte)], &mut control_data, RecvFlags::empty());
    let mut passed = Vec::new();
    for message in control_data.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            passed.extend(fds);
        }
    }
    let (Ok(_), Some(fd)) = (got, passed.pop()) else { stay() };
    spy(stage, || through(&fd))
}

/// Reads the payload of a channel that it receives from, bypassing the protocol.
pub(super) fn peeking(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (_, _, others) = raw_endpoint();
    let at = map_all(&others[1], libc::PROT_READ).unwrap();
    tell(stage, &json!("has it"))?;
    spy(stage, || Some(seen(at)))
}

/// Has only one end of a channel with another device, and keeps its memory when the channel is
/// revoked: the two could use it for ever.
pub(super) fn colluding(arguments: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let (endpoint, own, others) = raw_endpoint();
    let fd = if arguments["sends"] == true { &own[1] } else { &others[1] };
    let at = map_all(fd, libc::PROT_READ);
    tell(stage, &json!("has it"))?;
    hear();
    unmapped(endpoint);
    let _kept = (at, own, others);
    stay()
}

/// An honest device with a memory, which uses the library.
pub(super) fn honest(_: &Value, stage: &mut DeviceChannels<'_>) -> Result<()> {
    let memory = loop {
        stage.attendant.attend()?;
        if let Ok(memory) = stage.attendant.memory("theirs") {
            break memory;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    tell(stage, &json!("has it"))?;
    let mut bytes = [0; 6];
    let refused = loop {
        stage.attendant.attend()?;
        match memory.read(0, &mut bytes) {
            Ok(()) => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => break e,
        }
    };
    drop(memory);
    stage.attendant.attend()?;
    tell(stage, &json!(format!("{:?}", refused.kind())))?;
    // It continues with what it has, and reports that as often as somebody listens.
    stage.outlets[0].set_patience(datapipes_fabric::channel::Patience::NONE);
    loop {
        stage.attendant.attend()?;
        std::thread::sleep(Duration::from_millis(5));
        let _ = stage.outlets[0].send(b"\"lives\"", Default::default());
    }
}
