//! What the arena asks of the operating system: address space once, and pages of it as the arena grows and shrinks.
//!
//! A [`Mapping`] is the range itself, shared with all readers. [`Pages`] is the writer's knowledge of it: a prefix of
//! the range is *committed* (readable and writable), the rest is address space only. Every system call is in this file.
//!
//! ```text
//! base (2 MiB aligned)                                 committed                     reserved
//! | huge pages asked for, 2 MiB each          | 64 KiB steps |  PROT_NONE               |
//! ```
//!
//! Invariants:
//!
//! - M1: `committed` is at most the size of the mapping, and never falls below what the arena said it uses.
//! - M2: huge pages are asked for whole, from the base on, below `committed` only.

use std::ptr::NonNull;
use std::sync::Arc;

use super::UNIT;

/// Halving stops here when the system refuses address space.
const MIN_RESERVE: usize = 64 << 20;
/// Memory is committed in multiples of this; no page of a Linux system is larger, huge ones aside.
pub(super) const COMMIT_STEP: usize = 64 << 10;
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// Committed bytes from which huge pages are asked for: below, one would be mostly empty.
const HUGE_FROM: usize = 1 << 20;
/// Shorter free runs stay where huge pages are: giving one back splits a huge page under the lookups.
const HUGE_RELEASE_MIN: usize = 64 << 10;

/// Calls into the operating system, all on whole pages of one mapping.
#[cfg(not(miri))]
mod system {
    use std::ffi::{c_int, c_void};
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

    use super::HUGE_PAGE;

    /// `MADV_COLLAPSE`, Linux 6.1; not among rustix' advice values.
    const MADV_COLLAPSE: c_int = 25;

    mod c {
        use std::ffi::{c_int, c_void};
        // SAFETY: the signature of madvise(2).
        unsafe extern "C" {
            pub(super) fn madvise(addr: *mut c_void, bytes: usize, advice: c_int) -> c_int;
        }
    }

    pub(super) fn page_bytes() -> usize {
        rustix::param::page_size()
    }

    /// Reserves `bytes` (a multiple of `COMMIT_STEP`) of inaccessible address space at a multiple of 2 MiB.
    pub(super) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        let padded = bytes.checked_add(HUGE_PAGE)?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of ours.
        let start =
            unsafe { mmap_anonymous(null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) };
        let start = start.ok()?.cast::<u8>();
        let head = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
        // SAFETY: `head <= HUGE_PAGE`, so `base` and `base + bytes` lie in the mapping; what is cut off before and behind
        // is ours, and nobody knows of it yet. A failure leaves address space mapped, which harms nothing.
        let base = unsafe {
            let base = start.add(head);
            if head > 0 {
                let _ = munmap(start.cast::<c_void>(), head);
            }
            if head < HUGE_PAGE {
                let _ = munmap(base.add(bytes).cast::<c_void>(), HUGE_PAGE - head);
            }
            base
        };
        NonNull::new(base)
    }

    /// # Safety
    /// The range came from [`reserve`], whole, and nobody uses it any more.
    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. It cannot fail for a range that is mapped.
        let _ = unsafe { munmap(base.as_ptr().cast::<c_void>(), bytes) };
    }

    /// Makes a range readable and writable; zero where it was not so before.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`].
    pub(super) unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: access is only widened, in a mapping of ours.
        unsafe { mprotect(start.cast::<c_void>(), bytes, MprotectFlags::READ | MprotectFlags::WRITE) }.is_ok()
    }

    /// Gives the pages of a range back and makes it inaccessible.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`], and nobody will use it before it is committed again.
    pub(super) unsafe fn decommit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            madvise(start.cast::<c_void>(), bytes, Advice::LinuxDontNeed).is_ok()
                && mprotect(start.cast::<c_void>(), bytes, MprotectFlags::empty()).is_ok()
        }
    }

    /// Gives the pages of a range back; it reads as zero afterwards.
    ///
    /// # Safety
    /// The range is whole pages in a mapping of [`reserve`], and nobody needs its contents.
    pub(super) unsafe fn release(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { madvise(start.cast::<c_void>(), bytes, Advice::LinuxDontNeed) }.is_ok()
    }

    /// Asks for huge pages on first use of a range; whether the advice was taken.
    ///
    /// # Safety
    /// The range lies in a mapping of [`reserve`].
    pub(super) unsafe fn advise_huge(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: advice changes no contents.
        unsafe { madvise(start.cast::<c_void>(), bytes, Advice::LinuxHugepage) }.is_ok()
    }

    /// Asks for huge pages under memory that is in use already. Where that is not to be had nothing changes.
    ///
    /// # Safety
    /// The range is whole huge pages in a mapping of [`reserve`].
    pub(super) unsafe fn collapse(start: *mut u8, bytes: usize) {
        // SAFETY: moves contents to another page under the same address; an unknown advice is refused.
        unsafe { c::madvise(start.cast::<c_void>(), bytes, MADV_COLLAPSE) };
    }
}

