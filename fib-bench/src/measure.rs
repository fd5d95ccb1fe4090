//! How long does it take: passes whose order is mixed, medians with their spread, latencies with their tail.
//!
//! What is compared is measured in turns (a pass of each, then the next pass of each), so that a slow second of the
//! machine hurts all of them and not one. The first turn warms the caches and is thrown away.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::progress::Step;
use crate::report::Field;

/// Median, smallest and largest of some measured values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of `values`; all three are NaN when there are none.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };
        };
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Spread { median, min, max }
    }

    /// Three fields of a row: median, min, max.
    pub fn fields(self, decimals: usize) -> [Field; 3] {
        [self.median, self.min, self.max].map(|value| Field::Real(value, decimals))
    }

    /// With every value turned by `change`, which may turn their order round.
    pub fn map(self, change: impl Fn(f64) -> f64) -> Spread {
        let (min, max) = (change(self.min), change(self.max));
        Spread { median: change(self.median), min: min.min(max), max: min.max(max) }
    }
}

/// Runs `subjects` in turns, one warm-up turn and `passes` measured ones; the seconds of each, by subject.
///
/// `run(subject)` returns the time that counts, so it can leave out what it does around the measured stretch.
pub fn in_turns<E>(
    what: &str,
    subjects: usize,
    passes: usize,
    mut run: impl FnMut(usize) -> Result<Duration, E>,
) -> Result<Vec<Vec<f64>>, E> {
    let mut step = Step::new(what, (subjects * (passes + 1)) as u64);
    let mut seconds = vec![Vec::with_capacity(passes); subjects];
    for turn in 0..=passes {
        for (subject, seconds) in seconds.iter_mut().enumerate() {
            let time = run(subject)?;
            if turn > 0 {
                seconds.push(time.as_secs_f64());
            }
            step.advance(1);
        }
    }
    Ok(seconds)
}

/// The time that `work` takes, and its result.
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Latencies of single operations, in nanoseconds. Reading the clock is part of each (20 to 30 ns).
#[derive(Debug)]
pub struct Latencies(Option<Histogram<u64>>);

impl Default for Latencies {
    fn default() -> Self {
        // Up to a minute, in buckets at most 1 % wide; the constructor accepts that, so it is never `None`.
        Latencies(Histogram::new_with_max(60_000_000_000, 2).ok())
    }
}

impl Latencies {
    /// Columns that [`Latencies::fields`] fills.
    pub const COLUMNS: [&'static str; 4] = ["p50_ns", "p99_ns", "p99.9_ns", "max_ns"];

    /// Adds one.
    pub fn add(&mut self, time: Duration) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// p50, p99, p99.9, max.
    pub fn fields(&self) -> [Field; 4] {
        match &self.0 {
            Some(histogram) if !histogram.is_empty() => [0.5, 0.99, 0.999]
                .map(|quantile| histogram.value_at_quantile(quantile).into())
                .into_iter()
                .chain([histogram.max().into()])
                .collect::<Vec<Field>>()
                .try_into()
                .unwrap_or([const { Field::None }; 4]),
            _ => [const { Field::None }; 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Spread::of(vec![]).median.is_nan());
        let rate = Spread::of(vec![1.0, 2.0, 4.0]).map(|seconds| 8.0 / seconds);
        assert_eq!(rate, Spread { median: 4.0, min: 2.0, max: 8.0 });
    }

    #[test]
    fn turns_alternate_and_the_first_does_not_count() {
        let mut order = Vec::new();
        let seconds = in_turns("test", 2, 3, |subject| {
            order.push(subject);
            Ok::<_, ()>(Duration::from_secs(order.len() as u64))
        })
        .unwrap();
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(seconds, [vec![3.0, 5.0, 7.0], vec![4.0, 6.0, 8.0]]);
        assert_eq!(in_turns("test", 1, 1, |_| Err::<Duration, _>("stop")), Err("stop"));
    }

    #[test]
    fn latencies_have_a_tail() {
        let mut latencies = Latencies::default();
        for nanos in 1..=1000 {
            latencies.add(Duration::from_nanos(nanos));
        }
        let [Field::Count(p50), Field::Count(p99), _, Field::Count(max)] = latencies.fields() else { panic!() };
        let near = |value: u64, expected: u64| value.abs_diff(expected) * 50 <= expected;
        assert!(near(p50, 500) && near(p99, 990) && near(max, 1000), "{p50} {p99} {max}");
        assert_eq!(Latencies::default().fields(), [const { Field::None }; 4]);
    }
}
