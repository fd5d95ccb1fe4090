//! The page of results: `RESULTS.md`, and a picture for each family of lookups a second by traffic and subject.
//!
//! The page is written whole by `fib-bench compare --results DIR`. Between the lines `figures: begin` and `figures: end`
//! stands the table of promised figures, from which the README's is taken.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

use crate::compare::{FamilyResults, LoadOrder, Who, is_ours};
use crate::compare_verdicts::{reference, verdicts};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::report::{Kind, Verdict, grouped, human_bytes};

/// The batch size of the pictures and of the first table.
const BATCH: usize = 64;

/// The kinds of traffic in the order of the page.
const TRAFFIC: [&str; 4] = ["uniform", "prefix", "zipf", crate::compare::DEEP];

/// Writes the page and its pictures into `directory`.
pub fn write_results(directory: &Path, settings: &str, all: &[FamilyResults]) -> Result<(), Failure> {
    for results in all {
        let file = directory.join(picture_name(results));
        draw(results, &file).map_err(|error| Failure::at(file.display(), error))?;
    }
    let file = directory.join("RESULTS.md");
    fs::write(&file, page(settings, all)).map_err(|error| Failure::at(file.display(), error))
}

fn picture_name(results: &FamilyResults) -> String {
    format!("lookups-{}.svg", results.family.to_string().to_lowercase())
}

/// The text of the page.
fn page(settings: &str, all: &[FamilyResults]) -> String {
    let machine = Machine::detect();
    let mut page = format!(
        "# Results of `fib-bench compare`\n\n\
         Made by `cargo run --release -p fib-bench --features peers -- compare --results fib-bench`; do not edit.\n\n\
         Machine: {}, {} cores, {}; {}. One core does everything but loading. {settings}\n\n\
         Medians of interleaved passes; ratios are taken pass by pass. `ours` is the library as it comes, \
         `ours-portable` and `ours-scalar` are its other batch variants, `ours-speed` has the largest root. Every \
         answer of ours was compared with an independent oracle first. `poptrie` and `planb` are re-creations from the \
         papers.\n\n",
        machine.cpu, machine.cores, machine.system, machine.build
    );
    let verdicts: Vec<Verdict> = all.iter().flat_map(verdicts).collect();
    if !verdicts.is_empty() {
        page.push_str(
            "## Promised figures\n\n<!-- figures: begin -->\n| figure | measured | promised | |\n|---|---:|---:|---|\n",
        );
        for verdict in verdicts {
            let side = if verdict.kind == Kind::Floor { "at least" } else { "at most" };
            let mark = if verdict.ok() { "kept" } else { "**missed**" };
            let _ = writeln!(page, "| {} | {:.3} | {side} {} | {mark} |", verdict.name, verdict.value, verdict.bound);
        }
        page.push_str("<!-- figures: end -->\n\n");
    }
    for results in all {
        family(&mut page, results);
    }
    page
}

fn family(page: &mut String, results: &FamilyResults) {
    let _ = writeln!(page, "## {}, {} routes\n", results.family, grouped(results.routes as u64));
    let _ = writeln!(page, "![Lookups a second]({})\n", picture_name(results));
    let traffic: Vec<&str> =
        TRAFFIC.into_iter().filter(|&name| results.rates.keys().any(|key| key.0 == name)).collect();
    let subjects: BTreeSet<Who> = results.rates.keys().map(|&(_, who, _)| who).collect();
    let sizes: BTreeSet<usize> = results.rates.keys().map(|&(_, _, size)| size).collect();
    for size in sizes {
        let _ = writeln!(page, "M lookups/s, batches of {size} (how many times faster `ours` is):\n");
        lines(
            page,
            "subject",
            &traffic,
            subjects.iter().map(|&who| {
                let cells = traffic.iter().map(|&name| {
                    let passes = results.rates.get(&(name, who, size))?;
                    let ours = results.rates.get(&(name, reference(results), size)).filter(|_| !is_ours(who.table));
                    let ratio =
                        ours.map_or_else(String::new, |ours| format!(" ({:.2})", ours.times_faster_than(passes)));
                    Some(format!("{:.1}{ratio}", passes.millions_per_s().median))
                });
                (who.to_string(), cells.collect())
            }),
        );
    }
    page.push_str("One dependent lookup, nanoseconds:\n\n");
    lines(
        page,
        "subject",
        &traffic,
        subjects.iter().map(|&who| {
            let cells = traffic
                .iter()
                .map(|&name| Some(format!("{:.1}", results.chains.get(&(name, who))?.nanoseconds().median)));
            (who.to_string(), cells.collect())
        }),
    );
    page.push_str("Control plane and memory:\n\n");
    let columns =
        ["load, file order, ms", "load, shuffled, ms", "delete + re-add, M ops/s", "lookup memory", "with updates'"];
    lines(
        page,
        "table",
        &columns,
        results.memory.iter().map(|(&table, used)| {
            let load = |order: LoadOrder| {
                let seconds = results.loads.get(&(table, order))?.seconds.clone();
                Some(format!("{:.0}", Spread::of(seconds).median * 1e3))
            };
            let bytes = |bytes: Option<usize>| bytes.map(|bytes| human_bytes(bytes as u64));
            let updates = results.updates.get(table).map(|passes| format!("{:.2}", passes.millions_per_s().median));
            let cells = vec![
                load(LoadOrder::File),
                load(LoadOrder::Shuffled),
                updates,
                bytes(used.lookup_bytes),
                bytes(used.total_bytes),
            ];
            (table.to_owned(), cells)
        }),
    );
    if !results.wrong.is_empty() || !results.refused.is_empty() {
        page.push_str("Faults of peers:\n\n");
        for (&(who, when), count) in &results.wrong {
            let _ = writeln!(page, "- {who}, {when}: {} wrong answers", grouped(*count as u64));
        }
        for (&(table, when), count) in &results.refused {
            let _ = writeln!(page, "- {table}, {when}: {} routes or updates refused", grouped(*count as u64));
        }
        page.push('\n');
    }
    for (name, why) in &results.absent {
        let _ = writeln!(page, "Not compared: {name} ({why}).\n");
    }
}

