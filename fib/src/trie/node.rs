//! Memory layout of trie nodes: every raw pointer of the trie is in this file.
//!
//! A node is a block of the arena, addressed by its offset in units of 8 bytes, and is one of two kinds:
//!
//! ```text
//! dense    | slot 0 | slot 1 | ...                        | 64^steps slots of 32 bits, 256-byte aligned
//!
//! sparse   | word (64 bits)        | stored slots ...     | children ... |
//!            bit i set: slot i       8, 16 or 32 bits       8 and 16 bits only: child k as 32 bits
//!            differs from slot i-1   each, one a set bit    (the slot itself holds k)
//! ```
//!
//! A sparse node stands for 64 slots and stores one for each run of equal neighbours: slot `s` is stored slot number
//! `popcount(word & (2^(s+1) - 1)) - 1`. A slot is a next-hop id, a miss, or a child; [`Slot`] is its 32-bit form,
//! narrower ones are translated at the edge of this file. A block is written while it is private, published by a
//! Release store of its offset into the parent's slot, and from then on only whole slots change, by one atomic store
//! each: word, width and size of a published block are constant.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::arena::SMALL_MAX;
use crate::addr::STEP_SLOTS;
use crate::nexthop::NextHopId;

/// A slot in its 32-bit form.
///
/// ```text
/// bit 31 30 29..27 26..0
///      0  id ..............   next-hop id; all ones: miss
///      1  0  offset .......   sparse child, offset in units of 8 bytes (8 GiB)
///      1  1  steps  offset    dense child of `steps` grid steps, offset in units of 256 bytes (32 GiB)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Slot(u32);

const CHILD: u32 = 1 << 31;
const DENSE: u32 = 1 << 30;
const DENSE_STEPS_SHIFT: u32 = 27;
const DENSE_OFFSET: u32 = (1 << DENSE_STEPS_SHIFT) - 1;

/// Bytes of the alignment of dense nodes, in units of 8.
const DENSE_UNITS: u32 = 32;

/// First offset that a sparse child cannot name; the arena is limited to it.
pub(crate) const MAX_OFFSET: u32 = 1 << 30;

/// What a [`Slot`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// No child: a next hop or a miss.
    Leaf,
    /// A sparse node at this offset (units of 8 bytes).
    Sparse(u32),
    /// A dense node at this offset (units of 8 bytes) that spans so many grid steps.
    Dense(u32, usize),
}

impl Slot {
    /// No route here (but perhaps a default route, which the descriptor holds).
    pub(crate) const MISS: Slot = Slot(0x7fff_ffff);

    #[inline(always)]
    pub(crate) const fn from_raw(raw: u32) -> Slot {
        Slot(raw)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn hop(id: NextHopId) -> Slot {
        Slot(id.get())
    }

    pub(crate) const fn sparse(offset: u32) -> Slot {
        debug_assert!(offset < MAX_OFFSET);
        Slot(CHILD | offset)
    }

    pub(crate) const fn dense(offset: u32, steps: usize) -> Slot {
        debug_assert!(offset.is_multiple_of(DENSE_UNITS) && steps >= 1 && steps <= 7);
        Slot(CHILD | DENSE | (steps as u32) << DENSE_STEPS_SHIFT | (offset / DENSE_UNITS))
    }

    #[inline(always)]
    pub(crate) const fn is_child(self) -> bool {
        self.0 & CHILD != 0
    }

    /// Whether this is a dense child.
    #[inline(always)]
    pub(crate) const fn is_dense_child(self) -> bool {
        self.0 >> 30 == 3
    }

    /// The span of a dense child, in grid steps. Meaningless on others.
    #[inline(always)]
    pub(crate) const fn dense_steps(self) -> u32 {
        self.0 >> DENSE_STEPS_SHIFT & 7
    }

    /// Where a dense child's slots start, in units of 4 bytes. Meaningless on others.
    #[inline(always)]
    pub(crate) const fn dense_dword(self) -> u32 {
        (self.0 & DENSE_OFFSET) << (2 * DENSE_UNITS).ilog2()
    }

    /// The offset of a sparse child, in units of 8 bytes. Meaningless on others.
    #[inline(always)]
    pub(crate) const fn sparse_offset(self) -> u32 {
        self.0 & !(CHILD | DENSE)
    }

    #[inline(always)]
    pub(crate) const fn child(self) -> Child {
        if !self.is_child() {
            Child::Leaf
        } else if self.0 & DENSE == 0 {
            Child::Sparse(self.0 & !CHILD)
        } else {
            Child::Dense((self.0 & DENSE_OFFSET) * DENSE_UNITS, self.dense_steps() as usize)
        }
    }

    /// The next hop of a leaf slot, `None` for a miss. Meaningless on a child.
    #[inline(always)]
    pub(crate) fn next_hop(self) -> Option<NextHopId> {
        debug_assert!(!self.is_child());
        if self.0 == Slot::MISS.0 { None } else { Some(NextHopId::from_slot(self.0)) }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.child() {
            Child::Leaf if *self == Slot::MISS => f.write_str("miss"),
            Child::Leaf => write!(f, "{}", self.0),
            Child::Sparse(offset) => write!(f, "sparse@{offset}"),
            Child::Dense(offset, steps) => write!(f, "dense{steps}@{offset}"),
        }
    }
}

/// Bits of a stored slot in the sparse nodes of one table and family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    /// 8 bits: ids up to 126.
    W8,
    /// 16 bits: ids up to 32,766.
    W16,
    /// 32 bits: all ids.
    W32,
}

