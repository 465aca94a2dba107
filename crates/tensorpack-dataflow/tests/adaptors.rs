//! The samples that each source and adaptor reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_dataflow::tensor::{DType, Error, HostTensor, Result};
use tensorpack_dataflow::{
    ChooseRandom, ComponentSpec, Concat, DataFlow, FakeData, Flow, FromFn, FromIter, FromList, Mix,
    RandomAccess, Reader, Resume, Sample, Seed, State, Zip,
};

fn scalar(i: u64) -> Sample {
    vec![HostTensor::scalar(i as i64)]
}

fn numbers(n: u64) -> FromFn {
    FromFn::new(n, |i| Ok(scalar(i)))
}

/// The same, but sequential only.
fn stream(n: u64) -> FromIter {
    FromIter::new(move |_| (0..n).map(|i| Ok(scalar(i))))
}

/// Numbers, with a counter of how many were computed.
fn counted(n: u64) -> (FromFn, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(0));
    let counter = made.clone();
    let flow = FromFn::new(n, move |i| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(scalar(i))
    });
    (flow, made)
}

fn values(sample: &Sample) -> Vec<u64> {
    sample.iter().flat_map(HostTensor::to_f64_vec).map(|x| x as u64).collect()
}

fn rest_of_pass(reader: &mut dyn Reader) -> Vec<Vec<u64>> {
    std::iter::from_fn(|| reader.read().expect("no sample fails").as_ref().map(values)).collect()
}

fn pass(flow: &impl DataFlow, epoch: u64) -> Vec<Vec<u64>> {
    rest_of_pass(&mut *flow.open(Seed::new(9), &State::at(epoch, 0)).expect("opens"))
}

/// A pass of samples with one number each.
fn flat(flow: &impl DataFlow, epoch: u64) -> Vec<u64> {
    pass(flow, epoch).concat()
}

#[test]
fn fake_data_is_uniform_per_pass_or_constant() {
    let spec = || vec![ComponentSpec::new(DType::F32, [50, 3]), ComponentSpec::new(DType::U8, [])];
    let flow = FakeData::new(40, spec()).range(10.0, 20.0);
    let read = |flow: &FakeData, epoch, index| {
        let mut reader = flow.open(Seed::new(0), &State::at(epoch, index)).expect("opens");
        reader.read().expect("no sample fails").expect("inside the pass")
    };
    let all: Vec<f64> = (0..40).flat_map(|i| read(&flow, 0, i)[0].to_f64_vec()).collect();
    assert!(all.iter().all(|x| (10.0..20.0).contains(x)));
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    assert!((mean - 15.0).abs() < 0.2, "{mean}");
    assert_eq!(read(&flow, 0, 3)[0].sizes(), [50, 3]);
    assert_ne!(read(&flow, 0, 3), read(&flow, 1, 3));
    assert_ne!(read(&flow, 0, 3), read(&flow, 0, 4));
    let constant = FakeData::new(40, spec()).constant();
    assert_eq!(read(&constant, 0, 3), read(&constant, 7, 30));
    assert!(FakeData::new(1, spec()).range(1.0, 0.0).open(Seed::new(0), &State::start()).is_err());
}

#[test]
fn len_and_get_make_a_data_set() {
    #[derive(Clone)]
    struct Squares(u64);
    impl RandomAccess for Squares {
        fn len(&self) -> u64 {
            self.0
        }
        fn get(&self, index: u64) -> tensorpack_dataflow::tensor::Result<Sample> {
            Ok(scalar(index * index))
        }
    }
    let flow = Squares(5);
    assert_eq!((flow.size(), flow.resume(), Squares(0).is_empty()), (Some(5), Resume::Seek, true));
    assert_eq!(flat(&flow, 0), [0, 1, 4, 9, 16]);
    let mut shuffled = flat(&flow.shuffle(), 0);
    shuffled.sort_unstable();
    assert_eq!(shuffled, [0, 1, 4, 9, 16]);
}

#[test]
fn maps_change_samples_or_components() {
    let pairs =
        Zip::new([numbers(3).into_flow(), numbers(3).map(|s| Ok(scalar(values(&s)[0] + 10))).into_flow()]);
    assert_eq!(pass(&pairs, 0), [[0, 10], [1, 11], [2, 12]]);
    let swapped = pairs.clone().select([1, 0, 1]);
    assert_eq!(pass(&swapped, 1), [[10, 0, 10], [11, 1, 11], [12, 2, 12]]);
    let doubled = pairs.clone().map_component(1, |t| Ok(HostTensor::scalar(2.0 * t.to_scalar()?)));
    assert_eq!(pass(&doubled, 0), [[0, 20], [1, 22], [2, 24]]);
    let mut reader = pairs.select([2]).open(Seed::new(0), &State::at(4, 1)).expect("opens");
    let e = reader.read().expect_err("there are two");
    assert!(e.message().starts_with("sample 1 of epoch 4: component 2"), "{e}");
}

