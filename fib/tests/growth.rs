//! How tables grow, shrink and churn: level compression crosses its thresholds and does not thrash at them, and memory
//! stays within the bounds that are promised.
//!
//! Root spans in bits and the populations at which they change (as in `trie/resize.rs`):
//!
//! ```text
//! IPv4   6 --4,096--> 12 --262,144--> 18        IPv6   2 --256--> 8 --16,384--> 14
//!          <--1,023--    <---65,535---                   <--63---    <--4,095---
//! ```
//!
//! The tests of full tables use real routes, when there are any: `FIB_DATA` names their folder, by default `../shared/data`
//! seen from the workspace. Without them they say so and pass; everything else runs on tables made here.

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};

use common::{Rng, TestAddr, data_file, hop, net, prefix, table_bytes};
use fib::oracle::HashTable;
use fib::{Addr, Family, FamilyStats, Fib, NextHopId, Options, Prefix, Route, RouteMatch, TableOptions, Writer};
use ipnet::IpNet;

/// A small budget, so that little of what is measured is memory that waits for readers.
const SYNC_MEM: usize = 65_536;

fn small_budget() -> Fib {
    Fib::with_options(Options::default().sync_mem(SYNC_MEM)).unwrap()
}

fn stats<A: TestAddr>(writer: &mut Writer) -> FamilyStats {
    let stats = writer.main().stats();
    if A::FAMILY == Family::V4 { stats.v4 } else { stats.v6 }
}

/// Scattered prefixes of one length, all different.
fn member<A: TestAddr>(index: usize) -> Prefix<A> {
    let addr = A::from_top((index as u32).wrapping_mul(0x9e37_79b1) << 8);
    prefix(addr, 24)
}

/// A table of one family that holds the members `0..count`.
struct Crowd<A: TestAddr> {
    writer: Writer,
    count: usize,
    family: std::marker::PhantomData<A>,
}

impl<A: TestAddr> Crowd<A> {
    fn new() -> Self {
        Crowd { writer: small_budget().writer().unwrap(), count: 0, family: std::marker::PhantomData }
    }

    fn grow(&mut self) {
        let added: Prefix<A> = member(self.count);
        self.writer.main().insert_if_absent(added.into(), hop(self.count as u32 % 60)).unwrap();
        self.count += 1;
    }

    fn shrink(&mut self) {
        self.count -= 1;
        let removed: Prefix<A> = member(self.count);
        assert!(self.writer.main().remove(removed.into(), RouteMatch::ANY).unwrap().is_some());
    }

    fn resize(&mut self, count: usize) {
        while self.count < count {
            self.grow();
        }
        while self.count > count {
            self.shrink();
        }
    }

    fn root_bits(&mut self) -> u8 {
        stats::<A>(&mut self.writer).root_bits
    }

    /// Members up to the last are found, the next one is not.
    fn compare(&mut self) {
        let table = self.writer.main();
        let step = (self.count / 500).max(1);
        for index in (0..self.count).step_by(step).chain(self.count.checked_sub(1)) {
            assert_eq!(table.lookup(member::<A>(index).addr().to_ip()), Some(hop(index as u32 % 60)), "{index}");
        }
        assert_eq!(table.lookup(member::<A>(self.count).addr().to_ip()), None);
    }

    /// Adds and removes one member 1,000 times: the root changes once at most, memory not at all.
    fn toggle(&mut self) {
        let first = self.root_bits();
        self.grow();
        self.shrink();
        let (then, bytes) = (self.root_bits(), table_bytes(&mut self.writer));
        let memory = self.writer.memory_stats();
        let changes = usize::from(first != then);
        for round in 0..1000 {
            self.grow();
            self.shrink();
            // A root that came and went would show among the live bytes, and walking a large table takes its time.
            let now = self.writer.memory_stats();
            assert!(now.live_bytes.abs_diff(memory.live_bytes) <= 2 * SYNC_MEM, "round {round}: {memory:?} {now:?}");
            if self.count < 5_000 || round % 250 == 249 {
                assert_eq!(self.root_bits(), then, "round {round} at {} prefixes", self.count);
                assert_eq!(table_bytes(&mut self.writer), bytes);
            }
        }
        let now = self.writer.memory_stats();
        assert!(now.footprint_bytes <= memory.footprint_bytes + 2 * SYNC_MEM, "{memory:?} {now:?}");
        assert!(changes <= 1);
    }
}

/// A threshold: the population at which a root of `narrow` bits inflates, and the largest one at which a root of `wide`
/// bits halves.
struct Threshold {
    inflates_at: usize,
    halves_at: usize,
    narrow: u8,
    wide: u8,
}

