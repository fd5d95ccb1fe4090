//! Tests with real threads and of single calls. Those that say nothing about one detector run with both.

use std::any::TypeId;
use std::collections::HashSet;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::epoch::EpochDomain;
use super::grace::{GraceDetector, Late, SlotDomain};
use super::limbo::{Limbo, Retired};
use super::readers::{ReaderSlot, RemoveReaderError, Reports};
use super::{AdmitError, Budget, ReaderInfo, StallPolicy, StalledReader, os};
use crate::failpoint;

/// Runs each test with both detectors.
macro_rules! with_both_detectors {
    ($($name:ident)*) => {
        mod slots {
            $(#[test] fn $name() { super::$name::<super::SlotDomain>(); })*
        }
        mod crossbeam {
            $(#[test] fn $name() { super::$name::<super::EpochDomain>(); })*
        }
    };
}

with_both_detectors! {
    a_stalled_reader_is_named_and_recovers
    a_dead_reader_is_reported
    offline_and_idle_readers_are_not_waited_for
    the_budget_changes_while_dirty
    reaching_the_budget_is_passing_it
    a_writer_that_may_not_wait_is_told
    a_writer_that_would_wait_for_itself_is_told
    a_handle_may_move_between_threads
    exceeding_ends_at_the_limit
    the_writer_waits_and_is_woken
    many_readers_register
    grace_periods_are_tokens
    synchronize_frees_everything
    a_failed_reservation_changes_nothing
    freeing_is_spread_over_updates
    a_large_block_does_not_wait_for_its_chunk
    dropping_limbo_frees_only_what_is_over
    statistics_add_up
    readers_never_see_freed_memory
    quiescent_readers_never_see_freed_memory
}

/// A block that is only a number.
#[derive(Debug)]
struct Block {
    number: u64,
    bytes: usize,
}

impl Retired for Block {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

const BLOCK: usize = 512;
const MIN: usize = 65_536;
const DEFAULT: usize = 524_288;

fn limbo<D: GraceDetector>(budget: Budget) -> (Arc<D>, Limbo<Block, D>) {
    let domain = D::new();
    (Arc::clone(&domain), Limbo::new(domain, budget))
}

/// One update that retires blocks of the given sizes.
fn update<D: GraceDetector>(limbo: &mut Limbo<Block, D>, sizes: &[usize]) -> Result<Vec<u64>, AdmitError> {
    let mut freed = Vec::new();
    let mut free = |block: Block| freed.push(block.number);
    limbo.admit(&mut free)?;
    limbo.reserve(sizes.len()).unwrap();
    for &bytes in sizes {
        limbo.retire(Block { number: limbo.counters.retired_blocks, bytes });
    }
    limbo.step(&mut free);
    Ok(freed)
}

/// Updates until one is refused.
fn fill<D: GraceDetector>(limbo: &mut Limbo<Block, D>) -> AdmitError {
    loop {
        if let Err(refused) = update(limbo, &[BLOCK]) {
            return refused;
        }
    }
}

fn ignore(_: Block) {}

/// A thread that opens a burst and ends it when told.
struct Stalled<R> {
    leave: mpsc::Sender<()>,
    thread: thread::JoinHandle<R>,
    tid: u32,
}

fn stall<R: Reports + 'static>(mut reader: R) -> Stalled<R> {
    let (leave, told) = mpsc::channel();
    let (inside, is_inside) = mpsc::channel();
    let thread = thread::spawn(move || {
        assert!(reader.enter());
        inside.send(os::tid()).unwrap();
        told.recv().unwrap();
        reader.leave();
        reader
    });
    let tid = is_inside.recv().unwrap();
    Stalled { leave, thread, tid }
}

impl<R> Stalled<R> {
    fn end(self) -> R {
        self.leave.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

fn a_stalled_reader_is_named_and_recovers<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    let limit = Duration::from_millis(30);
    limbo.budget.policy = StallPolicy::WaitLimit(limit);
    let bystander = domain.register("bystander").unwrap();
    let reader = domain.register("worker 3").unwrap();
    let id = reader.id();
    let stalled = stall(reader);

    let AdmitError::Stalled(named) = fill(&mut limbo) else { panic!() };
    let StalledReader { silent_for, .. } = named;
    assert_eq!((named.id, named.name.as_str(), named.tid), (id, "worker 3", stalled.tid));
    assert!(silent_for >= limit);
    assert!(named.to_string().contains("worker 3"));
    // Nothing was freed, nothing was added, and further updates are refused as well.
    assert_eq!(limbo.counters.reclaimed_blocks, 0);
    assert_eq!(limbo.dirty_bytes(), MIN);
    assert!(matches!(update(&mut limbo, &[BLOCK]), Err(AdmitError::Stalled(again)) if again.id == id));
    assert_eq!((limbo.dirty_bytes(), limbo.counters.retired_bytes), (MIN, MIN as u64));
    let stats = limbo.stats();
    assert_eq!((stats.readers, stats.readers_online, stats.readers_late), (2, 1, 1));

    let reader = stalled.end();
    limbo.budget.policy = StallPolicy::Wait;
    update(&mut limbo, &[BLOCK]).unwrap();
    limbo.synchronize(None, &mut ignore).unwrap();
    assert_eq!(limbo.dirty_bytes(), 0);
    assert_eq!(limbo.stats().readers_late, 0);
    drop((reader, bystander));
}

fn a_dead_reader_is_reported<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.policy = StallPolicy::WaitLimit(Duration::from_millis(10));
    let mut reader = domain.register("gone").unwrap();
    let id = reader.id();
    let reader = thread::spawn(move || {
        assert!(reader.enter());
        // Kept alive, so that no test leaks; the library cannot tell it from a handle that was forgotten.
        mem::ManuallyDrop::new(reader)
    })
    .join()
    .unwrap();
    assert!(matches!(fill(&mut limbo), AdmitError::Stalled(named) if named.id == id && named.name.as_str() == "gone"));
    // SAFETY: the handle is not used again, only dropped below, and nothing was loaded in its burst.
    let remove = || unsafe { domain.remove_dead(id) };
    let mut removed = remove();
    // The thread is joined before the system has taken its number back.
    while let Err(RemoveReaderError::ThreadRuns { .. }) = removed {
        thread::yield_now();
        removed = remove();
    }
    if removed != Err(RemoveReaderError::Unsupported) {
        assert_eq!(removed, Ok(()));
        assert_eq!(remove(), Err(RemoveReaderError::NotRegistered { id }));
        update(&mut limbo, &[BLOCK]).unwrap();
        // The slot is free for another, whom the late drop of the old handle does not touch.
        let mut next = domain.register("next").unwrap();
        assert_ne!(next.id(), id);
        assert!(next.enter());
        drop(mem::ManuallyDrop::into_inner(reader));
        assert_eq!(limbo.stats().readers_online, 1);
        next.leave();
    } else {
        drop(mem::ManuallyDrop::into_inner(reader));
    }
    limbo.synchronize(None, &mut ignore).unwrap();
    assert_eq!(limbo.dirty_bytes(), 0);
}

#[test]
fn only_the_dead_are_removed() {
    let domain = SlotDomain::new();
    let mut reader = domain.register("alive").unwrap();
    let id = reader.id();
    assert!(reader.enter());
    // SAFETY: refused, since this thread runs.
    let refused = unsafe { domain.remove_dead(id) };
    if cfg!(target_os = "linux") && !cfg!(miri) {
        assert_eq!(refused, Err(RemoveReaderError::ThreadRuns { id, tid: os::tid() }));
        reader.leave();
    }
    drop(reader);
    // SAFETY: refused, since nobody is registered by this id.
    assert_eq!(unsafe { domain.remove_dead(id) }, Err(RemoveReaderError::NotRegistered { id }));
    let nobody = super::ReaderId::from_bits(u64::MAX);
    // SAFETY: as above.
    assert_eq!(unsafe { domain.remove_dead(nobody) }, Err(RemoveReaderError::NotRegistered { id: nobody }));
}

fn offline_and_idle_readers_are_not_waited_for<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    let idle = domain.register("idle").unwrap();
    let mut between = domain.register("between bursts").unwrap();
    assert!(between.enter());
    between.leave();
    let mut offline = domain.register("offline").unwrap();
    offline.online();
    offline.quiescent();
    offline.offline();
    // Reporting while offline does not bring it back.
    offline.quiescent();
    for _ in 0..10 * MIN / BLOCK {
        update(&mut limbo, &[BLOCK]).unwrap();
    }
    let stats = limbo.stats();
    assert_eq!((stats.waits, stats.readers, stats.readers_online, stats.readers_late), (0, 3, 0, 0));
    assert!(stats.peak_dirty_bytes < MIN / 2, "{stats}");
    drop((idle, between, offline));
    assert_eq!(limbo.stats().readers, 0);
}

fn the_budget_changes_while_dirty<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(1 << 20).unwrap());
    limbo.budget.nonblocking = true;
    let mut reader = domain.register("inside").unwrap();
    assert!(reader.enter());
    for _ in 0..DEFAULT / BLOCK {
        update(&mut limbo, &[BLOCK]).unwrap();
    }
    // Out of range: refused by name, and the old one stays.
    for bytes in [0, 1, MIN - 1, (64 << 20) + 1, usize::MAX] {
        let refused = limbo.set_sync_mem(bytes).unwrap_err();
        assert_eq!((refused.bytes, refused.min, refused.max), (bytes, 65_536, 67_108_864));
        assert!(refused.to_string().contains("65536 to 67108864"));
        assert_eq!(limbo.stats().sync_mem_bytes, 1 << 20);
        assert!(Budget::new(bytes).is_err());
    }
    update(&mut limbo, &[]).unwrap();
    limbo.set_sync_mem(MIN).unwrap();
    let refused = AdmitError::WouldBlock { dirty_bytes: DEFAULT, sync_mem_bytes: MIN };
    assert_eq!(update(&mut limbo, &[BLOCK]), Err(refused));
    limbo.set_sync_mem(64 << 20).unwrap();
    update(&mut limbo, &[BLOCK]).unwrap();
    limbo.set_sync_mem(MIN).unwrap();
    reader.leave();
    // In one go, since the next update may add only to less than the budget.
    while update(&mut limbo, &[]).is_err() {}
    assert!(limbo.dirty_bytes() < MIN);
    assert_eq!(limbo.stats().peak_dirty_bytes, DEFAULT + BLOCK);
}

