//! The Rib: every route of one family of one table, seen by the writer only.
//!
//! A tree on the 6-bit grid of `addr.rs`: a node stands for one step and holds the prefixes that *end* in it, as a map
//! of the 127 positions of `grid.rs` with one route cell for each set bit. Its children, one for each of the 64 slots
//! that has longer prefixes, are stored by value in one array, so a step down is a bit test, a count of bits and one
//! memory access. Routes of one prefix are a list in order of preference, of which only the first, the *winner*,
//! forwards; all others hang behind it.
//!
//! ```text
//! node of step 2 (IPv4 bits 12..=17), 40 bytes
//!   prefixes  . 1 . . 1 1 . .   127 positions: /13 to /18      children  . . 1 . 1 . .   64 slots
//!               |     | |                                                    |   |
//!   cells     [ r     r r ]     16 bytes each                   nodes     [ n   n ]      nodes of step 3
//!               |  link                        population: prefixes in this node and below
//!               v
//!               r -> r          more routes of the prefix, in order
//! ```
//!
//! Invariants ([`Rib::check`] asserts them):
//! 1. The `i`-th set bit of `prefixes` belongs to `cells[i]`, the `i`-th set bit of `children` to `nodes[i]`.
//! 2. Every node but the root holds a prefix or a child; `population` counts the prefixes of its subtree.
//! 3. A list is sorted by priority; no two of its routes agree in priority, next hop and owner.
//! 4. Every item of a pool is in exactly one block, and a block is in use or on one free list.
//! 5. `count_by_len` and `route_count` are the numbers that a walk counts; an empty Rib has no block.
//!
//! An update has two phases, so that the trie can be planned between them: `plan_*` checks the rules and reserves the
//! memory, `commit_*` cannot fail (`edit.rs`, `path.rs`). Ordered walks and covers are in `walk.rs`, the marks of a
//! refresh in `stale.rs`, memory in `pool.rs`, the invariants in `check.rs`.
//!
//! Source: the two maps of a node are those of Eatherton, Varghese and Dittia, "Tree Bitmap", ACM SIGCOMM CCR 34(2),
//! 2004, with positions in preorder instead of by length.

mod check;
mod edit;
mod path;
mod pool;
mod stale;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use edit::{InsertMode, RibError};
use walk::{Covers, CoversLongestFirst, Routes, Walk};

use crate::addr::Addr;
use crate::grid;
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::route::Route;
use pool::{Block, Item, NONE, Pool};

/// Steps of the grid of the family that has more of them.
const MAX_STEPS: usize = <u128 as Addr>::STEPS;
/// Lengths of a prefix of the family that has more of them.
const MAX_LENGTHS: usize = <u128 as Addr>::BITS as usize + 1;

/// A route in memory, 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct RouteCell {
    next_hop: u32,
    priority: u32,
    owner: u32,
    /// The index of the next route of the prefix or [`NONE`], and the mark [`RouteCell::STALE`].
    link: u32,
}

const _: () = assert!(size_of::<RouteCell>() == 16);

impl RouteCell {
    const STALE: u32 = 1 << 31;

    fn new(route: Route, next: u32) -> Self {
        RouteCell { next_hop: route.next_hop.get(), priority: route.priority, owner: route.owner, link: next }
    }

    #[inline(always)]
    fn route(&self) -> Route {
        Route { next_hop: self.next_hop(), priority: self.priority, owner: self.owner }
    }

    #[inline(always)]
    fn next_hop(&self) -> NextHopId {
        NextHopId::from_slot(self.next_hop)
    }

    #[inline(always)]
    fn next(&self) -> u32 {
        self.link & !Self::STALE
    }

    fn set_next(&mut self, next: u32) {
        self.link = self.link & Self::STALE | next;
    }

    fn is_stale(&self) -> bool {
        self.link & Self::STALE != 0
    }

    fn set_stale(&mut self, stale: bool) {
        self.link = self.next() | if stale { Self::STALE } else { 0 };
    }
}

