//! `lookup`: where single addresses lead to, and which prefixes cover them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::ReadOptions;
use crate::failure::Failure;
use crate::report::{Field, OutputOptions, Report, Table};
use crate::subject::Subject;
use crate::subject_fib::ours;

/// Options of `lookup`.
#[derive(Debug, Args)]
pub struct LookupOptions {
    /// Route file (may be repeated). Default: rib4.txt.gz and rib6.txt.gz of FIB_DATA
    #[arg(long, value_name = "FILE")]
    rib: Vec<PathBuf>,
    /// Addresses to look up
    #[arg(required = true)]
    addresses: Vec<IpAddr>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &LookupOptions) -> Result<u8, Failure> {
    let mut report = Report::new("lookup");
    let set = options.read.read(&options.rib, &["rib4.txt.gz", "rib6.txt.gz"], 0)?;
    options.read.name(&mut report, &set);
    let mut subject = ours()?;
    subject.load(&set.routes)?;
    report.table(answers(subject.as_mut(), &options.addresses)?);
    report.print(options.output)
}

fn answers(subject: &mut dyn Subject, addresses: &[IpAddr]) -> Result<Table, Failure> {
    let mut table = Table::new("lookup", &["address", "next_hop", "prefix", "covered_by"]);
    for &addr in addresses {
        let covers = subject.covering(addr);
        let covers: Vec<String> = covers.iter().map(|(prefix, next_hop)| format!("{prefix} -> {next_hop}")).collect();
        let matched = subject.lookup_match(addr);
        table.row(vec![
            addr.to_string().into(),
            subject.lookup(addr)?.map_or("miss".into(), |next_hop| next_hop.get().into()),
            matched.map_or(Field::None, |(prefix, _)| prefix.to_string().into()),
            if covers.is_empty() { Field::None } else { covers.join(", ").into() },
        ]);
    }
    Ok(table)
}
