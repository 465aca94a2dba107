//! Every layer follows the rules of tower functions: its variables are named after it, and towers,
//! inference and `reuse` share them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tensorpack::graph::{GLOBAL_VARIABLES, LOCAL_VARIABLES};
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};

/// A layer to test.
struct Layer {
    name: &'static str,
    apply: fn(&TowerContext, &Tensor) -> Tensor,
    sizes: &'static [usize],
    /// Its variables, without the name of the layer.
    variables: &'static [&'static str],
    /// Whether inference computes the same as training.
    same_in_inference: bool,
}

const fn layer(
    name: &'static str,
    sizes: &'static [usize],
    variables: &'static [&'static str],
    apply: fn(&TowerContext, &Tensor) -> Tensor,
) -> Layer {
    Layer { name, apply, sizes, variables, same_in_inference: true }
}

const fn differs_in_inference(layer: Layer) -> Layer {
    Layer { same_in_inference: false, ..layer }
}

const FEATURES: &[usize] = &[4, 6];
const SEQUENCE: &[usize] = &[2, 3, 4];
const IMAGE: &[usize] = &[2, 5, 5, 4];
const VOLUME: &[usize] = &[2, 3, 5, 5, 4];

const ATTENTION: &[&str] = &["query/W", "query/b", "key/W", "value/W", "value/b", "out/W", "out/b"];

const LAYERS: [Layer; 20] = [
    differs_in_inference(layer(
        "BatchNorm",
        FEATURES,
        &["gamma", "beta", "mean/EMA", "variance/EMA"],
        |t, x| BatchNorm::new().apply(t, "layer", x),
    )),
    differs_in_inference(layer(
        "BatchRenorm",
        FEATURES,
        &["gamma", "beta", "mean/EMA", "variance/EMA"],
        |t, x| BatchRenorm::new(2.0, 1.0).apply(t, "layer", x),
    )),
    layer("Conv3d", VOLUME, &["W", "b"], |t, x| Conv3d::new(3, 3).apply(t, "layer", x)),
    layer("Conv1d", SEQUENCE, &["W", "b"], |t, x| Conv1d::new(3, 3).apply(t, "layer", x)),
    layer("Conv2d", IMAGE, &["W", "b"], |t, x| Conv2d::new(3, 3).apply(t, "layer", x)),
    layer("Conv2dTranspose", IMAGE, &["W", "b"], |t, x| Conv2dTranspose::new(3, 3).apply(t, "layer", x)),
    layer("DepthwiseConv2d", IMAGE, &["W", "b"], |t, x| DepthwiseConv2d::new(3).apply(t, "layer", x)),
    differs_in_inference(layer("Dropout", FEATURES, &[], |t, x| Dropout::new(0.5).apply(t, "layer", x))),
    layer("Embedding", FEATURES, &["W"], |t, x| {
        Embedding::new(5, 3).apply(t, "layer", &x.abs().cast(DType::I32))
    }),
    layer("GroupNorm", IMAGE, &["gamma", "beta"], |t, x| GroupNorm::new(2).apply(t, "layer", x)),
    layer("Gru", SEQUENCE, &["W", "U", "c", "b"], |t, x| Gru::new(3).apply(t, "layer", x, None).0),
    layer("GruCell", FEATURES, &["W", "U", "c", "b"], |t, x| GruCell::new(3).step(t, "layer", x, None)),
    layer("InstanceNorm", IMAGE, &["gamma", "beta"], |t, x| InstanceNorm::new().apply(t, "layer", x)),
    layer("LayerNorm", FEATURES, &["gamma", "beta"], |t, x| LayerNorm::new().apply(t, "layer", x)),
    layer("Linear", FEATURES, &["W", "b"], |t, x| Linear::new(3).apply(t, "layer", x)),
    layer("Lstm", SEQUENCE, &["W", "U", "b"], |t, x| Lstm::new(3).apply(t, "layer", x, None).0),
    layer("LstmCell", FEATURES, &["W", "U", "b"], |t, x| LstmCell::new(3).step(t, "layer", x, None).h),
    layer("Maxout", FEATURES, &[], |t, x| Maxout::new(2).apply(t, "layer", x)),
    layer("MultiHeadAttention", SEQUENCE, ATTENTION, |t, x| MultiHeadAttention::new(2).apply(t, "layer", x)),
    layer("PRelu", FEATURES, &["alpha"], |t, x| PRelu::new().apply(t, "layer", x)),
];

