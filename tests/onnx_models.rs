//! ONNX models of other frameworks: they compute what onnxruntime computes, and can be trained further.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use tensorpack::ErrorKind;
use tensorpack::io::read_tensors;
use tensorpack::predict::{Module, OnnxOptions};
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack_protobuf::Message;
use tensorpack_testing::{assert_mentions, opted_in};

/// Runs a script of `tests/onnx` with the Python that the environment variable names, or with `python3`
/// if it is 1.
pub(crate) fn python(variable: &str, script: &str, arguments: &[&Path]) {
    let python = std::env::var_os(variable).filter(|python| python != "1");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx").join(script);
    let output =
        Command::new(python.unwrap_or_else(|| "python3".into())).arg(script).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{variable} names no Python: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

/// Returns the largest difference, relative to the largest element.
pub(crate) fn relative_error(found: &HostTensor, wanted: &HostTensor) -> f64 {
    assert_eq!(found.sizes(), wanted.sizes());
    let (found, wanted) = (found.to_f64_vec(), wanted.to_f64_vec());
    let scale = wanted.iter().fold(1e-6, |m: f64, v| m.max(v.abs()));
    found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

/// The models whose control flow depends on the input's values, with the operations that errors name.
const REFUSED: &[(&str, &[&str])] = &[
    ("hebrew-nakdimon", &["Loop (4)", "ReverseSequence (5)"]),
    ("data-silero_vad", &["If"]),
    ("silero_vad_op18_ifless", &["If"]),
];

/// Runs a real model, as it is and folded, and returns the output with the largest relative error.
fn run(path: &str, values: &BTreeMap<String, HostTensor>) -> tensorpack::Result<(f64, String)> {
    let name = |key: &str| key.replace([':', '+'], "_");
    let sizes: Vec<(String, Vec<usize>)> = values
        .iter()
        .filter_map(|(key, value)| Some((name(key.strip_prefix("in:")?), value.sizes().to_vec())))
        .collect();
    let given: Vec<(&str, &[usize])> =
        sizes.iter().map(|(name, sizes)| (name.as_str(), &sizes[..])).collect();
    let model = ExportedModel::load_sized(path, &given, SessionOptions::default())?;
    let inputs: Vec<&HostTensor> =
        model.inputs().iter().map(|spec| &values[&format!("in:{}", spec.name)]).collect();
    let outputs = [model.predict(&inputs)?, model.folded()?.predict(&inputs)?].concat();
    let wanted =
        |output: &str| values.iter().find(|(key, _)| name(key) == format!("out_{output}")).unwrap().1;
    let errors = model
        .outputs()
        .chain(model.outputs())
        .zip(&outputs)
        .map(|(name, y)| (relative_error(y, wanted(name)), name.to_string()));
    Ok(errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap())
}

/// Compares the models of a folder, which the scripts describe, with their expected outputs. Returns
/// the numbers of models that agree and that are refused.
fn compare(folder: &Path) -> [usize; 2] {
    let (mut failures, mut passed, mut refused) = (Vec::new(), 0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "path") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let values = read_tensors(path.with_extension("npz"), None).unwrap().into_iter().collect();
        let model = fs::read_to_string(&path).unwrap();
        match (run(&model, &values), REFUSED.iter().find(|(refused, _)| *refused == name)) {
            (Err(e), Some((_, operations))) if e.kind() == ErrorKind::Unsupported => {
                refused += 1;
                let missing: Vec<_> = operations.iter().filter(|op| !e.to_string().contains(**op)).collect();
                if !missing.is_empty() {
                    failures.push(format!("{name}: the error does not name {missing:?}: {e}"));
                }
            }
            (Ok((error, _)), None) if error < 1e-4 => {
                passed += 1;
                println!("{name}: {error:.1e}");
            }
            (result, _) => failures.push(format!("{name}: {result:?}")),
        }
    }
    println!("{passed} models agree, {refused} are refused");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    [passed, refused]
}

/// The packages that `docs/models.md` lists, unpacked in the folder that the variable names.
#[test]
fn real_models_agree_with_onnxruntime() {
    if !opted_in("TENSORPACK_ONNX_MODELS") {
        return;
    }
    let models = std::env::var("TENSORPACK_ONNX_MODELS").unwrap();
    let dir = tempfile::tempdir().unwrap();
    python("TENSORPACK_ONNXRUNTIME", "run_models.py", &[Path::new(&models), dir.path()]);
    assert_eq!(compare(dir.path()), [12, 3]);
}

/// Nets of torchvision and transformers, exported by PyTorch.
#[test]
fn exports_of_pytorch_agree_with_pytorch() {
    if !opted_in("TENSORPACK_TORCH") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    python("TENSORPACK_TORCH", "export_torch.py", &[dir.path()]);
    assert_eq!(compare(dir.path()), [18, 0]);
}

/// Small models of every operator that is read, with the variants of its attributes.
#[test]
fn operators_agree_with_onnxruntime() {
    if !opted_in("TENSORPACK_ONNXRUNTIME") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    python("TENSORPACK_ONNXRUNTIME", "operator_cases.py", &[dir.path()]);
    let models = fs::read_dir(dir.path()).unwrap();
    let models =
        models.filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "path")).count();
    assert_eq!(compare(dir.path()), [models, 0]);
    let covered = fs::read_to_string(dir.path().join("operators.txt")).unwrap();
    let source = include_str!("../src/io/onnx/operators.rs");
    let table = source.split("match node.op_type").nth(1).unwrap().split("_ => return None").next().unwrap();
    let known: Vec<&str> = table.split('"').skip(1).step_by(2).collect();
    assert!(known.len() > 100 && known.contains(&"Conv"), "{known:?}");
    // These are read for truth values only, which onnxruntime does not take.
    let without_case = ["BitwiseAnd", "BitwiseOr"];
    let missing =
        known.iter().filter(|op| !without_case.contains(op) && !covered.lines().any(|line| line == **op));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new(), "operators without a case");
}

