//! Files of parameters and models. Each parser corrects checksums and lengths, so that mutations
//! get past them.

use super::file_writer::{Item, Storage, View, archive, legacy, pickle, zip};
use super::parsers::Parse;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use tensorpack::io::{Checkpoint, CheckpointStore, RunLock, pytorch, safetensors};
use tensorpack::predict::{ExportedModel, OfflinePredictor, OnnxOptions, PredictConfig};
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_dataflow::{SampleRng, Seed};
use tensorpack_protobuf::{Field, Fields, Message};

/// A temporary folder, in memory where possible: disks are slow.
fn memory_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

fn one_thread() -> SessionOptions {
    SessionOptions { threads: Some(1), ..SessionOptions::default() }
}

/// Convolution, batch norm, attention and a recurrent layer, with inputs of unknown batch size.
fn model() -> OfflinePredictor {
    let inputs = vec![TensorSpec::f32("image", [None, Some(4), Some(4), Some(2)])];
    let build = |t: &TowerContext, inputs: &[Tensor]| {
        let x = Conv2d::new(4, 3).relu().apply(t, "conv0", &inputs[0]);
        let x = BatchNorm::new().apply(t, "bn0", &x).max_pool(2);
        let steps = x.reshape(&[-1, 4, 4]);
        let steps = MultiHeadAttention::new(2).apply(t, "attention", &steps);
        let (x, _) = Gru::new(3).apply(t, "gru", &steps, None);
        vec![Linear::new(2).apply(t, "fc", &x.mean_axes(&[1])).softmax().named("probability")]
    };
    let tower = TowerFunc::new(inputs, build).expect("a valid model");
    OfflinePredictor::new(PredictConfig::from_tower(tower, ["probability"]).session(one_thread()))
        .expect("a valid model")
}

