//! What an Internet-like table looks like: a seeded generator calibrated to full tables.
//!
//! Top prefixes come from cutting the populated blocks in halves until each part is a prefix or a gap, with exactly
//! the measured number of both at each length; neighbouring parts tend to share their fate, so busy and quiet regions
//! form. Nested prefixes come in runs inside parents, a few of which have many. Next hops follow from origins, and
//! neighbours often share their origin.
//!
//! How near it comes is asserted by the tests of this file; seed 1, 64 next hops, against the real tables:
//!
//! | | IPv4 real | made | IPv6 real | made |
//! |---|---|---|---|---|
//! | prefixes (each length is met within 3) | 901,899 | 901,899 | 160,147 | 160,126 |
//! | share inside another prefix | 0.507 | 0.507 | 0.569 | 0.569 |
//! | share inside exactly one | 0.359 | 0.314 | 0.377 | 0.307 |
//! | address ranges after merging equal neighbours | 390,926 | 388,248 | 97,655 | 105,803 |
//! | distinct /16, IPv6 /24 | 35,192 | 38,106 | 7,267 | 7,329 |
//! | distinct /18, IPv6 /32 | 90,361 | 94,290 | 34,317 | 36,144 |
//! | distinct /24, IPv6 /48 | 839,650 | 815,265 | 153,104 | 153,161 |
//! | /18, IPv6 /26 cut by a range's end | 40,499 | 41,956 | 14,370 | 14,403 |
//! | IPv6 /32, /38, /44 cut by a range's end | | | 6,283, 10,114, 13,658 | 6,614, 9,944, 13,174 |
//! | prefixes in the fullest /8, IPv6 /16 | 38,520 | 13,924 | 20,151 | 11,396 |

use std::collections::{HashMap, HashSet};

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
    /// How quiet a top block is, 0 to 1.
    block_rank: HashMap<A, f64>,
}

impl<A: SubjectAddr> Generator<A> {
    fn new(numbers: Calibration, settings: Settings) -> Self {
        let seed = settings.seed ^ u64::from(A::BITS) << 56;
        Generator {
            numbers,
            settings,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            made: Vec::new(),
            block_rank: HashMap::new(),
        }
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
        (count * self.settings.percent.clamp(1, 100) + 50) as usize / 100
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
        let mut after_last = A::ZERO;
        for index in 0..self.made.len() {
            let Made { addr, len, .. } = self.made[index];
            let is_adjacent = addr == after_last;
            let same = if is_adjacent { self.numbers.same_origin_adjacent } else { self.numbers.same_origin_apart };
            if !self.rng.random_bool(same) {
                origin = self.random_origin();
            }
            self.made[index].origin = origin;
            after_last = addr.or(A::mask(len).not()).wrapping_next();
        }
    }

    /// The fates of `open` blocks of one length, in address order: as many prefixes and gaps as were measured, in runs.
    /// Of the two halves of a block at most one is a gap, else the block itself would be.
    fn fates(&mut self, open: usize, len: u8) -> Vec<Fate> {
        let halves = if len == self.numbers.base_len { 1 } else { 2 };
        let gaps = self.scaled(self.numbers.gaps, len).min(open / halves);
        let top = self.scaled(self.numbers.top, len).min(open - gaps);
        let run = self.numbers.mean_run;
        let has_gap = in_runs(&mut self.rng, gaps, open / halves - gaps, run);
        let is_top = in_runs(&mut self.rng, top, open - gaps - top, run);
        // A block that is cut needs a prefix somewhere inside. There are enough of them in a full table; the rounded
        // numbers of a smaller one do not add up, and what is left over must not grow for ever.
        let split = open - gaps - top;
        let to_come: usize = (len + 1..=A::BITS).map(|len| self.scaled(self.numbers.top, len)).sum();
        let mut is_cut = in_runs(&mut self.rng, split.min(to_come), split.saturating_sub(to_come), 1.0).into_iter();
        let mut others = is_top.into_iter().map(|is_top| match is_top {
            true => Fate::Top,
            false if is_cut.next() == Some(true) => Fate::Split,
            false => Fate::Gap,
        });
        let mut fates = Vec::with_capacity(open);
        for has_gap in has_gap {
            let gap_at = if has_gap { self.rng.random_range(0..halves) } else { halves };
            fates.extend((0..halves).map_while(|at| if at == gap_at { Some(Fate::Gap) } else { others.next() }));
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
            parents[usize::from(len)] = self.busiest_first(chosen);
        }
    }

    /// Parents in the order in which they will be favoured: some top blocks are busier than others.
    fn busiest_first(&mut self, parents: Vec<Made<A>>) -> Vec<Made<A>> {
        let block = A::mask(self.numbers.base_len);
        let mut ranked: Vec<(f64, Made<A>)> = parents
            .into_iter()
            .map(|parent| {
                let rank = *self.block_rank.entry(parent.addr.and(block)).or_insert_with(|| self.rng.random());
                (rank + self.numbers.spread * self.rng.random::<f64>(), parent)
            })
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        ranked.into_iter().map(|(_, parent)| parent).collect()
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
            // Some parents have many children: a power of a uniform number favours the first of the pool.
            let uniform: f64 = self.rng.random();
            let skewed = if bits <= 2 { uniform } else { uniform.powf(self.numbers.skew) };
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

/// `yes` times true and `no` times false in a random order, equal ones in runs of this mean length.
fn in_runs(rng: &mut Xoshiro256PlusPlus, yes: usize, no: usize, mean_run: f64) -> Vec<bool> {
    let mut left = [no, yes];
    let mut values = Vec::with_capacity(yes + no);
    while values.len() < yes + no {
        let value = usize::from(rng.random_range(0..left[0] + left[1]) >= left[0]);
        let run = (1 + geometric(rng, mean_run - 1.0)).min(left[value]);
        values.extend(std::iter::repeat_n(value == 1, run));
        left[value] -= run;
    }
    values
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
        blocks: Vec<(u8, usize)>,
        /// Blocks of some lengths that are cut by the end of a range: the nodes of a trie with strides of 6 bits.
        nodes: Vec<(u8, usize)>,
        fullest_top_block: usize,
    }

    fn profile<A: SubjectAddr>(routes: &[RouteEntry], real: &Real, top_len: u8) -> Profile {
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
            blocks: real
                .blocks
                .iter()
                .map(|&(len, _)| (len, distinct(&mut entries.iter().map(|e| e.0), len).len()))
                .collect(),
            nodes: real.nodes.iter().map(|&(len, _)| (len, inside(len))).collect(),
            fullest_top_block: distinct(&mut entries.iter().map(|e| e.0), top_len).into_values().max().unwrap_or(0),
        }
    }

