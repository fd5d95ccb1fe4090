//! Level compression: how many grid steps a dense node spans. Questions and thresholds only; `update.rs` does the work.
//!
//! Source: S. Nilsson and G. Karlsson, "IP-address lookup using LC-tries", IEEE JSAC 17(6), 1999: a node takes the
//! highest branching factor `2^k` for which at least a *fill factor* of its `2^k` children is in use, and the root,
//! which every lookup passes, may be emptier than others. The dynamic form with two thresholds (inflate high, halve
//! low, so that one route at a threshold cannot make a node flip) is from S. Nilsson and M. Tikkanen, "An experimental
//! study of compression methods for dynamic tries", Algorithmica 33(1), 2002.
//!
//! We differ in what is counted. With leaf pushing every slot of a node holds a value, so "children in use" says
//! little; the number of prefixes in the node's subtree (its *population*, which the Rib keeps at no cost) stands in
//! for it. That also bounds memory directly: a dense slot takes 4 bytes, so the root costs at most 4 bytes a prefix
//! when it inflates and 16 before it halves, an inner node at most 1 and 4.
//!
//! Branching grows by whole grid steps (factors of 64), since the Rib below stands on the same grid.

use crate::addr::Addr;

/// The largest span of a node below the root, in grid steps (12 bits: 16 KiB).
const INNER_STEPS_MAX: usize = 2;

/// The root inflates when its prefixes are at least as many as the slots it would get: a fill factor of 1. A full
/// IPv4 table (900,000 prefixes) gets 2^18 slots, a full IPv6 table (160,000) 2^14; 2^20 slots would be 4 MiB, which
/// is more than all of its nodes and leaves the L2 cache.
const ROOT_FILL: u64 = 1;

/// The prefixes for which an inner node inflates to one and to two grid steps. A node of one step (256 bytes in place of a
/// sparse node of some 8 + 4 bytes a run of equal slots) repays itself with four prefixes a slot; one of two steps
/// (16 KiB) takes a whole level and both its reads off every lookup that comes through, and all of today's IPv6
/// lookups come through twenty such nodes: a quarter of a prefix a slot is enough for it.
// Measured on the IPv6 table: 4,096 in place of 1,024 leaves lanes of one batch at different levels, 15 % slower.
const INNER_POPULATION: [u64; INNER_STEPS_MAX] = [256, 1024];

/// A node halves when its population has fallen below a quarter of what made it inflate. Wide enough that each
/// inflation is paid for by as many updates as half the slots it wrote.
const HYSTERESIS: u64 = 4;

/// Slots of a dense node of `steps` grid steps at `step`.
#[inline(always)]
pub(crate) const fn dense_slots(lead: u32, step: usize, steps: usize) -> usize {
    1 << (6 * steps - if step == 0 { lead as usize } else { 0 })
}

/// The span between `min` and `max` steps that a node of `current` steps should have; `wanted(steps)` is the population
/// for which a node inflates to so many.
fn fitting(population: u64, current: usize, min: usize, max: usize, wanted: impl Fn(usize) -> u64) -> usize {
    let mut steps = current;
    while steps < max && should_inflate(population, wanted(steps + 1)) {
        steps += 1;
    }
    while steps > min && should_halve(population, wanted(steps)) {
        steps -= 1;
    }
    steps
}

/// Whether a node with this population should grow to the span for which `wanted` is enough.
fn should_inflate(population: u64, wanted: u64) -> bool {
    population >= wanted
}

/// Whether a node with this population, and a span for which `wanted` is enough, should shrink by one grid step.
fn should_halve(population: u64, wanted: u64) -> bool {
    population * HYSTERESIS < wanted
}

/// The span that the root of a table with `population` prefixes should have, in grid steps; `current` is what it has.
pub(crate) fn root_steps<A: Addr>(population: u32, current: usize, limit: usize) -> usize {
    // Test builds scale the thresholds down, so that small tables cross all of them.
    let population = u64::from(population) * scale();
    fitting(population, current, 1, limit, |steps| dense_slots(A::LEAD, 0, steps) as u64 * ROOT_FILL)
}

/// The span that the node at grid step `step` (not 0) should have; 0 means sparse.
pub(crate) fn inner_steps<A: Addr>(population: u32, step: usize, current: usize) -> usize {
    let population = u64::from(population) * scale();
    let max = INNER_STEPS_MAX.min(A::STEPS - step);
    fitting(population, current, 0, max, |steps| INNER_POPULATION[steps - 1])
}

#[cfg(not(test))]
#[inline(always)]
const fn scale() -> u64 {
    1
}

#[cfg(test)]
pub(crate) use scaled::{scale, set_scale};

#[cfg(test)]
mod scaled {
    use std::cell::Cell;

    thread_local! {
        static SCALE: Cell<u64> = const { Cell::new(1) };
    }

    /// What populations are multiplied by on this thread.
    pub(crate) fn scale() -> u64 {
        SCALE.with(Cell::get)
    }

    /// Makes this thread's tables inflate at populations `factor` times smaller.
    pub(crate) fn set_scale(factor: u64) {
        SCALE.with(|scale| scale.set(factor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_follow_the_population_with_hysteresis() {
        assert_eq!(root_steps::<u32>(0, 1, 3), 1);
        assert_eq!(root_steps::<u32>(4095, 1, 3), 1);
        assert_eq!(root_steps::<u32>(4096, 1, 3), 2);
        assert_eq!(root_steps::<u32>(901_899, 1, 3), 3);
        assert_eq!(root_steps::<u32>(4095, 2, 3), 2);
        assert_eq!(root_steps::<u32>(1024, 2, 3), 2);
        assert_eq!(root_steps::<u32>(1023, 2, 3), 1);
        assert_eq!(root_steps::<u32>(0, 3, 3), 1);
        assert_eq!(root_steps::<u128>(160_147, 1, 4), 3);
        assert_eq!(root_steps::<u128>(255, 1, 4), 1);
        assert_eq!(root_steps::<u128>(256, 1, 4), 2);
    }

    #[test]
    fn inner_nodes_follow_the_population_with_hysteresis() {
        assert_eq!(inner_steps::<u32>(255, 1, 0), 0);
        assert_eq!(inner_steps::<u32>(256, 1, 0), 1);
        assert_eq!(inner_steps::<u32>(1_023, 1, 1), 1);
        assert_eq!(inner_steps::<u32>(1_024, 1, 0), 2);
        assert_eq!(inner_steps::<u32>(256, 1, 2), 2);
        assert_eq!(inner_steps::<u32>(255, 1, 2), 1);
        assert_eq!(inner_steps::<u32>(64, 1, 1), 1);
        assert_eq!(inner_steps::<u32>(63, 1, 1), 0);
        assert_eq!(inner_steps::<u32>(1 << 20, 5, 0), 1, "the last step has nothing behind it");
    }

    #[test]
    fn no_population_is_both_inflated_and_halved() {
        for population in (0..600_000).step_by(97) {
            for current in 1..=3 {
                let steps = root_steps::<u32>(population, current, 3);
                assert_eq!(root_steps::<u32>(population, steps, 3), steps);
            }
            for current in 0..=2 {
                let steps = inner_steps::<u128>(population, 3, current);
                assert_eq!(inner_steps::<u128>(population, 3, steps), steps);
            }
        }
    }
}
