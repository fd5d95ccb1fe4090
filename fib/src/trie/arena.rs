//! Node memory: one range of reserved address space per [`Fib`](crate), cut into blocks that 32-bit offsets name.
//!
//! Readers hold a base pointer and offsets and nothing else, so the range never moves, and it stays mapped until the
//! last holder of its [`Mapping`] is gone. Blocks come from free lists that run through the freed blocks themselves, so
//! freeing needs no memory and cannot fail. What the lists cannot serve is cut off a larger free block, and
//! only then does the *top* move up; it moves down again when neighbouring free blocks are merged.
//!
//! ```text
//! base (2 MiB aligned)                        window  window_end     top          committed            reserved
//! |                                              |      |             |               |                   |
//! | null quantum | ####..##.#### | dense | ##### |......| dense       | never used    | PROT_NONE         |
//! 0            START  small blocks         small   free   (or free)   |<- PAD, always readable
//!
//! small block   1 to 64 units of 8 bytes, at any unit       free: a list for each number of units
//! small run     more units, between small blocks            free: four lists an octave; small blocks are cut from it
//! dense block   whole quanta of 256 bytes, at a quantum     free: a list for each size to 8 KiB, then four an octave
//!
//! a free small block            | next: u32 | poison...
//! a free run or dense block     | next: u32 | units or quanta: u32 | poison...
//! ```
//!
//! Small blocks are cut in address order from the *window*, which takes a *chunk* of 16 quanta when it is used up.
//! Chunks keep small blocks and dense ones apart: a small block inside a free dense one would spoil its alignment for
//! good. So what is merged between small blocks stays with them until it has a whole chunk.
//!
//! Invariants, asserted by [`Arena::check`]:
//!
//! - A1: every unit in `START..top` belongs to exactly one block, live or free, or to the window.
//! - A2: `top` and every dense block are multiples of a quantum; no block starts below `START`, so offset 0 means none.
//! - A3: `top <= cap`, and at least `PAD` bytes behind `top` are readable: a vector load may run past its block.
//! - A4: nothing was ever stored at `cap` or above, nor below `START`: both read as zero.
//! - A5: a list is non-empty exactly when its bit in the map of its kind is set, and holds blocks of its sizes only.
//! - A6: `live` is the sum of what was handed out and not freed, each block at its rounded size.
//!
//! Source: segregated fits with an exact list per small size and deferred coalescing, as surveyed in Wilson, Johnstone,
//! Neely and Boles, "Dynamic storage allocation", IWMM 1995; the octave lists are those of TLSF (Masmano et al., 2004).

use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{OutOfMemory, Resource};
use crate::failpoint;

/// Bytes of the unit that offsets count in.
pub(crate) const UNIT: usize = 8;
/// Bytes of a quantum: size step and alignment of dense blocks.
pub(crate) const QUANTUM: usize = 256;
/// The largest small block; a larger request is served as a dense one.
pub(crate) const SMALL_MAX: usize = 512;
/// Readable bytes behind every block.
pub(crate) const PAD: usize = 64;

const UNITS_PER_QUANTUM: u32 = (QUANTUM / UNIT) as u32;
/// Small sizes with a list of their own, in units: all that can be asked for.
const EXACT_UNITS: u32 = (SMALL_MAX / UNIT) as u32;
/// 64 exact lists, then four for each power of two up to the longest run.
const SMALL_CLASSES: usize = 80;
/// The first offset that can be handed out.
const START: u32 = UNITS_PER_QUANTUM;
/// Dense sizes with a list of their own, in quanta.
const EXACT_QUANTA: u32 = 32;
/// 32 exact lists, then four for each power of two up to the 2^27 quanta of 32 GiB.
const DENSE_CLASSES: usize = 124;

/// What the window takes when it is used up.
const CHUNK_QUANTA: u32 = 16;
/// The longest run that stays with the small blocks: a quantum short of a chunk, and an unaligned end on both sides.
const MAX_RUN_UNITS: u32 = (CHUNK_QUANTA - 1) * UNITS_PER_QUANTUM + 2 * (UNITS_PER_QUANTUM - 1);

/// What 32-bit offsets of 8 bytes can name.
const MAX_RESERVE: usize = 1 << 35;
/// Halving stops here when the system refuses address space.
const MIN_RESERVE: usize = 64 << 20;
/// Memory is committed in multiples of this; no page of a Linux system is larger, huge ones aside.
const COMMIT_STEP: usize = 64 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// Committed bytes from which huge pages are asked for: below, one would be mostly empty.
const HUGE_FROM: usize = 1 << 20;
/// Shorter free runs stay where huge pages are: giving one back splits a huge page under the lookups.
const HUGE_RELEASE_MIN: usize = 64 << 10;

/// Whether freed blocks are overwritten.
const POISON: bool = cfg!(any(test, debug_assertions, feature = "poison"));
/// What a reader of freed memory finds.
const POISON_BYTE: u8 = 0xDD;

// The link and the size of a free dense block fit in its first unit, a small block's link in the smallest block.
const _: () = assert!(UNIT == 8 && QUANTUM.is_multiple_of(UNIT) && SMALL_MAX.is_multiple_of(QUANTUM));
// `top` is an u32 and at most a quantum below the end of the mapping.
const _: () = assert!(PAD <= QUANTUM && MAX_RESERVE / UNIT - UNITS_PER_QUANTUM as usize <= u32::MAX as usize);
const _: () = assert!(small_class(MAX_RUN_UNITS) < SMALL_CLASSES && SMALL_CLASSES <= 128 && DENSE_CLASSES <= 128);
const _: () = assert!(dense_class((MAX_RESERVE / QUANTUM) as u32) < DENSE_CLASSES);

/// Calls into the operating system, all on whole pages of one mapping.
#[cfg(not(miri))]
mod system {
    use std::ffi::{c_int, c_void};
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

    use super::HUGE_PAGE;

    /// `MADV_COLLAPSE`, Linux 6.1; not among rustix' advice values.
    const MADV_COLLAPSE: c_int = 25;

    mod c {
        use std::ffi::{c_int, c_void};
        // SAFETY: the signature of madvise(2).
        unsafe extern "C" {
            pub(super) fn madvise(addr: *mut c_void, bytes: usize, advice: c_int) -> c_int;
        }
    }

    pub(super) fn page_bytes() -> usize {
        rustix::param::page_size()
    }

    /// Reserves `bytes` (a multiple of `COMMIT_STEP`) of inaccessible address space at a multiple of 2 MiB.
    pub(super) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        let padded = bytes.checked_add(HUGE_PAGE)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of ours.
        let start =
            unsafe { mmap_anonymous(null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) };
        let start = start.ok()?.cast::<u8>();
        let head = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        // SAFETY: `head <= HUGE_PAGE`, so `base` and `base + bytes` lie in the mapping; what is cut off before and behind
        // is ours, and nobody knows of it yet. A failure leaves address space mapped, which harms nothing.
        let base = unsafe {
            let base = start.add(head);
            if head > 0 {
                let _ = munmap(start.cast::<c_void>(), head);
            }
            if head < HUGE_PAGE {
                let _ = munmap(base.add(bytes).cast::<c_void>(), HUGE_PAGE - head);
            }
            base
        };
        NonNull::new(base)
    }

    /// # Safety
    /// The range came from [`reserve`], whole, and nobody uses it any more.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. It cannot fail for a range that is mapped.
        let _ = unsafe { munmap(base.as_ptr().cast::<c_void>(), bytes) };
    }

    /// Makes a range readable and writable; zero where it was not so before.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`].
    pub(super) unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: access is only widened, in a mapping of ours.
        unsafe { mprotect(start.cast::<c_void>(), bytes, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
    }

    /// Gives the pages of a range back and makes it inaccessible.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`], and nobody will use it before it is committed again.
    pub(super) unsafe fn decommit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            madvise(start.cast::<c_void>(), bytes, Advice::LinuxDontNeed).is_ok()
                && mprotect(start.cast::<c_void>(), bytes, MprotectFlags::empty()).is_ok()
        }
    }

    /// Gives the pages of a range back; it reads as zero afterwards.
    ///
    /// # Safety
    /// The range is whole pages in a mapping of [`reserve`], and nobody needs its contents.
    pub(super) unsafe fn release(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { madvise(start.cast::<c_void>(), bytes, Advice::LinuxDontNeed) }.is_ok()
    }

    /// Asks for huge pages on first use of a range; whether the advice was taken.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`].
    pub(super) unsafe fn advise_huge(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: advice changes no contents.
        unsafe { madvise(start.cast::<c_void>(), bytes, Advice::LinuxHugepage) }.is_ok()
    }

    /// Asks for huge pages under memory that is in use already. Where that is not to be had nothing changes.
    ///
    /// # Safety
    /// The range is whole huge pages in a mapping of [`reserve`].
    pub(super) unsafe fn collapse(start: *mut u8, bytes: usize) {
        // SAFETY: moves contents to another page under the same address; an unknown advice is refused.
        unsafe { c::madvise(start.cast::<c_void>(), bytes, MADV_COLLAPSE) };
    }
}

