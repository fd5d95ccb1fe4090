//! The data plane's side: a [`Reader`] per thread, lookups inside a burst or between quiescent states.
//!
//! ```text
//! burst style        let burst = reader.burst();   burst.main().lookup(addr) ...   drop(burst)
//! quiescent style    let mut online = reader.online();
//!                    loop { online.main().lookup_batch(..) ... online.quiescent() }
//! ```
//!
//! Both keep the memory that a lookup walks from being reclaimed. A burst is entered and left around some packets; it
//! is the right choice for threads that may sleep or be preempted. The quiescent style is for pinned polling loops,
//! which say once a loop that they hold nothing. What a lookup borrows cannot outlive either: the borrow checker sees
//! to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::addr::Addr;
use crate::fib::Shared;
use crate::nexthop::NextHopId;
use crate::reclaim::{ReaderSlot, Reports};
use crate::tables::TableId;
use crate::trie::lookup::{self, Cpu};
use crate::trie::node::{Descriptor, Nodes};

/// A registered reader: one per thread. It may be moved to another thread, but not shared.
///
/// Dropping it unregisters it. Readers never lock, allocate, free or make a system call in a lookup.
///
/// Sharing one is refused at compile time:
///
/// ```compile_fail,E0277
/// let fib = fib::Fib::new().unwrap();
/// let reader = fib.reader("worker").unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| println!("{:?}", &reader));
/// });
/// ```
pub struct Reader {
    slot: ReaderSlot,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("id", &self.slot.id()).finish_non_exhaustive()
    }
}

impl Reader {
    pub(crate) fn new(slot: ReaderSlot, shared: Arc<Shared>) -> Self {
        Reader { slot, shared }
    }

    /// Enters a burst: until the result is dropped, nothing that lookups walk is reclaimed.
    ///
    /// Cost: one load and one store, and one store when it is dropped. Keep bursts short (tens of packets): a writer
    /// that reaches its dirty-memory budget waits for open bursts.
    #[inline]
    pub fn burst(&mut self) -> Burst<'_> {
        // False when a guard was forgotten (`mem::forget`): the slot is inside since then, which protects this burst too.
        let _ = self.slot.enter();
        Burst { reader: self }
    }

    /// Goes online for quiescent-state reporting, for a thread that looks up all the time.
    #[inline]
    pub fn online(&mut self) -> Online<'_> {
        self.slot.online();
        Online { reader: self }
    }
}

/// An open burst of a [`Reader`].
#[derive(Debug)]
#[must_use = "a burst that is dropped at once protects nothing"]
pub struct Burst<'r> {
    reader: &'r mut Reader,
}

impl Burst<'_> {
    /// The main table, number 0.
    #[inline]
    pub fn main(&self) -> View<'_> {
        self.reader.shared.main_view()
    }

    /// The table `id`, `None` when there is no such table.
    #[inline]
    pub fn table(&self, id: TableId) -> Option<View<'_>> {
        self.reader.shared.view(id)
    }
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.slot.leave();
    }
}

/// A [`Reader`] that is online in the quiescent style. Dropping it goes offline.
#[derive(Debug)]
#[must_use = "dropping it goes offline at once"]
pub struct Online<'r> {
    reader: &'r mut Reader,
}

impl Online<'_> {
    /// The main table, number 0.
    #[inline]
    pub fn main(&self) -> View<'_> {
        self.reader.shared.main_view()
    }

    /// The table `id`, `None` when there is no such table.
    #[inline]
    pub fn table(&self, id: TableId) -> Option<View<'_>> {
        self.reader.shared.view(id)
    }

    /// Says that this thread holds nothing of what it has looked up. Call it once a loop.
    ///
    /// Cost: one load and one compare; one store when a grace period has started since. A [`View`] cannot be kept
    /// across it:
    ///
    /// ```compile_fail,E0502
    /// let fib = fib::Fib::new().unwrap();
    /// let mut reader = fib.reader("worker").unwrap();
    /// let mut online = reader.online();
    /// let view = online.main();
    /// online.quiescent();
    /// view.lookup(0u32);
    /// ```
    #[inline]
    pub fn quiescent(&mut self) {
        self.reader.slot.quiescent();
    }
}

