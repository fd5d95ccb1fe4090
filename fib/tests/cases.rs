//! What users of other FIB libraries were bitten by, as tests: each is named after its number in the collection of
//! cases, and runs the case's script (`tests/cases/cNN.fib`) and what else the case asks for.
//!
//! A script is run against a fresh [`Fib`] and, beside it, against the oracle; both must give the expected answer. Each
//! lookup goes through a reader (as a number, as an address, in a batch), through the writer, and to the Rib.
//!
//! | case | what it is about | where it is tested |
//! |---|---|---|
//! | C01 | a cover added after a longer route | `c01_a_late_cover_fills_every_hole` |
//! | C02 | remove, then add a cover | `c02_a_cover_after_a_removal_fills_what_was_emptied` |
//! | C03 | a removal puts the wrong route back | `c03_a_removal_hands_over_to_the_next_cover` |
//! | C06 | the middle of three nested prefixes removed | `c06_the_middle_one_of_nested_prefixes_goes` |
//! | C07 | the default route overwrites all | `c07_the_default_route_overwrites_nothing` |
//! | C08 | the default route as the first route | `c08_the_default_route_as_the_first_route` |
//! | C11 | /31 and /32 missed or swapped | `c11_host_routes_are_not_swapped` |
//! | C12 | /128 missed | `c12_full_length_ipv6_routes_match` |
//! | C13 | a length that is no multiple of the stride | `c13_each_length_alone_in_a_table` |
//! | C17 | all covers wanted | `c17_all_covers_of_an_address` |
//! | C18 | families mixed | `c18_families_never_mix` |
//! | C19 | IPv4-mapped addresses | `c19_mapped_addresses_cross_by_the_named_helper_only` |
//! | C20 | host bits in a prefix | `c20_host_bits_are_refused_or_cleared_by_name` |
//! | C21 | IPv6 held to IPv4's lengths | `c21_ipv6_lengths_above_32` |
//! | C23 | the last route removed | `c23_the_last_route_goes` |
//! | C26 | rubbish on a miss | `c26_a_miss_is_the_value_that_was_asked_for` |
//! | C27 | removals of full-length routes | `c27_add_and_remove_mirror_each_other_at_each_length` |
//! | C28 | ids cut | `c28_ids_are_kept_whole_or_refused` |
//! | C29 | an update with a bad next hop says ok | `c29_a_bad_next_hop_changes_nothing` |
//! | C31 | a load past the end of the table | `c31_batches_of_the_last_address` |
//! | C32 | shifts by the full width | `c32_walks_over_the_extremes` |
//! | C34 | byte order | `c34_numbers_are_in_host_order` |
//! | C35 | lengths out of range | `c35_lengths_out_of_range` |
//! | C36 | zero things, null | `c36_nothing_is_a_fine_thing_to_ask_for`; null pointers come with the C interface |
//! | C39 | sub-table not given back | `c39_a_route_in_and_out_in_the_smallest_arena` |
//! | C40 | collapsed nodes never reused | `c40_branches_that_come_and_go_leave_no_memory` |
//! | C41 | full table | `c41_a_full_arena_refuses_and_goes_on` |
//! | C43 | a few /128s empty a pool | `c43_sparse_host_routes_have_a_bounded_price` |
//! | C45 | a ceiling in a field width | `c45_as_many_host_routes_as_fit` |
//! | C46 | nested prefixes slow lookups | `c46_nested_prefixes_do_not_lengthen_the_way` |
//! | C48 | a failed create leaks | `allocations.rs`: `c48_failed_creation_leaves_nothing`; each k-th reservation: the crate's unit tests |
//! | C49 | teardown of tables leaks | `c49_emptied_tables_give_their_memory_back`; destroying comes with named tables |
//! | C50 | delete and re-create under one name | no: tables have no names yet and stay for good; comes with named tables |
//! | C51 | a prefix removed before the one inside it | `c51_the_outer_prefix_goes_first` |
//! | C52 | slow removal from a big table | `c52_removals_from_a_large_ipv6_table`; times are `fib-bench update`'s |
//! | C53 | waiting for readers after each add | no: waiting comes with the dirty-memory budget |
//! | C54 | the budget itself | no: comes with the dirty-memory budget |
//! | C55 | next hop removed by a table walk | no: comes with next-hop objects |
//! | C57 | quadratic load | `c57_load_orders_make_equal_tables`; times are `fib-bench load`'s |
//! | C58 | a replace that reallocates | `c58_replacing_a_next_hop_moves_no_memory`; `allocations.rs` counts the allocator's calls |
//! | C60 | freed node reused under a reader | `concurrent.rs`: `c60_a_freed_node_is_never_read` |
//! | C62 | replace is old or new | `concurrent.rs`: `c62_a_replaced_route_is_old_or_new` |
//! | C63 | growth under readers | `concurrent.rs`: `c63_the_root_grows_and_shrinks_under_readers` |
//! | C65 | endless walk in a multipath list | no: comes with next-hop groups |
//! | C66 | member statistics freed early | no: comes with next-hop groups |
//! | C67 | remove while iterating | `c67_a_walk_resumes_from_a_key_that_has_gone` |
//! | C68 | readers that sleep or die | `c68_readers_that_are_gone_hold_nothing_back`; those that sleep come with the budget |
//! | C69 | fork | no: comes with the dirty-memory budget's own grace periods |
//! | C71 | a change not visible at once | `c71_a_change_is_visible_when_its_call_returns` |
//! | C72 | two writers | `c72_writers_take_turns` |
//! | C73 | error route keeps a next hop | no: comes with next-hop objects |
//! | C74 | next hop changed into a duplicate | no: comes with next-hop objects |
//! | C76 | weights | no: comes with next-hop groups |
//! | C78 | group removed under routes | no: comes with next-hop groups |
//! | C79 | a group id where a next hop was meant | no: comes with next-hop groups |
//! | C80 | names too long or taken | no: comes with named tables |
//! | C82 | no memory on a node, no huge pages | `c82_huge_pages_are_optional`; no memory policy is ever set, so no node is named |
//! | C83 | a batch as the first operation | `c83_a_batch_as_the_first_operation` |
//! | C84 | update path that allocates under a lock | `allocations.rs`: `c84_lookups_allocate_nothing`; removal and walks: here |
//! | C85 | wrong counters | `c85_counters_equal_a_recount` |
//!
//! Numbers that are not listed are not in use.

mod common;

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc;

