//! Arrays of one kind of item, in blocks that grow and shrink one item at a time.
//!
//! All blocks live in one vector and are named by their first index. A block has one of fourteen sizes; a full block is
//! copied into the next larger size, and what it leaves goes on the free list of its size. The lists run through the
//! freed items themselves, so giving a block back needs no memory and cannot fail. Free blocks are never joined: the sizes
//! in demand hardly change in the life of a table.
//!
//! ```text
//! items   | a a a . | b | free(1) | c c c c c . | free(4) ------> free(4) | spare capacity ...
//!          size 4    1             size 6         first of the list of size 4
//! ```
//!
//! Memory is asked for in [`Pool::reserve`] only; [`Pool::insert`] and [`Pool::take`] use what was reserved.

use std::ops::{Index, IndexMut};

use crate::error::{OutOfMemory, Resource};
use crate::failpoint;
use crate::pages;

/// Items of a block of each size class. On full tables 5 to 15 % of the items in blocks in use are spare.
// Tried: 19 classes. What the blocks save, the free lists and the more frequent moves cost.
const SIZES: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
const CLASSES: usize = SIZES.len();

/// The largest array that a block can hold.
pub(super) const MAX_COUNT: u32 = SIZES[CLASSES - 1];
/// No index.
pub(super) const NONE: u32 = (1 << 31) - 1;
/// Items of a pool at most: every index is below [`NONE`], so that users of an index have one bit to spare.
const MAX_ITEMS: usize = NONE as usize;
/// Items that a growing pool reserves at least.
const MIN_GROWTH: usize = 8;

/// A pool of fewer items cuts up larger free blocks before it grows: in a table of a hundred routes, most free blocks are
/// the sizes that the first nodes have outgrown.
// Tried: cutting without this limit. A tenth less memory after some loads, but pieces never join again, so that filling
// and emptying a table once more takes an eighth more.
const SMALL: usize = 4096;

/// What a pool can hold: an item that can also be a link of a free list.
pub(super) trait Item: Copy + Default {
    fn free_link(&self) -> u32;
    fn set_free_link(&mut self, next: u32);
}

/// Where an array lives. Meaningless while the array is empty: an empty array has no block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) start: u32,
    pub(super) class: u8,
}

impl Block {
    pub(super) fn size(self) -> u32 {
        SIZES[usize::from(self.class)]
    }

    /// The class of the block that an array of `count` items in this one needs for one item more; `None`: it has room.
    pub(super) fn growth(self, count: u32) -> Option<u8> {
        match count {
            0 => Some(0),
            _ if count < self.size() => None,
            _ => Some(self.class + 1),
        }
    }
}

pub(super) struct Pool<T> {
    items: Vec<T>,
    /// The first free block of each class, or [`NONE`].
    free: [u32; CLASSES],
    free_blocks: [u32; CLASSES],
}

impl<T: Item> Pool<T> {
    pub(super) const fn new() -> Self {
        Pool { items: Vec::new(), free: [NONE; CLASSES], free_blocks: [0; CLASSES] }
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<T>()
    }

    /// Items in blocks, free ones included.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Makes sure that one block of class `grown` and `singles` blocks of one item can be taken.
    #[inline]
    pub(super) fn reserve(&mut self, grown: Option<u8>, singles: u32) -> Result<(), OutOfMemory> {
        let (grown, singles) = if grown == Some(0) { (None, singles + 1) } else { (grown, singles) };
        if grown.is_none() && singles == 0 {
            return Ok(());
        }
        let wanted = self.wanted(grown, singles);
        // Asked even when there is room, so that a test can make each reservation fail.
        if failpoint::fails() {
            return Err(out_of_memory::<T>(wanted, 0));
        }
        if wanted > self.spare() { self.make_room(grown, singles) } else { Ok(()) }
    }

    /// Items that cannot be had from the free lists.
    fn wanted(&self, grown: Option<u8>, singles: u32) -> usize {
        let block = grown.map(usize::from).filter(|&list| self.free_blocks[list] == 0).map_or(0, |list| SIZES[list]);
        (block + singles.saturating_sub(self.free_blocks[0])) as usize
    }

    fn spare(&self) -> usize {
        self.items.capacity() - self.items.len()
    }

    /// Cuts up free blocks of larger classes, and if that is not enough, asks for memory.
    #[cold]
    fn make_room(&mut self, grown: Option<u8>, singles: u32) -> Result<(), OutOfMemory> {
        if let Some(class) = grown
            && self.free_blocks[usize::from(class)] == 0
        {
            self.cut_for(class);
        }
        while self.free_blocks[0] < singles && self.cut_for(0) {}
        let wanted = self.wanted(grown, singles);
        if wanted > self.spare() { self.grow(wanted) } else { Ok(()) }
    }

