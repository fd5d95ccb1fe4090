//! Changing the Rib: what each mode of insertion means, and the two phases of an update.
//!
//! The identity of a route is its prefix and its priority. A plan finds the place of the route in the list of its prefix
//! and reserves what the commit needs; the commit writes. A plan that is dropped leaves no trace but reserved memory,
//! and any change to the Rib ends the life of the plans made before it.
//!
//! ```text
//! list of a prefix      5a   5b   7c   7d   9e        priority, then next hop and owner
//!                     ^  ^            ^       ^
//!        prepend 5x --+  |            |       +-- append 7x
//!        replace 5x -----+            +---------- replace 7x: the first of the priority, in its place
//! ```

use crate::addr::Addr;
use crate::error::OutOfMemory;
use crate::grid;
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::route::{Route, RouteMatch};

use super::pool::NONE;
use super::{End, MAX_STEPS, NodeRecord, Rib, RouteCell, len_of};

/// What an insertion does when the prefix already has routes of the same priority.
///
/// In every mode, a route that is there already with the same next hop and owner and is *stale* is refreshed: the mark
/// goes, the route stays where it is, and the call succeeds. That is how a refresh re-adds what it finds unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertMode {
    /// [`RibError::Exists`] if there is any route of that priority.
    IfAbsent,
    /// The first route of that priority is replaced in place; [`RibError::NoSuchRoute`] if there is none. If that first
    /// route is identical already, nothing changes; if a later one is, [`RibError::Exists`].
    ReplaceIfPresent,
    /// As `ReplaceIfPresent`, but inserted in order if there is none.
    InsertOrReplace,
    /// After the last route of that priority; [`RibError::Exists`] if one of them is identical.
    Append,
    /// Before the first route of that priority; [`RibError::Exists`] if one of them is identical.
    Prepend,
}

/// Why a route could not be inserted. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RibError {
    /// The mode does not allow for the routes that are there.
    Exists,
    /// There is no route to replace.
    NoSuchRoute,
    /// No memory for the route or its nodes.
    OutOfMemory(OutOfMemory),
}

impl From<OutOfMemory> for RibError {
    fn from(error: OutOfMemory) -> Self {
        RibError::OutOfMemory(error)
    }
}

/// The nodes from the root towards the end of a prefix, as far as they exist.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// Index of the node of each step in its pool; that of step 0, the root, is unused.
    nodes: [u32; MAX_STEPS],
    /// The step of the last node of the path.
    last: usize,
}

/// What an insertion writes. Cells are given by index.
#[derive(Clone, Copy, Debug)]
enum Insertion {
    /// An identical route is there: it is not stale from now on.
    Refresh { cell: u32 },
    /// The route in this cell is replaced.
    Replace { cell: u32 },
    /// The route is put behind the one in this cell.
    Behind { cell: u32 },
    /// The route becomes the first of the list that starts in this cell.
    InFront { cell: u32 },
    /// The prefix has no route so far.
    NewPrefix,
}

/// An insertion that is allowed and has its memory. See [`Rib::plan_insert`].
#[derive(Clone, Debug)]
#[must_use = "nothing changes before the plan is committed"]
pub(crate) struct InsertPlan<A: Addr> {
    prefix: Prefix<A>,
    route: Route,
    insertion: Insertion,
    path: Path,
    winner_before: Option<NextHopId>,
    winner_after: NextHopId,
    changes: u64,
}

impl<A: Addr> InsertPlan<A> {
    /// The prefix of the route.
    pub(crate) fn prefix(&self) -> Prefix<A> {
        self.prefix
    }

    /// Where the prefix leads now; `None`: it has no route.
    pub(crate) fn winner_before(&self) -> Option<NextHopId> {
        self.winner_before
    }

    /// Where the prefix leads after the commit; never `None`.
    pub(crate) fn winner_after(&self) -> Option<NextHopId> {
        Some(self.winner_after)
    }

    /// Whether the prefix has no route so far, so that the population grows.
    pub(crate) fn prefix_is_new(&self) -> bool {
        self.winner_before.is_none()
    }

    /// Whether an identical route is there already, so that the commit only takes the stale mark away.
    pub(crate) fn is_refresh(&self) -> bool {
        matches!(self.insertion, Insertion::Refresh { .. })
    }
}

/// What a removal takes away. Cells are given by index.
#[derive(Clone, Copy, Debug)]
enum Removal {
    /// The route behind the one in cell `before`.
    Behind { before: u32 },
    /// The first of several routes; the list starts in `cell`.
    First { cell: u32 },
    /// The only route, and the prefix with it.
    Prefix { cell: u32 },
}

/// A removal that has found its route. See [`Rib::plan_remove`].
#[derive(Clone, Debug)]
#[must_use = "nothing changes before the plan is committed"]
pub(crate) struct RemovePlan<A: Addr> {
    prefix: Prefix<A>,
    route: Route,
    removal: Removal,
    path: Path,
    winner_before: NextHopId,
    winner_after: Option<NextHopId>,
    changes: u64,
}

