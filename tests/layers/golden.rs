//! Every layer, its gradients, and networks trained with them, compared with PyTorch
//! (`tests/golden/layers.json`). The error of a tensor is the norm of the difference divided by the
//! norm of the expected value.

use serde_json::Value;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::runtime::cpu::Isa;

const F64: f64 = 1e-10;
const F32: f64 = 1e-5;

fn entries(kind: &str) -> Vec<Value> {
    let path = format!("{}/tests/golden/layers.json", env!("CARGO_MANIFEST_DIR"));
    let all: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("the golden file exists")).expect("JSON");
    list(&all["entries"]).iter().filter(|e| text(&e["kind"]) == kind).cloned().collect()
}

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap_or_else(|| panic!("{v} is not a list"))
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("{v} is not a string"))
}

fn floats(v: &Value) -> Vec<f64> {
    list(v).iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn sizes(v: &Value) -> Vec<usize> {
    list(v).iter().map(|x| x.as_u64().expect("a size") as usize).collect()
}

/// Returns the tensor `v` of the file, with floats as `float`.
fn value(v: &Value, float: DType) -> HostTensor {
    let dtype = if v["dtype"] == "i32" { DType::I32 } else { float };
    HostTensor::from_f64(dtype, sizes(&v["shape"]), &floats(&v["data"])).expect("a value for each element")
}

fn check(what: &str, found: &HostTensor, right: &[f64], tolerance: f64) {
    let found = found.to_f64_vec();
    assert_eq!(found.len(), right.len(), "{what}: elements");
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut found.iter().zip(right).map(|(a, b)| a - b));
    let size = norm(&mut right.iter().copied());
    assert!(
        off <= tolerance * size,
        "{what}: off by {:.2e} of its norm: {found:?}, not {right:?}",
        off / size
    );
}

/// The settings of a layer.
struct Attrs<'a>(&'a Value);

impl Attrs<'_> {
    fn number(&self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    fn size(&self, key: &str) -> Option<usize> {
        self.0[key].as_u64().map(|n| n as usize)
    }

    fn flag(&self, key: &str) -> bool {
        self.0[key].as_bool().unwrap_or(false)
    }

    fn layout(&self) -> Layout {
        if self.0["layout"] == "NCHW" { Layout::Nchw } else { Layout::Nhwc }
    }

    fn padding(&self) -> Padding {
        if self.0["padding"] == "VALID" { Padding::Valid } else { Padding::Same }
    }

    fn activation(&self) -> Activation {
        match self.0["activation"].as_str().unwrap_or("identity") {
            "identity" => Activation::Identity,
            "relu" => Activation::Relu,
            "relu6" => Activation::Relu6,
            "leaky_relu" => Activation::LeakyRelu(0.2),
            "elu" => Activation::Elu,
            "gelu" => Activation::Gelu,
            "silu" => Activation::Silu,
            "softplus" => Activation::Softplus,
            "tanh" => Activation::Tanh,
            "sigmoid" => Activation::Sigmoid,
            unknown => panic!("unknown activation {unknown}"),
        }
    }
}

/// Applies `setting` to a layer if a value is given.
fn when<L, V>(layer: L, given: Option<V>, setting: impl FnOnce(L, V) -> L) -> L {
    match given {
        Some(value) => setting(layer, value),
        None => layer,
    }
}

