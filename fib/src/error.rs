//! The error enums: each says what to change and carries the number or name at fault.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::addr::{Addr, Family};
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;
use crate::reclaim::{AdmitError, SyncMemOutOfRange};
use crate::rib::RibError;
use crate::route::Route;
use crate::tables::TableId;
use crate::trie::lookup::BatchVariant;

/// Text or numbers that are not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrefixError {
    /// The text is not `address/length`.
    Malformed {
        /// The text, cut to 64 characters.
        text: String,
    },
    /// The length is above the family's number of bits.
    TooLong {
        /// The address that was given.
        addr: IpAddr,
        /// The length that was given.
        len: u8,
        /// 32 or 128.
        max: u8,
    },
    /// Bits behind the prefix length are set.
    HostBits {
        /// The address that was given.
        addr: IpAddr,
        /// The length that was given.
        len: u8,
    },
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrefixError::Malformed { text } => {
                write!(f, "`{text}` is not a prefix; write address/length, as in 10.0.0.0/8 or 2001:db8::/32")
            }
            PrefixError::TooLong { addr, len, max } => {
                write!(f, "length {len} of prefix {addr}/{len} is above {max}")
            }
            PrefixError::HostBits { addr, len } => {
                let truncated = match IpNet::new(*addr, *len) {
                    Ok(net) => net.trunc().to_string(),
                    Err(_) => String::from("shorter"),
                };
                write!(f, "{addr}/{len} has host bits set; the prefix is {truncated}")
            }
        }
    }
}

impl std::error::Error for PrefixError {}

/// A next-hop id above [`NextHopId::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidNextHop {
    /// The id that was given.
    pub id: u32,
}

impl fmt::Display for InvalidNextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "next-hop id {} is above {}", self.id, NextHopId::MAX)
    }
}

impl std::error::Error for InvalidNextHop {}

/// Which memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// Node memory: the arena's limit was reached, or the system refused a mapping.
    Arena,
    /// Memory for routes.
    Rib,
    /// Memory for the writer's list of changes or of retired blocks.
    Plan,
    /// Memory for the list of tables.
    Tables,
}

/// A reservation that failed. Nothing was changed by the call that returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub resource: Resource,
    /// Bytes that were asked for.
    pub bytes: usize,
    /// The limit that stands in the way, in bytes; 0 when the system refused.
    pub limit: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.resource {
            Resource::Arena => "node memory",
            Resource::Rib => "route memory",
            Resource::Plan => "memory for the update's plan",
            Resource::Tables => "memory for tables",
        };
        if self.limit > 0 {
            write!(f, "no {what} left: {} bytes wanted, the limit is {} bytes", self.bytes, self.limit)
        } else {
            write!(f, "no {what}: the system refused {} bytes", self.bytes)
        }
    }
}

impl std::error::Error for OutOfMemory {}

/// Why a call on a `Fib`, a `Writer` or a `Table` failed. Nothing was changed by it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FibError {
    /// A prefix with host bits or with too great a length.
    Prefix(PrefixError),
    /// There is a route of this prefix and priority already.
    RouteExists {
        /// The prefix.
        prefix: IpNet,
        /// The priority.
        priority: u32,
    },
    /// There is no route of this prefix and priority to replace.
    NoSuchRoute {
        /// The prefix.
        prefix: IpNet,
        /// The priority.
        priority: u32,
    },
    /// Memory could not be had.
    OutOfMemory(OutOfMemory),
    /// The dirty-memory budget is used up and readers have not let go of what was retired.
    Reclaim(AdmitError),
    /// The dirty-memory budget that was asked for is out of range.
    SyncMem(SyncMemOutOfRange),
    /// There is no table of this number.
    NoSuchTable {
        /// The number.
        id: TableId,
    },
    /// There are as many tables as there can be.
    TooManyTables {
        /// The limit.
        max: usize,
    },
    /// A bulk load needs an empty table.
    TableNotEmpty {
        /// Routes that are in the table.
        routes: usize,
    },
    /// This CPU cannot run the batch variant that was asked for.
    BatchUnavailable {
        /// The variant.
        variant: BatchVariant,
    },
    /// The environment variable `FIB_BATCH` names no batch variant.
    UnknownBatch {
        /// What it holds, cut to 64 characters.
        name: String,
    },
    /// A root limit out of range.
    RootLimit {
        /// The family whose limit it is.
        family: Family,
        /// The bits that were asked for.
        bits: u8,
        /// The values that are possible.
        possible: &'static [u8],
    },
}

impl FibError {
    pub(crate) fn from_rib<A: Addr>(error: RibError, prefix: Prefix<A>, route: Route) -> FibError {
        let (prefix, priority) = (prefix.to_ipnet(), route.priority);
        match error {
            RibError::Exists => FibError::RouteExists { prefix, priority },
            RibError::NoSuchRoute => FibError::NoSuchRoute { prefix, priority },
            RibError::OutOfMemory(error) => FibError::OutOfMemory(error),
        }
    }
}

impl fmt::Display for FibError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FibError::Prefix(error) => error.fmt(f),
            FibError::RouteExists { prefix, priority } => {
                write!(f, "{prefix} has a route of priority {priority} already")
            }
            FibError::NoSuchRoute { prefix, priority } => write!(f, "{prefix} has no route of priority {priority}"),
            FibError::OutOfMemory(error) => error.fmt(f),
            FibError::Reclaim(error) => error.fmt(f),
            FibError::SyncMem(error) => error.fmt(f),
            FibError::NoSuchTable { id } => write!(f, "there is no table {id}"),
            FibError::TooManyTables { max } => write!(f, "there are {max} tables already, the most there can be"),
            FibError::TableNotEmpty { routes } => {
                write!(f, "a bulk load needs an empty table; this one has {routes} routes")
            }
            FibError::BatchUnavailable { variant } => write!(f, "this CPU cannot look up batches by `{variant}`"),
            FibError::UnknownBatch { name } => {
                write!(f, "FIB_BATCH is `{name}`; possible are scalar, interleaved and avx512")
            }
            FibError::RootLimit { family, bits, possible } => {
                write!(f, "an {family} root cannot be limited to {bits} bits; possible are {possible:?}")
            }
        }
    }
}

impl std::error::Error for FibError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FibError::Prefix(error) => Some(error),
            FibError::OutOfMemory(error) => Some(error),
            FibError::Reclaim(error) => Some(error),
            FibError::SyncMem(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PrefixError> for FibError {
    fn from(error: PrefixError) -> Self {
        FibError::Prefix(error)
    }
}

impl From<OutOfMemory> for FibError {
    fn from(error: OutOfMemory) -> Self {
        FibError::OutOfMemory(error)
    }
}

impl From<AdmitError> for FibError {
    fn from(error: AdmitError) -> Self {
        FibError::Reclaim(error)
    }
}

impl From<SyncMemOutOfRange> for FibError {
    fn from(error: SyncMemOutOfRange) -> Self {
        FibError::SyncMem(error)
    }
}

/// Somebody else holds the [`Writer`](crate::Writer) of this `Fib`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterBusy;

impl fmt::Display for WriterBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the writer is taken; there is one at a time, and it comes back when it is dropped")
    }
}

impl std::error::Error for WriterBusy {}

/// A broken invariant, as found by `check()`. Always a defect of this library: please report it with the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckError {
    /// The invariant and the place.
    pub message: String,
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CheckError {}
