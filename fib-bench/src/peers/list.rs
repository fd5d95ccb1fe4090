//! Which subjects are there, and how is each made?
//!
//! A name on the command line ([`NAMES`]) stands for one table; its lookup variants come with it.

use fib::{BatchVariant, Family};

use super::ours::{Ours, Profile};
use super::poptrie::{Poptrie, PoptrieAddr};
use super::{Peer, PeerAddr};
use crate::failure::Failure;

/// What `--peers` takes. `rte_lpm` is left out unless named: it needs minutes to load.
pub const NAMES: [&str; 11] = [
    "rte_fib1",
    "rte_fib2",
    "rte_fib4",
    "rte_fib6",
    "rte_lpm6",
    "rte_lpm",
    "prefix-trie",
    "treebitmap",
    "ts_bart",
    "poptrie",
    "planb",
];

/// Peers that run only when they are named.
pub const ON_REQUEST: [&str; 1] = ["rte_lpm"];

/// One table to be made and measured.
#[derive(Debug, Clone, Copy)]
pub struct Entry<A> {
    /// Its name in reports.
    pub name: &'static str,
    /// Makes an empty one for so many routes.
    pub make: Make<A>,
    /// Makes the one for updates, where that takes another.
    pub make_for_updates: Option<Make<A>>,
    /// Another entry has the same control plane: load, updates and memory are not measured again.
    pub is_double: bool,
}

/// Makes an empty table for so many routes.
pub type Make<A> = fn(usize) -> Result<Box<dyn Peer<A>>, Failure>;

impl<A> Entry<A> {
    const fn new(name: &'static str, make: Make<A>) -> Self {
        Entry { name, make, make_for_updates: None, is_double: false }
    }
}

/// The address types with their lists.
pub trait Listed: PeerAddr {
    /// The library's own tables: the first is the one that peers are compared with.
    fn ours() -> Vec<Entry<Self>>;
    /// Everything else of this family, in the order of [`NAMES`].
    fn peers() -> Vec<Entry<Self>>;
}

/// The library as it comes, each variant forced, and the speed profile.
fn ours<A: PeerAddr>() -> Vec<Entry<A>> {
    vec![
        Entry::new("ours", |_| Ok(Box::new(Ours::new(None, Profile::Default)?))),
        Entry {
            is_double: true,
            ..Entry::new("ours-portable", |_| {
                Ok(Box::new(Ours::new(Some(BatchVariant::Interleaved), Profile::Default)?))
            })
        },
        Entry {
            is_double: true,
            ..Entry::new("ours-scalar", |_| Ok(Box::new(Ours::new(Some(BatchVariant::Scalar), Profile::Default)?)))
        },
        Entry::new("ours-speed", |_| Ok(Box::new(Ours::new(None, Profile::Speed)?))),
    ]
}

fn poptrie<A: PeerAddr + PoptrieAddr>(_: usize) -> Result<Box<dyn Peer<A>>, Failure> {
    Ok(Box::new(Poptrie::default()))
}

// Which peers there are depends on what was built in, entry by entry.
#[allow(clippy::vec_init_then_push)]
impl Listed for u32 {
    fn ours() -> Vec<Entry<u32>> {
        ours()
    }
    fn peers() -> Vec<Entry<u32>> {
        let mut entries: Vec<Entry<u32>> = Vec::new();
        #[cfg(dpdk)]
        {
            use super::dpdk::{Dpdk, Kind};
            entries.extend([
                Entry::new("rte_fib1", |routes| Ok(Box::new(Dpdk::new(Kind::Fib(1), routes)?))),
                Entry::new("rte_fib2", |routes| Ok(Box::new(Dpdk::new(Kind::Fib(2), routes)?))),
                Entry::new("rte_fib4", |routes| Ok(Box::new(Dpdk::new(Kind::Fib(4), routes)?))),
                Entry::new("rte_lpm", |routes| Ok(Box::new(Dpdk::new(Kind::Lpm, routes)?))),
            ] as [Entry<u32>; 4]);
        }
        #[cfg(feature = "peers")]
        {
            use super::Single;
            use super::crates::{Bart, PrefixTrie, TreeBitmap};
            entries.extend([
                Entry::new("prefix-trie", |_| Ok(Box::new(Single(PrefixTrie(Default::default()))))),
                Entry::new("treebitmap", |_| {
                    Ok(Box::new(Single(TreeBitmap::<std::net::Ipv4Addr>(Default::default()))))
                }),
                Entry::new("ts_bart", |_| Ok(Box::new(Single(Bart(Default::default()))))),
            ] as [Entry<u32>; 3]);
        }
        entries.push(Entry::new("poptrie", poptrie::<u32>));
        entries
    }
}

#[allow(clippy::vec_init_then_push)]
impl Listed for u128 {
    fn ours() -> Vec<Entry<u128>> {
        ours()
    }
    fn peers() -> Vec<Entry<u128>> {
        let mut entries: Vec<Entry<u128>> = Vec::new();
        #[cfg(dpdk)]
        {
            use super::dpdk::{Dpdk, GROUPS_V6_UPDATES, Kind};
            entries.extend([
                Entry {
                    make_for_updates: Some(|routes| {
                        Ok(Box::new(Dpdk::with_groups(Kind::Fib6, routes, GROUPS_V6_UPDATES)?))
                    }),
                    ..Entry::new("rte_fib6", |routes| Ok(Box::new(Dpdk::new(Kind::Fib6, routes)?)))
                },
                Entry::new("rte_lpm6", |routes| Ok(Box::new(Dpdk::new(Kind::Lpm6, routes)?))),
            ] as [Entry<u128>; 2]);
        }
        #[cfg(feature = "peers")]
        {
            use super::Single;
            use super::crates::{Bart, PrefixTrie, TreeBitmap};
            entries.extend([
                Entry::new("prefix-trie", |_| Ok(Box::new(Single(PrefixTrie(Default::default()))))),
                Entry::new("treebitmap", |_| {
                    Ok(Box::new(Single(TreeBitmap::<std::net::Ipv6Addr>(Default::default()))))
                }),
                Entry::new("ts_bart", |_| Ok(Box::new(Single(Bart(Default::default()))))),
            ] as [Entry<u128>; 3]);
        }
        entries.push(Entry::new("poptrie", poptrie::<u128>));
        #[cfg(target_arch = "x86_64")]
        entries.push(Entry::new("planb", |_| Ok(Box::new(super::planb::PlanB::new()?))));
        entries
    }
}

/// Peers of a family that this build or this processor has not got, with what it would take.
pub fn absent(family: Family) -> Vec<(&'static str, &'static str)> {
    let mut absent = Vec::new();
    if !cfg!(feature = "peers") {
        absent.push(("DPDK and the Rust crates", "build with --features peers"));
    } else if !cfg!(dpdk) {
        absent.push(("DPDK", "install libdpdk-dev and pkg-config, then build again"));
    }
    if family == Family::V6 && !cfg!(target_arch = "x86_64") {
        absent.push(("planb", "needs AVX-512"));
    }
    absent
}
