//! Changes to a trie: plan the new images, reserve their blocks, publish.
//!
//! A plan walks Rib and trie in lockstep from the root along the changed prefix. The Rib's maps say which slots below
//! the prefix belong to longer prefixes; the rest take the new value. A node whose word stays the same is changed in
//! place, slot by slot; any other is built aside in a fresh block, whose offset then replaces the old one in the
//! parent, and so on upward until a parent's shape stays. While planning, nothing published is touched: the plan is a
//! list of fresh blocks, of stores and of blocks to retire, so dropping it undoes everything.
//!
//! ```text
//! plan      fresh blocks built     stores noted      retired blocks noted      may fail: free the fresh blocks
//! publish                          each one Release  handed to reclaim/        cannot fail
//! ```
//!
//! Invariants used here (numbers as in `trie/mod.rs`): a subtree without routes is a leaf (I5), a sparse node is
//! never uniform (I3), so a leaf in the trie above routes in the Rib says that all of them lead to that leaf's value.

use super::arena::Arena;
use super::node::{Bits, Child, Edit, Entry, Image, Nodes, Root, Runs, Slot, Width};
use super::resize::{self, dense_slots};
use crate::addr::{Addr, STEP_SLOTS};
use crate::error::{OutOfMemory, Resource};
use crate::failpoint;
use crate::grid;
use crate::prefix::Prefix;
use crate::rib;

/// A node's block: where it is, how long, and from which side of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    offset: u32,
    /// Bytes as asked for, times two, plus one when dense.
    size: u32,
}

impl Block {
    fn sparse(offset: u32, bytes: usize) -> Block {
        Block { offset, size: (bytes as u32) << 1 }
    }

    fn dense(offset: u32, slots: usize) -> Block {
        Block { offset, size: (slots as u32 * 4) << 1 | 1 }
    }

    fn is_dense(self) -> bool {
        self.size & 1 == 1
    }

    /// Bytes that the block takes in the arena, alignment included.
    pub(crate) fn bytes(self) -> usize {
        let bytes = (self.size >> 1) as usize;
        if self.is_dense() { Arena::dense_block_bytes(bytes) } else { Arena::block_bytes(bytes) }
    }

    /// Gives the block back to the arena. Only the writer, and only when no reader can hold its offset.
    pub(crate) fn free(self, arena: &mut Arena) {
        let bytes = (self.size >> 1) as usize;
        if self.is_dense() { arena.free_dense(self.offset, bytes) } else { arena.free(self.offset, bytes) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Store {
    /// Into one slot of a dense node.
    Dense { offset: u32, index: u32, slot: Slot },
    /// Into a run of slots of a dense node.
    Fill { offset: u32, first: u32, count: u32, slot: Slot },
    /// Into one stored slot of a sparse node.
    Sparse { offset: u32, rank: u32, slot: Slot },
}

/// What an update will do. Kept by the writer from update to update for its buffers.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    fresh: Vec<Block>,
    stores: Vec<Store>,
    retired: Vec<Block>,
    root: Option<Root>,
    /// Some node on the path has a population that asks for another span.
    reshape: bool,
}

impl Plan {
    /// Blocks that publishing will retire.
    pub(crate) fn retired_blocks(&self) -> usize {
        self.retired.len()
    }

    /// Bytes that publishing will retire.
    pub(crate) fn retired_bytes(&self) -> usize {
        self.retired.iter().map(|block| block.bytes()).sum()
    }

    /// Gives all fresh blocks back and forgets the rest: nothing was changed.
    pub(crate) fn abandon(&mut self, arena: &mut Arena) {
        for block in self.fresh.drain(..) {
            block.free(arena);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.fresh.clear();
        self.stores.clear();
        self.retired.clear();
        self.root = None;
        self.reshape = false;
        // A whole-table change may have made the lists large; do not keep that for ever.
        const KEPT: usize = 1 << 16;
        self.fresh.shrink_to(KEPT);
        self.stores.shrink_to(KEPT);
        self.retired.shrink_to(KEPT);
    }
}

#[inline(always)]
fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), OutOfMemory> {
    if list.len() == list.capacity() || failpoint::fails() {
        grow(list)?;
    }
    list.push(item);
    Ok(())
}

#[cold]
fn grow<T>(list: &mut Vec<T>) -> Result<(), OutOfMemory> {
    let refused = OutOfMemory { resource: Resource::Plan, bytes: size_of::<T>(), limit: 0 };
    if failpoint::fails() {
        return Err(refused);
    }
    list.try_reserve(list.len().max(32)).map_err(|_| refused)
}

/// Counts of what a trie is made of; kept current by each publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) bytes: usize,
    pub(crate) sparse_nodes: usize,
    pub(crate) dense_nodes: usize,
}

impl Counts {
    fn add(&mut self, block: Block) {
        self.bytes += block.bytes();
        if block.is_dense() { self.dense_nodes += 1 } else { self.sparse_nodes += 1 }
    }

