//! Every peer gives the oracle's answers, so that a fault in a re-creation or in the shim is not mistaken for speed.

use fib::oracle::HashTable;
use fib::{NextHopId, Prefix};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::list::{Entry, Listed, ON_REQUEST};
use super::{PeerAddr, PeerRoute, last_addr};

/// Random routes that nest and lie side by side: few values of the bits that decide.
fn routes<A: PeerAddr>(count: usize, longest: u8, seed: u64) -> Vec<PeerRoute<A>> {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    // Bits that differ stand at the top, around the steps of the tries, and at the very end.
    let few = A::from_u128(match A::BITS {
        32 => 0xc004_1183,
        _ => 0xe000_c00c_0060_0011_8000_0000_0000_0183,
    });
    let mut routes = vec![
        PeerRoute { addr: A::ZERO, len: 1, next_hop: 9 },
        PeerRoute { addr: A::MAX.and(A::mask(longest)), len: longest, next_hop: 8 },
    ];
    for _ in 0..count {
        let len = rng.random_range(1..=longest);
        let addr = A::from_u128(rng.random()).and(few).and(A::mask(len));
        routes.push(PeerRoute { addr, len, next_hop: rng.random_range(1..5) });
    }
    // Tables that cannot replace see each prefix once.
    routes.sort_by_key(|route| (route.addr, route.len));
    routes.dedup_by_key(|route| (route.addr, route.len));
    routes
}

fn oracle<A: PeerAddr>(routes: &[PeerRoute<A>]) -> HashTable<A> {
    let mut oracle = HashTable::new();
    for route in routes {
        let prefix = Prefix::truncating(route.addr, route.len).unwrap();
        oracle.insert(prefix, NextHopId::new(route.next_hop).unwrap());
    }
    oracle
}

/// The edges of all routes, and the ends of the address space.
fn questions<A: PeerAddr>(routes: &[PeerRoute<A>]) -> Vec<A> {
    let mut addrs = vec![A::ZERO, A::MAX];
    for &route in routes {
        let last = last_addr(route);
        addrs.extend([route.addr.wrapping_prev(), route.addr, route.addr.wrapping_next(), last, last.wrapping_next()]);
    }
    addrs
}

fn answers_are_right<A: Listed>(entry: Entry<A>, longest: u8) {
    for (count, seed) in [(0, 1), (10, 2), (300, 3), (3000, 4)] {
        let routes = routes::<A>(count, longest, seed);
        // Subjects that this processor cannot run are no failure.
        let Ok(mut peer) = (entry.make)(routes.len()) else { return };
        assert_eq!(peer.load(&routes).unwrap(), 0, "{}", entry.name);
        let mut oracle = oracle(&routes);
        let addrs = A::addresses(questions(&routes));
        let check = |peer: &mut dyn super::Peer<A>, oracle: &HashTable<A>, when: &str| {
            let right: Vec<u32> =
                addrs.host.iter().map(|&addr| oracle.lookup(addr).map_or(0, |(_, next_hop)| next_hop.get())).collect();
            for (variant, name) in peer.variants().into_iter().enumerate() {
                peer.select(variant);
                for batch in [1, 7, 16, 64, 100] {
                    let mut answers = vec![u32::MAX; right.len()];
                    peer.pass(&addrs, batch, Some(&mut answers));
                    let wrong = answers.iter().zip(&right).position(|(answer, right)| answer != right);
                    if let Some(at) = wrong {
                        let (addr, answer, right) = (addrs.host[at].to_ip(), answers[at], right[at]);
                        panic!(
                            "{} {name} {when}, {count} routes, batch {batch}: {addr} {answer} not {right}",
                            entry.name
                        );
                    }
                }
                let sum = right.iter().map(|&answer| u64::from(answer)).sum::<u64>();
                assert_eq!(peer.chain(&addrs), sum, "{} {name} {when}", entry.name);
            }
        };
        check(peer.as_mut(), &oracle, "loaded");
        // DPDK 22.11 gives wrong answers after deletes; that is for `compare` to count, and no fault of ours.
        if entry.name.starts_with("rte_") {
            continue;
        }
        for &route in routes.iter().step_by(3) {
            let Some(removed) = peer.remove(route) else { return };
            assert!(removed, "{}", entry.name);
            oracle.remove(Prefix::truncating(route.addr, route.len).unwrap());
        }
        check(peer.as_mut(), &oracle, "thinned out");
    }
}

/// One-byte tables of DPDK hold 127 groups: too few for these routes.
fn is_testable(name: &str) -> bool {
    !ON_REQUEST.contains(&name) && name != "rte_fib1"
}

#[test]
fn answers_v4() {
    for entry in u32::ours().into_iter().chain(u32::peers()).filter(|entry| is_testable(entry.name)) {
        answers_are_right(entry, 32);
    }
}

#[test]
fn answers_v6() {
    for entry in u128::ours().into_iter().chain(u128::peers()).filter(|entry| is_testable(entry.name)) {
        // What PlanB is for ends at /64.
        answers_are_right(entry, if entry.name == "planb" { 64 } else { 128 });
    }
}
