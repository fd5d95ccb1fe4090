//! Grace periods from crossbeam-epoch: the second detector, for comparison and as the oracle of the first.
//!
//! The library's default use lets whichever thread passes by run the destructors, readers included, and counts objects
//! instead of bytes. Here it only detects: each grace period defers one store of a number into a private `Collector`, and
//! once the store has run, every reader that was pinned when it was deferred has been unpinned. What waits for that stays in
//! the writer's own lists, counted in bytes.
//!
//! ```text
//!   start: pin, defer(done = max(done, t)), flush        poll: done >= t, else pin, flush (tries to advance), look again
//!   reader: enter = slot.enter, pin        leave = unpin, slot.leave
//! ```
//!
//! A reader's slot in a [`SlotDomain`] goes along, for ids, names and the question who is late; it decides nothing. The costs
//! against our own detector: a full fence in each burst, two epochs for each grace period, a sleep that no reader ends early,
//! readers that advance the epoch and free crossbeam's own list nodes, and no way to remove a dead reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_epoch::{Collector, Guard, LocalHandle};

use super::grace::{GraceDetector, GracePeriod, Late, SlotDomain};
use super::readers::{ReaderId, ReaderInfo, ReaderSlot, RemoveReaderError, Reports};
use crate::error::OutOfMemory;
use crate::sync::pause;

/// The domain: a private collector, and a slot domain for names.
pub(crate) struct EpochDomain {
    names: Arc<SlotDomain>,
    /// The participant that defers and flushes. Locked by the writer only; readers have participants of their own.
    writer: Mutex<Participant>,
    /// Declared, and so dropped, after every participant: the last one to go would free itself during its own `finalize`,
    /// which Miri objects to.
    collector: Collector,
    /// The highest token whose deferred store has run.
    done: Arc<AtomicU64>,
}

/// A participant and its guard, if pinned.
struct Participant {
    // Declared, and so dropped, before the handle it came from.
    guard: Option<Guard>,
    handle: LocalHandle,
}

// SAFETY: a `LocalHandle` is not Send because its clones and guards share a participant by plain cells. Ours has one
// handle and at most one guard, both in this struct, so they move together and are used by one thread at a time; the
// participant itself is a node of the collector's list and has no tie to a thread.
unsafe impl Send for Participant {}

impl Participant {
    fn new(collector: &Collector) -> Self {
        Participant { guard: None, handle: collector.register() }
    }
}

/// A registered reader of an [`EpochDomain`].
pub(crate) struct EpochReader {
    participant: Participant,
    name: ReaderSlot,
    /// Keeps the collector until the participant is gone.
    _domain: Arc<EpochDomain>,
}

impl Reports for EpochReader {
    fn id(&self) -> ReaderId {
        self.name.id()
    }

    fn enter(&mut self) -> bool {
        if !self.name.enter() {
            return false;
        }
        self.participant.guard = Some(self.participant.handle.pin());
        true
    }

    fn leave(&mut self) {
        if self.name.is_online() {
            return self.quiescent();
        }
        self.participant.guard = None;
        self.name.leave();
    }

    fn online(&mut self) {
        self.name.online();
        if self.participant.guard.is_none() {
            self.participant.guard = Some(self.participant.handle.pin());
        }
    }

    fn offline(&mut self) {
        self.participant.guard = None;
        self.name.offline();
    }

    fn quiescent(&mut self) {
        // Not `Guard::repin`, which loads the global epoch Relaxed and so may go on to load pointers older than it: Miri
        // finds the data race. It is what the feature `weaken-token` does to our own.
        if self.participant.guard.take().is_some() {
            self.participant.guard = Some(self.participant.handle.pin());
        }
        self.name.quiescent();
    }

    fn bind_thread(&mut self) {
        self.name.bind_thread();
    }
}

impl EpochDomain {
    fn with_writer<R>(&self, act: impl FnOnce(&LocalHandle) -> R) -> R {
        // A panic under the lock leaves a participant that is unpinned, as any other moment does.
        act(&self.writer.lock().unwrap_or_else(PoisonError::into_inner).handle)
    }

    fn is_done(&self, token: u64) -> bool {
        // Acquire: pairs with the deferred store, which runs after the last unpinning it waited for.
        self.done.load(Ordering::Acquire) >= token
    }
}

impl GraceDetector for EpochDomain {
    type Reader = EpochReader;

    fn new() -> Arc<Self> {
        let collector = Collector::new();
        let writer = Mutex::new(Participant::new(&collector));
        Arc::new(EpochDomain { names: SlotDomain::new(), writer, collector, done: Arc::new(AtomicU64::new(0)) })
    }

    fn register(self: &Arc<Self>, name: &str) -> Result<EpochReader, OutOfMemory> {
        let name = self.names.register(name)?;
        Ok(EpochReader { participant: Participant::new(&self.collector), name, _domain: Arc::clone(self) })
    }

    fn start(&self) -> GracePeriod {
        let token = self.names.next_token();
        let done = Arc::clone(&self.done);
        self.with_writer(|handle| {
            let guard = handle.pin();
            // May run on a reader, and must therefore do no more than this.
            guard.defer(move || done.fetch_max(token, Ordering::Release));
            guard.flush();
        });
        let domain = std::ptr::from_ref(self).addr();
        GracePeriod { token, domain, passed: 0, fenced: true, started: Instant::now() }
    }

    fn poll(&self, grace: &mut GracePeriod) -> bool {
        if grace.domain != std::ptr::from_ref(self).addr() {
            return false;
        }
        // Two advances of the epoch, and one round to run what they have released.
        for _ in 0..3 {
            if self.is_done(grace.token) {
                return true;
            }
            self.with_writer(|handle| handle.pin().flush());
        }
        self.is_done(grace.token)
    }

    fn wait(&self, grace: &mut GracePeriod, deadline: Option<Instant>) -> Result<(), Late> {
        if grace.domain != std::ptr::from_ref(self).addr() {
            return Err(Late::OtherDomain);
        }
        for _ in 0..16 {
            if self.poll(grace) {
                return Ok(());
            }
            pause();
        }
        if let Some(own @ Late::Own(_)) = self.names.late_reader(grace) {
            return Err(own);
        }
        while !self.poll(grace) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // A reader that entered after our token, but is pinned in an epoch before the next, holds crossbeam back
                // too; then any reader that is inside is the one to name.
                let anyone = GracePeriod { token: u64::MAX, ..*grace };
                if let Some(late) = self.names.late_reader(grace).or_else(|| self.names.late_reader(&anyone)) {
                    return Err(late);
                }
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn readers(&self, oldest: Option<&GracePeriod>, visit: &mut dyn FnMut(ReaderInfo)) {
        self.names.readers(oldest, visit);
    }

    unsafe fn remove_dead(&self, _: ReaderId) -> Result<(), RemoveReaderError> {
        Err(RemoveReaderError::Unsupported)
    }

    fn is_forked(&self) -> bool {
        self.names.is_forked()
    }
}
