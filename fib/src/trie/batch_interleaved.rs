//! Batch lookup without vector instructions: 32 addresses go down level by level in lock-step.
//!
//! A single lookup is a chain of dependent loads; 32 of them side by side keep as many loads in flight. For that the body
//! must not branch on what an address finds: a lane that has reached its leaf reads unit 0 of the arena, which is never a
//! node, and keeps its value by a conditional move.
//!
//! ```text
//! all lanes: root slot   ->   all lanes: word, rank   ->   all lanes: slot   ->   word, rank   ->   slot ...
//!                        ->   (dense nodes: slot)
//! ```
//!
//! Keys are the upper 64 bits of an address, shifted left as they are consumed, so that the next bits always stand at the
//! top whatever the nodes above spanned. The few lanes that go deeper than those bits are finished one by one.

#![allow(clippy::needless_range_loop)]

use super::lookup::walk;
use super::node::{Nodes, Root, Slot, narrow_miss};
use crate::addr::Addr;
use crate::nexthop::NextHopId;

/// Addresses in lock-step: their slots and keys fit a few cache lines of stack.
const LANES: usize = 32;

/// Levels after which an IPv6 lane can be near the end of the upper 64 bits.
const COMMON_LEVELS: u32 = 4;

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
    // The last few.
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
    let (Ok(addrs), Ok(out)) = (<&[A; N]>::try_from(addrs), <&mut [NextHopId; N]>::try_from(out)) else { return false };
    let root_bits = 6 * root.steps as u32 - A::LEAD;
    let mut key = [0u64; N];
    let mut slot = [0u32; N];
    let mut largest = 0;
    for lane in 0..N {
        let bits = addrs[lane].upper_bits();
        slot[lane] = nodes.dense(root.offset, (bits >> (64 - root_bits)) as usize).raw();
        // Right behind its last bit a key carries a one, which tells how many bits are left.
        key[lane] = bits << root_bits | 1 << (root_bits - 1);
        largest = largest.max(slot[lane]);
    }
    let mut levels = 0;
    // Children are the largest slots, dense ones larger than sparse ones.
    while Slot::from_raw(largest).is_child() {
        if Slot::from_raw(largest).is_dense_child() {
            largest = dense_level(nodes, &mut slot, &mut key);
        } else {
            largest = sparse_level::<BYTES, N>(nodes, &mut slot, &mut key);
        }
        levels += 1;
        if A::BITS > 64 && levels >= COMMON_LEVELS && Slot::from_raw(largest).is_child() {
            largest = 0;
            for lane in 0..N {
                // The one is the lowest bit set. A node may ask for 12 bits more: one by one where they are not left.
                if Slot::from_raw(slot[lane]).is_child() && key[lane] << 12 == 0 {
                    slot[lane] = walk::<A, BYTES>(nodes, root, addrs[lane]).raw();
                }
                largest = largest.max(slot[lane]);
            }
        }
    }
    let mut missed = false;
    for lane in 0..N {
        let is_miss = slot[lane] == Slot::MISS.raw();
        missed |= is_miss;
        out[lane] = NextHopId::from_slot(if is_miss { on_miss.get() } else { slot[lane] });
    }
    missed
}

/// All ones for a child, else 0: what follows selects by masks, since the compiler makes branches of conditions on loads.
#[inline(always)]
fn child_mask(slot: u32) -> u32 {
    (slot as i32 >> 31) as u32
}

/// Takes the lanes that stand on sparse nodes one level down; the largest slot afterwards. No lane stands on a dense one.
///
/// One loop, not one for the words and one for the slots: the lanes are independent, and the CPU overlaps them by itself.
#[inline(always)]
fn sparse_level<const BYTES: usize, const N: usize>(nodes: Nodes, slot: &mut [u32; N], key: &mut [u64; N]) -> u32 {
    let mut largest = 0;
    for lane in 0..N {
        let here = slot[lane];
        let is_child = child_mask(here);
        // Unit 0 is no node and reads as zeros: rank 0, and the slot before the first one is inside the unit.
        let node = Slot::from_raw(here).sparse_offset() & is_child;
        let rank = (nodes.word(node) & (u64::MAX >> (63 - (key[lane] >> 58)))).count_ones();
        let raw = nodes.stored_before::<BYTES>(node, rank as usize);
        let mut next = raw;
        if BYTES < 4 {
            // The narrow miss becomes the wide one: all ones but the uppermost bit.
            next |= u32::from(raw == narrow_miss(BYTES)).wrapping_neg() & Slot::MISS.raw();
            if is_child & raw > narrow_miss(BYTES) {
                // A child's number. Rare below the root of a full table, so the branch costs little.
                next = nodes.narrow_child_slot::<BYTES>(node, raw).raw();
            }
        }
        let next = here ^ ((here ^ next) & is_child);
        slot[lane] = next;
        key[lane] <<= 6;
        largest = largest.max(next);
    }
    largest
}

/// Takes the lanes that stand on dense nodes one level down; the largest slot afterwards.
#[inline(always)]
fn dense_level<const N: usize>(nodes: Nodes, slot: &mut [u32; N], key: &mut [u64; N]) -> u32 {
    let mut largest = 0;
    for lane in 0..N {
        let here = Slot::from_raw(slot[lane]);
        let is_dense = u32::from(here.is_dense_child()).wrapping_neg();
        let bits = (6 * here.dense_steps()) & is_dense;
        let index = (key[lane] >> 1 >> (63 - bits)) as u32;
        // Unit 0 again for the other lanes.
        let next = nodes.dword(here.dense_dword().wrapping_add(index) & is_dense);
        let next = here.raw() ^ ((here.raw() ^ next) & is_dense);
        slot[lane] = next;
        key[lane] <<= bits;
        largest = largest.max(next);
    }
    largest
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
