//! Several routes on one prefix, refreshes of an owner's routes, batches of changes, walks that resume.
//!
//! The model is a sorted list of routes per prefix, kept by the obvious code:
//!
//! ```text
//! 10.0.0.0/8   5a   5b   7c   7d      priority, then next hop and owner; the first one forwards
//!             ^  ^           ^ ^
//!   prepend 5x   |           | append 7x
//!      replace 5 (the first) replace 7 would be 7c
//! ```

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Rng, TestAddr, answers, hop, ip, net, prefix, recount};
use fib::{Applied, Family, Fib, FibError, OnError, Op, Prefix, Route, RouteMatch, Writer};
use ipnet::IpNet;
use proptest::prelude::*;

fn route(id: u32, priority: u32, owner: u32) -> Route {
    Route::new(hop(id)).with_priority(priority).with_owner(owner)
}

fn fresh() -> Writer {
    Fib::new().unwrap().writer().unwrap()
}

fn routes(writer: &mut Writer, prefix: &str) -> Vec<Route> {
    writer.main().routes(net(prefix)).collect()
}

const TEN: &str = "10.0.0.0/8";
const INSIDE: &str = "10.1.2.3";

#[test]
fn the_lowest_priority_forwards_and_hands_over_when_it_goes() {
    let mut writer = fresh();
    let mut table = writer.main();
    for (id, priority) in [(3, 30), (1, 10), (2, 20), (4, u32::MAX), (0, 0)] {
        table.insert_if_absent(net(TEN), route(id, priority, 7)).unwrap();
        assert_eq!(table.lookup(ip(INSIDE)), table.routes(net(TEN)).next().map(|route| route.next_hop));
    }
    assert_eq!(table.lookup_match(ip(INSIDE)), Some((net(TEN), route(0, 0, 7))));
    assert_eq!((table.prefix_count(Family::V4), table.route_count(Family::V4)), (1, 5));
    for (id, priority) in [(0, 0), (1, 10), (2, 20), (3, 30), (4, u32::MAX)] {
        assert_eq!(table.lookup(ip(INSIDE)), Some(hop(id)));
        assert_eq!(table.get(net(TEN)), Some(route(id, priority, 7)));
        assert_eq!(table.remove(net(TEN), RouteMatch::ANY).unwrap(), Some(route(id, priority, 7)));
    }
    assert_eq!(table.lookup(ip(INSIDE)), None);
    assert_eq!(table.remove(net(TEN), RouteMatch::ANY).unwrap(), None);
    writer.check().unwrap();
}

#[test]
fn equal_priorities_keep_the_order_of_append_and_prepend() {
    let mut writer = fresh();
    let mut table = writer.main();
    table.append(net(TEN), route(5, 10, 0)).unwrap();
    table.append(net(TEN), route(6, 10, 0)).unwrap();
    table.prepend(net(TEN), route(4, 10, 0)).unwrap();
    table.append(net(TEN), route(9, 20, 0)).unwrap();
    table.append(net(TEN), route(7, 10, 0)).unwrap();
    table.prepend(net(TEN), route(8, 20, 0)).unwrap();
    table.append(net(TEN), route(1, 5, 0)).unwrap();
    let ids = |table: &fib::Table<'_>| table.routes(net(TEN)).map(|route| route.next_hop.get()).collect::<Vec<_>>();
    assert_eq!(ids(&table), [1, 4, 5, 6, 7, 8, 9]);
    // The same next hop by another owner is another route; by the same owner it is the same.
    table.append(net(TEN), route(5, 10, 1)).unwrap();
    let exists = FibError::RouteExists { prefix: net(TEN), priority: 10 };
    assert_eq!(table.append(net(TEN), route(5, 10, 1)), Err(exists.clone()));
    assert_eq!(table.prepend(net(TEN), route(6, 10, 0)), Err(exists.clone()));
    assert_eq!(table.insert_if_absent(net(TEN), route(99, 10, 99)), Err(exists.clone()));
    assert_eq!(ids(&table), [1, 4, 5, 6, 7, 5, 8, 9]);
    // Replacing means the first of the priority, in its place.
    assert_eq!(table.replace_if_present(net(TEN), route(44, 10, 0)).unwrap(), route(4, 10, 0));
    assert_eq!(table.insert_or_replace(net(TEN), route(88, 20, 3)).unwrap(), Some(route(8, 20, 0)));
    assert_eq!(ids(&table), [1, 44, 5, 6, 7, 5, 88, 9]);
    // A later one that is equal already stands in the way; replacing the first by itself changes nothing.
    assert_eq!(table.replace_if_present(net(TEN), route(6, 10, 0)), Err(exists.clone()));
    assert_eq!(table.insert_or_replace(net(TEN), route(6, 10, 0)), Err(exists));
    assert_eq!(table.replace_if_present(net(TEN), route(44, 10, 0)).unwrap(), route(44, 10, 0));
    let absent = FibError::NoSuchRoute { prefix: net(TEN), priority: 11 };
    assert_eq!(table.replace_if_present(net(TEN), route(1, 11, 0)), Err(absent));
    assert_eq!(ids(&table), [1, 44, 5, 6, 7, 5, 88, 9]);
    assert_eq!(table.lookup(ip(INSIDE)), Some(hop(1)));
    writer.check().unwrap();
}

