//! PlanB, re-created from the description in the paper: IPv6 lookup as a search in a linearised 9-ary B+-tree.
//!
//! ```text
//! edges of all prefixes on the upper 64 bits, sorted, equal neighbours merged:   e0 = 0, e1, e2 ...
//! leaf level     [e1 .. e8] [e9 .. e16] ...                8 keys = one cache line
//! level above    first keys of leaves 1..=8 | 10..=17 ...  child of node n behind c keys: node 9 n + c one level down
//! step           c = popcount(key >= line)                 one compare of 8 lanes, no branch
//! answer         next_hops[8 leaf + c]                     loaded, unlike in some published figures
//! ```
//!
//! 1. A stored key is its edge less one, and the compare is "above": the same answer, and the largest number, in the
//!    free places at a level's end, is above nothing. So no key walks out of its level.
//! 2. Positions count keys, not nodes: `9 position + 8 c` is two additions, and its line needs no multiplication.
//!
//!
//! A batch walks level by level, fully unrolled, so that its cache misses overlap. As in the paper only the upper 64
//! bits count: prefixes longer than /64 are left out, and their addresses get the answer of what covers them. The
//! paper pads the tree to its full size; here levels end where the edges do, which is smaller and no slower.
//! A table is built whole; there are no updates in place.
//!
//! Source: PlanB, NSDI 2026 (arXiv 2604.14650).

use std::arch::x86_64::{_mm512_cmpgt_epu64_mask, _mm512_load_si512, _mm512_set1_epi64};
use std::hint::black_box;

use super::huge::HugeBox;
use super::intervals::intervals;
use super::{Addresses, BATCH_MAX, MemoryUse, Peer, PeerRoute, chain, opaque};
use crate::failure::Failure;

/// Keys of a node.
const KEYS: usize = 8;
/// Levels that are compiled: 9^7 leaves hold 38 million edges.
const LEVELS_MAX: usize = 8;

/// `keys` and as many largest numbers as make whole nodes of them; at least one node.
fn whole_nodes(mut keys: Vec<u64>) -> Vec<u64> {
    keys.resize(keys.len().next_multiple_of(KEYS).max(KEYS), u64::MAX);
    keys
}

/// A built table.
#[derive(Debug)]
pub struct PlanB {
    /// All levels, the root first; free places hold the largest number.
    keys: HugeBox<u64>,
    /// Where each level begins in `keys`.
    level_starts: Vec<usize>,
    /// By number of edges at or below the key, `e0` not counted.
    next_hops: HugeBox<u16>,
    /// 32 lanes, not 16.
    is_wide: bool,
}

impl PlanB {
    /// An empty table; an error where the processor lacks what it is made of.
    pub fn new() -> Result<Self, Failure> {
        if !(is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("popcnt"))
        {
            return Err(Failure::new("planb needs AVX-512 and POPCNT"));
        }
        Self::build(&[])
    }

    fn build(routes: &[PeerRoute<u128>]) -> Result<Self, Failure> {
        if routes.iter().any(|route| route.next_hop > u32::from(u16::MAX)) {
            return Err(Failure::new("planb: next hops are stored in 16 bits"));
        }
        let short: Vec<PeerRoute<u128>> = routes.iter().copied().filter(|route| route.len <= 64).collect();
        let edges = intervals(&short);
        let next_hops: Vec<u16> = edges.iter().map(|&(_, next_hop)| next_hop as u16).collect();
        let leaf_keys = edges[1..].iter().map(|&(start, _)| (start >> 64) as u64 - 1).collect();
        let mut levels: Vec<Vec<u64>> = vec![whole_nodes(leaf_keys)];
        // The first key of each node of the level that was made last: its subtree begins there.
        let mut first_keys: Vec<u64> = levels[0].chunks(KEYS).map(|node| node[0]).collect();
        while first_keys.len() > 1 {
            let nodes = first_keys.chunks(KEYS + 1).map(|children| whole_nodes(children[1..].to_vec()));
            levels.push(nodes.flatten().collect());
            first_keys = first_keys.chunks(KEYS + 1).map(|children| children[0]).collect();
        }
        if levels.len() > LEVELS_MAX {
            return Err(Failure::new("planb: more edges than its levels hold"));
        }
        let mut keys = Vec::new();
        let mut level_starts = Vec::new();
        for level in levels.iter().rev() {
            level_starts.push(keys.len());
            keys.extend_from_slice(level);
        }
        Ok(PlanB { keys: HugeBox::of(&keys), level_starts, next_hops: HugeBox::of(&next_hops), is_wide: false })
    }

    /// Where the levels begin, for [`PlanB::walk`]. `LEVELS` is their number.
    #[inline]
    fn levels<const LEVELS: usize>(&self) -> [*const u64; LEVELS] {
        // The range of each start is checked here, once a pass.
        std::array::from_fn(|level| self.keys[self.level_starts[level]..].as_ptr())
    }