fn roots_follow<A: TestAddr>(thresholds: &[Threshold]) {
    let mut crowd = Crowd::<A>::new();
    let empty = stats::<A>(&mut crowd.writer);
    for threshold in thresholds {
        crowd.resize(threshold.inflates_at - 1);
        assert_eq!(crowd.root_bits(), threshold.narrow);
        crowd.toggle();
        crowd.grow();
        assert_eq!(crowd.root_bits(), threshold.wide);
        crowd.compare();
        crowd.shrink();
        assert_eq!(crowd.root_bits(), threshold.wide, "hysteresis");
        crowd.toggle();
    }
    crowd.writer.check().unwrap();
    for threshold in thresholds.iter().rev() {
        crowd.resize(threshold.halves_at + 1);
        assert_eq!(crowd.root_bits(), threshold.wide);
        crowd.compare();
        crowd.toggle();
        crowd.shrink();
        assert_eq!(crowd.root_bits(), threshold.narrow);
        crowd.compare();
        crowd.grow();
        assert_eq!(crowd.root_bits(), threshold.narrow, "hysteresis");
        crowd.toggle();
    }
    crowd.resize(0);
    let emptied = stats::<A>(&mut crowd.writer);
    assert_eq!((emptied.trie_bytes, emptied.root_bits), (empty.trie_bytes, empty.root_bits));
    assert!(emptied.rib_bytes <= empty.rib_bytes + 4096, "{} bytes of Rib for no route", emptied.rib_bytes);
    assert_eq!(emptied.skipped_resizes, 0);
    crowd.writer.check().unwrap();
}

#[test]
fn the_ipv4_root_follows_the_population() {
    roots_follow::<u32>(&[
        Threshold { inflates_at: 4_096, halves_at: 1_023, narrow: 6, wide: 12 },
        Threshold { inflates_at: 262_144, halves_at: 65_535, narrow: 12, wide: 18 },
    ]);
}

#[test]
fn the_ipv6_root_follows_the_population() {
    roots_follow::<u128>(&[
        Threshold { inflates_at: 256, halves_at: 63, narrow: 2, wide: 8 },
        Threshold { inflates_at: 16_384, halves_at: 4_095, narrow: 8, wide: 14 },
    ]);
}

#[test]
fn a_root_stays_within_the_limit_of_its_table() {
    for (limit_v4, limit_v6) in [(6, 2), (12, 8)] {
        let fib = small_budget();
        let mut writer = fib.writer().unwrap();
        let options = TableOptions::default().root_limit_v4(limit_v4).root_limit_v6(limit_v6);
        let id = writer.create_table(options).unwrap();
        let mut table = writer.table(id).unwrap();
        for index in 0..20_000 {
            table.insert_if_absent(member::<u32>(index).into(), hop(1)).unwrap();
            table.insert_if_absent(member::<u128>(index).into(), hop(1)).unwrap();
        }
        let stats = table.stats();
        assert_eq!((stats.v4.root_bits, stats.v6.root_bits), (limit_v4, limit_v6));
        assert_eq!(table.lookup(member::<u128>(19_999).addr().to_ip()), Some(hop(1)));
        writer.check().unwrap();
    }
    let fib = small_budget();
    let refused = fib.writer().unwrap().create_table(TableOptions::default().root_limit_v4(7)).unwrap_err();
    assert_eq!(refused.to_string(), "an IPv4 root cannot be limited to 7 bits; possible are [6, 12, 18, 24]");
}

