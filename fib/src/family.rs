//! One family of one table: its Rib and its trie, kept in step.
//!
//! Every change runs the same way: *admit* (the dirty-memory budget), *plan* the Rib's change, *plan* the trie's change,
//! *reserve* room for what will be retired, and only then commit the Rib and publish the trie, neither of which can
//! fail. An error at any point before leaves both as they were.

use crate::addr::Addr;
use crate::engine::Engine;
use crate::error::{FibError, OutOfMemory};
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::rib::{InsertMode, Rib};
use crate::route::{Route, RouteMatch};
use crate::trie::node::{Entry, Slot, Width};
use crate::trie::update::{Change, Plan, Trie};

/// Rib and trie of one family of one table.
pub(crate) struct FamilyTable<A: Addr> {
    pub(crate) rib: Rib<A>,
    pub(crate) trie: Trie<A>,
    /// Slots are never narrower than this.
    narrowest: Width,
    /// Changes of span that were left out for want of memory; the trie is right without them, only slower.
    pub(crate) skipped_resizes: u64,
}

impl<A: Addr> FamilyTable<A> {
    /// An empty table whose trie slots have `width` until an id needs more.
    pub(crate) fn new(
        engine: &mut Engine,
        width: Width,
        narrowest: Width,
        root_limit: usize,
    ) -> Result<(Self, Entry), OutOfMemory> {
        let (trie, entry) = Trie::new(&mut engine.arena, engine.nodes, width, root_limit)?;
        Ok((FamilyTable { rib: Rib::new(), trie, narrowest, skipped_resizes: 0 }, entry))
    }

    pub(crate) fn insert(
        &mut self,
        engine: &mut Engine,
        entry: &Entry,
        prefix: Prefix<A>,
        route: Route,
        mode: InsertMode,
    ) -> Result<Option<Route>, FibError> {
        engine.admit()?;
        self.trie.prefetch(engine.nodes, prefix.addr());
        let planned =
            self.rib.plan_insert(prefix, route, mode).map_err(|error| FibError::from_rib(error, prefix, route))?;
        let change = Winner { before: planned.winner_before(), after: planned.winner_after() };
        engine.plan_insertion(|engine| self.plan_winner(engine, prefix, change))?;
        let replaced = self.rib.commit_insert(planned);
        self.publish_winner(engine, entry, prefix, change);
        Ok(replaced)
    }

    pub(crate) fn remove(
        &mut self,
        engine: &mut Engine,
        entry: &Entry,
        prefix: Prefix<A>,
        which: &RouteMatch,
    ) -> Result<Option<Route>, FibError> {
        engine.admit()?;
        self.trie.prefetch(engine.nodes, prefix.addr());
        let Some(planned) = self.rib.plan_remove(prefix, which) else { return Ok(None) };
        let change = Winner { before: planned.winner_before(), after: planned.winner_after() };
        engine.with_slack(|engine| self.plan_winner(engine, prefix, change))?;
        let removed = self.rib.commit_remove(planned);
        self.publish_winner(engine, entry, prefix, change);
        Ok(Some(removed))
    }

    /// Removes all routes of `prefix` and of what lies inside it; returns how many.
    pub(crate) fn remove_within(
        &mut self,
        engine: &mut Engine,
        entry: &Entry,
        prefix: Prefix<A>,
    ) -> Result<u64, FibError> {
        engine.admit()?;
        let prefixes = self.rib.within(prefix).count() as u32;
        if prefixes == 0 {
            return Ok(0);
        }
        engine.with_slack(|engine| {
            let plan = &mut engine.plan;
            if prefix == Prefix::DEFAULT {
                self.trie.plan_clear(&mut engine.arena, engine.nodes, plan)?;
            } else {
                let change = Change::Clear { value: self.inherited(prefix), removed: prefixes };
                self.trie.plan_route(&mut engine.arena, engine.nodes, plan, self.rib.root(), prefix, change)?;
            }
            engine.reserve_retirement()
        })?;
        let removed = self.rib.remove_within(prefix);
        if prefix == Prefix::DEFAULT {
            // The default first: an address that had a route of its own then never sees it in between.
            entry.publish_default(Slot::MISS);
        }
        self.publish(engine, entry, prefix);
        engine.step();
        Ok(removed)
    }

    /// First half of emptying the table: plans an empty trie in `plan`.
    pub(crate) fn plan_clear(&self, engine: &mut Engine, plan: &mut Plan) -> Result<(), OutOfMemory> {
        self.trie.plan_clear(&mut engine.arena, engine.nodes, plan)
    }

    /// Second half of emptying the table, for which room to retire was reserved: cannot fail. Returns how many routes went.
    pub(crate) fn publish_clear(&mut self, engine: &mut Engine, plan: &mut Plan, entry: &Entry) -> u64 {
        entry.publish_default(Slot::MISS);
        engine.publish_plan(plan, &mut self.trie, entry);
        self.rib.clear()
    }