/// Miri has neither protections nor advice: the mapping is zeroed memory of the heap.
#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    const MOST: usize = 32 << 20;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, 4096).ok()
    }

    pub(super) fn page_bytes() -> usize {
        4096
    }

    pub(super) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MOST {
            return None;
        }
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
    }

    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }

    pub(super) unsafe fn commit(_: *mut u8, _: usize) -> bool {
        true
    }

    pub(super) unsafe fn decommit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { release(start, bytes) }
    }

    pub(super) unsafe fn release(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { start.write_bytes(0, bytes) };
        true
    }

    pub(super) unsafe fn advise_huge(_: *mut u8, _: usize) -> bool {
        false
    }

    pub(super) unsafe fn collapse(_: *mut u8, _: usize) {}
}

/// The address range of one arena. Shared by the writer's [`Arena`] and by all readers; unmapped with its last holder.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    reserved: usize,
}

// SAFETY: a plain range of memory that no thread owns. Who may touch which of its bytes is settled by the arena (free
// blocks: the writer), by publication and by the grace period before a block is freed.
unsafe impl Send for Mapping {}
// SAFETY: as above; the type itself has no interior state.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `bytes` of address space, or half of it, and so on down to 64 MiB.
    fn reserve(bytes: usize) -> Option<Mapping> {
        let mut reserved = bytes;
        loop {
            if let Some(base) = system::reserve(reserved) {
                return Some(Mapping { base, reserved });
            }
            let half = reserved / 2 / COMMIT_STEP * COMMIT_STEP;
            if half < if cfg!(miri) { COMMIT_STEP } else { MIN_RESERVE } {
                return None;
            }
            reserved = half;
        }
    }

    /// The address of offset 0.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of address space; what is committed starts at the base and is usually far less.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    /// The address of the block at `offset`.
    #[inline(always)]
    pub(crate) fn at(&self, offset: u32) -> *mut u8 {
        debug_assert!(offset as usize * UNIT < self.reserved);
        self.base().wrapping_add(offset as usize * UNIT)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this was the last holder, and blocks are reached through a holder only.
        unsafe { system::unmap(self.base, self.reserved) };
    }
}

/// How an arena is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaOptions {
    /// Address space to ask for, at most 32 GiB. Halved down to 64 MiB while the system refuses.
    pub(crate) reserve_bytes: usize,
    /// What the footprint may reach; what was reserved limits it too.
    pub(crate) limit_bytes: usize,
    /// Ask for 2 MiB pages once the arena has grown past 1 MiB.
    pub(crate) huge_pages: bool,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        ArenaOptions { reserve_bytes: 8 << 30, limit_bytes: usize::MAX, huge_pages: true }
    }
}

/// A request at its rounded size.
#[derive(Clone, Copy)]
enum Request {
    Small { units: u32 },
    Dense { quanta: u32 },
}

/// Why the top could not be moved.
#[derive(Clone, Copy)]
enum Refused {
    Limit,
    System,
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
const fn small_class(units: u32) -> usize {
    class(units, EXACT_UNITS)
}

/// The list of free dense blocks of `quanta`.
const fn dense_class(quanta: u32) -> usize {
    class(quanta, EXACT_QUANTA)
}

/// The first class at or above `from` whose bit is set.
#[inline(always)]
const fn first_class(map: u128, from: usize) -> Option<usize> {
    let set = map & (u128::MAX << from);
    if set == 0 { None } else { Some(set.trailing_zeros() as usize) }
}

/// The writer's allocator. Dropping it drops its share of the mapping; live blocks are not its business.
pub(crate) struct Arena {
    /// Bit `class`: that list of small blocks or runs is not empty.
    small_map: u128,
    /// Head of the free list of each class of small blocks and runs.
    small: [u32; SMALL_CLASSES],
    /// Units in live blocks.
    live: u32,
    /// Small blocks are cut from `window..window_end`.
    window: u32,
    window_end: u32,
    /// Everything from here on was never used or has been given back by `merge`.
    top: u32,
    /// `top` cannot pass this.
    cap: u32,
    /// Units that were freed since the last merge, saturating.
    unmerged: u32,
    dense_map: u128,
    /// Head of the free list of each class of dense blocks.
    dense: [u32; DENSE_CLASSES],
    mapping: Arc<Mapping>,
    /// Bytes from the base on that can be read and written.
    committed: usize,
    /// Bytes from the base on for which huge pages have been asked for.
    huge_asked: usize,
    huge_taken: usize,
    huge_pages: bool,
    /// The limit that an error names.
    limit_bytes: usize,
}

impl Arena {
    /// Reserves address space and commits the first 64 KiB of it.
    pub(crate) fn new(options: ArenaOptions) -> Result<Arena, OutOfMemory> {
        let overhead = START as usize * UNIT + QUANTUM;
        let wanted = options.reserve_bytes.min(options.limit_bytes.saturating_add(overhead)).min(MAX_RESERVE);
        let wanted = wanted.max(1).next_multiple_of(COMMIT_STEP);
        let refused = OutOfMemory { resource: Resource::Arena, bytes: wanted, limit: 0 };
        let mapping = Mapping::reserve(wanted).ok_or(refused)?;
        // A3: a whole quantum stays free behind `cap`, so the padding is inside the mapping.
        let room = mapping.reserved_bytes() - overhead;
        let usable = room.min(options.limit_bytes) / QUANTUM * QUANTUM;
        let mut arena = Arena {
            small_map: 0,
            small: [0; SMALL_CLASSES],
            live: 0,
            window: START,
            window_end: START,
            top: START,
            cap: START + (usable / UNIT) as u32,
            unmerged: 0,
            dense_map: 0,
            dense: [0; DENSE_CLASSES],
            mapping: Arc::new(mapping),
            committed: 0,
            huge_asked: 0,
            huge_taken: 0,
            huge_pages: options.huge_pages,
            limit_bytes: room.min(options.limit_bytes),
        };
        if !arena.commit(arena.top) {
            return Err(refused);
        }
        Ok(arena)
    }

    /// The address range, to be shared with readers.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What [`Arena::alloc`] takes for `bytes`: whole units, and whole quanta above [`SMALL_MAX`].
    pub(crate) const fn block_bytes(bytes: usize) -> usize {
        if bytes > SMALL_MAX {
            Self::dense_block_bytes(bytes)
        } else if bytes == 0 {
            UNIT
        } else {
            bytes.next_multiple_of(UNIT)
        }
    }

    /// What [`Arena::alloc_dense`] takes for `bytes`: whole quanta.
    pub(crate) const fn dense_block_bytes(bytes: usize) -> usize {
        // Saturating: an absurd size stays absurd and is refused, it must not wrap to a small one.
        match bytes.checked_next_multiple_of(QUANTUM) {
            Some(0) => QUANTUM,
            Some(rounded) => rounded,
            None => usize::MAX / QUANTUM * QUANTUM,
        }
    }

    /// A block of at least `bytes`, in units of 8 bytes from the base, 8-byte aligned. Its contents are undefined.
    /// Constant time while a list has the size; else a larger free block is cut, or the top moves.
    #[inline]
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<u32, OutOfMemory> {
        if bytes > SMALL_MAX {
            return self.alloc_dense(bytes);
        }
        if failpoint::fails() {
            return Err(OutOfMemory { resource: Resource::Arena, bytes, limit: 0 });
        }
        let units = (Self::block_bytes(bytes) / UNIT) as u32;
        let offset = match self.pop_small(units as usize - 1) {
            Some(offset) => offset,
            None => self.take(Request::Small { units }, bytes)?,
        };
        self.live += units;
        Ok(offset)
    }

