//! Every batch variant that this CPU has gives the oracle's answers, for every length, unaligned slices, each slot width,
//! shallow and deep tables, with and without a default route.

use fib::oracle::HashTable;
use fib::{Addr, BatchKey, BatchVariant, Fib, Key, NextHopId, Options, Prefix, Route, RouteMatch, TableOptions};
use proptest::prelude::*;

const MISS: NextHopId = NextHopId::MAX;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn wide(&mut self) -> u128 {
        (u128::from(self.next()) << 64) | u128::from(self.next())
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

fn hop(id: u32) -> NextHopId {
    NextHopId::new(id).unwrap()
}

fn variants() -> Vec<BatchVariant> {
    let (available, missing): (Vec<_>, Vec<_>) =
        BatchVariant::ALL.into_iter().partition(|variant| variant.is_available());
    for variant in missing {
        eprintln!("not on this CPU: {variant}");
    }
    available
}

/// A table of one family and addresses that matter to it.
struct Case<A: Addr> {
    routes: Vec<(Prefix<A>, NextHopId)>,
    addrs: Vec<A>,
    options: TableOptions,
}

fn check<A: BatchKey + Key>(case: &Case<A>, bulk: bool) {
    let mut oracle = HashTable::<A>::new();
    for (prefix, hop) in &case.routes {
        oracle.insert(*prefix, *hop);
    }
    let expected: Vec<NextHopId> =
        case.addrs.iter().map(|addr| oracle.lookup(*addr).map_or(MISS, |(_, hop)| hop)).collect();
    for variant in variants() {
        let fib = Fib::with_options(Options::default().batch(variant).main(case.options)).unwrap();
        let mut writer = fib.writer().unwrap();
        if bulk {
            writer.main().load(case.routes.iter().map(|(prefix, hop)| ((*prefix).into(), Route::new(*hop)))).unwrap();
        } else {
            for (prefix, hop) in &case.routes {
                writer.main().insert_or_replace((*prefix).into(), *hop).unwrap();
            }
        }
        writer.check().unwrap();
        let mut reader = fib.reader("variants").unwrap();
        let burst = reader.burst();
        let view = burst.main();
        for (addr, expected) in case.addrs.iter().zip(&expected) {
            assert_eq!(view.lookup(*addr).unwrap_or(MISS), *expected, "{variant} {}", addr.to_ip());
        }
        // All lengths, at odd places of the slice.
        let mut start = 0;
        for len in 0..=200 {
            start = (start + 7) % (case.addrs.len() - 200);
            let mut out = vec![hop(0x5a5a); len + 2];
            view.lookup_batch(&case.addrs[start..start + len], &mut out[1..=len], MISS);
            assert_eq!(out[1..=len], expected[start..start + len], "{variant}, {len} addresses from {start}");
            assert_eq!((out[0], out[len + 1]), (hop(0x5a5a), hop(0x5a5a)), "{variant} wrote beyond {len}");
        }
        let mut out = vec![hop(0x5a5a); case.addrs.len()];
        view.lookup_batch(&case.addrs, &mut out, MISS);
        for (index, addr) in case.addrs.iter().enumerate() {
            assert_eq!(out[index], expected[index], "{variant} {}", addr.to_ip());
        }
    }
}

fn around<A: Addr>(routes: &[(Prefix<A>, NextHopId)], random: &mut Random, count: usize) -> Vec<A> {
    let mut addrs = Vec::new();
    while addrs.len() < count {
        let (prefix, _) = routes[random.below(routes.len() as u64) as usize];
        addrs.extend([
            prefix.addr(),
            prefix.last(),
            prefix.addr().wrapping_prev(),
            prefix.last().wrapping_next(),
            prefix.addr().wrapping_next(),
        ]);
    }
    addrs
}

/// Clustered IPv4 prefixes of many lengths, ids below `hops`.
fn clustered_v4(seed: u64, count: usize, hops: u32) -> Vec<(Prefix<u32>, NextHopId)> {
    let mut random = Random(seed);
    let lens = [8, 12, 16, 19, 20, 22, 24, 24, 24, 25, 27, 30, 31, 32];
    (0..count)
        .map(|_| {
            let len = lens[random.below(lens.len() as u64) as usize];
            let addr = ((random.below(24) as u32) << 24) | (random.next() as u32 & 0x000f_ffff);
            (Prefix::truncating(addr, len).unwrap(), hop(random.below(u64::from(hops)) as u32))
        })
        .collect()
}

/// IPv6 prefixes that share most of their bits.
fn clustered_v6(seed: u64, count: usize, lens: &[u8]) -> Vec<(Prefix<u128>, NextHopId)> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| {
            let len = lens[random.below(lens.len() as u64) as usize];
            let varied = random.wide() & 0x0000_0000_0003_0007_000f_0000_0f0f_ff07;
            let addr = 0x2001_0db8_0000_0000_0000_0000_0000_0000 | varied | (random.wide() & (7 << 100));
            (Prefix::truncating(addr, len).unwrap(), hop(random.below(50) as u32))
        })
        .collect()
}

