//! Step runs: each fetch is delivered exactly when it is due, results do not depend on other
//! fetches, and random numbers depend only on the run index.

use super::models;
use tensorpack::graph::{Fetch, Frozen, Graph, Init, TensorSpec, VariableSpec};
use tensorpack::runtime::{Cadence, Clock, Session, SessionOptions, StepProgram};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor};
use tensorpack_testing::assert_mentions;

/// A counter that every run increments by the fed value, and a dropout.
struct Counting {
    session: Session,
    count: Fetch,
    increment: Fetch,
    twice: Fetch,
    drawn: Fetch,
    dropped: Fetch,
}

fn counting(programs: usize, seed: u64) -> Counting {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None]));
    let count = t.variable(VariableSpec::new("count", []).init(Init::zeros()).non_trainable());
    let increment = count.update(|c| c + x.sum());
    let twice = count.value() * 2.0;
    let drawn = x.random_uniform_like(DType::F32);
    let dropped = (x.dropout(0.5) * 1.0).named("dropped");
    let f = |t: &tensorpack::graph::Tensor| Fetch::from(t);
    let (count, increment, twice, drawn, dropped) =
        (f(&count), Fetch::from(&increment), f(&twice), f(&drawn), f(&dropped));
    let options = SessionOptions { programs, seed, ..SessionOptions::default() };
    let session = Session::with(g.freeze().unwrap(), options).unwrap();
    Counting { session, count, increment, twice, drawn, dropped }
}

fn ones(n: usize) -> HostTensor {
    HostTensor::new([n], vec![1.0f32; n]).unwrap()
}

fn at(step: u64) -> Clock {
    Clock { global_step: step, last_of_epoch: step.is_multiple_of(5) }
}

#[test]
fn cadences_deliver_exactly_what_is_due() {
    let c = counting(16, 0);
    let mut run = StepProgram::new(&[&c.increment]);
    // Frequent and rare fetches alternate.
    let third = run.declare(&c.twice, Cadence::EverySteps(3)).unwrap();
    let always = run.declare(&c.count, Cadence::EveryRun).unwrap();
    let epoch = run.declare(&c.twice, Cadence::EveryEpoch).unwrap();
    let again = run.declare(&c.twice, Cadence::EveryRun).unwrap();
    let second = run.declare(&c.count, Cadence::EverySteps(2)).unwrap();
    let x = ones(1);
    for step in 1..=30u64 {
        run.run(&c.session, at(step), &[("x", &x)]).unwrap();
        let before = (step - 1) as f64;
        let value = |declared| run.value(declared).map(|v| v.to_scalar().unwrap());
        let due = |is: bool, v: f64| is.then_some(v);
        assert_eq!(value(always), Some(before), "step {step}");
        assert_eq!(value(again), Some(2.0 * before), "step {step}");
        assert_eq!(value(third), due(step % 3 == 0, 2.0 * before), "step {step}");
        assert_eq!(value(second), due(step % 2 == 0, before), "step {step}");
        assert_eq!(value(epoch), due(step % 5 == 0, 2.0 * before), "step {step}");
    }
    assert_eq!(c.session.read("count").unwrap().to_scalar().unwrap(), 30.0);
    assert_eq!(c.session.run_index().unwrap(), 30);
}

#[test]
fn extra_fetches_do_not_shift_declared_ones() {
    let c = counting(16, 0);
    let mut run = StepProgram::new(&[&c.drawn, &c.increment]);
    let rare = run.declare(&c.twice, Cadence::EveryEpoch).unwrap();
    let often = run.declare(&c.count, Cadence::EveryRun).unwrap();
    for step in 1..=10u64 {
        run.run(&c.session, at(step), &[("x", &ones(1))]).unwrap();
        assert_eq!(run.value(often).unwrap().to_scalar().unwrap(), (step - 1) as f64);
        let rare = run.value(rare).map(|v| v.to_scalar().unwrap());
        assert_eq!(rare, (step % 5 == 0).then_some(2.0 * (step - 1) as f64));
    }
}

