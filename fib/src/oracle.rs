//! Slow and obvious tables that say what the answer is: for tests, fuzzing and verification.
//!
//! [`LinearTable`] reads every route for every question. It is right by inspection, and too slow for more than some
//! thousands of routes. [`HashTable`] keeps a hash map per prefix length and probes them from the longest on; it is
//! fast enough to check full tables, and is itself tested against the first.

use std::collections::HashMap;

use crate::addr::Addr;
use crate::nexthop::NextHopId;
use crate::prefix::Prefix;

/// Longest match by reading every route.
#[derive(Clone, Debug, Default)]
pub struct LinearTable<A: Addr> {
    routes: Vec<(Prefix<A>, NextHopId)>,
}

impl<A: Addr> LinearTable<A> {
    /// An empty table.
    pub const fn new() -> Self {
        LinearTable { routes: Vec::new() }
    }

    /// Sets the next hop of `prefix`; returns the one it had.
    pub fn insert(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> Option<NextHopId> {
        for (present, present_hop) in &mut self.routes {
            if *present == prefix {
                return Some(std::mem::replace(present_hop, next_hop));
            }
        }
        self.routes.push((prefix, next_hop));
        None
    }

    /// Removes `prefix`; returns the next hop it had.
    pub fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        let index = self.routes.iter().position(|(present, _)| *present == prefix)?;
        Some(self.routes.swap_remove(index).1)
    }

    /// Removes `prefix` and all inside it; returns how many prefixes went.
    pub fn remove_within(&mut self, prefix: Prefix<A>) -> usize {
        let before = self.routes.len();
        self.routes.retain(|(present, _)| !prefix.covers(*present));
        before - self.routes.len()
    }

    /// The next hop of exactly `prefix`.
    pub fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.routes.iter().find(|(present, _)| *present == prefix).map(|(_, next_hop)| *next_hop)
    }

    /// The longest prefix that covers `addr`, and its next hop.
    pub fn lookup(&self, addr: A) -> Option<(Prefix<A>, NextHopId)> {
        self.routes.iter().filter(|(prefix, _)| prefix.contains(addr)).max_by_key(|(prefix, _)| prefix.len()).copied()
    }

    /// All prefixes that cover `prefix`, itself included, shortest first.
    pub fn covering(&self, prefix: Prefix<A>) -> Vec<Prefix<A>> {
        let mut found: Vec<_> = self.routes.iter().map(|route| route.0).filter(|outer| outer.covers(prefix)).collect();
        found.sort_unstable();
        found
    }

    /// All prefixes inside `prefix`, itself included, by address and then length.
    pub fn within(&self, prefix: Prefix<A>) -> Vec<Prefix<A>> {
        let mut found: Vec<_> = self.routes.iter().map(|route| route.0).filter(|inner| prefix.covers(*inner)).collect();
        found.sort_unstable();
        found
    }

    /// All routes, in no particular order.
    pub fn routes(&self) -> &[(Prefix<A>, NextHopId)] {
        &self.routes
    }
}

/// Longest match by probing one hash map per prefix length, longest first.
#[derive(Clone, Debug)]
pub struct HashTable<A: Addr> {
    by_len: Vec<HashMap<A, NextHopId>>,
    len: usize,
}

impl<A: Addr> Default for HashTable<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Addr> HashTable<A> {
    /// An empty table.
    pub fn new() -> Self {
        HashTable { by_len: vec![HashMap::new(); usize::from(A::BITS) + 1], len: 0 }
    }

    /// Sets the next hop of `prefix`; returns the one it had.
    pub fn insert(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> Option<NextHopId> {
        let replaced = self.by_len[usize::from(prefix.len())].insert(prefix.addr(), next_hop);
        self.len += usize::from(replaced.is_none());
        replaced
    }

    /// Removes `prefix`; returns the next hop it had.
    pub fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        let removed = self.by_len[usize::from(prefix.len())].remove(&prefix.addr());
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// The next hop of exactly `prefix`.
    pub fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.by_len[usize::from(prefix.len())].get(&prefix.addr()).copied()
    }

    /// The longest prefix that covers `addr`, and its next hop.
    pub fn lookup(&self, addr: A) -> Option<(Prefix<A>, NextHopId)> {
        self.by_len.iter().enumerate().rev().filter(|(_, map)| !map.is_empty()).find_map(|(len, map)| {
            let prefix = Prefix::truncating(addr, len as u8).ok()?;
            map.get(&prefix.addr()).map(|next_hop| (prefix, *next_hop))
        })
    }

    /// Prefixes in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hash_table_answers_as_the_linear_one(
            ops in prop::collection::vec((any::<u32>(), 0u8..=32, 0u32..4, any::<bool>()), 0..60),
            addrs in prop::collection::vec(any::<u32>(), 20),
        ) {
            let (mut linear, mut hashed) = (LinearTable::<u32>::new(), HashTable::<u32>::new());
            for (addr, len, hop, insert) in ops {
                // Few addresses, so that prefixes nest and come again.
                let prefix = Prefix::truncating(addr & 0xc000_8181, len).unwrap();
                let hop = NextHopId::new(hop).unwrap();
                if insert {
                    prop_assert_eq!(linear.insert(prefix, hop), hashed.insert(prefix, hop));
                } else {
                    prop_assert_eq!(linear.remove(prefix), hashed.remove(prefix));
                }
                prop_assert_eq!(linear.get(prefix), hashed.get(prefix));
                for addr in [prefix.addr(), prefix.last(), prefix.addr().wrapping_prev(), prefix.last().wrapping_next()] {
                    prop_assert_eq!(linear.lookup(addr), hashed.lookup(addr));
                }
                prop_assert_eq!(linear.routes().len(), hashed.len());
            }
            for addr in addrs {
                prop_assert_eq!(linear.lookup(addr), hashed.lookup(addr));
            }
        }
    }
}
