//! Accumulated gradients compared with one large batch.

use super::net::{Net, WEIGHTS, assert_close};
use std::collections::BTreeSet;
use tensorpack::DType;
use tensorpack::optim::gradproc::GlobalNormClip;
use tensorpack::optim::{
    Accumulate, Adagrad, Adam, AdamW, Ema, Lamb, Momentum, Optimizer, ParamGroups, PostProcess, RmsProp, Sgd,
};

/// Returns every optimizer, and wrappers around some, to accumulate gradients for.
fn all() -> Vec<fn() -> Box<dyn Optimizer>> {
    vec![
        || Sgd::new(0.5).boxed(),
        || Momentum::new(0.2, 0.9).boxed(),
        || Momentum::new(0.2, 0.9).nesterov().boxed(),
        || RmsProp::new(0.02).boxed(),
        || RmsProp::new(0.01).momentum(0.9).centered().epsilon(1e-3).boxed(),
        || Adagrad::new(0.2).boxed(),
        || Adam::new(0.02).boxed(),
        || AdamW::new(0.02).decay(0.1).boxed(),
        || Lamb::new(0.02).boxed(),
        || ParamGroups::new(Adam::new(0.02)).group(".*/W", |g| g.rate(0.5).decay(0.1)).boxed(),
        || Momentum::new(0.2, 0.9).process(GlobalNormClip::new(0.1)).boxed(),
        || PostProcess::new(Adam::new(0.05), |_, w| Some(w.clip(-0.4, 0.4))).boxed(),
        || Ema::new(Adam::new(0.02), 0.9).boxed(),
        || Ema::new(Adam::new(0.02), 0.9).debiased().boxed(),
    ]
}

/// Checks that two networks have the same weights and the same state of the inner optimizer.
fn assert_same(what: &str, accumulated: &Net, large: &Net) {
    for v in large.session.graph().variables().iter().filter(|v| v.name != "global_step") {
        assert_close(&format!("{what}: {}", v.name), &accumulated.read(&v.name), &large.read(&v.name), 1e-12);
    }
}

#[test]
fn three_steps_equal_one_step_on_a_batch_three_times_as_large() {
    for make in all() {
        let what = format!("{:?}", make());
        let large = Net::new(DType::F64, &*make());
        let accumulated = Net::new(DType::F64, &Accumulate::new(make(), 3));
        for step in 0..12 {
            accumulated.step(step..step + 1);
            if step % 3 == 2 {
                large.step(step - 2..step + 1);
            }
            assert_same(&what, &accumulated, &large);
        }
    }
}

#[test]
fn a_flush_applies_the_mean_of_accumulated_gradients_once() {
    for make in all() {
        let what = format!("{:?}", make());
        let large = Net::new(DType::F64, &*make());
        let accumulated = Net::new(DType::F64, &Accumulate::new(make(), 3));
        accumulated.steps(0..5);
        large.step(0..3);
        assert_same(&what, &accumulated, &large);
        accumulated.flush();
        large.step(3..5);
        assert_same(&what, &accumulated, &large);
        // Nothing is left to flush, and the next update counts from its first step.
        let before = accumulated.variables();
        accumulated.flush();
        assert_eq!(accumulated.variables(), before, "{what}");
        accumulated.steps(5..8);
        large.step(5..8);
        assert_same(&what, &accumulated, &large);
    }
}

#[test]
fn between_updates_only_the_sums_change() {
    let net = Net::new(DType::F32, &Accumulate::new(Adam::new(0.1), 4));
    let before = net.variables();
    net.steps(0..3);
    let changed: BTreeSet<String> =
        before.into_iter().zip(net.variables()).filter(|(a, b)| a != b).map(|((name, _), _)| name).collect();
    let sums = WEIGHTS.iter().map(|w| format!("{w}/accumulated"));
    let right: BTreeSet<String> = sums.chain(["accumulated_steps".into(), "global_step".into()]).collect();
    assert_eq!(changed, right);
}

#[test]
fn accumulation_may_nest() {
    let large = Net::new(DType::F64, &Momentum::new(0.2, 0.9));
    let inner = Accumulate::new(Momentum::new(0.2, 0.9), 2);
    let nested = Net::new(DType::F64, &Accumulate::new(inner, 3));
    nested.steps(0..12);
    large.step(0..6);
    large.step(6..12);
    for w in WEIGHTS {
        assert_close(w, &nested.read(w), &large.read(w), 1e-12);
    }
}
