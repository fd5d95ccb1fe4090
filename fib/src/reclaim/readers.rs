//! Readers: one slot each, on cache lines of its own, in which the reader says how far it has come.
//!
//! A slot holds 0 while its reader holds no reference, and otherwise the grace-period token that the reader saw when it
//! last held none. Only the reader writes there and the writer only reads, so a burst costs a load of the token and two
//! stores into a line that nobody else writes. Two styles of reporting share the slot:
//!
//! ```text
//! burst guard      0 --enter--> token ... lookups ... --leave--> 0 --enter--> token ...      (default)
//! quiescent state  0 --online--> token ... lookups ... --quiescent--> newer token ... --offline--> 0
//!
//! buckets   [0] -> 8 slots   [1] -> 16 slots   [2] -> 32 slots ...       allocated when needed, never moved
//!           index 0..8       8..24             24..56
//! ```
//!
//! 1. A slot's token is 0 or at most the domain's token, and rises from one `enter`, `online` or `quiescent` to the next.
//! 2. While the token is t, its reader may hold references to anything that was published when t was the domain's token.
//! 3. A slot has one owner at a time: `state` is odd while it is taken, and rises by one with each change of hands.
//! 4. `count` is above the index of every slot that was ever taken. Slots are freed with the domain only.
//!
//! A reader never allocates, frees or locks. It makes a system call in two rare places: when the writer has flagged its
//! slot as late (a futex wake), and in the first burst on a thread that the handle was not used on before
//! (`gettid`, so that a stalled reader can be named); [`Reports::bind_thread`] does the latter ahead of time.
//!
//! The scheme is that of liburcu's `memb` and `qsbr` flavours (Desnoyers et al., IEEE TPDS 23(2), 2012).

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed};

use super::grace::{SlotDomain, order};
use super::os;
use crate::error::{OutOfMemory, Resource};
use crate::failpoint;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Line, Ordering, compiler_fence, fence};

/// Which registration of a reader is meant. Ids of readers that are gone are not used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId {
    index: u32,
    generation: u32,
}

impl ReaderId {
    /// The id as one number, for logs and for the C interface.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The id that [`to_bits`](Self::to_bits) gave.
    pub const fn from_bits(bits: u64) -> Self {
        ReaderId { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    fn new(index: usize, state: u64) -> Self {
        // Taking and giving back 2^32 times would repeat an id; a registration costs more than 10 ns, so that takes
        // a minute of doing nothing else, for an id that somebody has kept all the while.
        ReaderId { index: index as u32, generation: (state >> 1) as u32 }
    }
}

impl fmt::Display for ReaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl fmt::Debug for ReaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReaderId({self})")
    }
}

/// The name a reader registered with, cut to [`ReaderName::MAX_BYTES`] bytes (at a character's end).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReaderName {
    bytes: [u8; Self::MAX_BYTES],
    len: u8,
}

impl ReaderName {
    /// Bytes that are kept of a name.
    pub const MAX_BYTES: usize = 8 * NAME_WORDS;

    fn new(name: &str) -> Self {
        let mut len = name.len().min(Self::MAX_BYTES);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        ReaderName { bytes, len: len as u8 }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        // Two registrations that write one slot's name while it is read can mix, which is seen and dropped before;
        // should it not be, this still gives a string.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Display for ReaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ReaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// What the writer knows about one registered reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderInfo {
    /// The registration.
    pub id: ReaderId,
    /// The name it registered with.
    pub name: ReaderName,
    /// The thread (as `gettid` has it) that the reader was last seen on; 0 before its first burst.
    pub tid: u32,
    /// Inside a burst, or online in the quiescent-state style.
    pub online: bool,
    /// An open grace period waits for it.
    pub late: bool,
}

/// Why a reader cannot be removed by [`Writer::remove_dead_reader`](crate::Writer::remove_dead_reader).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveReaderError {
    /// No reader is registered by this id (any more).
    NotRegistered {
        /// The id that was given.
        id: ReaderId,
    },
    /// The thread that the reader was last used on still runs.
    ThreadRuns {
        /// The id that was given.
        id: ReaderId,
        /// The thread.
        tid: u32,
    },
    /// Grace periods come from crossbeam-epoch, which has no way to remove a participant from outside.
    Unsupported,
}

