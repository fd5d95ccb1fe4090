//! What does an update cost: random prefixes, and loading, on a table a twentieth the size of a full one.
//!
//! `cargo bench -p fib-bench --bench update`. `fib-bench update` and `fib-bench compare` measure full tables.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fib::{Family, Fib, Route, RouteMatch};
use fib_bench::generator::{Settings, table};
use fib_bench::workload::pick;

const PICKS: usize = 1000;

fn updates(criterion: &mut Criterion) {
    let routes = table(Settings { seed: 1, next_hops: 64, percent: 5 });
    let entries = || routes.iter().map(|&(net, next_hop)| (net, Route::new(next_hop)));
    let mut group = criterion.benchmark_group("update");
    let fib = Fib::new().expect("memory for a small table");
    let mut writer = fib.writer().expect("nobody else writes");
    writer.main().load(entries()).expect("memory for a small table");
    for family in [Family::V4, Family::V6] {
        let picked = pick(&routes, family, PICKS, 1);
        group.throughput(Throughput::Elements(2 * picked.len() as u64));
        group.bench_function(format!("{family} delete and re-add"), |bencher| {
            bencher.iter(|| {
                let mut main = writer.main();
                for &(prefix, _) in &picked {
                    main.remove(prefix, RouteMatch::ANY).expect("the prefix is there");
                }
                for &(prefix, next_hop) in &picked {
                    main.insert_or_replace(prefix, next_hop).expect("memory for a small table");
                }
            });
        });
    }
    group.throughput(Throughput::Elements(routes.len() as u64));
    group.bench_function("load both families", |bencher| {
        bencher.iter_batched(
            || Fib::new().expect("memory for a small table"),
            |fib| {
                fib.writer().expect("nobody else writes").main().load(entries()).expect("memory for a small table");
                fib
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(20).measurement_time(std::time::Duration::from_millis(500)).warm_up_time(std::time::Duration::from_millis(200));
    targets = updates
}
criterion_main!(benches);