impl Drop for Online<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.slot.offline();
    }
}

/// A table as a reader sees it, within a burst or until the next quiescent state.
///
/// It cannot outlive the burst:
///
/// ```compile_fail,E0505
/// let fib = fib::Fib::new().unwrap();
/// let mut reader = fib.reader("worker").unwrap();
/// let burst = reader.burst();
/// let view = burst.main();
/// drop(burst);
/// view.lookup(0u32);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct View<'b> {
    cpu: Cpu,
    nodes: Nodes,
    descriptor: &'b Descriptor,
}

impl<'b> View<'b> {
    #[inline(always)]
    pub(crate) fn new(cpu: Cpu, nodes: Nodes, descriptor: &'b Descriptor) -> Self {
        View { cpu, nodes, descriptor }
    }

    /// The next hop of the longest prefix that covers `addr`; `None` when no route does.
    ///
    /// Numbers are in host order. Cost: the descriptor's line, the root slot, and two loads for each sparse node on
    /// the way.
    #[inline]
    pub fn lookup<K: Key>(&self, addr: K) -> Option<NextHopId> {
        addr.look_up(self)
    }

    /// Looks up all of `addrs` (host order): `out[i]` becomes the next hop of `addrs[i]`, or `miss`.
    ///
    /// The table is the same one for all of them; single addresses may see it at different moments.
    ///
    /// # Panics
    /// When the slices differ in length.
    #[inline]
    pub fn lookup_batch<A: BatchKey>(&self, addrs: &[A], out: &mut [NextHopId], miss: NextHopId) {
        assert_eq!(addrs.len(), out.len(), "addrs and out differ in length");
        A::look_up_batch(self, addrs, out, miss);
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
    impl Sealed for std::net::Ipv4Addr {}
    impl Sealed for std::net::Ipv6Addr {}
    impl Sealed for std::net::IpAddr {}
}

/// What [`View::lookup`] takes: an address of the standard library, or a number in host order.
pub trait Key: sealed::Sealed {
    #[doc(hidden)]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId>;
}

impl Key for u32 {
    #[inline(always)]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId> {
        lookup::lookup(view.cpu, view.nodes, &view.descriptor.v4, self)
    }
}

impl Key for u128 {
    #[inline(always)]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId> {
        lookup::lookup(view.cpu, view.nodes, &view.descriptor.v6, self)
    }
}

impl Key for Ipv4Addr {
    #[inline(always)]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId> {
        self.to_bits().look_up(view)
    }
}

impl Key for Ipv6Addr {
    #[inline(always)]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId> {
        self.to_bits().look_up(view)
    }
}

impl Key for IpAddr {
    #[inline]
    fn look_up(self, view: &View<'_>) -> Option<NextHopId> {
        match self {
            IpAddr::V4(addr) => addr.look_up(view),
            IpAddr::V6(addr) => addr.look_up(view),
        }
    }
}

/// What [`View::lookup_batch`] takes: `u32` or `u128`, host order.
pub trait BatchKey: Addr {
    #[doc(hidden)]
    fn look_up_batch(view: &View<'_>, addrs: &[Self], out: &mut [NextHopId], miss: NextHopId);
}

impl BatchKey for u32 {
    #[inline(always)]
    fn look_up_batch(view: &View<'_>, addrs: &[Self], out: &mut [NextHopId], miss: NextHopId) {
        lookup::lookup_batch(view.cpu, view.nodes, &view.descriptor.v4, addrs, out, miss);
    }
}

impl BatchKey for u128 {
    #[inline(always)]
    fn look_up_batch(view: &View<'_>, addrs: &[Self], out: &mut [NextHopId], miss: NextHopId) {
        lookup::lookup_batch(view.cpu, view.nodes, &view.descriptor.v6, addrs, out, miss);
    }
}
