//! Batch lookup without vector instructions: 32 addresses go down level by level in lock-step.
//!
//! A single lookup is a chain of dependent loads; 32 of them side by side keep as many loads in flight. For that the body
//! must not branch on what an address finds: a lane that has reached its leaf reads unit 0 of the arena, which is never a
//! node, and keeps its value by a conditional move.
//!
//! ```text
//! all lanes: root slot   ->   all lanes: word, rank   ->   all lanes: slot   ->   word, rank   ->   slot ...
//! ```
//!
//! Keys are the upper 64 bits of an address, shifted left as they are consumed, so that the next bits always stand at the
//! top whatever the nodes above spanned. The few lanes that go deeper than those bits are finished one by one.

use super::lookup::walk;
use super::node::{Nodes, Root, Slot, narrow_miss};
use crate::addr::Addr;
use crate::nexthop::NextHopId;

/// Addresses in lock-step. 32 keep the load buffers busy; 64 spill more than they hide.
const LANES: usize = 32;

/// Looks up all of `addrs`, whose trie has slots of `BYTES` bytes; whether any missed.
#[inline(always)]
fn batch<A: Addr, const BYTES: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    let mut missed = false;
    let mut chunks = addrs.chunks_exact(LANES);
    let mut outs = out.chunks_exact_mut(LANES);
    for (addrs, out) in (&mut chunks).zip(&mut outs) {
        missed |= lanes::<A, BYTES, LANES>(nodes, root, addrs, out, on_miss);
    }
    let (addrs, out) = (chunks.remainder(), outs.into_remainder());
    let mut eights = addrs.chunks_exact(8);
    let mut outs = out.chunks_exact_mut(8);
    for (addrs, out) in (&mut eights).zip(&mut outs) {
        missed |= lanes::<A, BYTES, 8>(nodes, root, addrs, out, on_miss);
    }
    for (addr, out) in eights.remainder().iter().zip(outs.into_remainder()) {
        missed |= settle(out, walk::<A, BYTES>(nodes, root, *addr), on_miss);
    }
    missed
}

/// Writes the answer for a leaf; whether it is a miss.
#[inline(always)]
fn settle(out: &mut NextHopId, slot: Slot, on_miss: NextHopId) -> bool {
    let missed = slot == Slot::MISS;
    *out = if missed { on_miss } else { NextHopId::from_slot(slot.raw()) };
    missed
}

#[inline(always)]
fn lanes<A: Addr, const BYTES: usize, const N: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    let root_bits = 6 * root.steps as u32 - A::LEAD;
    let mut key = [0u64; N];
    let mut slot = [Slot::MISS; N];
    let mut consumed = [root_bits as u8; N];
    let mut open = 0;
    for lane in 0..N {
        let bits = addrs[lane].upper_bits();
        slot[lane] = nodes.dense(root.offset, (bits >> (64 - root_bits)) as usize);
        key[lane] = bits << root_bits;
        open |= slot[lane].raw();
    }
    let mut dword = [0u32; N];
    let mut shift = [0u8; N];
    while Slot::from_raw(open).is_child() {
        for lane in 0..N {
            let s = slot[lane];
            let dense = s.is_dense_child();
            let sparse = s.is_child() & !dense;
            let bits = if dense { 6 * s.dense_steps() } else { 6 };
            let index = (key[lane] >> 1 >> (63 - bits)) as u32;
            // Unit 0 is no node and reads as zeros.
            let node = if sparse { s.sparse_offset() } else { 0 };
            let rank = (nodes.word(node) & (u64::MAX >> (63 - (index & 63)))).count_ones().wrapping_sub(1);
            let in_dword = 4 / BYTES as u32;
            let sparse_at = (2 * node).wrapping_add(2).wrapping_add(((rank as i32) >> in_dword.ilog2()) as u32);
            dword[lane] = if dense { s.dense_dword() + index } else { sparse_at };
            shift[lane] = if dense { 0 } else { (8 * BYTES as u32 * (rank & (in_dword - 1))) as u8 };
            key[lane] = if s.is_child() { key[lane] << bits } else { key[lane] };
            consumed[lane] += if s.is_child() { bits as u8 } else { 0 };
        }
        open = 0;
        for lane in 0..N {
            let s = slot[lane];
            let loaded = nodes.dword(dword[lane]) >> shift[lane];
            let mut next = Slot::from_raw(loaded);
            if BYTES < 4 && !s.is_dense_child() {
                let narrow = loaded & (u32::MAX >> (32 - 8 * BYTES));
                next = Slot::from_raw(if narrow == narrow_miss(BYTES) { Slot::MISS.raw() } else { narrow });
                if s.is_child() && narrow >> (8 * BYTES - 1) == 1 {
                    next = nodes.narrow_child_slot::<BYTES>(s.sparse_offset(), narrow);
                }
            }
            slot[lane] = if s.is_child() { next } else { s };
            // Nodes of two steps need 12 bits more than the upper 64 may have left: one by one from here on.
            if A::BITS > 64 && slot[lane].is_child() && consumed[lane] > 52 {
                slot[lane] = walk::<A, BYTES>(nodes, root, addrs[lane]);
            }
            open |= slot[lane].raw();
        }
    }
    let mut missed = false;
    for lane in 0..N {
        missed |= settle(&mut out[lane], slot[lane], on_miss);
    }
    missed
}

/// As [`super::lookup::lookup_batch`]'s variants go: any CPU.
pub(crate) fn portable<A: Addr, const BYTES: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    batch::<A, BYTES>(nodes, root, addrs, out, on_miss)
}

/// The same code for x86-64 CPUs that count bits in one instruction, which the plain target has to do without.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt")]
pub(crate) fn with_popcnt<A: Addr, const BYTES: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    batch::<A, BYTES>(nodes, root, addrs, out, on_miss)
}
