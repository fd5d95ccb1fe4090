//! Zeroed memory that starts on a 2 MiB boundary and is backed by 2 MiB pages if the kernel grants them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use rustix::mm::{Advice, madvise};

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
    start: NonNull<T>,
    len: usize,
    layout: Layout,
}

impl<T: Plain> HugeBox<T> {
    /// `len` zeros, and room for one cache line behind them. `huge` false asks for 4 KiB pages instead.
    pub fn zeroed(len: usize, huge: bool) -> Self {
        let bytes = (len * size_of::<T>() + 64).next_multiple_of(HUGE_PAGE);
        let Ok(layout) = Layout::from_size_align(bytes, HUGE_PAGE) else { handle_alloc_error(Layout::new::<T>()) };
        // SAFETY: the layout's size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the whole pages of our own allocation; the advice changes no contents. A refusal is no error.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
        HugeBox { start: start.cast(), len, layout }
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
        // SAFETY: `len` values of our allocation, initialised by zeros, which are a value (`Plain`).
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
        // SAFETY: allocated with this layout in `zeroed`, and nothing else frees it.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}