#[test]
fn random_maps_are_keyed_by_position_and_stage() {
    let draw = |flow: Flow| {
        flow.map_random(|mut sample, rng| {
            sample.push(HostTensor::scalar(rng.below(1 << 40) as i64));
            Ok(sample)
        })
    };
    let twice = draw(draw(numbers(20).into_flow()).into_flow());
    let (a, b) = (pass(&twice, 0), pass(&twice, 1));
    assert!(a.iter().zip(&b).all(|(a, b)| a[1..] != b[1..]), "another pass draws other numbers");
    assert!(a.iter().all(|sample| sample[1] != sample[2]), "another map draws other numbers");
    // Adaptors without random numbers change no random number elsewhere.
    let more = draw(draw(numbers(20).into_flow()).prefetch(3).map(Ok).batch(1).into_flow());
    assert!(pass(&more, 0).iter().zip(&a).all(|(x, y)| x[1] == y[1]));
}

#[test]
fn filter_resumes_without_rereading() {
    let (source, made) = counted(1000);
    let even = source.filter(|sample| Ok(values(sample)[0].is_multiple_of(2)));
    let mut reader = even.open(Seed::new(0), &State::start()).expect("opens");
    (0..300).for_each(|_| drop(reader.read().expect("no sample fails")));
    let state = reader.state();
    made.store(0, Ordering::Relaxed);
    let mut reader = even.open(Seed::new(0), &state).expect("opens");
    assert_eq!(reader.read().expect("no sample fails").as_ref().map(values), Some(vec![600]));
    assert!(made.load(Ordering::Relaxed) <= 2);
    assert_eq!(rest_of_pass(&mut *reader).len(), 199);
}

#[test]
fn seeking_reads_only_the_requested_samples() {
    let (source, made) = counted(1_000_000_000_000);
    let flow = source
        .shuffle()
        .map(Ok)
        .batch(10)
        .shuffle_window(4)
        .repeat(3)
        .shard(1, 2)
        .fixed_size(1_000_000)
        .map_parallel(2, |sample, _| Ok(sample))
        .buffer_size(4);
    assert_eq!(flow.resume(), Resume::Seek);
    let mut reader = flow.open(Seed::new(0), &State::at(150_000, 999_999)).expect("opens");
    assert!(reader.read().expect("no sample fails").is_some());
    assert!(reader.read().expect("no sample fails").is_none());
    drop(reader);
    assert!(made.load(Ordering::Relaxed) <= 200, "{}", made.load(Ordering::Relaxed));
}

#[test]
fn skip_errors_stops_at_its_limit() {
    let flow = |limit| {
        let failing = numbers(30).map(|sample| match values(&sample)[0] % 10 {
            7 => Err(Error::argument("seven")),
            _ => Ok(sample),
        });
        failing.skip_errors(limit)
    };
    let three = flow(3);
    assert_eq!(flat(&three, 0), (0..30).filter(|i| i % 10 != 7).collect::<Vec<_>>());
    assert_eq!(three.skipped(), 3);
    let two = flow(2);
    let mut reader = two.open(Seed::new(0), &State::start()).expect("opens");
    let good = (0..25).map(|_| reader.read()).filter(|read| matches!(read, Ok(Some(_)))).count();
    assert_eq!(good, 25);
    // The limit survives an interruption.
    let state = reader.state();
    for mut reader in [reader, two.open(Seed::new(0), &state).expect("opens")] {
        let e = reader.read().expect_err("the third seven");
        assert!(
            e.message().starts_with("sample 27 of epoch 0: seven") && e.to_string().contains("more than 2"),
            "{e}"
        );
        assert_eq!(rest_of_pass(&mut *reader), [[28], [29]]);
        // Every pass starts a new count.
        assert!(reader.read().is_ok_and(|s| s.is_some()));
    }
}

