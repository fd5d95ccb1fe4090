//! Lookups while the writer changes the table: every answer is one that was right at some moment of the lookup.
//!
//! The writer keeps a log of what is right. Before update `k` it notes the answers after it for a fixed set of watched
//! addresses and then says that update `k` has started; afterwards it says that it has finished. A reader notes
//! how many updates had finished before its lookup and how many had started after it: the answer must be right in one
//! of the states in between.
//!
//! ```text
//! writer    log[k] = answers   started = k    update k    finished = k
//! reader             from = finished    lookup    to = started        answer in log[from..=to]
//! ```
//!
//! Freed node memory is overwritten in test builds, so a reader that is still in it finds rubbish. Each test runs for
//! `FIB_STRESS_SECONDS` (default 3).

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Rng, TestAddr, hop, is_busy, net, prefix};
use fib::oracle::LinearTable;
use fib::{Family, Fib, FibError, NextHopId, Options, Prefix, Reader, Route, RouteMatch, Table, Writer};
use ipnet::IpNet;

fn duration() -> Duration {
    let seconds = std::env::var("FIB_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(3.0))
}

/// Tells readers to stop when the writer is done, or has panicked.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `write` over and over for the duration of a stress test beside `readers` threads that run `read` over and over.
/// Returns the sum of what `read` returned.
fn beside_readers(
    fib: &Fib,
    readers: usize,
    read: impl Fn(&mut Reader, &mut Rng, u64) -> u64 + Sync,
    mut write: impl FnMut(&mut Writer, u64),
) -> u64 {
    let stop = AtomicBool::new(false);
    let read = &read;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers)
            .map(|thread| {
                let (mut reader, stop) = (fib.reader(&format!("reader {thread}")).unwrap(), &stop);
                scope.spawn(move || {
                    let (mut rng, mut rounds, mut sum) = (Rng::new(thread as u64), 0u64, 0);
                    while !stop.load(Ordering::Relaxed) {
                        sum += read(&mut reader, &mut rng, rounds);
                        rounds += 1;
                    }
                    (rounds, sum)
                })
            })
            .collect();
        let (mut rounds, end) = (0, Instant::now() + duration());
        {
            let _stop = StopOnDrop(&stop);
            let mut writer = fib.writer().unwrap();
            // A reader that has ended has panicked.
            while Instant::now() < end && !threads.iter().any(|thread| thread.is_finished()) {
                write(&mut writer, rounds);
                rounds += 1;
            }
            writer.check().unwrap();
        }
        let read: Vec<(u64, u64)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        println!("{rounds} rounds of the writer, rounds of the readers and their results {read:?}");
        assert!(read.iter().all(|(rounds, _)| *rounds > 0));
        read.into_iter().map(|(_, sum)| sum).sum()
    })
}

/// Does `change` until it is not refused for want of readers' progress.
fn settled<T>(mut change: impl FnMut() -> Result<T, FibError>) -> T {
    loop {
        let result = change();
        if !is_busy(&result) {
            return result.unwrap();
        }
        std::thread::yield_now();
    }
}

fn insert(table: &mut Table<'_>, prefix: IpNet, id: u32) {
    settled(|| table.insert_or_replace(prefix, hop(id)));
}

fn remove(table: &mut Table<'_>, prefix: IpNet) {
    let removed = settled(|| table.remove(prefix, RouteMatch::ANY));
    assert!(removed.is_some(), "{prefix} was not there");
}

fn id(answer: Option<NextHopId>) -> Option<u32> {
    answer.map(NextHopId::get)
}

/// What readers may be told by each of `LOG` updates, for each watched address; an answer plus one, 0 is a miss.
struct Log {
    answers: Vec<[AtomicU32; WATCHED]>,
    started: AtomicU64,
    finished: AtomicU64,
}

/// Updates that the log holds; a lookup that takes longer than this many is not judged.
const LOG: u64 = 1 << 14;
const WATCHED: usize = 64;

impl Log {
    fn new() -> Log {
        let line = || std::array::from_fn(|_| AtomicU32::new(0));
        Log { answers: (0..LOG).map(|_| line()).collect(), started: AtomicU64::new(0), finished: AtomicU64::new(0) }
    }

    /// Notes what is right once the next update is done, and that it has started.
    fn start(&self, answers: [u32; WATCHED]) -> u64 {
        let update = self.started.load(Ordering::Relaxed) + 1;
        for (noted, answer) in self.answers[(update % LOG) as usize].iter().zip(answers) {
            noted.store(answer, Ordering::Relaxed);
        }
        // Release: who sees that the update has started sees what it leads to. It comes before the update's own stores,
        // which are Release too.
        self.started.store(update, Ordering::Release);
        update
    }