fn tensors() -> Vec<(String, HostTensor)> {
    let tensor = |dtype| HostTensor::from_f64(dtype, [2, 3], &[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
    let named = DType::ALL.map(|dtype| (format!("tensor/{dtype}"), tensor(dtype).expect("six elements")));
    named.into()
}

pub(crate) fn safetensors_files() -> Vec<Vec<u8>> {
    let dir = memory_dir();
    let path = dir.path().join("x.safetensors");
    let metadata = [("format".to_string(), "pt".to_string())].into();
    safetensors::write_with_metadata(&path, &tensors(), &metadata).expect("a file");
    let all = fs::read(&path).expect("a file");
    safetensors::write(&path, &[]).expect("a file");
    vec![all, fs::read(&path).expect("a file")]
}

/// Reads the bytes as they are and with a corrected length of the header, which ends with the last
/// closing brace.
pub(crate) fn safetensors_parser() -> Parse {
    let dir = memory_dir();
    Box::new(move |bytes| {
        let path = dir.path().join("x.safetensors");
        let mut fixed = bytes.to_vec();
        if let (Some(end), Some(length)) =
            (bytes.windows(2).rposition(|w| w == b"}}"), fixed.first_chunk_mut::<8>())
        {
            *length = (end as u64 + 2).saturating_sub(8).to_le_bytes();
        }
        for bytes in [bytes, &fixed] {
            fs::write(&path, bytes).expect("a file");
            let _ = safetensors::read_with_metadata(&path);
        }
    })
}

/// Two storages, of f32 and f16.
fn storages() -> [Storage; 2] {
    [
        Storage::f32(&[1.0, 2.0, 3.0, 4.0]),
        Storage { class: "HalfStorage", size: 2, bytes: vec![0, 60, 0, 64] },
    ]
}

/// A PyTorch file in both formats, and its pickle.
pub(crate) fn pytorch_files() -> Vec<Vec<u8>> {
    let view = |storage, offset, sizes, strides| Item::Tensor(View { storage, offset, sizes, strides });
    let weights = Item::Dict(vec![
        ("conv.weight", view(0, 0, &[2, 2], &[1, 2])),
        ("conv.bias", view(1, 0, &[2], &[1])),
        ("part", view(0, 1, &[3], &[1])),
        ("whole", view(0, 0, &[4], &[1])),
    ]);
    let root = Item::Dict(vec![("epoch", Item::Int(3)), ("state_dict", weights)]);
    vec![archive(&root, &storages()), legacy(&root, &storages()), pickle(&root, &storages(), false)]
}

/// Reads the bytes as a file, and as the pickle of an archive with correct checksums.
pub(crate) fn pytorch_parser() -> Parse {
    let dir = memory_dir();
    Box::new(move |bytes| {
        let path = dir.path().join("x.pth");
        let [a, b] = storages().map(|storage| storage.bytes);
        let entries = [("data.pkl", bytes.to_vec()), ("data/0", a), ("data/1", b)];
        let around = zip(&entries.map(|(name, bytes)| (format!("archive/{name}"), bytes)));
        for bytes in [bytes, &around] {
            fs::write(&path, bytes).expect("a file");
            let _ = pytorch::read(&path);
            let _ = pytorch::read_all(&path);
        }
    })
}

/// A checkpoint. An input is the contents of one of its files, after the file's number.
pub(crate) struct Checkpoints {
    _dir: TempDir,
    folder: PathBuf,
    /// The names and contents of the files; the manifest is the first.
    files: Vec<(String, Vec<u8>)>,
}

const MANIFEST: &str = "manifest.json";

impl Checkpoints {
    pub(crate) fn new() -> Checkpoints {
        let dir = memory_dir();
        let lock = RunLock::acquire(dir.path()).expect("a lock");
        let state = [("position".to_string(), serde_json::json!({"epoch": 3, "names": ["a", "b"]}))];
        let model = model();
        let checkpoint =
            Checkpoint::capture(model.session(), 3, state.into_iter().collect(), |_| true).expect("values");
        let folder = CheckpointStore::open(&lock).and_then(|mut store| store.save(&checkpoint, &[]));
        let folder = folder.expect("a checkpoint");
        let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(&folder)
            .expect("a folder")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, fs::read(path).expect("a file"))
            })
            .collect();
        files.sort_by_key(|(name, _)| (name != MANIFEST, name.clone()));
        assert_eq!(files[0].0, MANIFEST);
        Checkpoint::load(&folder).expect("the checkpoint is intact");
        Checkpoints { _dir: dir, folder, files }
    }

    pub(crate) fn seeds(&self) -> Vec<Vec<u8>> {
        let seed = |(i, (_, bytes)): (usize, &(String, Vec<u8>))| [&[i as u8], &bytes[..]].concat();
        self.files.iter().enumerate().map(seed).collect()
    }

    /// Loads the checkpoint with one changed file, and a manifest with the right checksums.
    pub(crate) fn load(&mut self, bytes: &[u8]) {
        let Some((&which, bytes)) = bytes.split_first() else { return };
        let (name, intact) = &self.files[usize::from(which) % self.files.len()];
        let mut manifest: Value = match name == MANIFEST {
            true => serde_json::from_slice(bytes).unwrap_or_default(),
            false => serde_json::from_slice(&self.files[0].1).expect("the manifest is intact"),
        };
        if name != MANIFEST {
            manifest["manifest"]["files"][name] =
                serde_json::json!({"bytes": bytes.len(), "crc32c": crc32c::crc32c(bytes)});
        }
        if let Some(fields) = manifest.as_object_mut() {
            let sum = crc32c::crc32c(fields.get("manifest").unwrap_or(&Value::Null).to_string().as_bytes());
            fields.insert("crc32c".into(), sum.into());
        }
        fs::write(self.folder.join(name), bytes).expect("a file");
        let _ = Checkpoint::load(&self.folder);
        fs::write(self.folder.join(MANIFEST), manifest.to_string()).expect("a file");
        let _ = Checkpoint::load(&self.folder);
        fs::write(self.folder.join(MANIFEST), &self.files[0].1).expect("a file");
        fs::write(self.folder.join(name), intact).expect("a file");
    }
}

/// An exported model. An input is the text that describes its graph.
pub(crate) struct ExportedModels {
    dir: TempDir,
    /// The text, parsed.
    graph: Value,
    /// The header of the file, which contains the text.
    header: Value,
    key: String,
    /// The bytes after the header.
    elements: Vec<u8>,
}

const METADATA: &str = "__metadata__";