/// Applies the layer of a case, named `layer`, to `x`.
fn apply(case: &Value, t: &TowerContext, x: &[Tensor]) -> Vec<Tensor> {
    let a = Attrs(&case["attrs"]);
    let filter = || {
        let found = list(&case["variables"]).iter().find(|v| v["name"] == "W").expect("a filter");
        sizes(&found["shape"])
    };
    let yes = |key: &str| a.flag(key).then_some(());
    let has = |name: &str| list(&case["variables"]).iter().any(|v| v["name"] == name);
    let y = match text(&case["layer"]) {
        "linear" => {
            let layer = Linear::new(filter()[1]).activation(a.activation());
            when(layer, yes("last_axis"), |l, ()| l.last_axis()).apply(t, "layer", &x[0])
        }
        "conv2d" if a.size("groups") == Some(0) => {
            let inputs = x[0].shape()[if a.layout() == Layout::Nchw { 1 } else { 3 }].known().expect("known");
            let layer = DepthwiseConv2d::new(filter()[0]).multiplier(filter()[3] / inputs);
            let layer = layer.layout(a.layout()).activation(a.activation());
            when(layer, a.size("stride"), DepthwiseConv2d::stride).apply(t, "layer", &x[0])
        }
        "conv2d" => {
            let layer = Conv2d::new(filter()[3], filter()[0]).layout(a.layout()).activation(a.activation());
            let layer = when(layer.padding(a.padding()), a.size("stride"), Conv2d::stride);
            let layer = when(layer, a.size("groups"), Conv2d::groups);
            when(layer, a.size("dilation"), Conv2d::dilation).apply(t, "layer", &x[0])
        }
        "conv2d_transpose" => {
            let layer = Conv2dTranspose::new(filter()[2], filter()[0]).layout(a.layout());
            let layer = layer.padding(a.padding()).stride(a.size("stride").expect("a stride"));
            layer.apply(t, "layer", &x[0])
        }
        "conv1d" => {
            let layer = when(Conv1d::new(filter()[2], filter()[0]), a.size("stride"), Conv1d::stride);
            let layer = when(layer, a.size("dilation"), Conv1d::dilation);
            let layer = when(layer, a.size("groups"), Conv1d::groups);
            when(layer, yes("causal"), |l, ()| l.causal()).apply(t, "layer", &x[0])
        }
        "conv3d" => {
            let layer = Conv3d::new(filter()[4], 1).kernel(filter()[0], filter()[1], filter()[2]);
            let layer = when(layer, a.size("stride"), Conv3d::stride);
            let layer = when(layer, a.size("dilation"), Conv3d::dilation);
            when(layer, a.size("groups"), Conv3d::groups).apply(t, "layer", &x[0])
        }
        "batch_norm" => {
            let layer = when(BatchNorm::new(), a.number("momentum"), BatchNorm::momentum).layout(a.layout());
            let layer = when(layer, a.number("epsilon"), BatchNorm::epsilon);
            let layer = when(layer, a.size("virtual_batch_size"), BatchNorm::virtual_batch_size);
            let layer = when(layer, (!has("gamma")).then_some(()), |l, ()| l.no_scale());
            let layer = when(layer, (!has("beta")).then_some(()), |l, ()| l.no_center());
            let running = (text(&case["attrs"]["mode"]) == "running").then_some(());
            when(layer, running, |l, ()| l.use_running()).apply(t, "layer", &x[0])
        }
        "layer_norm" => {
            let layer = when(LayerNorm::new(), a.number("epsilon"), LayerNorm::epsilon).layout(a.layout());
            when(layer, yes("last_axis"), |l, ()| l.last_axis()).apply(t, "layer", &x[0])
        }
        "instance_norm" => {
            let layer = InstanceNorm::new().layout(a.layout());
            when(layer, a.number("epsilon"), InstanceNorm::epsilon).apply(t, "layer", &x[0])
        }
        "group_norm" => {
            let layer = GroupNorm::new(a.size("groups").expect("groups")).layout(a.layout());
            when(layer, a.number("epsilon"), GroupNorm::epsilon).apply(t, "layer", &x[0])
        }
        "embedding" => {
            let float = if case["float"] == "f32" { DType::F32 } else { DType::F64 };
            Embedding::new(filter()[0], filter()[1]).dtype(float).apply(t, "layer", &x[0])
        }
        "lstm" => {
            let layer = Lstm::new(filter()[1] / 4).forget_bias(a.number("forget_bias").expect("a bias"));
            let state = (x.len() > 1).then(|| LstmState { c: x[1].clone(), h: x[2].clone() });
            let (y, last) = layer.apply(t, "layer", &x[0], state.as_ref());
            return vec![y, last.c, last.h];
        }
        "gru" => {
            let (y, last) = Gru::new(filter()[1] / 3).apply(t, "layer", &x[0], x.get(1));
            return vec![y, last];
        }
        "attention" => {
            let layer = MultiHeadAttention::new(a.size("heads").expect("heads"));
            let layer = when(layer, yes("causal"), |l, ()| l.causal());
            layer.apply_to(t, "layer", &x[0], x.get(1).unwrap_or(&x[0]))
        }
        "prelu" => PRelu::new().apply(t, "layer", &x[0]),
        "maxout" => Maxout::new(a.size("units").expect("units")).apply(t, "layer", &x[0]),
        "unpool" => x[0].unpool(&x[1]),
        "global_max_pool" => x[0].global_max_pool_in(a.layout()),
        unknown => panic!("unknown layer {unknown}"),
    };
    vec![y]
}

