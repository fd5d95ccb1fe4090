//! Grace periods: a counter, and the question whether every reader has come past a value of it.
//!
//! The writer unlinks something, raises the domain's token to t, and may free what it unlinked once each reader's slot
//! holds 0 or at least t. Starting costs one atomic add and one barrier, asking costs a load per reader, and a reader
//! that has been found past t is not asked again.
//!
//! ```text
//!              writer                                       reader (burst guard)
//!    U  parent_slot = new node      Release            E  own slot = token             Release
//!    T  token += 1, gives t         Release            F  store-to-load barrier
//!    B  barrier on both sides ------------------------ B  (a fence of its own, or the writer's membarrier)
//!    P  every slot 0 or >= t ?      Acquire            L  node = parent_slot           Acquire
//!    .  yes: free the old node                         X  own slot = 0                 Release
//! ```
//!
//! # The argument
//!
//! Claim: when `poll(t)` says yes, no reader holds, or can still get, anything that was unlinked before `start` gave t.
//! Take one reader, one old node, and the value that P found in the reader's slot.
//!
//! 1. *P found 0, or a token of at least t, and the reader's burst that used the node is over.* The value was stored by that
//!    burst's X or by something later of the same slot (a later E, `quiescent`, or another owner, who took the slot with
//!    Acquire after the Release that gave it back). Each is a Release store sequenced after the use, and P is
//!    an Acquire load, so the use happens before the freeing. Later bursts fall under 2 or 3.
//! 2. *P found a token of at least t.* The reader loaded it from `token` with Acquire. T is an add with Release, later
//!    adds keep its release sequence, and U comes before T: the reader's loads after that see U or something newer.
//!    This is all that the quiescent-state style needs: it stores a token that it has *seen*, and has no fence.
//! 3. *P found 0, and the reader enters a burst whose E the writer's P did not see.* Here the store E and the load L face the
//!    store U and the load P, each side storing first and loading the other's word after. With a sequentially
//!    consistent fence on both sides one of the fences is first:
//!    * the reader's store wins (its fence first): P, after the writer's fence, sees E or something newer, not
//!      the 0 before it. So this story is not the one told here; the slot holds a token below t and P says no, or one
//!      of at least t and we are in 2;
//!    * the writer's store wins (its fence first): L, after the reader's fence, sees U. The reader gets the new
//!      node, and the old one is not its concern, whatever (older) token it has in its slot.
//!
//! **Where the reader has no fence**, B is `membarrier(PRIVATE_EXPEDITED)`: between its call and its return every thread of the
//! process passes a full barrier, at a point of its own program order (an interrupt on a CPU that runs one; the
//! switch of tasks for a thread that does not run). The compiler fence at F keeps E before L in the machine code, so the point
//! lies before E, between E and L, or after L:
//!    * before E (or between E and L): L is executed after the barrier, which is after U; it sees U. The writer's story;
//!    * after L (or between E and L): E is executed before the barrier, so it is visible when the call returns, and P
//!      comes after that; P sees E or something newer. The reader's story.
//!
//! A point between gives both. The kernel also orders the caller's own accesses before and after the call. Neither loom nor
//! ThreadSanitizer knows membarrier; the models prove the build with fences, the stress test runs this one.
//!
//! **New readers.** P walks the slots below `Registry::count`. A reader raises the count before its first E, hence before
//! F, so the count takes E's place in 3: either the writer, reading it after B, sees it and looks at the slot, or
//! L sees U. For the same reason a slot that was found past t once need not be looked at again: what its owner does
//! later is a later E.
//!
//! **No membarrier is needed** when no reader uses bursts: `online` has a fence, and `quiescent` needs none. The count of
//! readers that do is raised before a fence in their first burst, see `ReaderSlot::first_burst`.
//!
//! 1. `token` starts at 1 and only rises; 64 bits do not overflow (1 ns a step: 584 years).
//! 2. A `GracePeriod` belongs to one domain, and is never found over by another one.
//! 3. A grace period whose barrier has not been carried out is never found over.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::os;
use super::readers::{ReaderId, ReaderInfo, ReaderName, ReaderSlot, Registry, RemoveReaderError, Reports};
use crate::error::OutOfMemory;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Line, Ordering, fence, pause};

