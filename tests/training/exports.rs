//! Exported models: bit-identical to the code that built them, and errors for invalid files.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tensorpack::graph::{OpDef, Spec};
use tensorpack::io::safetensors;
use tensorpack::kir::{Binary, LowerCx, View};
use tensorpack::predict::{ExportedModel, OfflinePredictor, PredictConfig};
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::assert_mentions;

/// A net with convolutions, batch norm, pooling, dropout, a recurrent layer, attention and
/// constants.
fn net() -> TowerFunc {
    let inputs =
        vec![TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]), TensorSpec::i32("label", [None])];
    let build = |t: &TowerContext, inputs: &[Tensor]| {
        let x = Conv2d::new(8, 3).relu().apply(t, "conv0", &inputs[0]);
        let x = BatchNorm::new().apply(t, "bn0", &x).max_pool(2);
        let x = DepthwiseConv2d::new(3).apply(t, "conv1", &x);
        let x = Dropout::new(0.5).apply(t, "drop", &x);
        let ramp: Vec<f32> = (0..8).map(|i| 0.1 / (i as f32 + 3.0)).collect();
        let x = x + t.graph().constant(HostTensor::new([8], ramp).unwrap());
        let large: Vec<f32> = (0..128).map(|i| (i as f32).sin()).collect();
        let x = x + t.graph().constant(HostTensor::new([4, 4, 8], large).unwrap());
        let steps = x.reshape(&[-1, 16, 8]);
        let steps = MultiHeadAttention::new(2).apply(t, "attention", &steps);
        let (x, _) = Gru::new(12).apply(t, "gru", &steps, None);
        let logits = Linear::new(10).apply(t, "fc", &x.mean_axes(&[1])).named("logits");
        let probability = logits.softmax().named("probability");
        let noisy = (&logits + Random::normal(0.0, 1.0).like(&logits)).named("noisy");
        let cost = logits.sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost");
        vec![cost, probability, noisy]
    };
    TowerFunc::new(inputs, build).unwrap()
}

fn images(n: usize) -> HostTensor {
    HostTensor::new([n, 8, 8, 3], (0..n * 192).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<f32>>()).unwrap()
}

fn bits(tensors: &[HostTensor]) -> Vec<(Vec<usize>, Vec<u8>)> {
    tensors.iter().map(|t| (t.sizes().to_vec(), t.as_bytes().to_vec())).collect()
}

#[test]
fn an_exported_model_is_bit_identical_for_any_batch_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    let config = PredictConfig::from_tower(net(), ["logits", "probability", "noisy"]);
    let session = SessionOptions { seed: 3, ..SessionOptions::default() };
    let code = OfflinePredictor::new(config.inputs(["image"]).session(session.clone())).unwrap();
    code.export(&path).unwrap();
    let file = ExportedModel::load_with(&path, session).unwrap();
    assert_eq!(file.inputs(), [TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)])]);
    assert_eq!(file.outputs().collect::<Vec<_>>(), ["logits", "probability", "noisy"]);
    for n in [1, 5, 2] {
        let x = images(n);
        assert_eq!(bits(&code.predict(&[&x]).unwrap()), bits(&file.predict(&[&x]).unwrap()), "{n} images");
    }
    // Other programs read the weights by name.
    let tensors = safetensors::read(&path).unwrap();
    assert!(tensors.iter().any(|(name, t)| name == "conv0/W" && t.sizes() == [3, 3, 3, 8]));
}

#[test]
fn an_input_that_does_not_fit_an_exported_model_names_the_line_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    OfflinePredictor::new(PredictConfig::from_tower(net(), ["probability"])).unwrap().export(&path).unwrap();
    let model = ExportedModel::load(&path).unwrap();
    let label = HostTensor::scalar(1i32);
    let (line, e) = (line!(), model.predict(&[&label]).unwrap_err());
    assert!(e.site().is_some_and(|site| site.file == file!() && site.line == line), "{e}");
}

#[test]
fn a_file_has_only_the_inputs_that_its_outputs_need() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    OfflinePredictor::new(PredictConfig::from_tower(net(), ["probability"])).unwrap().export(&path).unwrap();
    let names = |m: &ExportedModel| m.inputs().iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    let model = ExportedModel::load(&path).unwrap();
    assert_eq!(names(&model), ["image"]);
    assert!(model.predict(&[]).unwrap_err().message().contains("takes 1 inputs (image), but 0"));
    let other = HostTensor::zeros(DType::F32, [1, 8, 9, 3]).unwrap();
    assert!(model.predict(&[&other]).unwrap_err().message().contains("the input image is"));
    OfflinePredictor::new(PredictConfig::from_tower(net(), ["cost"])).unwrap().export(&path).unwrap();
    assert_eq!(names(&ExportedModel::load(&path).unwrap()), ["image", "label"]);
    let blind = OfflinePredictor::new(PredictConfig::from_tower(net(), ["cost"]).inputs(["image"])).unwrap();
    let e = blind.export(&path).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Name);
    assert!(e.message().contains("input \"label\""), "{e}");
}

/// A custom operation: adds a constant to every element.
#[derive(Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
struct Shift {
    by: i32,
}
tensorpack::exported!(Shift, 1..=1);

/// An unregistered operation.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Unknown;

