//! The nodes on the way to a prefix: found, added, and pruned when nothing is left in them.
//!
//! Nodes have no link to their parents, and a sibling that comes or goes moves them; so an update notes the indices on its
//! way down and works along them. An index on the path stays right until its own parent's array changes, which is why
//! changes are made from the deepest node upwards.

use crate::addr::Addr;
use crate::error::OutOfMemory;
use crate::grid;
use crate::prefix::Prefix;

use super::pool::NONE;
use super::{End, MAX_STEPS, NodeRecord, Rib, RouteCell, len_of};

/// The nodes from the root towards the end of a prefix, as far as they exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Index of the node of each step in its pool; that of step 0, the root, is unused.
    nodes: [u32; MAX_STEPS],
    /// The step of the last node of the path.
    last: usize,
}

impl<A: Addr> Rib<A> {
    /// Removes every route inside `prefix` and returns their number. Costs a visit to each of them, not to the table.
    pub(crate) fn remove_within(&mut self, prefix: Prefix<A>) -> u64 {
        let end = End::of(prefix);
        let path = self.path(prefix, end);
        if path.last != end.step {
            return 0;
        }
        self.changes += 1;
        let routes_before = self.route_count;
        let mut record = *self.record_at(&path, end.step);
        let population_before = record.population;

        let mut inside = record.prefixes() & grid::inside(end.position, end.len);
        while inside != 0 {
            let position = inside.trailing_zeros();
            inside &= inside - 1;
            let (rank, count) = (record.prefix_rank(position), record.prefix_count());
            self.release_routes(record.cells_start + rank);
            self.uncount(end.step, position);
            record.set_cells_block(self.store.cells.remove(record.cells_block(), count, rank));
            record.toggle_prefix(position);
            record.population -= 1;
        }
        let mut inside = record.children & grid::slots(end.slot, end.len);
        while inside != 0 {
            let slot = inside.trailing_zeros() as usize;
            inside &= inside - 1;
            let child = self.store.nodes[record.child_index(slot)];
            self.release_node(&child, end.step + 1);
            record.population -= child.population;
            self.unlink_child(&mut record, slot);
        }

        let removed = population_before - record.population;
        *self.record_at_mut(&path, end.step) = record;
        for step in 0..end.step {
            self.record_at_mut(&path, step).population -= removed;
        }
        self.prune(prefix, &path);
        (routes_before - self.route_count) as u64
    }

    /// Removes every route, frees all memory, and returns the number of routes.
    pub(crate) fn clear(&mut self) -> u64 {
        let removed = self.route_count as u64;
        *self = Rib { changes: self.changes + 1, ..Self::new() };
        removed
    }

    #[inline]
    pub(super) fn path(&self, prefix: Prefix<A>, end: End) -> Path {
        let mut path = Path { nodes: [0; MAX_STEPS], last: 0 };
        let mut record = &self.store.root;
        while path.last < end.step {
            let slot = prefix.addr().step_slot(path.last);
            if !record.has_child(slot) {
                break;
            }
            let index = record.child_index(slot);
            path.last += 1;
            path.nodes[path.last] = index;
            record = &self.store.nodes[index];
        }
        path
    }

    /// The first cell of the routes of the prefix that ends at `end`.
    #[inline]
    pub(super) fn head_on(&self, path: &Path, end: End) -> Option<u32> {
        if path.last != end.step {
            return None;
        }
        let record = self.record_at(path, end.step);
        record.has_prefix(end.position).then(|| record.cell_index(end.position))
    }

    #[inline(always)]
    fn record_at(&self, path: &Path, step: usize) -> &NodeRecord {
        if step == 0 { &self.store.root } else { &self.store.nodes[path.nodes[step]] }
    }

    #[inline(always)]
    fn record_at_mut(&mut self, path: &Path, step: usize) -> &mut NodeRecord {
        if step == 0 { &mut self.store.root } else { &mut self.store.nodes[path.nodes[step]] }
    }

    /// Reserves what [`Rib::add_prefix`] takes.
    pub(super) fn reserve_prefix(&mut self, path: &Path, end: End) -> Result<(), OutOfMemory> {
        let record = self.record_at(path, path.last);
        if path.last == end.step {
            let grown = record.cells_block().growth(record.prefix_count());
            return self.store.cells.reserve(grown, 0);
        }
        let grown = record.nodes_block().growth(record.child_count());
        self.store.nodes.reserve(grown, (end.step - path.last - 1) as u32)?;
        self.store.cells.reserve(None, 1)
    }

