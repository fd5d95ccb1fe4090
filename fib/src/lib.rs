//! A userspace FIB (forwarding information base): longest-prefix match for IPv4 and IPv6 with lock-free lookups, while a
//! control plane changes the routes underneath.
//!
//! ```
//! use fib::{Fib, NextHopId, RouteMatch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fib = Fib::new()?;
//!
//! // Control plane: one writer at a time.
//! let mut writer = fib.writer()?;
//! let mut table = writer.main();
//! table.insert_if_absent("10.0.0.0/8".parse()?, NextHopId::new(1)?)?;
//! table.insert_if_absent("10.1.0.0/16".parse()?, NextHopId::new(2)?)?;
//! table.insert_if_absent("2001:db8::/32".parse()?, NextHopId::new(3)?)?;
//!
//! // Data plane: a reader per thread, lookups inside a burst.
//! let mut reader = fib.reader("worker 0")?;
//! let burst = reader.burst();
//! let view = burst.main();
//! assert_eq!(view.lookup("10.1.2.3".parse::<std::net::IpAddr>()?), Some(NextHopId::new(2)?));
//!
//! let addrs = [0x0a00_0001_u32, 0x0a01_0001, 0x0b00_0001]; // host order
//! let mut next_hops = [NextHopId::MAX; 3];
//! view.lookup_batch(&addrs, &mut next_hops, NextHopId::MAX);
//! assert_eq!(next_hops.map(NextHopId::get), [1, 2, NextHopId::MAX.get()]);
//! drop(burst);
//!
//! writer.main().remove("10.1.0.0/16".parse()?, RouteMatch::ANY)?;
//! assert_eq!(reader.burst().main().lookup(0x0a01_0203u32), Some(NextHopId::new(1)?));
//! # Ok(())
//! # }
//! ```
//!
//! - A [`Fib`] owns node memory, reclamation and any number of tables; a [`Table`] holds IPv4 and IPv6 routes.
//! - The [`Writer`] changes tables. Each change is visible when its call returns, or has failed and changed nothing.
//! - A [`Reader`] looks up, in bursts ([`Reader::burst`]) or between quiescent states ([`Reader::online`]). It never locks,
//!   allocates, frees or makes a system call in a lookup.
//! - What a change replaces is counted in bytes and freed by the writer once no reader can hold it, under a budget
//!   ([`Fib::set_sync_mem`]) that decides when the writer has to wait for readers.
//!
//! # Files
//!
//! | file | question it answers |
//! |---|---|
//! | `addr.rs`, `prefix.rs`, `grid.rs` | how are keys and prefixes cut into steps of 6 bits? |
//! | `route.rs`, `nexthop.rs`, `error.rs` | what is a route, a next-hop id, an error? |
//! | `rib/` | which routes are there? the source of truth, seen by the writer only |
//! | `trie/` | what do packets see? nodes, lookup, update, level compression, memory |
//! | `reclaim/` | when is replaced memory free? readers, grace periods, the budget |
//! | `family.rs` | how do Rib and trie change together, or not at all? |
//! | `table.rs`, `tables.rs`, `fib.rs`, `writer.rs`, `reader.rs` | the public handles |
//! | `settings.rs`, `stats.rs` | what can be set and read while it runs? |
//! | `oracle.rs` | what would the slow and obvious table answer? |

mod addr;
mod engine;
mod error;
#[cfg(test)]
mod exhaustion_tests;
mod failpoint;
mod family;
mod fib;
mod grid;
#[cfg(test)]
mod model_tests;
mod nexthop;
pub mod oracle;
mod pages;
mod prefix;
mod reader;
mod reclaim;
mod rib;
mod route;
mod settings;
mod stats;
mod sync;
mod table;
mod tables;
mod trie;
mod writer;

pub use addr::{Addr, Family, unmap};
pub use error::{CheckError, FibError, InvalidNextHop, OutOfMemory, PrefixError, Resource, WriterBusy};
pub use fib::{Fib, Options, TableOptions};
pub use nexthop::NextHopId;
pub use prefix::{Prefix, parse_prefix, parse_prefix_truncating};
pub use reader::{BatchKey, Burst, Key, Online, Reader, View};
pub use reclaim::{
    AdmitError, GracePeriod, ReaderId, ReaderInfo, ReaderName, ReclaimStats, RemoveReaderError, StallPolicy,
    StalledReader, SyncMemOutOfRange,
};
pub use route::{Route, RouteMatch};
pub use stats::{FamilyStats, MemoryStats, TableStats};
pub use table::{Applied, LoadReport, OnError, Op, Table};
pub use tables::TableId;
pub use trie::lookup::BatchVariant;
pub use writer::Writer;

/// The README's code is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
