//! Compares updates that are fused and written in place with the same next values fetched from a
//! graph that has a barrier after every operation and writes no variable.
//!
//! The random graphs have variables of several types and of equal, reshaped and one-element sizes;
//! next values that are views (transposed, sliced, reversed, broadcast) of other variables, feeds,
//! constants and temporaries; values shared by several updates, or fetched too.

use super::barrier::barrier;
use super::graph_builder::{Choices, GraphBuilder, for_random_graphs, sizes};
use tensorpack::graph::{Fetch, Graph, Init, Op, Tensor, TensorSpec, Variable, VariableSpec};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, HostTensor};

/// A graph with updates.
struct Drawn {
    session: Session,
    names: Vec<String>,
    next: Vec<Fetch>,
    update: Fetch,
    fetched: Vec<Fetch>,
    feeds: Vec<(String, HostTensor)>,
}

/// Returns the elements of `x` with the shape `want`: all of them in another order, a slice, or
/// some repeated.
fn fitted(x: &Tensor, want: &[usize], c: &mut Choices<'_>) -> Option<Tensor> {
    let (n, have): (usize, Vec<usize>) = (want.iter().product(), sizes(x));
    let target: Vec<isize> = want.iter().map(|&n| n as isize).collect();
    let len: usize = have.iter().product();
    let turned = match c.below(5) {
        0 if !have.is_empty() => x.reverse(&[c.below(have.len()) as isize]),
        1 => x.transpose(&c.permutation(have.len())),
        _ => x.clone(),
    };
    if len == n {
        return Some(turned.reshape(&target));
    }
    if len == 1 {
        return Some(turned.reshape(&[]).broadcast_to(&target));
    }
    let flat = turned.reshape(&[len as isize]);
    if len > n {
        let from = c.below(len - n + 1);
        return Some(flat.strided_slice(&[from], &[Some(from + n)], &[1]).reshape(&target));
    }
    let compatible = have.len() <= want.len()
        && have.iter().rev().zip(want.iter().rev()).all(|(&have, &want)| have == 1 || have == want);
    compatible.then(|| x.broadcast_to(&target))
}

