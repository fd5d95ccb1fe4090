//! Poptrie, re-created from the description in the paper: a 64-ary trie whose nodes are two bitmaps.
//!
//! ```text
//! direct[key >> (bits - 18)]   a next hop (top bit set), or the index of a node
//! node   vector   bit v: slot v is a child                    children: nodes[base1 + popcount(vector, 0..=v) - 1]
//!        leafvec  bit v: leaf v differs from the one before   leaves: leaves[base0 + popcount(leafvec, 0..=v) - 1]
//! ```
//!
//! A table is built whole, from intervals with equal neighbours merged; the paper's incremental updates are left out.
//! Keys are padded with zeros behind their end, so the last step of IPv6 is exact.
//!
//! Source: Asai and Ohara, "Poptrie: A Compressed Trie with Population Count for Fast and Scalable Software IP Routing
//! Table Lookup", SIGCOMM 2015.

use super::huge::HugeBox;
use super::intervals::intervals;
use super::{Addresses, MemoryUse, Peer, PeerAddr, PeerRoute, chain, in_batches};
use crate::failure::Failure;

/// Key bits that the direct-pointing array consumes; the paper's choice.
const DIRECT_BITS: u32 = 18;
/// Key bits of a node.
const STEP_BITS: u32 = 6;
/// In `direct`: a next hop, not a node.
const IS_LEAF: u32 = 1 << 31;

/// A node: 24 bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    vector: u64,
    leafvec: u64,
    base0: u32,
    base1: u32,
}

const _: () = assert!(size_of::<Node>() == 24);

/// A built table.
#[derive(Debug)]
pub struct Poptrie {
    direct: HugeBox<u32>,
    /// Nodes as three words each: vector, leafvec, base0 | base1 << 32.
    nodes: HugeBox<u64>,
    leaves: HugeBox<u16>,
}

impl Default for Poptrie {
    fn default() -> Self {
        Poptrie { direct: HugeBox::of(&[IS_LEAF; 1 << DIRECT_BITS]), nodes: HugeBox::of(&[]), leaves: HugeBox::of(&[]) }
    }
}

/// The `STEP_BITS` key bits from `offset` on; zeros behind the key's end.
#[inline(always)]
fn step<A: PeerAddr + PoptrieAddr>(key: A, offset: u32) -> u32 {
    key.poptrie_bits(offset) as u32 & 63
}

/// Taking bits out of a key.
pub trait PoptrieAddr: Copy {
    /// The key bits from `offset` on, 6 of them in the low bits.
    fn poptrie_bits(self, offset: u32) -> u64;
    /// The first 18 bits.
    fn poptrie_direct(self) -> usize;
}

impl PoptrieAddr for u32 {
    #[inline(always)]
    fn poptrie_bits(self, offset: u32) -> u64 {
        // In 64 bits with 32 zeros behind, so that the last step needs no case of its own.
        (u64::from(self) << 32) >> (64 - STEP_BITS - offset)
    }
    #[inline(always)]
    fn poptrie_direct(self) -> usize {
        (self >> (32 - DIRECT_BITS)) as usize
    }
}

impl PoptrieAddr for u128 {
    #[inline(always)]
    fn poptrie_bits(self, offset: u32) -> u64 {
        match 128u32.checked_sub(STEP_BITS + offset) {
            Some(shift) => (self >> shift) as u64,
            None => (self << (STEP_BITS + offset - 128)) as u64,
        }
    }
    #[inline(always)]
    fn poptrie_direct(self) -> usize {
        (self >> (128 - DIRECT_BITS)) as usize
    }
}

/// What is built before it moves into memory of its own.
struct Builder<'a, A> {
    intervals: &'a [(A, u32)],
    nodes: Vec<Node>,
    leaves: Vec<u16>,
}

impl<A: PeerAddr + PoptrieAddr> Builder<'_, A> {
    /// The next hop of all addresses whose first `len` bits are those of `first`, and where its interval is found;
    /// `None` when they differ.
    fn uniform(&self, first: A, len: u32, from: usize) -> (usize, Option<u32>) {
        let after = self.intervals[from..].partition_point(|&(start, _)| start <= first) + from;
        let last = first.or(A::mask(len.min(u32::from(A::BITS)) as u8).not());
        let is_uniform = self.intervals.get(after).is_none_or(|&(start, _)| start > last);
        (after - 1, is_uniform.then_some(self.intervals[after - 1].1))
    }

    /// Fills node `index`, for the addresses that begin as `first` does up to `offset`.
    fn fill(&mut self, index: usize, first: A, offset: u32, mut from: usize) {
        let mut node = Node { base0: self.leaves.len() as u32, ..Node::default() };
        let mut children = Vec::new();
        let mut last_leaf = None;
        for slot in 0..64u64 {
            let spare = (offset + STEP_BITS).saturating_sub(u32::from(A::BITS));
            // The padding's bits are zero in every key, so only their first value is ever looked up.
            if slot & ((1 << spare) - 1) != 0 {
                continue;
            }
            let addr = first.or(A::from_u128(match u32::from(A::BITS).checked_sub(offset + STEP_BITS) {
                Some(shift) => u128::from(slot) << shift,
                None => u128::from(slot) >> spare,
            }));
            let (at, next_hop) = self.uniform(addr, offset + STEP_BITS, from);
            from = at;
            match next_hop {
                Some(next_hop) => {
                    if last_leaf != Some(next_hop) {
                        node.leafvec |= 1 << slot;
                        self.leaves.push(next_hop as u16);
                        last_leaf = Some(next_hop);
                    }
                }
                None => {
                    node.vector |= 1 << slot;
                    children.push((addr, at));
                }
            }
        }
        node.base1 = self.nodes.len() as u32;
        self.nodes.resize(self.nodes.len() + children.len(), Node::default());
        self.nodes[index] = node;
        for (child, (addr, at)) in children.into_iter().enumerate() {
            self.fill(node.base1 as usize + child, addr, offset + STEP_BITS, at);
        }
    }
}