use common::{Checked, Rng, TestAddr, answers, around, batch, hop, ip, is_busy, net, prefix, recount, table_bytes};
use fib::oracle::{HashTable, LinearTable};
use fib::{
    Addr, Applied, Family, Fib, FibError, NextHopId, OnError, Op, Options, Prefix, PrefixError, Reader, Resource,
    Route, RouteMatch, TableOptions, Writer, WriterBusy, parse_prefix, parse_prefix_truncating, unmap,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A script's table, with the oracle beside it.
struct Script {
    writer: Writer,
    reader: Reader,
    v4: LinearTable<u32>,
    v6: LinearTable<u128>,
}

/// What a line gives: by the library and by the oracle.
struct Outcome {
    found: String,
    right: String,
}

fn joined(prefixes: impl IntoIterator<Item = IpNet>) -> String {
    prefixes.into_iter().map(|prefix| prefix.to_string()).collect::<Vec<_>>().join(" ")
}

fn or_miss(answer: Option<impl ToString>) -> String {
    answer.map_or_else(|| String::from("miss"), |answer| answer.to_string())
}

fn v4(net: Ipv4Net) -> Prefix<u32> {
    net.try_into().unwrap()
}

fn v6(net: Ipv6Net) -> Prefix<u128> {
    net.try_into().unwrap()
}

fn nets<A: Addr>(prefixes: Vec<Prefix<A>>) -> String {
    joined(prefixes.into_iter().map(IpNet::from))
}

impl Script {
    /// Runs `text` on a fresh table; the error is the first line whose outcome is not the expected one.
    fn run(text: &str) -> Result<Script, String> {
        let fib = Fib::new().unwrap();
        let mut script = Script {
            writer: fib.writer().unwrap(),
            reader: fib.reader("script").unwrap(),
            v4: LinearTable::new(),
            v6: LinearTable::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                script.line(line).map_err(|error| format!("{}: `{line}`: {error}", index + 1))?;
            }
        }
        Ok(script)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (command, expected) = match line.split_once('=') {
            Some((command, expected)) => (command.trim(), Some(expected.trim())),
            None => (line, None),
        };
        let words: Vec<&str> = command.split_ascii_whitespace().collect();
        let outcome = match *words.as_slice() {
            ["add", prefix, id] => self.add(prefix_of(prefix)?, id_of(id)?),
            ["addnew", prefix, id] => self.add_new(prefix_of(prefix)?, id_of(id)?),
            ["del", prefix] => self.del(prefix_of(prefix)?),
            ["get", addr] => self.get(addr)?,
            ["exact", prefix] => self.exact(prefix_of(prefix)?),
            ["cover", addr] => self.cover(prefix_of(addr)?),
            ["under", prefix] => self.under(prefix_of(prefix)?),
            ["shortest", addr] => self.shortest(prefix_of(addr)?),
            ["count"] => self.count(),
            _ => return Err(String::from("unknown verb or wrong number of arguments")),
        };
        self.writer.check().map_err(|error| error.to_string())?;
        if outcome.right != expected.unwrap_or(&outcome.right) {
            return Err(format!("the script expects {}, the oracle {}", expected.unwrap_or_default(), outcome.right));
        }
        if outcome.found == outcome.right {
            Ok(())
        } else {
            Err(format!("expected {}, got {}", outcome.right, outcome.found))
        }
    }

    fn oracle_insert(&mut self, prefix: IpNet, id: NextHopId) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(net) => self.v4.insert(v4(net), id),
            IpNet::V6(net) => self.v6.insert(v6(net), id),
        }
    }

    fn oracle_get(&self, prefix: IpNet) -> Option<NextHopId> {
        match prefix {
            IpNet::V4(net) => self.v4.get(v4(net)),
            IpNet::V6(net) => self.v6.get(v6(net)),
        }
    }

    fn add(&mut self, prefix: IpNet, id: NextHopId) -> Outcome {
        let replaced = self.writer.main().insert_or_replace(prefix, id);
        let right = self.oracle_insert(prefix, id);
        Outcome {
            found: format!("{:?}", replaced.map(|route| route.map(|r| r.next_hop))),
            right: format!("Ok({right:?})"),
        }
    }

    fn add_new(&mut self, prefix: IpNet, id: NextHopId) -> Outcome {
        let found = match self.writer.main().insert_if_absent(prefix, id) {
            Ok(()) => String::from("ok"),
            Err(FibError::RouteExists { prefix: named, priority: 0 }) if named == prefix => String::from("EEXIST"),
            Err(error) => error.to_string(),
        };
        if self.oracle_get(prefix).is_some() {
            return Outcome { found, right: String::from("EEXIST") };
        }
        self.oracle_insert(prefix, id);
        Outcome { found, right: String::from("ok") }
    }

    fn del(&mut self, prefix: IpNet) -> Outcome {
        let said = |removed: Option<NextHopId>| String::from(if removed.is_some() { "ok" } else { "ENOENT" });
        let found = match self.writer.main().remove(prefix, RouteMatch::ANY) {
            Ok(removed) => said(removed.map(|route| route.next_hop)),
            Err(error) => error.to_string(),
        };
        let right = match prefix {
            IpNet::V4(net) => self.v4.remove(v4(net)),
            IpNet::V6(net) => self.v6.remove(v6(net)),
        };
        Outcome { found, right: said(right) }
    }

    fn get(&mut self, addr: &str) -> Result<Outcome, String> {
        let addr: std::net::IpAddr = addr.parse().map_err(|_| String::from("not an address"))?;
        let (found, right) = match addr {
            std::net::IpAddr::V4(addr) => {
                let addr = addr.to_bits();
                (answers(&mut self.writer, &mut self.reader, &[addr])[0], self.v4.lookup(addr).map(|(_, id)| id))
            }
            std::net::IpAddr::V6(addr) => {
                let addr = addr.to_bits();
                (answers(&mut self.writer, &mut self.reader, &[addr])[0], self.v6.lookup(addr).map(|(_, id)| id))
            }
        };
        Ok(Outcome { found: or_miss(found), right: or_miss(right) })
    }

    fn exact(&mut self, prefix: IpNet) -> Outcome {
        let found = self.writer.main().get(prefix).map(|route| route.next_hop);
        Outcome { found: or_miss(found), right: or_miss(self.oracle_get(prefix)) }
    }

    fn cover(&mut self, addr: IpNet) -> Outcome {
        let table = self.writer.main();
        let found: Vec<IpNet> = table.covering(addr).map(|(prefix, _)| prefix).collect();
        let mut reversed: Vec<IpNet> = table.covering_longest_first(addr).map(|(prefix, _)| prefix).collect();
        reversed.reverse();
        assert_eq!(found, reversed, "covers of {addr} from both ends");
        let right = match addr {
            IpNet::V4(net) => nets(self.v4.covering(v4(net))),
            IpNet::V6(net) => nets(self.v6.covering(v6(net))),
        };
        Outcome { found: joined(found), right }
    }

    fn under(&mut self, prefix: IpNet) -> Outcome {
        let found = joined(self.writer.main().within(prefix).map(|(prefix, _)| prefix));
        let right = match prefix {
            IpNet::V4(net) => nets(self.v4.within(v4(net))),
            IpNet::V6(net) => nets(self.v6.within(v6(net))),
        };
        Outcome { found, right }
    }

    fn shortest(&mut self, addr: IpNet) -> Outcome {
        let found = self.writer.main().shortest_match(addr.addr()).map(|(prefix, _)| prefix);
        let right = match addr {
            IpNet::V4(net) => self.v4.covering(v4(net)).first().copied().map(IpNet::from),
            IpNet::V6(net) => self.v6.covering(v6(net)).first().copied().map(IpNet::from),
        };
        Outcome { found: or_miss(found), right: or_miss(right) }
    }

    fn count(&mut self) -> Outcome {
        let (prefixes, routes) = recount(&mut self.writer);
        assert_eq!(prefixes, routes, "scripts give a prefix one route");
        Outcome { found: routes.to_string(), right: (self.v4.routes().len() + self.v6.routes().len()).to_string() }
    }
}

fn prefix_of(text: &str) -> Result<IpNet, String> {
    parse_prefix(text).map_err(|error| error.to_string())
}

fn id_of(text: &str) -> Result<NextHopId, String> {
    let id: u32 = text.parse().map_err(|_| String::from("not a next-hop id"))?;
    NextHopId::new(id).map_err(|error| error.to_string())
}

macro_rules! script {
    ($name:literal) => {
        Script::run(include_str!(concat!("cases/", $name, ".fib")))
            .unwrap_or_else(|error| panic!(concat!("cases/", $name, ".fib:{}"), error))
    };
}

#[test]
fn a_wrong_answer_is_reported_with_its_line() {
    let error = |text: &str| Script::run(text).err().unwrap();
    assert_eq!(
        error("# no answer here\n\nadd 10.0.0.0/8 1\nget 10.0.0.1 = 2"),
        "4: `get 10.0.0.1 = 2`: the script expects 2, the oracle 1"
    );
    assert_eq!(error("del 10.0.0.0/8 = ok"), "1: `del 10.0.0.0/8 = ok`: the script expects ok, the oracle ENOENT");
    assert!(error("put 10.0.0.0/8 1").contains("unknown verb"));
    assert!(error("add 10.0.0.1/8 1").contains("host bits"));
    assert!(error("add 10.0.0.0/33 1").contains("above 32"));
    assert!(error("add 10.0.0.0/8 2147483647").contains("above 2147483646"));
}

#[test]
fn c01_a_late_cover_fills_every_hole() {
    script!("c01");
    let mut table = Checked::<u32>::new();
    table.insert(prefix(0x0a01_0200, 24), 1);
    table.insert(prefix(0x0a01_023c, 32), 2);
    table.insert(prefix(0x0a00_0000, 8), 3);
    let around: Vec<u32> = (0x0a01_0100..0x0a01_0400).collect();
    table.compare(&around);
}

#[test]
fn c02_a_cover_after_a_removal_fills_what_was_emptied() {
    script!("c02");
    let mut table = Checked::<u32>::new();
    for (addr, len) in [(0x0a00_0100, 24), (0x0a00_0102, 32), (0x0a00_0200, 24), (0x0a00_0202, 32)] {
        table.insert(prefix(addr, len), u32::from(len) + addr);
    }
    table.remove(prefix(0x0a00_0102, 32));
    table.remove(prefix(0x0a00_0100, 24));
    table.insert(prefix(0x0a00_0000, 8), 3);
    let around: Vec<u32> = (0x0a00_0000..0x0a00_0400).collect();
    table.compare(&around);
}

#[test]
fn c03_a_removal_hands_over_to_the_next_cover() {
    script!("c03");
}

#[test]
fn c06_the_middle_one_of_nested_prefixes_goes() {
    script!("c06");
    // The same with every address, for all orders in which the three can come.
    for order in [[22, 23, 24], [22, 24, 23], [23, 22, 24], [23, 24, 22], [24, 22, 23], [24, 23, 22]] {
        let mut table = Checked::<u32>::new();
        for len in order {
            table.insert(prefix(0x0a00_0000, len), u32::from(len));
        }
        table.remove(prefix(0x0a00_0000, 23));
        let around: Vec<u32> = (0x0a00_0000 - 64..0x0a00_0440).collect();
        table.compare(&around);
        table.check();
    }
}

#[test]
fn c07_the_default_route_overwrites_nothing() {
    script!("c07");
}

#[test]
fn c08_the_default_route_as_the_first_route() {
    let mut script = script!("c08");
    for text in ["0.0.0.0/0", "::/0"] {
        assert!(script.writer.main().remove(net(text), RouteMatch::ANY).unwrap().is_some());
    }
    assert_eq!(answers(&mut script.writer, &mut script.reader, &[0u32, u32::MAX]), [None, None]);
    assert_eq!(answers(&mut script.writer, &mut script.reader, &[0u128, u128::MAX]), [None, None]);
}

