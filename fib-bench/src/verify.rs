//! Is every answer right: a subject beside the independent method, lookup by lookup and route by route.

use fib::{Family, NextHopId};
use ipnet::IpNet;

use crate::progress::Step;
use crate::report::Report;
use crate::subject::{LookupMode, MISS, RouteEntry, Subject, SubjectAddr};
use crate::subject_oracle::Oracle;
use crate::traffic::Traffic;

/// Addresses asked at a time, so that the progress bar moves.
const CHUNK: usize = 1 << 16;

const ZERO: NextHopId = match NextHopId::new(0) {
    Ok(id) => id,
    Err(_) => MISS,
};

/// How an answer is written: the next hop, or `miss`.
pub fn show(next_hop: NextHopId) -> String {
    if next_hop == MISS { String::from("miss") } else { next_hop.to_string() }
}

/// Looks up `count` addresses of a family in both, singly and in batches, and reports every difference. The addresses
/// are of four kinds: a quarter each of uniform, prefix and zipf traffic and of the edges of prefixes.
pub fn verify_lookups<A: SubjectAddr>(
    report: &mut Report,
    subject: &mut dyn Subject,
    oracle: &mut Oracle,
    prefixes: &[IpNet],
    count: usize,
    seed: u64,
) {
    let kinds = [Traffic::Uniform, Traffic::Prefix, Traffic::Zipf, Traffic::Edges];
    let mut step = Step::new("verifying lookups", count as u64);
    for (index, traffic) in kinds.into_iter().enumerate() {
        let count = (count + kinds.len() - 1 - index) / kinds.len();
        let addresses: Vec<A> = traffic.addresses(prefixes, count, seed + index as u64);
        for chunk in addresses.chunks(CHUNK) {
            compare(report, subject, oracle, chunk);
            step.advance(chunk.len() as u64);
        }
    }
}

/// Looks up `addrs` in both, singly and in batches, and reports every difference.
pub fn compare<A: SubjectAddr>(report: &mut Report, subject: &mut dyn Subject, oracle: &mut Oracle, addrs: &[A]) {
    let mut expected = vec![MISS; addrs.len()];
    A::lookup_all(oracle, LookupMode::Single, addrs, &mut expected);
    for (how, mode) in [("single", LookupMode::Single), ("batch", LookupMode::Batch(64))] {
        // Each answer starts out wrong, so one that is never written shows.
        let wrong = |right: &NextHopId| if *right == MISS { ZERO } else { MISS };
        let mut got: Vec<NextHopId> = expected.iter().map(wrong).collect();
        A::lookup_all(subject, mode, addrs, &mut got);
        for ((addr, expected), got) in addrs.iter().zip(&expected).zip(got) {
            if *expected != got {
                report.wrong(format!("{} ({how}) expected {} got {}", addr.to_ip(), show(*expected), show(got)));
            }
        }
    }
}

/// Compares all routes of a family exactly, and reports every difference. How many routes there are.
pub fn verify_routes(report: &mut Report, subject: &mut dyn Subject, oracle: &mut Oracle, family: Family) -> usize {
    let expected = oracle.routes(family);
    let got = subject.routes(family);
    compare_routes(report, &expected, &got);
    let count = subject.prefix_count(family);
    if count != expected.len() {
        report.wrong(format!("{family}: expected {} prefixes, the count says {count}", expected.len()));
    }
    expected.len()
}

/// Merges two ordered lists of routes and reports what only one of them has.
fn compare_routes(report: &mut Report, expected: &[RouteEntry], got: &[RouteEntry]) {
    let (mut left, mut right) = (expected.iter().peekable(), got.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(&&(net, next_hop)), other) if other.is_none_or(|&&(other, _)| net < other) => {
                report.wrong(format!("route {net} expected {} got nothing (or out of order)", show(next_hop)));
                left.next();
            }
            (other, Some(&&(net, next_hop))) if other.is_none_or(|&&(other, _)| net < other) => {
                report.wrong(format!("route {net} expected nothing got {}", show(next_hop)));
                right.next();
            }
            (Some(&&(net, expected)), Some(&&(_, got))) => {
                if expected != got {
                    report.wrong(format!("route {net} expected {} got {}", show(expected), show(got)));
                }
                left.next();
                right.next();
            }
            // A side that is alone was taken above.
            _ => return,
        }
    }
}

/// Runs the subject's own check and reports what it finds.
pub fn verify_invariants(report: &mut Report, subject: &mut dyn Subject) {
    if let Err(failure) = subject.check() {
        report.wrong(format!("check of {}: {failure}", subject.name()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, id: u32) -> RouteEntry {
        (text.parse().unwrap(), NextHopId::new(id).unwrap())
    }

    #[test]
    fn equal_tables_agree() {
        let routes = [entry("10.0.0.0/8", 1), entry("10.1.0.0/16", 2), entry("2001:db8::/32", 3)];
        let (mut subject, mut oracle) = (Oracle::with_routes(&routes), Oracle::with_routes(&routes));
        let mut report = Report::new("test");
        let prefixes = routes.map(|(net, _)| net);
        verify_lookups::<u32>(&mut report, &mut subject, &mut oracle, &prefixes, 1000, 1);
        verify_lookups::<u128>(&mut report, &mut subject, &mut oracle, &prefixes, 1000, 1);
        assert_eq!(verify_routes(&mut report, &mut subject, &mut oracle, Family::V4), 2);
        verify_invariants(&mut report, &mut subject);
        assert_eq!(report.wrong_count(), 0);
    }

    #[test]
    fn each_difference_is_found() {
        let routes = [entry("10.0.0.0/8", 1), entry("10.1.0.0/16", 2), entry("11.0.0.0/8", 3)];
        let mut oracle = Oracle::with_routes(&routes);
        let changes: [(&str, &[RouteEntry], u64); 4] = [
            ("one missing", &routes[..2], 2),
            ("another next hop", &[routes[0], entry("10.1.0.0/16", 9), routes[2]], 1),
            ("one too many", &[routes[0], entry("10.0.0.0/9", 1), routes[1], routes[2]], 2),
            ("nothing", &[], 4),
        ];
        for (what, changed, differences) in changes {
            let mut report = Report::new("test");
            let mut subject = Oracle::with_routes(changed);
            verify_routes(&mut report, &mut subject, &mut oracle, Family::V4);
            assert_eq!(report.wrong_count(), differences, "{what}");
        }
        let mut report = Report::new("test");
        let mut subject = Oracle::with_routes(&routes[..1]);
        compare(&mut report, &mut subject, &mut oracle, &[0x0a01_0000u32, 0x0a02_0000, 0x0b00_0000]);
        // Two addresses, each asked in two ways.
        assert_eq!(report.wrong_count(), 4);
        assert!(report.text().contains("10.1.0.0 (single) expected 2 got 1"));
        assert!(report.text().contains("11.0.0.0 (batch) expected 3 got miss"));
    }
}