/// A crowded subtree below the root inflates into dense nodes and collapses again.
fn inner_nodes_follow<A: TestAddr>(top: Prefix<A>, len: u8) {
    let fib = small_budget();
    let mut writer = fib.writer().unwrap();
    // The bits behind the prefix count backwards, so that the members fill it evenly.
    let inside = |index: usize| -> IpNet {
        prefix(top.addr().or(A::from_top((index as u32).reverse_bits() >> top.len())), len).into()
    };
    let most = 1usize << (len - top.len());
    assert_eq!((0..most).map(inside).collect::<HashSet<_>>().len(), most);
    let mut shapes = Vec::new();
    let mut note = |writer: &mut Writer, index: usize| {
        // Statistics walk the trie, so a large table is asked now and then.
        if !index.is_multiple_of(most / 256) {
            return;
        }
        let stats = stats::<A>(writer);
        if shapes.last() != Some(&(stats.dense_nodes, stats.root_bits)) {
            shapes.push((stats.dense_nodes, stats.root_bits));
        }
    };
    for index in 0..most {
        writer.main().insert_if_absent(inside(index), hop(index as u32)).unwrap();
        note(&mut writer, index);
    }
    let full = stats::<A>(&mut writer);
    writer.check().unwrap();
    for index in 0..most {
        assert_eq!(writer.main().lookup(inside(index).addr()), Some(hop(index as u32)));
    }
    // One prefix at the size of the full subtree comes and goes: nothing inflates or halves.
    let bytes = table_bytes(&mut writer);
    for _ in 0..1000 {
        writer.main().remove(inside(0), RouteMatch::ANY).unwrap();
        writer.main().insert_if_absent(inside(0), hop(0)).unwrap();
    }
    assert_eq!(table_bytes(&mut writer), bytes);
    for index in (0..most).rev() {
        writer.main().remove(inside(index), RouteMatch::ANY).unwrap();
        note(&mut writer, index);
    }
    writer.check().unwrap();
    let emptied = stats::<A>(&mut writer);
    shapes.truncate(8);
    println!("{top}: {most} prefixes of /{len}: dense nodes and root bits on the way {shapes:?}");
    assert!(full.dense_nodes > 1, "{full:?}");
    assert_eq!((emptied.dense_nodes, emptied.sparse_nodes), (1, 0));
}

#[test]
fn crowded_subtrees_become_dense() {
    inner_nodes_follow::<u128>(prefix(0x2a00 << 112, 14), 25);
    inner_nodes_follow::<u128>(prefix(0x2001_0db8 << 96, 20), 32);
    inner_nodes_follow::<u32>(prefix(0x0a00_0000, 18), 30);
    inner_nodes_follow::<u32>(prefix(0x0a00_0000, 12), 26);
}

/// Prefixes as the Internet has them: blocks, and more-specifics that crowd inside them.
struct Internet {
    blocks_v4: Vec<u32>,
    blocks_v6: Vec<u128>,
}

impl Internet {
    fn new(rng: &mut Rng) -> Internet {
        Internet {
            blocks_v4: (0..3000).map(|_| u32::random(rng) & 0xffff_0000).collect(),
            blocks_v6: (0..1500).map(|_| (u128::random(rng) >> 3 | 1 << 125) & !(u128::MAX >> 32)).collect(),
        }
    }

    fn prefix(&self, rng: &mut Rng) -> IpNet {
        if rng.below(100) < 85 {
            let len = rng.pick(&[16, 19, 20, 21, 22, 22, 22, 23, 23, 24, 24, 24, 24, 24, 24, 24, 24, 24, 24, 32]);
            let near = rng.pick(&self.blocks_v4) | rng.next() as u32 & 0xffff;
            prefix(if rng.below(4) > 0 { near } else { u32::random(rng) }, len).into()
        } else {
            let len = rng.pick(&[29, 32, 32, 36, 40, 44, 46, 47, 48, 48, 48, 48, 48, 48, 48, 64]);
            let near = rng.pick(&self.blocks_v6) | u128::random(rng) >> 32;
            prefix(if rng.below(4) > 0 { near } else { u128::random(rng) >> 3 | 1 << 125 }, len).into()
        }
    }
}

/// Churns `operations` times and returns footprint after and before.
fn churn(operations: usize, bulk: bool) -> (usize, usize) {
    let mut rng = Rng::new(if bulk { 1 } else { 2 });
    let internet = Internet::new(&mut rng);
    let mut present: Vec<IpNet> = Vec::new();
    let mut known: HashSet<IpNet> = HashSet::new();
    while present.len() < 100_000 {
        let prefix = internet.prefix(&mut rng);
        if known.insert(prefix) {
            present.push(prefix);
        }
    }
    let fib = small_budget();
    let mut writer = fib.writer().unwrap();
    let route = |rng: &mut Rng| Route::new(hop(1 + rng.below(64) as u32));
    if bulk {
        writer.main().load(present.iter().map(|prefix| (*prefix, route(&mut rng)))).unwrap();
    } else {
        for prefix in &present {
            writer.main().insert_if_absent(*prefix, route(&mut rng)).unwrap();
        }
    }
    let loaded = writer.memory_stats();
    let mut footprints = Vec::new();
    for operation in 0..operations {
        match operation % 4 {
            // One goes, a new one comes; one flaps.
            0 => {
                let index = rng.below(present.len());
                let gone = present.swap_remove(index);
                known.remove(&gone);
                assert!(writer.main().remove(gone, RouteMatch::ANY).unwrap().is_some());
            }
            1 => {
                let come = loop {
                    let candidate = internet.prefix(&mut rng);
                    if known.insert(candidate) {
                        break candidate;
                    }
                };
                present.push(come);
                writer.main().insert_if_absent(come, route(&mut rng)).unwrap();
            }
            _ => {
                let flapping = rng.pick(&present);
                assert!(writer.main().insert_or_replace(flapping, route(&mut rng)).unwrap().is_some());
            }
        }
        if (operation + 1) % (operations / 10) == 0 {
            footprints.push(writer.memory_stats().footprint_bytes);
        }
    }
    let after = writer.memory_stats();
    println!(
        "bulk load: {bulk}; {operations} operations on {} routes: footprint {} after the load, then {footprints:?}, \
         {} of it live",
        present.len(),
        loaded.footprint_bytes,
        after.live_bytes
    );
    writer.check().unwrap();
    let v4 = present.iter().filter(|prefix| matches!(prefix, IpNet::V4(_))).count();
    assert_eq!(writer.main().prefix_count(Family::V4), v4);
    assert_eq!(writer.main().prefix_count(Family::V6), present.len() - v4);
    (after.footprint_bytes, loaded.footprint_bytes)
}