fn reaching_the_budget_is_passing_it<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.nonblocking = true;
    let mut reader = domain.register("inside").unwrap();
    assert!(reader.enter());
    update(&mut limbo, &[MIN - 1]).unwrap();
    update(&mut limbo, &[1]).unwrap();
    assert!(matches!(update(&mut limbo, &[1]), Err(AdmitError::WouldBlock { .. })));
    reader.leave();
    // The smallest budget of all: every block must be gone before the next is retired.
    for bytes in 0..3 {
        let (_, mut limbo) = self::limbo::<D>(Budget::tiny(bytes));
        for _ in 0..100 {
            update(&mut limbo, &[8, 8]).unwrap();
            assert!(limbo.dirty_bytes() <= 16);
        }
        assert!(limbo.stats().peak_dirty_bytes <= bytes + 16);
    }
}

fn a_writer_that_may_not_wait_is_told<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.nonblocking = true;
    limbo.budget.policy = StallPolicy::Wait;
    let mut reader = domain.register("slow").unwrap();
    assert!(reader.enter());
    let refused = AdmitError::WouldBlock { dirty_bytes: MIN, sync_mem_bytes: MIN };
    assert_eq!(fill(&mut limbo), refused);
    assert_eq!(fill(&mut limbo), refused);
    assert_eq!(limbo.poll(&mut ignore), MIN);
    assert_eq!(limbo.reclaim(&mut ignore), MIN);
    assert_eq!(limbo.stats().waits, 0);
    reader.leave();
    while limbo.poll(&mut ignore) > 0 {
        limbo.reclaim(&mut ignore);
    }
    update(&mut limbo, &[BLOCK]).unwrap();
}

