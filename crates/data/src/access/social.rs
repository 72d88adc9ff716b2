//! A social graph, read in the proportions of LinkBench.
//!
//! ```text
//! file:  nodes, packed by id | counts, 16 bytes each | link lists, packed by id
//! ```
//! Sizes are functions of the id, so the graph is never stored: one offset is stored for 16 ids,
//! and at most 16 sizes are added up.

use std::sync::Arc;

use super::{Random, ReadRequest, Scatter, Zipf};
use crate::generate::random::{at_index, mix};

/// A read request of LinkBench (Armstrong et al., SIGMOD'13). Reads are 69 % of its operations, in
/// these proportions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocialRequest {
    /// The links of a node, up to a page of them: 50.7 of 69.
    LinkList,
    /// A node's payload: 12.9.
    Node,
    /// The number of a node's links: 4.9.
    LinkCount,
    /// One link: 0.5.
    Link,
}

const SHARES: [(SocialRequest, f64); 4] = [
    (SocialRequest::LinkList, 50.7),
    (SocialRequest::Node, 12.9),
    (SocialRequest::LinkCount, 4.9),
    (SocialRequest::Link, 0.5),
];
const GROUP: u64 = 16;
const COUNT_BYTES: u64 = 16;
/// Bytes of a link besides its payload: the other node, the type, the time. This is our choice;
/// LinkBench leaves it to the database.
const LINK_KEY_BYTES: u64 = 24;
const MAX_NODE_BYTES: f64 = 4096.0;
/// The most bytes of a list that are read at once: a longer list is read page by page.
const MAX_LIST_READ_BYTES: u64 = 4096;
const MAX_LINKS: f64 = 4096.0;
/// A node has at least d links with probability d^-1.2: 4.6 on average, about as in LinkBench's
/// default graph.
const DEGREE_EXPONENT: f64 = 1.2;

/// Endless reads of a social graph.
#[derive(Clone, Debug)]
pub struct SocialGraph {
    nodes: u64,
    seed: u64,
    sizes: Arc<Sizes>,
    /// The offsets of every 16th node and list within its part of the file.
    node_groups: Arc<Vec<u64>>,
    list_groups: Arc<Vec<u64>>,
    counts_at: u64,
    lists_at: u64,
    file_bytes: u64,
    /// Zipf's law with exponent 0.625 for nodes, 0.8 for links.
    pick: (Zipf, Zipf),
    scatter: Scatter,
    random: Random,
}

