//! Next-hop ids: the small numbers that routes point at and that lookups return.

use std::fmt;

use crate::error::InvalidNextHop;

/// The number of a next hop, `0..=NextHopId::MAX`. What the number stands for is the caller's business.
///
/// Ids are never cut: the constructor refuses what does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct NextHopId(u32);

impl NextHopId {
    /// The largest id, 2^31 - 2. A trie slot spends one bit on "child" and one value on "miss".
    pub const MAX: NextHopId = NextHopId(0x7fff_fffe);

    /// The id `id`, or an error naming the limit when it is above [`NextHopId::MAX`].
    #[inline]
    pub const fn new(id: u32) -> Result<Self, InvalidNextHop> {
        if id <= Self::MAX.0 { Ok(NextHopId(id)) } else { Err(InvalidNextHop { id }) }
    }

    /// The number.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_slot(value: u32) -> Self {
        NextHopId(value)
    }
}

impl TryFrom<u32> for NextHopId {
    type Error = InvalidNextHop;

    fn try_from(id: u32) -> Result<Self, InvalidNextHop> {
        Self::new(id)
    }
}

impl From<NextHopId> for u32 {
    fn from(id: NextHopId) -> u32 {
        id.0
    }
}

impl fmt::Debug for NextHopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NextHopId({})", self.0)
    }
}

impl fmt::Display for NextHopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_refused_not_cut() {
        assert_eq!(NextHopId::new(0).unwrap().get(), 0);
        assert_eq!(NextHopId::new(0x7fff_fffe).unwrap(), NextHopId::MAX);
        for id in [0x7fff_ffff, 0x8000_0000, u32::MAX] {
            assert_eq!(NextHopId::new(id), Err(InvalidNextHop { id }));
        }
    }
}
