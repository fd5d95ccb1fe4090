//! Figures that a caller can read: what tables hold, what memory is in use.

use crate::addr::Addr;
use crate::family::FamilyTable;
use crate::trie::check;
use crate::trie::node::{Nodes, Width};

/// What one family of a table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyStats {
    /// Prefixes that have a route.
    pub prefixes: usize,
    /// Routes, waiting ones included.
    pub routes: usize,
    /// Bytes of the trie's nodes, alignment included.
    pub trie_bytes: usize,
    /// Bytes of the Rib, reserved room included.
    pub rib_bytes: usize,
    /// Key bits that the root consumes.
    pub root_bits: u8,
    /// Bits of a stored slot in sparse nodes: 8, 16 or 32.
    pub slot_bits: u8,
    /// Dense nodes, the root included.
    pub dense_nodes: usize,
    /// Sparse nodes.
    pub sparse_nodes: usize,
    /// Nodes by the key bit that they start at, ascending; the root starts at 0.
    pub nodes_by_depth: Vec<(u8, usize)>,
    /// Slots stored in all sparse nodes.
    pub stored_slots: usize,
    /// Times that a node kept a span that no longer suits its population, because memory for another could not be had.
    pub skipped_resizes: u64,
}

/// What a table holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// Its IPv4 half.
    pub v4: FamilyStats,
    /// Its IPv6 half.
    pub v6: FamilyStats,
}

impl FamilyStats {
    pub(crate) fn of<A: Addr>(table: &FamilyTable<A>, nodes: Nodes) -> FamilyStats {
        let shape = check::shape(&table.trie, nodes);
        FamilyStats {
            prefixes: table.rib.prefix_count(),
            routes: table.rib.route_count(),
            trie_bytes: shape.counts.bytes,
            rib_bytes: table.rib.bytes(),
            root_bits: (6 * table.trie.root.steps as u32 - A::LEAD) as u8,
            slot_bits: match table.trie.root.width {
                Width::W8 => 8,
                Width::W16 => 16,
                Width::W32 => 32,
            },
            dense_nodes: shape.counts.dense_nodes,
            sparse_nodes: shape.counts.sparse_nodes,
            nodes_by_depth: shape.nodes_by_depth,
            stored_slots: shape.stored_slots,
            skipped_resizes: table.skipped_resizes,
        }
    }
}

/// Memory of a whole `Fib`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of node memory in use: live nodes of all tables, and retired ones that are not reclaimed yet.
    pub live_bytes: usize,
    /// Live bytes and free blocks between them.
    pub footprint_bytes: usize,
    /// Bytes of address space backed by the system.
    pub committed_bytes: usize,
    /// Bytes for which 2 MiB pages were asked for and accepted.
    pub huge_page_bytes: usize,
}