fn a_writer_that_would_wait_for_itself_is_told<D: GraceDetector>() {
    if os::tid() == 0 {
        return;
    }
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.policy = StallPolicy::Wait;
    let other = stall(domain.register("other").unwrap());
    let mut own = domain.register("own").unwrap();
    assert!(own.enter());
    let refused = fill(&mut limbo);
    assert!(matches!(refused, AdmitError::WouldDeadlock(reader) if reader.id == own.id()), "{refused:?}");
    let refused = limbo.synchronize(None, &mut ignore);
    assert!(matches!(refused, Err(AdmitError::WouldDeadlock(_))), "{refused:?}");
    own.leave();
    drop(other.end());
    update(&mut limbo, &[BLOCK]).unwrap();
    // Online counts as well.
    own.online();
    assert!(matches!(fill(&mut limbo), AdmitError::WouldDeadlock(reader) if reader.id == own.id()));
    own.offline();
    update(&mut limbo, &[BLOCK]).unwrap();
}

fn a_handle_may_move_between_threads<D: GraceDetector>() {
    if os::tid() == 0 {
        return;
    }
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.policy = StallPolicy::WaitLimit(Duration::from_millis(5));
    // Registered and used on the writer's thread, then moved: the writer does not wait for itself.
    let mut reader = domain.register("moving").unwrap();
    assert!(reader.enter());
    reader.leave();
    let stalled = stall(reader);
    let tid = stalled.tid;
    assert!(matches!(fill(&mut limbo), AdmitError::Stalled(reader) if reader.tid == tid));
    let mut reader = stalled.end();
    // And back.
    update(&mut limbo, &[]).unwrap();
    reader.bind_thread();
    assert!(reader.enter());
    assert!(matches!(fill(&mut limbo), AdmitError::WouldDeadlock(reader) if reader.tid == os::tid()));
    reader.leave();
}

fn exceeding_ends_at_the_limit<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.policy = StallPolicy::Exceed { limit_bytes: 3 * MIN };
    let stalled = stall(domain.register("slow").unwrap());
    assert!(matches!(fill(&mut limbo), AdmitError::Stalled(_)));
    assert_eq!(limbo.dirty_bytes(), 3 * MIN);
    // A limit below the budget is the budget.
    limbo.budget.policy = StallPolicy::Exceed { limit_bytes: 0 };
    limbo.set_sync_mem(4 * MIN).unwrap();
    assert!(matches!(fill(&mut limbo), AdmitError::Stalled(_)));
    assert_eq!(limbo.dirty_bytes(), 4 * MIN);
    drop(stalled.end());
    limbo.budget.policy = StallPolicy::Wait;
    update(&mut limbo, &[BLOCK]).unwrap();
    assert!(limbo.dirty_bytes() <= 4 * MIN);
}

