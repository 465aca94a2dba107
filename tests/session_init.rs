//! Initialization of sessions: from checkpoints, model files, and tensors in memory.

use serde_json::{Map, Value};
use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::graph::{Init, UPDATE_OPS};
use tensorpack::io::{
    ChainInit, Checkpoint, CheckpointStore, DictRestore, RunLock, SaverRestore, SessionInit, WeightLayout,
    dump_model_variables, npz, safetensors, smart_init,
};
use tensorpack::prelude::*;
use tensorpack::tower::Mode;
use tensorpack_testing::assert_mentions;

struct Model {
    session: Session,
    train: Option<Op>,
}

/// A small net: `conv0/{W,b}`, `bn0/..`, `fc0/{W,b}`; for training with Adam.
fn model(mode: Mode, seed: u64) -> Model {
    let graph = Graph::new();
    let t = TowerContext::new(&graph, mode, 0, 1);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4), Some(4), Some(2)]));
    let y = Conv2d::new(3, 3).relu().apply(&t, "conv0", &x);
    let y = Linear::new(5).apply(&t, "fc0", &BatchNorm::new().apply(&t, "bn0", &y));
    let cost = y.square().mean().named("cost");
    let train = (mode == Mode::Training).then(|| {
        let step = minimize(&cost, &Adam::new(1e-2)).unwrap();
        let updates = graph.collection_ops(UPDATE_OPS);
        graph.group(&updates.iter().chain([&step]).collect::<Vec<_>>())
    });
    let options = SessionOptions { seed, threads: Some(1), ..SessionOptions::default() };
    Model { session: Session::with(graph.freeze().unwrap(), options).unwrap(), train }
}

impl Model {
    fn step(&self) {
        let x = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
        let x = HostTensor::new([2, 4, 4, 2], x).unwrap();
        self.session.run(&[self.train.as_ref().expect("made for training")], &[("x", &x)]).unwrap();
    }

    fn values(&self) -> Vec<(String, HostTensor)> {
        let names = self.session.graph().variables().iter().map(|v| v.name.clone());
        names.map(|n| (n.clone(), self.session.read(&n).unwrap())).collect()
    }

    fn read(&self, name: &str) -> HostTensor {
        self.session.read(name).unwrap()
    }
}

fn trained() -> Model {
    let model = model(Mode::Training, 1);
    (0..3).for_each(|_| model.step());
    model
}

fn capture(model: &Model) -> Checkpoint {
    Checkpoint::capture(&model.session, 3, Map::new(), |_| true).unwrap()
}

fn save(dir: &Path, model: &Model) -> std::path::PathBuf {
    let mut store = CheckpointStore::open(&RunLock::acquire(dir).unwrap()).unwrap();
    store.save(&capture(model), &[]).unwrap()
}

#[test]
fn a_restored_run_continues_bit_identically() {
    let first = trained();
    let dir = tempfile::tempdir().unwrap();
    let folder = save(dir.path(), &first);
    let second = model(Mode::Training, 2);
    Checkpoint::load(folder).unwrap().restore(&second.session, |_| true).unwrap();
    assert_eq!(first.values(), second.values());
    [&first, &second].iter().for_each(|m| m.step());
    assert_eq!(first.values(), second.values());
}

#[test]
fn a_checkpoint_of_a_different_model_is_not_restored() {
    let checkpoint = capture(&trained());
    let inference = model(Mode::Inference, 2);
    let before = inference.values();
    let e = checkpoint.restore(&inference.session, |_| true).unwrap_err().to_string();
    assert!(e.contains("different model") && e.contains("missing in the graph"), "{e}");
    assert_eq!(inference.values(), before);
    let mut checkpoint = checkpoint;
    checkpoint.tensors.retain(|(name, _)| name != "fc0/b");
    let e = checkpoint.restore(&model(Mode::Training, 2).session, |_| true).unwrap_err().to_string();
    assert_mentions(&e, &["different model", "fc0/b", "missing in the checkpoint"]);
}