impl<A: Addr> RemovePlan<A> {
    /// The prefix of the route.
    pub(crate) fn prefix(&self) -> Prefix<A> {
        self.prefix
    }

    /// The route that goes.
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// Where the prefix leads now; never `None`.
    pub(crate) fn winner_before(&self) -> Option<NextHopId> {
        Some(self.winner_before)
    }

    /// Where the prefix leads after the commit; `None`: its last route goes.
    pub(crate) fn winner_after(&self) -> Option<NextHopId> {
        self.winner_after
    }

    /// Whether the last route of the prefix goes, so that the population shrinks.
    pub(crate) fn prefix_goes(&self) -> bool {
        self.winner_after.is_none()
    }
}

/// Where a route belongs in the list of its prefix.
struct Place {
    /// The last cell of a lower priority value.
    before: Option<u32>,
    /// First and last cell of the same priority.
    group: Option<(u32, u32)>,
    /// The cell of the same priority, next hop and owner.
    identical: Option<u32>,
}

impl<A: Addr> Rib<A> {
    /// Checks whether `route` may be inserted and reserves the memory for it.
    ///
    /// Errors: those of `mode`, or no memory; nothing has changed then.
    pub(crate) fn plan_insert(
        &mut self,
        prefix: Prefix<A>,
        route: Route,
        mode: InsertMode,
    ) -> Result<InsertPlan<A>, RibError> {
        let end = End::of(prefix);
        let path = self.path(prefix, end);
        let Some(head) = self.head_on(&path, end) else {
            if mode == InsertMode::ReplaceIfPresent {
                return Err(RibError::NoSuchRoute);
            }
            self.reserve_prefix(&path, end)?;
            return Ok(InsertPlan {
                prefix,
                route,
                insertion: Insertion::NewPrefix,
                path,
                winner_before: None,
                winner_after: route.next_hop,
                changes: self.changes,
            });
        };
        let insertion = self.insertion(head, route, mode)?;
        let winner = self.store.cells[head].next_hop();
        let wins = match insertion {
            Insertion::Behind { .. } | Insertion::InFront { .. } => {
                self.store.cells.reserve(None, 1)?;
                matches!(insertion, Insertion::InFront { .. })
            }
            Insertion::Replace { cell } => cell == head,
            Insertion::Refresh { .. } | Insertion::NewPrefix => false,
        };
        Ok(InsertPlan {
            prefix,
            route,
            insertion,
            path,
            winner_before: Some(winner),
            winner_after: if wins { route.next_hop } else { winner },
            changes: self.changes,
        })
    }

    /// Carries a plan out and returns the route that was replaced; for a route that was there already, itself.
    pub(crate) fn commit_insert(&mut self, plan: InsertPlan<A>) -> Option<Route> {
        debug_assert_eq!(plan.changes, self.changes, "the Rib has changed since the plan was made");
        self.changes += 1;
        let cells = &mut self.store.cells;
        match plan.insertion {
            Insertion::Refresh { cell } => {
                cells[cell].set_stale(false);
                Some(cells[cell].route())
            }
            Insertion::Replace { cell } => {
                let replaced = cells[cell];
                cells[cell] = RouteCell::new(plan.route, replaced.next());
                Some(replaced.route())
            }
            Insertion::Behind { cell } => {
                let behind = cells.take_single(RouteCell::new(plan.route, cells[cell].next()));
                cells[cell].set_next(behind);
                self.route_count += 1;
                None
            }
            Insertion::InFront { cell } => {
                // The first route of a list stays in the block of its node, so the former first moves out.
                let moved = cells.take_single(cells[cell]);
                cells[cell] = RouteCell::new(plan.route, moved);
                self.route_count += 1;
                None
            }
            Insertion::NewPrefix => {
                self.add_prefix(plan.prefix, RouteCell::new(plan.route, NONE), &plan.path);
                self.route_count += 1;
                None
            }
        }
    }

    /// Plans and commits at once.
    pub(crate) fn insert(
        &mut self,
        prefix: Prefix<A>,
        route: Route,
        mode: InsertMode,
    ) -> Result<Option<Route>, RibError> {
        let plan = self.plan_insert(prefix, route, mode)?;
        Ok(self.commit_insert(plan))
    }

    /// Finds the first route of `prefix` that fits.
    pub(crate) fn plan_remove(&self, prefix: Prefix<A>, which: &RouteMatch) -> Option<RemovePlan<A>> {
        let end = End::of(prefix);
        let path = self.path(prefix, end);
        let head = self.head_on(&path, end)?;
        let cells = &self.store.cells;
        let winner_before = cells[head].next_hop();
        let (mut before, mut cell) = (NONE, head);
        while !which.fits(&cells[cell].route()) {
            (before, cell) = (cell, cells[cell].next());
            if cell == NONE {
                return None;
            }
        }
        let next = cells[cell].next();
        let (removal, winner_after) = if cell != head {
            (Removal::Behind { before }, Some(winner_before))
        } else if next != NONE {
            (Removal::First { cell }, Some(cells[next].next_hop()))
        } else {
            (Removal::Prefix { cell }, None)
        };
        let route = cells[cell].route();
        Some(RemovePlan { prefix, route, removal, path, winner_before, winner_after, changes: self.changes })
    }