#[test]
fn c11_host_routes_are_not_swapped() {
    script!("c11");
    // Every subset of eight neighbouring host routes and the four pairs above them.
    for subset in 0u32..1 << 12 {
        let mut table = Checked::<u32>::new();
        for bit in (0..12).filter(|bit| subset >> bit & 1 == 1) {
            let (addr, len) = if bit < 8 { (bit, 32) } else { (2 * (bit - 8), 31) };
            table.insert(prefix(0x0aff_fff8 + addr, len), bit + 1);
        }
        let around: Vec<u32> = (0x0aff_fff6..0x0b00_0002).collect();
        table.compare(&around);
    }
}

#[test]
fn c12_full_length_ipv6_routes_match() {
    script!("c12");
}

fn each_length_alone<A: TestAddr>() {
    let mut rng = Rng::new(13);
    for len in 0..=A::BITS {
        for addr in [A::ZERO, A::MAX, A::random(&mut rng)] {
            let mut table = Checked::<A>::new();
            let alone = prefix(addr, len);
            table.insert(alone, 13);
            table.compare(&[alone.addr(), alone.last(), alone.addr().wrapping_prev(), alone.last().wrapping_next()]);
            table.check();
        }
    }
}

#[test]
fn c13_each_length_alone_in_a_table() {
    script!("c13");
    each_length_alone::<u32>();
    each_length_alone::<u128>();
}

#[test]
fn c17_all_covers_of_an_address() {
    let mut script = script!("c17");
    let table = script.writer.main();
    // Early stop, and covers of a prefix instead of an address.
    assert_eq!(table.covering(net("10.0.0.1")).nth(1).unwrap().0, net("10.0.0.0/8"));
    assert_eq!(
        joined(table.covering(net("10.0.0.0/16")).map(|(prefix, _)| prefix)),
        "0.0.0.0/0 10.0.0.0/8 10.0.0.0/16"
    );
    assert_eq!(
        table.covering_longest_first(net("10.0.1.0/24")).map(|(_, route)| route.next_hop.get()).collect::<Vec<_>>(),
        [4, 2, 1, 5]
    );
    assert_eq!(table.parent(net("10.0.1.0/24")).unwrap().0, net("10.0.0.0/16"));
    assert_eq!(table.parent(net("0.0.0.0/0")), None);
}

#[test]
fn c18_families_never_mix() {
    script!("c18");
}

#[test]
fn c19_mapped_addresses_cross_by_the_named_helper_only() {
    let mut script = script!("c19");
    let table = script.writer.main();
    assert_eq!(table.lookup(ip("::ffff:10.1.2.3")), Some(hop(2)));
    assert_eq!(table.lookup(unmap(ip("::ffff:10.1.2.3"))), Some(hop(1)));
    assert_eq!(table.lookup(unmap(ip("::ffff:11.1.2.3"))), None);
    // Only ::ffff:0:0/96 is unmapped; an IPv4-compatible address is something else.
    assert_eq!(unmap(ip("::10.1.2.3")), ip("::10.1.2.3"));
}

#[test]
fn c20_host_bits_are_refused_or_cleared_by_name() {
    script!("c20");
    for (text, truncated, other) in [
        ("10.1.2.3/8", "10.0.0.0/8", "10.9.9.9/8"),
        ("1.2.3.4/0", "0.0.0.0/0", "128.0.0.0/0"),
        ("10.1.2.3/31", "10.1.2.2/31", "10.1.2.3/31"),
        ("2001:db8::1/32", "2001:db8::/32", "2001:db8:1::/32"),
        ("1::/0", "::/0", "::1/0"),
    ] {
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        let mut table = writer.main();
        // Strict: refused by the parser and, made in another way, by each call.
        assert!(matches!(parse_prefix(text), Err(PrefixError::HostBits { .. })), "{text}");
        let dirty: IpNet = text.parse().unwrap();
        let refused = |error: FibError| matches!(error, FibError::Prefix(PrefixError::HostBits { .. }));
        assert!(refused(table.insert_if_absent(dirty, hop(1)).unwrap_err()));
        assert!(refused(table.insert_or_replace(dirty, hop(1)).unwrap_err()));
        assert!(refused(table.replace_if_present(dirty, hop(1)).unwrap_err()));
        assert!(refused(table.append(dirty, hop(1)).unwrap_err()));
        assert!(refused(table.prepend(dirty, hop(1)).unwrap_err()));
        assert!(refused(table.remove(dirty, RouteMatch::ANY).unwrap_err()));
        assert!(refused(table.remove_within(dirty).unwrap_err()));
        assert!(refused(
            table.load([(net("10.0.0.0/8"), Route::new(hop(1))), (dirty, Route::new(hop(1)))]).unwrap_err()
        ));
        let applied = table.apply(&[Op::InsertOrReplace(dirty, hop(1).into())], OnError::Continue).unwrap();
        assert!(refused(applied[0].clone().unwrap_err()));
        assert_eq!(recount(&mut writer), (0, 0));
        // Truncating: whatever the host bits, one and the same prefix.
        let clean = parse_prefix_truncating(text).unwrap();
        assert_eq!((clean, parse_prefix_truncating(other).unwrap()), (net(truncated), net(truncated)));
        let mut table = writer.main();
        table.insert_if_absent(clean, hop(1)).unwrap();
        let replaced = table.insert_or_replace(parse_prefix_truncating(other).unwrap(), hop(2)).unwrap();
        assert_eq!(replaced, Some(hop(1).into()));
        assert_eq!((table.get(clean), table.get(dirty)), (Some(hop(2).into()), None));
        assert_eq!(table.remove(parse_prefix_truncating(text).unwrap(), RouteMatch::ANY).unwrap(), Some(hop(2).into()));
        assert_eq!(recount(&mut writer), (0, 0));
    }
}

#[test]
fn c21_ipv6_lengths_above_32() {
    script!("c21");
}

#[test]
fn c23_the_last_route_goes() {
    let mut script = script!("c23");
    let empty = table_bytes(&mut Fib::new().unwrap().writer().unwrap());
    assert_eq!(table_bytes(&mut script.writer), empty);
}

fn misses<A: TestAddr>(family: Family, cover: Prefix<A>) {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut reader = fib.reader("test").unwrap();
    let mut rng = Rng::new(26);
    for filled in [false, true] {
        if filled {
            writer.main().insert_if_absent(cover.into(), hop(7)).unwrap();
        }
        for count in (0..70).chain([255, 256, 257, 1000]) {
            // Half of the addresses hit, once there is something to hit.
            let addrs: Vec<A> = (0..count)
                .map(|index| if index % 2 == 0 { cover.addr() } else { A::random(&mut rng).or(A::mask(1)) })
                .collect();
            // A guard before and behind the slice that is filled.
            let mut out = vec![hop(0x00a5_a5a5); count + 2];
            reader.burst().main().lookup_batch(&addrs, &mut out[1..=count], hop(99));
            for (index, found) in out[1..=count].iter().enumerate() {
                assert_eq!(*found, hop(if filled && index % 2 == 0 { 7 } else { 99 }));
            }
            assert_eq!((out[0], out[count + 1]), (hop(0x00a5_a5a5), hop(0x00a5_a5a5)));
        }
        let missed = cover.last().wrapping_next();
        assert_eq!(answers(&mut writer, &mut reader, &[missed, cover.addr()]), [None, filled.then(|| hop(7))]);
    }
    assert_eq!(writer.main().prefix_count(family), 1);
}

#[test]
fn c26_a_miss_is_the_value_that_was_asked_for() {
    misses::<u32>(Family::V4, prefix(0x0a00_0000, 8));
    misses::<u128>(Family::V6, prefix(0x2001_0db8 << 96, 32));
}

fn add_and_remove_at_each_length<A: TestAddr>() {
    let mut table = Checked::<A>::new();
    let empty = table_bytes(&mut table.writer);
    let mut rng = Rng::new(27);
    for len in 0..=A::BITS {
        let alone = prefix(A::random(&mut rng), len);
        table.remove(alone);
        table.insert(alone, 1);
        table.remove(alone);
        table.remove(alone);
        assert_eq!(table_bytes(&mut table.writer), empty, "{alone}");
    }
    table.check();
}

#[test]
fn c27_add_and_remove_mirror_each_other_at_each_length() {
    script!("c27");
    add_and_remove_at_each_length::<u32>();
    add_and_remove_at_each_length::<u128>();
}

/// Ids on both sides of each width that a slot or a C type may have.
const IDS: [u32; 18] = [
    0,
    1,
    125,
    126,
    127,
    128,
    254,
    255,
    256,
    257,
    32_766,
    32_767,
    65_535,
    65_536,
    (1 << 24) - 1,
    1 << 24,
    NextHopId::MAX.get() - 1,
    NextHopId::MAX.get(),
];

/// All ids of `routes` are found by each kind of question.
fn read_back<A: TestAddr>(writer: &mut Writer, reader: &mut Reader, routes: &[(Prefix<A>, u32)]) {
    let firsts: Vec<A> = routes.iter().map(|(prefix, _)| prefix.addr()).collect();
    let found = answers(writer, reader, &firsts);
    for ((prefix, id), found) in routes.iter().zip(found) {
        let (id, net) = (hop(*id), IpNet::from(*prefix));
        assert_eq!(found, Some(id), "{prefix}");
        let table = writer.main();
        assert_eq!(table.get(net), Some(id.into()));
        assert_eq!(table.covering(net).last(), Some((net, id.into())));
        assert_eq!(table.within(net).next(), Some((net, id.into())));
        assert_eq!(table.iter(A::FAMILY).find(|(present, _)| *present == net), Some((net, id.into())));
    }
    assert_eq!(writer.main().iter(A::FAMILY).count(), routes.len());
}

