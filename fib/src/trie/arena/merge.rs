//! Joining free neighbours, and giving memory back.
//!
//! Nothing is merged when a block is freed: the neighbours of a block are not known, since live blocks carry no header.
//! Now and then all free blocks are entered into a set with a bit for each unit instead; its runs of ones are what is
//! free, in address order and as long as they get. The lists are made anew from them.
//!
//! ```text
//! lists        3 -> 11 -> 5     7 -> 1           any order, neighbours apart
//! UnitSet      .1.1.1.1...1.......               a bit a unit
//! runs         from the top down: each list begins with its lowest block, the top falls to the last live block
//! ```
//!
//! Invariants: as in `mod.rs`; a merge keeps all of them, and afterwards no two free blocks of a kind are neighbours.

use super::{Arena, START, UNIT, UNITS_PER_QUANTUM};

impl Arena {
    /// Whether free blocks should be merged before the top moves: a sixteenth of the footprint is free, and as much as
    /// a quarter of it was freed since the last time, which pays for the walk.
    // Tried: once for each sixteenth that the top moves. Each time it moves a bit further; after 8 million replacements
    // of 2,000 blocks the footprint was 1.5 times that after the load and still growing, now it stays below 1.2.
    pub(super) fn should_merge(&self) -> bool {
        self.unmerged >= (self.top - START) / 4 && self.free_bytes() >= self.footprint_bytes() / 16
    }

    /// Joins neighbouring free blocks, rebuilds the lists in address order and moves the top down to the last live block.
    /// Needs a bit per unit below the top; without that memory nothing happens and the answer is false.
    pub(super) fn merge(&mut self) -> bool {
        self.unmerged = 0;
        let mut free = UnitSet::default();
        if !free.try_reserve(self.top) {
            return false;
        }
        let lists = &mut self.lists;
        lists.close_window();
        lists.each_free(|offset, units| free.insert_run(offset, units));
        lists.clear();
        // From the top down, so that each list begins with its lowest block.
        let mut end = self.top;
        while let Some((start, run_end)) = free.last_run_before(end) {
            end = start;
            lists.poison(start, run_end - start);
            if run_end == self.top {
                // What is left of the last quantum is the window, so that it grows with the top.
                self.top = start.next_multiple_of(UNITS_PER_QUANTUM);
                lists.window = start;
                lists.window_end = self.top;
            } else {
                lists.push_run(start, run_end);
            }
        }
        true
    }

    /// Merges, gives whole free pages back to the system and makes what lies behind the top inaccessible; the bytes that
    /// were given back. Pages that an earlier call gave back and that were not used since count again.
    pub(crate) fn shrink(&mut self) -> usize {
        self.merge();
        // SAFETY: no block lies behind the top (A1), and its padding is used too (A3).
        let behind = unsafe { self.pages.give_back_behind(Self::used_bytes(self.top)) };
        let mut between = 0;
        self.lists.each_free(|offset, units| {
            // The first unit holds the list's link and the size.
            let (start, end) = ((offset + 1) as usize * UNIT, (offset + units) as usize * UNIT);
            // SAFETY: what follows the first unit of a free block holds nothing.
            between += unsafe { self.pages.give_back_between(start, end) };
        });
        behind + between
    }
}

/// A set of units, a bit each, for joining free blocks in address order without sorting them.
#[derive(Default)]
pub(super) struct UnitSet {
    words: Vec<u64>,
}

impl UnitSet {
    /// Makes room for units below `end`; false when there is no memory.
    pub(super) fn try_reserve(&mut self, end: u32) -> bool {
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

    pub(super) fn insert_run(&mut self, start: u32, units: u32) {
        for (word, mask) in Self::masks(start, units) {
            self.words[word] |= mask;
        }
    }

    pub(super) fn intersects(&self, start: u32, units: u32) -> bool {
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