#[test]
fn batch_drops_or_keeps_the_remainder() {
    for flow in [numbers(7).into_flow(), stream(7).into_flow()] {
        assert_eq!(pass(&flow.clone().batch(3), 2), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(pass(&flow.batch(3).keep_remainder(), 2), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    }
    assert_eq!(numbers(7).batch(3).size(), Some(2));
    assert_eq!(numbers(7).batch(3).keep_remainder().size(), Some(3));
}

#[test]
fn batch_by_shape_groups_equal_shapes() {
    let ragged = numbers(12).map(|sample| {
        let i = values(&sample)[0];
        let n = if i.is_multiple_of(3) { 2 } else { 1 };
        Ok(vec![HostTensor::new([n], vec![i as i64; n])?])
    });
    let kept = ragged.clone().batch_by_shape(3, 0).keep_remainder();
    let want =
        [vec![1, 2, 4], vec![0, 0, 3, 3, 6, 6], vec![5, 7, 8], vec![9, 9], vec![10, 11]].map(|v: Vec<u64>| v);
    assert_eq!(pass(&kept, 0), want);
    assert_eq!(pass(&ragged.batch_by_shape(3, 0), 0), want[..3]);
}

#[test]
fn batch_by_shape_counts_the_batches_of_a_pass() {
    let ragged = numbers(12).map(|sample| {
        let i = values(&sample)[0];
        let n = if i.is_multiple_of(3) { 2 } else { 1 };
        Ok(vec![HostTensor::new([n], vec![i as i64; n])?])
    });
    let shuffled = ragged.shuffle();
    assert_eq!(shuffled.clone().batch_by_shape(3, 0).size(), None);
    let dropped = shuffled.clone().batch_by_shape(3, 0).counted().unwrap();
    let kept = shuffled.batch_by_shape(3, 0).keep_remainder().counted().unwrap();
    assert_eq!((dropped.size(), kept.size()), (Some(3), Some(5)));
    for epoch in 0..5 {
        assert_eq!((pass(&dropped, epoch).len(), pass(&kept, epoch).len()), (3, 5));
    }
    // A pass whose shapes differ from those of the first.
    let changing = numbers(12).map_random(|sample, rng| {
        let n = 1 + rng.below(12) as usize;
        Ok(vec![HostTensor::new([n], vec![values(&sample)[0] as i64; n])?])
    });
    let flow = changing.batch_by_shape(2, 0).counted().unwrap();
    let read = |epoch: u64| {
        let mut reader = flow.open(Seed::new(1), &State::at(epoch, 0))?;
        while reader.read()?.is_some() {}
        Ok(())
    };
    let failed = (0..20).map(read).find_map(|r: Result<()>| r.err()).expect("passes differ");
    assert!(failed.to_string().contains("batches were counted"), "{failed}");
}

#[test]
fn shuffle_is_a_uniform_permutation_per_pass() {
    let flow = numbers(500).shuffle();
    let orders: Vec<Vec<u64>> = (0..20).map(|epoch| flat(&flow, epoch)).collect();
    for (i, order) in orders.iter().enumerate() {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..500));
        assert!(orders[..i].iter().all(|other| other != order));
    }
    // The position of a sample is uniform: chi-square over tenths of the pass.
    let trials = 4000;
    let small = numbers(50).shuffle();
    let mut counts = [0.0; 10];
    for epoch in 0..trials {
        let place = flat(&small, epoch).iter().position(|&i| i == 17).expect("every sample comes");
        counts[place / 5] += 1.0;
    }
    let mean = trials as f64 / 10.0;
    let chi: f64 = counts.iter().map(|n: &f64| (n - mean).powi(2) / mean).sum();
    assert!(chi < 33.7, "{chi} for {counts:?}"); // one in ten thousand, with 9 degrees of freedom
}

#[test]
fn shuffle_window_permutes_within_windows() {
    for flow in [numbers(23).into_flow(), stream(23).into_flow()] {
        let flow = flow.shuffle_window(10);
        let all = flat(&flow, 0);
        for (window, range) in all.chunks(10).zip([0..10, 10..20, 20..23]) {
            let mut sorted = window.to_vec();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(range));
        }
        assert_ne!(all, flat(&flow, 1));
        assert!(!all[..10].iter().copied().eq(0..10) || !all[10..20].iter().copied().eq(10..20));
    }
    assert_eq!(flat(&numbers(23).shuffle_window(10), 3), flat(&stream(23).shuffle_window(10), 3));
}

#[test]
fn shards_partition_the_data() {
    for size in [0, 1, 7, 12, 13] {
        for count in 1..=5 {
            for flow in [numbers(size).into_flow(), stream(size).into_flow()] {
                let parts: Vec<Vec<u64>> =
                    (0..count).map(|i| flat(&flow.clone().shard(i, count), 1)).collect();
                let mut all = parts.concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..size), "{count} shards of {size}");
            }
            for i in 0..count {
                let (shard, equal) = (numbers(size).shard(i, count), numbers(size).shard(i, count).equal());
                assert_eq!(shard.size(), Some(flat(&shard, 0).len() as u64));
                assert_eq!((equal.size(), flat(&equal, 0).len() as u64), (Some(size / count), size / count));
            }
        }
    }
    // Shards of a shuffled pass share no sample.
    let mut all: Vec<u64> = (0..3).flat_map(|i| flat(&numbers(20).shuffle().shard(i, 3), 5)).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..20));
}