    /// `LANES` keys through all levels together.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,popcnt")]
    fn walk<const LEVELS: usize, const LANES: usize>(
        &self,
        levels: &[*const u64; LEVELS],
        keys: &[u64; LANES],
        answers: &mut [u32; LANES],
    ) {
        // Within its level.
        let mut positions = [0usize; LANES];
        for (level, &level_keys) in levels.iter().enumerate() {
            for lane in 0..LANES {
                // SAFETY: the root is a node. A node's rank is at most its number of keys that are in use (1), each of
                // which is the first of a child, so `9 position + 8 rank` is a node of the next level. Levels consist
                // of whole, aligned cache lines.
                let line = unsafe { _mm512_load_si512(level_keys.add(positions[lane]).cast()) };
                let above = _mm512_cmpgt_epu64_mask(_mm512_set1_epi64(keys[lane].cast_signed()), line);
                // Opaque: the compiler would collect the masks of 8 lanes in a vector, by 20 instructions.
                let rank = opaque(u32::from(above)).count_ones() as usize;
                positions[lane] = if level + 1 < LEVELS {
                    (KEYS + 1) * positions[lane] + KEYS * rank
                } else {
                    positions[lane] + rank
                };
            }
        }
        for lane in 0..LANES {
            // SAFETY: the position is the number of leaf keys below the lane's key, each of which has a next hop, and
            // `e0` has one more.
            answers[lane] = u32::from(unsafe { *self.next_hops.get_unchecked(positions[lane]) });
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,popcnt")]
    fn pass_levels<const LEVELS: usize, const LANES: usize>(
        &self,
        keys: &[u64],
        batch: usize,
        mut keep: Option<&mut [u32]>,
    ) {
        let levels = self.levels::<LEVELS>();
        let mut buffer = vec![0u32; batch];
        for (index, keys) in keys.chunks(batch).enumerate() {
            let answers = &mut buffer[..keys.len()];
            let (groups, rest) = keys.as_chunks::<LANES>();
            let (group_answers, rest_answers) = answers.as_chunks_mut::<LANES>();
            for (keys, answers) in groups.iter().zip(group_answers) {
                self.walk(&levels, keys, answers);
            }
            for (&key, answer) in rest.iter().zip(rest_answers) {
                self.walk(&levels, &[key], std::array::from_mut(answer));
            }
            if let Some(keep) = keep.as_deref_mut() {
                keep[index * batch..][..keys.len()].copy_from_slice(answers);
            }
            black_box(&mut buffer);
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,popcnt")]
    fn pass_lanes<const LANES: usize>(&self, keys: &[u64], batch: usize, keep: Option<&mut [u32]>) {
        match self.level_starts.len() {
            1 => self.pass_levels::<1, LANES>(keys, batch, keep),
            2 => self.pass_levels::<2, LANES>(keys, batch, keep),
            3 => self.pass_levels::<3, LANES>(keys, batch, keep),
            4 => self.pass_levels::<4, LANES>(keys, batch, keep),
            5 => self.pass_levels::<5, LANES>(keys, batch, keep),
            6 => self.pass_levels::<6, LANES>(keys, batch, keep),
            7 => self.pass_levels::<7, LANES>(keys, batch, keep),
            _ => self.pass_levels::<8, LANES>(keys, batch, keep),
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,popcnt")]
    fn chain_levels<const LEVELS: usize>(&self, keys: &[u64]) -> u64 {
        let levels = self.levels::<LEVELS>();
        chain(keys, |key, answer| {
            let mut answers = [0];
            let key = key ^ i64::from(answer.cast_signed() >> 31).cast_unsigned();
            self.walk(&levels, &[key], &mut answers);
            answers[0]
        })
    }

    #[target_feature(enable = "avx512f,avx512dq,popcnt")]
    fn chain_here(&self, keys: &[u64]) -> u64 {
        match self.level_starts.len() {
            1 => self.chain_levels::<1>(keys),
            2 => self.chain_levels::<2>(keys),
            3 => self.chain_levels::<3>(keys),
            4 => self.chain_levels::<4>(keys),
            5 => self.chain_levels::<5>(keys),
            6 => self.chain_levels::<6>(keys),
            7 => self.chain_levels::<7>(keys),
            _ => self.chain_levels::<8>(keys),
        }
    }
}

impl Peer<u128> for PlanB {
    fn load(&mut self, routes: &[PeerRoute<u128>]) -> Result<usize, Failure> {
        *self = PlanB { is_wide: self.is_wide, ..PlanB::build(routes)? };
        Ok(routes.iter().filter(|route| route.len > 64).count())
    }
    fn variants(&self) -> Vec<&'static str> {
        vec!["16 lanes", "32 lanes"]
    }
    fn select(&mut self, index: usize) {
        self.is_wide = index == 1;
    }
    fn pass(&mut self, addrs: &Addresses<u128>, batch: usize, keep: Option<&mut [u32]>) {
        let batch = batch.clamp(1, BATCH_MAX);
        // SAFETY: `new` made sure of the processor's features.
        unsafe {
            match self.is_wide {
                true => self.pass_lanes::<32>(&addrs.upper, batch, keep),
                false => self.pass_lanes::<16>(&addrs.upper, batch, keep),
            }
        }
    }
    fn chain(&mut self, addrs: &Addresses<u128>) -> u64 {
        // SAFETY: `new` made sure of the processor's features.
        unsafe { self.chain_here(&addrs.upper) }
    }
    fn memory(&mut self) -> MemoryUse {
        let bytes = Some(8 * self.keys.len() + 2 * self.next_hops.len());
        MemoryUse { lookup_bytes: bytes, total_bytes: None, next_hop_bits: Some(16) }
    }
}
