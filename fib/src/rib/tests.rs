//! The Rib against a model: a sorted map from prefix to list of routes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::edit::InsertPlan;
use super::pool::NONE;
use super::*;
use crate::failpoint;
use crate::route::RouteMatch;

/// Addresses that the tests can make from 128 random bits.
trait TestAddr: Addr {
    fn from_top(bits: u128) -> Self;
}

impl TestAddr for u32 {
    fn from_top(bits: u128) -> Self {
        (bits >> 96) as u32
    }
}

impl TestAddr for u128 {
    fn from_top(bits: u128) -> Self {
        bits
    }
}

/// A small generator of reproducible numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    fn prefix<A: TestAddr>(&mut self, lens: std::ops::RangeInclusive<u8>) -> Prefix<A> {
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        let len = lens.start() + self.below(usize::from(lens.end() - lens.start()) + 1) as u8;
        Prefix::truncating(A::from_top(bits), len).unwrap()
    }
}

fn route(next_hop: u32, priority: u32, owner: u32) -> Route {
    Route::new(NextHopId::new(next_hop).unwrap()).with_priority(priority).with_owner(owner)
}

fn v4(text: &str) -> Prefix<u32> {
    Prefix::try_from(text.parse::<ipnet::Ipv4Net>().unwrap()).unwrap()
}

fn v6(text: &str) -> Prefix<u128> {
    Prefix::try_from(text.parse::<ipnet::Ipv6Net>().unwrap()).unwrap()
}

/// A route and whether it is stale.
type Held = (Route, bool);

#[derive(Clone, Default)]
struct Model<A>(BTreeMap<Prefix<A>, Vec<Held>>);

impl<A: Addr> Model<A> {
    /// The rules of `InsertMode`, written on a plain list.
    fn insert(&mut self, prefix: Prefix<A>, route: Route, mode: InsertMode) -> Result<Option<Route>, RibError> {
        let empty = Vec::new();
        let held = self.0.get(&prefix).unwrap_or(&empty);
        let first = held.iter().position(|(other, _)| other.priority == route.priority);
        let identical = held.iter().position(|(other, _)| *other == route);
        let lower = held.iter().filter(|(other, _)| other.priority < route.priority).count();
        let same = held.iter().filter(|(other, _)| other.priority == route.priority).count();
        let replaces = matches!(mode, InsertMode::ReplaceIfPresent | InsertMode::InsertOrReplace);

        let list = |model: &mut Self, at: usize| model.0.entry(prefix).or_default().insert(at, (route, false));
        match identical {
            Some(at) if held[at].1 || replaces && Some(at) == first => {
                self.0.get_mut(&prefix).unwrap()[at].1 = false;
                return Ok(Some(route));
            }
            Some(_) => return Err(RibError::Exists),
            None => {}
        }
        match (mode, first) {
            (InsertMode::IfAbsent, Some(_)) => Err(RibError::Exists),
            (InsertMode::ReplaceIfPresent, None) => Err(RibError::NoSuchRoute),
            (InsertMode::ReplaceIfPresent | InsertMode::InsertOrReplace, Some(at)) => {
                let replaced = std::mem::replace(&mut self.0.get_mut(&prefix).unwrap()[at], (route, false));
                Ok(Some(replaced.0))
            }
            (InsertMode::Append, _) => {
                list(self, lower + same);
                Ok(None)
            }
            (InsertMode::Prepend, _) | (InsertMode::IfAbsent | InsertMode::InsertOrReplace, None) => {
                list(self, lower);
                Ok(None)
            }
        }
    }

    fn remove(&mut self, prefix: Prefix<A>, which: &RouteMatch) -> Option<Route> {
        let held = self.0.get_mut(&prefix)?;
        let at = held.iter().position(|(route, _)| which.fits(route))?;
        let (route, _) = held.remove(at);
        if held.is_empty() {
            self.0.remove(&prefix);
        }
        Some(route)
    }

    fn remove_within(&mut self, prefix: Prefix<A>) -> u64 {
        let before = self.route_count();
        self.0.retain(|other, _| !prefix.covers(*other));
        (before - self.route_count()) as u64
    }

    fn mark_stale(&mut self, owner: u32) -> u64 {
        let mut marked = 0;
        for (_, stale) in self.0.values_mut().flatten().filter(|(route, _)| route.owner == owner) {
            *stale = true;
            marked += 1;
        }
        marked
    }

    fn route_count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    fn winner(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.0.get(&prefix).map(|held| held[0].0.next_hop)
    }

    fn winners(&self) -> impl DoubleEndedIterator<Item = (Prefix<A>, Route)> {
        self.0.iter().map(|(prefix, held)| (*prefix, held[0].0))
    }
}

