//! What an Internet-like table looks like: a seeded generator calibrated to full tables.
//!
//! Top prefixes come from cutting the populated blocks in halves until each part is a prefix or a gap, with exactly
//! the measured number of both at each length; neighbouring parts tend to share their fate, so busy and quiet regions
//! form. Nested prefixes come in runs inside parents, a few of which have many. Next hops follow from origins, and
//! neighbours often share their origin.
//!
//! How near it comes is asserted by the tests of this file; seed 1, 64 next hops, against the real tables:
//!
//! | | real IPv4 | generated | real IPv6 | generated |
//! |---|---|---|---|---|
//! TABLE

use std::collections::HashSet;

use fib::{NextHopId, Prefix};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::calibration::{self, Calibration};
use crate::subject::{RouteEntry, SubjectAddr};
use crate::text_routes::next_hop_of_origin;

/// What to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Another seed, another table of the same kind.
    pub seed: u64,
    /// Next hops that the routes lead to.
    pub next_hops: u32,
    /// Size in percent of a full table, 1 to 100.
    pub percent: u32,
}

/// A table of both families, ordered by family, address and length.
pub fn table(settings: Settings) -> Vec<RouteEntry> {
    let mut routes = Generator::<u32>::new(calibration::V4, settings).run();
    routes.extend(Generator::<u128>::new(calibration::V6, settings).run());
    routes
}

#[derive(Debug, Clone, Copy)]
struct Made<A> {
    addr: A,
    len: u8,
    origin: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Top,
    Gap,
    Split,
}

struct Generator<A> {
    numbers: Calibration,
    settings: Settings,
    rng: Xoshiro256PlusPlus,
    made: Vec<Made<A>>,
}

impl<A: SubjectAddr> Generator<A> {
    fn new(numbers: Calibration, settings: Settings) -> Self {
        let seed = settings.seed ^ u64::from(A::BITS) << 56;
        Generator { numbers, settings, rng: Xoshiro256PlusPlus::seed_from_u64(seed), made: Vec::new() }
    }

    fn run(mut self) -> Vec<RouteEntry> {
        self.add_top();
        self.add_nested();
        self.made.sort_unstable_by_key(|made| (made.addr, made.len));
        let next_hops = self.settings.next_hops;
        let route = |made: &Made<A>| {
            let prefix = Prefix::truncating(made.addr, made.len).ok()?;
            let next_hop = NextHopId::new(next_hop_of_origin(made.origin, next_hops)).ok()?;
            Some((prefix.to_ipnet(), next_hop))
        };
        self.made.iter().filter_map(route).collect()
    }

    /// How many of `counts` at this length, for the wanted size of the table.
    fn scaled(&self, counts: &[(u8, u32)], len: u8) -> usize {
        let count = counts.iter().find(|&&(at, _)| at == len).map_or(0, |&(_, count)| count);
        count.div_ceil(100 / self.settings.percent.clamp(1, 100)) as usize
    }

    fn add_top(&mut self) {
        let base_len = self.numbers.base_len;
        let bases: Vec<u32> = self.numbers.bases.iter().flat_map(|&(first, last)| first..=last).collect();
        let bases_used = (bases.len() * self.settings.percent.clamp(1, 100) as usize).div_ceil(100);
        let mut open: Vec<A> =
            bases[..bases_used].iter().map(|&base| A::from_u128(u128::from(base) << (A::BITS - base_len))).collect();
        for len in base_len..=A::BITS {
            if open.is_empty() {
                break;
            }
            let fates = self.fates(open.len(), len);
            let mut halves = Vec::new();
            for (addr, fate) in open.into_iter().zip(fates) {
                match fate {
                    Fate::Top => self.made.push(Made { addr, len, origin: 0 }),
                    Fate::Split if len < A::BITS => {
                        halves.push(addr);
                        halves.push(addr.or(A::from_u128(1 << (A::BITS - len - 1))));
                    }
                    Fate::Split | Fate::Gap => {}
                }
            }
            open = halves;
        }
        self.made.sort_unstable_by_key(|made| made.addr);
        let mut origin = self.random_origin();
        for index in 0..self.made.len() {
            if !self.rng.random_bool(self.numbers.same_origin_next) {
                origin = self.random_origin();
            }
            self.made[index].origin = origin;
        }
    }

    /// The fates of `open` blocks of one length, in address order: as many prefixes and gaps as were measured, in runs.
    fn fates(&mut self, open: usize, len: u8) -> Vec<Fate> {
        let top = self.scaled(self.numbers.top, len).min(open);
        let gaps = self.scaled(self.numbers.gaps, len).min(open - top);
        let mut left = [(Fate::Top, top), (Fate::Gap, gaps), (Fate::Split, open - top - gaps)];
        let mut fates = Vec::with_capacity(open);
        while fates.len() < open {
            let mut choice = self.rng.random_range(0..open - fates.len());
            for (fate, left) in &mut left {
                if choice < *left {
                    let run = 1 + geometric(&mut self.rng, self.numbers.mean_run(len) - 1.0);
                    let run = run.min(*left);
                    fates.extend(std::iter::repeat_n(*fate, run));
                    *left -= run;
                    break;
                }
                choice -= *left;
            }
        }
        fates
    }

