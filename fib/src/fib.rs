//! A [`Fib`]: the arena, the reclamation domain and the tables that share them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Engine;
use crate::error::{FibError, WriterBusy};
use crate::reader::{Reader, View};
use crate::reclaim::{Domain, GraceDetector, SYNC_MEM_DEFAULT, StallPolicy, SyncMemOutOfRange};
use crate::settings::{Settings, SharedSettings};
use crate::table::TableState;
use crate::tables::{Directory, TableId};
use crate::trie::arena::{Arena, ArenaOptions, Mapping};
use crate::trie::lookup::{BatchVariant, Cpu};
use crate::trie::node::{self, Nodes};
use crate::writer::{State, Writer};

/// Bytes that 32-bit slots can address: a sparse child's offset has 30 bits in units of 8 bytes.
const ADDRESSABLE: usize = node::MAX_OFFSET as usize * 8;

/// The largest limit that leaves room for the arena's slack.
const NODE_MEMORY_MAX: usize = ADDRESSABLE / 8 * 7;

/// How a [`Fib`] is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Limit of the node memory of all tables together, in bytes. Default and maximum 7 GiB; memory is taken from the
    /// system as tables grow. It is on what the tables hold: nodes that were replaced and that readers may still see come
    /// on top, and so do the copies that an update works with, together never more than an eighth of the limit and 2 MiB.
    /// So routes can be removed when the limit is reached, and others added in their place.
    pub node_memory: usize,
    /// Dirty-memory budget in bytes; see [`Fib::set_sync_mem`]. Default 524,288.
    pub sync_mem: usize,
    /// What the writer does when the budget is used up and a reader does not report. Default: wait at most 1 s.
    pub stall_policy: StallPolicy,
    /// Whether to ask for 2 MiB pages once tables are large. Never required. Default true.
    pub huge_pages: bool,
    /// How batches are looked up. Default `None`: what the environment variable `FIB_BATCH` names (`scalar`,
    /// `interleaved`, `avx512`), else the fastest for this CPU.
    pub batch: Option<BatchVariant>,
    /// The main table.
    pub main: TableOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            node_memory: NODE_MEMORY_MAX,
            sync_mem: SYNC_MEM_DEFAULT,
            stall_policy: StallPolicy::default(),
            huge_pages: true,
            batch: None,
            main: TableOptions::default(),
        }
    }
}

impl Options {
    /// Sets [`Options::node_memory`].
    #[must_use]
    pub fn node_memory(self, bytes: usize) -> Self {
        Options { node_memory: bytes, ..self }
    }

    /// Sets [`Options::sync_mem`].
    #[must_use]
    pub fn sync_mem(self, bytes: usize) -> Self {
        Options { sync_mem: bytes, ..self }
    }

    /// Sets [`Options::stall_policy`].
    #[must_use]
    pub fn stall_policy(self, policy: StallPolicy) -> Self {
        Options { stall_policy: policy, ..self }
    }

    /// Sets [`Options::huge_pages`].
    #[must_use]
    pub fn huge_pages(self, ask: bool) -> Self {
        Options { huge_pages: ask, ..self }
    }

    /// Sets [`Options::batch`].
    #[must_use]
    pub fn batch(self, variant: BatchVariant) -> Self {
        Options { batch: Some(variant), ..self }
    }

    /// Sets [`Options::main`].
    #[must_use]
    pub fn main(self, main: TableOptions) -> Self {
        Options { main, ..self }
    }
}

/// How a table is made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TableOptions {
    /// The most key bits that the IPv4 root may consume: 6, 12, 18 (default) or 24. A root of `b` bits takes 2^b slots of 4
    /// bytes and comes once the table has 2^b prefixes, so 24 makes a difference for tables of more than 16 million.
    pub root_limit_v4: u8,
    /// The most key bits that the IPv6 root may consume: 2, 8, 14 (default) or 20; as for IPv4.
    pub root_limit_v6: u8,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions { root_limit_v4: 18, root_limit_v6: 14 }
    }
}

impl TableOptions {
    /// Sets [`TableOptions::root_limit_v4`].
    #[must_use]
    pub fn root_limit_v4(self, bits: u8) -> Self {
        TableOptions { root_limit_v4: bits, ..self }
    }

    /// Sets [`TableOptions::root_limit_v6`].
    #[must_use]
    pub fn root_limit_v6(self, bits: u8) -> Self {
        TableOptions { root_limit_v6: bits, ..self }
    }
}

fn choose_batch(forced: Option<BatchVariant>) -> Result<BatchVariant, FibError> {
    let variant = match (forced, std::env::var("FIB_BATCH")) {
        (Some(variant), _) => variant,
        (None, Ok(name)) => BatchVariant::from_name(&name)
            .ok_or_else(|| FibError::UnknownBatch { name: name.chars().take(64).collect() })?,
        (None, Err(_)) => return Ok(BatchVariant::fastest()),
    };
    if variant.is_available() { Ok(variant) } else { Err(FibError::BatchUnavailable { variant }) }
}