impl Width {
    #[inline(always)]
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Width::W8 => 1,
            Width::W16 => 2,
            Width::W32 => 4,
        }
    }

    /// Whether a slot of this width can hold `slot` when it is a leaf.
    #[inline(always)]
    pub(crate) const fn fits(self, id: u32) -> bool {
        match self {
            Width::W8 => id < 0x7f,
            Width::W16 => id < 0x7fff,
            Width::W32 => id <= NextHopId::MAX.get(),
        }
    }

    /// The narrowest width from `self` on that holds `id`.
    pub(crate) const fn widened_for(self, id: u32) -> Width {
        if self.fits(id) {
            self
        } else if Width::W16.fits(id) {
            Width::W16
        } else {
            Width::W32
        }
    }

    const fn code(self) -> u64 {
        match self {
            Width::W8 => 0,
            Width::W16 => 1,
            Width::W32 => 2,
        }
    }

    const fn from_code(code: u64) -> Width {
        match code {
            0 => Width::W8,
            1 => Width::W16,
            _ => Width::W32,
        }
    }
}

/// Child flag of a narrow stored slot of `bytes` bytes.
#[inline(always)]
const fn narrow_child(bytes: usize) -> u32 {
    1 << (8 * bytes - 1)
}

/// What a narrow stored slot of `bytes` bytes holds for a miss.
#[inline(always)]
pub(crate) const fn narrow_miss(bytes: usize) -> u32 {
    narrow_child(bytes) - 1
}

/// The 64 slots of a node, spelled out: what an update computes with.
pub(crate) type Image = [Slot; STEP_SLOTS];

/// A node's slots as runs of equal neighbours: its word, and the slot of each run. What a sparse block stores.
pub(crate) struct Runs {
    word: u64,
    len: usize,
    children: usize,
    slots: Image,
}

impl Runs {
    const fn new() -> Self {
        Runs { word: 0, len: 0, children: 0, slots: [Slot::MISS; STEP_SLOTS] }
    }

    /// Appends `slot`, which is what the node says from slot number `from` on.
    #[inline(always)]
    fn push(&mut self, from: usize, slot: Slot) {
        if self.len > 0 && self.slots[self.len - 1] == slot {
            return;
        }
        self.word |= 1 << from;
        self.slots[self.len] = slot;
        self.len += 1;
        self.children += usize::from(slot.is_child());
    }

    pub(crate) fn of_image(image: &Image) -> Self {
        let mut runs = Runs::new();
        for (from, &slot) in image.iter().enumerate() {
            runs.push(from, slot);
        }
        runs
    }

    /// Bit `i` is set where slot `i` differs from slot `i - 1`; bit 0 always.
    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// The slots that are stored, one a run.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots[..self.len]
    }

    /// Bytes of a sparse block that holds these runs.
    pub(crate) fn block_bytes(&self, width: Width) -> usize {
        sparse_bytes(width, self.len, self.children)
    }
}

