//! How every command shows what it found, and which exit code follows: the one convention for all of them.
//!
//! A report names the machine, the inputs and the settings (seeds among them), holds tables of rows, *verdicts* (a
//! figure, its bound, and whether it is kept) and *wrong answers*. People get aligned tables, `--json` prints one
//! object and nothing else on stdout:
//!
//! ```text
//! { "command", "machine": {..}, "inputs": [..], "settings": {..},
//!   "rows": [{"table": .., column: value, ..}, ..],
//!   "wrong_answers": n, "wrong": [first ones as text],
//!   "verdicts": [{"name", "value", "bound", "kind": "floor" | "ceiling", "unit", "ok"}, ..] }
//! ```
//!
//! Exit codes: 0; 1 for a wrong answer, or with `--strict` for a verdict that is not kept; 2 for what could not be
//! done at all (a bad option, file or line). A [`Failure`] prints no report but a sentence on stderr.
//!
//! Figures are medians with their smallest and largest value beside them. Bytes are bytes in JSON and KiB or MiB for
//! people; a column's name ends in its unit.

use std::io::{self, Write};

use clap::Args;
use comfy_table::{CellAlignment, Table as TextTable};
use serde_json::{Map, Value as Json, json};

use crate::failure::Failure;
use crate::machine::Machine;

/// How many wrong answers a report shows; all are counted.
pub const WRONG_SHOWN: usize = 20;

/// The options that every command has.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OutputOptions {
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Exit with code 1 when a verdict falls short
    #[arg(long)]
    pub strict: bool,
}

/// What stands in one field of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    /// Words.
    Text(String),
    /// A number of things.
    Count(u64),
    /// A size.
    Bytes(u64),
    /// A measured value and how many decimals people see.
    Real(f64, usize),
    /// Does not apply.
    None,
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Field::Text(text.to_owned())
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Field::Text(text)
    }
}

impl From<usize> for Field {
    fn from(count: usize) -> Self {
        Field::Count(count as u64)
    }
}

impl From<u64> for Field {
    fn from(count: u64) -> Self {
        Field::Count(count)
    }
}

impl From<u32> for Field {
    fn from(count: u32) -> Self {
        Field::Count(count.into())
    }
}

impl Field {
    fn json(&self) -> Json {
        match self {
            Field::Text(text) => json!(text),
            Field::Count(number) | Field::Bytes(number) => json!(number),
            Field::Real(value, _) => json!(value),
            Field::None => Json::Null,
        }
    }

    fn text(&self) -> String {
        match self {
            Field::Text(text) => text.clone(),
            Field::Count(count) => grouped(*count),
            Field::Bytes(bytes) => human_bytes(*bytes),
            Field::Real(value, decimals) => format!("{value:.decimals$}"),
            Field::None => String::from("-"),
        }
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with a binary unit.
pub fn human_bytes(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    match bytes as f64 {
        small if small < KIB => format!("{bytes} B"),
        middle if middle < KIB * KIB => format!("{:.1} KiB", middle / KIB),
        large => format!("{:.2} MiB", large / KIB / KIB),
    }
}

/// Rows with the same columns.
#[derive(Debug, Clone)]
pub struct Table {
    name: &'static str,
    columns: Vec<&'static str>,
    rows: Vec<Vec<Field>>,
}

impl Table {
    /// An empty table. Column names are the JSON keys; people see them with spaces.
    pub fn new(name: &'static str, columns: &[&'static str]) -> Self {
        Table { name, columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a field per column.
    pub fn row(&mut self, fields: Vec<Field>) {
        debug_assert_eq!(fields.len(), self.columns.len());
        self.rows.push(fields);
    }

    fn text(&self) -> String {
        let mut text = TextTable::new();
        text.load_style(comfy_table::presets::NOTHING);
        text.set_header(self.columns.iter().map(|column| column.replace('_', " ")));
        for row in &self.rows {
            text.add_row(row.iter().map(Field::text));
        }
        for (index, column) in text.column_iter_mut().enumerate() {
            let is_text = self.rows.iter().any(|row| matches!(row.get(index), Some(Field::Text(_))));
            column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((1, 1));
        }
        text.trim_fmt()
    }
}

/// Which side of its bound a figure has to be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// At least the bound.
    Floor,
    /// At most the bound.
    Ceiling,
}

/// A promised figure and what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What was measured.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// What was promised.
    pub bound: f64,
    /// On which side of the bound it has to be.
    pub kind: Kind,
    /// Unit of both.
    pub unit: &'static str,
}

impl Verdict {
    /// Whether the promise is kept. A value that is not a number never keeps one.
    pub fn ok(&self) -> bool {
        match self.kind {
            Kind::Floor => self.value >= self.bound,
            Kind::Ceiling => self.value <= self.bound,
        }
    }
}

/// Everything that a command found.
#[derive(Debug)]
pub struct Report {
    command: &'static str,
    machine: Machine,
    inputs: Vec<Json>,
    settings: Map<String, Json>,
    tables: Vec<Table>,
    verdicts: Vec<Verdict>,
    wrong: Vec<String>,
    wrong_count: u64,
}

impl Report {
    /// An empty report of this command on this machine.
    pub fn new(command: &'static str) -> Self {
        Report {
            command,
            machine: Machine::detect(),
            inputs: Vec::new(),
            settings: Map::new(),
            tables: Vec::new(),
            verdicts: Vec::new(),
            wrong: Vec::new(),
            wrong_count: 0,
        }
    }