    /// Cuts a block of `class` out of the smallest larger free one, if there is any. What is left goes on the lists of
    /// the largest classes that fit.
    fn cut_for(&mut self, class: u8) -> bool {
        if self.items.len() >= SMALL {
            return false;
        }
        let Some(larger) = (class + 1..CLASSES as u8).find(|&larger| self.free_blocks[usize::from(larger)] > 0) else {
            return false;
        };
        let mut start = self.take(larger).start;
        let end = start + SIZES[usize::from(larger)];
        let mut piece = class;
        while start < end {
            while SIZES[usize::from(piece)] > end - start {
                piece -= 1;
            }
            self.give(Block { start, class: piece });
            start += SIZES[usize::from(piece)];
            if start < end && piece == class {
                piece = larger - 1;
            }
        }
        true
    }

    fn grow(&mut self, wanted: usize) -> Result<(), OutOfMemory> {
        if wanted > MAX_ITEMS - self.items.len() {
            return Err(out_of_memory::<T>(wanted, MAX_ITEMS));
        }
        // An eighth ahead: with doubling, a full table would hold up to half its memory unused.
        let ahead = wanted.max(self.items.len() / 8).max(MIN_GROWTH);
        self.items
            .try_reserve_exact(ahead)
            .or_else(|_| self.items.try_reserve_exact(wanted))
            .map_err(|_| out_of_memory::<T>(wanted, 0))?;
        pages::ask_for_huge(&mut self.items);
        Ok(())
    }

    /// Takes a block of `class`. It must have been reserved, or be there by [`Pool::has_room`].
    pub(super) fn take(&mut self, class: u8) -> Block {
        let list = usize::from(class);
        let start = self.free[list];
        if start == NONE {
            let start = self.items.len();
            let end = start + SIZES[list] as usize;
            debug_assert!(end <= self.items.capacity(), "the block was not reserved");
            self.items.resize(end, T::default());
            return Block { start: start as u32, class };
        }
        self.free[list] = self[start].free_link();
        self.free_blocks[list] -= 1;
        Block { start, class }
    }

    /// Gives a block back.
    pub(super) fn give(&mut self, block: Block) {
        let list = usize::from(block.class);
        let next = self.free[list];
        self[block.start].set_free_link(next);
        self.free[list] = block.start;
        self.free_blocks[list] += 1;
    }

    /// Takes a block of one item and sets it.
    pub(super) fn take_single(&mut self, item: T) -> u32 {
        let start = self.take(0).start;
        self[start] = item;
        start
    }

    /// Gives a block of one item back.
    pub(super) fn give_single(&mut self, start: u32) {
        self.give(Block { start, class: 0 });
    }

    /// Whether a block of `class` can be taken without asking for memory.
    fn has_room(&self, class: u8) -> bool {
        let list = usize::from(class);
        self.free_blocks[list] > 0 || SIZES[list] as usize <= self.spare()
    }

    /// Puts `item` at index `at` of an array of `count` items, which may move to a new block. The block that
    /// [`Block::growth`] tells must have been reserved.
    pub(super) fn insert(&mut self, block: Block, count: u32, at: u32, item: T) -> Block {
        debug_assert!(at <= count && count < MAX_COUNT);
        let target = match block.growth(count) {
            None => block,
            Some(class) => {
                let target = self.take(class);
                self.copy(block.start, target.start, at);
                target
            }
        };
        self.copy(block.start + at, target.start + at + 1, count - at);
        self[target.start + at] = item;
        if target != block && count > 0 {
            self.give(block);
        }
        target
    }

    /// Takes index `at` out of an array of `count` items. An array that becomes empty gives its block back; one that
    /// fits two classes lower moves one class lower, if that needs no memory.
    pub(super) fn remove(&mut self, block: Block, count: u32, at: u32) -> Block {
        debug_assert!(at < count);
        let left = count - 1;
        if left == 0 {
            self.give(block);
            return Block::default();
        }
        // Two classes: an array that is toggled around one size never moves back and forth.
        let shrinks = block.class >= 2 && left <= SIZES[usize::from(block.class) - 2] && self.has_room(block.class - 1);
        if !shrinks {
            self.copy(block.start + at + 1, block.start + at, left - at);
            return block;
        }
        let target = self.take(block.class - 1);
        self.copy(block.start, target.start, at);
        self.copy(block.start + at + 1, target.start + at, left - at);
        self.give(block);
        target
    }

    #[inline(always)]
    fn copy(&mut self, from: u32, to: u32, count: u32) {
        self.items.copy_within(from as usize..(from + count) as usize, to as usize);
    }

    /// Forgets all blocks and frees the memory.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// All free blocks, or what is wrong with the lists.
    pub(super) fn free_list(&self) -> Result<Vec<Block>, String> {
        let mut blocks = Vec::new();
        for class in 0..CLASSES as u8 {
            let list = usize::from(class);
            let mut start = self.free[list];
            for _ in 0..self.free_blocks[list] {
                if start as usize >= self.items.len() {
                    return Err(format!("free list of class {class} is shorter than its count"));
                }
                blocks.push(Block { start, class });
                start = self[start].free_link();
            }
            if start != NONE {
                return Err(format!("free list of class {class} is longer than its count"));
            }
        }
        Ok(blocks)
    }
}

