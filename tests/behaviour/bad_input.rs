//! Bad input is an error with a useful message, never a panic, and leaves the session unchanged.

use std::cell::Cell;
use std::sync::Arc;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Init, OpDef, OpTraits, Spec, Tensor, TensorSpec, VariableSpec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::nn::{Conv2d, Linear};
use tensorpack::optim::{Sgd, minimize};
use tensorpack::runtime::{Device, Session, SessionOptions};
use tensorpack::tower::{Mode, TowerContext};
use tensorpack::{DType, Error, ErrorKind, HostTensor, Result};
use tensorpack_testing::assert_mentions;

fn f32s(sizes: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::new(sizes, values.to_vec()).unwrap()
}

fn zeros(sizes: &[usize]) -> HostTensor {
    HostTensor::zeros(DType::F32, sizes).unwrap()
}

#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, terms: &[&str]) -> Error {
    let e = result.expect_err("this must be an error");
    assert_mentions(&e, terms);
    assert_eq!(e.kind(), kind, "{e}");
    e
}

/// `x [?, 3]` and `y [?]`; fetches `(x * 2).mean()` and a sum with y.
struct Small {
    session: Session,
    mean: Tensor,
    both: Tensor,
}

fn small() -> Small {
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let y = g.placeholder(&TensorSpec::i32("y", [None]));
    let mean = (&x * 2.0).mean().named("mean");
    let both = x.sum() + y.cast(DType::F32).sum();
    Small { session: Session::new(g.freeze().unwrap()).unwrap(), mean, both }
}

#[test]
fn feeds_that_are_not_finite() {
    let s = small();
    for (bad, at) in [(f32::NAN, 4), (f32::INFINITY, 0), (f32::NEG_INFINITY, 5)] {
        let mut values = [1.0; 6];
        values[at] = bad;
        assert_error(
            s.session.run(&[&s.mean], &[("x", &f32s(&[2, 3], &values))]),
            ErrorKind::NotFinite,
            &["x", "NaN", &format!("element {at}"), "[2, 3]"],
        );
    }
    let good = s.session.run(&[&s.mean], &[("x", &f32s(&[2, 3], &[1.0; 6]))]).unwrap();
    assert_eq!(good[0].to_scalar().unwrap(), 2.0);
}

#[test]
fn feeds_of_another_dtype_or_shape() {
    let s = small();
    let run = |name: &str, value: &HostTensor| s.session.run(&[&s.mean], &[(name, value)]);
    let wrong = HostTensor::zeros(DType::F64, [2, 3]).unwrap();
    let e = assert_error(run("x", &wrong), ErrorKind::DType, &["input x", "f32", "f64"]);
    assert!(e.site().unwrap().file.ends_with("bad_input.rs"), "{e}");
    assert_error(run("x", &zeros(&[6])), ErrorKind::Shape, &["input x", "[?, 3]", "[6]"]);
    assert_error(run("x", &zeros(&[2, 4])), ErrorKind::Shape, &["input x", "[?, 3]", "[2, 4]"]);
    assert_error(run("x", &zeros(&[])), ErrorKind::Shape, &["input x", "[?, 3]", "[]"]);
}

#[test]
fn feeds_with_wrong_names() {
    let s = small();
    let x = zeros(&[2, 3]);
    let run = |feeds: &[(&str, &HostTensor)]| s.session.run(&[&s.both], feeds);
    assert_error(run(&[("image", &x)]), ErrorKind::Name, &["no input", "\"image\"", "x, y"]);
    // A tensor that is not an input cannot be fed.
    assert_error(run(&[("mean", &x)]), ErrorKind::Name, &["no input", "\"mean\""]);
    let e = assert_error(run(&[("x", &x)]), ErrorKind::Name, &["input y", "fed"]);
    assert!(e.site().unwrap().file.ends_with("bad_input.rs"), "{e}");
    assert_error(run(&[("x", &x), ("x", &x)]), ErrorKind::Name, &["input x", "twice"]);
}