fn the_writer_waits_and_is_woken<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.nonblocking = true;
    let stalled = stall(domain.register("slow").unwrap());
    assert!(matches!(fill(&mut limbo), AdmitError::WouldBlock { .. }));
    limbo.budget.nonblocking = false;
    limbo.budget.policy = StallPolicy::Wait;
    let Stalled { leave, thread, .. } = stalled;
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        leave.send(()).unwrap();
    });
    update(&mut limbo, &[BLOCK]).unwrap();
    let stats = limbo.stats();
    assert!(stats.waits == 1 && stats.wait_total > Duration::ZERO && stats.wait_worst == stats.wait_total);
    assert!(stats.grace_worst >= stats.wait_worst);
    later.join().unwrap();
    drop(thread.join().unwrap());
}

fn many_readers_register<D: GraceDetector>() {
    let many = if cfg!(miri) { 50 } else { 5_000 };
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    limbo.budget.nonblocking = true;
    let mut readers: Vec<_> = (0..many).map(|number| domain.register(&format!("reader {number}")).unwrap()).collect();
    let ids: HashSet<_> = readers.iter().map(Reports::id).collect();
    assert_eq!((ids.len(), limbo.stats().readers), (many, many));
    for reader in readers.iter_mut().step_by(7) {
        assert!(reader.enter());
    }
    assert!(matches!(fill(&mut limbo), AdmitError::WouldBlock { .. }));
    let stats = limbo.stats();
    assert_eq!((stats.readers_online, stats.readers_late), (many.div_ceil(7), many.div_ceil(7)));
    for reader in readers.iter_mut().step_by(7) {
        assert!(limbo.reclaim(&mut ignore) > 0);
        reader.leave();
    }
    // Crossbeam walks its participants a few at a time.
    while limbo.reclaim(&mut ignore) > 0 {}
    let mut names = HashSet::new();
    limbo.readers(&mut |reader: ReaderInfo| {
        assert!(!reader.online && !reader.late);
        names.insert(reader.name.to_string());
    });
    assert!(names.len() == many && names.contains("reader 42"));
    drop(readers);
    assert_eq!(limbo.stats().readers, 0);
    // From several threads at a time.
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..many / 4 {
                    let mut reader = domain.register("brief").unwrap();
                    assert!(reader.enter());
                    reader.leave();
                }
            });
        }
        for _ in 0..many / 4 {
            let _ = update(&mut limbo, &[BLOCK]);
        }
    });
    assert_eq!(limbo.stats().readers, 0);
}

#[test]
fn slots_are_used_again() {
    let domain = SlotDomain::new();
    let first = domain.register("first").unwrap();
    let second = domain.register("second").unwrap();
    let id = first.id();
    drop(first);
    let third = domain.register("third").unwrap();
    assert_eq!(domain.readers.count(), 2);
    // Same slot, another id.
    assert_ne!(third.id(), id);
    assert_eq!(third.id().to_bits() as u32, id.to_bits() as u32);
    drop((second, third));
    failpoint::arm(Some(0));
    let kept: Vec<_> = (0..8).map(|_| domain.register("kept").unwrap()).collect();
    let refused = domain.register("ninth").err().unwrap();
    failpoint::arm(None);
    assert!(refused.bytes > 0);
    assert!(domain.register("ninth").is_ok());
    drop(kept);
}

fn grace_periods_are_tokens<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::default());
    let mut before = limbo.start_grace_period();
    let stalled = stall(domain.register("slow").unwrap());
    let mut during = limbo.start_grace_period();
    // Started before the reader entered, so ours is over; crossbeam is held back by a pin in an older epoch too.
    let outcome = limbo.wait_grace_period(&mut before, Some(Instant::now()));
    let is_ours = TypeId::of::<D>() == TypeId::of::<SlotDomain>();
    assert!(outcome.is_ok() || !is_ours && matches!(outcome, Err(AdmitError::Stalled(_))), "{outcome:?}");
    assert!(!limbo.poll_grace_period(&mut during));
    let refused = limbo.wait_grace_period(&mut during, Some(Instant::now() + Duration::from_millis(5)));
    assert!(matches!(refused, Err(AdmitError::Stalled(reader)) if reader.name.as_str() == "slow"));
    let (_, mut foreign) = self::limbo::<D>(Budget::default());
    assert!(!foreign.poll_grace_period(&mut during));
    assert_eq!(foreign.wait_grace_period(&mut during, None), Err(AdmitError::OtherDomain));
    drop(stalled.end());
    limbo.wait_grace_period(&mut during, None).unwrap();
    assert!(limbo.poll_grace_period(&mut during));
    assert!(!during.age().is_zero());
}

fn synchronize_frees_everything<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::default());
    limbo.synchronize(None, &mut ignore).unwrap();
    for _ in 0..1000 {
        update(&mut limbo, &[24]).unwrap();
    }
    let stalled = stall(domain.register("slow").unwrap());
    update(&mut limbo, &[24]).unwrap();
    let refused = limbo.synchronize(Some(Duration::from_millis(5)), &mut ignore);
    assert!(matches!(refused, Err(AdmitError::Stalled(_))), "{refused:?}");
    assert!(limbo.dirty_bytes() >= 24);
    drop(stalled.end());
    let mut last = 0;
    limbo.synchronize(None, &mut |block| last = block.number).unwrap();
    assert_eq!((limbo.dirty_bytes(), last), (0, 1000));
    assert_eq!(limbo.counters.reclaimed_blocks, 1001);
}