impl fmt::Display for RemoveReaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoveReaderError::NotRegistered { id } => write!(f, "no reader is registered by id {id}"),
            RemoveReaderError::ThreadRuns { id, tid } => {
                write!(f, "reader {id} is not dead: thread {tid} still runs")
            }
            RemoveReaderError::Unsupported => {
                f.write_str("this build takes grace periods from crossbeam-epoch, which cannot remove a reader")
            }
        }
    }
}

impl std::error::Error for RemoveReaderError {}

/// 64-bit words that hold a name.
const NAME_WORDS: usize = 4;

/// One reader's lines. The writer's walk reads `token` only.
#[repr(align(128))]
pub(super) struct Slot {
    /// 0: holds no reference. Else the domain's token when the reader last held none. Written by the reader.
    pub(super) token: AtomicU64,
    /// 1: the writer sleeps on this word until the reader reports. Written by both.
    pub(super) late: AtomicU32,
    /// Odd: taken. Rises by one at each change of hands.
    state: AtomicU64,
    /// 1: counted in `SlotDomain::burst_readers`.
    bursting: PlainU32,
    /// The rest tells about the reader and orders nothing.
    tid: PlainU32,
    name_len: PlainU32,
    name: [PlainU64; NAME_WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::size_of::<Slot>() == 128);

impl Slot {
    fn new() -> Self {
        Slot {
            token: AtomicU64::new(0),
            late: AtomicU32::new(0),
            state: AtomicU64::new(0),
            bursting: PlainU32::new(0),
            tid: PlainU32::new(0),
            name_len: PlainU32::new(0),
            name: [const { PlainU64::new(0) }; NAME_WORDS],
        }
    }

    /// Whether the reader may still hold what was retired before grace period `token` started.
    #[inline]
    pub(super) fn is_late(&self, token: u64) -> bool {
        // Acquire: pairs with the Release in `leave`, `quiescent` and `enter`. What is read here was stored after the
        // reader's last use of what the grace period waits for, so freeing comes after that use.
        let passed = self.token.load(order::POLL);
        passed != 0 && passed < token
    }

    /// Wakes the writer, if it sleeps on this slot. After the reader's own store to `token`.
    #[inline(always)]
    pub(super) fn ring(&self) {
        // The flag and the token are two words that two threads write and read crosswise. Reader: store token, load
        // flag. Writer: store flag, barrier on all threads, load token, sleep. If our store comes before the barrier,
        // the writer's load sees it and it does not sleep; else our load comes after the barrier and sees the flag.
        // Where the barrier is a fence of the writer's alone, the load here may be early: the wake-up is lost, and
        // the writer's sleep ends by its time limit of 1 ms. A fence here would cost more, once a burst, than that.
        compiler_fence();
        if self.late.load(Ordering::Relaxed) != 0 {
            self.wake_writer();
        }
    }

    #[cold]
    fn wake_writer(&self) {
        self.late.store(0, Ordering::Relaxed);
        os::futex_wake(&self.late);
    }

    fn set_name(&self, name: &str) {
        let name = ReaderName::new(name);
        for (word, bytes) in self.name.iter().zip(name.bytes.chunks_exact(8)) {
            let mut whole = [0; 8];
            whole.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Relaxed);
        }
        self.name_len.store(u32::from(name.len), Relaxed);
    }

    fn name(&self) -> ReaderName {
        let mut name = ReaderName { bytes: [0; ReaderName::MAX_BYTES], len: 0 };
        for (word, bytes) in self.name.iter().zip(name.bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        name.len = self.name_len.load(Relaxed).min(ReaderName::MAX_BYTES as u32) as u8;
        name
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }
}

/// Slots of the first bucket; each further one doubles.
const FIRST_BUCKET: usize = if cfg!(loom) { 2 } else { 8 };
/// Buckets in all: 2^31 - 8 slots, a quarter of a terabyte of them, before registering fails.
const BUCKETS: usize = if cfg!(loom) { 2 } else { 28 };

/// Every slot of a domain.
pub(super) struct Registry {
    buckets: [AtomicPtr<Slot>; BUCKETS],
    /// On a line of its own: the writer reads it with each poll.
    count: Line<AtomicUsize>,
}

/// The bucket that holds slot `index`, and the place in it.
fn place(index: usize) -> (usize, usize) {
    let bucket = (index / FIRST_BUCKET + 1).ilog2() as usize;
    (bucket, index - FIRST_BUCKET * ((1 << bucket) - 1))
}

impl Registry {
    pub(super) fn new() -> Self {
        Registry {
            buckets: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            count: Line(AtomicUsize::new(0)),
        }
    }

