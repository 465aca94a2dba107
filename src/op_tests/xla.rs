//! Compares the XLA engine with the CPU engine over the same cases: outputs, gradients and second
//! gradients.
//!
//! Compiling takes longer than running, so many trials share a module. Without XLA's plugin for
//! CPUs these tests are skipped, or fail if `TENSORPACK_REQUIRE_PLUGIN` is set.
//! `TENSORPACK_XLA_TEST_CASES` sets the number of trials per case; `TENSORPACK_TEST_OP` selects
//! cases by name.

use super::chain::close;
use super::integers::{PAIRS, SINGLES, integers, samples};
use crate::autodiff::gradients;
use crate::graph::{Graph, Tensor, TensorSpec};
use crate::op_cases::{Domain, Draw, Gradient, Input, Trial, all_cases};
use crate::runtime::{Device, IntoFetch, Session, SessionOptions};
use std::rc::Rc;
use tensorpack_kernels::Isa;
use tensorpack_tensor::{CounterRng, DType, HostTensor, Result};

/// Tolerances relative to the largest absolute value of the tensor, or to 1 if that is larger.
const F32_TOLERANCE: f64 = 1e-5;
const F64_TOLERANCE: f64 = 1e-12;
/// A few units in the last place of bf16, which has 8 bits, and f16, which has 11. Both engines round
/// after every operation, but they add in different orders, and rounding the other way differs by
/// one such unit.
const BF16_TOLERANCE: f64 = 0.02;
const F16_TOLERANCE: f64 = 0.0025;
/// Where terms cancel, as in gradients of normalization layers, one rounding is far more than a unit
/// of the result. There the error of each engine with respect to f64 may be this many times
/// [`rounding_error`].
const NARROW_ERRORS: f64 = 2.0;
/// The number of random inputs that [`rounding_error`] is measured on.
const NARROW_DRAWS: u64 = 8;

/// Cases of kernels that run only on the host; XLA rejects them.
const ON_THE_HOST: [&str; 1] = ["Print"];

/// Maximum number of inputs of a group; a run takes at most 64.
const GROUP_INPUTS: usize = 60;
/// Maximum number of trials of a group.
const GROUP_TRIALS: usize = 40;

/// Returns XLA's first device of the platform that `TENSORPACK_XLA_TEST_DEVICE` names (defaults to
/// the CPU), if there is a plugin for it.
fn device() -> Option<Device> {
    let name = std::env::var("TENSORPACK_XLA_TEST_DEVICE").unwrap_or("xla:cpu:0".into());
    let device: Device = name.parse().unwrap();
    let Device::Xla { platform, .. } = device else { panic!("{name} is not an XLA device") };
    tensorpack_testing::plugin_for_tests(platform.name()).map(|_| device)
}

/// A trial with its values.
struct Tried {
    name: String,
    trial: Rc<Trial>,
    values: Vec<Vec<f64>>,
    differentiate: bool,
}

impl Tried {
    /// Draws values for a trial.
    fn draw(name: String, trial: Rc<Trial>, differentiate: bool, rng: &CounterRng) -> Tried {
        let total: usize = trial.inputs.iter().map(|i| i.len()).sum();
        let mut before = 0;
        let mut values = Vec::new();
        for input in &trial.inputs {
            values.push(input.values(rng, before, total));
            before += input.len();
        }
        Tried { name, trial, values, differentiate }
    }

    /// Rounds the values to a float type of 16 bits.
    fn rounded(mut self, narrow: DType) -> Tried {
        for (input, values) in self.trial.inputs.iter().zip(&mut self.values) {
            if input.is_float() {
                let rounded = HostTensor::from_f64(narrow, [values.len()], values).unwrap();
                *values = rounded.to_f64_vec();
            }
        }
        self
    }

    /// Draws other values for the same trial.
    fn redrawn(&self, draw: u64) -> Tried {
        let rng = CounterRng::new(draw, &format!("{} again", self.name));
        Tried::draw(self.name.clone(), self.trial.clone(), self.differentiate, &rng)
    }

