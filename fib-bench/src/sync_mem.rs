//! `sync-mem`: what the dirty-memory budget costs the writer, and what the writer costs the readers.
//!
//! ```text
//! 1  install   an empty table, readers looking up, routes added one by one: once per budget and round, in turns
//! 2  tail      a full table: the writer idle, then toggling prefixes at full speed, in turns
//! 3  kernel    the kernel patch's case: 44 MB/s retired, a reader that sleeps 8 ms in each burst, a budget of 512 KiB;
//!              by the library's rule and, for comparison, by one that blocks at the budget (measured, and by arithmetic)
//! ```
//!
//! The case toggles a table of its own with large nodes: on a real table this library retires about 20 bytes a route,
//! a twenty-fifth of what the patch did. *Dead time* is the time that the writer waited for readers, as its statistics count it. The readers' addresses are
//! random hosts in random prefixes of the table. Each first turn warms up and its times are thrown away; it verifies
//! instead: counters, the bound on dirty bytes, the structure's invariants, lookups against the independent method.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use fib::{BatchKey, Family, Fib, FibError, Options, Reader, ReclaimStats, Route, StallPolicy, TableOptions, Writer};
use ipnet::IpNet;

use crate::commands::ReadOptions;
use crate::cores::Placement;
use crate::failure::Failure;
use crate::generator;
use crate::measure::Spread;
use crate::progress::Step;
use crate::reader_load::{Observed, ReaderLoad};
use crate::report::{Field, Kind, OutputOptions, Report, Table, Verdict, human_bytes};
use crate::route_file::RouteSet;
use crate::subject::{LookupMode, MISS, RouteEntry, SubjectAddr, family_of};
use crate::subject_oracle::Oracle;
use crate::text_routes::SecondColumn;
use crate::traffic::Traffic;
use crate::workload::pick;
use crate::writer_load::{Install, Paced, Toggler, WaitRule, blocking_model, crowd, install};

/// The library's default budget, and the kernel's.
const DEFAULT_BUDGET: usize = 524_288;
const SMALLEST_BUDGET: usize = 65_536;
const LARGEST_BUDGET: usize = 67_108_864;

/// The kernel patch's case: bytes retired per second of work, and the length of a grace period.
const CASE_PACE: f64 = 44e6;
const CASE_NAP: Duration = Duration::from_millis(8);

/// What the patch reported.
struct Published {
    budget: usize,
    seconds: f64,
    /// Waits per second, milliseconds of one, percent of the time.
    waits: Option<[u32; 3]>,
}

/// In 2019, for 720,022 routes.
const PUBLISHED: [Published; 2] = [
    Published { budget: DEFAULT_BUDGET, seconds: 14.2, waits: Some([51, 8, 35]) },
    Published { budget: 16 << 20, seconds: 9.7, waits: None },
];
const PUBLISHED_ROUTES: f64 = 720_022.0;

/// Addresses that the readers go through: 256 KiB or 1 MiB, read in order.
const ADDRESSES: usize = 1 << 16;

/// Prefixes that are toggled.
const TOGGLED: usize = 100_000;

/// Below this an install takes milliseconds, and one preemption decides every figure.
const ROUTES_FOR_VERDICTS: usize = 100_000;

/// Options of `sync-mem`.
#[derive(Debug, Args)]
pub struct SyncMemOptions {
    /// Route file (may be repeated). Default: an Internet-like IPv4 table is made
    #[arg(long, value_name = "FILE")]
    rib: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadOptions,
    /// Routes that are installed, spread evenly over the table. Default: as many as the kernel patch had
    #[arg(long, default_value_t = 720_022, value_parser = clap::value_parser!(u64).range(1..))]
    routes: u64,
    /// Threads that look up meanwhile
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    readers: u64,
    /// Budgets in bytes, 65536 to 67108864 each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "65536,524288,16777216,67108864",
        value_parser = clap::value_parser!(u32).range(SMALLEST_BUDGET as i64..=LARGEST_BUDGET as i64))]
    budgets: Vec<u32>,
    /// Measured rounds of everything
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Length of each timed stretch on the full table
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    stretch_ms: u64,
    /// Seed of the made table, the addresses and the toggled prefixes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &SyncMemOptions) -> Result<u8, Failure> {
    let mut report = Report::new("sync-mem");
    let routes = routes(&mut report, options)?;
    if routes.iter().any(|&(prefix, _)| family_of(prefix) == Family::V4) {
        measure::<u32>(&mut report, options, &routes)?;
    } else {
        measure::<u128>(&mut report, options, &routes)?;
    }
    report.print(options.output)
}