/// Miri has neither protections nor advice: the mapping is zeroed memory of the heap.
#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    const MOST: usize = 32 << 20;

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, 4096).ok()
    }

    pub(super) fn page_bytes() -> usize {
        4096
    }

    pub(super) fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MOST {
            return None;
        }
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
    }

    pub(super) unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: allocated by `reserve` with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }

    pub(super) unsafe fn commit(_: *mut u8, _: usize) -> bool {
        true
    }

    pub(super) unsafe fn decommit(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { release(start, bytes) }
    }

    pub(super) unsafe fn release(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { start.write_bytes(0, bytes) };
        true
    }

    pub(super) unsafe fn advise_huge(_: *mut u8, _: usize) -> bool {
        false
    }

    pub(super) unsafe fn collapse(_: *mut u8, _: usize) {}
}

/// The address range of one arena. Shared by the writer's [`Arena`](super::Arena) and by all readers; unmapped with its last holder.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    reserved: usize,
}

// SAFETY: a plain range of memory that no thread owns. Who may touch which of its bytes is settled by the arena (free
// blocks: the writer), by publication and by the grace period before a block is freed.
unsafe impl Send for Mapping {}
// SAFETY: as above; the type itself has no interior state.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `bytes` of address space, or half of it, and so on down to 64 MiB.
    fn reserve(bytes: usize) -> Option<Mapping> {
        let mut reserved = bytes;
        loop {
            if let Some(base) = system::reserve(reserved) {
                return Some(Mapping { base, reserved });
            }
            let half = reserved / 2 / COMMIT_STEP * COMMIT_STEP;
            if half < if cfg!(miri) { COMMIT_STEP } else { MIN_RESERVE } {
                return None;
            }
            reserved = half;
        }
    }

    /// The address of offset 0.
    #[inline(always)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes of address space; what is committed starts at the base and is usually far less.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    /// The address of the block at `offset`.
    #[inline(always)]
    pub(crate) fn at(&self, offset: u32) -> *mut u8 {
        debug_assert!(offset as usize * UNIT < self.reserved);
        self.base().wrapping_add(offset as usize * UNIT)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this was the last holder, and blocks are reached through a holder only.
        unsafe { system::unmap(self.base, self.reserved) };
    }
}

/// Which bytes of a mapping can be used, and on what kind of pages. One per arena; the writer's.
pub(super) struct Pages {
    mapping: Arc<Mapping>,
    /// Bytes from the base on that can be read and written.
    committed: usize,
    /// Bytes from the base on for which huge pages have been asked for.
    huge_asked: usize,
    huge_taken: usize,
    huge_pages: bool,
}