/// A node without attributes.
fn node(op_type: &str, inputs: &[&str], output: &str) -> Message {
    let message = inputs.iter().fold(Message::new(), |m, input| m.string(1, input));
    message.string(2, output).string(4, op_type)
}

/// A float tensor of unknown size.
fn value_info(name: &str) -> Message {
    let shape = Message::new().message(1, &Message::new()).message(1, &Message::new());
    let tensor = Message::new().int64(1, 1).message(2, &shape);
    Message::new().string(1, name).message(2, &Message::new().message(1, &tensor))
}

/// The bytes of a model with these nodes and initializers, from `x` to `y`.
fn model(nodes: &[Message], initializers: &[Message]) -> Vec<u8> {
    let graph = nodes.iter().fold(Message::new(), |m, node| m.message(1, node));
    let graph = initializers.iter().fold(graph, |m, tensor| m.message(5, tensor));
    let graph = graph.message(11, &value_info("x")).message(12, &value_info("y"));
    let opset = Message::new().string(1, "").int64(2, 17);
    Message::new().int64(1, 8).message(7, &graph).message(8, &opset).into_bytes()
}

#[test]
fn all_unsupported_operations_are_named_with_their_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.onnx");
    let nodes = [
        node("NonZero", &["x"], "a"),
        node("Relu", &["x"], "b"),
        node("NonZero", &["b"], "c"),
        node("FusedMatMul", &["b", "b"], "y").string(7, "com.microsoft"),
    ];
    fs::write(&path, model(&nodes, &[])).unwrap();
    let e = Module::load(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert_mentions(&e, &["net.onnx", "NonZero (2)", "com.microsoft.FusedMatMul (1)"]);
    assert!(!e.message().contains("Relu"), "{e}");
}

#[test]
fn an_error_names_the_node_of_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.onnx");
    fs::write(&path, model(&[node("Add", &["x", "z"], "y").string(3, "sum7")], &[])).unwrap();
    let e = ExportedModel::load(&path).map(|_| ()).unwrap_err();
    assert_mentions(&e, &["Add sum7", "\"z\""]);
    let e = ExportedModel::load_sized(&path, &[("w", &[1, 2])], SessionOptions::default())
        .map(|_| ())
        .unwrap_err();
    assert_mentions(&e, &["sum7"]);
}