fn draw(choices: &[u32], unfused: bool) -> Result<Drawn, String> {
    let c = &mut Choices(choices.iter());
    let rng = CounterRng::new(u64::from(choices[0]), "updates");
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let numbers = |i: usize, n: usize| -> Vec<f64> {
        (0..n).map(|k| ((rng.uniform(i as u64, k as u64) * 64.0).floor() + 0.5) / 16.0 - 2.0).collect()
    };
    let (a, b) = (c.pick(&[3, 2, 4, 1, 5, 17]), c.pick(&[2, 3, 1, 4, 11, 0]));
    let shapes = [
        vec![1],
        vec![],
        vec![a, b],
        vec![b, a],
        vec![a * b],
        vec![b],
        vec![1, a, 1],
        vec![1, 1],
        vec![a, a],
    ];
    let (mut variables, mut names, mut inputs): (Vec<Variable>, Vec<String>, Vec<Tensor>) =
        Default::default();
    for i in 0..2 + c.below(6) {
        let size = shapes[c.below(shapes.len())].clone();
        let dtype = c.pick(&[
            DType::F32,
            DType::F32,
            DType::F32,
            DType::F32,
            DType::F64,
            DType::Bf16,
            DType::F16,
            DType::I32,
            DType::I64,
        ]);
        let values = HostTensor::from_f64(dtype, size.clone(), &numbers(i, size.iter().product()))
            .map_err(|e| e.to_string())?;
        let spec = VariableSpec::new(format!("v{i}"), size).dtype(dtype).init(Init::Value(values));
        let spec = if c.below(3) == 0 { spec.non_trainable().slab("trainable") } else { spec };
        let v = t.variable(spec);
        inputs.push(v.value().cast(DType::F32));
        names.push(v.name().to_string());
        variables.push(v);
    }
    let mut feeds = Vec::new();
    for i in 0..3 {
        let size = c.pick(&[&shapes[2], &shapes[4], &shapes[0], &shapes[3]]).clone();
        let spec =
            TensorSpec::new(format!("x{i}"), DType::F32, size.iter().map(|&n| Some(n)).collect::<Vec<_>>());
        inputs.push(graph.placeholder(&spec));
        let values = HostTensor::from_f64(DType::F32, size.clone(), &numbers(100 + i, size.iter().product()));
        feeds.push((spec.name.clone(), values.map_err(|e| e.to_string())?));
    }
    // Temporaries that no map can be fused into.
    let sums: Vec<Tensor> =
        inputs.iter().filter(|x| x.rank() > 0).map(|x| x.sum_keep(&[c.below(x.rank()) as isize])).collect();
    inputs.extend(sums);
    let mut builder = GraphBuilder::new(&graph, DType::F32, inputs, unfused);
    (0..c.below(10)).for_each(|_| builder.add_op(c));
    let mut next: Vec<Tensor> = Vec::new();
    for v in &variables {
        let want = sizes(v);
        let mut value = None;
        for _ in 0..4 {
            let x = match c.below(6) {
                0 => variables[c.below(variables.len())].value().clone(),
                1 if !next.is_empty() => next[c.below(next.len())].clone(),
                _ => builder.any(c),
            };
            value = value.or_else(|| fitted(&x, &want, c));
        }
        let value = value.unwrap_or_else(|| v.value().clone());
        let value = if unfused { barrier(&value) } else { value };
        let by = c.pick(&[0.5, 1.0]);
        let next_value = match c.below(5) {
            0 => value.cast(v.dtype()),
            1 => v.value() - value.cast(v.dtype()),
            2 => (v.value().cast(DType::F32) - value.cast(DType::F32) * by).cast(v.dtype()),
            3 => (value.cast(DType::F32) * by + 1.0).cast(v.dtype()),
            _ => {
                let scalar = builder.all[c.below(builder.all.len())].sum() * 0.01;
                let scalar = if unfused { barrier(&scalar) } else { scalar };
                (v.value().cast(DType::F32) * scalar.tanh() + value.cast(DType::F32)).cast(v.dtype())
            }
        };
        next.push(if unfused { barrier(&next_value) } else { next_value });
    }
    let updates: Vec<Op> = variables.iter().zip(&next).map(|(v, next)| v.assign(next)).collect();
    let update = Fetch::from(&graph.group(&updates.iter().collect::<Vec<_>>()));
    let mut fetched: Vec<Fetch> = Vec::new();
    for x in builder.all.iter().chain(&next) {
        if c.below(12) == 11 {
            fetched.push(x.fetch());
        }
    }
    let next: Vec<Fetch> = next.iter().map(IntoFetch::fetch).collect();
    let frozen = graph.freeze().map_err(|e| e.to_string())?;
    let isa = c.pick(&[Isa::detect(), Isa::Plain]);
    let options =
        SessionOptions { isa: Some(isa), threads: Some(1 + c.below(2)), ..SessionOptions::default() };
    let session = Session::with(frozen, options).map_err(|e| e.to_string())?;
    Ok(Drawn { session, names, next, update, fetched, feeds })
}

/// Returns whether two values are equal up to rounding.
fn same(right: &HostTensor, found: &HostTensor) -> bool {
    let tolerance = match right.dtype() {
        DType::Bf16 => 1e-2,
        DType::F16 => 1.25e-3,
        d if d.is_float() => 1e-5,
        _ => 0.0,
    };
    let (a, b) = (right.to_f64_vec(), found.to_f64_vec());
    let scale = a.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
    let alike =
        |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= tolerance * scale || (a.is_nan() && b.is_nan());
    right.sizes() == found.sizes() && a.iter().zip(&b).all(alike)
}

fn check(joined: &Drawn, unfused: &Drawn) -> Result<(), String> {
    let Drawn { session, names, update, fetched, feeds, .. } = joined;
    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let failed = |e: tensorpack::Error| e.to_string();
    for step in 0..2 {
        let what: Vec<&dyn IntoFetch> = unfused.next.iter().map(|f| f as &dyn IntoFetch).collect();
        let right = unfused.session.run(&what, &feeds).map_err(failed)?;
        let what: Vec<&dyn IntoFetch> =
            std::iter::once(update).chain(fetched).map(|f| f as &dyn IntoFetch).collect();
        match session.run(&what, &feeds) {
            // Values that grow without bounds are an error, as expected.
            Err(e) if e.kind() == tensorpack::ErrorKind::NotFinite => return Ok(()),
            Err(e) => return Err(failed(e)),
            Ok(_) => {}
        }
        for (name, right) in names.iter().zip(&right) {
            let found = session.read(name).map_err(failed)?;
            if !same(right, &found) {
                let plan = session.plan_text(&what, &feeds).map_err(failed)?;
                let graph = session.graph().to_text();
                return Err(format!("after step {step} {name} is {found:?}, not {right:?}\n{plan}{graph}"));
            }
            unfused.session.write(name, &found).map_err(failed)?;
        }
    }
    Ok(())
}