#[test]
fn v4_narrow_slots() {
    let routes = clustered_v4(1, 6_000, 60);
    let addrs = around(&routes, &mut Random(2), 4_000);
    for root in [6, 12, 18, 24] {
        let options = TableOptions::default().root_limit_v4(root);
        check(&Case { routes: routes.clone(), addrs: addrs.clone(), options }, true);
    }
}

#[test]
fn v4_16_bit_slots() {
    let routes = clustered_v4(3, 6_000, 30_000);
    let addrs = around(&routes, &mut Random(4), 4_000);
    check(&Case { routes, addrs, options: TableOptions::default() }, false);
}

#[test]
fn v4_32_bit_slots() {
    let mut routes = clustered_v4(5, 6_000, 30_000);
    routes.push((Prefix::new(0x0a00_0000, 8).unwrap(), hop(NextHopId::MAX.get() - 1)));
    let addrs = around(&routes, &mut Random(6), 4_000);
    check(&Case { routes, addrs, options: TableOptions::default() }, true);
}

#[test]
fn v4_host_routes() {
    let mut random = Random(7);
    let routes: Vec<_> = (0..20_000)
        .map(|_| (Prefix::host(0x0a00_0000 | (random.next() as u32 & 0xffff)), hop(random.below(100) as u32)))
        .collect();
    let addrs = around(&routes, &mut random, 4_000);
    for bulk in [false, true] {
        check(&Case { routes: routes.clone(), addrs: addrs.clone(), options: TableOptions::default() }, bulk);
    }
}

#[test]
fn v6_internet_lengths() {
    let routes = clustered_v6(8, 20_000, &[20, 29, 32, 36, 40, 44, 46, 48, 48, 48, 56, 64]);
    let addrs = around(&routes, &mut Random(9), 4_000);
    for root in [2, 8, 14, 20] {
        let options = TableOptions::default().root_limit_v6(root);
        check(&Case { routes: routes.clone(), addrs: addrs.clone(), options }, true);
    }
}

#[test]
fn v6_deep() {
    let routes = clustered_v6(10, 20_000, &[48, 62, 63, 64, 65, 66, 68, 96, 104, 116, 122, 126, 127, 128, 128, 128]);
    let addrs = around(&routes, &mut Random(11), 4_000);
    for bulk in [false, true] {
        check(&Case { routes: routes.clone(), addrs: addrs.clone(), options: TableOptions::default() }, bulk);
    }
}