    fn finish(&self, update: u64) {
        self.finished.store(update, Ordering::Release);
    }

    /// Whether `answer` for the watched address was right at some moment since `from` updates had finished.
    /// `None`: the log has been overwritten meanwhile.
    fn is_right(&self, from: u64, watched: usize, answer: Option<NextHopId>) -> Option<bool> {
        let to = self.started.load(Ordering::Acquire);
        let answer = answer.map_or(0, |id| id.get() + 1);
        let right =
            (from..=to).any(|update| self.answers[(update % LOG) as usize][watched].load(Ordering::Relaxed) == answer);
        // If the oldest line that was read could have been rewritten by now, nothing is known.
        std::sync::atomic::fence(Ordering::Acquire);
        let overwritten = self.started.load(Ordering::Relaxed) + 1 >= from + LOG;
        (!overwritten).then_some(right)
    }
}

/// Prefixes that nest around the watched addresses.
struct Field<A: TestAddr> {
    watched: [A; WATCHED],
    prefixes: Vec<Prefix<A>>,
    /// Far from the watched addresses: they make the table grow and shrink.
    crowd: Vec<IpNet>,
}

impl<A: TestAddr> Field<A> {
    fn new(rng: &mut Rng) -> Self {
        // A few branches that part at different depths; each watched address lies next to another.
        let branches: Vec<A> = (0..6).map(|_| A::random(rng).and(A::mask(1).not())).collect();
        let watched: [A; WATCHED] = std::array::from_fn(|index| {
            let branch = rng.pick(&branches);
            let parted = A::random(rng).and(A::mask(rng.below(usize::from(A::BITS)) as u8).not());
            let addr = branch.and(A::mask(A::BITS - (index % 8) as u8)).or(parted);
            addr.and(A::mask(1).not())
        });
        let mut prefixes: Vec<Prefix<A>> = (0..300)
            .map(|_| prefix(rng.pick(&watched), 1 + rng.below(usize::from(A::BITS)) as u8))
            .chain([Prefix::DEFAULT, prefix(A::ZERO, 1), prefix(watched[0], A::BITS), prefix(watched[1], 2)])
            .collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let crowd =
            (0..6_000).map(|_| prefix(A::random(rng).or(A::mask(1)), rng.pick(&[16, 20, 24, 32])).into()).collect();
        Field { watched, prefixes, crowd }
    }
}

/// One update of the field's routes.
#[derive(Clone, Copy)]
enum Change<A> {
    Insert(Prefix<A>, NextHopId),
    Remove(Prefix<A>),
    RemoveWithin(Prefix<A>),
}

impl<A: TestAddr> Change<A> {
    fn random(field: &Field<A>, rng: &mut Rng) -> Self {
        // A few short covers change often: what they uncover or cover is most of the table.
        let prefix = match rng.below(10) {
            0 | 1 => Prefix::DEFAULT,
            2 => prefix(field.watched[0], 1 + rng.below(3) as u8),
            3 => prefix(rng.pick(&field.watched), 8 + rng.below(8) as u8),
            _ => rng.pick(&field.prefixes),
        };
        match rng.below(100) {
            0..60 => Change::Insert(prefix, hop(rng.pick(&[1, 2, 3, 4, 126, 127, 40_000]))),
            60..97 => Change::Remove(prefix),
            97 if rng.below(20) == 0 => Change::RemoveWithin(Prefix::DEFAULT),
            _ if prefix.len() > 4 => Change::RemoveWithin(prefix),
            _ => Change::Remove(prefix),
        }
    }

    fn prefix(self) -> Prefix<A> {
        match self {
            Change::Insert(prefix, _) | Change::Remove(prefix) | Change::RemoveWithin(prefix) => prefix,
        }
    }

    fn on_oracle(self, oracle: &mut LinearTable<A>) {
        match self {
            Change::Insert(prefix, id) => drop(oracle.insert(prefix, id)),
            Change::Remove(prefix) => drop(oracle.remove(prefix)),
            Change::RemoveWithin(prefix) => drop(oracle.remove_within(prefix)),
        }
    }

