//! Model tests of a whole table: random operations against the oracle, the checker after each step.

use ipnet::IpNet;
use proptest::prelude::*;

use crate::addr::Addr;
use crate::nexthop::NextHopId;
use crate::oracle::LinearTable;
use crate::prefix::Prefix;
use crate::route::{Route, RouteMatch};
use crate::trie::resize::set_scale;
use crate::{Fib, Options, TableOptions};

/// One step of a model test.
#[derive(Clone, Copy, Debug)]
enum Step<A: Addr> {
    Insert(Prefix<A>, NextHopId),
    Remove(Prefix<A>),
    RemoveWithin(Prefix<A>),
    Clear,
}

/// Addresses that nest and collide: a few bits vary at each end of the key.
fn addr<A: Addr>(high: u8, middle: u8, low: u8) -> A {
    let byte = |value: u8, shift: u8| {
        (0..8).filter(|bit| value >> bit & 1 == 1).fold(A::ZERO, |addr, bit| addr.or(one::<A>(shift + bit)))
    };
    byte(high, A::BITS - 8).or(byte(middle, A::BITS / 2)).or(byte(low, 0))
}

fn one<A: Addr>(bit: u8) -> A {
    A::mask(A::BITS - bit).and(A::mask(A::BITS - bit - 1).not())
}

fn prefixes<A: Addr>() -> impl Strategy<Value = Prefix<A>> {
    let len = prop_oneof![
        4 => 0..=A::BITS,
        2 => Just(A::BITS),
        1 => Just(A::BITS - 1),
        1 => Just(24u8),
        1 => Just(18u8),
        1 => Just(0u8),
        1 => Just(1u8),
    ];
    (any::<u8>(), any::<u8>(), any::<u8>(), len).prop_map(|(high, middle, low, len)| {
        Prefix::truncating(addr::<A>(high & 0x93, middle & 0x0f, low & 0x07), len).unwrap()
    })
}

fn steps<A: Addr>() -> impl Strategy<Value = Vec<Step<A>>> {
    let hop = prop_oneof![
        8 => 0u32..4,
        1 => Just(126),
        1 => Just(127),
        1 => Just(32_766),
        1 => Just(32_767),
        1 => Just(NextHopId::MAX.get()),
    ]
    .prop_map(|id| NextHopId::new(id).unwrap());
    let step = prop_oneof![
        60 => (prefixes(), hop).prop_map(|(prefix, hop)| Step::Insert(prefix, hop)),
        30 => prefixes().prop_map(Step::Remove),
        4 => prefixes().prop_map(Step::RemoveWithin),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..80)
}

fn addresses_around<A: Addr>(prefix: Prefix<A>) -> [A; 5] {
    let (first, last) = (prefix.addr(), prefix.last());
    [first.wrapping_prev(), first, first.wrapping_next(), last, last.wrapping_next()]
}

fn small_fib() -> Fib {
    Fib::with_options(Options::default().main(TableOptions::default().root_limit_v4(18).root_limit_v6(14))).unwrap()
}

fn run<A: Addr>(steps: &[Step<A>], scale: u64) -> Result<(), TestCaseError> {
    set_scale(scale);
    let fib = small_fib();
    let mut writer = fib.writer().unwrap();
    let mut reader = fib.reader("model").unwrap();
    let mut oracle = LinearTable::<A>::new();
    let mut seen: Vec<Prefix<A>> = Vec::new();
    for step in steps {
        let mut table = writer.main();
        match *step {
            Step::Insert(prefix, hop) => {
                let replaced = table.insert_or_replace(prefix.into(), hop).unwrap();
                prop_assert_eq!(replaced.map(|route| route.next_hop), oracle.insert(prefix, hop));
                seen.push(prefix);
            }
            Step::Remove(prefix) => {
                let removed = table.remove(prefix.into(), RouteMatch::ANY).unwrap();
                prop_assert_eq!(removed.map(|route| route.next_hop), oracle.remove(prefix));
                seen.push(prefix);
            }
            Step::RemoveWithin(prefix) => {
                let removed = table.remove_within(prefix.into()).unwrap();
                prop_assert_eq!(removed as usize, oracle.remove_within(prefix));
                seen.push(prefix);
            }
            Step::Clear => {
                let removed = table.clear().unwrap();
                prop_assert_eq!(removed as usize, oracle.remove_within(Prefix::DEFAULT));
            }
        }
        prop_assert_eq!(table.prefix_count(A::FAMILY), oracle.routes().len());
        writer.check().map_err(|error| TestCaseError::fail(error.to_string()))?;
        for prefix in &seen {
            let burst = reader.burst();
            for addr in addresses_around(*prefix) {
                let expected = oracle.lookup(addr);
                prop_assert_eq!(burst.main().lookup(addr.to_ip()), expected.map(|(_, hop)| hop), "{}", addr.to_ip());
                drop_if_wrong(writer.main().lookup_match(addr.to_ip()), expected)?;
            }
        }
    }
    Ok(())
}

fn drop_if_wrong<A: Addr>(
    found: Option<(IpNet, Route)>,
    expected: Option<(Prefix<A>, NextHopId)>,
) -> Result<(), TestCaseError> {
    let expected = expected.map(|(prefix, hop)| (prefix.to_ipnet(), hop));
    prop_assert_eq!(found.map(|(prefix, route)| (prefix, route.next_hop)), expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn v4_table_answers_as_the_oracle(steps in steps::<u32>()) {
        run(&steps, 1)?;
    }

    #[test]
    fn v6_table_answers_as_the_oracle(steps in steps::<u128>()) {
        run(&steps, 1)?;
    }

    #[test]
    fn v4_table_that_resizes_often_answers_as_the_oracle(steps in steps::<u32>(), scale in prop::sample::select(vec![16u64, 128, 1024, 8192, 1 << 17])) {
        run(&steps, scale)?;
    }

    #[test]
    fn v6_table_that_resizes_often_answers_as_the_oracle(steps in steps::<u128>(), scale in prop::sample::select(vec![16u64, 128, 1024, 8192])) {
        run(&steps, scale)?;
    }
}
