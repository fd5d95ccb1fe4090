//! Makes the n-th reservation of a test fail. Outside the crate's own tests [`fails`] is a constant `false`.
//!
//! Every place that asks for memory on the writer's path asks here first, so that one test can make each
//! reservation of each kind of update fail in turn.

/// Whether the reservation that is about to be made must fail: never, outside tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn fails() -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static COUNTDOWN: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Whether the reservation that is about to be made must fail.
#[cfg(test)]
pub(crate) fn fails() -> bool {
    COUNTDOWN.with(|countdown| match countdown.get() {
        None => false,
        Some(0) => true,
        Some(left) => {
            countdown.set(Some(left - 1));
            false
        }
    })
}

/// Lets the next `passing` reservations of this thread pass and all after them fail; `None` disarms.
#[cfg(test)]
pub(crate) fn arm(passing: Option<u64>) {
    COUNTDOWN.with(|countdown| countdown.set(passing));
}