#[test]
fn more_feeds_than_a_run_takes() {
    let g = Graph::new();
    let names: Vec<String> = (0..65).map(|i| format!("x{i}")).collect();
    let sum = names.iter().map(|n| g.placeholder(&TensorSpec::f32(n, []))).reduce(|a, b| a + b).unwrap();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let one = HostTensor::scalar(1.0f32);
    let feeds: Vec<(&str, &HostTensor)> = names.iter().map(|n| (n.as_str(), &one)).collect();
    assert_error(session.run(&[&sum], &feeds), ErrorKind::Argument, &["64", "65"]);
}

#[test]
fn an_empty_batch() {
    let s = small();
    let e = s.session.run(&[&s.mean], &[("x", &zeros(&[0, 3]))]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert_mentions(&e, &["mean", "empty", "[0, 3]"]);
    assert!(e.site().unwrap().file.ends_with("bad_input.rs"), "{e}");
    // Results that are defined for an empty batch are computed.
    let y = HostTensor::zeros(DType::I32, [0]).unwrap();
    let sum = s.session.run(&[&s.both], &[("x", &zeros(&[0, 3])), ("y", &y)]).unwrap();
    assert_eq!(sum[0].to_scalar().unwrap(), 0.0);
}

/// Empty sums are zero, and so are their gradients.
#[test]
fn a_training_step_on_an_empty_batch() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(8), Some(8), Some(3)]));
    let y = Conv2d::new(4, 3).relu().apply(&t, "conv", &x).max_pool(2);
    let cost = Linear::new(2).apply(&t, "fc", &y).square().sum();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let names: Vec<String> = session.graph().variables().iter().map(|v| v.name.clone()).collect();
    let values = || names.iter().map(|n| session.read(n).unwrap()).collect::<Vec<_>>();
    let before = values();
    let fetched = session.run(&[&cost, &train], &[("x", &zeros(&[0, 8, 8, 3]))]).unwrap();
    assert_eq!(fetched[0].to_scalar().unwrap(), 0.0);
    assert_eq!(values(), before);
}

#[test]
fn huge_sizes_while_building() {
    let max = usize::MAX;
    for sizes in [vec![Some(max)], vec![None, Some(max)], vec![Some(1 << 40), None, Some(1 << 40)]] {
        let g = Graph::new();
        let _x = g.placeholder(&TensorSpec::f32("x", sizes));
        let e = g.freeze().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Shape);
        assert_mentions(&e, &["elements"]);
    }
    for sizes in [vec![max], vec![max, max], vec![1 << 40, 1 << 40]] {
        let g = Graph::new();
        let _w = TowerContext::training(&g).variable(VariableSpec::new("w", sizes));
        let e = g.freeze().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Shape);
        assert_mentions(&e, &["Variable: ", "shape ["]);
    }
    assert_eq!(HostTensor::zeros(DType::F32, [max]).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(HostTensor::zeros(DType::F64, [(1 << 60) - 1]).unwrap_err().kind(), ErrorKind::Memory);
}

/// Each of these fits into the address space, but all of them together do not.
#[test]
fn huge_sizes_that_add_up() {
    for device in [Device::Cpu(0), Device::Null] {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        for i in 0..4 {
            t.variable(VariableSpec::new(format!("w{i}"), [(1 << 60) - 1]).dtype(DType::F64));
        }
        let options = SessionOptions { device, ..SessionOptions::default() };
        let e = Session::with(g.freeze().unwrap(), options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Memory, "{device}: {e}");
        assert_mentions(&e, &["variables"]);
    }
    for device in [Device::Cpu(0), Device::Null] {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::new("x", DType::F64, [Some(3)]));
        let vast: Vec<Tensor> =
            (0..4).map(|i| (&x + f64::from(i)).pad(&[0], &[(1 << 60) - 9], &[0])).collect();
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(g.freeze().unwrap(), options).unwrap();
        let x = HostTensor::zeros(DType::F64, [3]).unwrap();
        let e = session.run(&[&vast[0], &vast[1], &vast[2], &vast[3]], &[("x", &x)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Memory, "{device}: {e}");
        assert_mentions(&e, &["program"]);
    }
}

