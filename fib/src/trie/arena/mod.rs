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
//! START                                                   limit_cap                   slack_cap
//! | the limit: for everything                             | the slack: while it is allowed |
//!
//! small block   1 to 64 units of 8 bytes, at any unit       free: a list for each number of units
//! small run     more units, between small blocks            free: four lists an octave; small blocks are cut from it
//! dense block   whole quanta of 256 bytes, at a quantum     free: a list for each size to 8 KiB, then four an octave
//! ```
//!
//! An update builds fresh blocks beside those that it replaces, so in an arena that is full to its limit not even a
//! removal would find room. For such updates there is the *slack*, an eighth of the limit and 2 MiB of further address
//! space. While it is not allowed, neither the top nor the live blocks grow past the limit; both may be past it already.
//!
//! | file | question it answers |
//! |---|---|
//! | `mapping.rs` | what does the system give, and on which pages? |
//! | `free_lists.rs` | what below the top can be handed out? |
//! | `merge.rs` | how do free neighbours become one, and how does memory go back to the system? |
//! | `check.rs` | do the invariants hold? |
//!
//! Invariants, asserted by [`Arena::check`]:
//!
//! - A1: every unit in `START..top` belongs to exactly one block, live or free, or to the window.
//! - A2: `top` and every dense block are multiples of a quantum; no block starts below `START`, so offset 0 means none.
//! - A3: `top <= slack_cap`, and at least `PAD` bytes behind `top` are readable: a vector load may run past its block.
//! - A4: nothing was ever stored at `slack_cap` or above, nor below `START`: both read as zero.
//! - A5: a list is non-empty exactly when its bit in the map of its kind is set, and holds blocks of its sizes only.
//! - A6: `live` is the sum of what was handed out and not freed, each block at its rounded size.

mod check;
mod free_lists;
mod mapping;
mod merge;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::{OutOfMemory, Resource};
use crate::failpoint;

use free_lists::{CHUNK_QUANTA, FreeLists, Request};
pub(crate) use mapping::Mapping;
use mapping::{COMMIT_STEP, Pages};

/// Bytes of the unit that offsets count in.
pub(crate) const UNIT: usize = 8;
/// Bytes of a quantum: size step and alignment of dense blocks.
pub(crate) const QUANTUM: usize = 256;
/// The largest small block; no sparse node is larger.
pub(crate) const SMALL_MAX: usize = 512;
/// Readable bytes behind every block.
pub(crate) const PAD: usize = 64;

const UNITS_PER_QUANTUM: u32 = (QUANTUM / UNIT) as u32;
/// The first offset that can be handed out.
const START: u32 = UNITS_PER_QUANTUM;
/// The least slack. More than all the nodes on a path, a full default dirty-memory budget and the larger part of a
/// chunk, each several times.
const SLACK_MIN: usize = 2 << 20;
/// The slack's share of the limit beyond that. Its worst use is the removal of a short prefix, which rebuilds every node
/// below it that changes its shape.
const SLACK_SHARE: usize = 8;
/// What 32-bit offsets of 8 bytes can name.
const MAX_RESERVE: usize = 1 << 35;

// The link and the size of a free dense block fit in its first unit, a small block's link in the smallest block.
const _: () = assert!(UNIT == 8 && QUANTUM.is_multiple_of(UNIT) && SMALL_MAX.is_multiple_of(QUANTUM));
// `top` is an u32 and at most a quantum below the end of the mapping.
const _: () = assert!(PAD <= QUANTUM && MAX_RESERVE / UNIT - UNITS_PER_QUANTUM as usize <= u32::MAX as usize);

/// How an arena is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaOptions {
    /// Address space to ask for, at most 32 GiB. Halved down to 64 MiB while the system refuses.
    pub(crate) reserve_bytes: usize,
    /// What live blocks and footprint may reach without the slack; smaller where the reservation has no room for the
    /// slack above it.
    pub(crate) limit_bytes: usize,
    /// Ask for 2 MiB pages once the arena has grown past 1 MiB.
    pub(crate) huge_pages: bool,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        ArenaOptions { reserve_bytes: 8 << 30, limit_bytes: usize::MAX, huge_pages: true }
    }
}

/// The writer's allocator. Dropping it drops its share of the mapping; live blocks are not its business.
pub(crate) struct Arena {
    lists: FreeLists,
    /// Units in live blocks.
    live: u32,
    /// Everything from here on was never used or has been given back by `merge`.
    top: u32,
    /// `top` cannot move past this: one of the next two.
    cap: u32,
    limit_cap: u32,
    slack_cap: u32,
    /// Units that were freed since the last merge, saturating.
    unmerged: u32,
    /// The limit as it was asked for, unless the reservation was too small for it.
    limit_bytes: usize,
    pages: Pages,
}