    fn on_table(self, table: &mut Table<'_>) {
        match self {
            Change::Insert(prefix, id) => drop(settled(|| table.insert_or_replace(prefix.into(), id))),
            Change::Remove(prefix) => drop(settled(|| table.remove(prefix.into(), RouteMatch::ANY))),
            Change::RemoveWithin(prefix) => drop(settled(|| table.remove_within(prefix.into()))),
        }
    }
}

fn any_update<A: TestAddr>() {
    let field = Field::<A>::new(&mut Rng::new(7));
    let log = Log::new();
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let (mut oracle, mut rng) = (LinearTable::<A>::new(), Rng::new(8));
    let mut right = [0; WATCHED];
    let mut root_bits = std::collections::BTreeSet::new();
    // 1 when the answer was judged and right.
    let judge = |watched: usize, from: u64, answer: Option<NextHopId>| match log.is_right(from, watched, answer) {
        Some(true) => 1,
        Some(false) => panic!("{} was never {answer:?} since update {from}", field.watched[watched].to_ip()),
        None => 0,
    };
    let judged = beside_readers(
        &fib,
        2,
        |reader, rng, round| {
            let mut judged = 0;
            if round % 4 == 0 {
                // All watched addresses in one batch, in a random order.
                let mut order: [usize; WATCHED] = std::array::from_fn(|index| index);
                rng.shuffle(&mut order);
                let addrs = order.map(|watched| field.watched[watched]);
                let mut out = [hop(0); WATCHED];
                let miss = NextHopId::MAX;
                let from = log.finished.load(Ordering::Acquire);
                reader.burst().main().lookup_batch(&addrs, &mut out, miss);
                for (watched, answer) in order.into_iter().zip(out) {
                    judged += judge(watched, from, Some(answer).filter(|answer| *answer != miss));
                }
            } else if round % 4 == 1 {
                let mut online = reader.online();
                for _ in 0..WATCHED {
                    let watched = rng.below(WATCHED);
                    let from = log.finished.load(Ordering::Acquire);
                    let answer = online.main().lookup(field.watched[watched]);
                    judged += judge(watched, from, answer);
                    online.quiescent();
                }
            } else {
                let burst = reader.burst();
                for _ in 0..WATCHED {
                    let watched = rng.below(WATCHED);
                    let from = log.finished.load(Ordering::Acquire);
                    let answer = burst.main().lookup(field.watched[watched]);
                    judged += judge(watched, from, answer);
                }
            }
            judged
        },
        |writer, round| {
            let mut table = writer.main();
            let change = Change::random(&field, &mut rng);
            change.on_oracle(&mut oracle);
            for (addr, right) in field.watched.iter().zip(&mut right) {
                if change.prefix().contains(*addr) {
                    *right = oracle.lookup(*addr).map_or(0, |(_, id)| id.get() + 1);
                }
            }
            let update = log.start(right);
            change.on_table(&mut table);
            log.finish(update);
            // The crowd comes and goes in turns, so that root and inner nodes inflate and halve under the readers.
            let pieces: Vec<&[IpNet]> = field.crowd.chunks(8).collect();
            let piece = pieces[round as usize % pieces.len()];
            let coming = (round as usize / pieces.len()).is_multiple_of(2);
            for member in piece {
                if coming {
                    settled(|| table.insert_or_replace(*member, hop(9)));
                } else {
                    settled(|| table.remove(*member, RouteMatch::ANY));
                }
            }
            if round % 512 == 0 {
                let stats = table.stats();
                root_bits.insert(if A::FAMILY == Family::V4 { stats.v4.root_bits } else { stats.v6.root_bits });
            }
        },
    );
    println!("{}: {judged} answers judged, roots of {root_bits:?} bits", A::FAMILY);
    assert!(judged > 1000);
}

#[test]
fn any_ipv4_answer_was_right_at_some_moment() {
    any_update::<u32>();
}

#[test]
fn any_ipv6_answer_was_right_at_some_moment() {
    any_update::<u128>();
}

/// Looks `addrs` up one by one and in a batch; every answer must be one of `allowed` for that address. Returns how many.
fn expect<A: TestAddr, const N: usize>(reader: &mut Reader, addrs: [A; N], allowed: [&[Option<u32>]; N]) -> u64 {
    let burst = reader.burst();
    let mut out = [hop(0); N];
    burst.main().lookup_batch(&addrs, &mut out, NextHopId::MAX);
    for ((addr, allowed), batched) in addrs.into_iter().zip(allowed).zip(out) {
        let single = id(burst.main().lookup(addr));
        assert!(allowed.contains(&single), "{} became {single:?}, allowed are {allowed:?}", addr.to_ip());
        let batched = id(Some(batched).filter(|answer| *answer != NextHopId::MAX));
        assert!(allowed.contains(&batched), "{} became {batched:?} in a batch, allowed are {allowed:?}", addr.to_ip());
    }
    N as u64
}