/// The orderings of the argument. A `weaken-*` feature takes one away, under loom and Miri only, to show that a test
/// notices; in any other build the features do nothing.
pub(super) mod order {
    use crate::sync::{Ordering, fence};

    macro_rules! weakened {
        ($feature:literal) => {
            cfg!(all(any(loom, miri), feature = $feature))
        };
    }

    const fn unless(weakened: bool, ordering: Ordering) -> Ordering {
        if weakened { Ordering::Relaxed } else { ordering }
    }

    /// X: the end of a burst.
    pub(in crate::reclaim) const LEAVE: Ordering = unless(weakened!("weaken-leave"), Ordering::Release);
    /// The store of a token seen.
    pub(in crate::reclaim) const QUIESCENT: Ordering = unless(weakened!("weaken-quiescent"), Ordering::Release);
    /// The reader's load of the token.
    pub(in crate::reclaim) const TOKEN: Ordering = unless(weakened!("weaken-token"), Ordering::Acquire);
    /// P: the writer's load of a slot.
    pub(in crate::reclaim) const POLL: Ordering = unless(weakened!("weaken-poll"), Ordering::Acquire);
    /// The change of a slot's owner.
    pub(in crate::reclaim) const SLOT_TAKE: Ordering = unless(weakened!("weaken-slot-reuse"), Ordering::Acquire);
    pub(in crate::reclaim) const SLOT_GIVE: Ordering = unless(weakened!("weaken-slot-reuse"), Ordering::Release);
    /// Counts the readers before the barrier instead of after it.
    pub(super) const COUNT_EARLY: bool = weakened!("weaken-reader-count");

    /// F, where the reader has the fence.
    #[inline(always)]
    pub(in crate::reclaim) fn enter_fence() {
        if !weakened!("weaken-enter") {
            fence(Ordering::SeqCst);
        }
    }

    /// F of `online`.
    pub(in crate::reclaim) fn online_fence() {
        if !weakened!("weaken-online") {
            fence(Ordering::SeqCst);
        }
    }

    /// B, the writer's fence.
    pub(super) fn start_fence() {
        if !weakened!("weaken-start") {
            fence(Ordering::SeqCst);
        }
    }
}

/// A grace period that was started: over once every reader that was inside a burst at its start has left it, or has
/// reported a quiescent state.
///
/// Started, polled and waited for by the `Writer`. Dropping one costs nothing and cancels nothing.
#[derive(Debug)]
pub struct GracePeriod {
    pub(super) token: u64,
    /// The domain's address; tells domains apart, is never followed.
    pub(super) domain: usize,
    /// Slots below this index have come past.
    pub(super) passed: usize,
    /// The barrier has been carried out.
    pub(super) fenced: bool,
    pub(super) started: Instant,
}

impl GracePeriod {
    /// Time since the start.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A reader that has not reported since a grace period started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StalledReader {
    /// The registration.
    pub id: ReaderId,
    /// The thread (as `gettid` has it) that opened the burst or went online; 0 where the system has no such number.
    pub tid: u32,
    /// The name it registered with.
    pub name: ReaderName,
    /// How long it has been inside, at least: the age of the grace period that waits for it.
    pub silent_for: Duration,
}

impl fmt::Display for StalledReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reader `{}` (id {}, thread {}) has not ended its burst, or reported a quiescent state, for {:.1?}",
            self.name, self.id, self.tid, self.silent_for
        )
    }
}

/// Why a wait for a grace period ended without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// The deadline came; this reader is one that has not reported.
    Reader(StalledReader),
    /// The reader is inside on the calling thread, so that waiting would never end.
    Own(StalledReader),
    /// The system refuses `membarrier`, which it granted when the domain was made.
    NoBarrier,
    /// The grace period was started in another domain.
    OtherDomain,
}

