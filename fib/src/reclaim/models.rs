//! Models for loom: every interleaving, and every value that the memory model lets a load return.
//!
//! The published memory is two cells and an index that says which one is live. A reader loads the index in a burst and
//! reads that cell; the writer publishes the other one, waits for a grace period, and writes to the old cell, as the next
//! user of a freed block would. Loom reports a cell that is read and written without an order between. Each
//! model is shown to notice when an ordering it is about is taken away: `.ci/loom` runs them with each `weaken-*` feature.
//!
//! Loom does not know membarrier, so this is the build whose readers have fences.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::grace::{GraceDetector, SlotDomain};
use super::readers::{ReaderSlot, Reports};
use crate::sync::{AtomicUsize, Ordering};

struct World {
    domain: Arc<SlotDomain>,
    live: AtomicUsize,
    cells: [UnsafeCell<u32>; 2],
}

// SAFETY: that the cells are not used by two threads at a time is what the models check, and loom with them.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

const FREED: u32 = 0xdead;

impl World {
    fn new() -> Arc<Self> {
        Arc::new(World {
            domain: SlotDomain::new(),
            live: AtomicUsize::new(0),
            cells: [UnsafeCell::new(1), UnsafeCell::new(2)],
        })
    }

    fn reader(&self) -> ReaderSlot {
        self.domain.register("model").unwrap()
    }

    /// A lookup.
    fn read(&self) -> u32 {
        let live = self.live.load(Ordering::Acquire);
        // SAFETY: loom checks it: a write to this cell that is not ordered with this read fails the model.
        let seen = self.cells[live].with(|cell| unsafe { *cell });
        assert_ne!(seen, FREED);
        seen
    }

    /// An update: publish, wait, free.
    fn replace(&self) {
        self.live.store(1, Ordering::Release);
        let mut grace = self.domain.start();
        while !self.domain.poll(&mut grace) {
            thread::yield_now();
        }
        // SAFETY: as in `read`.
        self.cells[0].with_mut(|cell| unsafe { *cell = FREED });
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Three changes of thread that nobody asked for, at any place; RECLAIM-sized models are small enough for that.
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Guard enter against retire: two bursts, so that the second enter and the first leave meet the writer as well.
#[test]
fn loom_burst_against_retire() {
    model(|| {
        let world = World::new();
        let mut reader = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for _ in 0..2 {
                    assert!(reader.enter());
                    world.read();
                    reader.leave();
                }
            })
        };
        world.replace();
        reading.join().unwrap();
    });
}

/// Quiescent state against retire: nothing but the token's two loads and stores keeps them apart.
#[test]
fn loom_quiescent_against_retire() {
    model(|| {
        let world = World::new();
        let mut reader = world.reader();
        reader.online();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for _ in 0..2 {
                    world.read();
                    reader.quiescent();
                }
                world.read();
                reader.offline();
            })
        };
        world.replace();
        reading.join().unwrap();
    });
}

/// Going online and offline against retire.
#[test]
fn loom_online_against_retire() {
    model(|| {
        let world = World::new();
        let mut reader = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                reader.online();
                world.read();
                reader.offline();
            })
        };
        world.replace();
        reading.join().unwrap();
    });
}

/// An offline reader is never waited for: the grace period ends though the reader's thread waits for the writer.
#[test]
fn loom_offline_reader() {
    model(|| {
        let world = World::new();
        let mut offline = world.reader();
        offline.online();
        offline.offline();
        let mut reader = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(reader.enter());
                world.read();
                reader.leave();
            })
        };
        world.replace();
        reading.join().unwrap();
        assert!(offline.enter());
        assert_eq!(world.read(), 2);
        offline.leave();
    });
}

/// A reader registers while a grace period is open, and unregisters again.
#[test]
fn loom_register_during_grace_period() {
    model(|| {
        let world = World::new();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut reader = world.reader();
                assert!(reader.enter());
                world.read();
                reader.leave();
            })
        };
        world.replace();
        reading.join().unwrap();
    });
}

/// A slot changes hands while a grace period is open; the writer may see the second owner's stores only.
#[test]
fn loom_slot_changes_hands() {
    model(|| {
        let world = World::new();
        let mut first = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(first.enter());
                world.read();
                drop(first);
            })
        };
        let registering = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut second = world.reader();
                assert!(second.enter());
                second.leave();
            })
        };
        world.replace();
        reading.join().unwrap();
        registering.join().unwrap();
    });
}

/// Two readers, one of which is inside all the while until the end.
#[test]
fn loom_two_readers_one_late() {
    model(|| {
        let world = World::new();
        let mut late = world.reader();
        assert!(late.enter());
        let seen = world.read();
        let mut prompt = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(prompt.enter());
                world.read();
                prompt.leave();
                // The late reader's burst started before the writer did anything, so what it saw is still there.
                assert_eq!(
                    world.cells[0].with(|cell| {
                        // SAFETY: as in `World::read`.
                        unsafe { *cell }
                    }),
                    seen
                );
                late.leave();
            })
        };
        world.replace();
        reading.join().unwrap();
    });
}

/// The writer waits as admission does, with the flag and the wake-up, and comes back.
#[test]
fn loom_wait_comes_back() {
    model(|| {
        let world = World::new();
        let mut reader = world.reader();
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                assert!(reader.enter());
                world.read();
                reader.leave();
            })
        };
        world.live.store(1, Ordering::Release);
        let mut grace = world.domain.start();
        world.domain.wait(&mut grace, None).unwrap();
        // SAFETY: as in `World::read`.
        world.cells[0].with_mut(|cell| unsafe { *cell = FREED });
        reading.join().unwrap();
    });
}
