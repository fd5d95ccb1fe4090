//! Limbo: retired blocks in the order they were retired, between the store that unlinked them and the moment they are free.
//!
//! They are counted in bytes. When those retired since the last seal reach an eighth of the budget, they are sealed as a chunk
//! and a grace period starts for them at once; later calls look whether the oldest chunk's is over, and free a few of
//! its blocks. So memory is on its way out long before the budget is reached, and no call frees much of it.
//!
//! ```text
//!   free  <--  | oldest chunk: over, |  chunk: grace   |  chunk: grace   |  open: no grace   | <-- retire
//!              | being freed         |  period open    |  period open    |  period yet       |
//!              '------------------------- dirty bytes ----------------------------------------'
//! ```
//!
//! 1. `dirty_bytes` is the sum of the bytes of all blocks in limbo.
//! 2. The blocks of `chunks` and of the open chunk add up to those in `blocks`, in order.
//! 3. A block leaves by `free`, and only from a chunk whose grace period, started after the block was unlinked, was
//!    found over. When limbo is dropped before, the block is leaked.
//! 4. `retire` neither fails nor allocates after a `reserve` that succeeded.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::grace::{GraceDetector, GracePeriod};
use super::readers::ReaderInfo;
use super::stats::{Counters, ReclaimStats};
use crate::error::{OutOfMemory, Resource};
use crate::failpoint;

/// What can be retired: something that stands for memory which readers may still see.
pub(crate) trait Retired {
    /// Bytes that are dirty until it is freed. The same at each call.
    fn bytes(&self) -> usize;
}

/// Updates between two looks at a grace period that stays open.
const MAX_BACKOFF: u32 = 16;
/// Blocks of one segment of the queue.
const SEGMENT: usize = 256;
/// Empty segments that are kept when no reservation needs them.
const SPARE_SEGMENTS: usize = 2;
/// Chunks that can be sealed at a time. More than a budget has, because a budget can be lowered and exceeded; when all are
/// in use, the open chunk grows instead.
const MAX_CHUNKS: usize = 64;

/// A queue that never copies what is in it, and whose room can be reserved ahead.
struct Fifo<T> {
    segments: VecDeque<VecDeque<T>>,
    spare: Vec<VecDeque<T>>,
}

impl<T> Fifo<T> {
    fn new() -> Self {
        Fifo { segments: VecDeque::new(), spare: Vec::new() }
    }

    fn room(&self) -> usize {
        self.segments.back().map_or(0, |last| SEGMENT - last.len()) + self.spare.len() * SEGMENT
    }

    fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        let bytes = blocks.saturating_mul(mem::size_of::<T>());
        let failed = OutOfMemory { resource: Resource::Plan, bytes, limit: 0 };
        if failpoint::fails() || bytes > isize::MAX as usize {
            return Err(failed);
        }
        let missing = blocks.saturating_sub(self.room()).div_ceil(SEGMENT);
        self.spare.try_reserve(missing).map_err(|_| failed)?;
        self.segments.try_reserve(self.spare.len() + missing).map_err(|_| failed)?;
        let kept = self.spare.len();
        for _ in 0..missing {
            let mut segment = VecDeque::new();
            if segment.try_reserve_exact(SEGMENT).is_err() {
                self.spare.truncate(kept);
                return Err(failed);
            }
            self.spare.push(segment);
        }
        Ok(())
    }

    fn push(&mut self, block: T) {
        match self.segments.back_mut() {
            Some(last) if last.len() < SEGMENT => last.push_back(block),
            _ => {
                debug_assert!(!self.spare.is_empty(), "retire without reserve");
                let mut segment = self.spare.pop().unwrap_or_default();
                segment.push_back(block);
                self.segments.push_back(segment);
            }
        }
    }

    fn pop(&mut self) -> Option<T> {
        let first = self.segments.front_mut()?;
        let block = first.pop_front();
        if first.is_empty()
            && let Some(empty) = self.segments.pop_front()
            && self.spare.len() < self.spare.capacity()
        {
            self.spare.push(empty);
        }
        block
    }

    /// Lets go of spare segments that a large operation has left behind.
    fn trim(&mut self) {
        if self.spare.len() > SPARE_SEGMENTS {
            self.spare.truncate(SPARE_SEGMENTS);
        }
    }
}