impl Item for RouteCell {
    fn free_link(&self) -> u32 {
        self.link
    }
    fn set_free_link(&mut self, next: u32) {
        self.link = next;
    }
}

/// A node in memory, 40 bytes. The map of prefixes is two words, since a `u128` would align the node to 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct NodeRecord {
    prefix_words: [u64; 2],
    children: u64,
    population: u32,
    cells_start: u32,
    nodes_start: u32,
    cells_class: u8,
    nodes_class: u8,
}

const _: () = assert!(size_of::<NodeRecord>() == 40);

impl NodeRecord {
    #[inline(always)]
    fn prefixes(&self) -> u128 {
        u128::from(self.prefix_words[0]) | u128::from(self.prefix_words[1]) << 64
    }

    #[inline(always)]
    fn has_prefix(&self, position: u32) -> bool {
        self.prefix_words[position as usize >> 6 & 1] >> (position & 63) & 1 == 1
    }

    fn toggle_prefix(&mut self, position: u32) {
        self.prefix_words[position as usize >> 6 & 1] ^= 1 << (position & 63);
    }

    fn prefix_count(&self) -> u32 {
        self.prefixes().count_ones()
    }

    /// How many prefixes of this node stand before `position`.
    #[inline(always)]
    fn prefix_rank(&self, position: u32) -> u32 {
        let below = (1u64 << (position & 63)) - 1;
        if position < 64 {
            (self.prefix_words[0] & below).count_ones()
        } else {
            self.prefix_words[0].count_ones() + (self.prefix_words[1] & below).count_ones()
        }
    }

    /// The first route cell of the prefix at `position`, which must be set.
    #[inline(always)]
    fn cell_index(&self, position: u32) -> u32 {
        self.cells_start + self.prefix_rank(position)
    }

    #[inline(always)]
    fn has_child(&self, slot: usize) -> bool {
        self.children >> (slot & 63) & 1 == 1
    }

    fn child_count(&self) -> u32 {
        self.children.count_ones()
    }

    /// How many children of this node stand before `slot`.
    #[inline(always)]
    fn child_rank(&self, slot: usize) -> u32 {
        (self.children & ((1u64 << (slot & 63)) - 1)).count_ones()
    }

    /// The index of the child at `slot`, which must be set.
    #[inline(always)]
    fn child_index(&self, slot: usize) -> u32 {
        self.nodes_start + self.child_rank(slot)
    }

    fn is_empty(&self) -> bool {
        self.prefix_words == [0; 2] && self.children == 0
    }

    fn cells_block(&self) -> Block {
        Block { start: self.cells_start, class: self.cells_class }
    }

    fn set_cells_block(&mut self, block: Block) {
        (self.cells_start, self.cells_class) = (block.start, block.class);
    }

    fn nodes_block(&self) -> Block {
        Block { start: self.nodes_start, class: self.nodes_class }
    }

    fn set_nodes_block(&mut self, block: Block) {
        (self.nodes_start, self.nodes_class) = (block.start, block.class);
    }
}

impl Item for NodeRecord {
    fn free_link(&self) -> u32 {
        self.nodes_start
    }
    fn set_free_link(&mut self, next: u32) {
        self.nodes_start = next;
    }
}

/// The memory of a Rib.
struct Store {
    root: NodeRecord,
    nodes: Pool<NodeRecord>,
    cells: Pool<RouteCell>,
}

impl Store {
    #[inline(always)]
    fn child(&self, record: &NodeRecord, slot: usize) -> Option<&NodeRecord> {
        if record.has_child(slot) { Some(&self.nodes[record.child_index(slot)]) } else { None }
    }

    #[inline(always)]
    fn winner(&self, record: &NodeRecord, position: u32) -> Route {
        self.cells[record.cell_index(position)].route()
    }
}

/// Where a prefix lives: the step that it ends in, and its first slot, length and position there.
#[derive(Clone, Copy, Debug)]
struct End {
    step: usize,
    slot: usize,
    len: u32,
    position: u32,
}

