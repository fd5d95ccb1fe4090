//! `compare`: the library and its peers on the same table and the same traffic, side by side.

use std::path::PathBuf;

use clap::Args;
use fib::Family;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{ReadOptions, spread_row};
use crate::compare::{FamilyResults, Plan, compare, compare_deep, is_ours};
use crate::compare_verdicts::{reference, verdicts};
use crate::deep::host_routes;
use crate::failure::Failure;
use crate::peers::list::{Entry, Listed, NAMES, ON_REQUEST, absent};
use crate::peers::{BATCH_MAX, PeerRoute};
use crate::plot::write_results;
use crate::report::{Field, OutputOptions, Report, Table};
use crate::subject::RouteEntry;
use crate::traffic::Traffic;

/// Options of `compare`.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// IPv4 route file (may be repeated). Default: rib4.txt.gz of FIB_DATA
    #[arg(long, value_name = "FILE")]
    rib4: Vec<PathBuf>,
    /// IPv6 route file (may be repeated). Default: rib6.txt.gz of FIB_DATA
    #[arg(long, value_name = "FILE")]
    rib6: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadOptions,
    /// Peers to compare with; default: all but rte_lpm, which needs minutes to load. `none`: the library alone
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Kinds of traffic
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = TrafficKind::ALL)]
    traffic: Vec<TrafficKind>,
    /// Addresses per batch call. The verdicts are about 64
    #[arg(long, value_delimiter = ',', default_values_t = [32, 64, 256], value_parser = clap::value_parser!(u64).range(1..=BATCH_MAX as u64))]
    batch: Vec<u64>,
    /// Timed passes of lookups
    #[arg(long, default_value_t = 31, value_parser = clap::value_parser!(u64).range(1..=1000))]
    passes: u64,
    /// Lookups of a pass; four times as many different addresses are asked for
    #[arg(long, default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(8..))]
    lookups: u64,
    /// Timed loads, and timed rounds of updates
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Random prefixes that are deleted and added again
    #[arg(long, default_value_t = 100_000)]
    updates: u64,
    /// Seed of traffic and choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Core that everything but loading runs on. Default: the last one allowed
    #[arg(long)]
    core: Option<usize>,
    /// Write RESULTS.md and its pictures into this directory
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Kinds of traffic that `compare` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TrafficKind {
    /// Every address of the family's unicast space equally likely
    Uniform,
    /// Every prefix equally likely
    Prefix,
    /// Few prefixes get most of the traffic
    Zipf,
    /// IPv6 host routes, a table of its own
    Deep,
}

impl TrafficKind {
    const ALL: [TrafficKind; 4] = [TrafficKind::Uniform, TrafficKind::Prefix, TrafficKind::Zipf, TrafficKind::Deep];

    fn on_the_table(self) -> Option<Traffic> {
        match self {
            TrafficKind::Uniform => Some(Traffic::Uniform),
            TrafficKind::Prefix => Some(Traffic::Prefix),
            TrafficKind::Zipf => Some(Traffic::Zipf),
            TrafficKind::Deep => None,
        }
    }
}

impl std::fmt::Display for TrafficKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.on_the_table().map_or("deep", Traffic::name))
    }
}

/// Runs the command.
pub fn run(options: &CompareOptions) -> Result<u8, Failure> {
    if let Some(unknown) = options.peers.iter().find(|name| *name != "none" && !NAMES.contains(&name.as_str())) {
        return Err(Failure::new(format!("no peer is called {unknown}; there are {}", NAMES.join(", "))));
    }
    let mut report = Report::new("compare");
    let plan = Plan {
        lookups: options.lookups as usize,
        passes: options.passes as usize,
        batches: options.batch.iter().map(|&size| size as usize).collect(),
        loads: options.rounds as usize,
        picks: options.updates as usize,
        seed: options.seed,
    };
    for (name, value) in [("seed", plan.seed), ("passes", options.passes), ("lookups", options.lookups)] {
        report.setting(name, value);
    }
    let mut all = Vec::new();
    // With one family named and not the other, only that one is measured.
    if !options.rib4.is_empty() || options.rib6.is_empty() {
        all.push(family::<u32>(&mut report, options, &plan, &options.rib4, "rib4.txt.gz")?);
    }
    if !options.rib6.is_empty() || options.rib4.is_empty() {
        all.push(family::<u128>(&mut report, options, &plan, &options.rib6, "rib6.txt.gz")?);
    }
    for results in &all {
        results.ours_wrong.iter().for_each(|text| report.wrong(text.as_str()));
    }
    add_tables(&mut report, &all);
    for results in &all {
        verdicts(results).into_iter().for_each(|verdict| report.verdict(verdict));
    }
    if let Some(directory) = &options.results {
        let settings = format!(
            "Seed {}, {} passes of {} lookups, {} rounds of loads and updates.",
            plan.seed, plan.passes, plan.lookups, plan.loads
        );
        write_results(directory, &settings, &all)?;
    }
    report.print(options.output)
}

