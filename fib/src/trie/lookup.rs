//! The hot path: longest match by reading the root, then one slot per node down to a leaf.
//!
//! A lookup reads the descriptor's words once. Every read of a slot sees the newest published value, so a single
//! lookup sees the table before or after an update, never between: each update reaches any one address by exactly
//! one store. The one value outside the trie is the default route; it is read before the walk and, only when the walk
//! ends in a miss, compared with a second reading. If it changed meanwhile the lookup starts over, since "miss" and
//! "default" would otherwise be from different moments.

#[cfg(target_arch = "x86_64")]
use super::batch_avx512;
use super::batch_interleaved;
use super::node::{Child, Entry, Nodes, Root, Slot, Width};
use crate::addr::Addr;
use crate::nexthop::NextHopId;

/// The leaf that `addr` ends in below `root`.
#[inline(always)]
pub(super) fn walk<A: Addr, const BYTES: usize>(nodes: Nodes, root: Root, addr: A) -> Slot {
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

#[inline(always)]
fn lookup_inline<A: Addr>(nodes: Nodes, entry: &Entry, addr: A) -> Option<NextHopId> {
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

/// How batches of addresses are looked up. All variants give the same answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchVariant {
    /// One address after the other: the reference.
    Scalar,
    /// 32 addresses in lock-step, without vector instructions; for every CPU.
    Interleaved,
    /// 64 addresses in flight with AVX-512 gathers and population counts (Intel Ice Lake, AMD Zen 4 and later).
    Avx512,
}

impl BatchVariant {
    /// All variants, slowest first.
    pub const ALL: [BatchVariant; 3] = [BatchVariant::Scalar, BatchVariant::Interleaved, BatchVariant::Avx512];

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            BatchVariant::Scalar | BatchVariant::Interleaved => true,
            #[cfg(target_arch = "x86_64")]
            BatchVariant::Avx512 => batch_avx512::available(),
            #[cfg(not(target_arch = "x86_64"))]
            BatchVariant::Avx512 => false,
        }
    }

    /// The fastest for this CPU. AMD's gathers of Zen 4 are slower than separate loads, so it gets the interleaved one.
    pub fn fastest() -> BatchVariant {
        if BatchVariant::Avx512.is_available() && gathers_are_fast() {
            BatchVariant::Avx512
        } else {
            BatchVariant::Interleaved
        }
    }

    /// The name, as `FIB_BATCH` takes it.
    pub fn name(self) -> &'static str {
        match self {
            BatchVariant::Scalar => "scalar",
            BatchVariant::Interleaved => "interleaved",
            BatchVariant::Avx512 => "avx512",
        }
    }

    /// The variant of this name.
    pub fn from_name(name: &str) -> Option<BatchVariant> {
        BatchVariant::ALL.into_iter().find(|variant| variant.name() == name)
    }
}

impl std::fmt::Display for BatchVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn gathers_are_fast() -> bool {
    // Leaf 0 exists on every x86-64 CPU.
    let vendor = std::arch::x86_64::__cpuid(0);
    // "GenuineIntel" in the order of the registers.
    (vendor.ebx, vendor.edx, vendor.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e)
}

#[cfg(not(target_arch = "x86_64"))]
fn gathers_are_fast() -> bool {
    false
}

/// What the CPU can do, found out once for each `Fib`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) batch: BatchVariant,
    popcnt: bool,
}

impl Cpu {
    /// For batches by `batch`, which the CPU has.
    pub(crate) fn new(batch: BatchVariant) -> Cpu {
        #[cfg(target_arch = "x86_64")]
        let popcnt = is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let popcnt = false;
        Cpu { batch, popcnt }
    }
}

/// The next hop of `addr`, `None` when no route matches.
///
/// Cost: two loads of the descriptor's line, one of the root, two a sparse node. No lock, no allocation.
#[inline]
pub(crate) fn lookup<A: Addr>(cpu: Cpu, nodes: Nodes, entry: &Entry, addr: A) -> Option<NextHopId> {
    #[cfg(target_arch = "x86_64")]
    if cpu.popcnt {
        // SAFETY: `popcnt` says that the CPU has the features of the function.
        return unsafe { lookup_with_popcnt(nodes, entry, addr) };
    }
    let _ = cpu.popcnt;
    lookup_inline(nodes, entry, addr)
}

/// The same code with bits counted in one instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt")]
fn lookup_with_popcnt<A: Addr>(nodes: Nodes, entry: &Entry, addr: A) -> Option<NextHopId> {
    lookup_inline(nodes, entry, addr)
}

