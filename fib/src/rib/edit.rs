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
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::route::{Route, RouteMatch};

use super::path::Path;
use super::pool::NONE;
use super::{End, Rib, RouteCell};

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
    #[cfg(test)]
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
    #[cfg(test)]
    pub(crate) fn prefix_is_new(&self) -> bool {
        self.winner_before.is_none()
    }

    /// Whether an identical route is there already, so that the commit only takes the stale mark away.
    #[cfg(test)]
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
    #[cfg(test)]
    pub(crate) fn prefix(&self) -> Prefix<A> {
        self.prefix
    }

    /// The route that goes.
    #[cfg(test)]
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
    #[cfg(test)]
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
    #[cfg(test)]
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
    #[cfg(test)]
    pub(crate) fn remove(&mut self, prefix: Prefix<A>, which: &RouteMatch) -> Option<Route> {
        let plan = self.plan_remove(prefix, which)?;
        Some(self.commit_remove(plan))
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
}
