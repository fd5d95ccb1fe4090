//! Prefixes: an address and a length, host bits always zero.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::addr::{Addr, STEP_BITS};
use crate::error::PrefixError;

/// A prefix of one family, such as `10.0.0.0/8`: host bits are zero, the length is in range.
///
/// Order is by address, then by length, so a prefix comes right before its more-specifics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<A> {
    addr: A,
    len: u8,
}

impl<A: Addr> Prefix<A> {
    /// `0.0.0.0/0` or `::/0`.
    pub const DEFAULT: Self = Prefix { addr: A::ZERO, len: 0 };

    /// The prefix `addr/len`. Errors: a length above [`Addr::BITS`], or host bits that are not zero.
    pub fn new(addr: A, len: u8) -> Result<Self, PrefixError> {
        let prefix = Self::truncating(addr, len)?;
        if prefix.addr != addr {
            return Err(PrefixError::HostBits { addr: addr.to_ip(), len });
        }
        Ok(prefix)
    }

    /// The prefix of `len` bits that holds `addr`: host bits are cleared. Error: a length above [`Addr::BITS`].
    pub fn truncating(addr: A, len: u8) -> Result<Self, PrefixError> {
        if len > A::BITS {
            return Err(PrefixError::TooLong { addr: addr.to_ip(), len, max: A::BITS });
        }
        Ok(Prefix { addr: addr.and(A::mask(len)), len })
    }

    /// The prefix that holds `addr` alone.
    pub fn host(addr: A) -> Self {
        Prefix { addr, len: A::BITS }
    }

    /// The first address; all host bits are zero.
    #[inline(always)]
    pub fn addr(self) -> A {
        self.addr
    }

    /// The length in bits.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u8 {
        self.len
    }

    /// The last address.
    pub fn last(self) -> A {
        self.addr.or(A::mask(self.len).not())
    }

    /// Whether `addr` lies inside.
    #[inline]
    pub fn contains(self, addr: A) -> bool {
        addr.and(A::mask(self.len)) == self.addr
    }

    /// Whether `other` lies inside; a prefix covers itself.
    #[inline]
    pub fn covers(self, other: Self) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }

    /// The grid step that the prefix ends in and how many of its bits it uses there (`1..=6`, 0 for IPv4's `/0` only,
    /// and 4 for IPv6's `/0`, whose step 0 starts with 4 bits of padding).
    #[inline(always)]
    pub(crate) fn grid_end(self) -> (usize, u32) {
        let bits = u32::from(self.len) + A::LEAD;
        let step = bits.saturating_sub(1) / STEP_BITS;
        (step as usize, bits - step * STEP_BITS)
    }

    /// As the `ipnet` type.
    pub fn to_ipnet(self) -> IpNet {
        // The length is in range by construction, so neither constructor can fail; /0 stands in for the impossible.
        match self.addr.to_ip() {
            IpAddr::V4(addr) => IpNet::V4(Ipv4Net::new(addr, self.len).unwrap_or_default()),
            IpAddr::V6(addr) => IpNet::V6(Ipv6Net::new(addr, self.len).unwrap_or_default()),
        }
    }
}

impl TryFrom<Ipv4Net> for Prefix<u32> {
    type Error = PrefixError;

    /// Strict: host bits are an error ([`Ipv4Net::trunc`] clears them).
    fn try_from(net: Ipv4Net) -> Result<Self, PrefixError> {
        Prefix::new(net.addr().to_bits(), net.prefix_len())
    }
}

impl TryFrom<Ipv6Net> for Prefix<u128> {
    type Error = PrefixError;

    /// Strict: host bits are an error ([`Ipv6Net::trunc`] clears them).
    fn try_from(net: Ipv6Net) -> Result<Self, PrefixError> {
        Prefix::new(net.addr().to_bits(), net.prefix_len())
    }
}

impl<A: Addr> From<Prefix<A>> for IpNet {
    fn from(prefix: Prefix<A>) -> IpNet {
        prefix.to_ipnet()
    }
}

impl<A: Addr> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr.to_ip(), self.len)
    }
}

impl<A: Addr> fmt::Debug for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Parses `address/length` (a bare address is a host prefix) strictly: host bits are an error.
///
/// ```
/// use fib::parse_prefix;
/// assert!(parse_prefix("10.0.0.0/8").is_ok());
/// assert_eq!(
///     parse_prefix("10.1.2.3/8").unwrap_err().to_string(),
///     "10.1.2.3/8 has host bits set; the prefix is 10.0.0.0/8"
/// );
/// ```
pub fn parse_prefix(text: &str) -> Result<IpNet, PrefixError> {
    let (addr, len) = split(text)?;
    match addr {
        IpAddr::V4(addr) => Ok(Prefix::new(addr.to_bits(), len.unwrap_or(32))?.to_ipnet()),
        IpAddr::V6(addr) => Ok(Prefix::new(addr.to_bits(), len.unwrap_or(128))?.to_ipnet()),
    }
}

