//! `readers`: what a burst costs above a bare load of the root, for our two styles and for those of other libraries.
//!
//! The body of every burst is the same: one Acquire load of a root pointer and one load that depends on it. No writer
//! runs. One thread, pinned, measures all schemes in turns; the cost of one is its time minus the bare load's of the
//! same turn, per burst. The C peers run in programs of their own, on the same core, and are compared with the bare load there.

use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use crossbeam_epoch as crossbeam;
use fib::{Fib, Reader};

use crate::c_peers::{self, CPeers};
use crate::cores::{Pin, allowed};
use crate::failure::Failure;
use crate::measure::{Spread, in_turns, timed};
use crate::report::{Field, Kind, OutputOptions, Report, Table, Verdict};

/// What our styles may cost above the bare load.
const BOUND_NS: f64 = 3.0;

/// The value behind the root: every burst adds it to a sum, which tells whether all bursts were done.
const VALUE: u64 = 3;

/// Options of `readers`.
#[derive(Debug, Args)]
pub struct ReadersOptions {
    /// Bursts per pass: a pass of 0.1 ms is seldom interrupted, and the median forgets those that are
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    bursts: u64,
    /// Measured passes of every scheme
    #[arg(long, default_value_t = 301, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    passes: u64,
    #[command(flatten)]
    output: OutputOptions,
}

/// Runs the command.
pub fn run(options: &ReadersOptions) -> Result<u8, Failure> {
    let mut report = Report::new("readers");
    measure(&mut report, options.bursts, options.passes as usize)?;
    report.print(options.output)
}

/// A way to protect a burst.
#[derive(Clone, Copy)]
enum Scheme {
    Bare,
    Guard,
    Quiescent,
    CrossbeamLocal,
    CrossbeamDefault,
    Seize,
    /// A loop of a library's program.
    C {
        library: usize,
        index: usize,
        name: &'static str,
    },
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Bare => "bare load",
            Scheme::Guard => "fib, burst guard",
            Scheme::Quiescent => "fib, quiescent state",
            Scheme::CrossbeamLocal => "crossbeam-epoch, pin of a LocalHandle",
            Scheme::CrossbeamDefault => "crossbeam-epoch, default pin",
            Scheme::Seize => "seize, enter",
            Scheme::C { name, .. } => name,
        }
    }
}

/// What the loops use.
struct Bench {
    root: AtomicPtr<AtomicU64>,
    reader: Reader,
    crossbeam: crossbeam::LocalHandle,
    seize: seize::Collector,
    c_peers: Vec<CPeers>,
    bursts: u64,
}

impl Bench {
    #[inline(always)]
    fn body(root: &AtomicPtr<AtomicU64>) -> u64 {
        // SAFETY: the root points to a value that lives as long as the program and is never replaced.
        unsafe { &*root.load(Ordering::Acquire) }.load(Ordering::Relaxed)
    }

    /// The time of one pass, and the sum of its loads. Never inlined, so that each loop is compiled by itself.
    #[inline(never)]
    fn pass(&mut self, scheme: Scheme) -> Result<(Duration, u64), Failure> {
        let (root, bursts) = (&self.root, self.bursts);
        let measured = match scheme {
            Scheme::Bare => timed(|| (0..bursts).fold(0, |sum, _| sum + Bench::body(root))),
            Scheme::Guard => {
                let reader = &mut self.reader;
                timed(|| {
                    let mut sum = 0;
                    for _ in 0..bursts {
                        let burst = reader.burst();
                        sum += Bench::body(root);
                        drop(burst);
                    }
                    sum
                })
            }
            Scheme::Quiescent => {
                let mut online = self.reader.online();
                timed(|| {
                    let mut sum = 0;
                    for _ in 0..bursts {
                        sum += Bench::body(root);
                        online.quiescent();
                    }
                    sum
                })
            }
            Scheme::CrossbeamLocal => timed(|| {
                let mut sum = 0;
                for _ in 0..bursts {
                    let guard = self.crossbeam.pin();
                    sum += Bench::body(root);
                    drop(guard);
                }
                sum
            }),
            Scheme::CrossbeamDefault => timed(|| {
                let mut sum = 0;
                for _ in 0..bursts {
                    let guard = crossbeam::pin();
                    sum += Bench::body(root);
                    drop(guard);
                }
                sum
            }),
            Scheme::Seize => timed(|| {
                let mut sum = 0;
                for _ in 0..bursts {
                    let guard = self.seize.enter();
                    sum += Bench::body(root);
                    drop(guard);
                }
                sum
            }),
            Scheme::C { library, index, .. } => self.c_peers[library].run(index, bursts)?,
        };
        Ok(measured)
    }
}