#[test]
fn a_million_updates_do_not_spread_the_arena() {
    let (after, loaded) = churn(1_000_000, true);
    assert!(after as f64 <= 1.25 * loaded as f64, "{after} is more than 1.25 times {loaded}");
}

#[test]
fn updates_after_single_insertions_do_not_spread_the_arena() {
    let (after, loaded) = churn(500_000, false);
    assert!(after as f64 <= 1.25 * loaded as f64, "{after} is more than 1.25 times {loaded}");
}

#[test]
fn ten_routes_of_each_family_take_16_kib() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        for _ in 0..10 {
            let (v4, v6) = (u32::random(&mut rng), u128::random(&mut rng) >> 3 | 1 << 125);
            writer.main().insert_or_replace(prefix(v4, 24).into(), hop(rng.below(10) as u32)).unwrap();
            writer.main().insert_or_replace(prefix(v6, 48).into(), hop(rng.below(10) as u32)).unwrap();
        }
        let bytes = table_bytes(&mut writer);
        let stats = writer.main().stats();
        if seed < 3 {
            println!(
                "ten /24 and ten /48: {bytes} bytes (tries {} + {}, Ribs {} + {})",
                stats.v4.trie_bytes, stats.v6.trie_bytes, stats.v4.rib_bytes, stats.v6.rib_bytes
            );
        }
        assert!(bytes <= 16 << 10, "{bytes}");
    }
}

/// Bytes of 1,000 tables of 100 routes each, which `route` draws.
fn thousand_tables(what: &str, mut route: impl FnMut(&mut Rng, usize) -> IpNet) -> usize {
    let mut rng = Rng::new(1000);
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut rib_bytes = 0;
    for number in 0..1000 {
        let id = writer.create_table(TableOptions::default()).unwrap();
        let mut table = writer.table(id).unwrap();
        while table.route_count(Family::V4) + table.route_count(Family::V6) < 100 {
            let prefix = route(&mut rng, number);
            table.insert_or_replace(prefix, hop(rng.below(16) as u32)).unwrap();
        }
        let stats = table.stats();
        rib_bytes += stats.v4.rib_bytes + stats.v6.rib_bytes;
    }
    let memory = writer.memory_stats();
    println!("1,000 tables of 100 {what}: {memory:?}, Ribs {rib_bytes}");
    writer.check().unwrap();
    memory.footprint_bytes + rib_bytes
}

#[test]
fn a_thousand_tables_of_a_hundred_routes_take_32_mib() {
    let bytes = thousand_tables("/24 anywhere", |rng, _| prefix(u32::random(rng), 24).into());
    assert!(bytes <= 32 << 20, "{bytes}");
    // A tenant's routes: half of each family, inside some blocks of its own.
    let bytes = thousand_tables("/24 and /48 inside eight /16 and eight /32", |rng, number| {
        let block = (number * 8 + rng.below(8)) as u32;
        if rng.below(2) == 0 {
            prefix(0x0a00_0000_u32.wrapping_add(block.wrapping_mul(0x0101_0000)) | (rng.next() as u32 & 0xffff), 24)
                .into()
        } else {
            prefix(((0x2001_0000 + u128::from(block)) << 96) | (u128::random(rng) >> 32), 48).into()
        }
    });
    assert!(bytes <= 32 << 20, "{bytes}");
    // The hardest case: every second route an IPv6 one that shares nothing with any other, a node a grid step each.
    let bytes = thousand_tables("/24 and /48 anywhere", |rng, _| match rng.below(2) {
        0 => prefix(u32::random(rng), 24).into(),
        _ => prefix(u128::random(rng) >> 3 | 1 << 125, 48).into(),
    });
    assert!(bytes <= 40 << 20, "{bytes}");
}

