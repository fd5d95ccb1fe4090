//! A table whose routes all lie beyond /64: hosts in networks, as in a data centre's edge or a load balancer.

use fib::NextHopId;
use ipnet::{IpNet, Ipv6Net};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::failure::Failure;
use crate::route_file::keep_last;
use crate::subject::RouteEntry;

/// Next hops that the routes lead to.
const NEXT_HOPS: u32 = 64;

/// `networks` random /64 in `2001::/16`, with `hosts` random /128 in each.
pub fn host_routes(networks: usize, hosts: usize, seed: u64) -> Result<Vec<RouteEntry>, Failure> {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut routes = Vec::with_capacity(networks * hosts);
    for _ in 0..networks {
        let network = 0x2001 << 112 | u128::from(rng.random::<u64>() >> 16) << 64;
        for _ in 0..hosts {
            let addr = network | u128::from(rng.random::<u64>());
            let next_hop = NextHopId::new(rng.random_range(1..=NEXT_HOPS));
            let next_hop = next_hop.map_err(|error| Failure::at("next hop", error))?;
            routes.push((IpNet::V6(Ipv6Net::from(std::net::Ipv6Addr::from_bits(addr))), next_hop));
        }
    }
    keep_last(&mut routes);
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_in_networks() {
        let routes = host_routes(10, 20, 1).unwrap();
        assert!((195..=200).contains(&routes.len()));
        assert!(routes.iter().all(|(net, _)| net.prefix_len() == 128 && net.to_string().starts_with("2001:")));
        assert_eq!(routes, host_routes(10, 20, 1).unwrap());
        assert_ne!(routes, host_routes(10, 20, 2).unwrap());
    }
}
