//! Zeroed memory that starts on a 2 MiB boundary and is backed by 2 MiB pages if the kernel grants them.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const HUGE_PAGE: usize = 2 << 20;

/// Numbers for which every pattern of bits is a value.
///
/// # Safety
/// All-zero bytes must be a value of the type, and it must need no drop.
pub unsafe trait Plain: Copy {}
// SAFETY: integers have no invalid patterns and no drop.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}

/// A fixed number of values in such memory.
#[derive(Debug)]
pub struct HugeBox<T: Plain> {
    /// On a boundary of 2 MiB, inside the mapping.
    start: NonNull<T>,
    len: usize,
    mapping: NonNull<u8>,
    mapping_bytes: usize,
}

impl<T: Plain> HugeBox<T> {
    /// `len` zeros, and room for one cache line behind them. `huge` false asks for 4 KiB pages instead.
    pub fn zeroed(len: usize, huge: bool) -> Self {
        let bytes = (len * size_of::<T>() + 64).next_multiple_of(HUGE_PAGE);
        // With a page too many, so that there is a boundary with enough behind it.
        let mapping_bytes = bytes + HUGE_PAGE;
        // Not by the allocator: it would write the zeros, and so have small pages made before the advice.
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe { mmap_anonymous(ptr::null_mut(), mapping_bytes, protection, flags) };
        let Some(mapping) = mapping.ok().and_then(|mapping| NonNull::new(mapping.cast::<u8>())) else {
            handle_alloc_error(Layout::new::<T>())
        };
        // SAFETY: the offset is below HUGE_PAGE, the mapping longer.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE_PAGE)) };
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: whole pages of our own mapping; the advice changes no contents. A refusal is no error.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
        HugeBox { start: start.cast(), len, mapping, mapping_bytes }
    }

    /// The values of `values`.
    pub fn of(values: &[T]) -> Self {
        let mut made = Self::zeroed(values.len(), true);
        made.copy_from_slice(values);
        made
    }
}

impl<T: Plain> Deref for HugeBox<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values of our mapping, initialised by zeros, which are a value (`Plain`).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for HugeBox<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for HugeBox<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `zeroed`; nothing else unmaps it, and no reference outlives `self`.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}