/// Blocks whose grace period runs, or is over.
pub(super) struct Chunk {
    pub(super) grace: GracePeriod,
    pub(super) blocks: usize,
    /// The last time that the grace period was seen open.
    seen_open: Instant,
    pub(super) over: bool,
}

/// What was retired since the last seal, or since the last operation.
#[derive(Clone, Copy, Default)]
struct Tally {
    blocks: usize,
    bytes: usize,
}

/// The writer's store of retired blocks, with its budget. See the module's text.
pub(crate) struct Limbo<T: Retired, D: GraceDetector = super::Domain> {
    pub(super) domain: Arc<D>,
    pub(super) budget: Budget,
    blocks: Fifo<T>,
    pub(super) chunks: VecDeque<Chunk>,
    open: Tally,
    operation: Tally,
    dirty_bytes: usize,
    /// Steps to let pass before the next look, and how many it was last time.
    skip: u32,
    backoff: u32,
    pub(super) counters: Counters,
}

/// A grace period that was found over is taken to have lasted until then if the look before was at most this long ago.
/// Else the writer was away, and the time of that look is taken.
const AWAY: Duration = Duration::from_millis(1);

impl<T: Retired, D: GraceDetector> Limbo<T, D> {
    /// An empty limbo for blocks that the readers of `domain` may see.
    pub(crate) fn new(domain: Arc<D>, budget: Budget) -> Self {
        Limbo {
            domain,
            budget,
            blocks: Fifo::new(),
            chunks: VecDeque::with_capacity(MAX_CHUNKS),
            open: Tally::default(),
            operation: Tally::default(),
            dirty_bytes: 0,
            skip: 0,
            backoff: 0,
            counters: Counters::new(),
        }
    }

    /// What finds its grace periods.
    pub(crate) fn domain(&self) -> &D {
        &self.domain
    }