fn dump<A: Addr>(rib: &Rib<A>) -> Vec<(Prefix<A>, Vec<Held>)> {
    let mut walk = rib.iter_from(Prefix::DEFAULT);
    let mut all = Vec::new();
    while let Some((prefix, routes)) = walk.next_routes() {
        all.push((prefix, routes.cells().map(|cell| (cell.route(), cell.is_stale())).collect()));
    }
    all
}

fn agree<A: Addr>(rib: &Rib<A>, model: &Model<A>) {
    rib.check().unwrap();
    let expected: Vec<_> = model.0.iter().map(|(prefix, held)| (*prefix, held.clone())).collect();
    assert_eq!(dump(rib), expected);
    assert_eq!(rib.prefix_count(), model.0.len());
    assert_eq!(rib.route_count(), model.route_count());
    let mut by_len = vec![0; usize::from(A::BITS) + 1];
    model.0.keys().for_each(|prefix| by_len[usize::from(prefix.len())] += 1);
    assert_eq!(rib.count_by_len(), by_len);
    let mut seen = Vec::new();
    view(rib.root(), 0, A::ZERO, &mut seen);
    seen.sort();
    assert_eq!(seen, model.winners().map(|(prefix, route)| (prefix, route.next_hop)).collect::<Vec<_>>());
}

/// Collects what the planner's view shows below `node`.
fn view<A: Addr>(node: Node<'_>, step: usize, base: A, seen: &mut Vec<(Prefix<A>, NextHopId)>) {
    let before = seen.len();
    for position in (0..127).filter(|position| node.prefixes() >> position & 1 == 1) {
        let (slot, len) = grid::place(position);
        let addr = base.or(A::from_step_slot(step, slot));
        seen.push((prefix_of(addr, len_of::<A>(step, len)), node.winner(position)));
    }
    for slot in 0..64 {
        assert_eq!(node.child(slot).is_some(), node.children() >> slot & 1 == 1);
        if let Some(child) = node.child(slot) {
            view(child, step + 1, base.or(A::from_step_slot(step, slot)), seen);
        }
    }
    assert_eq!(node.population() as usize, seen.len() - before);
}

/// Every question that can be asked about `prefix`.
fn queries_agree<A: Addr>(rib: &Rib<A>, model: &Model<A>, prefix: Prefix<A>) {
    let held: Vec<Route> = model.0.get(&prefix).into_iter().flatten().map(|(route, _)| *route).collect();
    assert_eq!(rib.get(prefix), held.first().copied());
    assert_eq!(rib.routes(prefix).collect::<Vec<_>>(), held);

    let covers: Vec<_> = model.winners().filter(|(other, _)| other.covers(prefix)).collect();
    assert_eq!(rib.covers(prefix).collect::<Vec<_>>(), covers);
    assert_eq!(rib.covers_longest_first(prefix).collect::<Vec<_>>(), covers.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(rib.parent(prefix), covers.iter().rev().find(|(other, _)| *other != prefix).copied());
    let within: Vec<_> = model.winners().filter(|(other, _)| prefix.covers(*other)).collect();
    assert_eq!(rib.within(prefix).collect::<Vec<_>>(), within);
    let from: Vec<_> = model.winners().filter(|(other, _)| *other >= prefix).collect();
    assert_eq!(rib.iter_from(prefix).collect::<Vec<_>>(), from);

    let (first, last) = (prefix.addr(), prefix.last());
    for addr in [first.wrapping_prev(), first, first.wrapping_next(), last.wrapping_prev(), last, last.wrapping_next()]
    {
        let matches: Vec<_> = model.winners().filter(|(other, _)| other.contains(addr)).collect();
        assert_eq!(rib.longest_match(addr), matches.iter().max_by_key(|(other, _)| other.len()).copied());
        assert_eq!(rib.shortest_match(addr), matches.iter().min_by_key(|(other, _)| other.len()).copied());
    }
}

/// Inserts with each reservation failing in turn, and returns how many did.
fn insert_failing<A: Addr>(
    rib: &mut Rib<A>,
    prefix: Prefix<A>,
    route: Route,
    mode: InsertMode,
) -> (u64, Result<InsertPlan<A>, RibError>) {
    let before = (dump(rib), rib.prefix_count(), rib.route_count(), rib.count_by_len().to_vec());
    for passing in 0.. {
        failpoint::arm(Some(passing));
        let planned = rib.plan_insert(prefix, route, mode);
        failpoint::arm(None);
        rib.check().unwrap();
        let after = (dump(rib), rib.prefix_count(), rib.route_count(), rib.count_by_len().to_vec());
        assert_eq!(before, after);
        if !matches!(planned, Err(RibError::OutOfMemory(_))) {
            return (passing, planned);
        }
    }
    unreachable!()
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u128, u8, Route, InsertMode),
    DropPlan(u128, u8, Route, InsertMode),
    Remove(u128, u8, RouteMatch),
    RemoveWithin(u128, u8),
    Clear,
    MarkStale(u32),
    Sweep(u32),
    Ask(u128, u8),
}

