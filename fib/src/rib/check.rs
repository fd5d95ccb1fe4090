//! Asserts the numbered invariants of the module.

use crate::addr::Addr;
use crate::grid;

use super::pool::{Block, Item, NONE, Pool};
use super::{MAX_LENGTHS, NodeRecord, Rib, len_of};

/// The items of a pool that are known to belong to some block.
struct Owned {
    items: Vec<bool>,
    pool: &'static str,
}

impl Owned {
    fn new<T: Item>(pool: &Pool<T>, name: &'static str) -> Self {
        Owned { items: vec![false; pool.len()], pool: name }
    }

    fn claim(&mut self, start: u32, size: u32) -> Result<(), String> {
        for index in start as usize..start as usize + size as usize {
            match self.items.get_mut(index) {
                Some(owned @ false) => *owned = true,
                Some(true) => return Err(format!("item {index} of {} is in two blocks", self.pool)),
                None => return Err(format!("item {index} of {} is past the end", self.pool)),
            }
        }
        Ok(())
    }

    fn claim_array(&mut self, block: Block, count: u32) -> Result<(), String> {
        if count > block.size() {
            return Err(format!("a block of {} {} holds {count}", block.size(), self.pool));
        }
        if count > 0 { self.claim(block.start, block.size()) } else { Ok(()) }
    }

    fn claim_free<T: Item>(&mut self, pool: &Pool<T>) -> Result<(), String> {
        for block in pool.free_list()? {
            self.claim(block.start, block.size())?;
        }
        match self.items.iter().position(|owned| !owned) {
            Some(index) => Err(format!("item {index} of {} is in no block", self.pool)),
            None => Ok(()),
        }
    }
}

struct Count {
    by_len: [u32; MAX_LENGTHS],
    routes: usize,
    cells: Owned,
    nodes: Owned,
}

impl<A: Addr> Rib<A> {
    /// Counts everything anew and compares; the error says what is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut count = Count {
            by_len: [0; MAX_LENGTHS],
            routes: 0,
            cells: Owned::new(&self.store.cells, "cells"),
            nodes: Owned::new(&self.store.nodes, "nodes"),
        };
        self.check_node(&self.store.root, 0, &mut count)?;
        count.cells.claim_free(&self.store.cells)?;
        count.nodes.claim_free(&self.store.nodes)?;
        if count.by_len != self.count_by_len {
            return Err(format!("prefixes by length are {:?}, counted {:?}", self.count_by_len, count.by_len));
        }
        if count.routes != self.route_count {
            return Err(format!("routes are {}, counted {}", self.route_count, count.routes));
        }
        if self.prefix_count() == 0 && self.store.cells.len() + self.store.nodes.len() > 0 {
            return Err("an empty Rib has blocks".into());
        }
        Ok(())
    }

    /// Checks `record`, a node of `step`, and returns its population.
    fn check_node(&self, record: &NodeRecord, step: usize, count: &mut Count) -> Result<u32, String> {
        if step >= A::STEPS {
            return Err(format!("a node of step {step}"));
        }
        if step > 0 && record.is_empty() {
            return Err(format!("an empty node of step {step}"));
        }
        count.cells.claim_array(record.cells_block(), record.prefix_count())?;
        count.nodes.claim_array(record.nodes_block(), record.child_count())?;

        let mut prefixes = record.prefixes();
        while prefixes != 0 {
            let position = prefixes.trailing_zeros();
            prefixes &= prefixes - 1;
            let (slot, len) = grid::place(position);
            // A step holds what ends in it: lengths 1 to 6, and the default route in step 0 as no bits or padding.
            let shortest = if step == 0 { A::LEAD } else { 1 };
            let prefix_len = len_of::<A>(step, len);
            if len < shortest || prefix_len > u32::from(A::BITS) {
                return Err(format!("a prefix of {len} grid bits in step {step}"));
            }
            if A::from_step_slot(step, slot).step_slot(step) != slot {
                return Err(format!("a prefix in slot {slot} of step {step}, which is padding"));
            }
            count.by_len[prefix_len as usize] += 1;
            self.check_routes(record.cell_index(position), count)?;
        }

        let mut population = record.prefix_count();
        for child in record.nodes_start..record.nodes_start + record.child_count() {
            population += self.check_node(&self.store.nodes[child], step + 1, count)?;
        }
        if population != record.population {
            return Err(format!("a node of step {step} says {} prefixes, counted {population}", record.population));
        }
        Ok(population)
    }

    /// Checks the list of routes that starts in cell `head`.
    fn check_routes(&self, head: u32, count: &mut Count) -> Result<(), String> {
        let mut group = Vec::new();
        let mut cell = head;
        while cell != NONE {
            if cell != head {
                count.cells.claim(cell, 1)?;
            }
            let route = self.store.cells[cell].route();
            count.routes += 1;
            match group.last() {
                Some(&(priority, _, _)) if priority > route.priority => {
                    return Err(format!("priority {priority} before {}", route.priority));
                }
                Some(&(priority, _, _)) if priority < route.priority => check_distinct(&mut group)?,
                _ => {}
            }
            group.push((route.priority, route.next_hop, route.owner));
            cell = self.store.cells[cell].next();
        }
        check_distinct(&mut group)
    }
}

/// Empties a list of (priority, next hop, owner) in which no two may be equal.
fn check_distinct<T: Ord + std::fmt::Debug>(group: &mut Vec<T>) -> Result<(), String> {
    group.sort_unstable();
    let twice = group.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| format!("{:?} is there twice", pair[0]));
    group.clear();
    twice.map_or(Ok(()), Err)
}
