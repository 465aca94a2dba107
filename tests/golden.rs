//! Operations, their first and second gradients, and whole training runs, compared with values that
//! PyTorch computed in float64 (`tests/golden`): in f64 to nearly full precision, and in f32 on every
//! instruction set of this machine.

mod more_ops;
mod sequences;
mod vision;

use serde_json::Value;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Init, Tensor, TensorSpec, UPDATE_OPS};
use tensorpack::nn::{BatchNorm, Conv2d, Linear};
use tensorpack::ops::{Conv2dOptions, Layout, Padding, PoolOptions};
use tensorpack::optim::{Adam, minimize};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{Device, IntoFetch, Session, SessionOptions};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

fn golden(file: &str) -> Value {
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("the golden file is there"))
        .expect("it is JSON")
}

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("{v} is no list"))
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is no text"))
}

fn floats(v: &Value) -> Vec<f64> {
    list(v).iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn counts(v: &Value) -> Vec<usize> {
    list(v).iter().map(|x| x.as_u64().expect("a count") as usize).collect()
}

fn signed(v: &Value) -> Vec<isize> {
    counts(v).into_iter().map(|n| n as isize).collect()
}

fn pair(v: &Value) -> [usize; 2] {
    counts(v).try_into().expect("two numbers")
}

fn padding(v: &Value) -> Padding {
    match v.as_str() {
        Some("SAME") => Padding::Same,
        Some("VALID") => Padding::Valid,
        Some(other) => panic!("unknown padding {other}"),
        None => Padding::Explicit([pair(&v[0]), pair(&v[1])]),
    }
}

/// Removes these axes, which a reduction has kept.
fn dropped(t: Tensor, axes: &[usize], keep: bool) -> Tensor {
    if keep { t } else { axes.iter().rev().fold(t, |t, &a| t.squeeze(a as isize)) }
}

fn zero(like: &Tensor) -> Tensor {
    like.graph().constant(HostTensor::from_f64(like.dtype(), [], &[0.0]).expect("one value"))
}

/// Builds the operation that the files call `op`. Panics if it is unknown.
fn apply(op: &str, attrs: &Value, x: &[Tensor]) -> Vec<Tensor> {
    let transposed = |t: &Tensor, flag: &Value| match flag.as_bool() {
        Some(true) => t.matrix_transpose(),
        _ => t.clone(),
    };
    let pool = || PoolOptions {
        window: pair(&attrs["window"]),
        stride: pair(&attrs["stride"]),
        padding: padding(&attrs["padding"]),
        layout: Layout::Nhwc,
    };
    let (axes, keep) = (&attrs["axes"], attrs["keep"].as_bool().unwrap_or(false));
    let reduced =
        |kept: fn(&Tensor, &[isize]) -> Tensor| dropped(kept(&x[0], &signed(axes)), &counts(axes), keep);
    let linear = |x: &Tensor, w: &Tensor, b: &Tensor| x.matmul(w) + b;
    let y = match op {
        "add" => &x[0] + &x[1],
        "sub" => &x[0] - &x[1],
        "mul" => &x[0] * &x[1],
        "div" => &x[0] / &x[1],
        "maximum" => x[0].maximum(&x[1]),
        "minimum" => x[0].minimum(&x[1]),
        "pow" => x[0].pow(&x[1]),
        "mul_chain" => &x[0] * &x[1] * &x[0],
        "neg" => -&x[0],
        "abs" => x[0].abs(),
        "exp" => x[0].exp(),
        "log" => x[0].log(),
        "sqrt" => x[0].sqrt(),
        "rsqrt" => x[0].rsqrt(),
        "tanh" => x[0].tanh(),
        "sigmoid" => x[0].sigmoid(),
        "relu" => x[0].relu(),
        "square" => x[0].square(),
        // A maximum of equal operands splits its gradient, which matches that of softplus at 0.
        "softplus" => x[0].maximum(&zero(&x[0])) + (-x[0].abs()).exp().log1p(),
        "erf" => x[0].erf(),
        "sin" => x[0].sin(),
        "cos" => x[0].cos(),
        "compare_select" => {
            let (a, b) = (&x[0], &x[1]);
            let condition = match text(&attrs["compare"]) {
                "lt" => a.less(b),
                "le" => a.less_equal(b),
                "gt" => a.greater(b),
                "ge" => a.greater_equal(b),
                "eq" => a.equal(b),
                "ne" => a.not_equal(b),
                other => panic!("unknown comparison {other}"),
            };
            condition.select(&x[2], &x[3])
        }
        "reduce_sum" if keep => x[0].sum_keep(&signed(axes)),
        "reduce_sum" => x[0].sum_axes(&signed(axes)),
        "reduce_mean" if keep => x[0].moments(&signed(axes)).0,
        "reduce_mean" => x[0].mean_axes(&signed(axes)),
        "reduce_max" => reduced(Tensor::max_keep),
        "logsumexp" => reduced(Tensor::log_sum_exp_keep),
        "moments" => {
            let (mean, variance) = x[0].moments(&signed(axes));
            return vec![dropped(mean, &counts(axes), keep), dropped(variance, &counts(axes), keep)];
        }
        "matmul" => {
            transposed(&x[0], &attrs["transpose_a"]).matmul(&transposed(&x[1], &attrs["transpose_b"]))
        }
        "conv2d" => {
            let options = Conv2dOptions {
                stride: pair(&attrs["stride"]),
                dilation: pair(&attrs["dilation"]),
                padding: padding(&attrs["padding"]),
                ..Conv2dOptions::default()
            };
            x[0].conv2d(&x[1], options)
        }
        "max_pool" => x[0].max_pool_with(pool()),
        "avg_pool" => x[0].average_pool_with(pool()),
        "sparse_softmax_cross_entropy" => x[0].sparse_softmax_cross_entropy(&x[1]),
        "softmax" => x[0].softmax(),
        "log_softmax" => x[0].log_softmax(),
        "batch_norm" => {
            let axes: Vec<isize> = (0..x[0].rank() as isize - 1).collect();
            let (mean, variance) = x[0].moments(&axes);
            let scale = (variance + attrs["eps"].as_f64().expect("an epsilon")).rsqrt() * &x[1];
            (&x[0] - mean) * scale + &x[2]
        }
        "reshape" => x[0].reshape(&signed(&attrs["shape"])),
        "transpose" => x[0].transpose(&counts(&attrs["perm"])),
        "pad" => x[0].pad(&counts(&attrs["low"]), &counts(&attrs["high"]), &counts(&attrs["interior"])),
        "strided_slice" => {
            let end: Vec<Option<usize>> = counts(&attrs["end"]).into_iter().map(Some).collect();
            x[0].strided_slice(&counts(&attrs["begin"]), &end, &counts(&attrs["stride"]))
        }
        "linear_relu" => linear(&x[0], &x[1], &x[2]).relu(),
        "linear_relu_linear" => linear(&linear(&x[0], &x[1], &x[2]).relu(), &x[3], &x[4]),
        "linear_tanh_linear" => linear(&linear(&x[0], &x[1], &x[2]).tanh(), &x[3], &x[4]),
        other => more_ops::apply(other, attrs, x)
            .or_else(|| vision::apply(other, attrs, x))
            .or_else(|| sequences::apply(other, attrs, x))
            .unwrap_or_else(|| panic!("the operation {other} of the golden file has no translation here")),
    };
    vec![y]
}

/// A tensor that is fed, with its value.
struct Fed {
    name: String,
    value: HostTensor,
    tensor: Tensor,
}

fn feed(graph: &Graph, name: String, dtype: DType, sizes: &[usize], values: &[f64]) -> Fed {
    let known: Vec<Option<usize>> = sizes.iter().map(|&n| Some(n)).collect();
    let tensor = graph.placeholder(&TensorSpec::new(name.as_str(), dtype, known));
    Fed { name, value: HostTensor::from_f64(dtype, sizes, values).expect("a value for each element"), tensor }
}

/// `sum(t * weight)` over all of them.
fn weighted(tensors: &[Tensor], weights: &[Fed]) -> Tensor {
    let parts = tensors.iter().zip(weights).map(|(t, w)| (t * &w.tensor).sum());
    parts.reduce(|a, b| a + b).expect("a case has outputs")
}

/// Runs a case and compares all its values, within `tolerance` times the largest absolute value of the
/// tensor (or 1).
fn check_case(case: &Value, float: DType, engine: &SessionOptions, tolerance: f64) {
    let name = format!("{} in {float} on {}", text(&case["name"]), label(engine));
    let graph = Graph::new();
    let inputs: Vec<Fed> = list(&case["inputs"])
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let dtype = match text(&v["dtype"]) {
                "f64" => float,
                "i32" => DType::I32,
                other => panic!("unknown type {other}"),
            };
            feed(&graph, format!("x{i}"), dtype, &counts(&v["shape"]), &floats(&v["data"]))
        })
        .collect();
    let tensors: Vec<Tensor> = inputs.iter().map(|i| i.tensor.clone()).collect();
    let outputs = apply(text(&case["op"]), &case["attrs"], &tensors);
    let mut wanted: Vec<(String, Tensor, Vec<f64>)> = Vec::new();
    for (k, (y, right)) in outputs.iter().zip(list(&case["outputs"])).enumerate() {
        assert_eq!(y.shape().known(), Some(counts(&right["shape"])), "{name}: shape of output {k}");
        wanted.push((format!("output {k}"), y.clone(), floats(&right["data"])));
    }
    assert_eq!(outputs.len(), list(&case["outputs"]).len(), "{name}: outputs");
    let seeds: Vec<Fed> = list(&case["seeds"])
        .iter()
        .zip(list(&case["outputs"]))
        .enumerate()
        .map(|(k, (seed, y))| feed(&graph, format!("seed{k}"), float, &counts(&y["shape"]), &floats(seed)))
        .collect();
    let cost = weighted(&outputs, &seeds);
    // Requests the listed gradients and pairs each with its expected value; a missing one must be
    // zeros.
    let listed =
        |cost: &Tensor, of: &[Tensor], right: &Value, what: &str| -> Vec<(String, Tensor, Vec<f64>)> {
            let right: Vec<(usize, Vec<f64>)> = list(right)
                .iter()
                .enumerate()
                .filter(|(_, v)| !v.is_null())
                .map(|(i, v)| (i, floats(v)))
                .collect();
            let xs: Vec<&Tensor> = right.iter().map(|&(i, _)| &of[i]).collect();
            let found = gradients(cost, &xs).unwrap_or_else(|e| panic!("{name}: {e}"));
            let pairs = right.into_iter().zip(found).filter_map(|((i, right), g)| match g {
                Some(g) => Some((format!("{what} {i}"), g, right)),
                None => {
                    assert!(right.iter().all(|&v| v == 0.0), "{name}: {what} {i} is missing");
                    None
                }
            });
            pairs.collect()
        };
    let first = listed(&cost, &tensors, &case["input_grads"], "gradient");
    if let Some(wrt) = case["wrt"].as_u64() {
        let label = format!("gradient {wrt}");
        let g = &first.iter().find(|(l, ..)| *l == label).expect("the gradient to differentiate again").1;
        let sizes = inputs[wrt as usize].value.sizes().to_vec();
        let seed = feed(&graph, "seed2".into(), float, &sizes, &floats(&case["seed2"]));
        let again = (g * &seed.tensor).sum();
        let seed_tensors: Vec<Tensor> = seeds.iter().map(|s| s.tensor.clone()).collect();
        wanted.extend(listed(&again, &tensors, &case["second_grads"], "second gradient"));
        wanted.extend(listed(&again, &seed_tensors, &case["seed_grads"], "gradient of seed"));
        run_case(
            &name,
            graph,
            inputs.into_iter().chain(seeds).chain([seed]),
            wanted.into_iter().chain(first),
            engine,
            tolerance,
        );
    } else {
        run_case(
            &name,
            graph,
            inputs.into_iter().chain(seeds),
            wanted.into_iter().chain(first),
            engine,
            tolerance,
        );
    }
}

