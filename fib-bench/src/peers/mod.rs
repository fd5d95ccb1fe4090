//! What users would take instead of the library, and how `compare` asks all of them the same questions.
//!
//! ```text
//! routes ───────── load ──────> Peer (one table; ours among them) ── pass ───> nothing but time
//! addresses ─ in each native form ─┘                               ├ answers > next hops, to be checked
//!                                                                  └ chain ──> time of dependent lookups
//! ```
//!
//! 1. A pass looks up all addresses in calls of the batch size; answers go into one buffer that the next call
//!    overwrites, as in a forwarding loop. Every subject does this in the same way.
//! 2. Addresses stand ready in the form that the subject wants ([`Addresses`]), so no conversion is timed.
//! 3. In a chain, each lookup waits for the answer before it: the answer's top bit, always 0, is part of every bit of
//!    the address.
//! 4. Next hops are below 2^31, and 0 is the answer where no route matches.
//!
//! | file | subject |
//! |---|---|
//! | `ours` | the library, each batch variant, default and speed profile |
//! | `dpdk` | rte_fib, rte_fib6, rte_lpm, rte_lpm6 (feature `peers`, libdpdk) |
//! | `crates` | Rust crates (feature `peers`) |
//! | `poptrie`, `planb` | re-creations from the papers |
//! | `list` | all of them by name |
//! | `intervals`, `huge` | what the re-creations stand on: flattened routes, memory in 2 MiB pages |

use std::hint::black_box;

use fib::Addr;

use crate::failure::Failure;
use crate::subject::SubjectAddr;

#[cfg(feature = "peers")]
pub mod crates;
#[cfg(dpdk)]
pub mod dpdk;
pub mod huge;
pub mod intervals;
pub mod list;
pub mod ours;
#[cfg(target_arch = "x86_64")]
pub mod planb;
pub mod poptrie;
#[cfg(test)]
mod tests;

/// A prefix and its next hop (1 to 2^31 - 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerRoute<A> {
    /// First address.
    pub addr: A,
    /// Length.
    pub len: u8,
    /// Where it leads to.
    pub next_hop: u32,
}

/// Traffic in every form that a subject may want.
#[derive(Debug, Clone)]
pub struct Addresses<A> {
    /// Numbers in host order.
    pub host: Vec<A>,
    /// Network order; empty for IPv4.
    pub network: Vec<[u8; 16]>,
    /// The upper 64 bits; empty for IPv4.
    pub upper: Vec<u64>,
}

/// `u32` or `u128`, with what passes and chains need.
pub trait PeerAddr: SubjectAddr + fib::BatchKey + fib::Key {
    /// Every form of `host`.
    fn addresses(host: Vec<Self>) -> Addresses<Self>;
    /// The same address, but known only when `answer` (below 2^31) is; see [`opaque`].
    fn after(self, answer: u32) -> Self;
}

impl PeerAddr for u32 {
    fn addresses(host: Vec<u32>) -> Addresses<u32> {
        Addresses { host, network: Vec::new(), upper: Vec::new() }
    }
    #[inline(always)]
    fn after(self, answer: u32) -> u32 {
        self ^ (answer.cast_signed() >> 31).cast_unsigned()
    }
}

impl PeerAddr for u128 {
    fn addresses(host: Vec<u128>) -> Addresses<u128> {
        let network = host.iter().map(|addr| addr.to_be_bytes()).collect();
        let upper = host.iter().map(|addr| (addr >> 64) as u64).collect();
        Addresses { host, network, upper }
    }
    #[inline(always)]
    fn after(self, answer: u32) -> u128 {
        self ^ i128::from(answer.cast_signed() >> 31).cast_unsigned()
    }
}

/// Bytes of a loaded table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// What lookups may read.
    pub lookup_bytes: Option<usize>,
    /// With what only updates need.
    pub total_bytes: Option<usize>,
    /// Bits of a stored next hop, when the table has one such width.
    pub next_hop_bits: Option<usize>,
}

/// A table that `compare` measures.
pub trait Peer<A: PeerAddr> {
    /// Adds routes one after the other to the empty table; how many were refused.
    fn load(&mut self, routes: &[PeerRoute<A>]) -> Result<usize, Failure>;

