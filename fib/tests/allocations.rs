//! Which calls ask the allocator for memory: lookups and questions never, a replaced next hop never, and what a `Fib`
//! has taken it gives back.
//!
//! The allocator of this test binary counts the calls and bytes of each thread. Node memory does not pass through it;
//! `memory_stats` and the size of the address space show that.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{Rng, TestAddr, hop, ip, net, prefix};
use fib::{Family, Fib, FibError, NextHopId, Options, Resource, Route};
use ipnet::IpNet;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that is ending has no counters any more.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls of the allocator during `work`, frees included.
fn calls<T>(work: impl FnOnce() -> T) -> u64 {
    let before = CALLS.get();
    std::hint::black_box(work());
    CALLS.get() - before
}

/// Bytes that `work` has taken and not given back.
fn kept_bytes<T>(work: impl FnOnce() -> T) -> i64 {
    let before = LIVE_BYTES.get();
    drop(work());
    LIVE_BYTES.get() - before
}

/// One test at a time: some watch the address space of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static PROCESS: Mutex<()> = Mutex::new(());
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn filled() -> Fib {
    let mut rng = Rng::new(84);
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut routes: Vec<(IpNet, Route)> = (0..20_000)
        .flat_map(|index| {
            let (v4, v6) = (u32::random(&mut rng), u128::random(&mut rng));
            let id = Route::new(hop(index % 100));
            [(prefix(v4, rng.pick(&[8, 16, 24, 32])).into(), id), (prefix(v6, rng.pick(&[32, 48, 64, 128])).into(), id)]
        })
        .collect();
    routes.push((net("0.0.0.0/0"), Route::new(hop(1))));
    routes.push((net("10.0.0.0/8"), Route::new(hop(1))));
    writer.main().load(routes).unwrap();
    drop(writer);
    fib
}

#[test]
fn the_allocator_counts() {
    assert_eq!(calls(|| Vec::<u8>::with_capacity(10)), 1 + 1);
    assert_eq!(kept_bytes(|| Vec::<u8>::with_capacity(10)), 0);
    assert_eq!(kept_bytes(|| std::mem::forget(Vec::<u8>::with_capacity(10))), 10);
}

#[test]
fn c84_lookups_allocate_nothing() {
    let _alone = alone();
    let fib = filled();
    let mut rng = Rng::new(85);
    let v4: Vec<u32> = (0..1000).map(|_| u32::random(&mut rng)).collect();
    let v6: Vec<u128> = (0..1000).map(|_| u128::random(&mut rng)).collect();
    let mut out = vec![hop(0); 1000];
    let mut reader = fib.reader("counted").unwrap();
    let lookups = calls(|| {
        for _ in 0..10 {
            let burst = reader.burst();
            let view = burst.main();
            let hits = v4.iter().filter(|addr| view.lookup(**addr).is_some()).count()
                + v6.iter().filter(|addr| view.lookup(**addr).is_some()).count();
            view.lookup_batch(&v4, &mut out, NextHopId::MAX);
            view.lookup_batch(&v6, &mut out, NextHopId::MAX);
            assert!(hits > 0);
            drop(burst);
            let mut online = reader.online();
            assert!(online.main().lookup(0u32).is_some());
            online.quiescent();
        }
    });
    assert_eq!(lookups, 0);
}

#[test]
fn c84_questions_to_the_writer_allocate_nothing() {
    let _alone = alone();
    let fib = filled();
    let mut writer = fib.writer().unwrap();
    let table = writer.main();
    let (prefix, addr) = (net("10.1.2.0/24"), ip("10.1.2.3"));
    let questions = calls(|| {
        assert!(table.lookup(addr).is_some() && table.lookup_match(addr).is_some());
        assert_eq!(table.shortest_match(addr).map(|(prefix, _)| prefix.prefix_len()), Some(0));
        assert!(table.get(prefix).is_some() || table.parent(prefix).is_some());
        assert!(table.covering(prefix).count() >= 2 && table.covering_longest_first(prefix).count() >= 2);
        assert!(table.covering(prefix).next().is_some(), "an early stop");
        table.routes(prefix).count()
            + table.within(prefix).count()
            + table.iter_from(prefix).take(100).count()
            + table.iter(Family::V6).count()
            + table.prefix_count(Family::V4)
    });
    assert_eq!(questions, 0);
}

