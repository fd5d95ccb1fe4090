//! The C peers of `readers`: the loops of `shim/*.c`, opened when they are there.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// A loop of `bursts` bursts over the root; the sum of what it loaded.
type Loop = unsafe extern "C" fn(root: *const AtomicPtr<AtomicU64>, bursts: u64) -> u64;

/// One peer's loop.
#[derive(Debug, Clone, Copy)]
pub struct CPeer {
    /// The name in reports.
    pub name: &'static str,
    run: Loop,
}

impl CPeer {
    /// Runs the loop on the calling thread.
    pub fn run(&self, root: &AtomicPtr<AtomicU64>, bursts: u64) -> u64 {
        // SAFETY: the function is one of shim/*.c, which all have this type; the root and what it points to live, and
        // are only read.
        unsafe { (self.run)(root, bursts) }
    }
}

/// The loops of one library of ours: the bare one first, against which the others are compared.
#[derive(Debug)]
pub struct CLibrary {
    /// The bare loop, by the same compiler.
    pub bare: CPeer,
    /// The peers.
    pub peers: Vec<CPeer>,
}

/// A library that is not there, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What its peers are called.
    pub names: &'static str,
    /// Why it is missing.
    pub reason: String,
}

/// Opens what was built.
pub fn open() -> (Vec<CLibrary>, Vec<Missing>) {
    let urcu = library(
        "liburcu memb, qsbr, bp",
        option_env!("FIB_BENCH_SHIM_URCU"),
        option_env!("FIB_BENCH_SHIM_URCU_MISSING"),
        ("liburcu's bare load", c"fib_bench_urcu_bare"),
        &[
            ("liburcu memb", c"fib_bench_urcu_memb"),
            ("liburcu qsbr", c"fib_bench_urcu_qsbr"),
            ("liburcu bp", c"fib_bench_urcu_bp"),
        ],
    );
    let dpdk = library(
        "DPDK rcu_qsbr",
        option_env!("FIB_BENCH_SHIM_DPDK"),
        option_env!("FIB_BENCH_SHIM_DPDK_MISSING"),
        ("DPDK's bare load", c"fib_bench_dpdk_bare"),
        &[("DPDK rcu_qsbr", c"fib_bench_dpdk_qsbr")],
    );
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for result in [urcu, dpdk] {
        match result {
            Ok(library) => found.push(library),
            Err(why) => missing.push(why),
        }
    }
    (found, missing)
}

type Named = (&'static str, &'static CStr);

fn library(
    names: &'static str,
    built: Option<&str>,
    not_built: Option<&str>,
    bare: Named,
    peers: &[Named],
) -> Result<CLibrary, Missing> {
    let open = || -> Result<CLibrary, String> {
        let path = built.ok_or_else(|| not_built.unwrap_or("not built").to_owned())?;
        let handle = system::open(&CString::new(path).map_err(|error| error.to_string())?)?;
        let peer = |&(name, symbol): &Named| Ok::<_, String>(CPeer { name, run: system::find(handle, symbol)? });
        Ok(CLibrary { bare: peer(&bare)?, peers: peers.iter().map(peer).collect::<Result<_, _>>()? })
    };
    open().map_err(|reason| Missing { names, reason })
}

#[cfg(unix)]
mod system {
    use std::ffi::{CStr, c_void};
    use std::mem;

    use super::Loop;

    /// Opens a library, for good: threads of the peers' libraries may outlive any use.
    pub(super) fn open(path: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: a terminated string. The library is ours, its constructors are those of the peers' libraries.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(error()) } else { Ok(handle) }
    }

    /// A loop by its name.
    pub(super) fn find(library: *mut c_void, symbol: &CStr) -> Result<Loop, String> {
        // SAFETY: an open library and a terminated string.
        let function = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        if function.is_null() {
            return Err(error());
        }
        // SAFETY: every symbol that is asked for is a function of shim/*.c of exactly this type.
        Ok(unsafe { mem::transmute::<*mut c_void, Loop>(function) })
    }

    fn error() -> String {
        // SAFETY: the text is a terminated string that lives until the next call on this thread, and is copied before.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()) };
        text.unwrap_or_else(|| String::from("unknown error"))
    }
}

#[cfg(not(unix))]
mod system {
    use std::ffi::{CStr, c_void};

    use super::Loop;

    pub(super) fn open(_path: &CStr) -> Result<*mut c_void, String> {
        Err(String::from("not for this system"))
    }

    pub(super) fn find(_library: *mut c_void, _symbol: &CStr) -> Result<Loop, String> {
        Err(String::from("not for this system"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_loads_once_a_burst() {
        let value = AtomicU64::new(3);
        let root = AtomicPtr::new((&raw const value).cast_mut());
        let (found, missing) = open();
        assert_eq!(found.len() + missing.len(), 2);
        for library in &found {
            for peer in library.peers.iter().chain([&library.bare]) {
                assert_eq!(peer.run(&root, 1000), 3000, "{}", peer.name);
                // Registered again on the same thread.
                assert_eq!(peer.run(&root, 1), 3, "{}", peer.name);
            }
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let missing = library("it", Some("/nonexistent/lib.so"), None, ("bare", c"bare"), &[]).unwrap_err();
        assert!(missing.names == "it" && missing.reason.contains("/nonexistent/lib.so"), "{missing:?}");
        assert_eq!(library("it", None, Some("no compiler"), ("bare", c"bare"), &[]).unwrap_err().reason, "no compiler");
    }
}