    fn elements(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    /// Builds the tensors to compare: outputs, gradients, and in f64 second gradients.
    fn build(&self, graph: &Graph, prefix: &str, float: DType) -> Result<Vec<(String, Tensor)>> {
        let inputs: Vec<Tensor> = self
            .trial
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| input.tensor(graph, &format!("{prefix}x{i}"), float))
            .collect();
        let outputs = (self.trial.build)(&inputs);
        let mut wanted: Vec<(String, Tensor)> =
            outputs.iter().enumerate().map(|(i, y)| (format!("output {i}"), y.clone())).collect();
        let xs: Vec<&Tensor> =
            inputs.iter().zip(&self.trial.inputs).filter(|(_, i)| i.is_float()).map(|(x, _)| x).collect();
        let mut of = outputs;
        for order in ["gradient", "second gradient"] {
            if !self.differentiate || of.is_empty() {
                break;
            }
            let cost = of.iter().map(|y| (y.square() * 0.5 + y).sum()).reduce(|a, b| a + b);
            of = gradients(&cost.expect("there is an output"), &xs)?.into_iter().flatten().collect();
            // Terms of second gradients cancel, so f32 has too few digits for them.
            if order == "gradient" || float == DType::F64 {
                wanted.extend(of.iter().enumerate().map(|(i, g)| (format!("{order} {i}"), g.clone())));
            }
        }
        Ok(wanted)
    }
}

/// Runs all trials of a group on one device.
fn run(group: &[&Tried], float: DType, device: Device) -> Result<Vec<Vec<(String, HostTensor)>>> {
    let graph = Graph::new();
    let mut wanted = Vec::new();
    let mut feeds = Vec::new();
    for (t, tried) in group.iter().enumerate() {
        let prefix = format!("t{t}");
        wanted.push(tried.build(&graph, &prefix, float)?);
        for (i, (input, values)) in tried.trial.inputs.iter().zip(&tried.values).enumerate() {
            feeds.push((format!("{prefix}x{i}"), input.feed(float, values)));
        }
    }
    let options = SessionOptions {
        device,
        isa: Some(Isa::Plain),
        threads: Some(1),
        full_precision: true,
        ..SessionOptions::default()
    };
    let session = Session::with(graph.freeze()?, options)?;
    let fetches: Vec<&dyn IntoFetch> = wanted.iter().flatten().map(|(_, t)| t as &dyn IntoFetch).collect();
    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let mut values = session.run(&fetches, &feeds)?.into_iter();
    let mut named = |list: Vec<(String, Tensor)>| {
        list.into_iter().map(|(label, _)| label).zip(values.by_ref()).collect::<Vec<_>>()
    };
    Ok(wanted.into_iter().map(|list| named(list.into_iter().collect())).collect())
}

/// Runs one trial on the CPU engine.
fn run_on_cpu(tried: &Tried, float: DType) -> Result<Vec<Vec<f64>>> {
    let results = run(&[tried], float, Device::Cpu(0))?.swap_remove(0);
    Ok(results.into_iter().map(|(_, value)| value.to_f64_vec()).collect())
}

/// Returns the largest absolute difference.
fn max_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

/// Measures the rounding error of a float type of 16 bits for each result of a trial: the largest
/// difference from f64 on the CPU engine over several random inputs.
fn rounding_error(tried: &Tried, narrow: DType) -> Result<Vec<f64>> {
    let mut errors = Vec::new();
    for draw in 0..NARROW_DRAWS {
        let again = tried.redrawn(draw).rounded(narrow);
        let (truth, found) = (run_on_cpu(&again, DType::F64)?, run_on_cpu(&again, narrow)?);
        errors.resize(found.len(), 0.0);
        for (error, (truth, found)) in errors.iter_mut().zip(truth.iter().zip(&found)) {
            *error = max_difference(truth, found).max(*error);
        }
    }
    Ok(errors)
}