fn ids_are_kept<A: TestAddr>(base: A, len: u8) {
    let route = |index: usize, id: u32| {
        let addr = base.or(A::from_top((index as u32) << (32 - len.min(32))));
        (prefix(addr, len), id)
    };
    let routes: Vec<(Prefix<A>, u32)> = IDS.iter().enumerate().map(|(index, id)| route(index, *id)).collect();
    let mut backwards = routes.clone();
    backwards.reverse();
    for routes in [&routes, &backwards] {
        let mut table = Checked::<A>::new();
        for (count, (prefix, id)) in routes.iter().enumerate() {
            table.insert(*prefix, *id);
            read_back(&mut table.writer, &mut table.reader, &routes[..=count]);
        }
        table.check();
    }
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let loaded = routes.iter().map(|(prefix, id)| (IpNet::from(*prefix), Route::new(hop(*id))));
    assert_eq!(writer.main().load(loaded).unwrap().routes, IDS.len() as u64);
    read_back(&mut writer, &mut fib.reader("test").unwrap(), &routes);
}

#[test]
fn c28_ids_are_kept_whole_or_refused() {
    script!("c28");
    ids_are_kept::<u32>(0x0a00_0000, 16);
    ids_are_kept::<u128>(0, 32);
    // The default route, whose id is not kept in the trie.
    let mut table = Checked::<u32>::new();
    for id in IDS {
        table.insert(Prefix::DEFAULT, id);
        table.compare(&[0, 1, u32::MAX]);
    }
    for id in [NextHopId::MAX.get() + 1, 1 << 31, u32::MAX] {
        assert_eq!(NextHopId::new(id).unwrap_err().id, id);
        assert_eq!(NextHopId::try_from(id).unwrap_err().to_string(), format!("next-hop id {id} is above 2147483646"));
    }
}

#[test]
fn c29_a_bad_next_hop_changes_nothing() {
    for (text, addr) in [("2001:db8::/32", "2001:db8::1"), ("10.0.0.0/8", "10.0.0.1")] {
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        writer.main().insert_or_replace(net(text), hop(5)).unwrap();
        // An id out of range is refused where it is made, so no call can be given one.
        let update = NextHopId::new(NextHopId::MAX.get() + 1)
            .map(|id| writer.main().insert_or_replace(net(text), id).map(drop).map_err(|error| error.to_string()));
        assert!(update.is_err());
        assert_eq!(writer.main().lookup(ip(addr)), Some(hop(5)));
        assert_eq!(recount(&mut writer), (1, 1));
    }
}

fn batches_of_the_last_address<A: TestAddr>() {
    for widest in IDS {
        let mut table = Checked::<A>::new();
        // The last slots of the last nodes, in slots of each width.
        table.insert(prefix(A::MAX, A::BITS), widest);
        table.insert(prefix(A::MAX, A::BITS - 2), 1);
        table.insert(prefix(A::MAX, 20), 2);
        for count in (0..70).chain([127, 128, 129, 1000]) {
            let addrs = vec![A::MAX; count];
            assert_eq!(batch(&mut table.reader, &addrs), vec![Some(hop(widest)); count]);
        }
    }
}

#[test]
fn c31_batches_of_the_last_address() {
    batches_of_the_last_address::<u32>();
    batches_of_the_last_address::<u128>();
}

/// All walks over a table of the extremes of a family, by the oracle; then each is the subtree that goes.
fn walks_over_extremes<A: TestAddr>() {
    let extremes: Vec<Prefix<A>> = [0, 1, A::BITS - 1, A::BITS]
        .into_iter()
        .flat_map(|len| [prefix(A::ZERO, len), prefix(A::MAX, len)])
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let absent = [prefix(A::from_top(0x0102_0304), A::BITS), prefix(A::MAX, 2), prefix(A::ZERO, 2)];
    for gone in extremes.iter().chain(&absent).map(Some).chain([None]) {
        let mut table = Checked::<A>::new();
        for (index, prefix) in extremes.iter().enumerate() {
            table.insert(*prefix, index as u32 + 1);
        }
        if let Some(gone) = gone {
            let removed = table.writer.main().remove_within((*gone).into()).unwrap();
            assert_eq!(removed as usize, table.oracle.remove_within(*gone));
            table.check();
        }
        recount(&mut table.writer);
        for asked in extremes.iter().chain(&absent) {
            table.compare(&around(*asked));
            let (net, oracle) = (IpNet::from(*asked), &table.oracle);
            let main = table.writer.main();
            let found = |walk: &mut dyn Iterator<Item = (IpNet, Route)>| joined(walk.map(|(prefix, _)| prefix));
            assert_eq!(found(&mut main.covering(net)), nets(oracle.covering(*asked)));
            assert_eq!(found(&mut main.within(net)), nets(oracle.within(*asked)));
            let later = oracle.within(Prefix::DEFAULT).into_iter().filter(|present| present >= asked).collect();
            assert_eq!(found(&mut main.iter_from(net)), nets(later));
            let covers = oracle.covering(*asked);
            let parent = covers.iter().rev().find(|cover| *cover != asked);
            assert_eq!(main.parent(net).map(|(prefix, _)| prefix), parent.copied().map(IpNet::from));
            assert_eq!(main.get(net).map(|route| route.next_hop), oracle.get(*asked));
            let host: Prefix<A> = Prefix::host(asked.addr());
            let shortest = oracle.covering(host).first().copied().map(IpNet::from);
            assert_eq!(main.shortest_match(asked.addr().to_ip()).map(|(prefix, _)| prefix), shortest);
        }
    }
}

#[test]
fn c32_walks_over_the_extremes() {
    script!("c32");
    walks_over_extremes::<u32>();
    walks_over_extremes::<u128>();
}

#[test]
fn c34_numbers_are_in_host_order() {
    let mut script = script!("c34");
    let burst = script.reader.burst();
    let view = burst.main();
    // 1.2.3.4 as it lies in a packet, as a number, and as an address of the standard library.
    let packet = [1u8, 2, 3, 4];
    assert_eq!(view.lookup(u32::from_be_bytes(packet)), Some(hop(1)));
    assert_eq!(view.lookup(0x0102_0304u32), Some(hop(1)));
    assert_eq!(view.lookup(0x0403_0201u32), Some(hop(2)));
    assert_eq!(view.lookup(Ipv4Addr::from(packet)), Some(hop(1)));
    assert_eq!(view.lookup(Ipv4Addr::new(4, 3, 2, 1)), Some(hop(2)));
    let mut packet = [0u8; 16];
    packet[..4].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(view.lookup(u128::from_be_bytes(packet)), Some(hop(3)));
    assert_eq!(view.lookup(Ipv6Addr::from(packet)), Some(hop(3)));
    assert_eq!(view.lookup(0x0403_0201_u128 << 96), Some(hop(4)));
    let mut out = [hop(0); 2];
    view.lookup_batch(&[0x0102_0304u32, 0x0403_0201], &mut out, hop(9));
    assert_eq!(out, [hop(1), hop(2)]);
}

#[test]
fn c35_lengths_out_of_range() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    writer.main().insert_if_absent(net("1.1.1.0/24"), hop(1)).unwrap();
    writer.main().insert_if_absent(net("2001:db8::/32"), hop(2)).unwrap();
    let before = (recount(&mut writer), table_bytes(&mut writer), writer.memory_stats());
    for len in [33u8, 55, 64, 128, 129, 200, 255] {
        let too_long = |error: PrefixError| matches!(error, PrefixError::TooLong { len: named, .. } if named == len);
        let v4: &[u32] = &[0, 0x0101_0101, u32::MAX];
        for addr in v4 {
            assert!(too_long(Prefix::new(*addr, len).unwrap_err()));
            assert!(too_long(Prefix::truncating(*addr, len).unwrap_err()));
        }
        for text in [format!("1.1.1.1/{len}"), format!("0.0.0.0/{len}")] {
            assert!(too_long(parse_prefix(&text).unwrap_err()));
            assert!(too_long(parse_prefix_truncating(&text).unwrap_err()));
            assert!(text.parse::<IpNet>().is_err());
        }
        assert!(Ipv4Net::new(Ipv4Addr::LOCALHOST, len).is_err());
        if len > 128 {
            for addr in [0u128, 1, u128::MAX] {
                assert!(too_long(Prefix::new(addr, len).unwrap_err()));
                assert!(too_long(Prefix::truncating(addr, len).unwrap_err()));
            }
            assert!(too_long(parse_prefix(&format!("2001:db8::/{len}")).unwrap_err()));
            assert!(too_long(parse_prefix_truncating(&format!("2001:db8::1/{len}")).unwrap_err()));
            assert!(Ipv6Net::new(Ipv6Addr::LOCALHOST, len).is_err());
        }
    }
    // Lengths that no byte holds, and what is no length at all.
    for text in ["1.1.1.1/256", "1.1.1.1/99999", "::/65537", "::/999999999"] {
        assert!(matches!(parse_prefix(text), Err(PrefixError::TooLong { .. })), "{text}");
    }
    for text in [
        "1.1.1.1/-1",
        "1.1.1.1/ 8",
        "1.1.1.1/8 ",
        "1.1.1.1/0x8",
        "1.1.1/8",
        "::1/",
        "/8",
        "::1::/8",
        "::/4294967297",
        "\u{0}",
    ] {
        assert!(matches!(parse_prefix(text), Err(PrefixError::Malformed { .. })), "{text}");
        assert!(matches!(parse_prefix_truncating(text), Err(PrefixError::Malformed { .. })), "{text}");
    }
    // A long text is not copied whole into the error.
    let long = "x".repeat(100_000);
    assert!(parse_prefix(&long).unwrap_err().to_string().len() < 200);
    assert_eq!((recount(&mut writer), table_bytes(&mut writer), writer.memory_stats()), before);
    assert_eq!(writer.main().lookup(ip("1.1.1.1")), Some(hop(1)));
    assert_eq!(writer.main().lookup(ip("2001:db8::1")), Some(hop(2)));
}

