//! Builds the C sides of the peers where pkg-config knows the library.
//!
//! With the feature `peers` the DPDK tables of `compare` are linked in (cfg `dpdk`); without libdpdk everything else is
//! built as usual, and the command says what is missing. The C peers of `readers` become programs of their own that the
//! command starts when it runs: a missing library, compiler or header takes away a row of its table, never the build.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim");
    for name in ["CC", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    build("urcu", &["liburcu-memb", "liburcu-qsbr", "liburcu-bp"]);
    build("rcu_qsbr", &["libdpdk"]);
    println!("cargo:rustc-check-cfg=cfg(dpdk)");
    #[cfg(feature = "peers")]
    dpdk();
}

/// Builds `shim/<name>.c`, and tells the crate where it is or why it is not: `FIB_BENCH_SHIM_<NAME>`, `.._MISSING`.
fn build(name: &str, packages: &[&str]) {
    let variable = format!("FIB_BENCH_SHIM_{}", name.to_uppercase());
    match compile(name, packages) {
        Ok(program) => println!("cargo::rustc-env={variable}={}", program.display()),
        Err(reason) => println!("cargo::rustc-env={variable}_MISSING={reason}"),
    }
}

fn compile(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    if env::var_os("TARGET") != env::var_os("HOST") || env::var("CARGO_CFG_UNIX").is_err() {
        return Err(String::from("not built for other systems"));
    }
    let flags = pkg_config("--cflags", packages)?;
    let libraries = pkg_config("--libs", packages)?;
    let out = env::var_os("OUT_DIR").ok_or("no OUT_DIR")?;
    let program = Path::new(&out).join(format!("fib_bench_{name}"));
    run(Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-o"])
        .arg(&program)
        .args(&flags)
        .arg(format!("shim/{name}.c"))
        .args(&libraries))?;
    Ok(program)
}

fn pkg_config(what: &str, packages: &[&str]) -> Result<Vec<String>, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let text = run(Command::new(program).arg(what).args(packages))?;
    Ok(text.split_whitespace().map(String::from).collect())
}

/// The command's output, or one line that says why there is none.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = errors.lines().find(|line| line.contains("not found") || line.contains("error"));
    Err(format!("{program}: {}", line.or(errors.lines().next()).unwrap_or("failed")))
}

#[cfg(feature = "peers")]
fn dpdk() {
    let found = pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    let Ok(library) = found else {
        println!("cargo:warning=libdpdk was not found (Debian: apt-get install libdpdk-dev pkg-config); no DPDK peers");
        return;
    };
    let mut build = cc::Build::new();
    // The headers need the forced include and the processor level that DPDK's .pc file names; the crate drops both.
    build.file("shim/dpdk.c").flag("-include").flag("rte_config.h").flag("-march=corei7").opt_level(3);
    build.includes(&library.include_paths).define("ALLOW_EXPERIMENTAL_API", None).warnings(false);
    if let Err(error) = build.try_compile("fib_bench_dpdk") {
        println!("cargo:warning=the DPDK shim does not compile ({error}); no DPDK peers");
        return;
    }
    // Only the libraries that the shim calls; the .pc file names every one there is.
    for path in &library.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for name in ["rte_fib", "rte_lpm", "rte_rib", "rte_eal", "rte_kvargs", "rte_telemetry", "rte_mempool", "rte_ring"] {
        println!("cargo:rustc-link-lib=dylib={name}");
    }
    println!("cargo:rustc-cfg=dpdk");
}