impl Arena {
    /// Reserves address space and commits the first 64 KiB of it.
    pub(crate) fn new(options: ArenaOptions) -> Result<Arena, OutOfMemory> {
        let overhead = START as usize * UNIT + QUANTUM;
        let asked = options.limit_bytes;
        let wanted = asked.saturating_add(asked / SLACK_SHARE).saturating_add(SLACK_MIN + overhead);
        let wanted = wanted.min(options.reserve_bytes).min(MAX_RESERVE);
        let wanted = wanted.max(1).next_multiple_of(COMMIT_STEP);
        let refused = OutOfMemory { resource: Resource::Arena, bytes: wanted, limit: 0 };
        let mut pages = Pages::reserve(wanted, options.huge_pages).ok_or(refused)?;
        if !pages.commit(Self::used_bytes(START)) {
            return Err(refused);
        }
        // A3: a whole quantum stays free behind `slack_cap`, so the padding is inside the mapping.
        let room = pages.mapping().reserved_bytes() - overhead;
        let with_slack = asked.saturating_add(asked / SLACK_SHARE).saturating_add(SLACK_MIN);
        let limit_bytes = if with_slack <= room {
            asked
        } else {
            asked.min(room.saturating_sub(SLACK_MIN) / (SLACK_SHARE + 1) * SLACK_SHARE)
        };
        let limit_cap = START + (limit_bytes / QUANTUM) as u32 * UNITS_PER_QUANTUM;
        let slack_bytes = (limit_bytes / SLACK_SHARE + SLACK_MIN).min(room - limit_bytes);
        Ok(Arena {
            lists: FreeLists::new(Arc::clone(pages.mapping())),
            live: 0,
            top: START,
            cap: limit_cap,
            limit_cap,
            slack_cap: limit_cap + (slack_bytes / QUANTUM) as u32 * UNITS_PER_QUANTUM,
            unmerged: 0,
            limit_bytes,
            pages,
        })
    }

