//! DPDK's tables through `shim/dpdk.c`: rte_fib, rte_fib6, rte_lpm, rte_lpm6.
//!
//! The EAL starts with the first table and stays until the program ends. It pins the thread that starts it to one
//! core; that is undone here, since `compare` decides where things run.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::{Addresses, BATCH_MAX, MemoryUse, Peer, PeerRoute};
use crate::failure::Failure;

/// A table of the shim; only its address means something here.
#[repr(C)]
struct RawTable {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn shim_init() -> c_int;
    fn shim_new(
        kind: c_int,
        nh_log2: c_int,
        routes: u32,
        groups: u32,
        heap_bytes: usize,
        error: *mut c_int,
    ) -> *mut RawTable;
    fn shim_free(table: *mut RawTable);
    fn shim_memory(table: *const RawTable) -> usize;
    fn shim_select(table: *mut RawTable, vector: c_int) -> c_int;
    fn shim_add_v4(table: *mut RawTable, addr: u32, len: u8, next_hop: u32) -> c_int;
    fn shim_delete_v4(table: *mut RawTable, addr: u32, len: u8) -> c_int;
    fn shim_add_v6(table: *mut RawTable, addr: *const u8, len: u8, next_hop: u32) -> c_int;
    fn shim_delete_v6(table: *mut RawTable, addr: *const u8, len: u8) -> c_int;
    fn shim_pass_v4(table: *mut RawTable, addrs: *const u32, n: usize, batch: usize, out: *mut u32);
    fn shim_pass_v6(table: *mut RawTable, addrs: *const [u8; 16], n: usize, batch: usize, out: *mut u32);
    fn shim_chain_v4(table: *mut RawTable, addrs: *const u32, n: usize) -> u64;
    fn shim_chain_v6(table: *mut RawTable, addrs: *const [u8; 16], n: usize) -> u64;
}

/// Which of DPDK's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// rte_fib DIR24_8 with next hops of so many bytes (1, 2 or 4).
    Fib(usize),
    /// rte_fib6 TRIE with 4-byte next hops.
    Fib6,
    /// rte_lpm.
    Lpm,
    /// rte_lpm6.
    Lpm6,
}

/// Groups of 256 entries that a full IPv6 table may take; enough for the load (22.11 reserves 219,601 for it).
pub const GROUPS_V6_LOAD: u32 = 262_144;

/// Groups with which rte_fib6 of 22.11 survives updates: its reservations drift, and with less it refuses most of them.
pub const GROUPS_V6_UPDATES: u32 = 2_000_000;

impl Kind {
    fn number(self) -> c_int {
        match self {
            Kind::Fib(_) => 0,
            Kind::Fib6 => 1,
            Kind::Lpm => 2,
            Kind::Lpm6 => 3,
        }
    }

    /// Bytes of an entry.
    fn entry_bytes(self) -> usize {
        match self {
            Kind::Fib(bytes) => bytes,
            Kind::Fib6 | Kind::Lpm | Kind::Lpm6 => 4,
        }
    }

    /// The usual number of groups for full tables. One-byte entries can name 127 of them, two-byte entries 32,767.
    fn groups(self) -> u32 {
        match self {
            Kind::Fib(1) => 127,
            Kind::Fib(2) | Kind::Fib(_) | Kind::Lpm => 32_767,
            Kind::Fib6 | Kind::Lpm6 => GROUPS_V6_LOAD,
        }
    }
}

/// Starts the EAL, once.
fn start() -> Result<(), Failure> {
    static STARTED: OnceLock<Result<(), Failure>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            let cores = sched_getaffinity(None);
            // SAFETY: called once (`OnceLock`), with nothing of DPDK in use yet.
            let code = unsafe { shim_init() };
            if let Ok(cores) = cores {
                // If it fails we stay on one core, which costs time but no correctness.
                let _ = sched_setaffinity(None, &cores);
            }
            match code {
                0 => Ok(()),
                code => Err(Failure::at("starting DPDK's EAL", io::Error::from_raw_os_error(-code))),
            }
        })
        .clone()
}

