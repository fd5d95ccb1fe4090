//! What is timed: passes of lookups, random updates, and the updates that are hard for a trie with pushed leaves.

use std::collections::HashMap;
use std::time::Duration;

use fib::{Family, NextHopId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::failure::Failure;
use crate::measure::{Latencies, Spread, in_turns, timed};
use crate::report::{Field, Table};
use crate::subject::{LookupMode, MISS, RouteEntry, Subject, SubjectAddr, family_of};
use crate::traffic::Traffic;

/// How lookups are measured.
#[derive(Debug, Clone, Copy)]
pub struct LookupPlan {
    /// Addresses per pass.
    pub addresses: usize,
    /// Measured passes.
    pub passes: usize,
    /// Addresses per batch call.
    pub batch: usize,
    /// Seed of the traffic.
    pub seed: u64,
}

/// An empty table of lookup rates.
pub fn lookup_table() -> Table {
    Table::new("lookups", &["family", "traffic", "mode", "median_mlps", "min_mlps", "max_mlps"])
}

/// Measures single and batch lookups for each traffic, in turns, and adds a row for each.
pub fn measure_lookups<A: SubjectAddr>(
    table: &mut Table,
    subject: &mut dyn Subject,
    prefixes: &[IpNet],
    plan: LookupPlan,
) -> Result<(), Failure> {
    let traffic: Vec<(Traffic, Vec<A>)> = Traffic::MEASURED
        .into_iter()
        .map(|traffic| (traffic, traffic.addresses(prefixes, plan.addresses, plan.seed)))
        .collect();
    let modes = [LookupMode::Single, LookupMode::Batch(plan.batch)];
    let mut out = vec![MISS; plan.addresses];
    let seconds = in_turns("measuring lookups", traffic.len() * modes.len(), plan.passes, |index| {
        let (traffic, mode) = (&traffic[index / modes.len()].1, modes[index % modes.len()]);
        let (time, ()) = timed(|| A::lookup_all(subject, mode, traffic, &mut out));
        Ok::<_, Failure>(time)
    })?;
    for (index, seconds) in seconds.into_iter().enumerate() {
        let mode = match modes[index % modes.len()] {
            LookupMode::Single => String::from("single"),
            LookupMode::Batch(size) => format!("batch of {size}"),
        };
        let rate = Spread::of(seconds).map(|seconds| plan.addresses as f64 / seconds / 1e6);
        let mut row: Vec<Field> =
            vec![A::FAMILY.to_string().into(), traffic[index / modes.len()].0.name().into(), mode.into()];
        row.extend(rate.fields(1));
        table.row(row);
    }
    Ok(())
}

/// `count` different routes of a family (all, when there are fewer), chosen and ordered at random.
pub fn pick(routes: &[RouteEntry], family: Family, count: usize, seed: u64) -> Vec<RouteEntry> {
    let mut picked: Vec<RouteEntry> = routes.iter().copied().filter(|&(net, _)| family_of(net) == family).collect();
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let (picked, _) = picked.partial_shuffle(rng, count);
    picked.to_vec()
}

/// What random deletes and re-adds took.
#[derive(Debug)]
pub struct Churn {
    /// Operations per second, deletes and adds together.
    pub both_per_s: Spread,
    /// The same when each prefix is added again right after it was deleted, while its nodes are in the cache.
    pub in_turn_per_s: Spread,
    /// Deletes per second.
    pub delete_per_s: Spread,
    /// Adds per second.
    pub add_per_s: Spread,
    /// Of single deletes.
    pub delete: Latencies,
    /// Of single adds.
    pub add: Latencies,
}

/// Deletes all of `picked`, then adds them again, in `rounds` timed rounds after one that times each operation.
/// The table is in the end what it was. An error when a delete does not find what should be there.
pub fn churn(subject: &mut dyn Subject, picked: &[RouteEntry], rounds: usize) -> Result<Churn, Failure> {
    let (mut delete, mut add) = (Latencies::default(), Latencies::default());
    for &entry in picked {
        let (time, result) = timed(|| remove(subject, entry));
        result?;
        delete.add(time);
    }
    for &(prefix, next_hop) in picked {
        let (time, result) = timed(|| subject.insert_or_replace(prefix, next_hop));
        result?;
        add.add(time);
    }
    let mut parts = [Vec::new(), Vec::new()];
    let seconds = in_turns("random updates", 2, rounds, |way| {
        let add = |subject: &mut dyn Subject, (prefix, next_hop): RouteEntry| {
            subject.insert_or_replace(prefix, next_hop).map(|_| ())
        };
        if way == IN_TURN {
            let in_turn = |&entry: &RouteEntry| remove(subject, entry).and_then(|()| add(subject, entry));
            let (time, result) = timed(|| picked.iter().try_for_each(in_turn));
            return result.map(|()| time);
        }
        let (delete_time, result) = timed(|| picked.iter().try_for_each(|&entry| remove(subject, entry)));
        result?;
        let (add_time, result) = timed(|| picked.iter().try_for_each(|&entry| add(subject, entry)));
        result?;
        parts[0].push(delete_time.as_secs_f64());
        parts[1].push(add_time.as_secs_f64());
        Ok::<_, Failure>(delete_time + add_time)
    })?;
    let ops = picked.len() as f64;
    let per_s = |seconds: &[f64], ops: f64| Spread::of(seconds.to_vec()).map(|seconds| ops / seconds);
    Ok(Churn {
        both_per_s: per_s(&seconds[0], 2.0 * ops),
        in_turn_per_s: per_s(&seconds[IN_TURN], 2.0 * ops),
        // The first turn does not count here either.
        delete_per_s: per_s(&parts[0][1..], ops),
        add_per_s: per_s(&parts[1][1..], ops),
        delete,
        add,
    })
}

/// Which of the two ways of `churn` adds each prefix right after its delete.
const IN_TURN: usize = 1;

fn remove(subject: &mut dyn Subject, (prefix, next_hop): RouteEntry) -> Result<(), Failure> {
    match subject.remove(prefix)? {
        Some(removed) if removed == next_hop => Ok(()),
        removed => Err(Failure::wrong(format!("removing {prefix}: expected {next_hop}, got {removed:?}"))),
    }
}

/// The prefixes whose insertion changes most of a table: the default route, half of the address space in use, and
/// for IPv4 the /8 with the most more-specifics.
pub fn hard_prefixes(routes: &[RouteEntry], family: Family) -> Vec<IpNet> {
    match family {
        Family::V4 => {
            let mut counts = [0u32; 256];
            for (prefix, _) in routes {
                if let IpNet::V4(net) = prefix
                    && net.prefix_len() > 8
                {
                    counts[usize::from(net.addr().octets()[0])] += 1;
                }
            }
            let fullest = (0u8..=255).max_by_key(|&octet| counts[usize::from(octet)]).unwrap_or_default();
            let of = |octet, len| Ipv4Net::new([octet, 0, 0, 0].into(), len).map(IpNet::V4);
            [of(0, 0), of(0, 1), of(fullest, 8)].into_iter().flatten().collect()
        }
        Family::V6 => {
            let of = |first: u16, len| Ipv6Net::new([first, 0, 0, 0, 0, 0, 0, 0].into(), len).map(IpNet::V6);
            [of(0, 0), of(0x2000, 3)].into_iter().flatten().collect()
        }
    }
}

/// A next hop that no route uses, and the one that most of them use.
pub fn fresh_and_common(routes: &[RouteEntry]) -> Result<(NextHopId, NextHopId), Failure> {
    let mut counts: HashMap<NextHopId, usize> = HashMap::new();
    for &(_, next_hop) in routes {
        *counts.entry(next_hop).or_default() += 1;
    }
    let zero = NextHopId::new(0).map_err(|error| Failure::at("next hops", error))?;
    let common = counts.iter().max_by_key(|&(&id, &count)| (count, id)).map_or(zero, |(&id, _)| id);
    let fresh = (1..MISS.get()).filter_map(|id| NextHopId::new(id).ok()).find(|id| !counts.contains_key(id));
    Ok((fresh.ok_or_else(|| Failure::new("every next-hop id is in use"))?, common))
}

/// Seconds to insert `prefix` and to remove it again. The table is in the end what it was, also when it has the prefix.
pub fn time_covering(
    subject: &mut dyn Subject,
    prefix: IpNet,
    next_hop: NextHopId,
    rounds: usize,
) -> Result<(Spread, Spread), Failure> {
    let before = subject.remove(prefix)?;
    let mut removals = Vec::new();
    let insertions = in_turns("covering prefixes", 1, rounds, |_| {
        let (insertion, result) = timed(|| subject.insert_or_replace(prefix, next_hop));
        result?;
        let (removal, result) = timed(|| subject.remove(prefix));
        result?;
        removals.push(removal.as_secs_f64());
        Ok::<Duration, Failure>(insertion)
    })?;
    if let Some(next_hop) = before {
        subject.insert_or_replace(prefix, next_hop)?;
    }
    Ok((Spread::of(insertions.concat()), Spread::of(removals.split_off(1))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject_oracle::Oracle;

    fn entry(text: &str, id: u32) -> RouteEntry {
        (text.parse().unwrap(), NextHopId::new(id).unwrap())
    }

    fn routes() -> Vec<RouteEntry> {
        vec![
            entry("0.0.0.0/1", 1),
            entry("10.0.0.0/8", 2),
            entry("10.1.0.0/16", 2),
            entry("9.1.0.0/16", 4),
            entry("10.2.0.0/16", 2),
            entry("2001:db8::/32", 1),
        ]
    }

    #[test]
    fn updates_leave_the_table_as_it_was() {
        let mut subject = Oracle::with_routes(&routes());
        let picked = pick(&routes(), Family::V4, 3, 1);
        assert_eq!(picked.len(), 3);
        assert_eq!(pick(&routes(), Family::V4, 100, 1).len(), 5);
        let churn = churn(&mut subject, &picked, 3).unwrap();
        assert!(churn.both_per_s.median > 0.0 && churn.in_turn_per_s.median > 0.0);
        assert!(churn.delete_per_s.min > 0.0 && churn.add_per_s.max > 0.0);
        for prefix in hard_prefixes(&routes(), Family::V4) {
            let (insertion, removal) = time_covering(&mut subject, prefix, picked[0].1, 2).unwrap();
            assert!(insertion.median >= 0.0 && removal.median >= 0.0);
        }
        let mut expected = routes();
        expected.sort();
        assert_eq!([subject.routes(Family::V4), subject.routes(Family::V6)].concat(), expected);
    }

    #[test]
    fn a_delete_that_finds_something_else_is_an_error() {
        let mut subject = Oracle::with_routes(&routes());
        let error = churn(&mut subject, &[entry("10.0.0.0/8", 7)], 1).unwrap_err();
        assert!(error.to_string().contains("removing 10.0.0.0/8: expected 7"), "{error}");
    }

    #[test]
    fn hard_prefixes_and_next_hops() {
        let shown = |family| hard_prefixes(&routes(), family).iter().map(IpNet::to_string).collect::<Vec<_>>();
        assert_eq!(shown(Family::V4), ["0.0.0.0/0", "0.0.0.0/1", "10.0.0.0/8"]);
        assert_eq!(shown(Family::V6), ["::/0", "2000::/3"]);
        let (fresh, common) = fresh_and_common(&routes()).unwrap();
        assert_eq!((fresh.get(), common.get()), (3, 2));
    }
}
