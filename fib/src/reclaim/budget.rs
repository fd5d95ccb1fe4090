//! The budget for dirty memory, and admission: the one place where the writer waits for readers.
//!
//! An operation is admitted before it changes anything, and never waits afterwards. It is admitted at once while fewer bytes
//! than the budget are dirty; reaching the budget counts as passing it. At the budget the writer frees what it can, and only
//! if that is not enough it waits, asleep, until the oldest grace period is over, or fails.
//!
//! ```text
//!   0 ........ budget/8 ...................... budget ............ limit (StallPolicy::Exceed)
//!   |  admitted, and nothing is looked at  |  free; then wait,  |  fail
//!   |                                      |  fail, or go on    |
//! ```
//!
//! 1. At every moment `dirty_bytes < budget + largest operation` (with `Exceed`: the limit in place of the budget, if it is
//!    higher), where the budget is the highest that was set since limbo was last empty.
//! 2. A refused operation has freed memory at most; no block was freed early, none is lost.
//!
//! The idea is `net.ipv4.fib_sync_mem` of Linux, with its limits and its default; there, equality triggers as well.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::grace::{GraceDetector, GracePeriod, Late, StalledReader};
use super::limbo::{Limbo, Retired};

/// What a budget may be, in bytes.
pub(crate) const SYNC_MEM_RANGE: RangeInclusive<usize> = 65_536..=67_108_864;
/// The budget if none is set, in bytes.
pub(crate) const SYNC_MEM_DEFAULT: usize = 524_288;
/// A chunk is this fraction of the budget: at least 8 KiB, given the limits above.
pub(super) const CHUNKS_PER_BUDGET: usize = 8;

/// A budget that is out of range. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncMemOutOfRange {
    /// What was asked for, in bytes.
    pub bytes: usize,
    /// The lowest budget, in bytes.
    pub min: usize,
    /// The highest budget, in bytes.
    pub max: usize,
}

impl fmt::Display for SyncMemOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a sync_mem of {} bytes is not within {} to {}", self.bytes, self.min, self.max)
    }
}

impl std::error::Error for SyncMemOutOfRange {}

/// What the writer does at the budget while a reader does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallPolicy {
    /// Waits, for ever if need be. Linux does so.
    Wait,
    /// Waits until the reader has been silent for this long, then fails. The default, with one second.
    ///
    /// The time counts from the start of the grace period that the reader holds back; while one reader stays silent, later
    /// updates fail at once.
    WaitLimit(Duration),
    /// Goes on without waiting until `limit_bytes` are dirty, then fails. A limit below the budget is the budget.
    Exceed {
        /// Bytes that may be dirty.
        limit_bytes: usize,
    },
}

impl Default for StallPolicy {
    fn default() -> Self {
        StallPolicy::WaitLimit(Duration::from_secs(1))
    }
}

/// Why an operation was not admitted. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmitError {
    /// A reader has not reported for as long (or as many bytes) as the policy allows.
    Stalled(StalledReader),
    /// The budget is reached, and the writer was told not to wait.
    WouldBlock {
        /// Bytes that are dirty.
        dirty_bytes: usize,
        /// The budget.
        sync_mem_bytes: usize,
    },
    /// The budget is reached, and the calling thread itself has a burst open (or is online) on this reader: end it first.
    WouldDeadlock(StalledReader),
    /// This process is a fork of the one that created the tables; it may look up, not change.
    Forked,
    /// The system refuses `membarrier`, which it granted before. Nothing can be freed until it grants it again; the
    /// feature `reader-fences` builds readers that do not need it.
    NoBarrier,
    /// The grace period was started on another `Fib`.
    OtherDomain,
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdmitError::Stalled(reader) => write!(f, "retired memory cannot be freed: {reader}"),
            AdmitError::WouldBlock { dirty_bytes, sync_mem_bytes } => write!(
                f,
                "{dirty_bytes} bytes wait for readers, the budget (sync_mem) is {sync_mem_bytes}; try again after poll()"
            ),
            AdmitError::WouldDeadlock(reader) => {
                write!(f, "the calling thread would wait for itself, end its burst first: {reader}")
            }
            AdmitError::Forked => {
                f.write_str("this process is a fork of the one that created the tables: it may look up, but not change")
            }
            AdmitError::NoBarrier => f.write_str(
                "the system refuses membarrier, so retired memory cannot be freed; allow it, or build with reader-fences",
            ),
            AdmitError::OtherDomain => f.write_str("the grace period was started on another Fib"),
        }
    }
}

impl std::error::Error for AdmitError {}

impl From<Late> for AdmitError {
    fn from(late: Late) -> Self {
        match late {
            Late::Reader(reader) => AdmitError::Stalled(reader),
            Late::Own(reader) => AdmitError::WouldDeadlock(reader),
            Late::NoBarrier => AdmitError::NoBarrier,
            Late::OtherDomain => AdmitError::OtherDomain,
        }
    }
}

/// The knob: how much may be dirty, and what happens then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    sync_mem: usize,
    pub(crate) policy: StallPolicy,
    /// Fail instead of waiting.
    pub(crate) nonblocking: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { sync_mem: SYNC_MEM_DEFAULT, policy: StallPolicy::default(), nonblocking: false }
    }
}

impl Budget {
    /// A budget of `bytes`, with the default policy.
    pub(crate) fn new(bytes: usize) -> Result<Self, SyncMemOutOfRange> {
        let mut budget = Budget::default();
        budget.set_sync_mem(bytes)?;
        Ok(budget)
    }

    /// Any number of bytes, for tests of what happens at the budget.
    #[cfg(test)]
    pub(crate) fn tiny(bytes: usize) -> Self {
        Budget { sync_mem: bytes, ..Budget::default() }
    }

