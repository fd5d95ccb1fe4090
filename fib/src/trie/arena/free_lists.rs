//! What can be handed out without moving the top: the free lists and the window.
//!
//! A free block is a link of the list of its size class, and the link is stored in the block itself, so freeing needs
//! no memory. Sizes that are common have a list of their own, longer ones share four lists an octave. A bit map of the
//! lists that are not empty finds the next larger size without a search.
//!
//! ```text
//! small_map  ..1..1...          bit = list not empty          small[class] -> block -> block -> 0
//! class      0 .. 63            64 ..                         a free small block   | next: u32 | poison...
//! units      1 .. 64            65..=79, 80..=95, ...         a free run or dense  | next: u32 | size: u32 | poison...
//! ```
//!
//! Small blocks are cut in address order from the window `window..window_end`, so that what is built in a row lies in a
//! row. When it is used up it takes a chunk of [`CHUNK_QUANTA`]. Chunks keep small blocks and dense ones apart: a small
//! block inside a free dense one would spoil its alignment for good. So what is merged between small blocks stays with
//! them until it has a whole chunk.
//!
//! Invariants: A2 and A5 of `mod.rs`. All stores to free blocks are those of `set_next`, `set_size` and `poison`.
//!
//! Source: segregated fits with an exact list per small size, as surveyed in Wilson, Johnstone, Neely and Boles, "Dynamic
//! storage allocation", IWMM 1995; the octave lists are those of TLSF (Masmano et al., 2004).

use std::sync::Arc;

use super::mapping::Mapping;
use super::{MAX_RESERVE, QUANTUM, SMALL_MAX, START, UNIT, UNITS_PER_QUANTUM};

/// Small sizes with a list of their own, in units: all that can be asked for.
pub(super) const EXACT_UNITS: u32 = (SMALL_MAX / UNIT) as u32;
/// 64 exact lists, then four for each power of two up to the longest run.
pub(super) const SMALL_CLASSES: usize = 80;
/// Dense sizes with a list of their own, in quanta.
pub(super) const EXACT_QUANTA: u32 = 32;
/// 32 exact lists, then four for each power of two up to the 2^27 quanta of 32 GiB.
pub(super) const DENSE_CLASSES: usize = 124;

/// What the window takes when it is used up.
pub(super) const CHUNK_QUANTA: u32 = 16;
/// The longest run that stays with the small blocks: a quantum short of a chunk, and an unaligned end on both sides.
pub(super) const MAX_RUN_UNITS: u32 = (CHUNK_QUANTA - 1) * UNITS_PER_QUANTUM + 2 * (UNITS_PER_QUANTUM - 1);

/// Whether freed blocks are overwritten.
pub(super) const POISON: bool = cfg!(any(test, debug_assertions, feature = "poison"));
/// What a reader of freed memory finds.
pub(super) const POISON_BYTE: u8 = 0xDD;

const _: () = assert!(small_class(MAX_RUN_UNITS) < SMALL_CLASSES && SMALL_CLASSES <= 128 && DENSE_CLASSES <= 128);
const _: () = assert!(dense_class((MAX_RESERVE / QUANTUM) as u32) < DENSE_CLASSES);

/// A request at its rounded size.
#[derive(Clone, Copy)]
pub(super) enum Request {
    Small { units: u32 },
    Dense { quanta: u32 },
}

/// Sizes up to `exact` have a class of their own, from there on a power of two has four.
const fn class(size: u32, exact: u32) -> usize {
    if size <= exact {
        return size as usize - 1;
    }
    let octave = size.ilog2();
    let quarter = (size >> (octave - 2)) & 3;
    (exact + (octave - exact.ilog2()) * 4 + quarter) as usize
}

/// The list of free small blocks or runs of `units`.
pub(super) const fn small_class(units: u32) -> usize {
    class(units, EXACT_UNITS)
}

/// The list of free dense blocks of `quanta`.
pub(super) const fn dense_class(quanta: u32) -> usize {
    class(quanta, EXACT_QUANTA)
}

/// The first class at or above `from` whose bit is set.
#[inline(always)]
pub(super) const fn first_class(map: u128, from: usize) -> Option<usize> {
    let set = map & (u128::MAX << from);
    if set == 0 { None } else { Some(set.trailing_zeros() as usize) }
}

/// The free blocks below the top.
pub(super) struct FreeLists {
    /// Bit `class`: that list of small blocks or runs is not empty.
    pub(super) small_map: u128,
    /// Head of the free list of each class of small blocks and runs.
    pub(super) small: [u32; SMALL_CLASSES],
    pub(super) dense_map: u128,
    /// Head of the free list of each class of dense blocks.
    pub(super) dense: [u32; DENSE_CLASSES],
    /// Small blocks are cut from `window..window_end`.
    pub(super) window: u32,
    pub(super) window_end: u32,
    mapping: Arc<Mapping>,
}

