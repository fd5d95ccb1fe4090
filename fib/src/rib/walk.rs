//! Reading in order: the routes of a prefix, the prefixes inside one, the prefixes that cover one.
//!
//! None of them allocates: a walk keeps one level for each step of the grid, of which there are 22 at most. Within a
//! node, ascending positions are ascending prefixes, and what lies below slot `s` comes right after the position of
//! `s` at full length:
//!
//! ```text
//! positions   ... /16   /17   /18 of slot s | child at slot s | positions of slots > s ...
//! ```

use crate::addr::{Addr, STEP_BITS};
use crate::grid;
use crate::prefix::Prefix;
use crate::route::Route;

use super::pool::NONE;
use super::{COVERING, End, MAX_STEPS, NodeRecord, RouteCell, Store, len_of, prefix_of, up_to};

/// The routes of one prefix, the winner first.
#[derive(Clone)]
pub(crate) struct Routes<'a> {
    store: &'a Store,
    next: u32,
}

impl<'a> Routes<'a> {
    pub(super) fn new(store: &'a Store, first: u32) -> Self {
        Routes { store, next: first }
    }

    pub(super) fn cells(self) -> impl Iterator<Item = &'a RouteCell> {
        let store = self.store;
        std::iter::successors((self.next != NONE).then(|| &store.cells[self.next]), |cell| {
            let next = cell.next();
            (next != NONE).then(|| &store.cells[next])
        })
    }
}

impl Iterator for Routes<'_> {
    type Item = Route;

    #[inline]
    fn next(&mut self) -> Option<Route> {
        if self.next == NONE {
            return None;
        }
        let cell = &self.store.cells[self.next];
        self.next = cell.next();
        Some(cell.route())
    }
}

/// A node of a walk and what of it is still to come.
#[derive(Clone, Copy)]
struct Level<'a> {
    record: &'a NodeRecord,
    prefix_words: [u64; 2],
    children: u64,
}

impl<'a> Level<'a> {
    /// The prefixes and children of `record` that are in the given maps.
    fn part(record: &'a NodeRecord, prefixes: u128, children: u64) -> Self {
        let prefixes = record.prefixes() & prefixes;
        Level { record, prefix_words: [prefixes as u64, (prefixes >> 64) as u64], children: record.children & children }
    }

    fn whole(record: &'a NodeRecord) -> Self {
        Level { record, prefix_words: record.prefix_words, children: record.children }
    }

    fn first_prefix(&self) -> Option<u32> {
        match self.prefix_words {
            [0, 0] => None,
            [0, high] => Some(64 + high.trailing_zeros()),
            [low, _] => Some(low.trailing_zeros()),
        }
    }

    fn drop_first_prefix(&mut self) {
        let word = usize::from(self.prefix_words[0] == 0);
        self.prefix_words[word] &= self.prefix_words[word].wrapping_sub(1);
    }
}

/// Prefixes by address, then length, each with its winning route.
#[derive(Clone)]
pub(crate) struct Walk<'a, A> {
    store: &'a Store,
    levels: [Level<'a>; MAX_STEPS],
    /// The level in work. Those above it wait, those below it are unused.
    step: usize,
    /// The address bits of the steps before `step`.
    base: A,
}

impl<'a, A: Addr> Walk<'a, A> {
    /// A walk that stands at the root and has nothing to come.
    fn nothing(store: &'a Store) -> Self {
        Walk { store, levels: [Level::part(&store.root, 0, 0); MAX_STEPS], step: 0, base: A::ZERO }
    }

    pub(super) fn within(store: &'a Store, prefix: Prefix<A>) -> Self {
        let end = End::of(prefix);
        let mut walk = Self::nothing(store);
        let mut record = &store.root;
        for step in 0..end.step {
            match store.child(record, prefix.addr().step_slot(step)) {
                Some(child) => record = child,
                None => return walk,
            }
        }
        walk.levels[end.step] =
            Level::part(record, grid::inside(end.position, end.len), grid::slots(end.slot, end.len));
        walk.stand_at(prefix.addr(), end.step);
        walk
    }

    pub(super) fn from(store: &'a Store, first: Prefix<A>) -> Self {
        let end = End::of(first);
        let mut walk = Self::nothing(store);
        let mut record = &store.root;
        for step in 0..end.step {
            let slot = first.addr().step_slot(step);
            // Everything up to this slot at full length is before `first`; below the slot, the next step decides.
            let passed = up_to(grid::position(slot, STEP_BITS));
            walk.levels[step] = Level::part(record, !passed, (!0 << slot) << 1);
            walk.stand_at(first.addr(), step);
            match store.child(record, slot) {
                Some(child) => record = child,
                None => return walk,
            }
        }
        walk.levels[end.step] = Level::part(record, !0 << end.position, !0 << end.slot);
        walk.stand_at(first.addr(), end.step);
        walk
    }

    fn stand_at(&mut self, addr: A, step: usize) {
        self.step = step;
        self.base = addr.and(A::mask(len_of::<A>(step, 0) as u8));
    }