    fn add_nested(&mut self) {
        let mut parents: Vec<Vec<Made<A>>> = vec![Vec::new(); usize::from(A::BITS) + 1];
        let mut by_len: Vec<Vec<Made<A>>> = parents.clone();
        for &made in &self.made {
            by_len[usize::from(made.len)].push(made);
        }
        for len in self.numbers.base_len..=A::BITS {
            let nested = self.nested_of(len, &parents);
            self.made.extend(&nested);
            let nested_count = nested.len();
            let mut candidates = std::mem::take(&mut by_len[usize::from(len)]);
            candidates.extend(nested);
            let wanted = self.scaled(self.numbers.parents, len);
            // Parents are mostly top prefixes; they come first among the candidates.
            let tops = candidates.len() - nested_count;
            let on_top = ((wanted as f64 * self.numbers.parents_on_top) as usize).min(tops);
            let (chosen, _) = candidates[..tops].partial_shuffle(&mut self.rng, on_top);
            let mut chosen = chosen.to_vec();
            let (others, _) = candidates[tops..].partial_shuffle(&mut self.rng, wanted - on_top);
            chosen.extend_from_slice(others);
            chosen.shuffle(&mut self.rng);
            parents[usize::from(len)] = chosen;
        }
    }

    /// The nested prefixes of one length, in runs inside parents.
    fn nested_of(&mut self, len: u8, parents: &[Vec<Made<A>>]) -> Vec<Made<A>> {
        let wanted = self.scaled(self.numbers.nested, len);
        let mut nested: Vec<Made<A>> = Vec::with_capacity(wanted);
        let mut taken: HashSet<A> = HashSet::new();
        let choices: Vec<(u8, u32)> = self
            .numbers
            .extra_bits
            .iter()
            .copied()
            .filter(|&(bits, _)| bits <= len && !parents[usize::from(len - bits)].is_empty())
            .collect();
        let total: u32 = choices.iter().map(|&(_, weight)| weight).sum();
        // Runs that fall on a taken place are given up, so the number of tries is bounded.
        for _ in 0..20 * wanted {
            if nested.len() == wanted || total == 0 {
                break;
            }
            let mut choice = self.rng.random_range(0..total);
            let bits = choices.iter().find(|&&(_, weight)| {
                let is_it = choice < weight;
                choice = choice.wrapping_sub(weight);
                is_it
            });
            let Some(&(bits, _)) = bits else { continue };
            let pool = &parents[usize::from(len - bits)];
            // Some parents have many children: the square of a uniform number favours the first of the pool.
            let uniform: f64 = self.rng.random();
            let skewed = if bits <= 2 { uniform } else { uniform * uniform };
            let parent = pool[((pool.len() as f64 * skewed) as usize).min(pool.len() - 1)];
            let (start, run) = self.place(bits);
            let origin = if self.rng.random_bool(self.numbers.same_origin_inside) {
                parent.origin
            } else {
                self.random_origin()
            };
            for index in start..start + run {
                let addr = parent.addr.or(A::from_u128(index << (A::BITS - len)));
                if nested.len() < wanted && taken.insert(addr) {
                    nested.push(Made { addr, len, origin });
                }
            }
        }
        nested
    }

    /// Where a run of nested prefixes starts in a parent with room for `2^bits`, and how long it is.
    fn place(&mut self, bits: u8) -> (u128, u128) {
        let room = 1u128 << bits;
        if bits <= 4 && self.rng.random_bool(self.numbers.cover_whole) {
            return (0, room);
        }
        let run = match self.rng.random_range(0..100) {
            0..60 => 1,
            60..86 => 2,
            86..90 => 3,
            90..96 => 4,
            96..98 => 8,
            _ => 16,
        };
        let run = room.min(run);
        let places = room / run.next_power_of_two();
        (self.rng.random_range(0..places.max(1)) * run.next_power_of_two(), run)
    }

    fn random_origin(&mut self) -> u32 {
        if self.rng.random_bool(self.numbers.unknown_origin) {
            return 0;
        }
        // Some origins have many prefixes; their numbers are spread like those of autonomous systems.
        let uniform: f64 = self.rng.random();
        1 + (f64::from(self.numbers.origins) * uniform * uniform) as u32 * 5
    }
}