impl Poptrie {
    fn build<A: PeerAddr + PoptrieAddr>(routes: &[PeerRoute<A>]) -> Result<Self, Failure> {
        if routes.iter().any(|route| route.next_hop > u32::from(u16::MAX)) {
            return Err(Failure::new("poptrie: its leaves hold next hops up to 65,535"));
        }
        let intervals = intervals(routes);
        let mut builder = Builder { intervals: &intervals, nodes: Vec::new(), leaves: Vec::new() };
        let mut direct = HugeBox::zeroed(1 << DIRECT_BITS, true);
        let mut from = 0;
        for (index, slot) in direct.iter_mut().enumerate() {
            let first = A::from_u128((index as u128) << (u32::from(A::BITS) - DIRECT_BITS));
            let (at, next_hop) = builder.uniform(first, DIRECT_BITS, from);
            from = at;
            *slot = match next_hop {
                Some(next_hop) => IS_LEAF | next_hop,
                None => {
                    let node = builder.nodes.len();
                    builder.nodes.push(Node::default());
                    builder.fill(node, first, DIRECT_BITS, at);
                    node as u32
                }
            };
        }
        let words: Vec<u64> = builder
            .nodes
            .iter()
            .flat_map(|node| [node.vector, node.leafvec, u64::from(node.base0) | u64::from(node.base1) << 32])
            .collect();
        Ok(Poptrie { direct, nodes: HugeBox::of(&words), leaves: HugeBox::of(&builder.leaves) })
    }

    #[inline(always)]
    fn look_up<A: PeerAddr + PoptrieAddr>(&self, key: A) -> u32 {
        // SAFETY: `direct` has a slot for each value of the first 18 bits.
        let mut index = unsafe { *self.direct.get_unchecked(key.poptrie_direct()) };
        if index & IS_LEAF != 0 {
            return index & !IS_LEAF;
        }
        let mut offset = DIRECT_BITS;
        loop {
            // SAFETY: `build` writes only indexes of nodes that it makes, three words each.
            let [vector, leafvec, bases] = unsafe { *self.nodes.as_ptr().add(3 * index as usize).cast::<[u64; 3]>() };
            let slot = step(key, offset);
            let up_to = (2u64 << slot).wrapping_sub(1);
            if vector & (1 << slot) == 0 {
                let at = bases as u32 + (leafvec & up_to).count_ones() - 1;
                // SAFETY: a slot that is no child is a leaf, and the first leaf of a node has its bit set, so the
                // count is at least 1 and at most the number of leaves that `build` made for the node.
                return u32::from(unsafe { *self.leaves.get_unchecked(at as usize) });
            }
            index = (bases >> 32) as u32 + (vector & up_to).count_ones() - 1;
            offset += STEP_BITS;
        }
    }

    #[inline(always)]
    fn pass_here<A: PeerAddr + PoptrieAddr>(&self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>) {
        in_batches(&addrs.host, batch, 0, keep, |answer| answer, |addrs, answers| {
            for (&addr, answer) in addrs.iter().zip(answers) {
                *answer = self.look_up(addr);
            }
        });
    }

    #[inline(always)]
    fn chain_here<A: PeerAddr + PoptrieAddr>(&self, addrs: &Addresses<A>) -> u64 {
        chain(&addrs.host, |addr, answer| self.look_up(addr.after(answer)))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2")]
    fn pass_popcnt<A: PeerAddr + PoptrieAddr>(&self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>) {
        self.pass_here(addrs, batch, keep);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2")]
    fn chain_popcnt<A: PeerAddr + PoptrieAddr>(&self, addrs: &Addresses<A>) -> u64 {
        self.chain_here(addrs)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_popcnt() -> bool {
    is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}

impl<A: PeerAddr + PoptrieAddr> Peer<A> for Poptrie {
    fn load(&mut self, routes: &[PeerRoute<A>]) -> Result<usize, Failure> {
        *self = Poptrie::build(routes)?;
        Ok(0)
    }
    fn has_batch(&self) -> bool {
        false
    }
    fn pass(&mut self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>) {
        #[cfg(target_arch = "x86_64")]
        if has_popcnt() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.pass_popcnt(addrs, batch, keep) };
        }
        self.pass_here(addrs, batch, keep);
    }
    fn chain(&mut self, addrs: &Addresses<A>) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if has_popcnt() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { self.chain_popcnt(addrs) };
        }
        self.chain_here(addrs)
    }
    fn memory(&mut self) -> MemoryUse {
        let bytes = Some(4 * self.direct.len() + 8 * self.nodes.len() + 2 * self.leaves.len());
        MemoryUse { lookup_bytes: bytes, total_bytes: None, next_hop_bits: Some(16) }
    }
}
