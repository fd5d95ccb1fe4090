//! Addresses as numbers: `u32` for IPv4, `u128` for IPv6, both in host order.
//!
//! Rib and trie share one *grid*: a key is cut into steps of 6 bits, and a node of either structure stands for
//! one step. IPv4 is padded behind its 32 bits (steps start at bits 0, 6, 12, 18, 24, 30), IPv6 is padded in front
//! (steps start at bits 0, 2, 8, 14, ... 122, the first one has 2 real bits), so both end on the grid:
//!
//! ```text
//! IPv4   |0    5|6   11|12  17|18  23|24  29|30 31 . . . .|            6 steps
//! IPv6   |. . . . 0 1|2    7|8   13|14  19| ... |122   127|           22 steps
//! ```
//!
//! All code counts lengths in *grid bits*: a prefix of length `len` has `len + LEAD` of them, where `LEAD` is the
//! padding in front.

use std::fmt::Debug;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Key bits that one step of the grid consumes.
pub(crate) const STEP_BITS: u32 = 6;
/// Slots of one step.
pub(crate) const STEP_SLOTS: usize = 1 << STEP_BITS;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

/// Which of the two address families a key, a prefix or a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4, 32-bit addresses.
    V4,
    /// IPv6, 128-bit addresses.
    V6,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// An address as a number in host order: `u32` (IPv4) or `u128` (IPv6). Sealed: there are no other families.
pub trait Addr: sealed::Sealed + Copy + Ord + Hash + Debug + Default + Send + Sync + 'static {
    /// Bits of an address: 32 or 128.
    const BITS: u8;
    /// The family.
    const FAMILY: Family;
    #[doc(hidden)]
    const LEAD: u32;
    #[doc(hidden)]
    const STEPS: usize;

    /// The address 0.
    const ZERO: Self;
    /// The address with all bits set.
    const MAX: Self;

    /// The network mask of a prefix of `len` bits; all ones from `len == Self::BITS` on.
    fn mask(len: u8) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise complement.
    fn not(self) -> Self;
    /// Leading zero bits of `self ^ other`: the length of the common prefix of two addresses.
    fn common_len(self, other: Self) -> u8;
    /// The address after this one, wrapping to 0 after the last.
    fn wrapping_next(self) -> Self;
    /// The address before this one, wrapping to the last before 0.
    fn wrapping_prev(self) -> Self;
    /// The address as the standard library writes it.
    fn to_ip(self) -> IpAddr;

    /// The first 64 bits of the address, zeros behind the last one of a shorter address.
    #[doc(hidden)]
    fn upper_bits(self) -> u64;
    /// The 6 key bits of grid step `step` (`< Self::STEPS`); padding reads as zero.
    #[doc(hidden)]
    fn step_slot(self, step: usize) -> usize;
    /// The key bits of `steps` grid steps from step 0 on, as the index of a dense root.
    #[doc(hidden)]
    fn top_slots(self, steps: usize) -> usize;
    /// The key bits of `steps` (at most 4) grid steps from `first` on.
    #[doc(hidden)]
    fn step_slots(self, first: usize, steps: usize) -> usize;
    /// The address whose grid bits of step `step` are `slot` and all others zero.
    #[doc(hidden)]
    fn from_step_slot(step: usize, slot: usize) -> Self;
}

impl Addr for u32 {
    const BITS: u8 = 32;
    const FAMILY: Family = Family::V4;
    const LEAD: u32 = 0;
    const STEPS: usize = 6;
    const ZERO: Self = 0;
    const MAX: Self = u32::MAX;

    #[inline(always)]
    fn mask(len: u8) -> Self {
        if len == 0 { 0 } else { u32::MAX << (32 - u32::from(len.min(32))) }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline(always)]
    fn not(self) -> Self {
        !self
    }
    #[inline(always)]
    fn common_len(self, other: Self) -> u8 {
        (self ^ other).leading_zeros() as u8
    }
    #[inline(always)]
    fn wrapping_next(self) -> Self {
        self.wrapping_add(1)
    }
    #[inline(always)]
    fn wrapping_prev(self) -> Self {
        self.wrapping_sub(1)
    }
    fn to_ip(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(self))
    }
    #[inline(always)]
    fn upper_bits(self) -> u64 {
        (self as u64) << 32
    }
    #[inline(always)]
    fn step_slot(self, step: usize) -> usize {
        // 36 grid bits: the address and 4 zero bits behind it.
        (((self as u64) << 4) >> (30 - 6 * step as u32)) as usize & 63
    }
    #[inline(always)]
    fn top_slots(self, steps: usize) -> usize {
        (((self as u64) << 4) >> (36 - 6 * steps as u32)) as usize
    }
    #[inline(always)]
    fn step_slots(self, first: usize, steps: usize) -> usize {
        (((self as u64) << 4) >> (36 - 6 * (first + steps) as u32)) as usize & ((1 << (6 * steps)) - 1)
    }
    #[inline(always)]
    fn from_step_slot(step: usize, slot: usize) -> Self {
        (((slot as u64) << (30 - 6 * step as u32)) >> 4) as u32
    }
}