#[test]
fn a_removal_takes_the_first_route_that_fits() {
    let all = [route(1, 10, 0), route(2, 10, 1), route(1, 20, 1), route(3, 20, 0), route(1, 30, 0)];
    let any = RouteMatch::ANY;
    for (which, expected) in [
        (any, Some(0)),
        (RouteMatch { next_hop: Some(hop(1)), ..any }, Some(0)),
        (RouteMatch { next_hop: Some(hop(3)), ..any }, Some(3)),
        (RouteMatch { priority: Some(20), ..any }, Some(2)),
        (RouteMatch { owner: Some(1), ..any }, Some(1)),
        (RouteMatch { next_hop: Some(hop(1)), priority: Some(20), ..any }, Some(2)),
        (RouteMatch { next_hop: Some(hop(1)), owner: Some(1), ..any }, Some(2)),
        (RouteMatch { next_hop: Some(hop(1)), priority: Some(30), owner: Some(0) }, Some(4)),
        (RouteMatch { next_hop: Some(hop(2)), priority: Some(20), ..any }, None),
        (RouteMatch { next_hop: Some(hop(9)), ..any }, None),
        (RouteMatch { priority: Some(11), ..any }, None),
        (RouteMatch { owner: Some(2), ..any }, None),
    ] {
        let mut writer = fresh();
        for route in all {
            writer.main().append(net(TEN), route).unwrap();
        }
        let removed = writer.main().remove(net(TEN), which).unwrap();
        assert_eq!(removed, expected.map(|index: usize| all[index]), "{which:?}");
        let left: Vec<Route> =
            all.into_iter().enumerate().filter(|(index, _)| Some(*index) != expected).map(|(_, route)| route).collect();
        assert_eq!(routes(&mut writer, TEN), left);
        assert_eq!(writer.main().lookup(ip(INSIDE)), Some(left[0].next_hop));
        writer.check().unwrap();
    }
}