    /// Adds a prefix with its first route, and the nodes that are missing on the way to it.
    pub(super) fn add_prefix(&mut self, prefix: Prefix<A>, cell: RouteCell, path: &Path) {
        let end = End::of(prefix);
        if path.last == end.step {
            let mut record = *self.record_at(path, end.step);
            let (block, count) = (record.cells_block(), record.prefix_count());
            record.set_cells_block(self.store.cells.insert(block, count, record.prefix_rank(end.position), cell));
            record.toggle_prefix(end.position);
            *self.record_at_mut(path, end.step) = record;
        } else {
            let mut branch = NodeRecord { population: 1, ..NodeRecord::default() };
            branch.toggle_prefix(end.position);
            branch.cells_start = self.store.cells.take_single(cell);
            for step in (path.last + 1..end.step).rev() {
                branch = NodeRecord {
                    children: 1 << prefix.addr().step_slot(step),
                    population: 1,
                    nodes_start: self.store.nodes.take_single(branch),
                    ..NodeRecord::default()
                };
            }
            let slot = prefix.addr().step_slot(path.last);
            let mut record = *self.record_at(path, path.last);
            let (block, count) = (record.nodes_block(), record.child_count());
            record.set_nodes_block(self.store.nodes.insert(block, count, record.child_rank(slot), branch));
            record.children |= 1 << slot;
            *self.record_at_mut(path, path.last) = record;
        }
        for step in 0..=path.last {
            self.record_at_mut(path, step).population += 1;
        }
        self.count_by_len[usize::from(prefix.len())] += 1;
    }

    /// Takes a prefix away whose only route is in `cell`.
    pub(super) fn drop_prefix(&mut self, prefix: Prefix<A>, cell: u32, path: &Path) {
        let end = End::of(prefix);
        let mut record = *self.record_at(path, end.step);
        let (block, count) = (record.cells_block(), record.prefix_count());
        record.set_cells_block(self.store.cells.remove(block, count, cell - record.cells_start));
        record.toggle_prefix(end.position);
        *self.record_at_mut(path, end.step) = record;
        for step in 0..=end.step {
            self.record_at_mut(path, step).population -= 1;
        }
        self.count_by_len[usize::from(prefix.len())] -= 1;
        self.prune(prefix, path);
    }

    /// Removes the nodes at the end of `path` that have become empty.
    fn prune(&mut self, prefix: Prefix<A>, path: &Path) {
        for step in (1..=path.last).rev() {
            if !self.record_at(path, step).is_empty() {
                return;
            }
            let mut parent = *self.record_at(path, step - 1);
            self.unlink_child(&mut parent, prefix.addr().step_slot(step - 1));
            *self.record_at_mut(path, step - 1) = parent;
        }
        if self.store.root.is_empty() {
            self.store.nodes.reset();
            self.store.cells.reset();
        }
    }

    /// Takes the child at `slot` out of the array of `record`, which the caller writes back.
    fn unlink_child(&mut self, record: &mut NodeRecord, slot: usize) {
        let (block, count) = (record.nodes_block(), record.child_count());
        record.set_nodes_block(self.store.nodes.remove(block, count, record.child_rank(slot)));
        record.children &= !(1 << slot);
    }

    /// Gives everything below `record`, a node of `step`, back and counts it off.
    fn release_node(&mut self, record: &NodeRecord, step: usize) {
        let mut prefixes = record.prefixes();
        let mut cell = record.cells_start;
        while prefixes != 0 {
            self.uncount(step, prefixes.trailing_zeros());
            self.release_routes(cell);
            cell += 1;
            prefixes &= prefixes - 1;
        }
        for child in record.nodes_start..record.nodes_start + record.child_count() {
            let child = self.store.nodes[child];
            self.release_node(&child, step + 1);
        }
        if record.prefix_count() > 0 {
            self.store.cells.give(record.cells_block());
        }
        if record.children != 0 {
            self.store.nodes.give(record.nodes_block());
        }
    }

    /// Counts the routes of the list that starts in cell `head` off and gives all but the first back.
    fn release_routes(&mut self, head: u32) {
        self.route_count -= 1;
        let mut cell = self.store.cells[head].next();
        while cell != NONE {
            let next = self.store.cells[cell].next();
            self.store.cells.give_single(cell);
            self.route_count -= 1;
            cell = next;
        }
    }

    fn uncount(&mut self, step: usize, position: u32) {
        let (_, len) = grid::place(position);
        self.count_by_len[len_of::<A>(step, len) as usize] -= 1;
    }
}