#[test]
fn an_inference_graph_loads_only_its_variables() {
    let first = trained();
    let dir = tempfile::tempdir().unwrap();
    let folder = save(dir.path(), &first);
    // The folder, a file in it, the directory of checkpoints, the directory of the run.
    for path in [&folder, &folder.join("tensors.safetensors"), folder.parent().unwrap(), dir.path()] {
        let second = model(Mode::Inference, 2);
        smart_init(path).unwrap().init(&second.session).unwrap();
        for (name, value) in second.values() {
            assert_eq!(value, first.read(&name), "{name}");
        }
    }
}

#[test]
fn a_tensor_without_a_variable_is_an_error() {
    let mut checkpoint = capture(&trained());
    checkpoint.tensors.push(("fc9/W".into(), ones(DType::F32, &[2])));
    let dir = tempfile::tempdir().unwrap();
    let lock = RunLock::acquire(dir.path()).unwrap();
    CheckpointStore::open(&lock).unwrap().save(&checkpoint, &[]).unwrap();
    let inference = model(Mode::Inference, 2);
    let e = SaverRestore::new(dir.path()).init(&inference.session).unwrap_err().to_string();
    assert!(e.contains("unexpected in the source (1):\n    fc9/W f32[2]"), "{e}");
    // Without the names of variables that only training needs, extra tensors are ignored.
    checkpoint.state = Value::Null;
    CheckpointStore::open(&lock).unwrap().save(&checkpoint, &[]).unwrap();
    SaverRestore::new(dir.path()).init(&inference.session).unwrap();
}

#[test]
fn a_model_file_does_not_change_the_optimizer_state() {
    let first = trained();
    let dir = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "model.npz"] {
        let path = dir.path().join(file);
        // The second time it is replaced.
        dump_model_variables(&model(Mode::Training, 3).session, &path).unwrap();
        dump_model_variables(&first.session, &path).unwrap();
        let saved = if file.ends_with("npz") { npz::read(&path) } else { safetensors::read(&path) }.unwrap();
        assert_eq!(saved.len(), model(Mode::Inference, 2).values().len());
        let second = model(Mode::Training, 2);
        let before = second.values();
        SaverRestore::new(&path).init(&second.session).unwrap();
        for ((name, value), (_, before)) in second.values().into_iter().zip(before) {
            let expected = saved.iter().any(|(n, _)| *n == name);
            assert_eq!(value, if expected { first.read(&name) } else { before }, "{file}: {name}");
        }
    }
    assert!(dump_model_variables(&first.session, dir.path().join("model.txt")).is_err());
}

fn ones(dtype: DType, sizes: &[usize]) -> HostTensor {
    let n: usize = sizes.iter().product();
    HostTensor::from_f64(dtype, sizes, &vec![1.0; n]).unwrap()
}

/// Two variables, `net/fc0/W` f32[3, 2] and `net/count` i64[], initialized to zeros.
fn two_variables() -> Session {
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    t.scope("net", |t| {
        t.variable(VariableSpec::new("fc0/W", [3, 2]).init(Init::zeros()));
        t.variable(VariableSpec::new("count", []).dtype(DType::I64).init(Init::zeros()).model());
    });
    Session::new(graph.freeze().unwrap()).unwrap()
}

fn sum(session: &Session, name: &str) -> f64 {
    session.read(name).unwrap().to_f64_vec().iter().sum()
}

