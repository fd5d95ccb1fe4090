//! All subjects on one table: loaded, asked, checked and timed side by side.
//!
//! ```text
//! for each family
//!   load      file order, shuffled: A B C, A B C, ...          not pinned, so that a loader may use every core
//!   pin       to one core
//!   for each traffic
//!     check   every subject, variant and batch size against the oracle
//!     time    passes in turns: A/32 A/64 .. B/32 .., again ..; then dependent chains in turns
//!             each turn takes the next of a few windows of addresses
//!   update    the same random prefixes deleted and added again, in turns; checked again
//! ```
//!
//! Each timed pass is preceded by one over other addresses that is not timed, so that a table stands in the caches as it
//! would if it were the only one. Ratios are taken pass by pass: a slow second of the machine hurts both sides of a
//! ratio. Passes are short and their time is the thread's own on its processor, so that a busy machine disturbs few of
//! them; loads and updates, which may wait or use threads, go by the clock on the wall.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;

use fib::oracle::HashTable;
use fib::{Family, NextHopId, Prefix};
use ipnet::IpNet;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::cpu_time::busy;
use crate::failure::Failure;
use crate::measure::{Spread, in_turns, timed};
use crate::peers::list::{Entry, ON_REQUEST};
use crate::peers::{Addresses, MemoryUse, Peer, PeerAddr, PeerRoute};
use crate::traffic::Traffic;

/// The traffic of [`crate::deep`]'s table: every match lies beyond /64.
pub const DEEP: &str = "deep";

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Addresses of a pass.
    pub lookups: usize,
    /// Timed passes of everything.
    pub passes: usize,
    /// Addresses of a call.
    pub batches: Vec<usize>,
    /// Timed loads.
    pub loads: usize,
    /// Prefixes that are deleted and added again.
    pub picks: usize,
    /// Seed of traffic, order and picks.
    pub seed: u64,
}

/// A table and one of its lookup variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// The table.
    pub table: &'static str,
    /// The variant; empty when there is only one.
    pub variant: &'static str,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.table)?;
        if !self.variant.is_empty() {
            write!(f, " {}", self.variant)?;
        }
        Ok(())
    }
}

/// Seconds of each timed pass of one thing, in the order of the turns.
#[derive(Debug, Clone)]
pub struct Passes {
    /// Seconds.
    pub seconds: Vec<f64>,
    /// Lookups or operations of a pass.
    pub operations: usize,
}

impl Passes {
    /// Millions of operations a second.
    pub fn millions_per_s(&self) -> Spread {
        Spread::of(self.seconds.clone()).map(|seconds| self.operations as f64 / seconds / 1e6)
    }
    /// Nanoseconds an operation.
    pub fn nanoseconds(&self) -> Spread {
        Spread::of(self.seconds.clone()).map(|seconds| seconds * 1e9 / self.operations as f64)
    }
    /// How many times as long `other` takes: pass by pass, the median. Both from the same turns.
    pub fn times_faster_than(&self, other: &Passes) -> f64 {
        let each = |passes: &Passes, index: usize| passes.seconds[index] / passes.operations as f64;
        let both = self.seconds.len().min(other.seconds.len());
        Spread::of((0..both).map(|index| each(other, index) / each(self, index)).collect()).median
    }
}