    /// A block of at least `bytes` that starts at a multiple of 256 bytes, in units of 8 bytes from the base. Its contents
    /// are undefined.
    pub(crate) fn alloc_dense(&mut self, bytes: usize) -> Result<u32, OutOfMemory> {
        if failpoint::fails() {
            return Err(OutOfMemory { resource: Resource::Arena, bytes, limit: 0 });
        }
        let rounded = Self::dense_block_bytes(bytes);
        if rounded > (self.cap - START) as usize * UNIT {
            return Err(OutOfMemory { resource: Resource::Arena, bytes, limit: self.limit_bytes });
        }
        let quanta = (rounded / QUANTUM) as u32;
        let offset = self.take(Request::Dense { quanta }, bytes)?;
        self.live += quanta * UNITS_PER_QUANTUM;
        Ok(offset)
    }

    /// Takes back a block of [`Arena::alloc`] that no reader can reach any more; `bytes` as they were asked for.
    #[inline]
    pub(crate) fn free(&mut self, offset: u32, bytes: usize) {
        if bytes > SMALL_MAX {
            return self.free_dense(offset, bytes);
        }
        let units = (Self::block_bytes(bytes) / UNIT) as u32;
        debug_assert!(offset >= START && offset + units <= self.top && units <= self.live);
        self.poison(offset, units);
        self.push_small(offset, units);
        self.live -= units;
        self.unmerged = self.unmerged.saturating_add(units);
    }

    /// Takes back a block of [`Arena::alloc_dense`] that no reader can reach any more; `bytes` as they were asked for.
    pub(crate) fn free_dense(&mut self, offset: u32, bytes: usize) {
        let quanta = (Self::dense_block_bytes(bytes) / QUANTUM) as u32;
        let units = quanta * UNITS_PER_QUANTUM;
        debug_assert!(offset >= START && offset.is_multiple_of(UNITS_PER_QUANTUM));
        debug_assert!(offset + units <= self.top && units <= self.live);
        self.poison(offset, units);
        self.push_dense(offset, quanta);
        self.live -= units;
        self.unmerged = self.unmerged.saturating_add(units);
    }

    /// Bytes in blocks that were handed out, each at its rounded size.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live as usize * UNIT
    }

    /// Bytes below the top that can be handed out again.
    pub(crate) fn free_bytes(&self) -> usize {
        self.footprint_bytes() - self.live_bytes()
    }

    /// Live and free bytes: how far the top has moved.
    pub(crate) fn footprint_bytes(&self) -> usize {
        (self.top - START) as usize * UNIT
    }