fn family<A: Listed>(
    report: &mut Report,
    options: &CompareOptions,
    plan: &Plan,
    files: &[PathBuf],
    default: &str,
) -> Result<FamilyResults, Failure> {
    let read = ReadOptions { origins: Some(options.read.origins.unwrap_or(super::NEXT_HOPS)), ..options.read };
    let set = read.read(files, &[default], super::NEXT_HOPS)?;
    read.name(report, &set);
    let routes = peer_routes::<A>(&set.routes)?;
    let entries = chosen::<A>(&options.peers);
    let traffic: Vec<Traffic> = options.traffic.iter().filter_map(|kind| kind.on_the_table()).collect();
    let cores = sched_getaffinity(None).map_err(|error| Failure::at("asking for the allowed cores", error))?;
    let mut results = compare(&routes, &entries, &traffic, plan, || pin(options.core, &cores))?;
    if A::FAMILY == Family::V6 && options.traffic.contains(&TrafficKind::Deep) {
        let routes = peer_routes::<A>(&host_routes(1000, 100, plan.seed)?)?;
        let usable = |entry: &&Entry<A>| !entry.name.starts_with("rte_") && entry.name != "planb";
        let entries: Vec<Entry<A>> = entries.iter().filter(usable).copied().collect();
        compare_deep(&mut results, &routes, &entries, plan)?;
    }
    // The next family's loads may use every core again.
    sched_setaffinity(None, &cores).map_err(|error| Failure::at("leaving the core", error))?;
    if options.peers.is_empty() {
        results.absent.extend(absent(A::FAMILY).into_iter().map(|(name, why)| (name, why.to_owned())));
    }
    Ok(results)
}

fn pin(core: Option<usize>, allowed: &CpuSet) -> Result<(), Failure> {
    let last = (0..CpuSet::MAX_CPU).rev().find(|&core| allowed.is_set(core));
    let Some(core) = core.or(last).filter(|&core| core < CpuSet::MAX_CPU) else {
        return Err(Failure::new("no such core"));
    };
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).map_err(|error| Failure::at(format!("pinning to core {core}"), error))
}

/// The tables that are measured: ours, and the peers that were named (all but those on request, when none was).
fn chosen<A: Listed>(names: &[String]) -> Vec<Entry<A>> {
    let is_chosen = |entry: &Entry<A>| match names {
        [] => !ON_REQUEST.contains(&entry.name),
        names => names.iter().any(|name| name == entry.name),
    };
    A::ours().into_iter().chain(A::peers().into_iter().filter(is_chosen)).collect()
}

fn peer_routes<A: Listed>(routes: &[RouteEntry]) -> Result<Vec<PeerRoute<A>>, Failure> {
    let mut found = Vec::with_capacity(routes.len());
    for &(prefix, next_hop) in routes {
        let Some((addr, len)) = A::key(prefix) else { continue };
        if next_hop.get() == 0 {
            return Err(Failure::new(format!("{prefix}: next hop 0 means a miss here; use 1 and above")));
        }
        found.push(PeerRoute { addr, len, next_hop: next_hop.get() });
    }
    match found.is_empty() {
        true => Err(Failure::new(format!("no {} routes", A::FAMILY))),
        false => Ok(found),
    }
}

fn text(text: impl ToString) -> Field {
    Field::Text(text.to_string())
}