/// The routes to install: of the files, or of a made table that is large enough.
fn routes(report: &mut Report, options: &SyncMemOptions) -> Result<Vec<RouteEntry>, Failure> {
    let wanted = usize::try_from(options.routes).unwrap_or(usize::MAX);
    let all = if options.rib.is_empty() {
        let (percent, routes) = made_table(wanted, options.seed);
        report.input(serde_json::json!({
            "generated": "calibrated to full tables", "family": "IPv4", "seed": options.seed, "next_hops": 64,
            "percent": percent, "routes": routes.len(),
        }));
        routes
    } else {
        let second = match options.read.origins.unwrap_or(64) {
            0 => SecondColumn::NextHop,
            next_hops => SecondColumn::Origin(next_hops),
        };
        let set = RouteSet::read(&options.rib, second, options.read.keep_going)?;
        for bad in &set.bad {
            eprintln!("{bad}");
        }
        for file in &set.files {
            report.input(file);
        }
        set.routes
    };
    if all.is_empty() {
        return Err(Failure::new("there is no route to install"));
    }
    Ok(spread_evenly(&all, wanted))
}

/// The IPv4 part of a made table that has `wanted` routes, or all that a full one has, and its size in percent.
fn made_table(wanted: usize, seed: u64) -> (u32, Vec<RouteEntry>) {
    let mut percent = 1;
    loop {
        let mut routes = generator::table(generator::Settings { seed, next_hops: 64, percent });
        routes.retain(|&(prefix, _)| family_of(prefix) == Family::V4);
        if routes.len() >= wanted || percent == 100 {
            return (percent, routes);
        }
        // Small tables are quick to make, so it does not matter that the first ones are for nothing.
        let missing = wanted.div_ceil(routes.len().max(1));
        percent = percent.saturating_mul(u32::try_from(missing).unwrap_or(100)).min(100);
    }
}

/// `wanted` elements of `all` at equal distances, in order; all, when there are fewer.
fn spread_evenly<T: Copy>(all: &[T], wanted: usize) -> Vec<T> {
    let wanted = wanted.min(all.len());
    (0..wanted).map(|index| all[(index as u128 * all.len() as u128 / wanted as u128) as usize]).collect()
}

fn measure<A: SubjectAddr + BatchKey>(
    report: &mut Report,
    options: &SyncMemOptions,
    routes: &[RouteEntry],
) -> Result<(), Failure> {
    let prefixes: Vec<IpNet> = routes.iter().map(|&(prefix, _)| prefix).collect();
    let bench = Bench::<A> {
        routes,
        addresses: Traffic::Prefix.addresses(&prefixes, ADDRESSES, options.seed),
        toggled: pick(routes, A::FAMILY, TOGGLED, options.seed),
        placement: Placement::of(options.readers as usize),
        rounds: options.rounds as usize,
        stretch: Duration::from_millis(options.stretch_ms),
    };
    report.setting("routes", routes.len());
    report.setting("readers", options.readers);
    report.setting("threads", bench.placement.describe());
    report.setting("rounds", options.rounds);
    report.setting("stretch_ms", options.stretch_ms);
    report.setting("seed", options.seed);
    report.setting("times", "real: all routes; user, sys, dead: of the writer's thread; medians of the rounds");
    if let Some(reason) = bench.no_verdicts() {
        report.setting("no_verdicts_on_times", reason);
    }
    let mut budgets: Vec<usize> = options.budgets.iter().map(|&bytes| bytes as usize).collect();
    budgets.sort_unstable();
    budgets.dedup();

    bench.installs(report, &budgets)?;
    report.table(published());
    bench.full_table(report)
}

/// The kernel patch's figures, as published.
fn published() -> Table {
    let mut table = Table::new(
        "kernel patch of 2019, 720,022 routes, as published",
        &["budget_bytes", "routes_per_s", "real_s", "dead_percent", "waits_per_s", "wait_ms"],
    );
    for Published { budget, seconds, waits } in PUBLISHED {
        let [waits_per_s, wait_ms, dead] = waits.map_or([const { Field::None }; 3], |waits| waits.map(Field::from));
        table.row(vec![
            Field::Bytes(budget as u64),
            Field::Real(PUBLISHED_ROUTES / seconds, 0),
            Field::Real(seconds, 1),
            dead,
            waits_per_s,
            wait_ms,
        ]);
    }
    table
}