/// The other sizes of an empty tensor may be huge: products of them must not overflow.
#[test]
fn huge_sizes_of_empty_feeds() {
    let max = usize::MAX;
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [None, None]));
    let w = g.placeholder(&TensorSpec::f32("w", [None, None]));
    let sums = x.sum();
    let rows = x.sum_axes(&[1]);
    let columns = x.sum_axes(&[0]);
    let (flat, turned, product) = (x.reshape(&[-1]), x.matrix_transpose().relu(), x.matmul(&w));
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let empty = |sizes: [usize; 2]| HostTensor::new(sizes, Vec::<f32>::new()).unwrap();
    for sizes in [[max, 0], [0, max]] {
        let feed = empty(sizes);
        let run = |t: &Tensor| session.run(&[t], &[("x", &feed)]);
        assert_eq!(run(&sums).unwrap()[0].to_scalar().unwrap(), 0.0);
        assert_eq!(run(&turned).unwrap()[0].sizes(), [sizes[1], sizes[0]]);
        assert_eq!(run(&flat).unwrap()[0].sizes(), [0]);
        let (vast, none) = if sizes[0] == 0 { (&columns, &rows) } else { (&rows, &columns) };
        assert_eq!(run(none).unwrap()[0].sizes(), [0]);
        let e = run(vast).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Shape);
        assert_mentions(&e, &["elements"]);
    }
    let (a, b) = (empty([0, max]), empty([max, 0]));
    assert_eq!(session.run(&[&product], &[("x", &a), ("w", &b)]).unwrap()[0].sizes(), [0, 0]);
    let e = session.run(&[&product], &[("x", &b), ("w", &a)]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
}

#[test]
fn a_model_larger_than_memory() {
    let build = || {
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let x = g.placeholder(&TensorSpec::f32("x", [None, Some(1000)]));
        let y = Linear::new(1000).relu().apply(&t, "fc0", &x);
        let y = Linear::new(1000).apply(&t, "fc1", &y);
        (g.freeze().unwrap(), y)
    };
    let with_limit = |bytes| SessionOptions { memory_limit: Some(bytes), ..SessionOptions::default() };
    let (graph, _) = build();
    assert_error(
        Session::with(graph, with_limit(1_500_000)),
        ErrorKind::Memory,
        &["variables", "8.0 MB", "1.5 MB", "smaller batch"],
    );
    let (graph, y) = build();
    let session = Session::with(graph, with_limit(10_000_000)).unwrap();
    let e = session.run(&[&y], &[("x", &zeros(&[5000, 1000]))]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory);
    assert_mentions(&e, &["program", " MB"]);
    // A batch that fits still runs.
    assert_eq!(session.run(&[&y], &[("x", &zeros(&[2, 1000]))]).unwrap()[0].sizes(), [2, 1000]);
}

/// Returns the error of a graph into which `build` puts a mistake.
fn building(build: impl FnOnce(&Graph, &TowerContext)) -> Error {
    let g = Graph::new();
    build(&g, &TowerContext::training(&g));
    let e = g.freeze().unwrap_err();
    assert!(e.site().unwrap().file.ends_with("bad_input.rs"), "{e}");
    e
}

#[test]
fn illegal_names() {
    for (bad, why) in [
        ("", "empty"),
        ("a b", "contains ' '"),
        ("a//b", "empty part"),
        ("/a", "empty part"),
        ("ü", "contains 'ü'"),
    ] {
        for e in [
            building(|g, _| drop(g.placeholder(&TensorSpec::f32(bad, [])))),
            building(|_, t| drop(t.variable(VariableSpec::new(bad, [1])))),
            building(|_, t| t.scope(bad, |_| ())),
            building(|_, t| t.name_scope(bad, |_| ())),
            building(|g, _| drop(g.placeholder(&TensorSpec::f32("x", [])).relu().named(bad))),
        ] {
            assert_eq!(e.kind(), ErrorKind::Name);
            assert_mentions(&e, &[&format!("name {bad:?}"), why]);
        }
    }
}

