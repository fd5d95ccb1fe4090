//! Asking for 2 MiB pages for the large buffers of the writer.
//!
//! A full table's Rib is some 20 MiB that updates touch at random, so most of an update's time is spent on misses of the
//! cache, and with 4 KiB pages on misses of the TLB as well. The advice is never required and costs nothing where the
//! system does not take it.

/// Buffers below this many bytes are left alone.
#[cfg(all(target_os = "linux", not(miri)))]
const LARGE: usize = 4 << 20;

/// Asks the system to back the spare and used memory of a large `buffer` with 2 MiB pages.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn ask_for_huge<T>(buffer: &mut Vec<T>) {
    let bytes = buffer.capacity() * size_of::<T>();
    if bytes < LARGE {
        return;
    }
    let page = rustix::param::page_size();
    let start = (buffer.as_mut_ptr() as usize).next_multiple_of(page);
    let end = (buffer.as_mut_ptr() as usize + bytes) / page * page;
    // SAFETY: the range lies inside an allocation that we hold exclusively, and the advice changes no contents.
    let _ =
        unsafe { rustix::mm::madvise(start as *mut core::ffi::c_void, end - start, rustix::mm::Advice::LinuxHugepage) };
}

/// Asks the system to back a large `buffer` with 2 MiB pages; not on this system.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn ask_for_huge<T>(_: &mut Vec<T>) {}