    /// Carries a plan out and returns the route that is gone.
    pub(crate) fn commit_remove(&mut self, plan: RemovePlan<A>) -> Route {
        debug_assert_eq!(plan.changes, self.changes, "the Rib has changed since the plan was made");
        self.changes += 1;
        self.route_count -= 1;
        let cells = &mut self.store.cells;
        match plan.removal {
            Removal::Behind { before } => {
                let cell = cells[before].next();
                let next = cells[cell].next();
                cells[before].set_next(next);
                cells.give_single(cell);
            }
            Removal::First { cell } => {
                let next = cells[cell].next();
                cells[cell] = cells[next];
                cells.give_single(next);
            }
            Removal::Prefix { cell } => self.drop_prefix(plan.prefix, cell, &plan.path),
        }
        plan.route
    }

    /// Plans and commits at once.
    pub(crate) fn remove(&mut self, prefix: Prefix<A>, which: &RouteMatch) -> Option<Route> {
        let plan = self.plan_remove(prefix, which)?;
        Some(self.commit_remove(plan))
    }

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

    /// Marks every route of `owner` as stale and returns their number. Costs a visit to each route of the table.
    pub(crate) fn mark_stale(&mut self, owner: u32) -> u64 {
        self.changes += 1;
        let root = self.store.root;
        self.mark_stale_below(&root, owner)
    }

    fn mark_stale_below(&mut self, record: &NodeRecord, owner: u32) -> u64 {
        let mut marked = 0;
        for head in record.cells_start..record.cells_start + record.prefix_count() {
            let mut cell = head;
            while cell != NONE {
                let route = &mut self.store.cells[cell];
                if route.owner == owner {
                    route.set_stale(true);
                    marked += 1;
                }
                cell = route.next();
            }
        }
        for child in record.nodes_start..record.nodes_start + record.child_count() {
            let child = self.store.nodes[child];
            marked += self.mark_stale_below(&child, owner);
        }
        marked
    }

    /// Where `route` goes in the list that starts in cell `head`, or why it may not.
    fn insertion(&self, head: u32, route: Route, mode: InsertMode) -> Result<Insertion, RibError> {
        let Place { before, group, identical } = self.place(head, route);
        if let Some(cell) = identical
            && self.store.cells[cell].is_stale()
        {
            return Ok(Insertion::Refresh { cell });
        }
        let in_order = match before {
            Some(cell) => Insertion::Behind { cell },
            None => Insertion::InFront { cell: head },
        };
        match (mode, group) {
            (InsertMode::ReplaceIfPresent, None) => Err(RibError::NoSuchRoute),
            (_, None) => Ok(in_order),
            (InsertMode::IfAbsent, Some(_)) => Err(RibError::Exists),
            (InsertMode::ReplaceIfPresent | InsertMode::InsertOrReplace, Some((first, _))) => match identical {
                None => Ok(Insertion::Replace { cell: first }),
                Some(cell) if cell == first => Ok(Insertion::Refresh { cell }),
                Some(_) => Err(RibError::Exists),
            },
            (InsertMode::Append | InsertMode::Prepend, Some(_)) if identical.is_some() => Err(RibError::Exists),
            (InsertMode::Append, Some((_, last))) => Ok(Insertion::Behind { cell: last }),
            (InsertMode::Prepend, Some(_)) => Ok(in_order),
        }
    }

    fn place(&self, head: u32, route: Route) -> Place {
        let mut place = Place { before: None, group: None, identical: None };
        let mut cell = head;
        while cell != NONE {
            let here = &self.store.cells[cell];
            if here.priority > route.priority {
                break;
            }
            if here.priority < route.priority {
                place.before = Some(cell);
            } else {
                place.group = Some((place.group.map_or(cell, |(first, _)| first), cell));
                if here.route() == route {
                    place.identical = Some(cell);
                }
            }
            cell = here.next();
        }
        place
    }

    #[inline]
    fn path(&self, prefix: Prefix<A>, end: End) -> Path {
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
    fn head_on(&self, path: &Path, end: End) -> Option<u32> {
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
    fn reserve_prefix(&mut self, path: &Path, end: End) -> Result<(), OutOfMemory> {
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
    fn add_prefix(&mut self, prefix: Prefix<A>, cell: RouteCell, path: &Path) {
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
    fn drop_prefix(&mut self, prefix: Prefix<A>, cell: u32, path: &Path) {
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
