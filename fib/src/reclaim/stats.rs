//! What reclamation has done, in numbers that cost a few additions per retired block and a clock per sealed chunk.
//!
//! The two that an operator needs are the rate R at which memory is retired and the latency L of a grace period: the writer
//! never waits while `sync_mem * (1 - 1/8) >= R * L` ([`ReclaimStats::suggested_sync_mem`] does the sum).

use std::fmt;
use std::time::{Duration, Instant};

use super::budget::{CHUNKS_PER_BUDGET, SYNC_MEM_RANGE};

/// Numbers about retired memory, grace periods and waits. All totals count from the creation of the domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReclaimStats {
    /// The budget, in bytes.
    pub sync_mem_bytes: usize,
    /// Retired and not yet reclaimed, in bytes.
    pub dirty_bytes: usize,
    /// The highest `dirty_bytes` so far. At most the budget (the highest it was set to) and `largest_operation_bytes`.
    pub peak_dirty_bytes: usize,
    /// The most that one operation retired, in bytes.
    pub largest_operation_bytes: usize,
    /// Retired, in bytes.
    pub retired_bytes: u64,
    /// Retired blocks.
    pub retired_blocks: u64,
    /// Reclaimed, in bytes.
    pub reclaimed_bytes: u64,
    /// Reclaimed blocks.
    pub reclaimed_blocks: u64,
    /// Looks at whether a grace period is over.
    pub polls: u64,
    /// Times that the writer waited.
    pub waits: u64,
    /// Time the writer waited.
    pub wait_total: Duration,
    /// The longest wait.
    pub wait_worst: Duration,
    /// Grace periods that are over.
    pub grace_periods: u64,
    /// Grace periods that are open now.
    pub grace_periods_open: usize,
    /// From the start of a grace period to the moment the writer saw that it was over: the mean.
    pub grace_mean: Duration,
    /// The same: 99 of 100 were at most this long (rounded up by at most a fifth).
    pub grace_p99: Duration,
    /// The same: the longest.
    pub grace_worst: Duration,
    /// Bytes retired per second, over the last tenth of a second or longer.
    pub retired_per_second: u64,
    /// The highest such rate so far, per second that the writer did not wait: what it retires when nothing holds it up.
    pub peak_retired_per_second: u64,
    /// Registered readers.
    pub readers: usize,
    /// Readers that are inside a burst, or online.
    pub readers_online: usize,
    /// Readers that the oldest open grace period waits for.
    pub readers_late: usize,
}

impl ReclaimStats {
    /// The smallest budget at which a writer that retires at the peak rate would not have waited, by the p99 latency seen so
    /// far: `R * L / (1 - 1/8)`, within the limits of the budget. Without a grace period so far, the lowest limit.
    pub fn suggested_sync_mem(&self) -> usize {
        let chunks = u128::from(CHUNKS_PER_BUDGET as u64);
        let in_flight = u128::from(self.peak_retired_per_second) * self.grace_p99.as_nanos() / 1_000_000_000;
        let needed = in_flight * chunks / (chunks - 1);
        usize::try_from(needed).unwrap_or(usize::MAX).clamp(*SYNC_MEM_RANGE.start(), *SYNC_MEM_RANGE.end())
    }
}

impl fmt::Display for ReclaimStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "dirty    {} bytes of {}, peak {}, largest operation {}",
            self.dirty_bytes, self.sync_mem_bytes, self.peak_dirty_bytes, self.largest_operation_bytes
        )?;
        writeln!(
            f,
            "retired  {} bytes in {} blocks, {} bytes/s, peak {} bytes/s",
            self.retired_bytes, self.retired_blocks, self.retired_per_second, self.peak_retired_per_second
        )?;
        writeln!(f, "freed    {} bytes in {} blocks", self.reclaimed_bytes, self.reclaimed_blocks)?;
        writeln!(
            f,
            "grace    {} over, {} open, {} polls; mean {:.1?}, p99 {:.1?}, worst {:.1?}",
            self.grace_periods, self.grace_periods_open, self.polls, self.grace_mean, self.grace_p99, self.grace_worst
        )?;
        writeln!(
            f,
            "waits    {}, {:.1?} in all, worst {:.1?}; a budget of {} bytes would do",
            self.waits,
            self.wait_total,
            self.wait_worst,
            self.suggested_sync_mem()
        )?;
        write!(f, "readers  {} registered, {} online, {} late", self.readers, self.readers_online, self.readers_late)
    }
}