/// An integer, or integers, or a text as the attribute of a node.
fn attribute(name: &str, value: &str) -> Message {
    let message = Message::new().string(1, name);
    let ints: Option<Vec<i64>> = value.split(' ').map(|n| n.parse().ok()).collect();
    match ints.as_deref() {
        Some([n]) => message.int64(3, *n).int64(20, 2),
        Some(ints) => message.packed_int64(8, ints.iter().copied()).int64(20, 7),
        None => message.string(4, value).int64(20, 3),
    }
}

/// A tensor of this ONNX type: 1 is f32, 2 is u8, 6 is i32, 7 is i64, 9 is bool.
fn constant(name: &str, kind: i64, sizes: &[usize], values: &[f64]) -> Message {
    let tensor = Message::new().packed_int64(1, sizes.iter().map(|&n| n as i64)).int64(2, kind);
    let integers = || values.iter().map(|&v| v as i64);
    let tensor = match kind {
        1 => tensor.packed_float(4, values.iter().map(|&v| v as f32)),
        7 => tensor.packed_int64(7, integers()),
        _ => tensor.packed_int64(5, integers()),
    };
    tensor.string(8, name)
}

/// Loads a model and runs it on `x`.
fn predict(bytes: &[u8], x: &HostTensor) -> Result<HostTensor> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.onnx");
    fs::write(&path, bytes).unwrap();
    let model = ExportedModel::load_sized(&path, &[("x", x.sizes())], SessionOptions::default())?;
    Ok(model.predict(&[x])?.remove(0))
}

/// The result of a node with the inputs `c0`, `c1` and so on, which are constants.
fn of_constants(op: &str, constants: &[(i64, &[usize], &[f64])], attributes: &[(&str, &str)]) -> HostTensor {
    let names: Vec<String> = (0..constants.len()).map(|i| format!("c{i}")).collect();
    let node = node(op, &names.iter().map(String::as_str).collect::<Vec<_>>(), "y");
    let node = attributes.iter().fold(node, |m, (name, value)| m.message(5, &attribute(name, value)));
    let values: Vec<Message> = names
        .iter()
        .zip(constants)
        .map(|(name, (kind, sizes, values))| constant(name, *kind, sizes, values))
        .collect();
    let x = HostTensor::zeros(DType::F32, [1, 1]).unwrap();
    predict(&model(&[node], &values), &x).unwrap_or_else(|e| panic!("{op}: {e}"))
}

