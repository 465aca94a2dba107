//! The chain of comparisons for one trial.

use crate::autodiff::gradients;
use crate::graph::{Fetch, Graph, Tensor};
use crate::op_cases::{Gradient, Trial};
use crate::runtime::{Device, IntoFetch, Session, SessionOptions};
use tensorpack_kernels::Isa;
use tensorpack_tensor::{CounterRng, DType, HostTensor};

/// A trial in a session.
struct Run {
    session: Session,
    results: Vec<Vec<f64>>,
    labels: Vec<String>,
    sizes: Vec<Vec<usize>>,
    cost: Option<Fetch>,
    gradient_cost: Option<Fetch>,
}

/// The feeds: values of the inputs, weights of the outputs, and weights of the gradients.
#[derive(Clone)]
struct Point {
    inputs: Vec<Vec<f64>>,
    seeds: Vec<(Vec<usize>, Vec<f64>)>,
    second_seeds: Vec<Vec<f64>>,
}

/// Tolerances relative to the largest absolute value of the tensor, or to 1 if that is larger.
const F32_TOLERANCE: f64 = 1e-5;
const F64_TOLERANCE: f64 = 1e-12;
const DIFFERENCE_TOLERANCE: f64 = 1e-6;

/// Checks one trial. The error describes the first difference.
pub(super) fn check(trial: &Trial, rng: &CounterRng, gradient: Gradient) -> Result<(), String> {
    let total: usize = trial.inputs.iter().map(|i| i.len()).sum();
    let mut before = 0;
    let mut inputs = Vec::new();
    for input in &trial.inputs {
        inputs.push(input.values(rng, before, total));
        before += input.len();
    }
    let weights = |stream: u64, n: usize| (0..n as u64).map(|i| rng.uniform(stream, i) * 2.0 - 1.0).collect();
    let mut point = Point { inputs, seeds: Vec::new(), second_seeds: Vec::new() };
    let reference = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    // One forward run, to get the sizes of the outputs.
    let forward = Run::new(trial, DType::F64, &reference, &point, false)?;
    let twice = matches!(gradient, Gradient::Twice);
    if twice {
        point.seeds = forward
            .sizes
            .iter()
            .enumerate()
            .map(|(k, sizes)| (sizes.clone(), weights(10 + k as u64, sizes.iter().product())))
            .collect();
        point.second_seeds =
            trial.inputs.iter().enumerate().map(|(k, input)| weights(20 + k as u64, input.len())).collect();
    }
    let root = Run::new(trial, DType::F64, &reference, &point, twice)?;
    let truth = Run::new(trial, DType::F64, &cpu(Isa::Plain), &point, twice)?;
    root.compare(&truth, F64_TOLERANCE).map_err(|e| format!("the plain loops against the reference: {e}"))?;
    for isa in Isa::available() {
        let on = |e: String| format!("on {isa}: {e}");
        if isa != Isa::Plain {
            let run = Run::new(trial, DType::F64, &cpu(isa), &point, twice)?;
            truth.compare(&run, F64_TOLERANCE).map_err(on)?;
        }
        // The error of a sum grows with its length.
        let run = Run::new(trial, DType::F32, &cpu(isa), &point, twice)?;
        truth.compare(&run, F32_TOLERANCE * (total as f64 / 200.0).max(1.0)).map_err(on)?;
    }
    if twice {
        truth.differences(trial, rng, &point)?;
    }
    Ok(())
}

/// Options for the CPU engine with this instruction set.
fn cpu(isa: Isa) -> SessionOptions {
    let threads = Some(if isa == Isa::Plain { 1 } else { 2 });
    SessionOptions { isa: Some(isa), threads, ..SessionOptions::default() }
}