#[test]
fn an_address_under_a_stable_route_never_changes() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let stable =
        [("10.1.1.0/24", 1), ("10.1.2.128/25", 2), ("192.0.2.1", 3), ("2001:db8:1::/48", 4), ("2001:db8:2::1", 5)];
    for (prefix, id) in stable {
        insert(&mut fib.writer().unwrap().main(), net(prefix), id);
    }
    let mut rng = Rng::new(9);
    let mut unstable: Vec<IpNet> = [
        "0.0.0.0/0",
        "0.0.0.0/1",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.1.0/23",
        "10.1.0.0/22",
        "10.1.2.0/24",
        "10.1.2.0/25",
        "192.0.2.0/24",
        "192.0.2.0/31",
        "192.0.2.0/32",
        "192.0.2.2/32",
        "::/0",
        "2000::/3",
        "2001:db8::/32",
        "2001:db8::/44",
        "2001:db8:2::/48",
        "2001:db8:2::/64",
        "2001:db8:2::/127",
    ]
    .map(|text| fib::parse_prefix_truncating(text).unwrap())
    .to_vec();
    // Neighbours in the same nodes, and enough of them to make those dense.
    unstable.extend(
        (0..400).map(|_| IpNet::from(prefix(0x0a01_0300 | rng.next() as u32 & 0xfff, rng.pick(&[26, 28, 32])))),
    );
    unstable.extend((0..400).map(|_| {
        IpNet::from(prefix(0x2001_0db8_0003 << 80 | u128::from(rng.next() as u16) << 80, rng.pick(&[46, 48, 56])))
    }));
    unstable.retain(|prefix| !stable.iter().any(|(stable, _)| net(stable).contains(prefix)));
    let checked = beside_readers(
        &fib,
        2,
        |reader, _, _| {
            expect(
                reader,
                [0x0a01_0100u32, 0x0a01_01ff, 0x0a01_0280, 0x0a01_02ff, 0xc000_0201],
                [&[Some(1)], &[Some(1)], &[Some(2)], &[Some(2)], &[Some(3)]],
            ) + expect(
                reader,
                [0x2001_0db8_0001_0000u128 << 64, 0x2001_0db8_0001_ffff << 64 | 7, 0x2001_0db8_0002_0000 << 64 | 1],
                [&[Some(4)], &[Some(4)], &[Some(5)]],
            )
        },
        |writer, _| {
            let mut table = writer.main();
            let changed = rng.pick(&unstable);
            // Ids of the stable routes among them, so that slots merge with theirs and part again.
            match rng.below(5) {
                0..3 => insert(&mut table, changed, 1 + rng.below(7) as u32),
                _ => drop(settled(|| table.remove(changed, RouteMatch::ANY))),
            }
        },
    );
    assert!(checked > 1000);
}

#[test]
fn a_default_route_and_a_cover_that_take_turns_leave_no_gap() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    for (text, id) in [("0.0.0.0/0", 1), ("10.2.0.0/16", 3), ("::/0", 1), ("2001:db8:2::/48", 3)] {
        insert(&mut fib.writer().unwrap().main(), net(text), id);
    }
    beside_readers(
        &fib,
        2,
        |reader, _, _| {
            let covered: &[_] = &[Some(1), Some(2)];
            let outside: &[_] = &[Some(1), None];
            expect(reader, [0x0a01_0101u32, 0x0a02_0101, 0x0b00_0001], [covered, &[Some(3)], outside])
                + expect(
                    reader,
                    [0x2001_0db8_0001 << 80, 0x2001_0db8_0002 << 80, 0x3001u128 << 112],
                    [covered, &[Some(3)], outside],
                )
        },
        |writer, _| {
            let mut table = writer.main();
            for (default, cover) in [("0.0.0.0/0", "10.0.0.0/8"), ("::/0", "2001:db8::/32")] {
                insert(&mut table, net(cover), 2);
                remove(&mut table, net(default));
                insert(&mut table, net(default), 1);
                remove(&mut table, net(cover));
            }
        },
    );
}

