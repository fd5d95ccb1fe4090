//! Routes flattened into intervals: where does the answer change, and to what?
//!
//! ```text
//! routes      |------ 10.0.0.0/8 -> 1 ------|
//!                 |-- 10.4.0.0/16 -> 2 --|
//! intervals   0   1   2                   1   0          first address and next hop of each
//! ```
//!
//! Equal neighbours are one interval, so the list is the smallest description of all answers.

use fib::Addr;

use super::{PeerRoute, last_addr};

/// First address of each interval and its next hop, ascending; the first one starts at 0.
pub fn intervals<A: Addr>(routes: &[PeerRoute<A>]) -> Vec<(A, u32)> {
    let mut sorted = routes.to_vec();
    // Outer prefixes before those inside them; of equal prefixes the last one counts (the sort is stable).
    sorted.sort_by_key(|route| (route.addr, route.len));
    let mut found: Vec<(A, u32)> = vec![(A::ZERO, 0)];
    // Last address and next hop of the prefixes around the sweep, outermost first.
    let mut open: Vec<(A, u32)> = Vec::new();
    for route in sorted {
        close(&mut open, &mut found, Some(route.addr));
        start(&mut found, route.addr, route.next_hop);
        open.push((last_addr(route), route.next_hop));
    }
    close(&mut open, &mut found, None);
    found
}

/// Ends all open prefixes that end before `up_to` (all, without one); behind each goes on what lies around it.
fn close<A: Addr>(open: &mut Vec<(A, u32)>, found: &mut Vec<(A, u32)>, up_to: Option<A>) {
    while let Some(&(last, _)) = open.last() {
        if up_to.is_some_and(|addr| last >= addr) {
            return;
        }
        open.pop();
        if last != A::MAX {
            start(found, last.wrapping_next(), open.last().map_or(0, |&(_, next_hop)| next_hop));
        }
    }
}

fn start<A: Addr>(found: &mut Vec<(A, u32)>, addr: A, next_hop: u32) {
    if let Some(last) = found.last_mut()
        && last.0 == addr
    {
        last.1 = next_hop;
        // What this interval was may have kept it apart from the one before.
        if found.len() > 1 && found[found.len() - 2].1 == next_hop {
            found.pop();
        }
        return;
    }
    if found.last().is_none_or(|&(_, before)| before != next_hop) {
        found.push((addr, next_hop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(addr: u32, len: u8, next_hop: u32) -> PeerRoute<u32> {
        PeerRoute { addr, len, next_hop }
    }

    #[test]
    fn nested_and_neighbouring_routes() {
        let routes = [route(0x0a00_0000, 8, 1), route(0x0a04_0000, 16, 2), route(0x0a05_0000, 16, 2)];
        let expected = [(0, 0), (0x0a00_0000, 1), (0x0a04_0000, 2), (0x0a06_0000, 1), (0x0b00_0000, 0)];
        assert_eq!(intervals(&routes), expected);
    }

    #[test]
    fn ends_of_the_address_space() {
        assert_eq!(intervals::<u32>(&[]), [(0, 0)]);
        assert_eq!(intervals(&[route(0, 0, 7)]), [(0, 7)]);
        assert_eq!(intervals(&[route(u32::MAX, 32, 7)]), [(0, 0), (u32::MAX, 7)]);
        assert_eq!(intervals(&[route(0, 0, 7), route(0, 32, 7), route(1, 32, 8)]), [(0, 7), (1, 8), (2, 7)]);
    }
}