#[test]
fn c36_nothing_is_a_fine_thing_to_ask_for() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    for name in ["", "x", "a name much longer than the thirty-one bytes that are kept", "n\u{0}n", "\u{1f980}\u{e9}"] {
        let mut reader = fib.reader(name).unwrap();
        let burst = reader.burst();
        burst.main().lookup_batch::<u32>(&[], &mut [], hop(0));
        burst.main().lookup_batch::<u128>(&[], &mut [], hop(0));
        assert_eq!(burst.main().lookup(0u32), None);
    }
    let mut table = writer.main();
    assert_eq!(table.apply(&[], OnError::Stop).unwrap(), []);
    assert_eq!(table.load([]).unwrap().routes, 0);
    assert_eq!(table.clear().unwrap(), 0);
    for text in ["0.0.0.0/0", "10.0.0.0/8", "::/0", "::1/128"] {
        assert_eq!(table.remove_within(net(text)).unwrap(), 0);
        assert_eq!(table.remove(net(text), RouteMatch::ANY).unwrap(), None);
        assert_eq!(table.within(net(text)).count() + table.covering(net(text)).count(), 0);
        assert_eq!((table.get(net(text)), table.parent(net(text)), table.routes(net(text)).next()), (None, None, None));
        assert_eq!(table.iter_from(net(text)).next(), None);
    }
    assert_eq!((table.begin_refresh(0), table.end_refresh(0).unwrap()), (0, 0));
    assert_eq!(recount(&mut writer), (0, 0));
    writer.check().unwrap();
}

/// One cycle of C39: all of `routes` come, and go in the order of `removed`.
fn cycle(writer: &mut Writer, routes: &[IpNet], removed: &[IpNet]) -> Result<(), FibError> {
    for prefix in routes {
        writer.main().insert_if_absent(*prefix, hop(1 + u32::from(prefix.prefix_len())))?;
    }
    for prefix in removed {
        assert!(writer.main().remove(*prefix, RouteMatch::ANY)?.is_some());
    }
    Ok(())
}

#[test]
fn c39_a_route_in_and_out_in_the_smallest_arena() {
    for (cycled, cover) in [
        ("10.0.0.16/28", None),
        ("10.0.0.16/28", Some("10.0.0.0/23")),
        ("2001:db8::1/128", None),
        ("2001:db8::1/128", Some("2001:c00::/23")),
    ] {
        let routes: Vec<IpNet> = cover.into_iter().chain([cycled]).map(net).collect();
        let mut backwards = routes.clone();
        backwards.reverse();
        for removed in [&routes, &backwards] {
            // The smallest arena that has room for one cycle has room for all that follow.
            let mut writer = (1..64)
                .find_map(|quanta| {
                    let fib = Fib::with_options(Options::default().node_memory(256 * quanta).sync_mem(65_536)).ok()?;
                    let mut writer = fib.writer().unwrap();
                    cycle(&mut writer, &routes, removed).is_ok().then_some(writer)
                })
                .unwrap();
            let (empty, rib_bytes) = (trie_bytes(&mut writer), table_bytes(&mut writer));
            for _ in 0..25_000 {
                cycle(&mut writer, &routes, removed).unwrap();
            }
            assert_eq!((trie_bytes(&mut writer), table_bytes(&mut writer)), (empty, rib_bytes));
            writer.check().unwrap();
        }
    }
}

#[test]
fn c40_branches_that_come_and_go_leave_no_memory() {
    let mut script = script!("c40");
    let writer = &mut script.writer;
    let branch = net("10.128.0.0/10");
    let shape = writer.main().stats();
    for _ in 0..1_000_000 {
        let mut table = writer.main();
        table.insert_if_absent(branch, hop(3)).unwrap();
        table.remove(branch, RouteMatch::ANY).unwrap();
    }
    assert_eq!(writer.main().stats(), shape);
    writer.check().unwrap();

    writer.main().clear().unwrap();
    let empty = writer.main().stats();
    let mut rng = Rng::new(40);
    let subnets: Vec<IpNet> = (0..100_000).map(|_| prefix(u128::random(&mut rng), 64).into()).collect();
    for subnet in &subnets {
        writer.main().insert_or_replace(*subnet, hop(1)).unwrap();
    }
    let full = writer.memory_stats();
    for subnet in &subnets {
        writer.main().remove(*subnet, RouteMatch::ANY).unwrap();
    }
    let after = writer.main().stats();
    assert_eq!(after.v6.trie_bytes, empty.v6.trie_bytes);
    // The Rib keeps a little room for what comes next.
    assert!(after.v6.rib_bytes <= empty.v6.rib_bytes + 4096, "{} bytes of Rib for no route", after.v6.rib_bytes);
    let emptied = writer.memory_stats();
    assert!(emptied.live_bytes <= after.v4.trie_bytes + after.v6.trie_bytes + DIRTY_BYTES);
    println!("c40: node memory {} bytes full, {} emptied", full.footprint_bytes, emptied.footprint_bytes);
    writer.check().unwrap();
}

/// What may be retired and not yet reclaimed: the default budget.
const DIRTY_BYTES: usize = 524_288;

#[test]
fn c41_a_full_arena_refuses_and_goes_on() {
    for limit in [4 << 10, 64 << 10, 512 << 10] {
        full_arena(limit);
    }
}

fn full_arena(limit: usize) {
    let fib = Fib::with_options(Options::default().node_memory(limit).sync_mem(65_536)).unwrap();
    let mut writer = fib.writer().unwrap();
    let mut reader = fib.reader("test").unwrap();
    let mut oracle = HashTable::<u32>::new();
    let mut rng = Rng::new(41);
    let mut routes: Vec<Prefix<u32>> = Vec::new();
    let refused = |error: FibError| match error {
        FibError::OutOfMemory(error) => assert_eq!((error.resource, error.limit), (Resource::Arena, limit)),
        other => panic!("{other}"),
    };
    let mut failures = 0;
    while failures < 100 {
        let len = rng.pick(&[8, 16, 20, 22, 24, 24, 28, 32, 32, 32]);
        let added = prefix(rng.next() as u32, len);
        if oracle.get(added).is_some() {
            continue;
        }
        // An id that no neighbour has, so that no slots are merged.
        let id = hop(1 + routes.len() as u32);
        match writer.main().insert_if_absent(added.into(), id) {
            Ok(()) => {
                oracle.insert(added, id);
                routes.push(added);
            }
            Err(error) => {
                refused(error);
                failures += 1;
                writer.check().unwrap();
            }
        }
    }
    let mut compare = |writer: &mut Writer, oracle: &HashTable<u32>| {
        let addrs: Vec<u32> = routes.iter().flat_map(|prefix| around(*prefix)).collect();
        let found = answers(writer, &mut reader, &addrs);
        for (addr, found) in addrs.iter().zip(found) {
            assert_eq!(found, oracle.lookup(*addr).map(|(_, id)| id));
        }
        assert_eq!(writer.main().prefix_count(Family::V4), oracle.len());
    };
    compare(&mut writer, &oracle);
    println!("c41: {} routes in {limit} bytes", routes.len());

    // Another id that no neighbour has changes no shape, so every replacement has the room it needs.
    for (index, route) in routes.iter().enumerate() {
        let id = hop(16_000 + index as u32);
        let replaced = writer.main().replace_if_present((*route).into(), id).unwrap();
        assert_eq!(oracle.insert(*route, id), Some(replaced.next_hop));
    }
    writer.check().unwrap();
    compare(&mut writer, &oracle);

    // In the full arena any route goes, and it fits again; one more host route and one more short one may or may not find
    // the crumbs.
    for gone in &routes {
        let removed = writer.main().remove((*gone).into(), RouteMatch::ANY).unwrap().unwrap();
        assert_eq!(oracle.remove(*gone), Some(removed.next_hop));
        writer.main().insert_if_absent((*gone).into(), removed).unwrap();
        oracle.insert(*gone, removed.next_hop);
        for len in [32, 8] {
            let more = prefix(rng.next() as u32, len);
            if oracle.get(more).is_none() {
                match writer.main().insert_if_absent(more.into(), hop(9)) {
                    Ok(()) => assert_eq!(oracle.insert(more, hop(9)), None),
                    Err(error) => refused(error),
                }
            }
        }
    }
    writer.check().unwrap();
    compare(&mut writer, &oracle);
    assert!(trie_bytes(&mut writer) <= limit);

    // Emptied at once, by subtree and route by route, and filled again each time: the capacity is the same as before.
    let all: Vec<(IpNet, Route)> = writer.main().iter(Family::V4).collect();
    type Emptying = fn(&mut Writer) -> u64;
    let ways: [Emptying; 3] = [
        |writer| writer.main().clear().unwrap(),
        |writer| ["0.0.0.0/1", "128.0.0.0/1"].map(|half| writer.main().remove_within(net(half)).unwrap()).iter().sum(),
        |writer| {
            let left: Vec<IpNet> = writer.main().iter(Family::V4).map(|(prefix, _)| prefix).collect();
            let gone = |prefix: &&IpNet| writer.main().remove(**prefix, RouteMatch::ANY).unwrap().is_some();
            left.iter().filter(gone).count() as u64
        },
    ];
    for empty in ways {
        assert_eq!(empty(&mut writer), all.len() as u64);
        assert_eq!(recount(&mut writer), (0, 0));
        writer.check().unwrap();
        for (prefix, route) in &all {
            writer.main().insert_if_absent(*prefix, *route).unwrap();
        }
        writer.check().unwrap();
        compare(&mut writer, &oracle);
    }
    assert!(trie_bytes(&mut writer) <= limit);
}

