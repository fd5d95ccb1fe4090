//! What the integration tests share: short constructors, a seeded generator, a table that is compared with the oracle
//! by every way there is to look an address up.
#![allow(dead_code, reason = "each test file uses the part that it needs")]

use std::net::IpAddr;
use std::path::PathBuf;

use fib::oracle::LinearTable;
use fib::{Addr, BatchKey, Family, Fib, FibError, Key, NextHopId, Prefix, Reader, RouteMatch, Writer, parse_prefix};
use ipnet::IpNet;

/// An address type that all kinds of lookup take.
pub(crate) trait TestAddr: Addr + BatchKey + Key {
    /// An address with all bits random.
    fn random(rng: &mut Rng) -> Self;
    /// The address with the bits of `value` in front.
    fn from_top(value: u32) -> Self;
}

impl TestAddr for u32 {
    fn random(rng: &mut Rng) -> Self {
        rng.next() as u32
    }
    fn from_top(value: u32) -> Self {
        value
    }
}

impl TestAddr for u128 {
    fn random(rng: &mut Rng) -> Self {
        u128::from(rng.next()) << 64 | u128::from(rng.next())
    }
    fn from_top(value: u32) -> Self {
        u128::from(value) << 96
    }
}

/// A seeded generator of numbers (splitmix64): the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    /// One of `items`.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

pub(crate) fn net(text: &str) -> IpNet {
    parse_prefix(text).unwrap()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn hop(id: u32) -> NextHopId {
    NextHopId::new(id).unwrap()
}

/// The prefix of `len` bits that holds `addr`.
pub(crate) fn prefix<A: Addr>(addr: A, len: u8) -> Prefix<A> {
    Prefix::truncating(addr, len).unwrap()
}

/// Before first, first, second, last, after last; at the ends of the address space they wrap.
pub(crate) fn around<A: Addr>(prefix: Prefix<A>) -> [A; 5] {
    let (first, last) = (prefix.addr(), prefix.last());
    [first.wrapping_prev(), first, first.wrapping_next(), last, last.wrapping_next()]
}

/// The answers for `addrs`, after all ways to look them up have agreed: one by one as numbers and as addresses of the
/// standard library, in a batch, through the writer, and as the matched route.
#[track_caller]
pub(crate) fn answers<A: TestAddr>(writer: &mut Writer, reader: &mut Reader, addrs: &[A]) -> Vec<Option<NextHopId>> {
    let answers: Vec<Option<NextHopId>> = {
        let burst = reader.burst();
        let view = burst.main();
        addrs.iter().map(|addr| view.lookup(*addr)).collect()
    };
    assert_eq!(batch(reader, addrs), answers, "batch and single lookups of {addrs:?}");
    let burst = reader.burst();
    for (addr, answer) in addrs.iter().zip(&answers) {
        let addr = addr.to_ip();
        let table = writer.main();
        assert_eq!(burst.main().lookup(addr), *answer, "{addr} as an address and as a number");
        assert_eq!(table.lookup(addr), *answer, "{addr} through the writer");
        assert_eq!(table.lookup_match(addr).map(|(_, route)| route.next_hop), *answer, "{addr} as a route");
    }
    answers
}

/// The answers of one batch. It is run with two values of a miss, so that no id is mistaken for one.
pub(crate) fn batch<A: TestAddr>(reader: &mut Reader, addrs: &[A]) -> Vec<Option<NextHopId>> {
    let mut first = vec![NextHopId::MAX; addrs.len()];
    let mut second = first.clone();
    let burst = reader.burst();
    burst.main().lookup_batch(addrs, &mut first, hop(0x00a5_a5a5));
    burst.main().lookup_batch(addrs, &mut second, hop(0x005a_5a5a));
    let missed = |first: NextHopId, second: NextHopId| first.get() == 0x00a5_a5a5 && second.get() == 0x005a_5a5a;
    first
        .into_iter()
        .zip(second)
        .map(|(first, second)| if missed(first, second) { None } else { Some(first) })
        .collect()
}

/// A table of one family beside its oracle: each change is made to both and must report the same.
pub(crate) struct Checked<A: TestAddr> {
    pub(crate) fib: Fib,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) oracle: LinearTable<A>,
}