    /// The number of slots that a walk must look at.
    #[inline]
    pub(super) fn count(&self) -> usize {
        // Relaxed would do for the count itself (see the argument in `grace`); Acquire makes the bucket's pointer, which
        // was stored before the count was raised, visible to `get`.
        self.count.load(Ordering::Acquire)
    }

    /// Slot `index`, if its bucket exists, as it does for every index below `count()`.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        let (bucket, place) = place(index);
        let slots = self.buckets.get(bucket)?.load(Ordering::Acquire);
        // SAFETY: the pointer is null or that of `FIRST_BUCKET << bucket` initialised slots, published by `grow` with
        // Release and freed only by our own drop; `place` is below that size.
        unsafe { slots.as_ref().map(|_| &*slots.add(place)) }
    }

    /// Takes a free slot: the first, so that the walk stays short.
    fn take(&self) -> Result<(usize, &Slot), OutOfMemory> {
        let mut index = 0;
        loop {
            let slot = match self.get(index) {
                Some(slot) => slot,
                None => self.grow(index)?,
            };
            let state = slot.state.load(Ordering::Relaxed);
            // Acquire: pairs with the Release of `give_back`. The writer learns of the last owner's reads by our own
            // stores to the slot, so those reads must come before our stores.
            if state & 1 == 0
                && slot.state.compare_exchange(state, state + 1, order::SLOT_TAKE, Ordering::Relaxed).is_ok()
            {
                // Before the first `enter` of this owner: see the argument for new readers in `grace`.
                self.count.fetch_max(index + 1, Ordering::AcqRel);
                return Ok((index, slot));
            }
            index += 1;
        }
    }

    #[cold]
    fn grow(&self, index: usize) -> Result<&Slot, OutOfMemory> {
        let (bucket, place) = place(index);
        let len = FIRST_BUCKET << bucket.min(BUCKETS);
        let bytes = len * std::mem::size_of::<Slot>();
        let failed = OutOfMemory { resource: Resource::Plan, bytes, limit: 0 };
        let Some(head) = self.buckets.get(bucket) else {
            return Err(OutOfMemory { limit: bytes, ..failed });
        };
        let mut slots = Vec::new();
        if failpoint::fails() || slots.try_reserve_exact(len).is_err() {
            return Err(failed);
        }
        slots.resize_with(len, Slot::new);
        let slots = Box::into_raw(slots.into_boxed_slice());
        // Release: whoever loads the pointer sees the slots initialised. Acquire on failure: so do we, of the winner's.
        let base = match head.compare_exchange(
            std::ptr::null_mut(),
            slots.cast::<Slot>(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => slots.cast::<Slot>(),
            Err(winner) => {
                // SAFETY: made by `into_raw` above and not published.
                drop(unsafe { Box::from_raw(slots) });
                winner
            }
        };
        // SAFETY: `base` is a published bucket, which has `len` slots and lives as long as `self`; `place < len`.
        Ok(unsafe { &*base.add(place) })
    }

    /// Gives slot `index` back if `state` is still its state. False: somebody removed the reader before.
    fn give_back(slot: &Slot, state: u64) -> bool {
        slot.state.compare_exchange(state, state + 1, order::SLOT_GIVE, Ordering::Relaxed).is_ok()
    }

    /// What is known about the reader at `index`; `None` if there is none, or it changed while we looked.
    pub(super) fn info(&self, index: usize, oldest: u64) -> Option<ReaderInfo> {
        let slot = self.get(index)?;
        let state = slot.state.load(Ordering::Acquire);
        let info = ReaderInfo {
            id: ReaderId::new(index, state),
            name: slot.name(),
            tid: slot.tid(),
            online: slot.token.load(Ordering::Relaxed) != 0,
            late: slot.is_late(oldest),
        };
        // The name's words are read one by one; a new owner would have changed the state before it wrote them.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        (state & 1 == 1 && slot.state.load(Ordering::Relaxed) == state).then_some(info)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        for (bucket, head) in self.buckets.iter().enumerate() {
            let slots = head.load(Ordering::Relaxed);
            if !slots.is_null() {
                let slots = std::ptr::slice_from_raw_parts_mut(slots, FIRST_BUCKET << bucket);
                // SAFETY: made by `into_raw` of a boxed slice of this length in `grow`; `&mut self` says that no
                // reader is left, since each holds the domain.
                drop(unsafe { Box::from_raw(slots) });
            }
        }
    }
}

