//! Readers beside a writer: threads that look up all the time while something else is measured, and what they saw.
//!
//! Each reader is pinned, registers, warms up, and then looks up bursts of 32 addresses by one batch call inside one
//! burst guard until the measured work is done. Every burst is timed with the processor's time-stamp counter, from before
//! the guard is entered to after it is left; reading the counter is part of it (10 to 20 ns), recording is not.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fib::{BatchKey, Fib, NextHopId, Reader};
use hdrhistogram::Histogram;

use crate::cores::{Pin, Placement, thread_time};
use crate::failure::Failure;
use crate::measure::Spread;
use crate::report::Field;
use crate::subject::MISS;

/// Addresses in a burst.
pub const BURST: usize = 32;

/// Bursts before anything counts: the code, the stack and the clock are warm then.
const WARM_UP: usize = 1_000;

/// The readers that run beside a piece of work.
#[derive(Debug, Clone, Copy)]
pub struct ReaderLoad<'a, A> {
    /// What they look up in: the main table.
    pub fib: &'a Fib,
    /// What they look up, over and over; at least [`BURST`] addresses.
    pub addresses: &'a [A],
    /// Where they run, and so how many there are.
    pub placement: &'a Placement,
    /// How long they sleep inside each burst, after its lookups.
    pub nap: Option<Duration>,
}

/// What the readers saw, all of them together.
#[derive(Debug)]
pub struct Observed {
    /// Lookups per second, the readers' rates added up.
    pub lookups_per_s: f64,
    /// Bursts that were timed.
    pub bursts: u64,
    /// Time of a burst in ticks of [`Clock`].
    ticks: Histogram<u64>,
    ns_per_tick: f64,
    /// The smallest share of the time that a reader was running, in percent. Much less than 100 without a nap means that
    /// others wanted its core.
    pub cpu_percent: f64,
    /// Readers that the system did not let us pin.
    pub unpinned: usize,
}

impl Observed {
    /// Columns that [`Observed::fields`] fills.
    pub const COLUMNS: [&'static str; 7] = [
        "reader_mlps",
        "reader_cpu_percent",
        "burst_p50_ns",
        "burst_p99_ns",
        "burst_p99.9_ns",
        "burst_p99.99_ns",
        "burst_max_ns",
    ];

    fn nothing() -> Result<Observed, Failure> {
        // Up to minutes in ticks of 0.2 ns, in buckets at most 1 % wide; small enough for the second-level cache.
        let ticks = Histogram::new_with_max(1_000_000_000_000, 2).map_err(|error| Failure::at("burst times", error))?;
        Ok(Observed { lookups_per_s: 0.0, bursts: 0, ticks, ns_per_tick: 1.0, cpu_percent: 100.0, unpinned: 0 })
    }

    /// Nanoseconds that this share of the bursts did not exceed; NaN when there was none.
    pub fn burst_ns(&self, quantile: f64) -> f64 {
        if self.ticks.is_empty() {
            return f64::NAN;
        }
        self.ticks.value_at_quantile(quantile) as f64 * self.ns_per_tick
    }

    /// Millions of lookups a second, share of the time, and burst times: the median of each over some runs.
    pub fn fields(seen: &[&Observed]) -> [Field; 7] {
        let of = |value: &dyn Fn(&Observed) -> f64| Spread::of(seen.iter().map(|seen| value(seen)).collect()).median;
        let time = |quantile| Field::Real(of(&|seen| seen.burst_ns(quantile)), 0);
        let rate = Field::Real(of(&|seen| seen.lookups_per_s / 1e6), 1);
        let cpu = Field::Real(of(&|seen| seen.cpu_percent), 0);
        [rate, cpu, time(0.5), time(0.99), time(0.999), time(0.9999), time(1.0)]
    }
}

