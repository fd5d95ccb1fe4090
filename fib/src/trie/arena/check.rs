//! Whether the arena's invariants hold, as far as it can see them itself: it does not know the live blocks.

use super::free_lists::{DENSE_CLASSES, MAX_RUN_UNITS, POISON, POISON_BYTE, SMALL_CLASSES, dense_class, small_class};
use super::merge::UnitSet;
use super::{Arena, PAD, START, UNIT, UNITS_PER_QUANTUM};

impl Arena {
    /// Walks all lists and asserts A1 to A6 as far as the arena can see them: it does not know the live blocks.
    pub(crate) fn check(&self) -> Result<(), String> {
        let fail = |what: String| Err(format!("arena: {what}"));
        if !self.top.is_multiple_of(UNITS_PER_QUANTUM) || self.top < START {
            return fail(format!("A2: top {} is not a quantum", self.top));
        }
        if self.top > self.slack_cap || self.top as usize * UNIT + PAD > self.pages.committed() {
            return fail(format!(
                "A3: top {}, slack cap {}, committed {} bytes",
                self.top,
                self.slack_cap,
                self.pages.committed()
            ));
        }
        if self.pages.committed() > self.mapping().reserved_bytes() || self.pages.huge_taken() > self.pages.committed()
        {
            return fail(format!("committed {}, huge {}", self.pages.committed(), self.pages.huge_taken()));
        }
        for (start, end) in [(0, START), (self.slack_cap, self.slack_cap + (PAD / UNIT) as u32)] {
            for offset in start..end.min((self.pages.committed() / UNIT) as u32) {
                // SAFETY: committed, and never written (A4).
                let word = unsafe { self.mapping().at(offset).cast::<u64>().read() };
                if word != 0 {
                    return fail(format!("A4: {word:#x} is stored at reserved offset {offset}"));
                }
            }
        }
        if self.lists.window > self.lists.window_end || self.lists.window_end > self.top || self.lists.window < START {
            return fail(format!("A1: window {}..{}, top {}", self.lists.window, self.lists.window_end, self.top));
        }

        let mut free = UnitSet::default();
        if !free.try_reserve(self.top) {
            return fail("no memory for the check".to_string());
        }
        let mut free_units = 0;
        let mut add = |offset: u32, units: u32| {
            let bounds = START..=self.top;
            let end = offset.saturating_add(units);
            if !bounds.contains(&offset) || !bounds.contains(&end) {
                return fail(format!("A1: free block {offset} of {units} units leaves {START}..{}", self.top));
            }
            if free.intersects(offset, units) {
                return fail(format!("A1: free block {offset} of {units} units overlaps another"));
            }
            free.insert_run(offset, units);
            free_units += units;
            Ok(())
        };
        add(self.lists.window, self.lists.window_end - self.lists.window)?;
        for class in 0..SMALL_CLASSES {
            let mut offset = self.lists.small[class];
            if (offset != 0) != (self.lists.small_map >> class & 1 == 1) {
                return fail(format!("A5: small list {class} starts with {offset}"));
            }
            while offset != 0 {
                add(offset, 1)?;
                let units = self.lists.small_units(class, offset);
                if units == 0 || units > MAX_RUN_UNITS || small_class(units) != class {
                    return fail(format!("A5: block {offset} of {units} units is in small list {class}"));
                }
                add(offset + 1, units - 1)?;
                self.check_poison(offset, units)?;
                offset = self.lists.next(offset);
            }
        }
        for class in 0..DENSE_CLASSES {
            let mut offset = self.lists.dense[class];
            if (offset != 0) != (self.lists.dense_map >> class & 1 == 1) {
                return fail(format!("A5: dense list {class} starts with {offset}"));
            }
            while offset != 0 {
                if !offset.is_multiple_of(UNITS_PER_QUANTUM) {
                    return fail(format!("A2: dense block {offset} is not at a quantum"));
                }
                add(offset, 1)?;
                let quanta = self.lists.size(offset);
                if quanta == 0 || quanta > self.top / UNITS_PER_QUANTUM || dense_class(quanta) != class {
                    return fail(format!("A5: block {offset} of {quanta} quanta is in dense list {class}"));
                }
                add(offset + 1, quanta * UNITS_PER_QUANTUM - 1)?;
                self.check_poison(offset, quanta * UNITS_PER_QUANTUM)?;
                offset = self.lists.next(offset);
            }
        }
        if self.live + free_units != self.top - START {
            return fail(format!("A6: {} live and {free_units} free units below top {}", self.live, self.top));
        }
        Ok(())
    }

    /// Whether a free block still holds poison, or zeros where its pages were given back, behind its first unit.
    fn check_poison(&self, offset: u32, units: u32) -> Result<(), String> {
        if !POISON {
            return Ok(());
        }
        // SAFETY: a free block below the top (asserted by the caller), which only the writer touches; 8-byte aligned.
        let words = unsafe { std::slice::from_raw_parts(self.mapping().at(offset).cast::<u64>(), units as usize) };
        match words[1..].iter().find(|&&word| word != u64::from_ne_bytes([POISON_BYTE; 8]) && word != 0) {
            Some(word) => Err(format!("arena: free block {offset} of {units} units was written to: {word:#x}")),
            None => Ok(()),
        }
    }
}
