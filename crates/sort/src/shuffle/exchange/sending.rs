//! How bytes of a sorted part go to another node.
//!
//! They are read past the page cache into a buffer that is used again and again, and sent from
//! there. `sendfile` would save that copy, but it takes fresh pages of the page cache for all
//! bytes. On a virtual machine whose free pages went back to the host, their first touch took the
//! receiver 2.5 s a GB, ten times what its copy takes otherwise
//! (`benchmarks/results/2026-11-29-sort-ray.md`).

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::path::Path;

use datapipes_core::Ssd;
use rustix::fs::Advice;
use rustix::io::{Errno, retry_on_intr};

/// Bytes of one `sendfile`. What was sent is then taken out of the page cache, because it is not
/// read again.
const PIECE: u64 = 4 << 20;
/// The memory for buffers: each connection takes as much as each would have if it was divided among
/// those that are there when it begins. So all together take some times as much, where many come.
const BUFFERS: usize = 64 << 20;
/// The least and the most bytes of a buffer.
const BUFFER: (usize, usize) = (64 << 10, 1 << 20);
/// What addresses and offsets of reads past the page cache are multiples of, at least.
const ALIGN: usize = 4096;

/// Sends the bytes of a file from `from` to `to`, while so many connections are served.
pub(super) fn send_bytes(
    file: &File,
    connection: &TcpStream,
    from: u64,
    to: u64,
    connections: usize,
) -> std::io::Result<()> {
    let place = file.try_clone().ok().and_then(|file| Ssd::from_fd(file.into(), Path::new("a sorted part")).ok());
    let direct = place.as_ref().and_then(|place| {
        let align = ALIGN.max(place.file().offset_align() as usize);
        place.file().direct_fd().ok().map(|fd| (fd, align))
    });
    let sent = match direct {
        Some((fd, align)) => {
            let len = (BUFFERS / connections.max(1)).clamp(BUFFER.0, BUFFER.1);
            send_past_page_cache(fd, connection, from..to, align, len)?
        }
        None => 0,
    };
    send_cached(file, connection, from + sent, to)
}

/// Sends as many bytes as the file system gives past the page cache, and returns how many.
fn send_past_page_cache(
    file: BorrowedFd<'_>,
    mut connection: &TcpStream,
    bytes: std::ops::Range<u64>,
    align: usize,
    len: usize,
) -> std::io::Result<u64> {
    let len = len.next_multiple_of(align);
    let mut memory = Vec::new();
    if memory.try_reserve_exact(len + align).is_err() {
        return Ok(0);
    }
    memory.resize(len + align, 0_u8);
    let start = memory.as_ptr().align_offset(align).min(align);
    let Some(buffer) = memory.get_mut(start..start + len) else { return Ok(0) };
    let mut at = bytes.start;
    while at < bytes.end {
        let first = at - at % align as u64;
        let wanted = (bytes.end - first).next_multiple_of(align as u64).min(len as u64) as usize;
        let read = match retry_on_intr(|| rustix::io::pread(file, &mut buffer[..wanted], first)) {
            Ok(read) => read,
            // It opens files past the page cache, and reads none.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(e) => return Err(e.into()),
        };
        let read = (read as u64).min(bytes.end - first) as usize;
        let skip = (at - first) as usize;
        if read <= skip {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        connection.write_all(&buffer[skip..read])?;
        at = first + read as u64;
    }
    Ok(at - bytes.start)
}

/// Sends bytes by way of the page cache.
fn send_cached(file: &File, connection: &TcpStream, from: u64, to: u64) -> std::io::Result<()> {
    let advise = |at, len, advice| {
        // Advice that is not taken costs time only.
        let _ = rustix::fs::fadvise(file, at, std::num::NonZeroU64::new(len), advice);
    };
    let mut at = from;
    if at < to {
        advise(from, to - from, Advice::Sequential);
    }
    while at < to {
        let before = at;
        let most = usize::try_from((to - at).min(PIECE)).unwrap_or(usize::MAX);
        match rustix::fs::sendfile(connection, file, Some(&mut at), most) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => advise(before, at - before, Advice::DontNeed),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn both_ways_send_the_same_bytes() {
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(|i| i.to_le_bytes()).collect();
        let folder = datapipes_testkit::TempFolder::under(std::env::temp_dir()).unwrap();
        let path = folder.path("part");
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let place = Ssd::open(&path).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let all = bytes.len() as u64;
        let ranges = [(0, all), (1, 2), (4095, 4097), (4096, 8192), (123_457, 987_654), (all - 1, all), (7, 7)];
        for (from, to) in ranges {
            for way in 0..3 {
                let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (mut receiver, _) = listener.accept().unwrap();
                let received = std::thread::spawn(move || {
                    let mut bytes = Vec::new();
                    receiver.read_to_end(&mut bytes).unwrap();
                    bytes
                });
                match way {
                    0 => send_bytes(&file, &sender, from, to, 1 << 20).unwrap(),
                    1 => send_cached(&file, &sender, from, to).unwrap(),
                    _ => {
                        let Ok(fd) = place.file().direct_fd() else { continue };
                        let sent = send_past_page_cache(fd, &sender, from..to, ALIGN, 1).unwrap();
                        assert_eq!(sent, to - from);
                    }
                }
                drop(sender);
                assert!(received.join().unwrap() == bytes[from as usize..to as usize], "{from}..{to}, way {way}");
            }
        }
        let (sender, _) = (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener.accept().unwrap());
        let error = send_bytes(&file, &sender, all - 10, all + 10_000, 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