/// Returns the CPU engine with each instruction set of this machine, and the reference interpreter.
fn engines() -> Vec<SessionOptions> {
    let cpu = |isa| SessionOptions { isa: Some(isa), threads: Some(1), ..SessionOptions::default() };
    let reference = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    Isa::available().map(cpu).chain([reference]).collect()
}

/// Returns a description of an engine.
fn label(engine: &SessionOptions) -> String {
    engine.isa.map_or_else(|| engine.device.to_string(), |isa| format!("{} with {isa}", engine.device))
}

fn session(graph: Graph, engine: &SessionOptions) -> Result<Session> {
    Session::with(graph.freeze()?, engine.clone())
}

/// Runs `test` on all engines with both float types.
fn everywhere(test: impl Fn(DType, &SessionOptions, f64)) {
    for engine in &engines() {
        test(DType::F64, engine, F64);
        test(DType::F32, engine, F32);
    }
}

fn placeholder(graph: &Graph, name: &str, value: &HostTensor) -> Tensor {
    // The batch size is known only at run time.
    let known = |(i, &n): (usize, &usize)| (i > 0 || value.sizes().len() < 3).then_some(n);
    let sizes: Vec<Option<usize>> = value.sizes().iter().enumerate().map(known).collect();
    graph.placeholder(&TensorSpec::new(name, value.dtype(), sizes))
}

fn check_layer(case: &Value, float: DType, engine: &SessionOptions, tolerance: f64) -> Result<()> {
    let name = format!("{} in {float} on {}", text(&case["name"]), label(engine));
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let mut fed: Vec<(String, HostTensor)> = Vec::new();
    let mut feed = |name: String, value: HostTensor| {
        let tensor = placeholder(&graph, &name, &value);
        fed.push((name, value));
        tensor
    };
    let inputs: Vec<Tensor> = list(&case["inputs"])
        .iter()
        .enumerate()
        .map(|(i, v)| feed(format!("x{i}"), value(v, float)))
        .collect();
    let mut case = case.clone();
    case["float"] = Value::from(float.to_string());
    let outputs = apply(&case, t, &inputs);
    let right = list(&case["outputs"]);
    assert_eq!(outputs.len(), right.len(), "{name}: outputs");
    let mut cost: Option<Tensor> = None;
    for (k, ((y, right), seed)) in outputs.iter().zip(right).zip(list(&case["seeds"])).enumerate() {
        let seed = HostTensor::from_f64(float, sizes(&right["shape"]), &floats(seed))?;
        let weighted = (y * feed(format!("seed{k}"), seed)).sum();
        cost = Some(cost.map_or(weighted.clone(), |c| c + weighted));
    }
    let mut wanted: Vec<Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).cloned().collect();
    for v in list(&case["variable_grads"]) {
        wanted.push(graph.tensor(&format!("layer/{}", text(&v["name"])))?);
    }
    let found = gradients(&cost.expect("a case has outputs"), &wanted.iter().collect::<Vec<_>>())?;
    let grads: Vec<Tensor> = found.into_iter().map(|g| g.expect("a gradient")).collect();
    let updates = graph.collection_ops(UPDATE_OPS);
    let step = graph.group(&updates.iter().collect::<Vec<_>>());
    let session = session(graph, engine)?;
    let made = session.graph().variables().len();
    assert_eq!(made, list(&case["variables"]).len(), "{name}: variables");
    for v in list(&case["variables"]) {
        session.write(&format!("layer/{}", text(&v["name"])), &value(v, float))?;
    }
    let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let fetches: Vec<&dyn IntoFetch> = outputs.iter().chain(&grads).map(|t| t as &dyn IntoFetch).collect();
    let got = session.run(&fetches, &feeds)?;
    let rights = right.iter().map(|r| ("output".to_string(), floats(&r["data"])));
    let by_input = list(&case["input_grads"]).iter().map(|g| ("gradient of an input".into(), floats(g)));
    let by_variable = list(&case["variable_grads"])
        .iter()
        .map(|g| (format!("gradient of {}", text(&g["name"])), floats(&g["data"])));
    for (got, (what, right)) in got.iter().zip(rights.chain(by_input).chain(by_variable)) {
        check(&format!("{name}: {what}"), got, &right, tolerance);
    }
    for (y, right) in got.iter().zip(right) {
        assert_eq!(y.sizes(), sizes(&right["shape"]), "{name}: shape");
    }
    session.run(&[&step], &feeds)?;
    for v in list(&case["state"]) {
        let now = session.read(&format!("layer/{}", text(&v["name"])))?;
        check(&format!("{name}: {} after a step", v["name"]), &now, &floats(&v["data"]), tolerance);
    }
    Ok(())
}

