//! The independent method: the library's hash-map oracle for lookups, an ordered map for everything else.
//!
//! It shares no code with the trie or the Rib and takes no care to be fast. [`HashTable`] probes one hash map per
//! prefix length, longest first, and is model-tested in the library against a table that reads every route.

use std::collections::BTreeMap;
use std::net::IpAddr;

use fib::oracle::HashTable;
use fib::{Addr, Family, NextHopId, Prefix};
use ipnet::IpNet;

use crate::failure::Failure;
use crate::subject::{LookupMode, MISS, RouteEntry, Shape, Subject, SubjectAddr};

#[derive(Debug)]
struct Half<A: Addr> {
    by_len: HashTable<A>,
    ordered: BTreeMap<Prefix<A>, NextHopId>,
}

impl<A: Addr> Half<A> {
    fn new() -> Self {
        Half { by_len: HashTable::new(), ordered: BTreeMap::new() }
    }

    fn set(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> Option<NextHopId> {
        self.ordered.insert(prefix, next_hop);
        self.by_len.insert(prefix, next_hop)
    }

    fn unset(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.ordered.remove(&prefix);
        self.by_len.remove(prefix)
    }

    fn covering(&self, addr: A) -> Vec<RouteEntry> {
        let prefixes = (0..=A::BITS).filter_map(|len| Prefix::truncating(addr, len).ok());
        prefixes.filter_map(|prefix| Some((prefix.to_ipnet(), *self.ordered.get(&prefix)?))).collect()
    }

    fn within(&self, outer: Prefix<A>) -> Vec<RouteEntry> {
        // Order is by address, then by length, so all that `outer` covers stands together from `outer` on.
        let entries = self.ordered.range(outer..).take_while(|(prefix, _)| outer.covers(**prefix));
        entries.map(|(prefix, &next_hop)| (prefix.to_ipnet(), next_hop)).collect()
    }

    fn lookup_all(&self, addrs: &[A], out: &mut [NextHopId]) {
        for (addr, out) in addrs.iter().zip(out) {
            *out = self.by_len.lookup(*addr).map_or(MISS, |(_, next_hop)| next_hop);
        }
    }
}

/// A table of both families that is right rather than fast.
#[derive(Debug)]
pub struct Oracle {
    v4: Half<u32>,
    v6: Half<u128>,
}

impl Default for Oracle {
    fn default() -> Self {
        Oracle::new()
    }
}

impl Oracle {
    /// An empty table.
    pub fn new() -> Self {
        Oracle { v4: Half::new(), v6: Half::new() }
    }

    /// A table with these routes; of two routes with the same prefix the later one stays.
    pub fn with_routes(routes: &[RouteEntry]) -> Self {
        let mut oracle = Oracle::new();
        for &(prefix, next_hop) in routes {
            oracle.set(prefix, next_hop);
        }
        oracle
    }

    /// Inserts or replaces; the next hop that was there before.
    pub fn set(&mut self, prefix: IpNet, next_hop: NextHopId) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(_) => self.v4.set(typed(prefix)?, next_hop),
            IpNet::V6(_) => self.v6.set(typed(prefix)?, next_hop),
        }
    }

    /// Removes; the next hop that was there.
    pub fn unset(&mut self, prefix: IpNet) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(_) => self.v4.unset(typed(prefix)?),
            IpNet::V6(_) => self.v6.unset(typed(prefix)?),
        }
    }
}

/// The prefix as the library's own type; `None` for the other family.
fn typed<A: SubjectAddr>(prefix: IpNet) -> Option<Prefix<A>> {
    let (addr, len) = A::key(prefix)?;
    Prefix::truncating(addr, len).ok()
}