#[test]
fn c60_a_freed_node_is_never_read() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    insert(&mut fib.writer().unwrap().main(), net("10.0.0.0/8"), 1);
    insert(&mut fib.writer().unwrap().main(), net("2001:db8::/32"), 1);
    let allowed: &[_] = &[Some(1), Some(2)];
    let look = |reader: &mut Reader| {
        expect(reader, [0x0a00_0081u32], [allowed]) + expect(reader, [0x2001_0db8_0000_0001_8000u128 << 48], [allowed])
    };
    beside_readers(
        &fib,
        3,
        |reader, rng, round| {
            // Every third reader, now and then, sleeps inside a burst between two lookups.
            if rng.below(50_000) == 0 || (round == 0 && rng.below(2) == 0) {
                let burst = reader.burst();
                let view = burst.main();
                let ids = || (id(view.lookup(0x0a00_0081u32)), id(view.lookup(0x2001_0db8_0000_0001_8000u128 << 48)));
                let before = ids();
                std::thread::sleep(Duration::from_millis(300));
                let after = ids();
                assert!([before.0, before.1, after.0, after.1].iter().all(|answer| allowed.contains(answer)));
            }
            look(reader)
        },
        |writer, _| {
            let mut table = writer.main();
            for (inner, id) in [
                ("10.0.0.128/25", 2),
                ("20.0.0.128/25", 3),
                ("2001:db8:0:1:8000::/65", 2),
                ("2002:db8:0:1:8000::/65", 3),
            ] {
                insert(&mut table, net(inner), id);
                remove(&mut table, net(inner));
            }
        },
    );
}

#[test]
fn c62_a_replaced_route_is_old_or_new() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    for (text, id) in [("10.0.0.0/8", 9), ("10.1.1.1", 1), ("2001:db8::/32", 9), ("2001:db8::1", 1)] {
        insert(&mut fib.writer().unwrap().main(), net(text), id);
    }
    // Odd while the host routes are flipped by remove and insert, even while by replace.
    let phase = AtomicU64::new(0);
    let by_replace = AtomicU64::new(0);
    beside_readers(
        &fib,
        2,
        |reader, _, _| {
            let before = phase.load(Ordering::Acquire);
            let mut found = [None; 2];
            {
                let burst = reader.burst();
                found[0] = id(burst.main().lookup(0x0a01_0101u32));
                found[1] = id(burst.main().lookup(0x2001_0db8u128 << 96 | 1));
            }
            std::sync::atomic::fence(Ordering::Acquire);
            let only_replaced = before.is_multiple_of(2) && phase.load(Ordering::Relaxed) == before;
            let allowed: &[_] = if only_replaced { &[Some(1), Some(2)] } else { &[Some(1), Some(2), Some(9)] };
            assert!(found.iter().all(|answer| allowed.contains(answer)), "{found:?}, allowed are {allowed:?}");
            by_replace.fetch_add(u64::from(only_replaced), Ordering::Relaxed);
            let (host, cover): (&[_], &[_]) = (&[Some(1), Some(2), Some(9)], &[Some(9)]);
            expect(reader, [0x0a02_0202u32, 0x0a01_0101], [cover, host])
                + expect(reader, [0x2001_0db8u128 << 96 | 2, 0x2001_0db8 << 96 | 1], [cover, host])
        },
        |writer, round| {
            let mut table = writer.main();
            for text in ["10.1.1.1", "2001:db8::1"] {
                for flip in 0..1000 {
                    settled(|| table.replace_if_present(net(text), hop(1 + flip % 2)));
                }
            }
            phase.fetch_add(1, Ordering::AcqRel);
            for text in ["10.1.1.1", "2001:db8::1"] {
                for flip in 0..1000 {
                    remove(&mut table, net(text));
                    insert(&mut table, net(text), 1 + flip % 2);
                }
            }
            phase.store(2 * round + 2, Ordering::Release);
        },
    );
    assert!(by_replace.into_inner() > 1000);
}

/// Where the table of C63 stands: `low` members are in it for sure, those from `high` on are not.
#[derive(Default)]
struct Tide {
    low: AtomicU64,
    high: AtomicU64,
    turns: AtomicU64,
}