/// What onnxruntime computes from constants, where folding differs from what the graph would compute.
#[test]
fn constants_are_folded_as_the_graph_computes() {
    const MANY: &[(&str, &str)] = &[("noop_with_empty_axes", "1")];
    let one: &[usize] = &[];
    type Case<'a> =
        (&'a str, &'a [(i64, &'a [usize], &'a [f64])], &'a [(&'a str, &'a str)], &'a [usize], &'a [f64]);
    let cases: [Case<'_>; 13] = [
        ("Mod", &[(7, &[2], &[-7.0, 7.0]), (7, &[2], &[3.0, -3.0])], &[("fmod", "1")], &[2], &[-1.0, 1.0]),
        ("Mod", &[(7, &[2], &[-7.0, 7.0]), (7, &[2], &[3.0, -3.0])], &[], &[2], &[2.0, -2.0]),
        ("ReduceSum", &[(7, &[3], &[1.0, 2.0, 3.0])], MANY, &[3], &[1.0, 2.0, 3.0]),
        ("ReduceProd", &[(1, &[2], &[2.0, 3.0])], MANY, &[2], &[2.0, 3.0]),
        ("ReduceL1", &[(1, one, &[-3.5])], &[], one, &[3.5]),
        ("ReduceSumSquare", &[(1, one, &[-3.0])], &[("keepdims", "0")], one, &[9.0]),
        // Integers wrap around.
        ("Add", &[(6, &[1], &[2147483647.0]), (6, &[1], &[1.0])], &[], &[1], &[-2147483648.0]),
        ("Sub", &[(2, &[1], &[0.0]), (2, &[1], &[1.0])], &[], &[1], &[255.0]),
        ("Cast", &[(7, &[2], &[300.0, -1.0])], &[("to", "2")], &[2], &[44.0, 255.0]),
        // The exponent has a dim more.
        ("Pow", &[(1, &[2], &[1.0, 3.0]), (1, &[1, 1], &[2.0])], &[], &[1, 2], &[1.0, 9.0]),
        ("Reshape", &[(7, &[0, 3], &[]), (7, &[2], &[0.0, 0.0])], &[("allowzero", "1")], &[0, 0], &[]),
        ("LpNormalization", &[(1, &[2, 2], &[0.0, 0.0, 3.0, 4.0])], &[], &[2, 2], &[0.0, 0.0, 0.6, 0.8]),
        (
            "Pad",
            &[(9, &[1], &[0.0]), (7, &[2], &[1.0, 2.0]), (9, one, &[1.0])],
            &[],
            &[4],
            &[1.0, 0.0, 1.0, 1.0],
        ),
    ];
    for (op, constants, attributes, sizes, wanted) in cases {
        let y = of_constants(op, constants, attributes);
        assert_eq!(y.sizes(), sizes, "{op}");
        let close = y.to_f64_vec().iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "{op}: {:?}, not {wanted:?}", y.to_f64_vec());
    }
    // Integers that f64 does not have.
    let big = (1i64 << 60) + 1;
    let tensor = |name: &str, value: i64| {
        Message::new().packed_int64(1, [1]).int64(2, 7).packed_int64(7, [value]).string(8, name)
    };
    let sum = model(&[node("Add", &["a", "b"], "y")], &[tensor("a", big), tensor("b", 2)]);
    let x = HostTensor::zeros(DType::F32, [1, 1]).unwrap();
    assert_eq!(predict(&sum, &x).unwrap().as_slice::<i64>().unwrap(), [big + 2]);
    // PyTorch writes this end of a slice that runs backwards.
    let ends =
        Message::new().packed_int64(1, [1]).int64(2, 7).packed_int64(7, [i64::MIN + 1]).string(8, "ends");
    let ints = |name: &str, values: &[f64]| constant(name, 7, &[values.len()], values);
    let nodes = [
        node("Slice", &["pads", "starts", "ends", "axes", "starts"], "reversed"),
        node("Pad", &["x", "reversed"], "y"),
    ];
    let pads = [ints("pads", &[2.0, 0.0, 1.0, 0.0]), ints("starts", &[-1.0]), ints("axes", &[0.0]), ends];
    assert_eq!(predict(&model(&nodes, &pads), &x).unwrap().sizes(), [1, 4]);
    // The value of the other classes is infinite.
    let hot = of_constants(
        "OneHot",
        &[(7, &[1], &[1.0]), (7, one, &[2.0]), (1, &[2], &[f64::NEG_INFINITY, 0.0])],
        &[],
    );
    assert_eq!(hot.to_f64_vec(), [f64::NEG_INFINITY, 0.0]);
}