#[test]
fn layers_and_their_gradients() {
    let cases = entries("layer");
    assert!(cases.len() >= 55, "layers.json has lost cases");
    for case in &cases {
        everywhere(|float, engine, tolerance| {
            check_layer(case, float, engine, tolerance).unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
        });
    }
}

/// Checks the gradient penalty of a Wasserstein critic, whose gradient contains second derivatives
/// of the whole critic.
fn check_penalty(case: &Value, float: DType, engine: &SessionOptions, tolerance: f64) -> Result<()> {
    let name = format!("gradient penalty in {float} on {}", label(engine));
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let fed = value(&case["x"], float);
    let x = placeholder(&graph, "x", &fed);
    let y = Conv2d::new(4, 3).activation(Activation::LeakyRelu(0.2)).apply(t, "conv0", &x);
    let y = Conv2d::new(5, 3).stride(2).apply(t, "conv1", &y);
    let y = LayerNorm::new().apply(t, "ln", &y).leaky_relu(0.2);
    let score = Linear::new(1).no_bias().apply(t, "fc", &y).sum();
    let slope = gradients(&score, &[&x])?.remove(0).expect("the score depends on x");
    let norm = slope.square().sum_axes(&[1, 2, 3]).sqrt();
    let penalty = (norm - 1.0).square().mean();
    let wanted = list(&case["gradients"]).iter().map(|g| graph.tensor(text(&g["name"])));
    let wanted = wanted.collect::<Result<Vec<Tensor>>>()?;
    // A variable that only moves the kinks of the activations has no gradient here, and zeros in
    // PyTorch.
    let found = gradients(&penalty, &wanted.iter().collect::<Vec<_>>())?;
    let (mut grads, mut rights) = (Vec::new(), Vec::new());
    for (g, right) in found.into_iter().zip(list(&case["gradients"])) {
        match g {
            Some(g) => {
                grads.push(g);
                rights.push(right);
            }
            None => assert!(floats(&right["data"]).iter().all(|&v| v == 0.0), "{name}: {}", right["name"]),
        }
    }
    assert!(grads.len() >= 5, "{name}: {} gradients", grads.len());
    let session = session(graph, engine)?;
    for v in list(&case["variables"]) {
        session.write(text(&v["name"]), &value(v, float))?;
    }
    let fetches: Vec<&dyn IntoFetch> =
        [&penalty].into_iter().chain(&grads).map(|t| t as &dyn IntoFetch).collect();
    let got = session.run(&fetches, &[("x", &fed)])?;
    check(&name, &got[0], &[case["penalty"].as_f64().expect("a number")], tolerance);
    for (got, right) in got[1..].iter().zip(rights) {
        check(&format!("{name}: {}", right["name"]), got, &floats(&right["data"]), tolerance);
    }
    Ok(())
}

