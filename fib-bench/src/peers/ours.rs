//! The library itself as a subject: a `Fib` with its writer and one reader in the same thread.

use fib::{BatchVariant, Family, Fib, NextHopId, Options, Reader, Route, RouteMatch, TableOptions, Writer};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Addresses, MemoryUse, Peer, PeerAddr, PeerRoute, in_batches, opaque};
use crate::failure::Failure;

/// How the library's table is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As it comes.
    Default,
    /// The root limit as high as it goes: speed for memory.
    Speed,
}

/// The options of a table: batch lookup (`None`: what the library chooses for this processor) and profile.
fn options(variant: Option<BatchVariant>, profile: Profile) -> Options {
    let main = match profile {
        Profile::Default => TableOptions::default(),
        Profile::Speed => TableOptions::default().root_limit_v4(24).root_limit_v6(20),
    };
    let options = Options::default().main(main);
    variant.map_or(options, |variant| options.batch(variant))
}

/// The main table of a `Fib`.
#[derive(Debug)]
pub struct Ours {
    writer: Writer,
    reader: Reader,
}

impl Ours {
    /// An empty table.
    pub fn new(variant: Option<BatchVariant>, profile: Profile) -> Result<Self, Failure> {
        let fib = Fib::with_options(options(variant, profile)).map_err(|error| Failure::at("fib", error))?;
        let writer = fib.writer().map_err(|error| Failure::at("fib", error))?;
        let reader = fib.reader("compare").map_err(|error| Failure::at("fib", error))?;
        Ok(Ours { writer, reader })
    }
}

fn net<A: PeerAddr>(route: &PeerRoute<A>) -> IpNet {
    // `new` refuses only lengths that a prefix of the family cannot have, and the routes come from prefixes.
    match route.addr.to_ip() {
        std::net::IpAddr::V4(addr) => IpNet::V4(Ipv4Net::new(addr, route.len).unwrap_or_default()),
        std::net::IpAddr::V6(addr) => IpNet::V6(Ipv6Net::new(addr, route.len).unwrap_or_default()),
    }
}

fn hop(next_hop: u32) -> NextHopId {
    NextHopId::new(next_hop).unwrap_or(NextHopId::MAX)
}

impl<A: PeerAddr> Peer<A> for Ours {
    fn load(&mut self, routes: &[PeerRoute<A>]) -> Result<usize, Failure> {
        let routes = routes.iter().map(|route| (net(route), Route::new(hop(route.next_hop))));
        self.writer.main().load(routes).map_err(|error| Failure::at("fib", error))?;
        Ok(0)
    }
    fn pass(&mut self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>) {
        let miss = hop(0);
        in_batches(&addrs.host, batch, miss, keep, NextHopId::get, |addrs, answers| {
            self.reader.burst().main().lookup_batch(addrs, answers, miss);
        });
    }
    fn chain(&mut self, addrs: &Addresses<A>) -> u64 {
        // A burst for 64 packets, as everywhere; a lookup of its own for each.
        let (mut sum, mut answer) = (0, 0);
        for addrs in addrs.host.chunks(64) {
            let burst = self.reader.burst();
            let view = burst.main();
            for addr in addrs {
                answer = view.lookup(addr.after(opaque(answer))).map_or(0, NextHopId::get);
                sum += u64::from(answer);
            }
        }
        sum
    }
    fn insert(&mut self, route: PeerRoute<A>) -> Option<bool> {
        Some(self.writer.main().insert_or_replace(net(&route), hop(route.next_hop)).is_ok())
    }
    fn remove(&mut self, route: PeerRoute<A>) -> Option<bool> {
        Some(matches!(self.writer.main().remove(net(&route), RouteMatch::ANY), Ok(Some(_))))
    }
    fn memory(&mut self) -> MemoryUse {
        let stats = self.writer.main().stats();
        let stats = match A::FAMILY {
            Family::V4 => stats.v4,
            Family::V6 => stats.v6,
        };
        MemoryUse {
            lookup_bytes: Some(stats.trie_bytes),
            total_bytes: Some(stats.trie_bytes + stats.rib_bytes),
            next_hop_bits: Some(stats.slot_bits.into()),
        }
    }
}