#[test]
fn tower_is_a_reserved_name() {
    for e in [
        building(|_, t| drop(t.variable(VariableSpec::new("my_tower_w", [1])))),
        building(|_, t| t.scope("tower0", |_| ())),
        building(|_, t| drop(t.scope("tower", |t| t.variable(VariableSpec::new("w", [1]))))),
    ] {
        assert_eq!(e.kind(), ErrorKind::Name);
        assert_mentions(&e, &["\"tower\"", "reserved"]);
    }
}

#[test]
fn duplicate_names() {
    let taken = |build: &dyn Fn(&Graph, &TowerContext)| {
        let e = building(build);
        assert_eq!(e.kind(), ErrorKind::Name);
        assert_mentions(&e, &["name \"a\"", "taken"]);
    };
    let a = |g: &Graph| g.placeholder(&TensorSpec::f32("a", [Some(2)]));
    taken(&|g, _| {
        a(g);
        a(g);
    });
    taken(&|g, _| drop(a(g).relu().named("a")));
    taken(&|g, t| {
        a(g);
        t.variable(VariableSpec::new("a", [2]));
    });
    taken(&|g, t| {
        t.variable(VariableSpec::new("a", [2]));
        a(g);
    });
    taken(&|g, t| {
        g.placeholder(&TensorSpec::f32("x", [Some(2)])).relu().named("a");
        t.variable(VariableSpec::new("a", [2]));
    });
}

#[test]
fn a_variable_created_twice() {
    let twice = |sizes: [usize; 2], reuse: bool| {
        building(|_, t| {
            t.scope("fc", |t| {
                t.variable(VariableSpec::new("W", [2, 3]));
                match reuse {
                    true => t.reuse(|t| t.variable(VariableSpec::new("W", sizes))),
                    false => t.variable(VariableSpec::new("W", sizes)),
                }
            });
        })
    };
    let e = twice([2, 3], false);
    assert_eq!(e.kind(), ErrorKind::Name, "{e}");
    assert_mentions(&e, &["fc/W", "exists", "bad_input.rs", "reuse"]);
    for reuse in [false, true] {
        let e = twice([3, 2], reuse);
        assert_eq!(e.kind(), ErrorKind::Shape);
        assert_mentions(&e, &["fc/W", "f32[2, 3]", "f32[3, 2]"]);
    }
}

#[test]
fn a_sharing_tower_creates_no_trainable_variable() {
    let g = Graph::new();
    let t = TowerContext::new(&g, Mode::Training, 1, 2);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let line = line!() + 1;
    Linear::new(2).apply(&t, "fc", &x);
    let e = g.freeze().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Name);
    assert_mentions(&e, &["fc/W", "does not exist", "shares"]);
    assert_eq!(e.site().unwrap().line, line);
}

#[test]
fn an_initial_value_of_another_dtype_or_shape() {
    for value in [zeros(&[1000]), zeros(&[2]), HostTensor::zeros(DType::F64, [3]).unwrap()] {
        for device in [Device::Cpu(0), Device::Null] {
            let g = Graph::new();
            let t = TowerContext::training(&g);
            t.variable(VariableSpec::new("w", [3]).init(Init::Value(value.clone())));
            let options = SessionOptions { device, ..SessionOptions::default() };
            let e = g.freeze().and_then(|graph| Session::with(graph, options)).unwrap_err();
            let form = format!("{}{:?}", value.dtype(), value.sizes());
            assert!(e.message().contains(&form) && e.message().contains("f32[3]"), "{e}");
            assert!(e.message().contains(" w "), "{e}");
        }
    }
}

#[test]
fn tensors_of_another_graph() {
    let other = Graph::new();
    let foreign = other.placeholder(&TensorSpec::f32("foreign", [Some(2)]));
    let e = building(|g, _| {
        let x = g.placeholder(&TensorSpec::f32("x", [Some(2)]));
        let _ = &x + &foreign;
    });
    assert_eq!(e.kind(), ErrorKind::Graph);
    assert_mentions(&e, &["Add: ", "foreign", "another graph"]);
    let e = building(|g, t| {
        let w = t.variable(VariableSpec::new("w", [2]));
        g.group(&[&w.assign(&foreign)]);
    });
    assert_eq!(e.kind(), ErrorKind::Graph);
    let e = building(|g, _| {
        let w = TowerContext::training(&other).variable(VariableSpec::new("w", [2]));
        g.group(&[&w.assign(&foreign)]);
    });
    assert_mentions(&e, &["Group: ", "another graph"]);
    let s = small();
    assert_error(s.session.run(&[&foreign], &[]), ErrorKind::Graph, &["foreign", "different graph"]);
}

