//! The Rust crates that users would take. None of them has a lookup for many addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fib::Addr;
use ip_network_table_deps_treebitmap::IpLookupTable;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use ts_bart::RoutingTable;

use super::{MemoryUse, PeerAddr, PeerRoute, SingleTable};

/// `prefix-trie`'s map, with its leanest kind of prefix: a number and a length.
#[derive(Debug)]
pub struct PrefixTrie<P: prefix_trie::Prefix>(pub PrefixMap<P, u32>);

macro_rules! prefix_trie_table {
    ($($addr:ty),*) => { $(
        impl SingleTable<$addr> for PrefixTrie<($addr, u8)> {
            fn set(&mut self, route: PeerRoute<$addr>) {
                self.0.insert((route.addr, route.len), route.next_hop);
            }
            fn unset(&mut self, route: PeerRoute<$addr>) -> bool {
                self.0.remove(&(route.addr, route.len)).is_some()
            }
            #[inline(always)]
            fn look_up(&self, addr: $addr) -> u32 {
                self.0.get_lpm(&(addr, <$addr as Addr>::BITS)).map_or(0, |(_, &next_hop)| next_hop)
            }
            fn memory_use(&self) -> MemoryUse {
                let bytes = Some(self.0.mem_size());
                MemoryUse { lookup_bytes: bytes, total_bytes: bytes, next_hop_bits: Some(32) }
            }
        }
    )* };
}
prefix_trie_table!(u32, u128);

/// `ip_network_table`'s tree bitmap.
pub struct TreeBitmap<K: TreeBitmapKey>(pub IpLookupTable<K, u32>);

impl<K: TreeBitmapKey> std::fmt::Debug for TreeBitmap<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TreeBitmap")
    }
}

/// `Ipv4Addr` or `Ipv6Addr`, from our numbers.
pub trait TreeBitmapKey: ip_network_table_deps_treebitmap::address::Address {
    /// The number type.
    type Number: PeerAddr;
    /// The address of a number.
    fn of(number: Self::Number) -> Self;
}

impl TreeBitmapKey for Ipv4Addr {
    type Number = u32;
    #[inline(always)]
    fn of(number: u32) -> Self {
        Ipv4Addr::from_bits(number)
    }
}

impl TreeBitmapKey for Ipv6Addr {
    type Number = u128;
    #[inline(always)]
    fn of(number: u128) -> Self {
        Ipv6Addr::from_bits(number)
    }
}

impl<K: TreeBitmapKey> SingleTable<K::Number> for TreeBitmap<K> {
    fn set(&mut self, route: PeerRoute<K::Number>) {
        self.0.insert(K::of(route.addr), u32::from(route.len), route.next_hop);
    }
    fn unset(&mut self, route: PeerRoute<K::Number>) -> bool {
        self.0.remove(K::of(route.addr), u32::from(route.len)).is_some()
    }
    #[inline(always)]
    fn look_up(&self, addr: K::Number) -> u32 {
        self.0.longest_match(K::of(addr)).map_or(0, |(_, _, &next_hop)| next_hop)
    }
    fn memory_use(&self) -> MemoryUse {
        let (nodes, results) = self.0.mem_usage();
        let bytes = Some(nodes + results);
        MemoryUse { lookup_bytes: bytes, total_bytes: bytes, next_hop_bits: Some(32) }
    }
}

/// `ts_bart`'s table. It cannot tell its size.
pub struct Bart(pub ts_bart::Table<u32>);

impl std::fmt::Debug for Bart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bart")
    }
}

fn net<A: Addr>(route: PeerRoute<A>) -> IpNet {
    // `new` refuses only lengths that a prefix of the family cannot have, and the routes come from prefixes.
    match route.addr.to_ip() {
        IpAddr::V4(addr) => IpNet::V4(Ipv4Net::new(addr, route.len).unwrap_or_default()),
        IpAddr::V6(addr) => IpNet::V6(Ipv6Net::new(addr, route.len).unwrap_or_default()),
    }
}

impl<A: PeerAddr> SingleTable<A> for Bart {
    fn set(&mut self, route: PeerRoute<A>) {
        self.0.insert(net(route), route.next_hop);
    }
    fn unset(&mut self, route: PeerRoute<A>) -> bool {
        self.0.remove(net(route)).is_some()
    }
    #[inline(always)]
    fn look_up(&self, addr: A) -> u32 {
        self.0.lookup(addr.to_ip()).copied().unwrap_or(0)
    }
}
