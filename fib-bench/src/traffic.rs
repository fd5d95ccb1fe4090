//! Which addresses are looked up: seeded, so that every run and every subject gets the same ones.
//!
//! - uniform: IPv4 over all 2^32 addresses; IPv6 inside `2000::/3`
//! - prefix: a random host inside a prefix of the table, every prefix equally likely
//! - zipf: the same, with the prefixes ranked at random and the one of rank k chosen with a likelihood of 1/k
//! - edges: the addresses around prefixes (before the first, first, second, last, after the last), for verifying

use clap::ValueEnum;
use fib::{Addr, Family};
use ipnet::IpNet;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::subject::SubjectAddr;

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// Every address of the family's unicast space equally likely.
    Uniform,
    /// Every prefix equally likely.
    Prefix,
    /// Few prefixes get most of the traffic.
    Zipf,
    /// The addresses around the ends of prefixes.
    Edges,
}

impl Traffic {
    /// The kinds that are measured.
    pub const MEASURED: [Traffic; 3] = [Traffic::Uniform, Traffic::Prefix, Traffic::Zipf];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Uniform => "uniform",
            Traffic::Prefix => "prefix",
            Traffic::Zipf => "zipf",
            Traffic::Edges => "edges",
        }
    }

    /// `count` addresses for a table of these prefixes (the other family's are skipped). Without prefixes of the
    /// family, every kind is uniform.
    pub fn addresses<A: SubjectAddr>(self, prefixes: &[IpNet], count: usize, seed: u64) -> Vec<A> {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut keys: Vec<(A, u8)> = prefixes.iter().copied().filter_map(A::key).collect();
        if self == Traffic::Uniform || keys.is_empty() {
            return (0..count).map(|_| uniform(rng)).collect();
        }
        if self == Traffic::Zipf {
            // Ranks are random, so the popular prefixes are not neighbours.
            keys.shuffle(rng);
        }
        let zipf = Zipf::new(keys.len() as f64, 1.0).ok();
        (0..count)
            .map(|_| {
                let index = match (self, zipf) {
                    (Traffic::Zipf, Some(zipf)) => (zipf.sample(rng) as usize).clamp(1, keys.len()) - 1,
                    _ => rng.random_range(0..keys.len()),
                };
                let (addr, len) = keys[index];
                match self {
                    Traffic::Edges => edge(addr, len, rng.random_range(0..5)),
                    _ => addr.or(A::from_u128(rng.random()).and(A::mask(len).not())),
                }
            })
            .collect()
    }
}

fn uniform<A: SubjectAddr>(rng: &mut impl Rng) -> A {
    let bits: u128 = rng.random();
    match A::FAMILY {
        Family::V4 => A::from_u128(bits),
        Family::V6 => A::from_u128(1 << 125 | bits >> 3),
    }
}

fn edge<A: Addr>(first: A, len: u8, which: u32) -> A {
    let last = first.or(A::mask(len).not());
    match which {
        0 => first.wrapping_prev(),
        1 => first,
        2 => first.wrapping_next(),
        3 => last,
        _ => last.wrapping_next(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_seed_decides() {
        let prefixes = nets(&["10.0.0.0/8", "2001:db8::/32", "192.0.2.0/24"]);
        for traffic in [Traffic::Uniform, Traffic::Prefix, Traffic::Zipf, Traffic::Edges] {
            let addresses = |seed| traffic.addresses::<u128>(&prefixes, 50, seed);
            assert_eq!(addresses(1), addresses(1));
            // One prefix has five edges only, so their order may agree by chance; the others have no such excuse.
            assert!(traffic == Traffic::Edges || addresses(1) != addresses(2));
        }
    }

    #[test]
    fn addresses_lie_where_they_should() {
        let prefixes = nets(&["10.0.0.0/8", "192.0.2.0/24", "198.51.100.7/32", "2001:db8::/32"]);
        for traffic in [Traffic::Prefix, Traffic::Zipf] {
            let addresses = traffic.addresses::<u32>(&prefixes, 3000, 1);
            let inside = |net: &IpNet, addr: u32| net.contains(&addr.to_ip());
            assert!(addresses.iter().all(|&addr| prefixes.iter().any(|net| inside(net, addr))));
            for net in &prefixes[..3] {
                assert!(addresses.iter().filter(|&&addr| inside(net, addr)).count() > 300, "{net}");
            }
        }
        assert!(Traffic::Uniform.addresses::<u128>(&[], 1000, 1).iter().all(|addr| addr >> 125 == 1));
        let edges = Traffic::Edges.addresses::<u32>(&prefixes[..1], 1000, 1);
        for edge in [0x09ff_ffff, 0x0a00_0000, 0x0a00_0001, 0x0aff_ffff, 0x0b00_0000] {
            assert!(edges.contains(&edge), "{edge:x}");
        }
    }

    #[test]
    fn zipf_falls_as_one_over_the_rank() {
        let prefixes: Vec<IpNet> =
            (0..1000u32).map(|i| format!("10.{}.{}.0/24", i / 256, i % 256).parse().unwrap()).collect();
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for addr in Traffic::Zipf.addresses::<u32>(&prefixes, 200_000, 1) {
            *counts.entry(addr >> 8).or_default() += 1;
        }
        let mut counts: Vec<usize> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let ratio = |rank: usize| counts[0] as f64 / counts[rank - 1] as f64;
        assert!((1.8..2.2).contains(&ratio(2)) && (8.5..11.5).contains(&ratio(10)), "{:?}", &counts[..10]);
    }
}