#[test]
fn random_updates_are_the_same_in_place() {
    for_random_graphs("updates", 200, |choices| check(&draw(choices, false)?, &draw(choices, true)?));
}

/// Updates of the variables `w0`, `w1`, .., to run once.
struct Run {
    graph: Graph,
    tower: TowerContext,
    feeds: Vec<(String, HostTensor)>,
    updates: Vec<Op>,
}

impl Run {
    fn new() -> Run {
        let graph = Graph::new();
        let tower = TowerContext::training(&graph);
        Run { graph, tower, feeds: Vec::new(), updates: Vec::new() }
    }

    /// The next variable, with elements `100 w`, `100 w + 1`, ..
    fn variable(&mut self, sizes: &[usize], dtype: DType) -> Variable {
        let k = self.tower_variables();
        let values: Vec<f64> = (0..sizes.iter().product()).map(|i| (100 * k + i) as f64).collect();
        let value = HostTensor::from_f64(dtype, sizes.to_vec(), &values).unwrap();
        self.tower.variable(
            VariableSpec::new(format!("w{k}"), sizes.to_vec()).dtype(dtype).init(Init::Value(value)),
        )
    }

    fn tower_variables(&self) -> usize {
        (0..).take_while(|k| self.graph.variable_named(&format!("w{k}")).is_some()).count()
    }

    /// Returns a temporary with elements `from`, `from + 1`, .., which no map can be fused into:
    /// the sum of two feeds.
    fn temporary(&mut self, sizes: &[usize], dtype: DType, from: usize) -> Tensor {
        let name = format!("x{}", self.feeds.len());
        let n: usize = sizes.iter().product();
        let values: Vec<f64> = (0..2 * n).map(|i| if i < n { (from + i) as f64 } else { 0.0 }).collect();
        let sizes = [&[2], sizes].concat();
        let known: Vec<Option<usize>> = sizes.iter().map(|&n| Some(n)).collect();
        let input = self.graph.placeholder(&TensorSpec::new(name.clone(), dtype, known));
        self.feeds.push((name, HostTensor::from_f64(dtype, sizes, &values).unwrap()));
        input.sum_axes(&[0])
    }

    /// Runs the updates once and returns the values of all variables.
    fn after(self) -> Vec<Vec<f64>> {
        let count = self.tower_variables();
        let update = Fetch::from(&self.graph.group(&self.updates.iter().collect::<Vec<_>>()));
        let session = Session::new(self.graph.freeze().unwrap()).unwrap();
        let feeds: Vec<(&str, &HostTensor)> = self.feeds.iter().map(|(n, v)| (n.as_str(), v)).collect();
        session.run(&[&update], &feeds).unwrap();
        (0..count).map(|k| session.read(&format!("w{k}")).unwrap().to_f64_vec()).collect()
    }
}

fn counted(n: usize, f: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..n).map(|i| f(i as f64)).collect()
}

#[test]
fn a_slice_of_a_next_value_can_update_another_variable() {
    let mut run = Run::new();
    let (all, part) = (run.variable(&[6], DType::F32), run.variable(&[3], DType::F32));
    let next = all.value() * 2.0 + 1.0;
    run.updates.push(part.assign(&next.strided_slice(&[2], &[Some(5)], &[1])));
    run.updates.push(all.assign(&next));
    assert_eq!(run.after(), [counted(6, |i| 2.0 * i + 1.0), vec![5.0, 7.0, 9.0]]);
}

/// Padding after 40 elements is 8 elements of f32, but 24 of bf16.
#[test]
fn gradients_of_a_narrower_dtype_update_the_right_elements() {
    let mut run = Run::new();
    for k in 0..3 {
        let (w, g) = (run.variable(&[40], DType::F32), run.temporary(&[40], DType::Bf16, 10 * k));
        run.updates.push(w.update(|w| w - g.cast(DType::F32)));
    }
    let right = |k: usize| counted(40, |i| (100 * k) as f64 + i - ((10 * k) as f64 + i));
    assert_eq!(run.after(), [right(0), right(1), right(2)]);
}

