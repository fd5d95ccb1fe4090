//! `load`: what a table looks like in memory, and how long loading takes.

use std::path::PathBuf;

use clap::Args;
use fib::Family;

use super::{FAMILIES, ReadOptions, add_lengths, add_memory, add_shapes, families, spread_row};
use crate::failure::Failure;
use crate::figures;
use crate::measure::{Spread, in_turns, timed};
use crate::report::{OutputOptions, Report, Table};
use crate::subject::{RouteEntry, Subject, family_of};
use crate::subject_fib::ours;
use crate::verify::verify_invariants;

/// Options of `load`.
#[derive(Debug, Args)]
pub struct LoadOptions {
    /// Route files: text, MRT TABLE_DUMP_V2, gzip, bzip2. Default: rib4.txt.gz and rib6.txt.gz of FIB_DATA
    files: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadOptions,
    /// Timed loads
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &LoadOptions) -> Result<u8, Failure> {
    let mut report = Report::new("load");
    let (parsing, set) = timed(|| options.read.read(&options.files, &["rib4.txt.gz", "rib6.txt.gz"], 0));
    let set = set?;
    options.read.name(&mut report, &set);
    report.setting("parse_seconds", parsing.as_secs_f64());
    let mut subject = load_and_time(&mut report, &set.routes, options.rounds as usize)?;
    verify_invariants(&mut report, subject.as_mut());
    add_lengths(&mut report, &set.routes);
    add_special_prefixes(&mut report, subject.as_mut())?;
    report.print(options.output)
}

/// Loads fresh tables, adds load time, shape and their verdicts to the report, and returns a loaded table.
pub fn load_and_time(report: &mut Report, routes: &[RouteEntry], rounds: usize) -> Result<Box<dyn Subject>, Failure> {
    let mut loaded = ours()?;
    let seconds = in_turns("loading", 1, rounds, |_| {
        // The old table goes before the clock starts.
        loaded = ours()?;
        let (time, result) = timed(|| loaded.load(routes));
        result.map(|()| time)
    })?;
    let seconds = Spread::of(seconds.concat());
    let families = families(routes);
    let name = if families.len() == 1 { families[0].to_string() } else { String::from("both") };
    let mut table = Table::new("load time", &["family", "routes", "median_ms", "min_ms", "max_ms"]);
    table.row(spread_row(vec![name.into(), routes.len().into()], seconds.map(|seconds| seconds * 1e3), 1));
    report.table(table);
    let shapes = add_shapes(report, loaded.as_mut(), &families);
    add_memory(report, loaded.as_mut());
    let count = |family| routes.iter().filter(|&&(net, _)| family_of(net) == family).count();
    if FAMILIES.into_iter().all(|family| count(family) == 0 || figures::is_full(family, count(family))) {
        report.verdict(figures::load_time(seconds));
    }
    for shape in shapes.iter().filter(|shape| figures::is_full(shape.family, shape.prefixes)) {
        report.verdict(figures::trie_size(shape));
    }
    Ok(loaded)
}

/// Adds the link-local, unique-local, loopback and default prefixes to a full IPv6 table, and reports its growth.
fn add_special_prefixes(report: &mut Report, subject: &mut dyn Subject) -> Result<(), Failure> {
    let Some(before) = subject.shape(Family::V6).filter(|shape| figures::is_full(Family::V6, shape.prefixes)) else {
        return Ok(());
    };
    let next_hop = fib::NextHopId::new(1).map_err(|error| Failure::at("next hop", error))?;
    for text in ["fe80::/10", "fc00::/7", "::1/128", "::/0"] {
        let prefix = fib::parse_prefix(text).map_err(|error| Failure::at(text, error))?;
        subject.insert_or_replace(prefix, next_hop)?;
    }
    if let Some(after) = subject.shape(Family::V6) {
        report.verdict(figures::special_prefixes_size(after.trie_bytes as f64 - before.trie_bytes as f64));
    }
    verify_invariants(report, subject);
    Ok(())
}