#[test]
fn mismatches_are_listed() {
    let session = two_variables();
    let given = [
        ("net/fc0/W", ones(DType::F32, &[2, 3])),
        ("z", ones(DType::U8, &[])),
        ("a", ones(DType::Bf16, &[4])),
    ];
    let init = DictRestore::new(given);
    let e = init.init(&session).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Name);
    for part in [
        "missing in the source (1):\n    net/count i64[]\n",
        "unexpected in the source (2):\n    a bf16[4]\n    z u8[]\n",
        "different shape or dtype (1):\n    net/fc0/W is f32[2, 3] in the source, but f32[3, 2] in the graph\n",
        "ignore_mismatch",
    ] {
        assert!(e.to_string().contains(part), "{part}: {e}");
    }
    // Loading nothing at all is an error: the file was meant for another graph.
    let e = init.clone().ignore_mismatch().init(&session).unwrap_err();
    assert!(e.message().contains("no tensor in DictRestore matches"), "{e}");
    init.map_layout(".*/W", WeightLayout::OutInToInOut).ignore_mismatch().init(&session).unwrap();
    assert_eq!((sum(&session, "net/fc0/W"), sum(&session, "net/count")), (6.0, 0.0));
}

#[test]
fn nothing_is_loaded_if_one_tensor_mismatches() {
    let session = two_variables();
    let given = [("net/fc0/W", ones(DType::F32, &[3, 2])), ("net/count", ones(DType::F32, &[]))];
    let init = DictRestore::new(given);
    let e = init.init(&session).unwrap_err().to_string();
    assert_mentions(&e, &["net/count", "f32[]", "i64[]"]);
    assert_eq!(sum(&session, "net/fc0/W"), 0.0);
    init.ignore(["net/count"]).init(&session).unwrap();
    assert_eq!(sum(&session, "net/fc0/W"), 6.0);
}

#[test]
fn a_prefix_is_not_part_of_saved_names() {
    for prefix in ["net", "net/"] {
        let session = two_variables();
        let given = [("fc0/W", ones(DType::F32, &[3, 2])), ("count", ones(DType::I64, &[]))];
        DictRestore::new(given).prefix(prefix).init(&session).unwrap();
        assert_eq!((sum(&session, "net/fc0/W"), sum(&session, "net/count")), (6.0, 1.0));
    }
}

#[test]
fn floats_convert_to_floats_and_integers_only_to_wider_ones() {
    for (weights, count, fits) in [
        (DType::Bf16, DType::I32, true),
        (DType::F16, DType::I32, true),
        (DType::F64, DType::U8, true),
        (DType::I32, DType::I64, false),
        (DType::F32, DType::Bool, false),
    ] {
        let session = two_variables();
        let given = [("net/fc0/W", ones(weights, &[3, 2])), ("net/count", ones(count, &[]))];
        assert_eq!(DictRestore::new(given).init(&session).is_ok(), fits, "{weights}, {count}");
        assert_eq!(sum(&session, "net/fc0/W"), if fits { 6.0 } else { 0.0 });
    }
}

#[test]
fn chained_initializers_run_in_order() {
    let session = two_variables();
    let one = |value: f64| {
        let w = HostTensor::from_f64(DType::F32, [3, 2], &[value; 6]).unwrap();
        Box::new(DictRestore::new([("net/fc0/W", w)]).ignore_mismatch()) as Box<dyn SessionInit>
    };
    ChainInit::new([one(1.0), one(2.0)]).init(&session).unwrap();
    assert_eq!(sum(&session, "net/fc0/W"), 12.0);
}

#[test]
fn an_unrecognized_path_is_an_error() {
    let session = two_variables();
    smart_init("").unwrap().init(&session).unwrap();
    assert_eq!(sum(&session, "net/fc0/W"), 0.0);
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.safetensors");
    assert!(smart_init(&missing).err().unwrap().message().starts_with("cannot load "));
    let e = smart_init(dir.path()).unwrap().init(&session).unwrap_err();
    assert!(e.message().starts_with("there is no checkpoint in "), "{e}");
    let e = SaverRestore::new(dir.path().join("no_run")).init(&session).unwrap_err();
    assert!(e.message().contains("no_run") && e.message().contains("No such file"), "{e}");
    std::fs::write(dir.path().join("model.pth"), "").unwrap();
    assert!(smart_init(dir.path().join("model.pth")).unwrap().init(&session).is_err());
}