/// A sparse node, or a leaf that stands for 64 equal slots, and what some of its slots are to become.
///
/// The old slots are read where needed only: most updates touch a few of the 64.
pub(crate) struct Edit {
    pub(crate) old: Slot,
    nodes: Nodes,
    width: Width,
    word: u64,
    filled: u64,
    fill: Slot,
    changed: u64,
    values: Image,
}

impl Edit {
    #[inline]
    pub(crate) fn new(nodes: Nodes, width: Width, old: Slot) -> Self {
        let word = match old.child() {
            Child::Sparse(offset) => nodes.word(offset),
            _ => 1,
        };
        Edit { old, nodes, width, word, filled: 0, fill: Slot::MISS, changed: 0, values: [Slot::MISS; STEP_SLOTS] }
    }

    #[inline(always)]
    fn stored(&self, rank: usize) -> Slot {
        match self.old.child() {
            Child::Sparse(offset) => self.nodes.stored_slot(self.width, offset, self.word, rank),
            _ => self.old,
        }
    }

    /// What `slot` was.
    #[inline]
    pub(crate) fn before(&self, slot: usize) -> Slot {
        self.stored((self.word & (u64::MAX >> (63 - slot))).count_ones() as usize - 1)
    }

    /// Notes that all of `slots` become `value`. At most once.
    #[inline(always)]
    pub(crate) fn fill(&mut self, slots: u64, value: Slot) {
        self.filled = slots;
        self.fill = value;
    }

    /// Notes that `slot`, which was `before`, becomes `value`.
    #[inline(always)]
    pub(crate) fn set(&mut self, slot: usize, before: Slot, value: Slot) {
        if value != before {
            self.changed |= 1 << slot;
            self.values[slot] = value;
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled | self.changed == 0
    }

    /// The node with all changes made.
    pub(crate) fn runs(&self) -> Runs {
        let mut runs = Runs::new();
        // A run can start only where one did, or at either edge of a change.
        let starts = self.word | (self.filled ^ self.filled << 1) | (self.changed | self.changed << 1) | 1;
        let mut rank = 0;
        for from in Bits(starts) {
            rank += (self.word >> from & 1) as usize;
            let slot = if self.filled >> from & 1 == 1 {
                self.fill
            } else if self.changed >> from & 1 == 1 {
                self.values[from]
            } else {
                self.stored(rank - 1)
            };
            runs.push(from, slot);
        }
        runs
    }
}

/// Bytes of a sparse block.
#[inline(always)]
const fn sparse_bytes(width: Width, stored: usize, children: usize) -> usize {
    match width {
        Width::W32 => 8 + 4 * stored,
        _ => children_at(width.bytes(), stored) + 4 * children,
    }
}

// What the arena serves as a small block: 64 stored slots, in narrow nodes all of them children.
const _: () = assert!(sparse_bytes(Width::W32, STEP_SLOTS, 0) <= SMALL_MAX);
const _: () = assert!(sparse_bytes(Width::W16, STEP_SLOTS, STEP_SLOTS) <= SMALL_MAX);

/// Byte offset of the children inside a narrow sparse block.
#[inline(always)]
const fn children_at(bytes: usize, stored: usize) -> usize {
    8 + (stored * bytes).next_multiple_of(4)
}

/// The indices of the set bits of a word, ascending.
pub(crate) struct Bits(pub(crate) u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let index = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(index)
    }
}

/// The memory that all nodes of a `Fib` live in: the base address of the arena.
///
/// Copies are made by the writer and by readers; whoever holds one also keeps the mapping alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes {
    base: *mut u8,
}

// SAFETY: all access through the base is by atomic operations, or by plain ones on blocks that no other thread can
// know of (private blocks of the single writer).
unsafe impl Send for Nodes {}
// SAFETY: as above.
unsafe impl Sync for Nodes {}

impl Nodes {
    /// The nodes in the mapping at `base`, which must outlive every copy of the result.
    pub(crate) fn new(base: *mut u8) -> Nodes {
        Nodes { base }
    }

