//! Tests of the arena: against a model, at its limit, over long runs, and what the system sees of it.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::free_lists::*;
use super::mapping::*;
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
    for (bytes, taken) in [(1, 8), (8, 8), (9, 16), (144, 144), (505, 512), (512, 512)] {
        assert_eq!(Arena::block_bytes(bytes), taken);
        let mut arena = small_arena(usize::MAX);
        arena.alloc(bytes).unwrap();
        assert_eq!(arena.live_bytes(), taken);
    }
    for (bytes, taken) in [(1, 256), (256, 256), (257, 512), (4 << 20, 4 << 20)] {
        assert_eq!(Arena::dense_block_bytes(bytes), taken);
        let mut arena = small_arena(usize::MAX);
        let offset = arena.alloc_dense(bytes).unwrap();
        assert_eq!((arena.live_bytes(), offset as usize * UNIT % QUANTUM), (taken, 0));
    }
    for bytes in [usize::MAX, usize::MAX / 2, 1 << 35, 8 << 20] {
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
    AllowSlack(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1usize..=160).prop_map(|bytes| Op::Alloc { bytes, dense: false }),
        1 => (1usize..=SMALL_MAX).prop_map(|bytes| Op::Alloc { bytes, dense: false }),
        1 => (1usize..=1200).prop_map(|bytes| Op::Alloc { bytes, dense: true }),
        1 => (1usize..=if cfg!(miri) { 3000 } else { 40_000 }).prop_map(|bytes| Op::Alloc { bytes, dense: true }),
        8 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        1 => Just(Op::Merge),
        1 => Just(Op::Shrink),
        1 => any::<bool>().prop_map(Op::AllowSlack),
    ]
}

/// The free runs up to the limit in force (and up to the last quantum in use, where that is higher), in units, by what is
/// live.
fn gaps(live: &BTreeMap<u32, Block>, cap: u32) -> Vec<(u32, u32)> {
    let mut gaps = Vec::new();
    let mut end = START;
    for block in live.values() {
        gaps.push((end, block.offset));
        end = block.offset + (block.taken() / UNIT) as u32;
    }
    gaps.push((end, cap.max(end.next_multiple_of(UNITS_PER_QUANTUM))));
    gaps
}

fn aligned_quanta(&(start, end): &(u32, u32)) -> u32 {
    (end / UNITS_PER_QUANTUM).saturating_sub(start.div_ceil(UNITS_PER_QUANTUM))
}