#[test]
fn c58_replacing_a_next_hop_asks_for_no_memory() {
    let _alone = alone();
    let fib = Fib::new().unwrap();
    let mut writer = fib.writer().unwrap();
    let mut table = writer.main();
    for (text, id) in [("10.0.0.0/8", 1), ("10.1.0.0/16", 2), ("2001:db8::/32", 3), ("2001:db8:1::/48", 4)] {
        table.insert_if_absent(net(text), hop(id)).unwrap();
    }
    for text in ["10.1.0.0/16", "10.0.0.0/8", "2001:db8:1::/48", "2001:db8::/32"] {
        // The plan's lists get their room the first time.
        table.replace_if_present(net(text), hop(10)).unwrap();
        let id = 100 + text.len() as u32 * 2;
        let replaced = calls(|| {
            for round in 0..250_000 {
                table.replace_if_present(net(text), hop(id + round % 2)).unwrap();
            }
        });
        assert_eq!(replaced, 0, "{text}");
    }
}

#[test]
fn routes_that_come_and_go_keep_nothing() {
    let _alone = alone();
    let kept = kept_bytes(|| {
        let fib = filled();
        let mut writer = fib.writer().unwrap();
        for index in 0..1000u32 {
            writer.main().insert_or_replace(prefix(index << 12, 28).into(), hop(1)).unwrap();
        }
        let id = writer.create_table(fib::TableOptions::default()).unwrap();
        writer.table(id).unwrap().insert_or_replace(net("::/0"), hop(1)).unwrap();
        // Readers may outlive every other handle.
        fib.reader("last").unwrap()
    });
    assert_eq!(kept, 0);
}

/// What threads of other tests may take of the address space meanwhile: stacks, and the system allocator's heaps.
#[cfg(target_os = "linux")]
const SLACK: usize = 768 << 20;

/// Bytes of address space of this process.
#[cfg(target_os = "linux")]
fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_ascii_whitespace().next().unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn c48_failed_creation_leaves_nothing() {
    let _alone = alone();
    // Room for no root, and for the first of the two roots only.
    let before = address_space();
    for node_memory in [0, 255, 256, 511] {
        let refused = |_| match Fib::with_options(Options::default().node_memory(node_memory)) {
            Err(FibError::OutOfMemory(error)) => assert_eq!(error.resource, Resource::Arena),
            other => panic!("{other:?}"),
        };
        refused(0);
        assert_eq!(kept_bytes(|| (0..4_000).for_each(refused)), 0);
    }
    // As many lost reservations of at least 64 KiB would be 1,000 MiB.
    assert!(address_space() < before + SLACK, "{before} became {}", address_space());
    let refused = |main| {
        let error = Fib::with_options(Options::default().main(main)).unwrap_err();
        assert!(matches!(error, FibError::RootLimit { .. }), "{error}");
    };
    let before = address_space();
    let kept = kept_bytes(|| {
        for _ in 0..1_000 {
            refused(fib::TableOptions::default().root_limit_v4(13));
            refused(fib::TableOptions::default().root_limit_v6(0));
        }
    });
    assert_eq!(kept, 0);
    assert!(address_space() < before + SLACK, "each reserves 8 GiB, and gives it back");
}

#[test]
#[cfg(target_os = "linux")]
fn c48_a_fib_gives_its_address_space_back() {
    let _alone = alone();
    drop(Fib::new().unwrap());
    let before = address_space();
    let kept = kept_bytes(|| {
        for _ in 0..1_000 {
            let fib = Fib::new().unwrap();
            fib.writer().unwrap().main().insert_or_replace(net("10.0.0.0/8"), hop(1)).unwrap();
            assert_eq!(fib.reader("one").unwrap().burst().main().lookup(0x0a00_0001u32), Some(hop(1)));
        }
    });
    assert_eq!(kept, 0);
    assert!(address_space() < before + SLACK);
}
