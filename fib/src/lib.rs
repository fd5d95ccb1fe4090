//! Userspace FIB.
mod addr;
mod error;
mod failpoint;
mod grid;
mod nexthop;
mod prefix;
mod reclaim;
mod rib;
mod route;
mod sync;
mod trie;

pub use addr::{Addr, Family, unmap};
pub use error::{InvalidNextHop, OutOfMemory, PrefixError, Resource};
pub use nexthop::NextHopId;
pub use prefix::{Prefix, parse_prefix, parse_prefix_truncating};
pub use reclaim::{
    AdmitError, GracePeriod, ReaderId, ReaderInfo, ReaderName, ReclaimStats, RemoveReaderError, StallPolicy,
    StalledReader, SyncMemOutOfRange,
};
pub use route::{Route, RouteMatch};
