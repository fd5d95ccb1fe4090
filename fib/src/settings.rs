//! What an operator can change while packets flow, from any thread and without the writer.
//!
//! The settings are one immutable value behind an [`ArcSwap`]: a thread that changes one publishes a new value, the
//! writer notices at its next update. Packets never come here.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::reclaim::{Budget, StallPolicy, SyncMemOutOfRange};

/// The settings of reclamation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) sync_mem: usize,
    pub(crate) stall_policy: StallPolicy,
    pub(crate) nonblocking: bool,
}

/// The settings as every handle of a `Fib` shares them.
#[derive(Clone, Debug)]
pub(crate) struct SharedSettings(Arc<ArcSwap<Settings>>);

impl SharedSettings {
    /// Errors: a budget out of range.
    pub(crate) fn new(settings: Settings) -> Result<Self, SyncMemOutOfRange> {
        Budget::check(settings.sync_mem)?;
        Ok(SharedSettings(Arc::new(ArcSwap::from_pointee(settings))))
    }

    pub(crate) fn get(&self) -> Settings {
        **self.0.load()
    }

    pub(crate) fn set_sync_mem(&self, bytes: usize) -> Result<(), SyncMemOutOfRange> {
        Budget::check(bytes)?;
        self.change(|settings| settings.sync_mem = bytes);
        Ok(())
    }

    pub(crate) fn set_stall_policy(&self, policy: StallPolicy) {
        self.change(|settings| settings.stall_policy = policy);
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.change(|settings| settings.nonblocking = nonblocking);
    }

    /// Two threads that change different settings at a time lose neither.
    fn change(&self, change: impl Fn(&mut Settings)) {
        self.0.rcu(|settings| {
            let mut settings = **settings;
            change(&mut settings);
            settings
        });
    }
}

/// The writer's eye on the settings: one load and a compare when they have not changed.
pub(crate) struct Watch {
    cache: Cache<Arc<ArcSwap<Settings>>, Arc<Settings>>,
    seen: Settings,
}

impl Watch {
    pub(crate) fn new(settings: &SharedSettings) -> Self {
        let seen = settings.get();
        Watch { cache: Cache::new(Arc::clone(&settings.0)), seen }
    }

    /// The settings, if they are not those of the last call.
    #[inline]
    pub(crate) fn changed(&mut self) -> Option<Settings> {
        let now = **self.cache.load();
        if now == self.seen {
            return None;
        }
        self.seen = now;
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noticed_once() {
        let settings = Settings { sync_mem: 524_288, stall_policy: StallPolicy::default(), nonblocking: false };
        let shared = SharedSettings::new(settings).unwrap();
        let mut watch = Watch::new(&shared);
        assert_eq!(watch.changed(), None);
        let other = shared.clone();
        std::thread::spawn(move || other.set_sync_mem(65_536)).join().unwrap().unwrap();
        shared.set_nonblocking(true);
        assert_eq!(watch.changed(), Some(Settings { sync_mem: 65_536, nonblocking: true, ..settings }));
        assert_eq!(watch.changed(), None);
        for bytes in [0, 1, 65_535, 67_108_865, usize::MAX] {
            let refused = SyncMemOutOfRange { bytes, min: 65_536, max: 67_108_864 };
            assert_eq!(shared.set_sync_mem(bytes), Err(refused));
        }
        assert_eq!(watch.changed(), None);
    }
}