/// Returns the types in `src/nn` with a method that adds them to a tower.
fn layers_of_the_library() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nn")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for block in text.split("\nimpl ").skip(1) {
            let block = block.split("\n}\n").next().unwrap_or("");
            let body = block.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
            let adds = ["apply", "step"].map(|f| format!("pub fn {f}(&self, t: &TowerContext"));
            if adds.iter().any(|f| body.contains(f)) {
                found.insert(body.split(' ').next().unwrap_or("").to_string());
            }
        }
    }
    found
}

#[test]
fn all_layers_are_tested() {
    let tested: BTreeSet<String> = LAYERS.iter().map(|l| l.name.to_string()).collect();
    assert_eq!(tested, layers_of_the_library());
}

/// Returns the names of all variables.
fn variables(graph: &Graph) -> Vec<String> {
    let ids = [GLOBAL_VARIABLES, LOCAL_VARIABLES].map(|key| graph.collection(key).variables);
    ids.iter().flatten().map(|&id| graph.variable_info(id).unwrap().name).collect()
}

/// Returns integers as floats, so that they also serve as indices.
fn input(sizes: &[usize]) -> HostTensor {
    let len = sizes.iter().product::<usize>();
    HostTensor::new(sizes.to_vec(), (0..len).map(|i| (i * i % 7) as f32 - 2.0).collect()).unwrap()
}

/// A tower function that uses the layer twice, the second time with `reuse`.
fn used_twice(layer: &Layer) -> TowerFunc {
    let (name, apply) = (layer.name, layer.apply);
    let sizes: Vec<Option<usize>> = layer.sizes.iter().copied().map(Some).collect();
    TowerFunc::new(vec![TensorSpec::f32("x", sizes)], move |t, inputs| {
        let first = apply(t, &inputs[0]);
        let before = variables(t.graph());
        let second = t.reuse(|t| apply(t, &inputs[0]));
        assert_eq!(variables(t.graph()), before, "{name}: a second use adds no variable");
        vec![first, second]
    })
    .unwrap()
}

#[test]
fn every_layer_shares_its_variables() {
    for layer in &LAYERS {
        let name = layer.name;
        let expected: Vec<String> = layer.variables.iter().map(|v| format!("layer/{v}")).collect();
        let graph = Graph::new();
        let mut tower = used_twice(layer);
        for i in 0..2 {
            let sizes: Vec<Option<usize>> = layer.sizes.iter().copied().map(Some).collect();
            let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), sizes));
            tower.train(&TowerContext::new(&graph, Mode::Training, i, 2), &[x]).unwrap();
            assert_eq!(variables(&graph), expected, "{name}: tower {i}");
        }
        tower.infer(&graph, "validation").unwrap();
        assert_eq!(variables(&graph), expected, "{name}: inference");

        // All uses compute the same result from the same input, because they share their variables.
        let outputs = |towers: Vec<&tensorpack::tower::TowerHandle>| -> Vec<Tensor> {
            towers.iter().flat_map(|t| t.outputs().to_vec()).collect()
        };
        let training = outputs(tower.towers().training());
        let inference = outputs(tower.towers().inference());
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let x = input(layer.sizes);
        let run = |y: &Tensor| {
            session.run(&[y], &[("x0", &x), ("x1", &x), ("validation/x", &x)]).unwrap().swap_remove(0)
        };
        let first = run(&training[0]);
        let same = if layer.same_in_inference { inference.len() } else { 0 };
        let random = name == "Dropout";
        for y in training[1..].iter().filter(|_| !random).chain(&inference[..same]) {
            assert_eq!(run(y), first, "{name}: {}", y.name());
        }
        assert_eq!(run(&inference[0]), run(&inference[1]), "{name}: inference");
    }
}
