//! The main job, without a subcommand: an Internet-like table is made, loaded, verified, looked up and changed.

use clap::Args;

use super::load::load_and_time;
use super::update::{UpdatePlan, measure_updates};
use super::{FAMILIES, prefixes};
use crate::failure::Failure;
use crate::generator;
use crate::measure::timed;
use crate::report::{OutputOptions, Report, Table};
use crate::subject_oracle::Oracle;
use crate::verify::{verify_invariants, verify_lookups, verify_routes};
use crate::workload::{LookupPlan, lookup_table, measure_lookups};

/// Options of the main job.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// Seed of the table
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Next hops that the routes lead to
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    next_hops: u32,
    /// Size of the table in percent of a full one
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Lookups per family that are verified
    #[arg(long, default_value_t = 1_000_000)]
    verify: usize,
    /// Lookups per measured pass
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    lookups: u64,
    /// Addresses per batch call
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch: u64,
    /// Random prefixes per family that are deleted and added again
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    updates: u64,
    /// Measured passes of everything
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &RunOptions) -> Result<u8, Failure> {
    let mut report = Report::new("run");
    let settings = generator::Settings { seed: options.seed, next_hops: options.next_hops, percent: options.percent };
    let (making, routes) = timed(|| generator::table(settings));
    report.input(serde_json::json!({
        "generated": "calibrated to full tables", "seed": options.seed, "next_hops": options.next_hops,
        "percent": options.percent, "routes": routes.len(),
    }));
    report.setting("generate_seconds", making.as_secs_f64());
    let mut subject = load_and_time(&mut report, &routes, options.rounds as usize)?;
    let subject = subject.as_mut();

    let mut oracle = Oracle::with_routes(&routes);
    let nets = prefixes(&routes);
    let mut verified = Table::new("verified", &["family", "routes", "lookups"]);
    verify_lookups::<u32>(&mut report, subject, &mut oracle, &nets, options.verify, options.seed);
    verify_lookups::<u128>(&mut report, subject, &mut oracle, &nets, options.verify, options.seed);
    for family in FAMILIES {
        let count = verify_routes(&mut report, subject, &mut oracle, family);
        verified.row(vec![family.to_string().into(), count.into(), options.verify.into()]);
    }
    verify_invariants(&mut report, subject);
    report.table(verified);

    let plan = LookupPlan {
        addresses: options.lookups as usize,
        passes: options.rounds as usize,
        batch: options.batch as usize,
        seed: options.seed,
    };
    let mut lookups = lookup_table();
    measure_lookups::<u32>(&mut lookups, subject, &nets, plan)?;
    measure_lookups::<u128>(&mut lookups, subject, &nets, plan)?;
    report.table(lookups);

    let plan = UpdatePlan { picks: options.updates as usize, rounds: options.rounds as usize, seed: options.seed };
    measure_updates(&mut report, subject, &mut oracle, &routes, plan)?;
    report.print(options.output)
}