/// Something that finds out when readers have let go: our own slots, or crossbeam-epoch.
///
/// Only `start`, `poll` and `wait` decide when memory is freed, so a second implementation shows whether a failing test is
/// the detector's fault or its user's.
pub(crate) trait GraceDetector: Send + Sync + Sized + 'static {
    /// A registered reader.
    type Reader: Reports;

    /// A domain without readers.
    fn new() -> Arc<Self>;

    /// Registers a reader, from any thread, without a lock that the writer takes for long. There is no fixed
    /// maximum; the error is that memory for more slots could not be had.
    fn register(self: &Arc<Self>, name: &str) -> Result<Self::Reader, OutOfMemory>;

    /// Starts a grace period for all that the calling thread has unlinked. Never waits.
    fn start(&self) -> GracePeriod;

    /// Whether it is over. Never waits.
    fn poll(&self, grace: &mut GracePeriod) -> bool;

    /// Waits until it is over, or until `deadline`. Looks at least once.
    fn wait(&self, grace: &mut GracePeriod, deadline: Option<Instant>) -> Result<(), Late>;

    /// Visits each registered reader; `late` is meant in respect of `oldest`.
    fn readers(&self, oldest: Option<&GracePeriod>, visit: &mut dyn FnMut(ReaderInfo));

    /// Removes a reader whose thread ended without unregistering, so that no grace period waits for it any more.
    ///
    /// # Safety
    /// The handle of `id` is never used again, on no thread, except that it may be dropped after this call; and what was
    /// loaded in its last burst is not used any more. (That a thread has ended is not enough if the handle
    /// lives elsewhere; that the recorded thread runs no more is checked.)
    unsafe fn remove_dead(&self, id: ReaderId) -> Result<(), RemoveReaderError>;

    /// Whether this process is a fork of the one that made the domain: it may read, and must not write, because the
    /// readers that are inside here have no threads that could ever leave.
    fn is_forked(&self) -> bool;
}

/// Looks at a late reader before the writer goes to sleep: a few microseconds, a burst's length.
const SPINS: u32 = if cfg!(any(loom, miri)) { 1 } else { 100 };
/// The writer's longest sleep before it looks again by itself.
const SLEEP: Duration = Duration::from_millis(1);

/// Our own detector: a token, and a slot per reader.
pub(crate) struct SlotDomain {
    /// The number of grace periods started, and 1.
    pub(super) token: Line<AtomicU64>,
    pub(super) readers: Registry,
    /// Readers that use bursts and have no fence in them.
    pub(super) burst_readers: AtomicUsize,
    /// Bursts have no fence; the writer has `membarrier`.
    pub(super) asymmetric: bool,
    origin: os::ForkMark,
}

impl SlotDomain {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Raises the token. Enough for a detector that has its own way to find out, and wants only names from us.
    pub(super) fn next_token(&self) -> u64 {
        // T. Release: pairs with the Acquire of the reader's load. An add, so that a token that another thread takes
        // after ours stays in our release sequence.
        self.token.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// B. False if the system has refused, in which case the grace period must not end.
    fn barrier(&self) -> bool {
        order::start_fence();
        // Acquire: pairs with the Release in `give_back`; a reader that is no longer counted has left for good.
        if !self.asymmetric || self.burst_readers.load(Ordering::Acquire) == 0 {
            return true;
        }
        os::membarrier()
    }

    /// `reader` as an error of a grace period that started at `started`.
    fn stalled(reader: ReaderInfo, started: Instant) -> StalledReader {
        StalledReader { id: reader.id, tid: reader.tid, name: reader.name, silent_for: started.elapsed() }
    }

    /// A reader that grace period `grace` waits for, the caller's own before others.
    pub(super) fn late_reader(&self, grace: &GracePeriod) -> Option<Late> {
        let tid = os::tid();
        let mut first = None;
        for index in 0..self.readers.count() {
            let Some(reader) = self.readers.info(index, grace.token).filter(|reader| reader.late) else { continue };
            let stalled = Self::stalled(reader, grace.started);
            if tid != 0 && reader.tid == tid {
                return Some(Late::Own(stalled));
            }
            first = first.or(Some(Late::Reader(stalled)));
        }
        first
    }
}

impl GraceDetector for SlotDomain {
    type Reader = ReaderSlot;

