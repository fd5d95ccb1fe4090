//! The control plane's view of one table: routes of both families, changed and questioned through the [`Writer`].
//!
//! Prefixes are [`IpNet`]s without host bits, addresses are [`IpAddr`]s. A prefix may have several routes; the one of
//! lowest priority value is the one that lookups follow. IPv4-mapped IPv6 addresses are IPv6 addresses here
//! ([`unmap`](crate::unmap) turns them into IPv4).
//!
//! [`Writer`]: crate::Writer

use std::net::IpAddr;

use ipnet::IpNet;

use crate::addr::{Addr, Family};
use crate::engine::Engine;
use crate::error::{CheckError, FibError, OutOfMemory, PrefixError, Resource};
use crate::family::FamilyTable;
use crate::fib::TableOptions;
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::rib::InsertMode;
use crate::route::{Route, RouteMatch};
use crate::stats::{FamilyStats, TableStats};
use crate::trie::check;
use crate::trie::node::{Descriptor, Width};
use crate::trie::update::Plan;

/// The writer's half of a table.
pub(crate) struct TableState {
    pub(crate) v4: FamilyTable<u32>,
    pub(crate) v6: FamilyTable<u128>,
}

impl TableState {
    /// An empty table and what readers see of it.
    pub(crate) fn new(engine: &mut Engine, options: TableOptions) -> Result<(TableState, Descriptor), FibError> {
        let v4_limit = root_limit::<u32>(options.root_limit_v4, &[6, 12, 18, 24])?;
        let v6_limit = root_limit::<u128>(options.root_limit_v6, &[2, 8, 14, 20])?;
        let (v4, v4_entry) = FamilyTable::new(engine, Width::W16, Width::W8, v4_limit)?;
        // IPv6 nodes are mostly children: 4 bytes each with 32-bit slots, 6 with narrower ones and a read more to follow.
        let v6 = FamilyTable::new(engine, Width::W32, Width::W32, v6_limit);
        let (v6, v6_entry) = match v6 {
            Ok(made) => made,
            Err(error) => {
                v4.trie.destroy(&mut engine.arena, engine.nodes);
                return Err(error.into());
            }
        };
        Ok((TableState { v4, v6 }, Descriptor { v4: v4_entry, v6: v6_entry }))
    }
}

fn root_limit<A: Addr>(bits: u8, possible: &'static [u8]) -> Result<usize, FibError> {
    match possible.iter().position(|&possible| possible == bits) {
        Some(index) => Ok(index + 1),
        None => Err(FibError::RootLimit { family: A::FAMILY, bits, possible }),
    }
}

/// One table, borrowed from the [`Writer`](crate::Writer). Every change is visible to all readers when its call
/// returns.
pub struct Table<'w> {
    pub(crate) engine: &'w mut Engine,
    pub(crate) state: &'w mut TableState,
    pub(crate) descriptor: &'w Descriptor,
}

/// One element of [`Table::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Table::insert_if_absent`]
    InsertIfAbsent(IpNet, Route),
    /// [`Table::replace_if_present`]
    ReplaceIfPresent(IpNet, Route),
    /// [`Table::insert_or_replace`]
    InsertOrReplace(IpNet, Route),
    /// [`Table::append`]
    Append(IpNet, Route),
    /// [`Table::prepend`]
    Prepend(IpNet, Route),
    /// [`Table::remove`]
    Remove(IpNet, RouteMatch),
    /// [`Table::remove_within`]
    RemoveWithin(IpNet),
}

/// What an [`Op`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// A route was added.
    Inserted,
    /// A route was added in place of this one.
    Replaced(Route),
    /// This route was removed.
    Removed(Route),
    /// There was nothing to remove.
    Absent,
    /// So many routes were removed.
    RemovedWithin(u64),
}

/// What [`Table::apply`] does after an element that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Stop there: the results end with the error, later elements are not tried.
    Stop,
    /// Go on with the next element.
    Continue,
}

/// What [`Table::load`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Routes in the table afterwards.
    pub routes: u64,
    /// Routes of the input that replaced an earlier one of the same prefix and priority.
    pub replaced: u64,
}

enum AnyPrefix {
    V4(Prefix<u32>),
    V6(Prefix<u128>),
}

fn typed(prefix: IpNet) -> Result<AnyPrefix, PrefixError> {
    Ok(match prefix {
        IpNet::V4(net) => AnyPrefix::V4(net.try_into()?),
        IpNet::V6(net) => AnyPrefix::V6(net.try_into()?),
    })
}