/// Bytes of all nodes of the main table.
fn trie_bytes(writer: &mut Writer) -> usize {
    let stats = writer.main().stats();
    stats.v4.trie_bytes + stats.v6.trie_bytes
}

/// Bytes of trie and Rib a route, after `routes` have gone in one by one.
fn price<A: TestAddr>(name: &str, addrs: impl Iterator<Item = A>) -> (Writer, usize) {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    for addr in addrs {
        writer.main().insert_or_replace(Prefix::host(addr).into(), hop(1)).unwrap();
    }
    let stats = writer.main().stats();
    let stats = if A::FAMILY == Family::V4 { stats.v4 } else { stats.v6 };
    println!(
        "{name}: {} routes, {} bytes of trie and {} of Rib a route",
        stats.routes,
        stats.trie_bytes / stats.routes,
        stats.rib_bytes / stats.routes
    );
    writer.check().unwrap();
    (writer, (stats.trie_bytes + stats.rib_bytes) / stats.routes)
}

#[test]
fn c43_sparse_host_routes_have_a_bounded_price() {
    let mut rng = Rng::new(43);
    // Each alone in its /64: a node of trie and Rib for each of about 18 grid steps.
    let scattered: Vec<u128> = (0..50_000).map(|_| u128::random(&mut rng)).collect();
    let (mut writer, bytes) = price("c43, one /128 in each of 50,000 /64", scattered.iter().copied());
    assert!(bytes <= 1600, "{bytes}");
    for addr in &scattered[..1000] {
        assert_eq!(writer.main().lookup(addr.to_ip()), Some(hop(1)));
        assert_eq!(writer.main().lookup((addr ^ 1).to_ip()), None);
    }
    // A thousand in each of 100 /64: they share the way.
    let subnets: Vec<u128> = (0..100).map(|_| u128::random(&mut rng) & !u128::from(u64::MAX)).collect();
    let crowded = (0..100_000).map(|index| subnets[index % 100] | u128::from(rng.next()));
    let (_, bytes) = price("c43, 1,000 /128 in each of 100 /64", crowded);
    assert!(bytes <= 800, "{bytes}");
}

/// Loads `count` scattered host routes, all different, and looks some up.
fn many_host_routes<A: TestAddr>(count: u32, ceiling: usize, scattered: impl Fn(u32) -> A) {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let routes = (0..count).map(|index| (IpNet::from(Prefix::host(scattered(index))), Route::new(hop(index))));
    let report = writer.main().load(routes).unwrap();
    assert_eq!((report.routes, report.replaced), (u64::from(count), 0));
    let bytes = table_bytes(&mut writer) / count as usize;
    println!("c45: {count} {} host routes, {bytes} bytes each", A::FAMILY);
    assert!(bytes <= ceiling, "{bytes}");
    let mut reader = fib.reader("test").unwrap();
    let sample: Vec<u32> = (0..count).step_by(97).chain([count - 1]).collect();
    let addrs: Vec<A> = sample.iter().map(|index| scattered(*index)).collect();
    for (index, found) in sample.into_iter().zip(batch(&mut reader, &addrs)) {
        assert_eq!(found, Some(hop(index)));
    }
    writer.check().unwrap();
}

#[test]
fn c45_as_many_host_routes_as_fit() {
    // Above 2^20 of one family, where others had their ceiling. An odd factor scatters without collisions.
    many_host_routes::<u32>((1 << 20) + 10_000, 256, |index| index.wrapping_mul(0x9e37_79b1));
    many_host_routes::<u128>(50_000, 1600, |index| {
        u128::from(index.wrapping_mul(0x9e37_79b1)) << 96 | u128::from(Rng::new(index.into()).next())
    });
}

fn nested_chains<A: TestAddr>(chains: usize, last_node: u8) {
    let mut rng = Rng::new(46);
    let ends: Vec<A> = (0..chains).map(|_| A::random(&mut rng)).collect();
    let mut oracle = HashTable::<A>::new();
    for (index, end) in ends.iter().enumerate() {
        for len in 0..=A::BITS {
            oracle.insert(prefix(*end, len), hop((index * 200) as u32 + u32::from(len)));
        }
    }
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut reader = fib.reader("test").unwrap();
    for end in &ends {
        for len in 0..=A::BITS {
            let nested = prefix(*end, len);
            writer.main().insert_or_replace(nested.into(), oracle.get(nested).unwrap()).unwrap();
        }
    }
    // Every address that leaves a chain at some length.
    for end in ends.iter().take(100) {
        let leaving: Vec<A> =
            (0..A::BITS).map(|len| end.and(A::mask(len)).or(end.not().and(A::mask(len).not()))).chain([*end]).collect();
        let found = answers(&mut writer, &mut reader, &leaving);
        for (addr, found) in leaving.iter().zip(found) {
            assert_eq!(found, oracle.lookup(*addr).map(|(_, id)| id));
        }
    }
    // A lookup passes one node a grid step at most, however many prefixes nest.
    let stats = writer.main().stats();
    let stats = if A::FAMILY == Family::V4 { stats.v4 } else { stats.v6 };
    let deepest = stats.nodes_by_depth.last().unwrap().0;
    println!("c46: {} prefixes in {chains} chains, deepest node at bit {deepest}", stats.prefixes);
    assert!(deepest <= last_node && stats.nodes_by_depth.len() <= A::STEPS);
    writer.check().unwrap();
}

#[test]
fn c46_nested_prefixes_do_not_lengthen_the_way() {
    nested_chains::<u32>(1000, 30);
    nested_chains::<u128>(1000, 122);
}

#[test]
fn c49_emptied_tables_give_their_memory_back() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let mut writer = fib.writer().unwrap();
    let ids: Vec<_> = (0..1000).map(|_| writer.create_table(TableOptions::default()).unwrap()).collect();
    assert_eq!(ids.iter().map(|id| id.get()).collect::<Vec<_>>(), (1..=1000).collect::<Vec<_>>());
    let routes: Vec<(IpNet, Route)> = {
        let mut rng = Rng::new(49);
        (0..50)
            .flat_map(|index| {
                let id = hop(index % 7);
                let (v4, v6) = (u32::random(&mut rng), u128::random(&mut rng));
                [(prefix(v4, 24).into(), id.into()), (prefix(v6, 48).into(), id.into())]
            })
            .collect()
    };
    writer.main().load(routes.clone()).unwrap();
    let before = writer.memory_stats();
    let sibling = writer.main().stats();
    let mut live = Vec::new();
    for round in 0..3 {
        for id in &ids {
            let mut table = writer.table(*id).unwrap();
            for (prefix, route) in &routes {
                table.insert_if_absent(*prefix, *route).unwrap();
            }
        }
        let full = writer.memory_stats();
        assert!(full.live_bytes >= before.live_bytes + 1000 * routes.len() * 8);
        for (index, id) in ids.iter().enumerate() {
            let mut table = writer.table(*id).unwrap();
            // Both ways to empty a table.
            let removed = if index % 2 == 0 {
                table.clear().unwrap()
            } else {
                table.remove_within(net("0.0.0.0/0")).unwrap() + table.remove_within(net("::/0")).unwrap()
            };
            assert_eq!(removed, routes.len() as u64, "round {round}");
            assert_eq!(table.lookup(routes[0].0.addr()), None);
        }
        let emptied = writer.memory_stats();
        assert!(emptied.live_bytes <= before.live_bytes + 2 * 65_536, "{before:?} {emptied:?}");
        live.push(emptied.footprint_bytes);
    }
    assert_eq!(writer.main().stats(), sibling, "the table that was left alone");
    println!("c49: 1,000 tables of 100 routes, emptied three times: footprints {live:?}");
    writer.check().unwrap();
}

