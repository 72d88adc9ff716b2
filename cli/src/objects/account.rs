//! What was asked of servers for objects: in words, and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::arguments::units;

/// The name of connections that are not told apart.
pub(crate) const OTHERS: &str = "others";

/// What one connection carried.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConnectionAccount {
    /// Requests that were answered.
    pub(crate) requests: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// The time in which a request or its answer was under way.
    pub(crate) busy_seconds: f64,
    /// Bytes in both directions by that time.
    pub(crate) bytes_per_second: f64,
}

/// What was asked of a server for one object, or for several.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ObjectAccount {
    /// Its address; of several, that of the first one.
    pub(crate) address: String,
    pub(crate) objects: u64,
    /// Requests, with those that were made again.
    pub(crate) requests: u64,
    pub(crate) retries: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// The most requests at once, by the rates that were seen.
    pub(crate) at_once: u32,
    /// The best rate of all connections together.
    pub(crate) bytes_per_second: f64,
    /// Bytes of a part, where it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) part_bytes: Option<u64>,
    /// Whether all bytes were read, and had the server's checksum.
    pub(crate) read_verified: bool,
    /// By the addresses of both ends; `others` are those beyond the first 256.
    pub(crate) connections: BTreeMap<String, ConnectionAccount>,
}

impl ObjectAccount {
    /// Adds what was asked for another object.
    pub(crate) fn add(&mut self, other: ObjectAccount) {
        if self.objects == 0 {
            *self = other;
            return;
        }
        self.objects += other.objects;
        self.requests += other.requests;
        self.retries += other.retries;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.at_once = self.at_once.max(other.at_once);
        self.bytes_per_second = self.bytes_per_second.max(other.bytes_per_second);
        self.part_bytes = self.part_bytes.max(other.part_bytes);
        self.read_verified &= other.read_verified;
        for (ends, its) in other.connections {
            match self.connections.get_mut(&ends) {
                None => drop(self.connections.insert(ends, its)),
                Some(sum) => {
                    sum.requests += its.requests;
                    sum.received_bytes += its.received_bytes;
                    sum.sent_bytes += its.sent_bytes;
                    sum.busy_seconds += its.busy_seconds;
                    let bytes = sum.received_bytes.saturating_add(sum.sent_bytes);
                    sum.bytes_per_second = units::bytes_per_second(bytes, sum.busy_seconds);
                }
            }
        }
    }
}

impl fmt::Display for ObjectAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.objects > 1 { format!(" and {} more", self.objects - 1) } else { String::new() };
        let (came, went) = (units::bytes(self.received_bytes), units::bytes(self.sent_bytes));
        write!(
            f,
            "{}{more}: {} requests, {} of them again, {came} came, {went} went, {} at once",
            self.address, self.requests, self.retries, self.at_once
        )?;
        let bytes = |one: &ConnectionAccount| one.received_bytes.saturating_add(one.sent_bytes);
        // Those that carried next to nothing have no rate worth a word.
        let others = self.connections.contains_key(OTHERS);
        let apart = || self.connections.iter().filter(|(ends, _)| *ends != OTHERS).map(|(_, one)| one);
        let most = apart().map(bytes).max().unwrap_or(0);
        let carried = |one: &&ConnectionAccount| bytes(one) >= (most / 16).max(1);
        let mut rates: Vec<u64> = apart().filter(carried).map(|one| one.bytes_per_second as u64).collect();
        rates.sort_unstable();
        if let (Some(least), Some(best)) = (rates.first(), rates.last()) {
            let [least, best] = [least, best].map(|rate| units::rate(*rate, 1.0));
            match rates.len() {
                count if others => write!(f, ", on more than {count} connections at {least} to {best} each")?,
                1 => write!(f, ", on a connection at {best}")?,
                count => write!(f, ", on {count} connections at {least} to {best} each")?,
            }
        }
        if let Some(part) = self.part_bytes {
            write!(f, ", in parts of {}", units::memory(part))?;
        }
        f.write_str(if self.read_verified { ", the server's checksum of all bytes holds" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(address: &str, ends: &str, bytes: u64) -> ObjectAccount {
        let connection = ConnectionAccount {
            requests: 1,
            received_bytes: bytes,
            sent_bytes: 0,
            busy_seconds: 0.5,
            bytes_per_second: bytes as f64 / 0.5,
        };
        ObjectAccount {
            address: address.into(),
            objects: 1,
            requests: 2,
            received_bytes: bytes,
            at_once: 4,
            read_verified: true,
            connections: BTreeMap::from([(ends.to_owned(), connection)]),
            ..ObjectAccount::default()
        }
    }

    #[test]
    fn accounts_add_up_by_connection() {
        let mut sum = ObjectAccount::default();
        sum.add(account("s3://b/1", "one", 50_000_000));
        let alone = sum.to_string();
        assert!(alone.starts_with("s3://b/1: 2 requests") && alone.contains("on a connection at 100 MB/s"), "{alone}");
        sum.add(account("s3://b/2", "two", 100_000_000));
        sum.add(account("s3://b/3", "one", 25_000_000));
        sum.add(ObjectAccount { read_verified: false, ..account("s3://b/4", "idle", 7) });
        assert!(sum.objects == 4 && sum.requests == 8 && !sum.read_verified && sum.connections.len() == 3);
        assert_eq!(sum.connections["one"].bytes_per_second, 75e6);
        let text = sum.to_string();
        assert!(text.contains("s3://b/1 and 3 more: 8 requests"), "{text}");
        assert!(text.contains("on 2 connections at 75.0 MB/s to 200 MB/s each"), "{text}");
    }
}
