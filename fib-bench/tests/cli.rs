//! What a user of the command sees: exit codes, messages, JSON. Every test runs the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A directory of files and a program that looks for its data there.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        Run(Command::new(env!("CARGO_BIN_EXE_fib-bench"))
            .args(arguments)
            .env("FIB_DATA", self.0.path())
            .current_dir(self.0.path())
            .output()
            .unwrap())
    }
}

struct Run(Output);

impl Run {
    fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }
    fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }
    fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout()).unwrap_or_else(|error| panic!("{error}: {}", self.stdout()))
    }
    #[track_caller]
    fn ends(&self, code: i32, words: &str) -> &Self {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        assert_eq!(self.code(), code, "{stdout}\n{stderr}");
        assert!(stdout.contains(words) || stderr.contains(words), "no `{words}` in {stdout}\n{stderr}");
        self
    }
}

/// The rows of one table of a JSON report.
fn rows<'a>(json: &'a Value, table: &str) -> Vec<&'a Value> {
    json["rows"].as_array().unwrap().iter().filter(|row| row["table"] == table).collect()
}

/// A table that is small but has both families, nesting and several next hops.
fn small_table() -> String {
    let mut text = String::from("10.0.0.0/8 1\n2001:db8::/32 2\n");
    for index in 0..200u32 {
        text += &format!(
            "10.{}.{}.0/24 {}\n2001:db8:{index:x}::/48 {}\n",
            index / 7,
            index % 7,
            1 + index % 5,
            1 + index % 3
        );
    }
    text
}

#[test]
fn main_job_is_right_and_says_so_in_json() {
    let place = Place::new();
    let small = ["--percent", "2", "--verify", "20000", "--lookups", "5000", "--updates", "500", "--rounds", "2"];
    let run = place.run(&[&small[..], &["--json"]].concat());
    let json = run.ends(0, "\"command\": \"run\"").json();
    assert_eq!(json["wrong_answers"], 0);
    for key in ["cpu", "cores", "features", "system", "version"] {
        assert!(!json["machine"][key].is_null(), "{key}");
    }
    assert_eq!(json["inputs"][0]["seed"], 1);
    for table in [
        "load time",
        "shape",
        "nodes by depth",
        "memory",
        "verified",
        "lookups",
        "random updates",
        "latency",
        "covering prefixes",
    ] {
        assert!(!rows(&json, table).is_empty(), "{table}");
    }
    assert_eq!(rows(&json, "lookups").len(), 12);
    // A small table has no promised figures, so nothing can fall short.
    assert_eq!(json["verdicts"], Value::Array(vec![]));
    place.run(&[&small[..], &["--strict"]].concat()).ends(0, "lookups");
    place.run(&[&["run"], &small[..]].concat()).ends(0, "covering prefixes");
}

#[test]
fn load_reports_what_is_in_the_files() {
    let place = Place::new();
    let file = place.file("rib", small_table());
    let json = place.run(&["load", &file, "--rounds", "2", "--json"]).ends(0, "").json();
    let shape = rows(&json, "shape");
    assert_eq!((&shape[0]["prefixes"], &shape[1]["prefixes"]), (&201.into(), &201.into()));
    let lengths = rows(&json, "prefixes by length");
    assert!(lengths.iter().any(|row| row["length"] == 24 && row["ipv4"] == 200 && row["ipv6"] == 0));
    assert_eq!(json["inputs"][0]["routes"], 402);
    place.run(&["load", &file, "--origins", "64"]).ends(0, "IPv6");
}

#[test]
fn bad_lines_end_with_2_unless_told_to_keep_going() {
    let place = Place::new();
    let file = place.file("rib", "10.0.0.0/8 1\n10.0.0.1/8 2\n10.0.0.0/40 1\nx 1\n");
    let run = place.run(&["load", &file]);
    run.ends(2, "rib:2: 10.0.0.1/8 has host bits set; the prefix is 10.0.0.0/8");
    run.ends(2, "rib:3: length 40 of prefix 10.0.0.0/40 is above 32");
    run.ends(2, "rib:4: `x` is not a prefix");
    run.ends(2, "rib: 3 bad lines");
    let run = place.run(&["load", &file, "--keep-going", "--json"]);
    run.ends(0, "rib: 3 bad lines");
    assert_eq!(run.json()["inputs"][0]["bad_lines"], 3);
}