impl End {
    #[inline(always)]
    fn of<A: Addr>(prefix: Prefix<A>) -> Self {
        let (step, len) = prefix.grid_end();
        let slot = prefix.addr().step_slot(step);
        End { step, slot, len, position: grid::position(slot, len) }
    }
}

/// The prefix of `len` bits that holds `addr`.
#[inline(always)]
fn prefix_of<A: Addr>(addr: A, len: u32) -> Prefix<A> {
    // The length comes from a position of the grid, so it is in range and this cannot fail.
    Prefix::truncating(addr, len as u8).unwrap_or(Prefix::DEFAULT)
}

/// The length of a prefix that ends in `step` with `len` bits of the grid.
#[inline(always)]
fn len_of<A: Addr>(step: usize, len: u32) -> u32 {
    (crate::addr::STEP_BITS * step as u32 + len).saturating_sub(A::LEAD)
}

/// Positions that span each slot. Ascending bits are ascending lengths.
static COVERING: [u128; 64] = {
    let mut table = [0; 64];
    let mut slot = 0;
    while slot < 64 {
        table[slot] = grid::covering(slot);
        slot += 1;
    }
    table
};

/// The positions up to `position`, itself included.
#[inline(always)]
fn up_to(position: u32) -> u128 {
    u128::MAX >> (127 - position)
}

/// Every route of one family of one table. See the module for the shape.
///
/// Costs: an update or an exact match is one memory access a step of the prefix and one or two for its route; nothing
/// depends on the size of the table.
pub(crate) struct Rib<A> {
    store: Store,
    /// Prefixes of each length; the lengths of the family come first, the rest stays 0.
    count_by_len: [u32; MAX_LENGTHS],
    route_count: usize,
    /// Changes made so far; a plan is good for the number that it was made at.
    changes: u64,
    family: std::marker::PhantomData<A>,
}

impl<A: Addr> Rib<A> {
    /// An empty Rib; it holds no memory until the first route.
    pub(crate) const fn new() -> Self {
        Rib {
            store: Store {
                root: NodeRecord {
                    prefix_words: [0; 2],
                    children: 0,
                    population: 0,
                    cells_start: 0,
                    nodes_start: 0,
                    cells_class: 0,
                    nodes_class: 0,
                },
                nodes: Pool::new(),
                cells: Pool::new(),
            },
            count_by_len: [0; MAX_LENGTHS],
            route_count: 0,
            changes: 0,
            family: std::marker::PhantomData,
        }
    }

    /// The first cell of the routes of `prefix`.
    #[inline]
    fn head(&self, prefix: Prefix<A>) -> Option<u32> {
        let end = End::of(prefix);
        let mut record = &self.store.root;
        for step in 0..end.step {
            record = self.store.child(record, prefix.addr().step_slot(step))?;
        }
        record.has_prefix(end.position).then(|| record.cell_index(end.position))
    }

    /// The winning route of exactly `prefix`.
    pub(crate) fn get(&self, prefix: Prefix<A>) -> Option<Route> {
        self.head(prefix).map(|cell| self.store.cells[cell].route())
    }

