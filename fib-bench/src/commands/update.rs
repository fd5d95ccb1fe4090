//! `update`: random deletes and re-adds on a loaded table, and the covering prefixes that touch most of it.

use std::path::PathBuf;

use clap::Args;
use fib::Family;

use super::{FAMILIES, NEXT_HOPS, ReadOptions, families, prefixes, spread_row};
use crate::failure::Failure;
use crate::figures;
use crate::report::{OutputOptions, Report, Table};
use crate::subject::{RouteEntry, Subject};
use crate::subject_fib::ours;
use crate::subject_oracle::Oracle;
use crate::traffic::Traffic;
use crate::verify::{compare, verify_invariants, verify_routes};
use crate::workload::{churn, fresh_and_common, hard_prefixes, pick, time_covering};

/// Options of `update`.
#[derive(Debug, Args)]
pub struct UpdateOptions {
    /// Route file (may be repeated). Default: rib4.txt.gz and rib6.txt.gz of FIB_DATA
    #[arg(long, value_name = "FILE")]
    rib: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadOptions,
    /// Random prefixes per family
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    prefixes: u64,
    /// Timed rounds of everything
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Seed of the choice of prefixes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &UpdateOptions) -> Result<u8, Failure> {
    let mut report = Report::new("update");
    let set = options.read.read(&options.rib, &["rib4.txt.gz", "rib6.txt.gz"], NEXT_HOPS)?;
    options.read.name(&mut report, &set);
    let plan = UpdatePlan { picks: options.prefixes as usize, rounds: options.rounds as usize, seed: options.seed };
    let mut subject = ours()?;
    subject.load(&set.routes)?;
    let mut oracle = Oracle::with_routes(&set.routes);
    measure_updates(&mut report, subject.as_mut(), &mut oracle, &set.routes, plan)?;
    report.print(options.output)
}

/// How updates are measured.
#[derive(Debug, Clone, Copy)]
pub struct UpdatePlan {
    /// Random prefixes per family.
    pub picks: usize,
    /// Timed rounds.
    pub rounds: usize,
    /// Seed of the choice.
    pub seed: u64,
}

/// Measures all updates on the loaded `subject`, verifies along the way, and leaves both tables as they were.
pub fn measure_updates(
    report: &mut Report,
    subject: &mut dyn Subject,
    oracle: &mut Oracle,
    routes: &[RouteEntry],
    plan: UpdatePlan,
) -> Result<(), Failure> {
    report.setting("update_prefixes", plan.picks);
    report.setting("update_rounds", plan.rounds);
    report.setting("update_seed", plan.seed);
    let mut tables = Tables {
        rates: Table::new("random updates", &["family", "operation", "median_mops", "min_mops", "max_mops"]),
        latency: Table::new("latency", &["family", "operation", "p50_ns", "p99_ns", "p99.9_ns", "max_ns"]),
        covering: Table::new(
            "covering prefixes",
            &["prefix", "next_hop", "operation", "median_us", "min_us", "max_us"],
        ),
    };
    for family in families(routes) {
        add_churn(report, &mut tables, subject, routes, family, plan)?;
        add_covering(report, &mut tables, subject, oracle, routes, family, plan)?;
    }
    report.table(tables.rates);
    report.table(tables.latency);
    report.table(tables.covering);
    for family in FAMILIES {
        verify_routes(report, subject, oracle, family);
    }
    verify_invariants(report, subject);
    Ok(())
}

struct Tables {
    rates: Table,
    latency: Table,
    covering: Table,
}

fn add_churn(
    report: &mut Report,
    tables: &mut Tables,
    subject: &mut dyn Subject,
    routes: &[RouteEntry],
    family: Family,
    plan: UpdatePlan,
) -> Result<(), Failure> {
    let table_is_full = figures::is_full(family, subject.prefix_count(family));
    let churn = churn(subject, &pick(routes, family, plan.picks, plan.seed), plan.rounds)?;
    let rows = [
        ("delete", churn.delete_per_s, Some(&churn.delete)),
        ("add", churn.add_per_s, Some(&churn.add)),
        ("all deletes, then all adds", churn.both_per_s, None),
        ("delete and add in turn", churn.in_turn_per_s, None),
    ];
    for (name, rate, latencies) in rows {
        tables.rates.row(spread_row(vec![family.to_string().into(), name.into()], rate.map(|rate| rate / 1e6), 3));
        if let Some(latencies) = latencies {
            tables
                .latency
                .row([family.to_string().into(), name.into()].into_iter().chain(latencies.fields()).collect());
        }
    }
    if table_is_full && let Some(verdict) = figures::update_rate(family, churn.both_per_s) {
        report.verdict(verdict);
    }
    Ok(())
}

fn add_covering(
    report: &mut Report,
    tables: &mut Tables,
    subject: &mut dyn Subject,
    oracle: &mut Oracle,
    routes: &[RouteEntry],
    family: Family,
    plan: UpdatePlan,
) -> Result<(), Failure> {
    let table_is_full = figures::is_full(family, subject.prefix_count(family));
    let (fresh, common) = fresh_and_common(routes)?;
    for prefix in hard_prefixes(routes, family) {
        for (which, next_hop) in [("fresh", fresh), ("most common", common)] {
            let (insertion, removal) = time_covering(subject, prefix, next_hop, plan.rounds)?;
            for (operation, seconds) in [("insert", insertion), ("remove", removal)] {
                let row = vec![prefix.to_string().into(), which.into(), operation.into()];
                tables.covering.row(spread_row(row, seconds.map(|seconds| seconds * 1e6), 2));
                let verdict = figures::covering_update(prefix, &format!("{operation}, {which} next hop"), seconds);
                if table_is_full && let Some(verdict) = verdict {
                    report.verdict(verdict);
                }
            }
            // Both tables get the prefix, are compared, and give it back.
            let before = oracle.set(prefix, next_hop);
            subject.insert_or_replace(prefix, next_hop)?;
            compare_some(report, subject, oracle, routes, family, plan.seed);
            match before {
                Some(before) => {
                    oracle.set(prefix, before);
                    subject.insert_or_replace(prefix, before)?;
                }
                None => {
                    oracle.unset(prefix);
                    subject.remove(prefix)?;
                }
            }
            compare_some(report, subject, oracle, routes, family, plan.seed);
        }
    }
    Ok(())
}

fn compare_some(
    report: &mut Report,
    subject: &mut dyn Subject,
    oracle: &mut Oracle,
    routes: &[RouteEntry],
    family: Family,
    seed: u64,
) {
    const SAMPLE: usize = 20_000;
    let prefixes = prefixes(routes);
    for traffic in [Traffic::Uniform, Traffic::Edges] {
        match family {
            Family::V4 => compare::<u32>(report, subject, oracle, &traffic.addresses(&prefixes, SAMPLE, seed)),
            Family::V6 => compare::<u128>(report, subject, oracle, &traffic.addresses(&prefixes, SAMPLE, seed)),
        }
    }
}