    /// Names an input: a file's note, the generator's settings.
    pub fn input(&mut self, note: impl serde::Serialize) {
        self.inputs.push(serde_json::to_value(note).unwrap_or(Json::Null));
    }

    /// Names a setting, such as a seed.
    pub fn setting(&mut self, name: &str, value: impl Into<Json>) {
        self.settings.insert(name.to_owned(), value.into());
    }

    /// Adds a table, when it has rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.tables.push(table);
        }
    }

    /// Adds a verdict.
    pub fn verdict(&mut self, verdict: Verdict) {
        self.verdicts.push(verdict);
    }

    /// Counts a wrong answer; the first ones are shown.
    pub fn wrong(&mut self, text: impl Into<String>) {
        self.wrong_count += 1;
        if self.wrong.len() < WRONG_SHOWN {
            self.wrong.push(text.into());
        }
    }

    /// How many answers were wrong.
    pub fn wrong_count(&self) -> u64 {
        self.wrong_count
    }

    /// 0 or 1, see the head of this file.
    pub fn exit_code(&self, strict: bool) -> u8 {
        let falls_short = strict && self.verdicts.iter().any(|verdict| !verdict.ok());
        u8::from(self.wrong_count > 0 || falls_short)
    }

    /// Prints the report to stdout; the exit code. A closed pipe is no error, a full disk is.
    pub fn print(&self, options: OutputOptions) -> Result<u8, Failure> {
        let text = if options.json { format!("{:#}\n", self.json()) } else { self.text() };
        match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::at("writing the report", error)),
            _ => Ok(self.exit_code(options.strict)),
        }
    }

    /// The JSON object.
    pub fn json(&self) -> Json {
        let rows: Vec<Json> = self
            .tables
            .iter()
            .flat_map(|table| {
                table.rows.iter().map(|row| {
                    let mut object = Map::new();
                    object.insert(String::from("table"), json!(table.name));
                    object
                        .extend(table.columns.iter().zip(row).map(|(name, field)| ((*name).to_owned(), field.json())));
                    Json::Object(object)
                })
            })
            .collect();
        let verdicts: Vec<Json> = self
            .verdicts
            .iter()
            .map(|verdict| {
                json!({
                    "name": verdict.name,
                    "value": verdict.value,
                    "bound": verdict.bound,
                    "kind": match verdict.kind { Kind::Floor => "floor", Kind::Ceiling => "ceiling" },
                    "unit": verdict.unit,
                    "ok": verdict.ok(),
                })
            })
            .collect();
        json!({
            "command": self.command,
            "machine": self.machine,
            "inputs": self.inputs,
            "settings": self.settings,
            "rows": rows,
            "wrong_answers": self.wrong_count,
            "wrong": self.wrong,
            "verdicts": verdicts,
        })
    }

    /// The tables for people.
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "fib-bench {} {} ({}), {}, {} cores{}, {}\n{}\n",
            machine.version,
            self.command,
            machine.build,
            machine.cpu,
            machine.cores,
            machine.load_average.map_or(String::new(), |load| format!(" (load {load:.1})")),
            machine.system,
            machine.features.join(" ")
        );
        for input in &self.inputs {
            text += &format!("input: {}\n", flat(input));
        }
        if !self.settings.is_empty() {
            text += &format!("settings: {}\n", flat(&Json::Object(self.settings.clone())));
        }
        for table in &self.tables {
            text += &format!("\n{}\n{}\n", table.name, table.text());
        }
        if !self.verdicts.is_empty() {
            let mut table = Table::new("verdicts", &["figure", "value", "bound", "unit", "ok"]);
            for verdict in &self.verdicts {
                let side = if verdict.kind == Kind::Floor { ">=" } else { "<=" };
                let short = |value: f64| if value < 1000.0 { format!("{value:.3}") } else { format!("{value:.0}") };
                table.row(vec![
                    verdict.name.as_str().into(),
                    short(verdict.value).into(),
                    format!("{side} {}", verdict.bound).into(),
                    verdict.unit.into(),
                    (if verdict.ok() { "ok" } else { "SHORT" }).into(),
                ]);
            }
            text += &format!("\nverdicts\n{}\n", table.text());
        }
        if self.wrong_count > 0 {
            text += &format!("\nWRONG ANSWERS: {}\n", grouped(self.wrong_count));
            for wrong in &self.wrong {
                text += &format!("{wrong}\n");
            }
        }
        text
    }
}