#[test]
fn fetching_a_poison_tensor() {
    let other = Graph::new();
    let bad = other.placeholder(&TensorSpec::f32("x", [Some(2)])).reshape(&[3]);
    let s = small();
    assert_eq!(s.session.run(&[&bad], &[]).unwrap_err().kind(), ErrorKind::Graph);
    // A handle created after freezing has no node either.
    let late = s.mean.relu();
    assert_eq!(s.session.prepare(&[&late]).unwrap_err().kind(), ErrorKind::Graph);
    assert_error(s.session.prepare(&[&late]), ErrorKind::Graph, &["could not be built"]);
    assert!(s.session.prepare(&[&s.mean]).is_ok());
}

#[test]
fn two_assignments_in_one_run() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let w = t.variable(VariableSpec::new("w", [2]).init(Init::zeros()));
    let first_line = line!() + 1;
    let first = w.assign(&x);
    let second_line = line!() + 1;
    let second = w.assign(&(&x * 2.0));
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let value = f32s(&[2], &[1.0, 2.0]);
    let feeds = [("x", &value)];
    let e = assert_error(session.run(&[&first, &second], &feeds), ErrorKind::Graph, &["variable w", "twice"]);
    assert_eq!(e.site().unwrap().line, second_line);
    assert!(e.to_string().contains(&format!("bad_input.rs:{first_line}")), "{e}");
    assert_eq!(session.read("w").unwrap(), zeros(&[2]));
    session.run(&[&first], &feeds).unwrap();
    session.run(&[&second], &feeds).unwrap();
    assert_eq!(session.read("w").unwrap(), f32s(&[2], &[2.0, 4.0]));
}

#[test]
fn reading_and_writing_variables() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let w = t.variable(VariableSpec::new("w", [2, 3]).init(Init::ones()));
    let wrong = t.variable(VariableSpec::new("v", [2]));
    assert_eq!(w.assign(&wrong).id(), None);
    let e = g.freeze().unwrap_err();
    assert_mentions(&e, &["Assign: ", "f32[2] ", "f32[2, 3]"]);

    let g = Graph::new();
    TowerContext::training(&g).variable(VariableSpec::new("w", [2, 3]).init(Init::ones()));
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let write = |value: &HostTensor| session.write("w", value);
    assert_error(write(&zeros(&[3, 2])), ErrorKind::Shape, &["variable w", "f32[2, 3]", "f32[3, 2]"]);
    let double = HostTensor::zeros(DType::F64, [2, 3]).unwrap();
    assert_error(write(&double), ErrorKind::Shape, &["variable w", "f32[2, 3]", "f64[2, 3]"]);
    assert_error(session.write("u", &double), ErrorKind::Name, &["no variable", "\"u\""]);
    assert_error(session.read("u"), ErrorKind::Name, &["no variable", "\"u\""]);
    assert_eq!(session.read("w").unwrap(), f32s(&[2, 3], &[1.0; 6]));
}

#[test]
fn labels_outside_the_classes() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let y = g.placeholder(&TensorSpec::i32("y", [None]));
    let logits = Linear::new(4).apply(&t, "fc", &x);
    let line = line!() + 1;
    let cost = logits.sparse_softmax_cross_entropy(&y).mean();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let before = session.read("fc/W").unwrap();
    for bad in [4, -1, i32::MAX, i32::MIN] {
        let label = HostTensor::new([2], vec![0, bad]).unwrap();
        let e = session.run(&[&cost, &train], &[("x", &zeros(&[2, 3])), ("y", &label)]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite);
        assert_mentions(&e, &["SparseSoftmaxCrossEntropy/CheckLabels", "outside 0..4"]);
        assert_eq!(e.site().unwrap().line, line);
        assert_eq!(session.read("fc/W").unwrap(), before);
    }
}

