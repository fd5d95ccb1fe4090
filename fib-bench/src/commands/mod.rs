//! What each command does: one command a file, each fills a report.

use std::path::PathBuf;

use clap::Args;
use fib::Family;
use ipnet::IpNet;

use crate::data_dir;
use crate::failure::Failure;
use crate::measure::Spread;
use crate::report::{Field, Report, Table};
use crate::route_file::RouteSet;
use crate::subject::{RouteEntry, Shape, Subject, family_of};
use crate::text_routes::SecondColumn;

pub mod load;
pub mod lookup;
pub mod replay;
pub mod run;
pub mod script;
pub mod update;

/// Both families, in the order of reports.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Next hops of a table whose second column is an origin AS, unless said otherwise.
const NEXT_HOPS: u32 = 64;

/// How route files are read.
#[derive(Debug, Clone, Copy, Args)]
pub struct ReadOptions {
    /// Read the second column as an origin AS and spread the routes over N next hops by it; 0: the column is the next
    /// hop's number. Default: 0 for `load` and `lookup` of named files, else 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub origins: Option<u32>,
    /// Leave out lines that cannot be used instead of stopping
    #[arg(long)]
    pub keep_going: bool,
}

impl ReadOptions {
    /// Reads the named files, or those of `default` that the data directory has when none is named.
    fn read(&self, files: &[PathBuf], default: &[&str], origins: u32) -> Result<RouteSet, Failure> {
        let found: Vec<PathBuf> = default.iter().filter_map(|name| data_dir::find(name)).collect();
        let (files, origins) = match (files, &found[..], default) {
            ([], [], [name, ..]) => {
                return Err(data_dir::require(name).err().unwrap_or_else(|| Failure::new("no file")));
            }
            ([], found, _) => (found, NEXT_HOPS),
            (named, ..) => (named, origins),
        };
        let second = match self.origins.unwrap_or(origins) {
            0 => SecondColumn::NextHop,
            next_hops => SecondColumn::Origin(next_hops),
        };
        let set = RouteSet::read(files, second, self.keep_going)?;
        for bad in &set.bad {
            eprintln!("{bad}");
        }
        Ok(set)
    }

    /// The setting as reports show it.
    fn name(&self, report: &mut Report, set: &RouteSet) {
        for file in &set.files {
            report.input(file);
        }
        if let Some(next_hops) = self.origins {
            report.setting("origins", next_hops);
        }
        if set.duplicates > 0 {
            report.setting("duplicates_replaced", set.duplicates);
        }
    }
}

/// Families that have routes.
fn families(routes: &[RouteEntry]) -> Vec<Family> {
    FAMILIES.into_iter().filter(|&family| routes.iter().any(|&(net, _)| family_of(net) == family)).collect()
}

/// The prefixes of routes.
fn prefixes(routes: &[RouteEntry]) -> Vec<IpNet> {
    routes.iter().map(|&(prefix, _)| prefix).collect()
}

/// Adds the tables of size and form, and returns the shapes.
fn add_shapes(report: &mut Report, subject: &mut dyn Subject, families: &[Family]) -> Vec<Shape> {
    let shapes: Vec<Shape> = families.iter().filter_map(|&family| subject.shape(family)).collect();
    let mut sizes = Table::new(
        "shape",
        &[
            "family",
            "prefixes",
            "routes",
            "trie_bytes",
            "rib_bytes",
            "trie_bytes_per_prefix",
            "root_bits",
            "slot_bits",
            "dense_nodes",
            "sparse_nodes",
            "stored_slots",
        ],
    );
    let mut depths = Table::new("nodes by depth", &["family", "depth_bits", "nodes"]);
    for shape in &shapes {
        sizes.row(vec![
            shape.family.to_string().into(),
            shape.prefixes.into(),
            shape.routes.into(),
            Field::Bytes(shape.trie_bytes as u64),
            Field::Bytes(shape.rib_bytes as u64),
            Field::Real(shape.trie_bytes as f64 / shape.prefixes.max(1) as f64, 2),
            shape.root_bits.into(),
            shape.slot_bits.into(),
            shape.dense_nodes.into(),
            shape.sparse_nodes.into(),
            shape.stored_slots.into(),
        ]);
        for &(depth, nodes) in &shape.nodes_by_depth {
            depths.row(vec![shape.family.to_string().into(), depth.into(), nodes.into()]);
        }
    }
    report.table(sizes);
    report.table(depths);
    shapes
}

/// Adds the number of prefixes of each length that has some.
fn add_lengths(report: &mut Report, routes: &[RouteEntry]) {
    let mut table = Table::new("prefixes by length", &["length", "ipv4", "ipv6"]);
    let mut counts = [[0usize; 2]; 129];
    for (prefix, _) in routes {
        counts[usize::from(prefix.prefix_len())][usize::from(family_of(*prefix) == Family::V6)] += 1;
    }
    for (length, [v4, v6]) in counts.into_iter().enumerate().filter(|&(_, counts)| counts != [0, 0]) {
        table.row(vec![length.into(), v4.into(), v6.into()]);
    }
    report.table(table);
}

/// Adds the memory of the whole subject.
fn add_memory(report: &mut Report, subject: &mut dyn Subject) {
    let mut table = Table::new("memory", &["what", "bytes"]);
    for (what, bytes) in subject.memory() {
        table.row(vec![what.into(), Field::Bytes(bytes as u64)]);
    }
    report.table(table);
}

/// A row of a rate or time: what, then median, min, max.
fn spread_row(what: Vec<Field>, spread: Spread, decimals: usize) -> Vec<Field> {
    what.into_iter().chain(spread.fields(decimals)).collect()
}