impl ExportedModels {
    pub(crate) fn new() -> ExportedModels {
        let dir = memory_dir();
        let path = dir.path().join("model.safetensors");
        model().export(&path).expect("a file");
        ExportedModel::load_with(&path, one_thread()).expect("the model is intact");
        let file = fs::read(&path).expect("a file");
        let (length, rest) = file.split_first_chunk::<8>().expect("a length");
        let (header, elements) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: Value = serde_json::from_slice(header).expect("a header");
        let metadata = header[METADATA].as_object().expect("metadata");
        let longest = metadata.iter().max_by_key(|(_, text)| text.as_str().map_or(0, str::len));
        let key = longest.expect("the graph is part of the metadata").0.clone();
        let text = header[METADATA][&key].as_str().expect("a text");
        let graph = serde_json::from_str(text).expect("the text is JSON");
        ExportedModels { dir, graph, header, key, elements: elements.to_vec() }
    }

    pub(crate) fn seeds(&self) -> Vec<Vec<u8>> {
        vec![self.graph.to_string().into_bytes()]
    }

    /// Loads the model with this text. If it is not JSON, as after most mutations, the bytes decide
    /// how the intact graph is changed instead.
    pub(crate) fn load(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let is_json = serde_json::from_str::<Value>(&text).is_ok();
        self.load_text(text);
        if !is_json {
            let mut rng = Seed::new(crc32c::crc32c(bytes).into()).rng(0, 0);
            let mut graph = self.graph.clone();
            for _ in 0..1 + rng.below(3) {
                change_value(&mut rng, &mut graph);
            }
            self.load_text(graph.to_string());
        }
    }

    fn load_text(&mut self, text: String) {
        self.header[METADATA][&self.key] = text.into();
        let header = self.header.to_string().into_bytes();
        let length = (header.len() as u64).to_le_bytes();
        let path = self.dir.path().join("model.safetensors");
        fs::write(&path, [&length, &header[..], &self.elements].concat()).expect("a file");
        let _ = ExportedModel::load_with(&path, one_thread());
    }
}

/// Replaces a random value inside `root` by a number, by another value of it, or by nothing.
fn change_value(rng: &mut SampleRng, root: &mut Value) {
    let count = count_values(root);
    let other = nth_value(root, &mut rng.below(count)).cloned().unwrap_or_default();
    let Some(value) = nth_value(root, &mut rng.below(count)) else { return };
    let power = 1i64 << rng.below(63);
    *value = match (rng.below(8), &mut *value) {
        (0, _) => other,
        (1, _) => Value::Null,
        (2, _) => power.into(),
        (3, _) => (-power).into(),
        (4, Value::Array(values)) => Value::Array(values.iter().chain([&other]).cloned().collect()),
        (5, Value::Array(values)) => Value::Array(values.iter().skip(1).cloned().collect()),
        (6, _) => 1e300.into(),
        _ => rng.below(4).into(),
    };
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Array(values) => values.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => Vec::new(),
    }
}

fn count_values(value: &mut Value) -> u64 {
    1 + children(value).into_iter().map(count_values).sum::<u64>()
}

/// Returns value `n` in depth-first order, and otherwise reduces `n` by the number of values
/// passed.
fn nth_value<'a>(value: &'a mut Value, n: &mut u64) -> Option<&'a mut Value> {
    if *n == 0 {
        return Some(value);
    }
    *n -= 1;
    children(value).into_iter().find_map(|child| nth_value(child, n))
}