fn a_failed_reservation_changes_nothing<D: GraceDetector>() {
    let (_, mut limbo) = limbo::<D>(Budget::default());
    failpoint::arm(Some(0));
    let refused = limbo.reserve(10).unwrap_err();
    failpoint::arm(None);
    assert_eq!(refused.bytes, 10 * mem::size_of::<Block>());
    assert_eq!(limbo.dirty_bytes(), 0);
    // More than the machine has.
    assert!(limbo.reserve(usize::MAX).is_err());
    // What was reserved is there: no allocation fails, because none is made.
    limbo.reserve(1000).unwrap();
    failpoint::arm(Some(0));
    for number in 0..1000 {
        limbo.retire(Block { number, bytes: 1 });
    }
    failpoint::arm(None);
    limbo.step(&mut ignore);
    limbo.synchronize(None, &mut ignore).unwrap();
    assert_eq!(limbo.counters.reclaimed_blocks, 1000);
}

fn freeing_is_spread_over_updates<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    let mut reader = domain.register("slow").unwrap();
    assert!(reader.enter());
    while limbo.dirty_bytes() < MIN - 64 {
        update(&mut limbo, &[64]).unwrap();
    }
    reader.leave();
    let mut updates = 0;
    while limbo.dirty_bytes() > MIN / 8 {
        let freed = update(&mut limbo, &[64]).unwrap();
        assert!(freed.len() <= 40, "{}", freed.len());
        updates += 1;
    }
    assert!(updates > 20);
}

fn a_large_block_does_not_wait_for_its_chunk<D: GraceDetector>() {
    let (_, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    update(&mut limbo, &[64]).unwrap();
    assert!(limbo.chunks.is_empty());
    update(&mut limbo, &[10 * MIN]).unwrap();
    update(&mut limbo, &[]).unwrap();
    while limbo.poll(&mut ignore) > 0 {}
    let stats = limbo.stats();
    assert_eq!((stats.largest_operation_bytes, stats.peak_dirty_bytes), (10 * MIN, 10 * MIN + 64));
    assert_eq!(stats.grace_periods, 1);
}

fn dropping_limbo_frees_only_what_is_over<D: GraceDetector>() {
    struct Counted<'a>(&'a AtomicUsize);
    impl Retired for Counted<'_> {
        fn bytes(&self) -> usize {
            100
        }
    }
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    for inside in [false, true] {
        let dropped = AtomicUsize::new(0);
        let domain = D::new();
        let mut reader = domain.register("late").unwrap();
        let mut limbo: Limbo<Counted<'_>, D> = Limbo::new(Arc::clone(&domain), Budget::new(MIN).unwrap());
        if inside {
            assert!(reader.enter());
        }
        limbo.reserve(300).unwrap();
        for _ in 0..300 {
            limbo.retire(Counted(&dropped));
        }
        drop(limbo);
        assert_eq!(dropped.load(Ordering::Relaxed), if inside { 0 } else { 300 });
        reader.leave();
    }
}

fn statistics_add_up<D: GraceDetector>() {
    let (domain, mut limbo) = limbo::<D>(Budget::new(MIN).unwrap());
    let mut reader = domain.register("busy").unwrap();
    let mut freed = 0;
    let rounds = if cfg!(miri) { 300 } else { 2000 };
    for round in 0..rounds {
        assert!(reader.enter());
        freed += update(&mut limbo, &[8, 8 * (round % 50)]).unwrap().len() as u64;
        reader.leave();
        let stats = limbo.stats();
        assert_eq!(stats.retired_bytes - stats.reclaimed_bytes, stats.dirty_bytes as u64);
        assert_eq!(stats.reclaimed_blocks, freed);
        assert_eq!(stats.retired_blocks, 2 * (round as u64 + 1));
        assert!(stats.peak_dirty_bytes >= stats.dirty_bytes);
        assert!(stats.peak_dirty_bytes < MIN + stats.largest_operation_bytes);
    }
    let stats = limbo.stats();
    assert!(stats.grace_periods > rounds as u64 / 100 && stats.polls >= stats.grace_periods, "{stats}");
    assert!(stats.grace_mean <= stats.grace_worst && stats.grace_p99 <= stats.grace_worst);
    assert_eq!(stats.largest_operation_bytes, 8 + 8 * 49);
    assert!(stats.to_string().contains("readers  1 registered, 0 online, 0 late"), "{stats}");
}