/// What all parts share.
struct Bench<'a, A> {
    routes: &'a [RouteEntry],
    addresses: Vec<A>,
    toggled: Vec<RouteEntry>,
    placement: Placement,
    rounds: usize,
    stretch: Duration,
}

impl<A: SubjectAddr + BatchKey> Bench<'_, A> {
    /// Why figures that depend on time are shown without a verdict.
    fn no_verdicts(&self) -> Option<String> {
        if !self.placement.is_exclusive() {
            Some(String::from("the promises are for readers and a writer that share no core"))
        } else if self.routes.len() < ROUTES_FOR_VERDICTS {
            Some(format!("the promises are for at least {ROUTES_FOR_VERDICTS} routes"))
        } else {
            None
        }
    }

    fn time_verdict(&self, report: &mut Report, verdict: Verdict) {
        if self.no_verdicts().is_none() {
            report.verdict(verdict);
        }
    }

    fn load<'b>(&'b self, fib: &'b Fib) -> ReaderLoad<'b, A> {
        ReaderLoad { fib, addresses: &self.addresses, placement: &self.placement, nap: None }
    }

    /// Part 1.
    fn installs(&self, report: &mut Report, budgets: &[usize]) -> Result<(), Failure> {
        let mut step = Step::new("installing", ((self.rounds + 1) * budgets.len()) as u64);
        let mut runs: Vec<Vec<(Install, Observed)>> = budgets.iter().map(|_| Vec::new()).collect();
        for round in 0..=self.rounds {
            for (&budget, runs) in budgets.iter().zip(&mut runs) {
                let run = self.install_once(report, budget, round == 0)?;
                if round > 0 {
                    runs.push(run);
                }
                step.advance(1);
            }
        }
        drop(step);
        self.note_disturbance(report, "disturbed_installs", runs.iter().flatten().map(|(_, seen)| seen));
        self.show_installs(report, budgets, &runs);
        self.judge_installs(report, budgets, &runs);
        Ok(())
    }

    fn install_once(&self, report: &mut Report, budget: usize, verify: bool) -> Result<(Install, Observed), Failure> {
        let (fib, mut writer) = new_fib(budget)?;
        let (installed, readers) = self.load(&fib).beside(|| install(&mut writer, self.routes))?;
        let installed = installed.map_err(failure)?;
        check_counters(report, &installed.stats);
        if verify {
            self.verify(report, &fib, &mut writer)?;
        }
        drain(report, &mut writer)?;
        Ok((installed, readers))
    }

    /// The table against the independent method, and its own invariants.
    fn verify(&self, report: &mut Report, fib: &Fib, writer: &mut Writer) -> Result<(), Failure> {
        if let Err(error) = writer.check() {
            report.wrong(format!("check: {error}"));
        }
        let mut oracle = Oracle::with_routes(self.routes);
        let mut expected = vec![MISS; self.addresses.len()];
        A::lookup_all(&mut oracle, LookupMode::Single, &self.addresses, &mut expected);
        let mut reader: Reader = fib.reader("verify").map_err(failure)?;
        let mut got = expected.clone();
        reader.burst().main().lookup_batch(&self.addresses, &mut got, MISS);
        for ((addr, expected), got) in self.addresses.iter().zip(&expected).zip(&got).filter(|&((_, a), b)| a != b) {
            report.wrong(format!("{} expected {expected} got {got} after installing", addr.to_ip()));
        }
        Ok(())
    }

    fn show_installs(&self, report: &mut Report, budgets: &[usize], runs: &[Vec<(Install, Observed)>]) {
        let mut times = Table::new(
            "installing, one route at a time",
            &[
                "budget_bytes",
                "routes_per_s",
                "min_routes_per_s",
                "max_routes_per_s",
                "real_s",
                "user_s",
                "sys_s",
                "dead_percent",
                "waits",
                "waits_per_s",
                "worst_wait_us",
            ],
        );
        let mut memory = Table::new(
            "dirty memory while installing",
            &[
                "budget_bytes",
                "peak_dirty_bytes",
                "largest_operation_bytes",
                "retired_bytes",
                "retired_bytes_per_route",
                "reclaimed_bytes",
                "grace_periods",
                "grace_mean_us",
                "grace_p99_us",
            ],
        );
        let columns: Vec<&str> = ["budget_bytes", "readers"].into_iter().chain(Observed::COLUMNS).collect();
        let mut readers = Table::new("readers while installing", &columns);
        for (&budget, runs) in budgets.iter().zip(runs) {
            let rate = self.rates(runs);
            let of = |value: fn(&Install) -> f64| median(runs.iter().map(|(install, _)| value(install)));
            // What does not vary by chance comes from the run of median length.
            let Some((middle, _)) = middle(runs) else { continue };
            let worst_wait = runs.iter().map(|(install, _)| install.stats.wait_worst).max().unwrap_or_default();
            times.row(vec![
                Field::Bytes(budget as u64),
                Field::Real(rate.median, 0),
                Field::Real(rate.min, 0),
                Field::Real(rate.max, 0),
                Field::Real(of(|install| install.real.as_secs_f64()), 3),
                Field::Real(of(|install| install.cpu.user.as_secs_f64()), 3),
                Field::Real(of(|install| install.cpu.sys.as_secs_f64()), 3),
                Field::Real(of(Install::dead_percent), 3),
                middle.stats.waits.into(),
                Field::Real(middle.stats.waits as f64 / middle.real.as_secs_f64(), 1),
                Field::Real(worst_wait.as_secs_f64() * 1e6, 1),
            ]);
            memory.row(vec![
                Field::Bytes(budget as u64),
                Field::Bytes(runs.iter().map(|(install, _)| install.stats.peak_dirty_bytes).max().unwrap_or(0) as u64),
                Field::Bytes(middle.stats.largest_operation_bytes as u64),
                Field::Bytes(middle.stats.retired_bytes),
                Field::Real(middle.stats.retired_bytes as f64 / self.routes.len() as f64, 1),
                Field::Bytes(middle.stats.reclaimed_bytes),
                middle.stats.grace_periods.into(),
                Field::Real(middle.stats.grace_mean.as_secs_f64() * 1e6, 2),
                Field::Real(middle.stats.grace_p99.as_secs_f64() * 1e6, 2),
            ]);
            let row = [Field::Bytes(budget as u64), self.placement.readers().len().into()];
            let seen: Vec<&Observed> = runs.iter().map(|(_, seen)| seen).collect();
            readers.row(row.into_iter().chain(Observed::fields(&seen)).collect());
            let unpinned = seen.iter().map(|seen| seen.unpinned).max().unwrap_or(0);
            if unpinned > 0 {
                report.setting("readers_not_pinned", unpinned);
            }
        }
        report.table(times);
        report.table(memory);
        report.table(readers);
    }

    fn rates(&self, runs: &[(Install, Observed)]) -> Spread {
        Spread::of(runs.iter().map(|(install, _)| self.routes.len() as f64 / install.real.as_secs_f64()).collect())
    }

    fn judge_installs(&self, report: &mut Report, budgets: &[usize], runs: &[Vec<(Install, Observed)>]) {
        let runs_at = |wanted| budgets.iter().position(|&budget| budget == wanted).map(|index| &runs[index]);
        if self.placement.readers().len() == 1 {
            for (budget, bound) in [(SMALLEST_BUDGET, 5.0), (DEFAULT_BUDGET, 1.0)] {
                let Some(runs) = runs_at(budget) else { continue };
                let value = median(runs.iter().map(|(install, _)| install.dead_percent()));
                let name = format!("dead time, {}, one reader", human_bytes(budget as u64));
                self.time_verdict(report, Verdict { name, value, bound, kind: Kind::Ceiling, unit: "%" });
            }
        }
        if let (Some(default), Some(largest)) = (runs_at(DEFAULT_BUDGET), runs_at(LARGEST_BUDGET)) {
            // Of the same turn, so that a slow second of the machine is in both.
            let pairs = default.iter().zip(largest);
            let value =
                median(pairs.map(|(default, largest)| largest.0.real.as_secs_f64() / default.0.real.as_secs_f64()));
            let name = String::from("install rate at 512 KiB, of that at 64 MiB");
            self.time_verdict(report, Verdict { name, value, bound: 0.8, kind: Kind::Floor, unit: "of 1" });
        }
        for (&budget, runs) in budgets.iter().zip(runs) {
            let limit = |stats: &ReclaimStats| (stats.sync_mem_bytes + stats.largest_operation_bytes) as f64;
            let share = |stats: &ReclaimStats| stats.peak_dirty_bytes as f64 / limit(stats);
            let worst = runs.iter().map(|(install, _)| &install.stats).max_by(|a, b| share(a).total_cmp(&share(b)));
            let Some(worst) = worst else { continue };
            report.verdict(Verdict {
                name: format!("peak dirty at {}, budget + largest operation", human_bytes(budget as u64)),
                value: worst.peak_dirty_bytes as f64,
                bound: limit(worst),
                kind: Kind::Ceiling,
                unit: "B",
            });
        }
    }

    /// Parts 2 and 3.
    fn full_table(&self, report: &mut Report) -> Result<(), Failure> {
        let (fib, mut writer) = new_fib(DEFAULT_BUDGET)?;
        let routes = self.routes.iter().map(|&(prefix, next_hop)| (prefix, Route::new(next_hop)));
        writer.main().load(routes).map_err(failure)?;
        let mut toggler = Toggler::removing(&self.toggled);
        self.contention(report, &fib, &mut writer, &mut toggler)?;
        check_counters(report, &writer.reclaim_stats());
        toggler.put_back(&mut writer).map_err(failure)?;
        self.kernel_case(report, &fib, &mut writer)?;
        self.verify(report, &fib, &mut writer)?;
        drain(report, &mut writer)
    }

    /// Part 2.
    fn contention(
        &self,
        report: &mut Report,
        fib: &Fib,
        writer: &mut Writer,
        toggler: &mut Toggler<'_>,
    ) -> Result<(), Failure> {
        let mut step = Step::new("readers beside a busy writer", 2 * (self.rounds as u64 + 1));
        let (mut idle, mut busy, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        let before = writer.reclaim_stats();
        for round in 0..=self.rounds {
            let ((), seen_idle) = self.load(fib).beside(|| thread::sleep(self.stretch))?;
            step.advance(1);
            let (rate, seen_busy) = self.load(fib).beside(|| toggler.at_full_speed(writer, self.stretch))?;
            step.advance(1);
            let rate = rate.map_err(failure)?;
            if round > 0 {
                idle.push(seen_idle);
                busy.push(seen_busy);
                changes.push(rate);
            }
        }
        drop(step);
        let after = writer.reclaim_stats();
        let seconds = (self.rounds + 1) as f64 * self.stretch.as_secs_f64();
        let retired = (after.retired_bytes - before.retired_bytes) as f64 / seconds;

        let columns: Vec<&str> =
            ["writer", "changes_per_s", "retired_mb_per_s"].into_iter().chain(Observed::COLUMNS).collect();
        let mut table = Table::new("readers of a full table (median of each column)", &columns);
        table.row(
            [
                vec!["idle".into(), Field::Real(0.0, 0), Field::Real(0.0, 1)],
                Observed::fields(&idle.iter().collect::<Vec<_>>()).to_vec(),
            ]
            .concat(),
        );
        let written = vec![
            "toggling at full speed".into(),
            Field::Real(median(changes.into_iter()), 0),
            Field::Real(retired / 1e6, 1),
        ];
        table.row([written, Observed::fields(&busy.iter().collect::<Vec<_>>()).to_vec()].concat());
        report.table(table);

        self.note_disturbance(report, "disturbed_full_table", idle.iter().chain(&busy));
        let ratio = |value: fn(&Observed) -> f64| {
            Spread::of(idle.iter().zip(&busy).map(|(idle, busy)| value(busy) / value(idle)).collect())
        };
        let per_cpu = ratio(|seen| seen.lookups_per_s / seen.cpu_percent);
        let (rate, tail) = (ratio(|seen| seen.lookups_per_s), ratio(|seen| seen.burst_ns(0.9999)));
        let mut ratios = Table::new("writer at full speed, divided by idle", &["what", "median", "min", "max"]);
        let rows =
            [("reader rate", rate), ("reader rate per second of its processor time", per_cpu), ("burst p99.99", tail)];
        for (what, spread) in rows {
            ratios.row([Field::from(what)].into_iter().chain(spread.fields(3)).collect());
        }
        report.table(ratios);
        let name = String::from("reader rate, writer at full speed, of an idle writer's");
        self.time_verdict(report, Verdict { name, value: rate.median, bound: 0.9, kind: Kind::Floor, unit: "of 1" });
        let name = String::from("burst p99.99, writer at full speed, to an idle writer's");
        self.time_verdict(report, Verdict { name, value: tail.median, bound: 3.0, kind: Kind::Ceiling, unit: "times" });
        Ok(())
    }

    /// Says so when readers that never sleep did not have their cores to themselves, although no thread of ours was there.
    fn note_disturbance<'b>(&self, report: &mut Report, part: &str, seen: impl Iterator<Item = &'b Observed>) {
        const UNDISTURBED: f64 = 97.0;
        let percent = median(seen.map(|seen| seen.cpu_percent));
        if self.placement.is_exclusive() && percent < UNDISTURBED {
            let text = format!("readers had {percent:.0} % of a core: other programs ran, times are noise");
            report.setting(part, text);
        }
    }

    /// Part 3.
    fn kernel_case(&self, report: &mut Report, fib: &Fib, writer: &mut Writer) -> Result<(), Failure> {
        // In a table of its own, of the same domain: the full one has few nodes that are large and change as a whole.
        let crowd = crowd()?;
        let table = writer.create_table(TableOptions::default()).map_err(failure)?;
        for &(prefix, next_hop) in &crowd.all {
            writer.table(table).and_then(|mut table| table.insert_or_replace(prefix, next_hop)).map_err(failure)?;
        }
        let mut toggler = Toggler::replacing(table, &crowd.toggled, crowd.other);
        let placement = Placement::of(1);
        let load = ReaderLoad { placement: &placement, nap: Some(CASE_NAP), ..self.load(fib) };
        let mut paced = |writer: &mut Writer, rule| -> Result<Paced, Failure> {
            let (paced, _) = load.beside(|| toggler.at_pace(writer, self.stretch, CASE_PACE, rule))?;
            paced.map_err(failure)
        };
        let mut step = Step::new("the kernel patch's case", self.rounds as u64 + 2);
        let mut polled = Vec::new();
        for round in 0..=self.rounds {
            let run = paced(writer, WaitRule::Library)?;
            if round > 0 {
                polled.push(run);
            }
            step.advance(1);
        }
        check_counters(report, &writer.reclaim_stats());
        // For the other rule the library's own is put out of the way: it would hardly ever wait at this budget.
        fib.set_sync_mem(LARGEST_BUDGET).map_err(|error| Failure::at("sync_mem", error))?;
        let blocked = paced(writer, WaitRule::AtBudget(DEFAULT_BUDGET))?;
        fib.set_sync_mem(DEFAULT_BUDGET).map_err(|error| Failure::at("sync_mem", error))?;
        drop(step);

        let mut table = Table::new(
            "44 MB/s retired, a reader that sleeps 8 ms in each burst, 512 KiB",
            &[
                "rule",
                "retired_mb_per_s",
                "dead_percent",
                "min_dead_percent",
                "max_dead_percent",
                "waits_per_s",
                "grace_mean_ms",
            ],
        );
        let dead = Spread::of(polled.iter().map(Paced::dead_percent).collect());
        let retired = median(polled.iter().map(Paced::retired_per_s)) / 1e6;
        let grace = median(polled.iter().map(Paced::grace_s));
        let mut row = |rule: &str, retired: f64, dead: Spread, waits: f64, grace: f64| {
            let figures = [dead.median, dead.min, dead.max, waits].map(|value| Field::Real(value, 1));
            let mut row = vec![rule.into(), Field::Real(retired, 1)];
            row.extend(figures);
            row.push(Field::Real(grace * 1e3, 2));
            table.row(row);
        };
        row("polled (the library)", retired, dead, median(polled.iter().map(Paced::waits_per_s)), grace);
        let one = |value| Spread { median: value, min: value, max: value };
        let measured = (blocked.retired_per_s() / 1e6, one(blocked.dead_percent()));
        row("blocking at the budget, measured", measured.0, measured.1, blocked.waits_per_s(), blocked.grace_s());
        for (rule, grace) in [
            ("blocking, computed with the polled run's grace period", grace),
            ("blocking, computed with 8 ms as published", CASE_NAP.as_secs_f64()),
        ] {
            let (dead, waits) = blocking_model(CASE_PACE, DEFAULT_BUDGET as f64, grace);
            row(rule, CASE_PACE * (1.0 - dead / 100.0) / 1e6, one(dead), waits, grace);
        }
        report.table(table);
        if placement.is_exclusive() {
            let name = String::from("kernel patch's case: dead time, 512 KiB");
            self.time_verdict(report, Verdict { name, value: dead.median, bound: 1.0, kind: Kind::Ceiling, unit: "%" });
            // Less would be an easier case than the one promised.
            let name = String::from("kernel patch's case: retired");
            self.time_verdict(report, Verdict { name, value: retired, bound: 42.0, kind: Kind::Floor, unit: "MB/s" });
        }
        Ok(())
    }
}