/// The table grows to `count` members and shrinks to none; the last bits of an address tell its member.
fn tides<A: TestAddr>(count: u64, expected_bits: &[u8], member: impl Fn(u64) -> Prefix<A> + Sync) {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let tide = Tide::default();
    let mut roots = Vec::new();
    let judged = beside_readers(
        &fib,
        2,
        |reader, rng, _| {
            let burst = reader.burst();
            let mut judged = 0;
            for _ in 0..64 {
                let index = rng.below(count as usize) as u64;
                let turns = tide.turns.load(Ordering::Acquire);
                let (low, high) = (tide.low.load(Ordering::Acquire), tide.high.load(Ordering::Acquire));
                let answer = id(burst.main().lookup(member(index).addr()));
                std::sync::atomic::fence(Ordering::Acquire);
                let (low, high) =
                    (low.min(tide.low.load(Ordering::Relaxed)), high.max(tide.high.load(Ordering::Relaxed)));
                let present = Some(index as u32 % 1000);
                assert!(answer.is_none() || answer == present, "member {index} became {answer:?}");
                // Within one turn both bounds move one way, so the first and last reading enclose those between.
                std::sync::atomic::fence(Ordering::Acquire);
                if tide.turns.load(Ordering::Relaxed) == turns {
                    assert!(index >= low || answer == present, "member {index} of at least {low} is missing");
                    assert!(index < high || answer.is_none(), "member {index} of at most {high} is there");
                    judged += 1;
                }
            }
            judged
        },
        |writer, _| {
            let mut table = writer.main();
            let bits = |table: &Table<'_>| {
                let stats = table.stats();
                if A::FAMILY == Family::V4 { stats.v4.root_bits } else { stats.v6.root_bits }
            };
            let mut passed = vec![bits(&table)];
            let mut pass = |table: &Table<'_>, index: u64| {
                // Statistics walk the trie, so they are asked for seldom.
                if index.is_multiple_of(1 << 15) || (index < 1 << 13 && index.is_multiple_of(1 << 10)) {
                    let bits = bits(table);
                    if passed.last() != Some(&bits) {
                        passed.push(bits);
                    }
                }
            };
            for index in 0..count {
                tide.high.store(index + 1, Ordering::Release);
                insert(&mut table, member(index).into(), index as u32 % 1000);
                tide.low.store(index + 1, Ordering::Release);
                pass(&table, index);
            }
            tide.turns.fetch_add(1, Ordering::AcqRel);
            for index in (0..count).rev() {
                tide.low.store(index, Ordering::Release);
                remove(&mut table, member(index).into());
                tide.high.store(index, Ordering::Release);
                pass(&table, index);
            }
            tide.turns.fetch_add(1, Ordering::AcqRel);
            roots = passed;
        },
    );
    println!("{}: {judged} answers judged, root bits {roots:?}", A::FAMILY);
    assert_eq!(roots, expected_bits);
    assert!(judged > 1000);
}

#[test]
fn c63_the_root_grows_and_shrinks_under_readers() {
    tides::<u32>(270_000, &[6, 12, 18, 12, 6], |index| prefix((index as u32).wrapping_mul(0x9e37_79b1) << 4, 28));
    tides::<u128>(20_000, &[2, 8, 14, 8, 2], |index| {
        prefix(u128::from(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64, 64)
    });
}

#[test]
fn a_bulk_load_is_seen_empty_or_whole() {
    let fib = Fib::with_options(Options::default().sync_mem(65_536)).unwrap();
    let mut rng = Rng::new(11);
    let mut routes: Vec<(IpNet, Route)> = [
        ("0.0.0.0/0", 1),
        ("10.0.0.0/8", 2),
        ("10.1.1.0/24", 3),
        ("::/0", 1),
        ("2001:db8::/32", 2),
        ("2001:db8:1::/48", 3),
    ]
    .map(|(text, id)| (net(text), Route::new(hop(id))))
    .to_vec();
    routes.extend((0..100).map(|_| (prefix(0xc000_0000 | rng.next() as u32, 24).into(), Route::new(hop(4)))));
    beside_readers(
        &fib,
        2,
        |reader, _, _| {
            let only: [&[_]; 3] = [&[None, Some(1)], &[None, Some(2)], &[None, Some(3), Some(200), Some(40_000)]];
            expect(reader, [0x0b00_0001u32, 0x0a02_0202, 0x0a01_0101], only)
                + expect(reader, [0x3001u128 << 112, 0x2001_0db8_0002 << 80, 0x2001_0db8_0001 << 80], only)
        },
        |writer, _| {
            let mut table = writer.main();
            settled(|| table.load(routes.iter().copied()));
            // Ids that need wider slots: the whole trie is built anew under the readers.
            for id in [200, 40_000] {
                insert(&mut table, net("10.1.1.0/24"), id);
                insert(&mut table, net("2001:db8:1::/48"), id);
            }
            settled(|| table.clear());
        },
    );
}