/// A table of DPDK's.
#[derive(Debug)]
pub struct Dpdk {
    kind: Kind,
    groups: u32,
    table: NonNull<RawTable>,
}

impl Dpdk {
    /// An empty table for about `routes` routes, with the usual number of groups.
    pub fn new(kind: Kind, routes: usize) -> Result<Self, Failure> {
        Self::with_groups(kind, routes, kind.groups())
    }

    /// An empty table for about `routes` routes and so many groups of 256 entries.
    pub fn with_groups(kind: Kind, routes: usize, groups: u32) -> Result<Self, Failure> {
        start()?;
        let routes = routes + routes / 8 + 1024;
        let tables = ((1 << 24) + 256 * (groups as usize + 64)) * kind.entry_bytes();
        // The route store: two nodes a route of up to 192 bytes with the pool's headers; hash buckets for lpm6.
        let heap = tables + routes * 2 * 192 + groups as usize * 16 + (64 << 20);
        let mut error = 0;
        let nh_log2 = kind.entry_bytes().ilog2() as c_int;
        // SAFETY: the EAL runs; `error` outlives the call.
        let table = unsafe { shim_new(kind.number(), nh_log2, routes as u32, groups, heap, &mut error) };
        let table = NonNull::new(table)
            .ok_or_else(|| Failure::at(format!("creating {kind:?}"), io::Error::from_raw_os_error(error)))?;
        Ok(Dpdk { kind, groups, table })
    }

    fn variant_count(&self) -> usize {
        match self.kind {
            // SAFETY: the table is alive until `drop`. The scalar variant is selected again right away.
            Kind::Fib(_) | Kind::Fib6 => unsafe {
                let has_vector = shim_select(self.table.as_ptr(), 1) == 0;
                shim_select(self.table.as_ptr(), 0);
                1 + usize::from(has_vector)
            },
            Kind::Lpm | Kind::Lpm6 => 1,
        }
    }

    fn variant_names(&self) -> Vec<&'static str> {
        match (self.kind, self.variant_count()) {
            (Kind::Lpm | Kind::Lpm6, _) => vec![""],
            (_, 1) => vec!["scalar"],
            _ => vec!["scalar", "avx512"],
        }
    }

    fn select_variant(&mut self, index: usize) {
        // SAFETY: the table is alive until `drop`, and nobody is looking up: `self` is borrowed mutably.
        unsafe { shim_select(self.table.as_ptr(), index as c_int) };
    }

    fn memory_use(&self) -> MemoryUse {
        let lookup_bytes = match self.kind {
            Kind::Fib(_) | Kind::Fib6 => Some(((1 << 24) + 256 * self.groups as usize) * self.kind.entry_bytes()),
            Kind::Lpm | Kind::Lpm6 => None,
        };
        // SAFETY: the table is alive until `drop`.
        let total_bytes = Some(unsafe { shim_memory(self.table.as_ptr()) });
        MemoryUse { lookup_bytes, total_bytes, next_hop_bits: Some(8 * self.kind.entry_bytes()) }
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        // SAFETY: made by `shim_new`, freed here only.
        unsafe { shim_free(self.table.as_ptr()) }
    }
}

/// Where a pass keeps its answers: null when it keeps none.
fn kept(keep: Option<&mut [u32]>, addresses: usize) -> *mut u32 {
    match keep {
        Some(keep) => {
            assert!(keep.len() >= addresses, "no room for all answers");
            keep.as_mut_ptr()
        }
        None => std::ptr::null_mut(),
    }
}

