//! `script`: runs files of operations with expected answers, and shows each wrong one as `file:line`.
//!
//! One file, one fresh table. A line is `verb arguments` or `verb arguments = expected`:
//!
//! ```text
//! add PREFIX NH                 insert, or replace when present
//! addnew PREFIX NH = ok|EEXIST  insert only when absent
//! del PREFIX = ok|ENOENT        remove
//! get ADDRESS = NH|miss         longest match
//! exact PREFIX = NH|miss        exact match
//! cover ADDRESS = P1 P2 ...     stored prefixes that cover the address, shortest first
//! under PREFIX = P1 P2 ...      stored prefixes inside it, itself included, by address, then by length
//! shortest ADDRESS = PREFIX|miss
//! count = N                     routes of both families
//! ```
//!
//! Blank lines and what follows a `#` are skipped. Without `=`, the line is run and its answer not looked at.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use fib::NextHopId;
use ipnet::IpNet;

use super::FAMILIES;
use crate::bad_lines::BadLines;
use crate::failure::Failure;
use crate::report::{OutputOptions, Report, Table};
use crate::route_file::read_text;
use crate::subject::{MISS, RouteEntry, Subject};
use crate::subject_fib::ours;
use crate::text_routes::{columns, lines, parse_number, parse_prefix, show};

/// Options of `script`.
#[derive(Debug, Args)]
pub struct ScriptOptions {
    /// Script files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &ScriptOptions) -> Result<u8, Failure> {
    let mut report = Report::new("script");
    let mut table = Table::new("scripts", &["file", "lines", "answers", "wrong"]);
    for path in &options.files {
        let file = path.display().to_string();
        let script = Script::parse(&file, &read_text(path)?)?;
        let wrong_before = report.wrong_count();
        let answers = script.run(&mut report, ours()?.as_mut())?;
        let wrong = report.wrong_count() - wrong_before;
        table.row(vec![file.into(), script.lines.len().into(), answers.into(), wrong.into()]);
    }
    report.table(table);
    report.print(options.output)
}

/// What a line does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add(IpNet, NextHopId),
    AddNew(IpNet, NextHopId),
    Del(IpNet),
    Get(IpAddr),
    Exact(IpNet),
    Cover(IpAddr),
    Under(IpNet),
    Shortest(IpAddr),
    Count,
}

#[derive(Debug)]
struct Line {
    number: u64,
    verb: Verb,
    expected: Option<String>,
}

/// A file that was understood.
#[derive(Debug)]
pub struct Script {
    file: String,
    lines: Vec<Line>,
}

impl Script {
    /// Reads a script; lines that are not understood are an error that shows them.
    pub fn parse(file: &str, text: &[u8]) -> Result<Script, Failure> {
        let mut script = Script { file: file.to_owned(), lines: Vec::new() };
        let mut bad = BadLines::new(file);
        for (number, line) in lines(text) {
            match parse_line(line) {
                Ok(Some((verb, expected))) => script.lines.push(Line { number, verb, expected }),
                Ok(None) => {}
                Err(reason) => bad.add(number, || reason),
            }
        }
        if bad.count > 0 { Err(Failure::new(bad.to_string())) } else { Ok(script) }
    }

    /// Runs it on an empty table; each wrong answer and each broken invariant goes to the report. How many answers
    /// were looked at.
    pub fn run(&self, report: &mut Report, subject: &mut dyn Subject) -> Result<usize, Failure> {
        let mut answers = 0;
        for line in &self.lines {
            let place = || format!("{}:{}", self.file, line.number);
            let got = answer(subject, line.verb).unwrap_or_else(|failure| format!("error: {failure}"));
            let is_error = got.starts_with("error: ");
            if let Some(expected) = &line.expected {
                answers += 1;
                if got != *expected {
                    report.wrong(format!("{} expected {expected} got {got}", place()));
                }
            } else if is_error {
                report.wrong(format!("{} expected no error got {got}", place()));
            }
            if let Err(failure) = subject.check() {
                report.wrong(format!("{} check: {failure}", place()));
            }
        }
        Ok(answers)
    }
}