#[test]
fn c51_the_outer_prefix_goes_first() {
    script!("c51");
}

#[test]
fn c52_removals_from_a_large_ipv6_table() {
    let mut rng = Rng::new(52);
    for size in [10_000, 100_000] {
        let subnets: HashSet<Prefix<u128>> = (0..size)
            .map(|_| {
                let addr = u128::random(&mut rng) >> 3 | 1 << 125;
                prefix(addr, rng.pick(&[32, 40, 44, 48, 48, 48, 56, 64]))
            })
            .collect();
        let mut subnets: Vec<Prefix<u128>> = subnets.into_iter().collect();
        subnets.sort_unstable();
        rng.shuffle(&mut subnets);
        let mut oracle = HashTable::new();
        for (index, subnet) in subnets.iter().enumerate() {
            oracle.insert(*subnet, hop(index as u32 % 64));
        }
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        let routes = subnets.iter().map(|subnet| (IpNet::from(*subnet), Route::new(oracle.get(*subnet).unwrap())));
        writer.main().load(routes).unwrap();
        let (gone, kept) = subnets.split_at(5_000);
        let started = std::time::Instant::now();
        for subnet in gone {
            assert!(writer.main().remove((*subnet).into(), RouteMatch::ANY).unwrap().is_some());
        }
        println!("c52: {:?} a removal from {} routes", started.elapsed() / gone.len() as u32, subnets.len());
        for subnet in gone {
            oracle.remove(*subnet);
        }
        let mut reader = fib.reader("test").unwrap();
        let addrs: Vec<u128> = gone.iter().chain(kept).take(10_000).flat_map(|subnet| around(*subnet)).collect();
        let found = answers(&mut writer, &mut reader, &addrs);
        for (addr, found) in addrs.iter().zip(found) {
            assert_eq!(found, oracle.lookup(*addr).map(|(_, id)| id));
        }
        assert_eq!(writer.main().prefix_count(Family::V6), kept.len());
        writer.check().unwrap();
    }
}

#[test]
fn c57_load_orders_make_equal_tables() {
    let mut rng = Rng::new(57);
    let mut sorted: Vec<(IpNet, Route)> = (0..30_000)
        .map(|_| {
            let (v4, v6) = (u32::random(&mut rng), u128::random(&mut rng) >> 3 | 1 << 125);
            let prefix: IpNet = if rng.below(2) == 0 {
                prefix(v4, rng.pick(&[8, 16, 20, 22, 23, 24, 24, 24, 32])).into()
            } else {
                prefix(v6, rng.pick(&[20, 32, 40, 44, 48, 48, 64, 128])).into()
            };
            prefix
        })
        .collect::<std::collections::BTreeSet<IpNet>>()
        .into_iter()
        .enumerate()
        .map(|(index, prefix)| (prefix, Route::new(hop(index as u32 % 100))))
        .collect();
    let default = [(net("0.0.0.0/0"), Route::new(hop(3))), (net("::/0"), Route::new(hop(4)))];
    sorted.retain(|(prefix, _)| prefix.prefix_len() > 0);
    let mut reversed = sorted.clone();
    reversed.reverse();
    let mut shuffled = sorted.clone();
    rng.shuffle(&mut shuffled);
    let mut tables = Vec::new();
    for order in [&sorted, &reversed, &shuffled] {
        for default_first in [true, false] {
            for bulk in [true, false] {
                let fib = Fib::new().unwrap();
                let mut writer = fib.writer().unwrap();
                let mut table = writer.main();
                let all: Vec<(IpNet, Route)> = if default_first {
                    default.iter().chain(order).copied().collect()
                } else {
                    order.iter().chain(&default).copied().collect()
                };
                if bulk {
                    table.load(all).unwrap();
                } else {
                    for (prefix, route) in all {
                        table.insert_if_absent(prefix, route).unwrap();
                    }
                }
                let routes: Vec<(IpNet, Route)> = table.iter(Family::V4).chain(table.iter(Family::V6)).collect();
                let counts = (table.count_by_len(Family::V4), table.count_by_len(Family::V6));
                writer.check().unwrap();
                let mut reader = fib.reader("test").unwrap();
                let v4: Vec<u32> = (0..5_000u64).map(|index| Rng::new(index).next() as u32).collect();
                let found = batch(&mut reader, &v4);
                tables.push((routes, counts, found, writer.main().stats(), bulk));
            }
        }
    }
    for (routes, counts, found, stats, bulk) in &tables[1..] {
        assert!(*routes == tables[0].0 && *counts == tables[0].1 && *found == tables[0].2);
        // The shape depends on the routes alone; slots may be narrower after a bulk load.
        let first = &tables.iter().find(|table| table.4 == *bulk).unwrap().3;
        assert_eq!(
            (&stats.v4.nodes_by_depth, stats.v4.stored_slots),
            (&first.v4.nodes_by_depth, first.v4.stored_slots)
        );
        assert_eq!(
            (&stats.v6.nodes_by_depth, stats.v6.stored_slots),
            (&first.v6.nodes_by_depth, first.v6.stored_slots)
        );
        assert_eq!((stats.v4.trie_bytes, stats.v6.trie_bytes), (first.v4.trie_bytes, first.v6.trie_bytes));
    }
}

#[test]
fn c58_replacing_a_next_hop_moves_no_memory() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    for (prefix, id) in
        [("10.0.0.0/8", 1), ("10.1.1.0/24", 2), ("10.1.2.0/23", 3), ("2001:db8::/32", 4), ("2001:db8::/61", 5)]
    {
        writer.main().insert_if_absent(net(prefix), hop(id)).unwrap();
    }
    for (text, ids) in [("10.1.1.0/24", [10, 11]), ("10.0.0.0/8", [20, 21]), ("2001:db8::/61", [30, 31])] {
        // None of the ids is a neighbour's, with which the slots of the prefix would be merged.
        let before = (writer.memory_stats(), table_bytes(&mut writer));
        for round in 0..1_000_000 / 3 {
            writer.main().replace_if_present(net(text), hop(ids[round % 2])).unwrap();
            if round % 1000 == 0 {
                assert_eq!((writer.memory_stats(), table_bytes(&mut writer)), before, "{text}, round {round}");
            }
        }
        assert_eq!((writer.memory_stats(), table_bytes(&mut writer)), before, "{text}");
    }
    writer.check().unwrap();
}

#[test]
fn c67_a_walk_resumes_from_a_key_that_has_gone() {
    let mut rng = Rng::new(67);
    for family in [Family::V4, Family::V6] {
        let some_prefix = |rng: &mut Rng| -> IpNet {
            if family == Family::V4 {
                prefix(u32::random(rng) & 0x0fff_ff00, rng.pick(&[16, 20, 24, 24])).into()
            } else {
                prefix(u128::random(rng) >> 12, rng.pick(&[32, 40, 48, 64, 128])).into()
            }
        };
        let fib = Fib::new().unwrap();
        let mut writer = fib.writer().unwrap();
        let mut table = writer.main();
        let mut throughout: HashSet<IpNet> = HashSet::new();
        for _ in 0..50_000 {
            let prefix = some_prefix(&mut rng);
            let id = 4 + rng.below(2) as u32;
            if table.insert_if_absent(prefix, hop(id)).is_ok() && id == 4 {
                throughout.insert(prefix);
            }
        }
        // A piece at a time: note it, remove those of next hop 5 among it (the last one always), add some elsewhere.
        let mut seen: Vec<IpNet> = Vec::new();
        let mut next = table.iter(family).next().map(|(prefix, _)| prefix);
        while let Some(from) = next {
            let piece: Vec<(IpNet, Route)> = table.iter_from(from).take(100).collect();
            seen.extend(piece.iter().map(|(prefix, _)| *prefix));
            next = table.iter_from(from).nth(100).map(|(prefix, _)| prefix);
            for (prefix, route) in &piece {
                if route.next_hop == hop(5) {
                    assert_eq!(table.remove(*prefix, RouteMatch::ANY).unwrap(), Some(*route));
                }
            }
            if let Some(key) = next {
                // The key to resume from goes now and then.
                if rng.below(2) == 0 {
                    table.remove(key, RouteMatch::ANY).unwrap();
                    throughout.remove(&key);
                }
            }
            for _ in 0..3 {
                let _ = table.insert_if_absent(some_prefix(&mut rng), hop(6));
            }
        }
        assert!(seen.is_sorted_by(|first, second| first < second), "each at most once, in order");
        let seen: HashSet<IpNet> = seen.into_iter().collect();
        assert!(throughout.len() > 10_000 && throughout.is_subset(&seen));
        assert!(table.iter(family).all(|(_, route)| route.next_hop != hop(5)));
        recount(&mut writer);
        writer.check().unwrap();
    }
}

