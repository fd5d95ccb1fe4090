//! The hot path: longest match by reading the root, then one slot per node down to a leaf.
//!
//! A lookup reads the descriptor's words once. Every read of a slot sees the newest published value, so a single
//! lookup sees the table before or after an update, never between: each update reaches any one address by exactly
//! one store. The one value outside the trie is the default route; it is read before the walk and, only when the walk
//! ends in a miss, compared with a second reading. If it changed meanwhile the lookup starts over, since "miss" and
//! "default" would otherwise be from different moments.

use super::node::{Child, Entry, Nodes, Root, Slot, Width};
use crate::addr::Addr;
use crate::nexthop::NextHopId;

/// The leaf that `addr` ends in below `root`.
#[inline(always)]
fn walk<A: Addr, const BYTES: usize>(nodes: Nodes, root: Root, addr: A) -> Slot {
    let mut slot = nodes.dense(root.offset, addr.top_slots(root.steps));
    let mut step = root.steps;
    loop {
        match slot.child() {
            Child::Leaf => return slot,
            Child::Sparse(offset) => {
                slot = nodes.sparse::<BYTES>(offset, addr.step_slot(step));
                step += 1;
            }
            Child::Dense(offset, steps) => {
                slot = nodes.dense(offset, addr.step_slots(step, steps));
                step += steps;
            }
        }
    }
}

#[inline(always)]
fn walk_any<A: Addr>(nodes: Nodes, root: Root, addr: A) -> Slot {
    match root.width {
        Width::W8 => walk::<A, 1>(nodes, root, addr),
        Width::W16 => walk::<A, 2>(nodes, root, addr),
        Width::W32 => walk::<A, 4>(nodes, root, addr),
    }
}

/// The next hop of `addr`, `None` when no route matches.
///
/// Cost: two loads of the descriptor's line, one of the root, two a sparse node. No lock, no allocation.
#[inline]
pub(crate) fn lookup<A: Addr>(nodes: Nodes, entry: &Entry, addr: A) -> Option<NextHopId> {
    let default = entry.default();
    let found = walk_any(nodes, entry.root(), addr);
    if found != Slot::MISS {
        return found.next_hop();
    }
    if entry.default() == default { default.slot().next_hop() } else { lookup_again(nodes, entry, addr) }
}

/// The default route changed during a lookup that needed it: try until it holds still.
#[cold]
fn lookup_again<A: Addr>(nodes: Nodes, entry: &Entry, addr: A) -> Option<NextHopId> {
    loop {
        let default = entry.default();
        let found = walk_any(nodes, entry.root(), addr);
        if found != Slot::MISS {
            return found.next_hop();
        }
        if entry.default() == default {
            return default.slot().next_hop();
        }
    }
}

/// Looks up all of `addrs`; `out[i]` is the next hop of `addrs[i]`, or `miss`. Slices of equal length.
///
/// The descriptor is read once for the whole batch.
pub(crate) fn lookup_batch<A: Addr>(nodes: Nodes, entry: &Entry, addrs: &[A], out: &mut [NextHopId], miss: NextHopId) {
    debug_assert_eq!(addrs.len(), out.len());
    let default = entry.default();
    let root = entry.root();
    let on_miss = default.slot().next_hop().unwrap_or(miss);
    let missed = match root.width {
        Width::W8 => batch::<A, 1>(nodes, root, addrs, out, on_miss),
        Width::W16 => batch::<A, 2>(nodes, root, addrs, out, on_miss),
        Width::W32 => batch::<A, 4>(nodes, root, addrs, out, on_miss),
    };
    if missed && entry.default() != default {
        for (addr, out) in addrs.iter().zip(out) {
            *out = lookup_again(nodes, entry, *addr).unwrap_or(miss);
        }
    }
}

/// Fills `out` and says whether any address missed.
#[inline(always)]
fn batch<A: Addr, const BYTES: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    let mut missed = false;
    for (addr, out) in addrs.iter().zip(out) {
        match walk::<A, BYTES>(nodes, root, *addr).next_hop() {
            Some(id) => *out = id,
            None => {
                *out = on_miss;
                missed = true;
            }
        }
    }
    missed
}
