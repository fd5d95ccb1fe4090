//! The [`Writer`]: the one handle that changes tables, and the knobs and figures of reclamation.

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{CheckError, FibError, OutOfMemory, Resource};
use crate::fib::{Shared, TableOptions};
use crate::reclaim::{AdmitError, GraceDetector, GracePeriod, ReaderId, ReaderInfo, ReclaimStats, RemoveReaderError};
use crate::stats::MemoryStats;
use crate::table::{Table, TableState};
use crate::tables::TableId;
use crate::trie::check;

/// The writer's state: all that only one thread at a time may touch.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) tables: Vec<TableState>,
}

/// The right to change a [`Fib`](crate::Fib); one at a time, given back when it is dropped. May be moved between threads.
pub struct Writer {
    /// Always there until drop.
    state: Option<Box<State>>,
    shared: Arc<Shared>,
}

impl Writer {
    pub(crate) fn new(state: Box<State>, shared: Arc<Shared>) -> Self {
        Writer { state: Some(state), shared }
    }

    fn state(&mut self) -> &mut State {
        self.state.as_mut().expect("the state is taken in drop only")
    }

    /// The main table, number 0.
    pub fn main(&mut self) -> Table<'_> {
        let state = self.state.as_mut().expect("the state is taken in drop only");
        Table { engine: &mut state.engine, state: &mut state.tables[0], descriptor: self.shared.directory.main() }
    }

    /// Another table, empty. Its id is the next free number.
    pub fn create_table(&mut self, options: TableOptions) -> Result<TableId, FibError> {
        let shared = Arc::clone(&self.shared);
        let state = self.state();
        let number = state.tables.len();
        shared.directory.reserve(number)?;
        state.tables.try_reserve(1).map_err(|_| OutOfMemory {
            resource: Resource::Tables,
            bytes: size_of::<TableState>(),
            limit: 0,
        })?;
        let (table, descriptor) = TableState::new(&mut state.engine, options)?;
        let id = TableId(number as u32);
        state.tables.push(table);
        shared.directory.publish(id, descriptor);
        Ok(id)
    }

    /// The table `id`. Error [`FibError::NoSuchTable`].
    pub fn table(&mut self, id: TableId) -> Result<Table<'_>, FibError> {
        let state = self.state.as_mut().expect("the state is taken in drop only");
        let descriptor = self.shared.directory.get(id).ok_or(FibError::NoSuchTable { id })?;
        let table = state.tables.get_mut(id.0 as usize).ok_or(FibError::NoSuchTable { id })?;
        Ok(Table { engine: &mut state.engine, state: table, descriptor })
    }

    /// The ids of all tables, ascending.
    pub fn table_ids(&self) -> impl Iterator<Item = TableId> + use<> {
        let tables = self.state.as_ref().map_or(0, |state| state.tables.len());
        (0..tables as u32).map(TableId)
    }

    /// Memory of all tables together.
    pub fn memory_stats(&mut self) -> MemoryStats {
        let arena = &self.state().engine.arena;
        MemoryStats {
            live_bytes: arena.live_bytes(),
            footprint_bytes: arena.footprint_bytes(),
            committed_bytes: arena.committed_bytes(),
            huge_page_bytes: arena.huge_page_bytes(),
        }
    }

    /// Looks at the oldest grace period and reclaims a few blocks if it is over; never waits. Returns the dirty bytes left.
    pub fn poll(&mut self) -> usize {
        self.state().engine.poll()
    }

    /// Reclaims all whose grace period is over; never waits. Returns the dirty bytes left.
    pub fn reclaim(&mut self) -> usize {
        self.state().engine.reclaim()
    }

    /// Waits until every reader has reported since this call and reclaims all that was retired before it; at most `limit`
    /// long, without one as long as it takes. Error: the limit passed (the reader is named), or this thread has a burst of
    /// its own open; nothing is lost.
    pub fn synchronize(&mut self, limit: Option<Duration>) -> Result<(), AdmitError> {
        self.state().engine.synchronize(limit)
    }

    /// Starts a grace period for the caller's own purposes: it is over when no reader can hold anything that was replaced
    /// before this call. Never waits.
    pub fn start_grace_period(&mut self) -> GracePeriod {
        self.state().engine.limbo.start_grace_period()
    }

    /// Whether `grace` is over. Never waits.
    pub fn poll_grace_period(&mut self, grace: &mut GracePeriod) -> bool {
        self.state().engine.limbo.poll_grace_period(grace)
    }

    /// Waits until `grace` is over or until `deadline`. Errors as [`Writer::synchronize`].
    pub fn wait_grace_period(&mut self, grace: &mut GracePeriod, deadline: Option<Instant>) -> Result<(), AdmitError> {
        self.state().engine.limbo.wait_grace_period(grace, deadline)
    }

    /// The figures of reclamation. Cost: a visit to each reader's slot.
    pub fn reclaim_stats(&mut self) -> ReclaimStats {
        self.state().engine.limbo.stats()
    }

    /// The registered readers, those that hold back memory marked as late.
    pub fn readers(&mut self) -> Vec<ReaderInfo> {
        let mut readers = Vec::new();
        self.state().engine.limbo.readers(&mut |reader| readers.push(reader));
        readers
    }

    /// Removes a reader whose thread ended without dropping it, so that no grace period waits for it any more.
    ///
    /// # Safety
    /// The [`Reader`](crate::Reader) of `id` is never used again on any thread (it may still be dropped), and nothing that
    /// was borrowed in its last burst is used any more. That the thread it was last used on has ended is checked; that the
    /// handle has not moved elsewhere is the caller's promise.
    pub unsafe fn remove_dead_reader(&mut self, id: ReaderId) -> Result<(), RemoveReaderError> {
        // SAFETY: the caller's promise is the callee's.
        unsafe { self.state().engine.limbo.domain().remove_dead(id) }
    }

    /// Reclaims what can be, and gives whole free pages of node memory back to the system. Returns how many bytes. Worth
    /// calling after a large table was emptied.
    pub fn shrink(&mut self) -> usize {
        let engine = &mut self.state().engine;
        engine.reclaim();
        engine.arena.shrink()
    }

    /// [`Table::check`] of every table, and that their nodes and what is retired are all that the arena has given out.
    pub fn check(&mut self) -> Result<(), CheckError> {
        let mut bytes = 0;
        for id in self.table_ids() {
            let Ok(table) = self.table(id) else { continue };
            table.check()?;
            bytes += check::shape(&table.state.v4.trie, table.engine.nodes).counts.bytes;
            bytes += check::shape(&table.state.v6.trie, table.engine.nodes).counts.bytes;
        }
        let engine = &self.state().engine;
        engine.arena.check().map_err(|message| CheckError { message })?;
        let dirty = engine.limbo.dirty_bytes();
        if bytes + dirty != engine.arena.live_bytes() {
            let message = format!(
                "the arena has given out {} bytes, the tables hold {bytes} and {dirty} are retired",
                engine.arena.live_bytes()
            );
            return Err(CheckError { message });
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = self.state.take();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}