    /// Lookup variants that [`Peer::select`] chooses from; `""` when there is only one way.
    fn variants(&self) -> Vec<&'static str> {
        vec![""]
    }

    /// Makes the following passes and chains use variant `index`.
    fn select(&mut self, index: usize) {
        let _ = index;
    }

    /// Whether it has a call for many addresses. Without one, the batch size means nothing.
    fn has_batch(&self) -> bool {
        true
    }

    /// Looks up all addresses in calls of `batch`; into `keep` too, when given (`keep.len() == addrs.host.len()`).
    fn pass(&mut self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>);

    /// Looks up the addresses one by one, each after the answer before it. The sum of all answers.
    fn chain(&mut self, addrs: &Addresses<A>) -> u64;

    /// Adds or replaces a route; whether that worked. `None` when the table can only be built whole.
    fn insert(&mut self, route: PeerRoute<A>) -> Option<bool> {
        let _ = route;
        None
    }

    /// Removes a route; whether that worked. `None` when the table can only be built whole.
    fn remove(&mut self, route: PeerRoute<A>) -> Option<bool> {
        let _ = route;
        None
    }

    /// What it takes.
    fn memory(&mut self) -> MemoryUse {
        MemoryUse::default()
    }
}

/// Largest batch of a pass.
pub const BATCH_MAX: usize = 4096;

/// The loop of every pass: `items` in calls of `batch`, answers into one buffer, and from there into `keep` if given.
#[inline(always)]
pub fn in_batches<T, O: Copy>(
    items: &[T],
    batch: usize,
    zero: O,
    mut keep: Option<&mut [u32]>,
    number: impl Fn(O) -> u32,
    mut look_up: impl FnMut(&[T], &mut [O]),
) {
    let mut buffer = vec![zero; batch.clamp(1, BATCH_MAX)];
    for (index, items) in items.chunks(buffer.len()).enumerate() {
        let answers = &mut buffer[..items.len()];
        look_up(items, answers);
        if let Some(keep) = keep.as_deref_mut() {
            for (kept, &answer) in keep[index * batch..].iter_mut().zip(answers.iter()) {
                *kept = number(answer);
            }
        }
        black_box(&mut buffer);
    }
}

/// `answer`, of which the compiler now knows nothing: a table with 16-bit next hops would let it see that the top bit
/// is 0, and the chain would be none. Stays in its register, unlike with `black_box`.
#[inline(always)]
pub fn opaque(answer: u32) -> u32 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let mut wide = u64::from(answer);
        // SAFETY: a comment, no instruction at all.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) wide, options(pure, nomem, nostack, preserves_flags)) };
        wide as u32
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    black_box(answer)
}

/// The loop of every chain: `look_up` gets an address and the answer before. The sum of all answers.
#[inline(always)]
pub fn chain<T: Copy>(items: &[T], mut look_up: impl FnMut(T, u32) -> u32) -> u64 {
    let (mut sum, mut answer) = (0, 0);
    for &item in items {
        answer = look_up(item, opaque(answer));
        sum += u64::from(answer);
    }
    sum
}

/// A table whose only question is one address: the crates, and tables without a batch of their own.
pub trait SingleTable<A: PeerAddr> {
    /// Adds or replaces a route.
    fn set(&mut self, route: PeerRoute<A>);
    /// Removes a route; whether it was there.
    fn unset(&mut self, route: PeerRoute<A>) -> bool;
    /// Longest match, 0 where there is none.
    fn look_up(&self, addr: A) -> u32;
    /// What it takes, when it can tell.
    fn memory_use(&self) -> MemoryUse {
        MemoryUse::default()
    }
}

/// Makes a [`Peer`] of a [`SingleTable`].
#[derive(Debug)]
pub struct Single<T>(pub T);

impl<A: PeerAddr, T: SingleTable<A>> Peer<A> for Single<T> {
    fn load(&mut self, routes: &[PeerRoute<A>]) -> Result<usize, Failure> {
        for &route in routes {
            self.0.set(route);
        }
        Ok(0)
    }
    fn has_batch(&self) -> bool {
        false
    }
    fn pass(&mut self, addrs: &Addresses<A>, batch: usize, keep: Option<&mut [u32]>) {
        in_batches(
            &addrs.host,
            batch,
            0,
            keep,
            |answer| answer,
            |addrs, answers| {
                for (&addr, answer) in addrs.iter().zip(answers) {
                    *answer = self.0.look_up(addr);
                }
            },
        );
    }
    fn chain(&mut self, addrs: &Addresses<A>) -> u64 {
        chain(&addrs.host, |addr: A, answer| self.0.look_up(addr.after(answer)))
    }
    fn insert(&mut self, route: PeerRoute<A>) -> Option<bool> {
        self.0.set(route);
        Some(true)
    }
    fn remove(&mut self, route: PeerRoute<A>) -> Option<bool> {
        Some(self.0.unset(route))
    }
    fn memory(&mut self) -> MemoryUse {
        self.0.memory_use()
    }
}

/// The number of a route's last address, for tests and intervals.
pub fn last_addr<A: Addr>(route: PeerRoute<A>) -> A {
    route.addr.or(A::mask(route.len).not())
}
