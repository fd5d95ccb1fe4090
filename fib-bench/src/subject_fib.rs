//! The library itself as a subject.
//!
//! One `Fib` with its writer and one reader in the same thread; every single lookup asks both, in every way there is.

use std::net::IpAddr;

use fib::{BatchKey, Family, Fib, FibError, NextHopId, Reader, Route, RouteMatch, Writer};
use ipnet::IpNet;

use crate::failure::Failure;
use crate::subject::{LookupMode, MISS, RouteEntry, Shape, Subject};

/// Lookups per burst when they are made one by one.
const BURST: usize = 64;

/// The main table of a `Fib`.
#[derive(Debug)]
pub struct FibSubject {
    writer: Writer,
    reader: Reader,
}

/// An empty table of ours.
pub fn ours() -> Result<Box<dyn Subject>, Failure> {
    Ok(Box::new(FibSubject::new()?))
}

impl FibSubject {
    /// An empty table.
    pub fn new() -> Result<Self, Failure> {
        let fib = Fib::new().map_err(failure)?;
        let writer = fib.writer().map_err(|error| Failure::at("fib", error))?;
        let reader = fib.reader("fib-bench").map_err(failure)?;
        Ok(FibSubject { writer, reader })
    }

    fn lookup_pass<A: BatchKey + fib::Key>(&mut self, mode: LookupMode, addrs: &[A], out: &mut [NextHopId]) {
        match mode {
            LookupMode::Single => {
                for (addrs, out) in addrs.chunks(BURST).zip(out.chunks_mut(BURST)) {
                    let burst = self.reader.burst();
                    let view = burst.main();
                    for (addr, out) in addrs.iter().zip(out) {
                        *out = view.lookup(*addr).unwrap_or(MISS);
                    }
                }
            }
            LookupMode::Batch(size) => {
                let size = size.max(1);
                for (addrs, out) in addrs.chunks(size).zip(out.chunks_mut(size)) {
                    self.reader.burst().main().lookup_batch(addrs, out, MISS);
                }
            }
        }
    }
}

fn failure(error: FibError) -> Failure {
    Failure::at("fib", error)
}

fn entry((prefix, route): (IpNet, Route)) -> RouteEntry {
    (prefix, route.next_hop)
}

impl Subject for FibSubject {
    fn name(&self) -> &'static str {
        "fib"
    }
    fn load(&mut self, routes: &[RouteEntry]) -> Result<(), Failure> {
        let routes = routes.iter().map(|&(prefix, next_hop)| (prefix, Route::new(next_hop)));
        self.writer.main().load(routes).map(|_| ()).map_err(failure)
    }
    fn insert_or_replace(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<Option<NextHopId>, Failure> {
        let before = self.writer.main().insert_or_replace(prefix, next_hop).map_err(failure)?;
        Ok(before.map(|route| route.next_hop))
    }
    fn insert_if_absent(&mut self, prefix: IpNet, next_hop: NextHopId) -> Result<bool, Failure> {
        match self.writer.main().insert_if_absent(prefix, next_hop) {
            Ok(()) => Ok(true),
            Err(FibError::RouteExists { .. }) => Ok(false),
            Err(error) => Err(failure(error)),
        }
    }
    fn remove(&mut self, prefix: IpNet) -> Result<Option<NextHopId>, Failure> {
        let removed = self.writer.main().remove(prefix, RouteMatch::ANY).map_err(failure)?;
        Ok(removed.map(|route| route.next_hop))
    }
    fn get(&mut self, prefix: IpNet) -> Option<NextHopId> {
        self.writer.main().get(prefix).map(|route| route.next_hop)
    }
    fn lookup(&mut self, addr: IpAddr) -> Result<Option<NextHopId>, Failure> {
        let (single, batch) = {
            let burst = self.reader.burst();
            let view = burst.main();
            // Wrong from the start, so that an answer that is never written shows.
            let single = view.lookup(addr);
            let mut batch = [if single.is_none() { NextHopId::try_from(0).unwrap_or(MISS) } else { MISS }];
            match addr {
                IpAddr::V4(addr) => view.lookup_batch(&[addr.to_bits()], &mut batch, MISS),
                IpAddr::V6(addr) => view.lookup_batch(&[addr.to_bits()], &mut batch, MISS),
            }
            (single, Some(batch[0]).filter(|&next_hop| next_hop != MISS))
        };
        let table = self.writer.main();
        let (control, matched) = (table.lookup(addr), table.lookup_match(addr).map(|(_, route)| route.next_hop));
        if [batch, control, matched] != [single; 3] {
            return Err(Failure::wrong(format!(
                "{addr}: lookup {single:?}, lookup_batch {batch:?}, Table::lookup {control:?}, lookup_match {matched:?}"
            )));
        }
        Ok(single)
    }
    fn lookup_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.writer.main().lookup_match(addr).map(entry)
    }
    fn shortest_match(&mut self, addr: IpAddr) -> Option<RouteEntry> {
        self.writer.main().shortest_match(addr).map(entry)
    }
    fn covering(&mut self, addr: IpAddr) -> Vec<RouteEntry> {
        self.writer.main().covering(IpNet::from(addr)).map(entry).collect()
    }
    fn within(&mut self, prefix: IpNet) -> Vec<RouteEntry> {
        self.writer.main().within(prefix).map(entry).collect()
    }
    fn routes(&mut self, family: Family) -> Vec<RouteEntry> {
        self.writer.main().iter(family).map(entry).collect()
    }
    fn prefix_count(&mut self, family: Family) -> usize {
        self.writer.main().prefix_count(family)
    }
    fn lookup_v4(&mut self, mode: LookupMode, addrs: &[u32], out: &mut [NextHopId]) {
        self.lookup_pass(mode, addrs, out);
    }
    fn lookup_v6(&mut self, mode: LookupMode, addrs: &[u128], out: &mut [NextHopId]) {
        self.lookup_pass(mode, addrs, out);
    }
    fn check(&mut self) -> Result<(), Failure> {
        self.writer.check().map_err(|error| Failure::at("check", error))
    }
    fn shape(&mut self, family: Family) -> Option<Shape> {
        let stats = self.writer.main().stats();
        let stats = match family {
            Family::V4 => stats.v4,
            Family::V6 => stats.v6,
        };
        Some(Shape {
            family,
            prefixes: stats.prefixes,
            routes: stats.routes,
            trie_bytes: stats.trie_bytes,
            rib_bytes: stats.rib_bytes,
            root_bits: stats.root_bits.into(),
            slot_bits: stats.slot_bits.into(),
            dense_nodes: stats.dense_nodes,
            sparse_nodes: stats.sparse_nodes,
            stored_slots: stats.stored_slots,
            nodes_by_depth: stats.nodes_by_depth.iter().map(|&(bits, nodes)| (usize::from(bits), nodes)).collect(),
        })
    }
    fn memory(&mut self) -> Vec<(&'static str, usize)> {
        let stats = self.writer.memory_stats();
        vec![
            ("nodes, live", stats.live_bytes),
            ("nodes, with free blocks", stats.footprint_bytes),
            ("taken from the system", stats.committed_bytes),
            ("of it in huge pages", stats.huge_page_bytes),
        ]
    }
}