    fn new() -> Arc<Self> {
        Arc::new(SlotDomain {
            token: Line(AtomicU64::new(1)),
            readers: Registry::new(),
            burst_readers: AtomicUsize::new(0),
            asymmetric: os::register_membarrier(),
            origin: os::ForkMark::new(),
        })
    }

    fn register(self: &Arc<Self>, name: &str) -> Result<ReaderSlot, OutOfMemory> {
        ReaderSlot::register(self, name)
    }

    fn start(&self) -> GracePeriod {
        let token = self.next_token();
        let mut grace =
            GracePeriod { token, domain: self.address(), passed: 0, fenced: false, started: Instant::now() };
        if order::COUNT_EARLY {
            grace.passed = usize::MAX - self.readers.count();
        }
        grace.fenced = self.barrier();
        grace
    }

    #[inline]
    fn poll(&self, grace: &mut GracePeriod) -> bool {
        if grace.domain != self.address() {
            return false;
        }
        if !grace.fenced {
            grace.fenced = self.barrier();
            if !grace.fenced {
                return false;
            }
        }
        if order::COUNT_EARLY {
            let counted = usize::MAX - grace.passed;
            return (0..counted).all(|index| self.readers.get(index).is_none_or(|slot| !slot.is_late(grace.token)));
        }
        // The count is read after the barrier, see "New readers" above.
        while grace.passed < self.readers.count() {
            if self.readers.get(grace.passed).is_some_and(|slot| slot.is_late(grace.token)) {
                return false;
            }
            grace.passed += 1;
        }
        true
    }

    fn wait(&self, grace: &mut GracePeriod, deadline: Option<Instant>) -> Result<(), Late> {
        if grace.domain != self.address() {
            return Err(Late::OtherDomain);
        }
        for _ in 0..SPINS {
            if self.poll(grace) {
                return Ok(());
            }
            pause();
        }
        if let Some(own @ Late::Own(_)) = self.late_reader(grace) {
            return Err(own);
        }
        loop {
            if self.poll(grace) {
                return Ok(());
            }
            let left = match deadline {
                None => SLEEP,
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            };
            if !grace.fenced {
                if left.is_zero() {
                    return Err(Late::NoBarrier);
                }
                std::thread::sleep(left.min(SLEEP));
                continue;
            }
            if left.is_zero() {
                match self.late_reader(grace) {
                    Some(late) => return Err(late),
                    // It has just reported, or changed hands, which it cannot do without having left.
                    None => continue,
                }
            }
            // All late readers must come past, so it does not matter whose slot we sleep on.
            if let Some(slot) = self.readers.get(grace.passed) {
                slot.late.store(1, Ordering::Relaxed);
                // Crosswise with the reader, see `Slot::ring`: the barrier again, then one more look. In the
                // build with fences in the reader this one alone can miss a report, for at most `SLEEP`.
                fence(Ordering::SeqCst);
                if self.asymmetric {
                    os::membarrier();
                }
                if slot.is_late(grace.token) {
                    sleep(&slot.late, left.min(SLEEP));
                }
                slot.late.store(0, Ordering::Relaxed);
            }
        }
    }

    fn readers(&self, oldest: Option<&GracePeriod>, visit: &mut dyn FnMut(ReaderInfo)) {
        let oldest = oldest.map_or(0, |grace| grace.token);
        for index in 0..self.readers.count() {
            if let Some(reader) = self.readers.info(index, oldest) {
                visit(reader);
            }
        }
    }

    unsafe fn remove_dead(&self, id: ReaderId) -> Result<(), RemoveReaderError> {
        // SAFETY: the caller's promise is the one that `bury` asks for.
        unsafe { self.bury(id) }
    }

    fn is_forked(&self) -> bool {
        self.origin.is_forked()
    }
}

#[cold]
fn sleep(late: &AtomicU32, timeout: Duration) {
    os::futex_wait(late, 1, timeout);
}