/// The routes of a file of the data folder, with next hops by origin as its README says, 64 of them.
fn real_routes<A: TestAddr>(name: &str) -> Option<Vec<(Prefix<A>, NextHopId)>>
where
    IpNet: TryAs<A>,
{
    let file = std::fs::File::open(data_file(name)?).unwrap();
    let lines = BufReader::new(flate2::read::MultiGzDecoder::new(file)).lines();
    let route = |line: String| {
        let (prefix, origin) = line.split_once(' ').unwrap();
        let origin: u64 = origin.trim().parse().unwrap();
        let id = 1 + (((origin * 2_654_435_761) & 0xffff_ffff) >> 16) % 64;
        (net(prefix).try_as().unwrap(), hop(id as u32))
    };
    Some(lines.map(|line| route(line.unwrap())).collect())
}

/// A prefix of either family as one of a certain family.
trait TryAs<A> {
    fn try_as(self) -> Option<Prefix<A>>;
}

impl TryAs<u32> for IpNet {
    fn try_as(self) -> Option<Prefix<u32>> {
        if let IpNet::V4(net) = self { net.try_into().ok() } else { None }
    }
}

impl TryAs<u128> for IpNet {
    fn try_as(self) -> Option<Prefix<u128>> {
        if let IpNet::V6(net) = self { net.try_into().ok() } else { None }
    }
}

/// A loaded table and its oracle, compared at 100,000 addresses.
fn full_table<A: TestAddr>(name: &str, ceiling: usize) -> Option<(Fib, HashTable<A>)>
where
    IpNet: TryAs<A>,
{
    let routes = real_routes::<A>(name)?;
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let report = writer.main().load(routes.iter().map(|(prefix, id)| (IpNet::from(*prefix), Route::new(*id)))).unwrap();
    let mut oracle = HashTable::new();
    for (prefix, id) in &routes {
        oracle.insert(*prefix, *id);
    }
    assert_eq!(report.routes as usize, oracle.len());
    let stats = stats::<A>(&mut writer);
    println!(
        "{name}: {} routes, {} bytes of trie, {} of Rib; {stats:?}",
        stats.routes, stats.trie_bytes, stats.rib_bytes
    );
    assert!(stats.trie_bytes <= ceiling, "{} bytes of trie", stats.trie_bytes);
    writer.check().unwrap();
    compare(&fib, &oracle, &routes);
    Some((fib, oracle))
}

/// 100,000 addresses, half of them inside announced prefixes, one by one and in a batch.
fn compare<A: TestAddr>(fib: &Fib, oracle: &HashTable<A>, routes: &[(Prefix<A>, NextHopId)]) {
    let mut rng = Rng::new(100_000);
    let addrs: Vec<A> = (0..100_000)
        .map(|index| {
            let host = A::random(&mut rng);
            if index % 2 == 0 {
                return host;
            }
            let inside = rng.pick(routes).0;
            inside.addr().or(host.and(A::mask(inside.len()).not()))
        })
        .collect();
    let mut reader = fib.reader("compare").unwrap();
    let batched = common::batch(&mut reader, &addrs);
    let burst = reader.burst();
    for (addr, batched) in addrs.iter().zip(batched) {
        let right = oracle.lookup(*addr).map(|(_, id)| id);
        assert_eq!((burst.main().lookup(*addr), batched), (right, right), "{}", addr.to_ip());
    }
}

#[test]
fn a_full_ipv4_table_takes_2_6_mib() {
    full_table::<u32>("rib4.txt.gz", (2.6 * 1_048_576.0) as usize);
}

#[test]
fn a_full_ipv6_table_takes_2_mib() {
    let Some((fib, mut oracle)) = full_table::<u128>("rib6.txt.gz", 2 << 20) else { return };
    let mut writer = fib.writer().unwrap();
    let before = stats::<u128>(&mut writer).trie_bytes;
    let mut added = Vec::new();
    for (index, text) in ["fe80::/10", "fc00::/7", "::1/128", "::/0"].into_iter().enumerate() {
        let (prefix, id) = (net(text).try_as().unwrap(), hop(100 + index as u32));
        writer.main().insert_if_absent(IpNet::from(prefix), id).unwrap();
        oracle.insert(prefix, id);
        added.push((prefix, id));
    }
    let after = stats::<u128>(&mut writer).trie_bytes;
    println!("four routes outside 2000::/3 take {} bytes", after as i64 - before as i64);
    assert!(after <= before + (64 << 10), "{before} became {after}");
    writer.check().unwrap();
    compare(&fib, &oracle, &added);
}