/// The behaviour of a custom kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Behavior {
    Copies,
    Fails,
    Panics,
    /// Returns NaN in the first call, and panics in the second.
    NanThenPanics,
    /// Returns an output of another shape.
    Reshapes,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Custom(Behavior);

#[derive(Debug)]
struct TestKernel(Behavior);

thread_local! {
    /// Number of runs of a custom kernel on this thread, which is the session's caller.
    static RUNS: Cell<usize> = const { Cell::new(0) };
}

impl OpDef for Custom {
    fn name(&self) -> &str {
        "Custom"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(TestKernel(self.0))))
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }
}

impl CustomKernel for TestKernel {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        let runs = RUNS.replace(RUNS.get() + 1);
        outputs[0] = inputs[0].clone();
        match self.0 {
            Behavior::Copies => Ok(()),
            Behavior::Fails => Err(Error::argument("negative input")),
            Behavior::Panics => panic!("index out of bounds"),
            Behavior::NanThenPanics if runs > 0 => panic!("index out of bounds"),
            Behavior::NanThenPanics => {
                outputs[0].as_mut_slice::<f32>()?[0] = f32::NAN;
                Ok(())
            }
            Behavior::Reshapes => {
                outputs[0] = HostTensor::zeros(DType::F32, [7])?;
                Ok(())
            }
        }
    }
}

/// A session that runs `w += Custom(x)`.
fn custom(behavior: Behavior) -> (Session, tensorpack::graph::Op, u32) {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let w = t.variable(VariableSpec::new("w", [2]).init(Init::ones()));
    let line = line!() + 1;
    let y = t.scope("net", |_| Tensor::apply_one(Custom(behavior), &[&x]));
    let op = w.update(|w| w + y);
    (Session::new(g.freeze().unwrap()).unwrap(), op, line)
}

#[test]
fn a_custom_kernel_that_works() {
    let (session, op, _) = custom(Behavior::Copies);
    session.run(&[&op], &[("x", &f32s(&[2], &[1.0, 2.0]))]).unwrap();
    assert_eq!(session.read("w").unwrap(), f32s(&[2], &[2.0, 3.0]));
}

/// An error affects only its run: no variable has changed, so the session remains usable.
#[test]
fn a_custom_kernel_that_fails() {
    for (behavior, terms) in
        [(Behavior::Fails, ["net/Custom", "negative input"]), (Behavior::Reshapes, ["f32[7]", "f32[2]"])]
    {
        let (session, op, line) = custom(behavior);
        for _ in 0..2 {
            let e = session.run(&[&op], &[("x", &zeros(&[2]))]).unwrap_err();
            assert_mentions(&e, &terms);
            assert_eq!(e.site().unwrap().line, line);
        }
        assert_eq!(session.read("w").unwrap(), f32s(&[2], &[1.0, 1.0]));
    }
}

/// A panic ends the session: every later call returns the first cause.
#[test]
fn a_custom_kernel_that_panics() {
    for behavior in [Behavior::Panics, Behavior::NanThenPanics] {
        RUNS.set(0);
        let (session, op, line) = custom(behavior);
        let x = zeros(&[2]);
        // The session runs again to find the source of a NaN, and that run may panic.
        let first = session.run(&[&op], &[("x", &x)]).unwrap_err();
        assert_eq!(first.kind(), ErrorKind::Engine, "{behavior:?}: {first}");
        assert_mentions(&first, &["net/Custom", "panicked", "index out of bounds", "checkpoint"]);
        assert_eq!(first.site().unwrap().line, line);
        for again in [
            session.run(&[&op], &[("x", &x)]).unwrap_err(),
            session.run(&[&op], &[]).unwrap_err(),
            session.read("w").unwrap_err(),
            session.run_index().unwrap_err(),
        ] {
            assert_eq!(again.to_string(), first.to_string());
        }
    }
}

/// An operation whose lowering contradicts its shape rule.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WrongShape;