fn parse_line(line: &[u8]) -> Result<Option<(Verb, Option<String>)>, String> {
    let mut words: Vec<&[u8]> = columns(line).collect();
    if words.is_empty() {
        return Ok(None);
    }
    let expected = words.iter().position(|word| *word == b"=").map(|at| {
        let expected: Vec<String> = words.split_off(at).into_iter().skip(1).map(show_whole).collect();
        expected.join(" ")
    });
    let number = |word: &[u8]| {
        let id = parse_number(word).and_then(|id| NextHopId::new(id).ok()).filter(|&id| id < MISS);
        id.ok_or_else(|| format!("`{}` is not a next-hop id", show(word)))
    };
    let address = |word: &[u8]| {
        let addr = str::from_utf8(word).ok().and_then(|text| text.parse::<IpAddr>().ok());
        addr.ok_or_else(|| format!("`{}` is not an address", show(word)))
    };
    let verb = match words[..] {
        [b"add", prefix, next_hop] => Verb::Add(parse_prefix(prefix)?, number(next_hop)?),
        [b"addnew", prefix, next_hop] => Verb::AddNew(parse_prefix(prefix)?, number(next_hop)?),
        [b"del", prefix] => Verb::Del(parse_prefix(prefix)?),
        [b"get", addr] => Verb::Get(address(addr)?),
        [b"exact", prefix] => Verb::Exact(parse_prefix(prefix)?),
        [b"cover", addr] => Verb::Cover(address(addr)?),
        [b"under", prefix] => Verb::Under(parse_prefix(prefix)?),
        [b"shortest", addr] => Verb::Shortest(address(addr)?),
        [b"count"] => Verb::Count,
        [verb, ..] => {
            const VERBS: [&str; 9] = ["add", "addnew", "del", "get", "exact", "cover", "under", "shortest", "count"];
            let is_known = VERBS.iter().any(|known| known.as_bytes() == verb);
            let what = if is_known { "wrong number of arguments for" } else { "unknown verb" };
            return Err(format!("{what} `{}`", show(verb)));
        }
        [] => return Err(String::from("no verb before `=`")),
    };
    Ok(Some((verb, expected)))
}