/// Measures every scheme there is.
fn measure(report: &mut Report, bursts: u64, passes: usize) -> Result<(), Failure> {
    let fib = Fib::new().map_err(|error| Failure::at("fib", error))?;
    let core = allowed().last().copied();
    let pin = core.and_then(Pin::to);
    let (c_peers, missing) = c_peers::start();
    let mut bench = Bench {
        root: AtomicPtr::new(Box::into_raw(Box::new(AtomicU64::new(VALUE)))),
        reader: fib.reader("readers").map_err(|error| Failure::at("fib", error))?,
        crossbeam: crossbeam::Collector::new().register(),
        seize: seize::Collector::new(),
        c_peers,
        bursts,
    };
    report.setting("bursts", bursts);
    report.setting("passes", passes);
    report.setting("burst", "one Acquire load of a root pointer, one load that depends on it");
    match (&pin, core) {
        (Some(_), Some(core)) => report.setting("core", core),
        _ => report.setting("core", "not pinned"),
    }

    // Each scheme with the index of the bare loop that it is compared with.
    let mut schemes: Vec<(Scheme, usize)> = vec![
        (Scheme::Bare, 0),
        (Scheme::Guard, 0),
        (Scheme::Quiescent, 0),
        (Scheme::CrossbeamLocal, 0),
        (Scheme::CrossbeamDefault, 0),
        (Scheme::Seize, 0),
    ];
    for (library, peers) in bench.c_peers.iter().enumerate() {
        let bare = schemes.len();
        let loops = peers.loops.iter().enumerate();
        schemes.extend(loops.map(|(index, &name)| (Scheme::C { library, index, name }, bare)));
    }
    let mut wrong = Vec::new();
    let seconds = in_turns("measuring readers", schemes.len(), passes, |index| {
        let scheme = schemes[index].0;
        let (time, sum) = bench.pass(scheme)?;
        if black_box(sum) != VALUE * bursts {
            wrong.push(format!("{}: {bursts} bursts loaded {sum}, not {}", scheme.name(), VALUE * bursts));
        }
        Ok::<_, Failure>(time)
    })?;
    drop(pin);
    wrong.into_iter().for_each(|text| report.wrong(text));

    let columns = [
        "scheme",
        "ns_per_burst",
        "min_ns",
        "max_ns",
        "above_bare_ns",
        "min_above_ns",
        "max_above_ns",
        "compared_with",
    ];
    let mut table = Table::new("readers", &columns);
    let above = |index: usize| {
        let pairs = seconds[index].iter().zip(&seconds[schemes[index].1]);
        Spread::of(pairs.map(|(time, bare)| (time - bare) * 1e9 / bursts as f64).collect())
    };
    for (index, &(scheme, bare)) in schemes.iter().enumerate() {
        let mut row = vec![scheme.name().into()];
        row.extend(Spread::of(seconds[index].clone()).map(|time| time * 1e9 / bursts as f64).fields(2));
        if bare == index {
            row.extend([const { Field::None }; 4]);
        } else {
            row.extend(above(index).fields(2));
            row.push(schemes[bare].0.name().into());
        }
        table.row(row);
        if matches!(scheme, Scheme::Guard | Scheme::Quiescent) {
            let name = format!("{}, above the bare load", scheme.name());
            let value = above(index).median;
            report.verdict(Verdict { name, value, bound: BOUND_NS, kind: Kind::Ceiling, unit: "ns a burst" });
        }
    }
    report.table(table);
    let mut absent = Table::new("not measured", &["peer", "reason"]);
    for missing in missing {
        absent.row(vec![missing.names.into(), missing.reason.into()]);
    }
    report.table(absent);
    Ok(())
}