    fn remove(&mut self, block: Block) {
        self.bytes -= block.bytes();
        if block.is_dense() { self.dense_nodes -= 1 } else { self.sparse_nodes -= 1 }
    }
}

/// The writer's side of one trie.
#[derive(Debug)]
pub(crate) struct Trie<A> {
    pub(crate) root: Root,
    pub(crate) root_limit: usize,
    pub(crate) counts: Counts,
    family: std::marker::PhantomData<A>,
}

impl<A: Addr> Trie<A> {
    /// An empty trie whose root never spans more than `root_limit` grid steps.
    pub(crate) fn new(
        arena: &mut Arena,
        nodes: Nodes,
        width: Width,
        root_limit: usize,
    ) -> Result<(Self, Entry), OutOfMemory> {
        let slots = dense_slots(A::LEAD, 0, 1);
        let offset = arena.alloc_dense(slots * 4)?;
        nodes.fill_dense(offset, 0, slots, Slot::MISS);
        let root = Root { offset, steps: 1, width };
        let mut counts = Counts::default();
        counts.add(Block::dense(offset, slots));
        let trie = Trie { root, root_limit, counts, family: std::marker::PhantomData };
        Ok((trie, Entry::new(root)))
    }

    fn planner<'a>(&self, arena: &'a mut Arena, nodes: Nodes, plan: &'a mut Plan) -> Planner<'a, A> {
        let Root { steps: root_steps, width, .. } = self.planned_root(plan);
        let root_limit = self.root_limit;
        Planner { nodes, arena, plan, width, root_steps, root_limit, family: std::marker::PhantomData }
    }

    /// The root that is in force once `plan` is published. A route can so be planned into a trie that was just planned
    /// anew: what it replaces there goes from fresh to retired without ever being seen.
    fn planned_root(&self, plan: &Plan) -> Root {
        plan.root.unwrap_or(self.root)
    }

    fn root_slot(&self) -> Slot {
        Slot::dense(self.root.offset, self.root.steps)
    }

    /// Starts to load the nodes that an update of a prefix at `addr` will look at, while the Rib is being read.
    #[inline]
    pub(crate) fn prefetch(&self, nodes: Nodes, addr: A) {
        if let Child::Sparse(offset) = nodes.dense(self.root.offset, addr.top_slots(self.root.steps)).child() {
            nodes.prefetch(offset);
        }
    }

    /// Plans that the addresses of `prefix` (not `/0`) which no longer prefix covers get `value`. `rib` is the Rib's
    /// root *before* the change; `gone` is by how much its population shrinks.
    ///
    /// On an error the plan is abandoned: nothing has changed.
    pub(crate) fn plan_route(
        &self,
        arena: &mut Arena,
        nodes: Nodes,
        plan: &mut Plan,
        rib: rib::Node<'_>,
        prefix: Prefix<A>,
        change: Change,
    ) -> Result<(), OutOfMemory> {
        let root = self.planned_root(plan);
        let mut planner = self.planner(arena, nodes, plan);
        let (end, bits) = prefix.grid_end();
        let route = RoutePlan { addr: prefix.addr(), end, bits, change };
        let planned = planner.route_root(&route, rib, root, self.root_limit);
        if planned.is_err() {
            plan.abandon(arena);
        }
        planned
    }

    /// Plans another span for the first node on the way to `prefix` whose population asks for it. Returns whether
    /// there is one. `rib` is the Rib's root as it is now.
    pub(crate) fn plan_reshape(
        &self,
        arena: &mut Arena,
        nodes: Nodes,
        plan: &mut Plan,
        rib: rib::Node<'_>,
        prefix: Prefix<A>,
    ) -> Result<bool, OutOfMemory> {
        let mut planner = self.planner(arena, nodes, plan);
        let planned = planner.reshape_root(rib, prefix, self.root, self.root_limit);
        if planned.is_err() {
            plan.abandon(arena);
        }
        planned
    }