/// What was found for one family's table.
#[derive(Debug)]
pub struct FamilyResults {
    /// Which family.
    pub family: Family,
    /// Routes of the table.
    pub routes: usize,
    /// Peers that were asked for and could not be made, and why.
    pub absent: Vec<(&'static str, String)>,
    /// Lookups: by traffic, subject and batch size. Subjects without a batch of their own stand at every size.
    pub rates: BTreeMap<(&'static str, Who, usize), Passes>,
    /// Dependent lookups, by traffic and subject.
    pub chains: BTreeMap<(&'static str, Who), Passes>,
    /// Loads in file order and shuffled, by table.
    pub loads: BTreeMap<(&'static str, LoadOrder), Passes>,
    /// Deletes and re-adds, by table.
    pub updates: BTreeMap<&'static str, Passes>,
    /// Bytes, by table.
    pub memory: BTreeMap<&'static str, MemoryUse>,
    /// Wrong answers of peers, by subject and when: traffic, or after the updates. Ours are errors of the run.
    pub wrong: BTreeMap<(Who, &'static str), usize>,
    /// Routes that a table refused to load, and updates that it refused.
    pub refused: BTreeMap<(&'static str, &'static str), usize>,
    /// Wrong answers of ours, as sentences.
    pub ours_wrong: Vec<String>,
}

/// In which order routes are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadOrder {
    /// As in the file: sorted.
    File,
    /// At random.
    Shuffled,
}

impl LoadOrder {
    /// Both.
    pub const ALL: [LoadOrder; 2] = [LoadOrder::File, LoadOrder::Shuffled];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            LoadOrder::File => "file order",
            LoadOrder::Shuffled => "shuffled",
        }
    }
}

/// Whether a table is one of ours.
pub fn is_ours(table: &str) -> bool {
    table.starts_with("ours")
}

/// A loaded table with its variants.
struct Loaded<A> {
    entry: Entry<A>,
    peer: Box<dyn Peer<A>>,
    variants: Vec<&'static str>,
}

/// Passes take turns with so many windows of addresses.
const WINDOWS: usize = 4;

/// Traffic with its right answers.
struct Asked<A> {
    name: &'static str,
    windows: Vec<Window<A>>,
}

struct Window<A> {
    all: Addresses<A>,
    /// The first half: to warm up for another window, and for dependent lookups, which are slow.
    half: Addresses<A>,
    right: Vec<u32>,
}

impl<A: PeerAddr> Asked<A> {
    fn new(name: &'static str, traffic: Traffic, nets: &[IpNet], plan: &Plan, oracle: &HashTable<A>) -> Self {
        let host: Vec<A> = traffic.addresses(nets, WINDOWS * plan.lookups, plan.seed);
        let window = |host: &[A]| Window {
            all: A::addresses(host.to_vec()),
            half: A::addresses(host[..host.len().div_ceil(2)].to_vec()),
            right: host.iter().map(|&addr| oracle.lookup(addr).map_or(0, |(_, hop)| hop.get())).collect(),
        };
        Asked { name, windows: host.chunks(plan.lookups).map(window).collect() }
    }

    /// The window of a turn, and another one to warm up with.
    fn turn(&self, turn: usize) -> (&Window<A>, &Window<A>) {
        (&self.windows[turn % WINDOWS], &self.windows[(turn + 1) % WINDOWS])
    }
}

/// Measures everything for one family. `pin` is called once, when loading is done.
pub fn compare<A: PeerAddr>(
    routes: &[PeerRoute<A>],
    entries: &[Entry<A>],
    traffic: &[Traffic],
    plan: &Plan,
    pin: impl FnOnce() -> Result<(), Failure>,
) -> Result<FamilyResults, Failure> {
    let mut results = FamilyResults::new(A::FAMILY, routes.len());
    let usable = usable(&mut results, entries, routes.len());
    time_loads(&mut results, &usable, routes, plan)?;
    let mut loaded = load_all(&mut results, &usable, routes)?;
    pin()?;
    let oracle = oracle(routes)?;
    let nets: Vec<IpNet> = routes.iter().filter_map(|route| IpNet::new(route.addr.to_ip(), route.len).ok()).collect();
    for &traffic in traffic {
        ask(&mut results, &mut loaded, &Asked::new(traffic.name(), traffic, &nets, plan, &oracle), plan)?;
    }
    time_updates(&mut results, &mut loaded, routes, plan)?;
    let asked = Asked::new("after updates", Traffic::Prefix, &nets, plan, &oracle);
    check(&mut results, &mut loaded, &asked, &plan.batches[..1]);
    Ok(results)
}

/// Measures lookups alone, on a table of host routes whose addresses are the traffic.
pub fn compare_deep<A: PeerAddr>(
    results: &mut FamilyResults,
    routes: &[PeerRoute<A>],
    entries: &[Entry<A>],
    plan: &Plan,
) -> Result<(), Failure> {
    let usable = usable(results, entries, routes.len());
    let mut loaded = load_all(&mut FamilyResults::new(A::FAMILY, routes.len()), &usable, routes)?;
    let nets: Vec<IpNet> = routes.iter().filter_map(|route| IpNet::new(route.addr.to_ip(), route.len).ok()).collect();
    ask(results, &mut loaded, &Asked::new(DEEP, Traffic::Prefix, &nets, plan, &oracle(routes)?), plan)
}

impl FamilyResults {
    fn new(family: Family, routes: usize) -> Self {
        FamilyResults {
            family,
            routes,
            absent: Vec::new(),
            rates: BTreeMap::new(),
            chains: BTreeMap::new(),
            loads: BTreeMap::new(),
            updates: BTreeMap::new(),
            memory: BTreeMap::new(),
            wrong: BTreeMap::new(),
            refused: BTreeMap::new(),
            ours_wrong: Vec::new(),
        }
    }
}

fn oracle<A: PeerAddr>(routes: &[PeerRoute<A>]) -> Result<HashTable<A>, Failure> {
    let mut oracle = HashTable::new();
    for route in routes {
        let prefix = Prefix::truncating(route.addr, route.len).map_err(|error| Failure::at("route", error))?;
        let next_hop = NextHopId::new(route.next_hop).map_err(|error| Failure::at("route", error))?;
        oracle.insert(prefix, next_hop);
    }
    Ok(oracle)
}

/// The entries whose tables can be made here; the others are noted.
fn usable<A: PeerAddr>(results: &mut FamilyResults, entries: &[Entry<A>], routes: usize) -> Vec<Entry<A>> {
    let mut usable = Vec::new();
    for &entry in entries {
        match (entry.make)(routes) {
            Ok(_) => usable.push(entry),
            Err(failure) => results.absent.push((entry.name, failure.to_string())),
        }
    }
    usable
}

fn time_loads<A: PeerAddr>(
    results: &mut FamilyResults,
    entries: &[Entry<A>],
    routes: &[PeerRoute<A>],
    plan: &Plan,
) -> Result<(), Failure> {
    let timed_entries: Vec<&Entry<A>> =
        entries.iter().filter(|entry| !entry.is_double && !ON_REQUEST.contains(&entry.name)).collect();
    let mut shuffled = routes.to_vec();
    shuffled.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(plan.seed));
    for (order, routes) in [(LoadOrder::File, routes), (LoadOrder::Shuffled, &shuffled[..])] {
        let seconds = in_turns("loading", timed_entries.len(), plan.loads, |index| {
            let mut peer = (timed_entries[index].make)(routes.len())?;
            let (time, result) = timed(|| peer.load(routes));
            result.map(|_| time)
        })?;
        for (entry, seconds) in timed_entries.iter().zip(seconds) {
            results.loads.insert((entry.name, order), Passes { seconds, operations: routes.len() });
        }
    }
    Ok(())
}

fn load_all<A: PeerAddr>(
    results: &mut FamilyResults,
    entries: &[Entry<A>],
    routes: &[PeerRoute<A>],
) -> Result<Vec<Loaded<A>>, Failure> {
    let mut loaded = Vec::new();
    for &entry in entries {
        let mut peer = (entry.make)(routes.len())?;
        let (time, refused) = timed(|| peer.load(routes));
        note_refused(results, entry.name, "load", refused?);
        if ON_REQUEST.contains(&entry.name) {
            let once = Passes { seconds: vec![time.as_secs_f64()], operations: routes.len() };
            results.loads.insert((entry.name, LoadOrder::File), once);
        }
        results.memory.insert(entry.name, peer.memory());
        let variants = peer.variants();
        loaded.push(Loaded { entry, peer, variants });
    }
    Ok(loaded)
}

fn note_refused(results: &mut FamilyResults, table: &'static str, what: &'static str, refused: usize) {
    if refused > 0 {
        *results.refused.entry((table, what)).or_default() += refused;
    }
}

/// Checks, then times, one kind of traffic.
fn ask<A: PeerAddr>(
    results: &mut FamilyResults,
    loaded: &mut [Loaded<A>],
    asked: &Asked<A>,
    plan: &Plan,
) -> Result<(), Failure> {
    check(results, loaded, asked, &plan.batches);
    // Who is timed at which batch size; those without a batch of their own once, in calls of the first size.
    let mut turns = Vec::new();
    let mut single_turns = Vec::new();
    for (index, loaded) in loaded.iter().enumerate() {
        let sizes = if loaded.peer.has_batch() { &plan.batches[..] } else { &plan.batches[..1] };
        for (variant, _) in loaded.variants.iter().enumerate() {
            turns.extend(sizes.iter().map(|&size| (index, variant, size)));
            single_turns.push((index, variant));
        }
    }
    let mut turn = 0;
    let seconds = in_turns(asked.name, turns.len(), plan.passes, |at| {
        let (index, variant, batch) = turns[at];
        let (window, other) = asked.turn(turn / turns.len());
        turn += 1;
        let peer = &mut loaded[index].peer;
        peer.select(variant);
        peer.pass(&other.half, batch, None);
        Ok::<_, Failure>(busy(|| peer.pass(&window.all, batch, None)))
    })?;
    for (&(index, variant, batch), seconds) in turns.iter().zip(seconds) {
        let loaded = &loaded[index];
        let sizes = if loaded.peer.has_batch() { &[batch] } else { &plan.batches[..] };
        for &size in sizes {
            let passes = Passes { seconds: seconds.clone(), operations: plan.lookups };
            results.rates.insert((asked.name, loaded.who(variant), size), passes);
        }
    }
    let mut turn = 0;
    let seconds = in_turns(asked.name, single_turns.len(), plan.passes, |at| {
        let (index, variant) = single_turns[at];
        let (window, other) = asked.turn(turn / single_turns.len());
        turn += 1;
        let peer = &mut loaded[index].peer;
        peer.select(variant);
        peer.pass(&other.half, plan.batches[0], None);
        Ok::<_, Failure>(busy(|| {
            black_box(peer.chain(&window.half));
        }))
    })?;
    for (&(index, variant), seconds) in single_turns.iter().zip(seconds) {
        let passes = Passes { seconds, operations: asked.windows[0].half.host.len() };
        results.chains.insert((asked.name, loaded[index].who(variant)), passes);
    }
    Ok(())
}

impl<A> Loaded<A> {
    fn who(&self, variant: usize) -> Who {
        Who { table: self.entry.name, variant: self.variants[variant] }
    }
}

/// Compares every answer of every subject with the oracle's.
fn check<A: PeerAddr>(results: &mut FamilyResults, loaded: &mut [Loaded<A>], asked: &Asked<A>, batches: &[usize]) {
    for loaded in loaded {
        for variant in 0..loaded.variants.len() {
            let who = loaded.who(variant);
            loaded.peer.select(variant);
            // The same addresses at every batch size: the worst one counts.
            let wrong_at = |batch| (batch, check_batch(loaded.peer.as_mut(), asked, batch));
            let checked: Vec<(usize, Wrong)> = batches.iter().copied().map(wrong_at).collect();
            let wrong = checked.iter().map(|(_, wrong)| wrong.count).max().unwrap_or(0);
            if is_ours(who.table) {
                let texts = checked.into_iter().filter_map(|(batch, wrong)| Some((batch, wrong.first?)));
                let sentence = |(batch, text)| format!("{who}, {}, batch of {batch}: {text}", asked.name);
                results.ours_wrong.extend(texts.map(sentence));
            } else if wrong > 0 {
                results.wrong.insert((who, asked.name), wrong);
            }
        }
    }
}

/// What was wrong with one batch size, or with single lookups.
struct Wrong {
    count: usize,
    first: Option<String>,
}

fn check_batch<A: PeerAddr>(peer: &mut dyn Peer<A>, asked: &Asked<A>, batch: usize) -> Wrong {
    let mut found = Wrong { count: 0, first: None };
    for window in &asked.windows {
        let mut answers = vec![u32::MAX; window.right.len()];
        peer.pass(&window.all, batch, Some(&mut answers));
        for ((answer, right), addr) in answers.iter().zip(&window.right).zip(&window.all.host) {
            if answer != right {
                found.count += 1;
                let text = || format!("{} leads to {answer}, not {right}", addr.to_ip());
                found.first.get_or_insert_with(text);
            }
        }
        let sum = peer.chain(&window.half);
        let right: u64 = window.right[..window.half.host.len()].iter().map(|&answer| u64::from(answer)).sum();
        if sum != right {
            found.first.get_or_insert_with(|| format!("single lookups sum to {sum}, not {right}"));
        }
    }
    found
}

/// Deletes and adds again the same random routes on every table that can.
fn time_updates<A: PeerAddr>(
    results: &mut FamilyResults,
    loaded: &mut [Loaded<A>],
    routes: &[PeerRoute<A>],
    plan: &Plan,
) -> Result<(), Failure> {
    let mut picked = routes.to_vec();
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(plan.seed);
    let picked = picked.partial_shuffle(rng, plan.picks).0.to_vec();
    let Some(&probe) = picked.first() else { return Ok(()) };
    let mut changing = Vec::new();
    for (index, loaded) in loaded.iter_mut().enumerate() {
        if loaded.entry.is_double || ON_REQUEST.contains(&loaded.entry.name) {
            continue;
        }
        if let Some(make) = loaded.entry.make_for_updates {
            loaded.peer = make(routes.len())?;
            note_refused(results, loaded.entry.name, "load", loaded.peer.load(routes)?);
        }
        // Adds what is there already: changes nothing, and tells whether the table can do this at all.
        if loaded.peer.insert(probe).is_some() {
            changing.push(index);
        }
    }
    let mut refused = vec![0; changing.len()];
    let seconds = in_turns("updating", changing.len(), plan.loads, |turn| {
        let peer = &mut loaded[changing[turn]].peer;
        let (time, failed) = timed(|| {
            let removed = picked.iter().filter(|&&route| peer.remove(route) == Some(true)).count();
            let added = picked.iter().filter(|&&route| peer.insert(route) == Some(true)).count();
            2 * picked.len() - removed - added
        });
        refused[turn] += failed;
        Ok::<_, Failure>(time)
    })?;
    for ((&index, seconds), refused) in changing.iter().zip(seconds).zip(refused) {
        let table = loaded[index].entry.name;
        results.updates.insert(table, Passes { seconds, operations: 2 * picked.len() });
        note_refused(results, table, "updates", refused);
    }
    Ok(())
}