#[test]
fn empty_tables_and_default_routes() {
    let mut addrs: Vec<u32> = (0..400u32).map(|index| index.wrapping_mul(0x00a1_b2c3)).collect();
    addrs.extend([0, u32::MAX]);
    check(&Case { routes: vec![], addrs: addrs.clone(), options: TableOptions::default() }, true);
    let default = vec![(Prefix::DEFAULT, hop(7))];
    check(&Case { routes: default, addrs: addrs.clone(), options: TableOptions::default() }, true);
    let mut routes = clustered_v4(12, 500, 10);
    routes.push((Prefix::DEFAULT, NextHopId::MAX));
    check(&Case { routes, addrs, options: TableOptions::default() }, false);
    let addrs: Vec<u128> =
        (0..400u128).map(|index| index.wrapping_mul(0x00a1_b2c3_d4e5_f607_1829_3a4b_5c6d_7e8f)).collect();
    check(&Case { routes: vec![], addrs: addrs.clone(), options: TableOptions::default() }, true);
    check(&Case { routes: vec![(Prefix::DEFAULT, hop(9))], addrs, options: TableOptions::default() }, true);
}

/// The last address of all reads the last slot of each node: nothing may be read past the arena.
#[test]
fn last_addresses() {
    let routes = vec![(Prefix::host(u32::MAX), hop(1)), (Prefix::new(0xff00_0000, 8).unwrap(), hop(2))];
    check(&Case { routes, addrs: vec![u32::MAX; 401], options: TableOptions::default() }, true);
    let routes = vec![(Prefix::host(u128::MAX), hop(1)), (Prefix::new(0xff << 120, 8).unwrap(), hop(2))];
    check(&Case { routes, addrs: vec![u128::MAX; 401], options: TableOptions::default() }, true);
}

#[test]
fn forced_variants_are_checked() {
    for variant in BatchVariant::ALL {
        let made = Fib::with_options(Options::default().batch(variant));
        assert_eq!(made.is_ok(), variant.is_available(), "{variant}");
        assert_eq!(BatchVariant::from_name(variant.name()), Some(variant));
    }
    assert_eq!(BatchVariant::from_name("sse9"), None);
    assert!(BatchVariant::fastest().is_available());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn random_tables(
        seed in 1u64..,
        count in 1usize..3000,
        hops in prop::sample::select(vec![3u32, 100, 20_000]),
        changes in 0usize..300,
    ) {
        let mut random = Random(seed);
        let mut four = clustered_v4(seed, count, hops);
        let six = clustered_v6(seed, count, &[32, 40, 44, 48, 64, 70, 126, 128]);
        let four_addrs = around(&four, &mut random, 500);
        let six_addrs = around(&six, &mut random, 500);
        let mut oracle = (HashTable::<u32>::new(), HashTable::<u128>::new());
        let fibs: Vec<_> =
            variants().into_iter().map(|variant| Fib::with_options(Options::default().batch(variant)).unwrap()).collect();
        let mut writers: Vec<_> = fibs.iter().map(|fib| fib.writer().unwrap()).collect();
        for ((four, four_hop), (six, six_hop)) in four.iter().zip(&six) {
            oracle.0.insert(*four, *four_hop);
            oracle.1.insert(*six, *six_hop);
            for writer in &mut writers {
                writer.main().insert_or_replace((*four).into(), *four_hop).unwrap();
                writer.main().insert_or_replace((*six).into(), *six_hop).unwrap();
            }
        }
        for _ in 0..changes.min(four.len()) {
            let (prefix, _) = four.swap_remove(random.below(four.len() as u64) as usize);
            oracle.0.remove(prefix);
            for writer in &mut writers {
                writer.main().remove(prefix.into(), RouteMatch::ANY).unwrap();
            }
        }
        for fib in &fibs {
            let mut reader = fib.reader("random").unwrap();
            let burst = reader.burst();
            let mut out = vec![hop(0); four_addrs.len()];
            burst.main().lookup_batch(&four_addrs, &mut out, MISS);
            for (addr, out) in four_addrs.iter().zip(&out) {
                prop_assert_eq!(*out, oracle.0.lookup(*addr).map_or(MISS, |found| found.1));
            }
            let mut out = vec![hop(0); six_addrs.len()];
            burst.main().lookup_batch(&six_addrs, &mut out, MISS);
            for (addr, out) in six_addrs.iter().zip(&out) {
                prop_assert_eq!(*out, oracle.1.lookup(*addr).map_or(MISS, |found| found.1));
            }
        }
    }
}
