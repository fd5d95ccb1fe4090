//! The error enums: each says what to change and carries the number or name at fault.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::nexthop::NextHopId;

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
        };
        if self.limit > 0 {
            write!(f, "no {what} left: {} bytes wanted, the limit is {} bytes", self.bytes, self.limit)
        } else {
            write!(f, "no {what}: the system refused {} bytes", self.bytes)
        }
    }
}

impl std::error::Error for OutOfMemory {}