fn apply<A: TestAddr>(rib: &mut Rib<A>, model: &mut Model<A>, op: &Op) {
    let prefix = |bits: u128, len: u8| Prefix::truncating(A::from_top(bits), len % (A::BITS + 1)).unwrap();
    let mut asked = Prefix::DEFAULT;
    match *op {
        Op::Insert(bits, len, route, mode) => {
            asked = prefix(bits, len);
            let (before, routes) = (model.winner(asked), model.route_count());
            let expected = model.insert(asked, route, mode);
            let (failures, planned) = insert_failing(rib, asked, route, mode);
            let grew = model.route_count() > routes;
            // Nodes and a cell, a cell alone, or nothing when there is room or the number of routes stays.
            assert!(failures <= if grew { 2 } else { 0 });
            let done = planned.map(|plan| {
                assert_eq!((plan.prefix(), plan.winner_before()), (asked, before));
                assert_eq!(plan.winner_after(), model.winner(asked));
                assert_eq!(plan.prefix_is_new(), before.is_none());
                assert_eq!(plan.is_refresh(), expected == Ok(Some(route)));
                rib.commit_insert(plan)
            });
            assert_eq!(done, expected);
        }
        Op::DropPlan(bits, len, route, mode) => {
            asked = prefix(bits, len);
            let planned = rib.plan_insert(asked, route, mode).map(|_| ());
            assert_eq!(planned, model.clone().insert(asked, route, mode).map(|_| ()));
        }
        Op::Remove(bits, len, which) => {
            asked = prefix(bits, len);
            let before = model.winner(asked);
            let expected = model.remove(asked, &which);
            let removed = rib.plan_remove(asked, &which).map(|plan| {
                assert_eq!((plan.prefix(), Some(plan.route())), (asked, expected));
                assert_eq!((plan.winner_before(), plan.winner_after()), (before, model.winner(asked)));
                assert_eq!(plan.prefix_goes(), model.winner(asked).is_none());
                rib.commit_remove(plan)
            });
            assert_eq!(removed, expected);
        }
        Op::RemoveWithin(bits, len) => {
            asked = prefix(bits, len);
            assert_eq!(rib.remove_within(asked), model.remove_within(asked));
        }
        Op::Clear => {
            assert_eq!(rib.clear(), model.remove_within(Prefix::DEFAULT));
            assert_eq!(rib.bytes(), size_of::<Rib<A>>());
        }
        Op::MarkStale(owner) => assert_eq!(rib.mark_stale(owner), model.mark_stale(owner)),
        Op::Sweep(owner) => {
            let mut from = None;
            while let Some((prefix, stale)) = rib.next_stale(owner, from) {
                let which = RouteMatch {
                    next_hop: Some(stale.next_hop),
                    priority: Some(stale.priority),
                    owner: Some(stale.owner),
                };
                assert_eq!(rib.remove(prefix, &which), Some(stale));
                from = Some(prefix);
            }
            for held in model.0.values_mut() {
                held.retain(|(route, stale)| !stale || route.owner != owner);
            }
            model.0.retain(|_, held| !held.is_empty());
        }
        Op::Ask(bits, len) => asked = prefix(bits, len),
    }
    agree(rib, model);
    queries_agree(rib, model, asked);
}

/// Address bits and length: crowded at the top, nested along few addresses, or crowded at the bottom of the key.
fn keys() -> impl Strategy<Value = (u128, u8)> {
    const ALONG: [u128; 4] = [0, u128::MAX, 0x0a01_0203_0405_0607_0809_0a0b_0c0d_0e0f, 0x0a01_0203 << 96];
    prop_oneof![
        ((0..=255u128).prop_map(|top| top << 120), 0..=9u8),
        (prop::sample::select(&ALONG[..]), any::<u8>()),
        // The lowest bits of an IPv4 key are bits 96 to 101 of what it is made from.
        (0..64u128, 0..64u128, 0..8u8).prop_map(|(v4, v6, short)| (0x2001_0db8 << 96 | v4 << 96 | v6, 128 - short)),
        (0..64u128, 0..8u8).prop_map(|(low, short)| (0xc000_0200u128 << 96 | low << 96, 32 - short)),
    ]
}

/// Few values each, the ends of the range among them.
const NEXT_HOPS: [u32; 3] = [0, 1, NextHopId::MAX.get()];
const PRIORITIES: [u32; 3] = [0, 1, u32::MAX];
const OWNERS: [u32; 2] = [0, u32::MAX];

fn one_of(values: &'static [u32]) -> impl Strategy<Value = u32> {
    prop::sample::select(values)
}

fn routes() -> impl Strategy<Value = Route> {
    (one_of(&NEXT_HOPS), one_of(&PRIORITIES), one_of(&OWNERS))
        .prop_map(|(next_hop, priority, owner)| route(next_hop, priority, owner))
}