/// Quarters of an octave, from 1 ns to more than an hour.
const BUCKETS: usize = 4 * 43;

/// The counters behind the numbers; the writer's own, so plain words.
pub(super) struct Counters {
    pub(super) retired_bytes: u64,
    pub(super) retired_blocks: u64,
    pub(super) reclaimed_bytes: u64,
    pub(super) reclaimed_blocks: u64,
    pub(super) peak_dirty_bytes: usize,
    pub(super) largest_operation_bytes: usize,
    pub(super) polls: u64,
    waits: u64,
    wait_total: Duration,
    wait_worst: Duration,
    latency_count: u64,
    latency_total: Duration,
    latency_worst: Duration,
    latencies: [u32; BUCKETS],
    window: Window,
}

/// A stretch of time over which the rate is taken: at least [`Window::MIN`], so that a burst shorter than a grace
/// period does not count as a rate.
struct Window {
    since: Instant,
    retired_bytes: u64,
    /// `wait_total` at the window's start.
    waited: Duration,
    rate: u64,
    peak: u64,
}

impl Window {
    const MIN: Duration = Duration::from_millis(100);

    /// Bytes per second, and per second without waiting, if the window is long enough.
    fn rates(&self, now: Instant, retired_bytes: u64, wait_total: Duration) -> Option<(u64, u64)> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < Self::MIN {
            return None;
        }
        let busy = elapsed.saturating_sub(wait_total.saturating_sub(self.waited));
        let bytes = u128::from(retired_bytes - self.retired_bytes);
        let per_second = |time: Duration| (bytes * 1_000_000_000 / time.as_nanos().max(1)) as u64;
        Some((per_second(elapsed), per_second(busy.max(Duration::from_micros(1)))))
    }
}

impl Counters {
    pub(super) fn new() -> Self {
        Counters {
            retired_bytes: 0,
            retired_blocks: 0,
            reclaimed_bytes: 0,
            reclaimed_blocks: 0,
            peak_dirty_bytes: 0,
            largest_operation_bytes: 0,
            polls: 0,
            waits: 0,
            wait_total: Duration::ZERO,
            wait_worst: Duration::ZERO,
            latency_count: 0,
            latency_total: Duration::ZERO,
            latency_worst: Duration::ZERO,
            latencies: [0; BUCKETS],
            window: Window { since: Instant::now(), retired_bytes: 0, waited: Duration::ZERO, rate: 0, peak: 0 },
        }
    }

    /// The bucket of a latency: its octave, and the quarter of it.
    fn bucket(nanos: u128) -> usize {
        let nanos = nanos.clamp(1, u128::from(u64::MAX));
        let octave = nanos.ilog2();
        let quarter = (nanos << 2 >> octave) & 3;
        (4 * octave as usize + quarter as usize).min(BUCKETS - 1)
    }