impl Addr for u128 {
    const BITS: u8 = 128;
    const FAMILY: Family = Family::V6;
    const LEAD: u32 = 4;
    const STEPS: usize = 22;
    const ZERO: Self = 0;
    const MAX: Self = u128::MAX;

    #[inline(always)]
    fn mask(len: u8) -> Self {
        if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len.min(128))) }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline(always)]
    fn not(self) -> Self {
        !self
    }
    #[inline(always)]
    fn common_len(self, other: Self) -> u8 {
        (self ^ other).leading_zeros() as u8
    }
    #[inline(always)]
    fn wrapping_next(self) -> Self {
        self.wrapping_add(1)
    }
    #[inline(always)]
    fn wrapping_prev(self) -> Self {
        self.wrapping_sub(1)
    }
    fn to_ip(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(self))
    }
    #[inline(always)]
    fn upper_bits(self) -> u64 {
        (self >> 64) as u64
    }
    #[inline(always)]
    fn step_slot(self, step: usize) -> usize {
        (self >> (126 - 6 * step as u32)) as usize & 63
    }
    #[inline(always)]
    fn top_slots(self, steps: usize) -> usize {
        // The root has at least one step, so the shift is at most 126.
        (self >> (132 - 6 * steps as u32)) as usize
    }
    #[inline(always)]
    fn step_slots(self, first: usize, steps: usize) -> usize {
        (self >> (132 - 6 * (first + steps) as u32)) as usize & ((1 << (6 * steps)) - 1)
    }
    #[inline(always)]
    fn from_step_slot(step: usize, slot: usize) -> Self {
        (slot as u128) << (126 - 6 * step as u32)
    }
}

/// The IPv4 address inside an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`); every other address is returned as it is.
///
/// No lookup of this library crosses families by itself (`::ffff:10.0.0.1` is looked up among the IPv6 routes);
/// a caller who wants mapped addresses to hit IPv4 routes says so with this function.
///
/// ```
/// let mapped: std::net::IpAddr = "::ffff:10.1.2.3".parse().unwrap();
/// assert_eq!(fib::unmap(mapped), "10.1.2.3".parse::<std::net::IpAddr>().unwrap());
/// ```
pub fn unmap(addr: IpAddr) -> IpAddr {
    addr.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_rebuild_the_address<A: Addr>(addr: A) {
        let rebuilt =
            (0..A::STEPS).fold(A::ZERO, |whole, step| whole.or(A::from_step_slot(step, addr.step_slot(step))));
        assert_eq!(rebuilt, addr);
        for steps in 1..=4 {
            let by_step = (0..steps).fold(0, |index, step| index << 6 | addr.step_slot(step));
            assert_eq!(addr.top_slots(steps), by_step);
            for first in 0..=A::STEPS - steps {
                let by_step = (first..first + steps).fold(0, |index, step| index << 6 | addr.step_slot(step));
                assert_eq!(addr.step_slots(first, steps), by_step);
            }
        }
    }

    #[test]
    fn grid_steps_cover_each_bit_once() {
        for bit in 0..32 {
            steps_rebuild_the_address(1u32 << bit);
        }
        for bit in 0..128 {
            steps_rebuild_the_address(1u128 << bit);
        }
        steps_rebuild_the_address(u32::MAX);
        steps_rebuild_the_address(u128::MAX);
        steps_rebuild_the_address(0x0123_4567u32);
    }

    #[test]
    fn masks_at_the_ends() {
        assert_eq!(<u32 as Addr>::mask(0), 0);
        assert_eq!(<u32 as Addr>::mask(32), u32::MAX);
        assert_eq!(<u128 as Addr>::mask(0), 0);
        assert_eq!(<u128 as Addr>::mask(128), u128::MAX);
        assert_eq!(0u32.common_len(0), 32);
        assert_eq!(0u128.common_len(1), 127);
    }

    #[test]
    fn unmap_takes_only_mapped_addresses() {
        let unmapped = |text: &str| unmap(text.parse().unwrap()).to_string();
        assert_eq!(unmapped("::ffff:10.1.2.3"), "10.1.2.3");
        assert_eq!(unmapped("::10.1.2.3"), "::a01:203");
        assert_eq!(unmapped("2001:db8::1"), "2001:db8::1");
        assert_eq!(unmapped("10.1.2.3"), "10.1.2.3");
    }
}
