//! Which figures are promised, and for which tables.
//!
//! The promises are for full Internet tables of today (about 900,000 IPv4 and 160,000 IPv6 prefixes); a report of a
//! smaller or larger table shows its measurements without verdicts.

use fib::Family;
use ipnet::IpNet;

use crate::measure::Spread;
use crate::report::{Kind, Verdict};
use crate::subject::Shape;

const MIB: f64 = 1024.0 * 1024.0;

/// Whether a table with so many prefixes of a family is a full one, and small enough for the promises.
pub fn is_full(family: Family, prefixes: usize) -> bool {
    match family {
        Family::V4 => (800_000..1_000_000).contains(&prefixes),
        Family::V6 => (150_000..180_000).contains(&prefixes),
    }
}

/// Bytes that lookups read.
pub fn trie_size(shape: &Shape) -> Verdict {
    let bound = match shape.family {
        Family::V4 => 2.6,
        Family::V6 => 2.0,
    };
    let name = format!("{} trie size", shape.family);
    Verdict { name, value: shape.trie_bytes as f64 / MIB, bound, kind: Kind::Ceiling, unit: "MiB" }
}

/// What `fe80::/10`, `fc00::/7`, `::1/128` and `::/0` may add to a full IPv6 table.
pub fn special_prefixes_size(bytes: f64) -> Verdict {
    let name = String::from("fe80::/10, fc00::/7, ::1/128, ::/0 added");
    Verdict { name, value: bytes / 1024.0, bound: 64.0, kind: Kind::Ceiling, unit: "KiB" }
}

/// Loading all parsed routes with one thread.
pub fn load_time(seconds: Spread) -> Verdict {
    let name = String::from("full load, one thread");
    Verdict { name, value: seconds.median, bound: 0.5, kind: Kind::Ceiling, unit: "s" }
}

/// Random prefixes deleted and added again; operations (a delete is one, an add is one) per second.
pub fn update_rate(family: Family, per_second: Spread) -> Option<Verdict> {
    (family == Family::V4).then(|| Verdict {
        name: String::from("IPv4 random delete and re-add"),
        value: per_second.median / 1e6,
        bound: 1.5,
        kind: Kind::Floor,
        unit: "M ops/s",
    })
}

/// Inserting or removing a prefix that covers most of the table.
pub fn covering_update(prefix: IpNet, what: &str, seconds: Spread) -> Option<Verdict> {
    let (bound, unit, scale) = match (prefix, prefix.prefix_len()) {
        (_, 0) => (20.0, "us", 1e6),
        (IpNet::V4(_), 1) | (IpNet::V6(_), 3) => (15.0, "ms", 1e3),
        _ => return None,
    };
    let name = format!("{prefix} {what}");
    Some(Verdict { name, value: seconds.median * scale, bound, kind: Kind::Ceiling, unit })
}
