//! What the machine can do at most: random reads from working sets of growing size.
//!
//! ```text
//! 1 read      out = table[index]                       64 independent ones in flight
//! 2 reads     out = table[table[index]]                all 64 first reads, then all 64 second ones
//! chain       index = table[index]                     one after the other: the latency
//! ```
//!
//! The table's values are random positions in it; indexes come from a list that is streamed, as addresses are in
//! `compare`. No lookup with so many dependent reads in a table of that size can be faster.

use std::hint::black_box;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cpu_time::busy;
use crate::peers::huge::HugeBox;

/// Lookups in flight.
pub const LANES: usize = 64;

/// How one figure is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// This many dependent reads (1 or 2), plain loads.
    Scalar(usize),
    /// The same with AVX-512 gathers of 16.
    Gather(usize),
    /// Each read waits for the one before.
    Chain,
}

impl Reads {
    /// What this machine can do.
    pub fn available() -> Vec<Reads> {
        let mut found = vec![Reads::Scalar(1), Reads::Scalar(2)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            found.extend([Reads::Gather(1), Reads::Gather(2)]);
        }
        found.push(Reads::Chain);
        found
    }

    /// Dependent reads and how they are made, for reports.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Reads::Scalar(1) => ("1", "loads"),
            Reads::Scalar(_) => ("2", "loads"),
            Reads::Gather(1) => ("1", "gathers"),
            Reads::Gather(_) => ("2", "gathers"),
            Reads::Chain => ("chain", "loads"),
        }
    }
}

/// A table of random positions and the list of indexes that are asked for.
#[derive(Debug)]
pub struct WorkingSet {
    table: HugeBox<u32>,
    indexes: Vec<u32>,
}

impl WorkingSet {
    /// A table of `bytes` (a power of two, at least 64), and `count` indexes.
    pub fn new(bytes: usize, count: usize, huge: bool, seed: u64) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let len = (bytes / 4).max(16) as u32;
        let mut table = HugeBox::zeroed(len as usize, huge);
        // One cycle through all places (Sattolo's shuffle), so that a chain visits the whole set.
        let mut order: Vec<u32> = (0..len).collect();
        for index in (1..len as usize).rev() {
            order.swap(index, rng.random_range(0..index));
        }
        table.copy_from_slice(&order);
        let indexes = (0..count.next_multiple_of(LANES)).map(|_| rng.random_range(0..len)).collect();
        WorkingSet { table, indexes }
    }

    /// Lookups of a pass.
    pub fn lookups(&self, reads: Reads) -> usize {
        if reads == Reads::Chain { self.chain_len() } else { self.indexes.len() }
    }

    /// Chains are slow; an eighth of the lookups is enough.
    fn chain_len(&self) -> usize {
        self.indexes.len() / 8
    }

    /// Processor time of one pass.
    pub fn pass(&self, reads: Reads) -> Duration {
        let mut sum = 0;
        let time = busy(|| {
            sum = match reads {
                Reads::Scalar(1) => self.scalar::<1>(),
                Reads::Scalar(_) => self.scalar::<2>(),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `available` lists gathers only where the processor has them; checked here once more.
                Reads::Gather(count) if is_x86_feature_detected!("avx512f") => unsafe {
                    if count == 1 { self.gather::<1>() } else { self.gather::<2>() }
                },
                Reads::Gather(_) => 0,
                Reads::Chain => self.chain(),
            }
        });
        black_box(sum);
        time
    }

    fn chain(&self) -> u32 {
        (0..self.chain_len()).fold(0, |at, _| self.table[at as usize])
    }

    fn scalar<const READS: usize>(&self) -> u32 {
        let mask = self.table.len() - 1;
        let mut sum = 0u32;
        for indexes in self.indexes.as_chunks::<LANES>().0 {
            let mut lanes = *indexes;
            for _ in 0..READS {
                for lane in &mut lanes {
                    // SAFETY: the length is a power of two, so the masked index is below it.
                    *lane = unsafe { *self.table.get_unchecked(*lane as usize & mask) };
                }
            }
            sum = lanes.iter().fold(sum, |sum, &lane| sum.wrapping_add(lane));
        }
        sum
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn gather<const READS: usize>(&self) -> u32 {
        use std::arch::x86_64::{
            _mm512_add_epi32, _mm512_i32gather_epi32, _mm512_loadu_si512, _mm512_reduce_add_epi32, _mm512_setzero_si512,
        };
        const GROUPS: usize = LANES / 16;
        let mut sum = _mm512_setzero_si512();
        for indexes in self.indexes.as_chunks::<LANES>().0 {
            let mut groups = [_mm512_setzero_si512(); GROUPS];
            for (group, indexes) in groups.iter_mut().zip(indexes.as_chunks::<16>().0) {
                // SAFETY: 16 indexes of 4 bytes are read.
                *group = unsafe { _mm512_loadu_si512(indexes.as_ptr().cast()) };
            }
            for _ in 0..READS {
                for group in &mut groups {
                    // SAFETY: indexes and the table's values are positions in the table (`new`).
                    *group = unsafe { _mm512_i32gather_epi32::<4>(*group, self.table.as_ptr().cast()) };
                }
            }
            for group in groups {
                sum = _mm512_add_epi32(sum, group);
            }
        }
        _mm512_reduce_add_epi32(sum).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_read_the_same() {
        let set = WorkingSet::new(4096, 1000, true, 1);
        assert_eq!(set.indexes.len() % LANES, 0);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has it.
            unsafe {
                assert_eq!(set.gather::<1>(), set.scalar::<1>());
                assert_eq!(set.gather::<2>(), set.scalar::<2>());
            }
        }
        assert_ne!(set.scalar::<1>(), set.scalar::<2>());
        // The chain is one cycle: it comes back to the start after all 1024 places, and not before.
        let mut at = 0;
        for step in 1..=1024 {
            at = set.table[at as usize];
            assert_eq!(at == 0, step == 1024);
        }
    }
}