fn show_whole(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn answer(subject: &mut dyn Subject, verb: Verb) -> Result<String, Failure> {
    let id = |next_hop: Option<NextHopId>| next_hop.map_or_else(|| String::from("miss"), |id| id.to_string());
    let list = |entries: Vec<RouteEntry>| {
        let prefixes: Vec<String> = entries.iter().map(|(prefix, _)| prefix.to_string()).collect();
        prefixes.join(" ")
    };
    Ok(match verb {
        Verb::Add(prefix, next_hop) => {
            subject.insert_or_replace(prefix, next_hop)?;
            String::from("ok")
        }
        Verb::AddNew(prefix, next_hop) => {
            String::from(if subject.insert_if_absent(prefix, next_hop)? { "ok" } else { "EEXIST" })
        }
        Verb::Del(prefix) => String::from(if subject.remove(prefix)?.is_some() { "ok" } else { "ENOENT" }),
        Verb::Get(addr) => id(subject.lookup(addr)?),
        Verb::Exact(prefix) => id(subject.get(prefix)),
        Verb::Cover(addr) => list(subject.covering(addr)),
        Verb::Under(prefix) => list(subject.within(prefix)),
        Verb::Shortest(addr) => {
            subject.shortest_match(addr).map_or_else(|| String::from("miss"), |(prefix, _)| prefix.to_string())
        }
        Verb::Count => FAMILIES.into_iter().map(|family| subject.prefix_count(family)).sum::<usize>().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir::data_dir;
    use crate::subject_oracle::Oracle;

    /// Every verb, with right answers worked out by hand.
    const ALL_VERBS: &str = "\
        add 10.0.0.0/8 1\n\
        add 10.0.0.0/8 2\n\
        addnew 10.0.0.0/8 3 = EEXIST\n\
        addnew 10.1.0.0/16 3 = ok\n\
        add 2001:db8::/32 4\n\
        get 10.1.2.3 = 3\n\
        get 10.2.2.3 = 2\n\
        get 11.0.0.0 = miss\n\
        get 2001:db8::1 = 4\n\
        exact 10.0.0.0/8 = 2\n\
        exact 10.0.0.0/9 = miss\n\
        cover 10.1.2.3 = 10.0.0.0/8 10.1.0.0/16\n\
        cover 11.0.0.0 =\n\
        under 10.0.0.0/7 = 10.0.0.0/8 10.1.0.0/16\n\
        shortest 10.1.2.3 = 10.0.0.0/8\n\
        shortest 11.0.0.0 = miss\n\
        count = 3\n\
        del 10.0.0.0/8 = ok\n\
        del 10.0.0.0/8 = ENOENT\n\
        get 10.2.2.3 = miss   # and a comment\n\
        count = 2\n";

    fn run_on(subject: &mut dyn Subject, text: &str) -> (Report, usize) {
        let mut report = Report::new("test");
        let answers = Script::parse("x", text.as_bytes()).unwrap().run(&mut report, subject).unwrap();
        (report, answers)
    }

    #[test]
    fn every_verb_of_both_subjects() {
        for subject in [&mut Oracle::new() as &mut dyn Subject, ours().unwrap().as_mut()] {
            let (report, answers) = run_on(subject, ALL_VERBS);
            assert_eq!((report.wrong_count(), answers), (0, 18), "{}", report.text());
        }
    }

    #[test]
    fn wrong_answers_name_file_and_line() {
        let (report, _) =
            run_on(&mut Oracle::new(), "add 10.0.0.0/8 1\n\nget 10.0.0.1 = 2\ncount = 1\nget 11.0.0.0 = 1\n");
        assert_eq!(report.wrong_count(), 2);
        assert!(report.text().contains("x:3 expected 2 got 1") && report.text().contains("x:5 expected 1 got miss"));
    }

    #[test]
    fn lines_that_are_not_understood_are_errors() {
        for (line, words) in [
            ("frobnicate 10.0.0.0/8", "x:2: unknown verb `frobnicate`"),
            ("add 10.0.0.0/8", "x:2: wrong number of arguments for `add`"),
            ("count 3", "x:2: wrong number of arguments for `count`"),
            ("add 10.0.0.1/8 1", "x:2: 10.0.0.1/8 has host bits set"),
            ("add 10.0.0.0/8 y", "x:2: `y` is not a next-hop id"),
            ("get 10.0.0.0/8 = 1", "x:2: `10.0.0.0/8` is not an address"),
            ("= 1", "x:2: no verb before `=`"),
        ] {
            let error = Script::parse("x", format!("count = 0\n{line}\n").as_bytes()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    /// Needs the data directory's neighbour `cases`; says so and passes when it is missing.
    #[test]
    fn all_case_scripts() {
        let Ok(entries) = std::fs::read_dir(data_dir().join("../cases")) else {
            eprintln!("skipped: no directory {} (set FIB_DATA)", data_dir().join("../cases").display());
            return;
        };
        let mut scripts = 0;
        for path in
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|e| e == "fib"))
        {
            let script = Script::parse(&path.display().to_string(), &read_text(&path).unwrap()).unwrap();
            for subject in [&mut Oracle::new() as &mut dyn Subject, ours().unwrap().as_mut()] {
                let mut report = Report::new("test");
                script.run(&mut report, subject).unwrap();
                assert_eq!(report.wrong_count(), 0, "{}: {}", subject.name(), report.text());
            }
            scripts += 1;
        }
        assert!(scripts > 0, "no script in the cases directory");
    }
}