/// Variables of f32 and f64 with few elements are equally far apart in bytes, not in elements.
#[test]
fn one_kernel_can_update_variables_of_several_dtypes() {
    let mut run = Run::new();
    let mut right = Vec::new();
    for k in [0, 2] {
        let (w, s) = (run.variable(&[3], DType::F32), run.variable(&[3], DType::F64));
        let g = run.temporary(&[3], DType::F32, 7);
        let next = w.value() - &g;
        run.updates.push(w.assign(&next));
        run.updates.push(s.update(|s| s + next.cast(DType::F64)));
        right.push(counted(3, |i| 100.0 * k as f64 + i - (7.0 + i)));
        right.push(counted(3, |i| 100.0 * (k + 1) as f64 + i + 100.0 * k as f64 - 7.0));
    }
    assert_eq!(run.after(), right);
}

#[test]
fn gradients_of_another_dtype_are_read_in_that_dtype() {
    let mut run = Run::new();
    for (k, dtype) in [DType::F32, DType::I32, DType::F32, DType::I32].into_iter().enumerate() {
        let (w, g) = (run.variable(&[5], DType::F32), run.temporary(&[5], dtype, k));
        run.updates.push(w.update(|w| w - g.cast(DType::F32)));
    }
    let right = |k: usize| counted(5, |_| (99 * k) as f64);
    assert_eq!(run.after(), [right(0), right(1), right(2), right(3)]);
}

/// A temporary that is read through two views still has one memory location.
#[test]
fn a_temporary_may_be_read_twice() {
    let mut run = Run::new();
    for twice in [true, false, true] {
        let w = run.variable(&[1, 3], DType::F32);
        let a = run.temporary(&[1, 3], DType::F32, 1);
        let b = if twice { a.reshape(&[3]) } else { run.temporary(&[3], DType::F32, 50) };
        run.updates.push(w.assign(&(a * b)));
    }
    let square = counted(3, |i| (i + 1.0) * (i + 1.0));
    assert_eq!(run.after(), [square.clone(), counted(3, |i| (i + 1.0) * (i + 50.0)), square]);
}

#[test]
fn variables_can_swap_values() {
    let mut run = Run::new();
    for sizes in [&[1][..], &[5], &[2, 2]] {
        let (a, b) = (run.variable(sizes, DType::F32), run.variable(sizes, DType::F32));
        run.updates.push(a.assign(&(b.value() + 1.0)));
        run.updates.push(b.assign(&(a.value() - b.value())));
    }
    let (a, b) = (run.variable(&[3], DType::F32), run.variable(&[3], DType::F32));
    run.updates.push(a.assign(b.value()));
    run.updates.push(b.assign(a.value()));
    let mut right = Vec::new();
    for (k, n) in [(0, 1), (2, 5), (4, 4)] {
        right.push(counted(n, |i| 100.0 * f64::from(k + 1) + i + 1.0));
        right.push(vec![-100.0; n]);
    }
    right.extend([counted(3, |i| 700.0 + i), counted(3, |i| 600.0 + i)]);
    assert_eq!(run.after(), right);
}

/// Larger than the chunk of a thread: an element must not be overwritten while another result still
/// depends on it.
#[test]
fn a_large_variable_can_become_its_own_permutation() {
    let n = 300;
    let at = |i: usize, j: usize| (n * i + j) as f64;
    let all = |f: &dyn Fn(usize, usize) -> f64| -> Vec<f64> { (0..n * n).map(|k| f(k / n, k % n)).collect() };
    let mut run = Run::new();
    let w: Vec<Variable> = (0..3).map(|_| run.variable(&[n, n], DType::F64)).collect();
    run.updates.push(w[0].assign(&(w[0].value() - w[0].matrix_transpose())));
    run.updates.push(w[1].assign(&(w[1].reverse(&[0, 1]) * 2.0)));
    let row = w[2].strided_slice(&[7, 0], &[Some(8), None], &[1, 1]);
    run.updates.push(w[2].assign(&(w[2].value() + row)));
    let right = [
        all(&|i, j| at(i, j) - at(j, i)),
        all(&|i, j| 2.0 * (100.0 + at(n - 1 - i, n - 1 - j))),
        all(&|i, j| 400.0 + at(i, j) + at(7, j)),
    ];
    assert!(run.after() == right, "some element was overwritten too early");
}