fn add_tables(report: &mut Report, all: &[FamilyResults]) {
    let columns =
        ["family", "traffic", "subject", "batch", "median_mlps", "min_mlps", "max_mlps", "ours_to_it"];
    let mut lookups = Table::new("lookups", &columns);
    let mut single = Table::new("dependent single lookups", &[
        "family", "traffic", "subject", "median_ns", "min_ns", "max_ns", "its_time_to_ours",
    ]);
    let mut loads =
        Table::new("load", &["family", "subject", "order", "median_ms", "min_ms", "max_ms", "its_time_to_ours"]);
    let mut updates = Table::new("random deletes and re-adds", &[
        "family", "subject", "median_mops", "min_mops", "max_mops", "ours_to_it",
    ]);
    let mut memory =
        Table::new("memory", &["family", "subject", "next_hop_bits", "lookup_bytes", "total_bytes"]);
    let mut faults = Table::new("faults of peers", &["family", "subject", "when", "what", "count"]);
    let mut missing = Table::new("not compared", &["family", "subject", "why"]);
    for results in all {
        let family = || text(results.family);
        for (&(traffic, who, batch), passes) in &results.rates {
            let mut row = vec![family(), traffic.into(), text(who), batch.into()];
            row = spread_row(row, passes.millions_per_s(), 1);
            row.push(ratio(results.rates.get(&(traffic, reference(results), batch)), passes, is_ours(who.table)));
            lookups.row(row);
        }
        for (&(traffic, who), passes) in &results.chains {
            let mut row = spread_row(vec![family(), traffic.into(), text(who)], passes.nanoseconds(), 1);
            row.push(ratio(results.chains.get(&(traffic, reference(results))), passes, is_ours(who.table)));
            single.row(row);
        }
        for (&(table, order), passes) in &results.loads {
            let milliseconds = crate::measure::Spread::of(passes.seconds.clone()).map(|seconds| seconds * 1e3);
            let mut row = spread_row(vec![family(), table.into(), order.name().into()], milliseconds, 1);
            row.push(ratio(results.loads.get(&("ours", order)), passes, is_ours(table)));
            loads.row(row);
        }
        for (&table, passes) in &results.updates {
            let mut row = spread_row(vec![family(), table.into()], passes.millions_per_s(), 3);
            row.push(ratio(results.updates.get("ours"), passes, is_ours(table)));
            updates.row(row);
        }
        for (&table, used) in &results.memory {
            let bytes = |bytes: Option<usize>| bytes.map_or(Field::None, |bytes| Field::Bytes(bytes as u64));
            let bits = used.next_hop_bits.map_or(Field::None, Field::from);
            memory.row(vec![family(), table.into(), bits, bytes(used.lookup_bytes), bytes(used.total_bytes)]);
        }
        for (&(who, when), &count) in &results.wrong {
            faults.row(vec![family(), text(who), when.into(), "wrong answers".into(), count.into()]);
        }
        for (&(table, when), &count) in &results.refused {
            faults.row(vec![family(), table.into(), when.into(), "refused".into(), count.into()]);
        }
        for (name, why) in &results.absent {
            missing.row(vec![family(), (*name).into(), why.as_str().into()]);
        }
    }
    for table in [lookups, single, loads, updates, memory, faults, missing] {
        report.table(table);
    }
}

/// How many times faster ours is; nothing for ours itself.
fn ratio(ours: Option<&crate::compare::Passes>, peer: &crate::compare::Passes, is_ours: bool) -> Field {
    match ours {
        Some(ours) if !is_ours => Field::Real(ours.times_faster_than(peer), 2),
        _ => Field::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Who;

    #[test]
    fn every_name_is_an_entry_or_says_why_not() {
        let tables: Vec<&str> = u32::ours()
            .iter()
            .map(|entry| entry.name)
            .chain(u32::peers().iter().map(|entry| entry.name))
            .chain(u128::peers().iter().map(|entry| entry.name))
            .collect();
        assert!(tables.iter().all(|name| NAMES.contains(name) || is_ours(name)));
        let all_built = absent(Family::V4).is_empty() && absent(Family::V6).is_empty();
        assert!(!all_built || NAMES.iter().all(|name| tables.contains(name)));
    }

    #[test]
    fn names_of_subjects() {
        assert_eq!(Who { table: "rte_fib4", variant: "scalar" }.to_string(), "rte_fib4 scalar");
        assert_eq!(Who { table: "ours", variant: "" }.to_string(), "ours");
    }
}