/// Runs `$body` with `$table` and `$prefix` of the family of `$any`.
macro_rules! by_family {
    ($self:ident, $any:expr, |$table:ident, $entry:ident, $prefix:ident| $body:expr) => {
        match $any {
            AnyPrefix::V4($prefix) => {
                let ($table, $entry) = (&mut $self.state.v4, &$self.descriptor.v4);
                $body
            }
            AnyPrefix::V6($prefix) => {
                let ($table, $entry) = (&mut $self.state.v6, &$self.descriptor.v6);
                $body
            }
        }
    };
}

/// An iterator over routes of either family.
enum Either<L, R> {
    Left(L),
    Right(R),
    Neither,
}

impl<T, L: Iterator<Item = T>, R: Iterator<Item = T>> Iterator for Either<L, R> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Either::Left(iterator) => iterator.next(),
            Either::Right(iterator) => iterator.next(),
            Either::Neither => None,
        }
    }
}

fn named<A: Addr>((prefix, route): (Prefix<A>, Route)) -> (IpNet, Route) {
    (prefix.to_ipnet(), route)
}

impl Table<'_> {
    fn insert(&mut self, prefix: IpNet, route: Route, mode: InsertMode) -> Result<Option<Route>, FibError> {
        by_family!(self, typed(prefix)?, |table, entry, prefix| table.insert(self.engine, entry, prefix, route, mode))
    }

    /// Adds a route. Error [`FibError::RouteExists`]: the prefix has a route of this priority already.
    ///
    /// As all changes do, it may also fail for want of memory ([`FibError::OutOfMemory`]) or because the dirty-memory
    /// budget is used up ([`FibError::Reclaim`]); whatever the error, nothing has changed.
    ///
    /// Cost: a walk of at most 6 (IPv4) or 22 (IPv6) Rib nodes, and a rewrite of the trie nodes whose slots change:
    /// one for most prefixes, all below a short prefix.
    pub fn insert_if_absent(&mut self, prefix: IpNet, route: impl Into<Route>) -> Result<(), FibError> {
        self.insert(prefix, route.into(), InsertMode::IfAbsent).map(drop)
    }

    /// Replaces the route of the same prefix and priority and returns it. Error [`FibError::NoSuchRoute`]: there is none.
    ///
    /// Of several routes of that priority the first is replaced; if a later one is equal to the new one the error is
    /// [`FibError::RouteExists`].
    pub fn replace_if_present(&mut self, prefix: IpNet, route: impl Into<Route>) -> Result<Route, FibError> {
        let route = route.into();
        let replaced = self.insert(prefix, route, InsertMode::ReplaceIfPresent)?;
        // A route that is replaced by an equal one is returned as itself.
        Ok(replaced.unwrap_or(route))
    }

    /// Adds a route, or replaces the one of the same prefix and priority, which is returned.
    pub fn insert_or_replace(&mut self, prefix: IpNet, route: impl Into<Route>) -> Result<Option<Route>, FibError> {
        self.insert(prefix, route.into(), InsertMode::InsertOrReplace)
    }

    /// Adds a route behind those of the same priority. Error [`FibError::RouteExists`]: one of those has the same next
    /// hop and owner.
    pub fn append(&mut self, prefix: IpNet, route: impl Into<Route>) -> Result<(), FibError> {
        self.insert(prefix, route.into(), InsertMode::Append).map(drop)
    }

    /// Adds a route before those of the same priority. Error [`FibError::RouteExists`]: one of those has the same next
    /// hop and owner.
    pub fn prepend(&mut self, prefix: IpNet, route: impl Into<Route>) -> Result<(), FibError> {
        self.insert(prefix, route.into(), InsertMode::Prepend).map(drop)
    }

    /// Removes the first route of `prefix` that fits `which` and returns it; `None` when there is none, which is not an
    /// error. The next route in order takes over. A full node memory is no obstacle, see
    /// [`Options::node_memory`](crate::Options::node_memory).
    pub fn remove(&mut self, prefix: IpNet, which: RouteMatch) -> Result<Option<Route>, FibError> {
        by_family!(self, typed(prefix)?, |table, entry, prefix| table.remove(self.engine, entry, prefix, &which))
    }

    /// Removes all routes of `prefix` and of every prefix inside it, in one change; returns how many.
    pub fn remove_within(&mut self, prefix: IpNet) -> Result<u64, FibError> {
        by_family!(self, typed(prefix)?, |table, entry, prefix| table.remove_within(self.engine, entry, prefix))
    }

    /// Removes all routes of both families; returns how many. All or nothing: an error leaves both as they are.
    pub fn clear(&mut self) -> Result<u64, FibError> {
        self.engine.admit()?;
        let (mut v4_plan, mut v6_plan) = (Plan::default(), Plan::default());
        let planned = self.engine.with_slack(|engine| {
            self.state.v4.plan_clear(engine, &mut v4_plan)?;
            self.state.v6.plan_clear(engine, &mut v6_plan)?;
            engine.limbo.reserve(v4_plan.retired_blocks() + v6_plan.retired_blocks())
        });
        if let Err(error) = planned {
            v4_plan.abandon(&mut self.engine.arena);
            v6_plan.abandon(&mut self.engine.arena);
            return Err(error.into());
        }
        let v4 = self.state.v4.publish_clear(self.engine, &mut v4_plan, &self.descriptor.v4);
        let v6 = self.state.v6.publish_clear(self.engine, &mut v6_plan, &self.descriptor.v6);
        self.engine.step();
        Ok(v4 + v6)
    }

    /// Applies `ops` in order; the results are those of the elements that were tried, in order.
    ///
    /// Each element is applied or refused as by its own call: an error in the middle undoes nothing before it. The only
    /// error of the whole is that memory for the results could not be had; then no element was tried.
    pub fn apply(&mut self, ops: &[Op], on_error: OnError) -> Result<Vec<Result<Applied, FibError>>, OutOfMemory> {
        let mut results = Vec::new();
        results.try_reserve_exact(ops.len()).map_err(|_| OutOfMemory {
            resource: Resource::Plan,
            bytes: size_of_val(ops),
            limit: 0,
        })?;
        for op in ops {
            let result = self.apply_one(*op);
            let stop = result.is_err() && on_error == OnError::Stop;
            results.push(result);
            if stop {
                break;
            }
        }
        Ok(results)
    }

    fn apply_one(&mut self, op: Op) -> Result<Applied, FibError> {
        let inserted = |replaced: Option<Route>| replaced.map_or(Applied::Inserted, Applied::Replaced);
        match op {
            Op::InsertIfAbsent(prefix, route) => self.insert_if_absent(prefix, route).map(|()| Applied::Inserted),
            Op::ReplaceIfPresent(prefix, route) => self.replace_if_present(prefix, route).map(Applied::Replaced),
            Op::InsertOrReplace(prefix, route) => self.insert_or_replace(prefix, route).map(inserted),
            Op::Append(prefix, route) => self.append(prefix, route).map(|()| Applied::Inserted),
            Op::Prepend(prefix, route) => self.prepend(prefix, route).map(|()| Applied::Inserted),
            Op::Remove(prefix, which) => {
                self.remove(prefix, which).map(|removed| removed.map_or(Applied::Absent, Applied::Removed))
            }
            Op::RemoveWithin(prefix) => self.remove_within(prefix).map(Applied::RemovedWithin),
        }
    }

    /// Fills this empty table with `routes`, in any order; readers see each family empty or whole (a default route a moment later).
    ///
    /// A later route of the same prefix and priority replaces an earlier one. Slots get the narrowest width that holds
    /// the largest id with room to spare. On an error the table is empty again. Error [`FibError::TableNotEmpty`]: it
    /// is not empty now.
    ///
    /// Cost: one Rib insertion a route, then one pass that builds each trie node once.
    pub fn load(&mut self, routes: impl IntoIterator<Item = (IpNet, Route)>) -> Result<LoadReport, FibError> {
        let present = self.route_count(Family::V4) + self.route_count(Family::V6);
        if present > 0 {
            return Err(FibError::TableNotEmpty { routes: present });
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (prefix, route) in routes {
            match typed(prefix)? {
                AnyPrefix::V4(prefix) => push(&mut v4, (prefix, route))?,
                AnyPrefix::V6(prefix) => push(&mut v6, (prefix, route))?,
            }
        }
        self.engine.admit()?;
        // What was in the table before it was emptied is room for what comes.
        self.engine.reclaim();
        // Both families are planned before either is published, so that there is nothing to undo afterwards.
        let (mut v4_plan, mut v6_plan) = (Plan::default(), Plan::default());
        let planned = (|| {
            let v4 = self.state.v4.plan_load(self.engine, &mut v4_plan, v4.into_iter())?;
            let v6 = self.state.v6.plan_load(self.engine, &mut v6_plan, v6.into_iter())?;
            self.engine.limbo.reserve(v4_plan.retired_blocks() + v6_plan.retired_blocks())?;
            Ok(v4 + v6)
        })();
        let replaced = match planned {
            Ok(replaced) => replaced,
            Err(error) => {
                self.state.v4.abandon_load(self.engine, &mut v4_plan);
                self.state.v6.abandon_load(self.engine, &mut v6_plan);
                return Err(error);
            }
        };
        self.state.v4.publish_load(self.engine, &mut v4_plan, &self.descriptor.v4);
        self.state.v6.publish_load(self.engine, &mut v6_plan, &self.descriptor.v6);
        self.engine.step();
        let routes = self.route_count(Family::V4) + self.route_count(Family::V6);
        Ok(LoadReport { routes: routes as u64, replaced })
    }

    /// The route that lookups follow for exactly this prefix.
    pub fn get(&self, prefix: IpNet) -> Option<Route> {
        match typed(prefix).ok()? {
            AnyPrefix::V4(prefix) => self.state.v4.rib.get(prefix),
            AnyPrefix::V6(prefix) => self.state.v6.rib.get(prefix),
        }
    }

    /// All routes of exactly this prefix, the one that lookups follow first.
    pub fn routes(&self, prefix: IpNet) -> impl Iterator<Item = Route> + '_ {
        match typed(prefix) {
            Ok(AnyPrefix::V4(prefix)) => Either::Left(self.state.v4.rib.routes(prefix)),
            Ok(AnyPrefix::V6(prefix)) => Either::Right(self.state.v6.rib.routes(prefix)),
            Err(_) => Either::Neither,
        }
    }

    /// The next hop of `addr`, as readers see it.
    pub fn lookup(&self, addr: IpAddr) -> Option<NextHopId> {
        crate::reader::View::new(self.engine.cpu, self.engine.nodes, self.descriptor).lookup(addr)
    }

    /// The longest prefix that covers `addr`, and its route.
    pub fn lookup_match(&self, addr: IpAddr) -> Option<(IpNet, Route)> {
        match addr {
            IpAddr::V4(addr) => self.state.v4.rib.longest_match(addr.to_bits()).map(named),
            IpAddr::V6(addr) => self.state.v6.rib.longest_match(addr.to_bits()).map(named),
        }
    }

    /// The shortest prefix that covers `addr`, and its route.
    pub fn shortest_match(&self, addr: IpAddr) -> Option<(IpNet, Route)> {
        match addr {
            IpAddr::V4(addr) => self.state.v4.rib.shortest_match(addr.to_bits()).map(named),
            IpAddr::V6(addr) => self.state.v6.rib.shortest_match(addr.to_bits()).map(named),
        }
    }

    /// The longest prefix that covers `prefix` and is not `prefix` itself.
    pub fn parent(&self, prefix: IpNet) -> Option<(IpNet, Route)> {
        match typed(prefix).ok()? {
            AnyPrefix::V4(prefix) => self.state.v4.rib.parent(prefix).map(named),
            AnyPrefix::V6(prefix) => self.state.v6.rib.parent(prefix).map(named),
        }
    }

    /// All prefixes in the table that cover `prefix` (a host prefix for an address), itself included, shortest first.
    /// Allocates nothing.
    pub fn covering(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, Route)> + '_ {
        match typed(prefix) {
            Ok(AnyPrefix::V4(prefix)) => Either::Left(self.state.v4.rib.covers(prefix).map(named)),
            Ok(AnyPrefix::V6(prefix)) => Either::Right(self.state.v6.rib.covers(prefix).map(named)),
            Err(_) => Either::Neither,
        }
    }

    /// As [`Table::covering`], longest first.
    pub fn covering_longest_first(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, Route)> + '_ {
        match typed(prefix) {
            Ok(AnyPrefix::V4(prefix)) => Either::Left(self.state.v4.rib.covers_longest_first(prefix).map(named)),
            Ok(AnyPrefix::V6(prefix)) => Either::Right(self.state.v6.rib.covers_longest_first(prefix).map(named)),
            Err(_) => Either::Neither,
        }
    }

    /// All prefixes in the table that lie inside `prefix`, itself included, by address and then length.
    pub fn within(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, Route)> + '_ {
        match typed(prefix) {
            Ok(AnyPrefix::V4(prefix)) => Either::Left(self.state.v4.rib.within(prefix).map(named)),
            Ok(AnyPrefix::V6(prefix)) => Either::Right(self.state.v6.rib.within(prefix).map(named)),
            Err(_) => Either::Neither,
        }
    }

    /// All prefixes of a family with the route that lookups follow, by address and then length.
    pub fn iter(&self, family: Family) -> impl Iterator<Item = (IpNet, Route)> + '_ {
        match family {
            Family::V4 => Either::Left(self.state.v4.rib.within(Prefix::DEFAULT).map(named)),
            Family::V6 => Either::Right(self.state.v6.rib.within(Prefix::DEFAULT).map(named)),
        }
    }

    /// As [`Table::iter`] from the first prefix that is not before `prefix`, whether that is in the table or not: a walk
    /// that was stopped goes on from where it was.
    pub fn iter_from(&self, prefix: IpNet) -> impl Iterator<Item = (IpNet, Route)> + '_ {
        match typed(prefix) {
            Ok(AnyPrefix::V4(prefix)) => Either::Left(self.state.v4.rib.iter_from(prefix).map(named)),
            Ok(AnyPrefix::V6(prefix)) => Either::Right(self.state.v6.rib.iter_from(prefix).map(named)),
            Err(_) => Either::Neither,
        }
    }

    /// Prefixes of a family that have at least one route.
    pub fn prefix_count(&self, family: Family) -> usize {
        match family {
            Family::V4 => self.state.v4.rib.prefix_count(),
            Family::V6 => self.state.v6.rib.prefix_count(),
        }
    }

    /// Routes of a family, waiting ones included.
    pub fn route_count(&self, family: Family) -> usize {
        match family {
            Family::V4 => self.state.v4.rib.route_count(),
            Family::V6 => self.state.v6.rib.route_count(),
        }
    }

    /// Prefixes of a family by length: element `len` counts those of `len` bits (33 or 129 elements).
    pub fn count_by_len(&self, family: Family) -> Vec<usize> {
        let counts = match family {
            Family::V4 => self.state.v4.rib.count_by_len(),
            Family::V6 => self.state.v6.rib.count_by_len(),
        };
        counts.iter().map(|count| *count as usize).collect()
    }

    /// Marks all routes of `owner` as stale and returns how many. They stay in force; inserting an equal route again
    /// takes the mark away, and [`Table::end_refresh`] removes those that kept it. For control planes that restart.
    ///
    /// Cost: one walk of all routes.
    pub fn begin_refresh(&mut self, owner: u32) -> u64 {
        self.state.v4.rib.mark_stale(owner) + self.state.v6.rib.mark_stale(owner)
    }

    /// Removes the routes of `owner` that are still marked stale and returns how many. After an error those that were
    /// not reached are still marked, and the call can be repeated.
    pub fn end_refresh(&mut self, owner: u32) -> Result<u64, FibError> {
        let v4 = self.state.v4.sweep(self.engine, &self.descriptor.v4, owner)?;
        let v6 = self.state.v6.sweep(self.engine, &self.descriptor.v6, owner)?;
        Ok(v4 + v6)
    }

    /// Walks Rib and trie of both families and asserts every invariant of theirs; the error names the first broken one.
    ///
    /// Cost: a full walk and a sorted list of all blocks; for tests and for support, not for every update.
    pub fn check(&self) -> Result<(), CheckError> {
        self.check_family(&self.state.v4, &self.descriptor.v4)?;
        self.check_family(&self.state.v6, &self.descriptor.v6)
    }

    fn check_family<A: Addr>(
        &self,
        table: &FamilyTable<A>,
        entry: &crate::trie::node::Entry,
    ) -> Result<(), CheckError> {
        let footprint = (self.engine.arena.footprint_bytes() / 8) as u32 + 64;
        table
            .rib
            .check()
            .and_then(|()| {
                check::check(&table.trie, self.engine.nodes, entry, &table.rib, footprint, table.skipped_resizes > 0)
                    .map(drop)
            })
            .map_err(|message| CheckError { message: format!("{}: {message}", A::FAMILY) })
    }

    /// How the table is filled. Cost: a walk of all trie nodes.
    pub fn stats(&self) -> TableStats {
        TableStats {
            v4: FamilyStats::of(&self.state.v4, self.engine.nodes),
            v6: FamilyStats::of(&self.state.v6, self.engine.nodes),
        }
    }
}

impl std::fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("v4_prefixes", &self.prefix_count(Family::V4))
            .field("v6_prefixes", &self.prefix_count(Family::V6))
            .finish_non_exhaustive()
    }
}

fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), OutOfMemory> {
    if list.len() == list.capacity() {
        let bytes = size_of::<T>() * list.len().max(1024);
        list.try_reserve(list.len().max(1024)).map_err(|_| OutOfMemory { resource: Resource::Rib, bytes, limit: 0 })?;
    }
    list.push(item);
    Ok(())
}