#[test]
fn gradient_of_a_gradient_penalty() {
    for case in &entries("penalty") {
        everywhere(|float, engine, tolerance| check_penalty(case, float, engine, tolerance).unwrap());
    }
}

/// Returns the logits of a network of the file.
fn logits(name: &str, t: &TowerContext, x: &Tensor, float: DType) -> Tensor {
    match name {
        "convnet" => {
            let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
            let x = BatchNorm::new().relu().apply(t, "bn0", &x);
            let x = DepthwiseConv2d::new(3).stride(2).relu().apply(t, "conv1", &x);
            Linear::new(3).apply(t, "fc", &x.global_average_pool())
        }
        "lstm_net" => {
            let x = Embedding::new(9, 4).dtype(float).apply(t, "words", x);
            let (x, _) = Lstm::new(5).apply(t, "lstm0", &x, None);
            let (x, _) = Gru::new(4).apply(t, "gru1", &x, None);
            Linear::new(9).apply(t, "fc", &x.merge_dims(0, 2))
        }
        "transformer" => {
            let norm = LayerNorm::new().last_axis();
            let linear = |units: usize| Linear::new(units).last_axis();
            let y = norm.apply(t, "ln0", x);
            let x = x + MultiHeadAttention::new(2).causal().apply(t, "attention", &y);
            let y = linear(8).activation(Activation::Gelu).apply(t, "fc0", &norm.apply(t, "ln1", &x));
            let x = &x + linear(6).apply(t, "fc1", &y);
            linear(3).apply(t, "out", &x).merge_dims(0, 2)
        }
        unknown => panic!("unknown network {unknown}"),
    }
}

fn check_run(run: &Value, float: DType, engine: &SessionOptions, tolerance: f64) -> Result<()> {
    let name = format!("{} in {float} on {}", text(&run["name"]), label(engine));
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let (x, labels) = (value(&run["x"], float), floats(&run["labels"]["data"]));
    let batches = x.sizes()[0];
    let batch = |i: usize| -> Result<[HostTensor; 2]> {
        let part = |all: &[f64]| all[i * all.len() / batches..(i + 1) * all.len() / batches].to_vec();
        let labels = part(&labels);
        Ok([
            HostTensor::from_f64(x.dtype(), &x.sizes()[1..], &part(&x.to_f64_vec()))?,
            HostTensor::from_f64(DType::I32, [labels.len()], &labels)?,
        ])
    };
    let input = placeholder(&graph, "x", &batch(0)?[0]);
    let label = graph.placeholder(&TensorSpec::i32("label", [None]));
    let cost = logits(text(&run["name"]), t, &input, float).sparse_softmax_cross_entropy(&label).mean();
    let train = minimize(&cost, &Sgd::new(run["rate"].as_f64().expect("a rate")))?;
    let updates = graph.collection_ops(UPDATE_OPS);
    let train = graph.group(&updates.iter().chain([&train]).collect::<Vec<_>>());
    let session = session(graph, engine)?;
    for v in list(&run["initial"]) {
        session.write(text(&v["name"]), &value(v, float))?;
    }
    for (step, right) in floats(&run["losses"]).iter().enumerate() {
        let [x, y] = batch(step % batches)?;
        let got = session.run(&[&cost, &train], &[("x", &x), ("label", &y)])?;
        check(&format!("{name}: loss {step}"), &got[0], &[*right], tolerance);
    }
    for right in list(&run["final"]).iter().chain(list(&run["final_state"])) {
        let found = session.read(text(&right["name"]))?;
        check(&format!("{name}: {}", right["name"]), &found, &floats(&right["data"]), tolerance);
    }
    Ok(())
}

#[test]
fn twenty_steps_of_training() {
    let runs = entries("run");
    assert_eq!(runs.len(), 3);
    for run in &runs {
        everywhere(|float, engine, tolerance| {
            check_run(run, float, engine, tolerance).unwrap_or_else(|e| panic!("{}: {e}", run["name"]));
        });
    }
}