    /// The upper end of a bucket.
    fn bucket_end(bucket: usize) -> Duration {
        let (octave, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
        Duration::from_nanos(((5 + quarter) << octave) / 4)
    }

    pub(super) fn sealed(&mut self, now: Instant) {
        if let Some((rate, unhindered)) = self.window.rates(now, self.retired_bytes, self.wait_total) {
            let peak = self.window.peak.max(unhindered);
            let retired_bytes = self.retired_bytes;
            self.window = Window { since: now, retired_bytes, waited: self.wait_total, rate, peak };
        }
    }

    pub(super) fn passed(&mut self, latency: Duration) {
        self.latency_count += 1;
        self.latency_total += latency;
        self.latency_worst = self.latency_worst.max(latency);
        self.latencies[Self::bucket(latency.as_nanos())] += 1;
    }

    pub(super) fn waited(&mut self, time: Duration) {
        self.waits += 1;
        self.wait_total += time;
        self.wait_worst = self.wait_worst.max(time);
    }

    fn p99(&self) -> Duration {
        // The first latency that is not among the highest hundredth.
        let above = self.latency_count / 100;
        let mut seen = 0;
        for (bucket, &count) in self.latencies.iter().enumerate().rev() {
            seen += u64::from(count);
            if seen > above {
                return Self::bucket_end(bucket).min(self.latency_worst);
            }
        }
        Duration::ZERO
    }

    /// The numbers; budget, dirty bytes, open grace periods and readers are the caller's to fill in.
    pub(super) fn snapshot(&self) -> ReclaimStats {
        let current = self.window.rates(Instant::now(), self.retired_bytes, self.wait_total);
        let (rate, unhindered) = current.unwrap_or((self.window.rate, self.window.peak));
        ReclaimStats {
            peak_dirty_bytes: self.peak_dirty_bytes,
            largest_operation_bytes: self.largest_operation_bytes,
            retired_bytes: self.retired_bytes,
            retired_blocks: self.retired_blocks,
            reclaimed_bytes: self.reclaimed_bytes,
            reclaimed_blocks: self.reclaimed_blocks,
            polls: self.polls,
            waits: self.waits,
            wait_total: self.wait_total,
            wait_worst: self.wait_worst,
            grace_periods: self.latency_count,
            grace_mean: self
                .latency_total
                .checked_div(u32::try_from(self.latency_count).unwrap_or(u32::MAX))
                .unwrap_or_default(),
            grace_p99: self.p99(),
            grace_worst: self.latency_worst,
            retired_per_second: rate,
            peak_retired_per_second: self.window.peak.max(unhindered),
            ..ReclaimStats::default()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn latency_buckets_hold_what_they_say() {
        let mut last = 0;
        for nanos in (0..4096).chain((12..62).flat_map(|octave| [(1 << octave) - 1, 1 << octave, 3 << (octave - 1)])) {
            let bucket = Counters::bucket(nanos);
            assert!(bucket == BUCKETS - 1 || nanos <= Counters::bucket_end(bucket).as_nanos(), "{nanos}");
            assert!(bucket >= last, "{nanos}");
            last = bucket;
        }
        assert_eq!(Counters::bucket(u128::MAX), BUCKETS - 1);
    }

    #[test]
    fn p99_leaves_out_one_in_a_hundred() {
        let mut counters = Counters::new();
        assert_eq!(counters.snapshot().grace_p99, Duration::ZERO);
        counters.passed(Duration::from_millis(500));
        assert_eq!(counters.snapshot().grace_p99, Duration::from_millis(500));
        for _ in 0..198 {
            counters.passed(Duration::from_micros(1));
        }
        let stats = counters.snapshot();
        assert!(stats.grace_p99 >= Duration::from_micros(1) && stats.grace_p99 < Duration::from_micros(2));
        assert_eq!(stats.grace_worst, Duration::from_millis(500));
        assert_eq!(stats.grace_periods, 199);
    }

    #[test]
    fn the_rule_gives_the_budget() {
        // 44 MB/s and 8 ms: 352,000 bytes in flight; an eighth of the budget is the chunk being filled.
        let stats = ReclaimStats {
            peak_retired_per_second: 44_000_000,
            grace_p99: Duration::from_millis(8),
            ..ReclaimStats::default()
        };
        assert_eq!(stats.suggested_sync_mem(), 352_000 * 8 / 7);
        assert_eq!(ReclaimStats::default().suggested_sync_mem(), 65_536);
    }

    #[test]
    fn rates_leave_out_the_wait() {
        let since = Instant::now();
        let window = Window { since, retired_bytes: 1000, waited: Duration::from_secs(5), rate: 0, peak: 0 };
        assert_eq!(window.rates(since + Duration::from_millis(99), 2000, window.waited), None);
        let rates = window.rates(since + Duration::from_secs(2), 5000, Duration::from_secs(6));
        assert_eq!(rates, Some((2000, 4000)));
    }

    #[test]
    fn text_names_the_units() {
        let text = ReclaimStats { dirty_bytes: 7, waits: 3, ..ReclaimStats::default() }.to_string();
        assert!(text.contains("dirty    7 bytes"), "{text}");
        assert!(text.contains("waits    3,"), "{text}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn numbers_survive_json() {
        let stats = ReclaimStats { dirty_bytes: 7, wait_worst: Duration::from_millis(3), ..ReclaimStats::default() };
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<ReclaimStats>(&text).unwrap(), stats);
    }
}
