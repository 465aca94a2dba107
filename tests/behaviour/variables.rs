//! Variables in a run: reads return the values at its start, updates compose in build order, and
//! all of them take effect together at the end.

use proptest::prelude::*;
use tensorpack::graph::{
    GLOBAL_VARIABLES, Graph, Init, LOCAL_VARIABLES, MODEL_VARIABLES, Op, TRAINABLE_VARIABLES, Tensor,
    TensorSpec, UPDATE_OPS, Variable, VariableSpec,
};
use tensorpack::nn::{BatchNorm, Linear};
use tensorpack::optim::{Adam, Sgd, minimize};
use tensorpack::runtime::{IntoFetch, Session};
use tensorpack::tower::{Mode, TowerContext};
use tensorpack::{ErrorKind, HostTensor};
use tensorpack_testing::{assert_mentions, test_cases};

fn f32s(values: &[f32]) -> HostTensor {
    HostTensor::new([values.len()], values.to_vec()).unwrap()
}

fn variable(t: &TowerContext, name: &str, values: &[f32]) -> Variable {
    t.variable(VariableSpec::new(name, [values.len()]).init(Init::Value(f32s(values))))
}

fn read(session: &Session, name: &str) -> Vec<f32> {
    session.read(name).unwrap().as_slice::<f32>().unwrap().to_vec()
}

/// Returns the variables a and b after one run of the operations that `build` returns.
fn after(build: impl FnOnce(&Graph, &Variable, &Variable) -> Vec<Op>) -> (Vec<f32>, Vec<f32>) {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let (a, b) = (variable(&t, "a", &[1.0, 2.0]), variable(&t, "b", &[10.0, 20.0]));
    let ops = build(&g, &a, &b);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let fetches: Vec<&dyn IntoFetch> = ops.iter().map(|op| op as &dyn IntoFetch).collect();
    assert!(session.run(&fetches, &[]).unwrap().is_empty());
    (read(&session, "a"), read(&session, "b"))
}

#[test]
fn updates_compose_in_the_order_they_were_built() {
    let (a, _) = after(|_, a, _| {
        let plus = a.update(|a| a + 1.0);
        let times = a.update(|a| a * 3.0);
        // The order of fetches does not matter.
        vec![times, plus]
    });
    assert_eq!(a, [6.0, 9.0]);
    let (a, _) = after(|_, a, _| {
        let _plus = a.update(|a| a + 1.0);
        vec![a.update(|a| a * 3.0)]
    });
    assert_eq!(a, [3.0, 6.0], "an update that is not run has no effect");
}

#[test]
fn updates_and_assignments_mix() {
    let (a, b) = after(|_, a, b| {
        let assign = a.assign(b);
        vec![assign, a.update(|a| a + 1.0)]
    });
    assert_eq!((a, b), (vec![11.0, 21.0], vec![10.0, 20.0]));
    let (a, _) = after(|_, a, b| {
        let lost = a.update(|a| a + 1.0);
        vec![lost, a.assign(b)]
    });
    assert_eq!(a, [10.0, 20.0], "an assignment replaces earlier updates");
}

#[test]
fn reads_see_the_start_of_the_run() {
    let (a, b) = after(|_, a, b| {
        let first = a.update(|a| a + b.value());
        vec![first, b.update(|b| b + a.value())]
    });
    assert_eq!((a, b), (vec![11.0, 22.0], vec![11.0, 22.0]));
}

#[test]
fn two_variables_swap() {
    let (a, b) = after(|_, a, b| vec![a.assign(b), b.assign(a)]);
    assert_eq!((a, b), (vec![10.0, 20.0], vec![1.0, 2.0]));
}

/// Of two fused updates, the first reads what the second overwrites, although the
/// second comes earlier in memory.
#[test]
fn fused_updates_read_values_before_they_are_overwritten() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let values = [1.0, 10.0, 100.0, 1000.0];
    let v: Vec<Variable> =
        values.iter().enumerate().map(|(i, &x)| variable(&t, &format!("v{i}"), &[x, -x])).collect();
    let ops: Vec<Op> = (1..4).rev().map(|i| v[i].assign(&(v[i - 1].value() - 3.0))).collect();
    let back = v[0].assign(&(v[3].value() - 3.0));
    let all = g.group(&ops.iter().chain([&back]).collect::<Vec<_>>());
    let session = Session::new(g.freeze().unwrap()).unwrap();
    session.run(&[&all], &[]).unwrap();
    let got: Vec<f32> = (0..4).map(|i| read(&session, &format!("v{i}"))[0]).collect();
    assert_eq!(got, [997.0, -2.0, 7.0, 97.0]);
}