impl Run {
    fn new(
        trial: &Trial,
        float: DType,
        options: &SessionOptions,
        point: &Point,
        twice: bool,
    ) -> Result<Run, String> {
        let graph = Graph::new();
        let inputs: Vec<Tensor> = trial
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| input.tensor(&graph, &format!("x{i}"), float))
            .collect();
        let outputs = (trial.build)(&inputs);
        let mut wanted: Vec<(String, Tensor)> =
            outputs.iter().enumerate().map(|(i, y)| (format!("output {i}"), y.clone())).collect();
        let forward = wanted.len();
        let (mut cost, mut gradient_cost) = (None, None);
        if twice {
            let (first, second) = (weighted(&graph, &outputs, &point.seeds, "seed"), &point.second_seeds);
            let floats: Vec<usize> = (0..inputs.len()).filter(|&i| trial.inputs[i].is_float()).collect();
            let xs: Vec<&Tensor> = floats.iter().map(|&i| &inputs[i]).collect();
            let found = gradients(&first, &xs).map_err(|e| format!("no gradient: {e}"))?;
            let (mut grads, mut seeds) = (Vec::new(), Vec::new());
            for (&i, g) in floats.iter().zip(found) {
                let Some(g) = g else { continue };
                wanted.push((format!("gradient {i}"), g.clone()));
                grads.push(g);
                seeds.push((trial.inputs[i].sizes.clone(), second[i].clone()));
            }
            cost = Some(first.fetch());
            if !grads.is_empty() {
                let total = weighted(&graph, &grads, &seeds, "second_seed");
                let again = gradients(&total, &xs).map_err(|e| format!("no second gradient: {e}"))?;
                gradient_cost = Some(total.fetch());
                let again =
                    floats.iter().zip(again).filter_map(|(&i, g)| Some((format!("second gradient {i}"), g?)));
                // Terms of second gradients cancel, so f32 has too few digits for them.
                wanted.extend(again.filter(|_| float == DType::F64));
            }
        }
        let fetches: Vec<Fetch> = wanted.iter().map(|(_, t)| t.fetch()).collect();
        let frozen = graph.freeze().map_err(|e| e.to_string())?;
        let session = Session::with(frozen, options.clone()).map_err(|e| e.to_string())?;
        let mut run = Run {
            session,
            results: Vec::new(),
            labels: wanted.into_iter().map(|(label, _)| label).collect(),
            sizes: Vec::new(),
            cost,
            gradient_cost,
        };
        let values = run.run(trial, float, point, &fetches)?;
        run.sizes = values[..forward].iter().map(|v| v.sizes().to_vec()).collect();
        run.results = values.iter().map(HostTensor::to_f64_vec).collect();
        Ok(run)
    }

    fn run(
        &self,
        trial: &Trial,
        float: DType,
        at: &Point,
        what: &[Fetch],
    ) -> Result<Vec<HostTensor>, String> {
        let mut feeds: Vec<(String, HostTensor)> = Vec::new();
        for (i, (input, values)) in trial.inputs.iter().zip(&at.inputs).enumerate() {
            feeds.push((format!("x{i}"), input.feed(float, values)));
        }
        let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        let what: Vec<&dyn IntoFetch> = what.iter().map(|f| f as &dyn IntoFetch).collect();
        self.session.run(&what, &feeds).map_err(|e| e.to_string())
    }

    fn compare(&self, other: &Run, tolerance: f64) -> Result<(), String> {
        for (label, found) in other.labels.iter().zip(&other.results) {
            let at =
                self.labels.iter().position(|l| l == label).ok_or(format!("only one run has {label}"))?;
            let right = &self.results[at];
            close(right, found, tolerance).map_err(|e| format!("{label} to {tolerance}: {e}"))?;
        }
        Ok(())
    }

    /// Compares gradients, and gradients of gradients, with central differences.
    fn differences(&self, trial: &Trial, rng: &CounterRng, point: &Point) -> Result<(), String> {
        const STEP: f64 = 1e-5;
        let costs = [("gradient", &self.cost), ("second gradient", &self.gradient_cost)];
        for (kind, cost) in costs {
            let Some(cost) = cost else { continue };
            let value = |i: usize, moved: &dyn Fn(usize) -> f64| {
                let mut at = point.clone();
                at.inputs[i].iter_mut().enumerate().for_each(|(k, v)| *v += moved(k));
                self.run(trial, DType::F64, &at, std::slice::from_ref(cost)).map(|c| c[0].to_f64_vec()[0])
            };
            for (i, input) in trial.inputs.iter().enumerate().filter(|(_, input)| input.is_float()) {
                let label = format!("{kind} {i}");
                let index = self.labels.iter().position(|l| *l == label);
                let gradient = index.map_or_else(|| vec![0.0; input.len()], |p| self.results[p].clone());
                let scale = gradient.iter().fold(1.0, |m: f64, g| m.max(g.abs()));
                // A few elements one at a time, then all of them in a random direction.
                let probes = if input.len() > 200 { 3 } else { 16 };
                let step = (input.len() / probes).max(1);
                for k in (0..input.len()).step_by(step) {
                    let ahead = value(i, &|j| if j == k { STEP } else { 0.0 })?;
                    let behind = value(i, &|j| if j == k { -STEP } else { 0.0 })?;
                    let slope = (ahead - behind) / (2.0 * STEP);
                    if (slope - gradient[k]).abs() > DIFFERENCE_TOLERANCE * scale {
                        return Err(format!(
                            "{label} at element {k} is {}, by finite differences {slope}",
                            gradient[k]
                        ));
                    }
                }
                let direction = |j: usize| rng.uniform(30, j as u64) * 2.0 - 1.0;
                let ahead = value(i, &|j| STEP * direction(j))?;
                let behind = value(i, &|j| -STEP * direction(j))?;
                let slope = (ahead - behind) / (2.0 * STEP);
                let right: f64 = gradient.iter().enumerate().map(|(j, g)| g * direction(j)).sum();
                let scale = scale * (input.len() as f64).sqrt().max(1.0);
                if (slope - right).abs() > DIFFERENCE_TOLERANCE * scale {
                    return Err(format!(
                        "{label} along a direction is {right}, by finite differences {slope}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The sum of all elements of all tensors, each times a weight.
fn weighted(graph: &Graph, tensors: &[Tensor], weights: &[(Vec<usize>, Vec<f64>)], name: &str) -> Tensor {
    let parts = tensors.iter().zip(weights).enumerate().map(|(i, (t, (sizes, values)))| {
        let weights = HostTensor::from_f64(t.dtype(), sizes.clone(), values).expect("one weight per element");
        (t * graph.constant(weights).named(&format!("{name}{i}"))).sum()
    });
    parts.reduce(|sum, part| sum + part).expect("at least one tensor")
}

/// Compares two tensors within `tolerance` times the largest absolute value. The error describes
/// the first difference.
pub(super) fn close(right: &[f64], found: &[f64], tolerance: f64) -> Result<(), String> {
    if right.len() != found.len() {
        return Err(format!("{} elements, expected {}", found.len(), right.len()));
    }
    let scale = right.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
    let differ = |a: f64, b: f64| !((a - b).abs() <= tolerance * scale || (a.is_nan() && b.is_nan()));
    match right.iter().zip(found).position(|(&a, &b)| differ(a, b)) {
        Some(k) => Err(format!("element {k} is {}, expected {}", found[k], right[k])),
        None => Ok(()),
    }
}