    /// All routes of exactly `prefix`, the winner first.
    pub(crate) fn routes(&self, prefix: Prefix<A>) -> Routes<'_> {
        Routes::new(&self.store, self.head(prefix).unwrap_or(NONE))
    }

    /// The longest prefix that holds `addr`, and its winning route.
    pub(crate) fn longest_match(&self, addr: A) -> Option<(Prefix<A>, Route)> {
        self.longest_cover(Prefix::host(addr), true)
    }

    /// The longest prefix that covers `prefix` and is shorter, and its winning route.
    pub(crate) fn parent(&self, prefix: Prefix<A>) -> Option<(Prefix<A>, Route)> {
        self.longest_cover(prefix, false)
    }

    /// The longest cover of `prefix`; whether `prefix` itself counts is the caller's choice.
    fn longest_cover(&self, prefix: Prefix<A>, itself: bool) -> Option<(Prefix<A>, Route)> {
        let end = End::of(prefix);
        let mut record = &self.store.root;
        let mut best = None;
        for step in 0..=end.step {
            let slot = prefix.addr().step_slot(step);
            let mut covers = record.prefixes() & COVERING[slot];
            if step == end.step {
                covers &= if itself { up_to(end.position) } else { up_to(end.position) >> 1 };
            }
            if covers != 0 {
                best = Some((step, record, 127 - covers.leading_zeros()));
            }
            match self.store.child(record, slot) {
                Some(child) if step < end.step => record = child,
                _ => break,
            }
        }
        let (step, record, position) = best?;
        let (_, len) = grid::place(position);
        Some((prefix_of(prefix.addr(), len_of::<A>(step, len)), self.store.winner(record, position)))
    }

    /// The shortest prefix that holds `addr`, and its winning route.
    pub(crate) fn shortest_match(&self, addr: A) -> Option<(Prefix<A>, Route)> {
        self.covers(Prefix::host(addr)).next()
    }

    /// The prefixes that cover `prefix`, itself included if present, shortest first.
    pub(crate) fn covers(&self, prefix: Prefix<A>) -> Covers<'_, A> {
        Covers::new(&self.store, prefix)
    }

    /// The prefixes that cover `prefix`, itself included if present, longest first.
    pub(crate) fn covers_longest_first(&self, prefix: Prefix<A>) -> CoversLongestFirst<'_, A> {
        CoversLongestFirst::new(&self.store, prefix)
    }

    /// The prefixes inside `prefix`, itself included if present, by address, then length.
    pub(crate) fn within(&self, prefix: Prefix<A>) -> Walk<'_, A> {
        Walk::within(&self.store, prefix)
    }

    /// All prefixes from `first` on, by address, then length; `first` itself need not be present.
    pub(crate) fn iter_from(&self, first: Prefix<A>) -> Walk<'_, A> {
        Walk::from(&self.store, first)
    }

    /// Prefixes that have a route.
    pub(crate) fn prefix_count(&self) -> usize {
        self.store.root.population as usize
    }

    /// Routes, those waiting behind a winner included.
    pub(crate) fn route_count(&self) -> usize {
        self.route_count
    }

    /// Prefixes of each length, `Addr::BITS + 1` numbers.
    pub(crate) fn count_by_len(&self) -> &[u32] {
        &self.count_by_len[..=usize::from(A::BITS)]
    }

    /// Bytes of memory held, reserved ones included.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.store.nodes.bytes() + self.store.cells.bytes()
    }

    /// The node of step 0. It is always there and may be empty.
    #[inline(always)]
    pub(crate) fn root(&self) -> Node<'_> {
        Node { store: &self.store, record: &self.store.root }
    }
}

/// A node as the trie's planner sees it, to descend beside the trie.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    store: &'a Store,
    record: &'a NodeRecord,
}

impl<'a> Node<'a> {
    /// The positions of the prefixes that end in this step.
    #[inline(always)]
    pub(crate) fn prefixes(self) -> u128 {
        self.record.prefixes()
    }

    /// The slots that have longer prefixes.
    #[inline(always)]
    pub(crate) fn children(self) -> u64 {
        self.record.children
    }

    /// The node of the next step at `slot`.
    #[inline(always)]
    pub(crate) fn child(self, slot: usize) -> Option<Node<'a>> {
        let record = self.store.child(self.record, slot)?;
        Some(Node { store: self.store, record })
    }

    /// The next hop of the winning route at `position`, which must be one of [`Node::prefixes`].
    #[inline(always)]
    pub(crate) fn winner(self, position: u32) -> NextHopId {
        debug_assert!(self.record.has_prefix(position));
        self.store.cells[self.record.cell_index(position)].next_hop()
    }

    /// Prefixes in this node and below.
    #[inline(always)]
    pub(crate) fn population(self) -> u32 {
        self.record.population
    }
}
