//! Batch lookup with AVX-512: 64 addresses in flight, a gather for each step of all of them.
//!
//! ```text
//! IPv4  4 groups of 16 lanes          IPv6  8 groups of 8 lanes (upper 64 bits; the lower follow by funnel shift)
//!
//! gather root slots of all groups
//! while any lane stands on a node:
//!     gather the words of all groups      rank = popcount(word & bits 0..=slot)
//!     gather the slots of all groups      dense nodes: the slot is at the index itself, no word is read
//! ```
//!
//! A key is shifted left as it is consumed, so its next bits stand at the top in every lane, whatever the nodes above
//! spanned. Slots are read as the aligned 32 bits that they lie in: an index in units of 4 bytes then reaches the whole
//! arena, and no read leaves the block by more than the arena's padding.
//!
//! A gather is not an atomic operation of the language's memory model. On x86-64 its element loads are single and aligned
//! here, so none tears, and a load that follows another by address dependency is ordered after it, so a lane that sees a
//! child sees the child's contents, as Acquire gives to the scalar code. Sanitizers and Miri run the scalar variants.
//!
//! Lanes are finished one by one only where at most a few of 64 go on.

// The groups of lanes go through several arrays side by side; indices say so better than nested zips.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::lookup::walk;
use super::node::{Nodes, Root, Slot};
use crate::addr::Addr;
use crate::nexthop::NextHopId;

/// So few lanes still on a node are finished one by one: a level of all groups costs as much as some scalar walks.
const FEW: u32 = 4;
/// The same for IPv6, where only the columns of 8 groups are counted.
const FEW_COLUMNS: u32 = 2;
/// Sparse levels of IPv6 after which that is worth a look: 26, 32, 38 and 44 in today's tables.
const COMMON_LEVELS: u32 = 4;

const CHILD_BITS: i32 = 0x3fff_ffff;
const DENSE_BIT: i32 = 1 << 30;
const MISS: i32 = i32::MAX;

/// Whether this CPU has all that the functions of this file need.
pub(crate) fn available() -> bool {
    !cfg!(miri)
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512vpopcntdq")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// Looks up IPv4 addresses; whether any missed.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vpopcntdq,avx512vbmi2,popcnt,bmi1,bmi2,lzcnt"
)]
pub(crate) fn batch_v4<const BYTES: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[u32],
    out: &mut [NextHopId],
    on_miss: NextHopId,
) -> bool {
    let mut missed = 0;
    let (blocks, rest) = addrs.as_chunks::<64>();
    let (outs, rest_out) = out.as_chunks_mut::<64>();
    for (addrs, out) in blocks.iter().zip(outs) {
        missed |= lanes_v4::<BYTES, 4, 64>(nodes, root, addrs, out, on_miss);
    }
    // The rest is padded with its last address, which costs nothing but lanes.
    let Some(&last) = rest.last() else { return missed != 0 };
    let mut found = [NextHopId::MAX; 64];
    let mut padded = [last; 64];
    padded[..rest.len()].copy_from_slice(rest);
    missed |= match rest.len() {
        0..=16 => lanes_v4::<BYTES, 1, 64>(nodes, root, &padded, &mut found, on_miss),
        17..=32 => lanes_v4::<BYTES, 2, 64>(nodes, root, &padded, &mut found, on_miss),
        _ => lanes_v4::<BYTES, 4, 64>(nodes, root, &padded, &mut found, on_miss),
    };
    rest_out.copy_from_slice(&found[..rest.len()]);
    missed != 0
}

