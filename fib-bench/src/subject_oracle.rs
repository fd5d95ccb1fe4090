//! The independent method: one hash map per prefix length, probed longest first.
//!
//! It shares no code with the library's trie or Rib, takes no care to be fast, and is right by inspection.
//! Ordered questions (`within`, `routes`) collect and sort.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use fib::{Addr, Family, NextHopId, Prefix};
use ipnet::IpNet;

use crate::failure::Failure;
use crate::subject::{LookupMode, MISS, RouteEntry, Shape, Subject, SubjectAddr, family_of};

/// A multiply-and-fold hash: the default hasher is several times slower, and nobody attacks this table.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }
    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0.rotate_left(29) ^ key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
    fn write_u128(&mut self, key: u128) {
        self.write_u64((key >> 64) as u64);
        self.write_u64(key as u64);
    }
}

type LengthMap<A> = HashMap<A, NextHopId, BuildHasherDefault<KeyHasher>>;

#[derive(Debug)]
struct Maps<A> {
    by_len: Vec<LengthMap<A>>,
}

impl<A: Addr> Maps<A> {
    fn new() -> Self {
        Maps { by_len: (0..=A::BITS).map(|_| LengthMap::default()).collect() }
    }

    fn lookup(&self, addr: A) -> Option<(u8, NextHopId)> {
        self.matches(addr).next_back()
    }

    /// Every match of `addr`, shortest first.
    fn matches(&self, addr: A) -> impl DoubleEndedIterator<Item = (u8, NextHopId)> + '_ {
        (0..=A::BITS).zip(&self.by_len).filter(|(_, map)| !map.is_empty()).filter_map(move |(len, map)| {
            map.get(&addr.and(A::mask(len))).map(|&next_hop| (len, next_hop))
        })
    }

    fn within(&self, outer: Prefix<A>) -> Vec<RouteEntry> {
        let mut found: Vec<(Prefix<A>, NextHopId)> = (outer.len()..=A::BITS)
            .zip(&self.by_len[usize::from(outer.len())..])
            .flat_map(|(len, map)| map.iter().map(move |(&addr, &next_hop)| (addr, len, next_hop)))
            .filter(|&(addr, ..)| outer.contains(addr))
            .filter_map(|(addr, len, next_hop)| Some((Prefix::new(addr, len).ok()?, next_hop)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(prefix, next_hop)| (prefix.to_ipnet(), next_hop)).collect()
    }

    fn count(&self) -> usize {
        self.by_len.iter().map(HashMap::len).sum()
    }

    fn lookup_all(&self, addrs: &[A], out: &mut [NextHopId]) {
        for (addr, out) in addrs.iter().zip(out) {
            *out = self.lookup(*addr).map_or(MISS, |(_, next_hop)| next_hop);
        }
    }
}

/// Hash maps per length for both families.
#[derive(Debug)]
pub struct Oracle {
    v4: Maps<u32>,
    v6: Maps<u128>,
}

impl Default for Oracle {
    fn default() -> Self {
        Oracle::new()
    }
}

impl Oracle {
    /// An empty table.
    pub fn new() -> Self {
        Oracle { v4: Maps::new(), v6: Maps::new() }
    }

    /// A table with these routes; of two routes with the same prefix the later one stays.
    pub fn with_routes(routes: &[RouteEntry]) -> Self {
        let mut oracle = Oracle::new();
        for &(prefix, next_hop) in routes {
            oracle.set(prefix, next_hop);
        }
        oracle
    }

    /// Inserts or replaces.
    pub fn set(&mut self, prefix: IpNet, next_hop: NextHopId) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(net) => self.v4.by_len[usize::from(net.prefix_len())].insert(net.network().to_bits(), next_hop),
            IpNet::V6(net) => self.v6.by_len[usize::from(net.prefix_len())].insert(net.network().to_bits(), next_hop),
        }
    }

    /// Removes.
    pub fn unset(&mut self, prefix: IpNet) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(net) => self.v4.by_len[usize::from(net.prefix_len())].remove(&net.network().to_bits()),
            IpNet::V6(net) => self.v6.by_len[usize::from(net.prefix_len())].remove(&net.network().to_bits()),
        }
    }

    fn matches(&self, addr: IpAddr) -> Vec<RouteEntry> {
        fn entries<A: Addr>(maps: &Maps<A>, addr: A) -> Vec<RouteEntry> {
            let entry = |(len, next_hop)| Some((Prefix::truncating(addr, len).ok()?.to_ipnet(), next_hop));
            maps.matches(addr).filter_map(entry).collect()
        }
        match addr {
            IpAddr::V4(addr) => entries(&self.v4, addr.to_bits()),
            IpAddr::V6(addr) => entries(&self.v6, addr.to_bits()),
        }
    }
}

fn prefix_of<A: SubjectAddr>(prefix: IpNet) -> Option<Prefix<A>> {
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
            IpNet::V4(net) => self.v4.by_len[usize::from(net.prefix_len())].get(&net.addr().to_bits()).copied(),
            IpNet::V6(net) => self.v6.by_len[usize::from(net.prefix_len())].get(&net.addr().to_bits()).copied(),
        }
    }
    fn lookup(&mut self, addr: IpAddr) -> Result<Option<NextHopId>, Failure> {
        Ok(self.lookup_match(addr).map(|(_, next_hop)| next_hop))
    }
    fn lookup_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.matches(addr).pop()
    }
    fn shortest_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.matches(addr).first().copied()
    }
    fn covering(&mut self, addr: IpAddr) -> Vec<RouteEntry> {
        self.matches(addr)
    }
    fn within(&mut self, prefix: IpNet) -> Vec<RouteEntry> {
        match family_of(prefix) {
            Family::V4 => prefix_of(prefix).map_or(Vec::new(), |outer| self.v4.within(outer)),
            Family::V6 => prefix_of(prefix).map_or(Vec::new(), |outer| self.v6.within(outer)),
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
            Family::V4 => self.v4.count(),
            Family::V6 => self.v6.count(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of longest match: read every route.
    fn by_definition(routes: &[RouteEntry], addr: IpAddr) -> Option<NextHopId> {
        routes.iter().filter(|(net, _)| net.contains(&addr)).max_by_key(|(net, _)| net.prefix_len()).map(|entry| entry.1)
    }

    #[test]
    fn agrees_with_the_definition() {
        let routes: Vec<RouteEntry> = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1/32", "::/0", "2001:db8::/32"]
            .iter()
            .zip(1..)
            .map(|(text, id)| (text.parse().unwrap(), NextHopId::new(id).unwrap()))
            .collect();
        let mut oracle = Oracle::with_routes(&routes);
        for text in ["10.1.1.1", "10.1.1.2", "10.2.0.0", "9.255.255.255", "11.0.0.0", "2001:db8::1", "2001:db9::"] {
            let addr = text.parse().unwrap();
            assert_eq!(oracle.lookup(addr).unwrap(), by_definition(&routes, addr), "{text}");
        }
        assert_eq!(oracle.covering("10.1.1.1".parse().unwrap()), routes[..4].to_vec());
        assert_eq!(oracle.within("10.0.0.0/8".parse().unwrap()), routes[1..4].to_vec());
        assert_eq!(oracle.remove(routes[0].0).unwrap(), Some(routes[0].1));
        assert_eq!(oracle.lookup("9.0.0.0".parse().unwrap()).unwrap(), None);
        assert_eq!(oracle.prefix_count(Family::V4), 3);
        assert!(!oracle.insert_if_absent(routes[1].0, MISS).unwrap());
        assert_eq!(oracle.get(routes[1].0), Some(routes[1].1));
    }
}
