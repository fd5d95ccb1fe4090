//! What is measured and verified: every table, ours or not, behind one trait.
//!
//! The control calls take one prefix or address and are checked one by one; the data path is called with whole arrays
//! ([`Subject::lookup_v4`], [`Subject::lookup_v6`]), so that the call through the trait costs nothing per lookup.

use std::net::IpAddr;

use fib::{Family, NextHopId};
use ipnet::IpNet;

use crate::failure::Failure;

/// A prefix and where it leads to.
pub type RouteEntry = (IpNet, NextHopId);

/// What a pass of lookups writes where no route matches. No route file may use this id (`text_routes` refuses it).
pub const MISS: NextHopId = NextHopId::MAX;

/// How a pass of lookups asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupMode {
    /// One call per address, inside bursts of 64.
    Single,
    /// Calls of this many addresses (the last one may be shorter).
    Batch(usize),
}

/// Size and form of a table, for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Which family.
    pub family: Family,
    /// Distinct prefixes.
    pub prefixes: usize,
    /// Routes; more than `prefixes` when prefixes have several.
    pub routes: usize,
    /// What lookups read: nodes, live, alignment included.
    pub trie_bytes: usize,
    /// What only the writer reads.
    pub rib_bytes: usize,
    /// Key bits of the root node.
    pub root_bits: usize,
    /// Bits of a slot.
    pub slot_bits: usize,
    /// Nodes that hold one slot per value of their bits.
    pub dense_nodes: usize,
    /// Nodes that hold only slots that differ from their left neighbour.
    pub sparse_nodes: usize,
    /// Slots stored in all nodes.
    pub stored_slots: usize,
    /// Key bits above a node and how many nodes are there.
    pub nodes_by_depth: Vec<(usize, usize)>,
}

/// A table that can be loaded, asked and changed.
pub trait Subject {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Loads `routes` into the empty table.
    fn load(&mut self, routes: &[RouteEntry]) -> Result<(), Failure>;

    /// Inserts or replaces; the next hop that was there before.
    fn insert_or_replace(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<Option<NextHopId>, Failure>;

    /// Inserts; `false` and no change when the prefix is there already.
    fn insert_if_absent(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<bool, Failure>;

    /// Removes; the next hop that was there.
    fn remove(&mut self, prefix: IpNet) -> Result<Option<NextHopId>, Failure>;

    /// Exact match.
    fn get(&mut self, prefix: IpNet) -> Option<NextHopId>;

    /// Longest match. An error when the ways of asking (single, batch, control plane) do not agree.
    fn lookup(&mut self, addr: IpAddr) -> Result<Option<NextHopId>, Failure>;

    /// Longest match with its prefix.
    fn lookup_match(&mut self, addr: IpAddr) -> Option<RouteEntry>;

    /// Shortest match with its prefix.
    fn shortest_match(&mut self, addr: IpAddr) -> Option<RouteEntry>;

    /// All prefixes that cover `addr`, shortest first.
    fn covering(&mut self, addr: IpAddr) -> Vec<RouteEntry>;

    /// All prefixes inside `prefix`, itself included, by address, then by length.
    fn within(&mut self, prefix: IpNet) -> Vec<RouteEntry>;

    /// All routes of a family in order.
    fn routes(&mut self, family: Family) -> Vec<RouteEntry>;

    /// Number of prefixes of a family.
    fn prefix_count(&mut self, family: Family) -> usize;

    /// Longest match of every address into `out`, [`MISS`] where nothing matches. `addrs.len() == out.len()`.
    fn lookup_v4(&mut self, mode: LookupMode, addrs: &[u32], out: &mut [NextHopId]);

    /// As [`Subject::lookup_v4`].
    fn lookup_v6(&mut self, mode: LookupMode, addrs: &[u128], out: &mut [NextHopId]);

    /// Checks the structure's own invariants.
    fn check(&mut self) -> Result<(), Failure>;

    /// Size and form, when the subject can tell.
    fn shape(&mut self, family: Family) -> Option<Shape>;

    /// Memory of the whole subject: what it is and how many bytes.
    fn memory(&mut self) -> Vec<(&'static str, usize)>;
}

/// An address type that every [`Subject`] takes: `u32` or `u128`.
pub trait SubjectAddr: fib::Addr {
    /// [`Subject::lookup_v4`] or [`Subject::lookup_v6`].
    fn lookup_all(subject: &mut dyn Subject, mode: LookupMode, addrs: &[Self], out: &mut [NextHopId]);
    /// Address and length of a prefix of this family; `None` for the other one.
    fn key(prefix: IpNet) -> Option<(Self, u8)>;
    /// A number of 128 bits, cut to this family's.
    fn from_u128(bits: u128) -> Self;
}

impl SubjectAddr for u32 {
    fn lookup_all(subject: &mut dyn Subject, mode: LookupMode, addrs: &[u32], out: &mut [NextHopId]) {
        subject.lookup_v4(mode, addrs, out);
    }
    fn key(prefix: IpNet) -> Option<(u32, u8)> {
        match prefix {
            IpNet::V4(net) => Some((net.addr().to_bits(), net.prefix_len())),
            IpNet::V6(_) => None,
        }
    }
    fn from_u128(bits: u128) -> u32 {
        bits as u32
    }
}

impl SubjectAddr for u128 {
    fn lookup_all(subject: &mut dyn Subject, mode: LookupMode, addrs: &[u128], out: &mut [NextHopId]) {
        subject.lookup_v6(mode, addrs, out);
    }
    fn key(prefix: IpNet) -> Option<(u128, u8)> {
        match prefix {
            IpNet::V6(net) => Some((net.addr().to_bits(), net.prefix_len())),
            IpNet::V4(_) => None,
        }
    }
    fn from_u128(bits: u128) -> u128 {
        bits
    }
}

/// The family of a prefix.
pub fn family_of(prefix: IpNet) -> Family {
    match prefix {
        IpNet::V4(_) => Family::V4,
        IpNet::V6(_) => Family::V6,
    }
}