    /// Plans the whole trie anew from the Rib, with slots of `width`.
    pub(crate) fn plan_rebuild(
        &self,
        arena: &mut Arena,
        nodes: Nodes,
        plan: &mut Plan,
        rib: rib::Node<'_>,
        width: Width,
    ) -> Result<(), OutOfMemory> {
        let steps = resize::root_steps::<A>(root_population::<A>(rib), 1, self.root_limit);
        let mut planner = self.planner(arena, nodes, plan);
        let planned = planner.retire_subtree(self.root_slot(), 0).and_then(|()| {
            planner.width = width;
            planner.root_steps = steps;
            planner.build_root(rib, steps)
        });
        if planned.is_err() {
            plan.abandon(arena);
        }
        planned
    }

    /// Plans an empty trie.
    pub(crate) fn plan_clear(&self, arena: &mut Arena, nodes: Nodes, plan: &mut Plan) -> Result<(), OutOfMemory> {
        let mut planner = self.planner(arena, nodes, plan);
        let planned = planner.retire_subtree(self.root_slot(), 0).and_then(|()| {
            let slots = dense_slots(A::LEAD, 0, 1);
            let offset = planner.alloc_dense(slots)?;
            nodes.fill_dense(offset, 0, slots, Slot::MISS);
            planner.plan.root = Some(Root { offset, steps: 1, ..self.root });
            Ok(())
        });
        if planned.is_err() {
            plan.abandon(arena);
        }
        planned
    }

    /// Carries the plan out: stores first to last, then hands each replaced block to `retire`. Returns whether a node
    /// on the path asks for another span.
    pub(crate) fn publish(
        &mut self,
        nodes: Nodes,
        plan: &mut Plan,
        entry: &Entry,
        mut retire: impl FnMut(Block),
    ) -> bool {
        let width = self.planned_root(plan).width;
        // The order does not matter: fresh blocks are complete, and no address is reached by two of the stores.
        for store in &plan.stores {
            match *store {
                Store::Dense { offset, index, slot } => nodes.store_dense(offset, index as usize, slot),
                Store::Fill { offset, first, count, slot } => {
                    nodes.fill_dense(offset, first as usize, count as usize, slot);
                }
                Store::Sparse { offset, rank, slot } => nodes.store_sparse(width, offset, rank as usize, slot),
            }
        }
        if let Some(root) = plan.root {
            self.root = root;
            entry.publish_root(root);
        }
        for block in &plan.fresh {
            self.counts.add(*block);
        }
        for block in &plan.retired {
            self.counts.remove(*block);
            retire(*block);
        }
        let reshape = plan.reshape;
        plan.clear();
        reshape
    }

    /// Frees every block at once: for a trie that no reader can see any more.
    pub(crate) fn destroy(self, arena: &mut Arena, nodes: Nodes) {
        free_subtree::<A>(arena, nodes, self.root.width, self.root_slot(), 0);
    }
}

fn free_subtree<A: Addr>(arena: &mut Arena, nodes: Nodes, width: Width, slot: Slot, step: usize) {
    match slot.child() {
        Child::Leaf => {}
        Child::Sparse(offset) => {
            let word = nodes.word(offset);
            for rank in 0..word.count_ones() as usize {
                free_subtree::<A>(arena, nodes, width, nodes.stored_slot(width, offset, word, rank), step + 1);
            }
            Block::sparse(offset, nodes.sparse_block_bytes(width, offset)).free(arena);
        }
        Child::Dense(offset, steps) => {
            let slots = dense_slots(A::LEAD, step, steps);
            for index in 0..slots {
                free_subtree::<A>(arena, nodes, width, nodes.dense(offset, index), step + steps);
            }
            Block::dense(offset, slots).free(arena);
        }
    }
}

/// What a route update does to the addresses of its prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Those that no longer prefix covers get this value; the Rib's population grows by one if `added`, shrinks by
    /// one if `removed`.
    Own {
        /// The new value.
        value: Slot,
        /// Whether the prefix had no route before.
        added: bool,
        /// Whether the prefix has no route afterwards.
        removed: bool,
    },
    /// All of them get this value, since the prefix and all inside it lose their routes.
    Clear {
        /// The value of the longest prefix above.
        value: Slot,
        /// How many prefixes go.
        removed: u32,
    },
}