#[test]
fn a_refresh_sweeps_what_was_not_added_again() {
    let mut writer = fresh();
    let mut table = writer.main();
    let kept = ["10.1.0.0/16", "0.0.0.0/0", "2001:db8:1::/48", "10.3.0.0/16"];
    let gone = ["10.2.0.0/16", "10.2.2.0/24", "::/0", "2001:db8:2::/48"];
    for text in kept.iter().chain(&gone) {
        table.insert_if_absent(net(text), route(1, 10, 7)).unwrap();
    }
    // Another owner's routes, behind, before and elsewhere, are none of its business.
    table.insert_if_absent(net("10.2.0.0/16"), route(2, 20, 8)).unwrap();
    table.insert_if_absent(net("10.1.0.0/16"), route(3, 5, 8)).unwrap();
    table.insert_if_absent(net("192.0.2.0/24"), route(4, 10, 8)).unwrap();
    assert_eq!(table.begin_refresh(7), 8);
    // Stale routes stay in force.
    assert_eq!(table.lookup(ip("10.2.2.1")), Some(hop(1)));
    assert_eq!(table.lookup(ip("3000::1")), Some(hop(1)));
    // Each way of adding an equal route again takes the mark away.
    table.insert_if_absent(net(kept[0]), route(1, 10, 7)).unwrap();
    assert_eq!(table.insert_or_replace(net(kept[1]), route(1, 10, 7)).unwrap(), Some(route(1, 10, 7)));
    assert_eq!(table.replace_if_present(net(kept[2]), route(1, 10, 7)).unwrap(), route(1, 10, 7));
    table.append(net(kept[3]), route(1, 10, 7)).unwrap();
    // A new one is not stale.
    table.insert_if_absent(net("10.4.0.0/16"), route(1, 10, 7)).unwrap();
    assert_eq!(
        table.insert_if_absent(net(kept[0]), route(1, 10, 7)).unwrap_err().to_string(),
        "10.1.0.0/16 has a route of priority 10 already"
    );
    assert_eq!(table.end_refresh(7).unwrap(), 4);
    for text in kept.iter().chain(&["10.4.0.0/16"]) {
        assert!(table.routes(net(text)).any(|present| present == route(1, 10, 7)), "{text}");
    }
    assert_eq!(table.get(net("10.2.0.0/16")), Some(route(2, 20, 8)));
    assert_eq!((table.get(net("10.2.2.0/24")), table.get(net("::/0"))), (None, None));
    assert_eq!(table.lookup(ip("10.2.2.1")), Some(hop(2)), "the other owner's takes over");
    assert_eq!(table.lookup(ip("3000::1")), None);
    assert_eq!(table.get(net("192.0.2.0/24")), Some(route(4, 10, 8)));
    assert_eq!(table.end_refresh(7).unwrap(), 0);
    assert_eq!(table.end_refresh(8).unwrap(), 0);
    recount(&mut writer);
    writer.check().unwrap();
}

#[test]
fn a_refresh_of_several_routes_on_one_prefix() {
    let mut writer = fresh();
    let mut table = writer.main();
    for id in 0..6 {
        table.append(net(TEN), route(id, id / 2, 7)).unwrap();
    }
    assert_eq!(table.begin_refresh(7), 6);
    for id in [1, 4] {
        table.append(net(TEN), route(id, id / 2, 7)).unwrap();
    }
    assert_eq!(table.end_refresh(7).unwrap(), 4);
    assert_eq!(routes(&mut writer, TEN), [route(1, 0, 7), route(4, 2, 7)]);
    assert_eq!(writer.main().lookup(ip(INSIDE)), Some(hop(1)));
    // A replaced route is a new one, also when it was stale.
    let mut table = writer.main();
    assert_eq!(table.begin_refresh(7), 2);
    assert_eq!(table.insert_or_replace(net(TEN), route(9, 2, 7)).unwrap(), Some(route(4, 2, 7)));
    assert_eq!(table.end_refresh(7).unwrap(), 1);
    assert_eq!(routes(&mut writer, TEN), [route(9, 2, 7)]);
    writer.check().unwrap();
}