impl FreeLists {
    pub(super) fn new(mapping: Arc<Mapping>) -> FreeLists {
        FreeLists {
            small_map: 0,
            small: [0; SMALL_CLASSES],
            dense_map: 0,
            dense: [0; DENSE_CLASSES],
            window: START,
            window_end: START,
            mapping,
        }
    }

    /// Forgets all blocks but the window.
    pub(super) fn clear(&mut self) {
        self.small_map = 0;
        self.small = [0; SMALL_CLASSES];
        self.dense_map = 0;
        self.dense = [0; DENSE_CLASSES];
    }

    // ---- the words in a free block

    /// First word of a free block: the next block of its list, 0 at the end.
    #[inline(always)]
    pub(super) fn next(&self, offset: u32) -> u32 {
        debug_assert!(offset >= START);
        // SAFETY: a free block lies in the committed part and is touched by the writer alone: it was never published, or a
        // grace period has passed since it was retired. Blocks are 8-byte aligned.
        unsafe { self.mapping.at(offset).cast::<u32>().read() }
    }

    #[inline(always)]
    fn set_next(&mut self, offset: u32, next: u32) {
        debug_assert!(offset >= START);
        // SAFETY: as in `next`; the smallest block has 8 bytes.
        unsafe { self.mapping.at(offset).cast::<u32>().write(next) }
    }

    /// Second word of a free run or dense block: its size in units or quanta.
    #[inline(always)]
    pub(super) fn size(&self, offset: u32) -> u32 {
        debug_assert!(offset >= START);
        // SAFETY: as in `next`.
        unsafe { self.mapping.at(offset).cast::<u32>().add(1).read() }
    }

    #[inline(always)]
    fn set_size(&mut self, offset: u32, size: u32) {
        debug_assert!(offset >= START);
        // SAFETY: as in `next`.
        unsafe { self.mapping.at(offset).cast::<u32>().add(1).write(size) }
    }

    /// Overwrites free units, in builds that look for readers of freed memory.
    #[inline(always)]
    pub(super) fn poison(&mut self, offset: u32, units: u32) {
        if POISON {
            debug_assert!(offset >= START);
            // SAFETY: as in `next`; the units lie below the top.
            unsafe { self.mapping.at(offset).write_bytes(POISON_BYTE, units as usize * UNIT) }
        }
    }

    #[inline(always)]
    pub(super) fn push_small(&mut self, offset: u32, units: u32) {
        let class = small_class(units);
        self.set_next(offset, self.small[class]);
        if units > EXACT_UNITS {
            self.set_size(offset, units);
        }
        self.small[class] = offset;
        self.small_map |= 1 << class;
    }

    #[inline(always)]
    pub(super) fn pop_small(&mut self, class: usize) -> Option<u32> {
        let offset = self.small[class];
        if offset == 0 {
            return None;
        }
        let next = self.next(offset);
        self.small[class] = next;
        if next == 0 {
            self.small_map &= !(1 << class);
        }
        self.poison(offset, 1);
        Some(offset)
    }

    /// Units of the free block `offset` of small class `class`.
    pub(super) fn small_units(&self, class: usize, offset: u32) -> u32 {
        if class < EXACT_UNITS as usize { class as u32 + 1 } else { self.size(offset) }
    }

    pub(super) fn push_dense(&mut self, offset: u32, quanta: u32) {
        let class = dense_class(quanta);
        self.set_next(offset, self.dense[class]);
        self.set_size(offset, quanta);
        self.dense[class] = offset;
        self.dense_map |= 1 << class;
    }

    /// `quanta` from the front of a free dense block: of the best fit up to 8 KiB, of a close one above.
    fn pop_dense(&mut self, quanta: u32) -> Option<u32> {
        let class = dense_class(quanta);
        // Only the class's own blocks may be too small, and none is where the request is the class's smallest size,
        // as the powers of two are. The blocks above 8 KiB are few.
        let mut previous = 0;
        let mut offset = self.dense[class];
        while offset != 0 && self.size(offset) < quanta {
            previous = offset;
            offset = self.next(offset);
        }
        if offset != 0 {
            return Some(self.cut_dense(class, previous, offset, quanta));
        }
        let class = first_class(self.dense_map, class + 1)?;
        Some(self.cut_dense(class, 0, self.dense[class], quanta))
    }

    /// `quanta` from the front of the free dense block `offset` of `class`, which follows `previous` (0: it is the first).
    fn cut_dense(&mut self, class: usize, previous: u32, offset: u32, quanta: u32) -> u32 {
        let (next, have) = (self.next(offset), self.size(offset));
        if previous != 0 {
            self.set_next(previous, next);
        } else {
            self.dense[class] = next;
            if next == 0 {
                self.dense_map &= !(1 << class);
            }
        }
        self.poison(offset, 1);
        if have > quanta {
            self.push_dense(offset + quanta * UNITS_PER_QUANTUM, have - quanta);
        }
        offset
    }