/// What a reader handle does, whichever way grace periods are found.
///
/// None of these is unsafe: they say what the reader holds. Code that follows pointers must call them in time, and that
/// is where its `// SAFETY:` comes from.
pub(crate) trait Reports: Send {
    /// The registration.
    fn id(&self) -> ReaderId;

    /// Starts a burst: from here on, what is loaded from published memory stays valid until [`leave`](Self::leave).
    ///
    /// False if the handle was inside already (a guard was forgotten, or it is online): it then stays inside since that
    /// earlier moment, which holds back more memory and is as safe. A caller who cannot rule out nesting must
    /// treat false as an error, since the inner `leave` would end the outer burst too.
    fn enter(&mut self) -> bool;

    /// Ends a burst: the reader holds nothing any more. While online, this is a quiescent state.
    fn leave(&mut self);

    /// Goes online: inside until [`offline`](Self::offline), with a quiescent state reported now and then.
    fn online(&mut self);

    /// Ends it: the reader holds nothing, and no grace period waits for it.
    fn offline(&mut self);

    /// Reports that the reader holds nothing at this moment. Does nothing while offline.
    fn quiescent(&mut self);

    /// Tells the domain which thread uses the handle, ahead of the first burst there.
    fn bind_thread(&mut self);
}

/// A registered reader of a [`SlotDomain`]. Unregisters when dropped. May move to another thread, may not be shared.
pub(crate) struct ReaderSlot {
    domain: Arc<SlotDomain>,
    slot: NonNull<Slot>,
    index: usize,
    /// The slot's state while it is ours.
    state: u64,
    /// `os::thread_mark` of the thread that the slot's tid stands for; 0 before the first burst.
    thread: usize,
    /// Bursts fence by themselves.
    fenced: bool,
    online: bool,
    /// `enter` and `leave` of one slot from two threads at a time would break invariant 3.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: the handle is the slot's only owner (invariant 3), and the domain that it points into is Sync and kept alive by
// the `Arc` beside it; nothing is tied to a thread.
unsafe impl Send for ReaderSlot {}

impl ReaderSlot {
    pub(super) fn register(domain: &Arc<SlotDomain>, name: &str) -> Result<Self, OutOfMemory> {
        let (index, slot) = domain.readers.take()?;
        slot.set_name(name);
        slot.tid.store(0, Relaxed);
        let state = slot.state.load(Ordering::Relaxed);
        Ok(ReaderSlot {
            domain: Arc::clone(domain),
            slot: NonNull::from(slot),
            index,
            state,
            thread: 0,
            fenced: !domain.asymmetric,
            online: false,
            not_sync: PhantomData,
        })
    }

    #[inline(always)]
    fn slot(&self) -> &Slot {
        // SAFETY: slots never move and live as long as the domain, which `self.domain` keeps alive.
        unsafe { self.slot.as_ref() }
    }

    #[cfg(any(test, feature = "crossbeam"))]
    pub(super) fn is_online(&self) -> bool {
        self.online
    }

    /// The first burst of the handle, or the first on this thread.
    #[cold]
    fn first_burst(&mut self) {
        self.bind_thread();
        if !self.fenced && self.slot().bursting.load(Relaxed) == 0 {
            self.slot().bursting.store(1, Relaxed);
            self.domain.burst_readers.fetch_add(1, Ordering::Relaxed);
            // Against the fence in `SlotDomain::start`. If ours is first, the writer sees the count and runs its
            // membarrier, for this and every later burst. If the writer's is first, all that we load from here on, in
            // this burst and later, is younger than its unlink, so that grace period needs no barrier from us.
            fence(Ordering::SeqCst);
        }
    }
}

impl Reports for ReaderSlot {
    fn id(&self) -> ReaderId {
        ReaderId::new(self.index, self.state)
    }

    #[inline(always)]
    fn enter(&mut self) -> bool {
        if self.slot().token.load(Ordering::Relaxed) != 0 {
            return false;
        }
        if self.thread != os::thread_mark() {
            self.first_burst();
        }
        let slot = self.slot();
        // Acquire: pairs with the Release in `SlotDomain::start`. With this token in the slot the writer takes us to have
        // seen everything that was unlinked before it was issued.
        let token = self.domain.token.load(order::TOKEN);
        // Release: a writer that reads this store instead of the 0 before it must still find our last burst over.
        slot.token.store(token, Ordering::Release);
        // The store above before the loads of the burst: "The argument" in `grace` has both stories.
        if self.fenced {
            order::enter_fence();
        } else {
            compiler_fence();
        }
        true
    }