    /// Where everything starts; for vector loads, which take all offsets relative to it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn base(self) -> *const u8 {
        self.base
    }

    #[inline(always)]
    pub(crate) fn at(self, offset: u32, byte: usize) -> *mut u8 {
        // Offsets come from published slots or from the arena, so this stays inside the mapping.
        self.base.wrapping_add(offset as usize * 8 + byte)
    }

    /// Asks for the first cache line of the block at `offset`.
    #[inline(always)]
    pub(crate) fn prefetch(self, offset: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing that the program can see, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(offset, 0).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    #[inline(always)]
    fn atomic_u32(&self, offset: u32, byte: usize) -> &AtomicU32 {
        // SAFETY: `offset + byte` lies inside a block that is live for this caller: readers hold a burst open, the
        // writer has not reclaimed it. Callers pass multiples of 4 and blocks are 8-byte aligned.
        unsafe { AtomicU32::from_ptr(self.at(offset, byte).cast()) }
    }

    /// Slot `index` of the dense node at `offset`.
    ///
    /// Acquire: pairs with the Release in [`Nodes::store_dense`]; a reader that sees a child sees all of its block.
    #[inline(always)]
    pub(crate) fn dense(self, offset: u32, index: usize) -> Slot {
        Slot(self.atomic_u32(offset, 4 * index).load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(crate) fn store_dense(self, offset: u32, index: usize, slot: Slot) {
        self.atomic_u32(offset, 4 * index).store(slot.0, Ordering::Release);
    }

    /// Stores `slot` into `count` slots from `first` on, leaving alone those that hold it already.
    pub(crate) fn fill_dense(self, offset: u32, first: usize, count: usize, slot: Slot) {
        for index in first..first + count {
            if self.dense(offset, index) != slot {
                self.store_dense(offset, index, slot);
            }
        }
    }

    /// The word of the sparse node at `offset`.
    ///
    /// Relaxed: the word never changes after publication, and the slot that led here was loaded with Acquire.
    #[inline(always)]
    pub(crate) fn word(self, offset: u32) -> u64 {
        // SAFETY: a sparse block starts with its 8-byte word and is 8-byte aligned; it is live for this caller.
        unsafe { AtomicU64::from_ptr(self.at(offset, 0).cast()) }.load(Ordering::Relaxed)
    }

    /// Stored slot number `rank` of `BYTES` bytes, raw.
    #[inline(always)]
    fn stored<const BYTES: usize>(self, offset: u32, rank: usize) -> u32 {
        self.stored_before::<BYTES>(offset, rank + 1)
    }

    /// The raw stored slot before number `rank` of the sparse node at `offset`, so number `rank - 1`; with offset 0 and rank 0
    /// the last one that fits into the reserved unit 0.
    #[inline(always)]
    pub(crate) fn stored_before<const BYTES: usize>(self, offset: u32, rank: usize) -> u32 {
        let at = self.at(offset, 8 - BYTES + rank * BYTES);
        // SAFETY: `rank - 1` is below the popcount of the node's word, so the slot lies inside the live block; it is
        // aligned to its size, since the block is 8-byte aligned and the slots start at byte 8. Unit 0 is never given out.
        unsafe {
            match BYTES {
                1 => u32::from(AtomicU8::from_ptr(at).load(Ordering::Acquire)),
                2 => u32::from(AtomicU16::from_ptr(at.cast()).load(Ordering::Acquire)),
                _ => AtomicU32::from_ptr(at.cast()).load(Ordering::Acquire),
            }
        }
    }

    fn store_stored(self, width: Width, offset: u32, rank: usize, raw: u32) {
        let at = self.at(offset, 8 + rank * width.bytes());
        // SAFETY: as in `stored_before`; the writer is the only one who stores.
        unsafe {
            match width {
                Width::W8 => AtomicU8::from_ptr(at).store(raw as u8, Ordering::Release),
                Width::W16 => AtomicU16::from_ptr(at.cast()).store(raw as u16, Ordering::Release),
                Width::W32 => AtomicU32::from_ptr(at.cast()).store(raw, Ordering::Release),
            }
        }
    }

    /// The aligned 32 bits at `dword` units of 4 bytes: a slot of a dense node, those around a slot of a sparse one, or the
    /// reserved unit 0.
    #[inline(always)]
    pub(crate) fn dword(self, dword: u32) -> u32 {
        self.atomic_u32(dword / 2, 4 * (dword as usize & 1)).load(Ordering::Acquire)
    }

    /// The child that a raw narrow slot of the sparse node at `offset` names by its number.
    #[cold]
    pub(crate) fn narrow_child_slot<const BYTES: usize>(self, offset: u32, raw: u32) -> Slot {
        self.widen::<BYTES>(offset, self.word(offset), raw)
    }

    /// The 32-bit form of a raw stored slot of a node with this word.
    #[inline(always)]
    fn widen<const BYTES: usize>(self, offset: u32, word: u64, raw: u32) -> Slot {
        if BYTES == 4 {
            return Slot(raw);
        }
        if raw & narrow_child(BYTES) != 0 {
            let number = (raw & (narrow_child(BYTES) - 1)) as usize;
            let at = children_at(BYTES, word.count_ones() as usize) + 4 * number;
            return Slot(self.atomic_u32(offset, at).load(Ordering::Acquire));
        }
        if raw == narrow_miss(BYTES) { Slot::MISS } else { Slot(raw) }
    }

    /// Slot `slot` (`< 64`) of the sparse node at `offset`, whose stored slots have `BYTES` bytes.
    #[inline(always)]
    pub(crate) fn sparse<const BYTES: usize>(self, offset: u32, slot: usize) -> Slot {
        let word = self.word(offset);
        // Bits 0..=slot kept; bit 0 is always set, so the rank is at least 1.
        let rank = (word & (u64::MAX >> (63 - slot))).count_ones() as usize;
        self.widen::<BYTES>(offset, word, self.stored::<BYTES>(offset, rank - 1))
    }

    /// As [`Nodes::sparse`] with the width known at run time only: for the writer's walks.
    pub(crate) fn stored_slot(self, width: Width, offset: u32, word: u64, rank: usize) -> Slot {
        match width {
            Width::W8 => self.widen::<1>(offset, word, self.stored::<1>(offset, rank)),
            Width::W16 => self.widen::<2>(offset, word, self.stored::<2>(offset, rank)),
            Width::W32 => self.widen::<4>(offset, word, self.stored::<4>(offset, rank)),
        }
    }

    /// The 64 slots of the sparse node at `offset`.
    pub(crate) fn expand(self, width: Width, offset: u32) -> Image {
        match width {
            Width::W8 => self.expand_as::<1>(offset),
            Width::W16 => self.expand_as::<2>(offset),
            Width::W32 => self.expand_as::<4>(offset),
        }
    }

    #[inline(always)]
    fn expand_as<const BYTES: usize>(self, offset: u32) -> Image {
        let word = self.word(offset);
        let mut image = [Slot::MISS; STEP_SLOTS];
        let mut rest = word;
        let mut rank = 0;
        while rest != 0 {
            let from = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let to = if rest == 0 { STEP_SLOTS } else { rest.trailing_zeros() as usize };
            let slot = self.widen::<BYTES>(offset, word, self.stored::<BYTES>(offset, rank));
            for filled in &mut image[from..to] {
                *filled = slot;
            }
            rank += 1;
        }
        image
    }

    /// Bytes of the published or private sparse block at `offset`.
    pub(crate) fn sparse_block_bytes(self, width: Width, offset: u32) -> usize {
        let word = self.word(offset);
        let stored = word.count_ones() as usize;
        let children = match width {
            Width::W8 => self.count_children::<1>(offset, stored),
            Width::W16 => self.count_children::<2>(offset, stored),
            Width::W32 => 0,
        };
        sparse_bytes(width, stored, children)
    }

    #[inline(always)]
    fn count_children<const BYTES: usize>(self, offset: u32, stored: usize) -> usize {
        (0..stored).filter(|&rank| self.stored::<BYTES>(offset, rank) & narrow_child(BYTES) != 0).count()
    }

    /// Writes `runs` into the private block at `offset`, which has [`Runs::block_bytes`] bytes.
    ///
    /// The order of the stores is of no account: the block is published later, by a Release store of its offset.
    pub(crate) fn write_sparse(self, width: Width, offset: u32, runs: &Runs) {
        // SAFETY: the block is private, 8-byte aligned and at least 8 bytes long.
        unsafe { AtomicU64::from_ptr(self.at(offset, 0).cast()) }.store(runs.word, Ordering::Relaxed);
        let at = children_at(width.bytes(), runs.len);
        let mut number = 0;
        for (rank, &slot) in runs.slots().iter().enumerate() {
            let raw = if width == Width::W32 {
                slot.0
            } else if slot.is_child() {
                self.atomic_u32(offset, at + 4 * number).store(slot.0, Ordering::Relaxed);
                number += 1;
                narrow_child(width.bytes()) | (number as u32 - 1)
            } else {
                narrow_leaf(width, slot)
            };
            self.store_stored(width, offset, rank, raw);
        }
    }

    /// Whether `runs` can be reached from the sparse node at `offset` by storing single slots: same word and, where
    /// slots are narrow, children in the same places.
    pub(crate) fn same_shape(self, width: Width, offset: u32, runs: &Runs) -> bool {
        let word = self.word(offset);
        word == runs.word
            && (width == Width::W32
                || runs
                    .slots()
                    .iter()
                    .enumerate()
                    .all(|(rank, slot)| self.stored_slot(width, offset, word, rank).is_child() == slot.is_child()))
    }

    /// Stores `slot` as stored slot number `rank` of the published sparse node at `offset`.
    ///
    /// In narrow nodes a child may only follow a child: its number stays, the 32 bits behind it change.
    pub(crate) fn store_sparse(self, width: Width, offset: u32, rank: usize, slot: Slot) {
        if width == Width::W32 {
            self.store_stored(width, offset, rank, slot.0);
        } else if slot.is_child() {
            let raw = match width {
                Width::W8 => self.stored::<1>(offset, rank),
                _ => self.stored::<2>(offset, rank),
            };
            let number = (raw & (narrow_child(width.bytes()) - 1)) as usize;
            let at = children_at(width.bytes(), self.word(offset).count_ones() as usize) + 4 * number;
            self.atomic_u32(offset, at).store(slot.0, Ordering::Release);
        } else {
            self.store_stored(width, offset, rank, narrow_leaf(width, slot));
        }
    }
}

#[inline(always)]
fn narrow_leaf(width: Width, slot: Slot) -> u32 {
    if slot == Slot::MISS {
        return narrow_miss(width.bytes());
    }
    debug_assert!(width.fits(slot.0), "id {} in a {width:?} slot", slot.0);
    slot.0
}

/// Where a trie starts: a dense node, and the width of the sparse nodes below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) offset: u32,
    pub(crate) steps: usize,
    pub(crate) width: Width,
}

impl Root {
    const fn pack(self) -> u64 {
        self.offset as u64 | (self.steps as u64) << 32 | self.width.code() << 40
    }

    #[inline(always)]
    const fn unpack(word: u64) -> Root {
        Root { offset: word as u32, steps: (word >> 32 & 0xff) as usize, width: Width::from_code(word >> 40) }
    }
}

/// One family's half of a table's descriptor: all that a reader needs to start with.
///
/// The default route is not in the trie but here, as the value of a miss. Its word carries a count of its changes
/// (upper half), so that a reader who hits a miss can tell whether the value it read before the walk was in force all
/// through it.
#[derive(Debug)]
pub(crate) struct Entry {
    root: AtomicU64,
    default: AtomicU64,
}

impl Entry {
    pub(crate) fn new(root: Root) -> Entry {
        Entry { root: AtomicU64::new(root.pack()), default: AtomicU64::new(u64::from(Slot::MISS.0)) }
    }

    /// Acquire: pairs with [`Entry::publish_root`]; a reader that sees the root sees its slots.
    #[inline(always)]
    pub(crate) fn root(&self) -> Root {
        Root::unpack(self.root.load(Ordering::Acquire))
    }

    pub(crate) fn publish_root(&self, root: Root) {
        self.root.store(root.pack(), Ordering::Release);
    }

    /// The value of a miss and the count of its changes.
    #[inline(always)]
    pub(crate) fn default(&self) -> DefaultWord {
        DefaultWord(self.default.load(Ordering::Acquire))
    }

    pub(crate) fn publish_default(&self, slot: Slot) {
        let changes = (self.default.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.default.store(changes << 32 | u64::from(slot.0), Ordering::Release);
    }
}

/// The value of a miss at some moment, comparable with a later reading.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DefaultWord(u64);

impl DefaultWord {
    #[inline(always)]
    pub(crate) fn slot(self) -> Slot {
        Slot(self.0 as u32)
    }
}

/// The published state of one table, both families. Its address never changes while the table exists.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Descriptor {
    pub(crate) v4: Entry,
    pub(crate) v6: Entry,
}

const _: () = assert!(size_of::<Descriptor>() == 64, "a descriptor is one cache line");
