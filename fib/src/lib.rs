//! Userspace FIB.
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