impl Change {
    fn value(self) -> Slot {
        match self {
            Change::Own { value, .. } | Change::Clear { value, .. } => value,
        }
    }

    fn population_after(self, before: u32) -> u32 {
        match self {
            Change::Own { added, removed, .. } => before + u32::from(added) - u32::from(removed),
            Change::Clear { removed, .. } => before - removed,
        }
    }
}

struct RoutePlan<A> {
    addr: A,
    /// Grid step that the prefix ends in.
    end: usize,
    /// Bits that it uses there, 1 to 6.
    bits: u32,
    change: Change,
}

impl<A: Addr> RoutePlan<A> {
    fn slot(&self) -> usize {
        self.addr.step_slot(self.end)
    }

    /// The slots of step `end` that change hands, given the Rib node there.
    fn owned(&self, rib: Option<rib::Node<'_>>) -> u64 {
        let span = grid::slots(self.slot(), self.bits);
        match (self.change, rib) {
            (Change::Clear { .. }, _) | (_, None) => span,
            (Change::Own { .. }, Some(rib)) => {
                let own = grid::position(self.slot(), self.bits);
                span & !grid::covered_slots(rib.prefixes() & grid::inside(own, self.bits) & !(1 << own))
            }
        }
    }
}

struct Planner<'a, A> {
    nodes: Nodes,
    arena: &'a mut Arena,
    plan: &'a mut Plan,
    /// Width of the slots, and span of the root, that will be in force.
    width: Width,
    root_steps: usize,
    root_limit: usize,
    family: std::marker::PhantomData<A>,
}

