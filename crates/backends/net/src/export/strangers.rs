//! Connections that have not proved a key yet. They take no place of a client, and the silent ones
//! among them cannot keep others out: beyond a number, the oldest one of whoever has most of them
//! is cut off.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use datapipes_core::locks::Mutex;
use datapipes_core::{Error, Result};

/// The most connections at once, each a thread for at most the time of a conversation.
const MAX_STRANGERS: usize = 128;

/// Where a connection comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    User(u32),
    Address([u8; 8]),
}

struct Stranger {
    number: u64,
    socket: OwnedFd,
    origin: Origin,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    all: VecDeque<Stranger>,
}

/// The connections of an exporter that have not proved a key.
#[derive(Default)]
pub(super) struct Strangers(Mutex<Waiting>);

/// A connection's place among them, which ends when it has proved a key.
pub(super) struct StrangerPlace<'a> {
    strangers: &'a Strangers,
    number: u64,
}

impl Strangers {
    /// Takes a connection.
    ///
    /// # Errors
    /// Errors of duplicating a descriptor.
    pub(super) fn enter(&self, socket: &OwnedFd) -> Result<StrangerPlace<'_>> {
        let origin = origin_of(socket);
        let socket = socket.try_clone().map_err(|e| Error::io("duplicate", e, "a client's connection"))?;
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.all.push_back(Stranger { number, socket, origin });
        if waiting.all.len() > MAX_STRANGERS
            && let Some(at) = in_excess(waiting.all.iter().map(|stranger| &stranger.origin))
            && let Some(stranger) = waiting.all.remove(at)
        {
            // Its thread hears of it, and ends. The connection may have ended by itself.
            let _ = rustix::net::shutdown(&stranger.socket, rustix::net::Shutdown::Both);
        }
        Ok(StrangerPlace { strangers: self, number })
    }
}

impl Drop for StrangerPlace<'_> {
    fn drop(&mut self) {
        self.strangers.0.lock().all.retain(|stranger| stranger.number != self.number);
    }
}

/// Which of these, oldest first, is cut off: the oldest one of the origin that has most; among
/// several such origins the oldest of all.
fn in_excess<'a>(origins: impl Iterator<Item = &'a Origin> + Clone) -> Option<usize> {
    let mut counts = BTreeMap::new();
    origins.clone().for_each(|origin| *counts.entry(origin).or_insert(0usize) += 1);
    let most = counts.values().max().copied()?;
    origins.into_iter().position(|origin| counts.get(origin) == Some(&most))
}

/// A user of this machine, or an address; of one of version 6 the half that names a network, since
/// its owner has all addresses of the other half.
fn origin_of(socket: &OwnedFd) -> Origin {
    let address = rustix::net::getpeername(socket).ok().flatten().and_then(|a| SocketAddr::try_from(a).ok());
    match address.map(|address| address.ip().to_canonical()) {
        Some(IpAddr::V4(four)) => {
            let [a, b, c, d] = four.octets();
            Origin::Address([0, 0, 0, 0, a, b, c, d])
        }
        Some(IpAddr::V6(six)) => Origin::Address(six.octets().first_chunk().copied().unwrap_or_default()),
        None => Origin::User(crate::direct::peer::peer_user(std::os::fd::AsFd::as_fd(socket)).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn whoever_has_most_loses_the_oldest() {
        let of = |users: &[u32]| {
            let origins: Vec<_> = users.iter().map(|user| Origin::User(*user)).collect();
            in_excess(origins.iter())
        };
        assert_eq!(of(&[1, 2, 3, 2, 3, 2]), Some(1));
        assert_eq!(of(&[1, 2, 3, 3, 2]), Some(1));
        assert_eq!((of(&[1, 2]), of(&[])), (Some(0), None));
    }

    #[test]
    fn one_too_many_ends_the_oldest() {
        let strangers = Strangers::default();
        let (mut theirs, mut places, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..=MAX_STRANGERS {
            let (here, there) = UnixStream::pair().unwrap();
            let here = OwnedFd::from(here);
            places.push(strangers.enter(&here).unwrap());
            ours.push(here);
            theirs.push(there);
        }
        assert_eq!(theirs[0].read(&mut [0]).unwrap(), 0, "the oldest one is cut off");
        theirs[1].set_nonblocking(true).unwrap();
        assert_eq!(theirs[1].read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(places);
        assert!(strangers.0.lock().all.is_empty());
    }
}