/// Checks that result number `at` of both engines is as close to f64 as a float type of 16 bits
/// allows.
fn within_rounding_error(tried: &Tried, narrow: DType, at: usize, found: [&[f64]; 2]) -> Result<(), String> {
    let own = Tried {
        name: tried.name.clone(),
        trial: tried.trial.clone(),
        values: tried.values.clone(),
        ..*tried
    };
    let truth = run_on_cpu(&own.rounded(narrow), DType::F64).map_err(|e| e.to_string())?;
    let allowed = NARROW_ERRORS * rounding_error(tried, narrow).map_err(|e| e.to_string())?[at];
    let errors = found.map(|values| max_difference(&truth[at], values));
    if errors.iter().all(|error| *error <= allowed) {
        return Ok(());
    }
    Err(format!("the errors with respect to f64 are {errors:?}, at most {allowed} is allowed"))
}

/// Compares a group. If it cannot run, its trials run one by one, to name the one that fails.
fn check(group: &[&Tried], float: DType, device: Device, failures: &mut Vec<String>) {
    let right = match run(group, float, Device::Cpu(0)) {
        Ok(right) => right,
        // Not every operation supports floats of 16 bits.
        Err(_) if float.is_narrow_float() && group.len() == 1 => return,
        Err(_) if float.is_narrow_float() => {
            group.iter().for_each(|tried| check(&[tried], float, device, failures));
            return;
        }
        Err(e) => panic!("the CPU engine cannot run a case: {e}"),
    };
    let found = match run(group, float, device) {
        Ok(found) => found,
        Err(e) if group.len() == 1 => {
            failures.push(format!("{} in {float}: {e}", group[0].name));
            return;
        }
        Err(_) => {
            group.iter().for_each(|tried| check(&[tried], float, device, failures));
            return;
        }
    };
    for ((tried, right), found) in group.iter().zip(right).zip(found) {
        // The error of a sum grows with its length.
        let tolerance = match float {
            DType::F64 => F64_TOLERANCE,
            DType::Bf16 => BF16_TOLERANCE,
            DType::F16 => F16_TOLERANCE,
            _ => F32_TOLERANCE,
        } * (tried.elements() as f64 / 200.0).max(1.0);
        for (at, ((label, a), (_, b))) in right.iter().zip(&found).enumerate() {
            let values = [a.to_f64_vec(), b.to_f64_vec()];
            let mut same = close(&values[0], &values[1], tolerance);
            if float.is_narrow_float() && same.is_err() {
                same = within_rounding_error(tried, float, at, [&values[0], &values[1]]);
            }
            if let Err(e) = same.and_then(|()| (a.sizes() == b.sizes()).then_some(()).ok_or("sizes".into())) {
                failures.push(format!(
                    "{} in {float}, {label} to {tolerance}: {e}, on {:?}",
                    tried.name, tried.trial.inputs
                ));
            }
        }
    }
}

#[test]
fn every_case_agrees_with_the_cpu_engine() {
    let Some(device) = device() else { return };
    let wanted = std::env::var("TENSORPACK_TEST_OP").unwrap_or_default();
    let trials = std::env::var("TENSORPACK_XLA_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut all = Vec::new();
    let is_selected = |name: &str| name.contains(&wanted) && !ON_THE_HOST.contains(&name);
    for case in all_cases().into_iter().filter(|case| is_selected(case.name)) {
        for k in 0..trials {
            let rng = CounterRng::new(k, case.name);
            let choices: Vec<u32> = (0..48).map(|i| rng.word(9, i)).collect();
            let trial = Rc::new((case.draw)(&mut Draw::new(&choices)));
            let differentiate = matches!(case.gradient, Gradient::Twice);
            all.push(Tried::draw(format!("{} ({k})", case.name), trial, differentiate, &rng));
        }
    }
    assert!(!all.is_empty(), "no case name contains {wanted}");
    let mut failures = Vec::new();
    let mut group: Vec<&Tried> = Vec::new();
    let inputs = |group: &[&Tried]| group.iter().map(|t| t.trial.inputs.len()).sum::<usize>();
    for (i, tried) in all.iter().enumerate() {
        group.push(tried);
        let next = all.get(i + 1).map_or(GROUP_INPUTS, |t| t.trial.inputs.len());
        if inputs(&group) + next > GROUP_INPUTS || group.len() >= GROUP_TRIALS || i + 1 == all.len() {
            for float in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
                check(&group, float, device, &mut failures);
            }
            group.clear();
        }
    }
    assert!(failures.is_empty(), "{} differ\n{}", failures.len(), failures.join("\n\n"));
}

