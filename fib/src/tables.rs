//! Where readers find a table's descriptor by its number, without a lock.
//!
//! Descriptors live in chunks of doubling size that never move; a chunk, and a descriptor in it, is written once.
//!
//! ```text
//! chunk 0: tables 0..64    chunk 1: 64..192    chunk 2: 192..448    ...    16 chunks: 4,194,240 tables
//! ```

use std::sync::OnceLock;

use crate::error::{FibError, OutOfMemory, Resource};
use crate::failpoint;
use crate::trie::node::Descriptor;

/// The number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub(crate) u32);

impl TableId {
    /// The table that every `Fib` has from the start.
    pub const MAIN: TableId = TableId(0);

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

const CHUNKS: usize = 16;
const FIRST_CHUNK: usize = 64;

/// Tables that a `Fib` can have.
pub(crate) const MAX_TABLES: usize = FIRST_CHUNK * ((1 << CHUNKS) - 1);

type Chunk = Box<[OnceLock<Descriptor>]>;

/// The descriptors of all tables, by number. Table 0 stands outside the chunks, since it is there from the start.
pub(crate) struct Directory {
    main: Descriptor,
    chunks: [OnceLock<Chunk>; CHUNKS],
}

impl Directory {
    pub(crate) fn new(main: Descriptor) -> Self {
        Directory { main, chunks: Default::default() }
    }

    /// The descriptor of table 0.
    #[inline(always)]
    pub(crate) fn main(&self) -> &Descriptor {
        &self.main
    }

    #[inline(always)]
    fn place(id: usize) -> (usize, usize) {
        // Chunk c starts at FIRST_CHUNK * (2^c - 1).
        let chunk = (id / FIRST_CHUNK + 1).ilog2() as usize;
        (chunk, id - FIRST_CHUNK * ((1 << chunk) - 1))
    }

    /// The descriptor of table `id`, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, id: TableId) -> Option<&Descriptor> {
        if id == TableId::MAIN {
            return Some(&self.main);
        }
        let (chunk, index) = Self::place(id.0 as usize);
        self.chunks.get(chunk)?.get()?.get(index)?.get()
    }

    /// Makes sure that [`Directory::publish`] of table `id` cannot fail.
    pub(crate) fn reserve(&self, id: usize) -> Result<(), FibError> {
        if id >= MAX_TABLES {
            return Err(FibError::TooManyTables { max: MAX_TABLES });
        }
        let (chunk, _) = Self::place(id);
        if self.chunks[chunk].get().is_none() {
            let slots = FIRST_CHUNK << chunk;
            let refused =
                OutOfMemory { resource: Resource::Tables, bytes: slots * size_of::<OnceLock<Descriptor>>(), limit: 0 };
            let mut descriptors = Vec::new();
            if failpoint::fails() {
                return Err(refused.into());
            }
            descriptors.try_reserve_exact(slots).map_err(|_| refused)?;
            descriptors.resize_with(slots, OnceLock::new);
            // Only the one writer fills chunks, so this is the first value.
            let _ = self.chunks[chunk].set(descriptors.into_boxed_slice());
        }
        Ok(())
    }

    /// Publishes the descriptor of the new table `id`, for which room was reserved.
    pub(crate) fn publish(&self, id: TableId, descriptor: Descriptor) {
        let (chunk, index) = Self::place(id.0 as usize);
        if let Some(chunk) = self.chunks[chunk].get() {
            let published = chunk[index].set(descriptor);
            debug_assert!(published.is_ok(), "table {id} published twice");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense() {
        let mut expected = (0, 0);
        for id in 0..100_000 {
            assert_eq!(Directory::place(id), expected, "{id}");
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(Directory::place(MAX_TABLES - 1), (CHUNKS - 1, (FIRST_CHUNK << (CHUNKS - 1)) - 1));
    }
}