#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vpopcntdq,avx512vbmi2,popcnt,bmi1,bmi2,lzcnt"
)]
fn lanes_v4<const BYTES: usize, const G: usize, const N: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[u32; N],
    out: &mut [NextHopId; N],
    on_miss: NextHopId,
) -> u32 {
    const { assert!(16 * G <= N) };
    let base = nodes.base();
    let root_at = nodes.at(root.offset, 0).cast_const();
    let root_bits = _mm_cvtsi32_si128(6 * root.steps as i32);
    let root_shift = _mm_cvtsi32_si128(32 - 6 * root.steps as i32);
    let ones = _mm512_set1_epi64(-1);
    let zero = _mm512_setzero_si512();
    let slot_mask = _mm512_set1_epi32(63);

    let mut key = [zero; G];
    let mut entry = [zero; G];
    let mut at = [zero; G];
    let mut shift = [zero; G];
    let mut on_node = 0u64;
    for g in 0..G {
        // SAFETY: `addrs` has at least 16 * G elements.
        let addr = unsafe { _mm512_loadu_si512(addrs.as_ptr().add(16 * g).cast()) };
        // SAFETY: the root has 2^(6 * steps) slots, and so many are the values of the index.
        entry[g] = unsafe { _mm512_i32gather_epi32::<4>(_mm512_srl_epi32(addr, root_shift), root_at.cast()) };
        key[g] = _mm512_sll_epi32(addr, root_bits);
        on_node |= u64::from(_mm512_movepi32_mask(entry[g])) << (16 * g);
    }
    let mut level = 0;
    while on_node != 0 {
        if level > 0 && on_node.count_ones() <= FEW {
            break;
        }
        level += 1;
        for g in 0..G {
            let child = _mm512_movepi32_mask(entry[g]);
            let dense = _mm512_mask_test_epi32_mask(child, entry[g], _mm512_set1_epi32(DENSE_BIT));
            let sparse = child & !dense;
            let node = _mm512_and_si512(entry[g], _mm512_set1_epi32(CHILD_BITS));
            // Lanes that stand on no sparse node keep all ones.
            // SAFETY: masked lanes hold offsets of live sparse nodes, which start with their word.
            let words0 = unsafe {
                _mm512_mask_i32gather_epi64::<8>(ones, sparse as u8, _mm512_castsi512_si256(node), base.cast())
            };
            // SAFETY: as above.
            let words1 = unsafe {
                let upper = _mm512_extracti64x4_epi64::<1>(node);
                _mm512_mask_i32gather_epi64::<8>(ones, (sparse >> 8) as u8, upper, base.cast())
            };
            // 63 - slot: all ones shifted right by it keep the bits 0..=slot.
            let unused = _mm512_andnot_si512(_mm512_srli_epi32::<26>(key[g]), slot_mask);
            let unused0 = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(unused));
            let unused1 = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(unused));
            let rank0 = _mm512_popcnt_epi64(_mm512_and_si512(words0, _mm512_srlv_epi64(ones, unused0)));
            let rank1 = _mm512_popcnt_epi64(_mm512_and_si512(words1, _mm512_srlv_epi64(ones, unused1)));
            let rank = _mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm512_cvtepi64_epi32(rank0)),
                _mm512_cvtepi64_epi32(rank1),
            );
            let stored = _mm512_sub_epi32(rank, _mm512_set1_epi32(1));
            // Units of 4 bytes: the node's offset twice, its word, and the 32 bits that the stored slot lies in.
            let start = _mm512_add_epi32(_mm512_slli_epi32::<1>(node), _mm512_set1_epi32(2));
            (at[g], shift[g]) = match BYTES {
                1 => (
                    _mm512_add_epi32(start, _mm512_srli_epi32::<2>(stored)),
                    _mm512_slli_epi32::<3>(_mm512_and_si512(stored, _mm512_set1_epi32(3))),
                ),
                2 => (
                    _mm512_add_epi32(start, _mm512_srli_epi32::<1>(stored)),
                    _mm512_slli_epi32::<4>(_mm512_and_si512(stored, _mm512_set1_epi32(1))),
                ),
                _ => (_mm512_add_epi32(start, stored), zero),
            };
            key[g] = if dense == 0 {
                _mm512_slli_epi32::<6>(key[g])
            } else {
                let steps = _mm512_and_si512(_mm512_srli_epi32::<27>(entry[g]), _mm512_set1_epi32(7));
                let bits = _mm512_mullo_epi32(steps, _mm512_set1_epi32(6));
                let index = _mm512_srlv_epi32(key[g], _mm512_sub_epi32(_mm512_set1_epi32(32), bits));
                let start = _mm512_slli_epi32::<6>(_mm512_and_si512(entry[g], _mm512_set1_epi32(0x07ff_ffff)));
                at[g] = _mm512_mask_add_epi32(at[g], dense, start, index);
                shift[g] = _mm512_mask_mov_epi32(shift[g], dense, zero);
                _mm512_sllv_epi32(key[g], _mm512_mask_mov_epi32(_mm512_set1_epi32(6), dense, bits))
            };
        }
        on_node = 0;
        for g in 0..G {
            let child = _mm512_movepi32_mask(entry[g]);
            // SAFETY: masked lanes index a slot of a live node; the 32 bits around a narrow one end inside the block or
            // the arena's padding.
            let loaded = unsafe { _mm512_mask_i32gather_epi32::<4>(entry[g], child, at[g], base.cast()) };
            if BYTES == 4 {
                entry[g] = loaded;
            } else {
                let dense = _mm512_mask_test_epi32_mask(child, entry[g], _mm512_set1_epi32(DENSE_BIT));
                let sparse = child & !dense;
                let narrow = _mm512_and_si512(
                    _mm512_srlv_epi32(loaded, shift[g]),
                    _mm512_set1_epi32(if BYTES == 1 { 0xff } else { 0xffff }),
                );
                let narrow_miss = _mm512_set1_epi32(if BYTES == 1 { 0x7f } else { 0x7fff });
                let goes_on = _mm512_mask_cmpgt_epi32_mask(sparse, narrow, narrow_miss);
                let is_miss = _mm512_mask_cmpeq_epi32_mask(sparse, narrow, narrow_miss);
                let before = entry[g];
                entry[g] = _mm512_mask_mov_epi32(loaded, sparse, narrow);
                entry[g] = _mm512_mask_mov_epi32(entry[g], is_miss, _mm512_set1_epi32(MISS));
                if goes_on != 0 {
                    entry[g] = narrow_children::<BYTES>(nodes, before, entry[g], goes_on);
                }
            }
            on_node |= u64::from(_mm512_movepi32_mask(entry[g])) << (16 * g);
        }
    }
    let mut missed = 0;
    for g in 0..G {
        let is_miss = _mm512_cmpeq_epi32_mask(entry[g], _mm512_set1_epi32(MISS));
        missed |= u32::from(is_miss);
        let answer = _mm512_mask_mov_epi32(entry[g], is_miss, _mm512_set1_epi32(on_miss.get() as i32));
        // SAFETY: `out` has at least 16 * G elements of 4 bytes; lanes still on a node are overwritten below.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(16 * g).cast(), answer) };
    }
    while on_node != 0 {
        let lane = on_node.trailing_zeros() as usize;
        on_node &= on_node - 1;
        let slot = walk::<u32, BYTES>(nodes, root, addrs[lane]);
        out[lane] = slot.next_hop().unwrap_or(on_miss);
        missed |= u32::from(slot == Slot::MISS);
    }
    missed
}