impl<A: Addr> Planner<'_, A> {
    fn inner_steps(&self, population: u32, step: usize, current: usize) -> usize {
        resize::inner_steps::<A>(population, step, current, self.root_steps, self.root_limit)
    }

    // ---- one route -------------------------------------------------------------------------------------------

    fn route_root(
        &mut self,
        route: &RoutePlan<A>,
        rib: rib::Node<'_>,
        root: Root,
        limit: usize,
    ) -> Result<(), OutOfMemory> {
        let population = route.change.population_after(root_population::<A>(rib));
        self.plan.reshape |= resize::root_steps::<A>(population, root.steps, limit) != root.steps;
        self.route_dense(route, Some(rib), 0, root.offset, 0, root.steps)
    }

    /// The new value of a slot whose subtree starts at `step` and holds the route's prefix.
    fn route_slot(
        &mut self,
        route: &RoutePlan<A>,
        rib: Option<rib::Node<'_>>,
        step: usize,
        old: Slot,
    ) -> Result<Slot, OutOfMemory> {
        let population = route.change.population_after(rib.map_or(0, |rib| rib.population()));
        if population == 0 {
            // I5: what has no routes is a leaf. All of it has the value from above now.
            self.retire_subtree(old, step)?;
            return Ok(route.change.value());
        }
        if let Child::Dense(offset, steps) = old.child() {
            self.plan.reshape |= self.inner_steps(population, step, steps) != steps;
            self.route_dense(route, rib, step, offset, 0, steps)?;
            return Ok(old);
        }
        self.plan.reshape |= self.inner_steps(population, step, 0) != 0;
        let mut edit = Edit::new(self.nodes, self.width, old);
        if step < route.end {
            let slot = route.addr.step_slot(step);
            let before = edit.before(slot);
            let new = self.route_slot(route, rib.and_then(|rib| rib.child(slot)), step + 1, before)?;
            edit.set(slot, before, new);
        } else {
            self.own_slots(route, rib, step, &mut edit, route.owned(rib))?;
        }
        self.finish(&edit)
    }

    /// Notes in `edit` what becomes of the slots in `open`, none of which a prefix of the Rib node `rib` covers.
    fn own_slots(
        &mut self,
        route: &RoutePlan<A>,
        rib: Option<rib::Node<'_>>,
        step: usize,
        edit: &mut Edit,
        open: u64,
    ) -> Result<(), OutOfMemory> {
        let with_children = rib.map_or(0, |rib| rib.children());
        edit.fill(open & !with_children, route.change.value());
        for slot in Bits(open & with_children) {
            let before = edit.before(slot);
            let new = self.own_slot(route, rib.and_then(|rib| rib.child(slot)), step + 1, before)?;
            edit.set(slot, before, new);
        }
        Ok(())
    }

    /// As `route_slot` for the `64^steps` slots from `first` on of a dense node, which stand for the Rib node `rib`.
    fn route_dense(
        &mut self,
        route: &RoutePlan<A>,
        rib: Option<rib::Node<'_>>,
        step: usize,
        offset: u32,
        first: usize,
        steps: usize,
    ) -> Result<(), OutOfMemory> {
        let below = 1 << (6 * (steps - 1));
        if step < route.end {
            let slot = route.addr.step_slot(step);
            let child = rib.and_then(|rib| rib.child(slot));
            if steps > 1 {
                return self.route_dense(route, child, step + 1, offset, first + slot * below, steps - 1);
            }
            let old = self.nodes.dense(offset, first + slot);
            let new = self.route_slot(route, child, step + 1, old)?;
            return self.store_dense(offset, first + slot, old, new);
        }
        let mut owned = route.owned(rib);
        let with_children = rib.map_or(0, |rib| rib.children());
        while owned != 0 {
            let slot = owned.trailing_zeros() as usize;
            let childless = owned & !with_children;
            if childless >> slot & 1 == 0 {
                let child = rib.and_then(|rib| rib.child(slot));
                self.own_dense(route, child, step + 1, offset, first + slot * below, steps - 1)?;
                owned &= owned - 1;
            } else {
                // A run of slots that nothing longer lies in: one fill.
                let run = (childless >> slot).trailing_ones() as usize;
                self.fill(offset, first + slot * below, run * below, route.change.value())?;
                owned &= !(u64::MAX >> (64 - run) << slot);
            }
        }
        Ok(())
    }

    /// The new value of a slot that lies inside the prefix and in no longer one of the Rib node above `rib`.
    fn own_slot(
        &mut self,
        route: &RoutePlan<A>,
        rib: Option<rib::Node<'_>>,
        step: usize,
        old: Slot,
    ) -> Result<Slot, OutOfMemory> {
        let value = route.change.value();
        let rib = match (rib, route.change) {
            (Some(rib), Change::Own { .. }) => rib,
            _ => {
                self.retire_subtree(old, step)?;
                return Ok(value);
            }
        };
        if old == value {
            return Ok(old);
        }
        if let Child::Dense(offset, steps) = old.child() {
            self.inherit_dense(route, rib, step, offset, 0, steps)?;
            return Ok(old);
        }
        let open = !grid::covered_slots(rib.prefixes());
        if open == 0 {
            return Ok(old);
        }
        let mut edit = Edit::new(self.nodes, self.width, old);
        self.own_slots(route, Some(rib), step, &mut edit, open)?;
        self.finish(&edit)
    }

    /// As `own_slot` for `64^steps` slots of a dense node.
    fn own_dense(
        &mut self,
        route: &RoutePlan<A>,
        rib: Option<rib::Node<'_>>,
        step: usize,
        offset: u32,
        first: usize,
        steps: usize,
    ) -> Result<(), OutOfMemory> {
        if steps == 0 {
            let old = self.nodes.dense(offset, first);
            let new = self.own_slot(route, rib, step, old)?;
            return self.store_dense(offset, first, old, new);
        }
        match (rib, route.change) {
            (Some(rib), Change::Own { .. }) => self.inherit_dense(route, rib, step, offset, first, steps),
            (Some(_), Change::Clear { value, .. }) => {
                let count = 1 << (6 * steps);
                for index in first..first + count {
                    self.retire_subtree(self.nodes.dense(offset, index), step + steps)?;
                }
                self.fill(offset, first, count, value)
            }
            (None, _) => self.fill(offset, first, 1 << (6 * steps), route.change.value()),
        }
    }

    fn inherit_dense(
        &mut self,
        route: &RoutePlan<A>,
        rib: rib::Node<'_>,
        step: usize,
        offset: u32,
        first: usize,
        steps: usize,
    ) -> Result<(), OutOfMemory> {
        let below = 1 << (6 * (steps - 1));
        for slot in Bits(!grid::covered_slots(rib.prefixes())) {
            self.own_dense(route, rib.child(slot), step + 1, offset, first + slot * below, steps - 1)?;
        }
        Ok(())
    }

    // ---- another span ----------------------------------------------------------------------------------------

    fn reshape_root(
        &mut self,
        rib: rib::Node<'_>,
        prefix: Prefix<A>,
        root: Root,
        limit: usize,
    ) -> Result<bool, OutOfMemory> {
        let steps = resize::root_steps::<A>(root_population::<A>(rib), root.steps, limit);
        if steps != root.steps {
            let old = Slot::dense(root.offset, root.steps);
            let offset = self.alloc_dense(dense_slots(A::LEAD, 0, steps))?;
            self.respan(offset, 0, 0, steps, old)?;
            self.plan.root = Some(Root { offset, steps, width: self.width });
            return Ok(true);
        }
        let (end, _) = prefix.grid_end();
        let index = prefix.addr().top_slots(root.steps);
        let Some(below) = descend(Some(rib), prefix.addr(), 0, root.steps) else { return Ok(false) };
        if root.steps > end {
            return Ok(false);
        }
        let old = self.nodes.dense(root.offset, index);
        let new = self.reshape_slot(below, prefix, root.steps, old)?;
        self.store_dense(root.offset, index, old, new)?;
        Ok(new != old || !self.plan.stores.is_empty())
    }

    fn reshape_slot(
        &mut self,
        rib: rib::Node<'_>,
        prefix: Prefix<A>,
        step: usize,
        old: Slot,
    ) -> Result<Slot, OutOfMemory> {
        let current = match old.child() {
            Child::Leaf => return Ok(old),
            Child::Sparse(_) => 0,
            Child::Dense(_, steps) => steps,
        };
        let steps = self.inner_steps(rib.population(), step, current);
        if steps != current {
            if steps == 0 {
                let Child::Dense(offset, current) = old.child() else { return Ok(old) };
                let new = self.sparse_from(offset, 0, current)?;
                self.retire(Block::dense(offset, dense_slots(A::LEAD, step, current)))?;
                return Ok(new);
            }
            let offset = self.alloc_dense(dense_slots(A::LEAD, step, steps))?;
            self.respan(offset, 0, step, steps, old)?;
            return Ok(Slot::dense(offset, steps));
        }
        let (end, _) = prefix.grid_end();
        let below = step + current.max(1);
        let Some(rib) = descend(Some(rib), prefix.addr(), step, below - step) else { return Ok(old) };
        if below > end {
            return Ok(old);
        }
        if let Child::Dense(offset, steps) = old.child() {
            let index = prefix.addr().step_slots(step, steps);
            let child = self.nodes.dense(offset, index);
            let new = self.reshape_slot(rib, prefix, below, child)?;
            self.store_dense(offset, index, child, new)?;
            return Ok(old);
        }
        let mut edit = Edit::new(self.nodes, self.width, old);
        let slot = prefix.addr().step_slot(step);
        let before = edit.before(slot);
        let new = self.reshape_slot(rib, prefix, below, before)?;
        edit.set(slot, before, new);
        self.finish(&edit)
    }

    /// Fills the private dense slots `first ..` of a node of `steps` grid steps at `step` with what `old` says, and
    /// retires the nodes that are dissolved by it. Everything deeper is kept.
    fn respan(&mut self, offset: u32, first: usize, step: usize, steps: usize, old: Slot) -> Result<(), OutOfMemory> {
        if steps == 0 {
            self.nodes.store_dense(offset, first, old);
            return Ok(());
        }
        let slots = dense_slots(A::LEAD, step, steps);
        match old.child() {
            Child::Leaf => self.nodes.fill_dense(offset, first, slots, old),
            Child::Sparse(old_offset) => {
                let image = self.nodes.expand(self.width, old_offset);
                let below = 1 << (6 * (steps - 1));
                for (slot, value) in image.into_iter().enumerate() {
                    self.respan(offset, first + slot * below, step + 1, steps - 1, value)?;
                }
                self.retire(Block::sparse(old_offset, self.nodes.sparse_block_bytes(self.width, old_offset)))?;
            }
            Child::Dense(old_offset, old_steps) => {
                let old_slots = dense_slots(A::LEAD, step, old_steps);
                if old_steps <= steps {
                    let below = 1 << (6 * (steps - old_steps));
                    for index in 0..old_slots {
                        let value = self.nodes.dense(old_offset, index);
                        self.respan(offset, first + index * below, step + old_steps, steps - old_steps, value)?;
                    }
                } else {
                    let below = 1 << (6 * (old_steps - steps));
                    for index in 0..slots {
                        let value = self.sparse_from(old_offset, index * below, old_steps - steps)?;
                        self.nodes.store_dense(offset, first + index, value);
                    }
                }
                self.retire(Block::dense(old_offset, old_slots))?;
            }
        }
        Ok(())
    }

    /// The slot that says what `64^steps` slots of a dense node say.
    fn sparse_from(&mut self, offset: u32, first: usize, steps: usize) -> Result<Slot, OutOfMemory> {
        if steps == 0 {
            return Ok(self.nodes.dense(offset, first));
        }
        let below = 1 << (6 * (steps - 1));
        let mut image = [Slot::MISS; STEP_SLOTS];
        for (slot, value) in image.iter_mut().enumerate() {
            *value = self.sparse_from(offset, first + slot * below, steps - 1)?;
        }
        self.settle(Slot::MISS, &Runs::of_image(&image))
    }

    // ---- from the Rib ----------------------------------------------------------------------------------------

    fn build_root(&mut self, rib: rib::Node<'_>, steps: usize) -> Result<(), OutOfMemory> {
        let offset = self.alloc_dense(dense_slots(A::LEAD, 0, steps))?;
        self.build_dense(Some(rib), 0, offset, 0, steps, Slot::MISS)?;
        self.plan.root = Some(Root { offset, steps, width: self.width });
        Ok(())
    }

    fn build_slot(&mut self, rib: rib::Node<'_>, step: usize, inherited: Slot) -> Result<Slot, OutOfMemory> {
        let steps = self.inner_steps(rib.population(), step, 0);
        if steps > 0 {
            let offset = self.alloc_dense(dense_slots(A::LEAD, step, steps))?;
            self.build_dense(Some(rib), step, offset, 0, steps, inherited)?;
            return Ok(Slot::dense(offset, steps));
        }
        let mut image = own_image(rib, step, inherited, A::LEAD);
        for slot in Bits(rib.children()) {
            if let Some(child) = rib.child(slot) {
                image[slot] = self.build_slot(child, step + 1, image[slot])?;
            }
        }
        self.settle(Slot::MISS, &Runs::of_image(&image))
    }

    fn build_dense(
        &mut self,
        rib: Option<rib::Node<'_>>,
        step: usize,
        offset: u32,
        first: usize,
        steps: usize,
        inherited: Slot,
    ) -> Result<(), OutOfMemory> {
        let slots = dense_slots(A::LEAD, step, steps);
        let Some(rib) = rib else {
            self.nodes.fill_dense(offset, first, slots, inherited);
            return Ok(());
        };
        let below = 1 << (6 * (steps - 1));
        let image = own_image(rib, step, inherited, A::LEAD);
        for (slot, inherited) in image.into_iter().enumerate().take(slots / below) {
            let child = rib.child(slot);
            if steps > 1 {
                self.build_dense(child, step + 1, offset, first + slot * below, steps - 1, inherited)?;
            } else {
                let value = match child {
                    Some(child) => self.build_slot(child, step + 1, inherited)?,
                    None => inherited,
                };
                self.nodes.store_dense(offset, first + slot, value);
            }
        }
        Ok(())
    }

    // ---- blocks and lists ------------------------------------------------------------------------------------

    /// The slot that says what `edit` came to.
    fn finish(&mut self, edit: &Edit) -> Result<Slot, OutOfMemory> {
        if edit.is_empty() { Ok(edit.old) } else { self.settle(edit.old, &edit.runs()) }
    }

    /// The slot for a node that consists of `runs` and replaces `old` (a leaf or a sparse node): a leaf when there is one
    /// run, `old` itself with stores planned when its shape stays, else a fresh block.
    fn settle(&mut self, old: Slot, runs: &Runs) -> Result<Slot, OutOfMemory> {
        if let Child::Sparse(offset) = old.child() {
            if self.nodes.same_shape(self.width, offset, runs) {
                for (rank, &slot) in runs.slots().iter().enumerate() {
                    if self.nodes.stored_slot(self.width, offset, runs.word(), rank) != slot {
                        push(&mut self.plan.stores, Store::Sparse { offset, rank: rank as u32, slot })?;
                    }
                }
                return Ok(old);
            }
            self.retire_sparse(offset)?;
        }
        if let [uniform] = *runs.slots() {
            return Ok(uniform);
        }
        let bytes = runs.block_bytes(self.width);
        let offset = self.arena.alloc(bytes)?;
        if let Err(error) = push(&mut self.plan.fresh, Block::sparse(offset, bytes)) {
            self.arena.free(offset, bytes);
            return Err(error);
        }
        self.nodes.write_sparse(self.width, offset, runs);
        Ok(Slot::sparse(offset))
    }

    fn alloc_dense(&mut self, slots: usize) -> Result<u32, OutOfMemory> {
        let offset = self.arena.alloc_dense(slots * 4)?;
        if let Err(error) = push(&mut self.plan.fresh, Block::dense(offset, slots)) {
            self.arena.free_dense(offset, slots * 4);
            return Err(error);
        }
        Ok(offset)
    }

    fn store_dense(&mut self, offset: u32, index: usize, old: Slot, new: Slot) -> Result<(), OutOfMemory> {
        if new == old {
            return Ok(());
        }
        push(&mut self.plan.stores, Store::Dense { offset, index: index as u32, slot: new })
    }

    fn fill(&mut self, offset: u32, first: usize, count: usize, slot: Slot) -> Result<(), OutOfMemory> {
        push(&mut self.plan.stores, Store::Fill { offset, first: first as u32, count: count as u32, slot })
    }

    fn retire(&mut self, block: Block) -> Result<(), OutOfMemory> {
        push(&mut self.plan.retired, block)
    }

    fn retire_sparse(&mut self, offset: u32) -> Result<(), OutOfMemory> {
        let bytes = self.nodes.sparse_block_bytes(self.width, offset);
        self.retire(Block::sparse(offset, bytes))
    }

    /// Retires every node of the subtree behind a slot at `step`.
    fn retire_subtree(&mut self, slot: Slot, step: usize) -> Result<(), OutOfMemory> {
        match slot.child() {
            Child::Leaf => Ok(()),
            Child::Sparse(offset) => {
                let word = self.nodes.word(offset);
                for rank in 0..word.count_ones() as usize {
                    self.retire_subtree(self.nodes.stored_slot(self.width, offset, word, rank), step + 1)?;
                }
                self.retire_sparse(offset)
            }
            Child::Dense(offset, steps) => {
                let slots = dense_slots(A::LEAD, step, steps);
                for index in 0..slots {
                    self.retire_subtree(self.nodes.dense(offset, index), step + steps)?;
                }
                self.retire(Block::dense(offset, slots))
            }
        }
    }
}