/// Raises a flag at its end, also when the work panics: the readers must not run for ever then.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        // Relaxed: nothing else is handed over by it.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<A: BatchKey> ReaderLoad<'_, A> {
    /// Runs `work` on this thread, pinned to the writer's core, while the readers look up.
    pub fn beside<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Observed), Failure> {
        if self.addresses.len() < BURST {
            return Err(Failure::new(format!("readers need at least {BURST} addresses")));
        }
        // Registered before any thread starts: a failure here leaves nobody waiting at the barrier.
        let readers = (0..self.placement.readers().len())
            .map(|index| {
                let reader = self.fib.reader(&format!("reader {index}"));
                Ok((reader.map_err(|error| Failure::at("reader", error))?, Observed::nothing()?))
            })
            .collect::<Result<Vec<(Reader, Observed)>, Failure>>()?;
        let (stop, start) = (AtomicBool::new(false), Barrier::new(readers.len() + 1));
        let (result, runs) = thread::scope(|scope| {
            let threads: Vec<_> = readers
                .into_iter()
                .zip(self.placement.readers())
                .enumerate()
                .map(|(index, ((reader, observed), &core))| {
                    let (stop, start) = (&stop, &start);
                    scope.spawn(move || self.read(reader, observed, core, index, stop, start))
                })
                .collect();
            let stop_at_end = StopAtEnd(&stop);
            let pin = Pin::to(self.placement.writer());
            start.wait();
            let result = work();
            drop(pin);
            drop(stop_at_end);
            let runs: Vec<thread::Result<Observed>> = threads.into_iter().map(|thread| thread.join()).collect();
            (result, runs)
        });
        let mut all = Observed::nothing()?;
        for run in runs {
            let run = run.map_err(|_| Failure::new("a reader thread panicked"))?;
            all.lookups_per_s += run.lookups_per_s;
            all.bursts += run.bursts;
            all.unpinned += run.unpinned;
            all.cpu_percent = all.cpu_percent.min(run.cpu_percent);
            all.ns_per_tick = run.ns_per_tick;
            all.ticks.add(&run.ticks).map_err(|error| Failure::at("burst times", error))?;
        }
        Ok((result, all))
    }

    fn read(
        &self,
        mut reader: Reader,
        mut observed: Observed,
        core: usize,
        index: usize,
        stop: &AtomicBool,
        start: &Barrier,
    ) -> Observed {
        let pin = Pin::to(core);
        let mut out = [MISS; BURST];
        // Each reader begins elsewhere in the list.
        let whole = self.addresses.len() / BURST;
        let mut bursts = self.addresses.chunks_exact(BURST).cycle().skip(index * 7919 % whole);
        let mut burst = |nap: Option<Duration>| {
            let Some(addresses) = bursts.next() else { return 0 };
            let before = Clock::now();
            let guard = reader.burst();
            guard.main().lookup_batch(addresses, &mut out, MISS);
            if let Some(nap) = nap {
                thread::sleep(nap);
            }
            drop(guard);
            let ticks = Clock::now().wrapping_sub(before);
            std::hint::black_box::<&[NextHopId; BURST]>(&out);
            ticks
        };
        for _ in 0..WARM_UP {
            burst(None);
        }
        start.wait();
        let (cpu, clock) = (thread_time(), Clock::start());
        while !stop.load(Ordering::Relaxed) {
            observed.ticks.saturating_record(burst(self.nap));
            observed.bursts += 1;
        }
        let (seconds, ns_per_tick) = clock.stop();
        let cpu = thread_time().since(cpu);
        observed.cpu_percent = 100.0 * (cpu.user + cpu.sys).as_secs_f64() / seconds;
        observed.lookups_per_s = (observed.bursts * BURST as u64) as f64 / seconds;
        observed.ns_per_tick = ns_per_tick;
        observed.unpinned = usize::from(pin.is_none());
        observed
    }
}

/// The cheapest clock there is, and its speed, found by running an ordinary clock beside it.
#[derive(Debug)]
struct Clock {
    instant: Instant,
    ticks: u64,
}

impl Clock {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn now() -> u64 {
        // SAFETY: every x86-64 processor has the counter, and systems let programs read it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn now() -> u64 {
        use std::sync::LazyLock;
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        ORIGIN.elapsed().as_nanos() as u64
    }

    fn start() -> Clock {
        Clock { instant: Instant::now(), ticks: Clock::now() }
    }

    /// Seconds since the start, and nanoseconds per tick.
    fn stop(self) -> (f64, f64) {
        let ticks = Clock::now().wrapping_sub(self.ticks).max(1);
        let time = self.instant.elapsed();
        (time.as_secs_f64(), time.as_nanos() as f64 / ticks as f64)
    }
}