#[test]
fn take_repeat_concat_and_zip() {
    assert_eq!(flat(&numbers(5).take(3), 1), [0, 1, 2]);
    assert_eq!(flat(&stream(2).take(3), 0), [0, 1]);
    for flow in [numbers(3).into_flow(), stream(3).into_flow()] {
        let fixed = flow.clone().fixed_size(5);
        assert_eq!((flat(&fixed, 0), flat(&fixed, 1)), (vec![0, 1, 2, 0, 1], vec![2, 0, 1, 2, 0]));
        assert_eq!(flat(&flow.clone().repeat(2), 0), [0, 1, 2, 0, 1, 2]);
        assert_eq!(flat(&flow.clone().repeat_each(2), 0), [0, 0, 1, 1, 2, 2]);
        assert_eq!(flat(&flow.clone().repeat_forever().take(8), 0), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(flat(&flow.clone().concat(numbers(2)), 1), [0, 1, 2, 0, 1]);
        assert_eq!(pass(&flow.zip(numbers(5)), 1), [[0, 0], [1, 1], [2, 2]]);
    }
    // Each pass of a repeated shuffle has its own order.
    let shuffled = numbers(50).shuffle();
    let joined = flat(&shuffled.clone().repeat(2), 1);
    assert_eq!(joined, [flat(&shuffled, 2), flat(&shuffled, 3)].concat());
    // Repeating an empty pass is an error.
    assert!(numbers(0).repeat_forever().open(Seed::new(0), &State::start()).is_err());
    let none = stream(5).filter(|_| Ok(false)).repeat_forever();
    assert!(none.open(Seed::new(0), &State::start()).expect("opens").read().is_err());
}

#[test]
fn mixtures_follow_probabilities_and_keep_order() {
    let tagged =
        |tag: u64, n: u64| numbers(n).map(move |s| Ok(scalar(tag * 10_000 + values(&s)[0]))).into_flow();
    let chosen = ChooseRandom::new([(tagged(0, 9000), 0.25), (tagged(1, 9000), 0.75)]);
    let all = flat(&chosen, 0);
    let first = all.iter().filter(|&&x| x < 10_000).count() as f64 / all.len() as f64;
    assert!((first - 0.25).abs() < 0.02, "{first}");
    assert_eq!(all.iter().filter(|&&x| x >= 10_000).count(), 9000, "the chosen one ran out");
    let wrong = ChooseRandom::new([(tagged(0, 3), 0.5), (tagged(1, 3), 0.6)]);
    assert!(wrong.open(Seed::new(0), &State::start()).is_err());

    let mix = Mix::new([tagged(0, 30), tagged(1, 20), tagged(2, 0)]);
    assert_eq!(mix.size(), Some(50));
    let (a, b) = (flat(&mix, 0), flat(&mix, 1));
    assert_ne!(a, b);
    for all in [a, b] {
        let part = |low: u64| all.iter().copied().filter(|x| x / 10_000 == low).collect::<Vec<_>>();
        assert!(part(0).into_iter().eq(0..30) && part(1).into_iter().eq(10_000..10_020));
    }
    // The last sample of the smaller input comes, on average, after 20/21 of the pass.
    let place = |epoch| flat(&mix, epoch).iter().position(|&x| x == 10_019).expect("all come") as f64;
    let mean = (0..400).map(place).sum::<f64>() / 400.0;
    assert!((mean - (51.0 * 20.0 / 21.0 - 1.0)).abs() < 0.5, "{mean}");
    assert!(Mix::new([stream(3).into_flow()]).open(Seed::new(0), &State::start()).is_err());
}

#[test]
fn cache_computes_each_sample_once() {
    for in_order in [false, true] {
        let (source, made) = counted(20);
        let random = source.map_random(|_, rng| Ok(scalar(rng.below(1 << 40))));
        let flow = if in_order { random.filter(|_| Ok(true)).cache() } else { random.cache() };
        let first = flat(&flow, 3);
        assert_eq!(first.len(), 20);
        assert_eq!((flat(&flow, 0), flat(&flow, 8)), (first.clone(), first.clone()));
        assert_eq!(made.load(Ordering::Relaxed), 20, "in order: {in_order}");
        if !in_order {
            // The shuffle opens it with another seed, so the cache is filled again once.
            let shuffled = flow.shuffle();
            let sorted = |epoch| {
                let mut all = flat(&shuffled, epoch);
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(1), sorted(2));
            assert_eq!(made.load(Ordering::Relaxed), 40);
        }
    }
}

#[test]
fn test_speed_spans_passes() {
    let list = FromList::new((0..10).map(scalar).collect());
    let speed = list.test_speed(25).expect("no sample fails");
    assert!(speed.samples == 25 && speed.per_second() > 25.0, "{speed}");
    assert!(FromList::new(Vec::new()).test_speed(1).is_err());
    assert_eq!(flat(&Concat::new([list.print(1).into_flow()]), 0).len(), 10);
}