    /// Whether a budget may have so many bytes.
    pub(crate) fn check(bytes: usize) -> Result<(), SyncMemOutOfRange> {
        if SYNC_MEM_RANGE.contains(&bytes) {
            return Ok(());
        }
        Err(SyncMemOutOfRange { bytes, min: *SYNC_MEM_RANGE.start(), max: *SYNC_MEM_RANGE.end() })
    }

    pub(crate) fn set_sync_mem(&mut self, bytes: usize) -> Result<(), SyncMemOutOfRange> {
        Self::check(bytes)?;
        self.sync_mem = bytes;
        Ok(())
    }

    #[inline]
    pub(crate) fn sync_mem(&self) -> usize {
        self.sync_mem
    }

    #[inline]
    pub(super) fn chunk_bytes(&self) -> usize {
        (self.sync_mem / CHUNKS_PER_BUDGET).max(1)
    }

    /// When a wait for a grace period that started at `started` must end.
    fn deadline(&self, started: Instant) -> Option<Instant> {
        match self.policy {
            StallPolicy::Wait => None,
            // A limit past the end of the clock is none.
            StallPolicy::WaitLimit(limit) => started.checked_add(limit),
            StallPolicy::Exceed { .. } => Some(started),
        }
    }
}

impl<T: Retired, D: GraceDetector> Limbo<T, D> {
    /// Sets the budget. Acts at the next update; does not wait by itself.
    pub(crate) fn set_sync_mem(&mut self, bytes: usize) -> Result<(), SyncMemOutOfRange> {
        self.budget.set_sync_mem(bytes)
    }

    /// Sets what happens at the budget while a reader does not report.
    pub(crate) fn set_stall_policy(&mut self, policy: StallPolicy) {
        self.budget.policy = policy;
    }

    /// Sets whether an operation that would have to wait fails instead.
    pub(crate) fn set_nonblocking(&mut self, nonblocking: bool) {
        self.budget.nonblocking = nonblocking;
    }

    /// Admits an operation. To be called once, before it changes anything; it may wait, as the policy says.
    #[inline]
    pub(crate) fn admit(&mut self, free: &mut impl FnMut(T)) -> Result<(), AdmitError> {
        if self.domain.is_forked() {
            return Err(AdmitError::Forked);
        }
        if self.dirty_bytes() < self.budget.sync_mem() {
            return Ok(());
        }
        self.admit_at_budget(free)
    }

    #[cold]
    fn admit_at_budget(&mut self, free: &mut impl FnMut(T)) -> Result<(), AdmitError> {
        let target = self.budget.sync_mem().saturating_sub(1);
        loop {
            self.free_some(usize::MAX, target, free);
            if self.dirty_bytes() <= target {
                return Ok(());
            }
            // After the budget was lowered, or at the end of a large operation, the rest may all be in the open chunk.
            if self.chunks.is_empty() {
                self.seal();
                continue;
            }
            if let StallPolicy::Exceed { limit_bytes } = self.budget.policy
                && self.dirty_bytes() < limit_bytes
            {
                return Ok(());
            }
            if self.budget.nonblocking {
                let sync_mem_bytes = self.budget.sync_mem();
                return Err(AdmitError::WouldBlock { dirty_bytes: self.dirty_bytes(), sync_mem_bytes });
            }
            self.wait_for_oldest(|budget, started| budget.deadline(started))?;
        }
    }

    /// Waits for the oldest chunk's grace period, and counts the time.
    fn wait_for_oldest(
        &mut self,
        deadline: impl FnOnce(&Budget, Instant) -> Option<Instant>,
    ) -> Result<(), AdmitError> {
        let Some(oldest) = self.chunks.front_mut() else { return Ok(()) };
        if oldest.over {
            return Ok(());
        }
        let began = Instant::now();
        let deadline = deadline(&self.budget, oldest.grace.started);
        let outcome = self.domain.wait(&mut oldest.grace, deadline);
        let ended = Instant::now();
        self.counters.waited(ended - began);
        outcome?;
        self.oldest_passed(ended);
        Ok(())
    }

    /// Waits until every reader has reported since this call, and frees all that was retired before it.
    ///
    /// At most `limit` long; without one, as long as it takes. At the limit nothing is lost, and what could be freed was.
    pub(crate) fn synchronize(&mut self, limit: Option<Duration>, free: &mut impl FnMut(T)) -> Result<(), AdmitError> {
        if self.domain.is_forked() {
            return Err(AdmitError::Forked);
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut own = self.domain.start();
        self.seal();
        while !self.chunks.is_empty() {
            self.wait_for_oldest(|_, _| deadline)?;
            self.free_some(usize::MAX, 0, free);
            if self.chunks.is_empty() {
                self.seal();
            }
        }
        self.wait_grace_period(&mut own, deadline)
    }

    /// Starts a grace period for whatever this thread has unlinked or stored so far, on its own account.
    pub(crate) fn start_grace_period(&self) -> GracePeriod {
        self.domain.start()
    }

    /// Whether `grace` is over.
    pub(crate) fn poll_grace_period(&self, grace: &mut GracePeriod) -> bool {
        self.domain.poll(grace)
    }

    /// Waits until `grace` is over, or until `deadline`.
    pub(crate) fn wait_grace_period(
        &mut self,
        grace: &mut GracePeriod,
        deadline: Option<Instant>,
    ) -> Result<(), AdmitError> {
        if self.domain.is_forked() {
            return Err(AdmitError::Forked);
        }
        if self.domain.poll(grace) {
            return Ok(());
        }
        let began = Instant::now();
        let outcome = self.domain.wait(grace, deadline);
        self.counters.waited(began.elapsed());
        Ok(outcome?)
    }
}