/// Returns the results of `build` on inputs with these values, on one device.
fn results_of(
    values: &[HostTensor],
    device: Device,
    build: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<HostTensor> {
    let graph = Graph::new();
    let names: Vec<String> = (0..values.len()).map(|i| format!("x{i}")).collect();
    let input = |(name, v): (&String, &HostTensor)| {
        let sizes: Vec<Option<usize>> = v.sizes().iter().map(|&n| Some(n)).collect();
        graph.placeholder(&TensorSpec::new(name.as_str(), v.dtype(), sizes))
    };
    let results = build(&names.iter().zip(values).map(input).collect::<Vec<_>>());
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let fetches: Vec<&dyn IntoFetch> = results.iter().map(|t| t as &dyn IntoFetch).collect();
    let feeds: Vec<(&str, &HostTensor)> = names.iter().map(String::as_str).zip(values).collect();
    session.run(&fetches, &feeds).unwrap()
}

/// Checks that the results on both devices are bit-identical.
fn assert_same_bits(
    what: &str,
    values: &[HostTensor],
    device: Device,
    build: impl Fn(&[Tensor]) -> Vec<Tensor>,
) {
    let (right, found) = (results_of(values, Device::Cpu(0), &build), results_of(values, device, &build));
    for (i, (right, found)) in right.iter().zip(&found).enumerate() {
        assert_eq!(right, found, "{what}, result {i}");
    }
}

#[test]
fn casts_follow_rust() {
    let Some(device) = device() else { return };
    let values = DType::ALL.map(samples);
    assert_same_bits("casts", &values, device, |x| {
        x.iter().flat_map(|x| DType::ALL.map(|to| x.cast(to))).collect()
    });
}

#[test]
fn integer_arithmetic_is_exact() {
    let Some(device) = device() else { return };
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let values = [integers(dtype, "a", 83).0, integers(dtype, "b", 83).0];
        assert_same_bits(&format!("arithmetic on {dtype}"), &values, device, |x| {
            let pairs = PAIRS.iter().map(|(_, op, _)| op(&x[0], &x[1]));
            pairs.chain(SINGLES.iter().map(|(_, op, _)| op(&x[0]))).collect()
        });
    }
}

#[test]
fn random_numbers_are_bit_identical() {
    let Some(device) = device() else { return };
    let shape = HostTensor::zeros(DType::F32, [7, 3]).unwrap();
    assert_same_bits("random numbers", &[shape], device, |x| {
        let uniform = [DType::F32, DType::F64].map(|dtype| x[0].random_uniform_like(dtype));
        uniform.into_iter().chain([(&x[0] + 1.0).dropout(0.3)]).collect()
    });
}

#[test]
fn host_operations_are_rejected() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let x = graph.constant(HostTensor::scalar(1.0f32));
    let line = line!() + 1;
    let printed = x.print();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let e = session.run(&[&printed], &[]).unwrap_err();
    assert!(e.message().contains("Print") && e.message().contains("XLA"), "{e}");
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
}

#[test]
fn rounding_to_16_bits_is_distinguished_from_wrong_results() {
    // The terms of this gradient cancel, so only rounding errors remain.
    let input = Input::floats(&mut Draw::new(&[0; 4]), [6, 5], Domain::Any);
    let trial = Trial::new(vec![input], |x| vec![x[0].normalize(&[0], 1e-5)]);
    let rng = CounterRng::new(0, "rounded");
    let tried = Tried::draw("Normalize".into(), Rc::new(trial), true, &rng);
    for (narrow, expected) in [(DType::Bf16, 0.002..0.2), (DType::F16, 0.00025..0.025)] {
        let found = run_on_cpu(&tried, narrow).unwrap();
        let error = rounding_error(&tried, narrow).unwrap()[1];
        assert!(expected.contains(&error), "{error}");
        within_rounding_error(&tried, narrow, 1, [&found[1], &found[1]]).unwrap();
        let wrong: Vec<f64> = found[1].iter().map(|g| g + 4.0 * error).collect();
        assert!(within_rounding_error(&tried, narrow, 1, [&found[1], &wrong]).is_err());
    }
}