    /// First half of a bulk load into this empty table: fills the Rib with `routes` and plans the trie in `plan`. A later
    /// route of the same prefix and priority replaces an earlier one. Returns how many were replaced.
    ///
    /// After an error, and to undo a success, call [`FamilyTable::abandon_load`].
    pub(crate) fn plan_load(
        &mut self,
        engine: &mut Engine,
        plan: &mut Plan,
        routes: impl Iterator<Item = (Prefix<A>, Route)>,
    ) -> Result<u64, FibError> {
        let (replaced, largest) = self.fill_rib(routes)?;
        // Room to spare: a quarter more ids than the largest seen, so that a few new ones do not widen at once.
        let width = self.narrowest.widened_for(largest.saturating_add(largest / 4).min(NextHopId::MAX.get()));
        self.trie.plan_rebuild(&mut engine.arena, engine.nodes, plan, self.rib.root(), width)?;
        Ok(replaced)
    }

    /// Second half of a bulk load, for which room to retire was reserved: cannot fail.
    pub(crate) fn publish_load(&mut self, engine: &mut Engine, plan: &mut Plan, entry: &Entry) {
        engine.publish_plan(plan, &mut self.trie, entry);
        if let Some(default) = self.rib.get(Prefix::DEFAULT) {
            entry.publish_default(Slot::hop(default.next_hop));
        }
    }

    /// Empties the table again after a load that is not to be published.
    pub(crate) fn abandon_load(&mut self, engine: &mut Engine, plan: &mut Plan) {
        plan.abandon(&mut engine.arena);
        self.rib.clear();
    }

    fn fill_rib(&mut self, routes: impl Iterator<Item = (Prefix<A>, Route)>) -> Result<(u64, u32), FibError> {
        let (mut replaced, mut largest) = (0, 0);
        for (prefix, route) in routes {
            largest = largest.max(route.next_hop.get());
            let planned = self
                .rib
                .plan_insert(prefix, route, InsertMode::InsertOrReplace)
                .map_err(|error| FibError::from_rib(error, prefix, route))?;
            replaced += u64::from(self.rib.commit_insert(planned).is_some());
        }
        Ok((replaced, largest))
    }

    /// Removes what is still marked stale of `owner`'s routes.
    pub(crate) fn sweep(&mut self, engine: &mut Engine, entry: &Entry, owner: u32) -> Result<u64, FibError> {
        let mut removed = 0;
        let mut from = None;
        while let Some((prefix, route)) = self.rib.next_stale(owner, from) {
            let which =
                RouteMatch { next_hop: Some(route.next_hop), priority: Some(route.priority), owner: Some(route.owner) };
            self.remove(engine, entry, prefix, &which)?;
            removed += 1;
            from = Some(prefix);
        }
        Ok(removed)
    }

    /// What the addresses of `prefix` get without it: the next hop of the longest prefix above, `/0` left out.
    fn inherited(&self, prefix: Prefix<A>) -> Slot {
        match self.rib.parent(prefix) {
            Some((covering, route)) if covering != Prefix::DEFAULT => Slot::hop(route.next_hop),
            _ => Slot::MISS,
        }
    }

    fn plan_winner(&self, engine: &mut Engine, prefix: Prefix<A>, change: Winner) -> Result<(), OutOfMemory> {
        if change.before == change.after || prefix == Prefix::DEFAULT {
            return Ok(());
        }
        let value = match change.after {
            Some(id) => {
                self.plan_width_for(engine, id)?;
                Slot::hop(id)
            }
            None => self.inherited(prefix),
        };
        let change = Change::Own { value, added: change.before.is_none(), removed: change.after.is_none() };
        self.trie.plan_route(&mut engine.arena, engine.nodes, &mut engine.plan, self.rib.root(), prefix, change)?;
        engine.reserve_retirement()
    }

    fn publish_winner(&mut self, engine: &mut Engine, entry: &Entry, prefix: Prefix<A>, change: Winner) {
        if change.before != change.after {
            if prefix == Prefix::DEFAULT {
                entry.publish_default(change.after.map_or(Slot::MISS, Slot::hop));
            } else {
                self.publish(engine, entry, prefix);
            }
        }
        engine.step();
    }

    /// Publishes the planned change, then gives the nodes on the path the span that their population asks for.
    fn publish(&mut self, engine: &mut Engine, entry: &Entry, prefix: Prefix<A>) {
        if !engine.publish(&mut self.trie, entry) {
            return;
        }
        // Each pass settles one node of the path. A span is no more than speed: without memory the old one stays.
        for _ in 0..A::STEPS {
            let planned =
                self.trie.plan_reshape(&mut engine.arena, engine.nodes, &mut engine.plan, self.rib.root(), prefix);
            match planned {
                Ok(true) if engine.reserve_retirement().is_ok() => {
                    engine.publish(&mut self.trie, entry);
                }
                Ok(false) => break,
                _ => {
                    self.skipped_resizes += 1;
                    break;
                }
            }
        }
    }

    /// Plans the trie anew with wider slots when `id` does not fit. Readers see the same answers before and after.
    fn plan_width_for(&self, engine: &mut Engine, id: NextHopId) -> Result<(), OutOfMemory> {
        let width = self.trie.root.width.widened_for(id.get());
        if width == self.trie.root.width {
            return Ok(());
        }
        self.trie.plan_rebuild(&mut engine.arena, engine.nodes, &mut engine.plan, self.rib.root(), width)
    }
}

/// The next hop that a prefix leads to, before and after a change.
#[derive(Clone, Copy)]
struct Winner {
    before: Option<NextHopId>,
    after: Option<NextHopId>,
}