#[cold]
fn out_of_memory<T>(items: usize, limit: usize) -> OutOfMemory {
    let bytes = |items: usize| items.saturating_mul(size_of::<T>());
    OutOfMemory { resource: Resource::Rib, bytes: bytes(items), limit: bytes(limit) }
}

impl<T> Index<u32> for Pool<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}

impl<T> IndexMut<u32> for Pool<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Number(u32);

    impl Item for Number {
        fn free_link(&self) -> u32 {
            self.0
        }
        fn set_free_link(&mut self, next: u32) {
            self.0 = next;
        }
    }

    fn contents(pool: &Pool<Number>, block: Block, count: u32) -> Vec<u32> {
        (block.start..block.start + count).map(|index| pool[index].0).collect()
    }

    #[test]
    fn an_array_grows_and_shrinks_through_all_classes() {
        let mut pool = Pool::new();
        let mut block = Block::default();
        let mut model: Vec<u32> = Vec::new();
        for count in 0..MAX_COUNT {
            let at = count * 7 % (count + 1);
            pool.reserve(block.growth(count), 0).unwrap();
            block = pool.insert(block, count, at, Number(count));
            model.insert(at as usize, count);
            assert_eq!(contents(&pool, block, count + 1), model);
            assert!(block.size() > count && (block.class == 0 || SIZES[block.class as usize - 1] <= count));
        }
        for count in (1..=MAX_COUNT).rev() {
            let at = count * 5 % count;
            block = pool.remove(block, count, at);
            model.remove(at as usize);
            assert_eq!(contents(&pool, block, count - 1), model);
        }
        let free: u32 = pool.free_list().unwrap().iter().map(|block| block.size()).sum();
        assert_eq!(free as usize, pool.len());
    }

    #[test]
    fn toggling_one_item_moves_nothing() {
        for count in 1..MAX_COUNT {
            let mut pool = Pool::new();
            let mut block = Block::default();
            for held in 0..count {
                pool.reserve(block.growth(held), 0).unwrap();
                block = pool.insert(block, held, held, Number(held));
            }
            pool.reserve(block.growth(count), 0).unwrap();
            block = pool.insert(block, count, count, Number(count));
            let (settled, bytes) = (block, pool.bytes());
            for _ in 0..10 {
                block = pool.remove(block, count + 1, count);
                assert_eq!(block.growth(count), None);
                block = pool.insert(block, count, count, Number(count));
                assert_eq!((block, pool.bytes()), (settled, bytes));
            }
        }
    }

    #[test]
    fn reserve_counts_free_blocks_once() {
        let mut pool: Pool<Number> = Pool::new();
        pool.reserve(Some(0), 3).unwrap();
        assert!(pool.items.capacity() >= 4);
        let taken: Vec<u32> = (0..4).map(|_| pool.take_single(Number(1))).collect();
        let spare = (pool.items.capacity() - pool.items.len()) as u32;
        taken.into_iter().for_each(|start| pool.give_single(start));
        let bytes = pool.bytes();
        pool.reserve(None, 4 + spare).unwrap();
        assert_eq!(pool.bytes(), bytes);
        pool.reserve(Some(0), 4 + spare).unwrap();
        assert!(pool.bytes() > bytes);
    }

    #[test]
    fn a_small_pool_cuts_up_larger_blocks_before_it_grows() {
        for class in 0..CLASSES as u8 {
            for larger in class + 1..CLASSES as u8 {
                let mut pool: Pool<Number> = Pool::new();
                pool.reserve(Some(larger), 0).unwrap();
                let block = pool.take(larger);
                pool.items.resize(pool.items.capacity(), Number(0));
                pool.give(block);
                let (bytes, singles) = (pool.bytes(), block.size() - SIZES[usize::from(class)]);
                pool.reserve(Some(class), singles).unwrap();
                assert_eq!(pool.bytes(), bytes);
                let free: u32 = pool.free_list().unwrap().iter().map(|block| block.size()).sum();
                assert_eq!(free, block.size());
                let mut taken = vec![pool.take(class)];
                taken.extend((0..singles).map(|_| pool.take(0)));
                let mut items: Vec<u32> =
                    taken.iter().flat_map(|block| block.start..block.start + block.size()).collect();
                items.sort_unstable();
                assert_eq!(items, (block.start..block.start + block.size()).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_failed_reservation_is_an_error() {
        let mut pool: Pool<Number> = Pool::new();
        failpoint::arm(Some(0));
        let failed = pool.reserve(Some(3), 1);
        failpoint::arm(None);
        assert_eq!(failed, Err(OutOfMemory { resource: Resource::Rib, bytes: 20, limit: 0 }));
        assert_eq!(pool.bytes(), 0);
        let failed = pool.grow(MAX_ITEMS + 1).unwrap_err();
        assert_eq!(failed.limit, MAX_ITEMS * 4);
    }
}