    #[inline(always)]
    fn leave(&mut self) {
        if self.online {
            return self.quiescent();
        }
        let slot = self.slot();
        // Release: pairs with the Acquire in `is_late`; our loads of the burst come before the 0.
        slot.token.store(0, order::LEAVE);
        slot.ring();
    }

    fn online(&mut self) {
        self.bind_thread();
        self.online = true;
        let slot = self.slot();
        if slot.token.load(Ordering::Relaxed) == 0 {
            let token = self.domain.token.load(order::TOKEN);
            slot.token.store(token, Ordering::Release);
            // A fence of our own even where bursts have none: going online is rare, and a domain whose readers all report
            // quiescent states then needs no membarrier at all.
            order::online_fence();
        }
    }

    fn offline(&mut self) {
        self.online = false;
        self.leave();
    }

    #[inline(always)]
    fn quiescent(&mut self) {
        let slot = self.slot();
        let own = slot.token.load(Ordering::Relaxed);
        // Acquire: what we load from here on is at least as young as what this token's grace period had unlinked.
        let token = self.domain.token.load(order::TOKEN);
        // Equal is the common case; 0 means offline, and must stay 0.
        if own != token && own != 0 {
            // Release: what we loaded until here comes before. So a writer that finds the token knows both: we are
            // done with the old, and will see the new. No store-to-load fence is needed for that.
            slot.token.store(token, order::QUIESCENT);
            slot.ring();
        }
    }

    fn bind_thread(&mut self) {
        let thread = os::thread_mark();
        if self.thread != thread {
            self.thread = thread;
            self.slot().tid.store(os::tid(), Relaxed);
        }
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        // A reader that `remove_dead` has removed must not touch the slot, which may be somebody else's by now.
        if self.slot().state.load(Ordering::Relaxed) != self.state {
            return;
        }
        self.offline();
        self.domain.give_back(self.slot(), self.state);
    }
}

impl SlotDomain {
    /// Gives a slot that holds no reference back. The owner's last act, or that of who buries it.
    fn give_back(&self, slot: &Slot, state: u64) {
        let bursting = slot.bursting.swap(0, Relaxed);
        if Registry::give_back(slot, state) {
            // Release: a writer that finds the lower count, and so needs no membarrier, finds our last burst over too.
            self.burst_readers.fetch_sub(bursting as usize, Ordering::Release);
        }
    }

    /// Removes a reader whose thread ended without unregistering.
    ///
    /// # Safety
    /// The handle of `id` is never used again, on no thread, except that it may be dropped after this call.
    pub(super) unsafe fn bury(&self, id: ReaderId) -> Result<(), RemoveReaderError> {
        let missing = RemoveReaderError::NotRegistered { id };
        let slot = self.readers.get(id.index as usize).ok_or(missing)?;
        let state = slot.state.load(Ordering::Acquire);
        if state & 1 == 0 || ReaderId::new(id.index as usize, state) != id {
            return Err(missing);
        }
        let tid = slot.tid();
        if tid != 0 && os::thread_runs(tid) {
            return Err(RemoveReaderError::ThreadRuns { id, tid });
        }
        // The caller says that the reader's loads are over, and its thread's end has made that visible.
        slot.token.store(0, Ordering::Release);
        slot.ring();
        self.give_back(slot, state);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_fill_buckets_without_gaps() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == FIRST_BUCKET << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(place(FIRST_BUCKET * ((1 << BUCKETS) - 1) - 1), (BUCKETS - 1, (FIRST_BUCKET << (BUCKETS - 1)) - 1));
    }

    #[test]
    fn names_are_cut_at_a_character() {
        assert_eq!(ReaderName::new("").as_str(), "");
        assert_eq!(ReaderName::new("worker 3").as_str(), "worker 3");
        let long = "x".repeat(31) + "é and more";
        assert_eq!(ReaderName::new(&long).as_str(), "x".repeat(31));
        assert_eq!(ReaderName::new(&"é".repeat(40)).as_str(), "é".repeat(16));
    }

    #[test]
    fn ids_survive_the_trip_through_a_number() {
        let id = ReaderId { index: 7, generation: u32::MAX };
        assert_eq!(ReaderId::from_bits(id.to_bits()), id);
        assert_eq!(id.to_string(), "7.4294967295");
    }
}
