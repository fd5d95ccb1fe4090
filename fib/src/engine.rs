//! What the writer works with, whichever table it changes: arena, reclamation, and the buffers of a plan.

use std::sync::Arc;
use std::time::Duration;

use crate::addr::Addr;
use crate::error::{FibError, OutOfMemory, Resource};
use crate::reclaim::{AdmitError, Budget, Domain, Limbo, Retired};
use crate::settings::{SharedSettings, Watch};
use crate::trie::arena::Arena;
use crate::trie::lookup::Cpu;
use crate::trie::node::{Entry, Nodes};
use crate::trie::update::{Block, Plan, Trie};

impl Retired for Block {
    fn bytes(&self) -> usize {
        Block::bytes(*self)
    }
}

/// The writer's tools.
pub(crate) struct Engine {
    pub(crate) arena: Arena,
    pub(crate) nodes: Nodes,
    pub(crate) cpu: Cpu,
    pub(crate) limbo: Limbo<Block>,
    pub(crate) plan: Plan,
    settings: Watch,
}

impl Engine {
    pub(crate) fn new(
        arena: Arena,
        cpu: Cpu,
        domain: Arc<Domain>,
        settings: &SharedSettings,
    ) -> Result<Engine, FibError> {
        let nodes = Nodes::new(arena.mapping().base());
        let mut limbo = Limbo::new(domain, Budget::new(settings.get().sync_mem)?);
        limbo.set_stall_policy(settings.get().stall_policy);
        let settings = Watch::new(settings);
        Ok(Engine { arena, nodes, cpu, limbo, plan: Plan::default(), settings })
    }

    /// Called once before an operation changes anything: waits for readers, or fails, when the budget is used up.
    pub(crate) fn admit(&mut self) -> Result<(), FibError> {
        if let Some(settings) = self.settings.changed() {
            self.limbo.set_sync_mem(settings.sync_mem)?;
            self.limbo.set_stall_policy(settings.stall_policy);
            self.limbo.set_nonblocking(settings.nonblocking);
        }
        let arena = &mut self.arena;
        self.limbo.admit(&mut |block: Block| block.free(arena))?;
        Ok(())
    }

    /// Reclaims a few blocks outside any update; the dirty bytes left.
    pub(crate) fn poll(&mut self) -> usize {
        let arena = &mut self.arena;
        self.limbo.poll(&mut |block: Block| block.free(arena))
    }

    /// Reclaims all that can be without waiting; the dirty bytes left.
    pub(crate) fn reclaim(&mut self) -> usize {
        let arena = &mut self.arena;
        self.limbo.reclaim(&mut |block: Block| block.free(arena))
    }

    /// Waits for all readers, and reclaims all that was retired so far.
    pub(crate) fn synchronize(&mut self, limit: Option<Duration>) -> Result<(), AdmitError> {
        let arena = &mut self.arena;
        self.limbo.synchronize(limit, &mut |block: Block| block.free(arena))
    }

    /// Runs `plan` with the arena's slack allowed: for changes that remove routes, which a full arena must not refuse.
    pub(crate) fn with_slack<T>(&mut self, plan: impl FnOnce(&mut Engine) -> T) -> T {
        self.arena.allow_slack(true);
        let planned = plan(self);
        self.arena.allow_slack(false);
        planned
    }

    /// Runs `plan`, which fills [`Engine::plan`], for a change that may need more node memory than before.
    #[inline]
    pub(crate) fn plan_insertion(
        &mut self,
        mut plan: impl FnMut(&mut Engine) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        match plan(self) {
            Err(refused @ OutOfMemory { resource: Resource::Arena, limit: 1.., .. }) => {
                self.plan_at_the_limit(refused, plan)
            }
            planned => planned,
        }
    }

    /// Once more, after `refused`: the limit is on what the tables hold, and what stood in the way may be memory that
    /// readers have let go of, or that they are about to: blocks retired before, and those that this plan replaces.
    /// The slack is for those, and the plan is kept if the tables alone stay within the limit.
    #[cold]
    #[inline(never)]
    fn plan_at_the_limit(
        &mut self,
        refused: OutOfMemory,
        plan: impl FnOnce(&mut Engine) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        self.reclaim();
        self.with_slack(plan).map_err(|_| refused)?;
        let retired = self.limbo.dirty_bytes() + self.plan.retired_bytes();
        if self.arena.live_bytes() - retired > self.arena.limit_bytes() {
            self.plan.abandon(&mut self.arena);
            return Err(refused);
        }
        Ok(())
    }

    /// Makes room for what the plan will retire; without it the plan is abandoned.
    pub(crate) fn reserve_retirement(&mut self) -> Result<(), OutOfMemory> {
        let reserved = self.limbo.reserve(self.plan.retired_blocks());
        if reserved.is_err() {
            self.plan.abandon(&mut self.arena);
        }
        reserved
    }

    /// Publishes the plan; whether a node on its path asks for another span.
    pub(crate) fn publish<A: Addr>(&mut self, trie: &mut Trie<A>, entry: &Entry) -> bool {
        let limbo = &mut self.limbo;
        trie.publish(self.nodes, &mut self.plan, entry, |block| limbo.retire(block))
    }

    /// As [`Engine::publish`] for a plan of the caller's own.
    pub(crate) fn publish_plan<A: Addr>(&mut self, plan: &mut Plan, trie: &mut Trie<A>, entry: &Entry) -> bool {
        let limbo = &mut self.limbo;
        trie.publish(self.nodes, plan, entry, |block| limbo.retire(block))
    }

    /// Called once after each operation: reclaims a few blocks whose grace period has passed.
    pub(crate) fn step(&mut self) {
        let arena = &mut self.arena;
        self.limbo.step(&mut |block: Block| block.free(arena));
    }
}