/// Sizes and positions are those of arithmetic in f32: 10 times 0.7 is 7.
#[test]
fn a_resized_image_has_the_size_that_f32_gives() {
    let resize = |n: usize, scale: f64, mode: &str| {
        let nodes = [node("Resize", &["x", "", "s"], "y").message(5, &attribute("mode", mode))];
        let x = HostTensor::new([1, n], (0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        predict(&model(&nodes, &[constant("s", 1, &[2], &[1.0, scale])]), &x).unwrap()
    };
    for (n, scale, wanted) in [(10, 0.7, 7), (5, 1.4, 7), (10, 2.3, 23), (7, 0.5, 3)] {
        assert_eq!(resize(n, scale, "nearest").sizes(), [1, wanted]);
        assert_eq!(resize(n, scale, "linear").sizes(), [1, wanted]);
    }
    // Halfway between two elements, up to rounding.
    let wanted = [0.0, 2.0, 3.0, 4.0, 6.0, 7.0, 9.0];
    assert_eq!(resize(11, 0.7, "nearest").to_f64_vec(), wanted);
}

/// The bodies of two nodes may use the same names for different weights.
#[test]
fn names_in_bodies_of_control_flow_are_their_own() {
    let body = |value: f64| {
        let graph = Message::new().message(1, &node("Add", &["x", "w"], "sum"));
        graph.message(5, &constant("w", 1, &[2], &[value, value])).message(12, &value_info("sum"))
    };
    let branches = |output: &str, value: f64| {
        let graph = |name: &str, body: &Message| Message::new().string(1, name).message(6, body).int64(20, 5);
        node("If", &["c"], output)
            .message(5, &graph("then_branch", &body(value)))
            .message(5, &graph("else_branch", &body(-1.0)))
    };
    let nodes = [branches("a", 1.0), branches("b", 10.0), node("Sub", &["b", "a"], "y")];
    let x = HostTensor::zeros(DType::F32, [1, 2]).unwrap();
    let y = predict(&model(&nodes, &[constant("c", 9, &[], &[1.0])]), &x).unwrap();
    assert_eq!(y.to_f64_vec(), [9.0, 9.0]);
    // A name of a body is unknown after it.
    let nodes = [branches("a", 1.0), node("Add", &["a", "sum"], "y")];
    assert_mentions(predict(&model(&nodes, &[constant("c", 9, &[], &[1.0])]), &x).unwrap_err(), &["\"sum\""]);
}

#[test]
fn a_name_that_is_defined_twice_is_an_error() {
    let x = HostTensor::zeros(DType::F32, [1, 2]).unwrap();
    let w = |value| constant("w", 1, &[2], &[value, value]);
    let add = node("Add", &["x", "w"], "y");
    for bytes in [
        model(std::slice::from_ref(&add), &[w(1.0), w(2.0)]),
        model(&[node("Relu", &["x"], "w"), add.clone()], &[w(1.0)]),
        model(&[add.clone(), node("Relu", &["x"], "y")], &[w(1.0)]),
        model(&[add, node("Relu", &["w"], "x")], &[w(1.0)]),
    ] {
        let e = predict(&bytes, &x).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_mentions(e, &["twice"]);
    }
}

/// Nodes on tensors without the dims they need, and variants that are not supported, are errors.
#[test]
fn nodes_that_do_not_fit_their_inputs_are_errors() {
    let scalar = ("scalar", 1, &[][..], &[1.0][..]);
    let vector = ("vector", 1, &[2][..], &[1.0, 2.0][..]);
    let bytes = ("bytes", 2, &[1, 4][..], &[1.0, 2.0, 3.0, 4.0][..]);
    let scales = ("scales", 1, &[2][..], &[1.0, 2.0][..]);
    let yes = ("yes", 9, &[][..], &[1.0][..]);
    let constants = [scalar, vector, bytes, scales, yes];
    let constants = constants.map(|(name, kind, sizes, values)| constant(name, kind, sizes, values));
    let x = HostTensor::zeros(DType::F32, [2, 2]).unwrap();
    for (op, inputs, attributes) in [
        ("GroupNormalization", &["scalar", "vector", "vector"][..], &[("num_groups", "1")][..]),
        ("GroupNormalization", &["vector", "vector", "vector"], &[("num_groups", "1")]),
        ("GroupNormalization", &["x", "scalar", "scalar"], &[("num_groups", "1")]),
        ("LRN", &["scalar"], &[("size", "3")]),
        ("LRN", &["vector"], &[("size", "3")]),
        ("Resize", &["bytes", "", "scales"], &[("mode", "linear")]),
        ("Dropout", &["x", "scalar", "yes"], &[]),
        ("BatchNormalization", &["x", "vector", "vector", "vector", "vector"], &[("spatial", "0")]),
    ] {
        let node = node(op, inputs, "y");
        let node = attributes.iter().fold(node, |m, (name, value)| m.message(5, &attribute(name, value)));
        let e = predict(&model(&[node], &constants), &x).expect_err(op);
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{op}: {e}");
    }
}

/// The sequence of a transposed convolution has one dim, and so has its output padding.
#[test]
fn a_transposed_convolution_of_a_sequence_has_output_padding() {
    let nodes = [
        node("Unsqueeze", &["x", "axis"], "image"),
        node("ConvTranspose", &["image", "w"], "z")
            .message(5, &Message::new().string(1, "strides").packed_int64(8, [2]).int64(20, 7))
            .message(5, &Message::new().string(1, "output_padding").packed_int64(8, [1]).int64(20, 7)),
        node("Squeeze", &["z", "axis"], "y"),
    ];
    let constants = [constant("axis", 7, &[1], &[1.0]), constant("w", 1, &[1, 1, 1], &[3.0])];
    let x = HostTensor::new([1, 2], vec![1f32, 2.0]).unwrap();
    let y = predict(&model(&nodes, &constants), &x).unwrap();
    assert_eq!((y.sizes(), y.to_f64_vec()), (&[1, 4][..], vec![3.0, 0.0, 6.0, 0.0]));
}

/// External tensors of a model are read only from its own folder.
#[test]
fn tensors_outside_the_folder_of_the_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    fs::create_dir(&folder).unwrap();
    for file in [dir.path().join("secret"), folder.join("weights")] {
        fs::write(file, 1f32.to_le_bytes()).unwrap();
    }
    let load = |location: &str, length: &str| {
        let entry = |key: &str, value: &str| Message::new().string(1, key).string(2, value);
        let tensor = Message::new().packed_int64(1, [1]).int64(2, 1).string(8, "w");
        let tensor = tensor.message(13, &entry("location", location)).message(13, &entry("length", length));
        let path = folder.join("net.onnx");
        fs::write(&path, model(&[node("Add", &["x", "w"], "y")], &[tensor.int64(14, 1)])).unwrap();
        Module::load(&path).map(|_| ())
    };
    load("weights", "4").unwrap();
    let absolute = dir.path().join("secret");
    for outside in ["../secret", "/dev/zero", "a/../../secret", "", absolute.to_str().unwrap()] {
        let e = load(outside, "4").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_mentions(&e, &["\"w\"", "folder of the model"]);
    }
    assert_mentions(load("weights", "4000000000").unwrap_err(), &["too short"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&absolute, folder.join("link")).unwrap();
        assert_mentions(load("link", "4").unwrap_err(), &["link", "folder of the model"]);
    }
}

/// Weights of a chain of shape arithmetic on unknown sizes: `Reshape(x, Concat(Shape(x)[0], -1))`.
#[test]
fn arithmetic_on_shapes_is_folded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.onnx");
    let ints = |name: &str, sizes: &[i64], values: &[i64]| {
        Message::new()
            .packed_int64(1, sizes.iter().copied())
            .int64(2, 7)
            .packed_int64(7, values.iter().copied())
            .string(8, name)
    };
    let nodes = [
        node("Shape", &["x"], "shape"),
        node("Gather", &["shape", "zero"], "batch"),
        node("Unsqueeze", &["batch", "axes"], "first"),
        node("Concat", &["first", "rest"], "target")
            .message(5, &Message::new().string(1, "axis").int64(3, 0).int64(20, 2)),
        node("Reshape", &["x", "target"], "y"),
    ];
    let initializers = [ints("zero", &[], &[0]), ints("axes", &[1], &[0]), ints("rest", &[3], &[1, -1, 1])];
    fs::write(&path, model(&nodes, &initializers)).unwrap();
    let model = ExportedModel::load(&path).unwrap();
    let x = HostTensor::new([2, 3], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let y = model.predict(&[&x]).unwrap().remove(0);
    assert_eq!(y.sizes(), [2, 1, 3, 1]);
    assert_eq!(y.as_slice::<f32>().unwrap(), x.as_slice::<f32>().unwrap());
}

/// A model with weights beside it is read back, and runs in onnxruntime.
#[test]
fn a_model_with_external_weights_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.onnx");
    let x = TensorSpec::f32("x", [None, Some(40)]);
    let tower = TowerFunc::new(vec![x], |t, x| vec![Linear::new(20).relu().apply(t, "fc", &x[0]).named("y")]);
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower.unwrap(), ["y"])).unwrap();
    predictor.export_onnx(&path, &OnnxOptions::default().external_data(true)).unwrap();
    assert_eq!(fs::metadata(dir.path().join("net.onnx.data")).unwrap().len(), 40 * 20 * 4);
    let x = HostTensor::new([3, 40], (0..120).map(|i| (i as f32).sin()).collect::<Vec<_>>()).unwrap();
    let wanted = predictor.predict(&[&x]).unwrap();
    assert_eq!(ExportedModel::load(&path).unwrap().predict(&[&x]).unwrap(), wanted);
    if opted_in("TENSORPACK_ONNXRUNTIME") {
        let values = [("in:x".to_string(), x), ("out:y".to_string(), wanted[0].clone())];
        tensorpack::io::write_tensors(dir.path().join("net.npz"), &values).unwrap();
        python("TENSORPACK_ONNXRUNTIME", "check_models.py", &[dir.path()]);
    }
}