#[test]
fn a_variable_becomes_its_own_reverse() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let value = HostTensor::new([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let w = t.variable(VariableSpec::new("w", [2, 3]).init(Init::Value(value)));
    let turned = w.transpose(&[1, 0]).reshape(&[2, 3]) * 2.0;
    let op = w.assign(&turned);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    session.run(&[&op], &[]).unwrap();
    assert_eq!(read(&session, "w"), [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]);
}

#[test]
fn a_fetch_in_the_run_of_an_update_returns_the_value_before_it() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let a = variable(&t, "a", &[1.0, 2.0]);
    let twice = a.value() * 2.0;
    let op = a.update(|a| a + 1.0);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    for k in 0..3 {
        let got = session.run(&[&a, &op, &twice], &[]).unwrap();
        let k = k as f32;
        assert_eq!(got, [f32s(&[1.0 + k, 2.0 + k]), f32s(&[2.0 + 2.0 * k, 4.0 + 2.0 * k])]);
    }
    assert_eq!(read(&session, "a"), [4.0, 5.0]);
}

#[test]
fn groups_run_each_member_once() {
    let (a, b) = after(|g, a, b| {
        let (plus, minus) = (a.update(|a| a + 1.0), b.update(|b| b - 1.0));
        let inner = g.group(&[&plus, &minus]);
        vec![g.group(&[&inner, &plus]), minus, g.group(&[])]
    });
    assert_eq!((a, b), (vec![2.0, 3.0], vec![9.0, 19.0]));
}

#[test]
fn a_shared_layer_is_one_variable_with_one_gradient() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [Some(1), Some(2)]));
    let layer = Linear::new(2).no_bias().init(Init::ones());
    let y = layer.apply(&t, "fc", &x);
    let z = t.reuse(|t| layer.apply(t, "fc", &y));
    let train = minimize(&z.sum(), &Sgd::new(1.0)).unwrap();
    assert_eq!(g.collection(TRAINABLE_VARIABLES).variables.len(), 1);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let x = HostTensor::new([1, 2], vec![1.0f32, 2.0]).unwrap();
    session.run(&[&train], &[("x", &x)]).unwrap();
    // With W all ones: d sum(xWW) / dW[i][j] = 2 x[i] + (x[0] + x[1]).
    assert_eq!(read(&session, "fc/W"), [1.0 - 5.0, 1.0 - 5.0, 1.0 - 7.0, 1.0 - 7.0]);
}

#[test]
fn later_towers_share_the_variables_of_the_first() {
    let g = Graph::new();
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
    let outputs: Vec<Tensor> = (0..3)
        .map(|i| Linear::new(3).apply(&TowerContext::new(&g, Mode::Training, i, 3), "fc", &x))
        .collect();
    assert_eq!(g.collection(TRAINABLE_VARIABLES).variables.len(), 2);
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let x = HostTensor::new([1, 2], vec![1.0f32, 2.0]).unwrap();
    let got = session.run(&[&outputs[0], &outputs[1], &outputs[2]], &[("x", &x)]).unwrap();
    assert!(got[0] == got[1] && got[1] == got[2]);
}

#[test]
fn batch_norm_used_twice_updates_its_averages_twice() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(1)]));
    let bn = BatchNorm::new().momentum(0.5);
    bn.apply(&t, "bn", &x);
    t.reuse(|t| bn.apply(t, "bn", &(&x * 3.0)));
    let updates = g.collection_ops(UPDATE_OPS);
    assert_eq!(updates.len(), 4);
    let all = g.group(&updates.iter().collect::<Vec<_>>());
    let session = Session::new(g.freeze().unwrap()).unwrap();
    let x = HostTensor::new([2, 1], vec![1.0f32, 3.0]).unwrap();
    session.run(&[&all], &[("x", &x)]).unwrap();
    // Means 2 and 6; unbiased variances 2 and 18; from 0 and 1.
    assert_eq!(read(&session, "bn/mean/EMA"), [(0.5 * 2.0) * 0.5 + 0.5 * 6.0]);
    assert_eq!(read(&session, "bn/variance/EMA"), [(0.5 * 1.0 + 0.5 * 2.0) * 0.5 + 0.5 * 18.0]);
}

