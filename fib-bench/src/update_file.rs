//! Which updates does a trace hold: `unixtime a prefix nexthop` announces, `unixtime w prefix [0.0.0.0]` withdraws.
//!
//! Next-hop addresses become numbers in the order of their first appearance, from a number on that the table does
//! not use, so that an announced route never looks like the route it replaces.

use std::net::IpAddr;
use std::path::Path;

use fib::NextHopId;
use ipnet::IpNet;

use crate::bad_lines::BadLines;
use crate::failure::Failure;
use crate::mrt_routes::AddressNumbers;
use crate::route_file::read_text;
use crate::subject::MISS;
use crate::text_routes::{columns, lines, parse_prefix, show};

/// One line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Insert, or replace when present.
    Announce(IpNet, NextHopId),
    /// Remove, when present.
    Withdraw(IpNet),
}

/// A trace as it was read.
#[derive(Debug)]
pub struct Trace {
    /// In order.
    pub updates: Vec<Update>,
    /// How many next-hop addresses were seen.
    pub next_hops: usize,
    /// Lines that could not be used.
    pub bad: BadLines,
}

impl Trace {
    /// Reads a trace, packed or not. Bad lines are a failure that shows them, unless `keep_going`.
    pub fn read(path: &Path, first_next_hop: u32, keep_going: bool) -> Result<Trace, Failure> {
        let name = path.display().to_string();
        let trace = Trace::parse(&read_text(path)?, first_next_hop, BadLines::new(&name));
        if trace.bad.count > 0 && !keep_going {
            return Err(Failure::new(format!("{}\n--keep-going goes on without them", trace.bad)));
        }
        if trace.updates.is_empty() {
            return Err(Failure::new(format!("{name}: no update in the file")));
        }
        Ok(trace)
    }

    fn parse(text: &[u8], first_next_hop: u32, bad: BadLines) -> Trace {
        let mut numbers = AddressNumbers::starting_at(first_next_hop);
        let mut trace = Trace { updates: Vec::new(), next_hops: 0, bad };
        for (number, line) in lines(text) {
            match parse_line(line, &mut numbers) {
                Ok(Some(update)) => trace.updates.push(update),
                Ok(None) => {}
                Err(reason) => trace.bad.add(number, || reason),
            }
        }
        trace.next_hops = numbers.count();
        trace
    }
}

fn parse_line(line: &[u8], numbers: &mut AddressNumbers) -> Result<Option<Update>, String> {
    let columns: Vec<&[u8]> = columns(line).collect();
    let (time, verb, prefix, next_hop) = match columns[..] {
        [] => return Ok(None),
        [time, verb, prefix] => (time, verb, prefix, None),
        [time, verb, prefix, next_hop] => (time, verb, prefix, Some(next_hop)),
        _ => return Err(String::from("write `unixtime a prefix nexthop` or `unixtime w prefix`")),
    };
    let is_time = time.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    if !is_time {
        return Err(format!("`{}` is not a time in seconds", show(time)));
    }
    let prefix = parse_prefix(prefix)?;
    match (verb, next_hop) {
        (b"w", _) => Ok(Some(Update::Withdraw(prefix))),
        (b"a", Some(next_hop)) => {
            let addr: IpAddr = str::from_utf8(next_hop)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| format!("`{}` is not a next-hop address", show(next_hop)))?;
            let id = NextHopId::new(numbers.of(addr)).ok().filter(|&id| id < MISS).ok_or("too many next hops")?;
            Ok(Some(Update::Announce(prefix, id)))
        }
        (b"a", None) => Err(String::from("an announcement needs a next-hop address in column 4")),
        (verb, _) => Err(format!("`{}` is neither a (announce) nor w (withdraw)", show(verb))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_and_withdrawals() {
        let text = b"# trace\n1 a 10.0.0.0/8 192.0.2.1\n2 w 10.0.0.0/8 0.0.0.0\n3.5 a 2001:db8::/32 2001:db8::1\n\
                     4 a 11.0.0.0/8 192.0.2.1\n5 w 11.0.0.0/8\n";
        let trace = Trace::parse(text, 65, BadLines::new("x"));
        let net = |text: &str| text.parse().unwrap();
        let id = |id| NextHopId::new(id).unwrap();
        assert_eq!(
            trace.updates,
            [
                Update::Announce(net("10.0.0.0/8"), id(65)),
                Update::Withdraw(net("10.0.0.0/8")),
                Update::Announce(net("2001:db8::/32"), id(66)),
                Update::Announce(net("11.0.0.0/8"), id(65)),
                Update::Withdraw(net("11.0.0.0/8")),
            ]
        );
        assert_eq!((trace.next_hops, trace.bad.count), (2, 0));
    }

    #[test]
    fn bad_lines_are_named() {
        for (line, words) in [
            ("1 a 10.0.0.0/8", "needs a next-hop address"),
            ("1 a 10.0.0.0/8 x", "`x` is not a next-hop address"),
            ("1 b 10.0.0.0/8 1.1.1.1", "`b` is neither a (announce) nor w (withdraw)"),
            ("x a 10.0.0.0/8 1.1.1.1", "`x` is not a time"),
            ("1 w 10.0.0.1/8 0.0.0.0", "has host bits set"),
            ("1 w", "write `unixtime a prefix nexthop`"),
            ("1 a 10.0.0.0/8 1.1.1.1 5", "write `unixtime a prefix nexthop`"),
        ] {
            let trace = Trace::parse(line.as_bytes(), 1, BadLines::new("x"));
            assert_eq!((trace.updates.len(), trace.bad.count), (0, 1), "{line}");
            assert!(trace.bad.first[0].reason.contains(words), "{line}: {}", trace.bad.first[0].reason);
        }
    }
}