/// A `Fib` whose writer waits as long as it takes: a bench measures a stall, it does not give up.
fn new_fib(budget: usize) -> Result<(Fib, Writer), Failure> {
    let options = Options::default().sync_mem(budget).stall_policy(StallPolicy::Wait);
    let fib = Fib::with_options(options).map_err(failure)?;
    let writer = fib.writer().map_err(|error| Failure::at("fib", error))?;
    Ok((fib, writer))
}

/// What must hold between the counters at any time.
fn check_counters(report: &mut Report, stats: &ReclaimStats) {
    let at = human_bytes(stats.sync_mem_bytes as u64);
    if stats.retired_bytes != stats.reclaimed_bytes + stats.dirty_bytes as u64 {
        let ReclaimStats { retired_bytes, reclaimed_bytes, dirty_bytes, .. } = stats;
        report.wrong(format!("{at}: retired {retired_bytes} is not reclaimed {reclaimed_bytes} + dirty {dirty_bytes}"));
    }
    let limit = stats.sync_mem_bytes + stats.largest_operation_bytes;
    if stats.peak_dirty_bytes > limit {
        report.wrong(format!("{at}: {} bytes were dirty, {limit} is the limit", stats.peak_dirty_bytes));
    }
    if stats.wait_worst > stats.wait_total || (stats.waits == 0) != stats.wait_total.is_zero() {
        let ReclaimStats { waits, wait_total, wait_worst, .. } = stats;
        report.wrong(format!("{at}: {waits} waits of {wait_total:?} in all, the worst of {wait_worst:?}"));
    }
}