#[test]
fn a_batch_stops_or_goes_on_at_an_error() {
    let ops = [
        Op::InsertIfAbsent(net(TEN), route(1, 0, 0)),
        Op::InsertIfAbsent(net(TEN), route(2, 0, 0)),
        Op::InsertOrReplace(net(TEN), route(3, 0, 0)),
        Op::ReplaceIfPresent(net("10.1.0.0/16"), route(4, 0, 0)),
        Op::Append(net(TEN), route(5, 0, 0)),
        Op::Prepend(net(TEN), route(6, 0, 0)),
        Op::Remove(net("192.0.2.0/24"), RouteMatch::ANY),
        Op::Remove(net(TEN), RouteMatch::ANY),
        Op::InsertOrReplace(net("2001:db8::/32"), route(7, 0, 0)),
        Op::InsertOrReplace("10.1.1.1/16".parse().unwrap(), route(8, 0, 0)),
        Op::ReplaceIfPresent(net("2001:db8::/32"), route(9, 0, 0)),
        Op::RemoveWithin(net("0.0.0.0/0")),
        Op::RemoveWithin(net("0.0.0.0/0")),
    ];
    let exists = |prefix: &str| Err(FibError::RouteExists { prefix: net(prefix), priority: 0 });
    let mut writer = fresh();
    let results = writer.main().apply(&ops, OnError::Stop).unwrap();
    assert_eq!(results, [Ok(Applied::Inserted), exists(TEN)]);
    assert_eq!(routes(&mut writer, TEN), [route(1, 0, 0)]);
    assert_eq!(recount(&mut writer), (1, 1));

    let mut writer = fresh();
    let results = writer.main().apply(&ops, OnError::Continue).unwrap();
    assert_eq!(results.len(), ops.len());
    assert_eq!(results[..3], [Ok(Applied::Inserted), exists(TEN), Ok(Applied::Replaced(route(1, 0, 0)))]);
    assert_eq!(results[3], Err(FibError::NoSuchRoute { prefix: net("10.1.0.0/16"), priority: 0 }));
    assert_eq!(results[4..7], [Ok(Applied::Inserted), Ok(Applied::Inserted), Ok(Applied::Absent)]);
    assert_eq!(results[7..9], [Ok(Applied::Removed(route(6, 0, 0))), Ok(Applied::Inserted)]);
    assert!(matches!(results[9], Err(FibError::Prefix(_))));
    assert_eq!(
        results[10..],
        [Ok(Applied::Replaced(route(7, 0, 0))), Ok(Applied::RemovedWithin(2)), Ok(Applied::RemovedWithin(0))]
    );
    assert_eq!(recount(&mut writer), (1, 1));
    assert_eq!(writer.main().get(net("2001:db8::/32")), Some(route(9, 0, 0)));
    writer.check().unwrap();
}

#[test]
fn a_bulk_load_keeps_the_last_route_of_a_prefix_and_priority() {
    let mut writer = fresh();
    let input = [
        (net(TEN), route(1, 0, 0)),
        (net("::/0"), route(2, 0, 0)),
        (net(TEN), route(3, 5, 0)),
        (net(TEN), route(4, 0, 1)),
        (net("10.0.0.0/9"), route(5, 0, 0)),
        (net("::/0"), route(6, 0, 0)),
    ];
    let report = writer.main().load(input).unwrap();
    assert_eq!((report.routes, report.replaced), (4, 2));
    assert_eq!(routes(&mut writer, TEN), [route(4, 0, 1), route(3, 5, 0)]);
    assert_eq!(writer.main().lookup(ip("10.200.0.1")), Some(hop(4)));
    assert_eq!(writer.main().lookup(ip("10.1.0.1")), Some(hop(5)));
    assert_eq!(writer.main().lookup(ip("::1")), Some(hop(6)));
    let refused = writer.main().load(input).unwrap_err();
    assert_eq!(refused, FibError::TableNotEmpty { routes: 4 });
    assert_eq!(recount(&mut writer), (3, 4));
    // An input that cannot be used leaves the table empty, and usable.
    writer.main().clear().unwrap();
    let unusable = input.into_iter().chain([("10.0.0.1/8".parse().unwrap(), route(1, 0, 0))]);
    assert!(matches!(writer.main().load(unusable), Err(FibError::Prefix(_))));
    assert_eq!(recount(&mut writer), (0, 0));
    assert_eq!(writer.main().load(input).unwrap(), report);
    writer.check().unwrap();
}

