//! Operations that move, order or compare elements, with expected values worked out by hand.

use crate::graph::{Graph, Tensor};
use crate::ops::CumsumOptions;
use crate::runtime::Session;
use tensorpack_tensor::{DType, HostTensor};

/// Returns the elements of `build` applied to a constant.
fn run(sizes: &[usize], values: &[f64], build: impl FnOnce(&Tensor) -> Tensor) -> Vec<f64> {
    let graph = Graph::new();
    let x = graph.constant(HostTensor::from_f64(DType::F32, sizes, values).unwrap());
    let y = build(&x);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    session.run(&[&y], &[]).unwrap()[0].to_f64_vec()
}

#[test]
fn concat_stack_split_tile_repeat_and_reverse() {
    let join = |x: &Tensor, axis| x.graph().concat(&[x, &(x * 10.0)], axis);
    assert_eq!(run(&[2, 2], &[1., 2., 3., 4.], |x| join(x, 0)), [1., 2., 3., 4., 10., 20., 30., 40.]);
    assert_eq!(run(&[2, 2], &[1., 2., 3., 4.], |x| join(x, 1)), [1., 2., 10., 20., 3., 4., 30., 40.]);
    let stack = |x: &Tensor, axis| x.graph().stack(&[x, &(x * 10.0)], axis);
    assert_eq!(run(&[2], &[1., 2.], |x| stack(x, 0)), [1., 2., 10., 20.]);
    assert_eq!(run(&[2], &[1., 2.], |x| stack(x, -1)), [1., 10., 2., 20.]);
    assert_eq!(run(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.split(&[1, 2], 1).remove(1)), [2., 3., 5., 6.]);
    assert_eq!(run(&[4], &[1., 2., 3., 4.], |x| x.split_equal(2, 0).remove(1)), [3., 4.]);
    assert_eq!(run(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.unstack(1).remove(2)), [3., 6.]);
    assert_eq!(run(&[2], &[1., 2.], |x| x.tile(&[2])), [1., 2., 1., 2.]);
    assert_eq!(run(&[2, 1], &[1., 2.], |x| x.tile(&[1, 3])), [1., 1., 1., 2., 2., 2.]);
    assert_eq!(run(&[2], &[1., 2.], |x| x.repeat(2, 0)), [1., 1., 2., 2.]);
    assert_eq!(run(&[2, 2], &[1., 2., 3., 4.], |x| x.repeat(2, 0)), [1., 2., 1., 2., 3., 4., 3., 4.]);
    assert_eq!(run(&[2, 3], &[1., 2., 3., 4., 5., 6.], |x| x.reverse(&[1])), [3., 2., 1., 6., 5., 4.]);
    assert_eq!(run(&[2, 2], &[1., 2., 3., 4.], |x| x.reverse(&[])), [4., 3., 2., 1.]);
}

#[test]
fn cumsum_options() {
    let sums = |exclusive, reverse| {
        run(&[3], &[1., 2., 4.], |x| x.cumsum_with(0, CumsumOptions { exclusive, reverse }))
    };
    assert_eq!(sums(false, false), [1., 3., 7.]);
    assert_eq!(sums(true, false), [0., 1., 3.]);
    assert_eq!(sums(false, true), [7., 6., 4.]);
    assert_eq!(sums(true, true), [6., 4., 0.]);
}

#[test]
fn iota() {
    assert_eq!(run(&[2, 2], &[0.; 4], |x| x.iota_like(1, DType::F32)), [0., 1., 0., 1.]);
    assert_eq!(run(&[2, 2], &[0.; 4], |x| x.iota_like(0, DType::U8)), [0., 0., 1., 1.]);
    assert_eq!(run(&[], &[0.], |x| x.graph().iota(4, DType::I64)), [0., 1., 2., 3.]);
}

#[test]
fn any_and_all() {
    let x = [0., 0., 0., 1., 1., 1.];
    let positive = |x: &Tensor| x.greater(0.0);
    assert_eq!(run(&[3, 2], &x, |x| positive(x).any_axes(&[1])), [0., 1., 1.]);
    assert_eq!(run(&[3, 2], &x, |x| positive(x).all_axes(&[1])), [0., 0., 1.]);
    assert_eq!(run(&[3, 2], &x, |x| positive(x).any_axes(&[])), [1.]);
    assert_eq!(run(&[3, 2], &x, |x| positive(x).all_axes(&[])), [0.]);
}

