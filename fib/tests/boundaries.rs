//! Where prefixes begin and end: each length alone, neighbouring lengths together, and nested prefixes that come and go
//! in every order.
//!
//! Five addresses are asked for around each prefix (before first, first, second, last, after last), by every way of
//! looking up, and compared with the oracle. The checker runs beside them.

mod common;

use common::{Checked, Rng, TestAddr, around, prefix};
use fib::Prefix;

/// Addresses whose bits differ at each end, with the ends of the address space among them.
fn bases<A: TestAddr>(rng: &mut Rng) -> [A; 4] {
    [A::ZERO, A::MAX, A::random(rng), A::random(rng)]
}

fn each_length_alone<A: TestAddr>() {
    let mut rng = Rng::new(1);
    for len in 0..=A::BITS {
        for base in bases::<A>(&mut rng) {
            let alone = prefix(base, len);
            let mut table = Checked::<A>::new();
            table.compare(&around(alone));
            table.insert(alone, 1);
            table.compare(&around(alone));
            table.check();
            table.insert(alone, 2);
            table.compare(&around(alone));
            table.check();
            table.remove(alone);
            table.compare(&around(alone));
            table.check();
        }
    }
}

#[test]
fn each_ipv4_length_alone() {
    each_length_alone::<u32>();
}

#[test]
fn each_ipv6_length_alone() {
    each_length_alone::<u128>();
}

/// Two prefixes of every pair of lengths, on one path and parted at every place that matters to the shorter one.
fn each_pair_of_lengths<A: TestAddr>(step: usize) {
    let mut rng = Rng::new(2);
    for outer in 0..=A::BITS {
        for inner in (outer..=A::BITS).step_by(step) {
            let base = A::random(&mut rng);
            let first = prefix(base, outer);
            let seconds = [prefix(base, inner), prefix(first.addr(), inner), prefix(first.last(), inner)];
            for (second, outer_first) in seconds.into_iter().flat_map(|second| [(second, true), (second, false)]) {
                let mut table = Checked::<A>::new();
                let (early, late) = if outer_first { (first, second) } else { (second, first) };
                table.insert(early, 1);
                table.insert(late, 2);
                table.compare(&around(first));
                table.compare(&around(second));
                table.remove(early);
                table.compare(&around(first));
                table.compare(&around(second));
                table.check();
            }
        }
    }
}

#[test]
fn each_pair_of_ipv4_lengths() {
    each_pair_of_lengths::<u32>(1);
}

#[test]
fn each_pair_of_ipv6_lengths() {
    each_pair_of_lengths::<u128>(3);
}

/// The lengths at which an implementation turns a corner, all together in one table, at both ends and in the middle.
fn corner_lengths<A: TestAddr>(lens: &[u8]) {
    let mut rng = Rng::new(3);
    for base in bases::<A>(&mut rng) {
        let mut prefixes: Vec<Prefix<A>> = Vec::new();
        for len in lens {
            let at = prefix(base, *len);
            prefixes.push(at);
            // Its neighbours of the same length on both sides.
            prefixes.push(prefix(at.addr().wrapping_prev(), *len));
            prefixes.push(prefix(at.last().wrapping_next(), *len));
        }
        prefixes.sort_unstable();
        prefixes.dedup();
        for round in 0..4 {
            rng.shuffle(&mut prefixes);
            let mut table = Checked::<A>::new();
            for (index, added) in prefixes.iter().enumerate() {
                // In odd rounds neighbours share their next hop, so that slots merge.
                table.insert(*added, if round % 2 == 0 { index as u32 + 1 } else { index as u32 % 2 });
                for asked in &prefixes {
                    table.compare(&around(*asked));
                }
                table.check();
            }
            rng.shuffle(&mut prefixes);
            for gone in &prefixes {
                table.remove(*gone);
                for asked in &prefixes {
                    table.compare(&around(*asked));
                }
                table.check();
            }
        }
    }
}

#[test]
fn corner_lengths_of_ipv4() {
    corner_lengths::<u32>(&[0, 1, 31, 32]);
    corner_lengths::<u32>(&[5, 6, 7, 17, 18, 19, 24, 30]);
}

#[test]
fn corner_lengths_of_ipv6() {
    corner_lengths::<u128>(&[0, 1, 63, 64, 65, 127, 128]);
    corner_lengths::<u128>(&[1, 2, 3, 13, 14, 15, 62, 63, 122, 126]);
}

/// Twelve prefixes, each inside the one before.
fn nested<A: TestAddr>(lens: [u8; 12], base: A) -> [Prefix<A>; 12] {
    lens.map(|len| prefix(base, len))
}

const NESTED_V4: [u8; 12] = [0, 1, 6, 8, 12, 13, 18, 19, 24, 28, 31, 32];
const NESTED_V6: [u8; 12] = [0, 1, 2, 8, 14, 32, 48, 63, 64, 65, 127, 128];