/// Waits for the readers once more; then nothing may be dirty.
fn drain(report: &mut Report, writer: &mut Writer) -> Result<(), Failure> {
    writer.synchronize(None).map_err(|error| Failure::at("synchronize", error))?;
    let stats = writer.reclaim_stats();
    if stats.dirty_bytes != 0 || stats.retired_bytes != stats.reclaimed_bytes {
        report.wrong(format!("{} bytes are dirty although every reader has reported", stats.dirty_bytes));
    }
    Ok(())
}

fn failure(error: FibError) -> Failure {
    Failure::at("fib", error)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Spread::of(values.collect()).median
}

/// The run of median length.
fn middle(runs: &[(Install, Observed)]) -> Option<&(Install, Observed)> {
    let mut order: Vec<_> = runs.iter().collect();
    order.sort_by_key(|(install, _)| install.real);
    order.get(order.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_spread_evenly() {
        let all: Vec<u32> = (0..10).collect();
        assert_eq!(spread_evenly(&all, 5), [0, 2, 4, 6, 8]);
        assert_eq!(spread_evenly(&all, 3), [0, 3, 6]);
        assert_eq!(spread_evenly(&all, 100), all);
        assert!(spread_evenly::<u32>(&[], 3).is_empty());
    }

    #[test]
    fn counters_that_disagree_are_wrong_answers() {
        let (fib, mut writer) = new_fib(DEFAULT_BUDGET).unwrap();
        let stats = writer.reclaim_stats();
        let wrong = |change: fn(&mut ReclaimStats)| {
            let mut stats = stats;
            change(&mut stats);
            let mut report = Report::new("test");
            check_counters(&mut report, &stats);
            report.wrong_count()
        };
        assert_eq!(wrong(|_| ()), 0);
        assert_eq!(wrong(|stats| stats.retired_bytes += 8), 1);
        assert_eq!(wrong(|stats| stats.peak_dirty_bytes = stats.sync_mem_bytes + stats.largest_operation_bytes + 1), 1);
        assert_eq!(wrong(|stats| stats.wait_worst = Duration::from_nanos(1)), 1);
        drop(fib);
    }
}
