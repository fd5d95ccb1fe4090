//! On which core does a thread run, who shares it, and how much processor time did the thread get?

use std::time::Duration;

/// Which thread goes to which core: the writer to the first, the readers to the others in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    writer: usize,
    readers: Vec<usize>,
}

impl Placement {
    /// A writer and `readers` readers on the cores that this process may use.
    pub fn of(readers: usize) -> Placement {
        Placement::on(&allowed(), readers)
    }

    fn on(cores: &[usize], readers: usize) -> Placement {
        let (writer, others) = match cores {
            [] => (0, &[][..]),
            [only] => (*only, &[][..]),
            [writer, others @ ..] => (*writer, others),
        };
        let readers = (0..readers).map(|index| if others.is_empty() { writer } else { others[index % others.len()] });
        Placement { writer, readers: readers.collect() }
    }

    /// The writer's core.
    pub fn writer(&self) -> usize {
        self.writer
    }

    /// The core of each reader.
    pub fn readers(&self) -> &[usize] {
        &self.readers
    }

    /// Whether no two threads share a core. Other programs may still want one of them.
    pub fn is_exclusive(&self) -> bool {
        let mut all: Vec<usize> = self.readers.iter().copied().chain([self.writer]).collect();
        all.sort_unstable();
        all.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// The placement in words.
    pub fn describe(&self) -> String {
        let readers: Vec<String> = self.readers.iter().map(usize::to_string).collect();
        let shared = if self.is_exclusive() { "each its own" } else { "SHARED: more threads than cores" };
        format!("writer on core {}, readers on {} ({shared})", self.writer, readers.join(" "))
    }
}

/// Processor time of a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTime {
    /// In the program.
    pub user: Duration,
    /// In the system.
    pub sys: Duration,
}

impl CpuTime {
    /// What was used since `before`.
    pub fn since(self, before: CpuTime) -> CpuTime {
        CpuTime { user: self.user.saturating_sub(before.user), sys: self.sys.saturating_sub(before.sys) }
    }
}

pub use system::{Pin, allowed, thread_time};

#[cfg(target_os = "linux")]
mod system {
    use std::mem;
    use std::time::Duration;

    use super::CpuTime;

    /// Keeps the calling thread on one core until it is dropped, on the same thread.
    #[derive(Debug)]
    pub struct Pin {
        before: libc::cpu_set_t,
    }

    impl Pin {
        /// Pins the calling thread; `None` when the system refuses.
        pub fn to(core: usize) -> Option<Pin> {
            let before = mask()?;
            // SAFETY: a `cpu_set_t` is an array of integers, for which zero is a value.
            let mut wanted: libc::cpu_set_t = unsafe { mem::zeroed() };
            if core >= 8 * size_of::<libc::cpu_set_t>() {
                return None;
            }
            // SAFETY: `core` is below the number of bits of the set.
            unsafe { libc::CPU_SET(core, &mut wanted) };
            set_mask(&wanted).then_some(Pin { before })
        }
    }

    impl Drop for Pin {
        fn drop(&mut self) {
            // It was granted before; should it be refused now, the thread stays where it is.
            let _ = set_mask(&self.before);
        }
    }

    fn mask() -> Option<libc::cpu_set_t> {
        // SAFETY: as in `Pin::to`.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the system writes at most as many bytes as the set has; 0 is the calling thread.
        (unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } == 0).then_some(set)
    }

    fn set_mask(set: &libc::cpu_set_t) -> bool {
        // SAFETY: the system reads as many bytes as the set has; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) == 0 }
    }

    /// The cores that the calling thread may use, ascending.
    pub fn allowed() -> Vec<usize> {
        let Some(set) = mask() else { return Vec::new() };
        // SAFETY: the index is below the number of bits of the set.
        (0..8 * size_of::<libc::cpu_set_t>()).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
    }

    /// Processor time of the calling thread so far.
    pub fn thread_time() -> CpuTime {
        // SAFETY: an `rusage` is a struct of integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { mem::zeroed() };
        // SAFETY: the system writes one `rusage`. An error leaves the zeros.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let time = |value: libc::timeval| {
            Duration::from_secs(value.tv_sec.max(0) as u64) + Duration::from_micros(value.tv_usec.max(0) as u64)
        };
        CpuTime { user: time(usage.ru_utime), sys: time(usage.ru_stime) }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::CpuTime;

    /// Threads cannot be pinned here.
    #[derive(Debug)]
    pub struct Pin;

    impl Pin {
        /// `None`.
        pub fn to(_core: usize) -> Option<Pin> {
            None
        }
    }

    /// As many numbers as there are cores.
    pub fn allowed() -> Vec<usize> {
        (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
    }

    /// Not known here: zero.
    pub fn thread_time() -> CpuTime {
        CpuTime::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_has_a_core_of_its_own_when_there_are_two() {
        let placement = Placement::on(&[3, 5, 9], 2);
        assert_eq!((placement.writer(), placement.readers()), (3, &[5, 9][..]));
        assert!(placement.is_exclusive());
        let placement = Placement::on(&[3, 5, 9], 3);
        assert_eq!(placement.readers(), [5, 9, 5]);
        assert!(!placement.is_exclusive() && placement.describe().contains("SHARED"), "{}", placement.describe());
        let placement = Placement::on(&[4], 1);
        assert_eq!((placement.writer(), placement.readers()), (4, &[4][..]));
        assert!(!placement.is_exclusive());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pin_holds_until_it_is_dropped() {
        let before = allowed();
        assert!(!before.is_empty());
        let pin = Pin::to(before[0]).unwrap();
        assert_eq!(allowed(), before[..1]);
        drop(pin);
        assert_eq!(allowed(), before);
        assert!(Pin::to(1 << 20).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processor_time_grows() {
        let before = thread_time();
        let mut sum = 0u64;
        while thread_time().since(before).user < Duration::from_millis(10) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(thread_time().since(before).user >= Duration::from_millis(10));
    }
}