fn modes() -> impl Strategy<Value = InsertMode> {
    prop::sample::select(vec![
        InsertMode::IfAbsent,
        InsertMode::ReplaceIfPresent,
        InsertMode::InsertOrReplace,
        InsertMode::Append,
        InsertMode::Prepend,
    ])
}

fn matches() -> impl Strategy<Value = RouteMatch> {
    let field = |values| prop_oneof![3 => Just(None), 1 => one_of(values).prop_map(Some)];
    (field(&NEXT_HOPS), field(&PRIORITIES), field(&OWNERS)).prop_map(|(next_hop, priority, owner)| RouteMatch {
        next_hop: next_hop.map(|id| NextHopId::new(id).unwrap()),
        priority,
        owner,
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        40 => (keys(), routes(), modes()).prop_map(|((bits, len), route, mode)| Op::Insert(bits, len, route, mode)),
        4 => (keys(), routes(), modes()).prop_map(|((bits, len), route, mode)| Op::DropPlan(bits, len, route, mode)),
        20 => (keys(), matches()).prop_map(|((bits, len), which)| Op::Remove(bits, len, which)),
        3 => keys().prop_map(|(bits, len)| Op::RemoveWithin(bits, len)),
        1 => Just(Op::Clear),
        4 => one_of(&OWNERS).prop_map(Op::MarkStale),
        3 => one_of(&OWNERS).prop_map(Op::Sweep),
        6 => keys().prop_map(|(bits, len)| Op::Ask(bits, len)),
    ];
    prop::collection::vec(op, 1..if cfg!(miri) { 12 } else { 120 })
}

fn runs<A: TestAddr>(ops: &[Op]) {
    let (mut rib, mut model) = (Rib::<A>::new(), Model::default());
    for op in ops {
        apply(&mut rib, &mut model, op);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 192 }))]

    #[test]
    fn any_sequence_agrees_with_the_model_v4(ops in ops()) {
        runs::<u32>(&ops);
    }

    #[test]
    fn any_sequence_agrees_with_the_model_v6(ops in ops()) {
        runs::<u128>(&ops);
    }
}

#[test]
fn every_reservation_of_an_insertion_can_fail() {
    let mut rib = Rib::<u128>::new();
    // Ten nodes and a cell; a cell in the array of the same node; a cell behind the winner; one in front of it.
    for (prefix, route, mode, expected) in [
        ("2001:db8::/56", route(1, 5, 0), InsertMode::IfAbsent, 2),
        ("2001:db8::/55", route(2, 5, 0), InsertMode::IfAbsent, 1),
        ("2001:db8::/56", route(3, 6, 0), InsertMode::IfAbsent, 1),
        ("2001:db8::/56", route(4, 5, 0), InsertMode::Prepend, 1),
        ("2001:db8::/56", route(5, 5, 0), InsertMode::InsertOrReplace, 0),
        ("2001:db8::/56", route(5, 5, 0), InsertMode::InsertOrReplace, 0),
        ("::/0", route(6, 0, 0), InsertMode::InsertOrReplace, 1),
    ] {
        let (failures, planned) = insert_failing(&mut rib, v6(prefix), route, mode);
        assert_eq!(failures, expected, "{prefix} {route:?}");
        rib.commit_insert(planned.unwrap());
        rib.check().unwrap();
    }
    assert_eq!(rib.routes(v6("2001:db8::/56")).map(|route| route.next_hop.get()).collect::<Vec<_>>(), [5, 1, 3]);
}

#[test]
fn removing_asks_for_no_memory() {
    let mut numbers = Numbers(3);
    let mut rib = Rib::<u32>::new();
    let prefixes: Vec<Prefix<u32>> = (0..2000).map(|_| numbers.prefix(8..=14)).collect();
    for &prefix in &prefixes {
        rib.insert(prefix, route(1, 0, 0), InsertMode::InsertOrReplace).unwrap();
    }
    failpoint::arm(Some(0));
    let gone = prefixes[..1000].iter().filter(|&&prefix| rib.remove(prefix, &RouteMatch::ANY).is_some()).count();
    let flushed = rib.remove_within(Prefix::DEFAULT);
    failpoint::arm(None);
    assert!(gone > 500 && flushed > 500);
    agree(&rib, &Model::default());
}

