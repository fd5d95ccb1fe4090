//! `sync-mem` and `readers` as commands, with tiny sizes: what they print is whole and consistent. No figure that depends
//! on time is asserted.

use std::process::Command;

use serde_json::Value as Json;

fn run(arguments: &[&str]) -> Json {
    let output = Command::new(env!("CARGO_BIN_EXE_fib-bench")).args(arguments).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {} {text} {errors}", output.status);
    serde_json::from_str(&text).unwrap()
}

fn rows<'a>(report: &'a Json, table: &str) -> Vec<&'a Json> {
    let rows: Vec<&Json> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["table"].as_str().unwrap().starts_with(table))
        .collect();
    assert!(!rows.is_empty(), "{table}: {report:#}");
    rows
}

fn count(row: &Json, column: &str) -> u64 {
    row[column].as_u64().unwrap_or_else(|| panic!("{column} of {row}"))
}

fn real(row: &Json, column: &str) -> f64 {
    row[column].as_f64().unwrap_or_else(|| panic!("{column} of {row}"))
}

fn check_sync_mem(report: &Json, budgets: &[u64], routes: u64) {
    assert_eq!(report["command"], "sync-mem");
    assert_eq!(report["wrong_answers"], 0, "{report:#}");
    assert_eq!(report["settings"]["routes"], routes);
    let (installs, memory) = (rows(report, "installing"), rows(report, "dirty memory"));
    let readers = rows(report, "readers while installing");
    let of = |rows: &[&Json]| -> Vec<u64> { rows.iter().map(|row| count(row, "budget_bytes")).collect() };
    for rows in [&installs, &memory, &readers] {
        assert_eq!(of(rows), budgets);
    }
    for (install, memory) in installs.iter().zip(&memory) {
        assert!(real(install, "routes_per_s") > 0.0 && real(install, "real_s") > 0.0);
        assert_eq!(count(install, "waits") > 0, real(install, "waits_per_s") > 0.0);
        assert!((0.0..=100.0).contains(&real(install, "dead_percent")));
        let budget = count(memory, "budget_bytes");
        // Small as they are, these tables retire more than the smallest budget.
        assert!(count(memory, "retired_bytes") > 65_536, "{memory}");
        assert!(count(memory, "peak_dirty_bytes") <= budget + count(memory, "largest_operation_bytes"), "{memory}");
        let dirty = count(memory, "retired_bytes") - count(memory, "reclaimed_bytes");
        assert!(dirty <= count(memory, "peak_dirty_bytes"), "{memory}");
        if count(memory, "reclaimed_bytes") > 0 {
            assert!(count(memory, "grace_periods") > 0, "{memory}");
        }
    }
    for row in readers.into_iter().chain(rows(report, "readers of a full table")) {
        let quantiles = ["burst_p50_ns", "burst_p99_ns", "burst_p99.9_ns", "burst_p99.99_ns", "burst_max_ns"];
        let times: Vec<f64> = quantiles.iter().map(|quantile| real(row, quantile)).collect();
        assert!(times.is_sorted() && times[0] > 0.0, "{row}");
    }
    let cases = rows(report, "44 MB/s");
    let rules: Vec<&str> = cases.iter().map(|row| row["rule"].as_str().unwrap()).collect();
    assert!(rules[0].starts_with("polled") && rules[1].contains("measured") && rules.len() == 4, "{rules:?}");
    // Published: 14.2 s, 51 waits of 8 ms a second.
    let published = rows(report, "kernel patch");
    assert_eq!((published[0]["real_s"].as_f64(), published[0]["waits_per_s"].as_u64()), (Some(14.2), Some(51)));
    let bounds: Vec<&Json> = report["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|verdict| verdict["name"].as_str().unwrap().starts_with("peak dirty"))
        .collect();
    assert_eq!(bounds.len(), budgets.len());
    assert!(bounds.iter().all(|verdict| verdict["ok"] == true), "{bounds:?}");
}

#[test]
fn sync_mem_of_a_made_table() {
    let report = run(&[
        "sync-mem",
        "--routes",
        "5000",
        "--readers",
        "2",
        "--budgets",
        "524288,65536,65536",
        "--rounds",
        "2",
        "--stretch-ms",
        "20",
        "--json",
    ]);
    check_sync_mem(&report, &[65_536, 524_288], 5000);
    assert_eq!(report["inputs"][0]["family"], "IPv4");
    // Too small for verdicts on times, and says so.
    assert!(report["settings"]["no_verdicts_on_times"].is_string());
    assert!(report["verdicts"].as_array().unwrap().iter().all(|verdict| verdict["unit"] == "B"));
}

#[test]
fn sync_mem_of_a_file_of_one_family() {
    let text: String = (0..4000u32).map(|index| format!("2001:db8:{index:x}::/48 {}\n", index % 9)).collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rib6.txt");
    std::fs::write(&file, text).unwrap();
    let report = run(&[
        "sync-mem",
        "--rib",
        file.to_str().unwrap(),
        "--origins",
        "0",
        "--routes",
        "3000",
        "--budgets",
        "65536",
        "--rounds",
        "1",
        "--stretch-ms",
        "10",
        "--json",
    ]);
    check_sync_mem(&report, &[65_536], 3000);
    assert_eq!(report["inputs"][0]["routes"], 4000);
}

#[test]
fn budgets_out_of_range_are_refused() {
    for budget in ["65535", "67108865", "0", ""] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_fib-bench")).args(["sync-mem", "--budgets", budget]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{budget}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn readers_of_all_schemes() {
    let report = run(&["readers", "--bursts", "2000", "--passes", "3", "--json"]);
    assert_eq!((&report["command"], &report["wrong_answers"]), (&"readers".into(), &0.into()));
    let rows = rows(&report, "readers");
    let names: Vec<&str> = rows.iter().map(|row| row["scheme"].as_str().unwrap()).collect();
    assert_eq!(names[0], "bare load");
    for name in ["fib, burst guard", "fib, quiescent state", "crossbeam-epoch, default pin", "seize, enter"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for row in &rows {
        assert!(real(row, "ns_per_burst") > 0.0 && real(row, "min_ns") <= real(row, "max_ns"), "{row}");
        if let Some(other) = row["compared_with"].as_str() {
            assert!(other.contains("bare load") && names.contains(&other), "{row}");
            assert!(real(row, "min_above_ns") <= real(row, "above_bare_ns"), "{row}");
        }
    }
    // What could not be built is named.
    let absent: Vec<&Json> =
        report["rows"].as_array().unwrap().iter().filter(|row| row["table"] == "not measured").collect();
    let has = |name: &str| names.iter().any(|scheme| scheme.contains(name));
    let lacks = |name: &str| absent.iter().any(|row| row["peer"].as_str().unwrap().contains(name));
    for name in ["liburcu memb", "DPDK rcu_qsbr"] {
        assert!(has(name) != lacks(name), "{name}: {report:#}");
    }
    let verdicts = report["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts.iter().all(|verdict| verdict["bound"] == 3.0 && verdict["kind"] == "ceiling"));
}