#[test]
fn nothing_is_delivered_before_the_first_run() {
    let c = counting(16, 0);
    let mut run = StepProgram::new(&[&c.increment]);
    let always = run.declare(&c.count, Cadence::EveryRun).unwrap();
    assert!(run.value(always).is_none());
    let e = run.declare(&c.count, Cadence::EverySteps(0)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert_mentions(&e, &["0 steps"]);
    let e = run.run(&c.session, at(1), &[]).unwrap_err();
    assert_mentions(&e, &["input x", "fed"]);
    assert!(run.value(always).is_none());
}

/// Fetching intermediate results prevents fusion, which must not change any bit.
#[test]
fn bits_do_not_depend_on_what_is_fetched() {
    let train = |intermediates: &dyn Fn(&Frozen) -> Vec<Fetch>| {
        let model = models::small_resnet();
        let batches: Vec<[HostTensor; 2]> = (0..6).map(|k| model.batch(4, k)).collect();
        let (cost, train) = (Fetch::from(&model.cost), Fetch::from(&model.train));
        let session = Session::new(model.graph.freeze().unwrap()).unwrap();
        let mut run = StepProgram::new(&[&train]);
        let cost = run.declare(&cost, Cadence::EveryRun).unwrap();
        for f in intermediates(session.graph()) {
            run.declare(&f, Cadence::EverySteps(2)).unwrap();
        }
        let costs: Vec<u32> = batches
            .iter()
            .zip(1..)
            .map(|([image, label], step)| {
                run.run(&session, at(step), &[("image", image), ("label", label)]).unwrap();
                run.value(cost).unwrap().as_slice::<f32>().unwrap()[0].to_bits()
            })
            .collect();
        let names: Vec<String> = session.graph().variables().iter().map(|v| v.name.clone()).collect();
        let values: Vec<(String, HostTensor)> =
            names.into_iter().map(|n| (n.clone(), session.read(&n).unwrap())).collect();
        (costs, values)
    };
    let alone = train(&|_| Vec::new());
    let every_third = |graph: &Frozen| {
        let with_value = graph.nodes().iter().filter(|n| !n.outputs.is_empty());
        with_value.step_by(3).filter_map(|n| graph.fetch(&n.name).ok()).collect::<Vec<_>>()
    };
    let with_others = train(&every_third);
    assert_eq!(alone.0, with_others.0);
    for ((name, a), (_, b)) in alone.1.iter().zip(&with_others.1) {
        assert!(a.as_bytes() == b.as_bytes(), "{name} depends on what is fetched");
    }
}

/// The order of a sum depends only on sizes, not on whether its operand is fused into the reduction
/// or stored.
#[test]
fn sums_do_not_depend_on_what_is_fused_into_them() {
    for sizes in
        [vec![64, 300], vec![7, 5, 333], vec![3000, 3], vec![40, 1, 77, 2], vec![9, 5000], vec![2, 20000]]
    {
        let rank = sizes.len();
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", sizes.iter().map(|&n| Some(n)).collect::<Vec<_>>()));
        let rows = g.placeholder(&TensorSpec::f32("rows", [Some(sizes[0])]));
        let columns = g.placeholder(&TensorSpec::f32("columns", [Some(sizes[rank - 1])]));
        let mut by_row = vec![1; rank];
        by_row[0] = sizes[0] as isize;
        let y = ((&x * &columns).sin() * rows.reshape(&by_row)
            + &columns * x.cast(DType::F64).cast(DType::F32))
        .abs();
        let last = rank as isize - 1;
        let (mean, variance) = y.moments(&[0]);
        let (all_mean, all_variance) = y.moments(&(0..=last).collect::<Vec<_>>());
        let middle: Vec<isize> = (1..=last).collect();
        let results = [
            y.sum(),
            y.sum_axes(&[0]),
            y.sum_axes(&[-1]),
            y.sum_axes(&middle),
            mean,
            variance,
            all_mean,
            all_variance,
        ];
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let draw = |name: &str, sizes: &[usize]| {
            let rng = tensorpack::tensor::CounterRng::new(3, name);
            let n = sizes.iter().product::<usize>() as u64;
            HostTensor::new(sizes, (0..n).map(|i| rng.normal(0, i) as f32).collect::<Vec<f32>>()).unwrap()
        };
        let values = [draw("x", &sizes), draw("rows", &sizes[..1]), draw("columns", &sizes[rank - 1..])];
        let feeds = [("x", &values[0]), ("rows", &values[1]), ("columns", &values[2])];
        for (i, result) in results.iter().enumerate() {
            let alone = session.run(&[result], &feeds).unwrap().swap_remove(0);
            let with_operand = session.run(&[result, &y], &feeds).unwrap().swap_remove(0);
            assert!(
                alone.as_bytes() == with_operand.as_bytes(),
                "result {i} over {sizes:?}: {alone:?}, {with_operand:?}"
            );
        }
    }
}

/// Returns the random numbers of step runs `first..last`, with `plain` plain runs before each.
fn draws(seed: u64, first: u64, last: u64, plain: usize) -> Vec<(HostTensor, HostTensor)> {
    let c = counting(16, seed);
    c.session.set_run_index(first).unwrap();
    let mut run = StepProgram::new(&[&c.increment]);
    let drawn = run.declare(&c.drawn, Cadence::EveryRun).unwrap();
    let dropped = run.declare(&c.dropped, Cadence::EverySteps(2)).unwrap();
    let x = ones(64);
    let mut all = Vec::new();
    for step in first..last {
        for _ in 0..plain {
            c.session.run(&[&c.drawn], &[("x", &x)]).unwrap();
        }
        run.run(&c.session, at(2 * step), &[("x", &x)]).unwrap();
        all.push((run.value(drawn).unwrap().clone(), run.value(dropped).unwrap().clone()));
    }
    all
}

#[test]
fn random_numbers_depend_only_on_the_run() {
    let all = draws(1, 0, 6, 0);
    for i in 0..all.len() {
        let drawn = all[i].0.as_slice::<f32>().unwrap();
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
        assert!(all[i].1.as_slice::<f32>().unwrap().iter().all(|&x| x == 0.0 || x == 2.0));
        for j in 0..i {
            assert!(all[i].0 != all[j].0 && all[i].1 != all[j].1, "runs {i} and {j} draw the same");
        }
    }
    assert_eq!(draws(1, 3, 6, 0), all[3..], "a resumed run continues the stream");
    assert_eq!(draws(1, 0, 6, 3), all, "plain runs in between change nothing");
    assert_ne!(draws(2, 0, 6, 0), all, "another seed draws something else");
}

#[test]
fn plain_runs_draw_new_numbers_each_time() {
    let c = counting(16, 0);
    let x = ones(16);
    let draw = || c.session.run(&[&c.drawn], &[("x", &x)]).unwrap().swap_remove(0);
    let drawn = [draw(), draw(), draw()];
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2]);
    let mut run = StepProgram::new(&[&c.increment]);
    let in_step = run.declare(&c.drawn, Cadence::EveryRun).unwrap();
    run.run(&c.session, at(1), &[("x", &x)]).unwrap();
    assert!(!drawn.contains(run.value(in_step).unwrap()));
    assert!(!drawn.contains(&draw()));
}

