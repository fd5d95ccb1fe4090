//! The time that a piece of work keeps this thread's processor busy: what lookups are measured by on a busy machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The processor time of this thread that `work` takes. What it takes while others have the processor does not count;
/// neither does waiting, so it is nothing for work that waits or that other threads do.
pub fn busy(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let start = now();
    work();
    now().saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_does_not_count() {
        let slept = busy(|| std::thread::sleep(Duration::from_millis(50)));
        assert!(slept < Duration::from_millis(50));
    }
}
