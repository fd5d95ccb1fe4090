//! Every reservation of every kind of update fails in turn: the call says so, nothing has changed, nothing has leaked.

use crate::failpoint;
use crate::nexthop::NextHopId;
use crate::prefix::parse_prefix;
use crate::route::{Route, RouteMatch};
use crate::table::Table;
use crate::trie::resize::set_scale;
use crate::{Family, Fib, FibError, TableOptions, Writer};
use ipnet::IpNet;

fn net(text: &str) -> IpNet {
    parse_prefix(text).unwrap()
}

fn hop(id: u32) -> NextHopId {
    NextHopId::new(id).unwrap()
}

/// Nested and neighbouring routes of both families, some of them waiting behind others.
fn filled() -> Fib {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut table = writer.main();
    for (index, prefix) in
        ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.128/25", "10.1.2.129/32", "192.0.2.0/24"]
            .into_iter()
            .chain([
                "::/0",
                "2001:db8::/32",
                "2001:db8:1::/48",
                "2001:db8:1:2::/64",
                "2001:db8:1:2::3/128",
                "fe80::/10",
            ])
            .enumerate()
    {
        table.insert_or_replace(net(prefix), hop(index as u32)).unwrap();
        table.append(net(prefix), Route::new(hop(100 + index as u32)).with_priority(7)).unwrap();
    }
    for third in 0..40 {
        table.insert_or_replace(net(&format!("172.16.{third}.0/24")), hop(third % 3)).unwrap();
        table.insert_or_replace(net(&format!("2001:db8:2:{third}::/64")), hop(third % 3)).unwrap();
    }
    drop(writer);
    fib
}

/// All that can be seen of the table from outside.
fn content(table: &Table<'_>) -> Vec<(IpNet, Vec<Route>)> {
    let prefixes = table.iter(Family::V4).chain(table.iter(Family::V6)).map(|(prefix, _)| prefix);
    prefixes.map(|prefix| (prefix, table.routes(prefix).collect())).collect()
}

fn nodes(writer: &mut Writer) -> (usize, usize) {
    writer.reclaim();
    let stats = writer.main().stats();
    (writer.memory_stats().live_bytes, stats.v4.trie_bytes + stats.v6.trie_bytes)
}