fn run_case(
    name: &str,
    graph: Graph,
    fed: impl Iterator<Item = Fed>,
    wanted: impl Iterator<Item = (String, Tensor, Vec<f64>)>,
    engine: &SessionOptions,
    tolerance: f64,
) {
    let (fed, wanted): (Vec<Fed>, Vec<_>) = (fed.collect(), wanted.collect());
    let fetches: Vec<&dyn IntoFetch> = wanted.iter().map(|(_, t, _)| t as &dyn IntoFetch).collect();
    let session = session(graph, engine).unwrap_or_else(|e| panic!("{name}: {e}"));
    let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|f| (f.name.as_str(), &f.value)).collect();
    let found = session.run(&fetches, &feeds).unwrap_or_else(|e| panic!("{name}: {e}"));
    for ((label, _, right), found) in wanted.iter().zip(found) {
        check_close(&format!("{name}: {label}"), &found.to_f64_vec(), right, tolerance);
    }
}

/// The CPU engine with each instruction set of this machine, and the reference interpreter.
fn engines() -> Vec<SessionOptions> {
    let cpu = |isa| SessionOptions { isa: Some(isa), threads: Some(1), ..SessionOptions::default() };
    let reference = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    Isa::available().map(cpu).chain([reference]).collect()
}

/// A description of an engine.
fn label(engine: &SessionOptions) -> String {
    engine.isa.map_or_else(|| engine.device.to_string(), |isa| format!("{} with {isa}", engine.device))
}

