//! `replay`: applies a trace of announcements and withdrawals to a loaded table, and verifies what is left.

use std::path::PathBuf;

use clap::Args;

use super::{FAMILIES, NEXT_HOPS, ReadOptions, add_shapes, families, prefixes, spread_row};
use crate::data_dir;
use crate::failure::Failure;
use crate::measure::{Latencies, Spread, in_turns, timed};
use crate::report::{OutputOptions, Report, Table};
use crate::subject::{RouteEntry, Subject};
use crate::subject_fib::ours;
use crate::subject_oracle::Oracle;
use crate::update_file::{Trace, Update};
use crate::verify::{verify_invariants, verify_lookups, verify_routes};

/// Options of `replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// Route file (may be repeated). Default: rib4.txt.gz of FIB_DATA
    #[arg(long, value_name = "FILE")]
    rib: Vec<PathBuf>,
    /// Update trace, `unixtime a prefix nexthop` or `unixtime w prefix`. Default: updates.txt.gz of FIB_DATA
    updates: Option<PathBuf>,
    #[command(flatten)]
    read: ReadOptions,
    /// Timed replays, each on a freshly loaded table
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Lookups per family that verify the end state
    #[arg(long, default_value_t = 1_000_000)]
    verify: usize,
    /// Seed of the verifying lookups
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &ReplayOptions) -> Result<u8, Failure> {
    let mut report = Report::new("replay");
    let set = options.read.read(&options.rib, &["rib4.txt.gz"], NEXT_HOPS)?;
    options.read.name(&mut report, &set);
    let path = options.updates.clone().map_or_else(|| data_dir::require("updates.txt.gz"), Ok)?;
    let first_next_hop = set.routes.iter().map(|(_, next_hop)| next_hop.get() + 1).max().unwrap_or(1);
    let trace = Trace::read(&path, first_next_hop, options.read.keep_going)?;
    if trace.bad.count > 0 {
        eprintln!("{}", trace.bad);
    }
    report.input(serde_json::json!({
        "file": path.display().to_string(),
        "format": "updates",
        "updates": trace.updates.len(),
        "next_hops": trace.next_hops,
        "bad_lines": trace.bad.count,
    }));
    report.setting("seed", options.seed);

    let mut subject = ours()?;
    let seconds = in_turns("replaying", 1, options.rounds as usize, |_| {
        subject = ours()?;
        subject.load(&set.routes)?;
        let (time, result) = timed(|| trace.updates.iter().try_for_each(|&update| apply(subject.as_mut(), update)));
        result.map(|()| time)
    })?;
    verify_end(&mut report, subject.as_mut(), &set.routes, &trace.updates, options)?;
    add_latencies(&mut report, &set.routes, &trace.updates, Spread::of(seconds.concat()))?;
    add_shapes(&mut report, subject.as_mut(), &families(&set.routes));
    report.print(options.output)
}

fn apply(subject: &mut dyn Subject, update: Update) -> Result<(), Failure> {
    match update {
        Update::Announce(prefix, next_hop) => subject.insert_or_replace(prefix, next_hop).map(|_| ()),
        // A withdrawal of what is not there is usual in a trace that starts in the middle.
        Update::Withdraw(prefix) => subject.remove(prefix).map(|_| ()),
    }
}

/// One more replay that times each operation.
fn add_latencies(
    report: &mut Report,
    routes: &[RouteEntry],
    updates: &[Update],
    seconds: Spread,
) -> Result<(), Failure> {
    let mut subject = ours()?;
    subject.load(routes)?;
    let (mut announce, mut withdraw) = (Latencies::default(), Latencies::default());
    let (mut announced, mut withdrawn) = (0usize, 0usize);
    for &update in updates {
        let (time, result) = timed(|| apply(subject.as_mut(), update));
        result?;
        let (latencies, count) = match update {
            Update::Announce(..) => (&mut announce, &mut announced),
            Update::Withdraw(_) => (&mut withdraw, &mut withdrawn),
        };
        latencies.add(time);
        *count += 1;
    }
    let mut rate = Table::new("replay", &["updates", "median_mops", "min_mops", "max_mops"]);
    rate.row(spread_row(vec![updates.len().into()], seconds.map(|s| updates.len() as f64 / s / 1e6), 3));
    report.table(rate);
    let mut table = Table::new("latency", &["operation", "count", "p50_ns", "p99_ns", "p99.9_ns", "max_ns"]);
    for (name, count, latencies) in [("announce", announced, announce), ("withdraw", withdrawn, withdraw)] {
        table.row([name.into(), count.into()].into_iter().chain(latencies.fields()).collect());
    }
    report.table(table);
    Ok(())
}

/// Every route and many lookups against hash maps to which the same updates were applied.
fn verify_end(
    report: &mut Report,
    subject: &mut dyn Subject,
    routes: &[RouteEntry],
    updates: &[Update],
    options: &ReplayOptions,
) -> Result<(), Failure> {
    let mut oracle = Oracle::with_routes(routes);
    updates.iter().try_for_each(|&update| apply(&mut oracle, update))?;
    let mut table = Table::new("verified end state", &["family", "routes", "lookups"]);
    for family in FAMILIES {
        let count = verify_routes(report, subject, &mut oracle, family);
        let lookups = if count > 0 { options.verify } else { 0 };
        table.row(vec![family.to_string().into(), count.into(), lookups.into()]);
    }
    // Prefixes of the table and of the trace, so that withdrawn ones are asked for too.
    let mut asked = prefixes(routes);
    asked.extend(updates.iter().map(|&update| match update {
        Update::Announce(prefix, _) | Update::Withdraw(prefix) => prefix,
    }));
    verify_lookups::<u32>(report, subject, &mut oracle, &asked, options.verify, options.seed);
    verify_lookups::<u128>(report, subject, &mut oracle, &asked, options.verify, options.seed);
    verify_invariants(report, subject);
    report.table(table);
    Ok(())
}