/// A Markdown table; an empty cell where there is nothing.
fn lines(page: &mut String, first: &str, columns: &[&str], rows: impl Iterator<Item = (String, Vec<Option<String>>)>) {
    let _ = writeln!(page, "| {first} | {} |", columns.join(" | "));
    let _ = writeln!(page, "|---{}|", "|---:".repeat(columns.len()));
    for (name, cells) in rows {
        let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
        let _ = writeln!(page, "| {name} | {} |", cells.join(" | "));
    }
    page.push('\n');
}

const WIDTH: i32 = 860;
const BAR_LEFT: i32 = 170;
const BAR_RIGHT: i32 = WIDTH - 60;
const LINE: i32 = 17;
const TITLE: i32 = 34;

/// One panel of bars per kind of traffic, the fastest first; ours in another colour.
fn draw(results: &FamilyResults, file: &Path) -> Result<(), Box<dyn Error>> {
    let panels: Vec<(&str, Vec<(Who, f64)>)> = TRAFFIC
        .into_iter()
        .map(|name| {
            let of = |(&(traffic, who, size), passes): (&(&str, Who, usize), &crate::compare::Passes)| {
                (traffic == name && size == BATCH).then(|| (who, passes.millions_per_s().median))
            };
            let mut bars: Vec<(Who, f64)> = results.rates.iter().filter_map(of).collect();
            bars.sort_by(|a, b| b.1.total_cmp(&a.1));
            (name, bars)
        })
        .filter(|(_, bars)| !bars.is_empty())
        .collect();
    let height: i32 = panels.iter().map(|(_, bars)| TITLE + LINE * bars.len() as i32).sum::<i32>() + 10;
    let area = SVGBackend::new(file, (WIDTH as u32, height.max(50) as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let (ours, theirs, ink) = (RGBColor(0x1f, 0x6f, 0xb4), RGBColor(0xb8, 0xc4, 0xce), RGBColor(0x22, 0x22, 0x22));
    let title = ("sans-serif", 15).into_font().color(&ink);
    let small = ("sans-serif", 12).into_font().color(&ink);
    let fastest = panels.iter().flat_map(|(_, bars)| bars).map(|bar| bar.1).fold(1.0, f64::max);
    let mut top = 8;
    for (name, bars) in &panels {
        let text = format!("{} {name}: M lookups/s on one core, batches of {BATCH}", results.family);
        area.draw(&Text::new(text, (10, top), title.clone()))?;
        top += TITLE - 10;
        for &(who, rate) in bars {
            let right = BAR_LEFT + (rate / fastest * f64::from(BAR_RIGHT - BAR_LEFT)) as i32;
            let colour = if is_ours(who.table) { ours } else { theirs };
            area.draw(&Text::new(who.to_string(), (16, top), small.clone()))?;
            area.draw(&Rectangle::new([(BAR_LEFT, top), (right.max(BAR_LEFT + 1), top + LINE - 4)], colour.filled()))?;
            area.draw(&Text::new(format!("{rate:.0}"), (right + 6, top), small.clone()))?;
            top += LINE;
        }
        top += 10;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fib::Family;

    use super::*;
    use crate::compare::Passes;

    #[test]
    fn page_and_picture_name_every_subject() {
        let ours = Who { table: "ours", variant: "" };
        let peer = Who { table: "rte_fib4", variant: "scalar" };
        let passes = |seconds: f64| Passes { seconds: vec![seconds; 3], operations: 1_000_000 };
        let results = FamilyResults {
            family: Family::V4,
            routes: 1234,
            absent: vec![("rte_fib1", String::from("too many next hops"))],
            rates: BTreeMap::from([(("prefix", ours, 64), passes(0.002)), (("prefix", peer, 64), passes(0.005))]),
            chains: BTreeMap::from([(("prefix", ours), passes(0.02))]),
            loads: BTreeMap::new(),
            updates: BTreeMap::new(),
            memory: BTreeMap::new(),
            wrong: BTreeMap::from([((peer, "prefix"), 14)]),
            refused: BTreeMap::new(),
            ours_wrong: Vec::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        write_results(directory.path(), "Seed 1.", &[results]).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let page = read("RESULTS.md");
        for text in [
            "| ours | 500.0 |",
            "| rte_fib4 scalar | 200.0 (2.50) |",
            "14 wrong answers",
            "too many next hops",
            "1,234",
        ] {
            assert!(page.contains(text), "{text} is missing in:\n{page}");
        }
        let picture = read("lookups-ipv4.svg");
        assert!(picture.starts_with("<svg") && picture.contains("rte_fib4 scalar") && picture.contains("500"));
    }
}