fn crowded_agrees<A: TestAddr>() {
    // Few address bits and all lengths fill whole nodes, so blocks pass through every size class.
    let (mut rib, mut model) = (Rib::<A>::new(), Model::default());
    let mut numbers = Numbers(A::BITS.into());
    let steps = if cfg!(miri) { 200 } else { 6_000 };
    for step in 0..steps {
        let bits = u128::from(numbers.next() % 4096) << 116;
        let prefix = Prefix::truncating(A::from_top(bits), numbers.below(13) as u8).unwrap();
        // Grows for half of the time, then shrinks.
        if numbers.below(100) < if step < steps / 2 { 80 } else { 20 } {
            let route = route(numbers.below(5) as u32, 0, 0);
            assert_eq!(
                rib.insert(prefix, route, InsertMode::InsertOrReplace),
                model.insert(prefix, route, InsertMode::InsertOrReplace)
            );
        } else {
            let taken = rib.iter_from(prefix).next().map_or(prefix, |(found, _)| found);
            assert_eq!(rib.remove(taken, &RouteMatch::ANY), model.remove(taken, &RouteMatch::ANY));
        }
        if step % 100 == 0 {
            agree(&rib, &model);
            queries_agree(&rib, &model, prefix);
        }
    }
    agree(&rib, &model);
    assert_eq!(rib.remove_within(Prefix::DEFAULT), model.remove_within(Prefix::DEFAULT));
    agree(&rib, &model);
}

#[test]
fn crowded_nodes_agree_with_the_model() {
    crowded_agrees::<u32>();
    crowded_agrees::<u128>();
}

fn boundaries<A: Addr>(lens: &[u8]) {
    let mut rib = Rib::<A>::new();
    let mut model = Model::default();
    let mut prefixes = vec![];
    for &len in lens {
        prefixes.push(Prefix::truncating(A::ZERO, len).unwrap());
        prefixes.push(Prefix::truncating(A::MAX, len).unwrap());
    }
    prefixes.sort();
    prefixes.dedup();
    for (id, &prefix) in prefixes.iter().enumerate() {
        let route = route(id as u32, 0, 0);
        assert_eq!(rib.insert(prefix, route, InsertMode::IfAbsent), Ok(None));
        model.insert(prefix, route, InsertMode::IfAbsent).unwrap();
        agree(&rib, &model);
        prefixes.iter().for_each(|&asked| queries_agree(&rib, &model, asked));
    }
    assert_eq!(rib.get(Prefix::DEFAULT), Some(route(0, 0, 0)));
    assert_eq!(rib.longest_match(A::MAX).unwrap().0, Prefix::host(A::MAX));
    for &prefix in &prefixes {
        assert!(rib.remove(prefix, &RouteMatch::ANY).is_some());
        assert!(rib.remove(prefix, &RouteMatch::ANY).is_none());
        model.remove(prefix, &RouteMatch::ANY);
        agree(&rib, &model);
        prefixes.iter().for_each(|&asked| queries_agree(&rib, &model, asked));
    }
}

#[test]
fn lengths_at_the_ends() {
    boundaries::<u32>(&[0, 1, 5, 6, 7, 30, 31, 32]);
    boundaries::<u128>(&[0, 1, 2, 3, 8, 9, 122, 123, 127, 128]);
}

fn nested_in_any_order<A: TestAddr>(lens: [u8; 12]) {
    let mut numbers = Numbers(12);
    let within = A::from_top(0x0a01_0203_a5a5_5a5a_ffff_0000_1234_5678);
    for _ in 0..if cfg!(miri) { 2 } else { 200 } {
        let (mut rib, mut model) = (Rib::<A>::new(), Model::default());
        let mut prefixes = lens.map(|len| Prefix::truncating(within, len).unwrap());
        numbers.shuffle(&mut prefixes);
        for prefix in prefixes {
            let route = route(prefix.len().into(), 0, 0);
            assert_eq!(rib.insert(prefix, route, InsertMode::IfAbsent), Ok(None));
            model.insert(prefix, route, InsertMode::IfAbsent).unwrap();
            agree(&rib, &model);
            queries_agree(&rib, &model, Prefix::host(within));
        }
        assert_eq!(rib.covers(Prefix::host(within)).map(|(cover, _)| cover.len()).collect::<Vec<_>>(), lens);
        numbers.shuffle(&mut prefixes);
        for prefix in prefixes {
            assert_eq!(rib.remove(prefix, &RouteMatch::ANY), model.remove(prefix, &RouteMatch::ANY));
            agree(&rib, &model);
            queries_agree(&rib, &model, prefix);
        }
    }
}

#[test]
fn twelve_nested_prefixes_in_any_order() {
    nested_in_any_order::<u32>([0, 1, 4, 6, 7, 12, 13, 18, 24, 25, 31, 32]);
    nested_in_any_order::<u128>([0, 1, 2, 3, 8, 20, 32, 48, 64, 122, 127, 128]);
}

/// The routes of 10.0.0.0/8, with a `*` behind the stale ones.
fn listed(rib: &Rib<u32>) -> String {
    let (_, held) = dump(rib).into_iter().next().unwrap_or((Prefix::DEFAULT, Vec::new()));
    let named = held.iter().map(|(route, stale)| {
        format!("{}{}{}", route.priority, char::from(b'a' + route.next_hop.get() as u8), if *stale { "*" } else { "" })
    });
    named.collect::<Vec<_>>().join(" ")
}

