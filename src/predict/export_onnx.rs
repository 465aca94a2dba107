//! Export of a model as an ONNX file, which other runtimes can run.

use super::OfflinePredictor;
use super::export::{Needed, not_fed};
use crate::graph::{Frozen, NodeId, NodeKind, TensorId};
use crate::io::{RealDisk, write_atomically};
use crate::onnx::{
    Dimension, Encoded, ExportCx, GraphWriter, Model, NodeSpec, OnnxGraph, Value, ValueInfo, encode,
    fuse_batch_norm,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use tensorpack_tensor::{Dim, Error, ErrorKind, Result, Shape};

/// The version of ONNX's operator set that models are written for.
const OPSET: i64 = 21;
/// The size from which weights are put beside the model: no protocol buffer can be larger than
/// 2 GiB, and the graph needs some of it.
const EXTERNAL_FROM: usize = 3 << 29;

/// Options of [`OfflinePredictor::export_onnx`].
#[derive(Clone, Debug, Default)]
pub struct OnnxOptions {
    metadata: BTreeMap<String, String>,
    external_data: Option<bool>,
}

impl OnnxOptions {
    /// Adds an entry to the metadata of the model. It replaces one of
    /// [`OfflinePredictor::with_metadata`] with the same key.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> OnnxOptions {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets whether weights are stored in a file of their own, `NAME.onnx.data`, beside the model. By
    /// default they are if there are more than 1.5 GiB: an ONNX file cannot be larger than 2 GiB.
    #[must_use]
    pub fn external_data(self, beside: bool) -> OnnxOptions {
        OnnxOptions { external_data: Some(beside), ..self }
    }
}

impl OfflinePredictor {
    /// Writes the model as an ONNX file of opset 21. Unknown dims such as the batch stay dynamic.
    /// Inputs, outputs and weights keep their names; inputs that no output depends on are omitted.
    ///
    /// Images are `[batch, channels, height, width]` in ONNX. Convolutions and everything between
    /// them are written in this layout, with transposed weights, so that a transposition remains
    /// only where the layout changes: at the inputs and where images are flattened.
    ///
    /// Returns an error that lists every operation without an ONNX form, with the line that created
    /// it; then nothing is written.
    #[doc(alias = "onnx")]
    pub fn export_onnx(&self, path: impl AsRef<Path>, options: &OnnxOptions) -> Result<()> {
        let (path, mut model) = (path.as_ref(), self.onnx_model()?);
        model.metadata = self.metadata.clone();
        model.metadata.extend(options.metadata.clone());
        let bytes: usize = model.graph.initializers.iter().map(|(_, t)| t.as_bytes().len()).sum();
        let beside = options.external_data.unwrap_or(bytes >= EXTERNAL_FROM);
        let name = path.file_name().and_then(|name| name.to_str()).map(|name| format!("{name}.data"));
        let name = name.ok_or_else(|| Error::argument(format!("{} is not a file name", path.display())))?;
        let Encoded { model, external } = encode(&model, beside.then_some(name.as_str()))?;
        if model.len() > i32::MAX as usize {
            let why = format!("the model has {} bytes, but an ONNX file can have 2 GiB", model.len());
            return Err(
                Error::argument(why).note("store its weights beside it: OnnxOptions::external_data(true)")
            );
        }
        if beside {
            write_atomically(&mut RealDisk, &path.with_file_name(&name), &external)?;
        }
        write_atomically(&mut RealDisk, path, &[Cow::Owned(model)])
    }

    /// Returns the model.
    fn onnx_model(&self) -> Result<Model> {
        let frozen = self.session.graph();
        let needed = Needed::new(frozen, self.outputs.iter().map(|(_, f)| f.node));
        let mut writer = GraphWriter::default();
        let mut values: HashMap<TensorId, Value> = HashMap::new();
        let mut symbols: HashMap<Dim, String> = HashMap::new();
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for name in &self.inputs {
            let id = frozen.fetch(name)?.node;
            if needed.inputs.contains(&id) {
                let spec = &frozen.node(id).outputs[0];
                writer.reserve(name)?;
                values.insert(TensorId { node: id, output: 0 }, writer.input(name, spec.dtype, &spec.shape));
                name_dims(name, &spec.shape, inputs.is_empty(), &mut symbols);
                inputs.push(ValueInfo {
                    name: name.clone(),
                    dtype: Some(spec.dtype),
                    dims: Some(dimensions(&spec.shape, &symbols)),
                });
            }
        }
        let fed = |id: &&NodeId| !values.contains_key(&TensorId { node: **id, output: 0 });
        if let Some(id) = needed.inputs.iter().find(fed) {
            return Err(not_fed(&frozen.node(*id).name));
        }
        // Outputs come before weights, so that these are renamed if both have one name.
        for (name, fetch) in &self.outputs {
            if !inputs.iter().any(|input| input.name == *name) {
                writer.reserve(name)?;
            }
            let spec = &frozen.node(fetch.node).outputs[fetch.output.unwrap_or(0) as usize];
            let dims = Some(dimensions(&spec.shape, &symbols));
            outputs.push(ValueInfo { name: name.clone(), dtype: Some(spec.dtype), dims });
        }
        for (variable, readers) in &needed.variables {
            let name = &frozen.variables()[variable.0 as usize].name;
            let value = writer.variable(name, self.session.read(name)?);
            values.extend(readers.iter().map(|&node| (TensorId { node, output: 0 }, value.clone())));
        }
        self.write_operations(frozen, &needed, &mut writer, &mut values)?;
        for (name, fetch) in &self.outputs {
            let id = TensorId { node: fetch.node, output: fetch.output.unwrap_or(0) };
            if !inputs.iter().any(|input| input.name == *name) {
                writer.output(name, &values[&id])?;
            }
        }
        let mut graph = OnnxGraph { name: "model".into(), inputs, outputs, ..OnnxGraph::default() };
        (graph.nodes, graph.initializers) = (writer.nodes, writer.initializers);
        remove_unused(&mut graph);
        fuse_batch_norm(&mut graph);
        Ok(Model {
            opsets: BTreeMap::from([(String::new(), OPSET)]),
            producer: ["tensorpack".into(), env!("CARGO_PKG_VERSION").into()],
            graph,
            ..Model::default()
        })
    }

    /// Writes all operations, or returns an error that lists those that cannot be written.
    fn write_operations(
        &self,
        frozen: &Frozen,
        needed: &Needed,
        writer: &mut GraphWriter,
        values: &mut HashMap<TensorId, Value>,
    ) -> Result<()> {
        let read_by_nodes = needed.operations.iter().flat_map(|&id| frozen.node(id).inputs.iter().copied());
        let fetched =
            self.outputs.iter().map(|(_, f)| TensorId { node: f.node, output: f.output.unwrap_or(0) });
        let used: HashSet<TensorId> = read_by_nodes.chain(fetched).collect();
        let mut failures = Vec::new();
        let mut remedies = Vec::new();
        for &id in &needed.operations {
            let node = frozen.node(id);
            let tensor = |output: usize| TensorId { node: id, output: output as u32 };
            let spec = NodeSpec {
                name: &node.name,
                inputs: node.inputs.iter().map(|input| values[input].clone()).collect(),
                outputs: node.outputs.iter().map(|spec| (spec.dtype, spec.shape.clone())).collect(),
                used: (0..node.outputs.len()).map(|i| used.contains(&tensor(i))).collect(),
            };
            let written = ExportCx::write(writer, spec, |cx| match &node.kind {
                NodeKind::Op(op) => op.onnx(cx),
                kind => {
                    let why = format!("{} changes variables and has no ONNX form", kind.name());
                    Err(Error::new(ErrorKind::Unsupported, why))
                }
            });
            match written {
                Ok(outputs) => values.extend(outputs.into_iter().enumerate().map(|(i, v)| (tensor(i), v))),
                Err(e) => {
                    failures.push(format!("{}: {} (at {})", node.name, e.message(), node.site));
                    remedies.extend(e.notes().to_vec());
                    // Stand-ins, to find all operations that cannot be written.
                    for (i, spec) in node.outputs.iter().enumerate() {
                        let name = format!("{}:{i}", node.name);
                        values.insert(tensor(i), writer.input(&name, spec.dtype, &spec.shape));
                    }
                }
            }
        }
        match failures.len() {
            0 => Ok(()),
            count => {
                let why = format!("{count} operations cannot be written as ONNX; nothing was written");
                let error = Error::new(ErrorKind::Unsupported, why);
                remedies.sort();
                remedies.dedup();
                Err(failures.into_iter().chain(remedies).fold(error, Error::note))
            }
        }
    }
}

/// Names the unknown dims of an input. The first dim of the first input is the batch.
fn name_dims(input: &str, shape: &Shape, is_first: bool, symbols: &mut HashMap<Dim, String>) {
    for (axis, &dim) in shape.iter().enumerate().filter(|(_, d)| d.known().is_none()) {
        symbols.entry(dim).or_insert_with(|| match (axis, is_first) {
            (0, true) => "batch".into(),
            _ => format!("{input}_dim{axis}"),
        });
    }
}

fn dimensions(shape: &Shape, symbols: &HashMap<Dim, String>) -> Vec<Dimension> {
    let dimension = |dim: &Dim| match (dim.known(), symbols.get(dim)) {
        (Some(n), _) => Dimension::Size(n),
        (None, Some(name)) => Dimension::Named(name.clone()),
        (None, None) => Dimension::Unknown,
    };
    shape.iter().map(dimension).collect()
}

/// Removes the nodes and initializers that no output depends on, such as tensors of which only the
/// shape was used.
fn remove_unused(graph: &mut OnnxGraph) {
    let mut used: HashSet<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let mut nodes = std::mem::take(&mut graph.nodes);
    nodes.reverse();
    nodes.retain(|node| {
        let is_used = node.outputs.iter().any(|output| used.contains(output));
        if is_used {
            used.extend(node.inputs.iter().cloned());
        }
        is_used
    });
    nodes.reverse();
    graph.nodes = nodes;
    graph.initializers.retain(|(name, _)| used.contains(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorSpec;
    use crate::nn::{BatchNorm, Conv2d, Linear};
    use crate::onnx::{Attribute, parse};
    use crate::predict::PredictConfig;
    use crate::tower::{TowerContext, TowerFunc};
    use std::fs;
    use tensorpack_tensor::HostTensor;
    use tensorpack_testing::assert_mentions;

    fn predictor(
        build: impl Fn(&TowerContext, &crate::graph::Tensor) -> crate::graph::Tensor + 'static,
    ) -> OfflinePredictor {
        let image = TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]);
        let tower = TowerFunc::new(vec![image], move |t, x| vec![build(t, &x[0]).named("y")]).unwrap();
        OfflinePredictor::new(PredictConfig::from_tower(tower, ["y"])).unwrap()
    }

    fn resnet(t: &TowerContext, x: &crate::graph::Tensor) -> crate::graph::Tensor {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
        let x = BatchNorm::new().relu().apply(t, "bn0", &x).max_pool(2);
        let y = Conv2d::new(4, 3).relu().apply(t, "conv1", &x);
        let y = Conv2d::new(4, 3).apply(t, "conv2", &y);
        Linear::new(5).apply(t, "fc", &(x + y).relu().global_average_pool())
    }

    fn no_external(file: &str, _: u64, _: Option<u64>) -> Result<Vec<u8>> {
        panic!("the tensor is inside the model, not in {file}")
    }

    fn count(model: &Model, op_type: &str) -> usize {
        model.graph.nodes.iter().filter(|node| node.op_type == op_type).count()
    }

    #[test]
    fn a_convolutional_net_is_transposed_only_at_its_input() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.onnx");
        let options = OnnxOptions::default().metadata("classes", "a b c d e");
        predictor(resnet).export_onnx(&path, &options).unwrap();
        let model = parse(&fs::read(&path).unwrap(), &no_external).unwrap();
        assert_eq!([count(&model, "Transpose"), count(&model, "Conv"), count(&model, "MaxPool")], [1, 3, 1]);
        // Batch normalization is one operation, which runtimes merge with the convolution before it.
        assert_eq!(
            [count(&model, "BatchNormalization"), count(&model, "Sub"), count(&model, "Sqrt")],
            [1, 0, 0]
        );
        assert_eq!(model.opsets[""], 21);
        assert_eq!(model.metadata["classes"], "a b c d e");
        assert_eq!(model.producer[0], "tensorpack");
        let named = |d: &Dimension| *d == Dimension::Named("batch".into());
        let [input, output] = [&model.graph.inputs[0], &model.graph.outputs[0]];
        assert_eq!((input.name.as_str(), output.name.as_str()), ("image", "y"));
        assert!([input, output].iter().all(|value| named(&value.dims.as_ref().unwrap()[0])), "{output:?}");
        // Weights have their own names and ONNX's layout.
        let sizes = |name: &str| {
            let found = model.graph.initializers.iter().find(|(have, _)| have == name);
            found.unwrap_or_else(|| panic!("{name} is missing")).1.sizes().to_vec()
        };
        assert_eq!(sizes("conv0/W"), [4, 3, 3, 3]);
        assert_eq!(sizes("conv1/b"), [1, 4, 1, 1]);
        assert_eq!(sizes("bn0/variance/EMA"), [4]);
        assert_eq!(sizes("fc/W"), [4, 5]);
    }

    #[test]
    fn weights_can_be_stored_beside_the_model() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.onnx");
        let model = predictor(|t, x| Linear::new(7).apply(t, "fc", x));
        model.export_onnx(&path, &OnnxOptions::default().external_data(true)).unwrap();
        let beside = |file: &str, offset: u64, length: Option<u64>| {
            assert_eq!(file, "net.onnx.data");
            let bytes = fs::read(dir.path().join(file))?;
            Ok(bytes[offset as usize..][..length.unwrap() as usize].to_vec())
        };
        let read = parse(&fs::read(&path).unwrap(), &beside).unwrap();
        let tensor = |name: &str| &read.graph.initializers.iter().find(|(have, _)| have == name).unwrap().1;
        assert_eq!(tensor("fc/W"), &model.session.read("fc/W").unwrap());
        assert_eq!(tensor("fc/b"), &model.session.read("fc/b").unwrap());
    }

    #[test]
    fn all_operations_without_a_form_are_listed_with_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.onnx");
        let model = predictor(|_, x| {
            let pooled = x.max_pool(2);
            let [dx] = &crate::autodiff::gradients(&pooled.sum(), &[x]).unwrap()[..] else { panic!() };
            let scaled = x * 2.0;
            let [again] =
                &crate::autodiff::gradients(&scaled.average_pool(2).square().sum(), &[&scaled]).unwrap()[..]
            else {
                panic!()
            };
            dx.as_ref().unwrap() + again.as_ref().unwrap()
        });
        let e = model.export_onnx(&path, &OnnxOptions::default()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert_mentions(
            &e,
            &["3 operations", "MaxPool", "MaxPoolGrad", "AveragePoolGrad", "export_onnx.rs:"],
        );
        assert!(!path.exists());
    }

    #[test]
    fn an_output_may_be_an_input_or_occur_twice() {
        let x = TensorSpec::f32("x", [None, Some(2)]);
        let tower = TowerFunc::new(vec![x], |_, x| {
            let y = x[0].exp().named("y");
            vec![y.stop_gradient().named("z"), x[0].stop_gradient().named("same")]
        });
        let config = PredictConfig::from_tower(tower.unwrap(), ["y", "z", "same"]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net.onnx");
        OfflinePredictor::new(config).unwrap().export_onnx(&path, &OnnxOptions::default()).unwrap();
        let model = parse(&fs::read(&path).unwrap(), &no_external).unwrap();
        let made: Vec<&str> = model.graph.nodes.iter().flat_map(|n| &n.outputs).map(String::as_str).collect();
        assert_eq!(made, ["y", "z", "same"]);
    }

    /// Every form of an attribute and of a tensor that is written is read back.
    #[test]
    fn an_encoded_model_is_read_back() {
        let tensor = HostTensor::new([2], vec![1.5f32, -2.0]).unwrap();
        let attributes = [
            Attribute::Int(-3),
            Attribute::Float(0.5),
            Attribute::Text("SAME_UPPER".into()),
            Attribute::Tensor(tensor.clone()),
            Attribute::Ints(vec![1, -1]),
            Attribute::Floats(vec![0.25]),
            Attribute::Texts(vec!["a".into(), "b".into()]),
            Attribute::Graph(Box::new(OnnxGraph { name: "body".into(), ..OnnxGraph::default() })),
        ];
        let named = attributes.iter().enumerate().map(|(i, a)| (format!("a{i}"), a.clone())).collect();
        let node = crate::onnx::Node { op_type: "Test".into(), attributes: named, ..Default::default() };
        let tensors = [
            tensor,
            HostTensor::new([1, 2], vec![1i64, i64::MIN]).unwrap(),
            HostTensor::new([], vec![true]).unwrap(),
            HostTensor::new([3], vec![0u8, 1, 255]).unwrap(),
            HostTensor::from_f64(tensorpack_tensor::DType::Bf16, [2], &[1.0, -0.5]).unwrap(),
            HostTensor::zeros(tensorpack_tensor::DType::F64, [0, 3]).unwrap(),
        ];
        let initializers: Vec<_> =
            tensors.into_iter().enumerate().map(|(i, t)| (format!("t{i}"), t)).collect();
        let graph =
            OnnxGraph { nodes: vec![node], initializers: initializers.clone(), ..OnnxGraph::default() };
        let model = Model { graph, ..Model::default() };
        let read = parse(&encode(&model, None).unwrap().model, &no_external).unwrap();
        assert_eq!(read.graph.initializers, initializers);
        let read: Vec<String> =
            read.graph.nodes[0].attributes.iter().map(|(_, a)| format!("{a:?}")).collect();
        assert_eq!(read, attributes.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>());
    }
}