fn session(graph: Graph, engine: &SessionOptions) -> tensorpack::Result<Session> {
    Session::with(graph.freeze()?, engine.clone())
}

fn check_close(what: &str, found: &[f64], right: &[f64], tolerance: f64) {
    assert_eq!(found.len(), right.len(), "{what}: elements");
    // A difference of large numbers is only as exact as they are, but one huge element must not
    // widen the tolerance of the others.
    let scale = right.iter().fold(1.0, |m: f64, v| m.max(v.abs())).min(100.0);
    for (k, (a, b)) in found.iter().zip(right).enumerate() {
        assert!((a - b).abs() <= tolerance * scale.max(b.abs()), "{what}: element {k} is {a}, not {b}");
    }
}

/// Returns whether all inputs of a case are exact in f32.
fn fits_f32(case: &Value) -> bool {
    let holds =
        |v: &f64| *v == 0.0 || (v.abs() < f64::from(f32::MAX) && v.abs() > f64::from(f32::MIN_POSITIVE));
    list(&case["inputs"]).iter().flat_map(|t| floats(&t["data"])).all(|v| holds(&v))
}

fn check_file(file: &str, at_least: usize) -> Vec<String> {
    let all = golden(file);
    let mut only_f64 = Vec::new();
    assert!(list(&all["cases"]).len() >= at_least, "{file} has lost cases");
    for case in list(&all["cases"]) {
        let narrow = fits_f32(case);
        if !narrow {
            only_f64.push(text(&case["name"]).to_string());
        }
        for engine in &engines() {
            check_case(case, DType::F64, engine, 1e-12);
            if narrow {
                check_case(case, DType::F32, engine, 2e-5);
            }
        }
    }
    only_f64
}