#[test]
fn files_that_cannot_be_read_end_with_2() {
    let place = Place::new();
    place.run(&["load", "missing"]).ends(2, "fib-bench: missing: No such file");
    place.run(&["load"]).ends(2, "set FIB_DATA");
    place.run(&["replay"]).ends(2, "set FIB_DATA");
    let empty = place.file("empty", "");
    place.run(&["load", &empty]).ends(2, "empty: the file is empty");
    let mut packed = Vec::new();
    {
        let mut encoder = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::default());
        std::io::Write::write_all(&mut encoder, small_table().as_bytes()).unwrap();
        encoder.finish().unwrap();
    }
    let whole = place.file("whole.gz", &packed);
    place.run(&["load", &whole]).ends(0, "text gzip");
    let cut = place.file("cut.gz", &packed[..packed.len() / 2]);
    place.run(&["load", &cut, "--keep-going"]).ends(2, "cut.gz: the gzip data ends too early after");
    // A TABLE_DUMP_V2 header that promises more than there is.
    let mrt = place.file("cut.mrt", [0, 0, 0, 0, 0, 13, 0, 1, 0, 0, 1, 0, 1, 2, 3]);
    place.run(&["load", &mrt]).ends(2, "cut.mrt: MRT record 1 at byte 0 is cut or broken");
    for command in ["load", "replay", "update"] {
        place.run(&[command, "--frobnicate"]).ends(2, "frobnicate");
    }
    place.run(&["frobnicate"]).ends(2, "frobnicate");
}

#[test]
fn default_files_are_those_of_the_data_directory() {
    let place = Place::new();
    place.file("rib4.txt.gz", "10.0.0.0/8 65001\n");
    let json = place.run(&["load", "--json"]).ends(0, "rib4.txt.gz").json();
    assert_eq!(json["inputs"].as_array().unwrap().len(), 1);
    // The second column of these files is an origin.
    let json = place.run(&["lookup", "10.0.0.1", "--json"]).ends(0, "").json();
    assert_eq!(rows(&json, "lookup")[0]["next_hop"], 1 + (65001u32.wrapping_mul(2_654_435_761) >> 16) % 64);
}

#[test]
fn lookup_shows_match_and_covers() {
    let place = Place::new();
    let file = place.file("rib", "0.0.0.0/0 9\n10.0.0.0/8 1\n10.1.0.0/16 2\n2001:db8::/32 3\n");
    let run = place.run(&["lookup", "--rib", &file, "10.1.2.3", "2001:db8::1", "2001:db9::", "--json"]);
    let json = run.ends(0, "").json();
    let rows = rows(&json, "lookup");
    assert_eq!(rows[0]["next_hop"], 2);
    assert_eq!(rows[0]["prefix"], "10.1.0.0/16");
    assert_eq!(rows[0]["covered_by"], "0.0.0.0/0 -> 9, 10.0.0.0/8 -> 1, 10.1.0.0/16 -> 2");
    assert_eq!(rows[1]["prefix"], "2001:db8::/32");
    assert_eq!((&rows[2]["next_hop"], &rows[2]["prefix"]), (&"miss".into(), &Value::Null));
    place.run(&["lookup", "--rib", &file, "10.1.2"]).ends(2, "10.1.2");
    place.run(&["lookup", "--rib", &file]).ends(2, "ADDRESSES");
}

#[test]
fn scripts_end_with_0_1_or_2() {
    let place = Place::new();
    let right = place.file("right.fib", "add 10.0.0.0/8 1\nget 10.1.1.1 = 1\ncount = 1\n");
    place.run(&["script", &right]).ends(0, "right.fib");
    let wrong = place.file("wrong.fib", "add 10.0.0.0/8 1\nget 10.1.1.1 = 2\n");
    place.run(&["script", &right, &wrong]).ends(1, "wrong.fib:2 expected 2 got 1");
    let json = place.run(&["script", &right, &wrong, "--json"]).ends(1, "").json();
    assert_eq!(json["wrong_answers"], 1);
    assert_eq!(rows(&json, "scripts").len(), 2);
    let unknown = place.file("unknown.fib", "add 10.0.0.0/8 1\nfrob 10.1.1.1\n");
    place.run(&["script", &unknown]).ends(2, "unknown.fib:2: unknown verb `frob`");
    place.run(&["script", "missing.fib"]).ends(2, "missing.fib: No such file");
    place.run(&["script"]).ends(2, "FILES");
}