/// An ONNX model of operations that are read and never written, each applied to the image `x`.
fn many_operations() -> Vec<u8> {
    let ints = |name: &str, values: &[i64]| {
        let tensor = Message::new().packed_int64(1, [values.len() as i64]).int64(2, 7);
        tensor.packed_int64(7, values.iter().copied()).string(8, name)
    };
    let floats = |name: &str, sizes: &[i64]| {
        let count = sizes.iter().product::<i64>() as usize;
        let tensor = Message::new().packed_int64(1, sizes.iter().copied()).int64(2, 1);
        tensor.packed_float(4, vec![0.5; count]).string(8, name)
    };
    let attribute = |name: &str, value: i64| Message::new().string(1, name).int64(3, value).int64(20, 2);
    /// The operation, its inputs and its integer attributes.
    type Node<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, i64)]);
    let nodes: [Node<'_>; 28] = [
        ("Resize", &["x", "", "scales"], &[]),
        ("Pad", &["x", "pads"], &[]),
        ("Slice", &["x", "starts", "ends", "axes", "steps"], &[]),
        ("Gather", &["x", "starts"], &[("axis", 2)]),
        ("GatherND", &["x", "row"], &[]),
        ("ScatterND", &["x", "row", "update"], &[]),
        ("TopK", &["x", "one"], &[("axis", 3)]),
        ("Tile", &["x", "scales_int"], &[]),
        ("Expand", &["x", "scales_int"], &[]),
        ("Split", &["x"], &[("axis", 1)]),
        ("DepthToSpace", &["x"], &[("blocksize", 2)]),
        ("LRN", &["x"], &[("size", 3)]),
        ("Range", &["zero", "limit", "step"], &[]),
        ("ConstantOfShape", &["scales_int"], &[]),
        ("LSTM", &["sequence", "w", "r"], &[("hidden_size", 2)]),
        ("ConvTranspose", &["x", "filter"], &[]),
        ("Flatten", &["x"], &[("axis", 2)]),
        ("Trilu", &["x"], &[("upper", 0)]),
        ("GroupNormalization", &["x", "four", "four"], &[("num_groups", 2)]),
        ("InstanceNormalization", &["x", "four", "four"], &[]),
        ("BatchNormalization", &["x", "four", "four", "four", "four"], &[]),
        ("LayerNormalization", &["x", "update"], &[("axis", 2)]),
        ("LpNormalization", &["x"], &[("axis", 1)]),
        ("ReduceL2", &["x", "axes"], &[("keepdims", 0)]),
        ("CumSum", &["x", "zero"], &[]),
        ("OneHot", &["row", "limit", "scales_two"], &[]),
        ("ArgMax", &["x"], &[("axis", 1)]),
        ("GRU", &["sequence", "w3", "r3"], &[("hidden_size", 2)]),
    ];
    let value = |name: &str, sizes: &[i64]| {
        let shape = sizes.iter().fold(Message::new(), |m, &n| m.message(1, &Message::new().int64(1, n)));
        let tensor = Message::new().int64(1, 1).message(2, &shape);
        Message::new().string(1, name).message(2, &Message::new().message(1, &tensor))
    };
    let mut graph = Message::new();
    for (i, (op_type, inputs, attributes)) in nodes.iter().enumerate() {
        let node = inputs.iter().fold(Message::new(), |m, input| m.string(1, input));
        let node = node.string(2, &format!("y{i}")).string(4, op_type);
        let node = attributes.iter().fold(node, |m, (name, value)| m.message(5, &attribute(name, *value)));
        graph = graph.message(1, &node);
    }
    let scalar = |name: &str, value: i64| Message::new().int64(2, 7).packed_int64(7, [value]).string(8, name);
    let tensors = [
        Message::new()
            .packed_int64(1, [4])
            .int64(2, 1)
            .packed_float(4, [1.0, 1.0, 2.0, 2.0])
            .string(8, "scales"),
        ints("pads", &[0, 0, 1, 1, 0, 0, 1, 1]),
        ints("starts", &[0, 1]),
        ints("ends", &[4, 4]),
        ints("axes", &[2, 3]),
        ints("steps", &[1, 2]),
        ints("row", &[0, 1]),
        floats("update", &[4, 4]),
        ints("one", &[1]),
        ints("scales_int", &[2, 4, 1, 1]),
        scalar("zero", 0),
        scalar("limit", 9),
        scalar("step", 2),
        floats("sequence", &[3, 1, 2]),
        floats("w", &[1, 8, 2]),
        floats("r", &[1, 8, 2]),
        floats("filter", &[4, 2, 3, 3]),
        floats("four", &[4]),
        floats("scales_two", &[2]),
        floats("w3", &[1, 6, 2]),
        floats("r3", &[1, 6, 2]),
    ];
    let graph = tensors.iter().fold(graph, |m, tensor| m.message(5, tensor));
    let graph = graph.message(11, &value("x", &[1, 4, 4, 4])).message(12, &value("y0", &[]));
    let opset = Message::new().string(1, "").int64(2, 17);
    Message::new().int64(1, 8).message(7, &graph).message(8, &opset).into_bytes()
}