#[test]
fn variables_and_updates_are_in_their_collections() {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let x = g.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
    let y = BatchNorm::new().apply(&t, "bn", &Linear::new(1).apply(&t, "fc", &x));
    t.variable(VariableSpec::new("seen", [1]).init(Init::zeros()).local());
    minimize(&y.square().mean(), &Adam::new(0.1)).unwrap();
    let names = |key: &str| -> Vec<String> {
        g.collection(key).variables.iter().map(|&id| g.variable_info(id).unwrap().name).collect()
    };
    let trained = ["fc/W", "fc/b", "bn/gamma", "bn/beta"];
    assert_eq!(names(TRAINABLE_VARIABLES), trained);
    assert_eq!(names(MODEL_VARIABLES), [&trained[..], &["bn/mean/EMA", "bn/variance/EMA"]].concat());
    assert_eq!(names(LOCAL_VARIABLES), ["seen"]);
    let global = names(GLOBAL_VARIABLES);
    assert_eq!(global.len(), 6 + 2 + 2 * trained.len());
    for name in trained {
        for slot in ["adam_m", "adam_v"] {
            assert!(global.contains(&format!("{name}/{slot}")), "{name}/{slot} is missing from {global:?}");
        }
    }
    let frozen = g.freeze().unwrap();
    assert_eq!(frozen.collection(TRAINABLE_VARIABLES).variables.len(), 4);
    assert_eq!(frozen.collection(UPDATE_OPS).ops.len(), 2);
    assert!(frozen.collection("no such").variables.is_empty());
}

/// A cost that depends on w only, with a second variable u.
fn with_unused(prepare: impl FnOnce(&Graph, &Variable) -> Option<Tensor>) -> tensorpack::Result<(f32, f32)> {
    let g = Graph::new();
    let t = TowerContext::training(&g);
    let (w, u) = (variable(&t, "w", &[1.0]), t.scope("net", |t| variable(t, "u", &[1.0])));
    let cost = w.square().sum();
    let cost = prepare(&g, &u).map_or(cost.clone(), |more| cost + more);
    let train = minimize(&cost, &Sgd::new(0.25))?;
    let session = Session::new(g.freeze()?)?;
    session.run(&[&train], &[])?;
    Ok((read(&session, "w")[0], read(&session, "net/u")[0]))
}

#[test]
fn a_trainable_variable_without_a_path_to_the_cost() {
    let e = with_unused(|_, _| None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Gradient);
    assert_mentions(&e, &["no gradient", "net/u", "non-trainable", "freeze_variables"]);
    assert!(e.site().unwrap().file.ends_with("tests/behaviour/variables.rs"), "{e}");
    let stopped = with_unused(|_, u| Some(u.stop_gradient().sum()));
    assert_eq!(stopped.unwrap(), (0.5, 1.0));
    let frozen = with_unused(|g, _| {
        g.freeze_variables("net/.*");
        None
    });
    assert_eq!(frozen.unwrap(), (0.5, 1.0));
    let frozen_though_used = with_unused(|g, u| {
        g.freeze_variables("net/u");
        Some(u.sum())
    });
    assert_eq!(frozen_though_used.unwrap(), (0.5, 1.0));
    let used = with_unused(|_, u| Some(u.sum()));
    assert_eq!(used.unwrap(), (0.5, 0.75));
    // A pattern must match a whole name.
    let line = line!() + 2;
    let misspelt = with_unused(|g, u| {
        g.freeze_variables("net");
        Some(u.sum())
    });
    let e = misspelt.unwrap_err();
    assert_eq!((e.kind(), e.site().map(|s| s.line)), (ErrorKind::Name, Some(line)), "{e}");
    assert!(e.message().contains("\"net\"") && e.to_string().contains("net/u"), "{e}");
}

/// One update of a variable: `scale * (current or 0) + other + shift`.
#[derive(Clone, Debug)]
struct Change {
    target: usize,
    /// Replaces the value instead of starting from the current one.
    plain: bool,
    scale: i32,
    other: usize,
    /// Reads the other variable with rows and columns swapped.
    turned: bool,
    shift: i32,
    /// Whether it is part of the run.
    runs: bool,
    /// Whether its result is also fetched, so that it must be stored.
    fetched: bool,
}