    /// Bytes of the mapping that can be read and written. Pages among them that were never touched take no memory.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.committed
    }

    /// Committed bytes for which the system took the advice to use huge pages; it may still not have any.
    pub(crate) fn huge_page_bytes(&self) -> usize {
        self.huge_taken
    }

    // ---- free lists. Every store to a free block is one of `set_next`, `set_size` and `poison`.

    /// First word of a free block: the next block of its list, 0 at the end.
    #[inline(always)]
    fn next(&self, offset: u32) -> u32 {
        debug_assert!(offset >= START && offset < self.top);
        // SAFETY: a free block lies in the committed part and is touched by the writer alone: it was never published, or a
        // grace period has passed since it was retired. Blocks are 8-byte aligned.
        unsafe { self.mapping.at(offset).cast::<u32>().read() }
    }

    #[inline(always)]
    fn set_next(&mut self, offset: u32, next: u32) {
        debug_assert!(offset >= START && offset < self.top);
        // SAFETY: as in `next`; the smallest block has 8 bytes.
        unsafe { self.mapping.at(offset).cast::<u32>().write(next) }
    }

    /// Second word of a free run or dense block: its size in units or quanta.
    #[inline(always)]
    fn size(&self, offset: u32) -> u32 {
        debug_assert!(offset >= START && offset < self.top);
        // SAFETY: as in `next`.
        unsafe { self.mapping.at(offset).cast::<u32>().add(1).read() }
    }

    #[inline(always)]
    fn set_size(&mut self, offset: u32, size: u32) {
        debug_assert!(offset >= START && offset < self.top);
        // SAFETY: as in `next`.
        unsafe { self.mapping.at(offset).cast::<u32>().add(1).write(size) }
    }

    /// Overwrites free units, in builds that look for readers of freed memory.
    #[inline(always)]
    fn poison(&mut self, offset: u32, units: u32) {
        if POISON {
            debug_assert!(offset >= START && offset + units <= self.top);
            // SAFETY: as in `next`; the units lie below the top.
            unsafe { self.mapping.at(offset).write_bytes(POISON_BYTE, units as usize * UNIT) }
        }
    }

    #[inline(always)]
    fn push_small(&mut self, offset: u32, units: u32) {
        let class = small_class(units);
        self.set_next(offset, self.small[class]);
        if units > EXACT_UNITS {
            self.set_size(offset, units);
        }
        self.small[class] = offset;
        self.small_map |= 1 << class;
    }

    #[inline(always)]
    fn pop_small(&mut self, class: usize) -> Option<u32> {
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
    fn small_units(&self, class: usize, offset: u32) -> u32 {
        if class < EXACT_UNITS as usize { class as u32 + 1 } else { self.size(offset) }
    }

    fn push_dense(&mut self, offset: u32, quanta: u32) {
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
    fn push_run(&mut self, start: u32, end: u32) {
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

    // ---- when the list of the exact size is empty

    #[cold]
    #[inline(never)]
    fn take(&mut self, request: Request, bytes: usize) -> Result<u32, OutOfMemory> {
        if let Some(offset) = self.reuse(request) {
            return Ok(offset);
        }
        if self.should_merge()
            && self.merge()
            && let Some(offset) = self.reuse(request)
        {
            return Ok(offset);
        }
        // Before the top moves, but after a merge: taking a chunk from a dense block of 16 KiB sooner was measured to cost
        // the next dense block of that size more than it saves.
        if let Some(offset) = self.cut_chunk(request) {
            return Ok(offset);
        }
        let refused = match self.bump(request) {
            Ok(offset) => return Ok(offset),
            Err(refused) => refused,
        };
        // Before giving up, every free byte gets its chance, at the cost of a walk for each refusal.
        self.merge();
        if let Some(offset) = self.reuse(request).or_else(|| self.intrude(request)) {
            return Ok(offset);
        }
        self.bump(request).map_err(|_| OutOfMemory {
            resource: Resource::Arena,
            bytes,
            limit: match refused {
                Refused::Limit => self.limit_bytes,
                Refused::System => 0,
            },
        })
    }

    /// Serves a request from the free blocks of its kind and the window.
    fn reuse(&mut self, request: Request) -> Option<u32> {
        match request {
            Request::Dense { quanta } => self.pop_dense(quanta),
            Request::Small { units } => self.cut_small(units).or_else(|| self.cut_window(units)),
        }
    }

    /// Serves a small request from a chunk of a free dense block that has one to spare.
    fn cut_chunk(&mut self, request: Request) -> Option<u32> {
        let Request::Small { units } = request else { return None };
        let offset = self.pop_dense(CHUNK_QUANTA)?;
        self.extend_window(offset, CHUNK_QUANTA);
        self.cut_window(units)
    }

    /// Serves a request by moving the top.
    fn bump(&mut self, request: Request) -> Result<u32, Refused> {
        match request {
            Request::Dense { quanta } => self.grow(quanta),
            Request::Small { units } => {
                let have = if self.window_end == self.top { self.window_end - self.window } else { 0 };
                let needed = (units - have).div_ceil(UNITS_PER_QUANTUM);
                let room = (self.cap - self.top) / UNITS_PER_QUANTUM;
                let quanta = CHUNK_QUANTA.min(room).max(needed);
                let offset = self.grow(quanta)?;
                self.extend_window(offset, quanta);
                self.cut_window(units).ok_or(Refused::Limit)
            }
        }
    }

    /// Serves a request from blocks of the other kind. It spoils their alignment, so it is the last resort.
    fn intrude(&mut self, request: Request) -> Option<u32> {
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

    fn cut_window(&mut self, units: u32) -> Option<u32> {
        if self.window_end - self.window < units {
            return None;
        }
        let offset = self.window;
        self.window += units;
        Some(offset)
    }

    /// Adds free quanta to the window, or makes them the window when they are not behind it.
    fn extend_window(&mut self, offset: u32, quanta: u32) {
        if offset != self.window_end {
            self.close_window();
            self.window = offset;
        }
        self.window_end = offset + quanta * UNITS_PER_QUANTUM;
    }

    /// Puts what is left of the window on the lists.
    fn close_window(&mut self) {
        let (start, end) = (self.window, self.window_end);
        self.window = START;
        self.window_end = START;
        if start < end {
            self.push_run(start, end);
        }
    }

    /// Moves the top up by `quanta`; where it was.
    fn grow(&mut self, quanta: u32) -> Result<u32, Refused> {
        let offset = self.top;
        if quanta > (self.cap - offset) / UNITS_PER_QUANTUM {
            return Err(Refused::Limit);
        }
        let top = offset + quanta * UNITS_PER_QUANTUM;
        if !self.commit(top) {
            return Err(Refused::System);
        }
        self.top = top;
        Ok(offset)
    }

    /// Makes everything up to `top` and the padding behind it accessible.
    fn commit(&mut self, top: u32) -> bool {
        let needed = top as usize * UNIT + PAD;
        if needed <= self.committed {
            return true;
        }
        let ahead = (self.committed / 4).min(HUGE_PAGE);
        let generous = self.commit_target(needed.max(self.committed + ahead));
        let target = if self.commit_to(generous) {
            generous
        } else if self.commit_to(needed.next_multiple_of(COMMIT_STEP)) {
            needed.next_multiple_of(COMMIT_STEP)
        } else {
            return false;
        };
        self.committed = target;
        self.ask_for_huge_pages();
        true
    }

    fn commit_to(&self, target: usize) -> bool {
        // SAFETY: `committed < target`, and `target` is at most the size of the mapping.
        unsafe { system::commit(self.mapping.base().add(self.committed), target - self.committed) }
    }

    /// How much to commit when `needed` bytes are: whole steps, or whole huge pages where those are wanted.
    fn commit_target(&self, needed: usize) -> usize {
        let step = if self.huge_pages && needed > HUGE_FROM { HUGE_PAGE } else { COMMIT_STEP };
        needed.next_multiple_of(step).min(self.mapping.reserved_bytes())
    }

    fn ask_for_huge_pages(&mut self) {
        let whole = self.committed / HUGE_PAGE * HUGE_PAGE;
        if !self.huge_pages || whole <= self.huge_asked {
            return;
        }
        let (asked, bytes) = (self.huge_asked, whole - self.huge_asked);
        self.huge_asked = whole;
        // SAFETY: the range ends at or below `committed`.
        let start = unsafe { self.mapping.base().add(asked) };
        // SAFETY: as above, and both ends are multiples of a huge page.
        unsafe {
            if system::advise_huge(start, bytes) {
                self.huge_taken += bytes;
            }
            // The first huge page is half full of small pages by now; later ones are advised before their first use.
            if asked == 0 {
                system::collapse(start, HUGE_PAGE);
            }
        }
    }

    // ---- merging

    /// Whether free blocks should be merged before the top moves: a sixteenth of the footprint is free, and as much as
    /// a quarter of it was freed since the last time, which pays for the walk.
    // Tried: once for each sixteenth that the top moves. Each time it moves a bit further; after 8 million replacements
    // of 2,000 blocks the footprint was 1.5 times that after the load and still growing, now it stays below 1.2.
    fn should_merge(&self) -> bool {
        self.unmerged >= (self.top - START) / 4 && self.free_bytes() >= self.footprint_bytes() / 16
    }

    /// Joins neighbouring free blocks, rebuilds the lists in address order and moves the top down to the last live block.
    /// Needs a bit per unit below the top; without that memory nothing happens and the answer is false.
    fn merge(&mut self) -> bool {
        self.unmerged = 0;
        let mut free = UnitSet::default();
        if !free.try_reserve(self.top) {
            return false;
        }
        self.close_window();
        self.each_free(|offset, units| free.insert_run(offset, units));
        self.small = [0; SMALL_CLASSES];
        self.small_map = 0;
        self.dense = [0; DENSE_CLASSES];
        self.dense_map = 0;
        // From the top down, so that each list begins with its lowest block.
        let mut end = self.top;
        while let Some((start, run_end)) = free.last_run_before(end) {
            end = start;
            self.poison(start, run_end - start);
            if run_end == self.top {
                // What is left of the last quantum is the window, so that it grows with the top.
                self.top = start.next_multiple_of(UNITS_PER_QUANTUM);
                self.window = start;
                self.window_end = self.top;
            } else {
                self.push_run(start, run_end);
            }
        }
        true
    }

    /// Calls `visit` with offset and units of each block on a list.
    fn each_free(&self, mut visit: impl FnMut(u32, u32)) {
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

    /// Merges, gives whole free pages back to the system and makes what lies behind the top inaccessible; the bytes that
    /// were given back. Pages that an earlier call gave back and that were not used since count again.
    pub(crate) fn shrink(&mut self) -> usize {
        self.merge();
        let page = system::page_bytes();
        let used = self.top as usize * UNIT + PAD;
        let mut returned = 0;

        let target = self.commit_target(used);
        if target < self.committed {
            let bytes = self.committed - target;
            // SAFETY: the range lies behind the top and its padding, so no block is in it (A1, A3).
            if unsafe { system::decommit(self.mapping.base().add(target), bytes) } {
                returned += bytes;
                self.committed = target;
                self.huge_asked = self.huge_asked.min(target / HUGE_PAGE * HUGE_PAGE);
                self.huge_taken = self.huge_taken.min(self.huge_asked);
            }
        }
        returned += self.release(used.next_multiple_of(page), self.committed);

        let huge_asked = self.huge_asked;
        let mut runs = 0;
        self.each_free(|offset, units| {
            // The first unit holds the list's link and the size.
            let start = (offset as usize * UNIT + UNIT).next_multiple_of(page);
            let end = (offset + units) as usize * UNIT / page * page;
            let least = if start < huge_asked { HUGE_RELEASE_MIN } else { page };
            if end >= start + least {
                runs += self.release(start, end);
            }
        });
        returned + runs
    }

    /// Gives the pages from byte `start` to byte `end` of the mapping back; how many bytes that were.
    fn release(&self, start: usize, end: usize) -> usize {
        if start >= end {
            return 0;
        }
        // SAFETY: called by `shrink` for whole pages that no block, no link and no size lies in.
        if unsafe { system::release(self.mapping.base().add(start), end - start) } { end - start } else { 0 }
    }

    /// Walks all lists and asserts A1 to A6 as far as the arena can see them: it does not know the live blocks.
    pub(crate) fn check(&self) -> Result<(), String> {
        let fail = |what: String| Err(format!("arena: {what}"));
        if !self.top.is_multiple_of(UNITS_PER_QUANTUM) || self.top < START {
            return fail(format!("A2: top {} is not a quantum", self.top));
        }
        if self.top > self.cap || self.top as usize * UNIT + PAD > self.committed {
            return fail(format!("A3: top {}, cap {}, committed {} bytes", self.top, self.cap, self.committed));
        }
        if self.committed > self.mapping.reserved_bytes() || self.huge_taken > self.committed {
            return fail(format!("committed {}, huge {}", self.committed, self.huge_taken));
        }
        for (start, end) in [(0, START), (self.cap, self.cap + (PAD / UNIT) as u32)] {
            for offset in start..end.min((self.committed / UNIT) as u32) {
                // SAFETY: committed, and never written (A4).
                let word = unsafe { self.mapping.at(offset).cast::<u64>().read() };
                if word != 0 {
                    return fail(format!("A4: {word:#x} is stored at reserved offset {offset}"));
                }
            }
        }
        if self.window > self.window_end || self.window_end > self.top || self.window < START {
            return fail(format!("A1: window {}..{}, top {}", self.window, self.window_end, self.top));
        }

        let mut free = UnitSet::default();
        if !free.try_reserve(self.top) {
            return fail("no memory for the check".to_string());
        }
        let mut free_units = 0;
        let mut add = |offset: u32, units: u32| {
            let bounds = START..=self.top;
            let end = offset.saturating_add(units);
            if !bounds.contains(&offset) || !bounds.contains(&end) {
                return fail(format!("A1: free block {offset} of {units} units leaves {START}..{}", self.top));
            }
            if free.intersects(offset, units) {
                return fail(format!("A1: free block {offset} of {units} units overlaps another"));
            }
            free.insert_run(offset, units);
            free_units += units;
            Ok(())
        };
        add(self.window, self.window_end - self.window)?;
        for class in 0..SMALL_CLASSES {
            let mut offset = self.small[class];
            if (offset != 0) != (self.small_map >> class & 1 == 1) {
                return fail(format!("A5: small list {class} starts with {offset}"));
            }
            while offset != 0 {
                add(offset, 1)?;
                let units = self.small_units(class, offset);
                if units == 0 || units > MAX_RUN_UNITS || small_class(units) != class {
                    return fail(format!("A5: block {offset} of {units} units is in small list {class}"));
                }
                add(offset + 1, units - 1)?;
                self.check_poison(offset, units)?;
                offset = self.next(offset);
            }
        }
        for class in 0..DENSE_CLASSES {
            let mut offset = self.dense[class];
            if (offset != 0) != (self.dense_map >> class & 1 == 1) {
                return fail(format!("A5: dense list {class} starts with {offset}"));
            }
            while offset != 0 {
                if !offset.is_multiple_of(UNITS_PER_QUANTUM) {
                    return fail(format!("A2: dense block {offset} is not at a quantum"));
                }
                add(offset, 1)?;
                let quanta = self.size(offset);
                if quanta == 0 || quanta > self.top / UNITS_PER_QUANTUM || dense_class(quanta) != class {
                    return fail(format!("A5: block {offset} of {quanta} quanta is in dense list {class}"));
                }
                add(offset + 1, quanta * UNITS_PER_QUANTUM - 1)?;
                self.check_poison(offset, quanta * UNITS_PER_QUANTUM)?;
                offset = self.next(offset);
            }
        }
        if self.live + free_units != self.top - START {
            return fail(format!("A6: {} live and {free_units} free units below top {}", self.live, self.top));
        }
        Ok(())
    }

    /// Whether a free block still holds poison, or zeros where its pages were given back, behind its first unit.
    fn check_poison(&self, offset: u32, units: u32) -> Result<(), String> {
        if !POISON {
            return Ok(());
        }
        // SAFETY: a free block below the top (asserted by the caller), which only the writer touches; 8-byte aligned.
        let words = unsafe { std::slice::from_raw_parts(self.mapping.at(offset).cast::<u64>(), units as usize) };
        match words[1..].iter().find(|&&word| word != u64::from_ne_bytes([POISON_BYTE; 8]) && word != 0) {
            Some(word) => Err(format!("arena: free block {offset} of {units} units was written to: {word:#x}")),
            None => Ok(()),
        }
    }
}

/// A set of units, a bit each, for joining free blocks in address order without sorting them.
#[derive(Default)]
struct UnitSet {
    words: Vec<u64>,
}

impl UnitSet {
    /// Makes room for units below `end`; false when there is no memory.
    fn try_reserve(&mut self, end: u32) -> bool {
        let words = (end as usize).div_ceil(64);
        if self.words.try_reserve_exact(words).is_err() {
            return false;
        }
        self.words.resize(words, 0);
        true
    }

    /// The words that a run touches, each with the run's bits in it.
    fn masks(start: u32, units: u32) -> impl Iterator<Item = (usize, u64)> {
        let (start, end) = (start as usize, start as usize + units as usize);
        (start / 64..end.div_ceil(64)).map(move |word| {
            let from = start.max(word * 64) - word * 64;
            let to = end.min(word * 64 + 64) - word * 64;
            (word, if from < to { u64::MAX << from & u64::MAX >> (64 - to) } else { 0 })
        })
    }

    fn insert_run(&mut self, start: u32, units: u32) {
        for (word, mask) in Self::masks(start, units) {
            self.words[word] |= mask;
        }
    }

    fn intersects(&self, start: u32, units: u32) -> bool {
        Self::masks(start, units).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// The last run of consecutive members below `end`, as start and end.
    fn last_run_before(&self, end: u32) -> Option<(u32, u32)> {
        let run_end = self.last_before(end, 0)? + 1;
        let start = self.last_before(run_end, u64::MAX).map_or(0, |gap| gap + 1);
        Some((start, run_end))
    }

    /// The last unit below `end` whose bit differs from those of `skip` (all zeros or all ones).
    fn last_before(&self, end: u32, skip: u64) -> Option<u32> {
        if end == 0 {
            return None;
        }
        let mut word = (end as usize - 1) / 64;
        let mut bits = (self.words[word] ^ skip) & (u64::MAX >> (63 - (end - 1) % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.words[word] ^ skip;
        }
        Some((word * 64) as u32 + bits.ilog2())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    fn small_arena(limit_bytes: usize) -> Arena {
        Arena::new(ArenaOptions { reserve_bytes: 8 << 20, limit_bytes, huge_pages: false }).unwrap()
    }

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound as u64) as usize
        }
    }

    /// A live block as a user of the arena knows it, filled with its tag.
    #[derive(Clone, Copy, Debug)]
    struct Block {
        offset: u32,
        bytes: usize,
        dense: bool,
        tag: u8,
    }

    impl Block {
        fn alloc(arena: &mut Arena, bytes: usize, dense: bool, tag: u8) -> Result<Block, OutOfMemory> {
            let offset = if dense { arena.alloc_dense(bytes)? } else { arena.alloc(bytes)? };
            let block = Block { offset, bytes, dense, tag };
            // SAFETY: a block that was just handed out to us.
            unsafe { arena.mapping().at(offset).write_bytes(tag, bytes) };
            Ok(block)
        }

        fn taken(&self) -> usize {
            if self.dense { Arena::dense_block_bytes(self.bytes) } else { Arena::block_bytes(self.bytes) }
        }

        fn is_intact(&self, mapping: &Mapping) -> bool {
            // SAFETY: a live block of ours, initialised in `alloc`.
            let contents = unsafe { std::slice::from_raw_parts(mapping.at(self.offset), self.bytes) };
            contents.iter().step_by(if cfg!(miri) { 7 } else { 1 }).all(|&byte| byte == self.tag)
        }

        fn free(self, arena: &mut Arena) {
            assert!(self.is_intact(arena.mapping()), "{self:?} was overwritten");
            if self.dense {
                arena.free_dense(self.offset, self.bytes);
            } else {
                arena.free(self.offset, self.bytes);
            }
        }
    }

    #[test]
    fn blocks_take_what_they_say() {
        for (bytes, taken) in
            [(0, 8), (1, 8), (8, 8), (9, 16), (144, 144), (505, 512), (512, 512), (513, 768), (1024, 1024)]
        {
            assert_eq!(Arena::block_bytes(bytes), taken);
            let mut arena = small_arena(usize::MAX);
            arena.alloc(bytes).unwrap();
            assert_eq!(arena.live_bytes(), taken);
        }
        for (bytes, taken) in [(0, 256), (1, 256), (256, 256), (257, 512), (4 << 20, 4 << 20)] {
            assert_eq!(Arena::dense_block_bytes(bytes), taken);
            let mut arena = small_arena(usize::MAX);
            let offset = arena.alloc_dense(bytes).unwrap();
            assert_eq!((arena.live_bytes(), offset as usize * UNIT % QUANTUM), (taken, 0));
        }
        for bytes in [usize::MAX, usize::MAX - 7, usize::MAX / 2, 1 << 35] {
            assert!(Arena::block_bytes(bytes) >= bytes / QUANTUM * QUANTUM);
            assert_eq!(small_arena(usize::MAX).alloc(bytes).unwrap_err().bytes, bytes);
            assert_eq!(small_arena(usize::MAX).alloc_dense(bytes).unwrap_err().bytes, bytes);
        }
    }

    #[test]
    fn dense_classes_are_ordered_and_hold_powers_of_two_at_their_start() {
        let mut last = 0;
        for quanta in 1..if cfg!(miri) { 2_000 } else { 100_000 } {
            let class = dense_class(quanta);
            assert!(class == last || class == last + 1);
            if quanta.is_power_of_two() || quanta <= EXACT_QUANTA {
                assert!(quanta == 1 || class == last + 1, "{quanta}");
            }
            last = class;
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Alloc { bytes: usize, dense: bool },
        Free { pick: usize },
        Merge,
        Shrink,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0usize..=160).prop_map(|bytes| Op::Alloc { bytes, dense: false }),
            1 => (0usize..=1200).prop_map(|bytes| Op::Alloc { bytes, dense: false }),
            1 => (0usize..=1200).prop_map(|bytes| Op::Alloc { bytes, dense: true }),
            1 => (0usize..=if cfg!(miri) { 3000 } else { 40_000 }).prop_map(|bytes| Op::Alloc { bytes, dense: true }),
            8 => any::<usize>().prop_map(|pick| Op::Free { pick }),
            1 => Just(Op::Merge),
            1 => Just(Op::Shrink),
        ]
    }

    /// The free runs up to the limit, in units, by what is live.
    fn gaps(live: &BTreeMap<u32, Block>, cap: u32) -> Vec<(u32, u32)> {
        let mut gaps = Vec::new();
        let mut end = START;
        for block in live.values() {
            gaps.push((end, block.offset));
            end = block.offset + (block.taken() / UNIT) as u32;
        }
        gaps.push((end, cap));
        gaps
    }

    fn aligned_quanta(&(start, end): &(u32, u32)) -> u32 {
        (end / UNITS_PER_QUANTUM).saturating_sub(start.div_ceil(UNITS_PER_QUANTUM))
    }

    fn run_model(ops: &[Op], limit_bytes: usize) -> Result<(), TestCaseError> {
        let mut arena = small_arena(limit_bytes);
        let mut live = BTreeMap::<u32, Block>::new();
        for (step, op) in ops.iter().enumerate() {
            match *op {
                Op::Alloc { bytes, dense } => match Block::alloc(&mut arena, bytes, dense, step as u8) {
                    Ok(block) => {
                        let end = block.offset + (block.taken() / UNIT) as u32;
                        prop_assert!(block.offset >= START && end <= arena.cap);
                        prop_assert!(!dense && bytes <= SMALL_MAX || block.offset % UNITS_PER_QUANTUM == 0);
                        let below = live.range(..end).next_back();
                        if let Some((_, below)) = below {
                            prop_assert!(below.offset + (below.taken() / UNIT) as u32 <= block.offset);
                        }
                        live.insert(block.offset, block);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, OutOfMemory { resource: Resource::Arena, bytes, limit: limit_bytes });
                        let units = (Arena::block_bytes(bytes) / UNIT) as u32;
                        let fitting = gaps(&live, arena.cap).into_iter().find(|gap| {
                            if dense || bytes > SMALL_MAX {
                                aligned_quanta(gap) >= Arena::dense_block_bytes(bytes).div_ceil(QUANTUM) as u32
                            } else {
                                gap.1 - gap.0 >= units
                            }
                        });
                        prop_assert_eq!(fitting, None, "refused although there is room");
                    }
                },
                Op::Free { pick } => {
                    if let Some(&offset) = live.keys().nth(pick % live.len().max(1)) {
                        live.remove(&offset).unwrap().free(&mut arena);
                    }
                }
                Op::Merge => prop_assert!(arena.merge()),
                Op::Shrink => {
                    arena.shrink();
                }
            }
            arena.check().map_err(TestCaseError::fail)?;
            let taken: usize = live.values().map(Block::taken).sum();
            prop_assert_eq!(arena.live_bytes(), taken);
            prop_assert_eq!(arena.free_bytes() + taken, arena.footprint_bytes());
            prop_assert!(arena.footprint_bytes() <= limit_bytes);
        }
        for block in live.into_values() {
            block.free(&mut arena);
        }
        arena.check().map_err(TestCaseError::fail)?;
        arena.shrink();
        prop_assert_eq!((arena.live_bytes(), arena.footprint_bytes()), (0, 0));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn random_operations_agree_with_the_model(
            ops in proptest::collection::vec(op(), 0..if cfg!(miri) { 40 } else { 400 }),
            limit_bytes in 0usize..if cfg!(miri) { 8000 } else { 80_000 },
        ) {
            run_model(&ops, limit_bytes)?;
        }
    }

    #[test]
    fn the_limit_is_reached_exactly_and_room_below_it_can_be_used_again() {
        const LIMIT: usize = 64 << 10;
        let mut arena = small_arena(LIMIT);
        let mut blocks: Vec<u32> = (0..LIMIT / 16).map(|_| arena.alloc(16).unwrap()).collect();
        assert_eq!((arena.live_bytes(), arena.free_bytes()), (LIMIT, 0));
        let full = OutOfMemory { resource: Resource::Arena, bytes: 8, limit: LIMIT };
        assert_eq!(arena.alloc(8), Err(full));
        assert_eq!(arena.alloc_dense(8), Err(full));
        arena.check().unwrap();

        let freed = blocks.swap_remove(1000);
        arena.free(freed, 16);
        assert_eq!(arena.alloc(24).unwrap_err().limit, LIMIT);
        assert_eq!((arena.alloc(8), arena.alloc(8)), (Ok(freed), Ok(freed + 1)));
        assert_eq!(arena.alloc(8), Err(full));
        arena.check().unwrap();

        // Odd limits are rounded down, and the error names what was asked for.
        let mut arena = small_arena(1000);
        arena.alloc_dense(768).unwrap();
        assert_eq!(arena.alloc(8).unwrap_err().limit, 1000);
        assert_eq!(small_arena(0).alloc(8).unwrap_err().limit, 0);
        // Without a limit the reservation is one.
        let mut arena = small_arena(usize::MAX);
        arena.alloc_dense((8 << 20) - 512).unwrap();
        assert_eq!(arena.alloc(8).unwrap_err().limit, (8 << 20) - 512);
        arena.check().unwrap();
    }

    #[test]
    fn freed_neighbours_become_one_block() {
        let mut arena = small_arena(64 << 10);
        let blocks: Vec<u32> = (0..(64 << 10) / 32).map(|_| arena.alloc(32).unwrap()).collect();
        // All but the last one, in an order that leaves no two neighbours behind one another on the list.
        let keep = blocks.len() - 1;
        for index in (0..keep).map(|index| index * 773 % keep) {
            arena.free(blocks[index], 32);
        }
        assert_eq!(arena.live_bytes(), 32);
        let large = arena.alloc_dense((64 << 10) - QUANTUM).unwrap();
        assert_eq!(large, START);
        arena.check().unwrap();
        arena.free_dense(large, (64 << 10) - QUANTUM);
        // The top was never given up for it.
        assert_eq!(arena.footprint_bytes(), 64 << 10);
        arena.free(blocks[keep], 32);
        arena.merge();
        assert_eq!(arena.footprint_bytes(), 0);
    }

    #[test]
    fn free_neighbours_are_merged_before_the_top_moves() {
        let mut arena = small_arena(usize::MAX);
        let blocks: Vec<u32> = (0..3 * 512).map(|_| arena.alloc(16).unwrap()).collect();
        let loaded = arena.footprint_bytes();
        // Two of three, the second before the first: no list has room for 32 bytes.
        for three in blocks.chunks(3) {
            arena.free(three[1], 16);
            arena.free(three[0], 16);
        }
        for _ in 0..512 {
            arena.alloc(32).unwrap();
        }
        assert_eq!((arena.footprint_bytes(), arena.free_bytes()), (loaded, 0));
        arena.check().unwrap();
    }

    #[test]
    fn what_is_built_in_a_row_lies_in_a_row() {
        let mut arena = small_arena(usize::MAX);
        let mut expected = START;
        for bytes in (0..1000).map(|index| 16 + index * 8 % 136) {
            assert_eq!(arena.alloc(bytes), Ok(expected));
            expected += (bytes / UNIT) as u32;
        }
        // A dense block between them does not end the row.
        let chunk = CHUNK_QUANTA * UNITS_PER_QUANTUM;
        let next_chunk = START + (expected - START).next_multiple_of(chunk);
        assert_eq!(arena.alloc_dense(256), Ok(next_chunk));
        assert_eq!(arena.alloc(16), Ok(expected));
    }

    #[test]
    fn every_request_can_be_made_to_fail_once() {
        let mut arena = small_arena(usize::MAX);
        failpoint::arm(Some(2));
        assert!(arena.alloc(8).is_ok() && arena.alloc_dense(8).is_ok());
        let before = arena.live_bytes();
        assert_eq!(arena.alloc(600), Err(OutOfMemory { resource: Resource::Arena, bytes: 600, limit: 0 }));
        assert!(arena.alloc(8).is_err() && arena.alloc_dense(8).is_err());
        failpoint::arm(None);
        assert_eq!(arena.live_bytes(), before);
        failpoint::arm(Some(1));
        assert!(arena.alloc(600).is_ok(), "a large request of `alloc` asks once, not twice");
        failpoint::arm(None);
        arena.check().unwrap();
    }

    #[test]
    fn a_reader_outlives_the_writer() {
        let mut arena = small_arena(usize::MAX);
        let block = Block::alloc(&mut arena, 144, false, 7).unwrap();
        let mapping = Arc::clone(arena.mapping());
        drop(arena);
        std::thread::spawn(move || assert!(block.is_intact(&mapping))).join().unwrap();
    }

    #[test]
    fn the_last_block_is_followed_by_readable_zeros() {
        let mut arena = small_arena(usize::MAX);
        let bytes = (8 << 20) - 512;
        let block = Block::alloc(&mut arena, bytes, true, 0xff).unwrap();
        let end = block.offset as usize * UNIT + bytes;
        assert!(end + PAD <= arena.mapping().reserved_bytes() && end + PAD <= arena.committed_bytes());
        // SAFETY: committed, as just asserted, and never written.
        let padding = unsafe { arena.mapping().base().add(end).cast::<[u8; PAD]>().read() };
        assert_eq!(padding, [0; PAD]);
        // SAFETY: the null quantum is always committed and never written.
        assert_eq!(unsafe { arena.mapping().base().cast::<[u8; QUANTUM]>().read() }, [0; QUANTUM]);
    }

    #[test]
    fn freed_memory_is_poisoned() {
        let mut arena = small_arena(usize::MAX);
        let small = Block::alloc(&mut arena, 144, false, 1).unwrap();
        let dense = Block::alloc(&mut arena, 1024, true, 2).unwrap();
        small.free(&mut arena);
        dense.free(&mut arena);
        for (block, links) in [(small, 4), (dense, 8)] {
            // SAFETY: freed, but still committed, and nobody else knows of it.
            let contents = unsafe { std::slice::from_raw_parts(arena.mapping().at(block.offset), block.bytes) };
            assert!(contents[links..].iter().all(|&byte| byte == POISON_BYTE));
        }
        arena.check().unwrap();
        // SAFETY: as above. What a writer that kept a freed block would do.
        unsafe { arena.mapping().at(small.offset).add(100).write(1) };
        assert!(arena.check().unwrap_err().contains("written"));
    }

    #[test]
    fn the_check_finds_a_block_that_is_freed_twice_or_at_the_wrong_size() {
        let mut arena = small_arena(usize::MAX);
        let blocks = [(); 4].map(|()| arena.alloc(64).unwrap());
        arena.free(blocks[0], 64);
        arena.free(blocks[0], 72);
        assert!(arena.check().unwrap_err().contains("overlaps"));

        let mut arena = small_arena(usize::MAX);
        let blocks = [(); 4].map(|()| arena.alloc(64).unwrap());
        arena.free(blocks[1], 72);
        arena.free(blocks[2], 64);
        assert!(arena.check().unwrap_err().contains("overlaps"));

        let mut arena = small_arena(usize::MAX);
        let blocks = [(); 4].map(|()| arena.alloc(64).unwrap());
        arena.free(blocks[0], 56);
        arena.check().unwrap();
        arena.live = 0;
        assert!(arena.check().unwrap_err().contains("A6"));
    }

    /// A size as they occur in a table: sparse nodes, most of them small, and some dense ones.
    fn node_size(random: &mut Random) -> (usize, bool) {
        match random.below(1000) {
            // The smaller of two draws, so that 16 is the most frequent size and 144 the rarest.
            0..930 => (16 + 8 * random.below(17).min(random.below(17)), false),
            930..970 => (152 + 8 * random.below(46), false),
            _ => (256, true),
        }
    }

    fn assert_small_growth(arena: &Arena, loaded: usize) {
        let footprint = arena.footprint_bytes();
        // Miri has time for a table of a few pages only, where one chunk is a quarter.
        assert!(footprint <= loaded + loaded / 4 || cfg!(miri), "{loaded} bytes after the load, {footprint} now");
    }

    #[test]
    fn the_footprint_stays_after_random_churn() {
        let (blocks, operations) = if cfg!(miri) { (200, 400) } else { (20_000, 1_000_000) };
        let mut arena = Arena::new(ArenaOptions {
            reserve_bytes: if cfg!(miri) { 8 << 20 } else { 1 << 30 },
            ..ArenaOptions::default()
        })
        .unwrap();
        let mut random = Random(1);
        let mut live: Vec<Block> = (0..blocks)
            .map(|index| {
                let (bytes, dense) = if index % 1000 == 500 { (16 << 10, true) } else { node_size(&mut random) };
                Block::alloc(&mut arena, bytes, dense, index as u8).unwrap()
            })
            .collect();
        let loaded = arena.footprint_bytes();
        for index in 0..operations {
            let pick = random.below(live.len());
            let old = live[pick];
            // A large node is rebuilt at its size; that it comes and goes would be growth, not fragmentation.
            let (bytes, dense) = if old.bytes > SMALL_MAX { (old.bytes, true) } else { node_size(&mut random) };
            old.free(&mut arena);
            live[pick] = Block::alloc(&mut arena, bytes, dense, index as u8).unwrap();
        }
        arena.check().unwrap();
        assert_small_growth(&arena, loaded);
        assert!(live.iter().all(|block| block.is_intact(arena.mapping())));
    }

    /// Nodes that gain and lose a slot at a time, replaced blocks freed a grace period later: what updates do.
    #[test]
    fn the_footprint_stays_while_nodes_change_their_size() {
        let (blocks, operations) = if cfg!(miri) { (200, 400) } else { (20_000, 1_000_000) };
        let mut arena = Arena::new(ArenaOptions {
            reserve_bytes: if cfg!(miri) { 8 << 20 } else { 1 << 30 },
            ..ArenaOptions::default()
        })
        .unwrap();
        let mut random = Random(2);
        let mut live: Vec<Block> = (0..blocks)
            .map(|index| Block::alloc(&mut arena, 16 + 8 * random.below(17), false, index as u8).unwrap())
            .collect();
        let loaded = arena.footprint_bytes();
        let mut retired = VecDeque::new();
        let mut retired_bytes = 0;
        for index in 0..operations {
            let pick = random.below(live.len());
            let old = live[pick];
            let bytes = if random.below(2) == 0 { (old.bytes + 8).min(144) } else { (old.bytes - 8).max(16) };
            live[pick] = Block::alloc(&mut arena, bytes, false, index as u8).unwrap();
            retired_bytes += old.taken();
            retired.push_back(old);
            while retired_bytes > loaded / 16 {
                let oldest = retired.pop_front().unwrap();
                retired_bytes -= oldest.taken();
                oldest.free(&mut arena);
            }
        }
        arena.check().unwrap();
        assert_small_growth(&arena, loaded);
        assert!(live.iter().all(|block| block.is_intact(arena.mapping())));
    }

    #[test]
    fn shrink_keeps_what_is_live() {
        let quarter = if cfg!(miri) { 400 } else { 1000 };
        let mut arena = small_arena(usize::MAX);
        let mut live: Vec<Block> =
            (0..4 * quarter).map(|index| Block::alloc(&mut arena, 64, false, index as u8).unwrap()).collect();
        let before = arena.committed_bytes();
        for block in live.split_off(quarter) {
            block.free(&mut arena);
        }
        assert!(arena.shrink() > 0);
        assert!(arena.committed_bytes() < before);
        assert_eq!(arena.footprint_bytes(), quarter * 64);
        arena.check().unwrap();
        live.extend((0..3 * quarter).map(|index| Block::alloc(&mut arena, 72, false, index as u8).unwrap()));
        assert!(live.iter().all(|block| block.is_intact(arena.mapping())));
        arena.check().unwrap();
    }

    #[cfg(not(miri))]
    mod on_linux {
        use rustix::process::{Resource as Limited, Rlimit, setrlimit};

        use super::*;

        /// A figure of `/proc/self/smaps` in bytes, summed over the mapping.
        fn mapped(mapping: &Mapping, figure: &str) -> usize {
            let start = mapping.base().addr();
            let end = start + mapping.reserved_bytes();
            let mut inside = false;
            let mut bytes = 0;
            for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
                let mut words = line.split_ascii_whitespace();
                let first = words.next().unwrap_or_default();
                if let Some((low, _)) = first.split_once('-') {
                    inside = usize::from_str_radix(low, 16).is_ok_and(|low| low >= start && low < end);
                } else if inside && first == figure {
                    bytes += words.next().unwrap().parse::<usize>().unwrap() << 10;
                }
            }
            bytes
        }

        #[test]
        fn a_small_arena_takes_few_pages() {
            let mut arena = Arena::new(ArenaOptions::default()).unwrap();
            for _ in 0..100 {
                Block::alloc(&mut arena, 40, false, 1).unwrap();
            }
            assert_eq!(arena.mapping().reserved_bytes(), 8 << 30);
            assert!(arena.mapping().base().addr().is_multiple_of(HUGE_PAGE));
            let resident = mapped(arena.mapping(), "Rss:");
            assert!(resident > 0 && resident <= 2 * system::page_bytes(), "{resident}");
        }

        #[test]
        fn huge_pages_are_asked_for_past_a_mebibyte() {
            let mut arena = Arena::new(ArenaOptions::default()).unwrap();
            arena.alloc_dense((1 << 20) - 4096).unwrap();
            assert_eq!((arena.huge_page_bytes(), arena.committed_bytes()), (0, 1 << 20));
            let block = Block::alloc(&mut arena, 4 << 20, true, 3).unwrap();
            assert_eq!(arena.committed_bytes(), 6 << 20);
            assert!([0, 6 << 20].contains(&arena.huge_page_bytes()), "{}", arena.huge_page_bytes());
            arena.check().unwrap();
            block.free(&mut arena);
            arena.shrink();
            assert_eq!((arena.huge_page_bytes(), arena.committed_bytes()), (0, 1 << 20));

            let mut arena = Arena::new(ArenaOptions { huge_pages: false, ..ArenaOptions::default() }).unwrap();
            arena.alloc_dense(4 << 20).unwrap();
            assert_eq!(arena.huge_page_bytes(), 0);
        }

        #[test]
        fn shrink_gives_pages_back() {
            for huge_pages in [false, true] {
                let mut arena =
                    Arena::new(ArenaOptions { huge_pages, reserve_bytes: 1 << 30, ..ArenaOptions::default() }).unwrap();
                let first = Block::alloc(&mut arena, 100, false, 1).unwrap();
                let hole = Block::alloc(&mut arena, 3 << 20, true, 2).unwrap();
                let middle = Block::alloc(&mut arena, 200, true, 3).unwrap();
                let last = Block::alloc(&mut arena, 5 << 20, true, 4).unwrap();
                assert!(mapped(arena.mapping(), "Rss:") >= 8 << 20);
                hole.free(&mut arena);
                last.free(&mut arena);
                let returned = arena.shrink();
                assert!(returned >= (8 << 20) - 4 * COMMIT_STEP, "{returned}");
                let resident = mapped(arena.mapping(), "Rss:");
                assert!(resident <= 4 * system::page_bytes(), "{resident} with huge pages {huge_pages}");
                assert_eq!(arena.footprint_bytes(), CHUNK_QUANTA as usize * QUANTUM + (3 << 20) + QUANTUM);
                assert!(first.is_intact(arena.mapping()) && middle.is_intact(arena.mapping()));
                arena.check().unwrap();
                let again = Block::alloc(&mut arena, 8 << 20, true, 5).unwrap();
                assert!(again.is_intact(arena.mapping()));
                arena.check().unwrap();
            }
        }

        #[test]
        fn thousands_of_arenas_share_the_address_space() {
            let arenas: Vec<Arena> = (0..2000)
                .map(|_| {
                    let mut arena = Arena::new(ArenaOptions::default()).unwrap();
                    Block::alloc(&mut arena, 40, false, 1).unwrap();
                    arena
                })
                .collect();
            assert!(arenas.iter().all(|arena| arena.mapping().reserved_bytes() == 8 << 30));
        }

        /// Bytes of a line of `/proc/self/status`.
        fn of_process(figure: &str) -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
        }

        /// Runs `body` under a limit and lifts it again: a failing assertion needs memory to say so.
        fn limited<T>(limited: Limited, bytes: u64, body: impl FnOnce() -> T) -> T {
            setrlimit(limited, Rlimit { current: Some(bytes), maximum: None }).unwrap();
            let outcome = body();
            setrlimit(limited, Rlimit { current: None, maximum: None }).unwrap();
            outcome
        }

        const CHILD: &str = "FIB_ARENA_TEST_CHILD";

        /// Limits belong to a process, so this test runs its second half in a child that no other test shares.
        #[test]
        fn a_system_that_refuses_is_an_error_or_a_smaller_reservation() {
            if std::env::var_os(CHILD).is_some() {
                return under_limits();
            }
            let name = "trie::arena::tests::on_linux::a_system_that_refuses_is_an_error_or_a_smaller_reservation";
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(CHILD, "1")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && output.contains("1 passed"), "{output}");
        }

        fn under_limits() {
            // Address space for an eighth of the default reservation, but not for a quarter.
            let room = of_process("VmSize:") + (1 << 30) + (256 << 20);
            let mut arena = limited(Limited::As, room, || Arena::new(ArenaOptions::default())).unwrap();
            assert_eq!(arena.mapping().reserved_bytes(), 1 << 30);
            assert_eq!(arena.alloc_dense(2 << 30).unwrap_err().limit, (1 << 30) - 2 * QUANTUM);
            arena.alloc_dense(1 << 20).unwrap();
            arena.check().unwrap();
            // Halving ends at 64 MiB.
            let room = of_process("VmSize:") + (32 << 20);
            let refused = limited(Limited::As, room, || Arena::new(ArenaOptions::default()));
            assert_eq!(refused.err(), Some(OutOfMemory { resource: Resource::Arena, bytes: 8 << 30, limit: 0 }));

            // The system refuses to back memory that is reserved already.
            let (committed, live) = (arena.committed_bytes(), arena.live_bytes());
            let mut blocks = Vec::with_capacity(1000);
            let (refused, full, again) =
                limited(Limited::Data, of_process("VmData:") + (8 << 20) + (512 << 10), || {
                    let refused = arena.alloc_dense(16 << 20);
                    if (arena.committed_bytes(), arena.live_bytes()) != (committed, live) {
                        return (refused, refused, refused);
                    }
                    // What is left is used in small steps, to the last.
                    while blocks.len() < 1000
                        && let Ok(offset) = arena.alloc_dense(COMMIT_STEP)
                    {
                        blocks.push(offset);
                    }
                    let full = arena.alloc_dense(COMMIT_STEP);
                    arena.free_dense(blocks[0], COMMIT_STEP);
                    (refused, full, arena.alloc_dense(COMMIT_STEP))
                });
            let error = |bytes| Err(OutOfMemory { resource: Resource::Arena, bytes, limit: 0 });
            assert_eq!((refused, full, again), (error(16 << 20), error(COMMIT_STEP), Ok(blocks[0])));
            assert!(blocks.len() < 1000 && arena.committed_bytes() - committed >= (8 << 20) + (256 << 10));
            arena.check().unwrap();
            // Nothing is lost: the same request is served once the system has memory again.
            arena.alloc_dense(16 << 20).unwrap();
            arena.check().unwrap();
        }
    }
}