#[test]
fn c68_readers_that_are_gone_hold_nothing_back() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let mut writer = fib.writer().unwrap();
    writer.main().insert_if_absent(net("10.0.0.0/8"), hop(1)).unwrap();
    for round in 0..50u32 {
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    // The thread ends with its reader registered, the last burst closed or never opened.
                    let mut reader = fib.reader("short-lived").unwrap();
                    assert_eq!(reader.burst().main().lookup(0x0a00_0001u32), Some(hop(1)));
                    assert_eq!(reader.online().main().lookup(0x0a00_0001u32), Some(hop(1)));
                    let _never_online = fib.reader("idle").unwrap();
                });
            }
        });
        for index in 0..200 {
            let branch = prefix(0x1400_0000 | (round * 200 + index) << 8, 25).into();
            writer.main().insert_if_absent(branch, hop(2)).unwrap();
            writer.main().remove(branch, RouteMatch::ANY).unwrap();
        }
        let stats = writer.main().stats();
        assert!(writer.memory_stats().live_bytes <= stats.v4.trie_bytes + stats.v6.trie_bytes + 2 * 65_536);
    }
    writer.check().unwrap();
}

#[test]
fn c71_a_change_is_visible_when_its_call_returns() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut reader = fib.reader("same thread").unwrap();
    let (to_reader, changed) = mpsc::channel();
    let (to_writer, seen) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut other = fib.reader("other thread").unwrap();
        scope.spawn(move || {
            for (addr, expected) in changed {
                let addr: u32 = addr;
                assert_eq!(other.burst().main().lookup(addr), expected);
                to_writer.send(()).unwrap();
            }
        });
        for round in 0..2_000u32 {
            let host = prefix(round.wrapping_mul(0x9e37_79b9), 32);
            for id in [Some(hop(1)), Some(hop(2)), None] {
                let net = IpNet::from(host);
                match id {
                    Some(id) => drop(writer.main().insert_or_replace(net, id).unwrap()),
                    None => drop(writer.main().remove(net, RouteMatch::ANY).unwrap()),
                }
                assert_eq!(answers(&mut writer, &mut reader, &[host.addr()]), [id]);
                to_reader.send((host.addr(), id)).unwrap();
                seen.recv().unwrap();
            }
        }
        drop(to_reader);
    });
}

#[test]
fn c72_writers_take_turns() {
    let fib = Fib::new().unwrap();
    let held = fib.writer().unwrap();
    assert_eq!(fib.writer().err(), Some(WriterBusy));
    assert_eq!(fib.clone().writer().err(), Some(WriterBusy));
    drop(held);
    drop(fib.writer().unwrap());

    // Four threads: disjoint prefixes of their own, and one prefix that all want; who is late is told so.
    let won: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u32)
            .map(|thread| {
                let fib = fib.clone();
                scope.spawn(move || {
                    let mut won = 0;
                    for round in 0..1000u32 {
                        let mut writer = loop {
                            match fib.writer() {
                                Ok(writer) => break writer,
                                Err(WriterBusy) => std::thread::yield_now(),
                            }
                        };
                        let mut table = writer.main();
                        let own = prefix(thread << 30 | round << 8, 24).into();
                        table.insert_if_absent(own, hop(thread)).unwrap();
                        let shared = prefix(u128::from(round) << 64, 64).into();
                        match table.insert_if_absent(shared, hop(thread)) {
                            Ok(()) => won += 1,
                            Err(FibError::RouteExists { prefix, .. }) => assert_eq!(prefix, shared),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    won
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut writer = fib.writer().unwrap();
    assert_eq!(won.iter().sum::<u32>(), 1000, "each prefix has one winner");
    assert_eq!(recount(&mut writer), (5000, 5000));
    for (thread, won) in won.iter().enumerate() {
        let present = writer.main().iter(Family::V6).filter(|(_, route)| route.next_hop == hop(thread as u32)).count();
        assert_eq!(present, *won as usize);
    }
    writer.check().unwrap();
}

#[test]
fn c82_huge_pages_are_optional() {
    let routes: Vec<(IpNet, Route)> = {
        let mut rng = Rng::new(82);
        (0..100_000).map(|_| (IpNet::from(prefix(u32::random(&mut rng), 24)), Route::new(hop(1)))).collect()
    };
    for asked in [true, false] {
        let fib = Fib::with_options(Options::default().huge_pages(asked)).unwrap();
        let mut writer = fib.writer().unwrap();
        writer.main().load(routes.clone()).unwrap();
        let memory = writer.memory_stats();
        assert!(memory.huge_page_bytes <= memory.committed_bytes && memory.footprint_bytes <= memory.committed_bytes);
        assert!(asked || memory.huge_page_bytes == 0);
        println!("c82: huge pages {asked}: {memory:?}");
        writer.check().unwrap();
    }
}

#[test]
fn c83_a_batch_as_the_first_operation() {
    let ops: Vec<Op> = (0..10_000u32)
        .map(|index| {
            let net = if index % 2 == 0 {
                IpNet::from(prefix(0x0a00_0000 | index << 8, 24))
            } else {
                IpNet::from(prefix(0x2001_0db8 << 96 | u128::from(index) << 64, 64))
            };
            Op::InsertIfAbsent(net, hop(index).into())
        })
        .collect();
    for on_error in [OnError::Stop, OnError::Continue] {
        let fib = Fib::new().unwrap();
        // From a thread that never did anything else.
        let mut writer = std::thread::scope(|scope| {
            let (fib, ops) = (&fib, &ops);
            let first = scope.spawn(move || {
                let mut writer = fib.writer().unwrap();
                let results = writer.main().apply(ops, on_error).unwrap();
                assert_eq!(results.len(), ops.len());
                assert!(results.iter().all(|result| *result == Ok(Applied::Inserted)));
                writer
            });
            first.join().unwrap()
        });
        assert_eq!(recount(&mut writer), (10_000, 10_000));
        writer.check().unwrap();
    }
    // Out of memory in the middle: what was applied is what the results say, in both modes.
    for on_error in [OnError::Stop, OnError::Continue] {
        let fib = Fib::with_options(Options::default().node_memory(64 << 10).sync_mem(65_536)).unwrap();
        let mut writer = fib.writer().unwrap();
        let results = writer.main().apply(&ops, on_error).unwrap();
        let applied = results.iter().filter(|result| result.is_ok()).count();
        assert!(applied > 100 && applied < ops.len());
        if on_error == OnError::Stop {
            assert_eq!(results.len(), applied + 1, "it ends with the error");
        } else {
            assert_eq!(results.len(), ops.len());
        }
        assert_eq!(recount(&mut writer), (applied, applied));
        for (op, result) in ops.iter().zip(&results) {
            let Op::InsertIfAbsent(prefix, route) = op else { unreachable!() };
            assert_eq!(writer.main().get(*prefix), result.is_ok().then_some(*route));
            assert!(matches!(result, Ok(Applied::Inserted) | Err(FibError::OutOfMemory(_))), "{result:?}");
        }
        writer.check().unwrap();
    }
}

#[test]
fn c85_counters_equal_a_recount() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let second = writer.create_table(TableOptions::default().root_limit_v4(12)).unwrap();
    let mut rng = Rng::new(85);
    for step in 0..10_000u32 {
        let prefix: IpNet = if rng.below(2) == 0 {
            prefix(u32::random(&mut rng) & 0x0300_0303, rng.below(33) as u8).into()
        } else {
            prefix(u128::random(&mut rng) & (3 << 120 | 3 << 60 | 3), rng.below(129) as u8).into()
        };
        let route =
            Route::new(hop(rng.below(3) as u32)).with_priority(rng.below(3) as u32).with_owner(rng.below(2) as u32);
        let mut table = if rng.below(4) == 0 { writer.table(second).unwrap() } else { writer.main() };
        let counted = |table: &fib::Table<'_>| table.route_count(Family::V4) + table.route_count(Family::V6);
        let before = counted(&table);
        let change: i64 = match rng.below(20) {
            // An equal route that waits further behind is an error; see `refresh.rs`.
            0..5 => i64::from(matches!(table.insert_or_replace(prefix, route), Ok(None))),
            5..8 => i64::from(table.insert_if_absent(prefix, route).is_ok()),
            8..10 => i64::from(table.append(prefix, route).is_ok()),
            10..12 => i64::from(table.prepend(prefix, route).is_ok()),
            12..18 => -i64::from(table.remove(prefix, RouteMatch::ANY).unwrap().is_some()),
            18 if rng.below(20) > 0 => 0,
            18 => -(table.remove_within(prefix).unwrap() as i64),
            _ => {
                let _ = table.replace_if_present(prefix, route);
                0
            }
        };
        assert_eq!(counted(&table) as i64, before as i64 + change, "step {step}");
        recount(&mut writer);
        if step % 16 == 0 {
            // Bytes by table and family against the arena's own count.
            let mut bytes = 0;
            for id in writer.table_ids() {
                let stats = writer.table(id).unwrap().stats();
                bytes += stats.v4.trie_bytes + stats.v6.trie_bytes;
            }
            let live = writer.memory_stats().live_bytes;
            assert!(bytes <= live && live <= bytes + DIRTY_BYTES, "{bytes} in tables, {live} live");
            writer.check().unwrap();
        }
    }
}

#[test]
fn busy_is_told_from_other_errors() {
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let absent = writer.main().replace_if_present(net("10.0.0.0/8"), hop(1));
    assert!(matches!(absent, Err(FibError::NoSuchRoute { .. })) && !is_busy(&absent));
}
