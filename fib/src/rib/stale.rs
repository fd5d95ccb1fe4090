//! Refresh: an owner's routes are marked stale, inserted again one by one, and what is still marked is swept.
//!
//! A stale route forwards like any other. The mark goes when the identical route is inserted again in any mode
//! (see [`super::InsertMode`]) or another takes its place.

use crate::addr::Addr;
use crate::prefix::Prefix;
use crate::route::Route;

use super::pool::NONE;
use super::{NodeRecord, Rib};

impl<A: Addr> Rib<A> {
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

    /// The first stale route of `owner` at or after `from`, by prefix, then in order of preference. A sweep removes what
    /// it finds and goes on from the same prefix.
    pub(crate) fn next_stale(&self, owner: u32, from: Option<Prefix<A>>) -> Option<(Prefix<A>, Route)> {
        let mut walk = self.iter_from(from.unwrap_or(Prefix::DEFAULT));
        while let Some((prefix, routes)) = walk.next_routes() {
            if let Some(cell) = routes.cells().find(|cell| cell.owner == owner && cell.is_stale()) {
                return Some((prefix, cell.route()));
            }
        }
        None
    }
}