#[test]
fn a_subtree_goes_with_all_its_routes() {
    let mut writer = fresh();
    let mut table = writer.main();
    for text in ["10.0.0.0/8", "10.0.0.0/7", "10.1.0.0/16", "10.1.1.1/32", "11.0.0.0/8", "0.0.0.0/0", "::/0"] {
        table.append(net(text), route(1, 0, 0)).unwrap();
        table.append(net(text), route(2, 0, 0)).unwrap();
    }
    assert_eq!(table.remove_within(net("10.0.0.0/8")).unwrap(), 6);
    assert_eq!(table.remove_within(net("10.0.0.0/8")).unwrap(), 0);
    assert_eq!(table.lookup_match(ip("10.1.1.1")), Some((net("10.0.0.0/7"), route(1, 0, 0))));
    // What is left of the block above it.
    assert_eq!(table.remove_within(net("10.0.0.0/7")).unwrap(), 4);
    assert_eq!(table.lookup_match(ip("10.1.1.1")), Some((net("0.0.0.0/0"), route(1, 0, 0))));
    assert_eq!(table.remove_within(net("::/0")).unwrap(), 2);
    assert_eq!(table.clear().unwrap(), 2);
    assert_eq!(recount(&mut writer), (0, 0));
    writer.check().unwrap();
}

#[test]
fn a_walk_resumes_at_or_behind_any_prefix() {
    let mut writer = fresh();
    let mut rng = Rng::new(30);
    let mut all = BTreeSet::new();
    for _ in 0..3_000 {
        let v4 = prefix(u32::random(&mut rng) & 0x3f00_ff03, rng.below(33) as u8);
        if writer.main().insert_or_replace(v4.into(), hop(1)).unwrap().is_none() {
            all.insert(v4);
        }
    }
    let all: Vec<Prefix<u32>> = all.into_iter().collect();
    let table = writer.main();
    let walked =
        |from: IpNet, count: usize| table.iter_from(from).take(count).map(|(prefix, _)| prefix).collect::<Vec<_>>();
    let named = |prefixes: &[Prefix<u32>]| prefixes.iter().map(|prefix| IpNet::from(*prefix)).collect::<Vec<_>>();
    assert_eq!(table.iter(Family::V4).map(|(prefix, _)| prefix).collect::<Vec<_>>(), named(&all));
    for (index, present) in all.iter().enumerate() {
        let end = (index + 5).min(all.len());
        assert_eq!(walked((*present).into(), 5), named(&all[index..end]));
    }
    for _ in 0..3_000 {
        let absent = prefix(u32::random(&mut rng), rng.below(33) as u8);
        let index = all.partition_point(|present| *present < absent);
        assert_eq!(walked(absent.into(), 3), named(&all[index..(index + 3).min(all.len())]), "from {absent}");
    }
    // A piece at a time, by the last prefix that was seen; the order puts a longer prefix right behind a shorter one.
    let mut seen: Vec<IpNet> = walked(net("0.0.0.0/0"), 7);
    while let Some(last) = seen.last().copied() {
        let piece = walked(last, 8);
        assert_eq!(piece[0], last);
        if piece.len() == 1 {
            break;
        }
        seen.extend(&piece[1..]);
    }
    assert_eq!(seen, named(&all));
}

/// The obvious table: a list of routes, stale or not, for each prefix.
#[derive(Default)]
struct Model<A: TestAddr> {
    lists: BTreeMap<Prefix<A>, Vec<(Route, bool)>>,
}

/// What an insertion gives: the route that was replaced, or which kind of error.
type Inserted = Result<Option<Route>, &'static str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    IfAbsent,
    ReplaceIfPresent,
    InsertOrReplace,
    Append,
    Prepend,
}

impl<A: TestAddr> Model<A> {
    fn insert(&mut self, prefix: Prefix<A>, route: Route, mode: Mode) -> Inserted {
        let list = self.lists.entry(prefix).or_default();
        let result = Self::insert_into(list, route, mode);
        if list.is_empty() {
            self.lists.remove(&prefix);
        }
        result
    }