impl<A: TestAddr> Checked<A> {
    pub(crate) fn new() -> Self {
        let fib = Fib::new().unwrap();
        Checked { writer: fib.writer().unwrap(), reader: fib.reader("test").unwrap(), oracle: LinearTable::new(), fib }
    }

    #[track_caller]
    pub(crate) fn insert(&mut self, prefix: Prefix<A>, id: u32) {
        let replaced = self.writer.main().insert_or_replace(prefix.into(), hop(id)).unwrap();
        assert_eq!(replaced.map(|route| route.next_hop), self.oracle.insert(prefix, hop(id)), "insert {prefix}");
    }

    #[track_caller]
    pub(crate) fn remove(&mut self, prefix: Prefix<A>) {
        let removed = self.writer.main().remove(prefix.into(), RouteMatch::ANY).unwrap();
        assert_eq!(removed.map(|route| route.next_hop), self.oracle.remove(prefix), "remove {prefix}");
    }

    /// Compares `addrs` with the oracle by every way of looking up.
    #[track_caller]
    pub(crate) fn compare(&mut self, addrs: &[A]) {
        let found = answers(&mut self.writer, &mut self.reader, addrs);
        for (addr, found) in addrs.iter().zip(found) {
            assert_eq!(found, self.oracle.lookup(*addr).map(|(_, next_hop)| next_hop), "{}", addr.to_ip());
        }
    }

    #[track_caller]
    pub(crate) fn check(&mut self) {
        self.writer.check().unwrap();
        assert_eq!(self.writer.main().prefix_count(A::FAMILY), self.oracle.routes().len());
    }
}

/// Whether a change failed because readers hold what was retired, and may be tried again.
pub(crate) fn is_busy<T>(result: &Result<T, FibError>) -> bool {
    matches!(result, Err(FibError::Reclaim(_)))
}

/// Bytes of tries and Ribs of the main table, both families.
pub(crate) fn table_bytes(writer: &mut Writer) -> usize {
    let stats = writer.main().stats();
    stats.v4.trie_bytes + stats.v4.rib_bytes + stats.v6.trie_bytes + stats.v6.rib_bytes
}

/// Counts of both families by walking, which must be what the table says without walking.
#[track_caller]
pub(crate) fn recount(writer: &mut Writer) -> (usize, usize) {
    let table = writer.main();
    let stats = table.stats();
    let (mut prefixes, mut routes) = (0, 0);
    for (family, stats) in [(Family::V4, &stats.v4), (Family::V6, &stats.v6)] {
        let mut by_len = vec![0; if family == Family::V4 { 33 } else { 129 }];
        let (mut family_prefixes, mut family_routes) = (0, 0);
        for (prefix, winner) in table.iter(family) {
            by_len[usize::from(prefix.prefix_len())] += 1;
            family_prefixes += 1;
            let of_prefix: Vec<_> = table.routes(prefix).collect();
            assert_eq!(of_prefix.first(), Some(&winner), "{prefix}");
            family_routes += of_prefix.len();
        }
        assert_eq!(table.count_by_len(family), by_len);
        assert_eq!((table.prefix_count(family), stats.prefixes), (family_prefixes, family_prefixes));
        assert_eq!((table.route_count(family), stats.routes), (family_routes, family_routes));
        prefixes += family_prefixes;
        routes += family_routes;
    }
    (prefixes, routes)
}

/// Where a file of real routes is, or `None` after saying so: `FIB_DATA`, else `../shared/data` seen from the workspace.
pub(crate) fn data_file(name: &str) -> Option<PathBuf> {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = std::env::var_os("FIB_DATA").map_or_else(|| PathBuf::from("../shared/data"), PathBuf::from);
    let path = workspace.join(folder).join(name);
    if path.is_file() {
        return Some(path);
    }
    eprintln!("skipped: no {}; set FIB_DATA to the folder that has it", path.display());
    None
}