#[test]
fn operations_and_gradients() {
    let beyond_f32 = ["log_wide"];
    assert_eq!(check_file("ops.json", 270), beyond_f32);
}

#[test]
fn more_operations_and_gradients() {
    assert!(check_file("more_ops.json", 77).is_empty());
}

#[test]
fn ctc_losses_and_gradients() {
    assert!(check_file("sequences.json", 11).is_empty());
}

#[test]
fn vision_operations_and_gradients() {
    assert!(check_file("vision.json", 22).is_empty());
}

#[test]
fn second_gradients() {
    assert!(check_file("second.json", 34).is_empty());
}

/// The value of `list` under `name`.
fn entry<'a>(all: &'a Value, name: &str) -> &'a Value {
    list(all).iter().find(|v| text(&v["name"]) == name).unwrap_or_else(|| panic!("there is no {name}"))
}

/// Maps the name of a running statistic in the file to the name of the variable.
fn variable_name(name: &str) -> String {
    match name {
        "bn/mean" | "bn/variance" => format!("{name}/EMA"),
        other => other.to_string(),
    }
}

fn mlp(t: &TowerContext, x: &Tensor, init: &dyn Fn(&str) -> Init) -> Tensor {
    let x = Linear::new(16).relu().init(init("fc0/W")).apply(t, "fc0", x);
    let x = Linear::new(16).relu().init(init("fc1/W")).apply(t, "fc1", &x);
    Linear::new(5).init(init("fc2/W")).apply(t, "fc2", &x)
}

fn convnet(t: &TowerContext, x: &Tensor, init: &dyn Fn(&str) -> Init, run: &Value) -> Tensor {
    let number = |key: &str| run[key].as_f64().expect("a number");
    let x = Conv2d::new(4, 3).relu().init(init("conv0/W")).apply(t, "conv0", x).max_pool(2);
    let x = Conv2d::new(4, 3).no_bias().init(init("conv1/W")).apply(t, "conv1", &x);
    let norm = BatchNorm::new().momentum(number("bn_momentum")).epsilon(number("bn_eps")).relu();
    let x = norm.apply(t, "bn", &x).global_average_pool();
    Linear::new(3).init(init("fc/W")).apply(t, "fc", &x)
}