/// A Rib with 10.0.0.0/8 routed as listed: priority and a letter for the next hop.
fn with_list(list: &str) -> Rib<u32> {
    let mut rib = Rib::new();
    for name in list.split_whitespace() {
        rib.insert(v4("10.0.0.0/8"), named(name), InsertMode::Append).unwrap();
    }
    rib
}

fn named(name: &str) -> Route {
    let name = name.as_bytes();
    route(u32::from(name[1] - b'a'), u32::from(name[0] - b'0'), 0)
}

#[test]
fn modes_of_insertion() {
    use InsertMode::*;
    let (exists, missing) = (Err(RibError::Exists), Err(RibError::NoSuchRoute));
    for (list, mode, name, expected) in [
        ("", IfAbsent, "5a", Ok("5a")),
        ("5a", IfAbsent, "5a", exists),
        ("5a", IfAbsent, "5b", exists),
        ("5a", IfAbsent, "4b", Ok("4b 5a")),
        ("5a", IfAbsent, "6b", Ok("5a 6b")),
        ("", ReplaceIfPresent, "5a", missing),
        ("5a", ReplaceIfPresent, "6a", missing),
        ("5a", ReplaceIfPresent, "5a", Ok("5a")),
        ("5a", ReplaceIfPresent, "5b", Ok("5b")),
        ("5a 5b", ReplaceIfPresent, "5c", Ok("5c 5b")),
        ("5a 5b", ReplaceIfPresent, "5b", exists),
        ("5a 5b", InsertOrReplace, "5b", exists),
        ("5a 5b", InsertOrReplace, "5a", Ok("5a 5b")),
        ("5a 7c 7d", InsertOrReplace, "7x", Ok("5a 7x 7d")),
        ("5a 7c", InsertOrReplace, "6x", Ok("5a 6x 7c")),
        ("5a 5b 7c", Append, "5x", Ok("5a 5b 5x 7c")),
        ("5a 5b 7c", Append, "5b", exists),
        ("5a 5b 7c", Append, "9x", Ok("5a 5b 7c 9x")),
        ("5a 5b 7c", Prepend, "5x", Ok("5x 5a 5b 7c")),
        ("5a 5b 7c", Prepend, "7x", Ok("5a 5b 7x 7c")),
        ("5a 5b 7c", Prepend, "7c", exists),
        ("5a", Prepend, "1x", Ok("1x 5a")),
    ] {
        let mut rib = with_list(list);
        let done = rib.insert(v4("10.0.0.0/8"), named(name), mode);
        assert_eq!(done.map(|_| listed(&rib)), expected.map(String::from), "{list} {mode:?} {name}");
        rib.check().unwrap();
    }
}

#[test]
fn identical_means_next_hop_and_owner() {
    let mut rib = with_list("5a");
    let of_another = named("5a").with_owner(1);
    assert_eq!(rib.insert(v4("10.0.0.0/8"), of_another, InsertMode::Append), Ok(None));
    assert_eq!(rib.insert(v4("10.0.0.0/8"), of_another, InsertMode::Append), Err(RibError::Exists));
    assert_eq!(rib.routes(v4("10.0.0.0/8")).map(|route| route.owner).collect::<Vec<_>>(), [0, 1]);
    let which = RouteMatch { owner: Some(1), ..RouteMatch::ANY };
    assert_eq!(rib.remove(v4("10.0.0.0/8"), &which), Some(of_another));
    assert_eq!(rib.remove(v4("10.0.0.0/8"), &which), None);
}

#[test]
fn refreshing_clears_the_mark_where_it_stands() {
    use InsertMode::*;
    for (mode, name, expected) in [
        (IfAbsent, "5b", Ok("5a* 5b 7c*")),
        (Append, "5a", Ok("5a 5b* 7c*")),
        (Prepend, "5b", Ok("5a* 5b 7c*")),
        (ReplaceIfPresent, "5a", Ok("5a 5b* 7c*")),
        (InsertOrReplace, "5b", Ok("5a* 5b 7c*")),
        // What is not identical follows the rules of its mode and is never stale.
        (IfAbsent, "5x", Err(RibError::Exists)),
        (InsertOrReplace, "5x", Ok("5x 5b* 7c*")),
        (Prepend, "5x", Ok("5x 5a* 5b* 7c*")),
        (Append, "5x", Ok("5a* 5b* 5x 7c*")),
        (Append, "9x", Ok("5a* 5b* 7c* 9x")),
    ] {
        let mut rib = with_list("5a 5b 7c");
        assert_eq!(rib.mark_stale(0), 3);
        let done = rib.insert(v4("10.0.0.0/8"), named(name), mode);
        assert_eq!(done.map(|_| listed(&rib)), expected.map(String::from), "{mode:?} {name}");
    }
    // Refreshed once, a second identical insertion meets the rules again.
    let mut rib = with_list("5a");
    rib.mark_stale(0);
    assert_eq!(rib.insert(v4("10.0.0.0/8"), named("5a"), IfAbsent), Ok(Some(named("5a"))));
    assert_eq!(rib.insert(v4("10.0.0.0/8"), named("5a"), IfAbsent), Err(RibError::Exists));
}

