//! Loops over scalars, whose steps XLA merges into one kernel.

use crate::device;
use std::time::Duration;
use tensorpack::control::while_loop;
use tensorpack::prelude::*;

/// The time of a run does not double every few steps.
#[test]
fn the_gradient_of_a_long_loop_over_scalars_is_fast() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    let last = while_loop(&[&x], &[], 200, |s, _| s[0].greater(0.5), |s, _| vec![(&s[0] * 0.99).sin()]);
    let slope = gradients(&last[0], &[&x]).unwrap().remove(0).unwrap();
    let options = SessionOptions { device, deadline: Duration::from_secs(10), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let found = session.run(&[&slope], &[("x", &HostTensor::scalar(0.9f32))]).unwrap();
    assert!((found[0].to_scalar().unwrap() - 0.163248).abs() < 1e-5, "{found:?}");
}