/// Trains as the file did, and compares every loss and the final weights and running statistics.
fn check_training(run: &Value, float: DType, engine: &SessionOptions, tolerance: f64) {
    let name = format!("{} in {float} on {}", text(&run["name"]), label(engine));
    let number = |key: &str| run[key].as_f64().expect("a number");
    let value =
        |v: &Value| HostTensor::from_f64(float, counts(&v["shape"]), &floats(&v["data"])).expect("it fits");
    let init = |name: &str| Init::Value(value(entry(&run["initial"], name)));
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let (shape, x) = (counts(&run["x"]["shape"]), floats(&run["x"]["data"]));
    let batch = shape[1];
    let open = |sizes: &[usize]| -> Vec<Option<usize>> {
        sizes.iter().enumerate().map(|(i, &n)| (i > 0).then_some(n)).collect()
    };
    let image = graph.placeholder(&TensorSpec::new("x", float, open(&shape[1..])));
    let label = graph.placeholder(&TensorSpec::i32("label", [None]));
    let logits = match text(&run["name"]) {
        "mlp" => mlp(&t, &image, &init),
        "convnet" => convnet(&t, &image, &init, run),
        unknown => panic!("there is no model {unknown} here"),
    };
    let cost = logits.sparse_softmax_cross_entropy(&label).mean();
    let weights: Vec<Tensor> =
        list(&run["first_grads"]).iter().map(|g| graph.tensor(text(&g["name"])).expect("a weight")).collect();
    let grads = gradients(&cost, &weights.iter().collect::<Vec<_>>()).expect("gradients");
    let grads: Vec<Tensor> = grads.into_iter().map(|g| g.expect("every weight has a gradient")).collect();
    assert_eq!(text(&run["optimizer"]), "adam");
    let adam = Adam::new(number("lr")).betas(number("beta1"), number("beta2")).epsilon(number("eps"));
    let train = minimize(&cost, &adam).expect("a training step");
    let updates = graph.collection_ops(UPDATE_OPS);
    let train = graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
    let session = session(graph, engine).unwrap_or_else(|e| panic!("{name}: {e}"));
    // The layers begin with zero biases; the file may not.
    for v in list(&run["initial"]).iter().chain(list(&run["initial_state"])) {
        session.write(&variable_name(text(&v["name"])), &value(v)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let labels = floats(&run["labels"]["data"]);
    let batch_of = |step: usize| {
        let size = x.len() / shape[0];
        let x =
            HostTensor::from_f64(float, &shape[1..], &x[step * size..(step + 1) * size]).expect("a batch");
        let y = HostTensor::from_f64(DType::I32, [batch], &labels[step * batch..(step + 1) * batch]);
        (x, y.expect("labels"))
    };
    let (x0, y0) = batch_of(0);
    let fetches: Vec<&dyn IntoFetch> = grads.iter().map(|g| g as &dyn IntoFetch).collect();
    let first = session.run(&fetches, &[("x", &x0), ("label", &y0)]).expect("gradients");
    for (found, right) in first.iter().zip(list(&run["first_grads"])) {
        let what = format!("{name}: first gradient of {}", right["name"]);
        check_close(&what, &found.to_f64_vec(), &floats(&right["data"]), tolerance);
    }
    let losses = floats(&run["losses"]);
    assert_eq!(losses.len(), shape[0], "{name}: one loss a step");
    for (step, right) in losses.iter().enumerate() {
        let (x, y) = batch_of(step);
        let loss = session.run(&[&cost, &train], &[("x", &x), ("label", &y)]).expect("a step");
        check_close(&format!("{name}: loss {step}"), &loss[0].to_f64_vec(), &[*right], tolerance);
    }
    for right in list(&run["final"]).iter().chain(list(&run["final_state"])) {
        let found = session.read(&variable_name(text(&right["name"]))).expect("a variable");
        assert_eq!(found.sizes(), counts(&right["shape"]), "{name}: sizes of {}", right["name"]);
        check_close(
            &format!("{name}: {}", right["name"]),
            &found.to_f64_vec(),
            &floats(&right["data"]),
            tolerance,
        );
        let sums = entry(&run["checksums"], text(&right["name"]));
        let sum: f64 = found.to_f64_vec().iter().sum();
        check_close(
            &format!("{name}: sum of {}", right["name"]),
            &[sum],
            &[sums["sum"].as_f64().expect("a sum")],
            tolerance * 10.0,
        );
    }
}

#[test]
fn training_runs() {
    let all = golden("training.json");
    assert_eq!(list(&all["runs"]).len(), 2);
    for run in list(&all["runs"]) {
        for engine in &engines() {
            check_training(run, DType::F64, engine, 1e-9);
            check_training(run, DType::F32, engine, 1e-4);
        }
    }
}