/// A family's batch lookup on vector instructions.
pub(crate) trait Vectors: Addr {
    /// Looks up all of `addrs` below `root`; whether any missed.
    ///
    /// # Safety
    /// The CPU has what [`BatchVariant::Avx512`] needs.
    #[cfg(target_arch = "x86_64")]
    unsafe fn batch(nodes: Nodes, root: Root, addrs: &[Self], out: &mut [NextHopId], on_miss: NextHopId) -> bool;
}

impl Vectors for u32 {
    #[cfg(target_arch = "x86_64")]
    unsafe fn batch(nodes: Nodes, root: Root, addrs: &[u32], out: &mut [NextHopId], on_miss: NextHopId) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match root.width {
                Width::W8 => batch_avx512::batch_v4::<1>(nodes, root, addrs, out, on_miss),
                Width::W16 => batch_avx512::batch_v4::<2>(nodes, root, addrs, out, on_miss),
                Width::W32 => batch_avx512::batch_v4::<4>(nodes, root, addrs, out, on_miss),
            }
        }
    }
}

impl Vectors for u128 {
    #[cfg(target_arch = "x86_64")]
    unsafe fn batch(nodes: Nodes, root: Root, addrs: &[u128], out: &mut [NextHopId], on_miss: NextHopId) -> bool {
        match root.width {
            // SAFETY: the caller's promise.
            Width::W32 => unsafe { batch_avx512::batch_v6(nodes, root, addrs, out, on_miss) },
            // IPv6 tables start with 32-bit slots and never narrow.
            _ => interleaved(true, nodes, root, addrs, out, on_miss),
        }
    }
}

/// Looks up all of `addrs`; `out[i]` is the next hop of `addrs[i]`, or `miss`. Slices of equal length.
///
/// The descriptor is read once for the whole batch.
pub(crate) fn lookup_batch<A: Vectors>(
    cpu: Cpu,
    nodes: Nodes,
    entry: &Entry,
    addrs: &[A],
    out: &mut [NextHopId],
    miss: NextHopId,
) {
    debug_assert_eq!(addrs.len(), out.len());
    let default = entry.default();
    let root = entry.root();
    let on_miss = default.slot().next_hop().unwrap_or(miss);
    let missed = match cpu.batch {
        // SAFETY: a `Cpu` is made for variants that the CPU has.
        #[cfg(target_arch = "x86_64")]
        BatchVariant::Avx512 => unsafe { A::batch(nodes, root, addrs, out, on_miss) },
        #[cfg(not(target_arch = "x86_64"))]
        BatchVariant::Avx512 => interleaved(cpu.popcnt, nodes, root, addrs, out, on_miss),
        BatchVariant::Interleaved => interleaved(cpu.popcnt, nodes, root, addrs, out, on_miss),
        BatchVariant::Scalar => scalar(nodes, root, addrs, out, on_miss),
    };
    if missed && entry.default() != default {
        for (addr, out) in addrs.iter().zip(out) {
            *out = lookup_again(nodes, entry, *addr).unwrap_or(miss);
        }
    }
}

fn interleaved<A: Addr>(
    popcnt: bool,
    nodes: Nodes,
    root: Root,
    addrs: &[A],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if popcnt {
        // SAFETY: `popcnt` says that the CPU has the features of these functions.
        return unsafe {
            match root.width {
                Width::W8 => batch_interleaved::with_popcnt::<A, 1>(nodes, root, addrs, out, on_miss),
                Width::W16 => batch_interleaved::with_popcnt::<A, 2>(nodes, root, addrs, out, on_miss),
                Width::W32 => batch_interleaved::with_popcnt::<A, 4>(nodes, root, addrs, out, on_miss),
            }
        };
    }
    let _ = popcnt;
    match root.width {
        Width::W8 => batch_interleaved::portable::<A, 1>(nodes, root, addrs, out, on_miss),
        Width::W16 => batch_interleaved::portable::<A, 2>(nodes, root, addrs, out, on_miss),
        Width::W32 => batch_interleaved::portable::<A, 4>(nodes, root, addrs, out, on_miss),
    }
}

/// The reference: one walk after the other.
fn scalar<A: Addr>(nodes: Nodes, root: Root, addrs: &[A], out: &mut [NextHopId], on_miss: NextHopId) -> bool {
    let mut missed = false;
    for (addr, out) in addrs.iter().zip(out) {
        let found = walk_any(nodes, root, *addr).next_hop();
        missed |= found.is_none();
        *out = found.unwrap_or(on_miss);
    }
    missed
}