    /// Retired and not yet freed, in bytes.
    #[inline]
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Makes room for `blocks` retirements, up to the next [`step`](Self::step). Part of an update's plan.
    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        self.blocks.reserve(blocks)
    }

    /// Takes a block that was reachable and has been unlinked by this thread. Cannot fail, never waits.
    pub(crate) fn retire(&mut self, block: T) {
        let bytes = block.bytes();
        self.blocks.push(block);
        self.dirty_bytes += bytes;
        for tally in [&mut self.open, &mut self.operation] {
            tally.blocks += 1;
            tally.bytes += bytes;
        }
        self.counters.retired_blocks += 1;
        self.counters.retired_bytes += bytes as u64;
        self.counters.peak_dirty_bytes = self.counters.peak_dirty_bytes.max(self.dirty_bytes);
        // A block as large as a chunk ends its chunk at once, and takes along what had gathered.
        if self.open.bytes >= self.budget.chunk_bytes() {
            self.seal();
        }
    }

    /// Starts the grace period of the open chunk, if there is anything in it.
    pub(super) fn seal(&mut self) {
        if self.open.blocks == 0 || self.chunks.len() == MAX_CHUNKS {
            return;
        }
        let grace = self.domain.start();
        let seen_open = grace.started;
        self.counters.sealed(seen_open);
        self.chunks.push_back(Chunk { grace, blocks: self.open.blocks, seen_open, over: false });
        self.open = Tally::default();
        self.skip = 0;
        self.backoff = 0;
    }

    /// Ends an operation: looks at the oldest chunk and frees a few blocks. To be called after every update.
    #[inline]
    pub(crate) fn step(&mut self, free: &mut impl FnMut(T)) {
        if self.operation.blocks != 0 || !self.chunks.is_empty() {
            self.step_slow(free);
        }
    }

    fn step_slow(&mut self, free: &mut impl FnMut(T)) {
        let retired = mem::take(&mut self.operation);
        self.counters.largest_operation_bytes = self.counters.largest_operation_bytes.max(retired.bytes);
        self.blocks.trim();
        let three_quarters = self.budget.sync_mem() / 4 * 3;
        // A look costs a reader's cache line. If the oldest grace period was open at the last few, the readers are slow, and
        // the next look can wait some updates, unless memory is short.
        if self.skip > 0 && self.dirty_bytes < three_quarters {
            self.skip -= 1;
            return;
        }
        // More than comes in, so that limbo empties; more when it is full; and never so much that it is a stall.
        let quota = if self.dirty_bytes < three_quarters { 4 } else { 32 } + (2 * retired.blocks).min(256);
        self.free_some(quota, 0, free);
    }

    /// Frees up to `quota` blocks whose grace period is over, while more than `target_bytes` are dirty.
    pub(super) fn free_some(&mut self, mut quota: usize, target_bytes: usize, free: &mut impl FnMut(T)) {
        while quota > 0 && self.dirty_bytes > target_bytes && self.oldest_is_over() {
            let Some(block) = self.blocks.pop() else { return };
            let bytes = block.bytes();
            self.dirty_bytes -= bytes;
            self.counters.reclaimed_blocks += 1;
            self.counters.reclaimed_bytes += bytes as u64;
            quota -= 1;
            if let Some(oldest) = self.chunks.front_mut() {
                oldest.blocks -= 1;
                if oldest.blocks == 0 {
                    self.chunks.pop_front();
                }
            }
            free(block);
        }
    }

    /// Whether there is a chunk and its grace period is over, by a look now if it was not known to be.
    pub(super) fn oldest_is_over(&mut self) -> bool {
        let Some(oldest) = self.chunks.front_mut() else { return false };
        if oldest.over {
            return true;
        }
        self.counters.polls += 1;
        if self.domain.poll(&mut oldest.grace) {
            // The writer may have been away since the last look, and the readers done long ago.
            let now = Instant::now();
            let until = if now - oldest.seen_open <= AWAY { now } else { oldest.seen_open };
            self.oldest_passed(until);
            return true;
        }
        oldest.seen_open = Instant::now();
        self.backoff = (2 * self.backoff).clamp(1, MAX_BACKOFF);
        self.skip = self.backoff;
        false
    }

    /// Notes that the oldest chunk's grace period has been found over, and that it lasted until `until`.
    pub(super) fn oldest_passed(&mut self, until: Instant) {
        let Some(oldest) = self.chunks.front_mut() else { return };
        oldest.over = true;
        self.counters.passed(until.saturating_duration_since(oldest.grace.started));
        self.skip = 0;
        self.backoff = 0;
    }

    /// Looks at the oldest chunk and frees a few blocks, outside any update. Returns the dirty bytes that are left.
    pub(crate) fn poll(&mut self, free: &mut impl FnMut(T)) -> usize {
        self.skip = 0;
        self.step(free);
        self.dirty_bytes
    }

    /// Frees all that can be freed without waiting. Returns the dirty bytes that are left.
    pub(crate) fn reclaim(&mut self, free: &mut impl FnMut(T)) -> usize {
        self.seal();
        self.free_some(usize::MAX, 0, free);
        // The open chunk could not be sealed while all chunks were in use.
        self.seal();
        self.free_some(usize::MAX, 0, free);
        self.dirty_bytes
    }

    /// The numbers. Visits each reader's slot.
    pub(crate) fn stats(&self) -> ReclaimStats {
        let (mut readers, mut readers_online, mut readers_late) = (0, 0, 0);
        self.readers(&mut |reader: ReaderInfo| {
            readers += 1;
            readers_online += usize::from(reader.online);
            readers_late += usize::from(reader.late);
        });
        ReclaimStats {
            sync_mem_bytes: self.budget.sync_mem(),
            dirty_bytes: self.dirty_bytes,
            grace_periods_open: self.chunks.iter().filter(|chunk| !chunk.over).count(),
            largest_operation_bytes: self.counters.largest_operation_bytes.max(self.operation.bytes),
            readers,
            readers_online,
            readers_late,
            ..self.counters.snapshot()
        }
    }

    /// Visits each registered reader; late is who the oldest open grace period waits for.
    pub(crate) fn readers(&self, visit: &mut dyn FnMut(ReaderInfo)) {
        let oldest = self.chunks.iter().find(|chunk| !chunk.over);
        self.domain.readers(oldest.map(|chunk| &chunk.grace), visit);
    }
}

impl<T: Retired, D: GraceDetector> Drop for Limbo<T, D> {
    fn drop(&mut self) {
        self.seal();
        while self.oldest_is_over() {
            let blocks = self.chunks.pop_front().map_or(0, |chunk| chunk.blocks);
            for _ in 0..blocks {
                drop(self.blocks.pop());
            }
        }
        // Invariant 3: a reader may be looking at the rest.
        while let Some(block) = self.blocks.pop() {
            mem::forget(block);
        }
    }
}