    fn insert_into(list: &mut Vec<(Route, bool)>, route: Route, mode: Mode) -> Inserted {
        let start = list.iter().take_while(|(present, _)| present.priority < route.priority).count();
        let end = list.iter().take_while(|(present, _)| present.priority <= route.priority).count();
        let identical = list.iter().position(|(present, _)| *present == route);
        if let Some(index) = identical
            && list[index].1
        {
            list[index].1 = false;
            return Ok(Some(route));
        }
        match mode {
            Mode::IfAbsent if start < end => Err("exists"),
            Mode::ReplaceIfPresent if start == end => Err("absent"),
            Mode::ReplaceIfPresent | Mode::InsertOrReplace if start < end => match identical {
                Some(index) if index > start => Err("exists"),
                _ => Ok(Some(std::mem::replace(&mut list[start], (route, false)).0)),
            },
            Mode::Append | Mode::Prepend if identical.is_some() => Err("exists"),
            Mode::Append => {
                list.insert(end, (route, false));
                Ok(None)
            }
            _ => {
                list.insert(start, (route, false));
                Ok(None)
            }
        }
    }

    fn remove(&mut self, prefix: Prefix<A>, which: RouteMatch) -> Option<Route> {
        let list = self.lists.get_mut(&prefix)?;
        let index = list.iter().position(|(route, _)| which.fits(route))?;
        let removed = list.remove(index).0;
        if list.is_empty() {
            self.lists.remove(&prefix);
        }
        Some(removed)
    }

    fn remove_within(&mut self, prefix: Prefix<A>) -> u64 {
        let mut removed = 0;
        self.lists.retain(|inner, list| {
            let goes = prefix.covers(*inner);
            removed += if goes { list.len() as u64 } else { 0 };
            !goes
        });
        removed
    }

    fn begin_refresh(&mut self, owner: u32) -> u64 {
        let mut marked = 0;
        for (route, stale) in self.lists.values_mut().flatten() {
            if route.owner == owner {
                *stale = true;
                marked += 1;
            }
        }
        marked
    }

    fn end_refresh(&mut self, owner: u32) -> u64 {
        let mut removed = 0;
        self.lists.retain(|_, list| {
            let before = list.len();
            list.retain(|(route, stale)| !(*stale && route.owner == owner));
            removed += (before - list.len()) as u64;
            !list.is_empty()
        });
        removed
    }

    fn winner(&self, addr: A) -> Option<(Prefix<A>, Route)> {
        let covering = self.lists.iter().filter(|(prefix, _)| prefix.contains(addr));
        covering.max_by_key(|(prefix, _)| prefix.len()).map(|(prefix, list)| (*prefix, list[0].0))
    }
}

#[derive(Clone, Copy, Debug)]
enum Step<A: fib::Addr> {
    Insert(Prefix<A>, Route, Mode),
    Remove(Prefix<A>, RouteMatch),
    RemoveWithin(Prefix<A>),
    BeginRefresh(u32),
    EndRefresh(u32),
}

fn prefixes<A: TestAddr>() -> impl Strategy<Value = Prefix<A>> {
    // Few enough that they meet again, with some bits in each part of the key.
    (0u32..4, prop::sample::select(vec![0, 1, 6, 7, 13, 24, A::BITS - 1, A::BITS])).prop_map(|(bits, len)| {
        let low = if bits & 2 == 0 { A::ZERO } else { A::ZERO.wrapping_next() };
        prefix(A::from_top((bits & 1) * 0x2a00_0000).or(low), len)
    })
}

fn steps<A: TestAddr>() -> impl Strategy<Value = Vec<Step<A>>> {
    let route = || (0u32..3, 0u32..3, 0u32..2).prop_map(|(id, priority, owner)| route(id, priority, owner));
    let mode = prop::sample::select(vec![
        Mode::IfAbsent,
        Mode::ReplaceIfPresent,
        Mode::InsertOrReplace,
        Mode::Append,
        Mode::Append,
        Mode::Prepend,
    ]);
    let maybe = |bound: u32| prop::option::of(0..bound);
    let which = (maybe(3), maybe(3), maybe(2)).prop_map(|(id, priority, owner)| RouteMatch {
        next_hop: id.map(hop),
        priority,
        owner,
    });
    let step = prop_oneof![
        12 => (prefixes(), route(), mode).prop_map(|(prefix, route, mode)| Step::Insert(prefix, route, mode)),
        6 => (prefixes(), which).prop_map(|(prefix, which)| Step::Remove(prefix, which)),
        1 => prefixes().prop_map(Step::RemoveWithin),
        1 => (0u32..2).prop_map(Step::BeginRefresh),
        1 => (0u32..2).prop_map(Step::EndRefresh),
    ];
    prop::collection::vec(step, 1..120)
}