/// As [`parse_prefix`], but host bits are cleared.
pub fn parse_prefix_truncating(text: &str) -> Result<IpNet, PrefixError> {
    let (addr, len) = split(text)?;
    match addr {
        IpAddr::V4(addr) => Ok(Prefix::truncating(addr.to_bits(), len.unwrap_or(32))?.to_ipnet()),
        IpAddr::V6(addr) => Ok(Prefix::truncating(addr.to_bits(), len.unwrap_or(128))?.to_ipnet()),
    }
}

fn split(text: &str) -> Result<(IpAddr, Option<u8>), PrefixError> {
    let malformed = || PrefixError::Malformed { text: text.chars().take(64).collect() };
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (addr, Some(len)),
        None => (text, None),
    };
    let addr = IpAddr::from_str(addr).map_err(|_| malformed())?;
    let Some(len) = len else { return Ok((addr, None)) };
    if len.is_empty() || len.len() > 9 || !len.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(malformed());
    }
    let max = if addr.is_ipv4() { 32 } else { 128 };
    let len: u32 = len.parse().map_err(|_| malformed())?;
    if len > u32::from(max) {
        return Err(PrefixError::TooLong { addr, len: len.min(255) as u8, max });
    }
    Ok((addr, Some(len as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_and_truncating_constructors() {
        assert_eq!(Prefix::new(0x0a00_0000u32, 8).unwrap().to_string(), "10.0.0.0/8");
        assert!(matches!(Prefix::new(0x0a01_0203u32, 8), Err(PrefixError::HostBits { len: 8, .. })));
        assert_eq!(Prefix::truncating(0x0a01_0203u32, 8).unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(Prefix::truncating(0x0102_0304u32, 0).unwrap(), Prefix::DEFAULT);
        for len in [33, 55, 64, 128, 255] {
            assert!(matches!(Prefix::<u32>::truncating(0, len), Err(PrefixError::TooLong { max: 32, .. })));
            assert!(matches!(Prefix::<u32>::new(0, len), Err(PrefixError::TooLong { max: 32, .. })));
        }
        for len in [129, 200, 255] {
            assert!(matches!(Prefix::<u128>::new(0, len), Err(PrefixError::TooLong { max: 128, .. })));
        }
    }

    #[test]
    fn malformed_text_is_named() {
        for text in ["", "/", "10.0.0.0/", "10.0.0/8", "10.0.0.0/a", "10.0.0.0/-1", "10.0.0.0/+8", "x/8", "1.2.3.4/8/8"]
        {
            assert!(matches!(parse_prefix(text), Err(PrefixError::Malformed { .. })), "{text}");
        }
        assert!(matches!(parse_prefix("1.1.1.1/55"), Err(PrefixError::TooLong { len: 55, max: 32, .. })));
        assert!(matches!(parse_prefix("::/129"), Err(PrefixError::TooLong { len: 129, max: 128, .. })));
        assert_eq!(parse_prefix("10.0.0.1").unwrap().to_string(), "10.0.0.1/32");
        assert_eq!(parse_prefix_truncating("2001:db8::1/32").unwrap().to_string(), "2001:db8::/32");
    }

    #[test]
    fn order_is_address_then_length() {
        let prefix = |text: &str| Prefix::<u32>::try_from(text.parse::<Ipv4Net>().unwrap()).unwrap();
        let mut prefixes = [prefix("10.0.0.0/24"), prefix("9.0.0.0/8"), prefix("10.0.0.0/8"), prefix("0.0.0.0/0")];
        prefixes.sort();
        assert_eq!(format!("{prefixes:?}"), "[0.0.0.0/0, 9.0.0.0/8, 10.0.0.0/8, 10.0.0.0/24]");
        assert!(prefix("10.0.0.0/8").covers(prefix("10.0.0.0/24")));
        assert!(!prefix("10.0.0.0/24").covers(prefix("10.0.0.0/8")));
        assert_eq!(prefix("10.0.0.0/8").last(), 0x0aff_ffff);
    }

    #[test]
    fn grid_ends() {
        let end = |len| Prefix::<u32>::truncating(0, len).unwrap().grid_end();
        assert_eq!(
            [end(0), end(1), end(6), end(7), end(24), end(25), end(32)],
            [(0, 0), (0, 1), (0, 6), (1, 1), (3, 6), (4, 1), (5, 2)]
        );
        let end = |len| Prefix::<u128>::truncating(0, len).unwrap().grid_end();
        assert_eq!(
            [end(0), end(1), end(2), end(3), end(8), end(48), end(128)],
            [(0, 4), (0, 5), (0, 6), (1, 1), (1, 6), (8, 4), (21, 6)]
        );
    }
}
