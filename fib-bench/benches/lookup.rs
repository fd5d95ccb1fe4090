//! Which batch variant, which traffic: lookups on a table a twentieth the size of a full one. Seconds on a laptop.
//!
//! `cargo bench -p fib-bench --bench lookup`. For figures that mean something use `fib-bench compare`: a small table
//! stands in the caches, whatever its layout.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fib::{BatchVariant, Fib, NextHopId, Options, Route};
use fib_bench::generator::{Settings, table};
use fib_bench::peers::{PeerAddr, opaque};
use fib_bench::subject::MISS;
use fib_bench::traffic::Traffic;
use ipnet::IpNet;

const LOOKUPS: usize = 1 << 14;
const BATCH: usize = 64;

fn lookups<A: PeerAddr>(criterion: &mut Criterion) {
    let routes = table(Settings { seed: 1, next_hops: 64, percent: 5 });
    let nets: Vec<IpNet> = routes.iter().map(|&(net, _)| net).collect();
    let mut group = criterion.benchmark_group(format!("{} lookup", A::FAMILY));
    group.throughput(Throughput::Elements(LOOKUPS as u64));
    for variant in BatchVariant::ALL.into_iter().filter(|variant| variant.is_available()) {
        let fib = Fib::with_options(Options::default().batch(variant)).expect("memory for a small table");
        let mut writer = fib.writer().expect("nobody else writes");
        let entries = routes.iter().map(|&(net, next_hop)| (net, Route::new(next_hop)));
        writer.main().load(entries).expect("memory for a small table");
        let mut reader = fib.reader("bench").expect("a free reader slot");
        for traffic in Traffic::MEASURED {
            let addrs = traffic.addresses::<A>(&nets, LOOKUPS, 1);
            let mut answers = [MISS; BATCH];
            let name = format!("{variant:?}/batch of {BATCH}");
            group.bench_with_input(BenchmarkId::new(name, traffic.name()), &addrs, |bencher, addrs| {
                bencher.iter(|| {
                    for addrs in addrs.chunks(BATCH) {
                        reader.burst().main().lookup_batch(addrs, &mut answers[..addrs.len()], MISS);
                        black_box(&mut answers);
                    }
                });
            });
            // A single lookup is the same in every variant.
            if variant == BatchVariant::Scalar {
                group.bench_with_input(BenchmarkId::new("dependent", traffic.name()), &addrs, |bencher, addrs| {
                    bencher.iter(|| {
                        let burst = reader.burst();
                        let view = burst.main();
                        addrs.iter().fold(0, |answer, addr| view.lookup(addr.after(opaque(answer))).map_or(0, NextHopId::get))
                    });
                });
            }
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(20).measurement_time(std::time::Duration::from_millis(500)).warm_up_time(std::time::Duration::from_millis(200));
    targets = lookups::<u32>, lookups::<u128>
}
criterion_main!(benches);
