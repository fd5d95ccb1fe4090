//! Builds the C loops of `fib-bench readers` (shim/*.c) where pkg-config knows the library.
//!
//! Each becomes a shared library of its own that the command opens when it runs: a missing library, compiler or header
//! takes away a row of that command's table, never the build.

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
    build("dpdk", &["libdpdk"]);
}

/// Builds `shim/<name>.c`, and tells the crate where it is or why it is not: `FIB_BENCH_SHIM_<NAME>`, `.._MISSING`.
fn build(name: &str, packages: &[&str]) {
    let variable = format!("FIB_BENCH_SHIM_{}", name.to_uppercase());
    match compile(name, packages) {
        Ok(library) => println!("cargo::rustc-env={variable}={}", library.display()),
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
    let library = Path::new(&out).join(format!("libfib_bench_{name}.so"));
    // Initial-exec: the peers' thread-local words are reached as fast as from a program that is linked with them.
    run(Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-shared", "-fPIC", "-ftls-model=initial-exec", "-o"])
        .arg(&library)
        .args(&flags)
        .arg(format!("shim/{name}.c"))
        .args(&libraries))?;
    Ok(library)
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