impl Pages {
    /// Reserves `bytes` of address space, or less (see [`Mapping`]), none of it committed.
    pub(super) fn reserve(bytes: usize, huge_pages: bool) -> Option<Pages> {
        let mapping = Arc::new(Mapping::reserve(bytes)?);
        Some(Pages { mapping, committed: 0, huge_asked: 0, huge_taken: 0, huge_pages })
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(super) fn committed(&self) -> usize {
        self.committed
    }

    /// Bytes for which the system took the advice to use huge pages.
    pub(super) fn huge_taken(&self) -> usize {
        self.huge_taken
    }

    /// Makes the first `needed` bytes accessible, and some ahead; whether the system did so.
    pub(super) fn commit(&mut self, needed: usize) -> bool {
        if needed <= self.committed {
            return true;
        }
        let ahead = (self.committed / 4).min(HUGE_PAGE);
        let generous = self.commit_target(needed.max(self.committed + ahead));
        let target = if self.commit_to(generous) {
            generous
        } else if self.commit_to(needed.next_multiple_of(COMMIT_STEP)) {
            needed.next_multiple_of(COMMIT_STEP)
        } else {
            return false;
        };
        self.committed = target;
        self.ask_for_huge_pages();
        true
    }

    fn commit_to(&self, target: usize) -> bool {
        debug_assert!(self.committed < target && target <= self.mapping.reserved);
        // SAFETY: `committed < target`, and `target` is at most the size of the mapping.
        unsafe { system::commit(self.mapping.base().add(self.committed), target - self.committed) }
    }

    /// How much to commit when `needed` bytes are: whole steps, or whole huge pages where those are wanted.
    fn commit_target(&self, needed: usize) -> usize {
        let step = if self.huge_pages && needed > HUGE_FROM { HUGE_PAGE } else { COMMIT_STEP };
        needed.next_multiple_of(step).min(self.mapping.reserved)
    }

    fn ask_for_huge_pages(&mut self) {
        let whole = self.committed / HUGE_PAGE * HUGE_PAGE;
        if !self.huge_pages || whole <= self.huge_asked {
            return;
        }
        let (asked, bytes) = (self.huge_asked, whole - self.huge_asked);
        self.huge_asked = whole;
        // SAFETY: the range ends at or below `committed` (M2).
        let start = unsafe { self.mapping.base().add(asked) };
        // SAFETY: as above, and both ends are multiples of a huge page.
        unsafe {
            if system::advise_huge(start, bytes) {
                self.huge_taken += bytes;
            }
            // The first huge page is half full of small pages by now; later ones are advised before their first use.
            if asked == 0 {
                system::collapse(start, HUGE_PAGE);
            }
        }
    }

    /// Gives everything behind the first `used` bytes back to the system and keeps no more of it accessible than `commit`
    /// would make so; the bytes given back, including those of pages that were never touched.
    ///
    /// # Safety
    /// Nothing behind the first `used` bytes is in use: no reader can hold a block there.
    pub(super) unsafe fn give_back_behind(&mut self, used: usize) -> usize {
        let mut returned = 0;
        let target = self.commit_target(used);
        if target < self.committed {
            let bytes = self.committed - target;
            // SAFETY: the caller's promise, and the range is committed.
            if unsafe { system::decommit(self.mapping.base().add(target), bytes) } {
                returned += bytes;
                self.committed = target;
                self.huge_asked = self.huge_asked.min(target / HUGE_PAGE * HUGE_PAGE);
                self.huge_taken = self.huge_taken.min(self.huge_asked);
            }
        }
        // SAFETY: the caller's promise.
        returned + unsafe { self.release(used.next_multiple_of(system::page_bytes()), self.committed) }
    }

    /// Gives the whole pages between two byte positions back to the system, unless they are so few that a huge page is
    /// worth more; the bytes given back. They read as zero afterwards.
    ///
    /// # Safety
    /// The range is committed, and nobody needs its contents.
    pub(super) unsafe fn give_back_between(&self, start: usize, end: usize) -> usize {
        let page = system::page_bytes();
        let (start, end) = (start.next_multiple_of(page), end / page * page);
        let least = if start < self.huge_asked { HUGE_RELEASE_MIN } else { page };
        // SAFETY: the caller's promise.
        if end >= start + least { unsafe { self.release(start, end) } } else { 0 }
    }

    /// # Safety
    /// The range is whole committed pages, or empty, and nobody needs its contents.
    unsafe fn release(&self, start: usize, end: usize) -> usize {
        // SAFETY: the caller's promise.
        if start < end && unsafe { system::release(self.mapping.base().add(start), end - start) } {
            end - start
        } else {
            0
        }
    }
}
