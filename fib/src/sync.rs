//! Atomics, fences and pauses of the reclamation code: from `std`, or from loom under `cfg(loom)`.
//!
//! Only what the readers and the writer synchronise by goes through here. Node memory of the trie is plain memory with
//! `std` atomics laid over it, which loom cannot track; the models stand for it with cells of their own.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// A short pause between two looks at another thread's word. Under loom it lets the other threads run.
#[inline]
pub(crate) fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

/// Keeps the compiler, but not the CPU, from moving memory accesses across: the reader's half of a barrier whose other
/// half is a `membarrier` call.
#[inline(always)]
pub(crate) fn compiler_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// A value on cache lines of its own: two of 64 bytes, since the CPU fetches them in pairs.
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