/// Follows the children of narrow nodes: `before` holds the nodes, `entry` the children's numbers in the lanes of `goes_on`.
#[inline(never)]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vpopcntdq,avx512vbmi2,popcnt,bmi1,bmi2,lzcnt"
)]
fn narrow_children<const BYTES: usize>(nodes: Nodes, before: __m512i, entry: __m512i, goes_on: __mmask16) -> __m512i {
    let (mut parents, mut slots) = ([0u32; 16], [0u32; 16]);
    // SAFETY: both arrays have 64 bytes.
    unsafe {
        _mm512_storeu_si512(parents.as_mut_ptr().cast(), before);
        _mm512_storeu_si512(slots.as_mut_ptr().cast(), entry);
    }
    let mut lanes = goes_on;
    while lanes != 0 {
        let lane = lanes.trailing_zeros() as usize;
        lanes &= lanes - 1;
        let parent = Slot::from_raw(parents[lane]).sparse_offset();
        slots[lane] = nodes.narrow_child_slot::<BYTES>(parent, slots[lane]).raw();
    }
    // SAFETY: as above.
    unsafe { _mm512_loadu_si512(slots.as_ptr().cast()) }
}

/// Looks up IPv6 addresses in a trie of 32-bit slots; whether any missed.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vpopcntdq,avx512vbmi2,popcnt,bmi1,bmi2,lzcnt"
)]
pub(crate) fn batch_v6(nodes: Nodes, root: Root, addrs: &[u128], out: &mut [NextHopId], on_miss: NextHopId) -> bool {
    let mut missed = 0;
    let (blocks, rest) = addrs.as_chunks::<64>();
    let (outs, rest_out) = out.as_chunks_mut::<64>();
    for (addrs, out) in blocks.iter().zip(outs) {
        missed |= lanes_v6::<8, 64>(nodes, root, addrs, out, on_miss);
    }
    let Some(&last) = rest.last() else { return missed != 0 };
    let mut found = [NextHopId::MAX; 64];
    let mut padded = [last; 64];
    padded[..rest.len()].copy_from_slice(rest);
    missed |= match rest.len() {
        0..=8 => lanes_v6::<1, 64>(nodes, root, &padded, &mut found, on_miss),
        9..=16 => lanes_v6::<2, 64>(nodes, root, &padded, &mut found, on_miss),
        17..=32 => lanes_v6::<4, 64>(nodes, root, &padded, &mut found, on_miss),
        _ => lanes_v6::<8, 64>(nodes, root, &padded, &mut found, on_miss),
    };
    rest_out.copy_from_slice(&found[..rest.len()]);
    missed != 0
}