impl Peer<u32> for Dpdk {
    fn load(&mut self, routes: &[PeerRoute<u32>]) -> Result<usize, Failure> {
        // SAFETY: the table is alive until `drop`, and it is one for IPv4 (as are all that `list` makes for `u32`).
        let add = |route: &PeerRoute<u32>| unsafe {
            shim_add_v4(self.table.as_ptr(), route.addr, route.len, route.next_hop)
        };
        Ok(routes.iter().filter(|route| add(route) != 0).count())
    }
    fn variants(&self) -> Vec<&'static str> {
        self.variant_names()
    }
    fn select(&mut self, index: usize) {
        self.select_variant(index);
    }
    fn pass(&mut self, addrs: &Addresses<u32>, batch: usize, keep: Option<&mut [u32]>) {
        let (addrs, batch) = (&addrs.host, batch.clamp(1, BATCH_MAX));
        let out = kept(keep, addrs.len());
        // SAFETY: a live IPv4 table; the slices are as long as said, `out` is null or as long (`kept`); the shim's
        // buffers hold BATCH_MAX answers.
        unsafe { shim_pass_v4(self.table.as_ptr(), addrs.as_ptr(), addrs.len(), batch, out) }
    }
    fn chain(&mut self, addrs: &Addresses<u32>) -> u64 {
        // SAFETY: a live IPv4 table; the slice is as long as said.
        unsafe { shim_chain_v4(self.table.as_ptr(), addrs.host.as_ptr(), addrs.host.len()) }
    }
    fn insert(&mut self, route: PeerRoute<u32>) -> Option<bool> {
        // SAFETY: a live IPv4 table.
        Some(unsafe { shim_add_v4(self.table.as_ptr(), route.addr, route.len, route.next_hop) } == 0)
    }
    fn remove(&mut self, route: PeerRoute<u32>) -> Option<bool> {
        // SAFETY: a live IPv4 table.
        Some(unsafe { shim_delete_v4(self.table.as_ptr(), route.addr, route.len) } == 0)
    }
    fn memory(&mut self) -> MemoryUse {
        self.memory_use()
    }
}

impl Peer<u128> for Dpdk {
    fn load(&mut self, routes: &[PeerRoute<u128>]) -> Result<usize, Failure> {
        // SAFETY: the table is alive until `drop`, and it is one for IPv6 (as are all that `list` makes for `u128`);
        // the address has the 16 bytes that are read.
        let add = |route: &PeerRoute<u128>| unsafe {
            shim_add_v6(self.table.as_ptr(), route.addr.to_be_bytes().as_ptr(), route.len, route.next_hop)
        };
        Ok(routes.iter().filter(|route| add(route) != 0).count())
    }
    fn variants(&self) -> Vec<&'static str> {
        self.variant_names()
    }
    fn select(&mut self, index: usize) {
        self.select_variant(index);
    }
    fn pass(&mut self, addrs: &Addresses<u128>, batch: usize, keep: Option<&mut [u32]>) {
        let (addrs, batch) = (&addrs.network, batch.clamp(1, BATCH_MAX));
        let out = kept(keep, addrs.len());
        // SAFETY: a live IPv6 table; the slices are as long as said, `out` is null or as long (`kept`); the shim's
        // buffers hold BATCH_MAX answers. The shim takes the addresses as mutable because DPDK does; nothing writes them.
        unsafe { shim_pass_v6(self.table.as_ptr(), addrs.as_ptr(), addrs.len(), batch, out) }
    }
    fn chain(&mut self, addrs: &Addresses<u128>) -> u64 {
        // SAFETY: a live IPv6 table; the slice is as long as said, and is only read.
        unsafe { shim_chain_v6(self.table.as_ptr(), addrs.network.as_ptr(), addrs.network.len()) }
    }
    fn insert(&mut self, route: PeerRoute<u128>) -> Option<bool> {
        let addr = route.addr.to_be_bytes();
        // SAFETY: a live IPv6 table; 16 bytes are read.
        Some(unsafe { shim_add_v6(self.table.as_ptr(), addr.as_ptr(), route.len, route.next_hop) } == 0)
    }
    fn remove(&mut self, route: PeerRoute<u128>) -> Option<bool> {
        let addr = route.addr.to_be_bytes();
        // SAFETY: a live IPv6 table; 16 bytes are read.
        Some(unsafe { shim_delete_v6(self.table.as_ptr(), addr.as_ptr(), route.len) } == 0)
    }
    fn memory(&mut self) -> MemoryUse {
        self.memory_use()
    }
}