#[test]
fn removing_a_stale_winner_keeps_the_marks_of_the_others() {
    let mut rib = with_list("5a 5b 7c");
    rib.mark_stale(0);
    rib.insert(v4("10.0.0.0/8"), named("5b"), InsertMode::Append).unwrap();
    rib.remove(v4("10.0.0.0/8"), &RouteMatch::ANY).unwrap();
    assert_eq!(listed(&rib), "5b 7c*");
    rib.remove(v4("10.0.0.0/8"), &RouteMatch::ANY).unwrap();
    assert_eq!(listed(&rib), "7c*");
}

#[test]
fn a_thousand_routes_on_one_prefix() {
    let (mut rib, mut model) = (Rib::new(), Model::default());
    let mut numbers = Numbers(1000);
    for id in 0..if cfg!(miri) { 20 } else { 1000 } {
        let route = route(id, numbers.below(50) as u32, 0);
        let mode = if id % 2 == 0 { InsertMode::Append } else { InsertMode::Prepend };
        assert_eq!(rib.insert(v6("2001:db8::/32"), route, mode), model.insert(v6("2001:db8::/32"), route, mode));
    }
    agree(&rib, &model);
    assert_eq!(rib.prefix_count(), 1);
    assert_eq!(rib.remove_within(v6("2001:d00::/24")), model.remove_within(v6("2001:d00::/24")));
    agree(&rib, &model);
}

#[test]
fn walks_resume_at_prefixes_that_are_gone() {
    let mut rib = Rib::<u32>::new();
    let mut numbers = Numbers(7);
    for id in 0..500 {
        let _ = rib.insert(numbers.prefix(0..=32), route(id, 0, 0), InsertMode::InsertOrReplace);
    }
    let all: Vec<_> = rib.iter_from(Prefix::DEFAULT).collect();
    // Removing what was just seen and going on from there sees each prefix once.
    let mut seen = Vec::new();
    let mut next = rib.iter_from(Prefix::DEFAULT).next();
    while let Some((prefix, route)) = next {
        seen.push((prefix, route));
        assert!(rib.remove(prefix, &RouteMatch::ANY).is_some());
        next = rib.iter_from(prefix).next();
    }
    assert_eq!(seen, all);
    assert_eq!(rib.prefix_count(), 0);
}

#[test]
fn a_walk_stops_at_the_last_address() {
    let mut rib = Rib::<u128>::new();
    let last = Prefix::host(u128::MAX);
    rib.insert(last, route(1, 0, 0), InsertMode::IfAbsent).unwrap();
    assert_eq!(rib.iter_from(last).map(|(prefix, _)| prefix).collect::<Vec<_>>(), [last]);
    assert_eq!(rib.within(v6("::/1")).next(), None);
    assert_eq!(rib.within(v6("8000::/1")).count(), 1);
}

#[test]
fn an_empty_rib_holds_nothing() {
    let mut rib = Rib::<u128>::new();
    assert_eq!(rib.bytes(), size_of::<Rib<u128>>());
    agree(&rib, &Model::default());
    queries_agree(&rib, &Model::default(), v6("2001:db8::/32"));
    assert_eq!(rib.remove_within(Prefix::DEFAULT), 0);
    assert_eq!(rib.clear(), 0);
    assert_eq!(rib.next_stale(0, None), None);
    assert!(rib.root().prefixes() == 0 && rib.root().children() == 0 && rib.root().population() == 0);
}

#[test]
fn a_small_table_is_small() {
    let mut numbers = Numbers(100);
    let mut v4 = Rib::<u32>::new();
    let mut v6 = Rib::<u128>::new();
    for id in 0..100 {
        v4.insert(numbers.prefix(24..=24), route(id, 0, 0), InsertMode::InsertOrReplace).unwrap();
        let prefix: Prefix<u128> = numbers.prefix(48..=48);
        let global = Prefix::truncating(prefix.addr() >> 3 | 1 << 125, 48).unwrap();
        v6.insert(global, route(id, 0, 0), InsertMode::InsertOrReplace).unwrap();
    }
    println!("100 routes: {} bytes of IPv4 /24, {} bytes of IPv6 /48", v4.bytes(), v6.bytes());
    assert!(v4.bytes() < 20 << 10);
    assert!(v6.bytes() < 48 << 10);
}