/// A forwarding information base: any number of tables, read without locks by any number of [`Reader`]s and changed
/// by one [`Writer`] at a time. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Fib {
    shared: Arc<Shared>,
}

/// What readers, the writer and every handle share.
pub(crate) struct Shared {
    nodes: Nodes,
    cpu: Cpu,
    settings: SharedSettings,
    domain: Arc<Domain>,
    pub(crate) directory: Directory,
    /// The writer's state while nobody is writing.
    pub(crate) idle: Mutex<Option<Box<State>>>,
    /// Kept mapped until the last reader is gone.
    _mapping: Arc<Mapping>,
}

impl Shared {
    #[inline(always)]
    pub(crate) fn view(&self, id: TableId) -> Option<View<'_>> {
        Some(View::new(self.cpu, self.nodes, self.directory.get(id)?))
    }

    #[inline(always)]
    pub(crate) fn main_view(&self) -> View<'_> {
        View::new(self.cpu, self.nodes, self.directory.main())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Fib {
    /// A `Fib` with default [`Options`] and one empty table, [`TableId::MAIN`].
    pub fn new() -> Result<Fib, FibError> {
        Fib::with_options(Options::default())
    }

    /// A `Fib` made as `options` say. Errors: an option out of range, named with its limits; no memory.
    pub fn with_options(options: Options) -> Result<Fib, FibError> {
        let cpu = Cpu::new(choose_batch(options.batch)?);
        let domain = Domain::new();
        let arena = Arena::new(ArenaOptions {
            reserve_bytes: ADDRESSABLE,
            limit_bytes: options.node_memory.min(NODE_MEMORY_MAX),
            huge_pages: options.huge_pages,
        })?;
        let mapping = Arc::clone(arena.mapping());
        let settings = SharedSettings::new(Settings {
            sync_mem: options.sync_mem,
            stall_policy: options.stall_policy,
            nonblocking: false,
        })?;
        let mut engine = Engine::new(arena, cpu, Arc::clone(&domain), &settings)?;
        let (main, descriptor) = TableState::new(&mut engine, options.main)?;
        let shared = Shared {
            nodes: engine.nodes,
            cpu,
            settings,
            domain,
            directory: Directory::new(descriptor),
            idle: Mutex::new(Some(Box::new(State { engine, tables: vec![main] }))),
            _mapping: mapping,
        };
        Ok(Fib { shared: Arc::new(shared) })
    }

    /// Takes the writer. Error [`WriterBusy`]: somebody else has it; it never waits.
    pub fn writer(&self) -> Result<Writer, WriterBusy> {
        // The lock is held for the length of a move, and no panic can happen under it.
        let state = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(WriterBusy)?;
        Ok(Writer::new(state, Arc::clone(&self.shared)))
    }

    /// Sets the dirty-memory budget: how many bytes may be retired and not yet reclaimed, 65,536 to 67,108,864.
    ///
    /// From any thread; acts at the writer's next update, which does not wait for that alone. The writer does not stall
    /// while `budget * 7/8 >= bytes retired per second * length of a grace period`;
    /// [`Writer::reclaim_stats`] has both. Error: out of range, the limits are named.
    pub fn set_sync_mem(&self, bytes: usize) -> Result<(), SyncMemOutOfRange> {
        self.shared.settings.set_sync_mem(bytes)
    }

    /// The dirty-memory budget in bytes.
    pub fn sync_mem(&self) -> usize {
        self.shared.settings.get().sync_mem
    }

    /// Sets what happens when the budget is used up and a reader does not report. From any thread, as above.
    pub fn set_stall_policy(&self, policy: StallPolicy) {
        self.shared.settings.set_stall_policy(policy);
    }

    /// Whether changes that would have to wait for readers fail with [`AdmitError::WouldBlock`](crate::AdmitError::WouldBlock) instead, not applied. From
    /// any thread, as above.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.shared.settings.set_nonblocking(nonblocking);
    }

    /// Registers a reader. `name` is what error messages call it (cut to 31 bytes). Takes no lock of the writer's.
    pub fn reader(&self, name: &str) -> Result<Reader, FibError> {
        Ok(Reader::new(self.shared.domain.register(name)?, Arc::clone(&self.shared)))
    }
}

impl fmt::Debug for Fib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fib").finish_non_exhaustive()
    }
}

const _: () = {
    const fn both<T: Send + Sync>() {}
    both::<Fib>();
    const fn sent<T: Send>() {}
    sent::<Writer>();
    sent::<Reader>();
};