const COUNT: usize = 3;

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let one = (0..COUNT, any::<bool>(), -2..3i32, 0..COUNT, any::<bool>(), -3..4i32, 0..5u8, 0..6u8)
        .prop_map(|(target, plain, scale, other, turned, shift, runs, fetched)| Change {
            target,
            plain,
            scale,
            other,
            turned,
            shift,
            runs: runs > 0,
            fetched: fetched == 0,
        });
    prop::collection::vec(one, 1..9)
}

/// Applies the updates in plain Rust, by the rules above.
fn expected(start: &[[f32; 4]; COUNT], changes: &[Change]) -> [[f32; 4]; COUNT] {
    let mut next = *start;
    for c in changes.iter().filter(|c| c.runs) {
        let current = next[c.target];
        next[c.target] = std::array::from_fn(|i| {
            let from = if c.turned { [0, 2, 1, 3][i] } else { i };
            let own = if c.plain { 0.0 } else { current[i] };
            own * c.scale as f32 + start[c.other][from] + c.shift as f32
        });
    }
    next
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_cases(500), ..ProptestConfig::default() })]

    #[test]
    fn random_updates_match_plain_rust(mut changes in changes()) {
        // Two assignments of one variable in one run are an error, which another test covers.
        let mut assigned = [false; COUNT];
        for c in changes.iter_mut().filter(|c| c.runs && c.plain) {
            c.plain = !std::mem::replace(&mut assigned[c.target], true);
        }
        let start: [[f32; 4]; COUNT] = std::array::from_fn(|v| std::array::from_fn(|i| (10 * v + i) as f32));
        let g = Graph::new();
        let t = TowerContext::training(&g);
        let variables: Vec<Variable> = start
            .iter()
            .enumerate()
            .map(|(i, values)| {
                let value = HostTensor::new([2, 2], values.to_vec()).unwrap();
                t.variable(VariableSpec::new(format!("v{i}"), [2, 2]).init(Init::Value(value)))
            })
            .collect();
        let mut ops = Vec::new();
        let mut stored = Vec::new();
        for c in &changes {
            let other = variables[c.other].value();
            let other = if c.turned { other.matrix_transpose() } else { other.clone() };
            let target = &variables[c.target];
            let rest = other + f64::from(c.shift);
            let mut made = None;
            let mut keep = |value: Tensor| made.insert(value).clone();
            let op = match c.plain {
                true => target.assign(&keep(rest)),
                false => target.update(|v| keep(v * f64::from(c.scale) + rest)),
            };
            if c.runs {
                ops.push(op);
                stored.extend(made.filter(|_| c.fetched));
            }
        }
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let fetches: Vec<&dyn IntoFetch> = ops
            .iter()
            .map(|op| op as &dyn IntoFetch)
            .chain(stored.iter().map(|t| t as &dyn IntoFetch))
            .chain(variables.iter().map(|v| v as &dyn IntoFetch))
            .collect();
        let mut now = start;
        for _ in 0..2 {
            let fetched = session.run(&fetches, &[]).unwrap();
            for (v, got) in now.iter().zip(&fetched[stored.len()..]) {
                prop_assert_eq!(&v[..], got.as_slice::<f32>().unwrap());
            }
            now = expected(&now, &changes);
            for (i, want) in now.iter().enumerate() {
                prop_assert_eq!(&want[..], &read(&session, &format!("v{i}"))[..], "variable {} of {:?}", i, changes);
            }
        }
    }
}

/// An inference tower beside a training tower shares its weights; alone it creates them.
#[test]
fn an_inference_tower_shares_existing_variables() {
    let build = |train_too: bool| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
        let layer = Linear::new(2);
        let trained = train_too.then(|| layer.apply(&TowerContext::training(&graph), "fc", &x));
        let used = layer.apply(&TowerContext::inference(&graph), "fc", &x);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        assert_eq!(session.graph().variables().len(), 2);
        let fed = HostTensor::new([1, 3], vec![1.0f32, -2.0, 0.5]).unwrap();
        let run = |y: &Tensor| session.run(&[y], &[("x", &fed)]).unwrap().remove(0);
        (trained.map(|t| run(&t)), run(&used))
    };
    let (trained, used) = build(true);
    assert_eq!(trained.as_ref(), Some(&used));
    assert_eq!(build(false).1, used);
}