/// Fills and empties a table twice; `keep` leaves one route, so that the memory is never given back as a whole.
fn memory_comes_back<A: TestAddr>(lens: std::ops::RangeInclusive<u8>, keep: bool) {
    let mut numbers = Numbers(100_000);
    let mut rib = Rib::<A>::new();
    let count = if cfg!(miri) { 100 } else { 100_000 };
    let prefixes: Vec<Prefix<A>> = (0..count).map(|_| numbers.prefix(lens.clone())).collect();
    if keep {
        rib.insert(Prefix::DEFAULT, route(0, 0, 0), InsertMode::IfAbsent).unwrap();
    }
    let mut filled = Vec::new();
    for _ in 0..4 {
        for &prefix in &prefixes {
            rib.insert(prefix, route(1, 0, 0), InsertMode::InsertOrReplace).unwrap();
        }
        filled.push(rib.bytes());
        let mut order = prefixes.clone();
        numbers.shuffle(&mut order);
        for prefix in order {
            rib.remove(prefix, &RouteMatch::ANY);
        }
        rib.check().unwrap();
        assert_eq!(rib.prefix_count(), usize::from(keep));
    }
    assert!(filled.iter().all(|&bytes| bytes <= filled[0]), "{filled:?}");
    assert!(keep || rib.bytes() == size_of::<Rib<A>>());
}

#[test]
fn memory_comes_back_after_a_table_is_emptied() {
    memory_comes_back::<u32>(8..=32, false);
    memory_comes_back::<u128>(20..=64, false);
}

#[test]
fn memory_is_reused_while_a_route_stays() {
    memory_comes_back::<u32>(8..=32, true);
    memory_comes_back::<u128>(20..=64, true);
}

#[test]
fn churn_does_not_grow_the_memory() {
    let mut numbers = Numbers(2);
    let mut rib = Rib::<u32>::new();
    let count = if cfg!(miri) { 100 } else { 50_000 };
    let mut live: Vec<Prefix<u32>> = Vec::new();
    while live.len() < count {
        let prefix = numbers.prefix(12..=24);
        if rib.insert(prefix, route(1, 0, 0), InsertMode::IfAbsent).is_ok() {
            live.push(prefix);
        }
    }
    let loaded = rib.bytes();
    for _ in 0..count * 10 {
        let at = numbers.below(live.len());
        rib.remove(live[at], &RouteMatch::ANY).unwrap();
        live[at] = loop {
            let prefix = numbers.prefix(12..=24);
            if rib.insert(prefix, route(1, 0, 0), InsertMode::IfAbsent).is_ok() {
                break prefix;
            }
        };
    }
    rib.check().unwrap();
    assert!(rib.bytes() <= loaded + loaded / 4, "{} after {loaded}", rib.bytes());
}

#[test]
fn the_checker_sees_each_kind_of_damage() {
    let filled = || {
        let mut rib = Rib::<u32>::new();
        for (id, prefix) in ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24"].into_iter().enumerate() {
            for priority in 0..3 {
                rib.insert(v4(prefix), route(id as u32, priority, 0), InsertMode::IfAbsent).unwrap();
            }
        }
        rib.check().unwrap();
        rib
    };
    let damaged = |damage: fn(&mut Rib<u32>)| {
        let mut rib = filled();
        damage(&mut rib);
        rib.check().unwrap_err()
    };
    fn second(rib: &Rib<u32>) -> u32 {
        rib.store.cells[rib.head(v4("10.0.0.0/8")).unwrap()].next()
    }

    assert!(damaged(|rib| rib.store.root.population += 1).contains("counted 4"));
    assert!(damaged(|rib| rib.count_by_len[8] = 0).contains("by length"));
    assert!(damaged(|rib| rib.route_count -= 1).contains("routes are 11, counted 12"));
    assert!(
        damaged(|rib| {
            let second = second(rib);
            rib.store.cells[second].priority = 7;
        })
        .contains("priority 7 before 2")
    );
    assert!(
        damaged(|rib| {
            let second = second(rib);
            rib.store.cells[second].priority = 0;
        })
        .contains("is there twice")
    );
    assert!(
        damaged(|rib| {
            let second = second(rib);
            let third = rib.store.cells[second].next();
            rib.store.cells[second].set_next(NONE);
            rib.route_count -= 1;
            assert_ne!(third, NONE);
        })
        .contains("in no block")
    );
    assert!(
        damaged(|rib| {
            let second = second(rib);
            rib.store.cells.give_single(second);
        })
        .contains("two blocks")
    );
    assert!(damaged(|rib| rib.store.root.toggle_prefix(1)).contains("a block of 1 cells holds 2"));
    assert!(damaged(|rib| rib.store.root.children |= 1).contains("a block of 1 nodes holds 2"));
    assert!(
        damaged(|rib| {
            let mut node = rib.store.root.nodes_start;
            for _ in 0..2 {
                node = rib.store.nodes[node].nodes_start;
            }
            rib.store.nodes[node].prefix_words = [0; 2];
        })
        .contains("an empty node of step 3")
    );
}