#[test]
fn sorting_is_stable_and_nan_is_largest() {
    let x = [2., 5., 2., f64::NAN, 5., -1.];
    assert_eq!(run(&[6], &x, |x| x.top_k(4).1), [3., 1., 4., 0.]);
    assert_eq!(run(&[6], &x, |x| x.top_k(4).0)[1..], [5., 5., 2.]);
    assert_eq!(run(&[6], &x, |x| x.argsort(0)), [5., 0., 2., 1., 4., 3.]);
    assert_eq!(run(&[3, 2], &[3., 1., 2., 2., 1., 3.], |x| x.sort(0)), [1., 1., 2., 2., 3., 3.]);
    assert_eq!(run(&[2, 2], &[3., 4., 2., 1.], |x| x.sort_descending(1)), [4., 3., 2., 1.]);
}

#[test]
fn in_top_k() {
    let among = |scores: &[f64; 4], target: i32, k| {
        let found = run(&[1, 4], scores, |x| {
            x.in_top_k(&x.graph().constant(HostTensor::new([1], vec![target]).unwrap()), k)
        });
        found == [1.0]
    };
    let scores = [0.1, 0.4, 0.4, 0.2];
    assert!(among(&scores, 1, 1) && among(&scores, 2, 1), "equal scores share the first rank");
    assert!(!among(&scores, 3, 2) && among(&scores, 3, 3) && !among(&scores, 0, 3) && !among(&scores, 1, 0));
    assert!(
        !among(&scores, 4, 4) && !among(&scores, -1, 4),
        "a target outside the classes is never among the top k"
    );
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(!among(&[0.1, bad, 0.2, 0.3], 3, 4), "a row with {bad} has no top k");
    }
}

#[test]
fn sums_of_narrow_floats_accumulate_in_f32() {
    // In bf16, 256 + 1 is 256, and in f16, 2048 + 1 is 2048, but sums of ones must be exact.
    for (narrow, n) in [(DType::Bf16, 1000), (DType::F16, 3000)] {
        let ones = |x: &Tensor| x.cast(narrow).broadcast_to(&[n as isize]);
        let indices = |x: &Tensor| x.graph().iota(n, DType::I32) * x.zero().cast(DType::I32);
        let total = run(&[], &[1.0], |x| ones(x).scatter_add(&indices(x), 1, 0).cast(DType::F32));
        assert_eq!(total, [n as f64]);
        let last = |x: &Tensor| ones(x).cumsum(0).slice_axis(0, n - 1, None).cast(DType::F32);
        assert_eq!(run(&[], &[1.0], last), [n as f64]);
        assert_eq!(run(&[], &[1.0], |x| ones(x).sum().cast(DType::F32)), [n as f64]);
        assert_eq!(run(&[3], &[1.0, 3.0, 2.0], |x| x.cast(narrow).top_k(2).1), [1.0, 2.0]);
    }
}

#[test]
fn bf16_operations_round_once() {
    // In bf16, 1 + 2^-8 is 1, but three times that sum is nearer to 3 + 2^-6 than to 3.
    for (equation, lhs, rhs) in [
        ("a,ae->a", &[1][..], &[1, 2][..]),
        ("ab,abe->a", &[1, 1], &[1, 1, 2]),
        ("ij,jkl->ik", &[1, 1], &[1, 1, 2]),
        ("jkl,ij->ik", &[1, 1, 2], &[1, 1]),
    ] {
        let product = |x: &Tensor| {
            let signed = |sizes: &[usize]| sizes.iter().map(|&n| n as isize).collect::<Vec<_>>();
            let operand = |sizes: &[usize]| {
                let (begin, end) = if sizes.contains(&2) { (1, 3) } else { (0, 1) };
                x.slice_axis(0, begin, Some(end)).cast(DType::Bf16).reshape(&signed(sizes))
            };
            x.graph().einsum(equation, &[operand(lhs), operand(rhs)])
        };
        assert_eq!(run(&[3], &[3.0, 1.0, 2f64.powi(-8)], product), [3.015625], "{equation}");
    }
    // The gradient with respect to the first is the product of the others: 1.3621 is 1.359375.
    let gradient = |x: &Tensor| {
        let x = x.cast(DType::Bf16);
        crate::autodiff::gradients(&x.prod(), &[&x]).unwrap().remove(0).unwrap()
    };
    assert_eq!(run(&[3], &[3.0, 1.0078125, 1.3515625], gradient)[0], 1.359375);
}