    /// The next prefix and the first cell of its routes.
    #[inline]
    fn next_head(&mut self) -> Option<(Prefix<A>, u32)> {
        loop {
            let level = &mut self.levels[self.step];
            let position = level.first_prefix();
            let slot = level.children.trailing_zeros() as usize;
            if level.children != 0 && position.is_none_or(|position| grid::position(slot, STEP_BITS) < position) {
                level.children &= level.children - 1;
                let child = &self.store.nodes[level.record.child_index(slot)];
                self.base = self.base.or(A::from_step_slot(self.step, slot));
                self.step += 1;
                self.levels[self.step] = Level::whole(child);
            } else if let Some(position) = position {
                level.drop_first_prefix();
                let (slot, len) = grid::place(position);
                let addr = self.base.or(A::from_step_slot(self.step, slot));
                return Some((prefix_of(addr, len_of::<A>(self.step, len)), level.record.cell_index(position)));
            } else if self.step > 0 {
                self.stand_at(self.base, self.step - 1);
            } else {
                return None;
            }
        }
    }

    /// The next prefix with all its routes.
    #[inline]
    pub(crate) fn next_routes(&mut self) -> Option<(Prefix<A>, Routes<'a>)> {
        let (prefix, head) = self.next_head()?;
        Some((prefix, Routes::new(self.store, head)))
    }
}

impl<A: Addr> Iterator for Walk<'_, A> {
    type Item = (Prefix<A>, Route);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (prefix, head) = self.next_head()?;
        Some((prefix, self.store.cells[head].route()))
    }
}

/// The positions of `record` in `step` that cover `prefix`.
fn covers_in<A: Addr>(record: &NodeRecord, step: usize, prefix: Prefix<A>, end: End) -> u128 {
    let covers = record.prefixes() & COVERING[prefix.addr().step_slot(step)];
    if step == end.step { covers & up_to(end.position) } else { covers }
}

/// The prefixes that cover one, shortest first, each with its winning route.
#[derive(Clone)]
pub(crate) struct Covers<'a, A> {
    store: &'a Store,
    record: &'a NodeRecord,
    step: usize,
    /// The covers in `record` that are still to come.
    covers: u128,
    prefix: Prefix<A>,
    end: End,
}

impl<'a, A: Addr> Covers<'a, A> {
    pub(super) fn new(store: &'a Store, prefix: Prefix<A>) -> Self {
        let end = End::of(prefix);
        let record = &store.root;
        Covers { store, record, step: 0, covers: covers_in(record, 0, prefix, end), prefix, end }
    }
}

impl<A: Addr> Iterator for Covers<'_, A> {
    type Item = (Prefix<A>, Route);

    fn next(&mut self) -> Option<Self::Item> {
        while self.covers == 0 {
            if self.step == self.end.step {
                return None;
            }
            self.record = self.store.child(self.record, self.prefix.addr().step_slot(self.step))?;
            self.step += 1;
            self.covers = covers_in(self.record, self.step, self.prefix, self.end);
        }
        let position = self.covers.trailing_zeros();
        self.covers &= self.covers - 1;
        let (_, len) = grid::place(position);
        let cover = prefix_of(self.prefix.addr(), len_of::<A>(self.step, len));
        Some((cover, self.store.winner(self.record, position)))
    }
}

/// The prefixes that cover one, longest first, each with its winning route.
#[derive(Clone)]
pub(crate) struct CoversLongestFirst<'a, A> {
    store: &'a Store,
    records: [&'a NodeRecord; MAX_STEPS],
    step: usize,
    /// The covers in the record of `step` that are still to come.
    covers: u128,
    prefix: Prefix<A>,
    end: End,
}

impl<'a, A: Addr> CoversLongestFirst<'a, A> {
    pub(super) fn new(store: &'a Store, prefix: Prefix<A>) -> Self {
        let end = End::of(prefix);
        let mut records = [&store.root; MAX_STEPS];
        let mut step = 0;
        while step < end.step {
            let Some(child) = store.child(records[step], prefix.addr().step_slot(step)) else { break };
            step += 1;
            records[step] = child;
        }
        CoversLongestFirst { store, records, step, covers: covers_in(records[step], step, prefix, end), prefix, end }
    }
}

impl<A: Addr> Iterator for CoversLongestFirst<'_, A> {
    type Item = (Prefix<A>, Route);

    fn next(&mut self) -> Option<Self::Item> {
        while self.covers == 0 {
            self.step = self.step.checked_sub(1)?;
            self.covers = covers_in(self.records[self.step], self.step, self.prefix, self.end);
        }
        let position = 127 - self.covers.leading_zeros();
        self.covers &= !(1 << position);
        let (_, len) = grid::place(position);
        let cover = prefix_of(self.prefix.addr(), len_of::<A>(self.step, len));
        Some((cover, self.store.winner(self.records[self.step], position)))
    }
}