#[test]
fn replay_verifies_the_end_state() {
    let place = Place::new();
    let rib = place.file("rib", small_table());
    let mut trace = String::new();
    for index in 0..500u32 {
        let (verb, next_hop) = if index % 3 == 0 { ("w", "0.0.0.0") } else { ("a", "192.0.2.1") };
        trace += &format!("{index} {verb} 10.{}.{}.0/24 {next_hop}\n", index / 9, index % 9);
    }
    let updates = place.file("updates", &trace);
    let run = place.run(&[
        "replay",
        "--rib",
        &rib,
        &updates,
        "--origins",
        "0",
        "--verify",
        "5000",
        "--rounds",
        "2",
        "--json",
    ]);
    let json = run.ends(0, "").json();
    assert_eq!(json["wrong_answers"], 0);
    assert_eq!(rows(&json, "replay")[0]["updates"], 500);
    let latency = rows(&json, "latency");
    assert_eq!(latency[0]["count"].as_u64().unwrap() + latency[1]["count"].as_u64().unwrap(), 500);
    let bad = place.file("bad", "1 a 10.0.0.0/8\n1 w 10.0.0.0/8\n");
    place.run(&["replay", "--rib", &rib, &bad]).ends(2, "bad:1: an announcement needs a next-hop address");
    place.run(&["replay", "--rib", &rib, &bad, "--keep-going", "--verify", "100"]).ends(0, "bad: 1 bad line");
}

#[test]
fn update_measures_both_families() {
    let place = Place::new();
    let rib = place.file("rib", small_table());
    let json = place.run(&["update", "--rib", &rib, "--prefixes", "100", "--rounds", "2", "--json"]).ends(0, "").json();
    assert_eq!(json["wrong_answers"], 0);
    assert_eq!(rows(&json, "random updates").len(), 8);
    let covering: Vec<&str> =
        rows(&json, "covering prefixes").iter().map(|row| row["prefix"].as_str().unwrap()).collect();
    for prefix in ["0.0.0.0/0", "0.0.0.0/1", "10.0.0.0/8", "::/0", "2000::/3"] {
        // Two next hops, inserted and removed.
        assert_eq!(covering.iter().filter(|&&shown| shown == prefix).count(), 4, "{prefix}");
    }
}

/// Needs the real tables; says so and passes when they are missing.
#[test]
fn strict_fails_on_a_figure_that_falls_short() {
    let data = std::env::var_os("FIB_DATA").map_or_else(|| PathBuf::from("../../shared/data"), PathBuf::from);
    let rib = data.join("rib4.txt.gz");
    if !Path::new(&rib).is_file() {
        eprintln!("skipped: {} is not there (set FIB_DATA)", rib.display());
        return;
    }
    // An absolute path, since the program runs elsewhere.
    let rib = fs::canonicalize(rib).unwrap().display().to_string();
    let place = Place::new();
    let run = place.run(&["load", &rib, "--origins", "64", "--rounds", "1", "--json", "--strict"]);
    let json = run.json();
    let verdicts = json["verdicts"].as_array().unwrap();
    let names: Vec<&str> = verdicts.iter().map(|verdict| verdict["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["full load, one thread", "IPv4 trie size"]);
    for verdict in verdicts {
        for key in ["value", "bound", "kind", "unit", "ok"] {
            assert!(!verdict[key].is_null(), "{key}");
        }
    }
    // Whether the figures hold depends on the machine and the build; the exit code has to follow them.
    let all_ok = verdicts.iter().all(|verdict| verdict["ok"] == true);
    assert_eq!(run.code(), i32::from(!all_ok));
}
