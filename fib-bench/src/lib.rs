//! Loads, verifies and measures the fib library on real and generated routing tables.
//!
//! The command (`fib-bench --help`) is the main user; criterion benches and tests use the same parts.
//!
//! ```text
//! route_file, update_file, generator ── routes ──> subject  (subject_fib: ours, subject_oracle: hash maps by length)
//! traffic ───────────────────────── addresses ──> measure, verify
//! commands/* put them together and fill a report, which prints tables or JSON and gives the exit code
//! ```
//!
//! | file | question |
//! |---|---|
//! | `cli` | which commands and options are there? |
//! | `commands/` | what does one command do? |
//! | `report` | how does every command show figures, verdicts and wrong answers, and which exit code follows? |
//! | `figures` | which figures are promised, and for which tables? |
//! | `machine`, `progress` | on what was it measured; how far is it? |
//! | `route_file`, `text_routes`, `mrt_routes`, `update_file`, `bad_lines` | which routes or updates does a file hold, and what is wrong with it? |
//! | `data_dir` | where is the data when no file is named? |
//! | `generator`, `calibration` | what does an Internet-like table look like? |
//! | `traffic` | which addresses are looked up? |
//! | `subject`, `subject_fib`, `subject_oracle` | what is measured and verified? |
//! | `measure`, `cpu_time`, `workload` | how long does it take? |
//! | `sync_mem` | what does the dirty-memory budget cost the writer, and the writer the readers? |
//! | `reader_load`, `writer_load` | what do readers do beside a writer, and a writer beside readers? |
//! | `readers`, `c_peers` | what does a reader pay per burst, beside other libraries? |
//! | `cores` | on which core does a thread run, and how much processor time did it get? |
//! | `verify` | is every answer right? |
//! | `peers/` | what would users take instead, and how is it asked? |
//! | `compare`, `compare_verdicts`, `deep` | how do the library and its peers do side by side, and is it as promised? |
//! | `plot` | the page and the pictures of that |
//! | `roofline` | what can the machine do at most? |

pub mod bad_lines;
pub mod c_peers;
pub mod calibration;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod compare_verdicts;
pub mod cores;
pub mod cpu_time;
pub mod data_dir;
pub mod deep;
pub mod failure;
pub mod figures;
pub mod generator;
pub mod machine;
pub mod measure;
pub mod mrt_routes;
pub mod peers;
pub mod plot;
pub mod progress;
pub mod reader_load;
pub mod readers;
pub mod report;
pub mod roofline;
pub mod route_file;
pub mod subject;
pub mod subject_fib;
pub mod subject_oracle;
pub mod sync_mem;
pub mod text_routes;
pub mod traffic;
pub mod update_file;
pub mod verify;
pub mod workload;
pub mod writer_load;