#[test]
fn only_step_runs_are_counted() {
    let c = counting(16, 0);
    let mut run = StepProgram::new(&[&c.increment]);
    for step in 1..=3 {
        c.session.run(&[&c.increment], &[("x", &ones(2))]).unwrap();
        run.run(&c.session, at(step), &[("x", &ones(2))]).unwrap();
        assert_eq!(c.session.run_index().unwrap(), step);
    }
    assert_eq!(c.session.read("count").unwrap().to_scalar().unwrap(), 12.0);
}

#[test]
fn results_do_not_depend_on_the_number_of_cached_programs() {
    let results = |programs: usize| {
        let c = counting(programs, 0);
        let mut run = StepProgram::new(&[&c.increment]);
        let drawn = run.declare(&c.drawn, Cadence::EveryRun).unwrap();
        let rare = run.declare(&c.twice, Cadence::EverySteps(3)).unwrap();
        let mut got = Vec::new();
        for step in 1..=12u64 {
            let x = ones(1 + (step % 2) as usize);
            run.run(&c.session, at(step), &[("x", &x)]).unwrap();
            got.push((run.value(drawn).cloned(), run.value(rare).cloned()));
        }
        (got, c.session.read("count").unwrap())
    };
    let many = results(16);
    assert_eq!(many.1.to_scalar().unwrap(), 18.0);
    assert_eq!(results(1), many);
    assert_eq!(results(0), many, "0 counts as 1");
}

/// The profile lists the kernels of the cached programs.
#[test]
fn the_program_cache_respects_its_limit() {
    let kept = |programs: usize, shapes: usize| {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", [None]));
        let y = x.exp().sum();
        let options = SessionOptions { programs, profile: true, ..SessionOptions::default() };
        let session = Session::with(g.freeze().unwrap(), options).unwrap();
        for n in (1..=shapes).chain(1..=shapes) {
            let got = session.run(&[&y], &[("x", &HostTensor::zeros(DType::F32, [n]).unwrap())]).unwrap();
            assert_eq!(got[0].to_scalar().unwrap(), n as f64);
        }
        session.profile().unwrap().len()
    };
    let of_one = kept(1, 1);
    assert!(of_one > 0);
    assert_eq!(kept(1, 5), of_one);
    assert_eq!(kept(3, 5), 3 * of_one);
    assert_eq!(kept(16, 5), 5 * of_one);
}
