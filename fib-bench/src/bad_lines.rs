//! What is wrong with a file, line by line: all bad lines are counted, the first ten are kept.

use std::fmt;

use serde::Serialize;

/// How many bad lines a report shows.
pub const SHOWN: usize = 10;

/// A line that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// Counted from 1. For MRT files, the record.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// The bad lines of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadLines {
    /// The file.
    pub file: String,
    /// How many there are.
    pub count: u64,
    /// The first [`SHOWN`] of them.
    pub first: Vec<BadLine>,
}

impl BadLines {
    /// None yet.
    pub fn new(file: &str) -> Self {
        BadLines { file: file.to_owned(), count: 0, first: Vec::new() }
    }

    /// One more; `reason` is only asked when the line will be shown.
    pub fn add(&mut self, line: u64, reason: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(BadLine { line, reason: reason() });
        }
    }
}

impl fmt::Display for BadLines {
    /// One `file:line: reason` a line, then how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for bad in &self.first {
            writeln!(f, "{}:{}: {}", self.file, bad.line, bad.reason)?;
        }
        let more = if self.count > self.first.len() as u64 { ", the first ten are shown" } else { "" };
        let lines = if self.count == 1 { "line" } else { "lines" };
        write!(f, "{}: {} bad {lines}{more}", self.file, self.count)
    }
}
