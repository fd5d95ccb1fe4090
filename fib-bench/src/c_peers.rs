//! The C peers of `readers`: programs built from `shim/*.c` where their libraries are installed, one per library.
//!
//! A program runs as a child, on the core of the thread that starts it. It waits for a line with the number of a loop and
//! of bursts, runs the loop, and answers with the sum of what it loaded and the time that it took.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;

/// A library that C peers come from.
#[derive(Debug)]
struct Source {
    /// The program, when it was built.
    program: Option<&'static str>,
    /// Why it was not.
    reason: Option<&'static str>,
    /// The names of its loops in reports, in the order of the program. The first is the bare load.
    loops: &'static [&'static str],
}

const SOURCES: [Source; 2] = [
    Source {
        program: option_env!("FIB_BENCH_SHIM_URCU"),
        reason: option_env!("FIB_BENCH_SHIM_URCU_MISSING"),
        loops: &["bare load, C beside liburcu", "liburcu memb", "liburcu qsbr", "liburcu bp"],
    },
    Source {
        program: option_env!("FIB_BENCH_SHIM_RCU_QSBR"),
        reason: option_env!("FIB_BENCH_SHIM_RCU_QSBR_MISSING"),
        loops: &["bare load, C beside DPDK", "DPDK rcu_qsbr"],
    },
];

/// A running program.
#[derive(Debug)]
pub struct CPeers {
    child: Child,
    // `None` only while it is being dropped.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The names of its loops; the first is the bare load by the same compiler, with which the others are compared.
    pub loops: &'static [&'static str],
}

/// Peers that are not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What they are called.
    pub names: String,
    /// Why they are missing.
    pub reason: String,
}

/// Starts what was built.
pub fn start() -> (Vec<CPeers>, Vec<Missing>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for source in &SOURCES {
        match source.start() {
            Ok(peers) => found.push(peers),
            Err(failure) => missing.push(Missing { names: source.loops[1..].join(", "), reason: failure.to_string() }),
        }
    }
    (found, missing)
}

impl Source {
    fn start(&self) -> Result<CPeers, Failure> {
        let program = self.program.ok_or_else(|| Failure::new(self.reason.unwrap_or("not built")))?;
        let failed = |error| Failure::at(program, error);
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::at(program, "no pipes"));
        };
        let mut peers =
            CPeers { child, questions: Some(questions), answers: BufReader::new(answers), loops: self.loops };
        // A library that is gone since the build shows here.
        peers.run(0, 1)?;
        Ok(peers)
    }
}

impl CPeers {
    /// Runs a loop of so many bursts: the time, and the sum of what it loaded.
    pub fn run(&mut self, index: usize, bursts: u64) -> Result<(Duration, u64), Failure> {
        let name = self.loops.get(index).copied().unwrap_or("C peer");
        let mut answer = String::new();
        let mut ask = || {
            if let Some(questions) = &mut self.questions {
                writeln!(questions, "{index} {bursts}")?;
                questions.flush()?;
            }
            self.answers.read_line(&mut answer)
        };
        ask().map_err(|error| Failure::at(name, error))?;
        let numbers = answer
            .split_once(' ')
            .and_then(|(sum, nanos)| Some((Duration::from_nanos(nanos.trim().parse().ok()?), sum.parse().ok()?)));
        numbers.ok_or_else(|| Failure::new(format!("{name}: the program does not run, it answered {answer:?}")))
    }
}

impl Drop for CPeers {
    fn drop(&mut self) {
        // At the end of its input the program ends.
        self.questions = None;
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_loads_once_a_burst() {
        let (found, missing) = start();
        assert_eq!(found.len() + missing.len(), SOURCES.len());
        for mut peers in found {
            for index in 0..peers.loops.len() {
                assert_eq!(peers.run(index, 1000).unwrap().1, 3000, "{}", peers.loops[index]);
                assert_eq!(peers.run(index, 1).unwrap().1, 3, "{}", peers.loops[index]);
            }
            // No such loop: the program ends, and the answer is an error.
            let past = peers.loops.len();
            assert!(peers.run(past, 1).is_err());
        }
    }

    #[test]
    fn peers_that_are_not_there_are_named() {
        let start =
            |program, reason| Source { program, reason, loops: &["bare", "it"] }.start().unwrap_err().to_string();
        assert!(start(Some("/nonexistent/program"), None).contains("/nonexistent/program: "));
        assert_eq!(start(None, Some("no compiler")), "no compiler");
        // It ends at once: whether the question or the answer breaks off first, the loop is named.
        let ended = start(Some("false"), None);
        assert!(ended.starts_with("bare: "), "{ended}");
    }
}