impl Subject for Oracle {
    fn name(&self) -> &'static str {
        "oracle"
    }
    fn load(&mut self, routes: &[RouteEntry]) -> Result<(), Failure> {
        *self = Oracle::with_routes(routes);
        Ok(())
    }
    fn insert_or_replace(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<Option<NextHopId>, Failure> {
        Ok(self.set(prefix, next_hop))
    }
    fn insert_if_absent(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<bool, Failure> {
        let is_absent = self.get(prefix).is_none();
        if is_absent {
            self.set(prefix, next_hop);
        }
        Ok(is_absent)
    }
    fn remove(&mut self, prefix: IpNet) -> Result<Option<NextHopId>, Failure> {
        Ok(self.unset(prefix))
    }
    fn get(&mut self, prefix: IpNet) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(_) => self.v4.by_len.get(typed(prefix)?),
            IpNet::V6(_) => self.v6.by_len.get(typed(prefix)?),
        }
    }
    fn lookup(&mut self, addr: IpAddr) -> Result<Option<NextHopId>, Failure> {
        Ok(match addr {
            IpAddr::V4(addr) => self.v4.by_len.lookup(addr.to_bits()).map(|(_, next_hop)| next_hop),
            IpAddr::V6(addr) => self.v6.by_len.lookup(addr.to_bits()).map(|(_, next_hop)| next_hop),
        })
    }
    fn lookup_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.covering(addr).pop()
    }
    fn shortest_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.covering(addr).first().copied()
    }
    fn covering(&mut self, addr: IpAddr) -> Vec<RouteEntry> {
        match addr {
            IpAddr::V4(addr) => self.v4.covering(addr.to_bits()),
            IpAddr::V6(addr) => self.v6.covering(addr.to_bits()),
        }
    }
    fn within(&mut self, prefix: IpNet) -> Vec<RouteEntry> {
        match prefix {
            IpNet::V4(_) => typed(prefix).map_or_else(Vec::new, |outer| self.v4.within(outer)),
            IpNet::V6(_) => typed(prefix).map_or_else(Vec::new, |outer| self.v6.within(outer)),
        }
    }
    fn routes(&mut self, family: Family) -> Vec<RouteEntry> {
        match family {
            Family::V4 => self.v4.within(Prefix::DEFAULT),
            Family::V6 => self.v6.within(Prefix::DEFAULT),
        }
    }
    fn prefix_count(&mut self, family: Family) -> usize {
        match family {
            Family::V4 => self.v4.by_len.len(),
            Family::V6 => self.v6.by_len.len(),
        }
    }
    fn lookup_v4(&mut self, _: LookupMode, addrs: &[u32], out: &mut [NextHopId]) {
        self.v4.lookup_all(addrs, out);
    }
    fn lookup_v6(&mut self, _: LookupMode, addrs: &[u128], out: &mut [NextHopId]) {
        self.v6.lookup_all(addrs, out);
    }
    fn check(&mut self) -> Result<(), Failure> {
        Ok(())
    }
    fn shape(&mut self, _: Family) -> Option<Shape> {
        None
    }
    fn memory(&mut self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of longest match: read every route.
    fn by_definition(routes: &[RouteEntry], addr: IpAddr) -> Option<NextHopId> {
        routes
            .iter()
            .filter(|(net, _)| net.contains(&addr))
            .max_by_key(|(net, _)| net.prefix_len())
            .map(|entry| entry.1)
    }

    #[test]
    fn agrees_with_the_definition() {
        let routes: Vec<RouteEntry> =
            ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1/32", "::/0", "2001:db8::/32"]
                .iter()
                .zip(1..)
                .map(|(text, id)| (text.parse().unwrap(), NextHopId::new(id).unwrap()))
                .collect();
        let mut oracle = Oracle::with_routes(&routes);
        for text in ["10.1.1.1", "10.1.1.2", "10.2.0.0", "9.255.255.255", "11.0.0.0", "2001:db8::1", "2001:db9::"] {
            let addr = text.parse().unwrap();
            assert_eq!(oracle.lookup(addr).unwrap(), by_definition(&routes, addr), "{text}");
            assert_eq!(oracle.lookup_match(addr).map(|(_, next_hop)| next_hop), by_definition(&routes, addr), "{text}");
        }
        assert_eq!(oracle.covering("10.1.1.1".parse().unwrap()), routes[..4].to_vec());
        assert_eq!(oracle.within("10.0.0.0/8".parse().unwrap()), routes[1..4].to_vec());
        assert_eq!(oracle.within("10.1.0.0/17".parse().unwrap()), routes[3..4].to_vec());
        assert_eq!(oracle.remove(routes[0].0).unwrap(), Some(routes[0].1));
        assert_eq!(oracle.lookup("9.0.0.0".parse().unwrap()).unwrap(), None);
        assert_eq!(oracle.prefix_count(Family::V4), 3);
        assert_eq!(oracle.routes(Family::V4), routes[1..4].to_vec());
        assert!(!oracle.insert_if_absent(routes[1].0, MISS).unwrap());
        assert_eq!(oracle.get(routes[1].0), Some(routes[1].1));
    }
}