/// An object as `key value, key value`.
fn flat(value: &Json) -> String {
    match value {
        Json::Object(fields) => {
            let pairs: Vec<String> = fields.iter().map(|(key, value)| format!("{key} {}", flat(value))).collect();
            pairs.join(", ")
        }
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("test");
        let mut table = Table::new("sizes", &["family", "trie_bytes", "rate_mops"]);
        table.row(vec!["IPv4".into(), Field::Bytes(2 << 20), Field::Real(1.25, 1)]);
        table.row(vec!["IPv6".into(), Field::Bytes(100), Field::None]);
        report.table(table);
        report.setting("seed", 1);
        report
    }

    fn verdict(value: f64, kind: Kind) -> Verdict {
        Verdict { name: String::from("rate"), value, bound: 1.5, kind, unit: "M/s" }
    }

    #[test]
    fn verdicts_know_their_side() {
        assert!(verdict(1.5, Kind::Floor).ok() && verdict(1.5, Kind::Ceiling).ok());
        assert!(!verdict(1.4, Kind::Floor).ok() && verdict(1.4, Kind::Ceiling).ok());
        assert!(!verdict(f64::NAN, Kind::Floor).ok() && !verdict(f64::NAN, Kind::Ceiling).ok());
    }

    #[test]
    fn exit_codes() {
        let mut report = report();
        assert_eq!((report.exit_code(false), report.exit_code(true)), (0, 0));
        report.verdict(verdict(2.0, Kind::Floor));
        assert_eq!(report.exit_code(true), 0);
        report.verdict(verdict(1.0, Kind::Floor));
        assert_eq!((report.exit_code(false), report.exit_code(true)), (0, 1));
        report.wrong("10.0.0.1 expected 1 got 2");
        assert_eq!((report.exit_code(false), report.wrong_count()), (1, 1));
    }

    #[test]
    fn json_has_what_the_convention_promises() {
        let mut report = report();
        report.verdict(verdict(2.0, Kind::Floor));
        for index in 0..WRONG_SHOWN + 5 {
            report.wrong(format!("wrong {index}"));
        }
        let json = report.json();
        for key in ["command", "machine", "inputs", "settings", "rows", "wrong_answers", "wrong", "verdicts"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(
            json["rows"][0],
            json!({"table": "sizes", "family": "IPv4", "trie_bytes": 2 << 20, "rate_mops": 1.25})
        );
        assert_eq!(json["rows"][1]["rate_mops"], Json::Null);
        assert_eq!(
            json["verdicts"][0],
            json!({"name": "rate", "value": 2.0, "bound": 1.5, "kind": "floor", "unit": "M/s", "ok": true})
        );
        assert_eq!(json["wrong_answers"], WRONG_SHOWN + 5);
        assert_eq!(json["wrong"].as_array().unwrap().len(), WRONG_SHOWN);
    }

    #[test]
    fn people_see_units() {
        let text = report().text();
        assert!(text.contains("2.00 MiB") && text.contains("100 B") && text.contains("trie bytes"), "{text}");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(human_bytes(1024), "1.0 KiB");
    }
}
