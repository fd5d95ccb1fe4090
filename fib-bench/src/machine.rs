//! On what was it measured: processor, cores, features, system.

use std::fs;
use std::thread;

use serde::Serialize;

/// The machine and the program, as every report names them.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's own name for itself.
    pub cpu: String,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Processor features that the lookup variants choose by.
    pub features: Vec<&'static str>,
    /// Processes that wanted to run during the last minute, when the system tells; above `cores`, figures suffer.
    pub load_average: Option<f64>,
    /// Operating system, architecture, kernel version.
    pub system: String,
    /// Version of this program, and whether it was optimised.
    pub version: &'static str,
    /// `release` or `debug`; figures of a debug build mean nothing.
    pub build: &'static str,
}

impl Machine {
    /// Looks around. What cannot be found out reads `unknown`.
    pub fn detect() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: cpu_model().unwrap_or_else(|| String::from("unknown")),
            cores: thread::available_parallelism().map_or(1, usize::from),
            features: features(),
            load_average: load_average(),
            system: format!("{} {} {}", std::env::consts::OS, std::env::consts::ARCH, kernel.trim())
                .trim_end()
                .to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    // x86 says "model name"; arm64 has no name, only the implementer's and the part's number.
    let field = |name: &str| {
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    field("model name")
        .or_else(|| Some(format!("implementer {} part {}", field("CPU implementer")?, field("CPU part")?)))
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => { $(if std::arch::is_x86_feature_detected!($name) { found.push($name); })* };
    }
    look!("popcnt", "bmi2", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512vpopcntdq");
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