macro_rules! shifts {
    ($op:ident, $by:expr) => {
        impl OpDef for $op {
            fn name(&self) -> &str {
                stringify!($op)
            }
            fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
                Ok(vec![inputs[0].clone()])
            }
            fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
                let x = cx.input(0);
                let class = tensorpack::kir::Class::from_dtype(x.dtype);
                Ok(vec![cx.map(&[&x], |e, r| {
                    let by = e.constant(f64::from($by(self)), class);
                    e.binary(Binary::Add, r[0], by)
                })])
            }
        }
    };
}
shifts!(Shift, |op: &Shift| op.by);
shifts!(Unknown, |_: &Unknown| 1);

fn with_op(op: fn(&Tensor) -> Tensor) -> OfflinePredictor {
    let inputs = vec![TensorSpec::f32("x", [None])];
    let tower = TowerFunc::new(inputs, move |_, x| vec![op(&x[0]).named("y")]).unwrap();
    OfflinePredictor::new(PredictConfig::from_tower(tower, ["y"])).unwrap()
}

#[test]
fn a_registered_custom_operation_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.safetensors");
    with_op(|x| Tensor::apply_one(Shift { by: 3 }, &[x])).export(&path).unwrap();
    let x = HostTensor::new([2], vec![1.0f32, -2.0]).unwrap();
    let y = ExportedModel::load(&path).unwrap().predict(&[&x]).unwrap().remove(0);
    assert_eq!(y.as_slice::<f32>().unwrap(), [4.0, 1.0]);
    assert!(stored_graph(&path)["operations"][0]["op"].as_str().unwrap().ends_with("::Shift"));
    let e = with_op(|x| Tensor::apply_one(Unknown, &[x])).export(&path).unwrap_err().to_string();
    assert_mentions(&e, &["Unknown", "exported!("]);
    assert!(e.contains(file!()), "{e}");
}

/// Returns the graph stored in a file.
fn stored_graph(path: &Path) -> Value {
    let (_, metadata) = safetensors::read_with_metadata(path).unwrap();
    serde_json::from_str(&metadata["tensorpack.model"]).unwrap()
}

/// Changes the graph stored in a file, and returns the error of loading it or predicting with it.
fn error_of(path: &Path, change: impl FnOnce(&mut Value)) -> String {
    let (tensors, mut metadata) = safetensors::read_with_metadata(path).unwrap();
    let mut graph = stored_graph(path);
    change(&mut graph);
    metadata.insert("tensorpack.model".into(), graph.to_string());
    let damaged: PathBuf = path.with_file_name("damaged.safetensors");
    safetensors::write_with_metadata(&damaged, &tensors, &metadata).unwrap();
    let e = ExportedModel::load(&damaged).and_then(|m| m.predict(&[&images(2)]).map(|_| ())).unwrap_err();
    assert!(!e.to_string().contains("panicked"), "{e}");
    e.to_string()
}

#[test]
fn invalid_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    OfflinePredictor::new(PredictConfig::from_tower(net(), ["logits"])).unwrap().export(&path).unwrap();
    let graph = stored_graph(&path);
    let of = |op: &str| {
        let operations = graph["operations"].as_array().unwrap();
        operations.iter().position(|o| o["op"] == op).unwrap_or_else(|| panic!("no {op}"))
    };
    let (conv, matmul, reshape) = (of("Conv2d"), of("MatMul"), of("Reshape"));
    let expect = |text: &str, change: &dyn Fn(&mut Value)| {
        let e = error_of(&path, change);
        assert!(e.contains(text) && e.contains("damaged.safetensors"), "{text}: {e}");
    };
    expect("format version 2", &|g| g["format"] = json!(2));
    expect("cannot be read", &|g| g["inputs"] = json!(7));
    expect("unknown field", &|g| g["more"] = json!(7));
    expect("no operation named \"Fly\"", &|g| g["operations"][conv]["op"] = json!("Fly"));
    expect("deserialize the attributes", &|g| g["operations"][conv]["attributes"] = json!("wide"));
    expect("at least 1", &|g| g["operations"][conv]["attributes"]["stride"] = json!([0, 1]));
    expect("no tensor \"conv9/W\"", &|g| g["variables"][0] = json!("conv9/W"));
    expect("no output 0 of node 999", &|g| g["operations"][matmul]["inputs"][0] = json!([999, 0]));
    expect("no output 7", &|g| g["operations"][matmul]["inputs"][0] = json!([0, 7]));
    expect("does not take 1 inputs", &|g| {
        drop(g["operations"][matmul]["inputs"].as_array_mut().unwrap().pop())
    });
    expect("the inner sizes", &|g| g["operations"][matmul]["inputs"] = json!([[0, 0], [0, 0]]));
    expect("cannot be reshaped", &|g| g["operations"][reshape]["attributes"] = json!([{"Same": 9}]));
    expect("is taken", &|g| g["operations"][matmul]["name"] = g["operations"][conv]["name"].clone());
    expect("no output 0 of node 999", &|g| g["outputs"][0]["tensor"] = json!([999, 0]));
    // A node that reads itself.
    let own =
        graph["inputs"].as_array().unwrap().len() + graph["variables"].as_array().unwrap().len() + matmul;
    expect("before it", &|g| g["operations"][matmul]["inputs"][0] = json!([own, 0]));
    // Errors of the graph point at the line that loads it, and name the operation.
    let e = error_of(&path, |g| g["operations"][matmul]["inputs"] = json!([[0, 0], [0, 0]]));
    assert!(e.contains(file!()) && e.contains(graph["operations"][matmul]["name"].as_str().unwrap()), "{e}");
    let plain = dir.path().join("plain.safetensors");
    safetensors::write(&plain, &[("a".into(), images(1))]).unwrap();
    assert!(ExportedModel::load(&plain).err().unwrap().message().contains("no model"));
}