#[inline]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vpopcntdq,avx512vbmi2,popcnt,bmi1,bmi2,lzcnt"
)]
fn lanes_v6<const G: usize, const N: usize>(
    nodes: Nodes,
    root: Root,
    addrs: &[u128; N],
    out: &mut [NextHopId; N],
    on_miss: NextHopId,
) -> u32 {
    const { assert!(8 * G <= N) };
    let base = nodes.base();
    let root_at = nodes.at(root.offset, 0).cast_const();
    let root_bits = 6 * root.steps as i32 - u128::LEAD as i32;
    let root_shift = _mm_cvtsi32_si128(64 - root_bits);
    let ones = _mm512_set1_epi64(-1);
    let zero = _mm512_setzero_si512();
    let slot_mask = _mm512_set1_epi64(63);
    let unset = _mm256_set1_epi32(MISS);

    let mut key = [zero; G];
    let mut entry = [unset; G];
    let mut at = [unset; G];
    // Bits consumed when the key was loaded, less one from the second time on.
    let mut loaded_at = [zero; G];
    for g in 0..G {
        let upper = upper_halves(addrs, 8 * g);
        // SAFETY: the root has 2^root_bits slots, and so many are the values of the index.
        entry[g] = unsafe { _mm512_i64gather_epi32::<4>(_mm512_srl_epi64(upper, root_shift), root_at.cast()) };
        // Right behind its last bit a key carries a one, which tells how many bits are left.
        key[g] = _mm512_or_si512(
            _mm512_sll_epi64(upper, _mm_cvtsi32_si128(root_bits)),
            _mm512_set1_epi64(1 << (root_bits - 1)),
        );
    }
    // The most bits that a lane can have consumed since its key was loaded.
    let mut most_consumed = root_bits;
    let mut level = 0;
    loop {
        // Children are the largest entries, dense ones larger than sparse ones: the largest of all groups tells by its upper
        // two bits whether there is any of either.
        let mut largest = entry[0];
        for g in 1..G {
            largest = _mm256_max_epu32(largest, entry[g]);
        }
        let on_node = _mm256_movepi32_mask(largest);
        let on_dense = on_node & _mm256_movepi32_mask(_mm256_slli_epi32::<1>(largest));
        if on_node == 0 || level >= COMMON_LEVELS && on_node.count_ones() <= FEW_COLUMNS {
            break;
        }
        if most_consumed > 52 {
            // A node may ask for 12 bits: load the keys anew where fewer are left.
            for g in 0..G {
                (key[g], loaded_at[g]) = refill(addrs, 8 * g, key[g], loaded_at[g]);
            }
            most_consumed = 1;
        }
        // One kind of node at a time, for all groups: which kind comes when is alike for whole traffics, so it predicts well.
        if on_dense != 0 {
            for g in 0..G {
                let dense = _mm256_movepi32_mask(entry[g]) & _mm256_movepi32_mask(_mm256_slli_epi32::<1>(entry[g]));
                let steps = _mm256_and_si256(_mm256_srli_epi32::<27>(entry[g]), _mm256_set1_epi32(7));
                let bits = _mm512_cvtepu32_epi64(_mm256_mullo_epi32(steps, _mm256_set1_epi32(6)));
                let index = _mm512_srlv_epi64(key[g], _mm512_sub_epi64(_mm512_set1_epi64(64), bits));
                let start = _mm256_slli_epi32::<6>(_mm256_and_si256(entry[g], _mm256_set1_epi32(0x07ff_ffff)));
                let at = _mm256_add_epi32(start, _mm512_cvtepi64_epi32(index));
                // SAFETY: masked lanes index a slot of a live dense node.
                entry[g] = unsafe { _mm256_mmask_i32gather_epi32::<4>(entry[g], dense, at, base.cast()) };
                key[g] = _mm512_mask_sllv_epi64(key[g], dense, key[g], bits);
            }
            most_consumed += 12;
        } else {
            level += 1;
            for g in 0..G {
                let sparse = _mm256_movepi32_mask(entry[g]);
                let node = _mm256_and_si256(entry[g], _mm256_set1_epi32(CHILD_BITS));
                // SAFETY: masked lanes hold offsets of live sparse nodes, which start with their word.
                let words = unsafe { _mm512_mask_i32gather_epi64::<8>(ones, sparse, node, base.cast()) };
                let unused = _mm512_andnot_si512(_mm512_srli_epi64::<58>(key[g]), slot_mask);
                let rank = _mm512_popcnt_epi64(_mm512_and_si512(words, _mm512_srlv_epi64(ones, unused)));
                // Units of 4 bytes: offset twice, the word, rank - 1 slots.
                at[g] = _mm256_add_epi32(
                    _mm256_add_epi32(_mm256_slli_epi32::<1>(node), _mm512_cvtepi64_epi32(rank)),
                    _mm256_set1_epi32(1),
                );
                key[g] = _mm512_slli_epi64::<6>(key[g]);
            }
            for g in 0..G {
                let sparse = _mm256_movepi32_mask(entry[g]);
                // SAFETY: masked lanes index a slot of a live sparse node.
                entry[g] = unsafe { _mm256_mmask_i32gather_epi32::<4>(entry[g], sparse, at[g], base.cast()) };
            }
            most_consumed += 6;
        }
    }
    let mut on_node = 0u64;
    let mut missed = 0;
    for g in 0..G {
        let is_miss = _mm256_cmpeq_epi32_mask(entry[g], unset);
        missed |= u32::from(is_miss);
        let answer = _mm256_mask_mov_epi32(entry[g], is_miss, _mm256_set1_epi32(on_miss.get() as i32));
        // SAFETY: `out` has at least 8 * G elements of 4 bytes; lanes still on a node are overwritten below.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(8 * g).cast(), answer) };
        on_node |= u64::from(_mm256_movepi32_mask(entry[g])) << (8 * g);
    }
    while on_node != 0 {
        let lane = on_node.trailing_zeros() as usize;
        on_node &= on_node - 1;
        let slot = walk::<u128, 4>(nodes, root, addrs[lane]);
        out[lane] = slot.next_hop().unwrap_or(on_miss);
        missed |= u32::from(slot == Slot::MISS);
    }
    missed
}