#[test]
fn a_pattern_must_match_a_whole_name() {
    let session = two_variables();
    let init =
        || DictRestore::new([("net/fc0/W", ones(DType::F32, &[3, 2])), ("extra", ones(DType::F32, &[]))]);
    let line = line!() + 2;
    let wrong = [
        init().map_layout("(", WeightLayout::OihwToHwio),
        init().map_layout("fc0/W", WeightLayout::OihwToHwio),
        init().ignore(["extr"]),
    ];
    for (i, wrong) in wrong.iter().enumerate() {
        let e = wrong.init(&session).unwrap_err();
        assert_eq!((e.kind(), e.site().map(|s| s.line)), (ErrorKind::Name, Some(line + i as u32)), "{e}");
    }
    init().ignore(["ext.*", "net/count"]).init(&session).unwrap();
    assert_eq!(sum(&session, "net/fc0/W"), 6.0);
}

#[test]
fn checkpoint_metadata_is_not_part_of_the_state() {
    let state: Map<String, Value> = [("epoch_num".to_string(), 7.into())].into_iter().collect();
    let checkpoint = Checkpoint::capture(&trained().session, 3, state, |v| v.trainable).unwrap();
    assert_eq!(checkpoint.state["epoch_num"], 7);
    assert!(checkpoint.tensor("conv0/W").is_some() && checkpoint.tensor("none").is_none());
}

/// `tests/torch/make_model.py` generated the weights, the input and the output.
#[test]
fn pytorch_weights_give_pytorch_outputs() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch");
    let values: Value = serde_json::from_slice(&std::fs::read(dir.join("values.json")).unwrap()).unwrap();
    let floats = |key: &str| -> Vec<f64> { serde_json::from_value(values[key].clone()).unwrap() };

    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4), Some(6), Some(2)]));
    let y = Conv2d::new(3, 3).relu().apply(&t, "conv0", &x).mean_axes(&[1, 2]);
    let y = Linear::new(5).apply(&t, "fc0", &y);
    let session = Session::new(graph.freeze().unwrap()).unwrap();

    let renamed = safetensors::read(dir.join("model.safetensors")).unwrap().into_iter().map(|(name, t)| {
        let layer = if name.starts_with("0.") { "conv0" } else { "fc0" };
        let part = if name.ends_with("weight") { "W" } else { "b" };
        (format!("{layer}/{part}"), t)
    });
    DictRestore::new(renamed)
        .map_layout("conv.*/W", WeightLayout::OihwToHwio)
        .map_layout("fc.*/W", WeightLayout::OutInToInOut)
        .init(&session)
        .unwrap();
    let x = HostTensor::from_f64(DType::F32, [2, 4, 6, 2], &floats("x")).unwrap();
    let made = session.run(&[&y], &[("x", &x)]).unwrap().remove(0).to_f64_vec();
    for (made, expected) in made.iter().zip(floats("y")) {
        assert!((made - expected).abs() < 1e-6, "{made} instead of {expected}");
    }
    assert_eq!(made.len(), 10);
}

#[cfg(unix)]
#[test]
fn pipes_are_errors_and_never_block() {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    let dir = tempfile::tempdir().unwrap();
    let fifo = |path: &Path| {
        let _ = std::fs::remove_file(path);
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let fails = |path: std::path::PathBuf| {
        let (send, receive) = channel();
        std::thread::spawn(move || {
            send.send(match path.is_dir() {
                true => Checkpoint::load(path).map(|_| ()),
                false => safetensors::read(path).map(|_| ()),
            })
        });
        let opened =
            receive.recv_timeout(Duration::from_secs(10)).expect("opening takes more than ten seconds");
        let e = opened.unwrap_err();
        assert!(e.to_string().contains("not a regular file"), "{e}");
    };
    let file = dir.path().join("weights.safetensors");
    fifo(&file);
    fails(file);
    let folder = save(dir.path(), &trained());
    for name in ["tensors.safetensors", "manifest.json"] {
        let path = folder.join(name);
        assert!(path.exists(), "{}", path.display());
        fifo(&path);
        fails(folder.clone());
    }
}