#[test]
fn a_forgotten_guard_keeps_the_slot_inside() {
    let domain = SlotDomain::new();
    let mut limbo: Limbo<Block, SlotDomain> = Limbo::new(Arc::clone(&domain), Budget::new(MIN).unwrap());
    limbo.budget.nonblocking = true;
    let mut reader = domain.register("forgetful").unwrap();
    assert!(reader.enter());
    update(&mut limbo, &[BLOCK]).unwrap();
    // The guard was forgotten: a second burst continues the first.
    assert!(!reader.enter());
    assert_eq!(limbo.reclaim(&mut ignore), BLOCK);
    reader.leave();
    assert_eq!(limbo.reclaim(&mut ignore), 0);
    // Online, a burst is part of it, and its end a quiescent state.
    reader.online();
    assert!(!reader.enter());
    update(&mut limbo, &[BLOCK]).unwrap();
    assert_eq!(limbo.reclaim(&mut ignore), BLOCK);
    reader.leave();
    assert_eq!(limbo.reclaim(&mut ignore), 0);
    assert_eq!(limbo.stats().readers_online, 1);
    // Dropping the handle ends whatever is open.
    update(&mut limbo, &[BLOCK]).unwrap();
    drop(reader);
    assert_eq!(limbo.reclaim(&mut ignore), 0);
    assert_eq!(limbo.stats().readers, 0);
}

#[test]
fn membarrier_is_for_bursts_only() {
    let domain = SlotDomain::new();
    let burst_readers = || domain.burst_readers.load(Ordering::Relaxed);
    let mut quiescent = domain.register("quiescent").unwrap();
    quiescent.online();
    quiescent.quiescent();
    assert_eq!(burst_readers(), 0);
    let mut bursts = domain.register("bursts").unwrap();
    for _ in 0..3 {
        assert!(bursts.enter());
        bursts.leave();
    }
    assert_eq!(burst_readers(), usize::from(domain.asymmetric));
    drop(bursts);
    assert_eq!(burst_readers(), 0);
}

