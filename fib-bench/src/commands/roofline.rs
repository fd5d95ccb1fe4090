//! `roofline`: the machine's limits, to see how close lookups come.

use clap::Args;

use super::spread_row;
use crate::failure::Failure;
use crate::measure::{Spread, in_turns};
use crate::report::{OutputOptions, Report, Table};
use crate::roofline::{Reads, WorkingSet};

/// Options of `roofline`.
#[derive(Debug, Args)]
pub struct RooflineOptions {
    /// Timed passes
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u64).range(1..=1000))]
    passes: u64,
    /// Lookups of a pass
    #[arg(long, default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(64..=1 << 28))]
    lookups: u64,
    /// Largest working set in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    largest: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &RooflineOptions) -> Result<u8, Failure> {
    let mut report = Report::new("roofline");
    report.setting("passes", options.passes);
    report.setting("lookups", options.lookups);
    let mut rates = Table::new(
        "independent random reads, 64 lanes in flight",
        &["working_set_kib", "pages", "dependent_reads", "by", "median_mlps", "min_mlps", "max_mlps"],
    );
    let mut chains = Table::new("dependent chain", &["working_set_kib", "pages", "median_ns", "min_ns", "max_ns"]);
    let mut kib = 256;
    while kib <= options.largest * 1024 {
        for (huge, pages) in [(true, "2 MiB"), (false, "4 KiB")] {
            let set = WorkingSet::new(kib as usize * 1024, options.lookups as usize, huge, 1);
            let ways = Reads::available();
            let seconds = in_turns("reading", ways.len(), options.passes as usize, |index| {
                Ok::<_, Failure>(set.pass(ways[index]))
            })?;
            for (&way, seconds) in ways.iter().zip(seconds) {
                let lookups = set.lookups(way) as f64;
                let (reads, by) = way.names();
                let what = vec![kib.into(), pages.into()];
                if way == Reads::Chain {
                    chains.row(spread_row(what, Spread::of(seconds).map(|seconds| seconds * 1e9 / lookups), 1));
                } else {
                    let what = what.into_iter().chain([reads.into(), by.into()]).collect();
                    rates.row(spread_row(what, Spread::of(seconds).map(|seconds| lookups / seconds / 1e6), 0));
                }
            }
        }
        kib *= 2;
    }
    report.table(rates);
    report.table(chains);
    report.print(options.output)
}