fn kind(error: FibError) -> &'static str {
    match error {
        FibError::RouteExists { .. } => "exists",
        FibError::NoSuchRoute { .. } => "absent",
        _ => "another error",
    }
}

fn run<A: TestAddr>(steps: &[Step<A>]) -> Result<(), TestCaseError> {
    let fib = Fib::new().unwrap();
    let (mut writer, mut reader) = (fib.writer().unwrap(), fib.reader("model").unwrap());
    let mut model = Model::<A>::default();
    let mut seen: BTreeSet<A> = BTreeSet::new();
    for step in steps {
        let mut table = writer.main();
        match *step {
            Step::Insert(prefix, route, mode) => {
                let net = IpNet::from(prefix);
                let right = model.insert(prefix, route, mode);
                match mode {
                    Mode::InsertOrReplace => {
                        prop_assert_eq!(table.insert_or_replace(net, route).map_err(kind), right);
                    }
                    Mode::ReplaceIfPresent => {
                        prop_assert_eq!(table.replace_if_present(net, route).map(Some).map_err(kind), right);
                    }
                    Mode::IfAbsent => {
                        prop_assert_eq!(table.insert_if_absent(net, route).map_err(kind), right.map(drop));
                    }
                    Mode::Append => prop_assert_eq!(table.append(net, route).map_err(kind), right.map(drop)),
                    Mode::Prepend => prop_assert_eq!(table.prepend(net, route).map_err(kind), right.map(drop)),
                }
                seen.extend(common::around(prefix));
            }
            Step::Remove(prefix, which) => {
                prop_assert_eq!(table.remove(prefix.into(), which), Ok(model.remove(prefix, which)));
            }
            Step::RemoveWithin(prefix) => {
                prop_assert_eq!(table.remove_within(prefix.into()), Ok(model.remove_within(prefix)));
            }
            Step::BeginRefresh(owner) => prop_assert_eq!(table.begin_refresh(owner), model.begin_refresh(owner)),
            Step::EndRefresh(owner) => prop_assert_eq!(table.end_refresh(owner), Ok(model.end_refresh(owner))),
        }
        writer.check().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let table = writer.main();
        let winners: Vec<(IpNet, Route)> =
            model.lists.iter().map(|(prefix, list)| (IpNet::from(*prefix), list[0].0)).collect();
        prop_assert_eq!(table.iter(A::FAMILY).collect::<Vec<_>>(), winners);
        for (prefix, list) in &model.lists {
            let right: Vec<Route> = list.iter().map(|(route, _)| *route).collect();
            prop_assert_eq!(table.routes((*prefix).into()).collect::<Vec<_>>(), right);
        }
        let addrs: Vec<A> = seen.iter().copied().collect();
        for (addr, found) in addrs.iter().zip(answers(&mut writer, &mut reader, &addrs)) {
            let right = model.winner(*addr);
            prop_assert_eq!(found, right.map(|(_, route)| route.next_hop));
            let matched = writer.main().lookup_match(addr.to_ip());
            prop_assert_eq!(matched, right.map(|(prefix, route)| (IpNet::from(prefix), route)));
        }
    }
    let (prefixes, routes) = recount(&mut writer);
    prop_assert_eq!(prefixes, model.lists.len());
    prop_assert_eq!(routes, model.lists.values().map(Vec::len).sum::<usize>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ipv4_routes_behave_as_sorted_lists(steps in steps::<u32>()) {
        run(&steps)?;
    }

    #[test]
    fn ipv6_routes_behave_as_sorted_lists(steps in steps::<u128>()) {
        run(&steps)?;
    }
}