/// Runs `update` on a fresh table again and again, each time letting one more reservation pass, until it succeeds.
fn fails_cleanly(name: &str, update: impl Fn(&mut Table<'_>) -> Result<(), FibError>) {
    let mut failures = 0;
    for passing in 0.. {
        assert!(passing < 100_000, "{name} never succeeds");
        let fib = filled();
        let mut writer = fib.writer().unwrap();
        let before = content(&writer.main());
        let nodes_before = nodes(&mut writer);
        failpoint::arm(Some(passing));
        let outcome = update(&mut writer.main());
        failpoint::arm(None);
        writer.check().unwrap_or_else(|error| panic!("{name} after {passing} reservations: {error}"));
        match outcome {
            Ok(()) => {
                assert!(failures > 0, "{name} reserves nothing");
                return;
            }
            Err(FibError::OutOfMemory(_)) => failures += 1,
            Err(error) => panic!("{name}: {error}"),
        }
        assert_eq!(content(&writer.main()), before, "{name} after {passing} reservations");
        assert_eq!(nodes(&mut writer), nodes_before, "{name} after {passing} reservations");
        // The same update works once there is memory.
        update(&mut writer.main()).unwrap_or_else(|error| panic!("{name} again: {error}"));
        writer.check().unwrap();
    }
}

#[test]
fn inserts_fail_cleanly() {
    for prefix in ["10.1.2.3/32", "10.0.0.0/9", "0.0.0.0/1", "172.16.7.64/26", "198.51.100.0/24"] {
        fails_cleanly(prefix, |table| table.insert_if_absent(net(prefix), hop(1000)));
    }
    for prefix in ["2001:db8:1:2::4/128", "2000::/3", "2001:db8:2:7::1/128", "fd00::/8"] {
        fails_cleanly(prefix, |table| table.insert_if_absent(net(prefix), hop(1000)));
    }
}

#[test]
fn replacements_and_waiting_routes_fail_cleanly() {
    for prefix in ["10.1.2.0/24", "10.0.0.0/8", "172.16.8.0/24", "2001:db8::/32", "2001:db8:1:2::3/128"] {
        fails_cleanly(prefix, |table| table.replace_if_present(net(prefix), hop(1000)).map(drop));
        fails_cleanly(prefix, |table| table.append(net(prefix), Route::new(hop(1000)).with_priority(9)).map(drop));
        fails_cleanly(prefix, |table| table.prepend(net(prefix), Route::new(hop(1001))).map(drop));
    }
    fails_cleanly("waiting default", |table| table.append(net("0.0.0.0/0"), Route::new(hop(5)).with_priority(9)));
}

#[test]
fn removals_fail_cleanly() {
    for prefix in ["172.16.3.0/24", "2001:db8:2:7::/64", "192.0.2.0/24", "10.1.2.129/32", "10.1.0.0/16"] {
        fails_cleanly(prefix, |table| {
            // Both routes: the second removal is what empties the prefix. A failure of the first leaves both.
            let waiting = RouteMatch { priority: Some(7), ..RouteMatch::ANY };
            let held = table.routes(net(prefix)).find(|route| route.priority == 7);
            table.remove(net(prefix), waiting)?;
            let outcome = table.remove(net(prefix), RouteMatch::ANY).map(drop);
            if let (Err(_), Some(route)) = (&outcome, held) {
                failpoint::arm(None);
                table.append(net(prefix), route).unwrap();
            }
            outcome
        });
    }
}

#[test]
fn subtree_removals_fail_cleanly() {
    for prefix in ["10.0.0.0/8", "172.16.0.0/12", "10.1.2.0/24", "0.0.0.0/0", "2001:db8::/32", "2000::/3", "::/0"] {
        fails_cleanly(prefix, |table| table.remove_within(net(prefix)).map(drop));
    }
}

#[test]
fn clearing_fails_cleanly() {
    fails_cleanly("clear", |table| table.clear().map(drop));
}

#[test]
fn widening_fails_cleanly() {
    fails_cleanly("to 32 bits", |table| table.insert_or_replace(net("10.1.2.3/32"), hop(40_000)).map(drop));
    fails_cleanly("max", |table| table.insert_or_replace(net("10.1.2.0/24"), NextHopId::MAX).map(drop));
}

#[test]
fn loads_fail_cleanly() {
    for passing in 0.. {
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        let before = nodes(&mut writer);
        let routes = (0..60).map(|third| {
            let prefix = if third % 2 == 0 { format!("10.{third}.0.0/16") } else { format!("2001:db8:{third}::/48") };
            (net(&prefix), Route::new(hop(third)))
        });
        failpoint::arm(Some(passing));
        let outcome = writer.main().load(routes);
        failpoint::arm(None);
        writer.check().unwrap();
        match outcome {
            Ok(report) => {
                assert_eq!(report.routes, 60);
                assert!(passing > 5);
                return;
            }
            Err(FibError::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(content(&writer.main()).is_empty());
        assert_eq!(nodes(&mut writer), before);
    }
}

#[test]
fn new_tables_fail_cleanly() {
    let fib = filled();
    let mut writer = fib.writer().unwrap();
    let before = nodes(&mut writer);
    for passing in 0.. {
        failpoint::arm(Some(passing));
        let outcome = writer.create_table(TableOptions::default());
        failpoint::arm(None);
        writer.check().unwrap();
        if outcome.is_ok() {
            assert!(passing > 1);
            break;
        }
        assert_eq!(nodes(&mut writer), before);
        assert_eq!(writer.table_ids().count(), 1);
    }
}

/// A resize that finds no memory is left out: the update itself succeeds, and a later one on the same path makes up for it.
#[test]
fn resizes_are_left_out_without_memory() {
    set_scale(256);
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut skipped = 0;
    for index in 0..64u32 {
        for passing in 0.. {
            failpoint::arm(Some(passing));
            let outcome = writer.main().insert_or_replace(net(&format!("10.{index}.0.0/16")), hop(index));
            failpoint::arm(None);
            if outcome.is_ok() {
                break;
            }
        }
        skipped = writer.main().stats().v4.skipped_resizes;
    }
    assert!(skipped > 0, "no resize was ever refused");
    writer.main().insert_or_replace(net("10.0.0.0/16"), hop(1)).unwrap();
    writer.main().remove(net("10.0.0.0/16"), RouteMatch::ANY).unwrap();
    writer.check().unwrap();
    assert!(writer.main().stats().v4.root_bits > 6);
    set_scale(1);
}
