//! Which of the figures that were promised against peers are kept: the table of ratios, row by row.
//!
//! All are about batches of 64 (the PlanB re-creation may use its best size), and only about full tables.

use fib::Family;

use crate::compare::{FamilyResults, LoadOrder, Passes, Who};
use crate::figures;
use crate::report::{Kind, Verdict};

/// The batch size that the figures are about.
const BATCH: usize = 64;

/// The kinds of traffic, in the order of the bounds below.
const TRAFFIC: [&str; 3] = ["uniform", "prefix", "zipf"];

/// What peers are compared with: the library as it comes.
pub fn reference(_results: &FamilyResults) -> Who {
    Who { table: "ours", variant: "" }
}

fn who(table: &'static str, variant: &'static str) -> Who {
    Who { table, variant }
}

/// The verdicts of one family; none for a table that is not a full one, or where one side is missing.
pub fn verdicts(results: &FamilyResults) -> Vec<Verdict> {
    let mut rows = Rows { results, verdicts: Vec::new() };
    if figures::is_full(results.family, results.routes) {
        match results.family {
            Family::V4 => rows.v4(),
            Family::V6 => rows.v6(),
        }
    }
    if results.family == Family::V6 {
        rows.deep();
    }
    rows.verdicts
}

struct Rows<'a> {
    results: &'a FamilyResults,
    verdicts: Vec<Verdict>,
}

impl Rows<'_> {
    fn v4(&mut self) {
        let ours = reference(self.results);
        self.rates(ours, "rte_fib4 avx512", &[who("rte_fib4", "avx512")], [3.0, 2.0, 1.1]);
        self.rates(ours, "rte_fib1 avx512", &[who("rte_fib1", "avx512")], [2.0, 0.9, 0.5]);
        self.rates(ours, "rte_fib2 avx512", &[who("rte_fib2", "avx512")], [2.0, 0.9, 0.5]);
        let any_width = ["rte_fib1", "rte_fib2", "rte_fib4"];
        let all: Vec<Who> = any_width.iter().flat_map(|&table| [who(table, "avx512"), who(table, "scalar")]).collect();
        self.rates(who("ours-speed", ""), "the best rte_fib", &all, [0.95; 3]);
        let scalar = [who("rte_fib2", "scalar"), who("rte_fib4", "scalar")];
        self.rates(who("ours-portable", ""), "the best scalar rte_fib of 2 or 4 bytes", &scalar, [1.0; 3]);
        for (traffic, bound) in TRAFFIC.into_iter().zip([0.35, 0.6, 0.9]) {
            let chain = |who| self.results.chains.get(&(traffic, who));
            if let (Some(ours), Some(peer)) = (chain(ours), chain(who("rte_fib4", "scalar"))) {
                let name = format!("IPv4 {traffic}, one dependent lookup, time to rte_fib4 scalar's");
                self.add(name, peer.times_faster_than(ours), bound, Kind::Ceiling);
            }
        }
        for order in LoadOrder::ALL {
            let load = |table| self.results.loads.get(&(table, order));
            if let (Some(ours), Some(peer)) = (load("ours"), load("rte_fib4")) {
                let name = format!("IPv4 full load, {}, time to rte_fib4's", order.name());
                self.add(name, peer.times_faster_than(ours), 0.7, Kind::Ceiling);
            }
        }
        self.updates("rte_fib4");
        // 2^24 entries; the groups behind them are left out, in the peer's favour.
        let ours = self.results.memory.get("ours").copied().unwrap_or_default();
        if let (Some(bytes), Some(bits)) = (ours.lookup_bytes, ours.next_hop_bits) {
            for (width, what) in [(32, "4-byte"), (bits, "as wide as our slots")] {
                let name = format!("IPv4 memory to rte_fib's first table, {what} ({} MiB)", (width << 21) >> 20);
                self.add(name, bytes as f64 / (width << 21) as f64, 0.12, Kind::Ceiling);
            }
        }
    }

    fn v6(&mut self) {
        let ours = reference(self.results);
        let vector = who("rte_fib6", "avx512");
        for (traffic, bound) in [("prefix", 1.6), ("zipf", 1.3)] {
            self.rate(ours, "rte_fib6 avx512", &[vector], traffic, bound);
        }
        for traffic in ["prefix", "zipf"] {
            self.planb(ours, traffic);
        }
        self.rates(who("ours-portable", ""), "rte_fib6 scalar", &[who("rte_fib6", "scalar")], [1.2; 3]);
        self.updates("rte_fib6");
        // Not one of ours: whether the re-creation is as good as it has to be to count.
        let rate = |who, batch| self.results.rates.get(&("prefix", who, batch));
        let planb = best_planb(self.results, "prefix");
        if let (Some(planb), Some(peer)) = (planb, rate(vector, BATCH)) {
            let name = String::from("IPv6 prefix, PlanB re-creation to rte_fib6 avx512");
            self.add(name, planb.times_faster_than(peer), 1.4, Kind::Floor);
        }
    }

    fn deep(&mut self) {
        let rate = |table| self.results.rates.get(&(crate::compare::DEEP, who(table, ""), BATCH));
        if let (Some(ours), Some(portable)) = (rate("ours"), rate("ours-portable")) {
            let name = String::from("IPv6 deep, to our portable variant");
            self.add(name, ours.times_faster_than(portable), 1.0, Kind::Floor);
        }
    }

    fn rates(&mut self, ours: Who, name: &str, peers: &[Who], bounds: [f64; 3]) {
        for (traffic, bound) in TRAFFIC.into_iter().zip(bounds) {
            self.rate(ours, name, peers, traffic, bound);
        }
    }

    /// Ours to the fastest of `peers`.
    fn rate(&mut self, ours: Who, name: &str, peers: &[Who], traffic: &'static str, bound: f64) {
        let passes = |who| self.results.rates.get(&(traffic, who, BATCH));
        let Some(our_passes) = passes(ours) else { return };
        let ratios = peers.iter().filter_map(|&peer| Some(our_passes.times_faster_than(passes(peer)?)));
        if let Some(ratio) = ratios.min_by(f64::total_cmp) {
            self.add(format!("{} {traffic}, {ours} to {name}", self.results.family), ratio, bound, Kind::Floor);
        }
    }

    fn planb(&mut self, ours: Who, traffic: &'static str) {
        let our_passes = self.results.rates.get(&(traffic, ours, BATCH));
        if let (Some(ours), Some(planb)) = (our_passes, best_planb(self.results, traffic)) {
            let name = format!("IPv6 {traffic}, ours to PlanB at its best batch size");
            self.add(name, ours.times_faster_than(planb), 1.0, Kind::Floor);
        }
    }

    fn updates(&mut self, peer: &'static str) {
        let updates = |table| self.results.updates.get(table);
        if let (Some(ours), Some(peer_updates)) = (updates("ours"), updates(peer)) {
            let name = format!("{} delete and re-add of random prefixes, to {peer}", self.results.family);
            self.add(name, ours.times_faster_than(peer_updates), 3.0, Kind::Floor);
        }
    }

    fn add(&mut self, name: String, value: f64, bound: f64, kind: Kind) {
        self.verdicts.push(Verdict { name, value, bound, kind, unit: "x" });
    }
}

/// PlanB's fastest variant and batch size by median.
fn best_planb<'a>(results: &'a FamilyResults, traffic: &str) -> Option<&'a Passes> {
    results
        .rates
        .iter()
        .filter(|((of, who, _), _)| *of == traffic && who.table == "planb")
        .map(|(_, passes)| passes)
        .max_by(|a, b| a.millions_per_s().median.total_cmp(&b.millions_per_s().median))
}