    /// The address range, to be shared with readers.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.pages.mapping()
    }

    /// Whether requests may use the slack from here on. For removals, and for what is not going to stay above the limit.
    pub(crate) fn allow_slack(&mut self, allowed: bool) {
        self.cap = if allowed { self.slack_cap } else { self.limit_cap };
    }

    /// What live blocks may take without the slack.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What [`Arena::alloc`] takes for `bytes`: whole units.
    pub(crate) const fn block_bytes(bytes: usize) -> usize {
        bytes.next_multiple_of(UNIT)
    }

    /// What [`Arena::alloc_dense`] takes for `bytes`: whole quanta.
    pub(crate) const fn dense_block_bytes(bytes: usize) -> usize {
        bytes.next_multiple_of(QUANTUM)
    }

    /// A block of `bytes`, 1 to [`SMALL_MAX`], in units of 8 bytes from the base, 8-byte aligned. Its contents are
    /// undefined. Constant time while a list has the size; else a larger free block is cut, or the top moves.
    #[inline]
    pub(crate) fn alloc(&mut self, bytes: usize) -> Result<u32, OutOfMemory> {
        debug_assert!(bytes > 0 && bytes <= SMALL_MAX);
        if failpoint::fails() {
            return Err(OutOfMemory { resource: Resource::Arena, bytes, limit: 0 });
        }
        let units = (Self::block_bytes(bytes) / UNIT) as u32;
        if units > self.room() {
            return Err(self.full(bytes));
        }
        let offset = match self.lists.pop_small(units as usize - 1) {
            Some(offset) => offset,
            None => self.take(Request::Small { units }, bytes)?,
        };
        self.live += units;
        Ok(offset)
    }

    /// A block of `bytes`, at least 1, that starts at a multiple of 256 bytes, in units of 8 bytes from the base. Its
    /// contents are undefined.
    pub(crate) fn alloc_dense(&mut self, bytes: usize) -> Result<u32, OutOfMemory> {
        debug_assert!(bytes > 0);
        if failpoint::fails() {
            return Err(OutOfMemory { resource: Resource::Arena, bytes, limit: 0 });
        }
        // The first comparison keeps absurd sizes from being rounded.
        let room = self.room() as usize * UNIT;
        if bytes > room || Self::dense_block_bytes(bytes) > room {
            return Err(self.full(bytes));
        }
        let quanta = (Self::dense_block_bytes(bytes) / QUANTUM) as u32;
        let offset = self.take(Request::Dense { quanta }, bytes)?;
        self.live += quanta * UNITS_PER_QUANTUM;
        Ok(offset)
    }

    /// Takes back a block of [`Arena::alloc`] that no reader can reach any more; `bytes` as they were asked for.
    #[inline]
    pub(crate) fn free(&mut self, offset: u32, bytes: usize) {
        let units = (Self::block_bytes(bytes) / UNIT) as u32;
        debug_assert!(offset >= START && offset + units <= self.top && units <= self.live);
        self.lists.poison(offset, units);
        self.lists.push_small(offset, units);
        self.live -= units;
        self.unmerged = self.unmerged.saturating_add(units);
    }

    /// Takes back a block of [`Arena::alloc_dense`] that no reader can reach any more; `bytes` as they were asked for.
    pub(crate) fn free_dense(&mut self, offset: u32, bytes: usize) {
        let quanta = (Self::dense_block_bytes(bytes) / QUANTUM) as u32;
        let units = quanta * UNITS_PER_QUANTUM;
        debug_assert!(offset >= START && offset.is_multiple_of(UNITS_PER_QUANTUM));
        debug_assert!(offset + units <= self.top && units <= self.live);
        self.lists.poison(offset, units);
        self.lists.push_dense(offset, quanta);
        self.live -= units;
        self.unmerged = self.unmerged.saturating_add(units);
    }

    /// Bytes in blocks that were handed out, each at its rounded size.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live as usize * UNIT
    }

    /// Bytes below the top that can be handed out again.
    fn free_bytes(&self) -> usize {
        self.footprint_bytes() - self.live_bytes()
    }

    /// Live and free bytes: how far the top has moved. Above the limit by what was taken of the slack.
    pub(crate) fn footprint_bytes(&self) -> usize {
        (self.top - START) as usize * UNIT
    }

    /// Bytes of the mapping that can be read and written. Pages among them that were never touched take no memory.
    pub(crate) fn committed_bytes(&self) -> usize {
        self.pages.committed()
    }

    /// Committed bytes for which the system took the advice to use huge pages; it may still not have any.
    pub(crate) fn huge_page_bytes(&self) -> usize {
        self.pages.huge_taken()
    }

    /// Units by which live blocks may grow.
    #[inline(always)]
    fn room(&self) -> u32 {
        (self.cap - START).saturating_sub(self.live)
    }

    /// The limit that is in force: with the slack while that is allowed.
    fn limit_in_force(&self) -> usize {
        self.limit_bytes + (self.cap - self.limit_cap) as usize * UNIT
    }

    #[cold]
    fn full(&self, bytes: usize) -> OutOfMemory {
        OutOfMemory { resource: Resource::Arena, bytes, limit: self.limit_in_force() }
    }

    /// Bytes from the base on that must be accessible for a top: up to the padding behind it.
    fn used_bytes(top: u32) -> usize {
        top as usize * UNIT + PAD
    }

    /// Serves a request when the list of the exact size is empty.
    #[cold]
    #[inline(never)]
    fn take(&mut self, request: Request, bytes: usize) -> Result<u32, OutOfMemory> {
        if let Some(offset) = self.lists.reuse(request) {
            return Ok(offset);
        }
        if self.should_merge()
            && self.merge()
            && let Some(offset) = self.lists.reuse(request)
        {
            return Ok(offset);
        }
        // Before the top moves, but after a merge: taking a chunk from a dense block of 16 KiB sooner was measured to cost
        // the next dense block of that size more than it saves.
        if let Some(offset) = self.lists.cut_chunk(request) {
            return Ok(offset);
        }
        let limit = match self.bump(request) {
            Ok(offset) => return Ok(offset),
            Err(limit) => limit,
        };
        // Before giving up, every free byte gets its chance, at the cost of a walk for each refusal.
        self.merge();
        if let Some(offset) = self.lists.reuse(request).or_else(|| self.lists.intrude(request)) {
            return Ok(offset);
        }
        self.bump(request).map_err(|_| OutOfMemory { resource: Resource::Arena, bytes, limit })
    }

    /// Serves a request by moving the top. Error: the limit that stands in the way, 0 when the system refused.
    fn bump(&mut self, request: Request) -> Result<u32, usize> {
        match request {
            Request::Dense { quanta } => self.grow(quanta),
            Request::Small { units } => {
                let window = self.lists.window..self.lists.window_end;
                let have = if window.end == self.top { window.end - window.start } else { 0 };
                let needed = (units - have).div_ceil(UNITS_PER_QUANTUM);
                let room = self.cap.saturating_sub(self.top) / UNITS_PER_QUANTUM;
                let quanta = CHUNK_QUANTA.min(room).max(needed);
                let offset = self.grow(quanta)?;
                self.lists.extend_window(offset, quanta);
                self.lists.cut_window(units).ok_or(self.limit_in_force())
            }
        }
    }

    /// Moves the top up by `quanta`; where it was. Errors as [`Arena::bump`].
    fn grow(&mut self, quanta: u32) -> Result<u32, usize> {
        let offset = self.top;
        if quanta > self.cap.saturating_sub(offset) / UNITS_PER_QUANTUM {
            return Err(self.limit_in_force());
        }
        let top = offset + quanta * UNITS_PER_QUANTUM;
        if !self.pages.commit(Self::used_bytes(top)) {
            return Err(0);
        }
        self.top = top;
        Ok(offset)
    }
}