    /// Puts a free run of any length on the lists. One that begins and ends at a quantum was dense and becomes dense; of
    /// another, whole quanta are given up to the dense blocks only when they make a chunk.
    pub(super) fn push_run(&mut self, start: u32, end: u32) {
        let core = start.next_multiple_of(UNITS_PER_QUANTUM);
        let core_end = end / UNITS_PER_QUANTUM * UNITS_PER_QUANTUM;
        let quanta = core_end.saturating_sub(core) / UNITS_PER_QUANTUM;
        if quanta < CHUNK_QUANTA && (start, end) != (core, core_end) {
            self.push_small(start, end - start);
            return;
        }
        // Backwards, so that the front is first in its list.
        if core_end < end {
            self.push_small(core_end, end - core_end);
        }
        if quanta > 0 {
            self.push_dense(core, quanta);
        }
        if start < core {
            self.push_small(start, core - start);
        }
    }

    // ---- serving a request

    /// Serves a request from the free blocks of its kind and the window.
    pub(super) fn reuse(&mut self, request: Request) -> Option<u32> {
        match request {
            Request::Dense { quanta } => self.pop_dense(quanta),
            Request::Small { units } => self.cut_small(units).or_else(|| self.cut_window(units)),
        }
    }

    /// Serves a small request from a chunk of a free dense block that has one to spare.
    pub(super) fn cut_chunk(&mut self, request: Request) -> Option<u32> {
        let Request::Small { units } = request else { return None };
        let offset = self.pop_dense(CHUNK_QUANTA)?;
        self.extend_window(offset, CHUNK_QUANTA);
        self.cut_window(units)
    }

    /// Serves a request from blocks of the other kind. It spoils their alignment, so it is the last resort.
    pub(super) fn intrude(&mut self, request: Request) -> Option<u32> {
        match request {
            Request::Small { units } => {
                let quanta = units.div_ceil(UNITS_PER_QUANTUM);
                let offset = self.pop_dense(quanta)?;
                self.extend_window(offset, quanta);
                self.cut_window(units)
            }
            Request::Dense { quanta } => {
                let wanted = quanta.checked_mul(UNITS_PER_QUANTUM).filter(|&units| units <= MAX_RUN_UNITS)?;
                for class in small_class(wanted)..SMALL_CLASSES {
                    let mut previous = 0;
                    let mut offset = self.small[class];
                    while offset != 0 {
                        let (next, end) = (self.next(offset), offset + self.small_units(class, offset));
                        let core = offset.next_multiple_of(UNITS_PER_QUANTUM);
                        if core + wanted <= end {
                            if previous != 0 {
                                self.set_next(previous, next);
                            } else {
                                self.pop_small(class);
                            }
                            self.poison(offset, 1);
                            for (start, end) in [(core + wanted, end), (offset, core)] {
                                if start < end {
                                    self.push_small(start, end - start);
                                }
                            }
                            return Some(core);
                        }
                        previous = offset;
                        offset = next;
                    }
                }
                None
            }
        }
    }

    /// The front of the smallest free small block or run that is large enough.
    fn cut_small(&mut self, units: u32) -> Option<u32> {
        let class = first_class(self.small_map, small_class(units))?;
        let have = self.small_units(class, self.small[class]);
        let offset = self.pop_small(class)?;
        if have > units {
            self.push_small(offset + units, have - units);
        }
        Some(offset)
    }

    pub(super) fn cut_window(&mut self, units: u32) -> Option<u32> {
        if self.window_end - self.window < units {
            return None;
        }
        let offset = self.window;
        self.window += units;
        Some(offset)
    }

    /// Adds free quanta to the window, or makes them the window when they are not behind it.
    pub(super) fn extend_window(&mut self, offset: u32, quanta: u32) {
        if offset != self.window_end {
            self.close_window();
            self.window = offset;
        }
        self.window_end = offset + quanta * UNITS_PER_QUANTUM;
    }

    /// Puts what is left of the window on the lists.
    pub(super) fn close_window(&mut self) {
        let (start, end) = (self.window, self.window_end);
        self.window = START;
        self.window_end = START;
        if start < end {
            self.push_run(start, end);
        }
    }

    /// Calls `visit` with offset and units of each block on a list.
    pub(super) fn each_free(&self, mut visit: impl FnMut(u32, u32)) {
        // A block of each list in turn: the next block of one list is a cache miss that waits for its predecessor, those of
        // different lists are under way together.
        let (mut heads, mut pending) = (self.small, self.small_map);
        while pending != 0 {
            let mut turn = pending;
            while let Some(class) = first_class(turn, 0) {
                turn &= turn - 1;
                let offset = heads[class];
                visit(offset, self.small_units(class, offset));
                heads[class] = self.next(offset);
                if heads[class] == 0 {
                    pending &= !(1 << class);
                }
            }
        }
        for class in 0..DENSE_CLASSES {
            let mut offset = self.dense[class];
            while offset != 0 {
                visit(offset, self.size(offset) * UNITS_PER_QUANTUM);
                offset = self.next(offset);
            }
        }
    }
}
