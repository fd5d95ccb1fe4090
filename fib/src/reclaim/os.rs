//! What reclamation asks of the system: a barrier on all threads, a word to sleep on, the name of a thread, and whether
//! the process is a fork. Each has a portable stand-in, so that other systems, Miri and loom build the same code.

use std::time::Duration;

use crate::sync::AtomicU32;

/// Whether the barrier of a burst is the reader's own fence, whatever the system offers. Loom, Miri and ThreadSanitizer
/// do not know `membarrier`.
const READER_FENCES: bool =
    cfg!(any(loom, miri, feature = "reader-fences", not(any(target_os = "linux", target_os = "android"))));

/// Registers the process for [`membarrier`] and tries it once. False: readers must use fences of their own.
pub(super) fn register_membarrier() -> bool {
    if READER_FENCES {
        return false;
    }
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(loom, miri))))]
    {
        use rustix::thread::{MembarrierCommand, membarrier_query};
        let offered = membarrier_query();
        if !offered.contains_command(MembarrierCommand::RegisterPrivateExpedited)
            || !offered.contains_command(MembarrierCommand::PrivateExpedited)
        {
            return false;
        }
        if rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).is_err() {
            return false;
        }
    }
    membarrier()
}

/// A full memory barrier on every thread of the process that is running now; the others pass one when they are switched
/// in. False: the system refused (a seccomp filter that was installed later).
pub(super) fn membarrier() -> bool {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(any(loom, miri))))]
    let passed = rustix::thread::membarrier(rustix::thread::MembarrierCommand::PrivateExpedited).is_ok();
    #[cfg(not(all(any(target_os = "linux", target_os = "android"), not(any(loom, miri)))))]
    let passed = false;
    passed
}

/// Sleeps until [`futex_wake`], at most `timeout`, unless `word` is no longer `expected`. May wake for no reason.
pub(super) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    #[cfg(all(target_os = "linux", not(loom)))]
    {
        use rustix::thread::futex::{self, Flags, Timespec};
        let timeout = Timespec { tv_sec: timeout.as_secs().min(3600) as i64, tv_nsec: timeout.subsec_nanos() as _ };
        // Every outcome (woken, timed out, interrupted, the word has changed) means the same: look again.
        let _ = futex::wait(word, Flags::PRIVATE, expected, Some(&timeout));
    }
    #[cfg(loom)]
    {
        let _ = (word, expected, timeout);
        loom::thread::yield_now();
    }
    #[cfg(not(any(loom, target_os = "linux")))]
    {
        let _ = (word, expected);
        std::thread::sleep(timeout.min(Duration::from_micros(50)));
    }
}

/// Wakes the thread that sleeps on `word`.
pub(super) fn futex_wake(word: &AtomicU32) {
    #[cfg(all(target_os = "linux", not(loom)))]
    {
        use rustix::thread::futex::{self, Flags};
        let _ = futex::wake(word, Flags::PRIVATE, 1);
    }
    #[cfg(any(loom, not(target_os = "linux")))]
    let _ = word;
}

/// The calling thread's id, as `gettid` and `/proc` have it; 0 where the system has none.
pub(super) fn tid() -> u32 {
    #[cfg(all(target_os = "linux", not(loom)))]
    return rustix::thread::gettid().as_raw_nonzero().get() as u32;
    #[cfg(any(loom, not(target_os = "linux")))]
    return 0;
}

/// Whether thread `tid` of this process still runs. Where that cannot be known, the caller's word is taken for it: no.
pub(super) fn thread_runs(tid: u32) -> bool {
    cfg!(target_os = "linux") && std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
}

/// A number that differs between any two threads that run at the same time, never 0. One instruction, no system call.
#[inline(always)]
pub(super) fn thread_mark() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(loom, miri))))]
    {
        let thread_pointer: usize;
        // SAFETY: x86-64's ELF ABI keeps the thread pointer's own value at fs:0, on each thread, whoever created it.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer,
                options(pure, readonly, nostack, preserves_flags));
        }
        thread_pointer
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux", not(any(loom, miri))))]
    {
        let thread_pointer: usize;
        // SAFETY: reads the thread pointer register, which user space may do.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread_pointer, options(pure, nomem, nostack, preserves_flags));
        }
        thread_pointer
    }
    #[cfg(any(loom, miri, not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))))]
    {
        // Nothing is kept in this byte; its address tells threads apart. It is read through `std`, under loom as well,
        // where all model threads share one thread of the system and so one mark.
        std::thread_local! {
            static MARK: u8 = const { 0 };
        }
        MARK.with(|mark| std::ptr::from_ref(mark).addr())
    }
}

/// Tells a forked child from the process that created the mark, by one load.
///
/// A page that the kernel hands to a child zeroed (`MADV_WIPEONFORK`) holds a one; where that is missing, the process
/// ids are compared instead.
pub(super) struct ForkMark {
    #[cfg(all(target_os = "linux", not(any(loom, miri))))]
    page: Option<std::ptr::NonNull<std::sync::atomic::AtomicU32>>,
    pid: u32,
}

// SAFETY: the page is mapped from `new` to `drop`, written only in `new`, and read atomically.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Bytes of the mapping; the kernel rounds up to its page size by itself, for unmapping too.
    #[cfg(all(target_os = "linux", not(any(loom, miri))))]
    const BYTES: usize = 4096;

    pub(super) fn new() -> Self {
        ForkMark {
            #[cfg(all(target_os = "linux", not(any(loom, miri))))]
            page: Self::map(),
            pid: std::process::id(),
        }
    }

    #[cfg(all(target_os = "linux", not(any(loom, miri))))]
    fn map() -> Option<std::ptr::NonNull<std::sync::atomic::AtomicU32>> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), Self::BYTES, access, MapFlags::PRIVATE) }.ok()?;
        // SAFETY: the range is the mapping made above, which nothing else knows.
        if unsafe { madvise(page, Self::BYTES, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above.
            let _ = unsafe { munmap(page, Self::BYTES) };
            return None;
        }
        let page = std::ptr::NonNull::new(page.cast::<std::sync::atomic::AtomicU32>())?;
        // SAFETY: mapped, zeroed, page-aligned memory is a valid AtomicU32.
        unsafe { page.as_ref() }.store(1, std::sync::atomic::Ordering::Relaxed);
        Some(page)
    }

    /// Whether this process is a fork of the one that made the mark.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        #[cfg(all(target_os = "linux", not(any(loom, miri))))]
        if let Some(page) = self.page {
            // SAFETY: mapped until `drop`; in the child the kernel has put a zeroed page in its place.
            return unsafe { page.as_ref() }.load(std::sync::atomic::Ordering::Relaxed) == 0;
        }
        self.pid != std::process::id()
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", not(any(loom, miri))))]
        if let Some(page) = self.page {
            // SAFETY: mapped in `map` with this size, and no reference outlives `is_forked`.
            let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), Self::BYTES) };
        }
    }
}