    /// The same figures of the real tables.
    struct Real {
        prefixes: usize,
        top_share: f64,
        intervals: usize,
        blocks: &'static [(u8, usize)],
        nodes: &'static [(u8, usize)],
        fullest_top_block: usize,
    }

    const REAL_V4: Real = Real {
        prefixes: 901_899,
        top_share: 0.493,
        intervals: 390_926,
        blocks: &[(16, 35_192), (18, 90_361), (20, 217_012), (24, 839_650)],
        nodes: &[(12, 2_665), (18, 40_499)],
        fullest_top_block: 38_520,
    };

    const REAL_V6: Real = Real {
        prefixes: 160_147,
        top_share: 0.431,
        intervals: 97_655,
        blocks: &[(20, 618), (24, 7_267), (32, 34_317), (40, 70_825), (48, 153_104)],
        nodes: &[(20, 606), (26, 14_370), (32, 6_283), (38, 10_114), (44, 13_658)],
        fullest_top_block: 20_151,
    };

    fn profile_v4(routes: &[RouteEntry]) -> Profile {
        profile::<u32>(routes, &REAL_V4, 8)
    }

    fn profile_v6(routes: &[RouteEntry]) -> Profile {
        profile::<u128>(routes, &REAL_V6, 16)
    }

    /// Every figure is within `percent` of the real table's.
    fn assert_near(made: &Profile, real: &Real, percent: f64) {
        let near = |what: &str, made: f64, real: f64| {
            assert!((made / real - 1.0).abs() <= percent / 100.0, "{what}: {made}, real {real}");
        };
        near("prefixes", made.prefixes as f64, real.prefixes as f64);
        near("top share", made.depths[0], real.top_share);
        near("intervals", made.intervals as f64, real.intervals as f64);
        for (made, real) in made.blocks.iter().zip(real.blocks).chain(made.nodes.iter().zip(real.nodes)) {
            assert_eq!(made.0, real.0);
            near(&format!("blocks or nodes at {}", made.0), made.1 as f64, real.1 as f64);
        }
    }

    #[test]
    fn generated_tables_are_near_the_real_ones() {
        let routes = table(SETTINGS);
        assert!(routes.windows(2).all(|pair| pair[0].0 < pair[1].0), "ordered, each prefix once");
        assert!(routes.iter().all(|(_, next_hop)| (1..=64).contains(&next_hop.get())));
        let (v4, v6) = (profile_v4(&routes), profile_v6(&routes));
        println!("{v4:#?}\n{v6:#?}");
        assert_near(&v4, &REAL_V4, 12.0);
        assert_near(&v6, &REAL_V6, 12.0);
        assert!(v4.prefixes >= 900_000 && v6.prefixes >= 160_000);
        // Busy regions exist, though not quite as busy as in reality.
        assert!(v4.fullest_top_block > REAL_V4.fullest_top_block / 4);
        assert!(v6.fullest_top_block > REAL_V6.fullest_top_block / 4);
        for (numbers, profile) in [(calibration::V4, &v4), (calibration::V6, &v6)] {
            for (len, &wanted) in numbers.histogram().iter().enumerate() {
                let made = profile.histogram.get(&(len as u8)).copied().unwrap_or(0);
                assert!(made.abs_diff(wanted as usize) <= 3, "length {len}: {made}, wanted {wanted}");
            }
        }
    }

    #[test]
    fn the_seed_decides() {
        let small = Settings { percent: 2, ..SETTINGS };
        let routes = table(small);
        assert_eq!(routes, table(small));
        assert_ne!(routes, table(Settings { seed: 2, ..small }));
        for percent in [1, 2, 10, 50] {
            let size = table(Settings { percent, ..SETTINGS }).len() as f64 / 10_620.25 / f64::from(percent);
            assert!((0.5..1.5).contains(&size), "{percent} %: {size}");
        }
        assert!(table(Settings { next_hops: 1, ..small }).iter().all(|(_, next_hop)| next_hop.get() == 1));
    }

    /// Needs the data directory; says so and passes when it is missing.
    #[test]
    fn the_real_figures_are_those_of_the_real_tables() {
        for (name, real, profile) in
            [("rib4.txt.gz", REAL_V4, profile_v4 as fn(&[RouteEntry]) -> Profile), ("rib6.txt.gz", REAL_V6, profile_v6)]
        {
            let Some(path) = data_dir::find(name) else {
                eprintln!("skipped: {name} is not in {} (set FIB_DATA)", data_dir::data_dir().display());
                continue;
            };
            let set = RouteSet::read(&[path], SecondColumn::Origin(64), false).unwrap();
            let profile = profile(&set.routes);
            assert_near(&profile, &real, 0.1);
            assert_eq!(profile.fullest_top_block, real.fullest_top_block);
        }
    }
}