/// ONNX models. Most mutations of bytes break the lengths of messages, so they also decide how the
/// messages of an intact model are changed.
pub(crate) struct OnnxModels {
    dir: TempDir,
    models: [Vec<u8>; 2],
}

impl OnnxModels {
    pub(crate) fn new() -> OnnxModels {
        let dir = memory_dir();
        let path = dir.path().join("model.onnx");
        model().export_onnx(&path, &OnnxOptions::default()).expect("a file");
        ExportedModel::load_with(&path, one_thread()).expect("the model is intact");
        let exported = fs::read(&path).expect("a file");
        fs::write(&path, many_operations()).expect("a file");
        ExportedModel::load_with(&path, one_thread()).expect("the model is intact");
        OnnxModels { dir, models: [exported, many_operations()] }
    }

    pub(crate) fn seeds(&self) -> Vec<Vec<u8>> {
        self.models.to_vec()
    }

    pub(crate) fn load(&mut self, bytes: &[u8]) {
        self.load_bytes(bytes);
        let mut rng = Seed::new(crc32c::crc32c(bytes).into()).rng(0, 0);
        let mut model = self.models[below(&mut rng, 2)].clone();
        for _ in 0..1 + rng.below(3) {
            model = change_message(&mut rng, &model);
        }
        self.load_bytes(&model);
    }

    fn load_bytes(&self, bytes: &[u8]) {
        let path = self.dir.path().join("model.onnx");
        fs::write(&path, bytes).expect("a file");
        let _ = ExportedModel::load_with(&path, one_thread());
    }
}

/// Draws a number below `n`.
fn below(rng: &mut SampleRng, n: usize) -> usize {
    rng.below(n as u64) as usize
}

/// Removes, repeats or changes one field of a message, or of a message inside it.
fn change_message(rng: &mut SampleRng, message: &[u8]) -> Vec<u8> {
    let fields: Vec<(u32, Field<'_>)> = Fields::new(message).map_while(Result::ok).collect();
    let chosen = below(rng, fields.len().max(1));
    let mut changed = Message::new();
    for (i, &(number, field)) in fields.iter().enumerate() {
        changed = match (i == chosen, below(rng, 10)) {
            (true, 0) => changed,
            (true, 1) => write_field(write_field(changed, number, field), number, field),
            (true, _) => change_field(rng, changed, number, field),
            _ => write_field(changed, number, field),
        };
    }
    changed.into_bytes()
}

fn change_field(rng: &mut SampleRng, message: Message, number: u32, field: Field<'_>) -> Message {
    match field {
        Field::Len(bytes) => {
            let is_message = !bytes.is_empty() && Fields::new(bytes).all(|field| field.is_ok());
            if is_message && below(rng, 8) > 0 {
                return message.bytes(number, change_message(rng, bytes));
            }
            let mut bytes = bytes.to_vec();
            match below(rng, 4) {
                0 => bytes.truncate(below(rng, bytes.len() + 1)),
                1 => bytes.extend(vec![below(rng, 256) as u8; below(rng, 9)]),
                _ if bytes.is_empty() => bytes.push(b'x'),
                _ => {
                    let at = below(rng, bytes.len());
                    bytes[at] = below(rng, 256) as u8;
                }
            }
            message.bytes(number, bytes)
        }
        Field::Varint(_) => {
            let power = 1i64 << below(rng, 63);
            let values = [power, -power, power - 1, below(rng, 24) as i64, -1, 0];
            message.int64(number, values[below(rng, values.len())])
        }
        Field::I32(_) => {
            let values = [f32::NAN, f32::INFINITY, f32::MAX, -1.0, 0.0, 1e-30];
            message.float(number, values[below(rng, values.len())])
        }
        Field::I64(_) => message.double(number, f64::NAN),
    }
}

fn write_field(message: Message, number: u32, field: Field<'_>) -> Message {
    match field {
        Field::Len(bytes) => message.bytes(number, bytes),
        Field::Varint(value) => message.int64(number, value as i64),
        Field::I32(bytes) => message.float(number, f32::from_le_bytes(bytes)),
        Field::I64(bytes) => message.double(number, f64::from_le_bytes(bytes)),
    }
}
