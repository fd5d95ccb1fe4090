//! A level-compressed multibit trie with leaf pushing: what packets see of a table.
//!
//! The key is cut into grid steps of 6 bits (see `addr.rs`). A node stands for one step (*sparse*: 64 slots as a bit
//! map and one stored slot a run of equal neighbours) or, where a subtree is crowded, for several (*dense*: a plain
//! array). The root is always dense. Each slot holds what the longest matching prefix says there, pushed down from
//! shorter ones, so that a lookup only goes down and never back up.
//!
//! ```text
//!   IPv4 10.1.2.3 in a full table
//!
//!   descriptor --> root, dense, 3 steps: slot of bits 0..17 ---+
//!                                                              v
//!                       sparse node, bits 18..23:   word 1000...0100..   slots [ 7 | miss | child | 9 ]
//!                                                                                          |
//!                       sparse node, bits 24..29:   word 100...                            v   ... and so on
//! ```
//!
//! Invariants, asserted by `check.rs`:
//!
//! - I1: blocks lie inside the arena and do not overlap.
//! - I2: bit 0 of a word is set, and neighbouring stored slots differ: equal neighbours are merged, always.
//! - I3: a sparse node stores at least two slots; otherwise it would have been collapsed into a leaf.
//! - I4: the children of a narrow node are numbered 0, 1, ... in slot order.
//! - I5: a subtree that holds no route is a leaf.
//! - I6: a leaf slot is the value of the longest prefix that covers it, `/0` left out; the descriptor's default is
//!   the value of `/0`.
//! - I7: the root spans what its population asks for, and no dense node is so empty that it should halve.
//! - I8: the counts of nodes and bytes are those of a recount.
//! - I9: the published root is the writer's.
//!
//! | file | question it answers |
//! |---|---|
//! | `node.rs` | how is a node laid out, loaded, published? every raw pointer of the trie |
//! | `lookup.rs` | what is the longest match of an address? and how are batches looked up on this CPU? |
//! | `batch_*.rs` | how does one variant look up a batch? |
//! | `update.rs` | what must change for this route, and how is it published? |
//! | `resize.rs` | how many steps should a node span? |
//! | `arena.rs` | where does the memory come from? |
//! | `check.rs` | do the invariants hold? how is the trie filled? |

pub(crate) mod arena;
#[cfg(target_arch = "x86_64")]
mod batch_avx512;
mod batch_interleaved;
pub(crate) mod check;
pub(crate) mod lookup;
pub(crate) mod node;
pub(crate) mod resize;
pub(crate) mod update;