/// The prefixes that the trie holds, given the Rib's root: all but `/0`, which the descriptor holds.
pub(crate) fn root_population<A: Addr>(rib: rib::Node<'_>) -> u32 {
    rib.population() - (rib.prefixes() >> grid::position(0, A::LEAD) & 1) as u32
}

/// The slots that the prefixes ending in one grid step give, leaf-pushed: longer ones over shorter ones over
/// `inherited`. `/0` is not among them, since the descriptor holds it.
pub(crate) fn own_image(rib: rib::Node<'_>, step: usize, inherited: Slot, lead: u32) -> Image {
    let mut image = [inherited; STEP_SLOTS];
    let mut prefixes = rib.prefixes();
    if step == 0 {
        prefixes &= !(1 << grid::position(0, lead));
    }
    while prefixes != 0 {
        // Preorder: a longer prefix comes after the ones that cover it.
        let position = prefixes.trailing_zeros();
        prefixes &= prefixes - 1;
        let (slot, len) = grid::place(position);
        image[slot..slot + (STEP_SLOTS >> len)].fill(Slot::hop(rib.winner(position)));
    }
    image
}

/// The Rib node `steps` grid steps below `rib` (which is at `step`) on the way to `addr`.
fn descend<A: Addr>(rib: Option<rib::Node<'_>>, addr: A, step: usize, steps: usize) -> Option<rib::Node<'_>> {
    (step..step + steps).try_fold(rib?, |rib, step| rib.child(addr.step_slot(step)))
}