fn run_model(ops: &[Op], limit_bytes: usize) -> Result<(), TestCaseError> {
    let mut arena = small_arena(limit_bytes);
    let mut live = BTreeMap::<u32, Block>::new();
    for (step, op) in ops.iter().enumerate() {
        let highest_top = arena.top.max(arena.cap);
        match *op {
            Op::Alloc { bytes, dense } => match Block::alloc(&mut arena, bytes, dense, step as u8) {
                Ok(block) => {
                    let end = block.offset + (block.taken() / UNIT) as u32;
                    prop_assert!(block.offset >= START && end <= arena.slack_cap);
                    prop_assert!(arena.live <= arena.cap - START);
                    prop_assert!(!dense || block.offset % UNITS_PER_QUANTUM == 0);
                    let below = live.range(..end).next_back();
                    if let Some((_, below)) = below {
                        prop_assert!(below.offset + (below.taken() / UNIT) as u32 <= block.offset);
                    }
                    live.insert(block.offset, block);
                }
                Err(error) => {
                    let slack = (arena.cap - arena.limit_cap) as usize * UNIT;
                    let limit = limit_bytes + slack;
                    prop_assert_eq!(error, OutOfMemory { resource: Resource::Arena, bytes, limit });
                    let taken = if dense { Arena::dense_block_bytes(bytes) } else { Arena::block_bytes(bytes) };
                    let units = (taken / UNIT) as u32;
                    if arena.live + units > arena.cap - START {
                        continue;
                    }
                    let fitting = gaps(&live, arena.cap).into_iter().find(|gap| {
                        if dense { aligned_quanta(gap) >= units / UNITS_PER_QUANTUM } else { gap.1 - gap.0 >= units }
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
            Op::AllowSlack(allowed) => arena.allow_slack(allowed),
        }
        arena.check().map_err(TestCaseError::fail)?;
        let taken: usize = live.values().map(Block::taken).sum();
        prop_assert_eq!(arena.live_bytes(), taken);
        prop_assert_eq!(arena.free_bytes() + taken, arena.footprint_bytes());
        prop_assert!(arena.top <= highest_top);
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
    // Without a limit the reservation is one, less the slack.
    let mut arena = small_arena(usize::MAX);
    let limit = ((8 << 20) - 512 - SLACK_MIN) / 9 * 8;
    assert_eq!(arena.limit_bytes(), limit);
    arena.alloc_dense(limit / QUANTUM * QUANTUM).unwrap();
    assert_eq!(arena.alloc(8).unwrap_err().limit, limit);
    arena.check().unwrap();
}

#[test]
fn the_slack_is_for_those_who_may_use_it() {
    const SIZE: usize = SMALL_MAX;
    const LIMIT: usize = 64 << 10;
    const SLACK: usize = LIMIT / 8 + SLACK_MIN;
    let full = |bytes, limit| Err(OutOfMemory { resource: Resource::Arena, bytes, limit });
    let mut arena = small_arena(LIMIT);
    let mut blocks: Vec<u32> = (0..LIMIT / SIZE).map(|_| arena.alloc(SIZE).unwrap()).collect();
    assert_eq!(arena.alloc(SIZE), full(SIZE, LIMIT));

    arena.allow_slack(true);
    blocks.extend((0..SLACK / SIZE).map(|_| arena.alloc(SIZE).unwrap()));
    assert_eq!((arena.live_bytes(), arena.footprint_bytes()), (LIMIT + SLACK, LIMIT + SLACK));
    assert_eq!(arena.alloc(8), full(8, LIMIT + SLACK));
    assert_eq!(arena.alloc_dense(8), full(8, LIMIT + SLACK));
    arena.check().unwrap();

    // What is freed up there is not for others, until no more is live than the limit.
    arena.allow_slack(false);
    while arena.live_bytes() > LIMIT {
        assert_eq!(arena.alloc(SIZE), full(SIZE, LIMIT));
        assert_eq!(arena.alloc_dense(1), full(1, LIMIT));
        arena.free(blocks.pop().unwrap(), SIZE);
    }
    assert_eq!((arena.alloc(8), arena.footprint_bytes()), (full(8, LIMIT), LIMIT + SLACK));
    // Then any free block is, wherever it lies.
    arena.free(blocks.swap_remove(3), SIZE);
    arena.free(blocks.swap_remove(30), SIZE);
    blocks.extend([arena.alloc(SIZE).unwrap(), arena.alloc(SIZE).unwrap()]);
    assert_eq!(arena.alloc(SIZE), full(SIZE, LIMIT));
    arena.check().unwrap();

    // The top comes down again, and does not pass the limit a second time.
    arena.merge();
    assert_eq!(arena.footprint_bytes(), LIMIT);
    blocks.drain(..).for_each(|block| arena.free(block, SIZE));
    arena.merge();
    assert_eq!((arena.live_bytes(), arena.footprint_bytes()), (0, 0));
    assert_eq!(arena.alloc_dense(LIMIT + 1), full(LIMIT + 1, LIMIT));
    arena.alloc_dense(LIMIT).unwrap();
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
    assert_eq!(arena.alloc(64), Err(OutOfMemory { resource: Resource::Arena, bytes: 64, limit: 0 }));
    assert!(arena.alloc(8).is_err() && arena.alloc_dense(8).is_err());
    failpoint::arm(None);
    assert_eq!(arena.live_bytes(), before);
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
    arena.allow_slack(true);
    let bytes = (arena.slack_cap - START) as usize * UNIT;
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
        assert!(resident > 0 && resident <= 2 * rustix::param::page_size(), "{resident}");
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
            assert!(resident <= 4 * rustix::param::page_size(), "{resident} with huge pages {huge_pages}");
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
        let limit = ((1 << 30) - 2 * QUANTUM - SLACK_MIN) / 9 * 8;
        assert_eq!(arena.alloc_dense(2 << 30).unwrap_err().limit, limit);
        arena.alloc_dense(1 << 20).unwrap();
        arena.check().unwrap();
        // Halving ends at 64 MiB.
        let room = of_process("VmSize:") + (32 << 20);
        let refused = limited(Limited::As, room, || Arena::new(ArenaOptions::default()));
        assert_eq!(refused.err(), Some(OutOfMemory { resource: Resource::Arena, bytes: 8 << 30, limit: 0 }));

        // The system refuses to back memory that is reserved already.
        let (committed, live) = (arena.committed_bytes(), arena.live_bytes());
        let mut blocks = Vec::with_capacity(1000);
        let (refused, full, again) = limited(Limited::Data, of_process("VmData:") + (8 << 20) + (512 << 10), || {
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