#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn a_forked_child_may_read_and_not_write() {
    let (domain, mut limbo) = limbo::<SlotDomain>(Budget::new(MIN).unwrap());
    let mut reader = domain.register("parent").unwrap();
    // A reader that is inside when the process forks has no thread in the child that could leave.
    let inside = stall(domain.register("inside").unwrap());
    update(&mut limbo, &[BLOCK]).unwrap();
    // SAFETY: the child calls nothing that needs another thread: it works on plain memory and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let read = reader.enter();
        reader.leave();
        let registered = domain.register("child").is_ok_and(|mut reader| reader.enter());
        let refused = [
            limbo.admit(&mut ignore) == Err(AdmitError::Forked),
            limbo.synchronize(None, &mut ignore) == Err(AdmitError::Forked),
            domain.is_forked(),
        ];
        let right = read && registered && refused == [true; 3];
        // SAFETY: ends the child at once, without the parent's exit handlers.
        unsafe { libc::_exit(if right { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` is a valid place.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}");
    // The parent goes on.
    assert!(!domain.is_forked());
    drop(inside.end());
    update(&mut limbo, &[BLOCK]).unwrap();
    limbo.synchronize(None, &mut ignore).unwrap();
}

/// What is done to a few readers and to the limbo, one after the other.
#[derive(Clone, Copy, Debug)]
enum Op {
    Enter(usize),
    Leave(usize),
    Online(usize),
    Quiescent(usize),
    Offline(usize),
    Renew(usize),
    Update(usize),
    Reclaim,
}

const READERS: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    let reader = 0..READERS;
    prop_oneof![
        4 => reader.clone().prop_map(Op::Enter),
        4 => reader.clone().prop_map(Op::Leave),
        1 => reader.clone().prop_map(Op::Online),
        2 => reader.clone().prop_map(Op::Quiescent),
        1 => reader.clone().prop_map(Op::Offline),
        1 => reader.prop_map(Op::Renew),
        12 => (1usize..20).prop_map(Op::Update),
        2 => Just(Op::Reclaim),
    ]
}

/// One detector with its limbo, and the truth: which blocks each reader may hold.
struct Script<D: GraceDetector> {
    domain: Arc<D>,
    limbo: Limbo<Block, D>,
    readers: Vec<D::Reader>,
    online: [bool; READERS],
    /// Blocks retired while the reader was inside, since it last held nothing; `None` if it is not inside.
    holds: [Option<HashSet<u64>>; READERS],
    freed: HashSet<u64>,
    next: u64,
}

impl<D: GraceDetector> Script<D> {
    fn new(budget: usize) -> Self {
        let (domain, mut limbo) = limbo::<D>(Budget::tiny(budget));
        limbo.budget.nonblocking = true;
        let readers = (0..READERS).map(|_| domain.register("scripted").unwrap()).collect();
        Script {
            domain,
            limbo,
            readers,
            online: [false; READERS],
            holds: [const { None }; READERS],
            freed: HashSet::new(),
            next: 0,
        }
    }

    fn run(&mut self, op: Op) {
        let Script { domain, limbo, readers, online, holds, freed, next } = self;
        let mut free = |block: Block| {
            assert!(freed.insert(block.number), "freed twice");
            assert!(holds.iter().flatten().all(|held| !held.contains(&block.number)), "freed early");
        };
        match op {
            Op::Reclaim => {
                limbo.reclaim(&mut free);
                return;
            }
            Op::Update(bytes) => {
                // What is refused changes nothing; the other detector may differ in that.
                let admitted = limbo.admit(&mut free).is_ok();
                limbo.reserve(1).unwrap();
                if admitted || limbo.dirty_bytes() < 400 {
                    limbo.retire(Block { number: *next, bytes });
                    holds.iter_mut().flatten().for_each(|held| {
                        held.insert(*next);
                    });
                }
                *next += 1;
                let mut free = |block: Block| {
                    assert!(freed.insert(block.number), "freed twice");
                    assert!(holds.iter().flatten().all(|held| !held.contains(&block.number)), "freed early");
                };
                limbo.step(&mut free);
                return;
            }
            _ => {}
        }
        match op {
            Op::Enter(reader) => {
                assert_eq!(readers[reader].enter(), holds[reader].is_none());
                holds[reader].get_or_insert_default();
            }
            Op::Leave(reader) => {
                readers[reader].leave();
                holds[reader] = online[reader].then(HashSet::new);
            }
            Op::Online(reader) => {
                readers[reader].online();
                online[reader] = true;
                holds[reader].get_or_insert_default();
            }
            Op::Quiescent(reader) => {
                readers[reader].quiescent();
                if let Some(held) = &mut holds[reader] {
                    held.clear();
                }
            }
            Op::Offline(reader) => {
                readers[reader].offline();
                online[reader] = false;
                holds[reader] = None;
            }
            Op::Renew(reader) => {
                readers[reader] = domain.register("renewed").unwrap();
                online[reader] = false;
                holds[reader] = None;
            }
            Op::Update(_) | Op::Reclaim => {}
        }
    }

    fn end(&mut self) -> bool {
        self.readers.clear();
        self.holds = [const { None }; READERS];
        (0..10).any(|_| {
            self.run(Op::Reclaim);
            self.limbo.dirty_bytes() == 0
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Neither detector frees a block that a reader may hold. Ours never keeps one that crossbeam has let go.
    #[test]
    fn detectors_agree(ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 40 } else { 300 })) {
        let mut ours = Script::<SlotDomain>::new(1 << 20);
        let mut oracle = Script::<EpochDomain>::new(1 << 20);
        for &op in &ops {
            ours.run(op);
            oracle.run(op);
            if let Op::Reclaim = op {
                prop_assert!(oracle.freed.is_subset(&ours.freed), "kept {:?}", oracle.freed.difference(&ours.freed));
            }
        }
        prop_assert!(ours.end() && oracle.end());
        prop_assert_eq!(&ours.freed, &oracle.freed);
    }

    /// The same at a budget that is hit all the time.
    #[test]
    fn nothing_is_freed_early_at_a_tiny_budget(
        budget in 1usize..200,
        ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 40 } else { 300 }),
    ) {
        let mut ours = Script::<SlotDomain>::new(budget);
        let mut oracle = Script::<EpochDomain>::new(budget);
        for &op in &ops {
            ours.run(op);
            oracle.run(op);
        }
        prop_assert!(ours.end() && oracle.end());
    }
}

/// A block of memory that tells when it is used after it was freed: by its words, and to Miri and ThreadSanitizer by being
/// written and unmapped without an order to the reads.
struct Node {
    alive: u64,
    serial: u64,
    payload: [u64; 30],
}

const ALIVE: u64 = 0x600d_600d_600d_600d;
const FREED: u64 = 0xdead_dead_dead_dead;

struct Unlinked(*mut Node);

impl Retired for Unlinked {
    fn bytes(&self) -> usize {
        mem::size_of::<Node>()
    }
}

/// Counts the nodes that exist.
static NODES: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

fn new_node(count: &AtomicUsize, serial: u64) -> *mut Node {
    count.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(Box::new(Node { alive: ALIVE, serial, payload: [serial; 30] }))
}

fn free_node(count: &AtomicUsize, node: *mut Node) {
    // SAFETY: made by `new_node`, unlinked, and every reader has let go: this is what is tested.
    unsafe {
        (&raw mut (*node).alive).write_volatile(FREED);
        (&raw mut (*node).payload).write_volatile([FREED; 30]);
        drop(Box::from_raw(node));
    }
    count.fetch_sub(1, Ordering::Relaxed);
}

struct Published {
    nodes: [AtomicPtr<Node>; 64],
    stop: AtomicBool,
    bursts: AtomicU64,
}

impl Published {
    /// A burst of 32 lookups. What was found stays what it was until the burst ends.
    fn lookups(&self, seed: &mut u64) {
        let mut found = [(std::ptr::null_mut::<Node>(), 0u64); 32];
        for found in &mut found {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let node = self.nodes[(*seed >> 58) as usize].load(Ordering::Acquire);
            // SAFETY: loaded inside the burst.
            let (alive, serial) =
                unsafe { ((&raw const (*node).alive).read_volatile(), (&raw const (*node).serial).read_volatile()) };
            assert_eq!(alive, ALIVE, "a node was freed while it was published");
            *found = (node, serial);
        }
        for (node, serial) in found {
            // SAFETY: loaded inside the burst, which has not ended.
            let (alive, now, payload) = unsafe {
                (
                    (&raw const (*node).alive).read_volatile(),
                    (&raw const (*node).serial).read_volatile(),
                    (&raw const (*node).payload[serial as usize % 30]).read_volatile(),
                )
            };
            assert_eq!((alive, now, payload), (ALIVE, serial, serial), "a node was freed during a burst");
        }
        self.bursts.fetch_add(1, Ordering::Relaxed);
    }
}

fn readers_never_see_freed_memory<D: GraceDetector>() {
    stress::<D>(&NODES[usize::from(TypeId::of::<D>() == TypeId::of::<SlotDomain>())], |published, mut reader| {
        let mut seed = reader.id().to_bits();
        while !published.stop.load(Ordering::Relaxed) {
            assert!(reader.enter());
            published.lookups(&mut seed);
            reader.leave();
        }
    });
}

fn quiescent_readers_never_see_freed_memory<D: GraceDetector>() {
    stress::<D>(&NODES[2 + usize::from(TypeId::of::<D>() == TypeId::of::<SlotDomain>())], |published, mut reader| {
        let mut seed = reader.id().to_bits();
        while !published.stop.load(Ordering::Relaxed) {
            reader.online();
            for _ in 0..100 {
                published.lookups(&mut seed);
                reader.quiescent();
            }
            reader.offline();
        }
    });
}

/// Four readers against one writer at full speed, at the smallest budget. `FIB_STRESS_SECONDS` makes it longer.
fn stress<D: GraceDetector>(count: &'static AtomicUsize, read: fn(&Published, D::Reader)) {
    let seconds = std::env::var("FIB_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (budget, readers, grace_periods, bytes) =
        if cfg!(miri) { (Budget::tiny(2048), 2, 10, 8_000) } else { (Budget::new(MIN).unwrap(), 4, 1_000, 10_000_000) };
    let sync_mem = budget.sync_mem();
    let domain = D::new();
    let mut limbo: Limbo<Unlinked, D> = Limbo::new(Arc::clone(&domain), budget);
    limbo.budget.policy = StallPolicy::Wait;
    let published = Published {
        nodes: std::array::from_fn(|index| AtomicPtr::new(new_node(count, index as u64))),
        stop: AtomicBool::new(false),
        bursts: AtomicU64::new(0),
    };
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..readers {
            let (published, domain) = (&published, &domain);
            scope.spawn(move || read(published, domain.register(&format!("reader {number}")).unwrap()));
        }
        let mut free = |Unlinked(node): Unlinked| free_node(count, node);
        let mut serial = 64;
        while limbo.counters.reclaimed_bytes < bytes
            || limbo.stats().grace_periods < grace_periods
            || began.elapsed() < Duration::from_secs(seconds)
        {
            for _ in 0..if cfg!(miri) { 1 } else { 256 } {
                limbo.admit(&mut free).unwrap();
                limbo.reserve(1).unwrap();
                let place = &published.nodes[serial as usize * 37 % 64];
                let old = place.swap(new_node(count, serial), Ordering::AcqRel);
                limbo.retire(Unlinked(old));
                limbo.step(&mut free);
                serial += 1;
            }
        }
        published.stop.store(true, Ordering::Relaxed);
        limbo.synchronize(None, &mut free).unwrap();
    });
    let stats = limbo.stats();
    println!("{:?}, {} bursts\n{stats}", began.elapsed(), published.bursts.load(Ordering::Relaxed));
    assert!(stats.peak_dirty_bytes < sync_mem + stats.largest_operation_bytes);
    assert_eq!((stats.dirty_bytes, stats.retired_bytes), (0, stats.reclaimed_bytes));
    assert_eq!(stats.largest_operation_bytes, mem::size_of::<Node>());
    for place in published.nodes {
        free_node(count, place.into_inner());
    }
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn errors_say_what_to_do() {
    let domain = SlotDomain::new();
    let reader = stall(domain.register("worker 3").unwrap());
    let mut grace = domain.start();
    let Err(late @ Late::Reader(_)) = domain.wait(&mut grace, Some(Instant::now())) else { panic!() };
    let text = AdmitError::from(late).to_string();
    assert!(text.contains("worker 3") && text.contains("burst"), "{text}");
    let text = AdmitError::WouldBlock { dirty_bytes: 1234, sync_mem_bytes: 999 }.to_string();
    assert!(text.contains("1234") && text.contains("999") && text.contains("poll()"), "{text}");
    assert!(AdmitError::Forked.to_string().contains("fork"));
    drop(reader.end());
    let _: fn() = || {
        fn is_send<T: Send>() {}
        fn is_sync<T: Sync>() {}
        is_send::<ReaderSlot>();
        is_send::<Limbo<Block, SlotDomain>>();
        is_sync::<SlotDomain>();
        is_sync::<EpochDomain>();
    };
}