/// The upper halves of 8 addresses from `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn upper_halves<const N: usize>(addrs: &[u128; N], first: usize) -> __m512i {
    let (a, b) = load_eight(addrs, first);
    // A u128 is stored lower half first.
    _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b)
}

/// Loads the keys of 8 addresses from `first` on anew, from the bit on that each has come to: 63 bits and the one behind.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512dq,avx512cd,avx512vbmi2")]
fn refill<const N: usize>(addrs: &[u128; N], first: usize, key: __m512i, loaded_at: __m512i) -> (__m512i, __m512i) {
    let (a, b) = load_eight(addrs, first);
    let upper = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
    let lower = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    // The one stands at the bit below the consumed ones: position + 1 bits are consumed since the key was loaded. A lane
    // that has long ended may have lost it; its key is of no account any more.
    let zero = _mm512_setzero_si512();
    let lowest = _mm512_and_si512(key, _mm512_sub_epi64(zero, key));
    let consumed = _mm512_add_epi64(loaded_at, _mm512_sub_epi64(_mm512_set1_epi64(64), _mm512_lzcnt_epi64(lowest)));
    let inside = _mm512_cmplt_epi64_mask(consumed, _mm512_set1_epi64(64));
    // The funnel shift takes its count modulo 64; plain shifts by 64 and more give 0.
    let straddling = _mm512_shldv_epi64(upper, lower, consumed);
    let behind = _mm512_sllv_epi64(lower, _mm512_sub_epi64(consumed, _mm512_set1_epi64(64)));
    let bits = _mm512_mask_mov_epi64(behind, inside, straddling);
    let one = _mm512_set1_epi64(1);
    (_mm512_or_si512(_mm512_andnot_si512(one, bits), one), _mm512_sub_epi64(consumed, one))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_eight<const N: usize>(addrs: &[u128; N], first: usize) -> (__m512i, __m512i) {
    debug_assert!(first + 8 <= N);
    let at = addrs[first..].as_ptr();
    // SAFETY: 8 addresses of 16 bytes from `first` on, as asserted by the caller's constant bound.
    unsafe { (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(4).cast())) }
}
