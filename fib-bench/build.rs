//! With the feature `peers`: compiles the DPDK shim when pkg-config finds libdpdk, and says so to the code by the
//! cfg `dpdk`. Without libdpdk everything else is built as usual, and `compare` says what is missing.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(dpdk)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim/dpdk.c");
    #[cfg(feature = "peers")]
    dpdk();
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