impl SocialGraph {
    /// Makes a graph with this many nodes (LinkBench's default is 10 million). It takes a byte of
    /// memory for each.
    pub fn new(nodes: u64, seed: u64) -> SocialGraph {
        let nodes = nodes.max(1);
        let mut graph = SocialGraph {
            nodes,
            seed,
            sizes: Arc::new(Sizes::new()),
            node_groups: Arc::default(),
            list_groups: Arc::default(),
            counts_at: 0,
            lists_at: 0,
            file_bytes: 0,
            pick: (Zipf::new(nodes, 0.625), Zipf::new(nodes, 0.8)),
            scatter: Scatter::new(nodes, seed),
            random: Random::new(seed, 1),
        };
        let (mut node_end, mut list_end) = (0, 0);
        let (mut node_groups, mut list_groups) = (Vec::new(), Vec::new());
        for id in 0..nodes {
            if id % GROUP == 0 {
                node_groups.push(node_end);
                list_groups.push(list_end);
            }
            node_end += graph.node_bytes(id);
            list_end += graph.list_bytes(id);
        }
        (graph.node_groups, graph.list_groups) = (Arc::new(node_groups), Arc::new(list_groups));
        graph.counts_at = node_end;
        graph.lists_at = node_end + nodes * COUNT_BYTES;
        graph.file_bytes = graph.lists_at + list_end;
        graph
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the next request, and the bytes that it reads.
    pub fn next_request(&mut self) -> (SocialRequest, ReadRequest) {
        let total: f64 = SHARES.iter().map(|s| s.1).sum();
        let mut left = self.random.unit() * total;
        let request = SHARES.iter().find(|(_, share)| {
            left -= share;
            left < 0.0
        });
        let request = request.map_or(SocialRequest::LinkList, |r| r.0);
        let zipf = if request == SocialRequest::Node { self.pick.0 } else { self.pick.1 };
        let id = self.scatter.place(zipf.draw(&mut self.random));
        let read = match request {
            SocialRequest::Node => self.read(self.node_at(id), self.node_bytes(id)),
            SocialRequest::LinkCount => self.read(self.counts_at + id * COUNT_BYTES, COUNT_BYTES),
            SocialRequest::LinkList => self.read(self.list_at(id), self.list_bytes(id).min(MAX_LIST_READ_BYTES)),
            SocialRequest::Link => {
                let nth = self.random.below(self.links(id));
                self.read(self.list_at(id) + nth * self.link_bytes(id), self.link_bytes(id))
            }
        };
        (request, read)
    }

    fn read(&self, offset: u64, len: u64) -> ReadRequest {
        ReadRequest { offset, len: len as u32 }
    }

    fn node_bytes(&self, id: u64) -> u64 {
        self.sizes.node[self.quantile(id, 1)].into()
    }

    /// The bytes of one link of a node; all links of a node have the same size.
    fn link_bytes(&self, id: u64) -> u64 {
        LINK_KEY_BYTES + u64::from(self.sizes.payload[self.quantile(id, 2)])
    }

    fn links(&self, id: u64) -> u64 {
        self.sizes.links[self.quantile(id, 3)].into()
    }

    fn list_bytes(&self, id: u64) -> u64 {
        self.links(id) * self.link_bytes(id)
    }

    fn node_at(&self, id: u64) -> u64 {
        let first = id - id % GROUP;
        self.node_groups[(id / GROUP) as usize] + (first..id).map(|i| self.node_bytes(i)).sum::<u64>()
    }

    fn list_at(&self, id: u64) -> u64 {
        let first = id - id % GROUP;
        let within: u64 = (first..id).map(|i| self.list_bytes(i)).sum();
        self.lists_at + self.list_groups[(id / GROUP) as usize] + within
    }

    /// The offset and length of every node, count and list, in the order of the file.
    #[cfg(test)]
    pub(super) fn spans(&self) -> Vec<(u64, u64)> {
        let ids = || 0..self.nodes;
        let nodes = ids().map(|id| (self.node_at(id), self.node_bytes(id)));
        let counts = ids().map(|id| (self.counts_at + id * COUNT_BYTES, COUNT_BYTES));
        let lists = ids().map(|id| (self.list_at(id), self.list_bytes(id)));
        nodes.chain(counts).chain(lists).collect()
    }

    /// The quantile of an id in a distribution.
    fn quantile(&self, id: u64, purpose: u64) -> usize {
        (at_index(mix(self.seed ^ mix(purpose)), id) >> (64 - QUANTILE_BITS)) as usize
    }
}

/// The distributions of sizes, by 65,536 quantiles: a table look-up instead of logarithms for each
/// of the ids that are added up.
#[derive(Debug)]
struct Sizes {
    /// Log-normal with a median of 128 bytes and a sigma of 1, at most 4 KiB.
    node: Vec<u16>,
    /// Log-normal with a median of 8 bytes and a sigma of 1, at most 256.
    payload: Vec<u16>,
    /// At least d with probability d^-1.2.
    links: Vec<u16>,
}

const QUANTILE_BITS: u32 = 16;

impl Sizes {
    fn new() -> Sizes {
        let quantiles = || (0..1u32 << QUANTILE_BITS).map(|q| (f64::from(q) + 0.5) / f64::from(1u32 << QUANTILE_BITS));
        let normal: Vec<f64> = normal_quantiles(quantiles());
        let log_normal = |median: f64, least: f64, most: f64| {
            normal.iter().map(|z| (median * libm::exp(*z)).clamp(least, most) as u16).collect()
        };
        Sizes {
            node: log_normal(128.0, 1.0, MAX_NODE_BYTES),
            payload: log_normal(8.0, 0.0, 256.0),
            links: quantiles().map(|u| libm::pow(u, -1.0 / DEGREE_EXPONENT).min(MAX_LINKS) as u16).collect(),
        }
    }
}

/// Quantiles of the standard normal distribution, by stepping through its density. They are
/// accurate to a thousandth, without a special function.
fn normal_quantiles(ascending: impl Iterator<Item = f64>) -> Vec<f64> {
    const STEP: f64 = 1.0 / 8192.0;
    let density = |z: f64| libm::exp(-z * z / 2.0) / std::f64::consts::TAU.sqrt();
    let (mut z, mut below) = (-6.0, 0.0);
    let find = |q| {
        while below < q && z < 6.0 {
            below += density(z + STEP / 2.0) * STEP;
            z += STEP;
        }
        z
    };
    ascending.map(find).collect()
}

impl Iterator for SocialGraph {
    type Item = ReadRequest;

    fn next(&mut self) -> Option<ReadRequest> {
        Some(self.next_request().1)
    }
}