/// A geometrically distributed number with this mean.
fn geometric(rng: &mut Xoshiro256PlusPlus, mean: f64) -> usize {
    if mean <= 0.0 {
        return 0;
    }
    let uniform: f64 = rng.random();
    ((1.0 - uniform).ln() / (mean / (1.0 + mean)).ln()) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::data_dir;
    use crate::route_file::RouteSet;
    use crate::subject::MISS;
    use crate::text_routes::SecondColumn;

    const SETTINGS: Settings = Settings { seed: 1, next_hops: 64, percent: 100 };

    /// What a trie feels of a table.
    #[derive(Debug)]
    struct Profile {
        prefixes: usize,
        histogram: BTreeMap<u8, usize>,
        /// Share of prefixes with 0, 1, 2 ... others around them.
        depths: Vec<f64>,
        /// Address ranges after equal neighbours are merged.
        intervals: usize,
        /// Distinct blocks of some lengths in which a prefix starts.
        blocks: BTreeMap<u8, usize>,
        /// Blocks of some lengths that are cut by the end of a range: the nodes of a trie with strides of 6 bits.
        nodes: BTreeMap<u8, usize>,
        fullest_top_block: usize,
    }

    fn profile<A: SubjectAddr>(routes: &[RouteEntry], block_lens: &[u8], node_lens: &[u8], top_len: u8) -> Profile {
        let mut entries: Vec<(A, u8, NextHopId)> =
            routes.iter().filter_map(|&(net, next_hop)| A::key(net).map(|(addr, len)| (addr, len, next_hop))).collect();
        entries.sort();
        let mut histogram = BTreeMap::new();
        let mut depths: Vec<usize> = Vec::new();
        let mut starts: Vec<(A, NextHopId)> = Vec::new();
        let mut open: Vec<(A, NextHopId)> = Vec::new();
        let mut range = |at: A, next_hop| match starts.last_mut() {
            Some(last) if last.0 == at => last.1 = next_hop,
            _ => starts.push((at, next_hop)),
        };
        range(A::ZERO, MISS);
        let close = |open: &mut Vec<(A, NextHopId)>, before: Option<A>, range: &mut dyn FnMut(A, NextHopId)| {
            while let Some(&(last, _)) = open.last() {
                if before.is_some_and(|addr| addr <= last) {
                    return;
                }
                open.pop();
                if last != A::MAX {
                    range(last.wrapping_next(), open.last().map_or(MISS, |&(_, next_hop)| next_hop));
                }
            }
        };
        for &(addr, len, next_hop) in &entries {
            *histogram.entry(len).or_default() += 1;
            close(&mut open, Some(addr), &mut range);
            depths.resize(depths.len().max(open.len() + 1), 0);
            depths[open.len()] += 1;
            range(addr, next_hop);
            open.push((addr.or(A::mask(len).not()), next_hop));
        }
        close(&mut open, None, &mut range);
        starts.dedup_by_key(|&mut (_, next_hop)| next_hop);
        let distinct = |addrs: &mut dyn Iterator<Item = A>, len: u8| {
            let mut counts: BTreeMap<A, usize> = BTreeMap::new();
            addrs.for_each(|addr| *counts.entry(addr.and(A::mask(len))).or_default() += 1);
            counts
        };
        let inside = |len: u8| {
            let mut addrs = starts.iter().map(|&(addr, _)| addr).filter(|addr| addr.and(A::mask(len)) != *addr);
            distinct(&mut addrs, len).len()
        };
        Profile {
            prefixes: entries.len(),
            histogram,
            depths: depths.iter().map(|&count| count as f64 / entries.len() as f64).collect(),
            intervals: starts.len(),
            blocks: block_lens.iter().map(|&len| (len, distinct(&mut entries.iter().map(|e| e.0), len).len())).collect(),
            nodes: node_lens.iter().map(|&len| (len, inside(len))).collect(),
            fullest_top_block: distinct(&mut entries.iter().map(|e| e.0), top_len).into_values().max().unwrap_or(0),
        }
    }

    fn profile_v4(routes: &[RouteEntry]) -> Profile {
        profile::<u32>(routes, &[16, 18, 20, 24], &[12, 18, 24], 8)
    }

    fn profile_v6(routes: &[RouteEntry]) -> Profile {
        profile::<u128>(routes, &[20, 24, 32, 40, 48], &[20, 26, 32, 38, 44], 16)
    }

    #[test]
    fn show_profiles() {
        let start = std::time::Instant::now();
        let routes = table(SETTINGS);
        println!("generated in {:?}", start.elapsed());
        println!("{:#?}\n{:#?}", profile_v4(&routes), profile_v6(&routes));
        for name in ["rib4.txt.gz", "rib6.txt.gz"] {
            let set = RouteSet::read(&[data_dir::require(name).unwrap()], SecondColumn::Origin(64), false).unwrap();
            println!("{:#?}\n{:#?}", profile_v4(&set.routes), profile_v6(&set.routes));
        }
        let _ = Path::new("");
    }
}
