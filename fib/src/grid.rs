//! Positions inside one grid step: the 127 prefixes of 0 to 6 bits, numbered in *preorder*.
//!
//! ```text
//! length 0           0
//! length 1       1        64             position(slot, len) = 2 * slot - popcount(slot) + len
//! length 2     2    33  65   96          `slot` is the first of the 64 slots that the prefix spans
//! ...
//! ```
//!
//! Preorder makes two things cheap on a 128-bit map of the positions in use: ascending bits are prefixes ordered by
//! address, then length; and what lies inside a prefix is one run of `2^(7 - len) - 1` bits that starts at its own.

use crate::addr::{STEP_BITS, STEP_SLOTS};

/// Positions of a step, `/0` included.
pub(crate) const POSITIONS: usize = 2 * STEP_SLOTS - 1;

/// The position of the prefix of `len` bits (at most 6) that starts at `slot`.
#[inline(always)]
pub(crate) const fn position(slot: usize, len: u32) -> u32 {
    2 * slot as u32 - (slot as u32).count_ones() + len
}

/// First slot and length of each position.
const PLACES: [(u8, u8); POSITIONS + 1] = {
    let mut places = [(0, 0); POSITIONS + 1];
    let mut len = 0;
    while len <= STEP_BITS {
        let mut slot = 0;
        while slot < STEP_SLOTS {
            places[position(slot, len) as usize] = (slot as u8, len as u8);
            slot += 1 << (STEP_BITS - len);
        }
        len += 1;
    }
    places
};

/// First slot and length of `position`.
#[inline(always)]
pub(crate) const fn place(position: u32) -> (usize, u32) {
    let (slot, len) = PLACES[position as usize & POSITIONS];
    (slot as usize, len as u32)
}

/// The positions inside the prefix of `len` bits at `position`, itself included, as a bit map.
#[inline(always)]
pub(crate) const fn inside(position: u32, len: u32) -> u128 {
    let count = (1u32 << (STEP_BITS + 1 - len)) - 1;
    (u128::MAX >> (128 - count)) << position
}

/// The slots that the prefix of `len` bits at `slot` spans, as a bit map.
#[inline(always)]
pub(crate) const fn slots(slot: usize, len: u32) -> u64 {
    (u64::MAX >> (64 - (1u32 << (STEP_BITS - len)))) << slot
}

/// The positions whose prefix spans `slot`, as a bit map.
#[inline(always)]
pub(crate) const fn covering(slot: usize) -> u128 {
    let mut map = 0;
    let mut len = 0;
    while len <= STEP_BITS {
        map |= 1u128 << position(slot >> (STEP_BITS - len) << (STEP_BITS - len), len);
        len += 1;
    }
    map
}

/// The slots spanned by any of the positions in `map`.
#[inline]
pub(crate) fn covered_slots(mut map: u128) -> u64 {
    let mut covered = 0;
    while map != 0 {
        let position = map.trailing_zeros();
        let (slot, len) = place(position);
        covered |= slots(slot, len);
        map &= !inside(position, len);
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_preorder_and_invertible() {
        let mut all: Vec<(usize, u32)> = Vec::new();
        for len in 0..=6 {
            for slot in (0..64).step_by(1 << (6 - len)) {
                assert_eq!(place(position(slot, len)), (slot, len));
                all.push((slot, len));
            }
        }
        all.sort();
        assert_eq!(all.len(), POSITIONS);
        for (index, (slot, len)) in all.into_iter().enumerate() {
            assert_eq!(position(slot, len) as usize, index);
        }
    }

    #[test]
    fn maps_agree_with_the_definition() {
        for outer in 0..POSITIONS as u32 {
            let (outer_slot, outer_len) = place(outer);
            let span = 1 << (6 - outer_len);
            assert_eq!(slots(outer_slot, outer_len).count_ones(), span);
            for inner in 0..POSITIONS as u32 {
                let (inner_slot, inner_len) = place(inner);
                let is_inside = inner_len >= outer_len && inner_slot / span as usize == outer_slot / span as usize;
                assert_eq!(inside(outer, outer_len) >> inner & 1 == 1, is_inside, "{outer} {inner}");
            }
            for slot in 0..64 {
                let spans = slots(outer_slot, outer_len) >> slot & 1 == 1;
                assert_eq!(covering(slot) >> outer & 1 == 1, spans);
            }
        }
        assert_eq!(covered_slots(0), 0);
        assert_eq!(covered_slots(1), u64::MAX);
        assert_eq!(covered_slots(1 << position(32, 1) | 1 << position(33, 6) | 1 << position(0, 6)), !0 << 32 | 1);
    }
}