/// All orders of `0..count`, by Heap's algorithm.
fn each_order(count: usize, visit: &mut impl FnMut(&[usize])) {
    fn permute(order: &mut Vec<usize>, free: usize, visit: &mut impl FnMut(&[usize])) {
        if free <= 1 {
            return visit(order);
        }
        for index in 0..free {
            permute(order, free - 1, visit);
            order.swap(if free.is_multiple_of(2) { index } else { 0 }, free - 1);
        }
    }
    permute(&mut (0..count).collect(), count, visit);
}

/// Inserts `prefixes` in one order and removes them in another, comparing after each step.
///
/// `same` gives all of them one next hop in turn of two, so that what is nested merges with what is around it.
fn come_and_go<A: TestAddr>(
    table: &mut Checked<A>,
    prefixes: &[Prefix<A>],
    addrs: &[A],
    come: &[usize],
    go: &[usize],
    same: bool,
    check: bool,
) {
    for index in come {
        table.insert(prefixes[*index], if same { *index as u32 % 2 } else { *index as u32 + 1 });
        table.compare(addrs);
        if check {
            table.check();
        }
    }
    for index in go {
        table.remove(prefixes[*index]);
        table.compare(addrs);
        if check {
            table.check();
        }
    }
    assert_eq!(table.oracle.routes().len(), 0);
}

fn addresses<A: TestAddr>(prefixes: &[Prefix<A>]) -> Vec<A> {
    let mut addrs: Vec<A> = prefixes.iter().flat_map(|prefix| around(*prefix)).collect();
    addrs.sort_unstable();
    addrs.dedup();
    addrs
}

/// The first six of twelve in all 720 orders, with removals in the same and in the opposite order.
fn six_in_every_order<A: TestAddr>(lens: [u8; 12], bases: [A; 2]) {
    for base in bases {
        let prefixes = &nested(lens, base)[..6];
        let addrs = addresses(prefixes);
        let mut table = Checked::<A>::new();
        let mut rounds = 0;
        each_order(6, &mut |come| {
            let backwards: Vec<usize> = come.iter().rev().copied().collect();
            let check = rounds % 16 == 0;
            come_and_go(&mut table, prefixes, &addrs, come, come, false, check);
            come_and_go(&mut table, prefixes, &addrs, come, &backwards, true, check);
            rounds += 1;
        });
        assert_eq!(rounds, 720);
    }
}

#[test]
fn six_nested_ipv4_prefixes_in_every_order() {
    six_in_every_order::<u32>(NESTED_V4, [0x0a5a_a5c3, u32::MAX]);
}

#[test]
fn six_nested_ipv6_prefixes_in_every_order() {
    six_in_every_order::<u128>(NESTED_V6, [0x2001_0db8_a5a5_5a5a_c3c3_3c3c_9999_6666, u128::MAX]);
}

/// All twelve in random orders; the orders of coming and going are drawn apart.
fn twelve_in_random_orders<A: TestAddr>(lens: [u8; 12], rounds: usize) {
    let mut rng = Rng::new(12);
    let mut table = Checked::<A>::new();
    let (mut come, mut go): (Vec<usize>, Vec<usize>) = ((0..12).collect(), (0..12).collect());
    for round in 0..rounds {
        let base = rng.pick(&bases::<A>(&mut Rng::new(round as u64)));
        let prefixes = nested(lens, base);
        rng.shuffle(&mut come);
        rng.shuffle(&mut go);
        come_and_go(&mut table, &prefixes, &addresses(&prefixes), &come, &go, round % 3 == 0, round % 64 == 0);
    }
    table.check();
}

#[test]
fn twelve_nested_ipv4_prefixes_in_random_orders() {
    twelve_in_random_orders::<u32>(NESTED_V4, 3000);
}

#[test]
fn twelve_nested_ipv6_prefixes_in_random_orders() {
    twelve_in_random_orders::<u128>(NESTED_V6, 3000);
}

/// Insertions and removals of the twelve mixed, so that each step starts from any subset.
fn twelve_mixed<A: TestAddr>(lens: [u8; 12], steps: usize) {
    let mut rng = Rng::new(21);
    let prefixes = nested(lens, A::random(&mut rng));
    let addrs = addresses(&prefixes);
    let mut table = Checked::<A>::new();
    for step in 0..steps {
        let index = rng.below(12);
        if rng.below(2) == 0 {
            table.insert(prefixes[index], rng.below(4) as u32);
        } else {
            table.remove(prefixes[index]);
        }
        table.compare(&addrs);
        if step % 32 == 0 {
            table.check();
        }
    }
}

#[test]
fn twelve_nested_prefixes_mixed() {
    twelve_mixed::<u32>(NESTED_V4, 20_000);
    twelve_mixed::<u128>(NESTED_V6, 20_000);
}