impl tensorpack::graph::OpDef for WrongShape {
    fn name(&self) -> &str {
        "WrongShape"
    }
    fn infer(&self, inputs: &[tensorpack::graph::Spec]) -> tensorpack::Result<Vec<tensorpack::graph::Spec>> {
        Ok(vec![tensorpack::graph::Spec::new(inputs[0].dtype, [7])])
    }
    fn lower(&self, cx: &mut tensorpack::kir::LowerCx<'_>) -> tensorpack::Result<Vec<tensorpack::kir::View>> {
        Ok(vec![cx.input(0)])
    }
}

#[test]
fn an_operation_whose_lowering_contradicts_its_shape_rule() {
    let graph = tensorpack::graph::Graph::new();
    let x = graph.placeholder(&tensorpack::graph::TensorSpec::f32("x", [None]));
    let y = tensorpack::graph::Tensor::apply_one(WrongShape, &[&x]);
    let session = tensorpack::runtime::Session::new(graph.freeze().unwrap()).unwrap();
    let fed = tensorpack::HostTensor::new([2], vec![1.0f32, 2.0]).unwrap();
    let e = session.run(&[&y], &[("x", &fed)]).unwrap_err();
    assert_mentions(&e, &["WrongShape", "lowered", "[2]", "[7]"]);
}

/// Tensors are numbered in each graph, so one of another graph must not be taken for the one with its
/// number.
#[test]
fn tensors_of_another_graph_in_gradients_and_summaries() {
    let foreign = || Graph::new().placeholder(&TensorSpec::f32("foreign", []));
    let graph = Graph::new();
    let line = line!() + 1;
    let found = gradients(&graph.placeholder(&TensorSpec::f32("x", [])).square(), &[&foreign()]);
    let e = assert_error(found.map(|_| ()), ErrorKind::Graph, &["another graph"]);
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
    for what in ["gradient", "summary", "moving_summary", "image_summary", "poison"] {
        let e = building(|g, t| {
            let x = g.placeholder(&TensorSpec::f32("x", []));
            let cost = x.square();
            match what {
                "gradient" => drop(cost.gradient(&foreign())),
                "summary" => t.summary(&[&foreign()]),
                "moving_summary" => t.moving_summary_with_decay(0.5, &[&foreign()]),
                "image_summary" => t.image_summary(&foreign()),
                _ => drop(&x + foreign().matmul(&foreign())),
            }
        });
        assert_eq!(e.kind(), ErrorKind::Graph, "{what}: {e}");
        assert_mentions(&e, &["another graph"]);
        assert_eq!(e.site().map(|s| s.file), Some(file!()), "{what}: {e}");
    }
}

/// The index is that of the image, as it was given, not that of a pixel.
#[test]
fn an_image_index_out_of_range_is_named() {
    for (index, aligned) in [(-1, true), (2, false)] {
        let g = Graph::new();
        let images = g.placeholder(&TensorSpec::f32("images", [Some(2), Some(3), Some(3), Some(1)]));
        let boxes = g.constant(f32s(&[1, 4], &[0.0, 0.0, 2.0, 2.0]));
        let at = g.placeholder(&TensorSpec::i32("at", [Some(1)]));
        let y = match aligned {
            true => images.roi_align(&boxes, &at, [1, 1]),
            false => images.crop_and_resize(&boxes, &at, [1, 1]),
        };
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let at = HostTensor::new([1], vec![index]).unwrap();
        let run = session.run(&[&y], &[("images", &zeros(&[2, 3, 3, 1])), ("at", &at)]);
        assert_error(run, ErrorKind::Argument, &["element 0", &format!("is {index}"), "0..2"]);
    }
}

#[test]
fn weights_of_box_offsets_are_positive() {
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        for code in [Tensor::encode_boxes, Tensor::decode_boxes] {
            let g = Graph::new();
            let boxes = g.placeholder(&TensorSpec::f32("boxes", [None, Some(4)]));
            code(&boxes, &boxes, [1.0, 1.0, weight, 1.0]);
            assert_error(g.freeze(), ErrorKind::Argument, &["weights", "positive and finite"]);
        }
    }
}
