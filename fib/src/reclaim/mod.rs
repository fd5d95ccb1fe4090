//! Reclamation: the life of a block after it was replaced, under a budget for dirty memory.
//!
//! Readers follow pointers without a lock, so the writer cannot free what it has just unlinked; it has to wait until every
//! reader that may have seen it has let go. It does so in the background of its own calls: unlinked blocks are counted in
//! bytes, grace periods are started early and polled, and only when the budget is used up does the writer wait.
//!
//! ```text
//!   live --unlink--> retired --seal--> waiting for a grace period --over--> reclaimed --> arena's free lists
//!    |                  |                        |                              |
//!    | node.rs, one     | limbo.rs: dirty_bytes  | grace.rs: every reader's     | limbo.rs: a few blocks
//!    | Release store    | += bytes               | slot 0 or past the token     | a call, dirty_bytes -= bytes
//!
//!   readers.rs  one slot per reader: burst guard (enter, leave), or quiescent states (online, quiescent, offline)
//!   grace.rs    tokens, and the memory-ordering argument              epoch.rs   the same by crossbeam-epoch
//!   budget.rs   admission: the only place where the writer waits      stats.rs   what it came to
//!   os.rs       membarrier, futex, thread ids, fork
//! ```
//!
//! 1. A block is freed once, by the writer, and only after a grace period that was started after it was unlinked.
//! 2. `dirty_bytes < budget + largest operation`, at every moment.
//! 3. A reader never waits, locks, allocates or frees.
//! 4. An operation that was admitted does not wait and cannot fail in here.
//! 5. Nothing is kept in thread-local storage, and there is no thread of ours.
//!
//! How the rest of the crate uses it:
//!
//! ```text
//! let domain = Domain::new();                                   // one per Fib, an Arc
//! let mut limbo: Limbo<Block> = Limbo::new(domain.clone(), Budget::new(sync_mem)?);
//!
//! let mut slot = domain.register("worker 3")?;                  // any thread, any time; unregisters when dropped
//! slot.enter();                                                 // a burst; the guard's `new`
//! ...load, follow, answer...
//! slot.leave();                                                 // the guard's `drop`
//!
//! limbo.admit(&mut free)?;                                      // an update: first of all, may wait, may refuse
//! limbo.reserve(blocks)?;                                       // plan; fails without a trace
//! ...publish...; limbo.retire(old_block);                       // cannot fail; only after the store that unlinks it
//! limbo.step(&mut free);                                        // at the end of each update, whatever it did
//! ```
//!
//! **After `fork()`** a child has the tables but none of the other threads. It may look up: with its copy of a handle whose
//! owner is the thread that forked, or with a newly registered one. It may not write: `admit`, `synchronize` and waits
//! return [`AdmitError::Forked`]. Dropping everything in the child is fine.
//!
//! **Forgotten guards.** `mem::forget` of a burst guard leaves the slot inside. Nothing is freed early; the writer gets to
//! its budget and reports the reader as stalled, until the handle's next burst ends, or the handle is dropped.

mod budget;
#[cfg(any(feature = "crossbeam", all(test, not(loom))))]
mod epoch;
mod grace;
mod limbo;
mod os;
mod readers;
mod stats;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub use budget::{AdmitError, StallPolicy, SyncMemOutOfRange};
pub(crate) use budget::{Budget, SYNC_MEM_DEFAULT};
pub(crate) use grace::GraceDetector;
pub use grace::{GracePeriod, StalledReader};
pub(crate) use limbo::{Limbo, Retired};
pub(crate) use readers::Reports;
pub use readers::{ReaderId, ReaderInfo, ReaderName, RemoveReaderError};
pub use stats::ReclaimStats;

/// What finds grace periods in this build.
#[cfg(not(feature = "crossbeam"))]
pub(crate) type Domain = grace::SlotDomain;
/// What finds grace periods in this build.
#[cfg(feature = "crossbeam")]
pub(crate) type Domain = epoch::EpochDomain;

/// A registered reader of the [`Domain`].
pub(crate) type ReaderSlot = <Domain as GraceDetector>::Reader;
