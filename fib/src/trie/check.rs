//! Walks a whole trie: asserts each numbered invariant of `trie/mod.rs` against the Rib, and counts what is there.

use super::node::{Child, Entry, Image, Nodes, Runs, Slot, Width};
use super::resize::{self, dense_slots};
use super::update::{Counts, Trie, own_image, root_population};
use crate::addr::{Addr, STEP_BITS, STEP_SLOTS};
use crate::prefix::Prefix;
use crate::rib::{self, Rib};
use crate::trie::arena::Arena;

/// How a trie is filled, from a walk of all of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) counts: Counts,
    pub(crate) stored_slots: usize,
    /// Nodes by the key bit they start at.
    pub(crate) nodes_by_depth: Vec<(u8, usize)>,
    /// Offset and bytes of every block.
    pub(crate) blocks: Vec<(u32, usize)>,
}

struct Walk<'a, A: Addr> {
    nodes: Nodes,
    width: Width,
    shape: Shape,
    by_step: Vec<usize>,
    trie: &'a Trie<A>,
    resizes_skipped: bool,
}

/// Checks `trie` and its published `entry` against `rib`; the error names the invariant and the place.
pub(crate) fn check<A: Addr>(
    trie: &Trie<A>,
    nodes: Nodes,
    entry: &Entry,
    rib: &Rib<A>,
    footprint_units: u32,
    resizes_skipped: bool,
) -> Result<Shape, String> {
    let root = trie.root;
    if entry.root() != root {
        return Err(format!("I9: the published root is {:?}, the writer's {root:?}", entry.root()));
    }
    let default = rib.get(Prefix::DEFAULT).map_or(Slot::MISS, |route| Slot::hop(route.next_hop));
    if entry.default().slot() != default {
        return Err(format!("I6: the default is {:?}, the Rib says {default:?}", entry.default().slot()));
    }
    let mut walk = Walk {
        nodes,
        width: root.width,
        shape: Shape::default(),
        by_step: vec![0; A::STEPS + 1],
        trie,
        resizes_skipped,
    };
    walk.subtree(Some(rib.root()), 0, Slot::dense(root.offset, root.steps), Slot::MISS, A::ZERO)?;
    let mut shape = walk.shape;
    shape.nodes_by_depth = depths::<A>(&walk.by_step);
    if shape.counts != trie.counts {
        return Err(format!("I8: counted {:?}, a recount gives {:?}", trie.counts, shape.counts));
    }
    shape.blocks.sort_unstable();
    let mut end = 1;
    for &(offset, bytes) in &shape.blocks {
        if offset < end {
            return Err(format!("I1: block at {offset} overlaps the one that ends at {end}"));
        }
        end = offset + (bytes / 8) as u32;
    }
    if end > footprint_units {
        return Err(format!("I1: a block ends at {end}, behind the arena's {footprint_units}"));
    }
    Ok(shape)
}

/// Counts what `trie` consists of.
pub(crate) fn shape<A: Addr>(trie: &Trie<A>, nodes: Nodes) -> Shape {
    let mut walk = Walk {
        nodes,
        width: trie.root.width,
        shape: Shape::default(),
        by_step: vec![0; A::STEPS + 1],
        trie,
        resizes_skipped: false,
    };
    walk.count(0, Slot::dense(trie.root.offset, trie.root.steps));
    let mut shape = walk.shape;
    shape.nodes_by_depth = depths::<A>(&walk.by_step);
    shape
}

fn depths<A: Addr>(by_step: &[usize]) -> Vec<(u8, usize)> {
    let depth = |step: usize| (step as u32 * STEP_BITS).saturating_sub(if step == 0 { 0 } else { A::LEAD }) as u8;
    by_step.iter().enumerate().filter(|(_, nodes)| **nodes > 0).map(|(step, nodes)| (depth(step), *nodes)).collect()
}

impl<A: Addr> Walk<'_, A> {
    fn note_sparse(&mut self, step: usize, offset: u32, stored: usize) {
        let bytes = Arena::block_bytes(self.nodes.sparse_block_bytes(self.width, offset));
        self.shape.counts.sparse_nodes += 1;
        self.shape.counts.bytes += bytes;
        self.shape.stored_slots += stored;
        self.shape.blocks.push((offset, bytes));
        self.by_step[step] += 1;
    }

    fn note_dense(&mut self, step: usize, offset: u32, slots: usize) {
        let bytes = Arena::dense_block_bytes(slots * 4);
        self.shape.counts.dense_nodes += 1;
        self.shape.counts.bytes += bytes;
        self.shape.blocks.push((offset, bytes));
        self.by_step[step] += 1;
    }

    fn count(&mut self, step: usize, slot: Slot) {
        match slot.child() {
            Child::Leaf => {}
            Child::Sparse(offset) => {
                let word = self.nodes.word(offset);
                let stored = word.count_ones() as usize;
                self.note_sparse(step, offset, stored);
                for rank in 0..stored {
                    self.count(step + 1, self.nodes.stored_slot(self.width, offset, word, rank));
                }
            }
            Child::Dense(offset, steps) => {
                let slots = dense_slots(A::LEAD, step, steps);
                self.note_dense(step, offset, slots);
                for index in 0..slots {
                    self.count(step + steps, self.nodes.dense(offset, index));
                }
            }
        }
    }

    /// Checks the subtree behind `slot`, which starts at grid step `step` at address `at` and where prefixes above
    /// give `inherited`.
    fn subtree(
        &mut self,
        rib: Option<rib::Node<'_>>,
        step: usize,
        slot: Slot,
        inherited: Slot,
        at: A,
    ) -> Result<(), String> {
        let place = || format!("{} at grid step {step}", at.to_ip());
        let population = rib.map_or(0, |rib| rib.population());
        match slot.child() {
            Child::Leaf => self.uniform(rib, step, slot, inherited, at),
            child if population == 0 && step > 0 => Err(format!("I5: {child:?} without routes, {}", place())),
            Child::Sparse(offset) => {
                let word = self.nodes.word(offset);
                let stored = word.count_ones() as usize;
                if word & 1 == 0 {
                    return Err(format!("I2: word {word:#x} without bit 0, {}", place()));
                }
                if stored < 2 {
                    return Err(format!("I3: a node with {stored} stored slots, {}", place()));
                }
                let image = self.nodes.expand(self.width, offset);
                let runs = Runs::of_image(&image);
                if runs.word() != word {
                    return Err(format!("I2: word {word:#x} of slots {image:?}, {}", place()));
                }
                if self.width != Width::W32 {
                    // Children read through their numbers; distinct offsets in slot order show that numbers are too.
                    if runs.block_bytes(self.width) != self.nodes.sparse_block_bytes(self.width, offset) {
                        return Err(format!("I4: the children of {image:?} do not fit the block, {}", place()));
                    }
                }
                self.note_sparse(step, offset, stored);
                self.slots(rib, step, inherited, at, STEP_SLOTS, |slot| image[slot])
            }
            Child::Dense(offset, steps) => {
                let slots = dense_slots(A::LEAD, step, steps);
                self.note_dense(step, offset, slots);
                let asked = if step == 0 {
                    resize::root_steps::<A>(rib.map_or(0, root_population::<A>), steps, self.trie.root_limit)
                } else {
                    resize::inner_steps::<A>(population, step, steps, self.trie.root.steps, self.trie.root_limit)
                };
                if !self.resizes_skipped && (step == 0 && asked != steps || asked < steps) {
                    return Err(format!("I7: {steps} steps for {population} prefixes instead of {asked}, {}", place()));
                }
                self.dense(rib, step, offset, 0, steps, inherited, at)
            }
        }
    }

    /// Checks the `64^steps` slots from `first` on of a dense node.
    #[allow(clippy::too_many_arguments)]
    fn dense(
        &mut self,
        rib: Option<rib::Node<'_>>,
        step: usize,
        offset: u32,
        first: usize,
        steps: usize,
        inherited: Slot,
        at: A,
    ) -> Result<(), String> {
        let below = 1 << (6 * (steps - 1));
        let slots = dense_slots(A::LEAD, step, steps) / below;
        if steps == 1 {
            let nodes = self.nodes;
            return self.slots(rib, step, inherited, at, slots, |slot| nodes.dense(offset, first + slot));
        }
        let image = expected(rib, step, inherited, A::LEAD);
        for (slot, inherited) in image.into_iter().enumerate().take(slots) {
            let child = rib.and_then(|rib| rib.child(slot));
            let at = at.or(A::from_step_slot(step, slot));
            self.dense(child, step + 1, offset, first + slot * below, steps - 1, inherited, at)?;
        }
        Ok(())
    }

    fn slots(
        &mut self,
        rib: Option<rib::Node<'_>>,
        step: usize,
        inherited: Slot,
        at: A,
        slots: usize,
        read: impl Fn(usize) -> Slot,
    ) -> Result<(), String> {
        let image = expected(rib, step, inherited, A::LEAD);
        for (slot, inherited) in image.into_iter().enumerate().take(slots) {
            let child = rib.and_then(|rib| rib.child(slot));
            if step + 1 == A::STEPS && read(slot).is_child() {
                return Err(format!("I1: a child behind the last grid step, {}", at.to_ip()));
            }
            self.subtree(child, step + 1, read(slot), inherited, at.or(A::from_step_slot(step, slot)))?;
        }
        Ok(())
    }

    /// Checks that all routes below and `inherited`, where it shows, say what the leaf `slot` says.
    fn uniform(
        &self,
        rib: Option<rib::Node<'_>>,
        step: usize,
        slot: Slot,
        inherited: Slot,
        at: A,
    ) -> Result<(), String> {
        let Some(rib) = rib else {
            return if slot == inherited {
                Ok(())
            } else {
                Err(format!("I6: slot {slot:?} instead of {inherited:?}, {} at grid step {step}", at.to_ip()))
            };
        };
        let image = expected(Some(rib), step, inherited, A::LEAD);
        for (index, inherited) in image.into_iter().enumerate() {
            self.uniform(rib.child(index), step + 1, slot, inherited, at.or(A::from_step_slot(step, index)))?;
        }
        Ok(())
    }
}

fn expected(rib: Option<rib::Node<'_>>, step: usize, inherited: Slot, lead: u32) -> Image {
    match rib {
        Some(rib) => own_image(rib, step, inherited, lead),
        None => [inherited; STEP_SLOTS],
    }
}
